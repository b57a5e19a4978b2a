"""The queue of a tick: what is due waits for its time, its lock and a slot, is claimed, and is started once that is on
record."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from lib.context import Context
from lib.deciding import Decision, decide_again
from lib.errors import TickdownError
from lib.execute import Execution
from lib.governor import spread_catch_ups
from lib.helper import Helper
from lib.lock import TaskLock
from lib.model import Occurrence, Rung
from lib.process import boot_id
from lib.records import record
from lib.remarks import need_an_agent
from lib.schedule import Reboot
from lib.store import comments, heals, runs
from lib.supervisor import Supervisor
from lib.task import Task

LOOK_FOR_SLOT_EVERY = 1.0
# So many share a commit; more of them, and those that run would have ended before the next are started.
STARTS_AT_ONCE = 8
# Who has waited this long in the queue is looked at again before the start: it may have been paused or edited.
STALE_DECISION_AFTER = timedelta(seconds=5)


@record()
class Queued:
    occurrence: Occurrence
    decision: Decision
    decided_at: datetime
    ready_at: float = 0.0  # on the monotonic clock: it must come though somebody sets the other one


@record(frozen=True)
class Candidate:
    """Ready to be claimed: its lock is held."""

    queued: Queued
    lock: TaskLock
    rung: Rung
    commented: bool


class Waits(Enum):
    """What keeps the next of the queue from starting at once."""

    FOR_NOTHING = auto()
    FOR_A_SLOT = auto()
    FOR_ITS_TURN = auto()


class Queue:
    def __init__(self, context: Context, supervisor: Supervisor, slots: int, run_ids: dict[str, None]) -> None:
        """The supervisor is given what starts, and lets its commits be shared. `run_ids` are told what was claimed."""
        self.context, self.supervisor, self.slots, self.run_ids = context, supervisor, slots, run_ids
        self.waiting: list[Queued] = []
        self.claimed: list[tuple[Execution, Rung]] = []  # and not started yet
        self.full_groups: set[str | None] = set()
        self._look_at_groups_again = 0.0
        self._last_start = 0.0  # of all that wait, on the monotonic clock
        supervisor.with_ends, supervisor.not_recorded = self._claim_beside, self._forget_claims
        supervisor.is_awaited = self._waits_for_a_slot

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.claimed)

    def add(self, decisions: Iterable[Decision], now: datetime) -> int:
        """How many of them are new here. Only the first occurrence of each task: the next of `catch_up: all` is decided when
        this one has ended."""
        starting = [decision for decision in decisions if decision.plan.starts]
        if not starting:
            return 0
        starting.sort(key=lambda decision: (-decision.task.priority, decision.task.id))
        by_key = {decision.plan.starts[0].key: decision for decision in starting}
        known = {queued.occurrence.key for queued in self.waiting}
        starts = spread_catch_ups((decision.plan.starts[0] for decision in starting), now)
        monotonic = time.monotonic()
        fresh = [
            Queued(start, by_key[start.key], now, monotonic + (start.start_at - now).total_seconds())
            for start in starts
            if start.key not in known
        ]
        self.waiting = sorted(self.waiting + fresh, key=_oldest_then_priority)
        self._last_start = max((queued.ready_at for queued in self.waiting), default=0.0)
        return len(fresh)

    # --- starting ----------------------------------------------------------------------------------------------

    def start_ready(self) -> float | None:
        """Start what can start, and say when to look again without being called. Those that start together share one commit:
        first all are claimed, and only what is on record is started."""
        waits = Waits.FOR_ITS_TURN if self.claimed else self._claim_ready(self._free_slots())
        self.start_claimed()
        return self._wake_time(waits)

    def start_claimed(self) -> None:
        claimed, self.claimed = self.claimed, []
        contained, now = self.supervisor.contained, datetime.now(UTC)
        for execution, rung in claimed:
            contained(execution, execution.start, rung, now, time.monotonic())
        for execution, _ in claimed:
            contained(execution, execution.announce)
            self.supervisor.add(execution)

    def cancel_claimed(self) -> None:
        """What was claimed while the signal came, and is not to be started any more."""
        claimed, self.claimed = self.claimed, []
        for execution, _ in claimed:
            self.supervisor.cancel(execution)
            self.supervisor.add(execution)

    def _wake_time(self, waits: Waits) -> float | None:
        """A tick that runs nothing does not wait for the slots of others: the next one comes within a minute, and waiting
        ticks would pile up."""
        monotonic = time.monotonic()
        delayed = self.waiting if self._last_start > monotonic else ()
        moments = [queued.ready_at for queued in delayed if queued.ready_at > monotonic]
        if waits is Waits.FOR_ITS_TURN:
            moments.append(monotonic)
        elif waits is Waits.FOR_A_SLOT and self.supervisor.jobs:
            moments.append(monotonic + LOOK_FOR_SLOT_EVERY)
        return min(moments, default=None)

    def _waits_for_a_slot(self) -> bool:
        return bool(self.waiting) and self.waiting[0].ready_at <= time.monotonic() and self._free_slots() <= 0

    def _free_slots(self) -> int:
        return self.slots - sum(job.share if isinstance(job, Helper) else 1 for job in self.supervisor.jobs)

    # --- claiming ----------------------------------------------------------------------------------------------

    def _claim_beside(self, ends: int) -> None:
        """In the transaction that records so many ends: claim what takes their place."""
        if self.waiting and self.supervisor.may_start and not self.claimed:
            self._claim_ready(self._free_slots() + ends)

    def _forget_claims(self) -> None:
        """They were not written down: those occurrences are still due, and whoever finds them so needs their locks."""
        claimed, self.claimed = self.claimed, []
        for execution, _ in claimed:
            execution.lock.release()
            del self.run_ids[execution.run_id]

    def _claim_ready(self, free: int) -> Waits:
        """Claim what may start now; what do the others wait for?"""
        ready, more = self._take_ready(min(free, STARTS_AT_ONCE))
        left: list[Queued] = []
        if ready:
            try:
                with self.context.db.transaction() as connection:
                    going, now = runs.Going(connection), datetime.now(UTC)
                    for candidate in ready:
                        self._claim_and_make(connection, going, candidate, left, now)
            except sqlite3.Error:
                self._forget_claims()
                _let_go(ready)
                raise
        self.waiting[:0] = left
        if any(queued.decision.task.group not in self.full_groups for queued in left):
            return Waits.FOR_A_SLOT
        if more:
            return Waits.FOR_ITS_TURN if len(self.claimed) < free else Waits.FOR_A_SLOT
        return Waits.FOR_A_SLOT if self.full_groups else Waits.FOR_NOTHING

    def _take_ready(self, most: int) -> tuple[list[Candidate], bool]:
        """Take up to so many out of the queue whose time has come and whose locks are to be had; True if there are more. Who
        waits for a full group keeps nobody else waiting."""
        if not self.waiting:
            return [], False
        now, healing = datetime.now(UTC), heals.running_since(self.context.db)
        commented = comments.tasks_with_unread(self.context.db)
        monotonic = time.monotonic()
        if monotonic >= self._look_at_groups_again:
            self.full_groups.clear()
        ready: list[Candidate] = []
        kept: list[Queued] = []
        more = False
        taken = 0
        for queued in self.waiting:
            if (
                queued.ready_at > monotonic
                or self.supervisor.stopping
                or queued.decision.task.group in self.full_groups
            ):
                kept.append(queued)
            elif len(ready) >= most:
                more = True
                break
            else:
                try:
                    candidate = self._candidate_contained(queued, now, healing, commented)
                except sqlite3.Error:
                    _let_go(ready)
                    raise
                if candidate is not None:
                    ready.append(candidate)
            taken += 1
        self.waiting[:taken] = kept
        return ready, more

    def _candidate_contained(
        self, queued: Queued, now: datetime, healing: datetime | None, commented: set[str]
    ) -> Candidate | None:
        """One task that can't be started must not stop the others, and its occurrence must not go without a row."""
        try:
            return self._candidate(queued, now, healing, commented)
        except (TickdownError, OSError) as error:
            self._record_not_started(queued, error)
            return None

    def _candidate(
        self, queued: Queued, now: datetime, healing: datetime | None, commented: set[str]
    ) -> Candidate | None:
        context = self.context
        if now - queued.decided_at > STALE_DECISION_AFTER and not self._still_wanted(queued, now):
            return None
        task = queued.decision.task
        if healing is not None and self._is_suspect(task, healing):
            return None
        lock = TaskLock(context.workspace.locks, task.id)
        if not lock.acquire():
            return None
        is_commented = task.id.lower() in commented
        try:
            words = is_commented and need_an_agent(context, task, queued.occurrence.source, now)
        except sqlite3.Error:
            lock.release()
            raise
        return Candidate(queued, lock, Rung.COMMENTS if words else Rung.RUN, is_commented)

    def _still_wanted(self, queued: Queued, now: datetime) -> bool:
        """The occurrence stays only if it would be started again."""
        again = decide_again(self.context, queued.decision.task, now)
        if again is None or not again.plan.starts or again.plan.starts[0].key != queued.occurrence.key:
            return False
        queued.decision, queued.decided_at = again, now
        return True

    def _is_suspect(self, task: Task, since: datetime) -> bool:
        """While a healer is at work, a task file that somebody else than this program has touched since does not start: it
        may be put back in a minute. It stays due."""
        import hashlib

        path = self.context.workspace.root / task.path
        try:
            if path.stat().st_ctime <= since.timestamp():
                return False
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            return True
        if (task.path, digest) in heals.own_edits(self.context.db, since):
            return False
        self.context.log.warning("held", task_id=task.id, reason="its file was changed while a heal is going on")
        return True

    def _claim_and_make(
        self,
        connection: sqlite3.Connection,
        going: runs.Going,
        candidate: Candidate,
        left: list[Queued],
        now: datetime,
    ) -> None:
        """What has to wait for a slot goes to those that are left."""
        context, queued = self.context, candidate.queued
        task, occurrence = queued.decision.task, queued.occurrence
        new = new_run(context, task, occurrence, now, candidate.rung)
        claim = self._claim(connection, going, queued, new, now)
        if claim is not runs.Claim.WON:
            candidate.lock.release()
            if claim is not runs.Claim.LOST:
                left.append(queued)
            if claim is runs.Claim.GROUP_FULL and task.group is not None:
                self.full_groups.add(task.group)
                self._look_at_groups_again = time.monotonic() + LOOK_FOR_SLOT_EVERY
            return
        self.run_ids[new.run_id] = None
        execution = self._execution(queued, candidate.lock, new, uncommented=not candidate.commented)
        self.claimed.append((execution, candidate.rung))

    def _claim(
        self, connection: sqlite3.Connection, going: runs.Going, queued: Queued, new: runs.NewRun, now: datetime
    ) -> runs.Claim:
        decision, config = queued.decision, self.context.settings.config
        group_limit = config.groups.get(decision.task.group) if decision.task.group else None
        return runs.claim_in(
            connection, going, new, decision.facts, now, limit=config.max_concurrent, group_limit=group_limit,
            missed=decision.plan.missed, missed_source=decision.plan.source,
            next_boot_id=boot_id() if isinstance(decision.task.schedule, Reboot) else None,
        )  # fmt: skip

    def _execution(self, queued: Queued, lock: TaskLock, new: runs.NewRun, *, uncommented: bool = False) -> Execution:
        decision, occurrence = queued.decision, queued.occurrence
        facts = decision.facts
        return Execution(
            self.context, decision.task, lock, new.run_id, occurrence.source, occurrence.at, new.trace_id,
            retries_used=facts.retries_used if occurrence.follows else 0,
            transient_retries_used=facts.transient_retries_used if occurrence.follows else 0,
            heals_used=len(heals.of_chain(self.context.db, occurrence.follows)) if occurrence.follows else 0,
            uncommented=uncommented,
        )  # fmt: skip

    def _record_not_started(self, queued: Queued, error: Exception) -> None:
        context, now, occurrence = self.context, datetime.now(UTC), queued.occurrence
        task = queued.decision.task
        context.log.error("not_started", task_id=task.id, error=str(error))
        new = new_run(context, task, occurrence, now)
        with context.db.transaction() as connection:
            claim = self._claim(connection, runs.Going(connection), queued, new, now)
        if claim is runs.Claim.WON:
            execution = self._execution(queued, TaskLock(context.workspace.locks, task.id), new)  # never acquired
            execution.not_started(error, now, time.monotonic())
            self.supervisor.add(execution)


def new_run(context: Context, task: Task, occurrence: Occurrence, now: datetime, rung: Rung = Rung.RUN) -> runs.NewRun:
    run_id, trace_id = runs.new_run_id(now), os.urandom(16).hex()
    log = context.workspace.run_log(occurrence.task_id, run_id)
    return runs.NewRun(run_id, occurrence, context.owner, trace_id, log, task.group, rung)


def _let_go(candidates: list[Candidate]) -> None:
    for candidate in candidates:
        candidate.lock.release()


def _oldest_then_priority(queued: Queued) -> tuple[datetime, int, str]:
    """By the oldest occurrence that the start stands for: who comes every minute and waits longest must not always be last."""
    missed = queued.decision.plan.missed
    since = missed.first if missed is not None else queued.occurrence.at
    return since, -queued.decision.task.priority, queued.occurrence.task_id
