"""The shortest way through a tick: see that nothing has changed and nothing is due, say so, and end.

Almost every tick goes it, so it must cost next to nothing: one scan of the files, one query, the two rows that every tick
leaves. It imports nothing that a tick with work to do would need (a test holds it to that), and where anything is unusual
it answers no: the long way knows what to do.

What may be relied on was left by the last long tick: in the database, the fingerprint of everything that the catalogue was
made from, and for each task the moment before which nobody needs to look at it; in `state/shortcut`, where that database
is and which variables the configuration refers to.
"""

import os
import sqlite3
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from tickdown.base.machine import host_name, machine_load
from tickdown.store import heartbeat
from tickdown.store.heartbeat import BUSY_SECONDS, CLOCK_SLACK, OUTAGE_AFTER, PRUNE_EVERY, SCHEMA_VERSION
from tickdown.time.instants import to_store
from tickdown.workspace.shortcut import ROTATE_AT, Look, basis, fingerprint, is_complete, outside, read_shortcut

_STATE = """
    SELECT (SELECT value FROM meta WHERE name = 'catalogue'),
           (SELECT MAX(at) FROM heartbeats),
           (SELECT value FROM meta WHERE name = 'last_prune'),
           EXISTS (SELECT 1 FROM tasks WHERE look_at <= :now)
           OR EXISTS (SELECT 1 FROM task_runs WHERE status = 'running')
           OR EXISTS (SELECT 1 FROM alerts WHERE status = 'pending')
           OR EXISTS (SELECT 1 FROM tickets WHERE kind = 'crash' AND closed_at IS NULL)
           OR (SELECT user_version FROM pragma_user_version) <> :version
"""


def look_around(arguments: Sequence[str], default_root: str) -> tuple[bool, Look | None]:
    """Whether this is a plain `tick` with nothing to do; it is stamped then. And if not, what it has seen, if that is of use."""
    chosen = _workspace_of(arguments, default_root)
    if chosen is None or os.environ.get("TICKDOWN_HEALING") or None in (sys.stdin, sys.stdout, sys.stderr):
        return False, None
    try:
        return _look(os.path.realpath(os.path.expanduser(chosen)))
    except (OSError, ValueError, sqlite3.Error):
        return False, None


def _workspace_of(arguments: Sequence[str], default_root: str) -> str | None:
    """The workspace of a plain tick; None for whatever else is asked."""
    chosen = os.environ.get("TICKDOWN_HOME") or default_root
    ticks, words = 0, iter(arguments)
    for word in words:
        if word == "tick":
            ticks += 1
        elif word == "--workspace":
            chosen = next(words, "") or chosen
        elif word == "--detach":
            continue  # there is nothing to leave to anybody
        else:
            return None
    return chosen if ticks == 1 else None


def _look(root: str) -> tuple[bool, Look | None]:
    state = os.path.join(root, "state")
    if os.stat(state).st_mode & 0o077 or _size(os.path.join(root, "logs", "scheduler.log")) >= ROTATE_AT:
        return False, None
    database, *variables = read_shortcut(root)
    if os.path.islink(database) or not os.path.exists(database):
        return False, None
    now = datetime.now(UTC)
    connection = sqlite3.connect(database, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        known = _what_to_find(connection, now)
        if known is None or not is_complete(known):
            connection.close()
            return False, None
        of_basis = basis(outside(root), variables)
        look = Look(root, now, known)
        made = fingerprint(of_basis, look.found)
        if made != known:
            connection.close()
            # What was changed this very moment can be trusted in the next.
            return False, look if made is not None else None
        # In WAL mode this commit is not synced: a power cut may cost the last heartbeats, and nothing else.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        heartbeat.beat(connection, to_store(now), host_name(), os.getpid())
        heartbeat.snapshot(connection, to_store(now), host_name(), 0, *machine_load())
        connection.execute("COMMIT")
    except BaseException:
        connection.close()  # nobody else would, it is part of a cycle; and its descriptors may be the last ones
        raise
    if sys.stdout.isatty():
        print("tick: nothing due", flush=True)
    return True, None


def _what_to_find(connection: sqlite3.Connection, now: datetime) -> str | None:
    """The fingerprint that everything must have if there is nothing to do; None if there is something anyway."""
    state = connection.execute(_STATE, {"now": to_store(now), "version": SCHEMA_VERSION}).fetchone()
    known: str | None = state[0]
    last_beat, last_prune, has_work = state[1:]
    if has_work or last_beat is None or last_prune is None:
        return None
    if not to_store(now - OUTAGE_AFTER) <= last_beat <= to_store(now + CLOCK_SLACK):
        return None
    return known if to_store(now - PRUNE_EVERY) < last_prune <= to_store(now) else None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
