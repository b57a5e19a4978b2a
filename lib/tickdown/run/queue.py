"""The queue of a tick: what is due waits for its time, its lock and a slot, is claimed, and is started once that is on
record.

While runs end quickly, some more are claimed than there are slots. They start in the places of those that end, at once, and
before the ends are on record: fewer and larger transactions. At no moment more run than hold a slot on record: one that was
claimed ahead takes over the slot of one that ended, in the transaction that records the end, or is given back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from tickdown.base.errors import TickdownError
from tickdown.base.model import Occurrence, Rung, Source
from tickdown.base.records import record
from tickdown.comments.reading import need_an_agent
from tickdown.context.context import Context
from tickdown.governor.governor import spread_catch_ups
from tickdown.processes.lock import TaskLock
from tickdown.processes.process import boot_id
from tickdown.run.decision import Decision, decide_again
from tickdown.run.execution import LOOK_FOR_SLOT_EVERY, Execution
from tickdown.run.helper import Helper
from tickdown.run.supervisor import Supervisor
from tickdown.schedule.schedule import Reboot
from tickdown.store import comments, heals, runs, tasks
from tickdown.store.database import Connection
from tickdown.store.errors import StoreError
from tickdown.tasks.task import Task

# So many share a commit; more of them, and those that run would have ended before the next are started.
STARTS_AT_ONCE = 8
# So many more are claimed ahead, as soon as no more than so few of them are left, if those that end now took no longer than
# this; and given back after so long.
AHEAD = 16
FEW_LEFT = 4
IS_QUICK = 0.25
GIVE_BACK_AFTER = 1.0
# Who has waited this long in the queue is looked at again before the start: it may have been paused or edited.
STALE_DECISION_AFTER = timedelta(seconds=5)
# A lock that is held is asked for once more: nearly always another process is taking up the same occurrence.
LOOK_AT_LOCK_AGAIN = 0.3


@record()
class Queued:
    occurrence: Occurrence
    decision: Decision
    decided_at: datetime
    ready_at: float = 0.0  # on the monotonic clock: it must come though somebody sets the other one
    was_locked: bool = False


@record(frozen=True)
class Candidate:
    """Ready to be claimed: its lock is held."""

    queued: Queued
    lock: TaskLock
    rung: Rung
    commented: bool


@record(frozen=True)
class Claimed:
    """On record as running, and not started yet."""

    queued: Queued
    execution: Execution
    rung: Rung


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
        self.claimed: list[Claimed] = []
        self._being_claimed: list[Claimed] = []  # in the transaction that goes on
        self._taking_slots: list[Execution] = []  # in it, too
        self._give_back_at = 0.0
        self.locked: list[Task] = []  # due, but somebody holds the lock and has recorded nothing: for whoever decides
        self.full_groups: set[str | None] = set()
        self._look_at_groups_again = 0.0
        self._last_start = 0.0  # of all that wait, on the monotonic clock
        supervisor.with_ends, supervisor.with_ends_over = self._claim_beside, self._claims_over
        supervisor.is_awaited, supervisor.may_keep_ends = self._waits_for_a_slot, self._may_keep_ends

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
        waits = Waits.FOR_ITS_TURN
        if not (self.claimed or any(run.is_ending for run in self._runs())):  # what ended is recorded first
            waits = self._claim_ready(self._free_slots())
            self._claims_over(True)
        self.start_claimed()
        if self.claimed and (time.monotonic() >= self._give_back_at or not self._runs()):
            self.give_back()
        return self._wake_time(Waits.FOR_A_SLOT if self.claimed else waits)

    def start_claimed(self) -> None:
        """As many as slots are held for."""
        unused = self._unused_slots()
        claimed, self.claimed = self.claimed[:unused], self.claimed[unused:]
        contained, now = self.supervisor.contained, datetime.now(UTC)
        for one in claimed:
            contained(one.execution, one.execution.start, one.rung, now, time.monotonic())
        for one in claimed:
            contained(one.execution, one.execution.announce)
            self.supervisor.add(one.execution)

    def give_back(self) -> None:
        """What was claimed ahead waits in the queue again, and other ticks may take it up. But what somebody has stopped is
        over."""
        ahead = [one for one in self.claimed if not one.execution.holds_slot]
        with self.context.db.transaction() as connection:
            given = [one for one in ahead if runs.unclaim(connection, one.execution.lease)]
        self.claimed = [one for one in self.claimed if one.execution.holds_slot]
        self.waiting[:0] = [one.queued for one in given]
        self._forget(given)
        if given:
            self.context.log.info("claims_given_back", tasks=[one.queued.occurrence.task_id for one in given])
        for one in ahead:
            if one not in given:
                one.execution.put_off(time.monotonic())  # it looks then what it is to end as
                self.supervisor.add(one.execution)

    def go_on_in_trouble(self) -> float | None:
        """What is on record is started, as slots come free, or given back as soon as that can be written; when to look again.
        Once nothing of ours is left whose slots it could take, the next tick finds it as what a dead process has left."""
        self.start_claimed()
        if not self.claimed:
            return None
        if not self.supervisor.jobs:
            self._forget(self.claimed)
            self.claimed = []
        elif time.monotonic() >= (again := max(self._give_back_at, self.supervisor.try_again_at)):
            self.give_back()
        else:
            return again
        return None

    def cancel_claimed(self) -> None:
        """What was claimed while the signal came, and is not to be started any more."""
        if not self.claimed:
            return
        try:
            self.give_back()
        except StoreError as error:
            self.supervisor.put_up_with(error)
        claimed, self.claimed = self.claimed, []
        for one in claimed:
            self.supervisor.cancel(one.execution)
            self.supervisor.add(one.execution)

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
        if self.claimed:
            moments.append(self._give_back_at)
        return min(moments, default=None)

    def _waits_for_a_slot(self) -> bool:
        return bool(self.waiting) and self.waiting[0].ready_at <= time.monotonic() and self._free_slots() <= 0

    def _free_slots(self) -> int:
        used = 0
        for job in self.supervisor.jobs:
            if isinstance(job, Execution):
                used += not job.is_ending
            else:
                used += job.share if isinstance(job, Helper) else 1
        return self.slots - used

    def _runs(self) -> list[Execution]:
        return [job for job in self.supervisor.jobs if isinstance(job, Execution)]

    def _unused_slots(self) -> int:
        """Held on record by runs of this process that have ended, or have not started. No more than it may use, should an end
        be impossible to record."""
        going = self._runs()
        held = sum(run.holds_slot for run in going) + sum(one.execution.holds_slot for one in self.claimed)
        shared = sum(job.share for job in self.supervisor.jobs if isinstance(job, Helper))
        # What waits for a slot to be run again, after its owner died, uses none.
        used = sum((run.holds_slot or run.started_at is not None) and not run.is_ending for run in going)
        return max(0, min(held, self.slots - shared) - used)

    # --- claiming ----------------------------------------------------------------------------------------------

    def _claim_beside(self, ended: list[Execution]) -> None:
        """In the transaction that records these ends: their slots go to what was claimed ahead, and what is claimed now."""
        self._taking_slots = [
            run for run in self._runs() if run.started_at is not None and not (run.holds_slot or run.is_ending)
        ]
        if ended:
            not_started = [one.execution for one in self.claimed if not one.execution.holds_slot]
            places = self._unused_slots() - (len(self.claimed) - len(not_started))
            self._taking_slots += not_started[: max(0, places)]
        if self._taking_slots:
            now = datetime.now(UTC)
            started = [(run.lease, run.started_at or now) for run in self._taking_slots]
            runs.hold_slots(self.context.db.connection, started)
        if ended and self.waiting and self.supervisor.may_start and len(self.claimed) <= FEW_LEFT:
            quick_since = time.monotonic() - IS_QUICK
            quick = sum(run.began_at > quick_since for run in ended)
            free = self._free_slots() - len(self.claimed)
            left = max(0, -free)  # of what was claimed ahead before
            self._claim_ready(max(0, free), max(0, min(AHEAD, 2 * quick) - left))

    def _may_keep_ends(self) -> bool:
        """Not if more should be claimed; but before that, what is claimed takes the places of who has ended. Not if it must be
        on record soon that somebody has ended, since he may not run twice."""
        enough = FEW_LEFT if self.waiting else 0
        if not (len(self.claimed) > enough or (self.claimed and self._unused_slots() > 0)):
            return False
        return all(run.task.rerun_interrupted for run in self._runs() if run.is_ending)

    def _claims_over(self, recorded: bool) -> None:
        """The transaction is."""
        claimed, self._being_claimed = self._being_claimed, []
        holding, self._taking_slots = self._taking_slots, []
        if recorded:
            self.claimed += claimed
            self._give_back_at = time.monotonic() + GIVE_BACK_AFTER if claimed else self._give_back_at
            for run in holding:
                run.holds_slot = True
        else:
            self._forget(claimed)

    def _forget(self, claimed: Iterable[Claimed]) -> None:
        """They are not on record: those occurrences are still due, and whoever finds them so needs their locks."""
        for one in claimed:
            one.execution.lock.release()
            del self.run_ids[one.execution.run_id]

    def _claim_ready(self, free: int, ahead: int = 0) -> Waits:
        """Claim what may start now, and some ahead; what do the others wait for?"""
        if free <= 0 and not ahead:
            return Waits.FOR_A_SLOT if self.waiting else Waits.FOR_NOTHING
        ready, more = self._take_ready(max(0, min(free, STARTS_AT_ONCE)), ahead)
        left: list[Queued] = []
        if ready:
            try:
                with self.context.db.transaction() as connection:
                    going, now = runs.ActiveRuns(connection), datetime.now(UTC)
                    for candidate in ready:
                        is_ahead = len(self._being_claimed) >= free
                        self._claim_and_make(connection, going, candidate, left, now, ahead=is_ahead)
            except StoreError:
                self._claims_over(False)
                _let_go(ready)
                raise
        self.waiting[:0] = left
        if any(queued.decision.task.group not in self.full_groups for queued in left):
            return Waits.FOR_A_SLOT
        if more:
            return Waits.FOR_ITS_TURN if len(self._being_claimed) < free else Waits.FOR_A_SLOT
        return Waits.FOR_A_SLOT if self.full_groups else Waits.FOR_NOTHING

    def _take_ready(self, most: int, ahead: int) -> tuple[list[Candidate], bool]:
        """Take up to so many out of the queue whose time has come and whose locks are to be had, and so many more that may be
        claimed ahead; True if there are more. Who waits for a full group keeps nobody else waiting."""
        if not self.waiting:
            return [], False
        now, healing = datetime.now(UTC), heals.running_since(self.context.db)
        if healing is not None:
            ahead = 0  # what is claimed must not be edited before it starts
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
            elif len(ready) >= most and (len(ready) >= most + ahead or not self._may_be_ahead(queued, commented)):
                more = True
                break
            else:
                try:
                    candidate = self._candidate_contained(queued, now, healing, commented)
                except StoreError:
                    _let_go(ready)
                    raise
                if candidate is not None:
                    ready.append(candidate)
                elif queued.ready_at > monotonic:  # its lock is asked for once more
                    kept.append(queued)
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
        if not lock.acquire(context.owner):
            self._found_locked(queued)
            return None
        is_commented = task.id.lower() in commented
        try:
            words = is_commented and need_an_agent(context, task, queued.occurrence.source, now)
        except StoreError:
            lock.release()
            raise
        return Candidate(queued, lock, Rung.COMMENTS if words else Rung.RUN, is_commented)

    def _found_locked(self, queued: Queued) -> None:
        task = queued.decision.task
        if tasks.facts(self.context.db, task.id) != queued.decision.facts:
            return  # it was taken up; or it is another decision now, which the next tick makes
        if queued.was_locked:
            self.locked.append(task)
        else:
            queued.was_locked, queued.ready_at = True, time.monotonic() + LOOK_AT_LOCK_AGAIN
            self._last_start = max(self._last_start, queued.ready_at)

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
        if (task.path, digest) in self.context.local.own_edits(since):
            return False
        self.context.log.warning("held", task_id=task.id, reason="its file was changed while a heal is going on")
        return True

    def _claim_and_make(
        self,
        connection: Connection,
        going: runs.ActiveRuns,
        candidate: Candidate,
        left: list[Queued],
        now: datetime,
        *,
        ahead: bool,
    ) -> None:
        """What has to wait for a slot goes to those that are left."""
        context, queued = self.context, candidate.queued
        task, occurrence = queued.decision.task, queued.occurrence
        new = new_run(context, task, occurrence, now, candidate.rung)
        claim = self._claim(connection, going, queued, new, now, ahead=ahead)
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
        execution.holds_slot = not ahead
        self._being_claimed.append(Claimed(queued, execution, candidate.rung))

    def _may_be_ahead(self, queued: Queued, commented: set[str]) -> bool:
        """What can be given back without a trace: nothing but the occurrence is taken up with it. Not where it matters whether
        an interrupted run had begun, and not if there are other limits than the slots."""
        task, facts, occurrence = queued.decision.task, queued.decision.facts, queued.occurrence
        return (
            occurrence.source in (Source.BASELINE_CRON, Source.BASELINE_INTERVAL)
            and not occurrence.apart
            and task.rerun_interrupted
            and task.group not in self.context.settings.config.groups
            and task.id.lower() not in commented
            and not (queued.decision.plan.unrun or queued.decision.plan.waiting)
            and not (facts.chained or facts.deferred or facts.waiting or facts.retry_at or facts.hints)
            and not (facts.retries_used or facts.transient_retries_used)
        )

    def _claim(
        self, connection: Connection, going: runs.ActiveRuns, queued: Queued, new: runs.NewRun, now: datetime,
        *, ahead: bool = False,
    ) -> runs.Claim:  # fmt: skip
        decision, config = queued.decision, self.context.settings.config
        group_limit = config.groups.get(decision.task.group) if decision.task.group else None
        return runs.claim_in(
            connection, going, new, decision.facts, now, limit=config.max_concurrent, group_limit=group_limit,
            plan=decision.plan, next_boot_id=boot_id() if isinstance(decision.task.schedule, Reboot) else None, ahead=ahead,
        )  # fmt: skip

    def _execution(self, queued: Queued, lock: TaskLock, new: runs.NewRun, *, uncommented: bool = False) -> Execution:
        decision, occurrence = queued.decision, queued.occurrence
        facts = decision.facts
        return Execution(
            self.context, decision.task, lock, new.lease, occurrence.source, occurrence.at, new.trace_id,
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
            claim = self._claim(connection, runs.ActiveRuns(connection), queued, new, now)
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
    unrun = queued.decision.plan.unrun
    since = min(queued.occurrence.at, unrun[0].first) if unrun else queued.occurrence.at
    return since, -queued.decision.task.priority, queued.occurrence.task_id
