"""What would run when, if nothing else happened: the governor replayed over a time to come, or one that has been.

Every run is taken to start on time, to last as long as the task's runs usually do, and to succeed. No clock, no disk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from heapq import heappop, heappush, nsmallest
from itertools import pairwise
from math import ceil

from tickdown.base.model import (
    CatchUp,
    Chained,
    ChainOn,
    DisabledReason,
    Facts,
    HintKind,
    Occurrence,
    SkipReason,
    Source,
)
from tickdown.base.records import field, record, replace
from tickdown.governor.governor import NOTHING, Plan, forecast, is_spent, paused, plan, start_time, without_expired
from tickdown.schedule.blackout import covering, first_free
from tickdown.schedule.cron import Cron, next_occurrence, occurrences
from tickdown.schedule.schedule import Interval, Manual, OneShot, Reboot
from tickdown.tasks.task import Task

LONGEST_WINDOW = timedelta(days=366)
MOST_RUNS = 20_000_000
MOST_STEPS = 100_000  # of the governor, over all tasks: a minute or two
WORST_MINUTES = 5
_MOST_TRIES = 100  # to find a start that the governor stands by
_MOMENT = timedelta(microseconds=1)
_NO_TIME = timedelta(0)


class TooMuch(Exception):
    """More work than anybody wants to wait for."""


@record()
class Effort:
    """How often the governor may still be asked."""

    left: int = MOST_STEPS

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooMuch


@record(frozen=True)
class Subject:
    """A task as it stands when the replay begins."""

    task: Task
    facts: Facts
    lasts: timedelta = _NO_TIME  # what its runs usually take
    busy_until: datetime | None = None  # when the run that is going on is taken to end
    ended: Mapping[str, datetime] = field(default_factory=dict)  # whom it comes after and need not wait for any more


@record(frozen=True)
class Start:
    task_id: str
    at: datetime
    source: Source
    occurrence: Occurrence | None = None  # None where many starts were found at once
    plan: Plan = NOTHING  # that it is a part of


# --- one task --------------------------------------------------------------------------------------------------


class Walk:
    """One task, from start to start. `facts` are what the store would hold at `now`."""

    def __init__(
        self, subject: Subject, now: datetime, boot_id: str, effort: Effort, until: datetime | None = None
    ) -> None:
        self.subject, self.task, self.boot_id = subject, subject.task, boot_id
        self.effort, self.until = effort, until
        self.facts, self.now = replace(subject.facts, held=None), now  # nobody knows how long
        self.overlapped = 0  # occurrences that come while a run still goes on
        self._crowded = False
        self._ended = {name.lower(): at for name, at in subject.ended.items()}
        if self.facts.running:
            self._run_to(max(now, subject.busy_until or now))

    def upcoming(self) -> Start | None:
        """The next start as things stand; asking changes nothing."""
        chained, now = self.facts.chained, self.now
        if isinstance(self.task.schedule, Manual) and self._nothing_special():
            if chained is None:
                return None
            if chained.at >= now and not self.task.blackout:
                return self._straight_after(chained)
        for _ in range(_MOST_TRIES):
            self.effort.spend()
            coming = forecast(now, self.task, self.facts, self.boot_id).next
            if coming.at is None or coming.source is None:
                return None
            decided = plan(coming.at, self.task, self.facts, self.boot_id)
            if decided.starts:
                first = decided.starts[0]
                return Start(self.task.id, max(coming.at, first.start_at), coming.source, first, decided)
            now = max(now, coming.at) + _MOMENT
        return None

    def _nothing_special(self) -> bool:
        """Whether the schedule and the ends of other tasks are all that has a say."""
        task, facts = self.task, self._without_expired(self.now)
        return task.enabled and not (
            task.min_interval or task.max_interval or facts.closing or facts.hints or facts.retry_at or facts.deferred or facts.waiting
            or facts.failures or paused(self.now, facts)
        )  # fmt: skip

    def _straight_after(self, chained: Chained) -> Start:
        """What the governor says of a task that does nothing but follow others; it would be asked very often."""
        key = f"{self.task.id}@after:{chained.run_id}"
        occurrence = Occurrence(self.task.id, chained.at, Source.AFTER, key, chained.at, apart=True)
        return Start(self.task.id, chained.at, Source.AFTER, occurrence)

    def take(self, start: Start) -> None:
        """It starts, lasts and ends; with the same changes as in `store.runs`, `claim` and `finish_run`."""
        facts, occurrence = self._without_expired(start.at), start.occurrence
        assert occurrence is not None
        if occurrence.source is Source.RETRY:
            facts = replace(facts, retry_at=None, retry_follows=None)
        else:
            by_chain = facts.chained is not None and occurrence.key.endswith(f"@after:{facts.chained.run_id}")
            if by_chain and facts.chained is not None:
                answered = facts.chained.at
                self._ended = {name: at for name, at in self._ended.items() if at > answered}
            last = facts.last_occurrence
            facts = replace(
                facts,
                last_occurrence=last
                if occurrence.apart
                else max(last or occurrence.at, start.plan.settles or occurrence.at),
                waiting=start.plan.waiting if start.plan.settles is not None else facts.waiting,
                deferred=None if facts.deferred == occurrence.at else facts.deferred,
                retry_at=None,
                retry_follows=None,
                hints=tuple(hint for hint in facts.hints if hint.at is None or hint.at > start.at),
                boot_id=self.boot_id if isinstance(self.task.schedule, Reboot) else facts.boot_id,
                chained=None if by_chain else facts.chained,
            )
        self.facts, self.now = facts, start.at
        self._run_to(start.at + self.subject.lasts)

    def _run_to(self, end: datetime) -> None:
        watched_to = min(end, self.until or end)
        if watched_to > self.now:
            held = plan(watched_to - _MOMENT, self.task, replace(self.facts, running=True), self.boot_id)
            if held.settles is not None:
                self.overlapped += sum(one.count for one in held.unrun if one.reason is SkipReason.ALREADY_RUNNING)
                last = max(self.facts.last_occurrence or held.settles, held.settles)
                self.facts = replace(self.facts, last_occurrence=last, waiting=held.waiting)
        self.facts, self.now = replace(self.facts, running=False, last_end=end, failures=0), end
        if is_spent(self.task, self.facts):
            self.facts = replace(self.facts, closing=DisabledReason.COMPLETED)

    def _without_expired(self, now: datetime) -> Facts:
        if not self.facts.hints:
            return self.facts
        return without_expired(now, self.task, self.facts)

    def upstream_ended(self, name: str, at: datetime) -> bool:
        """Whether nobody is left to wait for."""
        self._ended[name.lower()] = at
        if not {upstream.lower() for upstream in self.task.after} <= self._ended.keys():
            return False
        self.facts = replace(self.facts, chained=Chained(max(self._ended.values()), f"{name}@{at.isoformat()}"))
        return True

    # --- many starts at once -----------------------------------------------------------------------------------

    def starts_before(self, end: datetime) -> list[datetime]:
        """All of them, of a task that waits for no other: step by step, and at once as soon as that is the same."""
        found: list[datetime] = []
        while (rest := self.plain_starts(end)) is None:
            start = self.upcoming()
            if start is None or start.at >= end:
                return found
            found.append(start.at)
            self.take(start)
        return found + rest

    def plain_starts(self, end: datetime) -> list[datetime] | None:
        """The starts from here on where nothing but the schedule has a say; None where it takes the governor."""
        facts = self._without_expired(self.now)
        if self.task.after or not self._nothing_special():
            return None
        match self.task.schedule:
            case Cron() as cron:
                return self._plain_cron(cron, max(facts.armed_at, facts.last_occurrence or facts.armed_at), end)
            case Interval(every=every) if facts.last_end is not None and facts.last_end + every >= self.now:
                return self._plain_interval(facts.last_end, every, end)
        return None

    def _plain_cron(self, cron: Cron, settled: datetime, end: datetime) -> list[datetime] | None:
        task, lasts = self.task, self.subject.lasts
        if self._crowded or next_occurrence(cron, settled) < self.now:
            return None
        found = list(occurrences(cron, settled, end - _MOMENT))
        if task.jitter or (task.catch_up is CatchUp.ALL and lasts):
            return self._each_in_its_place(found, end)
        if not lasts and not task.blackout:
            return found
        starts, busy_until = [], self.now
        for at in found:
            if at < busy_until:
                self.overlapped += 1
            elif not self._in_blackout(at):
                starts.append(at)
                busy_until = at + lasts
        return starts

    def _each_in_its_place(self, found: list[datetime], end: datetime) -> list[datetime] | None:
        """Where occurrences may move, but none so far that it holds up or overtakes another, or gets into a blackout."""
        task, room = self.task, (self.task.jitter or _NO_TIME) + self.subject.lasts
        starts = [start_time(task.id, at, task.jitter) for at in found if not self._in_blackout(at)]
        self._crowded = any(later - earlier < room for earlier, later in pairwise(found)) or (
            task.jitter is not None and any(map(self._in_blackout, starts))
        )
        return None if self._crowded else [at for at in starts if at < end]

    def _in_blackout(self, moment: datetime) -> bool:
        return bool(self.task.blackout) and covering(self.task.blackout, moment, self.task.zone) is not None

    def _plain_interval(self, last_end: datetime, every: timedelta, end: datetime) -> list[datetime]:
        task, lasts = self.task, self.subject.lasts
        if (end - last_end) / (every + lasts) > MOST_RUNS:
            raise TooMuch
        starts: list[datetime] = []
        while last_end + every < end:
            at: datetime | None = start_time(task.id, last_end + every, task.jitter)
            if task.blackout and at is not None:
                at = first_free(task.blackout, at, task.zone)
            if at is None or at >= end:
                break
            starts.append(at)
            last_end = at + lasts
        return starts


def facts_at(begin: datetime, now: datetime, subject: Subject) -> Facts:
    """What will be known of a task at another time than now, or was: all goes well until then, intervals keep their
    rhythm, and what has been said about the task holds from when it was said."""
    facts, schedule = subject.facts, subject.task.schedule
    last_end = None
    if isinstance(schedule, Interval):
        rhythm = schedule.every + subject.lasts
        known = facts.last_end or now
        last_end = known + (begin - known) // rhythm * rhythm
    hints = (hint for hint in facts.hints if hint.given_at <= begin and hint.live(begin))
    return Facts(
        task_id=facts.task_id,
        armed_at=begin - _MOMENT,
        anchored_at=facts.anchored_at or facts.armed_at,
        last_end=last_end,
        boot_id=facts.boot_id,
        paused_until=facts.paused_until if begin > now else None,
        closing=facts.closing,
        hints=tuple(hint for hint in hints if hint.kind is HintKind.INTERVAL or (hint.at and hint.at >= begin)),
    )


# --- all tasks -------------------------------------------------------------------------------------------------

_END, _START = 0, 1  # who comes after a task that ends at a moment may start at that moment


class Replay:
    """Tasks side by side: who comes after others is told when those have ended, so all of them must be here."""

    def __init__(
        self, subjects: Iterable[Subject], now: datetime, boot_id: str, effort: Effort, until: datetime | None = None
    ) -> None:
        self.walks = [Walk(subject, now, boot_id, effort, until) for subject in subjects]
        self.until = until
        self._numbers = {walk.task.id.lower(): number for number, walk in enumerate(self.walks)}
        self._followers = _followers(self.walks)
        self._agenda: list[tuple[datetime, int, int, int, Start | None]] = []
        self._newest = [0] * len(self.walks)  # an entry of the agenda that is older has been overtaken
        # Whom nobody else can move need not be asked start by start.
        self._found: dict[int, Iterator[Start]] = {}

    def starts(self) -> Iterator[Start]:
        """In the order of time; without an end, unless one was given. TooMuch when the effort is spent."""
        for number, walk in enumerate(self.walks):
            if walk.subject.facts.running:
                self._note_end(number, walk.now)
            if self.until is not None and not walk.task.after:
                self._found[number] = _at_once(walk, self.until)
            self._note_next(number)
        while self._agenda:
            at, _, number, version, start = heappop(self._agenda)
            if start is None:
                self._tell_followers(self.walks[number].task.id, at)
            elif version == self._newest[number]:
                yield start
                self._go_on(number, start)

    def _note_next(self, number: int) -> None:
        self._newest[number] += 1
        start = next(self._found[number], None) if number in self._found else self.walks[number].upcoming()
        if start is not None and (self.until is None or start.at < self.until):
            heappush(self._agenda, (start.at, _START, number, self._newest[number], start))

    def _go_on(self, number: int, start: Start) -> None:
        walk = self.walks[number]
        if number not in self._found:
            walk.take(start)
        self._note_end(number, start.at + walk.subject.lasts)
        self._note_next(number)

    def _note_end(self, number: int, at: datetime) -> None:
        if self.walks[number].task.id.lower() in self._followers:
            heappush(self._agenda, (at, _END, number, self._newest[number], None))

    def _tell_followers(self, task_id: str, at: datetime) -> None:
        for name in self._followers[task_id.lower()]:
            number = self._numbers[name]
            if self.walks[number].upstream_ended(task_id, at):
                self._note_next(number)


def _at_once(walk: Walk, until: datetime) -> Iterator[Start]:
    source = Source.BASELINE_CRON if isinstance(walk.task.schedule, Cron) else Source.BASELINE_INTERVAL
    return (Start(walk.task.id, at, source) for at in walk.starts_before(until))


def _followers(walks: Iterable[Walk]) -> dict[str, list[str]]:
    """Who starts when a task has ended well, by lower-case id."""
    found: dict[str, list[str]] = {}
    for walk in walks:
        for upstream, wants in walk.task.after.items():
            if wants is not ChainOn.FAILURE:
                found.setdefault(upstream.lower(), []).append(walk.task.id.lower())
    return found


def with_upstreams(subjects: Sequence[Subject], task_id: str) -> list[Subject]:
    """A task and all that it comes after, near or far."""
    by_id = {subject.task.id.lower(): subject for subject in subjects}
    wanted = [task_id.lower()]
    for name in wanted:
        wanted += [up.lower() for up in by_id[name].task.after if up.lower() in by_id and up.lower() not in wanted]
    return [by_id[name] for name in wanted]


# --- the load of a window --------------------------------------------------------------------------------------


@record(frozen=True)
class Minute:
    at: datetime
    runs: int
    tasks: tuple[str, ...]


@record(frozen=True)
class Peak:
    """The most runs at once, and when first."""

    runs: int = 0
    at: datetime | None = None


@record(frozen=True)
class Overlap:
    """Occurrences that would be skipped because the run before them still goes on."""

    task_id: str
    runs: int
    skipped: int
    lasts: timedelta


@record(frozen=True)
class Simulation:
    begin: datetime
    end: datetime
    total: int
    by_hour: tuple[tuple[datetime, int], ...]
    worst_minutes: tuple[Minute, ...]
    as_bad: int  # how many minutes have as many starts as the worst
    never: tuple[tuple[str, str], ...]
    overlaps: tuple[Overlap, ...]
    peak: Peak
    group_peaks: Mapping[str, Peak]


def simulate(
    subjects: Sequence[Subject], begin: datetime, end: datetime, now: datetime, boot_id: str, zone: tzinfo
) -> Simulation:
    """The load from one moment to another. What lies before now follows the schedules alone; what lies after it, the
    tasks as they stand. TooMuch if nobody wants to wait for it."""
    load = _Load({subject.task.id: subject for subject in subjects})
    if begin < now:
        load.replay(_moved(subjects, begin, now), begin, min(end, now), boot_id)
    if end > now:
        ahead = subjects if begin <= now else _moved(subjects, begin, now)
        load.replay(ahead, max(begin, now), end, boot_id)
    minutes = load.minutes()
    worst = nsmallest(WORST_MINUTES, minutes.items(), key=lambda item: (-item[1], item[0]))
    return Simulation(
        begin=begin,
        end=end,
        total=sum(minutes.values()),
        by_hour=_by_hour(minutes, begin, end, zone),
        worst_minutes=tuple(Minute(_instant(minute * 60), runs, load.tasks_in(minute)) for minute, runs in worst),
        as_bad=sum(1 for runs in minutes.values() if worst and runs == worst[0][1]),
        never=tuple((name, load.silent[name]) for name in load.silent if not load.seconds[name]),
        overlaps=load.overlaps(),
        peak=load.peak(None),
        group_peaks={group: load.peak(group) for group in load.groups()},
    )


def _moved(subjects: Iterable[Subject], begin: datetime, now: datetime) -> list[Subject]:
    return [Subject(subject.task, facts_at(begin, now, subject), subject.lasts) for subject in subjects]


class _Load:
    """The starts of every task, in seconds: a datetime for each of millions would be too many."""

    def __init__(self, subjects: Mapping[str, Subject]) -> None:
        self.subjects, self.effort = subjects, Effort()
        self.seconds = {name: array("Q") for name in subjects}
        self.skipped: Counter[str] = Counter()
        self.silent: dict[str, str] = {}
        self.total = 0

    def replay(self, subjects: Sequence[Subject], begin: datetime, end: datetime, boot_id: str) -> None:
        upstreams = {name.lower() for subject in subjects for name in subject.task.after}
        chained = [each for each in subjects if each.task.after or each.task.id.lower() in upstreams]
        together = Replay(chained, begin, boot_id, self.effort, end)
        for start in together.starts():
            self._add(start.task_id, [start.at])
        walks = list(together.walks)
        names = {walk.task.id for walk in walks}
        for subject in subjects:
            if subject.task.id not in names:
                walk = Walk(subject, begin, boot_id, self.effort, end)
                self._add(subject.task.id, walk.starts_before(end))
                walks.append(walk)
        for walk in walks:
            self.skipped[walk.task.id] += walk.overlapped
        for subject in subjects:
            if not self.seconds[subject.task.id]:
                self.silent[subject.task.id] = silence(subject, begin, end, boot_id)

    def _add(self, name: str, starts: Sequence[datetime]) -> None:
        self.total += len(starts)
        if self.total > MOST_RUNS:
            raise TooMuch
        self.seconds[name].extend([int(at.timestamp()) for at in starts])

    def minutes(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for seconds in self.seconds.values():
            found.update([second // 60 for second in seconds])
        return found

    def tasks_in(self, minute: int) -> tuple[str, ...]:
        def starts_then(seconds: array[int]) -> bool:
            place = bisect_left(seconds, minute * 60)
            return place < len(seconds) and seconds[place] < minute * 60 + 60

        return tuple(name for name, seconds in self.seconds.items() if starts_then(seconds))

    def groups(self) -> list[str]:
        return sorted({subject.task.group for subject in self.subjects.values() if subject.task.group})

    def peak(self, group: str | None) -> Peak:
        """A run takes a second at least: starts at the same moment are at once."""
        change: Counter[int] = Counter()
        ends: Counter[int] = Counter()
        for name, seconds in self.seconds.items():
            subject = self.subjects[name]
            if group is None or subject.task.group == group:
                lasts = max(1, -(-subject.lasts // timedelta(seconds=1)))
                change.update(seconds)
                ends.update([second + lasts for second in seconds])
        change.subtract(ends)
        running, most, first = 0, 0, 0
        for second in sorted(change):
            running += change[second]
            if running > most:
                most, first = running, second
        return Peak(most, _instant(first) if most else None)

    def overlaps(self) -> tuple[Overlap, ...]:
        return tuple(
            Overlap(name, len(self.seconds[name]), skipped, self.subjects[name].lasts)
            for name, skipped in self.skipped.most_common()
            if skipped
        )


def _instant(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def _by_hour(
    minutes: Mapping[int, int], begin: datetime, end: datetime, zone: tzinfo
) -> tuple[tuple[datetime, int], ...]:
    """Every hour of the clock that the window touches."""
    first = int(begin.astimezone(zone).replace(minute=0, second=0, microsecond=0).timestamp())
    runs = [0] * ceil((end.timestamp() - first) / 3600)
    for minute, starts in minutes.items():
        runs[(minute * 60 - first) // 3600] += starts
    return tuple((_instant(first + 3600 * number), starts) for number, starts in enumerate(runs))


# --- silence ---------------------------------------------------------------------------------------------------


def silence(subject: Subject, begin: datetime, end: datetime, boot_id: str) -> str:
    """Why a task does not start in a window, if it does not."""
    task, facts = subject.task, subject.facts
    if not task.enabled or facts.closing is not None:
        return f"disabled ({facts.closing or task.disabled_reason or DisabledReason.BY_CHOICE})"
    if is_spent(task, facts):
        return "its one run is over"
    at = forecast(begin, task, facts, boot_id).next.at
    if at is not None and at < end:
        return "its starts are held up or skipped"
    if paused(begin, facts) and facts.paused_until is not None and facts.paused_until >= end:
        return f"paused until {_clock_text(facts.paused_until, task.zone)}"
    if at is not None:
        return f"its next run is on {_clock_text(at, task.zone)}"
    if task.after:
        return _silent_chain(task)
    match task.schedule:
        case Manual():
            return "manual: only `run`, a hint or a chain starts it"
        case Reboot():
            return "waits for the next boot"
        case OneShot():
            return "its moment is not in this time"
        case _:
            return "every start lies in a blackout" if task.blackout else "nothing asks for a run"


def _silent_chain(task: Task) -> str:
    on_failure = [name for name, wants in task.after.items() if wants is ChainOn.FAILURE]
    if on_failure:
        return f"starts only when {' and '.join(on_failure)} fails, and success is assumed"
    return f"waits for {' and '.join(task.after)}"


def _clock_text(moment: datetime, zone: tzinfo) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"
