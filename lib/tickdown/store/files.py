"""The task files as they were last read: what a file meant, under the stamp that it had then."""

from __future__ import annotations

from collections.abc import Iterable

from tickdown.store.database import Connection, Database
from tickdown.tasks.catalogue import TaskFile, file_from, values_of


def all_files(db: Database) -> dict[str, TaskFile]:
    """By path. The tasks in them are made when somebody asks: most of the time nobody does."""
    rows = db.connection.execute("SELECT path, stamp, digest, task_id, task, problems, chained, dated FROM files")
    rows.row_factory = None
    return {row[0]: file_from(*row) for row in rows}


def write(connection: Connection, read: Iterable[TaskFile], removed: Iterable[str]) -> None:
    connection.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in removed])
    connection.executemany(
        "INSERT OR REPLACE INTO files (path, stamp, digest, task_id, task, problems, chained, dated)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        map(values_of, read),
    )
