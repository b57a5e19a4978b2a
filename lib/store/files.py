"""The task files as they were last read: what a file meant, under the stamp that it had then."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from lib.catalog import TaskFile
from lib.parsed import problems_from_text, problems_to_text, task_from_text, task_to_text
from lib.store.database import Database


def all_files(db: Database) -> dict[str, TaskFile]:
    """By path. The tasks in them are made when somebody asks: most of the time nobody does."""
    rows = db.connection.execute("SELECT path, stamp, digest, task_id, task, problems, chained, dated FROM files")
    rows.row_factory = None
    return {
        path: TaskFile(
            path, stamp, digest, task_id, problems_from_text(problems), stored=task, read_stored=task_from_text,
            chained=bool(chained), dated=bool(dated),
        )
        for path, stamp, digest, task_id, task, problems, chained, dated in rows
    }  # fmt: skip


def write(connection: sqlite3.Connection, read: Iterable[TaskFile], removed: Iterable[str]) -> None:
    connection.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in removed])
    connection.executemany(
        "INSERT OR REPLACE INTO files (path, stamp, digest, task_id, task, problems, chained, dated)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (file.path, file.stamp, file.digest, file.task_id, task_to_text(file.task) if file.task else None,
             problems_to_text(file.problems), file.chained, file.dated)
            for file in read
        ),
    )  # fmt: skip
