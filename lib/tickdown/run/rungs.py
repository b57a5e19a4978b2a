"""What each attempt of a run is for, and what follows it: a retry, a heal, its proof, a rerun, or the end.

`failure/ladder` decides which step comes next. Here that step is taken as far as the database is concerned, and what is left
to do is returned as a value: the state machine in `run/execution` does it. So everything that needs the database comes first,
and can simply be asked again if the database could not be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tickdown.attempt.attempt import Attempt
from tickdown.attempt.command import CannotRun, Command, prepare, run_variables
from tickdown.base.model import Comment, ErrorClass, Facts, Run, Rung, RunStatus, SkipReason, Source
from tickdown.base.records import record, replace
from tickdown.comments import reading
from tickdown.comments.meaning import Wish
from tickdown.context.budget import left_to_spend
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
from tickdown.failure.outcomes import Outcome, cleaned
from tickdown.governor.governor import next_run
from tickdown.processes.process import boot_id
from tickdown.run.live_run import LiveRun, Used
from tickdown.run.recorder import End, end_of, is_plain
from tickdown.store import runs, tasks
from tickdown.time.durations import duration_text

if TYPE_CHECKING:
    from tickdown.heal.healer import Result
    from tickdown.heal.rung import Healing

TIMEOUT_GRACE = 10.0
LOOK_FOR_STOP_EVERY = LOOK_FOR_SLOT_EVERY = 1.0


class NoBudget(CannotRun):
    """An agent may not spend any more in this run."""


@record(frozen=True)
class Begin:
    """The row of the next attempt is written: start it."""

    rung: Rung


@record(frozen=True)
class GoOn:
    """Another attempt follows, once no process of this one is left, and after a pause."""

    rung: Rung
    pause: float = 0.0


@record(frozen=True)
class Wait:
    """The next attempt can't begin yet: ask again at this moment of the monotonic clock."""

    until: float


@record(frozen=True)
class Skipped:
    """Somebody does not want this run. That is on record already."""

    outcome: Outcome


Next = Begin | GoOn | Wait | Skipped | End


class Rungs:
    last: Outcome | None = None  # how the task itself last ended
    ends: float | None = None  # the deadline of the whole ladder, on the monotonic clock
    cancelled: Outcome | None = None  # from then on nothing further is started
    _next = GoOn(Rung.RETRY)
    _next_at = 0.0
    _healing: Healing | None = None  # from the first heal on
    _reading: reading.CommentReading | None = None

    def __init__(self, run: LiveRun) -> None:
        self.run = run

    # --- one attempt -------------------------------------------------------------------------------------------

    def step_on(self, rung: Rung, now: datetime, monotonic: float) -> None:
        """An attempt begins."""
        run = self.run
        run.rung = rung
        if run.started_at is None:
            run.began_at, run.started_at = monotonic, now
        if self.ends is None:
            healing = run.context.settings.config.heal_timeout if run.no_heal(now) is None else None
            self.ends = monotonic + total_time(run.task, healing).total_seconds() + TIMEOUT_GRACE

    def limit(self, monotonic: float) -> float:
        """How long the attempt that begins may take. All that follow the task's first try share the deadline of the ladder."""
        own = self._own_limit().total_seconds()
        assert self.ends is not None
        if self.run.rung in (Rung.RUN, Rung.RERUN):
            return own
        return max(1.0, min(own, self.ends - monotonic))

    def _own_limit(self) -> timedelta:
        if self.run.rung is Rung.HEAL:
            return self.run.context.settings.config.heal_timeout
        return reading.ANSWER_WITHIN if self.run.rung is Rung.COMMENTS else self.run.task.timeout

    def timed_out(self, monotonic: float) -> Outcome:
        text = f"did not end within {duration_text(self._own_limit())}"
        is_first = self.run.rung in (Rung.RUN, Rung.RERUN)
        if not is_first and self.ends is not None and monotonic >= self.ends:
            text = "did not end before the deadline of the whole ladder"
        return Outcome(RunStatus.TIMEOUT, error_class=ErrorClass.TIMEOUT, error=text)

    def command(self, now: datetime) -> Command:
        """What this attempt runs: the task, an agent that heals it, or one that reads comments on it."""
        run, context = self.run, self.run.context
        variables = run_variables(run.task, context.place, run.run_id, run.attempt, run.trace_id, run.scheduled_for)
        match run.rung:
            case Rung.HEAL:
                assert self._healing is not None and self.last is not None
                return self._healing.command(self.last, run.failed_span, variables, now)
            case Rung.COMMENTS:
                self._reading = reading.CommentReading(context, run.task, run.lease, run.redactor)
                return self._reading.command(variables, now)
        budget = left_to_spend(context, run.task, run.run_id, now) if run.task.agent else None
        if budget is not None and budget <= 0:
            raise NoBudget("the budget is used up")
        command = prepare(run.task, context.place, variables, run.modification, budget)
        if command.stdin is None:
            return command
        return replace(command, stdin=run.redactor.text(command.stdin.decode("utf-8", "replace")).encode())

    # --- what follows it ---------------------------------------------------------------------------------------

    def attempt_over(self, attempt: Attempt, outcome: Outcome, now: datetime, monotonic: float) -> Next:
        if not is_plain(self.run, outcome):  # otherwise it is asked when that is recorded
            outcome = self.run.as_requested(outcome)
        if self.run.rung is Rung.HEAL and self._healing is not None and self._healing.is_going_on:
            return self._heal_over(self._healing, attempt, outcome, now, monotonic)
        answered = outcome.status in (RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.TIMEOUT)
        if self.run.rung is Rung.COMMENTS and answered:
            return self._comments_over(outcome, now)
        self._prove_heal(outcome, now)
        progress = Progress() if outcome.status is RunStatus.SUCCESS else self._progress(now)
        return self._take(next_step(self.run.task, progress, outcome, now), outcome, now, monotonic)

    def _take(self, step: AfterHeal, outcome: Outcome, now: datetime, monotonic: float) -> Next:
        run = self.run
        if self.cancelled is not None and not isinstance(step, (Finish, FollowUp, AskHuman)):
            return self.end(self.cancelled, now)
        match step:
            case Rerun():
                words = reading.need_an_agent(run.context, run.task, run.source, now)
                return self._start(Rung.COMMENTS if words else Rung.RERUN, now, monotonic)
            case Retry(delay=delay):
                self._failed(outcome, now)
                run.used = replace(run.used, retries=run.used.retries + 1)
                if run.echo is not None and delay:
                    run.echo(f"tickdown: {outcome.error}; once more in {duration_text(delay)}\n".encode())
                return self._go_on(GoOn(Rung.RETRY, delay.total_seconds()))
            case FollowUp(at=at):
                return self.end(outcome, now, retry_at=at, used=run.used.and_a_follow_up(outcome))
            case Finish(status=status, counted=counted, suspend=suspend):
                how = Circumstances(counted=counted, suspend=suspend)
                return self.end(outcome if outcome.status is status else replace(outcome, status=status), now, how)
            case Verify():
                return self._go_on(GoOn(Rung.VERIFY))
            case AskHuman():
                return self.end(outcome, now, Circumstances(needs_human=True))
            case _:  # a heal
                self._failed(outcome, now)
                return self._go_on(GoOn(Rung.HEAL))

    def _failed(self, outcome: Outcome, now: datetime) -> None:
        """The attempt of the task is put on record, and kept for whoever heals it. That of a healer is on record by now."""
        run = self.run
        if run.rung is Rung.HEAL:
            return
        run.failed_span, run.failed_summary = run.transcript.span, run.transcript.summary()
        clean = cleaned(outcome, run.redactor)
        runs.finish_attempt(run.context.db, run.lease, run.attempt, clean, run.failed_span, now)
        self.last = outcome

    def _go_on(self, what: GoOn) -> GoOn:
        self._next = what
        return what

    def end(
        self,
        outcome: Outcome,
        now: datetime,
        how: Circumstances = USUAL,
        retry_at: datetime | None = None,
        used: Used | None = None,
    ) -> End:
        """No attempt follows. A heal that has not been proved by now is taken back."""
        self._prove_heal(outcome, now)
        self.let_others_heal()
        self.run.transcript.end()
        return end_of(self.run, outcome, now, how, retry_at, used)

    def _progress(self, now: datetime) -> Progress:
        run = self.run
        facts = tasks.facts(run.context.db, run.task.id)
        return Progress(
            retries_used=run.used.retries,
            transient_retries_used=run.used.transient_retries,
            heals_used=run.used.heals,
            interruptions=run.interruptions,
            on_probation=facts is not None and on_probation(facts, now),
            no_heal=run.no_heal(now),
            next_regular=self._next_regular(now, facts),
        )

    def _next_regular(self, now: datetime, facts: Facts | None) -> datetime | None:
        if self.run.source is Source.MANUAL:
            return now  # somebody is waiting: a late retry is not for a manual run
        if facts is None:
            return None
        ended = replace(facts, running=False, last_end=now, retry_at=None)
        return next_run(now, self.run.task, ended, boot_id()).at

    # --- the next attempt --------------------------------------------------------------------------------------

    def nobody_left(self, monotonic: float) -> None:
        """The processes of the last attempt are gone, and the pause before the next one begins."""
        self._next_at = monotonic + self._next.pause

    def go_on(self, now: datetime, monotonic: float) -> Next:
        """Short sleeps: while the next attempt is waited for there is no process that `stop` could end."""
        run = self.run
        if runs.requested_end(run.context.db, run.run_id) is not None:
            return self.end(run.as_requested(self.last or Outcome(RunStatus.FAILED)), now)
        if monotonic < self._next_at:
            return Wait(min(self._next_at, monotonic + LOOK_FOR_STOP_EVERY))
        if self._next.rung is Rung.HEAL:
            return self._start_heal(now, monotonic)
        return self._start(self._next.rung, now, monotonic)

    def _start(self, rung: Rung, now: datetime, monotonic: float) -> Next:
        run, db = self.run, self.run.context.db
        if run.started_at is None and not run.holds_slot:  # of an owner that died before it had started this run
            run.holds_slot = runs.take_slot(db, run.lease, run.context.settings.config.max_concurrent, now)
            if not run.holds_slot:
                self._next, self._next_at = GoOn(rung), monotonic + LOOK_FOR_SLOT_EVERY
                return Wait(self._next_at)
        if not runs.start_attempt(db, run.lease, run.attempt + 1, rung, now):
            return self.end(run.as_requested(self.last or Outcome(RunStatus.CANCELLED)), now)
        run.attempt += 1
        return Begin(rung)

    # --- a run whose owner died --------------------------------------------------------------------------------

    def take_over(self, of: Run, why: Outcome, now: datetime) -> Outcome | None:
        """Put on record that the run is ours now. How did its last attempt end? None if somebody else was faster."""
        run = self.run
        ended = self._ended_before(why, now)
        cut_off = ended is None
        lease = runs.interrupted(run.context.db, of, run.context.owner, run.attempt, why, now, cut_off=cut_off)
        if lease is None:
            return None
        run.lease = lease
        run.interruptions += cut_off
        return ended or why

    def _ended_before(self, why: Outcome, now: datetime) -> Outcome | None:
        """How the last attempt had ended, if the owner died between it and the one that was to follow. Then nothing was cut
        off, and what was to follow still does: a retry, or the rerun of one that was cut off earlier."""
        run = self.run
        last = runs.attempts_of(run.context.db, run.run_id)[-1]
        if why.status is not RunStatus.ORPHANED or last.rung in (Rung.HEAL, Rung.COMMENTS):
            return None
        outcome = runs.outcome_of(last)
        if outcome.status is RunStatus.ORPHANED:
            return outcome
        wanted = run.task.enabled or run.source is Source.MANUAL
        is_retried = wanted and isinstance(next_step(run.task, self._progress(now), outcome, now), Retry)
        return outcome if outcome.status is RunStatus.FAILED and is_retried else None

    # --- healing -----------------------------------------------------------------------------------------------

    def _start_heal(self, now: datetime, monotonic: float) -> Next:
        from tickdown.heal.rung import Healing, Start

        run = self.run
        assert self.last is not None and self.ends is not None
        if self._healing is None:
            self._healing = Healing(run.context, run.lease, run.lock, run.redactor, run.transcript)
        started = self._healing.start(run.task, run.attempt + 1, self.last, self.ends - monotonic, now)
        match started:
            case Start.BEGUN:
                run.used = replace(run.used, heals=run.used.heals + 1)
                run.attempt += 1
                return Begin(Rung.HEAL)
            case Start.LATER:
                return Wait(min(self.ends, monotonic + LOOK_FOR_STOP_EVERY))
            case Start.STOPPED:
                return self.end(run.as_requested(self.last), now)
            case NoHeal():
                return self._go_on_unhealed(started, run.used.heals, now, monotonic)

    def _go_on_unhealed(self, why: NoHeal, heals_used: int, now: datetime, monotonic: float) -> Next:
        assert self.last is not None
        self.run.transcript.note(f"not healed: {why}")
        progress = replace(self._progress(now), no_heal=why, heals_used=heals_used)
        return self._take(next_step(self.run.task, progress, self.last, now), self.last, now, monotonic)

    def _heal_over(self, healing: Healing, attempt: Attempt, outcome: Outcome, now: datetime, monotonic: float) -> Next:
        """The heal is settled only when what follows is on record: until then this may be asked again."""
        result = healing.judge(self.run.attempt, outcome, attempt.answer(outcome.exit_code), now)
        if outcome.status in (RunStatus.CANCELLED, RunStatus.KILLED):
            what: Next = self.end(outcome, now)
        else:
            what = self._after_heal(healing, result, outcome, now, monotonic)
        healing.settled()
        return what

    def _after_heal(self, healing: Healing, result: Result, outcome: Outcome, now: datetime, monotonic: float) -> Next:
        run, last = self.run, self.last
        assert last is not None
        run.use_edited_task()
        if not result.whole:  # somebody must look at it before anything else is tried
            return self._take(AskHuman(), last, now, monotonic)
        why = healing.healer_trouble(outcome)
        if why is None:
            step = after_heal(run.task, self._progress(now), last, result.row.verdict, result.edited, now)
            return self._take(step, last, now, monotonic)
        used = replace(run.used, heals=run.used.heals - 1)
        what = self._go_on_unhealed(why, used.heals, now, monotonic)
        run.used = used  # not before: this may be asked again
        return what

    def _prove_heal(self, outcome: Outcome, now: datetime) -> None:
        if self._healing is None:
            return
        runs.must_hold(self.run.context.db.connection, self.run.lease)  # files may be put back here
        if self._healing.prove(outcome, now):
            self.run.use_edited_task()
        self.run.is_healed = self._healing.is_proven

    def let_others_heal(self) -> None:
        if self._healing is not None:
            self._healing.end_turn()

    # --- comments ----------------------------------------------------------------------------------------------

    def obey_plain_comments(self, now: datetime) -> Skipped | None:
        """Before the task starts; not what somebody runs by hand, who knows what they want."""
        run = self.run
        if run.rung not in (Rung.RUN, Rung.RERUN, Rung.COMMENTS) or run.source is Source.MANUAL:
            return None
        if run.uncommented and run.attempt == 1:
            return None
        read, wish = reading.plain_wish_for(run.context, run.task, now)
        if wish is None:
            return None
        if not wish.starts:
            return self._skip(read, wish, now)
        with run.context.db.transaction() as connection:
            reading.act_on(connection, run.task, read, wish, now)
        return None

    def _comments_over(self, outcome: Outcome, now: datetime) -> Next:
        """The agent has read them: the task runs, perhaps modified, or does not."""
        run, comments, span = self.run, self._reading, self.run.transcript.span
        assert comments is not None
        wish = comments.wish_in(outcome, now)
        if wish is not None and not wish.starts:
            clean = cleaned(outcome, run.redactor)
            runs.finish_attempt(run.context.db, run.lease, run.attempt, clean, span, now, wish.action)
            return self._skip(comments.words, wish, now)
        if not comments.go_ahead(run.attempt, outcome, span, wish, now):
            return self.end(run.as_requested(outcome), now)
        if wish is not None and wish.change is not None:
            run.modification = wish.change
        run.attempt += 1
        self.ends = None  # reading comments took none of the task's time
        return Begin(Rung.RUN)

    def _skip(self, read: Sequence[Comment], wish: Wish, now: datetime) -> Skipped:
        run = self.run
        summary = run.redactor.text(run.transcript.summary())
        outcome = Outcome(RunStatus.SKIPPED, error=run.redactor.text(wish.reason) or None)
        ending = runs.Ending(
            run.lease, run.task.id, run.attempt, outcome, None, summary, run.source, reason=SkipReason.COMMENT
        )
        reading.skip_run(run.context, run.task, ending, read, wish, now)
        return Skipped(outcome)
