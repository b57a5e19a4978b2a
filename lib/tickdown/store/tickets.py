"""Tickets: what waits for a person. One open ticket per task and kind, or per destination that takes no alerts."""

from __future__ import annotations

from datetime import datetime

from tickdown.base.model import Ticket, TicketKind
from tickdown.base.records import record
from tickdown.store.database import Connection, Database, Row
from tickdown.time.instants import from_store, maybe_from_store, to_store


@record(frozen=True)
class TicketRow:
    id: int
    ticket: Ticket
    opened_at: datetime
    updated_at: datetime
    closed_at: datetime | None
    notes: tuple[tuple[datetime, str], ...] = ()


def open_ticket(connection: Connection, ticket: Ticket, now: datetime) -> None:
    """If there is one open already, a repetition updates it."""
    connection.execute(
        "INSERT INTO tickets (task_id, kind, run_id, title, body, error, tried, command, destination, opened_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (task_id, kind, destination) WHERE closed_at IS NULL DO UPDATE SET run_id = excluded.run_id, title = excluded.title,"
        " body = excluded.body, error = excluded.error, tried = excluded.tried, command = excluded.command,"
        " updated_at = excluded.updated_at",
        (ticket.task_id or "", ticket.kind, ticket.run_id, ticket.title, ticket.body, ticket.error, ticket.tried,
         ticket.command, ticket.destination, to_store(now), to_store(now)),
    )  # fmt: skip


def open_ticket_or_note(connection: Connection, ticket: Ticket, note: str, now: datetime) -> None:
    """A repetition takes nothing away from what the open one says: it is noted there."""
    same = (ticket.task_id or "", ticket.kind, ticket.destination)
    where = "task_id = ? AND kind = ? AND destination = ? AND closed_at IS NULL"
    if connection.execute(f"UPDATE tickets SET updated_at = ? WHERE {where}", (to_store(now), *same)).rowcount == 0:
        open_ticket(connection, ticket, now)
        return
    connection.execute(
        f"INSERT INTO ticket_notes (ticket_id, at, text) SELECT id, ?, ? FROM tickets WHERE {where}",
        (to_store(now), note, *same),
    )


def note_on_tickets(connection: Connection, task_id: str, text: str, now: datetime) -> None:
    connection.execute(
        "INSERT INTO ticket_notes (ticket_id, at, text) SELECT id, ?, ? FROM tickets WHERE task_id = ? AND closed_at IS NULL",
        (to_store(now), text, task_id),
    )


def close_tickets(connection: Connection, task_id: str, note: str, now: datetime) -> None:
    note_on_tickets(connection, task_id, note, now)
    connection.execute(
        "UPDATE tickets SET closed_at = ? WHERE task_id = ? AND closed_at IS NULL", (to_store(now), task_id)
    )


def list_tickets(db: Database, task_id: str | None = None, *, closed_too: bool = False) -> list[TicketRow]:
    """Oldest first, with what was noted on each."""
    where, values = ("1", ()) if task_id is None else ("task_id = ?", (task_id,))
    still_open = "" if closed_too else " AND closed_at IS NULL"
    notes: dict[int, list[tuple[datetime, str]]] = {}
    for row in db.all("SELECT ticket_id, at, text FROM ticket_notes ORDER BY rowid"):
        notes.setdefault(row["ticket_id"], []).append((from_store(row["at"]), row["text"]))
    rows = db.all(f"SELECT * FROM tickets WHERE {where}{still_open} ORDER BY id", *values)
    return [_ticket_row(row, notes.get(row["id"], [])) for row in rows]


def _ticket_row(row: Row, notes: list[tuple[datetime, str]]) -> TicketRow:
    ticket = Ticket(
        TicketKind(row["kind"]), row["title"], row["body"], row["task_id"] or None, row["run_id"], row["error"], row["tried"],
        row["command"], row["destination"],
    )  # fmt: skip
    closed = maybe_from_store(row["closed_at"])
    return TicketRow(
        row["id"], ticket, from_store(row["opened_at"]), from_store(row["updated_at"]), closed, tuple(notes)
    )


def is_open(db: Database, task_id: str, kind: TicketKind) -> bool:
    row = db.one("SELECT 1 FROM tickets WHERE task_id = ? AND kind = ? AND closed_at IS NULL", task_id, kind)
    return row is not None


def close_ticket(db: Database, ticket_id: int, note: str, now: datetime) -> bool | None:
    """False if it is closed already, None if there is no such ticket."""
    with db.transaction() as connection:
        row = connection.execute("SELECT closed_at FROM tickets WHERE id = ?", (ticket_id,)).fetchone()
        if row is None or row["closed_at"] is not None:
            return None if row is None else False
        connection.execute("UPDATE tickets SET closed_at = ? WHERE id = ?", (to_store(now), ticket_id))
        connection.execute("INSERT INTO ticket_notes VALUES (?, ?, ?)", (ticket_id, to_store(now), note))
    return True


def task_of(connection: Connection, ticket_id: int) -> str | None:
    """None for one of the whole installation."""
    row = connection.execute("SELECT task_id FROM tickets WHERE id = ?", (ticket_id,)).fetchone()
    return row["task_id"] or None if row is not None else None


def close_tickets_of_kind(db: Database, kind: TicketKind, now: datetime, destination: str = "") -> None:
    """The trouble of the whole installation, or of one destination, is over."""
    where = "kind = ? AND destination = ? AND closed_at IS NULL"
    if db.one(f"SELECT 1 FROM tickets WHERE {where}", kind, destination) is None:
        return
    with db.transaction() as connection:
        connection.execute(f"UPDATE tickets SET closed_at = ? WHERE {where}", (to_store(now), kind, destination))
