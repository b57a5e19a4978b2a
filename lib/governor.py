"""When a task runs next and why; whether a due occurrence starts, and if not, why not. No clock, no disk."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from lib.model import CatchUp, DisabledReason, Facts, Occurrence, SkipReason, Source, TaskState
from lib.schedule import (
    Cron,
    Interval,
    Manual,
    Reboot,
    Schedule,
    count_occurrences,
    latest_occurrences,
    next_after,
)
from lib.task import Task

# Cron comes once a minute; one beat may be lost before an occurrence counts as late.
ON_TIME = timedelta(minutes=2)
# A start that jitter puts off is waited for inside the tick up to here, then left to a later tick.
LOOK_AHEAD = timedelta(seconds=60)
MOST_CATCH_UPS = 24
UNSPREAD_CATCH_UPS = 3
SPREAD = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Unrun:
    """Occurrences that were not run: one row in history."""

    first: datetime
    last: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about one task now: start these in order, write off those, or skip and say why."""

    starts: tuple[Occurrence, ...] = ()
    missed: Unrun | None = None
    skipped: Unrun | None = None
    reason: SkipReason | None = None
    source: Source = Source.BASELINE_CRON


@dataclass(frozen=True, slots=True)
class NextRun:
    at: datetime | None
    source: Source | None


NOTHING = Plan(reason=SkipReason.NOT_DUE)


def plan(now: datetime, task: Task, facts: Facts, boot_id: str) -> Plan:
    if not task.enabled or facts.suspend_pending:
        return Plan(reason=SkipReason.DISABLED)
    if isinstance(task.schedule, Manual):
        return Plan(reason=SkipReason.MANUAL_ONLY)
    pending = pending_occurrences(now, task.id, task.schedule, task.jitter, facts, boot_id)
    if pending is None:
        return _follow_up(now, task, facts)
    if facts.paused_until is not None and facts.paused_until > now:
        return Plan(skipped=pending.all, reason=SkipReason.PAUSED, source=pending.source)
    if facts.running:
        # An interval counts from the end, and catch_up: all takes every occurrence in its turn: both just wait.
        if isinstance(task.schedule, Cron) and task.catch_up is not CatchUp.ALL:
            return Plan(skipped=pending.all, reason=SkipReason.ALREADY_RUNNING, source=pending.source)
        return NOTHING
    return _starts(now, task, facts, pending, boot_id)


@dataclass(frozen=True, slots=True)
class Pending:
    all: Unrun
    latest: tuple[datetime, ...]
    source: Source


def pending_occurrences(
    now: datetime, task_id: str, schedule: Schedule, jitter: timedelta | None, facts: Facts, boot_id: str
) -> Pending | None:
    """The occurrences since the last one taken up whose time to start has come."""
    match schedule:
        case Manual():
            return None
        case Reboot():
            due = [now] if boot_id != facts.boot_id and not facts.running else []
            count, source = len(due), Source.REBOOT
        case Interval(every=every):
            at = facts.last_end + every if facts.last_end else facts.armed_at
            due = [] if facts.running or at > now else [at]
            count, source = len(due), Source.BASELINE_INTERVAL
        case Cron():
            since = max(facts.armed_at, facts.last_occurrence or facts.armed_at)
            if next_after(schedule, since) > now:
                return None
            due = latest_occurrences(schedule, since, now, MOST_CATCH_UPS + 1)
            count, source = count_occurrences(schedule, since, now), Source.BASELINE_CRON
    while due and start_time(task_id, due[-1], jitter) > now + LOOK_AHEAD:
        due.pop()
        count -= 1
    if not due:
        return None
    first = next_after(schedule, since) if isinstance(schedule, Cron) else due[0]
    return Pending(Unrun(first, due[-1], count), tuple(due[-MOST_CATCH_UPS:]), source)


def _starts(now: datetime, task: Task, facts: Facts, pending: Pending, boot_id: str) -> Plan:
    kept = list(pending.latest) if task.catch_up is CatchUp.ALL else [pending.latest[-1]]

    def late(at: datetime) -> bool:
        waited_for_a_slot = facts.deferred == at
        return not waited_for_a_slot and now - start_time(task.id, at, task.jitter) > ON_TIME

    if isinstance(task.schedule, Cron):
        if task.catch_up is CatchUp.SKIP:
            kept = [at for at in kept if not late(at)]
        if task.grace is not None:
            oldest = now - task.grace
            kept = [at for at in kept if at >= oldest or not late(at)]
    starts = []
    for at in kept:
        is_late = isinstance(task.schedule, Cron) and late(at)
        starts.append(
            Occurrence(
                task_id=task.id,
                at=at,
                source=Source.CATCH_UP if is_late else pending.source,
                key=f"{task.id}@boot-{boot_id}" if isinstance(task.schedule, Reboot) else occurrence_key(task.id, at),
                start_at=start_time(task.id, at, task.jitter),
            )
        )
    missed_count = pending.all.count - len(starts)
    if missed_count == 0:
        return Plan(tuple(starts))
    last = pending.all.last if not starts else _last_before(task.schedule, pending, starts[0].at)
    return Plan(tuple(starts), missed=Unrun(pending.all.first, last, missed_count), source=pending.source)


def _last_before(schedule: Schedule, pending: Pending, at: datetime) -> datetime:
    earlier = [moment for moment in pending.latest if moment < at]
    if earlier:
        return earlier[-1]
    assert isinstance(schedule, Cron)
    just_before = at - timedelta(seconds=1)
    return latest_occurrences(schedule, pending.all.first - timedelta(seconds=1), just_before, 1)[-1]


def _follow_up(now: datetime, task: Task, facts: Facts) -> Plan:
    """The retry of a run that ended a while ago, if nothing regular is due."""
    if facts.retry_at is None or facts.retry_at > now or facts.running or facts.retry_follows is None:
        return NOTHING
    if facts.paused_until is not None and facts.paused_until > now:
        return NOTHING
    key = f"{task.id}@{facts.retry_follows}+retry"
    return Plan((Occurrence(task.id, facts.retry_at, Source.RETRY, key, facts.retry_at, facts.retry_follows),))


def occurrence_key(task_id: str, at: datetime) -> str:
    moment = at.astimezone(UTC)
    return f"{task_id}@{moment.isoformat(timespec='milliseconds' if moment.microsecond else 'seconds')[:-6]}Z"


def start_time(task_id: str, at: datetime, jitter: timedelta | None) -> datetime:
    """`jitter` puts each start off by a share of it that depends on id and occurrence alone."""
    if not jitter:
        return at
    share = zlib.crc32(occurrence_key(task_id.lower(), at).encode()) / 2**32
    return at + jitter * share


def spread_catch_ups(starts: Iterable[Occurrence], now: datetime) -> list[Occurrence]:
    """After an outage, more than a few late starts come one after another within half a minute, not all at once."""
    ordered = sorted(starts, key=lambda start: (start.at, start.task_id))
    late = [start.key for start in ordered if start.source is Source.CATCH_UP]
    if len(late) <= UNSPREAD_CATCH_UPS:
        return ordered
    delay = {key: SPREAD * index / len(late) for index, key in enumerate(late)}
    return [
        replace(start, start_at=max(start.start_at, now + delay[start.key])) if start.key in delay else start
        for start in ordered
    ]


def next_run(now: datetime, task: Task, facts: Facts | None, boot_id: str) -> NextRun:
    """When the task comes up next, as far as its state tells."""
    if not task.enabled or isinstance(task.schedule, Manual) or (facts is not None and facts.suspend_pending):
        return NextRun(None, Source.MANUAL if isinstance(task.schedule, Manual) else None)
    facts = facts or Facts(task.id, armed_at=now, boot_id=boot_id)
    if facts.paused_until is not None and facts.paused_until > now:
        after_pause = _next_regular(facts.paused_until, task, facts)
        return NextRun(
            after_pause.at if after_pause.at is None else max(after_pause.at, facts.paused_until), Source.PAUSED
        )
    due = plan(now, task, facts, boot_id).starts
    if due:
        return NextRun(max(now, due[0].start_at), due[0].source)
    regular = _next_regular(now, task, facts)
    if facts.retry_at is not None and (regular.at is None or facts.retry_at < regular.at):
        return NextRun(max(now, facts.retry_at), Source.RETRY)
    return regular


def _next_regular(now: datetime, task: Task, facts: Facts) -> NextRun:
    match task.schedule:
        case Cron():
            at = next_after(task.schedule, max(now, facts.last_occurrence or now))
            return NextRun(start_time(task.id, at, task.jitter), Source.BASELINE_CRON)
        case Interval(every=every):
            if facts.running:
                return NextRun(None, Source.BASELINE_INTERVAL)
            at = facts.last_end + every if facts.last_end else facts.armed_at
            return NextRun(start_time(task.id, max(at, now), task.jitter), Source.BASELINE_INTERVAL)
        case _:
            return NextRun(None, Source.REBOOT)


_STATE_OF_REASON = {
    DisabledReason.AUTO_SUSPENDED: TaskState.SUSPENDED,
    DisabledReason.PAUSED: TaskState.PAUSED,
    DisabledReason.COMPLETED: TaskState.COMPLETED,
    DisabledReason.FAILED: TaskState.FAILED,
}


def state_of(now: datetime, task: Task, facts: Facts | None) -> TaskState:
    if facts is not None and facts.running:
        return TaskState.RUNNING
    if facts is not None and facts.suspend_pending:
        return TaskState.SUSPENDED
    if not task.enabled:
        return _STATE_OF_REASON.get(task.disabled_reason or DisabledReason.BY_CHOICE, TaskState.DISABLED)
    if facts is not None and facts.paused_until is not None and facts.paused_until > now:
        return TaskState.PAUSED
    return TaskState.ACTIVE
