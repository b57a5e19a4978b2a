"""What is remembered of each task: when it was armed, what was last taken up, how it has been failing."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime

from lib.catalog import Catalog
from lib.model import Facts
from lib.store.database import Database
from lib.store.tickets import close_tickets
from lib.task import Task
from lib.times import from_store, maybe_from_store, to_store


@dataclass(frozen=True, slots=True)
class Remembered:
    """A task as it was last seen valid, for when its file is broken now."""

    task_id: str
    path: str
    schedule: str
    timezone: str
    enabled: bool


def sync(db: Database, catalog: Catalog, now: datetime, boot_id: str, *, rebuilt: bool = False) -> None:
    """Meet new tasks; re-arm those whose schedule was edited, that were enabled again by hand, or whose file was away.

    After a rebuilt database (`rebuilt`) an interval task counts as just ended: whether it ran a moment ago is unknown,
    and nothing runs on a guess.
    """
    rows = {row["id"].lower(): row for row in db.all("SELECT * FROM tasks")}
    stamp = to_store(now)
    changes: list[tuple[str, tuple[object, ...] | dict[str, str]]] = []
    for task in catalog.tasks:
        row = rows.pop(task.id.lower(), None)
        values = (task.path, task.schedule.text, task.timezone, int(task.enabled))
        if row is None:
            changes.append((_MEET, (*values, task.id, stamp, stamp, boot_id, stamp if rebuilt else None)))
            continue
        if (row["path"], row["schedule"], row["timezone"], row["enabled"]) != values:
            changes.append((_UPDATE, (*values, task.id)))
            if task.enabled and not row["enabled"]:
                changes.append((_REARM_AND_FORGIVE, _rearm_values(task.id, now, boot_id)))
            elif (row["schedule"], row["timezone"]) != values[1:3]:
                changes.append((_REARM, (stamp, boot_id, task.id)))
        if row["gone"]:
            changes.append(("UPDATE tasks SET gone = 0, armed_at = ? WHERE id = ?", (stamp, task.id)))
        if row["last_end"] is not None and row["last_end"] > stamp:
            # The clock was set back: an interval must not wait for a time that was never real.
            changes.append(("UPDATE tasks SET last_end = ? WHERE id = ?", (stamp, task.id)))
    gone = [row["id"] for row in rows.values() if not row["gone"] and _is_gone(row, catalog)]
    if changes or gone:
        with db.transaction() as connection:
            for sql, parameters in changes:
                connection.execute(sql, parameters)
            for task_id in gone:
                connection.execute("UPDATE tasks SET gone = 1 WHERE id = ?", (task_id,))
                close_tickets(connection, task_id, "the task's file is gone", now)


def _is_gone(row: sqlite3.Row, catalog: Catalog) -> bool:
    """Not one that is there but can't be used, or that came after the files were read."""
    return not catalog.rejects(row["path"]) and from_store(row["first_seen"]) < catalog.loaded_at


_MEET = (
    "INSERT OR IGNORE INTO tasks (path, schedule, timezone, enabled, id, first_seen, armed_at, boot_id, last_end)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = "UPDATE tasks SET path = ?, schedule = ?, timezone = ?, enabled = ? WHERE id = ?"
_REARM = "UPDATE tasks SET armed_at = ?, boot_id = ?, deferred = NULL, retry_at = NULL WHERE id = ?"
# From now on, with a clean slate: nothing missed meanwhile fires, no old failure counts.
_REARM_AND_FORGIVE = (
    "UPDATE tasks SET armed_at = :now, last_occurrence = MIN(last_occurrence, :now), last_end = CASE WHEN last_end IS NULL"
    " AND last_occurrence IS NULL THEN NULL ELSE :now END, boot_id = :boot_id, paused_until = NULL, suspend_pending = 0,"
    " failures = 0, incident = NULL, incident_since = NULL, incident_alerted_at = NULL, deferred = NULL, retry_at = NULL,"
    " retry_follows = NULL, retries_used = 0 WHERE id = :id"
)


def _rearm_values(task_id: str, now: datetime, boot_id: str) -> dict[str, str]:
    return {"now": to_store(now), "boot_id": boot_id, "id": task_id}


def resume(db: Database, task: Task, now: datetime, boot_id: str) -> None:
    with db.transaction() as connection:
        connection.execute(_REARM_AND_FORGIVE, _rearm_values(task.id, now, boot_id))
        connection.execute("UPDATE tasks SET enabled = 1 WHERE id = ?", (task.id,))
        close_tickets(connection, task.id, "resumed", now)


def pause(db: Database, task_id: str, until: datetime) -> None:
    with db.transaction() as connection:
        connection.execute("UPDATE tasks SET paused_until = ? WHERE id = ?", (to_store(until), task_id))


def suspension_written(db: Database, task_id: str) -> None:
    """The file says so now; from here on the file alone decides."""
    with db.transaction() as connection:
        connection.execute("UPDATE tasks SET suspend_pending = 0, enabled = 0 WHERE id = ?", (task_id,))


def all_facts(db: Database) -> dict[str, Facts]:
    """By lower-case id."""
    return {row["id"].lower(): _facts(row) for row in db.all(f"{_SELECT_FACTS}")}


def facts(db: Database, task_id: str) -> Facts | None:
    row = db.one(f"{_SELECT_FACTS} WHERE tasks.id = ?", task_id)
    return _facts(row) if row else None


def remembered(db: Database) -> list[Remembered]:
    rows = db.all("SELECT id, path, schedule, timezone, enabled FROM tasks")
    return [Remembered(r["id"], r["path"], r["schedule"], r["timezone"], bool(r["enabled"])) for r in rows]


_SELECT_FACTS = (
    "SELECT tasks.*, EXISTS (SELECT 1 FROM task_runs WHERE status = 'running' AND task_runs.task_id = tasks.id) AS running"
    " FROM tasks"
)


def _facts(row: sqlite3.Row) -> Facts:
    return Facts(
        task_id=row["id"],
        armed_at=from_store(row["armed_at"]),
        last_occurrence=maybe_from_store(row["last_occurrence"]),
        last_end=maybe_from_store(row["last_end"]),
        boot_id=row["boot_id"],
        paused_until=maybe_from_store(row["paused_until"]),
        suspend_pending=bool(row["suspend_pending"]),
        failures=row["failures"],
        incident=row["incident"],
        incident_since=maybe_from_store(row["incident_since"]),
        incident_alerted_at=maybe_from_store(row["incident_alerted_at"]),
        deferred=maybe_from_store(row["deferred"]),
        retry_at=maybe_from_store(row["retry_at"]),
        retry_follows=row["retry_follows"],
        retries_used=row["retries_used"],
        running=bool(row["running"]),
    )
