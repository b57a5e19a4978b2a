"""A task as a line of JSON and back: what the store keeps, so that a file that did not change is not parsed again.

Only what differs from the default is written. Not pickled: reading the store must never run code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, time, timedelta
from operator import attrgetter
from typing import Any

from tickdown.base.model import CatchUp, ChainOn, DisabledReason, NotifyOn
from tickdown.base.records import defaults, names
from tickdown.schedule.blackout import parse_blackout
from tickdown.schedule.cron import Cron
from tickdown.schedule.phrases import Once
from tickdown.schedule.schedule import Interval, Manual, OneShot, Reboot, Schedule
from tickdown.tasks.task import Request, Task
from tickdown.tasks.yaml_tree import Problem
from tickdown.time.zones import get_zone

_MICROSECOND = timedelta(microseconds=1)


def task_to_text(task: Task) -> str:
    values = {
        name: _WRITE[name](value) if name in _WRITE else value
        for name, value, default in zip(_NAMES, _VALUES(task), _DEFAULTS, strict=True)
        if value != default
    }
    values["lines"] = dict(task.lines)
    return _encode(values)


def task_from_text(text: str) -> Task:
    values = json.loads(text)
    zone = get_zone(values.get("timezone", "local"))
    for name in values.keys() & _READ.keys():
        values[name] = _READ[name](values[name])
    return Task(zone=zone, schedule=_read_schedule(values.pop("schedule"), zone), **values)


def problems_to_text(problems: tuple[Problem, ...]) -> str:
    return json.dumps([[p.line, p.field, p.message, p.warning] for p in problems]) if problems else ""


def problems_from_text(text: str) -> tuple[Problem, ...]:
    return tuple(Problem(*values) for values in json.loads(text)) if text else ()


def _duration_out(value: timedelta) -> int:
    return value // _MICROSECOND


def _duration_in(value: int) -> timedelta:
    return timedelta(microseconds=value)


def _write_schedule(schedule: Schedule) -> list[Any]:
    match schedule:
        case Cron():
            return ["cron", schedule.text, schedule.days, schedule.follows_elapsed_time, schedule.fields,
                    schedule.both_days]  # fmt: skip
        case Interval():
            return ["interval", schedule.text, _duration_out(schedule.every)]
        case OneShot(once=once):
            delay = None if once.delay is None else _duration_out(once.delay)
            day = None if once.day is None else once.day.isoformat()
            return ["once", schedule.text, delay, once.clock.isoformat(), day, once.tomorrow]
        case Reboot():
            return ["reboot", schedule.text]
        case Manual():
            return ["manual", schedule.text]


def _read_schedule(values: list[Any], zone: Any) -> Schedule:
    kind, text, *rest = values
    match kind:
        case "cron":
            days, elapsed, fields, both_days = rest
            return Cron(text, zone, tuple(days), elapsed, fields, both_days)
        case "interval":
            return Interval(text, _duration_in(rest[0]))
        case "once":
            delay, clock, day, tomorrow = rest
            once = Once(
                delay=None if delay is None else _duration_in(delay),
                clock=time.fromisoformat(clock),
                day=None if day is None else date.fromisoformat(day),
                tomorrow=tomorrow,
            )
            return OneShot(text, zone, once)
        case "reboot":
            return Reboot(text)
    return Manual(text)


def _write_request(request: Request) -> list[Any]:
    return [request.url, request.method, dict(request.headers), request.body, request.expect_status]


def _read_request(values: list[Any]) -> Request:
    url, method, headers, body, expected = values
    return Request(url, method, headers, body, tuple(expected))


_DURATIONS = ("timeout", "retry_delay", "grace", "jitter", "min_interval", "max_interval")
_WRITE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_DURATIONS, _duration_out),
    "schedule": _write_schedule,
    "request": _write_request,
    "blackout": lambda spans: [span.text for span in spans],
}
_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_DURATIONS, _duration_in),
    "request": _read_request,
    "blackout": lambda texts: tuple(map(parse_blackout, texts)),
    "disabled_reason": DisabledReason,
    "notify_on": NotifyOn,
    "catch_up": CatchUp,
    "after": lambda links: {name: ChainOn(wants) for name, wants in links.items()},
    "heal_paths": tuple,
    "tags": tuple,
}
# The zone follows from the name of the time zone; `lines` has a place of its own.
_NAMES = [name for name in names(Task) if name not in ("zone", "lines")]
_DEFAULTS = [defaults(Task).get(name) for name in _NAMES]
_VALUES = attrgetter(*_NAMES)
_encode = json.JSONEncoder(separators=(",", ":")).encode
