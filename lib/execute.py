"""One occurrence from claim to end: attempts, timeouts, retries, and the transaction that finishes the run.

An Execution never waits. The supervisor tells it what happened (output, exit, a moment reached) and it reacts:

    RUNNING --exit--> (ladder) --retry--> ENDING --nobody left--> WAITING --time--> RUNNING
       |                  `--over--> DONE
       `--deadline, stop, shutdown, dead owner--> ENDING --nobody left--> (ladder)
"""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum, auto
from pathlib import Path

from lib import messages
from lib.closing import write_closing
from lib.context import Context
from lib.errors import TickdownError
from lib.governor import is_spent, next_run
from lib.ladder import Finish, FollowUp, Outcome, Rerun, Retry, classify, judge, next_step
from lib.lock import Holder, TaskLock
from lib.model import ErrorClass, Facts, Occurrence, Run, Rung, RunStatus, Source
from lib.process import PIPE_BYTES, Child, boot_id
from lib.runlog import RunLog
from lib.runners import CannotRun, Command, own_variables, prepare, why_not_started
from lib.store import runs, tasks
from lib.task import Task
from lib.termination import Termination
from lib.times import duration_text

TIMEOUT_GRACE = 10.0
SHUTDOWN_GRACE = 30.0
LOOK_FOR_STOP_EVERY = 1.0
STOPPED_TEXT = "stopped"
KILLED_TEXT = "did not end in time and its supervisor hung"
SCHEDULER = Path(__file__).resolve().parent.parent / "scheduler.py"
_READ = 1 << 16
_ERROR_LENGTH = 300


class Phase(Enum):
    RUNNING = auto()
    ENDING = auto()
    WAITING = auto()
    DONE = auto()


class Execution:
    def __init__(
        self, context: Context, task: Task, lock: TaskLock, run_id: str, source: Source, scheduled_for: datetime,
        trace_id: str, *, retries_used: int = 0, echo: Callable[[bytes], None] | None = None,
    ) -> None:  # fmt: skip
        self.context, self.task, self.lock = context, task, lock
        self.run_id, self.source, self.scheduled_for, self.trace_id = run_id, source, scheduled_for, trace_id
        self.retries_used = retries_used
        self.interruptions = 0
        self.echo = echo
        self.phase = Phase.WAITING
        self.wake_at: float | None = None  # on the monotonic clock, like every time of a phase
        self.child: Child | None = None
        self.attempt = 1
        self.outcome: Outcome | None = None
        self._retry_at = self._retry_delay = 0.0
        self._background_output = False
        self._by_a_person = True
        self._last: Outcome | None = None
        self._why_ending: Outcome | None = None
        self._termination: Termination | None = None
        self._takeover_of: Run | None = None
        self._log: RunLog | None = None
        self._log_start = 0
        self._log_broken = False
        self.redactor = context.redactor.knowing(own_variables(task, context.settings.environment))
        self._redacted = self.redactor.stream()

    @property
    def done(self) -> bool:
        return self.phase is Phase.DONE

    # --- starting ----------------------------------------------------------------------------------------------

    def begin(self, rung: Rung, now: datetime, monotonic: float) -> None:
        """Start the attempt whose row is already written."""
        self._write_lock(now, monotonic, self.task.timeout.total_seconds())
        self._open_log(rung, now)
        try:
            self.child = self._start_child(now)
        except CannotRun as error:
            self._write_log(f"tickdown: {error}\n".encode())
            self._attempt_over(classify(error.exit_code, None, str(error)), now, monotonic)
            return
        self.phase = Phase.RUNNING
        self.wake_at = monotonic + self.task.timeout.total_seconds()
        self._write_lock(now, monotonic, self.task.timeout.total_seconds())
        self.context.log.info(
            "attempt_started", task_id=self.task.id, run_id=self.run_id, trace_id=self.trace_id, attempt=self.attempt,
            rung=rung, pid=self.child.pid,
        )  # fmt: skip

    def _start_child(self, now: datetime) -> Child:
        try:
            command = self._prepare(now)
        except (OSError, ValueError, RuntimeError) as error:  # whatever odd names of folders and programs can provoke
            raise CannotRun(f"can't be started: {error}") from None
        try:
            return Child(command.argv, command.cwd, command.environment)
        except OSError as error:
            raise why_not_started(error, command.argv) from None
        except ValueError as error:  # a NUL in an argument or a variable
            raise CannotRun(f"can't be started: {error}") from None

    def not_started(self, error: str, now: datetime) -> None:
        """The claim is there but its lock is not to be had: the occurrence gets its row, as failed."""
        self._finish(Outcome(RunStatus.FAILED, error_class=ErrorClass.ERROR, error=error), None, now)

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        """A bug met in this run: it ends as failed, and the others go on."""
        self.context.log.error(
            "run_broken", task_id=self.task.id, run_id=self.run_id, error=str(error), traceback=traceback.format_exc()
        )
        outcome = Outcome(
            RunStatus.FAILED, error_class=ErrorClass.ERROR, error=f"a bug: {type(error).__name__}: {error}"
        )
        if self.phase is Phase.ENDING:
            self._why_ending = self._why_ending or outcome  # its processes must still be seen to their end
        elif self.child is not None:
            self._start_ending(outcome, self._leader(), TIMEOUT_GRACE, monotonic)
        else:
            self._finish(outcome, None, now)

    def _prepare(self, now: datetime) -> Command:
        config = self.context.settings.config
        notify_to = self.task.notify_to or config.notify.default or ""
        variables = {
            "TICKDOWN_TASK_ID": self.task.id,
            "TICKDOWN_RUN_ID": self.run_id,
            "TICKDOWN_ATTEMPT": str(self.attempt),
            "TICKDOWN_TRACE_ID": self.trace_id,
            "TICKDOWN_SCHEDULED_FOR": self.scheduled_for.astimezone(self.task.zone).isoformat(timespec="seconds"),
            "TICKDOWN_NOTIFY_DEST": notify_to,
            "TICKDOWN_WORKSPACE": str(self.context.workspace.root),
            # So that a task can call `"$TICKDOWN_SCHEDULER" hint …` and means the same workspace.
            "TICKDOWN_HOME": str(self.context.workspace.root),
            "TICKDOWN_SCHEDULER": str(SCHEDULER),
            "TRACEPARENT": f"00-{self.trace_id}-{secrets.token_hex(8)}-01",
        }
        return prepare(
            self.task, self.context.workspace, config.cwd_policies, self.context.settings.environment, variables
        )

    def take_over(
        self, run: Run, leader: tuple[int, int] | None, why: Outcome, now: datetime, monotonic: float
    ) -> None:
        """Continue the run of a dead owner: end what it left running, then let the ladder decide."""
        self._takeover_of = run
        self.attempt = run.attempts
        self.interruptions = run.interruptions
        self._write_lock(now, monotonic, TIMEOUT_GRACE)
        self._log = None
        self._start_ending(why, leader, TIMEOUT_GRACE, monotonic)

    # --- what happens ------------------------------------------------------------------------------------------

    def on_output(self) -> None:
        """Read what is there, up to a pipe's worth: a task that never stops printing must not keep the others waiting."""
        assert self.child is not None
        for _ in range(PIPE_BYTES // _READ):
            try:
                data = os.read(self.child.output, _READ)
            except BlockingIOError:
                return
            if not data:
                self.child.output_open = False
                return
            self._write_log(self._redacted.feed(data))

    def on_exit(self, now: datetime, monotonic: float) -> None:
        """The command itself has ended. Children that it left in the background are not waited for."""
        assert self.child is not None
        self.child.exited = True
        self.on_output()
        if self.phase is Phase.ENDING:
            self.wake_at = monotonic  # look at once whether anybody is left
            return
        # What its background children write from here on is not this attempt's, so nothing can complete what is held.
        self._background_output, self.child.output_open = self.child.output_open, False
        self._write_log(self._redacted.flush())
        exit_code, signal = self.child.exit_status()
        outcome = classify(exit_code, signal)
        if outcome.status is not RunStatus.SUCCESS and outcome.error is not None:
            outcome = replace(outcome, error=self._with_last_line(outcome.error))
        self._attempt_over(outcome, now, monotonic)

    def on_time(self, now: datetime, monotonic: float) -> None:
        """The moment asked for by `wake_at` has come."""
        match self.phase:
            case Phase.RUNNING:
                self._start_ending(self._timeout_outcome(), self._leader(), TIMEOUT_GRACE, monotonic)
            case Phase.ENDING:
                assert self._termination is not None
                self.wake_at = self._termination.step(monotonic)
                if self.wake_at is None:
                    self._ending_done(now, monotonic)
            case Phase.WAITING:
                self._wait_or_retry(now, monotonic)
            case Phase.DONE:
                self.wake_at = None

    def cancel(self, why: str, now: datetime, monotonic: float, *, at_once: bool, by_a_person: bool) -> None:
        """End it, because a person or the system asked this process to stop."""
        if self.phase is Phase.DONE:
            return
        if self._takeover_of is not None:  # not ours yet: the next tick finds it as it was
            self._drop()
            return
        self._by_a_person = by_a_person
        outcome = Outcome(RunStatus.CANCELLED, error=why)
        if self.phase is Phase.WAITING:
            self._finish(outcome, None, now)
            return
        if self.phase is Phase.RUNNING:
            self._write_lock(now, monotonic, SHUTDOWN_GRACE)
            self._start_ending(outcome, self._leader(), 0.0 if at_once else SHUTDOWN_GRACE, monotonic)
        elif self._termination is not None:
            self._why_ending = (
                self._why_ending if self._why_ending and self._why_ending.status is RunStatus.TIMEOUT else outcome
            )
            if at_once:
                self._termination.hurry(monotonic)

    # --- ending ------------------------------------------------------------------------------------------------

    def _start_ending(
        self, why: Outcome | None, leader: tuple[int, int] | None, grace: float, monotonic: float
    ) -> None:
        self._why_ending = why
        self._background_output = False
        self._termination = Termination(self.run_id, leader, grace, monotonic)
        self.phase = Phase.ENDING
        self.wake_at = monotonic

    def _ending_done(self, now: datetime, monotonic: float) -> None:
        assert self._termination is not None
        why, survivors = self._why_ending, self._termination.survivors
        self._termination = None
        if survivors:
            blamed = why or self._last
            assert blamed is not None
            why = replace(blamed, error=f"{blamed.error}; could not be ended: pid {', '.join(map(str, survivors))}")
        if self._takeover_of is not None:
            assert why is not None
            self._taken_over(why, now, monotonic)
        elif survivors and why is not None:
            self._finish(why, None, now)
        elif why is None:  # the leftovers of an attempt that will be retried
            self._close_child()
            self.phase = Phase.WAITING
            self._retry_at = monotonic + self._retry_delay
            self.wake_at = monotonic
        else:
            if self.child is not None:
                self.on_output()
                exit_code, signal = self.child.exit_status()
                why = replace(why, exit_code=exit_code, signal=signal)
            self._attempt_over(why, now, monotonic)

    def _taken_over(self, why: Outcome, now: datetime, monotonic: float) -> None:
        run, self._takeover_of = self._takeover_of, None
        assert run is not None
        if not runs.interrupted(self.context.db, run, self.context.owner, self.attempt, why, now):
            self._drop()
            return
        self.interruptions += 1
        self.context.log.warning("run_taken_over", task_id=self.task.id, run_id=self.run_id, reason=why.error)
        self._attempt_over(why, now, monotonic)

    def _attempt_over(self, outcome: Outcome, now: datetime, monotonic: float) -> None:
        outcome = self._as_requested(outcome)
        facts = tasks.facts(self.context.db, self.task.id)
        step = next_step(self.task, outcome, self.retries_used, self.interruptions, now, self._next_regular(now, facts))
        match step:
            case Rerun():
                self._next_attempt(Rung.RERUN, now, monotonic)
            case Retry(delay=delay):
                runs.finish_attempt(self.context.db, self.run_id, self.attempt, outcome, self._span(), now)
                self._last = outcome
                self.retries_used += 1
                self._retry_delay = delay.total_seconds()
                if self.echo is not None and delay:
                    self.echo(f"tickdown: {outcome.error}; once more in {duration_text(delay)}\n".encode())
                self._write_lock(now, monotonic, TIMEOUT_GRACE + self._retry_delay)
                # No retry starts beside a process of the attempt before it.
                self._start_ending(None, self._leader(), TIMEOUT_GRACE, monotonic)
            case FollowUp(at=at):
                self._finish(outcome, at, now)
            case Finish(status=status):
                self._finish(replace(outcome, status=status), None, now)

    def _as_requested(self, outcome: Outcome) -> Outcome:
        """How it ended does not matter to whoever asked for the end: `stop`, or a tick that found this run stale."""
        match runs.requested_end(self.context.db, self.run_id):
            case RunStatus.CANCELLED:
                return replace(outcome, status=RunStatus.CANCELLED, error_class=None, error=STOPPED_TEXT)
            case RunStatus.KILLED if outcome.status is not RunStatus.CANCELLED:
                return replace(outcome, status=RunStatus.KILLED, error_class=ErrorClass.TIMEOUT, error=KILLED_TEXT)
        return outcome

    def _next_regular(self, now: datetime, facts: Facts | None) -> datetime | None:
        if self.source is Source.MANUAL:
            return now  # somebody is waiting: a late retry is not for a manual run
        if facts is None:
            return None
        ended = replace(facts, running=False, last_end=now, retry_at=None)
        return next_run(now, self.task, ended, boot_id()).at

    def _wait_or_retry(self, now: datetime, monotonic: float) -> None:
        """Short sleeps: while a retry is waited for there is no process that `stop` could end."""
        if monotonic >= self._retry_at:
            self._next_attempt(Rung.RETRY, now, monotonic)
        elif runs.requested_end(self.context.db, self.run_id) is not None:
            self._finish(self._as_requested(Outcome(RunStatus.FAILED)), None, now)
        else:
            self.wake_at = min(self._retry_at, monotonic + LOOK_FOR_STOP_EVERY)

    def _next_attempt(self, rung: Rung, now: datetime, monotonic: float) -> None:
        self._close_child()
        self.attempt += 1
        if not runs.start_attempt(self.context.db, self.run_id, self.attempt, rung, self.context.owner, now):
            self.attempt -= 1
            self._finish(self._as_requested(self._last or Outcome(RunStatus.CANCELLED)), None, now)
            return
        self.begin(rung, now, monotonic)

    def _finish(self, outcome: Outcome, retry_at: datetime | None, now: datetime) -> None:
        """The end of the run: its rows, the task's counters, alerts and tickets, all in one transaction."""
        self._write_log(self._redacted.flush())
        outcome = replace(outcome, error=self.redactor.text(outcome.error) if outcome.error else None)
        summary = self._log.summary() if self._log else ""
        db = self.context.db
        closing = None
        with db.transaction() as connection:
            facts = tasks.facts(db, self.task.id) or Facts(self.task.id, armed_at=now)
            by_a_person = self._by_a_person or self.source is Source.MANUAL
            verdict = None
            if retry_at is None:
                last = self.source is not Source.MANUAL and is_spent(self.task, facts)
                verdict = judge(self.task, facts, outcome, now, by_a_person=by_a_person, last_of_one_shot=last)
            ending = runs.Ending(
                self.run_id, self.task.id, self.attempt, outcome, self._span(), summary, self.source, verdict,
                retry_at=retry_at, retries_used=self.retries_used + 1,
            )  # fmt: skip
            if verdict is not None:
                since = facts.incident_since or verdict.incident_since
                ending = replace(
                    ending,
                    alerts=[messages.run_alert(self.task, verdict, outcome, self.run_id, summary, since)]
                    if verdict.alert
                    else [],
                    tickets=messages.run_tickets(self.task, verdict, outcome, self.run_id),
                    note="It succeeded again." if outcome.status is RunStatus.SUCCESS and facts.failures else None,
                )
                closing = verdict.closing
            recorded = runs.finish_run(connection, ending, now)
        self.outcome = outcome
        if closing is not None and recorded:
            write_closing(self.context, self.task, now)
        level = self.context.log.info if outcome.status is RunStatus.SUCCESS else self.context.log.warning
        level(
            "run_finished", task_id=self.task.id, run_id=self.run_id, trace_id=self.trace_id, status=outcome.status,
            exit_code=outcome.exit_code, attempts=self.attempt, error=outcome.error, recorded=recorded,
        )  # fmt: skip
        self._drop()

    def _drop(self) -> None:
        self._close_child()
        if self._log is not None:
            try:
                self._log.close()
            except OSError:
                pass  # a full disk; the run itself is recorded
            self._log = None
        self.lock.release()
        self.phase = Phase.DONE
        self.wake_at = None

    # --- small things ------------------------------------------------------------------------------------------

    def _leader(self) -> tuple[int, int] | None:
        return (self.child.pid, self.child.started) if self.child else None

    def _close_child(self) -> None:
        if self.child is not None:
            if self._background_output:
                self.child.leave_alone()
            self.child.close()
            self.child = None

    def _timeout_outcome(self) -> Outcome:
        limit = duration_text(self.task.timeout)
        return Outcome(RunStatus.TIMEOUT, error_class=ErrorClass.TIMEOUT, error=f"did not end within {limit}")

    def _write_lock(self, now: datetime, monotonic: float, seconds: float) -> None:
        holder = Holder(
            owner=self.context.owner,
            task_id=self.task.id,
            run_id=self.run_id,
            attempt=self.attempt,
            child=self._leader(),
            deadline=now + timedelta(seconds=seconds),
            deadline_monotonic=monotonic + seconds,
        )
        try:
            self.lock.write(holder)
        except OSError as error:  # a full disk: the lock itself holds, only its text is old
            self.context.log.error("lock_not_written", task_id=self.task.id, run_id=self.run_id, error=str(error))

    def _open_log(self, rung: Rung, now: datetime) -> None:
        self._redacted = self.redactor.stream()
        try:
            if self._log is None:
                self._log = RunLog(self.context.workspace.run_log(self.task.id, self.run_id), self.task.max_log)
            stamp = now.astimezone(self.task.zone).isoformat(timespec="seconds")
            self._log.header(f"attempt {self.attempt} ({rung}) {self.task.id} {stamp}")
            self._log_start = self._log.size
        except (OSError, TickdownError) as error:
            self._log_failed(error)

    def _write_log(self, data: bytes) -> None:
        if not data:
            return
        if self.echo is not None:
            self.echo(data)
        if self._log is not None and not self._log_broken:
            try:
                self._log.write(data)
            except OSError as error:
                self._log_failed(error)

    def _log_failed(self, error: Exception) -> None:
        """A full disk costs the log, not the run."""
        self._log_broken = True
        self.context.log.error("log_failed", task_id=self.task.id, run_id=self.run_id, error=str(error))

    def _span(self) -> tuple[int, int] | None:
        return (min(self._log_start, self._log.size), self._log.size) if self._log else None

    def _with_last_line(self, error: str) -> str:
        lines = self._log.summary().split("\n") if self._log else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{error}: {last[:_ERROR_LENGTH]}" if last else error


def new_trace_id() -> str:
    return secrets.token_hex(16)


def new_run(context: Context, task: Task, occurrence: Occurrence, now: datetime) -> runs.NewRun:
    run_id = runs.new_run_id(now)
    log = context.workspace.relative(context.workspace.run_log(occurrence.task_id, run_id))
    return runs.NewRun(run_id, occurrence, context.owner, new_trace_id(), log, task.group)
