"""Durations, sizes and instants as text: reading what people write, writing what people read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta, tzinfo

from tickdown.time.wall_clock import instant_of

UNITS = {
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hr": 3600, "hrs": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "week": 604800, "weeks": 604800,
}  # fmt: skip
_SIZES = {
    "": 1, "b": 1, "k": 1024, "kb": 1000, "kib": 1024, "m": 1024**2, "mb": 1000**2, "mib": 1024**2,
    "g": 1024**3, "gb": 1000**3, "gib": 1024**3,
}  # fmt: skip
_NUMBER_UNIT = re.compile(r"([+-]?)([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([^\s0-9.+-]*)")
DURATION_FORMS = "a number and a unit: s, m, h, d or w, as in 30s, 10m, 1.5h, 2d, 1w"
SIZE_FORMS = "a number of bytes, or a number and a unit, as in 500 KiB or 10 MiB"
LONGEST = timedelta(days=3660)


def parse_duration(text: str, *, allow_zero: bool = False) -> timedelta:
    """`10m` to ten minutes. ValueError says which rule was broken."""
    match = _NUMBER_UNIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write {DURATION_FORMS}")
    sign, number, unit = match.groups()
    if sign == "-":
        raise ValueError(f"{text!r} is negative; write {DURATION_FORMS}")
    if not unit:
        raise ValueError(f"{text!r} has no unit; write {DURATION_FORMS}")
    seconds_per_unit = UNITS.get(unit.lower())
    if seconds_per_unit is None:
        raise ValueError(f"{text!r} has the unknown unit {unit!r}; write {DURATION_FORMS}")
    return checked_duration(float(number) * seconds_per_unit, text, allow_zero=allow_zero)


def checked_duration(seconds: float, text: object, *, allow_zero: bool) -> timedelta:
    if seconds < 0:
        raise ValueError(f"{str(text)!r} is negative; write {DURATION_FORMS}")
    if seconds == 0 and not allow_zero:
        raise ValueError(f"{str(text)!r} is zero; write {DURATION_FORMS}")
    if seconds > LONGEST.total_seconds():
        raise ValueError(f"{str(text)!r} is longer than ten years")
    return timedelta(seconds=seconds)


def parse_size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)", text.strip())
    factor = _SIZES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write {SIZE_FORMS}")
    return int(float(match[1]) * factor)


def duration_text(delta: timedelta) -> str:
    """The shortest exact form: 90 minutes are `90m`, not `1.5h`."""
    seconds = delta.total_seconds()
    for unit, size in (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def _rough(seconds: float) -> str:
    for limit, size, unit in ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h"), (14 * 86400, 86400, "d")):
        if seconds < limit:
            return f"{max(1, round(seconds / size))} {unit}"
    if seconds < 100 * 86400:
        return f"{round(seconds / 604800)} wk"
    return f"{round(seconds / 86400 / 30.4)} mo" if seconds < 700 * 86400 else f"{round(seconds / 86400 / 365.25)} y"


def in_words(moment: datetime, now: datetime) -> str:
    """`in 3 min`, `2 h ago`, `now`."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now" if seconds > 0 else "just now"
    return f"in {_rough(seconds)}" if seconds > 0 else f"{_rough(-seconds)} ago"


def took(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    return (
        f"{milliseconds} ms"
        if milliseconds < 1000
        else (f"{milliseconds / 1000:.1f} s" if milliseconds < 90_000 else _rough(milliseconds / 1000))
    )


def iso(moment: datetime | None, zone: tzinfo) -> str | None:
    """ISO 8601 with offset, in the given zone; whole seconds where they are whole."""
    if moment is None:
        return None
    return moment.astimezone(zone).isoformat(timespec="milliseconds" if moment.microsecond else "seconds")


def parse_clock(text: str) -> time:
    """A time of day: `9:00` or `09:00`."""
    match = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})", text)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59:
        meant = _meant(text)
        near = f"; did you mean {meant:%H:%M}?" if meant is not None else ""
        raise ValueError(f"{text!r} is not a time of day; write hours and minutes from 00:00 to 23:59{near}")
    return time(int(match[1]), int(match[2]))


def _meant(text: str) -> time | None:
    """What `9`, `9am` and `9:30pm` stand for. They are only suggested: whether `at 9` is in the evening is a guess."""
    match = re.fullmatch(r"([0-9]{1,2})(?:[:.]([0-9]{2}))?(am|pm)?", text)
    if match is None:
        return None
    hour, minute = int(match[1]), int(match[2] or 0)
    if match[3]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match[3] == "pm" else 0)
    return time(hour, minute) if hour <= 23 and minute <= 59 else None


def parse_moment(text: str, zone: tzinfo, now: datetime) -> datetime:
    """A point in time as people type it: an ISO date or date and time, or `HH:MM` (its next passing)."""
    stripped = text.strip()
    clock = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})", stripped)
    try:
        if clock:
            today = now.astimezone(zone).replace(
                tzinfo=None, hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0
            )
            moment = instant_of(today, zone)
            return moment if moment > now else instant_of(today + timedelta(days=1), zone)
        moment = datetime.fromisoformat(stripped)
        return moment.astimezone(UTC) if moment.tzinfo else instant_of(moment, zone)
    except (ValueError, OverflowError):  # overflow: the first or last day that there is
        raise ValueError(f"{text!r} is not a time; write 2026-06-01, 2026-06-01T09:30 or 09:30") from None
