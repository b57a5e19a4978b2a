"""Making a task's file say that it is suspended."""

from __future__ import annotations

from datetime import datetime

from lib import messages
from lib.context import Context
from lib.errors import TickdownError
from lib.store import outbox, tasks
from lib.task import Task
from lib.taskfile import set_fields


def write_suspension(context: Context, task: Task, now: datetime) -> None:
    """Make the file say what the database knows already. A file that can't be edited changes nothing about it."""
    if not _suspension_pending(context, task):
        return  # resumed, or written by another tick
    try:
        changes = {"enabled": "false", "disabled_reason": "auto_suspended"}
        set_fields(context.workspace.root / task.path, changes, task.id)
    except TickdownError as error:
        if not _suspension_pending(context, task):
            return  # another tick has written it this very moment
        context.log.error("suspension_not_written", task_id=task.id, error=str(error))
        alert = messages.suspension_failed_alert(task, str(error))
        outbox.add_alert_once_per(context.db, outbox.DAY, alert, now)
        return
    tasks.suspension_written(context.db, task.id)


def _suspension_pending(context: Context, task: Task) -> bool:
    facts = tasks.facts(context.db, task.id)
    return facts is not None and facts.suspend_pending
