"""Why an occurrence was missed is on record: what is known of the time in which nobody looked."""

from __future__ import annotations

import resource
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import needs_faketime
from tests.helpers import Workspace
from tickdown.base.model import MissReason, RunStatus, SkipReason
from tickdown.governor.governor import Plan, Unrun
from tickdown.governor.miss_reasons import Stoppage, with_reasons
from tickdown.schedule.schedule import parse_schedule

RAN = ("success", None, 1)
HOURLY = "0 * * * *"
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def reasons(schedule: str, unrun: Unrun, *stoppages: Stoppage) -> list[tuple[datetime, datetime, int, str | None]]:
    told = with_reasons(Plan(unrun=(unrun,)), parse_schedule(schedule, "a", UTC), stoppages).unrun
    return [(one.first, one.last, one.count, one.reason) for one in told]


def test_what_nothing_explains_is_an_outage() -> None:
    assert reasons(HOURLY, Unrun(NOON, NOON + 3 * HOUR, 4)) == [(NOON, NOON + 3 * HOUR, 4, "outage")]
    assert reasons("in 1 hour", Unrun(NOON, NOON, 1)) == [(NOON, NOON, 1, "outage")]


def test_each_stretch_of_a_reason_is_a_row() -> None:
    """Stopped ticks came from 13:01 to 14:30: they would have seen to 13:00 and 14:00, but not to 12:00."""
    stopped = Stoppage(MissReason.DUPLICATE_IDS, NOON + HOUR + MINUTE / 2, NOON + 2.5 * HOUR)
    told = reasons(HOURLY, Unrun(NOON, NOON + 4 * HOUR, 5), stopped)
    assert told == [
        (NOON, NOON, 1, "outage"),
        (NOON + HOUR, NOON + 2 * HOUR, 2, "duplicate_ids"),
        (NOON + 3 * HOUR, NOON + 4 * HOUR, 2, "outage"),
    ]


def test_what_has_a_reason_keeps_it() -> None:
    skipped = Unrun(NOON, NOON, 1, RunStatus.SKIPPED, SkipReason.BLACKOUT)
    assert reasons(HOURLY, skipped) == [(NOON, NOON, 1, "blackout")]
    clamped = Unrun(NOON, NOON, 1, RunStatus.MISSED, MissReason.MIN_INTERVAL)
    assert reasons(HOURLY, clamped) == [(NOON, NOON, 1, "min_interval")]


def a_task(workspace: Workspace) -> None:
    at = datetime.now(UTC) - 5 * MINUTE  # never due while a test lasts, and just over
    workspace.task("job", schedule=f"{at.minute} * * * *", catch_up="skip", timezone="UTC")
    workspace.tick()


def missed_three_hours(workspace: Workspace) -> None:
    """As if what has just stopped had done so for three hours."""
    workspace.move_back("job", "-3 hours")
    workspace.sql("UPDATE stoppages SET since = strftime('%Y-%m-%dT%H:%M:%fZ', since, '-4 hours')")


def stopped_by_duplicates(workspace: Workspace) -> None:
    twin = workspace.write_task("twin", "---\nid: job\nschedule: manual\ncommand: 'true'\n---\n")
    workspace.tick(code=3)
    twin.unlink()


def stopped_by_configuration(workspace: Workspace) -> None:
    workspace.config("max_concurent: 3\n")
    workspace.tick(code=2)
    workspace.config("")


def stopped_by_the_database(workspace: Workspace) -> None:
    """No file may grow: what can't be recorded leaves its mark, which the next tick takes."""
    limited = subprocess.run(
        workspace.argv("tick"), env=workspace.environment, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    assert limited.returncode == 1 and "can't be used" in limited.stderr, limited
    (mark,) = workspace.root.glob("*/stopped-database-*")
    mark.rename(mark.with_name(f"stopped-database-{datetime.now(UTC) - 4 * HOUR:%Y%m%dT%H%M%S}"))


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (stopped_by_duplicates, "duplicate_ids"),
        (stopped_by_configuration, "configuration"),
        (stopped_by_the_database, "database"),
    ],
)
def test_what_a_stopped_tick_could_not_see_to_says_why(workspace: Workspace, stop, reason: str) -> None:
    a_task(workspace)
    stop(workspace)
    missed_three_hours(workspace)
    workspace.tick()
    assert workspace.rows("job") == [("missed", reason, 3)] and not list(workspace.root.glob("*/stopped-*"))
    (row,) = workspace.history("job")
    assert row["reason"] == reason and f"not run: 3 missed ({reason})" in workspace.cli("history", "job").stdout


def test_a_clock_that_was_set_forward_is_the_reason(workspace: Workspace) -> None:
    a_task(workspace)
    ((booted,),) = workspace.sql("SELECT value FROM meta WHERE name = 'booted'")
    boot, _, at = booted.partition(" ")
    workspace.sql("UPDATE meta SET value = ? WHERE name = 'booted'", f"{boot} {float(at) - 4 * 3600:.0f}")
    missed_three_hours(workspace)
    workspace.tick()
    assert workspace.rows("job") == [("missed", "clock", 3)]
    assert "the clock was set forward" in workspace.cli("why", "job").stdout


@needs_faketime
def test_an_outage_that_ends_in_a_blackout_leaves_a_row_for_each_occurrence(workspace: Workspace) -> None:
    """Minute by minute, by another clock: no tick from 09:55 to 10:05, dark from 10:00 to 11:00."""
    workspace.task("job", schedule="* * * * *", blackout=["10:00-11:00"], timezone="UTC")
    found = {}
    for time in ("09:54:30", "09:55:05", "10:05:05", "10:06:05", "10:07:05", "11:00:05"):
        workspace.prefix = ["faketime", f"2026-06-01 {time}"]
        workspace.tick()
        found[time] = workspace.rows("job")
    waits, dark = ("skipped", "blackout", 1), ("skipped", "blackout", 8)
    assert found["10:07:05"] == [RAN, waits, ("missed", "outage", 3), dark]
    assert found["11:00:05"] == [RAN, waits, ("missed", "outage", 3), ("skipped", "blackout", 60 - 8 + 8), RAN]
    assert sum(count for *_, count in found["10:07:05"]) == 13
    assert sum(count for *_, count in found["11:00:05"]) == 66
