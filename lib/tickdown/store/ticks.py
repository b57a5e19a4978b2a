"""Heartbeats, machine snapshots, and the daily removal of what is old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from tickdown.base.model import Alert, MissReason
from tickdown.governor.miss_reasons import Stoppage
from tickdown.processes.process import boot_id, time_of_boot
from tickdown.store import heartbeat
from tickdown.store.database import Connection, Database
from tickdown.store.heartbeat import CLOCK_SLACK, OUTAGE_AFTER, PRUNE_EVERY
from tickdown.store.outbox import add_alert
from tickdown.time.instants import from_store, maybe_from_store, to_store

KEEP_HEARTBEATS = timedelta(days=7)
KEEP_SNAPSHOTS = timedelta(days=30)
A_DAY = timedelta(days=1)
CLOCK_JUMP = timedelta(minutes=1)  # less is what keeping time costs
_BATCH = 500


def last_heartbeat(db: Database, now: datetime) -> datetime | None:
    """The newest that is not from a clock that was ahead."""
    row = db.one("SELECT MAX(at) AS at FROM heartbeats WHERE at <= ?", to_store(now + timedelta(minutes=1)))
    return maybe_from_store(row["at"]) if row else None


def beat(db: Database, host: str, pid: int, now: datetime, outage: Callable[[datetime], Alert | None]) -> bool:
    """Stamp this tick. `outage` judges the time since the one before; its alert belongs to the same transaction, so
    that of several ticks after an outage only the first reports it. True if the clock has been set back since."""
    with db.transaction() as connection:
        before = last_heartbeat(db, now)
        (newest,) = connection.execute("SELECT MAX(at) FROM heartbeats").fetchone()
        alert = outage(before) if before is not None else None
        heartbeat.beat(connection, to_store(now), host, pid)
        if alert is not None:
            add_alert(connection, alert, now)
        # By the clock as it is now: this tick may have waited, and others have stamped meanwhile.
        latest = to_store(max(now, datetime.now(UTC)) + CLOCK_SLACK)
        connection.execute("DELETE FROM heartbeats WHERE at > ?", (latest,))
        connection.execute("DELETE FROM stoppages WHERE until > ?", (latest,))
        _notice_jump(connection, now)
    return newest is not None and newest > latest


def _notice_jump(connection: Connection, now: datetime) -> None:
    """By the wall clock the machine has started at another time than before: then somebody has set the clock. What it left
    out when it was set forward has not been missed by any tick."""
    booted = time_of_boot()
    row = connection.execute("SELECT value FROM meta WHERE name = 'booted'").fetchone()
    boot, _, before = row["value"].partition(" ") if row is not None else ("", "", "")
    try:
        ahead = timedelta(seconds=booted - float(before)) if boot == boot_id() else timedelta(0)
        since = now - ahead
    except (ValueError, OverflowError):  # nobody knows how it got there
        boot, ahead, since = "", timedelta(0), now
    if ahead >= CLOCK_JUMP:
        _add_stoppage(connection, MissReason.CLOCK, since, now)
    if boot != boot_id() or abs(ahead) >= CLOCK_JUMP:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('booted', ?)", (f"{boot_id()} {booted:.0f}",))


def stopped(db: Database, reason: MissReason, now: datetime, since: datetime | None = None) -> None:
    """A tick came and could not work. Those that come one after another for the same reason are one stoppage."""
    with db.transaction() as connection:
        longer = connection.execute(
            "UPDATE stoppages SET until = ? WHERE reason = ? AND until >= ? AND until = (SELECT MAX(until) FROM stoppages)",
            (to_store(now), reason, to_store((since or now) - OUTAGE_AFTER)),
        )
        if longer.rowcount == 0:
            _add_stoppage(connection, reason, since or now, now)


def _add_stoppage(connection: Connection, reason: MissReason, since: datetime, until: datetime) -> None:
    connection.execute("INSERT INTO stoppages VALUES (?, ?, ?)", (reason, to_store(since), to_store(until)))


def stoppages(db: Database, since: datetime) -> list[Stoppage]:
    """Those that may explain what came up from then on, the latest last."""
    rows = db.all("SELECT * FROM stoppages WHERE until >= ? ORDER BY until", to_store(since))
    return [Stoppage(MissReason(r["reason"]), from_store(r["since"]), from_store(r["until"])) for r in rows]


def snapshot(db: Database, host: str, due: int, load1: float | None, memory_kib: int | None, now: datetime) -> None:
    with db.transaction() as connection:
        heartbeat.snapshot(connection, to_store(now), host, due, load1, memory_kib)


def remembered_catalogue(db: Database) -> str:
    """The fingerprint of what the catalogue was made from."""
    row = db.one("SELECT value FROM meta WHERE name = 'catalogue'")
    return row["value"] if row is not None else ""


def remember_catalogue(connection: Connection, fingerprint: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('catalogue', ?)", (fingerprint,))


def replaces(db: Database) -> tuple[str, datetime | None] | None:
    """The database that was used before this one: where it still is, or nothing if it is gone; and since when tasks are known
    here, None if they are not yet. None if this is the first one."""
    row = db.one(
        "SELECT value, (SELECT value FROM meta WHERE name = 'replaced_at') AS at FROM meta WHERE name = 'replaces'"
    )
    return (row["value"], maybe_from_store(row["at"])) if row is not None else None


def known_from_now_on(connection: Connection, now: datetime) -> None:
    """The tasks are known to a database that replaces another, and somebody is told of it."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('replaced_at', ?)", (to_store(now),))


def forget_catalogue(db: Database) -> None:
    """Everything is read anew by whoever comes next."""
    with db.transaction() as connection:
        connection.execute("DELETE FROM meta WHERE name = 'catalogue'")


def claim_daily(db: Database, name: str, now: datetime) -> bool:
    """True for one caller a day. Asked first without the write lock: almost every tick is told no."""
    if _done_today(db, name, now):
        return False
    with db.transaction() as connection:
        if _done_today(db, name, now):
            return False
        connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, to_store(now)))
    return True


def _done_today(db: Database, name: str, now: datetime) -> bool:
    row = db.one("SELECT value FROM meta WHERE name = ?", name)
    # A clock that was set back must not keep the work from ever being done again.
    return row is not None and timedelta(0) <= now - from_store(row["value"]) < PRUNE_EVERY


def remove_old_runs(db: Database, before: datetime) -> Iterator[list[str | None]]:
    """Delete ended runs older than this, some at a time in small transactions that keep nobody waiting; the logs of each lot
    (None for a run that has none). The last run of each task stays, whatever was skipped since, so that `list` can always
    tell it."""
    after = ""
    while True:
        # Looked up before the write lock is taken, and from where the last lot ended: what stays is looked at once.
        rows = db.all(
            "SELECT run_id, log, recorded_at FROM task_runs AS old WHERE recorded_at >= ? AND recorded_at < ? AND status <>"
            " 'running' AND EXISTS (SELECT 1 FROM task_runs AS newer WHERE newer.task_id = old.task_id AND"
            " newer.recorded_at > old.recorded_at AND (newer.status NOT IN ('skipped', 'missed') OR old.status IN"
            " ('skipped', 'missed'))) ORDER BY recorded_at LIMIT ?",
            after, to_store(before), _BATCH,
        )  # fmt: skip
        if not rows:
            return
        with db.transaction() as connection:
            connection.executemany(
                "DELETE FROM task_runs WHERE run_id = ? AND status <> 'running'", [(row["run_id"],) for row in rows]
            )
        yield [row["log"] for row in rows]
        after = rows[-1]["recorded_at"]


def remove_old_bookkeeping(db: Database, keep_runs: timedelta, now: datetime) -> None:
    with db.transaction() as connection:
        for table, column, keep in (
            ("heartbeats", "at", KEEP_HEARTBEATS),
            ("snapshots", "at", KEEP_SNAPSHOTS),
            ("tickets", "closed_at", keep_runs),
            ("stoppages", "until", keep_runs),
            ("actions", "at", keep_runs),
        ):
            connection.execute(f"DELETE FROM {table} WHERE {column} < ?", (to_store(now - keep),))
        # Today's heals and costs are limits; they stay at least for their day.
        connection.execute("DELETE FROM heals WHERE started_at < ?", (to_store(now - max(keep_runs, A_DAY)),))
        connection.execute("DELETE FROM own_edits WHERE at < ?", (to_store(now - A_DAY),))
        connection.execute("DELETE FROM comments WHERE read_at IS NOT NULL AND at < ?", (to_store(now - keep_runs),))
        connection.execute(
            "DELETE FROM alerts WHERE status <> 'pending' AND created_at < ?", (to_store(now - keep_runs),)
        )
