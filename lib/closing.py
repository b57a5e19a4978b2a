"""Making a task's file say that it does not run any more: suspended, or a one-shot that is over."""

from __future__ import annotations

from datetime import datetime

from lib import messages
from lib.context import Context
from lib.errors import TickdownError
from lib.model import DisabledReason
from lib.store import outbox, tasks
from lib.task import Task
from lib.taskfile import set_fields


def write_closing(context: Context, task: Task, now: datetime) -> None:
    """Make the file say what the database knows already. A file that can't be edited changes nothing about it."""
    reason = _pending(context, task)
    if reason is None:
        return  # resumed, or written by another tick
    path, changes = context.workspace.root / task.path, {"enabled": "false", "disabled_reason": reason}
    # A one-shot that was given another time while it ran is not over: the next tick meets that schedule.
    if_schedule = None if reason is DisabledReason.AUTO_SUSPENDED else task.schedule.text
    try:
        if not set_fields(path, changes, task.id, if_schedule):
            return
    except TickdownError as error:
        if _pending(context, task) is None:
            return  # another tick has written it this very moment
        context.log.error("closing_not_written", task_id=task.id, reason=reason, error=str(error))
        alert = messages.not_edited_alert(task, reason, str(error))
        outbox.add_alert_once_per(context.db, outbox.DAY, alert, now)
        return
    tasks.closing_written(context.db, task.id)


def _pending(context: Context, task: Task) -> DisabledReason | None:
    facts = tasks.facts(context.db, task.id)
    return facts.closing if facts is not None else None
