"""Opening the database: modes, migrations, transactions, and what to do with a damaged file."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tickdown.base.errors import TickdownError
from tickdown.store.errors import (
    Busy,
    Damaged,
    DiskTrouble,
    Full,
    NoMemory,
    NotOpened,
    ReadOnly,
    RuleBroken,
    StoreError,
)
from tickdown.store.heartbeat import BUSY_SECONDS
from tickdown.store.schema import MIGRATIONS
from tickdown.time.instants import to_store
from tickdown.workspace.folders import PRIVATE_FILE, make_dir, private_opener

Row = sqlite3.Row
_KINDS: dict[int, type[StoreError]] = {
    sqlite3.SQLITE_BUSY: Busy,
    sqlite3.SQLITE_PROTOCOL: Busy,
    sqlite3.SQLITE_FULL: Full,
    sqlite3.SQLITE_READONLY: ReadOnly,
    sqlite3.SQLITE_PERM: ReadOnly,
    sqlite3.SQLITE_CANTOPEN: NotOpened,
    sqlite3.SQLITE_IOERR: DiskTrouble,
    sqlite3.SQLITE_NOMEM: NoMemory,
    sqlite3.SQLITE_CORRUPT: Damaged,
    sqlite3.SQLITE_NOTADB: Damaged,
    sqlite3.SQLITE_CONSTRAINT: RuleBroken,
}


def _our_error(error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte of an extended code
    return _KINDS.get(code, StoreError)(str(error))


class _Cursor(sqlite3.Cursor):
    def fetchone(self) -> Any:
        try:
            return super().fetchone()
        except sqlite3.Error as error:
            raise _our_error(error) from error

    def fetchall(self) -> list[Any]:
        try:
            return super().fetchall()
        except sqlite3.Error as error:
            raise _our_error(error) from error

    def __iter__(self) -> Any:
        return iter(self.fetchall())


class Connection(sqlite3.Connection):
    """What the verbs of the store are done on, in a transaction of the caller's. Others only pass it on. Its errors are those
    of `store.errors`."""

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        try:
            return self.cursor(_Cursor).execute(sql, values)
        except sqlite3.Error as error:
            raise _our_error(error) from error

    def executemany(self, sql: str, values: Any) -> sqlite3.Cursor:
        try:
            return self.cursor(_Cursor).executemany(sql, values)
        except sqlite3.Error as error:
            raise _our_error(error) from error

    def commit(self) -> None:
        try:
            super().commit()
        except sqlite3.Error as error:
            raise _our_error(error) from error

    def rollback(self) -> None:
        try:
            super().rollback()
        except sqlite3.Error as error:
            raise _our_error(error) from error


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
                self._use(sqlite3.connect(":memory:", isolation_level=None, factory=Connection))
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

    def _use(self, connection: Connection) -> None:
        self.connection = connection
        self.connection.row_factory = sqlite3.Row
        try:
            self._prepare()
        except BaseException:
            self.connection.close()  # its descriptors may be the last ones
            raise

    @staticmethod
    def _open(path: Path) -> Connection:
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
            return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, factory=Connection)
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
            except Busy:  # with no descriptor or no room, waiting does not help
                if time.monotonic() > deadline:
                    raise
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
    def transaction(self) -> Iterator[Connection]:
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

    def one(self, sql: str, *values: object) -> Row | None:
        row: Row | None = self.connection.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: object) -> list[Row]:
        return self.connection.execute(sql, values).fetchall()

    def problems(self) -> list[str]:
        """What SQLite's own check finds; reads the whole file, so only `doctor` and who meets a bug ask."""
        try:
            found = [str(row[0]) for row in self.all("PRAGMA quick_check(5)")]
        except Damaged as error:
            return [str(error)]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        self.connection.close()

    def reopen(self) -> None:
        """After a fork: no connection may be used in two processes."""
        self._in_place_of = ""  # if it has to be made anew, this one is gone
        self._open_or_make()

    def another_connection(self) -> Database:
        """To the same file, for another thread. Opened by SQLite alone: a process that closes any descriptor of a file loses all
        its locks on it, and SQLite knows what it has open."""
        from copy import copy

        other = copy(self)
        other._turns = None  # those are between processes
        address = f"{self.path.absolute().as_uri()}?mode=rw"  # which makes none, should it be gone
        other._use(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, factory=Connection))
        return other

    def copy_to(self, path: Path) -> None:
        """All of it as it is now, in a file of its own that only its owner can read."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE))
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as target:
                self.connection.backup(target)
        except sqlite3.Error as error:
            raise _our_error(error) from error

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


def can_be_read(path: Path) -> bool:
    """By somebody who comes anew, as the next tick will: it has our tables, and SQLite finds nothing wrong."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            connection.execute("SELECT run_id, attempt, task_id, started_at FROM heals LIMIT 1")
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        finally:
            connection.close()
    except sqlite3.Error:
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


@contextmanager
def damage_noticed(path: Path) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        raise DamagedDatabase(f"the database {path} is damaged: {error}") from error


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
