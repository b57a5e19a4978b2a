"""Schedules in words: `every weekday at 18:30`, `in 30 minutes`.

A phrase becomes what it stands for: a cron line, an interval, or a single moment that is still to be counted from when
the task is first seen.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from tickdown.base.records import record
from tickdown.base.suggestions import suggestion
from tickdown.schedule.cron import WEEKDAYS, ScheduleError
from tickdown.time.durations import UNITS, parse_clock, parse_duration, parse_moment
from tickdown.time.wall_clock import clock_time, instant_of, twice_note

FIRST_WORDS = ("every", "hourly", "daily", "weekly", "in", "at", "tomorrow", "on")
_WEEKDAY_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_NO_TIME = "09:00"
_NO_WEEKDAY = "mon"
_RECURRING = (
    "every 15 minutes, every hour, every day at 09:00, every week on monday at 09:00, every monday at 09:00, "
    "every weekday at 18:30"
)
_ONCE = "in 30 minutes, at 17:00, tomorrow at 09:00, on 2026-06-01 at 12:00"


@record(frozen=True)
class Once:
    """One moment: a while after the task was first seen, or a time of day on a day."""

    delay: timedelta | None = None
    clock: time = time(9)
    day: date | None = None
    tomorrow: bool = False

    def moment(self, first_seen: datetime, zone: tzinfo) -> datetime:
        if self.delay is not None:
            return first_seen + self.delay
        today = first_seen.astimezone(zone).date()
        day = self.day or (today + timedelta(days=1) if self.tomorrow else today)
        at = instant_of(datetime.combine(day, self.clock), zone)
        if self.day is None and not self.tomorrow and at <= first_seen:
            at = instant_of(datetime.combine(day + timedelta(days=1), self.clock), zone)
        return at.astimezone(UTC)

    def clock_note(self, first_seen: datetime, zone: tzinfo) -> str | None:
        """What a change of the clock does to it, in words; None if nothing."""
        if self.delay is not None:
            return None
        at = self.moment(first_seen, zone)
        shown = clock_time(at, zone)
        if shown.time() != self.clock:
            return f"{self.clock:%H:%M} does not exist then: it runs at {shown:%H:%M on %Y-%m-%d}, when the clock has jumped"
        return twice_note(at, zone)


def is_phrase(words: list[str]) -> bool:
    return words[0].lower() in FIRST_WORDS


def read_phrase(text: str) -> str | timedelta | Once:
    """A cron line, an interval, or one moment. ScheduleError names the word that is wrong."""
    words = text.lower().split()
    first, rest = words[0], words[1:]
    match first:
        case "every":
            return _every(rest, text)
        case "hourly":
            _nothing_more(rest, text)
            return timedelta(hours=1)
        case "daily":
            return _at_clock("* * *", rest, text)
        case "weekly":
            return _weekly(rest, text)
        case "in":
            return Once(delay=_duration(" ".join(rest), text))
        case "at":
            return Once(clock=_clock_at(words, text))
        case "tomorrow":
            return Once(clock=_clock_at(rest or ["at", _NO_TIME], text), tomorrow=True)
        case _:
            return _on_day(rest, text)


def read_moment(text: str, zone: tzinfo, now: datetime) -> datetime:
    """One moment as people type it: a phrase such as `tomorrow at 09:00`, or what `parse_moment` reads."""
    words = text.split()
    if not words or not is_phrase(words):
        return parse_moment(text, zone, now)
    said = read_phrase(text)
    if not isinstance(said, Once):
        raise ValueError(f"{text!r} is not one moment; write {_ONCE}, 2026-06-01T09:30 or 09:30")
    return said.moment(now, zone)


def _every(words: list[str], text: str) -> str | timedelta:
    if not words:
        raise _too_short(text)
    number = re.fullmatch(r"([+-]?[0-9.]+)([a-z]*)", words[0])
    if number:  # every 15 minutes, every 15m
        unit, rest = (number[2], words[1:]) if number[2] else ("".join(words[1:2]), words[2:])
        every = _duration(words[0] if number[2] else " ".join(words[:2]), text)
        if UNITS[unit] < 86400 or float(number[1]) != 1:
            _nothing_more(rest, text)
            return every
        words = [unit, *rest]
    word, rest = words[0], words[1:]
    if word == "weekday":
        return _at_clock("* * 1-5", rest, text)
    if (weekday := _weekday(word)) is not None:
        return _at_clock(f"* * {weekday}", rest, text)
    match UNITS.get(word):
        case 86400:
            return _at_clock("* * *", rest, text)
        case 604800:
            return _weekly(rest, text)
        case int(seconds):
            _nothing_more(rest, text)
            return timedelta(seconds=seconds)
    known = [*_WEEKDAY_NAMES, "weekday", "day", "week", "hour", "minute"]
    raise ScheduleError(f"{word!r} is not understood after 'every'; write {_RECURRING}{suggestion(word, known)}")


def _weekly(words: list[str], text: str) -> str:
    weekday: str | None = _NO_WEEKDAY
    if words and words[0] == "on":
        if not words[1:]:
            raise _too_short(text)
        word = words[1]
        weekday, words = _weekday(word), words[2:]
        if weekday is None:
            near = suggestion(word, _WEEKDAY_NAMES)
            raise ScheduleError(f"{word!r} is no weekday; write monday to sunday, or mon to sun{near}")
    return _at_clock(f"* * {weekday}", words, text)


def _at_clock(days: str, words: list[str], text: str) -> str:
    clock = _clock_at(words or ["at", _NO_TIME], text)
    return f"{clock.minute} {clock.hour} {days}"


def _clock_at(words: list[str], text: str) -> time:
    if words[0] != "at":
        raise ScheduleError(f"{words[0]!r} is not understood in {text!r}; 'at' and a time such as 09:00 may come there")
    if not words[1:]:
        raise _too_short(text)
    try:
        clock = parse_clock(words[1])
    except ValueError as error:
        raise ScheduleError(str(error)) from None
    _nothing_more(words[2:], text)
    return clock


def _on_day(words: list[str], text: str) -> Once:
    if not words:
        raise _too_short(text)
    word = words[0]
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", word):
            raise ValueError
        day = date.fromisoformat(word)
    except ValueError:
        raise ScheduleError(f"{word!r} is no date; write year-month-day, as in on 2026-06-01 at 12:00") from None
    if not 2000 <= day.year < 2200:
        raise ScheduleError(f"{word!r} is out of range; write a date from 2000 to 2199")
    return Once(clock=_clock_at(words[1:] or ["at", _NO_TIME], text), day=day)


def _duration(written: str, text: str) -> timedelta:
    if not written:
        raise _too_short(text)
    try:
        return parse_duration(written)
    except ValueError as error:
        raise ScheduleError(str(error)) from None


def _weekday(word: str) -> str | None:
    if word in _WEEKDAY_NAMES:
        return word[:3]
    return word if word in WEEKDAYS else {"tues": "tue", "weds": "wed", "thur": "thu", "thurs": "thu"}.get(word)


def _nothing_more(words: list[str], text: str) -> None:
    if words:
        hint = "; for a time of day every few days, write a cron line such as 0 9 */2 * *" if "at" in words else ""
        raise ScheduleError(f"{' '.join(words)!r} is too much in {text!r}; write {_forms(text)}{hint}")


def _too_short(text: str) -> ScheduleError:
    return ScheduleError(f"{text!r} ends too early; write {_forms(text)}")


def _forms(text: str) -> str:
    return _ONCE if text.split()[0].lower() in ("in", "at", "tomorrow", "on") else _RECURRING
