"""`list`, `history`, `show`, `logs`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from tickdown.alerts.messages import locked_words
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.model import Attempt, ChainOn, Facts, Run, RunStatus, TaskState
from tickdown.base.money import usd
from tickdown.base.records import as_dict, replace
from tickdown.base.redact import RedactedStream, Redactor
from tickdown.base.terminal import PrintableStream, one_line
from tickdown.context.app import App
from tickdown.failure.ladder import on_probation
from tickdown.queries import runs
from tickdown.queries.find import find_task
from tickdown.queries.runs import RunLog
from tickdown.queries.show import Details, details
from tickdown.queries.tasks import TaskView, rejected_files, task_views
from tickdown.schedule.cron import Cron
from tickdown.schedule.schedule import OneShot
from tickdown.schedule.wording import reading
from tickdown.tasks.task import Task
from tickdown.time.durations import duration_text, iso, parse_duration, parse_moment, took
from tickdown.time.moments import when
from tickdown.time.zones import get_zone, zone_name
from tickdown.ui.views import (
    TASK_COLUMNS,
    Screen,
    action_json,
    action_words,
    command_lines,
    cut_off_words,
    duration_ms,
    hint_json,
    hint_words,
    next_text,
    probation_words,
    rejected_json,
    rejected_row,
    run_json,
    runs_table,
    say_duplicates,
    source_word,
    task_json,
    task_row,
    text_block,
    ticket_json,
    transient_words,
)

FOLLOW_EVERY = 0.2
_LOST = "it could not be written, or is gone"  # every attempt begins one


def list_tasks(app: App, screen: Screen, tag: str | None, state: str | None) -> Exit:
    now = datetime.now(UTC)
    opened = app.opened(now)
    catalog, db = opened.catalog, opened.db
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
    opened = app.opened(now)
    found = runs.history(opened, task_id, limit, status, _since(since, app, now))
    zones = {task.id.lower(): task.zone for task in opened.catalog.tasks}
    default = get_zone(app.settings.config.timezone)
    if screen.as_json:
        screen.json([run_json(run, zones.get(run.task_id.lower(), default)) for run in found.runs])
    elif found.runs:
        runs_table(screen, found.runs, now, lambda run: zones.get(run.task_id.lower(), default), found.cut_off)
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
    opened = app.opened(now)
    task = find_task(opened.db, opened.catalog, task_id)
    found = details(opened, task)
    view, facts = found.view, found.facts
    if screen.as_json:
        screen.json(_show_json(found))
        return Exit.OK
    rows = _facts_rows(view, facts, screen.redactor, now)
    if found.transient_since is not None and view.last_run is not None:
        retry_at = facts.retry_at if facts is not None else None
        since, ends_here = found.transient_since, not task.enabled
        rows.append(("failing", transient_words(view.last_run, since, retry_at, now, task.zone, ends_here=ends_here)))
    for name, value in rows:
        for number, line in enumerate(value.split("\n")):
            screen.line(f"{name if number == 0 else '':<10} {line}")
    for warning in found.warnings:
        screen.line(f"{'warning':<10} {one_line(replace(warning, warning=False).at(task.path))}")
    for row in found.tickets:
        opened_at = when(row.opened_at, now, task.zone)
        screen.line(f"{'ticket':<10} {row.id}: {one_line(row.ticket.title)}, opened {opened_at}")
    for comment in found.unread:
        screen.line(f"{'comment':<10} {one_line(comment.author)}: {one_line(comment.text)}")
    for number, taken in enumerate(found.actions):
        screen.line(f"{'asked' if number == 0 else '':<10} {action_words(taken, now, task.zone)}")
    if found.runs:
        screen.line()
        dead = {view.cut_off.run_id} if view.cut_off is not None else ()
        runs_table(screen, found.runs, now, lambda run: task.zone, dead)
    if view.last_run is not None:
        _show_attempts(app, screen, view.last_run, found.attempts[view.last_run.run_id])
    return Exit.OK


def _show_json(found: Details) -> dict[str, Any]:
    task, zone = found.view.task, found.view.task.zone
    return {
        **task_json(found.view),
        **_details_json(task, found.facts),
        "runs": [_run_with_attempts(run, found.attempts[run.run_id], zone) for run in found.runs],
        "tickets": [ticket_json(row, zone) for row in found.tickets],
        "cut_off": found.view.cut_off is not None,
        "warnings": [problem.at(task.path) for problem in found.warnings],
        "actions": [action_json(taken, zone) for taken in found.actions],
    }


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
        ("next run", next_text(view, now) + (f", {source_word(view.next_run.source)}" if view.next_run.at else "")),
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


def _show_attempts(app: App, screen: Screen, run: Run, attempts: Sequence[Attempt]) -> None:
    found = run.log is not None and (app.workspace.root / run.log).is_file()
    missing = f"no log: {_LOST}" if run.attempts else "log -"
    screen.line()
    screen.line(f"last run   {run.run_id}, {f'log {run.log}' if found else missing}")
    for one in attempts:
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


def _run_with_attempts(run: Run, attempts: Sequence[Attempt], zone: tzinfo) -> dict[str, Any]:
    return {
        **run_json(run, zone),
        "summary": run.summary,
        "result": run.usage.text,
        "attempt_details": [_attempt_json(one, zone) for one in attempts],
    }


def _attempt_json(attempt: Attempt, zone: tzinfo) -> dict[str, Any]:
    times = {"started_at": iso(attempt.started_at, zone), "finished_at": iso(attempt.finished_at, zone)}
    return as_dict(attempt) | times


# --- costs -----------------------------------------------------------------------------------------------------


def show_costs(app: App, screen: Screen, since: str | None) -> Exit:
    """What agents have cost, by day and task."""
    now, zone = datetime.now(UTC), get_zone(app.settings.config.timezone)
    start = _since(since, app, now) or now - timedelta(days=30)
    found = runs.costs_since(app, start, now)
    total, today, limit, over = found.total_usd, found.today_usd, found.limit_usd, found.over_budget
    if screen.as_json:
        document = {"since": iso(start, zone), "total_usd": total, "today_usd": today, "budget_usd_per_day": limit}
        screen.json(document | {"over_budget": over, "costs": [as_dict(cost) for cost in found.costs]})
        return Exit.OK
    if found.costs:
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
                for cost in found.costs
            ],
        )
    of = f" of {usd(limit)}" if limit is not None else ""
    dear = f"; {over} run{'s' * (over != 1)} over budget_usd" if over else ""
    screen.line(f"{usd(total)} since {when(start, now, zone)}; {usd(today)}{of} today{dear}")
    return Exit.OK


# --- logs ------------------------------------------------------------------------------------------------------


def logs(app: App, screen: Screen, name: str, follow: bool, raw: bool) -> Exit:
    log = runs.run_log(app.opened(datetime.now(UTC)), name)
    run = log.run
    if screen.as_json:
        text = log.path.read_text(encoding="utf-8", errors="replace") if log.is_there else ""
        screen.json({**run_json(run, get_zone(app.settings.config.timezone)), "text": text})
        return Exit.OK
    waiting = follow and run.status is RunStatus.RUNNING
    if not waiting and not log.is_there:
        told = (
            _LOST if run.attempts else "",
            run.reason or run.error or ("" if run.attempts else "nothing was started"),
        )
        raise TickdownError(f"run {run.run_id} ({run.status}) has no log: {'; '.join(filter(None, told))}")
    _print_log(log, screen.redactor.stream(), follow, raw)
    if not screen.on_terminal:
        return Exit.OK
    ended = log.run_now()
    error = f": {one_line(ended.error)}" if ended.error else ""
    print(f"--- {ended.status} in {took(duration_ms(ended))}{error}", file=sys.stderr)
    return Exit.OK


def _print_log(log: RunLog, redacted: RedactedStream, follow: bool, raw: bool) -> None:
    """To the end; with `follow`, on until the run is over. A log that was cut to its limit meanwhile gets shorter:
    then go on from its new end. It may be older than a secret."""
    clean = PrintableStream()
    position = 0
    while True:
        # Asked before reading, so that what came between the last read and the end is not lost.
        over = not follow or log.is_over()
        try:
            with log.path.open("rb") as file:
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
