"""A second process that takes a part of a long queue: one alone, in one thread, can't keep several processors busy.

It is a supervisor in its own right: it claims, runs and records what it was given under its own name, so whatever becomes of
it or of the process that made it, the next tick finds things as after any other death.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import NoReturn

from lib.errors import Exit
from lib.process import Child


def processors() -> int:
    return len(os.sched_getaffinity(0))


def may_fork() -> bool:
    """A copy of a process has only the thread that made it; what others were doing would stay undone in it."""
    return threading.active_count() == 1


class Helper:
    """A job of the supervisor, though not a run: waited for, and told when everything is to stop."""

    wake_at: float | None = None

    def __init__(self, work: Callable[[], bytes]) -> None:
        """Fork; `work` is done in the new process, which ends with it. What it returns is `result` here."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._answer = os.memfd_create("answer", os.MFD_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _work_and_end(work, self._answer)
        self.child: Child | None = Child.of(pid)
        self.pid = pid
        self.failed = False
        self.result = b""

    @property
    def done(self) -> bool:
        return self.child is None

    def on_output(self) -> None: ...

    def on_time(self, now: datetime, monotonic: float) -> None: ...

    def on_exit(self, now: datetime, monotonic: float) -> None:
        assert self.child is not None
        code, _ = self.child.exit_status()
        self.failed = code != Exit.OK
        if not self.failed:
            self.result = os.pread(self._answer, os.fstat(self._answer).st_size, 0)
        os.close(self._answer)
        self.child.close()
        self.child = None

    def cancel(self, why: str, now: datetime, monotonic: float, *, at_once: bool, by_a_person: bool) -> None:
        """It has a session of its own, so that a signal from the terminal reaches it once, through here."""
        os.kill(self.pid, signal.SIGINT if by_a_person else signal.SIGTERM)

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        self.failed = True
        self.child = None


def _work_and_end(work: Callable[[], bytes], answer: int) -> NoReturn:
    """Without the clearing up that only the first process has to do."""
    code = Exit.BUG
    try:
        os.setsid()
        os.write(answer, work())
        code = Exit.OK
    finally:
        sys.stdout.flush()
        os._exit(code)
