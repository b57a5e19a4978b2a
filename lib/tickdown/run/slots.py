"""The loop that fills the slots. What is due waits for its time, its lock and a free slot; then it is claimed, started,
looked after, and its end is put on record.

    add --> waiting --claim--> claimed --start--> supervisor.jobs --end--> on record --> returned by `turn`

A run is started only after its claim is on record. Every claim and every end is a row, and rows cost a commit each, so
those that come together share one.

While runs end quickly, more are claimed than there are free slots: "ahead". Such a run starts at once in the place of one
that has ended, even before that end is on record. Never do more run than hold a slot on record: the transaction that
records an end passes its slot on to a run that was claimed ahead. One that finds no place in time is given back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from tickdown.base.errors import TickdownError
from tickdown.base.model import ActionTaken, Occurrence, Rung, Source
from tickdown.base.records import record
from tickdown.comments.reading import need_an_agent
from tickdown.context.context import Context
from tickdown.governor.governor import spread_catch_ups
from tickdown.processes.lock import TaskLock
from tickdown.processes.process import boot_id
from tickdown.run.decision import Decision, decide_again
from tickdown.run.execution import Execution
from tickdown.run.helper import Helper
from tickdown.run.live_run import LiveRun, RunToDo, Used
from tickdown.run.rungs import LOOK_FOR_SLOT_EVERY
from tickdown.run.supervisor import Job, Supervisor
from tickdown.schedule.schedule import Reboot
from tickdown.store import comments, heals, runs, tasks
from tickdown.store.database import Connection
from tickdown.store.errors import StoreError
from tickdown.tasks.task import Task

# How many claims share a commit. With more of them, what runs would have ended before the next are started.
STARTS_AT_ONCE = 8
# More are claimed ahead once no more than FEW_LEFT are left, if those that end now took no longer than IS_QUICK. What has
# not started after GIVE_BACK_AFTER is given back.
AHEAD = 16
FEW_LEFT = 4
IS_QUICK = 0.25
GIVE_BACK_AFTER = 1.0
# How long an end that nobody waits for may be kept, to be recorded with others.
KEEP_ENDS = 0.1
# What has waited this long is decided anew before it starts: it may have been paused or edited.
STALE_DECISION_AFTER = timedelta(seconds=5)
# A lock that is held is asked for once more: nearly always another process is taking up the same occurrence.
LOOK_AT_LOCK_AGAIN = 0.3


@record()
class Queued:
    """Due, and not claimed yet."""

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
    """What keeps the next one that waits from starting at once."""

    FOR_NOTHING = auto()
    FOR_A_SLOT = auto()
    FOR_ITS_TURN = auto()


class Slots:
    def __init__(self, context: Context, supervisor: Supervisor, slots: int) -> None:
        """`slots` are what this process may use of those that the configuration allows."""
        self.context, self.supervisor, self.slots = context, supervisor, slots
        self.run_ids: dict[str, None] = {}  # of all that was claimed here, in order
        self.waiting: list[Queued] = []
        self.claimed: list[Claimed] = []
        self._being_claimed: list[Claimed] = []  # in the transaction that goes on
        self._taking_slots: list[Execution] = []  # in it, too
        self._give_back_at = 0.0
        self._keep_ends_until: float | None = None
        self.locked: list[Task] = []  # due, but somebody holds the lock and has recorded nothing: for whoever decides
        self.full_groups: set[str | None] = set()
        self._look_at_groups_again = 0.0
        self._last_start = 0.0  # of all that wait, on the monotonic clock

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.claimed)

    def add(self, decisions: Iterable[Decision], now: datetime) -> int:
        """Let the first start of each decision wait for its turn; the next one of `catch_up: all` is decided when this one has
        ended. How many of them are new here?"""
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

    # --- the loop ----------------------------------------------------------------------------------------------

    def turn(self, until: float | None) -> list[Job]:
        """One turn of the loop: wait until something happens, or until that moment; let the jobs react; put on record what has
        ended. The jobs that are over are returned."""
        supervisor = self.supervisor
        supervisor.obey_signals()
        # Some have ended before they have begun.
        if not (self._record_ends() or any(job.done for job in supervisor.jobs)):
            if self._keep_ends_until is not None and supervisor.may_start:
                until = self._keep_ends_until if until is None else min(until, self._keep_ends_until)
            supervisor.wait(until, gather=self._waits_for_a_slot())
            self._record_ends()
        return supervisor.take_done()

    def run_to_the_end(self) -> None:
        """Of what runs; nothing further is started."""
        while self.supervisor.jobs:
            self.turn(None)

    # --- starting ----------------------------------------------------------------------------------------------

    def start_ready(self) -> float | None:
        """Claim and start what can start. When to look again, should nothing happen before?"""
        waits = Waits.FOR_ITS_TURN
        if not (
            self.claimed or any(execution.is_ending for execution in self._executions())
        ):  # what ended is recorded first
            waits = self._claim_ready(self._free_slots())
            self._claims_over(True)
        self.start_claimed()
        if self.claimed and (time.monotonic() >= self._give_back_at or not self._executions()):
            self.give_back()
        return self._wake_time(Waits.FOR_A_SLOT if self.claimed else waits)

    def start_claimed(self) -> None:
        """As many as this process holds slots for."""
        unused = self._unused_slots()
        claimed, self.claimed = self.claimed[:unused], self.claimed[unused:]
        contained, now = self.supervisor.contained, datetime.now(UTC)
        for one in claimed:
            contained(one.execution, one.execution.start, one.rung, now, time.monotonic())
        for one in claimed:
            contained(one.execution, one.execution.announce)
            self.supervisor.add(one.execution)

    def give_back(self) -> None:
        """What was claimed ahead is not claimed any more: it waits again, and other ticks may take it up. But what somebody has
        stopped meanwhile gets its end on record."""
        ahead = [one for one in self.claimed if not one.execution.run.holds_slot]
        with self.context.db.transaction() as connection:
            given = [one for one in ahead if runs.unclaim(connection, one.execution.run.lease)]
        self.claimed = [one for one in self.claimed if one.execution.run.holds_slot]
        self.waiting[:0] = [one.queued for one in given]
        self._forget(given)
        if given:
            self.context.log.info("claims_given_back", tasks=[one.queued.occurrence.task_id for one in given])
        for one in ahead:
            if one not in given:
                one.execution.put_off(time.monotonic())  # it looks then what it is to end as
                self.supervisor.add(one.execution)

    def go_on_in_trouble(self) -> float | None:
        """While the database can't be written: what is claimed starts as slots come free, or is given back as soon as that can
        be written. When to look again? If no run of ours is left whose slot could come free, the claims are left to the
        next tick, which finds them as those of a dead process."""
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
        """What was claimed when the signal came, and is not started any more."""
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
        """A tick that runs nothing does not wait for the slots of others: ticks would pile up, and the next one comes within a
        minute."""
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
        return self.slots - sum(job.slots_used for job in self.supervisor.jobs)

    def _executions(self) -> list[Execution]:
        return [job for job in self.supervisor.jobs if isinstance(job, Execution) and not job.done]

    def _unused_slots(self) -> int:
        """Slots that are held on record by runs of this process which have ended or have not started. No more than it may use,
        even if ends can't be recorded."""
        going = self._executions()
        held = sum(execution.run.holds_slot for execution in going) + sum(
            one.execution.run.holds_slot for one in self.claimed
        )
        shared = sum(job.slots_used for job in self.supervisor.jobs if isinstance(job, Helper))
        # What waits for a slot to be run again, after its owner died, uses none.
        used = sum(
            (execution.run.holds_slot or execution.run.started_at is not None) and not execution.is_ending
            for execution in going
        )
        return max(0, min(held, self.slots - shared) - used)

    # --- ends --------------------------------------------------------------------------------------------------

    def _record_ends(self) -> bool:
        """Put on record what has ended, in one transaction with what takes its place. If one end can't be recorded for a bug,
        each is recorded by itself. True if anything was recorded."""
        supervisor = self.supervisor
        ending = [execution for execution in self._executions() if execution.is_ending]
        if not ending or time.monotonic() < supervisor.try_again_at or self._keeps_ends(ending):
            return False
        self._keep_ends_until = None
        try:
            if not self._record_together(ending):
                with self.context.db.transaction():
                    self._claim_beside([])
                for execution in ending:
                    supervisor.contained(execution, self._record_alone, execution)
        except StoreError as error:
            for execution in ending:
                execution.recorded = None
            self._claims_over(False)
            supervisor.put_up_with(error)
            for execution in ending:
                supervisor.let_wait(execution, error)
            return False
        self._claims_over(True)
        for execution in ending:
            if execution.recorded is not None:
                supervisor.contained(execution, execution.let_go)
        return True

    def _record_together(self, ending: list[Execution]) -> bool:
        """False if one of them can't be recorded; then nothing is."""
        with self.context.db.transaction() as connection:
            for execution in ending:
                try:
                    execution.record_end()
                except StoreError:
                    raise
                except Exception:
                    connection.rollback()
                    return False
            self._claim_beside(ending)
        return True

    def _record_alone(self, execution: Execution) -> None:
        execution.recorded = None  # that was taken back
        try:
            with self.context.db.transaction():
                execution.record_end()
        except StoreError:
            execution.recorded = None
            raise

    def _keeps_ends(self, ending: list[Execution]) -> bool:
        """Fewer commits cost less: what has ended may be recorded when there is more of it, or after a moment. Not once more
        should be claimed; before that, what is claimed takes the places of those that have ended. And not if it must be on
        record soon that a run has ended, because it may not run twice."""
        if not self.supervisor.may_start:
            return False
        enough = FEW_LEFT if self.waiting else 0
        if not (len(self.claimed) > enough or (self.claimed and self._unused_slots() > 0)):
            return False
        if not all(execution.run.task.rerun_interrupted for execution in ending):
            return False
        now = time.monotonic()
        if self._keep_ends_until is None:
            self._keep_ends_until = now + KEEP_ENDS
        return now < self._keep_ends_until

    # --- claiming ----------------------------------------------------------------------------------------------

    def _claim_beside(self, ended: list[Execution]) -> None:
        """In the transaction that records these ends: their slots pass to what was claimed ahead, and more is claimed."""
        self._taking_slots = [
            execution
            for execution in self._executions()
            if execution.run.started_at is not None and not (execution.run.holds_slot or execution.is_ending)
        ]
        if ended:
            not_started = [one.execution for one in self.claimed if not one.execution.run.holds_slot]
            places = self._unused_slots() - (len(self.claimed) - len(not_started))
            self._taking_slots += not_started[: max(0, places)]
        if self._taking_slots:
            now = datetime.now(UTC)
            started = [(execution.run.lease, execution.run.started_at or now) for execution in self._taking_slots]
            runs.hold_slots(self.context.db.connection, started)
        if ended and self.waiting and self.supervisor.may_start and len(self.claimed) <= FEW_LEFT:
            quick_since = time.monotonic() - IS_QUICK
            quick = sum(execution.run.began_at > quick_since for execution in ended)
            free = self._free_slots() - len(self.claimed)
            left = max(0, -free)  # of what was claimed ahead before
            self._claim_ready(max(0, free), max(0, min(AHEAD, 2 * quick) - left))

    def _claims_over(self, recorded: bool) -> None:
        """The transaction in which these were claimed is over: `recorded`, or rolled back."""
        claimed, self._being_claimed = self._being_claimed, []
        holding, self._taking_slots = self._taking_slots, []
        if recorded:
            self.claimed += claimed
            self._give_back_at = time.monotonic() + GIVE_BACK_AFTER if claimed else self._give_back_at
            for execution in holding:
                execution.run.holds_slot = True
        else:
            self._forget(claimed)

    def _forget(self, claimed: Iterable[Claimed]) -> None:
        """They are not on record any more. Those occurrences are still due, and whoever takes them up needs their locks."""
        for one in claimed:
            one.execution.run.lock.release()
            del self.run_ids[one.execution.run.run_id]

    def _claim_ready(self, free: int, ahead: int = 0) -> Waits:
        """Claim what may start now in `free` slots, and so many `ahead`. What do the others wait for?"""
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
        """Take up to `most` out of those that wait, whose time has come and whose locks are free, and so many more that may be
        claimed `ahead`. True if there are more. What waits for a full group keeps no other waiting."""
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
        except BaseException:
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
        if (task.path, digest) in heals.own_edits(self.context.db, since):
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
        """What has to wait for a slot is appended to `left`."""
        context, queued = self.context, candidate.queued
        task = queued.decision.task
        new = new_run(context, queued.decision, queued.occurrence, now, rung=candidate.rung, ahead=ahead)
        claim = runs.claim_in(connection, going, new, now)
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
        execution.run.holds_slot = not ahead
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

    def claim_by_hand(
        self,
        decision: Decision,
        occurrence: Occurrence,
        asked: ActionTaken,
        *,
        may_heal: bool,
        echo: Callable[[bytes], None],
    ) -> Execution | None:
        """What somebody asks for: at once, whatever the slots. None if somebody else runs it."""
        context, task, now = self.context, decision.task, datetime.now(UTC)
        lock = TaskLock(context.workspace.locks, task.id)
        if not lock.acquire(context.owner):
            return None
        new = new_run(context, decision, occurrence, now, asked=asked)
        if runs.claim(context.db, new, now) is not runs.Claim.WON:
            lock.release()
            return None
        todo = RunToDo(task, new.lease, occurrence.source, occurrence.at, new.trace_id, may_heal=may_heal)
        execution = Execution(LiveRun(context, lock, todo, echo))
        self.supervisor.add(execution)
        self.supervisor.contained(execution, execution.begin, Rung.RUN, datetime.now(UTC), time.monotonic())
        return execution

    def _execution(self, queued: Queued, lock: TaskLock, new: runs.NewRun, *, uncommented: bool = False) -> Execution:
        facts, occurrence, used = queued.decision.facts, queued.occurrence, Used()
        if occurrence.follows:
            healed = heals.of_chain(self.context.db, occurrence.follows)
            used = Used(facts.retries_used, facts.transient_retries_used, len(healed))
        todo = RunToDo(
            queued.decision.task, new.lease, occurrence.source, occurrence.at, new.trace_id, used, uncommented=uncommented
        )  # fmt: skip
        return Execution(LiveRun(self.context, lock, todo))

    def _record_not_started(self, queued: Queued, error: Exception) -> None:
        context, now, occurrence = self.context, datetime.now(UTC), queued.occurrence
        task = queued.decision.task
        context.log.error("not_started", task_id=task.id, error=str(error))
        new = new_run(context, queued.decision, occurrence, now)
        if runs.claim(context.db, new, now) is runs.Claim.WON:
            execution = self._execution(queued, TaskLock(context.workspace.locks, task.id), new)  # never acquired
            self.supervisor.add(execution)
            self.supervisor.contained(execution, execution.not_started, error, now, time.monotonic())


def new_run(
    context: Context, decision: Decision, occurrence: Occurrence, now: datetime, *, rung: Rung = Rung.RUN,
    ahead: bool = False, asked: ActionTaken | None = None,
) -> runs.NewRun:  # fmt: skip
    """What somebody `asked` for waits for no slot."""
    task, config = decision.task, context.settings.config
    run_id, trace_id = runs.new_run_id(now), os.urandom(16).hex()
    log = context.workspace.run_log(occurrence.task_id, run_id)
    return runs.NewRun(
        run_id, occurrence, context.owner, trace_id, log, decision.facts, decision.plan, task.group, rung,
        limit=None if asked else config.max_concurrent,
        group_limit=config.groups.get(task.group) if task.group and not asked else None,
        next_boot_id=boot_id() if isinstance(task.schedule, Reboot) else None,
        ahead=ahead, asked=asked,
    )  # fmt: skip


def _let_go(candidates: list[Candidate]) -> None:
    for candidate in candidates:
        candidate.lock.release()


def _oldest_then_priority(queued: Queued) -> tuple[datetime, int, str]:
    """By the oldest occurrence that the start stands for: who comes every minute and waits longest must not always be last."""
    unrun = queued.decision.plan.unrun
    since = min(queued.occurrence.at, unrun[0].first) if unrun else queued.occurrence.at
    return since, -queued.decision.task.priority, queued.occurrence.task_id
