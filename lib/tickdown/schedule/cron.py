"""Cron lines: what they mean, by the rules of Debian's cron, and when they come up in a time zone.

croniter searches the calendar for the days; the times of a day are a list. The meaning is decided here, when the text is
read: croniter never sees the user's own text, only plain lists of numbers, on clock time without a zone.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

from tickdown.base.records import record
from tickdown.time.wall_clock import PROBE, change_between, clock_changes, clock_time, instant_of, twice_note

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST_GAP_YEARS = 50  # 29 February on one given weekday can be 40 years away
_LONGEST_REPEAT = timedelta(days=2)  # no clock was ever put back by more than a day
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_MOMENT = timedelta(microseconds=1)
_EVERY_DAY = f"* {','.join(map(str, range(1, 13)))} *"


class ScheduleError(ValueError):
    """Says which part is wrong, and what is accepted there."""


@record(frozen=True)
class Cron:
    text: str
    zone: tzinfo
    # Day of month, month, weekday as croniter reads them. Any of them may match: there are two where day of month and day of
    # week were both given without a `*`.
    days: tuple[str, ...]
    follows_elapsed_time: bool
    # Minute, hour, day of month, month, weekday as lists of what matches; `*` stands for every day. One text: there are
    # thousands of them, which are read, compared and hashed.
    fields: str = ""
    both_days: bool = True  # a day of month and a weekday must both match

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(values.split(",")) for values in self.fields.split())

    def next_clock_time(self, clock: datetime) -> datetime:
        """The first match strictly after a clock time. Knows nothing of zones."""
        midnight = clock.replace(hour=0, minute=0, second=0, microsecond=0)
        times, days = _times_of_day(self.fields), self.days
        day = _first_day(days, midnight)
        if day == midnight:
            later = bisect_right(times, clock - midnight)
            if later < len(times):
                return midnight + times[later]
            day = _first_day(days, midnight + _DAY)
        return day + times[0]


# --- reading a cron line ---------------------------------------------------------------------------------------


@record(frozen=True)
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
    _Field("month", 1, 12, MONTHS),
    _Field("day of week", 0, 7, WEEKDAYS, hash_high=6),
)


def parse_cron(line: str, text: str, task_id: str, zone: tzinfo) -> Cron:
    # Only `H` depends on the task; any other line means the same for every task that has it.
    meaning = _meaning(line, task_id if "h" in line.lower() else "")
    if not meaning.days:
        raise ScheduleError(f"{text!r} never happens: no month of it has such a day of month")
    return Cron(text, zone, meaning.days, meaning.follows_elapsed_time, meaning.fields, meaning.both_days)


@lru_cache(maxsize=4096)
def _meaning(line: str, task_id: str) -> Cron:
    words = line.split()
    parsed = [
        _parse_field(number, word, task_id if "h" in word.lower() else "")
        for number, word in zip(range(len(_FIELDS)), words, strict=True)
    ]
    day, month = ",".join(parsed[2]), ",".join(parsed[3])
    both_days = words[2].startswith("*") or words[4].startswith("*")
    # croniter takes plain weekdays or numbered ones (`1#2`) in one expression, not both.
    numbered = [value for value in parsed[4] if "#" in value]
    weekdays = [",".join(part) for part in ([v for v in parsed[4] if v not in numbered], numbered) if part]
    if both_days:
        candidates = [f"{day} {month} {weekday}" for weekday in weekdays]
    else:
        candidates = [f"{day} {month} *", *(f"* {month} {weekday}" for weekday in weekdays)]
    return Cron(
        text=line,
        zone=UTC,
        days=tuple(filter(_ever_matches, candidates)),
        follows_elapsed_time=words[0].startswith("*") or words[1].startswith("*"),
        fields=" ".join(map(",".join, parsed)),
        both_days=both_days,
    )


@lru_cache(maxsize=4096)
def _parse_field(number: int, word: str, task_id: str) -> tuple[str, ...]:
    """One field as the list of its numbers (and `l` or `1#2` where the calendar must decide)."""
    spec = _FIELDS[number]
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
        return ("*",)  # croniter would take the full list for a restriction
    return (*(str(number) for number in sorted(numbers)), *special)


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
    special = {"day of month": ", L (the last day)", "day of week": ", mon#1 to mon#5"}.get(spec.name, "")
    raise ScheduleError(
        f"{spec.name} {word!r}: {text!r} is not accepted; {spec.low}-{spec.high}{names}, *, ranges a-b, steps */n, lists a,b, "
        f"H{special}"
    )


@lru_cache(maxsize=1024)
def _first_day(days: tuple[str, ...], midnight: datetime) -> datetime:
    """The first matching day from one on; its midnight. Tasks share most of their days, if not their times."""
    if _EVERY_DAY in days:
        return midnight
    found: list[datetime] = [_engine(day, midnight - _SECOND).get_next(datetime) for day in days]
    return min(found)


def _engine(days: str, start: datetime) -> Any:
    from croniter import croniter

    return croniter(f"0 0 {days}", start, day_or=False, max_years_between_matches=_LONGEST_GAP_YEARS)


@lru_cache(maxsize=1024)
def _ever_matches(days: str) -> bool:
    day, _, weekday = days.split()
    if day == weekday == "*":
        return True
    from croniter import CroniterBadDateError

    try:
        _engine(days, datetime(2000, 1, 1)).get_next(datetime)
    except CroniterBadDateError:
        return False
    return True


# --- occurrences -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def next_occurrence(cron: Cron, moment: datetime) -> datetime:
    """The first one strictly after a moment, as a UTC instant. Kept for a while: a decision asks more than once, and many
    tasks have the same schedule."""
    return _next_elapsed(cron, moment) if cron.follows_elapsed_time else _next_fixed(cron, moment)


def _next_fixed(cron: Cron, moment: datetime) -> datetime:
    """Clock times, each once: the first of two equal ones; one inside a gap comes at the end of the gap."""
    clock = clock_time(moment, cron.zone)
    while True:
        clock = cron.next_clock_time(clock)
        instant = instant_of(clock, cron.zone)
        if instant > moment:
            return instant


def _next_elapsed(cron: Cron, moment: datetime) -> datetime:
    """Every real minute whose clock time matches: skipped clock times never come, repeated ones come twice."""
    start = moment
    inclusive = False
    while True:
        clock = clock_time(start, cron.zone)
        offset = clock - start.replace(tzinfo=None)
        found = cron.next_clock_time(clock - _SECOND if inclusive else clock)
        instant = (found - offset).replace(tzinfo=UTC)
        probe = start
        while probe < instant:
            following = min(probe + PROBE, instant)
            if following.astimezone(cron.zone).utcoffset() != offset:
                break
            probe = following
        else:
            return instant
        start = change_between(cron.zone, probe, following)
        inclusive = True


def occurrences(cron: Cron, after: datetime, until: datetime) -> Iterator[datetime]:
    """Those after a moment, up to another and with it."""
    return (midnight + time for midnight, times in _by_day(cron, after, until) for time in times)


def count_occurrences(cron: Cron, after: datetime, until: datetime) -> int:
    return sum(len(times) for _, times in _by_day(cron, after, until))


def _by_day(cron: Cron, after: datetime, until: datetime) -> Iterator[tuple[datetime, list[timedelta]]]:
    """The same as `next_occurrence` again and again, but a day at once: between two changes of the clock, a clock time
    becomes an instant by one subtraction."""
    begin = after - _LONGEST_REPEAT  # what the clock has shown before is not due again
    shown = clock_time(begin, cron.zone)
    for start, stop in pairwise(chain([begin], clock_changes(cron.zone, begin, until), [until + _MOMENT])):
        first = clock_time(start, cron.zone)
        offset = first - start.replace(tzinfo=None)
        end = stop.replace(tzinfo=None) + offset
        lower = first if cron.follows_elapsed_time else max(first, shown)
        if start <= after:
            lower = max(lower, after.replace(tzinfo=None) + offset + _MOMENT)
        elif shown < first and not cron.follows_elapsed_time and cron.next_clock_time(shown - _SECOND) <= first:
            yield start, [timedelta(0)]  # the clock has jumped: what it left out comes now, once
            lower = first + _MOMENT
        for midnight, times in _matching_days(cron, lower, end):
            yield midnight.replace(tzinfo=UTC) - offset, times
        shown = max(shown, end)


def _matching_days(cron: Cron, start: datetime, end: datetime) -> Iterator[tuple[datetime, list[timedelta]]]:
    """Each day of a window of clock times, without its end, that has matches, with those. The rules of cron make every
    matching day have all times of the day."""
    times = _times_of_day(cron.fields)
    clock = start
    while clock < end and (found := cron.next_clock_time(clock - _SECOND)) < end:
        midnight = found.replace(hour=0, minute=0, second=0)
        yield midnight, times[bisect_left(times, start - midnight) : bisect_left(times, end - midnight)]
        clock = midnight + _DAY


@lru_cache(maxsize=4096)
def _times_of_day(fields: str) -> list[timedelta]:
    minutes, hours, *_ = (values.split(",") for values in fields.split())
    return [timedelta(hours=int(hour), minutes=int(minute)) for hour in hours for minute in minutes]


def latest_occurrences(cron: Cron, after: datetime, until: datetime, most: int) -> list[datetime]:
    """The last few occurrences in a window, found from its end: a year of minutes costs no more than an hour."""
    width = timedelta(hours=1)
    while True:
        start = max(after, until - width)
        found = list(occurrences(cron, start, until))
        if len(found) >= most or start == after:
            return found[-most:]
        width *= 4


# --- changes of the clock --------------------------------------------------------------------------------------


def clock_note(cron: Cron, moment: datetime) -> str | None:
    """What a change of the clock does to an occurrence, in words; None if nothing."""
    if cron.follows_elapsed_time:
        return None
    clock = clock_time(moment, cron.zone)
    skipped = []  # what the clock has jumped over to get here
    wanted = cron.next_clock_time(clock_time(moment - _SECOND, cron.zone))
    while wanted < clock:
        skipped.append(wanted)
        wanted = cron.next_clock_time(wanted)
    if skipped:
        first, last = skipped[0], skipped[-1]
        which = f"{first:%H:%M} does not exist on {first:%Y-%m-%d}: it runs"
        if first != last:
            which = (
                f"{first:%H:%M} to {last:%H:%M} ({len(skipped)} times) do not exist on {first:%Y-%m-%d}: they run once"
            )
        at = f"{clock:%H:%M}" if clock.date() == first.date() else f"{clock:%H:%M} on {clock:%Y-%m-%d}"
        return f"{which} at {at}, when the clock has jumped"
    return twice_note(moment, cron.zone)


def notes_between(cron: Cron, after: datetime, until: datetime) -> Iterator[str]:
    """What the clock's changes in a window do to the occurrences of a line."""
    if cron.follows_elapsed_time:
        return
    day = timedelta(days=1)
    for change in clock_changes(cron.zone, after, until + day):
        # A clock set back repeats what came before the change; one set forward moves to the very change.
        for moment in occurrences(cron, max(after, change - day), min(change, until)):
            note = clock_note(cron, moment)
            if note is not None:
                yield note
