"""`pause`, `resume`, `cancel`, `hint`: when a task may run from here on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tickdown.actions.steering import let_run_again
from tickdown.attempt.command import own_variables
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import DisabledReason, Hint, HintKind
from tickdown.base.terminal import one_line
from tickdown.context.app import App, sync_catalog
from tickdown.context.context import Context
from tickdown.context.task_file import edit_file
from tickdown.governor.governor import forecast
from tickdown.processes.process import boot_id
from tickdown.queries.find import find_task
from tickdown.schedule.phrases import read_moment
from tickdown.schedule.schedule import SHORTEST
from tickdown.store import hints, tasks
from tickdown.store.database import Database
from tickdown.store.heals import is_healed_now
from tickdown.tasks.task import Task
from tickdown.time.durations import LONGEST, in_words, iso, parse_duration
from tickdown.time.instants import to_milliseconds
from tickdown.time.moments import coming
from tickdown.ui.views import Screen, done, hint_json, hint_words, off_words
from tickdown.workspace.folders import who_am_i

LONGEST_REASON = 500


def pause(app: App, screen: Screen, task_id: str, for_: str | None, until: str | None) -> Exit:
    """For a time: remembered beside the schedule. For good: written into the file."""
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    end = _pause_end(task, for_, until, now)
    if not task.enabled:
        reason = task.disabled_reason or "enabled: false"
        is_over = task.disabled_reason in (DisabledReason.COMPLETED, DisabledReason.FAILED)  # `resume` refuses those
        again = f"`{command_line('run' if is_over else 'resume', task.id)}`"
        raise TickdownError(f"{task.id} does not run anyway ({reason}); {again} lets it run again")
    if end is None:
        where = _disable(app.context(db), task, DisabledReason.PAUSED, now)
        message = f"{task.id} is paused ({where}); go on with: {command_line('resume', task.id)}"
    else:
        sync_catalog(db, catalog, now)
        tasks.pause(db, task.id, end)
        message = f"{task.id} is paused until {end.astimezone(task.zone):%Y-%m-%d %H:%M %Z} ({in_words(end, now)})"
    app.log.info("paused", task_id=task.id, until=end)
    return done(screen, message, {"task_id": task.id, "paused_until": iso(end, task.zone)})


def _disable(context: Context, task: Task, reason: DisabledReason, now: datetime) -> str:
    """Where that stands now. While a healer works on the file it is only remembered, and written when that is over."""
    if is_healed_now(context.db, task.id):
        with context.db.transaction() as connection:
            tasks.close(connection, task.id, reason)
        return f"it is being healed; {task.path} says so when that is over"
    edit_file(context, task, {"enabled": "false", "disabled_reason": reason}, now)
    return f"enabled: false in {task.path}"


def _pause_end(task: Task, for_: str | None, until: str | None, now: datetime) -> datetime | None:
    if for_ is None and until is None:
        return None
    return now + _duration("--for", for_) if for_ is not None else _moment("--until", until or "", task, now)


def resume(app: App, screen: Screen, task_id: str) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    sync_catalog(db, catalog, now)
    spent = let_run_again(app.context(db), task, now)
    message = f"{task.id} is active again; {'what is left of its one run goes on' if spent else 'counted from now'}"
    return done(screen, message, {"task_id": task.id})


def cancel(app: App, screen: Screen, task_id: str) -> Exit:
    """For good, but nothing is deleted."""
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    sync_catalog(db, catalog, now)
    where = _disable(app.context(db), task, DisabledReason.RETIRED, now)
    tasks.retire(db, task.id, now)
    app.log.info("cancelled", task_id=task.id)
    facts = tasks.facts(db, task.id)
    going_on = (
        f"; it is running, `{command_line('stop', task.id)}` ends that" if facts is not None and facts.running else ""
    )
    return done(
        screen,
        f"{task.id} is retired ({where}){going_on}",
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
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    if clear == bool(every or at):
        raise TickdownError("hint: give --every D or --at T (or both), or --clear alone", Exit.USAGE)
    if clear and (for_ or reason):
        raise TickdownError("hint: --clear goes with no other option", Exit.USAGE)
    if len(reason) > LONGEST_REASON:
        raise TickdownError(f"--reason: more than {LONGEST_REASON} characters", Exit.USAGE)
    sync_catalog(db, catalog, now)
    if clear:
        cleared = hints.clear_hints(db, task, now)
        message = f"{task.id}: {cleared} hint{'s' if cleared != 1 else ''} cleared"
    else:
        # Twice: a secret may lie open only once it is on one line.
        redactor = app.redactor.knowing(own_variables(task, app.settings.environment))
        reason = redactor.text(one_line(redactor.text(reason), LONGEST_REASON))
        given = _hints(task, every, at, for_, reason, now)
        hints.give_hints(db, task.id, given)
        message = "\n".join(f"{task.id}: {hint_words(each, task, now)}" for each in given)
    app.log.info("hint", task_id=task.id, every=every, at=at, until=for_, reason=reason, clear=clear)
    return _say_next(screen, db, task, message, now)


def _hints(task: Task, every: str | None, at: str | None, for_: str | None, reason: str, now: datetime) -> list[Hint]:
    until = now + _duration("--for", for_) if for_ is not None else None
    author, given = one_line(who_am_i(), 80), []
    if every is not None:
        interval = _duration("--every", every)
        if interval < SHORTEST:
            raise TickdownError(f"--every: {every!r} is shorter than a second", Exit.USAGE)
        given.append(Hint(HintKind.INTERVAL, now, every=interval, until=until, reason=reason, author=author))
    if at is not None:
        moment = now if at.strip().lower() == "now" else _moment("--at", at, task, now)
        if until is not None and moment > until:
            raise TickdownError(f"--for: the hint would run out before {at!r}", Exit.USAGE)
        given.append(Hint(HintKind.ONE_SHOT, now, at=moment, until=until, reason=reason, author=author))
    return given


def _say_next(screen: Screen, db: Database, task: Task, message: str, now: datetime) -> Exit:
    facts = tasks.facts(db, task.id)
    ahead = forecast(now, task, facts, boot_id())
    document: dict[str, Any] = {
        "task_id": task.id,
        "hints": [hint_json(hint, task.zone) for hint in (facts.hints if facts else ())],
        "next_run_at": iso(ahead.next.at, task.zone),
        "source": ahead.next.source,
    }
    if facts is not None and facts.running:
        message += "\nIt is running; this counts once it has ended."
    elif ahead.next.at is not None:
        message += f"\nnext run {coming(ahead.next.at, now, task.zone)}, {ahead.next.source}: {ahead.because}"
    else:
        message += f"\nno next run: {off_words(task, facts) or ahead.because}"
    return done(screen, message, document)


# --- what people type ------------------------------------------------------------------------------------------


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise TickdownError(f"{option}: {error}", Exit.USAGE) from None


def _moment(option: str, text: str, task: Task, now: datetime) -> datetime:
    """`09:00`, a date, or a phrase such as `tomorrow at 09:00` or `in 30 minutes`."""
    try:
        moment = read_moment(text, task.zone, now)
    except ValueError as error:
        raise TickdownError(f"{option}: {error}", Exit.USAGE) from None
    if moment <= now:
        raise TickdownError(f"{option}: {text!r} is in the past", Exit.USAGE)
    if moment > now + LONGEST:
        raise TickdownError(f"{option}: {text!r} is more than ten years away", Exit.USAGE)
    return moment
