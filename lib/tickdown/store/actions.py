"""Who has asked for what. A row is written in the transaction in which the action takes effect."""

from __future__ import annotations

from tickdown.base.model import ActionName, ActionTaken, AskedBy, Asker
from tickdown.store.database import Connection, Database, Row
from tickdown.time.instants import from_store, to_store


def add(connection: Connection, taken: ActionTaken) -> None:
    connection.execute(
        "INSERT INTO actions (at, action, task_id, run_id, asked_by, asker, detail) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            to_store(taken.at),
            taken.action,
            taken.task_id,
            taken.run_id,
            taken.asker.kind,
            taken.asker.name,
            taken.detail,
        ),
    )


def last_of(db: Database, task_id: str, limit: int) -> list[ActionTaken]:
    """The newest first."""
    rows = db.all("SELECT * FROM actions WHERE task_id = ? ORDER BY id DESC LIMIT ?", task_id, limit)
    return [_taken(row) for row in rows]


def last_pause(db: Database, task_id: str) -> ActionTaken | None:
    """The last one that nobody has ended by resuming the task; it may have run out."""
    row = db.one(
        "SELECT * FROM actions WHERE task_id = ? AND action IN (?, ?) ORDER BY id DESC LIMIT 1",
        task_id,
        ActionName.PAUSE,
        ActionName.RESUME,
    )
    return _taken(row) if row is not None and row["action"] == ActionName.PAUSE else None


def _taken(row: Row) -> ActionTaken:
    return ActionTaken(
        at=from_store(row["at"]),
        action=ActionName(row["action"]),
        asker=Asker(AskedBy(row["asked_by"]), row["asker"]),
        task_id=row["task_id"],
        run_id=row["run_id"],
        detail=row["detail"],
    )
