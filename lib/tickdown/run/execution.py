"""One run from claim to end, as a state machine.

An Execution never waits. The loop tells it what happened (output, exit, a moment reached) and it reacts:

    RUNNING --exit--> (rungs) --another attempt--> ENDING --nobody left--> WAITING --its time--> RUNNING
       |                 `--over--> OVER --recorded--> DONE
       `--deadline, stop, shutdown, dead owner--> ENDING --nobody left--> (rungs)

What follows an attempt is asked of `run/rungs`, which answers with a value. Processes and output are in `attempt/attempt`, the
rows of the end in `run/recorder`.

If the database can't be used, a reaction is cut off and comes again later: so the database comes first, the phase last.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum, auto

from tickdown.alerts import messages
from tickdown.attempt.attempt import Attempt
from tickdown.attempt.command import CannotRun
from tickdown.base.errors import Lacking, TickdownError, remedy
from tickdown.base.model import ErrorClass, Lease, Run, Rung, RunStatus
from tickdown.base.records import replace
from tickdown.context.task_file import disable_in_file
from tickdown.failure.outcomes import Outcome, classify
from tickdown.processes.lock import Holder
from tickdown.processes.process import Child
from tickdown.run.live_run import LiveRun
from tickdown.run.recorder import End, Recorded, record_end
from tickdown.run.rungs import TIMEOUT_GRACE, Begin, GoOn, Next, NoBudget, Rungs, Skipped, Wait
from tickdown.store import outbox
from tickdown.time.instants import to_store

SHUTDOWN_GRACE = 30.0
LOOKING_TAKES = 300.0  # at the most: ending a healer, comparing and restoring


class Phase(Enum):
    RUNNING = auto()
    ENDING = auto()  # its processes are being ended
    WAITING = auto()  # for the next attempt
    OVER = auto()  # its end is to be recorded, together with others
    DONE = auto()


class Execution:
    phase = Phase.WAITING
    wake_at: float | None = None  # on the monotonic clock
    outcome: Outcome | None = None  # once it is on record
    recorded: Recorded | None = None  # None again if that was rolled back
    _end: End | None = None
    _why_ending: Outcome | None = None  # None: these are only the leftovers of an attempt that another follows
    _takeover_of: Run | None = None
    _is_taken = False  # over from a dead owner, on record
    _is_begun = True  # False: its attempt has a row, and the command is yet to be started
    _is_broken = False  # by a bug
    _is_lost = False  # to another process, and nothing more of it is ours to record

    def __init__(self, run: LiveRun) -> None:
        self.run, self.rungs = run, Rungs(run)
        self._current = Attempt(run.run_id, run.transcript)

    @property
    def child(self) -> Child | None:
        return self._current.child

    @property
    def done(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def is_ending(self) -> bool:
        return self.phase is Phase.OVER

    @property
    def slots_used(self) -> int:
        return int(self.phase not in (Phase.OVER, Phase.DONE))

    @property
    def renewed_lease(self) -> Lease | None:
        """None for what waits for its slot, and for what is being taken over."""
        return self.run.lease if self.run.holds_slot and self._takeover_of is None and not self._is_lost else None

    # --- starting ----------------------------------------------------------------------------------------------

    def begin(self, rung: Rung, now: datetime, monotonic: float) -> None:
        """Start the attempt whose row is already written, and say so."""
        self.start(rung, now, monotonic)
        self.announce()

    def start(self, rung: Rung, now: datetime, monotonic: float) -> None:
        """Apart from `announce`, so that several can be started before time is spent on telling of them."""
        run = self.run
        self.phase, self._is_begun = Phase.WAITING, False
        self._current = Attempt(run.run_id, run.transcript)
        self.rungs.step_on(rung, now, monotonic)
        # Before the command is started: should that hang, the next tick must know since when.
        self._write_lock(now, monotonic, self.rungs.limit(monotonic))
        stamp = now.astimezone(run.task.zone).isoformat(timespec="seconds")
        run.transcript.begin(f"attempt {run.attempt} ({rung}) {run.task.id} {stamp}")
        skipped = self.rungs.obey_plain_comments(now)
        if skipped is not None:
            self._follow(skipped, now, monotonic)
            return
        try:
            self._start_command(now)
        except CannotRun as error:
            self._attempt_over(self._not_run(error, now), now, monotonic)
            self._is_begun = True
            return
        self.phase, self._is_begun = Phase.RUNNING, True
        self.wake_at = monotonic + self.rungs.limit(monotonic)

    def announce(self) -> None:
        """Who is at work, in the lock and in the log."""
        run = self.run
        if self.phase is not Phase.RUNNING or self.child is None:
            return  # it could not be started
        self._name_child_in_lock()
        run.context.log.info(
            "attempt_started", task_id=run.task.id, run_id=run.run_id, trace_id=run.trace_id, attempt=run.attempt,
            rung=run.rung, source=run.source, scheduled_for=to_store(run.scheduled_for), pid=self.child.pid,
        )  # fmt: skip

    def _start_command(self, now: datetime) -> None:
        try:
            command = self.rungs.command(now)
        except (OSError, ValueError, RuntimeError, TickdownError) as error:
            # Whatever odd names of folders and programs can provoke, or a disk too full for a snapshot.
            raise CannotRun(f"can't be started: {error}", lacking=remedy(error) is not None) from None
        self._current.start(command)

    def _not_run(self, error: CannotRun, now: datetime) -> Outcome:
        self.run.transcript.note(str(error))
        if error.lacking:
            return self._lacking(str(error), now)
        outcome = classify(error.exit_code, None, str(error))
        if isinstance(error, NoBudget):
            return replace(outcome, exit_code=None, error_class=ErrorClass.BUDGET)
        return outcome

    def _lacking(self, error: str, now: datetime) -> Outcome:
        """What the machine lacks is everybody's trouble: told at once, and the task is not to blame."""
        error = self.run.redactor.text(error)
        outbox.add_alert_once_per(self.run.context.db, outbox.HOUR, messages.lacking_alert(error), now)
        return Outcome(RunStatus.FAILED, error_class=ErrorClass.TRANSIENT, error=error)

    def not_started(self, error: Exception, now: datetime, monotonic: float) -> None:
        """It is claimed, but its lock is not to be had: the occurrence gets its row, as failed. What the machine lacks for
        a while gives it another chance."""
        if isinstance(error, Lacking) or remedy(error):
            self._attempt_over(self._lacking(str(error), now), now, monotonic)
        else:
            self._finish(Outcome(RunStatus.FAILED, error_class=ErrorClass.ERROR, error=str(error)), now)

    def take_over(
        self, run: Run, leader: tuple[int, int] | None, why: Outcome, now: datetime, monotonic: float
    ) -> None:
        """Continue the run of a dead owner: end what it left running, then see what follows."""
        self._takeover_of = run
        self.run.attempt = run.attempts
        self.run.interruptions = run.interruptions
        self._write_lock(now, monotonic, TIMEOUT_GRACE)
        self._start_ending(why, leader, TIMEOUT_GRACE, monotonic)

    # --- what happens ------------------------------------------------------------------------------------------

    def on_output(self) -> None:
        self._current.read()

    def on_exit(self, now: datetime, monotonic: float) -> None:
        """The command itself has ended. Children that it left in the background are not waited for."""
        self._current.exited()
        if self.phase is Phase.ENDING:
            self.wake_at = monotonic  # look at once whether anybody is left
            return
        is_heal = self.run.rung is Rung.HEAL
        is_request = self.run.task.request is not None and not is_heal
        outcome = self._current.end_by_itself(now, self.run.task.zone, is_request=is_request)
        if is_heal:  # before its edits are looked at, nobody may be left who could go on editing
            self._write_lock(now, monotonic, LOOKING_TAKES)
            self._start_ending(outcome, self._current.leader, TIMEOUT_GRACE, monotonic)
        else:
            self._attempt_over(outcome, now, monotonic)

    def on_time(self, now: datetime, monotonic: float) -> None:
        """The moment asked for by `wake_at` has come."""
        match self.phase:
            case Phase.RUNNING if self._current.has_exited:
                self.on_exit(now, monotonic)  # what follows it was put off
            case Phase.RUNNING:
                if self.run.rung is Rung.HEAL:
                    self._write_lock(now, monotonic, LOOKING_TAKES)
                self._start_ending(self.rungs.timed_out(monotonic), self._current.leader, TIMEOUT_GRACE, monotonic)
            case Phase.ENDING:
                termination = self._current.termination
                assert termination is not None
                self.wake_at = termination.step(monotonic)
                if self.wake_at is None:
                    self._ending_done(termination.survivors, now, monotonic)
            case Phase.WAITING if self.rungs.cancelled is not None:
                self._finish(self.rungs.cancelled, now)
            case Phase.WAITING if not self._is_begun:
                self.begin(self.run.rung, now, monotonic)
            case Phase.WAITING:
                self._follow(self.rungs.go_on(now, monotonic), now, monotonic)
            case Phase.OVER | Phase.DONE:
                self.wake_at = None

    def cancel(self, why: str, now: datetime, monotonic: float, *, at_once: bool, by_a_person: bool) -> None:
        """End it, because a person or the system asked this process to stop."""
        if self.phase in (Phase.OVER, Phase.DONE):
            return
        if self._takeover_of is not None:  # not ours yet: the next tick finds it as it was
            self._drop()
            return
        self.run.by_a_person = by_a_person
        outcome = self.rungs.cancelled = Outcome(RunStatus.CANCELLED, error=why)
        if self.phase is Phase.RUNNING and self._current.has_exited:
            return  # it has ended by itself, which is to be recorded as soon as the database can be written
        if self.phase is Phase.WAITING:
            self._finish(outcome, now)
        elif self.phase is Phase.RUNNING:
            self._write_lock(now, monotonic, SHUTDOWN_GRACE)
            self._start_ending(outcome, self._current.leader, 0.0 if at_once else SHUTDOWN_GRACE, monotonic)
        elif self._current.termination is not None:
            if self._why_ending is None or self._why_ending.status is not RunStatus.TIMEOUT:
                self._why_ending = outcome
            if at_once:
                self._current.termination.hurry(monotonic)

    # --- what follows ------------------------------------------------------------------------------------------

    def _attempt_over(self, outcome: Outcome, now: datetime, monotonic: float) -> None:
        self._follow(self.rungs.attempt_over(self._current, outcome, now, monotonic), now, monotonic)

    def _follow(self, what: Next, now: datetime, monotonic: float) -> None:
        match what:
            case Begin(rung=rung):
                self._current.close()
                self.begin(rung, now, monotonic)
            case GoOn(pause=pause):  # but no attempt starts beside a process of the one before it
                self._write_lock(now, monotonic, TIMEOUT_GRACE + pause)
                self._start_ending(None, self._current.leader, TIMEOUT_GRACE, monotonic)
            case Wait(until=until):
                self._current.close()
                self._write_lock(now, monotonic, TIMEOUT_GRACE)  # it waits, it does not hang
                self.phase, self.wake_at = Phase.WAITING, until
            case Skipped(outcome=outcome):
                self.outcome = outcome
                self._drop()
            case End():
                self._end = what
                self.phase, self.wake_at = Phase.OVER, None

    def _finish(self, outcome: Outcome, now: datetime) -> None:
        """Whatever else could follow. Whoever turns the loop puts the end on record, together with others."""
        self._end = self.rungs.end(outcome, now)
        self.phase, self.wake_at = Phase.OVER, None

    def _start_ending(
        self, why: Outcome | None, leader: tuple[int, int] | None, grace: float, monotonic: float
    ) -> None:
        self._why_ending = why
        self._current.end_processes(leader, grace, monotonic)
        self.phase = Phase.ENDING
        self.wake_at = monotonic

    def _ending_done(self, survivors: Sequence[int], now: datetime, monotonic: float) -> None:
        """No process is left, or none that could be ended."""
        if self._is_lost:
            self._drop()
            return
        why = self._why_ending
        if survivors:
            blamed = why or self.rungs.last
            assert blamed is not None
            left = f"could not be ended: pid {', '.join(map(str, survivors))}"
            status = RunStatus.FAILED if blamed.status is RunStatus.SUCCESS else blamed.status
            why = replace(blamed, status=status, error="; ".join(filter(None, [blamed.error, left])))
        if self._takeover_of is not None:
            assert why is not None
            self._taken_over(self._takeover_of, why, now, monotonic)
        elif survivors and why is not None and self.run.rung is not Rung.HEAL:
            self._finish(why, now)
        elif why is None:
            self._current.close()
            self.rungs.nobody_left(monotonic)
            self.phase, self.wake_at = Phase.WAITING, monotonic
        else:
            self._attempt_over(self._current.ended_as(why), now, monotonic)

    def _taken_over(self, of: Run, why: Outcome, now: datetime, monotonic: float) -> None:
        from tickdown.heal import healer

        run = self.run
        if not self._is_taken:
            ended = self.rungs.take_over(of, why, now)
            if ended is None:
                self._drop()
                return
            self._is_taken, self._why_ending, why = True, ended, ended
            run.context.log.warning("run_taken_over", task_id=run.task.id, run_id=run.run_id, reason=why.error)
        healer.take_back_interrupted(run.context, run.run_id, now, run.redactor)
        self._takeover_of = None
        self._attempt_over(why, now, monotonic)

    # --- the end -----------------------------------------------------------------------------------------------

    def record_end(self) -> None:
        """In the transaction that is going on. Should that be rolled back, this is called again."""
        assert self._end is not None
        self.recorded = record_end(self.run, self._end)

    def let_go(self) -> None:
        """What follows once the end is on record: the file, the log, the lock."""
        assert self._end is not None and self.recorded is not None
        run, outcome = self.run, self.recorded.outcome
        self.outcome = outcome
        if self.recorded.closes:
            disable_in_file(run.context, run.task, self._end.at)
        level = run.context.log.info if outcome.status is RunStatus.SUCCESS else run.context.log.warning
        level(
            "run_finished", task_id=run.task.id, run_id=run.run_id, trace_id=run.trace_id, status=outcome.status,
            exit_code=outcome.exit_code, attempts=run.attempt, error=outcome.error,
        )  # fmt: skip
        self._drop()

    def _drop(self) -> None:
        self._current.close()
        self.rungs.let_others_heal()
        self.run.transcript.close()
        self.run.lock.release()
        self.phase, self.wake_at = Phase.DONE, None

    # --- trouble -----------------------------------------------------------------------------------------------

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        """A bug met in this run: it ends as failed, and the others go on."""
        if self._is_broken or self._is_lost or self.recorded is not None:
            self._drop()  # not even its end could be recorded; the next tick finds a run that nobody looks after
            return
        from traceback import format_exc

        self._is_broken = True
        self._log_error("run_broken", error, traceback=format_exc())
        text = f"a bug: {type(error).__name__}: {error}"
        outcome = Outcome(RunStatus.FAILED, error_class=ErrorClass.ERROR, error=text)
        if self.phase is Phase.ENDING and self.wake_at is not None:
            self._why_ending = self._why_ending or outcome  # its processes must still be seen to their end
        elif self.child is not None and self.phase is Phase.RUNNING:
            self._start_ending(outcome, self._current.leader, TIMEOUT_GRACE, monotonic)
        else:
            self._finish(outcome, now)

    def lose(self, monotonic: float) -> None:
        """Another process was right to take this run for dead, and has taken it over. What is left of it here is ended, so
        that it does not work beside its successor, and nothing of it is recorded."""
        run = self.run
        if self._is_lost or self.done:
            return
        self._is_lost, self._end = True, None
        run.context.log.warning("lease_lost", task_id=run.task.id, run_id=run.run_id, lease=run.lease.number)
        self._start_ending(None, self._current.leader, TIMEOUT_GRACE, monotonic)
        assert self._current.termination is not None
        self._current.termination.last_attempt = run.attempt

    def put_off(self, until: float) -> None:
        """The database could not be used. What was to follow is still to come: `on_time` finds where it was."""
        self.wake_at = until

    def give_up(self, error: Exception) -> None:
        """The database is damaged: how this run ended can only be told to the log."""
        end = self._end.outcome if self._end is not None else self.rungs.last
        self._log_error("end_not_recorded", error, status=end.status if end is not None else None)
        self._drop()

    def _log_error(self, event: str, error: Exception, **details: object) -> None:
        run = self.run
        run.context.log.error(event, task_id=run.task.id, run_id=run.run_id, error=str(error), **details)

    # --- the text of the lock ----------------------------------------------------------------------------------

    def _write_lock(self, now: datetime, monotonic: float, seconds: float) -> None:
        """For the next tick: who is at work, and by when this run is not to be taken for hung."""
        ends = max(monotonic + seconds, self.rungs.ends or 0.0)
        holder = Holder(
            owner=self.run.context.owner,
            task_id=self.run.task.id,
            run_id=self.run.run_id,
            attempt=self.run.attempt,
            child=self._current.leader,
            deadline=now + timedelta(seconds=seconds),
            deadline_monotonic=monotonic + seconds,
            ladder_deadline=now + timedelta(seconds=ends - monotonic),
        )
        try:
            self.run.lock.write(holder)
        except OSError as error:  # a full disk: the lock itself holds, only its text is old
            self._log_error("lock_not_written", error)

    def _name_child_in_lock(self) -> None:
        try:
            self.run.lock.name_child(self._current.leader)
        except OSError as error:
            self._log_error("lock_not_written", error)
