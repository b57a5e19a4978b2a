"""While runs end quickly, a tick claims some more than it has slots: never more run at once for it, each runs once, and what finds
no place is due again as if nothing had been."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.injection import locked
from tests.helpers import Workspace, start_together, wait_for

HOARDING = Path(__file__).with_name("hoarding_scheduler.py")
SLOTS = 2
COUNTED = (
    "mkdir running/$TICKDOWN_TASK_ID; ls running | wc -l >> counts; sleep 0.03; rmdir running/$TICKDOWN_TASK_ID;"
    " echo $TICKDOWN_TASK_ID >> ran"
)
GATED = "echo $TICKDOWN_TASK_ID >> ran; until [ -e go ]; do sleep 0.02; done"


def ran(workspace: Workspace) -> Counter[str]:
    path = workspace.root / "ran"
    return Counter(path.read_text().split() if path.exists() else [])


def has_a_stock(workspace: Workspace) -> bool:
    """Whether the slots are held by slow ones, and others are claimed ahead."""
    if ran(workspace).total() < 8 + SLOTS:
        return False
    held = workspace.sql("SELECT task_id FROM task_runs WHERE status = 'running' AND heartbeat_at IS NOT NULL")
    ahead = workspace.sql("SELECT task_id FROM task_runs WHERE status = 'running' AND heartbeat_at IS NULL")
    return len(held) == SLOTS and all(name.startswith("b-") for (name,) in held) and bool(ahead)


def quick_tasks(workspace: Workspace, count: int = 60, **fields: object) -> set[str]:
    workspace.scheduler = HOARDING
    workspace.config(f"max_concurrent: {SLOTS}\ngroups:\n  small: {SLOTS}\n")
    (workspace.root / "running").mkdir()
    names = {f"task-{number:02}" for number in range(count)}
    for number, name in enumerate(sorted(names)):
        workspace.task(name, f"{COUNTED}; exit {number % 5 == 4:d}", schedule="1h", **fields)
    return names


def quick_then_slow(workspace: Workspace) -> list[str]:
    """Quick ones, and behind them slow ones that the tick takes for quick, too. The names of the slow ones."""
    workspace.scheduler = HOARDING
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
    wait_for(lambda: has_a_stock(workspace), "claims ahead")
    tick.send_signal(signal.SIGSTOP)
    assert has_a_stock(workspace), "the tick was stopped too late"
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


def kill_tick_with_a_stock(workspace: Workspace) -> tuple[set[str], set[str]]:
    """The tasks that had been started, and those that had only been claimed."""
    tick = tick_with_a_stock(workspace)
    ahead = {name for (name,) in workspace.sql("SELECT task_id FROM task_runs WHERE heartbeat_at IS NULL")}
    tick.kill()
    tick.communicate()
    return {name for name in ran(workspace) if name != "quick"}, ahead


def work_off(workspace: Workspace) -> None:
    """What a dead tick has left, first with the gate shut: no more than the slots are used."""
    before = ran(workspace).total()
    tick = workspace.start("tick")
    wait_for(lambda: ran(workspace).total() == before + SLOTS, "as many as there are slots")
    workspace.tick()
    assert ran(workspace).total() == before + SLOTS
    (workspace.root / "go").touch()
    out, error = tick.communicate()
    assert tick.returncode == 0, error + out
    workspace.tick()  # what had no slot
    assert not workspace.sql("SELECT 1 FROM task_runs WHERE status <> 'success' AND status <> 'skipped'")


def test_what_a_dead_tick_had_only_claimed_is_due_again(workspace: Workspace) -> None:
    slow = quick_then_slow(workspace)
    begun, ahead = kill_tick_with_a_stock(workspace)
    work_off(workspace)
    assert ran(workspace) == Counter({"quick": 8} | {name: 1 + (name in begun) for name in slow})
    orphaned = workspace.sql(
        "SELECT task_id FROM task_runs JOIN attempts USING (run_id) WHERE attempts.status = 'orphaned'"
    )
    assert {name for (name,) in orphaned} == begun and ahead


def test_what_a_dead_tick_had_started_ahead_is_run_again_when_there_is_a_slot(workspace: Workspace) -> None:
    slow = quick_then_slow(workspace)
    begun, ahead = kill_tick_with_a_stock(workspace)
    locks = workspace.root / "state" / "locks"
    told = json.loads((locks / f"{min(begun)}.lock").read_text())
    for name, run_id in workspace.sql("SELECT task_id, run_id FROM task_runs WHERE heartbeat_at IS NULL"):
        started = {**told, "task_id": name, "run_id": run_id, "pgid": None, "pgid_started": None}
        (locks / f"{name}.lock").write_text(json.dumps(started))
    work_off(workspace)
    assert ran(workspace) == Counter({"quick": 8} | {name: 1 + (name in begun) for name in slow})
    rerun = workspace.sql("SELECT task_id FROM task_runs JOIN attempts USING (run_id) WHERE rung = 'rerun'")
    assert {name for (name,) in rerun} == begun | ahead


def test_after_trouble_with_the_database_claims_are_given_back_too(workspace: Workspace) -> None:
    slow = quick_then_slow(workspace)
    tick = tick_with_a_stock(workspace)
    with locked(workspace):
        tick.send_signal(signal.SIGCONT)
        assert tick.stderr is not None
        assert "database is locked; what runs goes on" in tick.stderr.readline()
    wait_for(lambda: "claims_given_back" in workspace.scheduler_log())
    assert len(workspace.sql("SELECT 1 FROM task_runs WHERE status = 'running'")) == SLOTS
    (workspace.root / "go").touch()
    tick.communicate()
    assert tick.returncode == 1
    workspace.tick()
    assert ran(workspace) == Counter({"quick": 8} | dict.fromkeys(slow, 1))


def test_a_tick_whose_database_is_damaged_ends_with_its_runs(workspace: Workspace) -> None:
    quick_then_slow(workspace)
    tick = tick_with_a_stock(workspace)
    workspace.sql("UPDATE tasks SET revision = revision + 1")  # so that the tick has to read anew
    for path in workspace.root.glob("state/tickdown.db*"):
        if not path.name.endswith("-shm"):
            path.write_bytes(b"no database " * (path.stat().st_size // 12))
    (workspace.root / "go").touch()
    tick.send_signal(signal.SIGCONT)
    _, error = tick.communicate(timeout=20)  # it has nothing to wait for
    assert tick.returncode == 1 and "damaged" in error
