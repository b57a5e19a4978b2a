"""What only this checkout on this host knows, beside the database that may be shared: its task files as they were last read,
under the stamps that they had then, and which of its files this program has edited itself. In `state/local.db`.

It can be lost at any time: then every file is read anew. Whether it can be trusted is told by a token. Who brings the
database up to date with the files leaves a new token there, and then the same one here, with what was read. If the two differ,
somebody died in between, or another database is used, an older copy of it perhaps: nothing of what is kept here counts then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from tickdown.base.records import field, record
from tickdown.store.database import Connection, UnusableDatabase, open_file
from tickdown.store.errors import Damaged, NotOpened, Unusable
from tickdown.tasks.catalogue import TaskFile, file_from, values_of
from tickdown.time.instants import to_store
from tickdown.workspace.shortcut import checkout

T = TypeVar("T")
_LAYOUT = 1
_TABLES = (
    "CREATE TABLE known (token TEXT NOT NULL, fingerprint TEXT NOT NULL)",
    "CREATE TABLE files (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, digest TEXT NOT NULL, task_id TEXT, task TEXT,"
    " problems TEXT NOT NULL, chained INTEGER NOT NULL, dated INTEGER NOT NULL)",
    # Task files as this program left them: what a heal finds changed but is listed here was not the healer.
    "CREATE TABLE own_edits (path TEXT NOT NULL, digest TEXT NOT NULL, at TEXT NOT NULL)",
)


@record(frozen=True)
class Known:
    """The files by path, the fingerprint of what they were read from, and the token that the database must have for it."""

    token: str = ""
    fingerprint: str = ""
    files: Mapping[str, TaskFile] = field(default_factory=dict)


class LocalStore:
    def __init__(self, path: Path, checkout: str) -> None:
        """`checkout` is the name under which the database keeps the token."""
        self.path, self.checkout = path, checkout

    def known(self) -> Known:
        """The tasks in the files are made when somebody asks: most of the time nobody does."""

        def read(connection: Connection) -> Known:
            row = connection.execute("SELECT token, fingerprint FROM known").fetchone()
            rows = connection.execute("SELECT path, stamp, digest, task_id, task, problems, chained, dated FROM files")
            files = {one[0]: file_from(*one) for one in rows.fetchall()}
            return Known(row[0], row[1], files) if row is not None else Known()

        try:
            return self._do(read, "BEGIN") if self.path.exists() else Known()
        except (Unusable, UnusableDatabase):
            return Known()

    def remember(
        self, token: str, fingerprint: str, read: Iterable[TaskFile], removed: Iterable[str], *, anew: bool
    ) -> None:
        """After the database has got this token. `anew`: nothing that was kept before counts. What can't be written is read
        again by the next tick."""
        try:
            with self._open() as connection, _transaction(connection):
                if anew:
                    connection.execute("DELETE FROM files")
                connection.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in removed])
                connection.executemany(
                    "INSERT OR REPLACE INTO files (path, stamp, digest, task_id, task, problems, chained, dated)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    map(values_of, read),
                )
                connection.execute("DELETE FROM known")
                connection.execute("INSERT INTO known VALUES (?, ?)", (token, fingerprint))
        except Damaged:
            self._remove()
        except (Unusable, UnusableDatabase):
            pass

    def note_own_edits(self, edits: Sequence[tuple[str, str, str]]) -> None:
        """(path, digest, moment as stored) of each."""
        self._do(lambda connection: connection.executemany("INSERT INTO own_edits VALUES (?, ?, ?)", edits))

    def own_edits(self, since: datetime) -> set[tuple[str, str]]:
        def read(connection: Connection) -> set[tuple[str, str]]:
            rows = connection.execute("SELECT path, digest FROM own_edits WHERE at >= ?", (to_store(since),)).fetchall()
            return {(row[0], row[1]) for row in rows}

        return self._do(read, "BEGIN") if self.path.exists() else set()

    def forget_edits(self, before: datetime) -> None:
        if self.path.exists():
            sql = "DELETE FROM own_edits WHERE at < ?"
            self._do(lambda connection: connection.execute(sql, (to_store(before),)))

    def _do(self, work: Callable[[Connection], T], begin: str = "BEGIN IMMEDIATE") -> T:
        """In a transaction. What is damaged goes, and it is done on an empty one: the database itself is not to blame."""
        try:
            with self._open() as connection, _transaction(connection, begin):
                return work(connection)
        except Damaged:
            self._remove()
        try:
            with self._open() as connection, _transaction(connection, begin):
                return work(connection)
        except Damaged as error:
            raise NotOpened(f"{self.path}: {error}") from error

    def _remove(self) -> None:
        for suffix in ("-journal", ""):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        """With its tables. What is of another layout is made anew."""
        connection = open_file(self.path)
        try:
            # A power cut may cost the last change; then it is read again.
            connection.execute("PRAGMA synchronous = NORMAL")
            if connection.execute("PRAGMA user_version").fetchone()[0] != _LAYOUT:
                _make(connection)
            yield connection
        finally:
            connection.close()


def local_store(root: Path) -> LocalStore:
    """Of the workspace in this folder."""
    return LocalStore(root / "state" / "local.db", checkout(str(root)))


def _make(connection: Connection) -> None:
    with _transaction(connection):
        if connection.execute("PRAGMA user_version").fetchone()[0] == _LAYOUT:
            return  # another process was faster
        for name in ("known", "files", "own_edits"):
            connection.execute(f"DROP TABLE IF EXISTS {name}")
        for table in _TABLES:
            connection.execute(table)
        connection.execute(f"PRAGMA user_version = {_LAYOUT}")


@contextmanager
def _transaction(connection: Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
