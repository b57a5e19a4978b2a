"""Many jobs side by side in one thread: waits for output, exits, moments and signals, and passes each to the job it is for.

It knows nothing of what jobs are about. What has ended is put on record by `run/slots`, which turns the loop.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType, TracebackType
from typing import ParamSpec, Protocol, Self

from tickdown.base.model import Lease
from tickdown.context.context import Context
from tickdown.processes.process import Child
from tickdown.processes.termination import keep_spare, reap_adopted
from tickdown.store import runs
from tickdown.store.errors import Damaged, LostLease, StoreError, Unusable

P = ParamSpec("P")
HEARTBEAT_EVERY = 30.0
SAME_SIGNAL_WITHIN = 2.0
# While the database can't be written: how soon to try again, and how long after a signal to go on trying.
TRY_AGAIN_AFTER = 1.0
TRY_UNTIL = 60.0
# Those that end within this time are recorded, and others started in their places, together.
GATHER = 0.002
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Job(Protocol):
    """What the supervisor can drive: a run, the taking over of a hung one, a helper."""

    wake_at: float | None

    @property
    def child(self) -> Child | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def is_ending(self) -> bool: ...  # it waits for nothing but that its end is put on record
    @property
    def slots_used(self) -> int: ...
    @property
    def renewed_lease(self) -> Lease | None: ...  # of the run whose heartbeat is to be renewed
    def on_output(self) -> None: ...
    def on_exit(self, now: datetime, monotonic: float) -> None: ...
    def on_time(self, now: datetime, monotonic: float) -> None: ...
    def cancel(self, why: str, now: datetime, monotonic: float, *, at_once: bool, by_a_person: bool) -> None: ...
    def fail(self, error: Exception, now: datetime, monotonic: float) -> None: ...
    def put_off(self, until: float) -> None: ...
    def lose(self, monotonic: float) -> None: ...
    def give_up(self, error: Exception) -> None: ...


class Supervisor:
    def __init__(self, context: Context, *, told_twice: bool = False) -> None:
        """A process that is `told_twice` gets each signal from whoever sends it to everybody, and from the process that made
        it."""
        self.context, self.db = context, context.db
        self._told_twice, self._first_signal_at = told_twice, 0.0
        self.trouble: StoreError | None = None  # the first that the database made
        self.try_again_at = 0.0
        self.jobs: list[Job] = []
        self.received: signal.Signals | None = None
        self._signals_seen = 0
        self._signals_handled = 0
        self._next_heartbeat = time.monotonic() + HEARTBEAT_EVERY
        self._wake_reader, self._wake_writer = os.pipe()

    def __enter__(self) -> Self:
        keep_spare()
        for descriptor in (self._wake_reader, self._wake_writer):
            os.set_blocking(descriptor, False)
        # Python runs handlers between bytecodes only; the byte written here ends the wait.
        self._old_wakeup = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, self._note_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._told_twice and self.received is not None and now - self._first_signal_at < SAME_SIGNAL_WITHIN:
            return
        self._first_signal_at = self._first_signal_at or now
        self.received = self.received or signal.Signals(number)
        self._signals_seen += 1

    @property
    def stopping(self) -> bool:
        return self.received is not None

    @property
    def may_start(self) -> bool:
        """Whether anything further is to be started."""
        return self.received is None and self.trouble is None

    def add(self, job: Job) -> None:
        self.jobs.append(job)

    def take_done(self) -> list[Job]:
        """The jobs that are over; they are not looked after any more."""
        done = [job for job in self.jobs if job.done]
        if done:
            self.jobs = [job for job in self.jobs if not job.done]
        return done

    def wait(self, until: float | None, *, gather: bool = False) -> None:
        """Sleep until something happens, or until a moment of the monotonic clock, and let the jobs react. `gather`: a moment
        longer, so that more of them have ended."""
        if gather:
            select.select([], [], [], GATHER)  # `time.sleep` waits for a moment, and fails if a faked clock is past it
        found = self._poll(until)
        now, monotonic = datetime.now(UTC), time.monotonic()  # what happened meanwhile happened at the same time
        for job, event in found:
            if not job.done and job.child is not None:
                if event == "exit":
                    self.contained(job, job.on_exit, now, monotonic)
                elif job.child.open_outputs:
                    self.contained(job, job.on_output)
        self.obey_signals()
        monotonic = time.monotonic()
        for job in self.jobs:
            if job.wake_at is not None and job.wake_at <= monotonic and not job.done:
                self.contained(job, job.on_time, datetime.now(UTC), time.monotonic())
        self._heartbeat(monotonic)

    def put_up_with(self, error: StoreError) -> None:
        """A database that can't be written for a while costs no run. How one ended is known only here, so it is kept and
        tried again until it is on record; whoever took this process's place could only run it once more. In a damaged
        one nothing can be recorded any more, but what runs is seen to its end all the same. Raised is what is a bug, and
        everything some time after a signal."""
        if not isinstance(error, (Unusable, Damaged)) or (
            self.stopping and time.monotonic() > self._first_signal_at + TRY_UNTIL
        ):
            raise error
        self.try_again_at = time.monotonic() + TRY_AGAIN_AFTER
        if self.trouble is None:
            self.trouble = error
            self.db.wait_no_longer_than(TRY_AGAIN_AFTER)  # the tasks are to be looked after meanwhile
            self.context.tell_of_trouble(error)

    def let_wait(self, job: Job, error: StoreError) -> None:
        if isinstance(error, Damaged):
            job.give_up(error)
        else:
            job.put_off(self.try_again_at)

    def contained(self, job: Job, reaction: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
        """One run's trouble never stops the others; only the database is everybody's."""
        try:
            reaction(*arguments, **named)
        except LostLease:
            job.lose(time.monotonic())
        except StoreError as error:
            self.put_up_with(error)
            self.let_wait(job, error)
        except Exception as error:
            try:
                job.fail(error, datetime.now(UTC), time.monotonic())
            except LostLease:
                job.lose(time.monotonic())
            except StoreError as trouble:
                self.put_up_with(trouble)
                self.let_wait(job, trouble)
            except Exception as again:
                job.fail(again, datetime.now(UTC), time.monotonic())

    def _poll(self, until: float | None) -> list[tuple[Job, str]]:
        poller = select.poll()
        poller.register(self._wake_reader, select.POLLIN)
        sources: dict[int, tuple[Job, str]] = {}
        for job in self.jobs:
            if job.child is None:
                continue
            sources.update(dict.fromkeys(job.child.open_outputs, (job, "output")))
            if not job.child.exited:
                sources[job.child.exit_descriptor] = (job, "exit")
        for descriptor in sources:
            poller.register(descriptor, select.POLLIN)
        moments = [self._next_heartbeat, *(job.wake_at for job in self.jobs if job.wake_at is not None)]
        if until is not None:
            moments.append(until)
        if self.trouble is not None and any(job.is_ending for job in self.jobs):
            moments.append(self.try_again_at)
        wait = max(0.0, min(moments) - time.monotonic())
        ready = [descriptor for descriptor, _ in poller.poll(wait * 1000 + 1 if wait else 0)]
        if self._wake_reader in ready:
            try:
                os.read(self._wake_reader, 1000)
            except BlockingIOError:
                pass
        # Output before exits, so that the last words of a task are read while its log is still open.
        found = [sources[descriptor] for descriptor in ready if descriptor in sources]
        return sorted(found, key=lambda pair: pair[1] == "exit")

    def obey_signals(self) -> None:
        if self._signals_handled == self._signals_seen or self.received is None:
            return
        self._signals_handled = self._signals_seen
        for job in self.jobs:
            self.cancel(job)

    def cancel(self, job: Job) -> None:
        """As the signal asks for that this process has got."""
        assert self.received is not None
        self.contained(
            job, job.cancel, f"the scheduler got {self.received.name}", datetime.now(UTC), time.monotonic(),
            at_once=self._signals_seen > 1, by_a_person=self.received is signal.SIGINT,
        )  # fmt: skip

    def _heartbeat(self, monotonic: float) -> None:
        if monotonic < self._next_heartbeat:
            return
        self._next_heartbeat = monotonic + HEARTBEAT_EVERY
        reap_adopted()
        mine = {lease: job for job in self.jobs if (lease := job.renewed_lease) is not None}
        if mine:
            try:
                for lease in runs.renew_heartbeats(self.db, list(mine), datetime.now(UTC)):
                    mine[lease].lose(monotonic)
            except StoreError as error:
                self.put_up_with(error)
