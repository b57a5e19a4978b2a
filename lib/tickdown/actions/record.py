"""Who asked, on record: a row in the transaction of the action, and a line in the log."""

from __future__ import annotations

from tickdown.base.model import ActionName, ActionTaken, Asker
from tickdown.context.app import Opened
from tickdown.store import actions
from tickdown.store.database import Connection
from tickdown.workspace.scheduler_log import Log


def record_action(
    connection: Connection, opened: Opened, asker: Asker, action: ActionName, task_id: str | None = None,
    run_id: str | None = None, detail: str = "",
) -> None:  # fmt: skip
    actions.add(connection, ActionTaken(opened.now, action, asker, task_id, run_id, detail))


def log_action(log: Log, event: str, asker: Asker, **details: object) -> None:
    log.info(event, **details, asked_by=asker.kind, asker=asker.name)
