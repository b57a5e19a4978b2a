"""When a task is due: one type per kind of schedule, and the next occurrence after a moment.

croniter searches the calendar; what a cron line *means* is decided here, by the rules of Debian's cron, when the text
is read. It never sees the user's own text: only plain lists of numbers, on clock time without a zone.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from lib.times import parse_duration

SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
ACCEPTED = (
    "a cron line of 5 fields ('0 6 * * 1-5'), a shorthand (@hourly @daily @midnight @weekly @monthly @yearly "
    "@annually @reboot), an interval (30s, 10m, 1.5h, 2d, 1w) or manual"
)
_PHRASE = re.compile(r"(?i)\s*(every|in|at|on|tomorrow|hourly|daily|weekly)\b")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_LONGEST_GAP_YEARS = 50  # 29 February on one given weekday can be 40 years away
_PROBE = timedelta(hours=12)  # no zone changes its clock twice within this


class ScheduleError(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Manual:
    text: str = "manual"


@dataclass(frozen=True, slots=True)
class Reboot:
    text: str = "@reboot"


@dataclass(frozen=True, slots=True)
class Interval:
    text: str
    every: timedelta


@dataclass(frozen=True, slots=True)
class Cron:
    text: str
    zone: tzinfo
    # Any of them may match: day of month and day of week are two where both were given without a `*`.
    expressions: tuple[str, ...]
    follows_elapsed_time: bool
    starts_per_day: int
    _engines: list[Any] = field(default_factory=list, repr=False, compare=False)

    def next_clock_time(self, clock: datetime) -> datetime:
        """The first match strictly after a clock time. Knows nothing of zones."""
        if not self._engines:
            self._engines.extend(_engine(expression) for expression in self.expressions)
        best: datetime | None = None
        for engine in self._engines:
            engine.set_current(clock, force=True)
            found: datetime = engine.get_next(datetime)
            best = found if best is None or found < best else best
        assert best is not None
        return best


Schedule = Cron | Interval | Reboot | Manual


def parse_schedule(text: str, task_id: str, zone: tzinfo) -> Schedule:
    """The schedule a text means. `task_id` spreads `H`; ScheduleError says what is wrong and what is accepted."""
    words = text.split()
    if not words:
        raise ScheduleError(f"is empty; write {ACCEPTED}")
    lowered = " ".join(words).lower()
    if lowered == "manual":
        return Manual(text)
    if lowered == "@reboot":
        return Reboot(text)
    if lowered.startswith("@"):
        if lowered not in SHORTHANDS:
            raise ScheduleError(f"unknown shorthand {text!r}; write {ACCEPTED}")
        return _parse_cron(SHORTHANDS[lowered], text, task_id, zone)
    if len(words) == 5 and not _PHRASE.match(text):
        return _parse_cron(text, text, task_id, zone)
    if _PHRASE.match(text):
        raise ScheduleError(f"the phrase {text!r} is not available in this version; write {ACCEPTED}")
    if len(words) <= 2 and re.match(r"[+-]?[0-9.]", words[0]):
        try:
            return Interval(text, parse_duration(text))
        except ValueError as error:
            raise ScheduleError(str(error)) from None
    if re.match(r"[0-9*H]", words[0]):
        raise ScheduleError(f"{text!r} has {len(words)} fields; a cron line has 5: minute hour day month weekday")
    raise ScheduleError(f"{text!r} is not understood; write {ACCEPTED}")


# --- reading a cron line ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    hash_high: int = 0


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31, hash_high=28),  # H must name a day that every month has
    _Field("month", 1, 12, tuple(_MONTHS)),
    _Field("day of week", 0, 7, tuple(_WEEKDAYS), hash_high=6),
)


def _parse_cron(line: str, text: str, task_id: str, zone: tzinfo) -> Cron:
    words = line.split()
    parsed = [_parse_field(spec, word, task_id) for spec, word in zip(_FIELDS, words, strict=True)]
    minute, hour, day, month, _ = (",".join(values) for values in parsed)
    # croniter takes plain weekdays or numbered ones (`1#2`) in one expression, not both.
    numbered = [value for value in parsed[4] if "#" in value]
    weekdays = [",".join(part) for part in ([v for v in parsed[4] if v not in numbered], numbered) if part]
    if words[2].startswith("*") or words[4].startswith("*"):
        candidates = [f"{minute} {hour} {day} {month} {weekday}" for weekday in weekdays]
    else:
        candidates = [f"{minute} {hour} {day} {month} *"]
        candidates += [f"{minute} {hour} * {month} {weekday}" for weekday in weekdays]
    expressions = tuple(expression for expression in candidates if _ever_matches(expression))
    if not expressions:
        raise ScheduleError(f"{text!r} never happens: no such day in the calendar")
    return Cron(
        text=text,
        zone=zone,
        expressions=expressions,
        follows_elapsed_time=words[0].startswith("*") or words[1].startswith("*"),
        starts_per_day=len(parsed[0]) * len(parsed[1]),
    )


def _parse_field(spec: _Field, word: str, task_id: str) -> list[str]:
    """One field as the list of its numbers (and `l` or `1#2` where the calendar must decide)."""
    special: list[str] = []
    numbers: set[int] = set()
    for part in word.split(","):
        lowered = part.lower()
        nth = re.fullmatch(r"([a-z]{3}|[0-7])#([1-5])", lowered)
        if lowered == "l" and spec.name == "day of month":
            special.append("l")
        elif nth and spec.name == "day of week":
            special.append(f"{_number(spec, nth[1], word) % 7}#{nth[2]}")
        else:
            numbers.update(_parse_part(spec, lowered, word, task_id))
    if spec.name == "day of week":
        numbers = {number % 7 for number in numbers}
    if spec.name.startswith("day") and len(numbers) == (7 if spec.name == "day of week" else 31):
        return ["*"]  # croniter would take the full list for a restriction
    return [str(number) for number in sorted(numbers)] + special


def _parse_part(spec: _Field, part: str, word: str, task_id: str) -> range | list[int]:
    body, slash, step_text = part.partition("/")
    step = 1
    if slash:
        if not re.fullmatch(r"[0-9]{1,3}", step_text) or int(step_text) == 0:
            raise ScheduleError(f"{spec.name} {word!r}: the step {step_text!r} must be a whole number above 0")
        step = int(step_text)
    if body == "*":
        return range(spec.low, (6 if spec.name == "day of week" else spec.high) + 1, step)
    hashed = re.fullmatch(r"h(?:\(([0-9]{1,2})-([0-9]{1,2})\))?", body)
    if hashed:
        low = _number(spec, hashed[1], word) if hashed[1] else spec.low
        high = _number(spec, hashed[2], word) if hashed[2] else (spec.hash_high or spec.high)
        if low > high:
            raise ScheduleError(f"{spec.name} {word!r}: the range {low}-{high} runs backwards")
        spread = zlib.crc32(f"{spec.name}:{task_id.lower()}".encode())
        if slash:
            return range(low + spread % min(step, high - low + 1), high + 1, step)
        return [low + spread % (high - low + 1)]
    first, dash, last = body.partition("-")
    low = _number(spec, first, word)
    if not dash:
        if slash:
            raise ScheduleError(
                f"{spec.name} {word!r}: a step needs a range; write {first}-{spec.high}/{step} or */{step}"
            )
        return [low]
    high = _number(spec, last, word)
    if low > high:
        raise ScheduleError(f"{spec.name} {word!r}: the range {first}-{last} runs backwards")
    return range(low, high + 1, step)


def _number(spec: _Field, text: str, word: str) -> int:
    if text in spec.names:
        return spec.names.index(text) + (1 if spec.name == "month" else 0)
    if re.fullmatch(r"[0-9]{1,2}", text) and spec.low <= int(text) <= spec.high:
        return int(text)
    names = f" or {spec.names[0]}-{spec.names[-1]}" if spec.names else ""
    raise ScheduleError(
        f"{spec.name} {word!r}: {text!r} is not accepted; {spec.low}-{spec.high}{names}, *, ranges a-b, steps */n, lists a,b"
    )


def _engine(expression: str, start: datetime | None = None) -> Any:
    from croniter import croniter

    return croniter(
        expression, start or datetime(2000, 1, 1), day_or=False, max_years_between_matches=_LONGEST_GAP_YEARS
    )


def _ever_matches(expression: str) -> bool:
    day, _, weekday = expression.split()[2:]
    if day == weekday == "*":
        return True
    from croniter import CroniterBadDateError

    try:
        _engine(expression).get_next(datetime)
    except CroniterBadDateError:
        return False
    return True


# --- occurrences -----------------------------------------------------------------------------------------------


def next_after(cron: Cron, moment: datetime) -> datetime:
    """The first occurrence strictly after a moment, as a UTC instant."""
    return _next_elapsed(cron, moment) if cron.follows_elapsed_time else _next_fixed(cron, moment)


def _clock(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _next_fixed(cron: Cron, moment: datetime) -> datetime:
    """Clock times, each once: the first of two equal ones; one inside a gap comes at the end of the gap."""
    clock = _clock(moment, cron.zone)
    while True:
        clock = cron.next_clock_time(clock)
        instant = clock.replace(tzinfo=cron.zone, fold=0).astimezone(UTC)
        if _clock(instant, cron.zone) != clock:  # in a gap: fold=0 reads it with the offset from before
            instant = _change_between(cron.zone, instant - timedelta(days=2), instant + timedelta(days=2), latest=True)
        if instant > moment:
            return instant


def _next_elapsed(cron: Cron, moment: datetime) -> datetime:
    """Every real minute whose clock time matches: skipped clock times never come, repeated ones come twice."""
    start = moment
    inclusive = False
    while True:
        clock = _clock(start, cron.zone)
        offset = clock - start.replace(tzinfo=None)
        found = cron.next_clock_time(clock - timedelta(seconds=1) if inclusive else clock)
        instant = (found - offset).replace(tzinfo=UTC)
        probe = start
        while probe < instant:
            following = min(probe + _PROBE, instant)
            if following.astimezone(cron.zone).utcoffset() != offset:
                break
            probe = following
        else:
            return instant
        start = _change_between(cron.zone, probe, following)
        inclusive = True


def _change_between(zone: tzinfo, low: datetime, high: datetime, *, latest: bool = False) -> datetime:
    """The instant at which the zone's offset changes between two moments, by bisection to the second."""
    if latest:  # narrow a wide window to the last change in it
        step = high
        while step > low and (step - _PROBE).astimezone(zone).utcoffset() == high.astimezone(zone).utcoffset():
            step -= _PROBE
        low, high = max(low, step - _PROBE), step
    before = low.astimezone(zone).utcoffset()
    low_second, high_second = int(low.timestamp()), int(high.timestamp())
    while high_second - low_second > 1:
        middle = (low_second + high_second) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low_second = middle
        else:
            high_second = middle
    return datetime.fromtimestamp(high_second, UTC)


def occurrences(cron: Cron, after: datetime, until: datetime) -> Iterator[datetime]:
    moment = next_after(cron, after)
    while moment <= until:
        yield moment
        moment = next_after(cron, moment)


def latest_occurrences(cron: Cron, after: datetime, until: datetime, most: int) -> list[datetime]:
    """The last few occurrences in a window, found from its end: a year of minutes costs no more than an hour."""
    width = timedelta(hours=1)
    while True:
        start = max(after, until - width)
        found = list(occurrences(cron, start, until))
        if len(found) >= most or start == after:
            return found[-most:]
        width *= 4


def count_occurrences(cron: Cron, after: datetime, until: datetime) -> int:
    """How many occurrences lie in a window: whole days by multiplication, only the odd days one by one."""
    if until - after <= timedelta(days=3):
        return sum(1 for _ in occurrences(cron, after, until))
    first_day = _clock(after, cron.zone).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    last_day = _clock(until, cron.zone).replace(hour=0, minute=0, second=0, microsecond=0)
    begin, end = _at(first_day, cron.zone), _at(last_day, cron.zone)
    total = sum(1 for _ in occurrences(cron, after, begin - timedelta(seconds=1)))
    total += sum(1 for _ in occurrences(cron, end - timedelta(seconds=1), until))
    by_day = Cron(cron.text, cron.zone, tuple(f"0 0 {' '.join(e.split()[2:])}" for e in cron.expressions), False, 1)
    day = by_day.next_clock_time(first_day - timedelta(seconds=1))
    while day < last_day:
        start, stop = _at(day, cron.zone), _at(day + timedelta(days=1), cron.zone)
        if stop - start == timedelta(days=1) and _clock(start, cron.zone) == day:
            total += cron.starts_per_day
            day = by_day.next_clock_time(day)
        else:  # together with the day after it, which takes what a zone that leaves out a whole day has moved
            after_next, second = day + timedelta(days=2), timedelta(seconds=1)
            stop = min(_at(after_next, cron.zone), end)
            total += sum(1 for _ in occurrences(cron, start - second, stop - second))
            day = by_day.next_clock_time(after_next - second)
    return total


def _at(clock: datetime, zone: tzinfo) -> datetime:
    return clock.replace(tzinfo=zone).astimezone(UTC)
