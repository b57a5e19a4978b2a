"""What died or hangs: runs whose owner is gone are taken over, owners that hang are proven, ended and replaced."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from tickdown.alerts import messages
from tickdown.base.errors import TickdownError
from tickdown.base.model import ErrorClass, Lease, Run, Rung, RunStatus, Source
from tickdown.base.records import replace
from tickdown.comments.meaning import permitted
from tickdown.context.context import Context
from tickdown.failure.outcomes import Outcome
from tickdown.processes.lock import Holder, TaskLock, look_at, read_holder
from tickdown.processes.process import Child, boot_id, host_name, is_alive, send_signal
from tickdown.processes.termination import Termination
from tickdown.run.execution import Execution
from tickdown.run.live_run import KILLED_TEXT, LiveRun, RunToDo, Used
from tickdown.run.supervisor import HEARTBEAT_EVERY, Job
from tickdown.schedule.schedule import Manual
from tickdown.store import heals, outbox, runs, tasks
from tickdown.store.database import Database
from tickdown.tasks.task import Task

STALE_AFTER = 60.0
TERM_GRACE = 10.0
# How long a supervisor that was only slow gets to notice that its task has been ended.
LET_GO_WITHIN = 3.0
LOOK_EVERY = 0.2
GIVE_UP_AFTER = 30.0


def recover(
    context: Context,
    find: Callable[[str], Task | None],
    now: datetime,
    monotonic: float,
    only: str | None = None,
) -> Iterator[Job]:
    """Look at every run that says it is running on this host, or under a name that nobody answers to any more (a
    machine can be renamed, a container made anew), and give what takes them over. `only` this run."""
    for run in runs.running_runs(context.db):
        if only is not None and run.run_id != only:
            continue
        if run.owner is None or run.owner == context.owner or (run.host != host_name() and not _lease_over(run, now)):
            continue
        task = find(run.task_id) or _stand_in(run)
        if not task.enabled and run.source is not Source.MANUAL:
            task = replace(task, rerun_interrupted=False)  # switched off meanwhile: it is not started again
        holder = read_holder(context.workspace.locks, run.task_id)
        if holder is not None and holder.run_id != run.run_id:
            holder = None
        if not is_alive(run.owner):
            try:
                execution = _take_over_orphan(context, task, run, holder, now, monotonic)
            except TickdownError as error:  # its lock can't be opened: this run waits, the others don't
                _report_stuck(context, task, error, now)
                continue
            if execution is not None:
                yield execution
        elif holder is not None and monotonic > holder.deadline_monotonic + STALE_AFTER:
            context.log.warning("owner_hangs", task_id=run.task_id, run_id=run.run_id, pid=run.owner.pid)
            yield HungRun(context, task, run, holder, monotonic)


def dead_runs(db: Database) -> list[Run]:
    """Runs of this host that nobody looks after any more; the next tick takes them over."""
    here = [run for run in runs.running_runs(db) if run.owner is not None and run.host == host_name()]
    return [run for run in here if run.owner is not None and not is_alive(run.owner)]


def _lease_over(run: Run, now: datetime) -> bool:
    seen = run.heartbeat_at or run.started_at  # the first, before a run that was claimed ahead is started
    return seen is None or now - seen > timedelta(seconds=2 * HEARTBEAT_EVERY)


def _report_stuck(context: Context, task: Task, error: TickdownError, now: datetime) -> None:
    context.log.error("not_recovered", task_id=task.id, error=str(error))
    alert = messages.not_recovered_alert(task, str(error))
    outbox.add_alert_once_per(context.db, outbox.HOUR, alert, now)


def _stand_in(run: Run) -> Task:
    """For a run whose task file is gone or broken: enough to record its end, never to run it again."""
    return Task(
        id=run.task_id,
        title=run.task_id,
        schedule=Manual(),
        zone=UTC,
        path="",
        enabled=False,
        rerun_interrupted=False,
    )


def _take_over_orphan(
    context: Context,
    task: Task,
    run: Run,
    holder: Holder | None,
    now: datetime,
    monotonic: float,
) -> Execution | None:
    lock = TaskLock(context.workspace.locks, run.task_id)
    if not lock.acquire():
        _tell_of_stranger(context, task, run, now)
        return None
    current = runs.get_run(context.db, run.run_id)
    if current is None or current.status is not RunStatus.RUNNING or current.owner != run.owner:
        lock.release()
        return None
    assert run.owner is not None
    died = f"its supervisor (pid {run.owner.pid}) died"
    if run.owner.boot_id != boot_id():
        died = "the machine was restarted" if run.host == host_name() else f"its host {run.host} went away"
    if run.heartbeat_at is None and holder is None and _give_back(context, run):
        lock.release()
        return None
    execution = _execution(context, task, lock, run)
    execution.run.holds_slot = run.heartbeat_at is not None
    execution.take_over(run, holder.child if holder else None, Outcome(RunStatus.ORPHANED, error=died), now, monotonic)
    return execution


def _tell_of_stranger(context: Context, task: Task, run: Run, now: datetime) -> None:
    """Nearly always another tick is at it, and the lock says so. Who else holds it for long is told of."""
    seen, last = look_at(context.workspace.locks, run.task_id), run.heartbeat_at or run.started_at or now
    if seen is not None and seen.run_id != run.run_id and not seen.is_claiming and now - last > task.timeout:
        _report_stuck(context, task, TickdownError(f"its lock is held by {seen.words}"), now)


def _give_back(context: Context, run: Run) -> bool:
    """What was claimed ahead and had not begun, or the lock would tell of it: this tick decides about it anew."""
    with context.db.transaction() as connection:
        given = runs.unclaim(connection, run.lease)
    if given:
        context.log.warning("claim_given_back", task_id=run.task_id, reason="its supervisor died before it had begun")
    return given


def _execution(context: Context, task: Task, lock: TaskLock, run: Run) -> Execution:
    scheduled_for = run.scheduled_for or run.started_at or datetime.now(UTC)
    retried = sum(attempt.rung is Rung.RETRY for attempt in runs.attempts_of(context.db, run.run_id))
    before = tasks.facts(context.db, run.task_id) if run.follows else None  # what the runs that it follows have used
    # Looked at again: it may be of another version, which knew other rules.
    change = permitted(run.modification)[0] if run.modification is not None else None
    used = Used(
        retried + (before.retries_used if before else 0),
        before.transient_retries_used if before else 0,
        len(heals.of_chain(context.db, run.run_id)),
    )
    todo = RunToDo(
        task, run.lease, run.source, scheduled_for, run.trace_id or "", used,
        may_heal=run.source is not Source.MANUAL, modification=change,
    )  # fmt: skip
    return Execution(LiveRun(context, lock, todo))


class HungRun:
    """A run far past its deadline whose supervisor lives but does nothing. Its processes are ended first; if the lock
    is still held then, the supervisor too; then the run is recorded as killed."""

    is_ending = False
    slots_used = 1
    renewed_lease: Lease | None = None

    def __init__(self, context: Context, task: Task, run: Run, holder: Holder, monotonic: float) -> None:
        self.context, self.task, self.run = context, task, run
        self.child: Child | None = None
        self.wake_at: float | None = monotonic
        self.killed_owner = False
        self.successor: Execution | None = None
        self._lock = TaskLock(context.workspace.locks, run.task_id)
        self._termination: Termination | None = Termination(run.run_id, holder.child, TERM_GRACE, monotonic)
        self._let_go_by = 0.0
        self._give_up_at = 0.0
        # If the supervisor was only slow and records the end itself, it must be the same end.
        runs.request_end(context.db, run.run_id, RunStatus.KILLED)

    @property
    def done(self) -> bool:
        return self.wake_at is None

    def on_output(self) -> None: ...

    def on_exit(self, now: datetime, monotonic: float) -> None: ...

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        _report_stuck(self.context, self.task, TickdownError(f"{type(error).__name__}: {error}"), now)
        self.wake_at = None

    def lose(self, monotonic: float) -> None:
        """Somebody else is at it."""
        self.put_off(0.0)

    def put_off(self, until: float) -> None:
        """Without the database nothing can be taken over: a later tick finds it as it is."""
        self._lock.release()
        self.wake_at = None

    def give_up(self, error: Exception) -> None:
        self.put_off(0.0)

    def cancel(self, why: str, now: datetime, monotonic: float, *, at_once: bool, by_a_person: bool) -> None:
        self.wake_at = None

    def on_time(self, now: datetime, monotonic: float) -> None:
        if self._termination is not None:
            self.wake_at = self._termination.step(monotonic)
            if self.wake_at is not None:
                return
            self._termination = None
            self._let_go_by = monotonic + LET_GO_WITHIN
        try:
            acquired = self._lock.acquire()
        except TickdownError as error:
            _report_stuck(self.context, self.task, error, now)
            self.wake_at = None
            return
        if acquired:
            self._record(now, monotonic)
        elif monotonic < self._let_go_by or (self.killed_owner and monotonic < self._give_up_at):
            self.wake_at = monotonic + LOOK_EVERY
        elif self.killed_owner:
            stuck = TickdownError("its supervisor could not be ended, not even by SIGKILL")
            _report_stuck(self.context, self.task, stuck, now)
            self.killed_owner = False
            self.wake_at = None
        else:
            self._end_owner(monotonic)

    def _end_owner(self, monotonic: float) -> None:
        """Only the very process that claimed the run: a recycled pid is left alone."""
        owner = self.run.owner
        assert owner is not None
        self.killed_owner = owner.boot_id == boot_id() and send_signal(owner.pid, owner.started, signal.SIGKILL)
        self.context.log.warning(
            "owner_ended", task_id=self.task.id, run_id=self.run.run_id, pid=owner.pid, signalled=self.killed_owner
        )
        self._give_up_at = monotonic + GIVE_UP_AFTER
        # Not ended by us, so somebody else holds the lock now: theirs to finish.
        self.wake_at = monotonic + LOOK_EVERY if self.killed_owner else None

    def _record(self, now: datetime, monotonic: float) -> None:
        self.wake_at = None
        current = runs.get_run(self.context.db, self.run.run_id)
        if current is None or current.status is not RunStatus.RUNNING or current.owner != self.run.owner:
            self._lock.release()  # its supervisor woke up and recorded the end itself
            return
        why = Outcome(RunStatus.KILLED, error_class=ErrorClass.TIMEOUT, error=KILLED_TEXT)
        self.successor = _execution(self.context, self.task, self._lock, self.run)
        self.successor.take_over(self.run, None, why, now, monotonic)
