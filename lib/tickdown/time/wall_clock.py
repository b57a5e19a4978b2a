"""Clock times and instants: what a clock in a zone shows, when it shows it, and when it jumps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

PROBE = timedelta(hours=12)  # no zone changes its clock twice within this


def clock_time(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def instant_of(clock: datetime, zone: tzinfo) -> datetime:
    """When a clock shows a time: the first of two equal ones; for one inside a gap, the end of the gap."""
    instant = clock.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if clock_time(instant, zone) != clock:  # in a gap: fold=0 reads it with the offset from before
        instant = change_between(zone, instant - timedelta(days=2), instant + timedelta(days=2), latest=True)
    return instant


def change_between(zone: tzinfo, low: datetime, high: datetime, *, latest: bool = False) -> datetime:
    """The instant at which the zone's offset changes between two moments, by bisection to the second."""
    if latest:  # narrow a wide window to the last change in it
        step = high
        while step > low and (step - PROBE).astimezone(zone).utcoffset() == high.astimezone(zone).utcoffset():
            step -= PROBE
        low, high = max(low, step - PROBE), step
    before = low.astimezone(zone).utcoffset()
    low_second, high_second = int(low.timestamp()), int(high.timestamp())
    while high_second - low_second > 1:
        middle = (low_second + high_second) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low_second = middle
        else:
            high_second = middle
    return datetime.fromtimestamp(high_second, UTC)


def clock_changes(zone: tzinfo, after: datetime, until: datetime) -> Iterator[datetime]:
    """The instants at which a zone's clock jumps."""
    moment = after
    while moment < until:
        following = min(moment + PROBE, until)
        if moment.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            yield change_between(zone, moment, following)
        moment = following


def twice_note(moment: datetime, zone: tzinfo) -> str | None:
    """Said of a moment whose clock time comes a second time."""
    clock = clock_time(moment, zone)
    again = clock.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return f"{clock:%H:%M} comes twice on {clock:%Y-%m-%d}: it runs the first time only" if again > moment else None
