"""What is remembered of each task: when it was armed, what was last taken up, how it has been failing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from tickdown.base.model import (
    Alert,
    Chained,
    ChainOn,
    DisabledReason,
    Facts,
    Held,
    Hint,
    HintKind,
    Probation,
    Source,
    Waiting,
)
from tickdown.base.records import record
from tickdown.governor.governor import look_again
from tickdown.processes.process import in_two_processes
from tickdown.schedule.schedule import Manual, OneShot
from tickdown.store.database import Connection, Database, Row
from tickdown.store.outbox import add_alert
from tickdown.store.tickets import close_tickets
from tickdown.tasks.catalogue import Catalog, TaskFile
from tickdown.tasks.task import Task
from tickdown.time.instants import from_store, maybe_from_store, to_store

LOOKED_AT_EVERY = timedelta(minutes=1)


@record(frozen=True)
class Remembered:
    """A task as it was last seen valid, for when its file is broken now."""

    task_id: str
    path: str
    schedule: str
    timezone: str
    enabled: bool


def sync(connection: Connection, catalog: Catalog, now: datetime, boot_id: str, *, rebuilt: bool = False) -> None:
    """Meet new tasks; re-arm those whose schedule was edited, that were enabled again by hand, or whose file was away.

    Only files that are not as the store knows them are looked at, and those that depend on others. After a rebuilt database
    (`rebuilt`) an interval task counts as just ended: whether it ran a moment ago is unknown, and nothing runs on a guess.
    """
    read = {file.path for file in catalog.read}
    files = [file for file in catalog.files if file.path in read or file.chained]
    since = _last_look(connection, now)
    rows, chains = _rows_of(connection, files), _by_task(connection.execute("SELECT * FROM chains").fetchall())
    new: list[TaskFile] = []
    for file in files:
        row = rows.get(file.task_id.lower()) if file.task_id else None
        if file.is_valid and row is None:
            new.append(file)
        if (file.chained or row is not None) and (task := file.task) is not None:
            for sql, values in _chain_changes(task, chains.get(task.id.lower(), [])):
                connection.execute(sql, values)
            for sql, parameters in _changes(task, row, _as_seen(task), now, since, boot_id) if row is not None else ():
                connection.execute(sql, parameters)
    _meet(connection, new, now, boot_id, last_end=now if rebuilt else None)
    # Whatever in a file has changed, it is looked at anew; so is a task whose file is broken now.
    met = {file.path for file in new}
    connection.executemany(_LOOK_AGAIN_BY_PATH, [(file.path,) for file in files if file.path not in met])
    for row in _who_may_be_gone(connection, files):
        if row["id"] not in catalog and _is_gone(row, catalog):
            connection.execute("UPDATE tasks SET gone = 1 WHERE id = ?", (row["id"],))
            connection.execute("DELETE FROM chains WHERE task_id = ?", (row["id"],))
            close_tickets(connection, row["id"], "the task's file is gone", now)


def _last_look(connection: Connection, now: datetime) -> datetime:
    """When the tick before this one looked at the files, if that was within a minute: what an edited schedule names since then
    must not fall between the two."""
    beat = connection.execute(
        "SELECT at FROM heartbeats WHERE pid <> ? ORDER BY at DESC LIMIT 1", (os.getpid(),)
    ).fetchone()
    return min(now, max(from_store(beat["at"]), now - LOOKED_AT_EVERY)) if beat is not None else now


def _same_words(schedule: str) -> str:
    return " ".join(schedule.casefold().split())


def _as_seen(task: Task) -> tuple[str, str, str, int]:
    return task.path, task.schedule.text, task.timezone, int(task.enabled)


def _meet(connection: Connection, new: list[TaskFile], now: datetime, boot_id: str, last_end: datetime | None) -> None:
    stamp = to_store(now)

    def row_of(file: TaskFile) -> list[object]:
        task = file.task
        assert task is not None
        look = _first_look(task, Facts(task.id, now, now, last_end=last_end, boot_id=boot_id), now)
        ended = to_store(last_end) if last_end else None
        return [*_as_seen(task), task.id, stamp, stamp, stamp, boot_id, ended, look]

    connection.executemany(_MEET, in_two_processes(new, row_of, lambda row: row, lambda row: row))


def _first_look(task: Task, facts: Facts, now: datetime) -> str | None:
    """When somebody is to look at a task that was just met; at once if its agent may have to be looked for."""
    if task.agent is not None:
        return ""
    try:
        moment = look_again(now, task, facts, facts.boot_id)
    except Exception:
        return ""  # a bug; whoever looks at it tells
    return to_store(moment) if moment is not None else None


def _rows_of(connection: Connection, files: list[TaskFile]) -> dict[str, Row]:
    """By lower-case id; of all tasks, if that is less trouble."""
    ids = [file.task_id for file in files if file.task_id]
    if len(ids) > _MANY:
        return {row["id"].lower(): row for row in connection.execute("SELECT * FROM tasks")}
    found = (connection.execute("SELECT * FROM tasks WHERE id = ?", (task_id,)).fetchone() for task_id in ids)
    return {row["id"].lower(): row for row in found if row is not None}


def _changes(
    task: Task, row: Row, values: tuple[object, ...], now: datetime, since: datetime, boot_id: str
) -> Iterator[tuple[str, tuple[object, ...] | dict[str, str]]]:
    """What the file of a known task changes about it, at some time between `since` and now."""
    stamp = to_store(now)
    if (row["path"], row["schedule"], row["timezone"], row["enabled"]) != values:
        edited = _same_words(row["schedule"]) != _same_words(task.schedule.text)
        moved = row["timezone"] != task.timezone and not _just_waits(task)
        yield _UPDATE, (*values, task.id)
        if task.enabled and not row["enabled"]:
            yield _REARM_AND_FORGIVE, _rearm_values(task.id, now, boot_id)
            yield _UNCHAIN, (task.id,)
            yield _WAIT_NO_MORE, (task.id,)
            yield _DROP_PAST_HINT, (task.id, stamp)
        elif edited or moved:
            yield _REARM, (to_store(since), boot_id, isinstance(task.schedule, Manual), task.id)
            yield _WAIT_NO_MORE, (task.id,)
        if edited or (moved and _has_come(task, row, now)):
            yield "UPDATE tasks SET anchored_at = ?, closing = NULL WHERE id = ?", (stamp, task.id)
    if row["gone"]:
        yield "UPDATE tasks SET gone = 0, armed_at = ? WHERE id = ?", (stamp, task.id)
        yield _WAIT_NO_MORE, (task.id,)
        if _has_come(task, row, now):
            yield "UPDATE tasks SET anchored_at = ? WHERE id = ?", (stamp, task.id)  # made anew


def _has_come(task: Task, row: Row, now: datetime) -> bool:
    """A one-shot whose moment, counted from its first sight, is not ahead any more."""
    return isinstance(task.schedule, OneShot) and task.schedule.moment(from_store(row["anchored_at"])) <= now


def _just_waits(task: Task) -> bool:
    """`in 30 minutes`: the same moment in every zone."""
    return isinstance(task.schedule, OneShot) and task.schedule.once.delay is not None


def _chain_changes(task: Task, known: list[Row]) -> list[tuple[str, tuple[object, ...]]]:
    """What makes the store's links of a task those of its file. Others than before count from now: what had ended for
    those was no start for these."""
    wanted = {upstream.lower(): wants for upstream, wants in task.after.items()}
    if wanted == {row["upstream"].lower(): row["wants"] for row in known}:
        return []
    return [("DELETE FROM chains WHERE task_id = ?", (task.id,))] + [
        ("INSERT INTO chains (task_id, upstream, wants) VALUES (?, ?, ?)", (task.id, upstream, wants))
        for upstream, wants in task.after.items()
    ]


def _who_may_be_gone(connection: Connection, files: list[TaskFile]) -> list[Row]:
    """Those without a file of that name, and those whose file is one of these, which may be another's by now; all of them,
    if that is less trouble."""
    select = "SELECT id, path, first_seen FROM tasks WHERE NOT gone"
    if len(files) > _MANY:
        return connection.execute(select).fetchall()
    found = connection.execute(f"{select} AND path NOT IN (SELECT path FROM files)").fetchall()
    return found + [row for file in files for row in connection.execute(f"{select} AND path = ?", (file.path,))]


def _is_gone(row: Row, catalog: Catalog) -> bool:
    """Not one that is there but can't be used, or that came after the files were read."""
    return not catalog.rejects(row["path"]) and from_store(row["first_seen"]) < catalog.loaded_at


_MANY = 200  # from here on, reading all rows is quicker than asking for each
_LOOK_AGAIN_BY_PATH = "UPDATE tasks SET look_at = '', revision = revision + 1 WHERE path = ?"
_MEET = (
    "INSERT OR IGNORE INTO tasks (path, schedule, timezone, enabled, id, first_seen, armed_at, anchored_at, boot_id,"
    " last_end, look_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = "UPDATE tasks SET path = ?, schedule = ?, timezone = ?, enabled = ? WHERE id = ?"
# A retry that is still to come stays: what it follows has neither been counted nor told.
_REARM = (
    "UPDATE tasks SET armed_at = ?, boot_id = ?, deferred = NULL, retry_at = CASE WHEN ? THEN NULL ELSE retry_at END"
    " WHERE id = ?"
)
# From now on, with a clean slate: nothing missed meanwhile fires, no old failure counts.
_REARM_AND_FORGIVE = (
    "UPDATE tasks SET armed_at = :now, last_occurrence = MIN(last_occurrence, :now), last_end = CASE WHEN last_end IS NULL"
    " AND last_occurrence IS NULL THEN NULL ELSE :now END, boot_id = :boot_id, paused_until = NULL, closing = NULL,"
    " failures = 0, incident = NULL, incident_since = NULL, incident_alerted_at = NULL, deferred = NULL, retry_at = NULL,"
    " retry_follows = NULL, retries_used = 0, transient_retries_used = 0, probation_run = NULL, probation_left = NULL,"
    " probation_until = NULL WHERE id = :id"
)

_WAIT_NO_MORE = "DELETE FROM waiting WHERE task_id = ?"
_UNCHAIN = "UPDATE chains SET ended_at = NULL, ended_run = NULL WHERE task_id = ?"
_DROP_PAST_HINT = "DELETE FROM hints WHERE task_id = ? AND at <= ?"


def _rearm_values(task_id: str, now: datetime, boot_id: str) -> dict[str, str]:
    return {"now": to_store(now), "boot_id": boot_id, "id": task_id}


def resume(connection: Connection, task: Task, now: datetime, boot_id: str) -> None:
    connection.execute(_REARM_AND_FORGIVE, _rearm_values(task.id, now, boot_id))
    connection.execute(_UNCHAIN, (task.id,))
    connection.execute(_WAIT_NO_MORE, (task.id,))
    connection.execute(_DROP_PAST_HINT, (task.id, to_store(now)))
    connection.execute("UPDATE tasks SET enabled = 1 WHERE id = ?", (task.id,))
    close_tickets(connection, task.id, "resumed", now)


def go_on(connection: Connection, task_id: str) -> None:
    """The pause ends and nothing else: what is left of the one run of a one-shot comes as it would have."""
    connection.execute("UPDATE tasks SET paused_until = NULL, enabled = 1 WHERE id = ?", (task_id,))


def reopen(db: Database, task_id: str, now: datetime) -> None:
    """A one-shot that was over counts again, before it is run again."""
    with db.transaction() as connection:
        connection.execute("UPDATE tasks SET enabled = 1, closing = NULL WHERE id = ?", (task_id,))
        close_tickets(connection, task_id, "run again", now)


def forget(db: Database, task_id: str, now: datetime) -> None:
    """Nothing is remembered of an earlier task of this name; its history stays."""
    with db.transaction() as connection:
        connection.execute("DELETE FROM tasks WHERE id = ?", (task_id,))
        connection.execute("DELETE FROM hints WHERE task_id = ?", (task_id,))
        connection.execute("DELETE FROM chains WHERE task_id = ?", (task_id,))
        connection.execute(_WAIT_NO_MORE, (task_id,))
        close_tickets(connection, task_id, "the task was made anew", now)


def pause(db: Database, task_id: str, until: datetime) -> None:
    with db.transaction() as connection:
        set_pause(connection, task_id, until)


def set_pause(connection: Connection, task_id: str, until: datetime) -> None:
    connection.execute("UPDATE tasks SET paused_until = ? WHERE id = ?", (to_store(until), task_id))


def close(connection: Connection, task_id: str, reason: DisabledReason) -> None:
    """It does not run any more; the file says so next."""
    connection.execute("UPDATE tasks SET closing = ? WHERE id = ?", (reason, task_id))


def retire(db: Database, task_id: str, now: datetime) -> None:
    """Nothing starts it any more: no hint, no retry."""
    with db.transaction() as connection:
        connection.execute("DELETE FROM hints WHERE task_id = ?", (task_id,))
        connection.execute(_WAIT_NO_MORE, (task_id,))
        connection.execute(
            "UPDATE tasks SET enabled = 0, closing = CASE WHEN closing = 'retired' THEN closing END, deferred = NULL, retry_at = NULL,"
            " retry_follows = NULL WHERE id = ?",
            (task_id,),
        )
        close_tickets(connection, task_id, "cancelled", now)


def agent_missing(db: Database, task_id: str, agent: str, alert: Alert, now: datetime) -> bool:
    """It waits until its agent is there; told once. False if that is known already."""
    with db.transaction() as connection:
        changed = connection.execute(
            "UPDATE tasks SET missing_agent = ? WHERE id = ? AND missing_agent IS NOT ?", (agent, task_id, agent)
        )
        if changed.rowcount == 1:
            add_alert(connection, alert, now)
    return changed.rowcount == 1


def agent_found(db: Database, task_id: str) -> None:
    with db.transaction() as connection:
        connection.execute("UPDATE tasks SET missing_agent = NULL WHERE id = ?", (task_id,))


def lock_held(db: Database, task_id: str, by: str, now: datetime) -> None:
    """Noticed for the first time, or still: it counts from when it was noticed, whoever is found to hold it."""
    with db.transaction() as connection:
        connection.execute(
            "UPDATE tasks SET held_by = ?, held_since = COALESCE(held_since, ?) WHERE id = ?",
            (by, to_store(now), task_id),
        )


def lock_held_long(db: Database, task_id: str, alert: Alert, now: datetime) -> None:
    """Told once, until the lock has been free."""
    with db.transaction() as connection:
        changed = connection.execute("UPDATE tasks SET held_told = 1 WHERE id = ? AND NOT held_told", (task_id,))
        if changed.rowcount == 1:
            add_alert(connection, alert, now)


def lock_free(db: Database, task_id: str) -> None:
    with db.transaction() as connection:
        connection.execute("UPDATE tasks SET held_by = NULL, held_since = NULL, held_told = 0 WHERE id = ?", (task_id,))


def closing_written(db: Database, task_id: str) -> None:
    """The file says so now; from here on the file alone decides."""
    with db.transaction() as connection:
        connection.execute("UPDATE tasks SET closing = NULL, enabled = 0 WHERE id = ?", (task_id,))


# --- facts -----------------------------------------------------------------------------------------------------


def all_facts(db: Database) -> dict[str, Facts]:
    """By lower-case id."""
    return _facts_by_id(db, db.all(_SELECT_FACTS))


def facts_to_look_at(db: Database, now: datetime) -> dict[str, Facts]:
    """Of those whose time to be looked at has come, by lower-case id."""
    return _facts_by_id(db, db.all(f"{_SELECT_FACTS} WHERE look_at <= ?", to_store(now)))


def _facts_by_id(db: Database, rows: list[Row]) -> dict[str, Facts]:
    if not rows:
        return {}
    hints, chains = _by_task(db.all("SELECT * FROM hints")), _by_task(db.all("SELECT * FROM chains"))
    waiting = _by_task(db.all("SELECT * FROM waiting"))
    found = ((row[0].lower(), row) for row in rows)
    return {key: _facts(row, hints.get(key, []), chains.get(key, []), waiting.get(key, [])) for key, row in found}


def look_later(db: Database, moments: Iterable[tuple[Facts, datetime | None]]) -> None:
    """Nobody needs to look before these moments (None: at all), as long as the facts they were found from are the same."""
    values = [(to_store(at) if at is not None else None, known.task_id, known.revision) for known, at in moments]
    if values:
        with db.transaction() as connection:
            connection.executemany("UPDATE tasks SET look_at = ? WHERE id = ? AND revision = ?", values)


def clock_set_back(db: Database, now: datetime) -> None:
    """What was stamped with a time that is yet to come counts from now: an interval, a hint, a chain must not wait for it,
    nor may a task that was first seen or armed then. What was to be looked at later may be due now. Occurrences that were
    taken up stay so: none runs twice."""
    stamp = {"now": to_store(now)}
    with db.transaction() as connection:
        for table, column in (
            ("tasks", "last_end"), ("tasks", "armed_at"), ("tasks", "first_seen"), ("tasks", "held_since"),
            ("chains", "ended_at"),
        ):  # fmt: skip
            connection.execute(f"UPDATE {table} SET {column} = :now WHERE {column} > :now", stamp)
        # It is to last no longer than was asked for.
        connection.execute(
            "UPDATE hints SET given_at = :now, until = strftime('%Y-%m-%dT%H:%M:%fZ', julianday(:now) + julianday(until)"
            " - julianday(given_at)) WHERE given_at > :now AND kind = 'interval'",
            stamp,
        )
        connection.execute("UPDATE tasks SET look_at = '', revision = revision + 1")


def taken_up_ahead(db: Database, after: datetime) -> dict[str, datetime]:
    """Tasks that have taken up an occurrence later than this, with that."""
    rows = db.all("SELECT id, last_occurrence FROM tasks WHERE last_occurrence > ?", to_store(after))
    return {row["id"]: from_store(row["last_occurrence"]) for row in rows}


def facts(db: Database, task_id: str) -> Facts | None:
    row = db.one(f"{_SELECT_FACTS} WHERE tasks.id = ?", task_id)
    if row is None:
        return None
    hints, chains, waiting = (
        db.all(f"SELECT * FROM {table} WHERE task_id = ?", task_id) for table in ("hints", "chains", "waiting")
    )
    return _facts(row, hints, chains, waiting)


def record_of(db: Database, task_id: str) -> Facts | None:
    """What it has done so far, without what is to start it next: hints and chains."""
    row = db.one(f"SELECT {_COLUMNS}, 1 FROM tasks WHERE id = ?", task_id)
    return _facts(row, [], [], []) if row is not None else None


@record(frozen=True)
class Link:
    """One of the tasks that a task comes after. `ended_at` is the end that counts for its next start, if it has come."""

    upstream: str
    wants: ChainOn
    ended_at: datetime | None


def all_links(db: Database) -> dict[str, list[Link]]:
    """By lower-case id."""
    return {
        key: [Link(row["upstream"], ChainOn(row["wants"]), maybe_from_store(row["ended_at"])) for row in rows]
        for key, rows in _by_task(db.all("SELECT * FROM chains ORDER BY upstream")).items()
    }


def _by_task(rows: list[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["task_id"].lower(), []).append(row)
    return grouped


def remembered(db: Database) -> dict[str, Remembered]:
    """By lower-case id."""
    rows = db.all("SELECT id, path, schedule, timezone, enabled FROM tasks")
    return {
        r["id"].lower(): Remembered(r["id"], r["path"], r["schedule"], r["timezone"], bool(r["enabled"])) for r in rows
    }


# In the order in which `_facts` takes them.
_COLUMNS = (
    "id, armed_at, anchored_at, last_occurrence, last_end, boot_id, paused_until, closing, failures, incident, incident_since,"
    " incident_alerted_at, deferred, retry_at, retry_follows, retries_used, transient_retries_used, missing_agent, revision,"
    " held_by, held_since, held_told, probation_run, probation_left, probation_until"
)
_SELECT_FACTS = f"SELECT {_COLUMNS}, EXISTS (SELECT 1 FROM task_runs WHERE status = 'running' AND task_runs.task_id = tasks.id) FROM tasks"


def _facts(row: Row, hints: list[Row], chains: list[Row], waiting: list[Row]) -> Facts:
    (
        task_id, armed_at, anchored_at, last_occurrence, last_end, boot_id, paused_until, closing, failures, incident,
        incident_since, incident_alerted_at, deferred, retry_at, retry_follows, retries_used, transient_retries_used,
        missing_agent, revision, held_by, held_since, held_told, *probation, running,
    ) = row  # fmt: skip
    return Facts(
        task_id=task_id,
        armed_at=from_store(armed_at),
        anchored_at=from_store(anchored_at),
        last_occurrence=maybe_from_store(last_occurrence),
        last_end=maybe_from_store(last_end),
        boot_id=boot_id,
        paused_until=maybe_from_store(paused_until),
        closing=DisabledReason(closing) if closing else None,
        failures=failures,
        incident=incident,
        incident_since=maybe_from_store(incident_since),
        incident_alerted_at=maybe_from_store(incident_alerted_at),
        deferred=maybe_from_store(deferred),
        waiting=tuple(
            Waiting(from_store(row["occurrence"]), Source(row["source"])) for row in waiting
        ),  # by their key, which is their order
        retry_at=maybe_from_store(retry_at),
        retry_follows=retry_follows,
        retries_used=retries_used,
        transient_retries_used=transient_retries_used,
        running=bool(running),
        missing_agent=missing_agent,
        held=Held(held_by, from_store(held_since), bool(held_told)) if held_by is not None else None,
        probation=_probation(*probation),
        hints=tuple(map(_hint, hints)),
        chained=_chained(chains),
        revision=revision,
    )


def _probation(run_id: str | None, left: int, until: str) -> Probation | None:
    return None if run_id is None else Probation(run_id, left, from_store(until))


def _hint(row: Row) -> Hint:
    return Hint(
        kind=HintKind(row["kind"]),
        given_at=from_store(row["given_at"]),
        every=timedelta(seconds=row["every_s"]) if row["every_s"] is not None else None,
        at=maybe_from_store(row["at"]),
        until=maybe_from_store(row["until"]),
        reason=row["reason"],
        author=row["author"],
    )


def _chained(rows: list[Row]) -> Chained | None:
    """When all that this task comes after have ended as it wants."""
    if not rows or any(row["ended_at"] is None for row in rows):
        return None
    last = max(rows, key=lambda row: row["ended_at"])
    return Chained(from_store(last["ended_at"]), last["ended_run"])
