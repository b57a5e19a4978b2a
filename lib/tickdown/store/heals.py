"""Heals: counted before they begin, then how each ended. Also which edits of task files were the program's own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from tickdown.base.model import HealRow, HealStatus, HealVerdict, Lease, Rung
from tickdown.failure.ladder import MOST_HEALS_A_DAY, NoHeal
from tickdown.store import runs
from tickdown.store.database import Connection, Database, Row
from tickdown.time.instants import from_store, to_store


def start(
    db: Database, row: HealRow, lease: Lease, *, midnight: datetime, most_a_day: int, now: datetime
) -> NoHeal | bool:
    """Count a heal and begin its attempt; why not, or False if somebody wants the run to end. `midnight` is when today began."""
    with db.transaction() as connection:
        used_up = no_heal_left(db, row.task_id, midnight, most_a_day)
        if used_up is not None:
            return used_up
        if not runs.insert_attempt(connection, lease, row.attempt, Rung.HEAL, now):
            return False
        connection.execute(
            "INSERT INTO heals (run_id, attempt, task_id, started_at, status, signature) VALUES (?, ?, ?, ?, ?, ?)",
            (row.run_id, row.attempt, row.task_id, to_store(now), row.status, row.signature),
        )
    return True


def no_heal_left(db: Database, task_id: str, midnight: datetime, most_a_day: int) -> NoHeal | None:
    row = db.one(
        "SELECT COALESCE(SUM(task_id = ?), 0) AS task, COUNT(*) AS everyone FROM heals WHERE started_at >= ?",
        task_id,
        to_store(midnight),
    )
    assert row is not None
    if row["task"] >= MOST_HEALS_A_DAY:
        return NoHeal.TASK_LIMIT
    return NoHeal.ALL_LIMIT if row["everyone"] >= most_a_day else None


def record(connection: Connection, row: HealRow) -> None:
    """How it stands with a heal, by run and attempt."""
    connection.execute(
        "UPDATE heals SET status = ?, verdict = ?, cause = ?, problem = ?, files = ?, cost_usd = ? WHERE run_id = ? AND attempt = ?",
        (row.status, row.verdict, row.cause, row.problem, json.dumps(list(row.files)), row.cost_usd, row.run_id, row.attempt),
    )  # fmt: skip


def of_run(db: Database, run_id: str) -> list[HealRow]:
    return [_row(row) for row in db.all("SELECT * FROM heals WHERE run_id = ? ORDER BY attempt", run_id)]


def runs_on_record(db: Database) -> set[str]:
    """Runs that were healed and still have their rows."""
    return {row["run_id"] for row in db.all("SELECT run_id FROM heals JOIN task_runs USING (run_id)")}


def undone(db: Database, task_id: str, run_id: str, status: HealStatus = HealStatus.UNDONE) -> None:
    """The heals of a run were taken back, or can't be (then they are still `kept`): the task is not on probation for them
    any more."""
    with db.transaction() as connection:
        connection.execute(
            "UPDATE heals SET status = ? WHERE run_id = ? AND status = ?", (status, run_id, HealStatus.KEPT)
        )
        connection.execute(
            "UPDATE tasks SET probation_run = NULL, probation_left = NULL, probation_until = NULL"
            " WHERE id = ? AND probation_run = ?",
            (task_id, run_id),
        )


def counted_since(db: Database, moment: datetime) -> list[HealRow]:
    """The rows behind the limits."""
    return [_row(row) for row in db.all("SELECT * FROM heals WHERE started_at >= ?", to_store(moment))]


def count_again(db: Database, counted: Iterable[HealRow], since: datetime) -> int:
    """Put rows back that are gone or say something else than they did; how many. Older ones than `since` may have gone."""
    with db.transaction() as connection:
        found = {tuple(row) for row in connection.execute("SELECT run_id, attempt, task_id, started_at FROM heals")}
        wrong = [row for row in counted if row.started_at >= since and _what_counts(row) not in found]
        for row in wrong:
            connection.execute(
                "INSERT INTO heals (run_id, attempt, task_id, started_at, status, signature) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET task_id = excluded.task_id, started_at = excluded.started_at",
                (*_what_counts(row), row.status, row.signature),
            )
            record(connection, row)
    return len(wrong)


def _what_counts(row: HealRow) -> tuple[str, int, str, str]:
    return row.run_id, row.attempt, row.task_id, to_store(row.started_at)


def on_probation(db: Database) -> list[str]:
    """The runs whose heals may still have to be taken back."""
    return [row["run"] for row in db.all("SELECT probation_run AS run FROM tasks WHERE probation_run IS NOT NULL")]


def _row(row: Row) -> HealRow:
    return HealRow(
        run_id=row["run_id"],
        attempt=row["attempt"],
        task_id=row["task_id"],
        started_at=from_store(row["started_at"]),
        status=HealStatus(row["status"]),
        signature=row["signature"],
        verdict=HealVerdict(row["verdict"]) if row["verdict"] else None,
        cause=row["cause"],
        problem=row["problem"],
        files=tuple(json.loads(row["files"])),
        cost_usd=row["cost_usd"],
    )


# --- edits of our own ------------------------------------------------------------------------------------------


def note_own_edit(db: Database, path: str, digest: str, now: datetime) -> None:
    """Never before the begin of a heal that is going on, or that would take it for the healer's and put it back: `now` may be
    when the run ended for which this was written, and the clock may have been set back since."""
    with db.transaction() as connection:
        connection.execute(
            "INSERT INTO own_edits (path, digest, at) VALUES (?, ?, MAX(?, COALESCE((SELECT MAX(started_at) FROM heals"
            " WHERE status IN ('running', 'unproven')), '')))",
            (path, digest, to_store(now)),
        )


def own_edits(db: Database, since: datetime) -> set[tuple[str, str]]:
    rows = db.all("SELECT path, digest FROM own_edits WHERE at >= ?", to_store(since))
    return {(row["path"], row["digest"]) for row in rows}


def running_since(db: Database) -> datetime | None:
    """When the heal began that is going on, if one is."""
    row = db.one(
        "SELECT MIN(heals.started_at) AS at FROM heals JOIN task_runs USING (run_id)"
        " WHERE heals.status = 'running' AND task_runs.status = 'running'"
    )
    return from_store(row["at"]) if row is not None and row["at"] else None


def is_healed_now(db: Database, task_id: str) -> bool:
    """Whether a healer is at work on this task, or its edits wait for their proof: then its file is not to be touched."""
    row = db.one(
        "SELECT 1 FROM heals JOIN task_runs USING (run_id) WHERE heals.task_id = ? AND heals.status IN ('running', 'unproven')"
        " AND task_runs.status = 'running'",
        task_id,
    )
    return row is not None


def of_chain(db: Database, run_id: str | None) -> list[HealRow]:
    """Heals of a run and of those that it follows: all of one occurrence, in their order."""
    rows = db.all(
        "WITH RECURSIVE chain (run_id) AS (SELECT ? UNION SELECT follows FROM task_runs JOIN chain USING (run_id)"
        " WHERE follows IS NOT NULL) SELECT heals.* FROM heals JOIN chain USING (run_id) ORDER BY started_at, attempt",
        run_id,
    )
    return [_row(row) for row in rows]


def others_at_work(db: Database, run_id: str, since: datetime) -> bool:
    """Whether another task was really running at any time since; not one that waits, or is healed itself. There is no index
    for it, which every attempt would pay for; the newest are looked at first."""
    row = db.one(
        "SELECT 1 FROM attempts WHERE run_id <> ? AND rung <> 'heal' AND (status = 'running' OR finished_at >= ?)"
        " ORDER BY run_id DESC LIMIT 1",
        run_id,
        to_store(since),
    )
    return row is not None
