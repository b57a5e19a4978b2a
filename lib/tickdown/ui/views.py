"""What people see, and its JSON twin: the same facts twice, never two sets of facts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from tickdown.base.errors import Exit
from tickdown.base.invocation import command_line, program_name
from tickdown.base.model import (
    ActionTaken,
    AskedBy,
    Asker,
    Comment,
    DisabledReason,
    Facts,
    Hint,
    Probation,
    Run,
    RunStatus,
    Source,
    TaskState,
)
from tickdown.base.money import usd
from tickdown.base.records import record
from tickdown.base.redact import Redactor
from tickdown.base.terminal import cells, escaped, one_line, printable
from tickdown.failure.outcomes import Outcome
from tickdown.governor.governor import Plan
from tickdown.processes.process import boot_id, stop_writing_to
from tickdown.queries.tasks import TaskView
from tickdown.tasks.catalogue import Catalog, TaskFile
from tickdown.tasks.task import Task
from tickdown.time.durations import duration_text, iso, took
from tickdown.time.moments import exactly, when

if TYPE_CHECKING:
    from tickdown.queries.talk import TicketRow

_STYLES = {
    "success": "green", "active": "green", "running": "cyan", "failed": "red", "timeout": "red", "killed": "red",
    "orphaned": "magenta", "suspended": "red", "rejected": "red", "skipped": "yellow", "missed": "yellow",
    "paused": "yellow", "cancelled": "yellow", "running (cut off)": "magenta", "active (locked)": "yellow",
}  # fmt: skip


@record(frozen=True)
class Screen:
    """Where a command writes: tables and colours on a terminal, plain columns in a pipe, or one JSON document."""

    redactor: Redactor
    as_json: bool = False

    @property
    def on_terminal(self) -> bool:
        return sys.stdout.isatty()

    def line(self, text: str = "") -> None:
        """A line of ours. What is quoted in it and must not break it has gone through `one_line`; that no escape sequence
        gets out is seen to here."""
        if not self.as_json:
            _say(printable(self.redactor.text(text)))

    def json(self, document: Any) -> None:
        _say(escaped(json.dumps(self.redactor.tree(document), ensure_ascii=False, indent=2)))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        mask = self.redactor.text
        # Twice: half a secret would not be known, and one with a space may lie open only once it is on one line.
        clean = [[mask(one_line(mask(cell))) for cell in row] for row in rows]
        if self.on_terminal:
            self._rich_table(columns, clean)
            return
        widths = _widths(columns, clean)
        for row in [list(columns), *clean]:
            _say(
                "  ".join(
                    f"{cell}{' ' * (width - cells(cell))}" for cell, width in zip(row, widths, strict=True)
                ).rstrip()
            )

    def _rich_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(color_system=None if os.environ.get("NO_COLOR") else "auto", highlight=False)
        shown = _columns_that_fit(columns, rows, console.width)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for index in shown:
            table.add_column(columns[index], no_wrap=index == 0, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[index], style=_STYLES.get(row[index], "")) for index in shown))
        console.print(table)


def _say(text: str) -> None:
    """Whether or not anybody reads it: what a command has begun it brings to its end, and its exit code tells of that."""
    try:
        print(text)
    except BrokenPipeError:
        stop_writing_to(sys.stdout)


# What a narrow terminal can do without, in this order; `--json` and a pipe always have all.
_DISPENSABLE = ("TRIES", "SOURCE", "EXIT", "TOOK", "COST", "TITLE", "SCHEDULE")
_NARROWEST_NOTE = 24


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max([len(column), *(cells(row[index]) for row in rows)]) for index, column in enumerate(columns)]


def _columns_that_fit(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    widths = _widths(columns, rows)
    widths[-1] = min(widths[-1], _NARROWEST_NOTE)  # the last column may wrap
    shown = list(range(len(columns)))
    for name in _DISPENSABLE:
        if name in columns and sum(widths[index] + 3 for index in shown) > width:
            shown.remove(columns.index(name))
    return shown


def done(screen: Screen, message: str, document: dict[str, Any]) -> Exit:
    """What a command that changed something says at its end."""
    if screen.as_json:
        screen.json(document)
    if message:
        screen.line(message)
    return Exit.OK


def say_duplicates(screen: Screen, catalog: Catalog) -> None:
    for line in catalog.duplicate_lines():
        screen.line(f"{line}: nothing runs until this is put right")


# --- tasks -----------------------------------------------------------------------------------------------------


def task_json(view: TaskView) -> dict[str, Any]:
    zone = view.task.zone
    return {
        "id": view.task.id,
        "title": view.task.title,
        "schedule": view.task.schedule.text,
        "enabled": view.task.enabled,
        "state": view.state,
        "disabled_reason": view.task.disabled_reason,
        "last_run": run_json(view.last_run, zone) if view.last_run else None,
        "next_run_at": iso(view.next_run.at, zone),
        "source": view.next_run.source,
        "tags": list(view.task.tags),
        "path": view.task.path,
    } | ({"held_by": view.held.by} if view.held is not None else {})


def task_row(view: TaskView, now: datetime) -> list[str]:
    last = view.last_run
    last_text = "never"
    if last is not None:
        last_text = f"{last.status} {when(last.finished_at or last.started_at, now, view.task.zone)}"
    state = f"{view.state} (cut off)" if view.cut_off is not None else view.state.value
    state += " (locked)" if view.held is not None else ""
    return [view.task.id, state, view.task.schedule.text, last_text, next_text(view, now), view.task.title]


def source_word(source: Source | str | None) -> str:
    """What people read; programs get the stored value."""
    return "hint" if source in (Source.AI_INTERVAL, Source.AI_ONESHOT) else str(source or "")


def next_text(view: TaskView, now: datetime) -> str:
    if view.next_run.at is not None:
        if view.held is not None and view.next_run.at <= now:
            return "when its lock is free"
        due = view.next_run.at <= now and view.state is TaskState.ACTIVE
        return "due now" if due else when(view.next_run.at, now, view.task.zone)
    if view.state is TaskState.RUNNING and view.task.enabled:
        return "after this run"
    words = {"reboot": "at the next boot", "manual": "by hand", "after": f"after {', '.join(view.task.after)}"}
    return words.get(view.next_run.source or "", "-")


def cut_off_words(run: Run) -> str:
    """Of a run whose supervisor died without a word."""
    assert run.owner is not None
    if run.owner.boot_id != boot_id():
        gone = "the machine was restarted meanwhile"
    else:
        who = f"its `{program_name()} run`" if run.source is Source.MANUAL else "its tick"
        gone = f"{who} (pid {run.owner.pid}) is gone"
    return f"cut off: {gone}; the next tick takes it over"


def probation_words(probation: Probation, now: datetime, zone: tzinfo) -> str:
    left = f"{probation.left} clean run{'s' * (probation.left != 1)}"
    return f"healed in run {probation.run_id}; ends after {left}, or {when(probation.until, now, zone)}"


def transient_words(
    last: Run, since: datetime, retry_at: datetime | None, now: datetime, zone: tzinfo, *, ends_here: bool
) -> str:
    """Of a failure that passes by itself: nothing is counted, but nothing works either."""
    again = f"tried again {when(retry_at, now, zone)}" if retry_at is not None else "tried again with its next run"
    tried = "" if ends_here else f"; {again}"
    return f"transient ({one_line(last.error or 'no reason known', 80)}) since {exactly(since, now, zone)}{tried}; not counted"


def action_word(plan: Plan) -> str:
    """What the next tick does about a task."""
    if plan.starts:
        return "run"
    skips = plan.waiting or any(unrun.status is RunStatus.SKIPPED for unrun in plan.unrun)
    return "skip" if skips else ("missed" if plan.unrun else "wait")


def hint_json(hint: Hint, zone: tzinfo) -> dict[str, Any]:
    return {
        "kind": hint.kind,
        "every_s": hint.every.total_seconds() if hint.every else None,
        "at": iso(hint.at, zone),
        "given_at": iso(hint.given_at, zone),
        "until": iso(hint.until, zone),
        "reason": hint.reason,
        "author": hint.author,
    }


def hint_words(hint: Hint, task: Task, now: datetime) -> str:
    what = f"every {duration_text(hint.every)}" if hint.every else f"once {when(hint.at, now, task.zone)}"
    until = f", ends {when(hint.until, now, task.zone)}" if hint.until else ", until cleared" if hint.every else ""
    reason = f": {one_line(hint.reason)}" if hint.reason else ""
    return f"{what}{until}, by {one_line(hint.author)}{reason}"


TASK_COLUMNS = ("ID", "STATE", "SCHEDULE", "LAST RUN", "NEXT RUN", "TITLE")


def rejected_json(file: TaskFile, task_id: str | None, last_run: Run | None, zone: tzinfo) -> dict[str, Any]:
    """What can be told of a task whose file can't be read; its problems come in addition."""
    return {
        "id": task_id or file.path,
        "title": task_id or file.path,
        "schedule": None,
        "enabled": False,
        "state": TaskState.REJECTED,
        "disabled_reason": None,
        "last_run": run_json(last_run, zone) if last_run else None,
        "next_run_at": None,
        "source": None,
        "tags": [],
        "path": file.path,
        "problems": file.errors,
    }


def rejected_row(file: TaskFile, task_id: str | None) -> list[str]:
    problems = f"{len(file.errors)} problem" + ("s" if len(file.errors) != 1 else "")
    advice = f"{problems}: {command_line('validate', file.path)}"
    return [task_id or file.path, TaskState.REJECTED, "-", advice, "-", "-"]


# --- runs ------------------------------------------------------------------------------------------------------


def duration_ms(run: Run) -> int | None:
    if run.started_at is None or run.finished_at is None:
        return None
    return max(0, round((run.finished_at - run.started_at).total_seconds() * 1000))


def run_json(run: Run, zone: tzinfo) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "task_id": run.task_id,
        "status": run.status,
        "scheduled_for": iso(run.scheduled_for, zone),
        "started_at": iso(run.started_at, zone),
        "finished_at": iso(run.finished_at, zone),
        "duration_ms": duration_ms(run),
        "exit_code": run.exit_code,
        "signal": run.signal,
        "attempts": run.attempts,
        "source": run.source,
        "reason": run.reason,
        "count": run.count,
        "host": run.host,
        "trace_id": run.trace_id,
        "error": run.error,
        "error_class": run.error_class,
        "note": run.note,
        "follows": run.follows,
        "log": run.log,
        "cost_usd": run.usage.cost_usd,
        "input_tokens": run.usage.input_tokens,
        "output_tokens": run.usage.output_tokens,
        "session_id": run.usage.session_id,
        "over_budget": run.over_budget,
    }


RUN_COLUMNS = ("RUN", "TASK", "STATUS", "WHEN", "TOOK", "EXIT", "TRIES", "SOURCE", "NOTE")


def runs_table(
    screen: Screen,
    runs: Sequence[Run],
    now: datetime,
    zone_of: Callable[[Run], tzinfo],
    cut_off: Collection[str] = (),
) -> None:
    """With a column for the cost where there is any. `cut_off` are ids of runs that nobody looks after any more."""
    dear = any(run.usage.cost_usd is not None for run in runs)
    columns = [*RUN_COLUMNS[:-1], *(["COST"] if dear else []), RUN_COLUMNS[-1]]
    rows = []
    for run in runs:
        cells = run_row(run, now, zone_of(run))
        cost = [usd(run.usage.cost_usd) if run.usage.cost_usd is not None else "-"] if dear else []
        note = cut_off_words(run) if run.run_id in cut_off else cells[-1]
        rows.append([*cells[:-1], *cost, note])
    screen.table(columns, rows)


def run_row(run: Run, now: datetime, zone: tzinfo) -> list[str]:
    exit_text = str(run.exit_code) if run.exit_code is not None else (f"sig {run.signal}" if run.signal else "-")
    return [
        run.run_id,
        run.task_id,
        run.status,
        when(run.started_at or run.scheduled_for, now, zone),
        took(duration_ms(run)),
        exit_text,
        str(run.attempts) if run.attempts else "-",
        source_word(run.source),
        run_note(run),
    ]


def run_note(run: Run) -> str:
    times = f" ×{run.count}" if run.count > 1 else ""
    if run.status is RunStatus.MISSED:
        return f"not run: {run.count} missed" + (f" ({run.reason})" if run.reason else "")
    told = [text for text in (run.reason or run.error, run.note) if text]
    return "; ".join(told) + times


def off_words(task: Task, facts: Facts | None) -> str | None:
    """Why no tick starts it, and what lets it run again; None if ticks do start it."""
    closing = facts.closing if facts is not None else None
    if task.enabled and closing is None:
        return None
    reason = closing or task.disabled_reason or DisabledReason.BY_CHOICE
    state = "suspended" if reason is DisabledReason.AUTO_SUSPENDED else "disabled"
    command = {DisabledReason.COMPLETED: "run", DisabledReason.FAILED: "retry"}.get(reason, "resume")
    return f"it is {state}; go on with: {command_line(command, task.id)}"


def closes_ticket(row: TicketRow) -> str:
    return command_line("tickets", "--close", str(row.id))


def ticket_json(row: TicketRow, zone: tzinfo) -> dict[str, Any]:
    ticket = row.ticket
    return {
        "id": row.id,
        "task_id": ticket.task_id,
        "kind": ticket.kind,
        "title": ticket.title,
        "body": ticket.body,
        "run_id": ticket.run_id,
        "error": ticket.error,
        "tried": ticket.tried.splitlines(),
        "command": ticket.command or (closes_ticket(row) if ticket.task_id else None),
        "opened_at": iso(row.opened_at, zone),
        "updated_at": iso(row.updated_at, zone),
        "closed_at": iso(row.closed_at, zone),
        "notes": [{"at": iso(at, zone), "text": text} for at, text in row.notes],
    }


def comment_json(comment: Comment, zone: tzinfo) -> dict[str, Any]:
    return {
        "id": comment.id,
        "task_id": comment.task_id,
        "author": comment.author,
        "by_a_person": comment.by_a_person,
        "text": comment.text,
        "at": iso(comment.at, zone),
        "read_at": iso(comment.read_at, zone),
        "answer": comment.answer,
    }


def action_json(taken: ActionTaken, zone: tzinfo) -> dict[str, Any]:
    return {
        "at": iso(taken.at, zone),
        "action": taken.action,
        "task_id": taken.task_id,
        "run_id": taken.run_id,
        "asked_by": taken.asker.kind,
        "asker": taken.asker.name,
        "detail": taken.detail,
    }


def asker_words(asker: Asker) -> str:
    """`anna`, `task nightly`, `agent of task nightly`."""
    return one_line(f"agent of {asker.words}" if asker.kind is AskedBy.AGENT else asker.words, 80)


def action_words(taken: ActionTaken, now: datetime, zone: tzinfo) -> str:
    what = taken.action.replace("_", " ")
    more = ", ".join(filter(None, (f"run {taken.run_id}" if taken.run_id else "", one_line(taken.detail, 200))))
    return f"{what} by {asker_words(taken.asker)}, {when(taken.at, now, zone)}" + (f" ({more})" if more else "")


_MOST_LINES, _MOST_CHARACTERS = 20, 300


def command_lines(task: Task, redactor: Redactor) -> list[str]:
    """What a task runs, line by line as its file has it: on one line it would be another command. Secrets go first: cut
    in two, none would be known again."""
    lines = printable(redactor.text(task.what)).rstrip().splitlines() or [""]
    shown = [
        line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…" for line in lines[:_MOST_LINES]
    ]
    if shown != lines:
        left = len(lines) - len(shown)
        more = f"and {left} more line{'s' * (left != 1)}" if left else "cut"
        shown.append(f"… ({more}: `{command_line('run', task.id, '--dry-run')}` shows all of it)")
    return shown


def verdict_line(task_id: str, run_id: str, outcome: Outcome, milliseconds: int | None) -> str:
    error = f": {one_line(outcome.error)}" if outcome.error else ""
    return f"{task_id}: {outcome.status} in {took(milliseconds)}{error} (run {run_id})"


def text_block(text: str) -> str:
    return "\n".join(f"  | {line}" for line in printable(text).rstrip().splitlines())
