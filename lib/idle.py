"""The shortest way through a tick: see that nothing has changed and nothing is due, say so, and end.

Almost every tick goes it, so it must cost next to nothing: one scan of the files, one query, the two rows that every tick
leaves. It imports nothing that a tick with work to do would need (a test holds it to that), and where anything is unusual
it answers no: the long way knows what to do.

What may be relied on was left by the last long tick: in the database, the fingerprint of everything that the catalogue was
made from, and for each task the moment before which nobody needs to look at it; in `state/shortcut`, where that database
is and which variables the configuration refers to.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from lib.instants import to_store
from lib.machine import boot_id, host_name, machine_load
from lib.scan import UNTRUSTED, scan
from lib.store import pulse
from lib.store.schema import MIGRATIONS

BUSY_SECONDS = 60.0
# Cron comes every minute; five without it are an outage.
OUTAGE_AFTER = timedelta(minutes=5)
# Ticks that begin together may stamp in any order; a heartbeat further ahead is from a clock that has been set back.
CLOCK_SLACK = timedelta(seconds=5)
PRUNE_EVERY = timedelta(days=1)
GOOD_FOR = 1.0  # seconds: who had to wait for the database looks at the files once more
ROTATE_AT = 10 * 1024 * 1024  # bytes of scheduler.log
_LIB = os.path.dirname(__file__)

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


class Look:
    """All files with their stamps, as a tick has found them. One that has something to do goes on from here: to look once
    more would cost as much again."""

    __slots__ = ("at", "found", "remembered", "root", "until")

    def __init__(self, root: str, at: datetime, remembered: str) -> None:
        self.root, self.at, self.remembered = root, at, remembered
        self.until = time.monotonic() + GOOD_FOR
        self.found = list(scan(os.path.join(root, "tasks")))

    def still_holds(self, root: str, remembered: str) -> bool:
        """Not if another tick has read the files since: what it has met must not be missed here. Nor after a wait."""
        return (root, remembered) == (self.root, self.remembered) and time.monotonic() < self.until


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
        pulse.beat(connection, to_store(now), host_name(), os.getpid())
        pulse.snapshot(connection, to_store(now), host_name(), 0, *machine_load())
        connection.execute("COMMIT")
    except BaseException:
        connection.close()  # nobody else would, it is part of a cycle; and its descriptors may be the last ones
        raise
    if sys.stdout.isatty():
        print("tick: nothing due", flush=True)
    return True, None


def _what_to_find(connection: sqlite3.Connection, now: datetime) -> str | None:
    """The fingerprint that everything must have if there is nothing to do; None if there is something anyway."""
    state = connection.execute(_STATE, {"now": to_store(now), "version": len(MIGRATIONS)}).fetchone()
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


# --- what is relied on -----------------------------------------------------------------------------------------


def shortcut_path(root: str) -> str:
    return os.path.join(root, "state", "shortcut")


def read_shortcut(root: str) -> list[str]:
    """The database, then the variables that the configuration refers to."""
    with open(shortcut_path(root), encoding="utf-8") as file:
        return file.read().splitlines()


def outside(root: str) -> list[str]:
    """What is outside the task files and decides what they mean and when they are due. To be taken down before the settings
    are read: what changes in between is then noticed by the next tick."""
    info = os.stat(root)
    whose = f"{info.st_uid} {info.st_gid} {os.geteuid()} {os.getegid()}"  # whose files are accepted
    settings = (os.path.join(root, name) for name in ("config.yaml", ".env"))
    program = (os.path.join(_LIB, name) for name in ("", "task.py", "cron.py", "parsed.py"))
    changes = map(_change, (*settings, "/etc/localtime", "/etc/timezone", *program))
    return [whose, boot_id(), os.path.realpath(os.path.join(root, "tasks")), *changes]


def basis(seen: Iterable[str], variables: Iterable[str]) -> str:
    """A digest of all that, and of the variables that the configuration refers to."""
    from _blake2 import blake2b  # not through hashlib, which loads all of OpenSSL

    parts = [*seen, *(f"{name}={os.environ.get(name)}" for name in (*variables, "TZ"))]
    return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _change(path: str) -> str:
    """Changes whenever the file does; of a folder, whenever something is put into it or taken out."""
    try:
        info = os.stat(path)
    except OSError:
        return "-"
    return f"{info.st_ino} {info.st_size} {info.st_mode} {info.st_uid} {info.st_mtime_ns} {info.st_ctime_ns}"


def fingerprint(of_basis: str, files: Iterable[tuple[str, str]]) -> str | None:
    """Of the basis and of every file with its stamp; None if one of them can't be trusted yet."""
    from _blake2 import blake2b

    digest = blake2b(digest_size=16)
    for path, stamp in files:
        if stamp == UNTRUSTED:
            return None
        digest.update(f"{path}\0{stamp}\n".encode("utf-8", "surrogateescape"))
    return f"{of_basis} {digest.hexdigest()}"


def is_complete(made_from: str) -> bool:
    """Whether it is such a fingerprint, and not a basis alone, which is remembered where a file could not be trusted."""
    return " " in made_from
