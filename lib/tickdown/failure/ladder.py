"""What follows an outcome: the next step of a run, and when it is over, what it means for the task.

The rungs: the attempt, its retries, up to two heals with a run after each, suspension. Without a healer a failed task is
counted, reported at the 1st and 3rd failure, and suspended at `suspend_after`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from tickdown.base.model import (
    FAILURES,
    AlertKind,
    DisabledReason,
    ErrorClass,
    Facts,
    HealVerdict,
    NotifyOn,
    Probation,
    RunStatus,
    TicketKind,
)
from tickdown.base.records import record, replace
from tickdown.failure.outcomes import Outcome
from tickdown.failure.signature import earlier_signature, error_signature
from tickdown.schedule.schedule import OneShot
from tickdown.tasks.task import Task

# A retry further away than this is not waited for: it becomes a run of its own.
LONGEST_WAIT = timedelta(seconds=60)
# Trouble that passes by itself: when to look again, if the other side does not say.
TRANSIENT_DELAYS = (timedelta(minutes=5), timedelta(minutes=15), timedelta(minutes=30))
MOST_HEALS = 2  # of one occurrence
MOST_HEALS_A_DAY = 3  # of one task
PROBATION_RUNS = 3
PROBATION_TIME = timedelta(hours=24)
REMIND_EVERY = timedelta(hours=24) - timedelta(minutes=10)  # a nightly run ends sooner one day than the other
ESCALATE_AT = 3
MOST_SIGNATURES = 20


class NoHeal(StrEnum):
    """Why the healer is not asked; the value is what people read."""

    OFF = "self-healing is off: no healer is configured"
    BY_TASK = "the task says self_heal: false"
    NOT_INSTALLED = "the healer is not installed"
    NOTHING_TO_EDIT = "there is nothing in it that a healer could edit"
    BY_HAND = "it was run by hand, without --heal"
    ASKED_A_HUMAN = "a ticket asks for a human"
    TASK_LIMIT = "this task has had its heals for today"
    ALL_LIMIT = "the heals of today are used up (heals_per_day)"
    NO_BUDGET = "the budget for agents is used up for today"
    NO_TIME = "there is no time left for it"
    NO_SNAPSHOT = "what it may touch could not be saved first"
    UNAVAILABLE = "the healer itself does not work"


@record(frozen=True)
class Finish:
    status: RunStatus
    counted: bool = True
    suspend: bool = False


@record(frozen=True)
class Retry:
    delay: timedelta


@record(frozen=True)
class FollowUp:
    """The run ends as failed now, and a new run follows at this time."""

    at: datetime


@record(frozen=True)
class Rerun:
    """Once more in the same occurrence, because the first try was interrupted from outside."""


@record(frozen=True)
class Heal:
    number: int


@record(frozen=True)
class Verify:
    """Run the task with what the healer made of it."""


@record(frozen=True)
class AskHuman:
    """The healer says that no edit helps here."""


Step = Finish | Retry | FollowUp | Rerun | Heal
AfterHeal = Step | Verify | AskHuman


@record(frozen=True)
class Progress:
    """How far up the ladder a run is."""

    # Over the whole chain of follow-ups, each kind apart: none uses up what the other is for, and both come to an end.
    retries_used: int = 0
    transient_retries_used: int = 0
    heals_used: int = 0
    interruptions: int = 0
    on_probation: bool = False
    no_heal: NoHeal | None = NoHeal.OFF  # None: the healer may be asked
    next_regular: datetime | None = None  # the coming scheduled occurrence


def next_step(task: Task, progress: Progress, outcome: Outcome, now: datetime) -> Step:
    if outcome.status is RunStatus.ORPHANED:
        again = task.rerun_interrupted and progress.interruptions <= 1
        return Rerun() if again else Finish(RunStatus.ORPHANED)
    if outcome.status is not RunStatus.FAILED:
        return Finish(outcome.status, suspend=progress.on_probation and outcome.status in FAILURES)
    if outcome.error_class is ErrorClass.TRANSIENT:
        return _when_it_has_passed(progress, outcome, now)
    repeatable = outcome.error_class in (ErrorClass.ERROR, ErrorClass.MISSING_TOOL)
    if repeatable and progress.retries_used < task.retries and not progress.heals_used:
        if task.retry_delay <= LONGEST_WAIT:
            return Retry(task.retry_delay)
        at = now + task.retry_delay
        # A retry later than the next occurrence would never come up, and its failure never count: that one is the retry.
        if progress.next_regular is None or at < progress.next_regular:
            return FollowUp(at)
    if progress.on_probation:
        return Finish(RunStatus.FAILED, suspend=True)
    if outcome.error_class is ErrorClass.ERROR:
        if progress.no_heal is None and progress.heals_used < MOST_HEALS:
            return Heal(progress.heals_used + 1)
        return Finish(RunStatus.FAILED, suspend=progress.heals_used > 0)  # healing was tried, and did not help
    return Finish(RunStatus.FAILED)


def _when_it_has_passed(progress: Progress, outcome: Outcome, now: datetime) -> Step:
    used = progress.transient_retries_used
    if used < len(TRANSIENT_DELAYS):
        at = outcome.reset_at or now + TRANSIENT_DELAYS[used]
        if progress.next_regular is None or at < progress.next_regular:
            return FollowUp(at)
    return Finish(RunStatus.FAILED, counted=False)


def after_heal(
    task: Task, progress: Progress, failed: Outcome, verdict: HealVerdict | None, edited: bool, now: datetime
) -> AfterHeal:
    """`failed` is what the heal was to cure; `edited`, whether the healer ended well and kept to the rules. What it did
    not do well is undone by now."""
    if verdict is HealVerdict.NEEDS_HUMAN:
        return AskHuman()
    if edited and verdict is not HealVerdict.GAVE_UP:
        return Verify()
    return next_step(task, progress, failed, now)


def total_time(task: Task, heal_timeout: timedelta | None) -> timedelta:
    """What the whole ladder of one occurrence may take: the attempts and their pauses, then both heals with a run each."""
    waited = task.retry_delay if task.retry_delay <= LONGEST_WAIT else timedelta(0)
    total = task.timeout + task.retries * (task.timeout + waited)
    return total if heal_timeout is None else total + MOST_HEALS * (heal_timeout + task.timeout)


@record(frozen=True)
class Verdict:
    """What a finished run means for its task: new counters, and who is to be told what."""

    failures: int
    incident: str | None
    incident_since: datetime | None
    incident_alerted_at: datetime | None
    alert: AlertKind | None = None
    forced: bool = False
    tickets: tuple[TicketKind, ...] = ()
    closing: DisabledReason | None = None  # it does not run again, and its file is to say why
    probation: Probation | None = None
    suspended: bool = False  # before, and still: a success by hand lets no tick start it


@record(frozen=True)
class Circumstances:
    """What else is known about the end of a run."""

    by_a_person: bool = True  # tells a run that somebody cancelled from one that ended with its scheduler
    last_of_one_shot: bool = False
    counted: bool = True
    suspend: bool = False
    needs_human: bool = False
    healed_in: str | None = None  # the run, if a heal was what made it succeed


USUAL = Circumstances()


def is_unremarkable(task: Task, outcome: Outcome) -> bool:
    """A success that nobody is to be told of, of a task with more to come: it changes nothing for one without a past, be it
    failures, an incident or a heal on probation."""
    told = task.notify_on in (NotifyOn.SUCCESS, NotifyOn.ALWAYS)
    return outcome.status is RunStatus.SUCCESS and not told and not isinstance(task.schedule, OneShot)


def judge(task: Task, facts: Facts, outcome: Outcome, now: datetime, how: Circumstances = USUAL) -> Verdict:
    """The effect of a run that is really over (not of one that a follow-up will decide)."""
    verdict = _judge(task, facts, outcome, now, how)
    if how.last_of_one_shot:
        done = outcome.status is RunStatus.SUCCESS
        verdict = replace(verdict, closing=DisabledReason.COMPLETED if done else DisabledReason.FAILED)
    return verdict


def _judge(task: Task, facts: Facts, outcome: Outcome, now: datetime, how: Circumstances) -> Verdict:
    if outcome.status is RunStatus.SUCCESS:
        return _after_success(task, facts, now, how)
    if outcome.status in FAILURES:
        return _after_failure(task, facts, outcome, now, how)
    # Cancelled is a person's doing, orphaned the machine's: neither counts against the task.
    interrupted = outcome.status is RunStatus.ORPHANED or not how.by_a_person
    alert = AlertKind.INTERRUPTED if interrupted and task.notify_on is not NotifyOn.NEVER else None
    return replace(_unchanged(facts), alert=alert)


def _unchanged(facts: Facts) -> Verdict:
    return Verdict(
        facts.failures, facts.incident, facts.incident_since, facts.incident_alerted_at, probation=facts.probation
    )


def _after_success(task: Task, facts: Facts, now: datetime, how: Circumstances) -> Verdict:
    alert = None
    if how.healed_in is not None and task.notify_on is not NotifyOn.NEVER:
        alert = AlertKind.HEALED
    elif facts.incident_alerted_at is not None and task.notify_on is not NotifyOn.NEVER:
        alert = AlertKind.RECOVERED
    elif task.notify_on in (NotifyOn.SUCCESS, NotifyOn.ALWAYS):
        alert = AlertKind.SUCCESS
    probation = _probation_after_success(facts, now, how)
    return Verdict(0, None, None, None, alert=alert, probation=probation, suspended=_is_suspended(task, facts))


def _is_suspended(task: Task, facts: Facts) -> bool:
    by_its_file = task.disabled_reason if not task.enabled else None
    return (facts.closing or by_its_file) is DisabledReason.AUTO_SUSPENDED


def _probation_after_success(facts: Facts, now: datetime, how: Circumstances) -> Probation | None:
    if how.healed_in is not None:
        return Probation(how.healed_in, PROBATION_RUNS, now + PROBATION_TIME)
    current = facts.probation
    if current is None or not on_probation(facts, now) or current.left <= 1:
        return None
    return replace(current, left=current.left - 1)


def on_probation(facts: Facts, now: datetime) -> bool:
    return facts.probation is not None and now < facts.probation.until


def _after_failure(task: Task, facts: Facts, outcome: Outcome, now: datetime, how: Circumstances) -> Verdict:
    failures = facts.failures + how.counted
    signature = error_signature(outcome)
    known = facts.incident.split(",") if facts.incident else []
    is_told = bool(known) and (signature in known or earlier_signature(outcome) in known)
    since = facts.incident_since if facts.incident and facts.incident_since else now
    tickets = [TicketKind.TIMEOUT] if outcome.status in (RunStatus.TIMEOUT, RunStatus.KILLED) else []
    # One that is paused does not run by itself anyway; but that a heal did not last is more than a pause.
    is_paused = not task.enabled and task.disabled_reason is DisabledReason.PAUSED
    too_often = how.counted and failures >= task.suspend_after
    suspend = (task.enabled and too_often) or (how.suspend and (task.enabled or is_paused))
    suspend = suspend and not how.last_of_one_shot
    alert: AlertKind | None = None
    forced = False
    if suspend:
        alert, forced = AlertKind.SUSPENDED, True
        tickets.append(TicketKind.SUSPENDED)
    elif how.needs_human:
        alert, forced = AlertKind.NEEDS_HUMAN, True
        tickets.append(TicketKind.NEEDS_HUMAN)
    elif how.counted and failures == ESCALATE_AT:
        alert, forced = AlertKind.STILL_FAILING, True
        tickets.append(TicketKind.FAILING)
    elif not is_told:
        alert = AlertKind.FAILED
    elif task.notify_on is NotifyOn.ALWAYS or _reminder_due(facts, now):
        alert = AlertKind.REMINDER
    if task.notify_on is NotifyOn.NEVER or (task.notify_on is NotifyOn.SUCCESS and not forced):
        alert = None
    return Verdict(
        failures=failures,
        incident=",".join(known if signature in known else [*known, signature][-MOST_SIGNATURES:]),
        incident_since=since,
        incident_alerted_at=now if alert else facts.incident_alerted_at,
        alert=alert,
        forced=forced,
        tickets=tuple(tickets),
        closing=DisabledReason.AUTO_SUSPENDED if suspend else None,
        probation=None if suspend else facts.probation,
    )


def _reminder_due(facts: Facts, now: datetime) -> bool:
    # Also if that was by a clock that has been set back by days since.
    return facts.incident_alerted_at is None or abs(now - facts.incident_alerted_at) >= REMIND_EVERY
