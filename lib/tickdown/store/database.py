"""Opening the database: modes, migrations, transactions, and what to do with a damaged file."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tickdown.base.errors import TickdownError
from tickdown.store.heartbeat import BUSY_SECONDS
from tickdown.store.schema import MIGRATIONS
from tickdown.time.instants import to_store
from tickdown.workspace.folders import PRIVATE_FILE, make_dir, private_opener


class UnusableDatabase(TickdownError):
    pass


class DamagedDatabase(UnusableDatabase):
    pass


class Database:
    def __init__(self, path: Path | None, in_place_of: str | None = None) -> None:
        """Open, creating or migrating as needed; None is a database in memory, for looking at an empty one. `in_place_of` is
        what a new one remembers of the one before it (see `ticks.replaces`).

        Raises DamagedDatabase, or TickdownError for one from a newer version.
        """
        self.path = path or Path(":memory:")
        self._in_place_of = in_place_of
        self._rehearsing = False
        self._turns: int | None = None
        with damage_noticed(self.path):
            if path is None:
                self._use(sqlite3.connect(":memory:", isolation_level=None))
            else:
                self._open_or_make()

    def _open_or_make(self) -> None:
        try:
            is_there = has_content(self.path)
        except OSError as error:
            raise _not_opened(self.path, error) from None
        if is_there:
            self._use(self._open(self.path))
            return
        with _alone_with(self.path):
            _clear_away(self.path)
            self._use(self._open(self.path))

    def _use(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.connection.row_factory = sqlite3.Row
        try:
            self._prepare()
        except BaseException:
            self.connection.close()  # its descriptors may be the last ones
            raise

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        try:
            make_dir(path.parent)
            # SQLite would create it readable for all; its companions (-wal, -shm) copy the mode of the file.
            descriptor = private_opener(str(path), os.O_RDWR | os.O_CREAT)
            try:
                info = os.fstat(descriptor)
                if info.st_mode & 0o077 and info.st_uid == os.geteuid():
                    os.fchmod(descriptor, PRIVATE_FILE)
            finally:
                os.close(descriptor)
            return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        except (OSError, sqlite3.OperationalError) as error:
            raise _not_opened(path, error) from None

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.connection.execute("PRAGMA synchronous = FULL")  # an end that was recorded survives a power cut
        # What a burst of a thousand runs writes (up to 40 MiB) is merged when it is over.
        self.connection.execute("PRAGMA wal_autocheckpoint = 10000")
        self.connection.execute("PRAGMA temp_store = MEMORY")
        version = self._version()
        if version > len(MIGRATIONS):
            raise UnusableDatabase(
                f"the database {self.path} is from a newer version (schema {version}; this one knows "
                f"{len(MIGRATIONS)}); update Tickdown, nothing was changed"
            )
        if version < len(MIGRATIONS):
            self._use_wal()
            self._migrate()

    def _version(self) -> int:
        return int(self.connection.execute("PRAGMA user_version").fetchone()[0])

    def _use_wal(self) -> None:
        # Switching the mode needs the file alone, and SQLite does not wait for that: several first ticks may meet here.
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise  # no descriptor, no room: waiting does not help
                time.sleep(0.02)

    def _migrate(self) -> None:
        for number in range(self._version(), len(MIGRATIONS)):
            with self.transaction():
                if self._version() == number:  # another process may have been faster
                    for statement in _statements(MIGRATIONS[number]):
                        self.connection.execute(statement)
                    if number == 0 and self._in_place_of is not None:
                        self.connection.execute("INSERT INTO meta VALUES ('replaces', ?)", (self._in_place_of,))
                    self.connection.execute(f"PRAGMA user_version = {number + 1}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and the write lock from the start: what is read here stays true until the commit. Inside another
        one it is a part of that, and fails with it."""
        if self._rehearsing or self.connection.in_transaction:
            yield self.connection
            return
        with self._my_turn():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.commit()
            except BaseException:
                self.connection.rollback()  # after a failed commit too: what comes next must not become a part of this
                raise

    def wait_no_longer_than(self, seconds: float) -> None:
        """For a lock of somebody else; BUSY_SECONDS otherwise."""
        self.connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Where two processes share one queue they write by turns: whoever waits is woken at once. SQLite would have it
        sleep, longer each time."""
        if self._turns is None:
            yield
            return
        fcntl.lockf(self._turns, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._turns, fcntl.LOCK_UN)

    def take_turns(self) -> None:
        """With the processes that are forked from now on."""
        if self._turns is None:
            self._turns = os.memfd_create("turns", os.MFD_CLOEXEC)

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """What is read inside is of one moment, whatever others write meanwhile."""
        self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.rollback()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Whatever is written inside is undone at the end: to see what a tick would make of things."""
        self.connection.execute("BEGIN IMMEDIATE")
        self._rehearsing = True
        try:
            yield
        finally:
            self._rehearsing = False
            self.connection.rollback()

    def one(self, sql: str, *values: object) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self.connection.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: object) -> list[sqlite3.Row]:
        return self.connection.execute(sql, values).fetchall()

    def problems(self) -> list[str]:
        """What SQLite's own check finds; reads the whole file, so only `doctor` and who meets a bug ask."""
        try:
            found = [str(row[0]) for row in self.all("PRAGMA quick_check(5)")]
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            return [str(error)]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        self.connection.close()

    def reopen(self) -> None:
        """After a fork: no connection may be used in two processes."""
        self._in_place_of = ""  # if it has to be made anew, this one is gone
        self._open_or_make()

    def copy_to(self, path: Path) -> None:
        """All of it as it is now, in a file of its own that only its owner can read."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE))
        target = sqlite3.connect(path, isolation_level=None)
        try:
            self.connection.backup(target)
        finally:
            target.close()

    def put_in_place(self, copy: Path, now: datetime) -> Path | None:
        """The copy becomes the database; what was there is set aside (its name, if there was anything)."""
        self.connection.close()
        aside = _set_aside(self.path, now) if self.path.exists() else None
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)  # of a database that is gone
        os.replace(copy, self.path)
        self.connection = self._open(self.path)
        self._use_wal()
        self.connection.close()
        self.reopen()
        return aside


def has_content(path: Path | str) -> bool:
    """Whether there is a database, sound or not. An empty file is none: every one that was made has a first page."""
    try:
        return os.stat(path).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


_alone: set[Path] = set()


@contextmanager
def _alone_with(path: Path) -> Iterator[None]:
    """Only one process at a time makes a database, or sets one aside."""
    if path in _alone:  # whoever sets one aside has looked into it before
        yield
        return
    try:
        make_dir(path.parent)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _not_opened(path, error) from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _alone.add(path)
        yield
    finally:
        _alone.discard(path)
        os.close(folder)


def _clear_away(path: Path) -> None:
    """What is left of a database that was deleted or emptied. A tick may still work with those files: it keeps them to itself
    then, and does not write into the new one."""
    try:
        if os.path.lexists(path):
            info = path.lstat()
            if info.st_size or not stat.S_ISREG(info.st_mode):
                return  # another process was faster; or it is something else, which is not ours
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise _not_opened(path, error) from None


def _not_opened(path: Path, error: Exception) -> UnusableDatabase:
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        what_to_do = "remove it, or name the file itself under `database:` in config.yaml"
        return UnusableDatabase(f"the database {path} is a symbolic link, which is not followed; {what_to_do}")
    return UnusableDatabase(f"the database {path} can't be opened: {error}")


def _statements(script: str) -> Iterator[str]:
    """The single statements of a script: `executescript` would commit the transaction it is called in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# What the machine does to a database, as opposed to what a bug does: a full disk, somebody else's lock, no descriptor left.
_MAY_PASS = {
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL,
}  # fmt: skip


def may_pass(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _MAY_PASS


_WAYS_OUT = {
    sqlite3.SQLITE_FULL: "free some space on that disk",
    sqlite3.SQLITE_BUSY: "another process holds it locked; `fuser` tells which",
    sqlite3.SQLITE_IOERR: "look at the disk's space, quota and health",
    sqlite3.SQLITE_CANTOPEN: "its folder must be there and writable, and files to be opened left (ulimit -n)",
    sqlite3.SQLITE_READONLY: "it and its folder must be writable",
    sqlite3.SQLITE_PERM: "it and its folder must be writable",
}


def with_remedy(error: Exception) -> str:
    """What SQLite says, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return f"{error}; {_WAYS_OUT[code]}" if code in _WAYS_OUT else str(error)


def is_damage(error: sqlite3.Error) -> bool:
    # SQLITE_CORRUPT and SQLITE_NOTADB, in the low byte of an extended code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def damage_noticed(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            raise DamagedDatabase(f"the database {path} is damaged: {error}") from error
        raise


def replace_damaged(path: Path, now: datetime) -> Path | None:
    """Move a damaged database out of the way, with its companions; its new name. None if it is sound after all,
    which is so when another tick has replaced it already."""
    with _alone_with(path):
        try:
            database = Database(path, in_place_of="")  # if it is not even there any more
            try:
                with damage_noticed(path):
                    sound = not database.problems()
            finally:
                database.close()
            if sound:
                return None
        except DamagedDatabase:
            pass
        return _set_aside(path, now)


def _set_aside(path: Path, now: datetime) -> Path:
    stamp = to_store(now)[:19].replace(":", "")
    target = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    for suffix in ("-wal", "-shm", ""):
        source = Path(f"{path}{suffix}")
        if source.exists():
            source.rename(f"{target}{suffix}")
    return target
