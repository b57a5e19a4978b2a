"""When a task runs next and why; whether a due occurrence starts, and if not, why not. No clock, no disk.

What can start a task are its *lines*: the baseline schedule, an interval hint, a one-shot hint, the end of the tasks it
comes after, a retry that was put off. Hints bend the baseline by four rules; then the clamps hold; then the earliest line
counts; last, a pause wins over everything.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from tickdown.base.model import (
    CatchUp,
    DisabledReason,
    Facts,
    Hint,
    HintKind,
    MissReason,
    Occurrence,
    RunStatus,
    SkipReason,
    Source,
    TaskState,
    Waiting,
)
from tickdown.base.records import record, replace
from tickdown.schedule.blackout import covering, first_free
from tickdown.schedule.cron import Cron, count_occurrences, latest_occurrences, next_occurrence
from tickdown.schedule.schedule import Interval, Manual, OneShot, Reboot, Schedule
from tickdown.tasks.task import Task

# Cron comes once a minute; one beat may be lost before an occurrence counts as late.
ON_TIME = timedelta(minutes=2)
# A start that jitter puts off is waited for inside the tick up to here, then left to a later tick.
LOOK_AHEAD = timedelta(seconds=60)
MOST_CATCH_UPS = 24
MOST_SEARCHED = 10_000  # occurrences looked at for one outside a blackout: a week of minutes
UNSPREAD_CATCH_UPS = 3
SPREAD = timedelta(seconds=30)
MOST_BACK_OFF = 32
_MOST_SEARCH = 500  # occurrences looked at to find one outside the blackouts
_MOMENT = timedelta(microseconds=1)


@record(frozen=True)
class Unrun:
    """Occurrences that were not run, one after another and all for the same reason: one row in history."""

    first: datetime
    last: datetime
    count: int
    status: RunStatus = RunStatus.MISSED
    reason: SkipReason | MissReason | None = None


@record(frozen=True)
class Plan:
    """What to do about one task now: start these in order, write off those, let these wait; and the reason for it."""

    starts: tuple[Occurrence, ...] = ()
    unrun: tuple[Unrun, ...] = ()  # in the order of their time; each gets a row
    # What can't start now and stays due. Of a cron line it is all that waits, what has waited before included; each of them has
    # a row that says so, and loses it when it starts.
    waiting: tuple[Waiting, ...] = ()
    reason: SkipReason | None = None
    source: Source = Source.BASELINE_CRON
    settles: datetime | None = None  # of a cron line: all that it has named up to here is dealt with by this
    beside: Plan | None = None  # of the cron line, which is not the first to start; to be recorded before

    @property
    def does_something(self) -> bool:
        return bool(self.starts or self.unrun or self.waiting or self.settles)


@record(frozen=True)
class NextRun:
    at: datetime | None
    source: Source | None


@record(frozen=True)
class Candidate:
    """One line with the time that it asks for, and where that comes from."""

    at: datetime
    source: Source
    note: str = ""


@record(frozen=True)
class Forecast:
    """The next run, what else could have been it, and what made the choice."""

    next: NextRun
    candidates: tuple[Candidate, ...] = ()
    because: str = ""


@record(frozen=True)
class Pending:
    """Occurrences of one line whose time to start has come."""

    all: Unrun
    latest: tuple[datetime, ...]  # the newest of them, all if they are not too many
    source: Source
    start_at: datetime
    key: str | None = None
    follows: str | None = None
    not_before: datetime | None = None
    by_clock: bool = False  # of a cron line: there will be another, so one that can't start is written off
    apart: bool = False  # not of the schedule

    @property
    def can_be_late(self) -> bool:
        """Whether it names a moment that can be missed, so that `catch_up` and `grace` have a say."""
        return self.by_clock or self.source in (Source.ONE_SHOT, Source.AFTER)


NOTHING = Plan(reason=SkipReason.NOT_DUE)


# --- what is due -----------------------------------------------------------------------------------------------


def plan(now: datetime, task: Task, facts: Facts, boot_id: str, hindrance: SkipReason | None = None) -> Plan:
    """`hindrance` is what keeps the task from starting for reasons that lie outside its schedule: no agent, no budget."""
    if not task.enabled or facts.closing is not None:
        return Plan(reason=SkipReason.DISABLED)
    facts = without_expired(now, task, facts)
    due = _due(now, task, facts, boot_id)
    if not due:
        idle = isinstance(task.schedule, Manual) and not facts.hints and not task.after
        return Plan(reason=SkipReason.MANUAL_ONLY) if idle else NOTHING
    what = _plan_of(now, task, facts, due[0], hindrance)
    clock = next((line for line in due[1:] if line.by_clock), None)
    if clock is None:
        return what
    # What comes first, and starts or waits, must not hide what the clock names meanwhile.
    other = _plan_of(now, task, facts, clock, hindrance)
    if other.starts:
        other = put_off(other, SkipReason.ALREADY_RUNNING)
    if not other.unrun and other.waiting == facts.waiting:
        return what
    return replace(what, beside=other) if what.does_something else other


def _plan_of(now: datetime, task: Task, facts: Facts, pending: Pending, hindrance: SkipReason | None) -> Plan:
    if paused(now, facts):
        return _held(facts, pending, SkipReason.PAUSED)
    if hindrance is not None and not facts.running:
        return _held(facts, pending, hindrance)
    if facts.running and not pending.can_be_late:
        return NOTHING  # what can't be missed just waits for the end
    if _is_busy(facts) and not (pending.by_clock and task.catch_up is CatchUp.ALL):
        return _held(facts, pending, SkipReason.ALREADY_RUNNING)
    return _by_clock(now, task, facts, pending) if pending.by_clock else _starts(now, task, facts, pending)


def _is_busy(facts: Facts) -> bool:
    """A run of it is going on, or somebody unknown holds its lock; nobody knows of an end to wait for then."""
    return facts.running or facts.held is not None


def paused(now: datetime, facts: Facts) -> bool:
    return facts.paused_until is not None and facts.paused_until > now


def _held(facts: Facts, pending: Pending, reason: SkipReason) -> Plan:
    """Of a cron line there will be another; anything else waits."""
    if pending.by_clock:
        unrun = (replace(pending.all, status=RunStatus.SKIPPED, reason=reason),) if pending.all.count else ()
        waiting = facts.waiting if _is_busy(facts) else ()  # what waits for a run to end goes on waiting
        if not unrun and waiting == facts.waiting:
            return Plan(reason=reason)
        return Plan(unrun=unrun, waiting=waiting, reason=reason, source=pending.source, settles=pending.all.last)
    if facts.deferred == pending.all.last:
        return Plan(reason=reason)  # it has its row
    return Plan(waiting=(Waiting(pending.all.last, pending.source),), reason=reason, source=pending.source)


def put_off(what: Plan, reason: SkipReason) -> Plan:
    """What was to start has to wait."""
    waiting = tuple(Waiting(start.at, start.source) for start in what.starts)
    return replace(what, starts=(), waiting=waiting, reason=reason)


def rejected_plan(facts: Facts, pending: Pending) -> Plan:
    """Of a task whose file can't be used now. There will be no other end of a chain and no other one-shot: those wait for the
    file, and so does what was waiting before."""
    what = _held(facts, pending, SkipReason.REJECTED)
    if pending.by_clock:
        return replace(what, waiting=facts.waiting) if what.unrun else NOTHING
    if pending.source in (Source.ONE_SHOT, Source.AFTER):
        return what
    return Plan(
        unrun=(replace(pending.all, status=RunStatus.SKIPPED, reason=SkipReason.REJECTED),), source=pending.source
    )


def _due(now: datetime, task: Task, facts: Facts, boot_id: str) -> list[Pending]:
    """The lines that have come up, in the order of their turn."""
    come = [line for line in _due_lines(now, task, facts, boot_id) if line.all.last <= now]
    due = [line for line in come if line.start_at <= now + LOOK_AHEAD]
    # A regular run does what the retry was to do. By the first occurrence of a line: the oldest has waited longest.
    return sorted(due, key=lambda line: (line.source is Source.RETRY, line.all.first))


def _due_lines(now: datetime, task: Task, facts: Facts, boot_id: str) -> Iterator[Pending]:
    """Each line that has come up, clamped. Regular ones first: of two at the same moment the first is taken."""
    interval, moment = _hints(facts)
    regular = baseline_due(_schedule_holds_until(now, interval, facts), task, facts, boot_id)
    if interval is not None and not (regular and regular.by_clock):
        regular = None
    if regular is not None:
        yield regular
    hinted = [event for event in (_interval_event(interval, facts), _moment_event(moment)) if event is not None]
    if interval is not None and moment is not None and hinted:
        hinted = [min(hinted, key=lambda event: event.at)]
    for event in hinted:
        yield replace(_event(_clamped(event, task, facts)), apart=True)
    latest = _latest_start(task, facts)
    if latest is not None and latest <= now and regular is None and not facts.running:
        yield replace(_event(Candidate(latest, Source.CLAMPED_MAX)), apart=True)
    chained = chain_due(task, facts)
    if chained is not None and task.after:
        yield chained
    if facts.retry_at is not None and facts.retry_follows is not None:
        retry = _event(Candidate(facts.retry_at, Source.RETRY))
        key = f"{task.id}@{facts.retry_follows}+retry"
        yield replace(retry, key=key, follows=facts.retry_follows)


def _schedule_holds_until(now: datetime, interval: Hint | None, facts: Facts) -> datetime:
    """An interval hint takes the place of the schedule from when it was given, or once the run is over in which it was
    given; what was due before stays due."""
    if interval is None or (facts.running and interval.given_at > (facts.last_end or facts.armed_at)):
        return now
    return min(now, interval.given_at)


def _event(event: Candidate) -> Pending:
    return Pending(Unrun(event.at, event.at, 1), (event.at,), event.source, event.at)


def chain_due(task: Task, facts: Facts) -> Pending | None:
    """The start that the end of other tasks asks for."""
    if facts.chained is None:
        return None
    start = _event(_not_too_early(Candidate(facts.chained.at, Source.AFTER), task, facts))
    return replace(start, key=f"{task.id}@after:{facts.chained.run_id}", apart=True)


def is_by_chain(occurrence: Occurrence, facts: Facts) -> bool:
    """Whether it is that start, whatever its source came to be."""
    return facts.chained is not None and occurrence.key.endswith(f"@after:{facts.chained.run_id}")


def baseline_due(now: datetime, task: Task, facts: Facts, boot_id: str) -> Pending | None:
    """The occurrences of the schedule since the last one taken up whose time to start has come."""
    schedule, since = task.schedule, _settled_until(facts)
    match schedule:
        case Manual():
            return None
        case Reboot():
            if boot_id == facts.boot_id or facts.running:
                return None
            boot = _event(Candidate(min(facts.deferred or now, now), Source.REBOOT))
            return replace(boot, key=f"{task.id}@boot-{boot_id}")
        case OneShot():
            at = schedule.moment(facts.anchored_at or facts.armed_at)
            if at <= since:
                return None
            return replace(_event(Candidate(at, Source.ONE_SHOT)), start_at=start_time(task.id, at, task.jitter))
        case Interval():
            if facts.running:
                return None
            event = _clamped(_interval_baseline(schedule, facts), task, facts)
            return replace(_event(event), start_at=_jittered(event.at, task, facts))
        case Cron():
            first = next_occurrence(schedule, since)
            if first > now:
                due, count = [], 0
            elif next_occurrence(schedule, first) > now:
                due, count = [first], 1
            else:
                due = latest_occurrences(schedule, since, now, MOST_SEARCHED if task.blackout else MOST_CATCH_UPS + 1)
                count = count_occurrences(schedule, since, now)
    while due and start_time(task.id, due[-1], task.jitter) > now + LOOK_AHEAD:
        due.pop()
        count -= 1
    if not due:
        if not facts.waiting:
            return None
        first, due, count = (
            facts.waiting[0].at,
            [facts.waiting[-1].at],
            0,
        )  # they have their rows; there are no new ones
    start, earliest = start_time(task.id, due[-1], task.jitter), _earliest_start(task, facts)
    everything = Unrun(first, due[-1], count)
    pending = Pending(everything, tuple(due), Source.BASELINE_CRON, start, by_clock=True)
    if earliest is None or earliest <= start:
        return pending
    return replace(pending, source=Source.CLAMPED_MIN, start_at=earliest, not_before=earliest)


def _settled_until(facts: Facts) -> datetime:
    """Every occurrence up to here has been taken up, or came before the task was armed."""
    return max(facts.armed_at, facts.last_occurrence or facts.armed_at)


def is_spent(task: Task, facts: Facts) -> bool:
    """Whether the one occurrence of a one-shot has been taken up."""
    if not isinstance(task.schedule, OneShot) or facts.last_occurrence is None:
        return False
    return facts.last_occurrence >= task.schedule.moment(facts.anchored_at or facts.armed_at)


def is_over(task: Task, facts: Facts) -> bool:
    """Whether a one-shot has no run to come: it had it, or was armed when its time had passed."""
    if not isinstance(task.schedule, OneShot) or facts.running or facts.retry_at is not None:
        return False
    return task.schedule.moment(facts.anchored_at or facts.armed_at) <= _settled_until(facts)


def _starts(now: datetime, task: Task, facts: Facts, pending: Pending) -> Plan:
    """Of what is no cron line: one occurrence."""
    at = pending.all.last
    late = facts.deferred != at and now - pending.start_at > ON_TIME
    too_old = task.grace is not None and at < now - task.grace
    if pending.can_be_late and late and (task.catch_up is CatchUp.SKIP or too_old):
        return Plan(unrun=(pending.all,), source=pending.source)
    if covering(task.blackout, max(now, pending.start_at), task.zone) is not None:
        return _held(facts, pending, SkipReason.BLACKOUT)
    source = Source.CATCH_UP if pending.can_be_late and late else pending.source
    return Plan((_occurrence(task, pending, at, pending.start_at, source),), source=pending.source)


def _by_clock(now: datetime, task: Task, facts: Facts, pending: Pending) -> Plan:
    """Of a cron line: what starts, what waits, and for each of the others the reason why it does neither."""

    def start_of(at: datetime) -> datetime:
        start = start_time(task.id, at, task.jitter)
        return max(start, pending.not_before or start)

    def source_of(at: datetime) -> Source:
        late = now - start_of(at) > ON_TIME
        return waited.get(at) or (Source.CATCH_UP if late else pending.source)

    waited = {one.at: one.source for one in facts.waiting}
    new = list(pending.latest) if pending.all.count else []
    if _is_busy(facts) and not new:
        return Plan(reason=SkipReason.ALREADY_RUNNING)  # which of them are too old by now is seen when one could start
    free = [at for at in new if covering(task.blackout, at, task.zone) is None]
    wanted = [*waited, *free]
    wanted = wanted[-MOST_CATCH_UPS:] if task.catch_up is CatchUp.ALL else wanted[-1:]
    if task.catch_up is CatchUp.SKIP:
        wanted = [at for at in wanted if at in waited or source_of(at) is not Source.CATCH_UP]
    if task.grace is not None:  # it gets old whatever it has waited for
        wanted = [at for at in wanted if at >= now - task.grace or now - start_of(at) <= ON_TIME]
    earliest = _earliest_start(task, facts)

    def missed_by(at: datetime) -> MissReason | None:
        """None: nobody looked in time."""
        if earliest is not None and at < earliest:
            return MissReason.MIN_INTERVAL
        return MissReason.JITTER if task.jitter and start_of(at) > now - ON_TIME else None

    unrun = tuple(_unrun(task.schedule, pending, new, frozenset(free), frozenset(wanted), missed_by))
    held: SkipReason | None = None
    if _is_busy(facts):
        held = SkipReason.ALREADY_RUNNING
    elif (wanted and covering(task.blackout, max(now, pending.start_at), task.zone) is not None) or (
        not wanted and not free
    ):
        held = SkipReason.BLACKOUT
    waiting = tuple(Waiting(at, source_of(at)) for at in wanted)
    if held is not None or not wanted:
        if not unrun and waiting == facts.waiting:
            return Plan(reason=held)  # they have their rows
        return Plan(unrun=unrun, waiting=waiting, reason=held, source=pending.source, settles=pending.all.last)
    starts = tuple(_occurrence(task, pending, at, start_of(at), source_of(at)) for at in wanted)
    return Plan(starts, unrun, waiting[1:], source=pending.source, settles=pending.all.last)


def _unrun(
    schedule: Schedule, pending: Pending, new: list[datetime], free: frozenset[datetime], wanted: frozenset[datetime],
    missed_by: Callable[[datetime], MissReason | None],
) -> Iterator[Unrun]:  # fmt: skip
    """Of the new occurrences those that neither start nor wait, by their reasons: skipped where a blackout covers them, missed
    where nobody has looked in time. Neighbours share a row."""
    before = pending.all.count - len(new)  # more than are looked at one by one
    first_looked_at = new[0] if new else None
    current: Unrun | None = None
    if before and first_looked_at is not None:
        current = Unrun(pending.all.first, _last_before(schedule, pending.all.first, first_looked_at), before)
    for at in new:
        one = None
        if at not in wanted:
            one = Unrun(at, at, 1, RunStatus.MISSED, missed_by(at))
        if at not in free:
            one = Unrun(at, at, 1, RunStatus.SKIPPED, SkipReason.BLACKOUT)
        if current is not None and one is not None and (current.status, current.reason) == (one.status, one.reason):
            current = replace(current, last=at, count=current.count + 1)
            continue
        if current is not None:
            yield current
        current = one
    if current is not None:
        yield current


def _occurrence(task: Task, pending: Pending, at: datetime, start_at: datetime, source: Source) -> Occurrence:
    return Occurrence(
        task_id=task.id,
        at=at,
        source=source,
        key=pending.key or occurrence_key(task.id, at),
        start_at=start_at,
        follows=pending.follows,
        apart=pending.apart,
    )


def _last_before(schedule: Schedule, first: datetime, at: datetime) -> datetime:
    assert isinstance(schedule, Cron)
    return latest_occurrences(schedule, first - timedelta(seconds=1), at - timedelta(seconds=1), 1)[-1]


def occurrence_key(task_id: str, at: datetime) -> str:
    moment = at.astimezone(UTC)
    return f"{task_id}@{moment.isoformat(timespec='milliseconds' if moment.microsecond else 'seconds')[:-6]}Z"


def start_time(task_id: str, at: datetime, jitter: timedelta | None) -> datetime:
    """`jitter` puts each start off by a share of it that depends on id and occurrence alone."""
    if not jitter:
        return at
    share = zlib.crc32(occurrence_key(task_id.lower(), at).encode()) / 2**32
    return at + jitter * share


def _jittered(at: datetime, task: Task, facts: Facts) -> datetime:
    """When the next of an interval starts; `max_interval` holds with jitter too."""
    start, latest = start_time(task.id, at, task.jitter), _latest_start(task, facts)
    return start if latest is None else max(at, min(start, latest))


def spread_catch_ups(starts: Iterable[Occurrence], now: datetime) -> list[Occurrence]:
    """After an outage, more than a few late starts come one after another within half a minute, not all at once: the
    oldest first, those of the same moment in the order given."""
    ordered = sorted(starts, key=lambda start: start.at)
    late = [start.key for start in ordered if start.source is Source.CATCH_UP]
    if len(late) <= UNSPREAD_CATCH_UPS:
        return ordered
    delay = {key: SPREAD * index / len(late) for index, key in enumerate(late)}
    return [
        replace(start, start_at=max(start.start_at, now + delay[start.key])) if start.key in delay else start
        for start in ordered
    ]


# --- hints, back-off and clamps --------------------------------------------------------------------------------


def without_expired(now: datetime, task: Task, facts: Facts) -> Facts:
    """As if hints that have run out were cleared at that moment. An interval hint had taken the place of the schedule,
    so what the schedule named until then is settled, unless it names but one moment."""
    if all(hint.live(now) for hint in facts.hints):
        return facts
    over = [hint.until for hint in facts.hints if hint.until and not hint.live(now) and settles(hint, task, facts)]
    armed_at = max([facts.armed_at, *over])
    return replace(facts, hints=tuple(hint for hint in facts.hints if hint.live(now)), armed_at=armed_at)


def settles(hint: Hint, task: Task, facts: Facts) -> bool:
    """Whether the end of a hint leaves nothing of the schedule to catch up: it had taken its place, and nothing was
    due before."""
    if hint.kind is not HintKind.INTERVAL or isinstance(task.schedule, OneShot):
        return False
    return not isinstance(task.schedule, Cron) or next_occurrence(task.schedule, _settled_until(facts)) > hint.given_at


def _hints(facts: Facts) -> tuple[Hint | None, Hint | None]:
    by_kind = {hint.kind: hint for hint in facts.hints}
    return by_kind.get(HintKind.INTERVAL), by_kind.get(HintKind.ONE_SHOT)


def back_off(facts: Facts) -> int:
    """Intervals get longer while a task fails: by 2, 4, 8, 16, 32."""
    return min(1 << min(facts.failures, 10), MOST_BACK_OFF)


def _interval_baseline(schedule: Interval, facts: Facts) -> Candidate:
    factor = back_off(facts)
    note = f"{schedule.text} ×{factor} after {facts.failures} failed" if factor > 1 else schedule.text
    at = facts.last_end + schedule.every * factor if facts.last_end else facts.armed_at
    return Candidate(at, Source.BASELINE_INTERVAL, note)


def _interval_event(hint: Hint | None, facts: Facts) -> Candidate | None:
    if hint is None or hint.every is None or facts.running:
        return None
    return Candidate(
        max(facts.last_end or hint.given_at, hint.given_at) + hint.every, Source.AI_INTERVAL, hint_note(hint)
    )


def _moment_event(hint: Hint | None) -> Candidate | None:
    return None if hint is None or hint.at is None else Candidate(hint.at, Source.AI_ONESHOT, hint_note(hint))


def hint_note(hint: Hint) -> str:
    return f"hint by {hint.author}" + (f": {hint.reason}" if hint.reason else "")


def _earliest_start(task: Task, facts: Facts) -> datetime | None:
    return facts.last_end + task.min_interval if facts.last_end and task.min_interval else None


def _latest_start(task: Task, facts: Facts) -> datetime | None:
    """Only for what comes again and again: a one-shot or a manual task must not be made to repeat."""
    if not (facts.last_end and task.max_interval):
        return None
    repeats = isinstance(task.schedule, (Cron, Interval)) or any(hint.every for hint in facts.hints)
    return facts.last_end + task.max_interval if repeats else None


def _clamped(event: Candidate, task: Task, facts: Facts) -> Candidate:
    latest = _latest_start(task, facts)
    if latest is not None and event.at > latest:
        return Candidate(latest, Source.CLAMPED_MAX, event.note)
    return _not_too_early(event, task, facts)


def _not_too_early(event: Candidate, task: Task, facts: Facts) -> Candidate:
    earliest = _earliest_start(task, facts)
    if earliest is not None and event.at < earliest:
        return Candidate(earliest, Source.CLAMPED_MIN, event.note)
    return event


# --- when to look ----------------------------------------------------------------------------------------------


def look_again(now: datetime, task: Task, facts: Facts, boot_id: str) -> datetime | None:
    """Before this moment `plan` has nothing to do about the task, as long as nothing about it changes; None: at no time.
    It may be early, and then the task is looked at in vain; it must not be late."""
    if not task.enabled:
        return min((hint.until for hint in facts.hints if hint.until is not None), default=None)  # to clear them
    if facts.closing is not None or facts.missing_agent is not None:
        return now  # until its file says so, until its agent is there
    return min(_moments(now, task, facts, boot_id), default=None)


def _moments(now: datetime, task: Task, facts: Facts, boot_id: str) -> Iterator[datetime]:
    schedule = task.schedule
    match schedule:
        case Cron():
            yield next_occurrence(schedule, _settled_until(facts))
        case Interval() if not facts.running:
            yield _clamped(_interval_baseline(schedule, facts), task, facts).at
        case OneShot():
            at = schedule.moment(facts.anchored_at or facts.armed_at)
            if at > _settled_until(facts):
                yield at
        case Reboot() if boot_id != facts.boot_id and not facts.running:
            yield now
    if facts.hints:
        yield from (hint.until for hint in facts.hints if hint.until is not None)
        interval, moment = _hints(facts)
        for event in (_interval_event(interval, facts), _moment_event(moment)):
            if event is not None:
                yield _clamped(event, task, facts).at
    latest = _latest_start(task, facts)
    if latest is not None and not facts.running:
        yield latest
    if facts.held is not None and not facts.held.told:
        yield facts.held.since + task.timeout
    yield from (extra.at for extra in _extras(task, facts))


# --- when next -------------------------------------------------------------------------------------------------


def next_run(now: datetime, task: Task, facts: Facts | None, boot_id: str) -> NextRun:
    """When the task comes up next, as far as its state tells."""
    return forecast(now, task, facts, boot_id).next


def forecast(now: datetime, task: Task, facts: Facts | None, boot_id: str) -> Forecast:
    facts = facts or Facts(task.id, armed_at=now, boot_id=boot_id)
    if not task.enabled or facts.closing is not None:
        return Forecast(
            NextRun(None, Source.MANUAL if isinstance(task.schedule, Manual) else None), (), "it is disabled"
        )
    if paused(now, facts):
        assert facts.paused_until is not None
        later = _ahead(facts.paused_until, task, facts, boot_id)
        return Forecast(NextRun(later.next.at, Source.PAUSED), later.candidates, "it is paused, and a pause wins")
    due = plan(now, task, facts, boot_id).starts
    if due:
        coming = _ahead(now, task, facts, boot_id)
        return Forecast(NextRun(max(now, due[0].start_at), due[0].source), coming.candidates, "it is due")
    return _ahead(now, task, facts, boot_id)


def _ahead(now: datetime, task: Task, facts: Facts, boot_id: str) -> Forecast:
    """From a moment on; what has come up before it and still waits starts then."""
    facts = without_expired(now, task, facts)
    interval, moment = _hints(facts)
    baseline = _baseline_ahead(now, task, facts, boot_id)
    every, once = _interval_event(interval, facts), _moment_event(moment)
    candidates = [candidate for candidate in (baseline, every, once) if candidate is not None]
    if interval is not None:
        because = "the earlier of the two hints" if once else "an interval hint takes the place of the schedule"
    else:
        because = "the earlier of the schedule and the one-shot hint" if once else "only the schedule asks for a run"
    ruling = [line for line in (every if interval is not None else baseline, once) if line is not None]
    chosen = min(ruling, key=lambda candidate: candidate.at, default=None)
    if chosen is not None and chosen.source not in (Source.ONE_SHOT, Source.REBOOT):
        clamped = _clamped(chosen, task, facts)
        if clamped.source is not chosen.source:
            name = "min_interval" if clamped.source is Source.CLAMPED_MIN else "max_interval"
            because += f"; {name} holds"
        by_interval = chosen is baseline and isinstance(task.schedule, Interval)
        chosen = replace(clamped, at=_jittered(clamped.at, task, facts)) if by_interval else clamped
    for extra in _extras(task, facts):
        candidates.append(extra)
        if chosen is None or extra.at < chosen.at:
            chosen, because = extra, "it is the earliest"
    if chosen is None:
        dark = isinstance(task.schedule, Cron) and task.blackout
        why_none = "every start lies in a blackout" if dark else "nothing asks for a run"
        return Forecast(NextRun(None, _source_without_time(task, facts, interval)), tuple(candidates), why_none)
    at = first_free(task.blackout, max(now, chosen.at), task.zone)
    if at is None:
        because = "every start lies in a blackout"
    elif at > max(now, chosen.at):
        because += "; a blackout holds it up"
    if interval is not None and interval.until is not None and (at is None or at >= interval.until):
        after_it = _ahead(interval.until, task, facts, boot_id)
        return replace(after_it, candidates=tuple(candidates), because="the interval hint ends before it would come up")
    return Forecast(NextRun(at, chosen.source), tuple(candidates), because)


def _baseline_ahead(now: datetime, task: Task, facts: Facts, boot_id: str) -> Candidate | None:
    schedule = task.schedule
    match schedule:
        case Cron():
            held = baseline_due(now, task, facts, boot_id)  # min_interval may keep it waiting
            waits = held is not None and held.start_at > now and not facts.running
            if held is not None and waits and covering(task.blackout, held.all.last, task.zone) is None:
                return Candidate(held.start_at, held.source, schedule.text)
            start = _next_start(now, schedule, task, facts)
            return None if start is None else Candidate(start, Source.BASELINE_CRON, schedule.text)
        case Interval():
            if facts.running:
                return None
            return _interval_baseline(schedule, facts)
        case OneShot():
            at = schedule.moment(facts.anchored_at or facts.armed_at)
            spent = at <= _settled_until(facts)
            return None if spent else Candidate(start_time(task.id, at, task.jitter), Source.ONE_SHOT, schedule.text)
        case Reboot():
            waits = boot_id != facts.boot_id and not facts.running
            return Candidate(now, Source.REBOOT, schedule.text) if waits else None
        case Manual():
            return None


def _next_start(now: datetime, schedule: Cron, task: Task, facts: Facts) -> datetime | None:
    """The first start from a moment on; with jitter that may be of an occurrence before it. An occurrence in a blackout
    will not start; None if all are."""
    settled = _settled_until(facts)
    at = next_occurrence(schedule, max(now - (task.jitter or timedelta(0)) - _MOMENT, settled))
    for _ in range(_MOST_SEARCH):
        free = first_free(task.blackout, at, task.zone)
        if free is None:
            return None
        start = start_time(task.id, at, task.jitter)
        if free == at and start >= now:
            return start
        at = next_occurrence(schedule, at if free == at else free - _MOMENT)
    at = next_occurrence(schedule, max(now, settled))
    return None if task.blackout else start_time(task.id, at, task.jitter)


def _extras(task: Task, facts: Facts) -> Iterator[Candidate]:
    if facts.waiting and not facts.running:
        yield Candidate(facts.waiting[0].at, facts.waiting[0].source, "it has waited")
    if facts.chained is not None and task.after:
        yield _not_too_early(
            Candidate(facts.chained.at, Source.AFTER, f"after run {facts.chained.run_id}"), task, facts
        )
    if facts.retry_at is not None and facts.retry_follows is not None:
        yield Candidate(facts.retry_at, Source.RETRY, f"again after run {facts.retry_follows}")


def _source_without_time(task: Task, facts: Facts, interval: Hint | None) -> Source | None:
    """What will start it some day, though nobody knows when."""
    if facts.running and interval is not None:
        return Source.AI_INTERVAL
    match task.schedule:
        case Interval():
            return Source.BASELINE_INTERVAL
        case Reboot():
            return Source.REBOOT
        case Manual():
            return Source.AFTER if task.after else Source.MANUAL
        case _:
            return None


# --- the state of a task ---------------------------------------------------------------------------------------

_STATE_OF_REASON = {
    DisabledReason.AUTO_SUSPENDED: TaskState.SUSPENDED,
    DisabledReason.PAUSED: TaskState.PAUSED,
    DisabledReason.COMPLETED: TaskState.COMPLETED,
    DisabledReason.FAILED: TaskState.FAILED,
}


def state_of(now: datetime, task: Task, facts: Facts | None) -> TaskState:
    if facts is not None and facts.running:
        return TaskState.RUNNING
    if facts is not None and facts.closing is not None:
        return _STATE_OF_REASON.get(facts.closing, TaskState.DISABLED)
    if not task.enabled:
        return _STATE_OF_REASON.get(task.disabled_reason or DisabledReason.BY_CHOICE, TaskState.DISABLED)
    if facts is not None and is_over(task, facts):
        return TaskState.COMPLETED  # enabled again by hand: it does not run again, so it must not look alive
    if facts is not None and (paused(now, facts) or facts.missing_agent):
        return TaskState.PAUSED
    return TaskState.ACTIVE
