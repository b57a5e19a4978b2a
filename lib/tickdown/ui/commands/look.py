"""`list`, `history`, `show`, `logs`."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from tickdown.base.errors import Exit, TickdownError
from tickdown.base.model import Attempt, ChainOn, Facts, Run, RunStatus, TaskState
from tickdown.base.records import as_dict, replace
from tickdown.base.redact import RedactedStream, Redactor
from tickdown.base.terminal import PrintableStream, one_line
from tickdown.context.app import App, facts_as_synced
from tickdown.failure.ladder import on_probation
from tickdown.queries.find import check_known, find_run, find_task
from tickdown.queries.tasks import TaskView, cut_off, held_now, rejected_files, task_view, task_views, transient_since
from tickdown.schedule.cron import Cron
from tickdown.schedule.schedule import OneShot
from tickdown.schedule.wording import reading
from tickdown.store import comments, costs, runs
from tickdown.store.database import Database
from tickdown.store.tickets import list_tickets
from tickdown.tasks.catalogue import Catalog
from tickdown.tasks.task import Task
from tickdown.tasks.yaml_tree import Problem
from tickdown.time.durations import duration_text, iso, parse_duration, parse_moment, took
from tickdown.time.moments import when
from tickdown.time.zones import get_zone, zone_name
from tickdown.ui.views import (
    TASK_COLUMNS,
    Screen,
    command_lines,
    cut_off_words,
    duration_ms,
    hint_json,
    hint_words,
    locked_words,
    next_text,
    probation_words,
    rejected_json,
    rejected_row,
    run_json,
    runs_table,
    say_duplicates,
    task_json,
    task_row,
    text_block,
    ticket_json,
    transient_words,
    usd,
)

FOLLOW_EVERY = 0.2
RUNS_IN_SHOW = 5
_LOST = "it could not be written, or is gone"  # every attempt begins one


def list_tasks(app: App, screen: Screen, tag: str | None, state: str | None) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    views = [
        view
        for view in task_views(db, catalog, now, app.workspace.locks)
        if (tag is None or tag in view.task.tags) and (state is None or view.state == state)
    ]
    rejected = rejected_files(db, catalog) if tag is None and state in (None, TaskState.REJECTED) else []
    if screen.as_json:
        zone = get_zone(app.settings.config.timezone)
        screen.json([task_json(view) for view in views] + [rejected_json(*each, zone) for each in rejected])
        return Exit.OK
    if views or rejected:
        rows = [rejected_row(file, task_id) for file, task_id, _ in rejected]
        screen.table(TASK_COLUMNS, [task_row(view, now) for view in views] + rows)
    else:
        filtered = tag is not None or state is not None
        screen.line(
            "no task matches" if filtered else "no tasks yet: put a Markdown file into tasks/ (README: The task file)"
        )
    say_duplicates(screen, catalog)
    return Exit.OK


def history(app: App, screen: Screen, task_id: str | None, limit: int, status: str | None, since: str | None) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    if task_id is not None:
        check_known(db, catalog, task_id)
    found = runs.list_runs(db, task_id, status, _since(since, app, now), limit)
    zones = {task.id.lower(): task.zone for task in catalog.tasks}
    default = get_zone(app.settings.config.timezone)
    if screen.as_json:
        screen.json([run_json(run, zones.get(run.task_id.lower(), default)) for run in found])
    elif found:
        dead = {run.run_id for run in cut_off(db).values()}
        runs_table(screen, found, now, lambda run: zones.get(run.task_id.lower(), default), dead)
    else:
        screen.line("no runs match" if task_id or status or since else "no runs yet")
    return Exit.OK


def _since(text: str | None, app: App, now: datetime) -> datetime | None:
    """A duration back from now, or a date or time."""
    if text is None:
        return None
    try:
        return now - parse_duration(text)
    except ValueError as not_a_duration:
        try:
            moment = parse_moment(text, get_zone(app.settings.config.timezone), now)
        except ValueError:
            raise TickdownError(f"--since: {not_a_duration}; or a date such as 2026-06-01", Exit.USAGE) from None
    # A bare time of day is read as its next passing; looking back, the last one is meant.
    return moment - timedelta(days=1) if moment > now and "-" not in text else moment


# --- show ------------------------------------------------------------------------------------------------------


def show(app: App, screen: Screen, task_id: str) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    facts = facts_as_synced(db, catalog, now).get(task.id.lower())
    facts = held_now(facts, app.workspace.locks) if facts is not None else None
    view = task_view(task, facts, runs.last_run_of(db, task.id), now, cut_off(db))
    recent = runs.list_runs(db, task.id, limit=RUNS_IN_SHOW)
    tickets = list_tickets(db, task.id)
    if screen.as_json:
        document = {**task_json(view), **_details_json(task, facts)}
        document["runs"] = [_run_with_attempts(db, run, task.zone) for run in recent]
        document["tickets"] = [ticket_json(row, task.zone) for row in tickets]
        document["cut_off"] = view.cut_off is not None
        document["warnings"] = [problem.at(task.path) for problem in _warnings(catalog, task)]
        screen.json(document)
        return Exit.OK
    rows = _facts_rows(view, facts, screen.redactor, now)
    since = transient_since(db, view.last_run)
    if since is not None and view.last_run is not None:
        retry_at = facts.retry_at if facts is not None else None
        words = transient_words(view.last_run, since, retry_at, now, task.zone, ends_here=not task.enabled)
        rows.append(("failing", words))
    for name, value in rows:
        for number, line in enumerate(value.split("\n")):
            screen.line(f"{name if number == 0 else '':<10} {line}")
    for warning in _warnings(catalog, task):
        screen.line(f"{'warning':<10} {one_line(replace(warning, warning=False).at(task.path))}")
    for row in tickets:
        opened = when(row.opened_at, now, task.zone)
        screen.line(f"{'ticket':<10} {row.id}: {one_line(row.ticket.title)}, opened {opened}")
    for comment in comments.unread_of(db, task.id):
        screen.line(f"{'comment':<10} {one_line(comment.author)}: {one_line(comment.text)}")
    if recent:
        screen.line()
        dead = {view.cut_off.run_id} if view.cut_off is not None else ()
        runs_table(screen, recent, now, lambda run: task.zone, dead)
    if view.last_run is not None:
        _show_attempts(app, screen, db, view.last_run)
    return Exit.OK


def _facts_rows(view: TaskView, facts: Facts | None, redactor: Redactor, now: datetime) -> list[tuple[str, str]]:
    task = view.task
    state = view.state.value
    if not task.enabled and task.disabled_reason not in (None, state):
        state += f" ({task.disabled_reason})"
    if facts is not None and facts.paused_until is not None and facts.paused_until > now:
        state += f", which ends {when(facts.paused_until, now, task.zone)}"
    rows = [
        ("task", task.id),
        ("title", one_line(task.title)),
        ("file", one_line(task.path)),
        ("schedule", f"{one_line(task.schedule.text)}: {reading(task.schedule)}" + _zone_text(task)),
        ("state", state),
        *([("now", cut_off_words(view.cut_off))] if view.cut_off is not None else []),
        *([("now", locked_words(view.held, now, task.zone))] if view.held is not None else []),
        ("next run", next_text(view, now) + (f", {view.next_run.source}" if view.next_run.at else "")),
        ("runs", _indented(f"{task.run_as}: ", command_lines(task, redactor))),
        (
            "limits",
            f"timeout {duration_text(task.timeout)}, retries {task.retries}, suspended after {task.suspend_after} failures",
        ),
    ]
    rows += _bounds_rows(task)
    rows += _agent_rows(view, facts, now)
    if task.tags:
        rows.append(("tags", one_line(", ".join(task.tags))))
    for hint in facts.hints if facts is not None else ():
        if hint.live(now):
            rows.append(("hint", hint_words(hint, task, now)))
    if facts is not None and facts.failures:
        rows.append(("failing", f"{facts.failures} in a row, the first {when(facts.incident_since, now, task.zone)}"))
    return rows


def _indented(label: str, lines: list[str]) -> str:
    return f"{label}{lines[0]}" if len(lines) == 1 else "\n".join([label.rstrip(), *(f"  {line}" for line in lines)])


def _agent_rows(view: TaskView, facts: Facts | None, now: datetime) -> list[tuple[str, str]]:
    task, rows = view.task, []
    if facts is not None and facts.missing_agent:
        rows.append(("waits", f"its agent {facts.missing_agent} is not installed"))
    budgets = {"a run": task.budget_usd, "a day": task.budget_usd_per_day}
    limits = [f"{usd(amount)} {per}" for per, amount in budgets.items() if amount is not None]
    if limits:
        rows.append(("budget", ", ".join(limits)))
    if facts is not None and facts.probation is not None and on_probation(facts, now):
        rows.append(("probation", probation_words(facts.probation, now, task.zone)))
    return rows


def _zone_text(task: Task) -> str:
    return f" ({zone_name(task.zone)})" if isinstance(task.schedule, (Cron, OneShot)) else ""


def _bounds_rows(task: Task) -> list[tuple[str, str]]:
    """What else says when it may start, as far as it is used."""
    after = ", ".join(name if wants is ChainOn.SUCCESS else f"{name} ({wants})" for name, wants in task.after.items())
    limits = {"min_interval": task.min_interval, "max_interval": task.max_interval, "jitter": task.jitter}
    bounds = [f"{name} {duration_text(value)}" for name, value in limits.items() if value]
    if task.blackout:
        bounds.append("not " + ", ".join(one_line(blackout.text) for blackout in task.blackout))
    if task.group:
        bounds.append(f"group {one_line(task.group)}")
    if task.priority:
        bounds.append(f"priority {task.priority}")
    return [(name, text) for name, text in (("after", after), ("bounds", ", ".join(bounds))) if text]


def _show_attempts(app: App, screen: Screen, db: Database, run: Run) -> None:
    found = run.log is not None and (app.workspace.root / run.log).is_file()
    missing = f"no log: {_LOST}" if run.attempts else "log -"
    screen.line()
    screen.line(f"last run   {run.run_id}, {f'log {run.log}' if found else missing}")
    for one in runs.attempts_of(db, run.run_id):
        ended = f" exit {one.exit_code}" if one.exit_code is not None else ""
        ended = f" signal {one.signal}" if one.signal else ended
        told = one.note or one.error
        error = f": {one_line(told, 300)}" if told else ""
        cost = f" {usd(one.cost_usd)}" if one.cost_usd is not None else ""
        screen.line(f"  attempt {one.number} ({one.rung}) {one.status}{ended}{cost}{error}")
    if run.summary:
        screen.line(text_block("\n".join(run.summary.rstrip().splitlines()[-10:])))


def _details_json(task: Task, facts: Facts | None) -> dict[str, Any]:
    return {
        "run_as": task.run_as,
        "command": task.command,
        "timeout_s": task.timeout.total_seconds(),
        "retries": task.retries,
        "suspend_after": task.suspend_after,
        "timezone": zone_name(task.zone),
        "reading": reading(task.schedule),
        "after": dict(task.after),
        "group": task.group,
        "priority": task.priority,
        "min_interval_s": task.min_interval.total_seconds() if task.min_interval else None,
        "max_interval_s": task.max_interval.total_seconds() if task.max_interval else None,
        "blackout": [blackout.text for blackout in task.blackout],
        "hints": [hint_json(hint, task.zone) for hint in (facts.hints if facts else ())],
        "body": task.body,
        "prompt": task.prompt or None,
        "self_heal": task.self_heal,
        "heal_paths": list(task.heal_paths),
        "budget_usd": task.budget_usd,
        "budget_usd_per_day": task.budget_usd_per_day,
        "missing_agent": facts.missing_agent if facts else None,
        "probation": _probation_json(facts, task.zone),
        "failures": facts.failures if facts else 0,
        "failing_since": iso(facts.incident_since, task.zone) if facts and facts.failures else None,
        "paused_until": iso(facts.paused_until, task.zone) if facts else None,
    }


def _probation_json(facts: Facts | None, zone: tzinfo) -> dict[str, Any] | None:
    if facts is None or facts.probation is None:
        return None
    probation = facts.probation
    return {"run_id": probation.run_id, "left": probation.left, "until": iso(probation.until, zone)}


def _run_with_attempts(db: Database, run: Run, zone: tzinfo) -> dict[str, Any]:
    return {
        **run_json(run, zone),
        "summary": run.summary,
        "result": run.usage.text,
        "attempt_details": [_attempt_json(one, zone) for one in runs.attempts_of(db, run.run_id)],
    }


def _attempt_json(attempt: Attempt, zone: tzinfo) -> dict[str, Any]:
    names = ("number", "rung", "status", "started_at", "finished_at", "exit_code", "signal", "error_class", "error", "note",
             "log_start", "log_end", "input_tokens", "output_tokens", "cost_usd", "session_id")  # fmt: skip
    times = {name: iso(getattr(attempt, name), zone) for name in ("started_at", "finished_at")}
    return {name: getattr(attempt, name) for name in names} | times


def _warnings(catalog: Catalog, task: Task) -> list[Problem]:
    return next((file.warnings for file in catalog.files if file.path == task.path), [])


# --- costs -----------------------------------------------------------------------------------------------------


def show_costs(app: App, screen: Screen, since: str | None) -> Exit:
    """What agents have cost, by day and task."""
    now, zone = datetime.now(UTC), get_zone(app.settings.config.timezone)
    start = _since(since, app, now) or now - timedelta(days=30)
    context = app.context(app.database())
    found = costs.by_task_and_day(context.db, start, zone)
    total, today = sum(cost.cost_usd for cost in found), costs.spent(context.db, context.midnight(now))
    limit = app.settings.config.budget_usd_per_day
    if screen.as_json:
        document = {"since": iso(start, zone), "total_usd": total, "today_usd": today, "budget_usd_per_day": limit}
        document["over_budget"] = sum(cost.over_budget for cost in found)
        screen.json(document | {"costs": [as_dict(cost) for cost in found]})
        return Exit.OK
    over = sum(cost.over_budget for cost in found)
    if found:
        screen.table(
            ("DAY", "TASK", "CALLS", "COST", "TOKENS IN", "TOKENS OUT", *(["OVER BUDGET"] if over else [])),
            [
                [
                    cost.day,
                    cost.task_id,
                    str(cost.calls),
                    usd(cost.cost_usd),
                    str(cost.input_tokens),
                    str(cost.output_tokens),
                    *([str(cost.over_budget) if cost.over_budget else "-"] if over else []),
                ]
                for cost in found
            ],
        )
    of = f" of {usd(limit)}" if limit is not None else ""
    dear = f"; {over} run{'s' * (over != 1)} over budget_usd" if over else ""
    screen.line(f"{usd(total)} since {when(start, now, zone)}; {usd(today)}{of} today{dear}")
    return Exit.OK


# --- logs ------------------------------------------------------------------------------------------------------


def logs(app: App, screen: Screen, name: str, follow: bool, raw: bool) -> Exit:
    catalog, db = app.open(datetime.now(UTC))
    run = find_run(db, catalog, name)
    path = app.workspace.root / (run.log or "")
    if screen.as_json:
        text = path.read_text(encoding="utf-8", errors="replace") if run.log and path.is_file() else ""
        screen.json({**run_json(run, get_zone(app.settings.config.timezone)), "text": text})
        return Exit.OK
    waiting = follow and run.status is RunStatus.RUNNING
    if not waiting and not (run.log and path.is_file()):
        told = (
            _LOST if run.attempts else "",
            run.reason or run.error or ("" if run.attempts else "nothing was started"),
        )
        raise TickdownError(f"run {run.run_id} ({run.status}) has no log: {'; '.join(filter(None, told))}")
    _print_log(db, run, path, screen.redactor.stream(), follow, raw)
    ended = runs.get_run(db, run.run_id) or run
    if not screen.on_terminal:
        return Exit.OK
    error = f": {one_line(ended.error)}" if ended.error else ""
    print(f"--- {ended.status} in {took(duration_ms(ended))}{error}", file=sys.stderr)
    return Exit.OK


def _print_log(db: Database, run: Run, path: Path, redacted: RedactedStream, follow: bool, raw: bool) -> None:
    """To the end; with `follow`, on until the run is over. A log that was cut to its limit meanwhile gets shorter:
    then go on from its new end. It may be older than a secret."""
    clean = PrintableStream()
    position = 0
    while True:
        # Asked before reading, so that what came between the last read and the end is not lost.
        current = runs.get_run(db, run.run_id)
        over = not follow or current is None or current.status is not RunStatus.RUNNING
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                position = min(position, size)
                file.seek(position)
                while data := file.read(1 << 20):
                    position += len(data)
                    _emit(redacted.feed(data), clean, raw)
        except FileNotFoundError:
            pass
        if over:
            break
        time.sleep(FOLLOW_EVERY)
    _emit(redacted.flush(), clean, raw)
    sys.stdout.write(clean.flush())
    sys.stdout.flush()


def _emit(data: bytes, clean: PrintableStream, raw: bool) -> None:
    if raw:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        sys.stdout.write(clean.feed(data))
        sys.stdout.flush()
