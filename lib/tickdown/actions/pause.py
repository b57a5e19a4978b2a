"""Pausing a task, letting it run again, retiring it: what commands, comments and ticks have in common. Files change first,
then the database in one transaction, so that what is cut off in between is simply done again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tickdown.actions.record import log_action, record_action
from tickdown.base.errors import TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import ActionName, ActionTaken, Asker, DisabledReason, Facts
from tickdown.base.records import record
from tickdown.context.app import Opened
from tickdown.context.context import Context
from tickdown.context.task_file import edit_file
from tickdown.governor.governor import is_spent, paused
from tickdown.processes.process import boot_id
from tickdown.schedule.schedule import OneShot
from tickdown.store import actions, tasks
from tickdown.store.database import Connection
from tickdown.store.heals import is_healed_now
from tickdown.tasks.task import Task
from tickdown.time.moments import when


@record(frozen=True)
class Paused:
    until: datetime | None  # None: until somebody resumes it
    in_file: bool  # False while a healer works on the file: it says so when that is over


@record(frozen=True)
class Cancelled:
    in_file: bool
    is_running: bool  # its last run is still going on


def pause(opened: Opened, asker: Asker, task: Task, until: datetime | None) -> Paused:
    """For a time: remembered beside the schedule. For good: written into the file."""
    if not task.enabled:
        reason = task.disabled_reason or "enabled: false"
        is_over = task.disabled_reason in (DisabledReason.COMPLETED, DisabledReason.FAILED)  # `resume` refuses those
        again = f"`{command_line('run' if is_over else 'resume', task.id)}`"
        raise TickdownError(f"{task.id} does not run anyway ({reason}); {again} lets it run again")
    in_file = _disable_in_file(opened, task, DisabledReason.PAUSED) if until is None else False
    if until is not None:
        opened.sync()
    with opened.db.transaction() as connection:
        if until is not None:
            tasks.set_pause(connection, task.id, until)
        elif not in_file:
            tasks.close(connection, task.id, DisabledReason.PAUSED)
        record_action(connection, opened, asker, ActionName.PAUSE, task.id, detail=_end_words(task, until))
    log_action(opened.app.log, "paused", asker, task_id=task.id, until=until)
    return Paused(until, in_file)


def _end_words(task: Task, until: datetime | None) -> str:
    return f"until {until.astimezone(task.zone):%Y-%m-%d %H:%M %Z}" if until is not None else ""


def resume(opened: Opened, asker: Asker, task: Task) -> bool:
    """True if only what is left of its one run goes on."""
    opened.sync()
    return let_run_again(opened.context, task, asker, opened.now)


def cancel(opened: Opened, asker: Asker, task: Task) -> Cancelled:
    """For good, but nothing is deleted."""
    opened.sync()
    in_file = _disable_in_file(opened, task, DisabledReason.RETIRED)
    with opened.db.transaction() as connection:
        if not in_file:
            tasks.close(connection, task.id, DisabledReason.RETIRED)
        tasks.retire(opened.db, task.id, opened.now)
        record_action(connection, opened, asker, ActionName.CANCEL, task.id)
    log_action(opened.app.log, "cancelled", asker, task_id=task.id)
    facts = tasks.facts(opened.db, task.id)
    return Cancelled(in_file, is_running=facts is not None and facts.running)


def _disable_in_file(opened: Opened, task: Task, reason: DisabledReason) -> bool:
    """False while a healer works on the file: then it is only remembered, and written when that is over."""
    if is_healed_now(opened.db, task.id):
        return False
    edit_file(opened.context, task, {"enabled": "false", "disabled_reason": reason}, opened.now)
    return True


def let_run_again(
    context: Context, task: Task, asker: Asker, now: datetime,
    also: Callable[[Connection], object] = lambda connection: None,
) -> bool:  # fmt: skip
    """Enable it and forget its failures; True if only what is left of its one run goes on. `also` belongs to the same
    transaction."""
    facts = tasks.facts(context.db, task.id)
    spent = _is_spent(task, facts)
    _refuse_past(task, facts, now)
    if not task.enabled or task.disabled_reason is not None:
        changes: dict[str, str | None] = {"disabled_reason": None}
        if not task.enabled:
            changes["enabled"] = "true"
        edit_file(context, task, changes, now)
    with context.db.transaction() as connection:
        if spent:
            tasks.go_on(connection, task.id)
        else:
            tasks.resume(connection, task, now, boot_id())
        also(connection)
        actions.add(connection, ActionTaken(now, ActionName.RESUME, asker, task.id))
    log_action(context.log, "resumed", asker, task_id=task.id)
    return spent


def _is_spent(task: Task, facts: Facts | None) -> bool:
    """Whether the run of a one-shot is behind it, but for a retry to come. If nothing is to come, resuming changes
    nothing: it comes again only by `retry`, or with another schedule."""
    if facts is None or not is_spent(task, facts):
        return False
    if not facts.running and facts.retry_at is None:
        raise TickdownError(
            f"{task.id} was to run once and has ({task.disabled_reason or 'no run is to come'}); give it another schedule, run it again "
            f"with `{command_line('run', task.id)}`, or if it failed with `{command_line('retry', task.id)}`"
        )
    return True


def _refuse_past(task: Task, facts: Facts | None, now: datetime) -> None:
    """Resuming counts from now, so the one moment of a one-shot would be lost without a trace."""
    if facts is None or not isinstance(task.schedule, OneShot) or is_spent(task, facts):
        return
    at = task.schedule.moment(facts.anchored_at or facts.armed_at)
    if at <= now and (not task.enabled or paused(now, facts)):
        raise TickdownError(
            f"the time of {task.id} has passed ({when(at, now, task.zone)}); run it with `{command_line('run', task.id)}`, or give "
            "it another schedule"
        )
