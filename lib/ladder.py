"""What follows an outcome: the next step of a run, and when it is over, what it means for the task.

Healing and the finer outcome classes are rungs to come; without a healer a failed task is retried if it asks for
that, counted, reported at the 1st and 3rd failure, and suspended at `suspend_after`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lib.model import FAILURES, AlertKind, DisabledReason, ErrorClass, Facts, NotifyOn, RunStatus, TicketKind
from lib.task import Task

# A retry further away than this is not waited for: it becomes a run of its own.
LONGEST_WAIT = timedelta(seconds=60)
REMIND_EVERY = timedelta(hours=24)
ESCALATE_AT = 3
MOST_SIGNATURES = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended."""

    status: RunStatus
    exit_code: int | None = None
    signal: int | None = None
    error_class: ErrorClass | None = None
    error: str | None = None


def classify(exit_code: int | None, signal: int | None, error: str | None = None) -> Outcome:
    """The outcome of a process that ended by itself."""
    if exit_code == 0:
        return Outcome(RunStatus.SUCCESS, 0)
    if signal is not None:
        return Outcome(RunStatus.FAILED, None, signal, ErrorClass.ERROR, error or f"ended by signal {signal}")
    if exit_code in (126, 127):
        meaning = "not executable" if exit_code == 126 else "command not found"
        return Outcome(
            RunStatus.FAILED, exit_code, None, ErrorClass.MISSING_TOOL, error or f"exit code {exit_code} ({meaning})"
        )
    return Outcome(RunStatus.FAILED, exit_code, None, ErrorClass.ERROR, error or f"exit code {exit_code}")


@dataclass(frozen=True, slots=True)
class Finish:
    status: RunStatus


@dataclass(frozen=True, slots=True)
class Retry:
    delay: timedelta


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The run ends as failed now, and a new run follows at this time."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Rerun:
    """Once more in the same occurrence, because the first try was interrupted from outside."""


Step = Finish | Retry | FollowUp | Rerun


def next_step(
    task: Task, outcome: Outcome, retries_used: int, interruptions: int, now: datetime, next_regular: datetime | None
) -> Step:
    """`retries_used` counts over the whole chain of follow-ups; `next_regular` is the coming scheduled occurrence."""
    if outcome.status is RunStatus.ORPHANED:
        if task.rerun_interrupted and interruptions <= 1:
            return Rerun()
        return Finish(RunStatus.ORPHANED)
    if outcome.status is not RunStatus.FAILED or retries_used >= task.retries:
        return Finish(outcome.status)
    if task.retry_delay <= LONGEST_WAIT:
        return Retry(task.retry_delay)
    at = now + task.retry_delay
    # A retry later than the next occurrence would never come up, and its failure never count: that one is the retry.
    return FollowUp(at) if next_regular is None or at < next_regular else Finish(outcome.status)


@dataclass(frozen=True, slots=True)
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


def judge(
    task: Task,
    facts: Facts,
    outcome: Outcome,
    now: datetime,
    *,
    by_a_person: bool = True,
    last_of_one_shot: bool = False,
) -> Verdict:
    """The effect of a run that is really over (not of one that a follow-up will decide). `by_a_person` tells a run that
    somebody cancelled from one that ended with its scheduler, as at a shutdown."""
    verdict = _judge(task, facts, outcome, now, by_a_person, may_suspend=task.enabled and not last_of_one_shot)
    if last_of_one_shot:
        done = outcome.status is RunStatus.SUCCESS
        verdict = replace(verdict, closing=DisabledReason.COMPLETED if done else DisabledReason.FAILED)
    return verdict


def _judge(
    task: Task, facts: Facts, outcome: Outcome, now: datetime, by_a_person: bool, *, may_suspend: bool
) -> Verdict:
    if outcome.status is RunStatus.SUCCESS:
        return _after_success(task, facts)
    if outcome.status in FAILURES:
        return _after_failure(task, facts, outcome, now, may_suspend)
    # Cancelled is a person's doing, orphaned the machine's: neither counts against the task.
    interrupted = outcome.status is RunStatus.ORPHANED or not by_a_person
    alert = AlertKind.INTERRUPTED if interrupted and task.notify_on is not NotifyOn.NEVER else None
    return Verdict(facts.failures, facts.incident, facts.incident_since, facts.incident_alerted_at, alert=alert)


def _after_success(task: Task, facts: Facts) -> Verdict:
    alert = None
    if facts.incident_alerted_at is not None and task.notify_on is not NotifyOn.NEVER:
        alert = AlertKind.RECOVERED
    elif task.notify_on in (NotifyOn.SUCCESS, NotifyOn.ALWAYS):
        alert = AlertKind.SUCCESS
    return Verdict(0, None, None, None, alert=alert)


def _after_failure(task: Task, facts: Facts, outcome: Outcome, now: datetime, may_suspend: bool) -> Verdict:
    failures = facts.failures + 1
    signature = error_signature(outcome)
    known = facts.incident.split(",") if facts.incident else []
    since = facts.incident_since if facts.incident and facts.incident_since else now
    tickets = [TicketKind.TIMEOUT] if outcome.status in (RunStatus.TIMEOUT, RunStatus.KILLED) else []
    suspend = failures >= task.suspend_after and may_suspend
    alert: AlertKind | None = None
    forced = False
    if suspend:
        alert, forced = AlertKind.SUSPENDED, True
        tickets.append(TicketKind.SUSPENDED)
    elif failures == ESCALATE_AT:
        alert, forced = AlertKind.STILL_FAILING, True
        tickets.append(TicketKind.FAILING)
    elif signature not in known:
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
    )


def _reminder_due(facts: Facts, now: datetime) -> bool:
    return facts.incident_alerted_at is None or now - facts.incident_alerted_at >= REMIND_EVERY


def error_signature(outcome: Outcome) -> str:
    """Equal for the same trouble on different days: numbers and the like do not count."""
    text = re.sub(r"0x[0-9a-fA-F]+|[0-9]+", "#", outcome.error or "")
    code = outcome.exit_code if outcome.exit_code is not None else f"signal {outcome.signal}"
    words = f"{outcome.status}|{outcome.error_class}|{code}|{text}"
    return hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:16]
