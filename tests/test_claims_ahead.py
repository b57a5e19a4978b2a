"""While runs end quickly, a tick claims some more than it has slots: never more run at once for it, each runs once, and what finds
no place is due again as if nothing had been."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers import Workspace, start_together, wait_for

SLOTS = 2
COUNTED = "mkdir running/$TICKDOWN_TASK_ID; ls running | wc -l >> counts; rmdir running/$TICKDOWN_TASK_ID; echo $TICKDOWN_TASK_ID >> ran"
GATED = "echo $TICKDOWN_TASK_ID >> ran; until [ -e go ]; do sleep 0.02; done"


def ran(workspace: Workspace) -> Counter[str]:
    path = workspace.root / "ran"
    return Counter(path.read_text().split() if path.exists() else [])


def open_claims(workspace: Workspace) -> int:
    """Claimed as running, and not started yet."""
    if not (workspace.root / "ran").exists():
        return 0
    ((count,),) = workspace.sql("SELECT COUNT(*) FROM task_runs WHERE status = 'running' AND heartbeat_at IS NULL")
    return int(count)


def quick_tasks(workspace: Workspace, count: int = 60, **fields: object) -> set[str]:
    workspace.config(f"max_concurrent: {SLOTS}\ngroups:\n  small: {SLOTS}\n")
    (workspace.root / "running").mkdir()
    names = {f"task-{number:02}" for number in range(count)}
    for number, name in enumerate(sorted(names)):
        workspace.task(name, f"{COUNTED}; exit {number % 5 == 4:d}", schedule="1h", **fields)
    return names


def quick_then_slow(workspace: Workspace) -> list[str]:
    """Quick ones, and behind them slow ones that the tick takes for quick, too. The names of the slow ones."""
    workspace.config(f"max_concurrent: {SLOTS}\n")
    for number in range(8):
        workspace.task(f"a-{number}", "echo quick >> ran", schedule="1h", priority=9)
    slow = [f"b-{number}" for number in range(9)]
    for name in slow:
        workspace.task(name, GATED, schedule="1h")
    return slow


def tick_with_a_stock(workspace: Workspace) -> subprocess.Popen[str]:
    """A tick, stopped by a signal while it has claims that it has not started."""
    tick = workspace.start("tick")
    wait_for(lambda: open_claims(workspace) > 0 and ran(workspace).total() == 8 + SLOTS, "claims ahead")
    tick.send_signal(signal.SIGSTOP)
    assert open_claims(workspace) > 0, "the tick was stopped too late"
    return tick


def assert_no_more_at_once_than_allowed(workspace: Workspace) -> None:
    counts = [int(line) for line in (workspace.root / "counts").read_text().split()]
    assert max(counts) <= SLOTS


@pytest.mark.parametrize("ticks", [1, 3])
def test_each_runs_once_and_no_more_at_once_than_there_are_slots(workspace: Workspace, ticks: int) -> None:
    names = quick_tasks(workspace)
    for done in start_together([workspace.argv("tick")] * ticks, env=workspace.environment, cwd=workspace.root):
        assert done.returncode == 0, done.stderr + workspace.scheduler_log()
    workspace.tick()  # what had no slot
    assert ran(workspace) == Counter(names)
    assert_no_more_at_once_than_allowed(workspace)
    rows = workspace.sql(
        "SELECT recorded_at, r.started_at, r.finished_at, a.started_at, r.status FROM task_runs AS r JOIN attempts AS a"
        " USING (run_id)"
    )
    assert Counter(row[4] for row in rows) == {"success": 48, "failed": 12}
    assert any(claimed < started for claimed, started, *_ in rows), "none was claimed ahead"
    for claimed, started, finished, attempt_started, _ in rows:
        assert claimed <= started <= finished and attempt_started == started


@pytest.mark.parametrize("fields", [{"rerun_interrupted": False}, {"group": "small"}], ids=str)
def test_what_is_not_to_be_claimed_ahead_is_claimed_when_it_starts(
    workspace: Workspace, fields: dict[str, object]
) -> None:
    names = quick_tasks(workspace, 30, **fields)
    workspace.tick()
    assert ran(workspace) == Counter(names)
    assert workspace.sql("SELECT COUNT(*) FROM task_runs WHERE started_at <> recorded_at") == [(0,)]


def test_what_finds_no_slot_is_given_back_and_runs_later(workspace: Workspace) -> None:
    slow = quick_then_slow(workspace)
    tick = workspace.start("tick")
    wait_for(lambda: "claims_given_back" in workspace.scheduler_log())
    running = workspace.sql("SELECT task_id FROM task_runs WHERE status = 'running'")
    assert {name for (name,) in running} == {name for name in ran(workspace) if name != "quick"} and len(
        running
    ) == SLOTS
    assert workspace.sql("SELECT COUNT(*) FROM attempts WHERE status = 'running'") == [(SLOTS,)]
    taken = workspace.sql("SELECT id FROM tasks WHERE last_occurrence IS NOT NULL AND id LIKE 'b-%'")
    assert sorted(taken) == sorted(running)
    other = workspace.tick()  # whose slots they could be, if there were any
    assert f"{slow[-1]}  at_capacity" in other.stdout
    (workspace.root / "go").touch()
    out, error = tick.communicate()
    assert tick.returncode == 0 and not error, error + out
    workspace.tick()
    assert ran(workspace) == Counter({"quick": 8} | dict.fromkeys(slow, 1))
    assert workspace.sql("SELECT COUNT(*) FROM task_runs WHERE status = 'success'") == [(8 + len(slow),)]


def test_a_signal_gives_back_what_was_not_started(workspace: Workspace) -> None:
    slow = quick_then_slow(workspace)
    tick = tick_with_a_stock(workspace)
    tick.send_signal(signal.SIGTERM)
    tick.send_signal(signal.SIGCONT)
    tick.communicate()
    assert tick.returncode == 143
    begun = sorted(name for name in ran(workspace) if name != "quick")
    rows = workspace.sql("SELECT task_id, status FROM task_runs WHERE task_id LIKE 'b-%' ORDER BY task_id")
    assert rows == [(name, "cancelled") for name in begun]
    (workspace.root / "go").touch()
    workspace.tick()
    assert ran(workspace) == Counter({"quick": 8} | dict.fromkeys(slow, 1))


def test_a_run_that_is_stopped_before_it_has_started_never_does(workspace: Workspace) -> None:
    quick_then_slow(workspace)
    tick = tick_with_a_stock(workspace)
    ((name, run_id),) = workspace.sql(
        "SELECT task_id, run_id FROM task_runs WHERE status = 'running' AND heartbeat_at IS NULL ORDER BY task_id LIMIT 1"
    )
    stop = workspace.start("stop", name)
    wait_for(lambda: workspace.sql("SELECT end_as FROM task_runs WHERE run_id = ?", run_id) == [("cancelled",)])
    tick.send_signal(signal.SIGCONT)
    out, error = stop.communicate()
    assert stop.returncode == 0 and "cancelled" in out, error + out
    (workspace.root / "go").touch()
    tick.communicate()
    assert name not in ran(workspace)
    assert [(run["status"], run["error"]) for run in workspace.runs(name)] == [("cancelled", "stopped")]


def test_a_dead_tick_leaves_its_claims_to_the_next(workspace: Workspace) -> None:
    slow = quick_then_slow(workspace)
    tick = tick_with_a_stock(workspace)
    ahead = {name for (name,) in workspace.sql("SELECT task_id FROM task_runs WHERE heartbeat_at IS NULL")}
    tick.kill()
    tick.communicate()
    begun = {name for name in ran(workspace) if name != "quick"}
    Path(workspace.root / "go").touch()
    workspace.tick()
    workspace.tick()  # what had no slot
    expected = {name: 1 + (name in begun) for name in slow}
    assert ran(workspace) == Counter({"quick": 8} | expected)
    orphaned = workspace.sql(
        "SELECT task_id FROM task_runs JOIN attempts USING (run_id) WHERE attempts.status = 'orphaned'"
    )
    assert {name for (name,) in orphaned} == begun | ahead
    assert not workspace.sql("SELECT 1 FROM task_runs WHERE status <> 'success' AND status <> 'skipped'")
