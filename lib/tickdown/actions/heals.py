"""Taking back what the heals of a run changed."""

from __future__ import annotations

from collections.abc import Sequence

from tickdown.actions.record import log_action, record_action
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import ActionName, Asker, HealRow, HealStatus, Run
from tickdown.context.app import Opened
from tickdown.heal.healer import undo
from tickdown.processes.lock import TaskLock
from tickdown.store import heals
from tickdown.tasks.task import Task


def undo_heals(opened: Opened, asker: Asker, task: Task, run: Run, rows: Sequence[HealRow]) -> list[str]:
    """The files that are as they were before the run."""
    context = opened.context
    if not any(row.status is HealStatus.KEPT for row in rows):
        raise TickdownError(f"nothing is left of the heals of run {run.run_id}: {rows[-1].status}")
    lock = TaskLock(context.workspace.locks, task.id)
    if not lock.acquire(context.owner):
        raise TickdownError(f"{task.id} is running; `{command_line('stop', task.id)}` ends it", Exit.ALREADY_RUNNING)
    try:
        files = undo(context, run.run_id, opened.now)
        with opened.db.transaction() as connection:
            heals.undone(opened.db, task.id, run.run_id)
            detail = ", ".join(files)
            record_action(connection, opened, asker, ActionName.UNDO_HEAL, task.id, run.run_id, detail)
    finally:
        lock.release()
    log_action(context.log, "heal_undone", asker, task_id=task.id, run_id=run.run_id, files=files)
    return files
