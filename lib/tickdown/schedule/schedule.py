"""When a task is due: one type per kind of schedule, one reader for all that people write, one `next_after`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo

from tickdown.base.records import record
from tickdown.schedule.cron import Cron, ScheduleError, next_occurrence, parse_cron
from tickdown.schedule.phrases import Once, is_phrase, read_phrase
from tickdown.time.durations import parse_duration
from tickdown.time.instants import to_milliseconds

LONGEST_TEXT = 500  # a cron line that lists every value of every field fits
SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
SHORTEST = timedelta(seconds=1)
ACCEPTED = (
    "a cron line of 5 fields ('0 6 * * 1-5'), a shorthand (@hourly @daily @midnight @weekly @monthly @yearly @annually "
    "@reboot), an interval (30s, 10m, 1.5h, 2d, 1w), a phrase (every 15 minutes, every day at 09:00, every monday at 09:00, "
    "every weekday at 18:30, daily, weekly on friday), once (in 30 minutes, at 17:00, tomorrow at 09:00, on 2026-06-01 at "
    "12:00) or manual"
)


@record(frozen=True)
class Manual:
    text: str = "manual"


@record(frozen=True)
class Reboot:
    text: str = "@reboot"


@record(frozen=True)
class Interval:
    """Counted from the last end."""

    text: str
    every: timedelta


@record(frozen=True)
class OneShot:
    text: str
    zone: tzinfo
    once: Once

    def moment(self, first_seen: datetime) -> datetime:
        """Cut to what the store keeps: the moment must equal itself once it has been taken up."""
        return to_milliseconds(self.once.moment(first_seen, self.zone))


Schedule = Cron | Interval | OneShot | Reboot | Manual


def parse_schedule(text: str, task_id: str, zone: tzinfo) -> Schedule:
    """The schedule a text means. `task_id` spreads `H`; ScheduleError says what is wrong and what is accepted."""
    words = text.split()
    if not words:
        raise ScheduleError(f"is empty; write {ACCEPTED}")
    if len(text) > LONGEST_TEXT:
        raise ScheduleError(f"{text[:40]!r}… has {len(text)} characters; at most {LONGEST_TEXT} are accepted")
    lowered = " ".join(words).lower()
    if lowered == "manual":
        return Manual(text)
    if lowered == "@reboot":
        return Reboot(text)
    if lowered.startswith("@"):
        if lowered not in SHORTHANDS:
            raise ScheduleError(f"unknown shorthand {text!r}; write {ACCEPTED}")
        return parse_cron(SHORTHANDS[lowered], text, task_id, zone)
    if is_phrase(words):
        return _of_phrase(text, task_id, zone)
    if len(words) == 5:
        return parse_cron(text, text, task_id, zone)
    if re.fullmatch(r"[+-]?[0-9.]+\s*[^\s0-9:.-]*", text.strip()):
        return Interval(text, _interval(text))
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}", lowered):
        raise ScheduleError(f"{text!r} is a time of day; write 'every day at {lowered}', or 'at {lowered}' for once")
    if len(words) > 1 and re.match(r"[0-9*H]", words[0]):
        raise ScheduleError(f"{text!r} has {len(words)} fields; a cron line has 5: minute hour day month weekday")
    raise ScheduleError(f"{text!r} is not understood; write {ACCEPTED}")


def _interval(text: str) -> timedelta:
    try:
        return _long_enough(parse_duration(text), text)
    except ValueError as error:
        raise ScheduleError(str(error)) from None


def _long_enough(every: timedelta, text: str) -> timedelta:
    if every < SHORTEST:
        raise ScheduleError(f"{text!r} is shorter than a second")
    return every


def _of_phrase(text: str, task_id: str, zone: tzinfo) -> Schedule:
    match read_phrase(text):
        case str(line):
            return parse_cron(line, text, task_id, zone)
        case timedelta() as every:
            return Interval(text, _long_enough(every, text))
        case Once() as once:
            return OneShot(text, zone, once)


def next_after(schedule: Schedule, moment: datetime, first_seen: datetime | None = None) -> datetime | None:
    """The first occurrence strictly after a moment; None if there is none, or nobody can know.

    An interval counts from the moment; a one-shot, from when it was first seen.
    """
    match schedule:
        case Cron():
            return next_occurrence(schedule, moment)
        case Interval(every=every):
            return moment + every
        case OneShot():
            at = schedule.moment(first_seen or moment)
            return at if at > moment else None
        case Reboot() | Manual():
            return None
