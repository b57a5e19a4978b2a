"""Editing a task's file: by command, or to make it say that the task does not run any more (suspended, paused by a comment,
a one-shot that is over)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tickdown.alerts import messages
from tickdown.base.errors import TickdownError
from tickdown.base.model import DisabledReason
from tickdown.context.context import Context
from tickdown.store import heals, outbox, tasks
from tickdown.store.errors import StoreError
from tickdown.tasks.editing import ChangedMeanwhile, set_fields
from tickdown.tasks.task import Task


def edit_file(
    context: Context, task: Task, changes: Mapping[str, str | None], now: datetime, if_schedule: str | None = None
) -> bool:
    """Set fields of the file, and let heals that are going on know who did. False if it has another schedule by now."""
    path = context.workspace.root / task.path
    if not set_fields(path, changes, task.id, if_schedule):
        return False
    note_own_edit(context, path, now)
    return True


def disable_in_file(context: Context, task: Task, now: datetime) -> None:
    """Make the file say what the database knows already. A file that can't be edited changes nothing about it, and neither
    does a database that can't be used just now: the run behind it is over, and a later tick comes back to the file."""
    try:
        _disable_in_file(context, task, now)
    except StoreError as error:
        context.log.warning("closing_put_off", task_id=task.id, error=str(error))


def _disable_in_file(context: Context, task: Task, now: datetime) -> None:
    reason = _pending(context, task)
    if reason is None:
        return  # resumed, or written by another tick
    if heals.is_healed_now(context.db, task.id):
        return  # its file is not to be touched now; a later tick comes back to it
    changes = {"enabled": "false", "disabled_reason": reason}
    # A one-shot that was given another time while it ran is not over: the next tick meets that schedule.
    over = reason in (DisabledReason.COMPLETED, DisabledReason.FAILED)
    try:
        if not edit_file(context, task, changes, now, task.schedule.text if over else None):
            return
    except ChangedMeanwhile as error:
        # By another tick with the same aim, most likely, or by somebody's editor: a later tick looks at what came of it.
        context.log.info("closing_put_off", task_id=task.id, reason=reason, error=str(error))
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


def note_own_edit(context: Context, path: Path, now: datetime) -> None:
    """So that a heal that is going on is not blamed for what this program wrote itself."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    except OSError:
        return
    name = context.workspace.relative(path).encode("utf-8", "backslashreplace").decode()
    heals.note_own_edit(context.db, name, digest, now)
