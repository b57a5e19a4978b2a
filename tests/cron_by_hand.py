"""When a cron line comes up, found the naive way: every real minute of a window is looked at. Shares nothing with lib/.

Debian's rules in their plainest form. A line whose minute or hour begins with `*` comes up in every real minute whose
clock time matches. Any other is a fixed time: it comes up when the clock gets beyond it for the first time, so what a
gap swallowed comes in the first minute after it, once, and what the clock shows a second time does not come again.
"""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
DAY = 24 * 60
# More than any clock was put back since 1990 (3 hours, Antarctica): the walk begins in time to know what was shown before.
RUN_UP = 4 * 60


def by_hand(text: str, zone: tzinfo, after: datetime, until: datetime) -> list[datetime]:
    """The occurrences in the window, without its begin and with its end, as UTC instants."""
    line = _line(text)
    first, last = int(after.timestamp()) // 60, int(until.timestamp()) // 60
    first -= 0 if line.follows_elapsed_time else RUN_UP  # what was shown before makes no difference to it
    found = []
    reached, *clocks = _clocks(zone, first - 1, last)
    for minute, clock in enumerate(clocks, first):
        if line.follows_elapsed_time or clock == reached + 1:
            comes = line.matches(clock)
        else:
            comes = any(line.matches(passed) for passed in range(reached + 1, clock + 1))
        if comes:
            found.append(datetime.fromtimestamp(minute * 60, UTC))
        reached = max(reached, clock)
    return [moment for moment in found if after < moment <= until]


class _Line:
    def __init__(self, text: str) -> None:
        minute, hour, day, month, weekday = text.lower().split()
        self.follows_elapsed_time = minute.startswith("*") or hour.startswith("*")
        self.both_days_must_match = day.startswith("*") or weekday.startswith("*")
        self.times = {60 * h + m for h in _numbers(hour, 0, 23) for m in _numbers(minute, 0, 59)}
        self.days, self.last_day = _numbers(day, 1, 31), "l" in day.split(",")
        self.months = _numbers(month, 1, 12, ["", *MONTHS])
        self.weekdays = {number % 7 for number in _numbers(weekday, 0, 7 if weekday[0] != "*" else 6, WEEKDAYS)}
        self.nth_weekdays = {
            (_number(name, WEEKDAYS) % 7, int(nth))
            for name, sign, nth in (part.partition("#") for part in weekday.split(","))
            if sign
        }
        self.known_days: dict[int, bool] = {}

    def matches(self, clock: int) -> bool:
        """A clock time, in minutes since 1970 began on that clock."""
        day, time = divmod(clock, DAY)
        if time not in self.times:
            return False
        if day not in self.known_days:
            self.known_days[day] = self._day_matches(date(1970, 1, 1) + timedelta(days=day))
        return self.known_days[day]

    def _day_matches(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        weekday, nth = day.isoweekday() % 7, (day.day + 6) // 7
        is_last = day.day == calendar.monthrange(day.year, day.month)[1]
        by_date = day.day in self.days or (self.last_day and is_last)
        by_weekday = weekday in self.weekdays or (weekday, nth) in self.nth_weekdays
        return by_date and by_weekday if self.both_days_must_match else by_date or by_weekday


_line = lru_cache(maxsize=1000)(_Line)


def _numbers(word: str, low: int, high: int, names: list[str] | None = None) -> set[int]:
    found: set[int] = set()
    for part in word.split(","):
        if part == "l" or "#" in part:
            continue
        body, _, step = part.partition("/")
        if body == "*":
            first, last = low, high
        else:
            begin, _, end = body.partition("-")
            first = _number(begin, names)
            last = _number(end, names) if end else first
        found.update(range(first, last + 1, int(step or 1)))
    return found


def _number(text: str, names: list[str] | None) -> int:
    return names.index(text) if names and text in names else int(text)


@lru_cache(maxsize=8)
def _clocks(zone: tzinfo, first: int, last: int) -> list[int]:
    """What the clock shows in each real minute, in minutes since 1970 began on that clock."""
    shown = []
    for minute in range(first, last + 1):
        offset = datetime.fromtimestamp(minute * 60, zone).utcoffset()
        assert offset is not None
        shown.append(minute + (offset.days * 86400 + offset.seconds) // 60)
    return shown
