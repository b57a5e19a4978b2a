"""Moments as people read them: in words, next to the exact time."""

from __future__ import annotations

from datetime import datetime, tzinfo

from tickdown.time.durations import in_words
from tickdown.time.zones import LOCAL, get_zone, zone_name


def when(moment: datetime | None, now: datetime, zone: tzinfo) -> str:
    """`in 3 min (06:00:00)`: in words, next to the exact time; its zone is named where it is not the machine's."""
    if moment is None:
        return "-"
    return f"{in_words(moment, now)} ({exactly(moment, now, zone)})"


def coming(moment: datetime, now: datetime, zone: tzinfo) -> str:
    """The same of a start, which is never past: what is due comes with the next tick."""
    return when(moment, now, zone) if moment > now else f"now ({exactly(moment, now, zone)})"


def exactly(moment: datetime, now: datetime, zone: tzinfo) -> str:
    local, today = moment.astimezone(zone), now.astimezone(zone)
    exact = f"{local:%H:%M:%S}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M}"
    foreign = zone_name(zone) != zone_name(get_zone(LOCAL))
    return f"{exact}{f' {local:%Z}' if foreign else ''}"
