"""The two rows that every tick leaves, however little it did: a heartbeat and a snapshot of the machine."""

from __future__ import annotations

import sqlite3


def beat(connection: sqlite3.Connection, at: str, host: str, pid: int) -> None:
    connection.execute("INSERT INTO heartbeats (at, host, pid) VALUES (?, ?, ?)", (at, host, pid))


def snapshot(
    connection: sqlite3.Connection, at: str, host: str, due: int, load1: float | None, memory_kib: int | None
) -> None:
    connection.execute(
        "INSERT INTO snapshots SELECT ?, ?, (SELECT COUNT(*) FROM task_runs WHERE status = 'running'), ?, ?, ?",
        (at, host, due, load1, memory_kib),
    )
