"""Writing a task file from one sentence."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tickdown.actions.record import log_action, record_action
from tickdown.base.errors import Exit, TickdownError, explained
from tickdown.base.invocation import program_name
from tickdown.base.model import ActionName, Asker
from tickdown.base.terminal import printable
from tickdown.context.app import App, Opened, sync_catalog
from tickdown.context.task_file import note_own_edit
from tickdown.queries.tasks import TaskView, task_view
from tickdown.schedule.cron import ScheduleError
from tickdown.schedule.schedule import OneShot, parse_schedule
from tickdown.store import tasks
from tickdown.tasks.task import Task, parse_task, valid_id
from tickdown.time.zones import get_zone
from tickdown.workspace.folders import MAX_BYTES
from tickdown.workspace.scan import is_task_file

LONGEST_SLUG = 40
USUAL_AGENT = "claude"
USAGE = 'write "every monday at 09:00: run the report"'


def add(
    opened: Opened, asker: Asker, sentence: str, *, command: str | None = None, agent: str | None = None,
    url: str | None = None, task_id: str | None = None,
) -> TaskView:  # fmt: skip
    """Written only if the file would be accepted; the task is met at once, so that `in 30 minutes` counts from now."""
    app, now = opened.app, opened.now
    schedule, message = split_sentence(sentence)
    work: dict[str, str | None] = {"command": command} if url is None else {"run_as": "http", "url": url}
    if command is None and url is None:
        agent = agent or USUAL_AGENT
        if not message:
            raise TickdownError(
                f"the message behind the colon is what {agent} is told; {USAGE}, or give --command or --url", Exit.USAGE
            )
        work = {"run_as": agent, "prompt": message}
    name = task_id or slug(message or command or url or "")
    if not valid_id(name):
        hint = "letters, digits, '.', '_' and '-', at most 64" if task_id else "give one with --id"
        raise TickdownError(f"{name!r} can't be the id of a task; {hint}", Exit.USAGE)
    for file in opened.catalog.files:
        known = file.task_id or Path(file.path).stem
        if known.lower() == name.lower():
            raise TickdownError(
                f"{file.path} has the id {known!r} already; choose another with --id", Exit.DUPLICATE_IDS
            )
    path = app.workspace.tasks / f"{name}.md"
    if not is_task_file(path.name):
        raise TickdownError(f"{path.name} would not be read as a task; choose another id with --id", Exit.USAGE)
    text = file_text(name, schedule, message, work)
    task = _accepted(app, path, text, now)
    _write(path, text)
    note_own_edit(opened.context, path, now)
    with opened.db.transaction() as connection:
        tasks.forget(opened.db, name, now)  # `in 30 minutes` counts from now, whatever had this name before
        record_action(connection, opened, asker, ActionName.ADD, task.id, detail=task.path)
    sync_catalog(opened.db, app.catalog(opened.db), now)
    log_action(app.log, "added", asker, task_id=task.id, path=task.path)
    return task_view(task, tasks.facts(opened.db, task.id), None, now)


def split_sentence(sentence: str) -> tuple[str, str]:
    """`PHRASE: MESSAGE`; the phrase itself may have colons (09:00), so the first one behind which there is a gap counts."""
    schedule, _, message = re.sub(r"\s+", " ", sentence.strip()).partition(": ")
    schedule = schedule.removesuffix(":")
    try:
        parse_schedule(schedule, "", get_zone("UTC"))
    except ScheduleError as error:
        missing = "" if message else "; a colon and a space go between the schedule and the message"
        raise TickdownError(f"{schedule!r} is not the schedule: {error}\n{USAGE}{missing}", Exit.USAGE) from None
    return schedule, message


def slug(text: str) -> str:
    """An id that reads like the text."""
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()  # ü to u, ß to ss
    words = re.findall(r"[a-z0-9]+", plain)
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word[:LONGEST_SLUG]
        if len(longer) > LONGEST_SLUG:
            break
        name = longer
    return name


def file_text(name: str, schedule: str, message: str, work: Mapping[str, str | None]) -> str:
    """Every value in quotes, so that none can be taken for something else."""
    fields = {"id": name, "title": message, "schedule": schedule, **work}
    head = [f"{field}: {_quoted(value)}" for field, value in fields.items() if value]
    return "\n".join(["---", *head, "---", printable(message) or f"Written by `{program_name()} add`.", ""])


def _quoted(value: str) -> str:
    """JSON is YAML, but for characters that YAML does not know as text, or takes for the end of a line."""
    return re.sub(
        r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]",
        lambda found: f"\\u{ord(found[0]):04x}",
        json.dumps(value, ensure_ascii=False),
    )


def _accepted(app: App, path: Path, text: str, now: datetime) -> Task:
    """The task as it will be read from the file; what would not be accepted there is not written."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise TickdownError("not valid UTF-8; nothing was written", Exit.USAGE) from None
    if size > MAX_BYTES:
        raise TickdownError(f"{size} bytes are too much for a task file; nothing was written", Exit.USAGE)
    task, problems, _ = parse_task(text, app.workspace.relative(path), app.settings.config.surroundings())
    if task is None:
        wrong = [f"{problem.field}: {problem.message}" for problem in problems if not problem.warning]
        raise TickdownError("\n".join([*wrong, "nothing was written"]), Exit.USAGE)
    if isinstance(task.schedule, OneShot) and task.schedule.moment(now) <= now:
        raise TickdownError(f"{task.schedule.text!r} is in the past; nothing was written", Exit.USAGE)
    return task


def _write(path: Path, text: str) -> None:
    """Never over a file that is there, never so that everybody may write to it, and whole or not at all."""
    try:
        file = open(path, "x", encoding="utf-8", newline="", opener=lambda name, flags: os.open(name, flags, 0o644))
        try:
            with file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError:
        raise TickdownError(f"{path} is there already; choose another id with --id", Exit.DUPLICATE_IDS) from None
    except OSError as error:
        raise TickdownError(f"{path}: can't be written: {explained(error)}") from None
