"""What bounds a start: groups, priority, blackouts, the least and the greatest distance, back-off. Through real ticks."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

from tests.helpers import PATIENCE, Gate, Workspace, half_past, start_together, wait_for
from tickdown.base.model import Occurrence, SkipReason, Source, Waiting
from tickdown.governor.governor import Plan, spread_catch_ups
from tickdown.store import runs, tasks
from tickdown.store.database import Database

RAN = ("success", None, 1)
HOUR = timedelta(hours=1)
NOW = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '{}')"


def words(workspace: Workspace, name: str) -> list[str]:
    path = workspace.root / name
    return path.read_text().split() if path.exists() else []


def sources(workspace: Workspace, task_id: str) -> list[str]:
    """Of the runs that really ran."""
    found = workspace.sql(
        "SELECT source FROM task_runs WHERE task_id = ? AND started_at IS NOT NULL ORDER BY recorded_at, rowid", task_id
    )
    return [source for (source,) in found]


def listed(workspace: Workspace) -> dict[str, dict[str, Any]]:
    return {task["id"]: task for task in workspace.listed()}


def ended(workspace: Workspace, task_id: str, ago: str) -> None:
    """Pretend that a task's last run ended then ('-2 hours')."""
    workspace.sql(f"UPDATE tasks SET last_end = {NOW.format(ago)} WHERE id = ?", task_id)


# --- groups and priority ---------------------------------------------------------------------------------------


def test_a_group_has_its_limit_over_all_ticks_and_keeps_nobody_else_waiting(workspace: Workspace) -> None:
    workspace.config("groups: {gpu: 1, disk: 2}\n")
    (workspace.root / "inside").mkdir()
    work = "touch inside/$TICKDOWN_TASK_ID; ls inside | wc -l >> overlap; until [ -e go ]; do sleep 0.02; done"
    members = ["gpu-1", "gpu-2", "gpu-3"]
    for task_id in members:
        workspace.task(task_id, f"{work}; rm inside/$TICKDOWN_TASK_ID", schedule="1h", group="gpu", priority=10)
    workspace.task("disk-1", schedule="1h", group="disk")
    workspace.task("free", schedule="1h")
    workspace.task("odd", schedule="1h", group="gpuu")
    ticks = [workspace.start("tick") for _ in range(3)]
    wait_for(lambda: words(workspace, "overlap"), "one of the group at work")
    wait_for(lambda: workspace.rows("free") == [RAN], "a task outside the full group")
    wait_for(lambda: workspace.rows("disk-1") == [RAN], "a task of another group")
    assert "deferred" in workspace.tick().stdout, "it finds the group full and does not wait"
    waited = [task_id for task_id in members if ("running", None, 1) not in workspace.rows(task_id)]
    assert len(waited) == 2
    assert all([row[:2] for row in workspace.rows(task_id)] == [("skipped", "at_capacity")] for task_id in waited)
    (busy,) = set(members) - set(waited)
    assert f"and waits for its group gpu, which is full: {busy}" in workspace.cli("why", waited[0]).stdout
    (workspace.root / "go").touch()
    for tick in ticks:
        tick.communicate(timeout=PATIENCE)
    workspace.tick()
    assert words(workspace, "overlap") == ["1", "1", "1"]
    assert all(sources(workspace, task_id) == ["baseline-interval"] for task_id in members)
    problem = "group: 'gpuu' is not in the configuration under groups; did you mean 'gpu'? (known are disk, gpu)"
    assert problem in workspace.cli("validate", code=1).stdout


def test_a_run_by_hand_counts_in_its_group_but_waits_for_nobody(workspace: Workspace) -> None:
    workspace.config("groups: {gpu: 1}\n")
    gate = Gate(workspace)
    workspace.task("by-hand", gate.command, group="gpu")
    workspace.task("other", group="gpu")
    workspace.task("due", schedule="1h", group="gpu")
    holder = workspace.start("run", "by-hand")
    gate.wait()
    workspace.cli("run", "other")
    workspace.tick()
    assert workspace.rows("other") == [RAN] and workspace.rows("due") == [("skipped", "at_capacity", 1)]
    gate.open()
    holder.communicate(timeout=PATIENCE)
    workspace.tick()
    assert workspace.rows("due")[1:] == [RAN]


def test_when_slots_are_short_the_oldest_goes_first_and_then_priority(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 1\n")
    say = "echo $TICKDOWN_TASK_ID >> order"
    workspace.task("old", say, schedule="1h", priority=-9)
    workspace.tick()
    ended(workspace, "old", "-2 hours")
    for task_id, priority in {"a-low": -5, "b-none": 0, "c-high": 10, "d-higher": 11}.items():
        workspace.task(task_id, say, schedule="1h", priority=priority)
    workspace.tick()
    assert words(workspace, "order") == ["old", "old", "d-higher", "c-high", "b-none", "a-low"]


def test_who_comes_every_minute_and_has_waited_longest_is_the_oldest(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 1\n")
    say = "echo $TICKDOWN_TASK_ID >> order"
    workspace.task("often", say, schedule="* * * * *", priority=-5)
    workspace.task("seldom", say, schedule="0 * * * *", priority=5)
    workspace.tick()
    workspace.sql("UPDATE tasks SET armed_at = strftime('%Y-%m-%dT%H:00:30.000Z', 'now', '-2 hours')")
    workspace.tick()
    assert words(workspace, "order") == ["often", "seldom"]


def test_late_starts_of_the_same_moment_are_spread_in_the_order_given() -> None:
    now = datetime(2026, 6, 1, 12, tzinfo=UTC)
    late = [Occurrence(name, now - HOUR, Source.CATCH_UP, name, now - HOUR) for name in "dacb"]
    older = Occurrence("z", now - 2 * HOUR, Source.CATCH_UP, "z", now - 2 * HOUR)
    spread = spread_catch_ups([*late, older], now)
    assert [start.task_id for start in sorted(spread, key=lambda start: start.start_at)] == ["z", *"dacb"]


# --- blackouts -------------------------------------------------------------------------------------------------


def test_in_a_blackout_the_clock_is_skipped_and_everything_else_waits_for_its_end(workspace: Workspace) -> None:
    today = datetime.now(UTC).date()
    over = datetime.combine(today + timedelta(days=2), time(), UTC)
    workspace.config(f"blackout: [{today - timedelta(days=1)}/{today + timedelta(days=1)}]\n")
    workspace.task("up", schedule="manual")
    workspace.task("clock", schedule=half_past(), catch_up="all")
    workspace.task("interval", schedule="1h")
    workspace.task("once", schedule="in 1 hour", catch_up="skip")
    workspace.task("chain", after="up")
    workspace.task("boot", schedule="@reboot")
    workspace.task("forced", schedule="0 0 29 2 *", max_interval="1h")
    waiting = {
        "interval": "baseline-interval", "once": "one-shot", "chain": "after", "boot": "reboot", "forced": "clamped-max",
    }  # fmt: skip
    workspace.cli("run", "up")  # a run by hand asks for no leave
    workspace.move_back("clock", "-1 hour")
    workspace.sql("UPDATE tasks SET boot_id = 'the boot before' WHERE id = 'boot'")
    workspace.sql(f"UPDATE tasks SET armed_at = {NOW.format('-61 minutes')}, anchored_at = {NOW.format('-61 minutes')}"
                  " WHERE id = 'once'")  # fmt: skip
    ended(workspace, "forced", "-61 minutes")
    for done in start_together([workspace.argv("tick")] * 4, env=workspace.environment, cwd=workspace.root):
        assert done.returncode == 0, done.stderr
    workspace.tick()
    assert {task_id: workspace.rows(task_id) for task_id in ["clock", *waiting]} == {
        task_id: [("skipped", "blackout", 1)] for task_id in ["clock", *waiting]
    }
    workspace.move_back("clock", "-2 hours")
    workspace.tick()
    assert workspace.rows("clock") == [("skipped", "blackout", 3)], "those one after another share a row"
    shown = listed(workspace)
    coming = {task_id: datetime.fromisoformat(shown[task_id]["next_run_at"]) for task_id in ["clock", *waiting]}
    assert over <= coming.pop("clock") < over + HOUR
    assert set(coming.values()) == {over}

    workspace.config("")  # two days later
    workspace.tick()
    workspace.tick()
    assert workspace.rows("clock") == [("skipped", "blackout", 3)], "and are not made up for"
    for task_id, source in waiting.items():
        assert workspace.rows(task_id) == [("skipped", "blackout", 1), RAN] and sources(workspace, task_id) == [source]


def test_of_two_ticks_that_find_the_same_wait_one_notes_it(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.cli("pause", "job", "--for", "1h")
    db = Database(workspace.root / "state" / "tickdown.db")
    facts, now = tasks.facts(db, "job"), datetime.now(UTC)
    assert facts is not None
    waits = Plan(waiting=(Waiting(now, Source.BASELINE_INTERVAL),), reason=SkipReason.PAUSED)
    for _ in range(2):
        runs.defer(db, facts, waits, "here", now)
    db.close()
    assert workspace.rows("job") == [("skipped", "paused", 1)]


def test_the_blackouts_of_a_task_are_on_its_own_clock_and_added_to_the_configured(workspace: Workspace) -> None:
    """Hours that are dark where the task is at home, whenever this runs: an hour each way from now, there."""
    kiritimati = datetime.now(UTC) + 14 * HOUR
    dark = f"{kiritimati - HOUR:%H:%M}-{kiritimati + HOUR:%H:%M}"
    workspace.config("blackout: ['2001-01-01']\n")
    workspace.task("there", schedule="1h", timezone="Pacific/Kiritimati", blackout=dark)
    workspace.task("here", schedule="1h", blackout=[dark, "2001-01-02"])
    workspace.task("never", schedule="0 12 * * *", blackout="11:00-13:00")
    workspace.task("for-good", schedule="1h", blackout="2001-01-01/9999-12-31")
    workspace.tick()
    assert workspace.rows("there") == workspace.rows("for-good") == [("skipped", "blackout", 1)]
    assert workspace.rows("here") == [RAN]
    shown = listed(workspace)
    assert shown["never"]["next_run_at"] is None and shown["for-good"]["next_run_at"] is None
    assert f"not 2001-01-01, {dark}, 2001-01-02" in workspace.cli("show", "here").stdout


# --- the least and the greatest distance -----------------------------------------------------------------------


def test_min_interval_puts_off_and_what_it_swallows_leaves_a_row(workspace: Workspace) -> None:
    workspace.task("up")
    workspace.task("clock", schedule=half_past(), min_interval="2h")
    workspace.task("often", schedule="1s", min_interval="2h")
    workspace.task("chain", after="up", min_interval="2h")
    workspace.cli("run", "up")
    for task_id in ("clock", "often", "chain"):
        ended(workspace, task_id, "-90 minutes")
    workspace.move_back("clock", "-2 hours")  # two occurrences ago
    ended(workspace, "clock", "-90 minutes")
    workspace.tick()
    workspace.tick()
    shown = listed(workspace)
    for task_id in ("clock", "often", "chain"):
        assert workspace.rows(task_id) == []
        ((last_end,),) = workspace.sql("SELECT last_end FROM tasks WHERE id = ?", task_id)
        assert shown[task_id]["source"] == "clamped-min"
        assert datetime.fromisoformat(shown[task_id]["next_run_at"]) == datetime.fromisoformat(last_end) + 2 * HOUR
    for task_id in ("clock", "often", "chain"):
        ended(workspace, task_id, "-2 hours")
    workspace.tick()
    workspace.tick()
    assert workspace.rows("clock") == [("missed", "min_interval", 1), RAN]
    assert workspace.rows("often") == workspace.rows("chain") == [RAN]
    assert {source for task_id in ("clock", "often", "chain") for source in sources(workspace, task_id)} == {
        "clamped-min"
    }


def test_max_interval_forces_a_run_of_what_comes_again_and_nothing_else(workspace: Workspace) -> None:
    far = (datetime.now(UTC) + timedelta(days=180)).month
    workspace.task("clock", schedule=f"0 0 1 {far} *", max_interval="1h")
    workspace.task("interval", schedule="10h", max_interval="1h")
    workspace.task("manual", max_interval="1s")
    workspace.task("once", schedule="on 2099-01-01 at 12:00", max_interval="1s")
    workspace.task("new", schedule=f"0 0 1 {far} *", max_interval="1s")
    workspace.task("both", schedule=half_past(1), max_interval="1h", min_interval="1m")
    workspace.write_task("wrong", "---\nid: wrong\nschedule: 1h\ncommand: x\nmin_interval: 2h\nmax_interval: 1h\n---\n")
    assert "min_interval: is longer than max_interval" in workspace.cli("validate", code=1).stdout
    workspace.tick()
    workspace.move_back("both", "-1 hour")
    for task_id in ("clock", "interval", "manual", "once", "both"):
        ended(workspace, task_id, "-90 minutes")
    workspace.sql("DELETE FROM task_runs")
    workspace.tick()
    workspace.tick()
    assert sources(workspace, "clock") == sources(workspace, "interval") == ["clamped-max"]
    assert len(sources(workspace, "both")) == 1, "the occurrence that has come is the run that it asks for"
    assert workspace.rows("manual") == workspace.rows("once") == workspace.rows("new") == []
    shown = listed(workspace)
    for task_id in ("clock", "interval"):
        following = datetime.fromisoformat(shown[task_id]["next_run_at"])
        assert following == datetime.fromisoformat(shown[task_id]["last_run"]["finished_at"]) + HOUR
        assert shown[task_id]["source"] == "clamped-max"


# --- back-off --------------------------------------------------------------------------------------------------


def test_an_interval_backs_off_while_it_fails_and_one_success_ends_that(workspace: Workspace) -> None:
    workspace.task("failing", "test -e repaired", schedule="1h", suspend_after=100)
    workspace.task("bounded", "test -e repaired", schedule="1h", suspend_after=100, max_interval="3h")

    def distances() -> tuple[timedelta, timedelta]:
        workspace.tick()
        shown = listed(workspace)
        first, second = (
            datetime.fromisoformat(task["next_run_at"]) - datetime.fromisoformat(task["last_run"]["finished_at"])
            for task in (shown["failing"], shown["bounded"])
        )
        workspace.sql(f"UPDATE tasks SET last_end = {NOW.format('-40 hours')}")
        return first, second

    assert distances() == (2 * HOUR, 2 * HOUR)
    assert distances() == (4 * HOUR, 3 * HOUR)
    workspace.sql("UPDATE tasks SET failures = 4")
    assert distances() == (32 * HOUR, 3 * HOUR)
    assert distances() == (32 * HOUR, 3 * HOUR)
    ended(workspace, "failing", "-31 hours")
    (workspace.root / "repaired").touch()
    workspace.tick()
    assert len(workspace.rows("failing")) == 4, "before its time it is not tried again"
    ended(workspace, "failing", "-33 hours")
    assert distances() == (HOUR, HOUR)
