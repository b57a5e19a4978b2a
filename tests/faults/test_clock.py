"""What a clock that is set or stands still must not hold up: starts that wait, alerts that wait."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.faults.clock import BEGIN, DAY, HOUR, MINUTE, SECOND, Clock
from tests.faults.kinds import CannotTry
from tests.healing import FIX, Healing, says
from tests.helpers import PATIENCE, Gate, Telegram, Workspace, wait_for

OWN = {"env": {"LD_PRELOAD": ""}}


@pytest.fixture
def clock(workspace: Workspace) -> Clock:
    try:
        made = Clock(workspace)
    except CannotTry as reason:
        pytest.skip(str(reason))
    made.stand_at(BEGIN + 30 * SECOND)
    return made


def test_a_start_that_jitter_puts_off_comes_though_the_clock_stands_still(workspace: Workspace, clock: Clock) -> None:
    workspace.task("job", schedule="* * * * *", jitter="3s", **OWN)
    workspace.tick()
    clock.stand_at(BEGIN + MINUTE)
    workspace.tick()
    assert workspace.rows("job") == [("success", None, 1)]


@pytest.mark.parametrize("by", [-DAY, -HOUR])
def test_a_start_that_jitter_puts_off_comes_though_the_clock_is_set(
    workspace: Workspace, clock: Clock, by: timedelta
) -> None:
    workspace.task("job", schedule="0 * * * *", jitter="3s", **OWN)
    workspace.tick()
    clock.go_on_from(BEGIN + HOUR)
    tick = workspace.start("tick")
    wait_for(
        lambda: workspace.sql("SELECT 1 FROM heartbeats WHERE at >= ?", f"{BEGIN + HOUR:%Y-%m-%dT%H:%M}"), "the tick"
    )
    wait_for(lambda: _sleeps(tick.pid), "the tick to wait")
    clock.go_on_from(BEGIN + HOUR + by)
    tick.communicate(timeout=PATIENCE)
    clock.stand_at(BEGIN + HOUR + 10 * SECOND)
    workspace.tick()
    assert workspace.sql(
        "SELECT status, scheduled_for FROM task_runs WHERE scheduled_for <= '2036-01-01T01:00:00.000Z'"
    ) == [("success", "2036-01-01T01:00:00.000Z")]


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_hint_counts_from_now_if_it_was_given_by_a_clock_that_was_ahead(workspace: Workspace, clock: Clock) -> None:
    workspace.task("job", schedule="1w", **OWN)
    clock.stand_at(BEGIN + DAY)
    workspace.tick()
    workspace.cli("hint", "job", "--every", "5m", "--for", "1h")
    for now, ran in ((BEGIN, 1), (BEGIN + 5 * MINUTE, 2), (BEGIN + 10 * MINUTE, 3), (BEGIN + HOUR + MINUTE, 3)):
        clock.stand_at(now)
        workspace.tick()
        assert len(workspace.runs("job")) == ran
    assert workspace.sql("SELECT * FROM hints") == [], "it was for an hour"


def test_who_comes_after_another_does_not_wait_for_a_clock_that_was_set_back(
    workspace: Workspace, clock: Clock
) -> None:
    workspace.task("first", schedule="1w", **OWN)
    workspace.task("second", after="first", blackout=["00:00-00:10"], **OWN)
    clock.stand_at(BEGIN + DAY)
    workspace.tick()
    workspace.tick()
    assert workspace.rows("second") == [("skipped", "blackout", 1)]
    clock.stand_at(BEGIN + 2 * HOUR)
    workspace.tick()
    assert [run["source"] for run in workspace.runs("second")] == ["after"]


def test_an_alert_that_was_to_wait_does_not_wait_for_a_clock_that_was_set_back(
    workspace: Workspace, clock: Clock, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: (
        (429, {"ok": False, "parameters": {"retry_after": 60}}) if number == 1 else (200, {"ok": True})
    )
    workspace.task("job", "false", schedule="1h", **OWN)
    clock.stand_at(BEGIN + DAY)
    workspace.tick()
    assert len(telegram.texts) == 1
    clock.stand_at(BEGIN)
    workspace.tick()
    clock.stand_at(BEGIN + HOUR + MINUTE)
    workspace.tick()
    assert len([text for text in telegram.texts if "job" in text]) == 2
    assert workspace.sql("SELECT DISTINCT status FROM alerts") == [("sent",)]


def test_an_alert_of_a_dead_tick_does_not_wait_for_a_clock_that_was_set_back(
    workspace: Workspace, clock: Clock
) -> None:
    workspace.task("job", "false", schedule="1h", **OWN)
    workspace.tick()
    workspace.sql("UPDATE alerts SET status = 'pending', lease_until = '2036-01-02T00:01:00.000Z'")
    clock.stand_at(BEGIN + 2 * MINUTE)
    assert "job" in workspace.tick().stderr


def test_trouble_is_told_again_every_hour_whatever_the_clock_has_been_set_to(
    workspace: Workspace, clock: Clock
) -> None:
    for name in ("one", "two"):
        workspace.write_task(name, "---\nid: same\nschedule: manual\ncommand: 'true'\n---\n")
    for now, told in ((BEGIN + DAY, 1), (BEGIN, 2), (BEGIN + MINUTE, 2), (BEGIN + HOUR + MINUTE, 3)):
        clock.stand_at(now)
        workspace.tick(code=3)
        assert workspace.sql("SELECT COUNT(*) FROM alerts WHERE kind = 'duplicates'") == [(told,)]


def test_a_heal_does_not_undo_what_is_suspended_meanwhile_though_the_clock_is_set_back(
    workspace: Workspace, clock: Clock
) -> None:
    gate = Gate(workspace)
    healing = Healing(workspace, f"{gate.command}\n{FIX}\n{says()}")
    workspace.task("bad", "false", schedule="0 * * * *", self_heal=False, suspend_after=1, **OWN)
    tick = workspace.start("tick")
    gate.wait()
    for now in (BEGIN - HOUR + MINUTE, BEGIN):
        clock.stand_at(now)
        workspace.tick()
    assert "auto_suspended" in healing.file("tasks/bad.md")
    gate.open()
    _, errors = tick.communicate(timeout=PATIENCE)
    assert tick.returncode == 0, errors
    assert workspace.sql("SELECT status FROM heals") == [("kept",)]
    assert "auto_suspended" in healing.file("tasks/bad.md")
