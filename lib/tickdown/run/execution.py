"""One run from claim to end: which attempts it makes, one after the other, and what is put on record of them.

An Execution never waits. The supervisor tells it what happened (output, exit, a moment reached) and it reacts:

    RUNNING --exit--> (ladder) --retry, heal--> ENDING --nobody left--> WAITING --time--> RUNNING
       |                  `--over--> OVER --recorded--> DONE
       `--deadline, stop, shutdown, dead owner--> ENDING --nobody left--> (ladder)

What an attempt is depends on its rung: the task itself, an agent that heals it, or one that reads comments on it. Its
process and output are in `attempt/attempt`; which step of the ladder comes next is decided in `failure/ladder`; what an end
means for the task, in `run/verdict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING

from tickdown.alerts import messages
from tickdown.attempt.attempt import Attempt
from tickdown.attempt.command import CannotRun, Command, prepare, run_variables
from tickdown.base.errors import Lacking, TickdownError, remedy
from tickdown.base.model import (
    Comment,
    ErrorClass,
    Facts,
    Lease,
    Run,
    Rung,
    RunStatus,
    SkipReason,
    Source,
)
from tickdown.base.records import replace
from tickdown.comments import reading
from tickdown.comments.meaning import Wish
from tickdown.context.budget import left_to_spend
from tickdown.context.task_file import disable_in_file
from tickdown.failure.ladder import (
    USUAL,
    AfterHeal,
    AskHuman,
    Circumstances,
    Finish,
    FollowUp,
    NoHeal,
    Progress,
    Rerun,
    Retry,
    Verify,
    after_heal,
    next_step,
    on_probation,
    total_time,
)
from tickdown.failure.outcomes import Outcome, classify, cleaned
from tickdown.governor.governor import next_run
from tickdown.processes.lock import Holder
from tickdown.processes.process import Child, boot_id
from tickdown.run.live_run import LiveRun, Used
from tickdown.run.recorder import End, Recorded, end_of, is_plain, record_end
from tickdown.store import outbox, runs, tasks
from tickdown.time.durations import duration_text
from tickdown.time.instants import to_store

if TYPE_CHECKING:
    from tickdown.heal.rung import Healing

TIMEOUT_GRACE = 10.0
SHUTDOWN_GRACE = 30.0
LOOK_FOR_STOP_EVERY = LOOK_FOR_SLOT_EVERY = 1.0
LOOKING_TAKES = 300.0  # at the most: ending a healer, comparing and restoring


class NoBudget(CannotRun):
    """An agent may not spend any more in this run."""


class Phase(Enum):
    RUNNING = auto()
    ENDING = auto()
    WAITING = auto()
    OVER = auto()  # its end is to be recorded, together with others
    DONE = auto()


class Execution:
    phase = Phase.WAITING
    wake_at: float | None = None  # on the monotonic clock, like every time of a phase
    outcome: Outcome | None = None
    recorded: Recorded | None = None  # its end, as it is on record; None again if that was rolled back
    _ladder_ends: float | None = None
    _next_rung = Rung.RETRY
    _next_at = _pause = 0.0
    _last: Outcome | None = None  # how the task itself last ended
    _why_ending: Outcome | None = None
    _takeover_of: Run | None = None
    _healing: Healing | None = None  # from the first heal on
    _hearing: reading.CommentReading | None = None
    _end: End | None = None
    _broken = False
    _is_begun = True  # False: its attempt has a row, and the command is yet to be started
    _is_taken = False  # over from a dead owner, on record
    _is_lost = False  # to another process, and nothing more of it is ours to record
    _cancelled: Outcome | None = None

    def __init__(self, run: LiveRun) -> None:
        self.run = run
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
        self.run.rung, self.phase, self._is_begun = rung, Phase.WAITING, False
        self._current = Attempt(self.run.run_id, self.run.transcript)
        if self.run.started_at is None:
            self.run.began_at, self.run.started_at = monotonic, now
        if self._ladder_ends is None:
            healing = self.run.context.settings.config.heal_timeout if self.run.no_heal(now) is None else None
            self._ladder_ends = monotonic + total_time(self.run.task, healing).total_seconds() + TIMEOUT_GRACE
        # Before the command is started: should that hang, the next tick must know since when.
        self._write_lock(now, monotonic, self._limit(monotonic))
        stamp = now.astimezone(self.run.task.zone).isoformat(timespec="seconds")
        self.run.transcript.begin(f"attempt {self.run.attempt} ({rung}) {self.run.task.id} {stamp}")
        if self._obey_plain_comments(now):
            return
        try:
            self._start_command(now)
        except CannotRun as error:
            self.run.transcript.note(str(error))
            outcome = classify(error.exit_code, None, str(error))
            if isinstance(error, NoBudget):
                outcome = replace(outcome, exit_code=None, error_class=ErrorClass.BUDGET)
            elif error.lacking:
                outcome = self._lacking(str(error), now)
            self._attempt_over(outcome, now, monotonic)
            self._is_begun = True
            return
        self.phase, self._is_begun = Phase.RUNNING, True
        self.wake_at = monotonic + self._limit(monotonic)

    def announce(self) -> None:
        """Who is at work, in the lock and in the log."""
        if self.phase is not Phase.RUNNING or self.child is None:
            return  # it could not be started
        self._name_child_in_lock()
        self.run.context.log.info(
            "attempt_started", task_id=self.run.task.id, run_id=self.run.run_id, trace_id=self.run.trace_id, attempt=self.run.attempt,
            rung=self.run.rung, source=self.run.source, scheduled_for=to_store(self.run.scheduled_for), pid=self.child.pid,
        )  # fmt: skip

    def _limit(self, monotonic: float) -> float:
        """How long the attempt that begins may take. The deadline of the ladder is over all of them."""
        own = self._own_limit().total_seconds()
        assert self._ladder_ends is not None
        if self.run.rung in (Rung.RUN, Rung.RERUN):
            return own
        return max(1.0, min(own, self._ladder_ends - monotonic))

    def _own_limit(self) -> timedelta:
        if self.run.rung is Rung.HEAL:
            return self.run.context.settings.config.heal_timeout
        return reading.ANSWER_WITHIN if self.run.rung is Rung.COMMENTS else self.run.task.timeout

    def _start_command(self, now: datetime) -> None:
        try:
            command = self._prepare(now)
        except (OSError, ValueError, RuntimeError, TickdownError) as error:
            # Whatever odd names of folders and programs can provoke, or a disk too full for a snapshot.
            raise CannotRun(f"can't be started: {error}", lacking=remedy(error) is not None) from None
        self._current.start(command)

    def _prepare(self, now: datetime) -> Command:
        place = self.run.context.place
        variables = run_variables(
            self.run.task, place, self.run.run_id, self.run.attempt, self.run.trace_id, self.run.scheduled_for
        )
        match self.run.rung:
            case Rung.HEAL:
                assert self._healing is not None and self._last is not None
                return self._healing.command(self._last, self.run.failed_span, variables, now)
            case Rung.COMMENTS:
                self._hearing = reading.CommentReading(
                    self.run.context, self.run.task, self.run.lease, self.run.redactor
                )
                return self._hearing.command(variables, now)
        budget = left_to_spend(self.run.context, self.run.task, self.run.run_id, now) if self.run.task.agent else None
        if budget is not None and budget <= 0:
            raise NoBudget("the budget is used up")
        command = prepare(self.run.task, place, variables, self.run.modification, budget)
        if command.stdin is None:
            return command
        return replace(command, stdin=self.run.redactor.text(command.stdin.decode("utf-8", "replace")).encode())

    def take_over(
        self, run: Run, leader: tuple[int, int] | None, why: Outcome, now: datetime, monotonic: float
    ) -> None:
        """Continue the run of a dead owner: end what it left running, then let the ladder decide."""
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
        is_request = self.run.task.request is not None and self.run.rung is not Rung.HEAL
        outcome = self._current.end_by_itself(now, self.run.task.zone, is_request=is_request)
        if self.run.rung is Rung.HEAL:  # before its edits are looked at, nobody may be left who could go on editing
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
                self._start_ending(self._timeout_outcome(monotonic), self._current.leader, TIMEOUT_GRACE, monotonic)
            case Phase.ENDING:
                termination = self._current.termination
                assert termination is not None
                self.wake_at = termination.step(monotonic)
                if self.wake_at is None:
                    self._ending_done(termination.survivors, now, monotonic)
            case Phase.WAITING if self._cancelled is not None:
                self._finish(self._cancelled, now)
            case Phase.WAITING if not self._is_begun:
                self.begin(self.run.rung, now, monotonic)
            case Phase.WAITING:
                self._wait_or_go_on(now, monotonic)
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
        outcome = self._cancelled = Outcome(RunStatus.CANCELLED, error=why)
        if self.phase is Phase.RUNNING and self._current.has_exited:
            return  # it has ended by itself, which is to be recorded as soon as the database can be written
        if self.phase is Phase.WAITING:
            self._finish(outcome, now)
            return
        if self.phase is Phase.RUNNING:
            self._write_lock(now, monotonic, SHUTDOWN_GRACE)
            self._start_ending(outcome, self._current.leader, 0.0 if at_once else SHUTDOWN_GRACE, monotonic)
        elif self._current.termination is not None:
            self._why_ending = (
                self._why_ending if self._why_ending and self._why_ending.status is RunStatus.TIMEOUT else outcome
            )
            if at_once:
                self._current.termination.hurry(monotonic)

    # --- trouble -----------------------------------------------------------------------------------------------

    def not_started(self, error: Exception, now: datetime, monotonic: float) -> None:
        """The claim is there but its lock is not to be had: the occurrence gets its row, as failed. What the machine lacks
        for a while gives it another chance."""
        if isinstance(error, Lacking) or remedy(error):
            self._attempt_over(self._lacking(str(error), now), now, monotonic)
        else:
            self._finish(Outcome(RunStatus.FAILED, error_class=ErrorClass.ERROR, error=str(error)), now)

    def _lacking(self, error: str, now: datetime) -> Outcome:
        """What the machine lacks is everybody's trouble: told at once, and the task is not to blame."""
        error = self.run.redactor.text(error)
        outbox.add_alert_once_per(self.run.context.db, outbox.HOUR, messages.lacking_alert(error), now)
        return Outcome(RunStatus.FAILED, error_class=ErrorClass.TRANSIENT, error=error)

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        """A bug met in this run: it ends as failed, and the others go on."""
        if self._broken or self._is_lost or self.recorded is not None:
            self._drop()  # not even its end could be recorded; the next tick finds it as a run without an owner's care
            return
        from traceback import format_exc

        self._broken = True
        self.run.context.log.error(
            "run_broken", task_id=self.run.task.id, run_id=self.run.run_id, error=str(error), traceback=format_exc()
        )
        outcome = Outcome(
            RunStatus.FAILED, error_class=ErrorClass.ERROR, error=f"a bug: {type(error).__name__}: {error}"
        )
        if self.phase is Phase.ENDING and self.wake_at is not None:
            self._why_ending = self._why_ending or outcome  # its processes must still be seen to their end
        elif self.child is not None and self.phase is Phase.RUNNING:
            self._start_ending(outcome, self._current.leader, TIMEOUT_GRACE, monotonic)
        else:
            self._finish(outcome, now)

    def lose(self, monotonic: float) -> None:
        """Another process was right to take this run for dead, and has taken it over. What is left of it here is ended, so
        that it does not work beside its successor, and nothing of it is recorded."""
        if self._is_lost or self.done:
            return
        self._is_lost, self._end = True, None
        self.run.context.log.warning(
            "lease_lost", task_id=self.run.task.id, run_id=self.run.run_id, lease=self.run.lease.number
        )
        self._start_ending(None, self._current.leader, TIMEOUT_GRACE, monotonic)
        assert self._current.termination is not None
        self._current.termination.last_attempt = self.run.attempt

    def put_off(self, until: float) -> None:
        """The database could not be used for what was to follow, so that is still to come: `on_time` finds where it was."""
        self.wake_at = until

    def give_up(self, error: Exception) -> None:
        """The database is damaged: how this run ended can only be told to the log."""
        end = self._end.outcome if self._end is not None else self._last
        self.run.context.log.error(
            "end_not_recorded", task_id=self.run.task.id, run_id=self.run.run_id, error=str(error),
            status=end.status if end is not None else None,
        )  # fmt: skip
        self._drop()

    # --- ending ------------------------------------------------------------------------------------------------

    def _start_ending(
        self, why: Outcome | None, leader: tuple[int, int] | None, grace: float, monotonic: float
    ) -> None:
        self._why_ending = why
        self._current.end_processes(leader, grace, monotonic)
        self.phase = Phase.ENDING
        self.wake_at = monotonic

    def _ending_done(self, survivors: Sequence[int], now: datetime, monotonic: float) -> None:
        """May be called again, if the database could not be used for what follows."""
        if self._is_lost:
            self._drop()
            return
        why = self._why_ending
        if survivors:
            blamed = why or self._last
            assert blamed is not None
            left = f"could not be ended: pid {', '.join(map(str, survivors))}"
            status = RunStatus.FAILED if blamed.status is RunStatus.SUCCESS else blamed.status
            why = replace(blamed, status=status, error="; ".join(filter(None, [blamed.error, left])))
        if self._takeover_of is not None:
            assert why is not None
            self._taken_over(why, now, monotonic)
        elif survivors and why is not None and self.run.rung is not Rung.HEAL:
            self._finish(why, now)
        elif why is None:  # the leftovers of an attempt that another follows
            self._current.close()
            self.phase = Phase.WAITING
            self._next_at = monotonic + self._pause
            self.wake_at = monotonic
        else:
            self._attempt_over(self._current.ended_as(why), now, monotonic)

    def _taken_over(self, why: Outcome, now: datetime, monotonic: float) -> None:
        from tickdown.heal import healer

        run = self._takeover_of
        assert run is not None
        if not self._is_taken:
            ended = self._ended_before(why, now)
            cut_off = ended is None
            lease = runs.interrupted(
                self.run.context.db, run, self.run.context.owner, self.run.attempt, why, now, cut_off=cut_off
            )
            if lease is None:
                self._drop()
                return
            self.run.lease, self._is_taken = lease, True
            self.run.interruptions += cut_off
            self._why_ending = why = ended or why
            self.run.context.log.warning(
                "run_taken_over", task_id=self.run.task.id, run_id=self.run.run_id, reason=why.error
            )
        healer.take_back_interrupted(self.run.context, self.run.run_id, now, self.run.redactor)
        self._takeover_of = None
        self._attempt_over(why, now, monotonic)

    def _ended_before(self, why: Outcome, now: datetime) -> Outcome | None:
        """How the last attempt had ended, if the owner died between it and the one that was to follow: then nothing was cut
        off, and what was to follow still does, a retry or the rerun of one that was cut off earlier."""
        last = runs.attempts_of(self.run.context.db, self.run.run_id)[-1]
        if why.status is not RunStatus.ORPHANED or last.rung in (Rung.HEAL, Rung.COMMENTS):
            return None
        outcome = runs.outcome_of(last)
        if outcome.status is RunStatus.ORPHANED:
            return outcome
        wanted = self.run.task.enabled or self.run.source is Source.MANUAL
        is_retried = wanted and isinstance(next_step(self.run.task, self._progress(now), outcome, now), Retry)
        return outcome if outcome.status is RunStatus.FAILED and is_retried else None

    # --- the ladder --------------------------------------------------------------------------------------------

    def _attempt_over(self, outcome: Outcome, now: datetime, monotonic: float) -> None:
        if not is_plain(self.run, outcome):  # otherwise it is asked when that is recorded
            outcome = self.run.as_requested(outcome)
        if self.run.rung is Rung.HEAL and self._healing is not None and self._healing.is_going_on:
            self._heal_over(self._healing, outcome, now, monotonic)
            return
        if self.run.rung is Rung.COMMENTS and outcome.status in (
            RunStatus.SUCCESS,
            RunStatus.FAILED,
            RunStatus.TIMEOUT,
        ):
            self._comments_over(outcome, now, monotonic)
            return
        self._prove_heal(outcome, now)
        progress = Progress() if outcome.status is RunStatus.SUCCESS else self._progress(now)
        self._apply(next_step(self.run.task, progress, outcome, now), outcome, now, monotonic)

    def _apply(self, step: AfterHeal, outcome: Outcome, now: datetime, monotonic: float) -> None:
        if self._cancelled is not None and not isinstance(step, (Finish, FollowUp, AskHuman)):
            self._finish(self._cancelled, now)  # nothing further is started
            return
        match step:
            case Rerun():
                self._next_attempt(self._opening(Rung.RERUN, now), now, monotonic)
            case Retry(delay=delay):
                self._go_on_with(Rung.RETRY, delay.total_seconds(), outcome, now, monotonic)
                self.run.used = replace(self.run.used, retries=self.run.used.retries + 1)
                if self.run.echo is not None and delay:
                    self.run.echo(f"tickdown: {outcome.error}; once more in {duration_text(delay)}\n".encode())
            case FollowUp(at=at):
                self._finish(outcome, now, retry_at=at, used=self.run.used.and_a_follow_up(outcome))
            case Finish(status=status, counted=counted, suspend=suspend):
                how = Circumstances(counted=counted, suspend=suspend)
                self._finish(outcome if outcome.status is status else replace(outcome, status=status), now, how)
            case Verify():
                self._go_on_with(Rung.VERIFY, 0.0, None, now, monotonic)
            case AskHuman():
                self._finish(outcome, now, Circumstances(needs_human=True))
            case _:  # a heal
                self._go_on_with(Rung.HEAL, 0.0, outcome, now, monotonic)

    def _go_on_with(self, rung: Rung, pause: float, ended: Outcome | None, now: datetime, monotonic: float) -> None:
        """Another attempt follows, but none starts beside a process of the one before it. `ended` is how the task ended in
        this one; None if that is recorded already."""
        if ended is not None and self.run.rung is not Rung.HEAL:
            self.run.failed_span = span = self.run.transcript.span
            self.run.failed_summary = self.run.transcript.summary()
            runs.finish_attempt(
                self.run.context.db, self.run.lease, self.run.attempt, cleaned(ended, self.run.redactor), span, now
            )
            self._last = ended
        self._next_rung, self._pause = rung, pause
        self._write_lock(now, monotonic, TIMEOUT_GRACE + pause)
        self._start_ending(None, self._current.leader, TIMEOUT_GRACE, monotonic)

    def _progress(self, now: datetime) -> Progress:
        facts = tasks.facts(self.run.context.db, self.run.task.id)
        return Progress(
            retries_used=self.run.used.retries,
            transient_retries_used=self.run.used.transient_retries,
            heals_used=self.run.used.heals,
            interruptions=self.run.interruptions,
            on_probation=facts is not None and on_probation(facts, now),
            no_heal=self.run.no_heal(now),
            next_regular=self._next_regular(now, facts),
        )

    def _next_regular(self, now: datetime, facts: Facts | None) -> datetime | None:
        if self.run.source is Source.MANUAL:
            return now  # somebody is waiting: a late retry is not for a manual run
        if facts is None:
            return None
        ended = replace(facts, running=False, last_end=now, retry_at=None)
        return next_run(now, self.run.task, ended, boot_id()).at

    def _wait_or_go_on(self, now: datetime, monotonic: float) -> None:
        """Short sleeps: while the next attempt is waited for there is no process that `stop` could end."""
        if runs.requested_end(self.run.context.db, self.run.run_id) is not None:
            self._finish(self.run.as_requested(self._last or Outcome(RunStatus.FAILED)), now)
        elif monotonic < self._next_at:
            self.wake_at = min(self._next_at, monotonic + LOOK_FOR_STOP_EVERY)
        elif self._next_rung is Rung.HEAL:
            self._start_heal(now, monotonic)
        else:
            self._next_attempt(self._next_rung, now, monotonic)

    def _next_attempt(self, rung: Rung, now: datetime, monotonic: float) -> None:
        self._current.close()
        if self.run.started_at is None and not self.run.holds_slot and not self._takes_slot(now):
            self.phase, self._next_rung = Phase.WAITING, rung
            self._next_at = self.wake_at = monotonic + LOOK_FOR_SLOT_EVERY
            return
        number = self.run.attempt + 1
        if runs.start_attempt(self.run.context.db, self.run.lease, number, rung, now):
            self.run.attempt = number
        else:
            self._finish(self.run.as_requested(self._last or Outcome(RunStatus.CANCELLED)), now)
            return
        self.begin(rung, now, monotonic)

    def _takes_slot(self, now: datetime) -> bool:
        self.run.holds_slot = runs.take_slot(
            self.run.context.db, self.run.lease, self.run.context.settings.config.max_concurrent, now
        )
        return self.run.holds_slot

    # --- healing -----------------------------------------------------------------------------------------------

    def _start_heal(self, now: datetime, monotonic: float) -> None:
        from tickdown.heal.rung import Healing, Start

        assert self._last is not None and self._ladder_ends is not None
        if self._healing is None:
            self._healing = Healing(
                self.run.context, self.run.lease, self.run.lock, self.run.redactor, self.run.transcript
            )
        started = self._healing.start(
            self.run.task, self.run.attempt + 1, self._last, self._ladder_ends - monotonic, now
        )
        match started:
            case Start.BEGUN:
                self.run.used = replace(self.run.used, heals=self.run.used.heals + 1)
                self.run.attempt += 1
                self.begin(Rung.HEAL, now, monotonic)
            case Start.LATER:
                self._write_lock(now, monotonic, TIMEOUT_GRACE)  # it waits, it does not hang
                self.wake_at = min(self._ladder_ends, monotonic + LOOK_FOR_STOP_EVERY)
            case Start.STOPPED:
                self._finish(self.run.as_requested(self._last), now)
            case NoHeal():
                self._go_on_unhealed(started, self.run.used.heals, now, monotonic)

    def _go_on_unhealed(self, why: NoHeal, heals_used: int, now: datetime, monotonic: float) -> None:
        assert self._last is not None
        self.run.transcript.note(f"not healed: {why}")
        progress = replace(self._progress(now), no_heal=why, heals_used=heals_used)
        self._apply(next_step(self.run.task, progress, self._last, now), self._last, now, monotonic)

    def _heal_over(self, healing: Healing, outcome: Outcome, now: datetime, monotonic: float) -> None:
        """May be called again, if the database could not be used for what follows."""
        assert self._last is not None
        result = healing.judge(self.run.attempt, outcome, self._current.answer(outcome.exit_code), now)
        if outcome.status in (RunStatus.CANCELLED, RunStatus.KILLED):
            self._finish(outcome, now)
            healing.settled()
            return
        self.run.use_edited_task()
        if not result.whole:  # somebody must look at it before anything else is tried
            self._apply(AskHuman(), self._last, now, monotonic)
        elif (why := healing.healer_trouble(outcome)) is not None:
            heals_used = self.run.used.heals - 1
            self._go_on_unhealed(why, heals_used, now, monotonic)
            self.run.used = replace(self.run.used, heals=heals_used)  # once that is done: it may be tried again
        else:
            step = after_heal(self.run.task, self._progress(now), self._last, result.row.verdict, result.edited, now)
            self._apply(step, self._last, now, monotonic)
        healing.settled()

    def _prove_heal(self, outcome: Outcome, now: datetime) -> None:
        if self._healing is None:
            return
        runs.must_hold(self.run.context.db.connection, self.run.lease)  # files may be put back here
        if self._healing.prove(outcome, now):
            self.run.use_edited_task()
        self.run.is_healed = self._healing.is_proven

    def _let_others_heal(self) -> None:
        if self._healing is not None:
            self._healing.end_turn()

    # --- comments ----------------------------------------------------------------------------------------------

    def _opening(self, rung: Rung, now: datetime) -> Rung:
        return Rung.COMMENTS if reading.need_an_agent(self.run.context, self.run.task, self.run.source, now) else rung

    def _obey_plain_comments(self, now: datetime) -> bool:
        """True if somebody does not want this run."""
        if self.run.rung not in (Rung.RUN, Rung.RERUN, Rung.COMMENTS) or self.run.source is Source.MANUAL:
            return False
        if self.run.uncommented and self.run.attempt == 1:
            return False
        read, wish = reading.plain_wish_for(self.run.context, self.run.task, now)
        if wish is None:
            return False
        if wish.starts:
            with self.run.context.db.transaction() as connection:
                reading.act_on(connection, self.run.task, read, wish, now)
            return False
        self._skip(read, wish, now)
        return True

    def _comments_over(self, outcome: Outcome, now: datetime, monotonic: float) -> None:
        hearing, span = self._hearing, self.run.transcript.span
        assert hearing is not None
        wish = hearing.wish_in(outcome, now)
        if wish is not None and not wish.starts:
            clean = cleaned(outcome, self.run.redactor)
            runs.finish_attempt(self.run.context.db, self.run.lease, self.run.attempt, clean, span, now, wish.action)
            self._skip(hearing.words, wish, now)
            return
        started = hearing.go_ahead(self.run.attempt, outcome, span, wish, now)
        self._current.close()
        if not started:
            self._finish(self.run.as_requested(outcome), now)
            return
        if wish is not None and wish.change is not None:
            self.run.modification = wish.change
        self.run.attempt += 1
        self._ladder_ends = None  # reading comments took none of the task's time
        self.begin(Rung.RUN, now, monotonic)

    def _skip(self, read: Sequence[Comment], wish: Wish, now: datetime) -> None:
        summary = self.run.redactor.text(self.run.transcript.summary())
        outcome = Outcome(RunStatus.SKIPPED, error=self.run.redactor.text(wish.reason) or None)
        ending = runs.Ending(
            self.run.lease,
            self.run.task.id,
            self.run.attempt,
            outcome,
            None,
            summary,
            self.run.source,
            reason=SkipReason.COMMENT,
        )
        reading.skip_run(self.run.context, self.run.task, ending, read, wish, now)
        self.outcome = outcome
        self._drop()

    # --- the end -----------------------------------------------------------------------------------------------

    def _finish(
        self,
        outcome: Outcome,
        now: datetime,
        how: Circumstances = USUAL,
        retry_at: datetime | None = None,
        used: Used | None = None,
    ) -> None:
        """The run is over; whoever turns the loop puts that on record, together with other ends."""
        self._prove_heal(outcome, now)
        self._let_others_heal()
        self.run.transcript.end()
        self._end = end_of(self.run, outcome, now, how, retry_at, used)
        self.phase = Phase.OVER
        self.wake_at = None

    def record_end(self) -> None:
        """In the transaction that is going on. Should that be rolled back, this is called again."""
        assert self._end is not None
        self.recorded = record_end(self.run, self._end)

    def let_go(self) -> None:
        """What follows once the end is on record: the file, the log, the lock."""
        assert self._end is not None and self.recorded is not None
        outcome = self.outcome = self.recorded.outcome
        if self.recorded.closes:
            disable_in_file(self.run.context, self.run.task, self._end.at)
        level = self.run.context.log.info if outcome.status is RunStatus.SUCCESS else self.run.context.log.warning
        level(
            "run_finished", task_id=self.run.task.id, run_id=self.run.run_id, trace_id=self.run.trace_id, status=outcome.status,
            exit_code=outcome.exit_code, attempts=self.run.attempt, error=outcome.error,
        )  # fmt: skip
        self._drop()

    def _drop(self) -> None:
        self._current.close()
        self._let_others_heal()
        self.run.transcript.close()
        self.run.lock.release()
        self.phase = Phase.DONE
        self.wake_at = None

    # --- small things ------------------------------------------------------------------------------------------

    def _timeout_outcome(self, monotonic: float) -> Outcome:
        text = f"did not end within {duration_text(self._own_limit())}"
        if (
            self.run.rung not in (Rung.RUN, Rung.RERUN)
            and self._ladder_ends is not None
            and monotonic >= self._ladder_ends
        ):
            text = "did not end before the deadline of the whole ladder"
        return Outcome(RunStatus.TIMEOUT, error_class=ErrorClass.TIMEOUT, error=text)

    def _write_lock(self, now: datetime, monotonic: float, seconds: float) -> None:
        ends = max(monotonic + seconds, self._ladder_ends or 0.0)
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
        except OSError as error:
            self._lock_not_written(error)

    def _name_child_in_lock(self) -> None:
        try:
            self.run.lock.name_child(self._current.leader)
        except OSError as error:
            self._lock_not_written(error)

    def _lock_not_written(self, error: OSError) -> None:
        """A full disk: the lock itself holds, only its text is old."""
        self.run.context.log.error(
            "lock_not_written", task_id=self.run.task.id, run_id=self.run.run_id, error=str(error)
        )
