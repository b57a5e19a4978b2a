"""A second process that takes a part of a long queue: one alone, in one thread, can't keep several processors busy.

It is a supervisor in its own right: it claims, runs and records what it was given under its own name, so whatever becomes of
it or of the process that made it, the next tick finds things as after any other death.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import datetime

from lib.process import Child, Forked


class Helper:
    """A job of the supervisor, though not a run: waited for, and told when everything is to stop."""

    wake_at: float | None = None

    def __init__(self, work: Callable[[], bytes], share: int) -> None:
        """Fork; `work` is done in the new process, which ends with it. What it returns is `result` here; None if it died."""
        self.share = share  # of the slots
        self._forked = Forked(work)
        self.pid = self._forked.pid
        self.child: Child | None = Child.of(self.pid)
        self.result: bytes | None = None

    @property
    def done(self) -> bool:
        return self.child is None

    def on_output(self) -> None: ...

    def on_time(self, now: datetime, monotonic: float) -> None: ...

    def on_exit(self, now: datetime, monotonic: float) -> None:
        assert self.child is not None
        self.result = self._forked.answer(*self.child.exit_status())
        self.child.close()
        self.child = None

    def cancel(self, why: str, now: datetime, monotonic: float, *, at_once: bool, by_a_person: bool) -> None:
        """It has a session of its own, so that a signal from the terminal reaches it once, through here."""
        os.kill(self.pid, signal.SIGINT if by_a_person else signal.SIGTERM)

    def put_off(self, until: float) -> None: ...

    def give_up(self, error: Exception) -> None: ...

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        self.child = None
