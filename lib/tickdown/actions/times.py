"""Times and durations as people write them, for whatever asks: `name` is what the value is called there."""

from __future__ import annotations

from datetime import datetime, timedelta

from tickdown.base.errors import Exit, TickdownError
from tickdown.schedule.phrases import read_moment
from tickdown.tasks.task import Task
from tickdown.time.durations import LONGEST, parse_duration


def duration_from(name: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise TickdownError(f"{name}: {error}", Exit.USAGE) from None


def moment_from(name: str, text: str, task: Task, now: datetime) -> datetime:
    """`09:00`, a date, or a phrase such as `tomorrow at 09:00` or `in 30 minutes`."""
    try:
        moment = read_moment(text, task.zone, now)
    except ValueError as error:
        raise TickdownError(f"{name}: {error}", Exit.USAGE) from None
    if moment <= now:
        raise TickdownError(f"{name}: {text!r} is in the past", Exit.USAGE)
    if moment > now + LONGEST:
        raise TickdownError(f"{name}: {text!r} is more than ten years away", Exit.USAGE)
    return moment
