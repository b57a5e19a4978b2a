"""What an idle tick and the store have in common: the two rows that every tick leaves, however little it did. On the way of
every tick, so it imports next to nothing."""

import sqlite3
from datetime import timedelta

BUSY_SECONDS = 60.0  # how long a writer waits for the others
# Cron comes every minute; five without it are an outage.
OUTAGE_AFTER = timedelta(minutes=5)
# Ticks that begin together may stamp in any order; a heartbeat further ahead is from a clock that has been set back.
CLOCK_SLACK = timedelta(seconds=5)
PRUNE_EVERY = timedelta(days=1)
SCHEMA_VERSION = 12  # how many migrations there are: an idle tick does not load them to count them


def beat(connection: sqlite3.Connection, at: str, host: str, pid: int) -> None:
    connection.execute("INSERT INTO heartbeats (at, host, pid) VALUES (?, ?, ?)", (at, host, pid))


def snapshot(
    connection: sqlite3.Connection, at: str, host: str, due: int, load1: float | None, memory_kib: int | None
) -> None:
    connection.execute(
        "INSERT INTO snapshots SELECT ?, ?, (SELECT COUNT(*) FROM task_runs WHERE status = 'running'), ?, ?, ?",
        (at, host, due, load1, memory_kib),
    )
