"""Letting a task run again, and obeying plain comments: what commands and ticks have in common. Files change first, then
the database in one transaction, so that what is cut off in between is simply done again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tickdown.base.errors import TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import Comment, Facts, Hint, HintKind
from tickdown.comments.meaning import Action, Wish
from tickdown.comments.reading import act_on
from tickdown.context.context import Context
from tickdown.context.task_file import disable_in_file, edit_file
from tickdown.governor.governor import is_spent, paused
from tickdown.processes.process import boot_id
from tickdown.schedule.schedule import OneShot
from tickdown.store import comments, hints, tasks
from tickdown.store.database import Connection
from tickdown.tasks.task import Task
from tickdown.time.instants import to_milliseconds
from tickdown.time.moments import when


def let_run_again(
    context: Context, task: Task, now: datetime, also: Callable[[Connection], object] = lambda connection: None
) -> bool:
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
    context.log.info("resumed", task_id=task.id)
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


def obey_comment(context: Context, task: Task, comment: Comment, wish: Wish, now: datetime) -> None:
    """A plain comment that does not have to wait for the next run."""
    match wish.action:
        case Action.RESUME:
            let_run_again(context, task, now, lambda connection: act_on(connection, task, [comment], wish, now))
        case Action.PAUSE | Action.RUN if not task.enabled:
            with context.db.transaction() as connection:
                comments.mark_read(connection, {comment.id: f"{wish.action}: it is disabled, nothing was done"}, now)
        case Action.RUN:
            moment = to_milliseconds(now)
            hint = Hint(HintKind.ONE_SHOT, moment, at=moment, reason="/run", author=comment.author)
            with context.db.transaction() as connection:
                if act_on(connection, task, [comment], wish, now):
                    hints.put_hints(connection, task.id, [hint])
        case Action.PAUSE:
            with context.db.transaction() as connection:
                act_on(connection, task, [comment], wish, now)
            disable_in_file(context, task, now)
