"""`pause`, `resume`, `cancel`, `hint`: when a task may run from here on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tickdown.actions import hints
from tickdown.actions import pause as pausing
from tickdown.actions.hints import Hinted, check_reason
from tickdown.actions.times import duration_from, moment_from
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.context.app import App
from tickdown.queries.find import find_task
from tickdown.schedule.schedule import SHORTEST
from tickdown.tasks.task import Task
from tickdown.time.durations import in_words, iso
from tickdown.time.instants import to_milliseconds
from tickdown.time.moments import coming
from tickdown.ui.asker import who_asks
from tickdown.ui.views import Screen, done, hint_json, hint_words, off_words, source_word


def pause(app: App, screen: Screen, task_id: str, for_: str | None, until: str | None) -> Exit:
    now = datetime.now(UTC)
    opened = app.opened(now)
    task = find_task(opened.db, opened.catalog, task_id)
    paused = pausing.pause(opened, who_asks(opened.catalog), task, _pause_end(task, for_, until, now))
    end = paused.until
    if end is None:
        message = f"{task.id} is paused ({_where(task, paused.in_file)}); go on with: {command_line('resume', task.id)}"
    else:
        message = f"{task.id} is paused until {end.astimezone(task.zone):%Y-%m-%d %H:%M %Z} ({in_words(end, now)})"
    return done(screen, message, {"task_id": task.id, "paused_until": iso(end, task.zone)})


def _where(task: Task, in_file: bool) -> str:
    return f"enabled: false in {task.path}" if in_file else f"it is being healed; {task.path} says so when that is over"


def _pause_end(task: Task, for_: str | None, until: str | None, now: datetime) -> datetime | None:
    if for_ is None and until is None:
        return None
    return now + duration_from("--for", for_) if for_ is not None else moment_from("--until", until or "", task, now)


def resume(app: App, screen: Screen, task_id: str) -> Exit:
    opened = app.opened(datetime.now(UTC))
    task = find_task(opened.db, opened.catalog, task_id)
    spent = pausing.resume(opened, who_asks(opened.catalog), task)
    message = f"{task.id} is active again; {'what is left of its one run goes on' if spent else 'counted from now'}"
    return done(screen, message, {"task_id": task.id})


def cancel(app: App, screen: Screen, task_id: str) -> Exit:
    opened = app.opened(datetime.now(UTC))
    task = find_task(opened.db, opened.catalog, task_id)
    cancelled = pausing.cancel(opened, who_asks(opened.catalog), task)
    going_on = f"; it is running, `{command_line('stop', task.id)}` ends that" if cancelled.is_running else ""
    return done(
        screen,
        f"{task.id} is retired ({_where(task, cancelled.in_file)}){going_on}",
        {"task_id": task.id, "path": task.path},
    )


# --- hints -----------------------------------------------------------------------------------------------------


def hint(
    app: App,
    screen: Screen,
    task_id: str,
    every: str | None,
    at: str | None,
    for_: str | None,
    reason: str,
    clear: bool,
) -> Exit:
    now = to_milliseconds(datetime.now(UTC))
    opened = app.opened(now)
    task = find_task(opened.db, opened.catalog, task_id)
    if clear == bool(every or at):
        raise TickdownError("hint: give --every D or --at T (or both), or --clear alone", Exit.USAGE)
    if clear and (for_ or reason):
        raise TickdownError("hint: --clear goes with no other option", Exit.USAGE)
    check_reason(reason)
    asker = who_asks(opened.catalog)
    if clear:
        hinted = hints.clear_hints(opened, asker, task)
        message = f"{task.id}: {hinted.cleared} hint{'s' if hinted.cleared != 1 else ''} cleared"
        return _say_next(screen, task, hinted, message, now)
    until = now + duration_from("--for", for_) if for_ is not None else None
    interval = duration_from("--every", every) if every is not None else None
    if interval is not None and interval < SHORTEST:
        raise TickdownError(f"--every: {every!r} is shorter than a second", Exit.USAGE)
    moment = _hinted_moment(at, task, until, now) if at is not None else None
    hinted = hints.give_hints(opened, asker, task, interval, moment, until, reason)
    message = "\n".join(f"{task.id}: {hint_words(each, task, now)}" for each in hinted.given)
    return _say_next(screen, task, hinted, message, now)


def _hinted_moment(at: str, task: Task, until: datetime | None, now: datetime) -> datetime:
    moment = now if at.strip().lower() == "now" else moment_from("--at", at, task, now)
    if until is not None and moment > until:
        raise TickdownError(f"--for: the hint would run out before {at!r}", Exit.USAGE)
    return moment


def _say_next(screen: Screen, task: Task, hinted: Hinted, message: str, now: datetime) -> Exit:
    facts, ahead = hinted.facts, hinted.ahead
    document: dict[str, Any] = {
        "task_id": task.id,
        "hints": [hint_json(hint, task.zone) for hint in (facts.hints if facts else ())],
        "next_run_at": iso(ahead.next.at, task.zone),
        "source": ahead.next.source,
    }
    if facts is not None and facts.running:
        message += "\nIt is running; this counts once it has ended."
    elif ahead.next.at is not None:
        message += (
            f"\nnext run {coming(ahead.next.at, now, task.zone)}, {source_word(ahead.next.source)}: {ahead.because}"
        )
    else:
        message += f"\nno next run: {off_words(task, facts) or ahead.because}"
    return done(screen, message, document)
