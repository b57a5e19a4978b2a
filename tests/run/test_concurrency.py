"""Several processes over the same workspace: every occurrence runs once, and never more at once than allowed. That it holds for
a crowd of them too is tried by `faults/crowd.py`."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.helpers import Workspace, half_past, start_together, wait_for

APPEND = 'echo "$TICKDOWN_TASK_ID $TICKDOWN_SCHEDULED_FOR" >> ran'


def lines(workspace: Workspace, name: str) -> list[str]:
    path = workspace.root / name
    return path.read_text().splitlines() if path.exists() else []


def ticks_together(workspace: Workspace, count: int) -> None:
    command = workspace.argv("tick")
    for done in start_together([command] * count, env=workspace.environment, cwd=workspace.root):
        assert done.returncode == 0, done.stderr + workspace.scheduler_log()


def keys(workspace: Workspace) -> Counter[str]:
    return Counter(key for (key,) in workspace.sql("SELECT key FROM task_runs WHERE status = 'success'"))


def test_five_first_ticks_at_once_run_every_due_task_once(workspace: Workspace) -> None:
    names = [f"task-{number}" for number in range(8)]
    for name in names:
        workspace.task(name, APPEND, schedule="1h")
    ticks_together(workspace, 5)
    workspace.tick()  # whatever had no slot
    assert sorted(line.split()[0] for line in lines(workspace, "ran")) == names
    assert len(keys(workspace)) == 8 and set(keys(workspace).values()) == {1}


def test_five_ticks_at_once_run_every_missed_occurrence_once(workspace: Workspace) -> None:
    names = ["a", "b", "c"]
    for name in names:
        workspace.task(name, APPEND, schedule="0 * * * *", catch_up="all")
    workspace.tick()
    for name in names:
        workspace.move_back(name, "-6 hours")
    ticks_together(workspace, 5)
    workspace.tick()  # a tick that lost a race leaves the rest of the chain to the next
    ran = Counter(lines(workspace, "ran"))
    assert set(ran.values()) == {1}
    for name in names:
        times = [line.split()[1] for line in lines(workspace, "ran") if line.startswith(f"{name} ")]
        assert len(times) >= 6 and times == sorted(times)
    assert sum(keys(workspace).values()) == len(ran)


def test_five_ticks_at_once_write_one_row_for_what_is_not_caught_up(workspace: Workspace) -> None:
    workspace.task("a", APPEND, schedule=half_past(), catch_up="once")
    workspace.tick()
    workspace.move_back("a", "-6 hours")
    ticks_together(workspace, 5)
    assert len(lines(workspace, "ran")) == 1
    rows = workspace.sql("SELECT status, count FROM task_runs ORDER BY status")
    assert [status for status, _ in rows] == ["missed", "success"]
    assert rows[0][1] >= 5


def test_a_follow_up_is_taken_up_by_one_of_five_ticks(workspace: Workspace) -> None:
    workspace.task("a", f"{APPEND}; exit 1", schedule="1d", retry=True, retry_delay="10m")
    workspace.tick()
    workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 minute')")
    ticks_together(workspace, 5)
    assert len(lines(workspace, "ran")) == 2
    assert [run["source"] for run in workspace.runs("a")] == ["baseline-interval", "retry"]


def test_over_all_ticks_no_more_run_at_once_than_max_concurrent(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 2\n")
    (workspace.root / "running").mkdir()
    names = [f"task-{number}" for number in range(6)]
    work = (
        "mkdir running/$TICKDOWN_TASK_ID; ls running | wc -l >> counts; "
        "until [ -e go ]; do sleep 0.02; done; rmdir running/$TICKDOWN_TASK_ID"
    )
    for name in names:
        workspace.task(name, work, schedule="1h")
    ticks = [workspace.start("tick") for _ in range(3)]
    wait_for(lambda: len(lines(workspace, "counts")) == 2, "two tasks at work")
    late = workspace.tick()  # finds no slot and does not wait for one
    assert "at_capacity" in late.stdout
    assert len(lines(workspace, "counts")) == 2
    (workspace.root / "go").touch()
    for tick in ticks:
        tick.communicate()
    workspace.tick()
    assert len(lines(workspace, "counts")) == 6
    assert max(int(count) for count in lines(workspace, "counts")) == 2
    assert sorted(key.partition("@")[0] for key in keys(workspace)) == names


def test_an_occurrence_that_waited_for_a_slot_says_so_and_runs_later(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 1\n")
    workspace.task("a-first", "touch started; until [ -e go ]; do sleep 0.02; done", schedule="1h")
    first = workspace.start("tick")
    wait_for((workspace.root / "started").exists)
    workspace.task("b-second", APPEND, schedule="1h")
    workspace.tick()
    workspace.tick()
    assert [(run["status"], run["reason"]) for run in workspace.history("b-second")] == [("skipped", "at_capacity")]
    (workspace.root / "go").touch()
    first.communicate()
    workspace.tick()
    assert workspace.last_run("b-second")["status"] == "success"


def test_of_two_runs_by_hand_at_once_one_runs_and_the_other_is_refused(workspace: Workspace) -> None:
    workspace.task("a", "echo >> ran; until [ -e go ]; do sleep 0.02; done")
    pair = [workspace.start("run", "a") for _ in range(2)]
    wait_for(lambda: any(process.poll() is not None for process in pair), "one of the two to be refused")
    refused, runs = sorted(pair, key=lambda process: process.poll() is None)
    assert refused.communicate()[1].startswith("scheduler.py: a already runs") and refused.returncode == 5
    (workspace.root / "go").touch()
    runs.communicate()
    assert runs.returncode == 0
    assert len(lines(workspace, "ran")) == 1 and len(workspace.history("a")) == 1


def test_a_tick_leaves_a_task_alone_that_runs_by_hand(workspace: Workspace) -> None:
    workspace.task("a", "echo >> ran; until [ -e go ]; do sleep 0.02; done", schedule="1s")
    by_hand = workspace.start("run", "a")
    wait_for(lambda: lines(workspace, "ran"))
    workspace.tick()
    assert len(lines(workspace, "ran")) == 1
    (workspace.root / "go").touch()
    by_hand.communicate()
    workspace.tick()
    assert len(lines(workspace, "ran")) == 2  # the forced run has used up no occurrence


def test_five_runs_at_once_with_the_same_key_run_once(workspace: Workspace) -> None:
    workspace.task("a", "echo >> ran")
    command = workspace.argv("run", "a", "--key", "order-17")
    done = start_together([command] * 5, env=workspace.environment, cwd=workspace.root)
    assert len(lines(workspace, "ran")) == 1
    assert {process.returncode for process in done} <= {0, 5}
    assert 0 in {process.returncode for process in done}
    again = workspace.cli("run", "a", "--key", "order-17")
    assert "was used by run" in again.stdout
    assert len(lines(workspace, "ran")) == 1 and len(workspace.runs("a")) == 1


def test_those_that_wait_for_a_full_group_keep_nobody_else_waiting(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 20\ngroups: {slow: 1}\n")
    go = workspace.root / "go"
    for number in range(8):
        wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
        workspace.task(f"a{number}", wait, schedule="10m", group="slow")
        workspace.task(f"z{number}", f"echo >> {workspace.root}/z", schedule="10m")
    tick = workspace.start("tick")
    done = workspace.root / "z"
    wait_for(lambda: done.exists() and len(done.read_text()) == 8, "all others, while the group is full")
    wait_for(
        lambda: len(workspace.sql("SELECT 1 FROM task_runs WHERE status = 'running'")) == 1, "only one of the group"
    )
    go.touch()
    assert tick.wait(timeout=120) == 0
    tick.communicate()
    assert {workspace.last_run(f"a{number}")["status"] for number in range(8)} == {"success"}


def test_occurrences_that_another_tick_has_taken_keep_nobody_else_waiting(workspace: Workspace) -> None:
    """They are found to be taken when they are claimed; the rest must not be put off for that."""
    for number in range(30):
        workspace.task(f"t{number:02}", schedule="* * * * *")
    workspace.tick()
    workspace.sql(
        "UPDATE tasks SET armed_at = '2026-01-01T00:00:00.000Z', last_occurrence = strftime('%Y-%m-%dT%H:%M:00.000Z', 'now', '-1 minutes')"
    )
    for number in range(20):
        workspace.sql(
            "INSERT INTO task_runs (run_id, task_id, key, status, source, recorded_at, finished_at, host) VALUES (?, ?, ? || '@' ||"
            " strftime('%Y-%m-%dT%H:%M:00Z', 'now'), 'success', 'baseline-cron', '2026', '2026', 'h')",
            f"r{number}", f"t{number:02}", f"t{number:02}",
        )  # fmt: skip
    workspace.tick()
    started = workspace.sql("SELECT COUNT(*) FROM task_runs WHERE status = 'success' AND run_id NOT LIKE 'r%'")
    deferred = workspace.sql("SELECT COUNT(*) FROM task_runs WHERE reason = 'at_capacity'")
    assert started[0][0] >= 10 and deferred == [(0,)]


def test_a_long_queue_is_shared_and_every_occurrence_runs_once(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 8\n")
    for number in range(220):
        workspace.task(f"t{number}", f"echo {number} >> {workspace.root}/ran", schedule="10m")
    done = workspace.json("tick")
    assert sorted(map(int, (workspace.root / "ran").read_text().split())) == list(range(220))
    assert done["due"] == 220 and len({run["run_id"] for run in done["runs"]}) == 220
    assert {run["status"] for run in done["runs"]} == {"success"}
    owners = workspace.sql("SELECT COUNT(DISTINCT owner_pid) FROM task_runs")
    assert owners == [(2 if len(os.sched_getaffinity(0)) > 1 else 1,)]
    assert workspace.sql("SELECT COUNT(*) FROM tasks WHERE look_at = ''") == [(0,)]


def test_a_long_queue_of_one_group_is_worked_through_by_one_tick(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 8\ngroups: {one: 1}\n")
    for number in range(210):
        workspace.task(f"t{number}", f"echo {number} >> {workspace.root}/ran", schedule="10m", group="one")
    workspace.tick()
    assert len((workspace.root / "ran").read_text().split()) == 210
    assert workspace.sql("SELECT COUNT(*) FROM task_runs WHERE reason = 'at_capacity'") == [(0,)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_processes_of_a_shared_queue(workspace: Workspace, number: signal.Signals) -> None:
    workspace.config("max_concurrent: 8\n")
    for index in range(220):
        workspace.task(f"t{index}", f"echo >> {workspace.root}/ran; sleep 300", schedule="10m")
    tick = workspace.start("tick", start_new_session=True)
    ran = workspace.root / "ran"
    wait_for(lambda: ran.exists() and len(ran.read_text()) == 8, "all slots")
    os.kill(tick.pid, number)
    assert tick.wait(timeout=120) == 128 + number
    tick.communicate()
    assert workspace.sql("SELECT status, COUNT(*) FROM task_runs GROUP BY status") == [("cancelled", 8)]
    wait_for(lambda: not workspace.processes(), "no process is left")


def test_a_helper_that_is_killed_is_told_of_and_its_runs_are_taken_over(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 8\n")
    for index in range(220):
        workspace.task(f"t{index}", f"echo {index} >> {workspace.root}/ran; sleep 0.2", schedule="10m")
    tick = workspace.start("tick")
    wait_for(lambda: (workspace.root / "ran").exists(), "the first run")
    owners = {pid for (pid,) in workspace.sql("SELECT DISTINCT owner_pid FROM task_runs")} - {tick.pid}
    if not owners:
        wait_for(lambda: workspace.sql("SELECT 1 FROM task_runs WHERE owner_pid <> ?", tick.pid), "a helper")
        owners = {pid for (pid,) in workspace.sql("SELECT DISTINCT owner_pid FROM task_runs")} - {tick.pid}
    os.kill(owners.pop(), signal.SIGKILL)
    assert tick.wait(timeout=120) == 70
    tick.communicate()
    workspace.tick(code=None)
    workspace.tick(code=None)
    ran = [int(word) for word in (workspace.root / "ran").read_text().split()]
    assert set(ran) == set(range(220))
    again = workspace.sql("SELECT COUNT(*) FROM task_runs WHERE interruptions > 0")[0][0]
    assert len(ran) <= 220 + again
    assert workspace.sql("SELECT COUNT(*) FROM task_runs WHERE status = 'running'") == [(0,)]
