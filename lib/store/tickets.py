"""Tickets: what waits for a person. One open ticket per task and kind."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from lib.model import Ticket, TicketKind
from lib.store.database import Database
from lib.times import from_store, to_store


def open_ticket(connection: sqlite3.Connection, ticket: Ticket, now: datetime) -> None:
    """One open ticket per task and kind: a repetition updates it."""
    connection.execute(
        "INSERT INTO tickets (task_id, kind, run_id, title, body, opened_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (task_id, kind) WHERE closed_at IS NULL DO UPDATE SET run_id = excluded.run_id,"
        " title = excluded.title, body = excluded.body, updated_at = excluded.updated_at",
        (ticket.task_id or "", ticket.kind, ticket.run_id, ticket.title, ticket.body, to_store(now), to_store(now)),
    )


def note_on_tickets(connection: sqlite3.Connection, task_id: str, text: str, now: datetime) -> None:
    connection.execute(
        "INSERT INTO ticket_notes (ticket_id, at, text) SELECT id, ?, ? FROM tickets WHERE task_id = ? AND closed_at IS NULL",
        (to_store(now), text, task_id),
    )


def close_tickets(connection: sqlite3.Connection, task_id: str, note: str, now: datetime) -> None:
    note_on_tickets(connection, task_id, note, now)
    connection.execute(
        "UPDATE tickets SET closed_at = ? WHERE task_id = ? AND closed_at IS NULL", (to_store(now), task_id)
    )


def open_tickets(db: Database, task_id: str | None = None) -> list[tuple[str, Ticket, datetime]]:
    where, values = ("", ()) if task_id is None else (" AND task_id = ?", (task_id,))
    rows = db.all(f"SELECT * FROM tickets WHERE closed_at IS NULL{where} ORDER BY id", *values)
    return [
        (
            str(row["id"]),
            Ticket(TicketKind(row["kind"]), row["title"], row["body"], row["task_id"] or None, row["run_id"]),
            from_store(row["opened_at"]),
        )
        for row in rows
    ]


def close_tickets_of_kind(db: Database, kind: TicketKind, now: datetime, title: str | None = None) -> None:
    """The trouble of the whole installation is over."""
    where = "kind = ? AND title = COALESCE(?, title) AND closed_at IS NULL"
    if db.one(f"SELECT 1 FROM tickets WHERE {where}", kind, title) is None:
        return
    with db.transaction() as connection:
        connection.execute(f"UPDATE tickets SET closed_at = ? WHERE {where}", (to_store(now), kind, title))
