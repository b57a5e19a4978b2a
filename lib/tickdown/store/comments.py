"""What people write to a task, and what agents ask back. A comment is read in the transaction that makes its effect last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tickdown.base.model import Comment
from tickdown.store.database import Connection, Database, Row
from tickdown.time.instants import from_store, maybe_from_store, to_store


def add_comment(
    connection: Connection, task_id: str, author: str, text: str, now: datetime, *, by_a_person: bool = True
) -> int:
    """What an agent says is for people: no agent needs to read it."""
    stamp = to_store(now)
    cursor = connection.execute(
        "INSERT INTO comments (task_id, author, by_a_person, text, at, read_at) VALUES (?, ?, ?, ?, ?, ?)",
        (task_id, author, int(by_a_person), text, stamp, None if by_a_person else stamp),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def unread(db: Database) -> dict[str, list[Comment]]:
    """What people wrote and nobody acted on, oldest first, by lower-case id of the task."""
    found: dict[str, list[Comment]] = {}
    for row in db.all("SELECT * FROM comments WHERE read_at IS NULL ORDER BY id"):
        found.setdefault(row["task_id"].lower(), []).append(_comment(row))
    return found


def tasks_with_unread(db: Database) -> set[str]:
    """Their ids, in lower case."""
    return {row[0].lower() for row in db.all("SELECT DISTINCT task_id FROM comments WHERE read_at IS NULL")}


def unread_of(db: Database, task_id: str) -> list[Comment]:
    return [
        _comment(row)
        for row in db.all("SELECT * FROM comments WHERE task_id = ? AND read_at IS NULL ORDER BY id", task_id)
    ]


def mark_read(connection: Connection, answers: Mapping[int, str], now: datetime) -> bool:
    """What came of each, by its number: of all of them, or none if somebody else has acted on one: False."""
    marks = ", ".join("?" * len(answers))
    (unread_still,) = connection.execute(
        f"SELECT COUNT(*) FROM comments WHERE read_at IS NULL AND id IN ({marks})", list(answers)
    ).fetchone()
    if unread_still < len(answers):
        return False
    connection.executemany(
        "UPDATE comments SET read_at = ?, answer = ? WHERE id = ?",
        [(to_store(now), answer, number) for number, answer in answers.items()],
    )
    return True


def list_comments(db: Database, task_id: str | None, limit: int) -> list[Comment]:
    """The newest, oldest first."""
    where, values = ("", ()) if task_id is None else (" WHERE task_id = ?", (task_id,))
    rows = db.all(f"SELECT * FROM comments{where} ORDER BY id DESC LIMIT ?", *values, limit)
    return [_comment(row) for row in reversed(rows)]


def _comment(row: Row) -> Comment:
    return Comment(
        id=row["id"],
        task_id=row["task_id"],
        author=row["author"],
        text=row["text"],
        at=from_store(row["at"]),
        by_a_person=bool(row["by_a_person"]),
        read_at=maybe_from_store(row["read_at"]),
        answer=row["answer"],
    )
