"""A second process that takes a part of a long queue: one alone, in one thread, can't keep several processors busy.

It is a supervisor in its own right: it claims, runs and records what it was given under its own name, so whatever becomes of
it or of the process that made it, the next tick finds things as after any other death.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from datetime import datetime

from tickdown.base.model import Facts, Lease
from tickdown.base.records import record, replace
from tickdown.context.context import Context
from tickdown.processes.process import Child, Forked, adopt_orphans, may_fork, processors, this_process
from tickdown.run.supervisor import Supervisor
from tickdown.store import runs
from tickdown.store.errors import StoreError, error_named

SHARE_BY = 100  # due tasks for each process that works on them


@record(frozen=True)
class Part:
    """What a helper is given: tasks to look at, and slots for them. Its owner is the helper itself."""

    context: Context
    facts: dict[str, Facts]
    slots: int


@record(frozen=True)
class HelpReport:
    """What came of it."""

    due: int
    run_ids: list[str]
    left: list[str]  # tasks that it could find no slot for
    trouble: StoreError | None

    def to_json(self) -> bytes:
        trouble = None if self.trouble is None else [type(self.trouble).__name__, str(self.trouble)]
        return json.dumps([self.due, self.run_ids, self.left, trouble]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> HelpReport:
        due, run_ids, left, told = json.loads(text)
        return cls(due, run_ids, left, None if told is None else error_named(*told))


class Helper:
    """A job of the supervisor, though not a run: waited for, and told when everything is to stop."""

    wake_at: float | None = None
    is_ending = False
    renewed_lease: Lease | None = None

    def __init__(self, part: Part, work: Callable[[Part], HelpReport]) -> None:
        """Fork; `work` is done in the new process, which ends with it. What it returns is `did` here; None if it died."""
        self.slots_used = part.slots
        self._forked = Forked(lambda: _help(part, work))
        self.pid = self._forked.pid
        self.child: Child | None = Child.of(self.pid)
        self.did: HelpReport | None = None

    @property
    def done(self) -> bool:
        return self.child is None

    def on_output(self) -> None: ...

    def on_time(self, now: datetime, monotonic: float) -> None: ...

    def on_exit(self, now: datetime, monotonic: float) -> None:
        assert self.child is not None
        answer = self._forked.answer(*self.child.exit_status())
        self.did = HelpReport.from_json(answer) if answer is not None else None
        self.child.close()
        self.child = None

    def cancel(self, why: str, now: datetime, monotonic: float, *, at_once: bool, by_a_person: bool) -> None:
        """It has a session of its own, so that a signal from the terminal reaches it once, through here."""
        os.kill(self.pid, signal.SIGINT if by_a_person else signal.SIGTERM)

    def put_off(self, until: float) -> None: ...

    def lose(self, monotonic: float) -> None: ...

    def give_up(self, error: Exception) -> None: ...

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        self.child = None


def share(
    context: Context, supervisor: Supervisor, facts: dict[str, Facts], work: Callable[[Part], HelpReport]
) -> dict[str, Facts]:
    """If many are to be looked at, give a part of them to other processes, as many as there are processors; what is left
    is ours. Before anything has been started here: a copy of this process must not hold its locks too."""
    slots = context.settings.config.max_concurrent
    parts = min(processors(), len(facts) // SHARE_BY, slots // 2)
    if parts < 2 or not may_fork() or runs.running_runs(context.db):
        return facts
    whole, given = list(facts.items()), 0
    context.db.take_turns()
    context.db.close()
    try:
        for number in range(1, parts):
            part = Part(context, dict(whole[number::parts]), slots // parts)
            supervisor.add(Helper(part, work))
            given = number
    except OSError as error:  # no process to be had
        context.log.warning("not_shared", error=str(error))
    context.db.reopen()
    return {key: fact for index, (key, fact) in enumerate(whole) if not 1 <= index % parts <= given}


def _help(part: Part, work: Callable[[Part], HelpReport]) -> bytes:
    """In the new process."""
    part.context.db.reopen()
    adopt_orphans.cache_clear()
    try:
        return work(replace(part, context=replace(part.context, owner=this_process()))).to_json()
    except BaseException:
        from traceback import format_exc

        part.context.log.error("helper_crashed", traceback=format_exc())
        raise
