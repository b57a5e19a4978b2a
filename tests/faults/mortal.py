"""Run a command of the scheduler that dies by SIGKILL at a chosen point: mortal.py LEDGER LABEL NUMBER SHARE SCHEDULER ARG…

Points lie before and after every BEGIN, COMMIT, start of a process, fork, note in a lock, renaming of a file and wait for an HTTP
answer. Each that is passed, by this process or by one forked from it, is a line in LEDGER; whoever writes the NUMBER-th that
ends with LABEL dies there (0: nobody does). What SQLite itself says of transactions goes to LEDGER.sql, so that a test can tell
that none was overlooked. With a SHARE, a queue of that many tasks for each of two processes counts as long, on any machine.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH = 16  # bytes of a line


def passed(ledger: Path) -> list[str]:
    """The points that were passed, in their order."""
    return [line.strip() for line in ledger.read_text().splitlines()] if ledger.exists() else []


class Ledger:
    def __init__(self, path: str, label: str, number: int) -> None:
        self._points, self._sql = (
            os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600) for name in (path, f"{path}.sql")
        )
        self._label, self._number = label, number

    def point(self, label: str) -> None:
        fcntl.lockf(self._points, fcntl.LOCK_EX)  # over processes; it goes with who dies
        os.write(self._points, f"{label:{WIDTH - 1}}\n".encode())
        if self._number and label.endswith(self._label) and self._passed_so_often() == self._number:
            os.kill(os.getpid(), signal.SIGKILL)
        fcntl.lockf(self._points, fcntl.LOCK_UN)

    def _passed_so_often(self) -> int:
        size = os.fstat(self._points).st_size
        lines = os.pread(self._points, size, 0).decode().splitlines()
        return sum(line.strip().endswith(self._label) for line in lines)

    def around(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            self.point(f"before {label}")
            result = function(*values, **named)
            self.point(f"after {label}")
            return result

        return call

    def note_sql(self, words: str) -> None:
        os.write(self._sql, f"{words}\n".encode())


def watch_database(ledger: Ledger) -> None:
    from tickdown.store.database import Connection

    class Watched(Connection):
        def __init__(self, *values: Any, **named: Any) -> None:
            super().__init__(*values, **named)
            self.set_trace_callback(self._traced)
            self.commit = ledger.around("commit", super().commit)  # type: ignore[method-assign]

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            word = sql.split(maxsplit=1)[0].lower()
            run = super().execute
            return (ledger.around(word, run) if word in ("begin", "commit") else run)(sql, *values)

        def _traced(self, sql: str) -> None:
            word = sql.split(maxsplit=1)[0].lower()
            if word in ("begin", "commit"):
                ledger.note_sql(word)
            elif word in ("insert", "update", "delete", "replace") and not self.in_transaction:
                ledger.note_sql(f"alone: {sql}")

    connect = sqlite3.connect
    sqlite3.connect = lambda *values, **named: connect(*values, **(named | {"factory": Watched}))  # type: ignore[assignment]


def watch_system(ledger: Ledger) -> None:
    for module, name, label in (
        (os, "posix_spawn", "spawn"),
        (os, "posix_spawnp", "reader"),
        (os, "fork", "fork"),
        (os, "pwrite", "note"),  # who holds a lock
        (os, "ftruncate", "note"),
        (os, "rename", "rename"),
        (os, "replace", "rename"),
        (http.client.HTTPConnection, "getresponse", "answer"),  # when it begins, the request is sent
    ):
        setattr(module, name, ledger.around(label, getattr(module, name)))


def main() -> int:
    path, label, number, share, scheduler_file, *arguments = sys.argv[1:]
    sys.path[:0] = [str(Path(scheduler_file).parent), str(Path(scheduler_file).parent / "lib")]
    ledger = Ledger(path, label, int(number))
    watch_database(ledger)
    watch_system(ledger)
    import scheduler

    if int(share):
        import tickdown.run.helper

        tickdown.run.helper.SHARE_BY = int(share)
        tickdown.run.helper.processors = lambda: 2
    return scheduler.main(arguments)


if __name__ == "__main__":
    code = main()
    if "tickdown.ui.cli" not in sys.modules:
        os._exit(code)  # as the scheduler itself does
    sys.exit(code)
