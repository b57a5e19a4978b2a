"""Times when nothing starts: hours of every day, days of the week, or dates, all on the clock of the task's zone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from tickdown.base.records import record
from tickdown.schedule.cron import WEEKDAYS
from tickdown.time.durations import parse_clock
from tickdown.time.wall_clock import instant_of

FORMS = "'22:00-06:00', 'sat-sun' or '2026-12-24/2026-12-26'"
_DAY = timedelta(days=1)
_MOST_STEPS = 400  # more than a year of days: whoever is still inside then is inside for good


@record(frozen=True)
class Hours:
    """Every day from one time to another; over midnight if the end is the earlier."""

    text: str
    start: time
    end: time

    def until(self, clock: datetime) -> datetime | None:
        now, today = clock.time(), clock.replace(hour=0, minute=0, second=0, microsecond=0)
        end = datetime.combine(today, self.end)
        if self.start < self.end:
            return end if self.start <= now < self.end else None
        if now >= self.start:
            return end + _DAY
        return end if now < self.end else None


@record(frozen=True)
class Weekdays:
    text: str
    days: frozenset[int]  # 0 is Sunday, as in cron

    def until(self, clock: datetime) -> datetime | None:
        if clock.isoweekday() % 7 not in self.days:
            return None
        return datetime.combine(clock.date() + _DAY, time())


@record(frozen=True)
class Dates:
    """Both days and all between them."""

    text: str
    first: date
    last: date

    def until(self, clock: datetime) -> datetime | None:
        if not self.first <= clock.date() <= self.last:
            return None
        return datetime.combine(self.last + _DAY, time()) if self.last < date.max else datetime.max


Blackout = Hours | Weekdays | Dates


def parse_blackout(text: str) -> Blackout:
    words = text.strip().lower()
    try:
        if match := re.fullmatch(r"([0-9]{1,2}:[0-9]{2})\s*-\s*([0-9]{1,2}:[0-9]{2})", words):
            start, end = parse_clock(match[1]), parse_clock("0:00" if match[2] == "24:00" else match[2])
            if start == end:
                raise ValueError("begins and ends at the same time")
            return Hours(text, start, end)
        if match := re.fullmatch(r"([a-z]{3})(?:\s*-\s*([a-z]{3}))?", words):
            first, last = _weekday(match[1]), _weekday(match[2] or match[1])
            return Weekdays(text, frozenset((first + step) % 7 for step in range((last - first) % 7 + 1)))
        if match := re.fullmatch(r"([0-9-]{10})(?:\s*/\s*([0-9-]{10}))?", words):
            day = date.fromisoformat(match[1])
            end_day = date.fromisoformat(match[2] or match[1])
            if end_day < day:
                raise ValueError("ends before it begins")
            return Dates(text, day, end_day)
    except ValueError as error:
        why = str(error)
        raise ValueError(f"{text!r} is not accepted ({why}); {FORMS}") from None
    raise ValueError(f"{text!r} is not accepted; {FORMS}")


def _weekday(name: str) -> int:
    if name not in WEEKDAYS:
        raise ValueError(f"{name!r} is not one of {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(name)


def covering(blackouts: Iterable[Blackout], moment: datetime, zone: tzinfo) -> Blackout | None:
    """The first that forbids a start at this moment."""
    clock = moment.astimezone(zone).replace(tzinfo=None)
    return next((blackout for blackout in blackouts if blackout.until(clock) is not None), None)


def first_free(blackouts: Iterable[Blackout], moment: datetime, zone: tzinfo) -> datetime | None:
    """The moment itself, or the end of the blackouts it lies in; None if they never end."""
    known = tuple(blackouts)
    for _ in range(_MOST_STEPS):
        clock = moment.astimezone(zone).replace(tzinfo=None)
        ends = [end for blackout in known if (end := blackout.until(clock)) is not None]
        if not ends:
            return moment
        if max(ends).year == date.max.year:
            return None  # as people write "for good"; no zone can be asked about that day
        following = instant_of(max(ends), zone)
        # Where the clock is set back over the end, that end lies behind; go on in steps of real time.
        moment = following if following > moment else moment.astimezone(UTC) + timedelta(minutes=1)
    return None
