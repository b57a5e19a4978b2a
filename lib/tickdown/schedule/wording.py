"""A schedule in plain English, from what it means and not from how it was written.

Precision goes before beauty: a reading never says what is not so. Lists too long to read become counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise

from tickdown.schedule.cron import Cron
from tickdown.schedule.phrases import Once
from tickdown.schedule.schedule import Interval, Manual, OneShot, Reboot, Schedule

LONGEST = 200  # a reading stays below this
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_WEEK = (1, 2, 3, 4, 5, 6, 0)  # as people count it
_NTH = ("first", "second", "third", "fourth", "fifth")
_DAYS_IN_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_UNITS = (("week", 604800), ("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def reading(schedule: Schedule) -> str:
    match schedule:
        case Manual():
            return "only by hand or after other tasks"
        case Reboot():
            return "once after each boot"
        case Interval(every=every):
            return f"{_duration(every)} after the last end"
        case OneShot(once=once):
            return _once(once)
        case Cron():
            most = 10
            while len(text := _cron(schedule, most)) >= LONGEST and most:
                most //= 2
            return text


def _once(once: Once) -> str:
    clock = f"{once.clock:%H:%M}"
    if once.delay is not None:
        return f"once, {_duration(once.delay)} after it was first seen"
    if once.day is not None:
        return f"once, on {once.day.isoformat()} at {clock}"
    if once.tomorrow:
        return f"once, tomorrow at {clock} (counted from when it was first seen)"
    return f"once, at {clock} (the first after it was first seen)"


def _duration(delta: timedelta) -> str:
    """Exact: in one unit where the number stays small, else in several."""
    seconds = delta.total_seconds()
    for unit, size in _UNITS:
        if seconds >= size and seconds % size == 0 and (seconds < 100 * size or unit == "day"):
            return _plural(int(seconds // size), unit)
    whole, parts = int(seconds), []
    for unit, size in _UNITS[:-1]:
        if whole >= size:
            parts.append(_plural(whole // size, unit))
            whole %= size
    rest = f"{whole + delta.microseconds / 1_000_000:.6f}".rstrip("0").rstrip(".")
    return _and([*parts, f"{rest} {'second' if rest == '1' else 'seconds'}"] if rest != "0" else parts)


def _plural(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


# --- cron ------------------------------------------------------------------------------------------------------


def _cron(cron: Cron, most: int) -> str:
    """`most` is how many values (or ranges of them) one list may name; the rest is counted."""
    minutes, hours, months = (sorted(map(int, cron.parts[field])) for field in (0, 1, 3))
    when, all_day = _time(minutes, hours, most)
    days, names_month = _days(cron, months, most)
    year = "" if len(months) == 12 or names_month else _months(months, most)
    if days:
        return ", ".join(filter(None, [when, days, year]))
    if all_day:
        return ", ".join(filter(None, [when, year]))
    return f"{when}, every day {year}".rstrip()


# --- times of the day


def _time(minutes: list[int], hours: list[int], most: int) -> tuple[str, bool]:
    """The times of a day, and whether they go round the clock, so that "every day" says nothing new."""
    step = _step(minutes)
    even = step is not None and step * len(minutes) == 60  # goes on evenly from one hour to the next
    if len(hours) == 24 and even and minutes[0] == 0:
        return f"every {_every(step, 'minute')}", True
    if len(hours) == 24 and len(minutes) == 1:
        past = f" at {_plural(minutes[0], 'minute')} past" if minutes[0] else ", on the hour"
        return f"every hour{past}", True
    times = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    if len(times) <= 4:
        return f"at {_and(times)}", False
    if len(minutes) == 1 and (hour_step := _step(hours)) is not None:
        return f"every {_every(hour_step, 'hour')} from {times[0]} to {times[-1]}", False
    if len(hours) == 1 and step is not None:
        return f"every {_every(step, 'minute')} from {times[0]} to {times[-1]}", False
    runs = _runs(hours)
    if even and len(runs) <= min(most, 3):
        spans = [f"from {run[0]:02}:{minutes[0]:02} to {run[-1]:02}:{minutes[-1]:02}" for run in runs]
        return f"every {_every(step, 'minute')} {_and(spans)}", False
    if len(times) <= 8:
        return f"at {_and(times)}", False
    if len(minutes) == 1:
        return _single_minute(minutes[0], hours, most), False
    return f"{_past(minutes, step, most)} past {_hours(hours, most)}", len(hours) == 24


def _single_minute(minute: int, hours: list[int], most: int) -> str:
    spans = [f"from {run[0]:02}:{minute:02} to {run[-1]:02}:{minute:02}" for run in _runs(hours) if len(run) > 2]
    singles = [f"{hour:02}:{minute:02}" for run in _runs(hours) if len(run) <= 2 for hour in run]
    if len(spans) + len(singles) > most:
        return f"at {_plural(minute, 'minute')} past {_hours(hours, most)}"
    hourly, single = f"every hour {_and(spans)}", f"at {_and(singles)}"
    return ", and ".join([hourly] * bool(spans) + [single] * bool(singles))


def _past(minutes: list[int], step: int | None, most: int) -> str:
    if step is not None and len(minutes) > 2:
        return f"every {_every(step, 'minute')} from {minutes[0]} to {minutes[-1]}"
    items = _ranges(minutes, str)
    if len(items) > most:
        return f"at {len(minutes)} of the minutes {minutes[0]} to {minutes[-1]}"
    return f"at {_and(items)} minutes"


def _hours(hours: list[int], most: int) -> str:
    if len(hours) == 24:
        return "every hour"
    step = _step(hours)
    if step is not None and len(hours) > 2:
        each = "every hour" if step == 1 else f"every {_ordinal(step)} hour"
        return f"{each} from {hours[0]:02} to {hours[-1]:02}"
    items = _ranges(hours, "{:02}".format)
    if len(hours) == 1:
        return f"{hours[0]:02}:00"
    if len(items) > most:
        return f"{len(hours)} of the hours {hours[0]:02} to {hours[-1]:02}"
    return f"the hours {_and(items)}"


# --- days


def _days(cron: Cron, months: list[int], most: int) -> tuple[str, bool]:
    """Which days ("" for all), and whether the month is already named there."""
    longest = max(_DAYS_IN_MONTH[month - 1] for month in months)
    days = [int(value) for value in cron.parts[2] if value.isdigit() and int(value) <= longest]
    last = "l" in cron.parts[2]
    every_day, every_weekday = "*" in cron.parts[2], "*" in cron.parts[4]
    if (every_day and every_weekday) or (not cron.both_days and (every_day or every_weekday)):
        return "", False
    if every_weekday:
        if len(months) == 1 and (date := _dates(days, last, _MONTHS[months[0] - 1], most)):
            return date, True
        return _month_days(days, last, most), False
    week = _Weekdays(cron.parts[4])
    if every_day or not (days or last):
        return week.alone(most), False
    by_date = _month_days(days, last, most, "on any day from")
    if cron.both_days:
        return f"{by_date} if it is {week.one(most)}", False
    return f"{by_date} or {week.one(most, before='on ')}", False


def _dates(days: list[int], last: bool, month: str, most: int) -> str | None:
    """Days of one month, by their date where that reads well."""
    items = _ranges(days, str)
    if last:
        return None if days else f"on the last day of {month}"
    return f"on {_and(items)} {month}" if len(items) <= min(most, 4) else None


def _month_days(days: list[int], last: bool, most: int, all_from: str = "from") -> str:
    step, items = _step(days), _ranges(days, _ordinal)
    if step is not None and len(days) > 2 and not last and most:
        start = all_from if step == 1 else f"on every {_ordinal(step)} day from"
        return f"{start} the {_ordinal(days[0])} to the {_ordinal(days[-1])} of the month"
    if len(items) > max(most, 1):
        between = f"of the days from the {_ordinal(days[0])} to the {_ordinal(days[-1])}" if most else "days"
        return f"on {len(days)} {between}{' and the last day' if last else ''} of the month"
    return f"on the {_and(items + ['last day'] * last)} of the month"


class _Weekdays:
    """Plain weekdays and numbered ones (`1#2`, the second Monday)."""

    def __init__(self, values: Sequence[str]) -> None:
        plain = {int(value) for value in values if "#" not in value}
        numbered: dict[int, set[int]] = {}
        for weekday, _, nth in (value.partition("#") for value in values if "#" in value):
            numbered.setdefault(int(weekday), set()).add(int(nth))
        plain |= {weekday for weekday, nths in numbered.items() if len(nths) == 5}
        self.plain = [weekday for weekday in _WEEK if weekday in plain]
        self.numbered = [
            (weekday, sorted(numbered[weekday])) for weekday in _WEEK if weekday in numbered.keys() - plain
        ]

    def alone(self, most: int) -> str:
        """As the only rule about days: on Mondays and on the first Friday of the month."""
        plain = self._span() or "on " + _and([f"{_WEEKDAYS[weekday]}s" for weekday in self.plain])
        numbered = f"on {self._numbered(most, _and)}"
        return _and([plain] * bool(self.plain) + [numbered] * bool(self.numbered))

    def one(self, most: int, before: str = "") -> str:
        """As one of two rules: a Monday or the first Friday of the month."""
        span = self._span()
        plain = f"a day from {span}" if span else "a " + _or([_WEEKDAYS[weekday] for weekday in self.plain])
        if not most and len(self.plain) > 1:
            plain = f"one of {len(self.plain)} weekdays"
        rules = [plain] * bool(self.plain) + [self._numbered(most, _or)] * bool(self.numbered)
        return _or([before + rule for rule in rules])

    def _span(self) -> str | None:
        """Monday to Friday; Saturday to Monday: three days or more in a row, over the end of the week too."""
        if len(self.plain) == 7:
            return "Monday to Sunday"
        starts = [weekday for weekday in self.plain if (weekday - 1) % 7 not in self.plain]
        if len(self.plain) < 3 or len(starts) != 1:
            return None
        return f"{_WEEKDAYS[starts[0]]} to {_WEEKDAYS[(starts[0] + len(self.plain) - 1) % 7]}"

    def _numbered(self, most: int, join: Callable[[Sequence[str]], str]) -> str:
        count = sum(len(nths) for _, nths in self.numbered)
        if count > max(most, 1):
            return f"{'one of ' if join is _or else ''}{count} numbered weekdays of the month"
        named = [f"the {join([_NTH[nth - 1] for nth in nths])} {_WEEKDAYS[weekday]}" for weekday, nths in self.numbered]
        return f"{join(named)} of the month"


def _months(months: list[int], most: int) -> str:
    items = _ranges(months, lambda month: _MONTHS[month - 1])
    if len(items) > most and len(months) > 1:
        between = f"of the months {_MONTHS[months[0] - 1]} to {_MONTHS[months[-1] - 1]}" if most else "months"
        return f"in {len(months)} {between}"
    return f"{'in' if len(months) < 3 or len(items) > 1 else 'from'} {_and(items)}"


# --- lists -----------------------------------------------------------------------------------------------------


def _step(values: list[int]) -> int | None:
    """The one distance between neighbours, if there is one."""
    distances = {later - earlier for earlier, later in pairwise(values)}
    return distances.pop() if len(distances) == 1 else None


def _runs(values: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def _ranges(values: list[int], show: Callable[[int], str]) -> list[str]:
    """Three and more in a row as `a to b`, the others one by one."""
    items: list[str] = []
    for run in _runs(values):
        items += [f"{show(run[0])} to {show(run[-1])}"] if len(run) > 2 else map(show, run)
    return items


def _and(items: Sequence[str], word: str = "and") -> str:
    return f" {word} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def _or(items: Sequence[str]) -> str:
    return _and(items, "or")


def _every(step: int | None, unit: str) -> str:
    return unit if step == 1 else f"{step} {unit}s"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
