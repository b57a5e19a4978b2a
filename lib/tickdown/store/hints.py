"""Hints: given, cleared, and cleared away when they have run out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from tickdown.base.model import Hint, Source
from tickdown.governor.governor import Unrun, settles
from tickdown.store import tasks
from tickdown.store.database import Connection, Database
from tickdown.store.runs import insert_unrun
from tickdown.tasks.task import Task
from tickdown.time.instants import to_store


def give_hints(db: Database, task_id: str, given: Iterable[Hint]) -> None:
    with db.transaction() as connection:
        put_hints(connection, task_id, given)


def put_hints(connection: Connection, task_id: str, given: Iterable[Hint]) -> None:
    """Each in place of an earlier one of its kind."""
    rows = [
        (task_id, hint.kind, hint.every.total_seconds() if hint.every else None, to_store(hint.at) if hint.at else None,
         to_store(hint.given_at), to_store(hint.until) if hint.until else None, hint.reason, hint.author)
        for hint in given
    ]  # fmt: skip
    connection.executemany(
        "INSERT OR REPLACE INTO hints (task_id, kind, every_s, at, given_at, until, reason, author)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def clear_hints(db: Database, task: Task, now: datetime) -> int:
    """All of a task; the schedule takes over from now."""
    with db.transaction() as connection:
        known = tasks.facts(db, task.id)
        cleared = connection.execute("DELETE FROM hints WHERE task_id = ?", (task.id,)).rowcount
        if known is not None and any(settles(hint, task, known) for hint in known.hints):
            _take_over_from(connection, task.id, now)
    return cleared


def clear_expired_hints(db: Database, find: Callable[[str], Task | None], host: str, now: datetime) -> None:
    """A moment that was asked for and never came up leaves its row."""
    names = {row["task_id"].lower() for row in db.all("SELECT task_id FROM hints WHERE until <= ?", to_store(now))}
    for name in names:
        with db.transaction() as connection:
            task, known = find(name), tasks.facts(db, name)  # only now: another tick may have used or cleared it
            for hint in known.hints if known is not None else ():
                if hint.live(now) or known is None:
                    continue
                connection.execute("DELETE FROM hints WHERE task_id = ? AND kind = ?", (name, hint.kind))
                if hint.at is not None:
                    unmet = Unrun(hint.at, hint.at, 1)
                    insert_unrun(connection, known.task_id, unmet, Source.AI_ONESHOT, host, now)
                elif task is not None and hint.until and settles(hint, task, known):
                    _take_over_from(connection, name, hint.until)


def _take_over_from(connection: Connection, task_id: str, moment: datetime) -> None:
    """What the schedule named while an interval hint was in its place is settled."""
    connection.execute("UPDATE tasks SET armed_at = MAX(armed_at, ?) WHERE id = ?", (to_store(moment), task_id))
