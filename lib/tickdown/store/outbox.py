"""The outbox: what people must hear of is a row first, and is sent from the row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from tickdown.base.model import Alert, AlertKind, AlertStatus, Ticket
from tickdown.base.records import record
from tickdown.store.database import Connection, Database, Row
from tickdown.store.tickets import open_ticket_or_note
from tickdown.time.instants import from_store, to_store

LEASE = timedelta(seconds=90)
LONGEST_WAIT = timedelta(days=1)  # that whoever asks to wait is granted
# Another tick may have been faster to write by so much; what lies further ahead is from a clock that was set back since.
AHEAD = timedelta(minutes=5)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@record(frozen=True)
class Outgoing:
    """An alert in the outbox."""

    id: int
    created_at: datetime
    alert: Alert
    held: bool
    lease: str = ""


def add_alert(connection: Connection, alert: Alert, now: datetime) -> None:
    connection.execute(
        "INSERT INTO alerts (created_at, kind, task_id, run_id, forced, destination, title, body, output)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (to_store(now), alert.kind, alert.task_id, alert.run_id, int(alert.forced), alert.destination, alert.title,
         alert.body, alert.output),
    )  # fmt: skip


def add_alert_once_per(db: Database, period: timedelta, alert: Alert, now: datetime) -> bool:
    """For trouble that every tick would report again."""
    with db.transaction() as connection:
        row = connection.execute(
            "SELECT 1 FROM alerts WHERE kind = ? AND title = ? AND body = ? AND created_at > ? AND created_at < ? LIMIT 1",
            (alert.kind, alert.title, alert.body, to_store(now - period), to_store(now + AHEAD)),
        ).fetchone()
        if row is None:
            add_alert(connection, alert, now)
    return row is None


def told_since(db: Database, kind: AlertKind, moment: datetime, task_id: str | None = None) -> bool:
    """Whether there has been such an alert (about this task) from then on, sent or not."""
    found = db.one(
        "SELECT 1 FROM alerts WHERE kind = ? AND created_at >= ? AND (?3 IS NULL OR task_id = ?3) LIMIT 1",
        kind,
        to_store(moment),
        task_id,
    )
    return found is not None


def lease_due(db: Database, default: str | None, now: datetime) -> list[Outgoing]:
    """The alerts to send now, taken so that no other tick sends them too. A dead tick's lease runs out. Where the other
    side asked to wait, new alerts for the same destination (None means the default one) wait as well. No lease and no wait
    is longer than these: one that ends later was given by a clock that has been set back since."""
    with db.transaction() as connection:
        rows = connection.execute(
            "SELECT * FROM alerts WHERE status = 'pending' AND NOT EXISTS (SELECT 1 FROM alerts AS asked WHERE asked.status ="
            " 'pending' AND asked.not_before > :now AND asked.not_before <= :longest AND COALESCE(asked.destination, :default)"
            " IS COALESCE(alerts.destination, :default)) AND (lease_until IS NULL OR lease_until <= :now OR lease_until > :lease)"
            " ORDER BY id",
            {"now": to_store(now), "default": default, "longest": to_store(now + LONGEST_WAIT + AHEAD),
             "lease": to_store(now + LEASE + AHEAD)},
        ).fetchall()  # fmt: skip
        lease = to_store(now + LEASE)
        connection.executemany("UPDATE alerts SET lease_until = ? WHERE id = ?", [(lease, row["id"]) for row in rows])
    return [_outgoing(row, lease) for row in rows]


def clock_set_back(db: Database, now: datetime) -> None:
    """A wait that was asked for may have been counted from a time that is yet to come. Asking once more costs nothing: who
    still wants us to wait says so again."""
    with db.transaction() as connection:
        connection.execute(
            "UPDATE alerts SET not_before = NULL WHERE status = 'pending' AND not_before > ?", (to_store(now),)
        )


def keep_lease(db: Database, parts: Sequence[Outgoing], now: datetime) -> bool:
    """Before each message: is it still ours to send? A slow server may have used up the time of the first lease."""
    with db.transaction() as connection:
        kept = [
            connection.execute(
                "UPDATE alerts SET lease_until = ? WHERE id = ? AND status = 'pending' AND lease_until = ?",
                (to_store(now + LEASE), part.id, part.lease),
            ).rowcount
            for part in parts
        ]
    return all(kept)


def any_pending(db: Database) -> bool:
    return db.one("SELECT 1 FROM alerts WHERE status = 'pending' LIMIT 1") is not None


def _outgoing(row: Row, lease: str) -> Outgoing:
    alert = Alert(
        kind=AlertKind(row["kind"]), title=row["title"], body=row["body"], output=row["output"], forced=bool(row["forced"]),
        destination=row["destination"], task_id=row["task_id"], run_id=row["run_id"],
    )  # fmt: skip
    return Outgoing(row["id"], from_store(row["created_at"]), alert, bool(row["held"]), lease)


def hold(db: Database, ids: Sequence[int]) -> None:
    """Give back what quiet hours keep; it leaves as part of a digest."""
    _update(db, ids, "held = 1, lease_until = NULL")


def put_back(db: Database, ids: Sequence[int], error: str, not_before: datetime | None) -> None:
    """A try that failed for now."""
    when = f"'{to_store(not_before)}'" if not_before else "NULL"
    _update(db, ids, f"lease_until = NULL, tries = tries + 1, not_before = {when}, error = ?", error)


def sent(db: Database, ids: Sequence[int], now: datetime) -> None:
    _update(
        db, ids, f"status = '{AlertStatus.SENT}', lease_until = NULL, tries = tries + 1, sent_at = ?", to_store(now)
    )


def refused(db: Database, ids: Sequence[int], error: str, ticket: Ticket, note: str, now: datetime) -> None:
    """Never going to arrive: the alert is closed and a ticket takes its place, or a note on the one that is open."""
    with db.transaction() as connection:
        _set(
            connection, ids, f"status = '{AlertStatus.FAILED}', lease_until = NULL, tries = tries + 1, error = ?", error
        )
        open_ticket_or_note(connection, ticket, note, now)


def _update(db: Database, ids: Sequence[int], assignment: str, *values: object) -> None:
    with db.transaction() as connection:
        _set(connection, ids, assignment, *values)


def _set(connection: Connection, ids: Sequence[int], assignment: str, *values: object) -> None:
    connection.executemany(f"UPDATE alerts SET {assignment} WHERE id = ?", [(*values, alert_id) for alert_id in ids])


def outbox_state(db: Database) -> tuple[int, str]:
    """How many alerts wait, and what went wrong with the last try to send one of them."""
    rows = db.all("SELECT error FROM alerts WHERE status = 'pending' ORDER BY tries")
    return len(rows), (rows[-1]["error"] or "") if rows else ""


def report_broken_files(db: Database, broken: Iterable[tuple[str, str, Alert]], now: datetime) -> None:
    """(path, digest, alert) of every file rejected now: an alert for each version not seen before, all in one
    transaction, and files that are whole again are forgotten."""
    current = {path: (digest, alert) for path, digest, alert in broken}
    known = {row["path"]: row["digest"] for row in db.all("SELECT path, digest FROM broken_files")}
    if {path: digest for path, (digest, _) in current.items()} == known:
        return
    with db.transaction() as connection:
        known = {row["path"]: row["digest"] for row in connection.execute("SELECT path, digest FROM broken_files")}
        for path in known.keys() - current.keys():
            connection.execute("DELETE FROM broken_files WHERE path = ?", (path,))
        for path, (digest, alert) in current.items():
            if known.get(path) != digest:
                connection.execute(
                    "INSERT OR REPLACE INTO broken_files VALUES (?, ?, ?)", (path, digest, to_store(now))
                )
                add_alert(connection, alert, now)
