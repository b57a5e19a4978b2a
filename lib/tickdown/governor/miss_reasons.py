"""Why nobody looked in time when an occurrence came up: the reasons of `missed` rows. No clock, no disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from tickdown.base.model import MissReason, RunStatus
from tickdown.base.records import record, replace
from tickdown.governor.governor import Plan, Unrun
from tickdown.schedule.cron import Cron, count_occurrences, latest_occurrences, next_occurrence
from tickdown.schedule.schedule import Schedule

# A tick deals with what has come up in the minute before it.
BEFORE_A_TICK = timedelta(minutes=1)
_MOMENT = timedelta(microseconds=1)


@record(frozen=True)
class Stoppage:
    """A time in which no tick could work, though ticks came; or that the clock left out."""

    reason: MissReason
    since: datetime
    until: datetime


def lacks_reasons(plan: Plan) -> bool:
    return any(map(_lacks_reason, plan.unrun))


def with_reasons(plan: Plan, schedule: Schedule, stoppages: Sequence[Stoppage]) -> Plan:
    """What was missed says why. What no stoppage explains is an outage: no tick came."""
    told: list[Unrun] = []
    for unrun in plan.unrun:
        told.extend(_explained(unrun, schedule, stoppages) if _lacks_reason(unrun) else [unrun])
    return replace(plan, unrun=tuple(told))


def _lacks_reason(unrun: Unrun) -> bool:
    return unrun.status is RunStatus.MISSED and unrun.reason is None


def _explained(unrun: Unrun, schedule: Schedule, stoppages: Sequence[Stoppage]) -> Iterator[Unrun]:
    """One row for each stretch of the same reason."""
    if unrun.count == 1 or not isinstance(schedule, Cron):
        yield replace(unrun, reason=_reason_at(unrun.first, stoppages))
        return
    begin, stretch = unrun.first, None
    for cut in [*_cuts(stoppages, unrun), unrun.last]:
        if begin > cut:
            continue
        count = count_occurrences(schedule, begin - _MOMENT, cut)
        if not count:
            continue
        last = latest_occurrences(schedule, begin - _MOMENT, cut, 1)[-1]
        one = replace(unrun, first=begin, last=last, count=count, reason=_reason_at(begin, stoppages))
        if stretch is not None and stretch.reason is one.reason:
            stretch = replace(stretch, last=one.last, count=stretch.count + one.count)
        else:
            if stretch is not None:
                yield stretch
            stretch = one
        begin = next_occurrence(schedule, last)
    if stretch is not None:
        yield stretch


def _cuts(stoppages: Iterable[Stoppage], unrun: Unrun) -> list[datetime]:
    """The ends of the stretches in which the reason is the same."""
    moments = {edge for one in stoppages for edge in (one.since - BEFORE_A_TICK, one.until)}
    return sorted(moment for moment in moments if unrun.first <= moment < unrun.last)


def _reason_at(at: datetime, stoppages: Iterable[Stoppage]) -> MissReason:
    covering = [one.reason for one in stoppages if one.since - BEFORE_A_TICK < at <= one.until]
    return covering[-1] if covering else MissReason.OUTAGE
