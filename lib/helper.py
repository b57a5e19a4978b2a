"""A second process that takes a part of a long queue: one alone, in one thread, can't keep several processors busy.

It is a supervisor in its own right: it claims, runs and records what it was given under its own name, so whatever becomes of
it or of the process that made it, the next tick finds things as after any other death.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterable
from datetime import datetime

from lib.context import Context
from lib.process import Child, Forked, adopt_orphans, may_fork, processors, this_process
from lib.records import record, replace
from lib.store import runs

SHARE_BY = 100  # due tasks for each process that works on them


@record(frozen=True)
class Did:
    """What came of it."""

    due: int  # beyond what it was given, less what is left of that
    run_ids: list[str]
    left: list[str]  # tasks that it could find no slot for
    trouble: sqlite3.Error | None

    def to_json(self) -> bytes:
        trouble = None if self.trouble is None else [str(self.trouble), self.trouble.sqlite_errorcode]
        return json.dumps([self.due, self.run_ids, self.left, trouble]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Did:
        due, run_ids, left, told = json.loads(text)
        trouble = None
        if told is not None:
            trouble = sqlite3.OperationalError(told[0])
            trouble.sqlite_errorcode = told[1]
        return cls(due, run_ids, left, trouble)


class Helper:
    """A job of the supervisor, though not a run: waited for, and told when everything is to stop."""

    wake_at: float | None = None

    def __init__(self, context: Context, slots: int, work: Callable[[Context], Did]) -> None:
        """Fork; `work` is done in the new process, which ends with it. What it returns is `did` here; None if it died."""
        self.share = slots
        self._forked = Forked(lambda: _help(context, work))
        self.pid = self._forked.pid
        self.child: Child | None = Child.of(self.pid)
        self.did: Did | None = None

    @property
    def done(self) -> bool:
        return self.child is None

    def on_output(self) -> None: ...

    def on_time(self, now: datetime, monotonic: float) -> None: ...

    def on_exit(self, now: datetime, monotonic: float) -> None:
        assert self.child is not None
        answer = self._forked.answer(*self.child.exit_status())
        self.did = Did.from_json(answer) if answer is not None else None
        self.child.close()
        self.child = None

    def cancel(self, why: str, now: datetime, monotonic: float, *, at_once: bool, by_a_person: bool) -> None:
        """It has a session of its own, so that a signal from the terminal reaches it once, through here."""
        os.kill(self.pid, signal.SIGINT if by_a_person else signal.SIGTERM)

    def put_off(self, until: float) -> None: ...

    def give_up(self, error: Exception) -> None: ...

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        self.child = None


def parts_of(context: Context, length: int) -> int:
    """Among how many processes a queue of that length is to be shared: as many as there are processors, if that is worth it
    and can be done."""
    parts = min(processors(), length // SHARE_BY, context.settings.config.max_concurrent // 2)
    return 1 if parts < 2 or not may_fork() or runs.running_runs(context.db) else parts


def fork_helpers(context: Context, slots: int, works: Iterable[Callable[[Context], Did]]) -> list[Helper]:
    """One for each work, or fewer, if there is no process to be had. Before anything has been started here: a copy of this
    process must not hold its locks too."""
    import filelock  # noqa: F401  # needed by all of them, and slow to load

    adopt_orphans()  # which loads something as well
    helpers: list[Helper] = []
    context.db.take_turns()
    context.db.close()
    try:
        for work in works:
            helpers.append(Helper(context, slots, work))  # noqa: PERF401  # those before the one that fails are there
    except OSError as error:
        context.log.warning("not_shared", error=str(error))
    context.db.reopen()
    return helpers


def _help(context: Context, work: Callable[[Context], Did]) -> bytes:
    """In the new process."""
    context.db.reopen()
    adopt_orphans.cache_clear()
    try:
        return work(replace(context, owner=this_process())).to_json()
    except BaseException:
        from traceback import format_exc

        context.log.error("helper_crashed", traceback=format_exc())
        raise
