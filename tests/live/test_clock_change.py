"""Real ticks in real time while the clock of a task's zone is put forward or back. `make live` runs this; it takes minutes.

The zones are made for the occasion: zic compiles rules by which the offset changes at a full minute shortly ahead.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.helpers import Workspace

MINUTE = timedelta(minutes=1)
TICK_EVERY = 10  # seconds: several in each minute, of which only the first may find something to do
LEAD = timedelta(seconds=75)  # the minute before the change must still be ahead when the tasks are armed


def full_minute_after(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0) + MINUTE


def make_zone(workspace: Workspace, name: str, before: str, change: datetime, after: str) -> None:
    """A zone that the scheduler finds under its name; everything else it finds where it always does."""
    zic = shutil.which("zic", path="/usr/sbin:/sbin:/usr/bin")
    assert zic, "zic compiles the zones; on Debian it is in libc-bin"
    folder, rules = workspace.root.parent / "zoneinfo", workspace.root.parent / "rules"
    rules.write_text(f"Zone {name} {before} - OLD {change:%Y %b %d %H:%M}u\n     {after} - NEW\n")
    subprocess.run([zic, "-d", folder, rules], check=True)
    workspace.environment["PYTHONTZPATH"] = f"{folder}:/usr/share/zoneinfo"


def at_clock_time(moment: datetime, offset: timedelta) -> str:
    return f"{moment + offset:%M %H} * * *"


def tick_until(workspace: Workspace, end: datetime) -> None:
    while datetime.now(UTC) < end:
        workspace.tick()
        time.sleep(TICK_EVERY - time.time() % TICK_EVERY)
    workspace.tick()


def occurrences(workspace: Workspace, task_id: str, since: datetime, until: datetime) -> list[datetime]:
    """What was run of a task in a window. Each started in time, and nothing else is recorded of it."""
    found = []
    for run in workspace.history(task_id)[::-1]:
        assert run["status"] == "success" and run["source"] == "baseline-cron" and run["count"] == 1, run
        scheduled, started = (datetime.fromisoformat(run[key]) for key in ("scheduled_for", "started_at"))
        assert timedelta(0) <= started - scheduled < MINUTE, run
        found.append(scheduled)
    assert found == sorted(set(found)), "not strictly one after another"
    return [moment for moment in found if since <= moment <= until]


@pytest.fixture
def change() -> datetime:
    return full_minute_after(datetime.now(UTC) + LEAD)


def test_when_the_clock_is_put_forward_what_it_skips_runs_once_right_after(
    workspace: Workspace, change: datetime
) -> None:
    make_zone(workspace, "Test/Forward", "0:00", change, "0:10")
    old, new = timedelta(0), timedelta(minutes=10)
    schedules = {
        "before": at_clock_time(change - MINUTE, old),
        "first-skipped": at_clock_time(change, old),
        "skipped": at_clock_time(change + 5 * MINUTE, old),
        "last-skipped": at_clock_time(change + 9 * MINUTE, old),
        "first-after": at_clock_time(change, new),
        "after": at_clock_time(change + MINUTE, new),
        "every-minute": "* * * * *",
        "every-clock-time": "0-59 0-23 * * *",
    }
    for task_id, schedule in schedules.items():
        workspace.task(task_id, schedule=schedule, timezone="Test/Forward")
    tick_until(workspace, change + 2 * MINUTE + timedelta(seconds=5))

    window = (change - MINUTE, change + 2 * MINUTE)
    ran = {task_id: occurrences(workspace, task_id, *window) for task_id in schedules}
    every = [change + number * MINUTE for number in range(-1, 3)]
    assert ran == {
        "before": [change - MINUTE],
        "first-skipped": [change],
        "skipped": [change],
        "last-skipped": [change],
        "first-after": [change],
        "after": [change + MINUTE],
        "every-minute": every,
        "every-clock-time": every,
    }


def test_when_the_clock_is_put_back_what_it_shows_twice_runs_the_first_time_only(
    workspace: Workspace, change: datetime
) -> None:
    make_zone(workspace, "Test/Back", "0:10", change, "0:08")
    old = timedelta(minutes=10)
    schedules = {
        "twice": at_clock_time(change - MINUTE, old),
        "next": at_clock_time(change, old),
        "every-minute": "* * * * *",
        "every-clock-time": "0-59 0-23 * * *",
    }
    for task_id, schedule in schedules.items():
        workspace.task(task_id, schedule=schedule, timezone="Test/Back")
    tick_until(workspace, change + 2 * MINUTE + timedelta(seconds=5))

    window = (change - MINUTE, change + 2 * MINUTE)
    ran = {task_id: occurrences(workspace, task_id, *window) for task_id in schedules}
    assert ran == {
        "twice": [change - MINUTE],
        "next": [change + 2 * MINUTE],  # the minutes between show clock times of before
        "every-minute": [change + number * MINUTE for number in range(-1, 3)],
        "every-clock-time": [change - MINUTE, change + 2 * MINUTE],
    }
