"""What died or hangs is found by the next tick: leftovers are ended, the run is continued or closed, nobody else is hurt."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, PROJECT, Workspace, alive, kill, wait_for
from tickdown.processes.process import process_info
from tickdown.processes.termination import processes_of

# The first attempt hangs until it is ended from outside; a later one does its work.
HANG_ONCE = "echo $TICKDOWN_ATTEMPT >> starts; echo $$ > pid; [ $TICKDOWN_ATTEMPT != 1 ] || exec sleep 1000"
HANG_ALWAYS = "echo $TICKDOWN_ATTEMPT >> starts; echo $$ > pid; exec sleep 1000"


def starts(workspace: Workspace) -> list[str]:
    path = workspace.root / "starts"
    return path.read_text().split() if path.exists() else []


def number_in(path: Path) -> int:
    return int(wait_for(lambda: path.exists() and path.read_text().strip(), f"{path.name} to be written"))


def started_tick(workspace: Workspace, attempts: int = 1) -> subprocess.Popen[str]:
    """A tick whose task is at work."""
    tick = workspace.start("tick")
    wait_for(lambda: len(starts(workspace)) == attempts, "the task to start")
    return tick


def kill_9(tick: subprocess.Popen[str]) -> None:
    tick.kill()
    tick.communicate()


def attempts(workspace: Workspace) -> list[tuple[Any, ...]]:
    return workspace.sql("SELECT number, rung, status FROM attempts ORDER BY run_id, number")


def leader_in_lock(workspace: Workspace, task_id: str) -> int | None:
    """None while its text is being written."""
    text = lock_file(workspace, task_id).read_text()
    return json.loads(text)["pgid"] if text.endswith("\n") else None


def lock_file(workspace: Workspace, task_id: str) -> Path:
    return workspace.root / "state" / "locks" / f"{task_id}.lock"


def edit_lock(workspace: Workspace, task_id: str, **changes: object) -> None:
    """In place: the lock itself belongs to the file, not to its name."""
    with open(lock_file(workspace, task_id), "r+") as file:
        record = json.load(file) | changes
        file.seek(0)
        file.truncate()
        file.write(json.dumps(record) + "\n")


def failures(workspace: Workspace, task_id: str) -> int:
    return workspace.sql("SELECT failures FROM tasks WHERE id = ?", task_id)[0][0]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with anything."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


# --- the owner died ------------------------------------------------------------------------------------------------


def assert_run_again(workspace: Workspace, task_id: str = "a") -> None:
    """One run, with its interrupted attempt and the one that did the work."""
    (run,) = workspace.runs(task_id)
    assert (run["status"], run["attempts"], run["error"]) == ("success", 2, None)
    assert attempts(workspace) == [(1, "run", "orphaned"), (2, "rerun", "success")]
    assert starts(workspace) == ["1", "2"]
    assert failures(workspace, task_id) == 0


def test_a_task_whose_tick_was_killed_is_ended_and_run_once_more(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    tick = started_tick(workspace)
    leftover = number_in(workspace.root / "pid")
    before = workspace.history("a")[0]
    kill_9(tick)
    assert alive(leftover)
    done = workspace.tick()
    assert not alive(leftover)
    assert_run_again(workspace)
    assert workspace.last_run("a")["run_id"] == before["run_id"]
    ((reason,),) = workspace.sql("SELECT error FROM attempts WHERE number = 1")
    assert reason == f"its supervisor (pid {tick.pid}) died"
    assert not done.stderr  # nobody needs to be told
    assert workspace.log_text(before).count("=== attempt") == 2
    workspace.tick()
    assert starts(workspace) == ["1", "2"]


def test_a_leftover_that_ignores_sigterm_is_killed_before_the_task_runs_again(workspace: Workspace) -> None:
    stubborn = "trap '' TERM; : > ready; while :; do sleep 0.1; done"
    workspace.task("a", HANG_ONCE.replace("exec sleep 1000", f"{{ {stubborn}; }}"), schedule="1h")
    kill_9(started_tick(workspace))
    wait_for((workspace.root / "ready").exists, "the trap to be set")
    leftover = number_in(workspace.root / "pid")
    workspace.tick()
    assert not alive(leftover)
    assert_run_again(workspace)


def test_a_leftover_in_a_session_of_its_own_is_found(workspace: Workspace) -> None:
    daemon = "{ setsid sh -c 'echo $$ > daemon; exec sleep 1000' & exec sleep 1000; }"
    workspace.task("a", HANG_ONCE.replace("exec sleep 1000", daemon), schedule="1h")
    tick = started_tick(workspace)
    leftovers = [number_in(workspace.root / name) for name in ("pid", "daemon")]
    kill_9(tick)
    # Even when the process that led the group is gone.
    kill(leftovers[0])
    workspace.tick()
    assert not any(map(alive, leftovers))
    assert_run_again(workspace)


def test_a_task_that_must_not_start_twice_ends_as_orphaned_with_an_alert(workspace: Workspace) -> None:
    workspace.task("a", HANG_ALWAYS, schedule="1h", rerun_interrupted=False)
    kill_9(started_tick(workspace))
    done = workspace.tick()
    run = workspace.last_run("a")
    assert run["status"] == "orphaned" and "died" in run["error"]
    assert "a was interrupted and is not run again" in done.stderr
    assert starts(workspace) == ["1"] and failures(workspace, "a") == 0
    assert workspace.processes() == []


def test_a_second_interruption_ends_the_run_as_orphaned_with_an_alert(workspace: Workspace) -> None:
    workspace.task("a", HANG_ALWAYS, schedule="1h")
    kill_9(started_tick(workspace))
    kill_9(started_tick(workspace, attempts=2))
    done = workspace.tick()
    run = workspace.last_run("a")
    assert (run["status"], run["attempts"]) == ("orphaned", 2)
    assert "a was interrupted and is not run again" in done.stderr
    assert attempts(workspace) == [(1, "run", "orphaned"), (2, "rerun", "orphaned")]
    assert starts(workspace) == ["1", "2"] and failures(workspace, "a") == 0


def test_a_run_by_hand_that_was_killed_is_taken_over_by_the_next_tick(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE)
    by_hand = workspace.start("run", "a")
    wait_for(lambda: starts(workspace))
    kill_9(by_hand)
    workspace.tick()
    assert_run_again(workspace)
    assert workspace.last_run("a")["source"] == "manual"


@pytest.mark.parametrize("change", ["deleted", "disabled", "broken"])
def test_a_task_that_is_gone_meanwhile_is_ended_and_not_run_again(workspace: Workspace, change: str) -> None:
    path = workspace.task("a", HANG_ALWAYS, schedule="1h")
    kill_9(started_tick(workspace))
    if change == "deleted":
        path.unlink()
    elif change == "disabled":
        workspace.task("a", HANG_ALWAYS, schedule="1h", enabled=False)
    else:
        path.write_text("---\nid: a\nschedule: whenever\n---\n")
    done = workspace.tick()
    assert workspace.last_run("a")["status"] == "orphaned"
    assert "a was interrupted and is not run again" in done.stderr
    assert starts(workspace) == ["1"] and workspace.processes() == []


def test_a_run_that_was_to_be_stopped_is_not_run_again(workspace: Workspace) -> None:
    workspace.task("a", HANG_ALWAYS, schedule="1h")
    kill_9(started_tick(workspace))
    workspace.sql("UPDATE task_runs SET end_as = 'cancelled'")
    workspace.tick()
    assert workspace.last_run("a")["status"] == "cancelled"
    assert starts(workspace) == ["1"]


def test_a_run_from_before_a_reboot_is_an_orphan_whatever_lives_under_its_pid_now(
    workspace: Workspace, bystander: subprocess.Popen[bytes]
) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    kill_9(started_tick(workspace))
    kill(number_in(workspace.root / "pid"))  # a reboot leaves nothing
    # The same pid and even the same start time, in another life of the machine.
    started = int(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
    workspace.sql(
        "UPDATE task_runs SET owner_pid = ?, owner_started = ?, owner_boot = 'earlier'", bystander.pid, started
    )
    edit_lock(workspace, "a", pid=bystander.pid, pid_started=started, boot_id="earlier")
    workspace.tick()
    assert_run_again(workspace)
    assert workspace.sql("SELECT error FROM attempts WHERE number = 1") == [("the machine was restarted",)]
    assert bystander.poll() is None


def test_a_run_under_a_host_name_that_is_no_more_is_taken_over_when_its_heartbeat_stops(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    kill_9(started_tick(workspace))
    kill(number_in(workspace.root / "pid"))
    beat_now = "heartbeat_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
    workspace.sql(f"UPDATE task_runs SET host = 'old-name', owner_boot = 'earlier', {beat_now}")
    workspace.tick()
    assert workspace.last_run("a")["status"] == "running"  # its heart beat less than a minute ago
    workspace.sql("UPDATE task_runs SET heartbeat_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-61 seconds')")
    workspace.tick()
    assert_run_again(workspace)
    assert workspace.sql("SELECT error FROM attempts WHERE number = 1") == [("its host old-name went away",)]
    assert workspace.last_run("a")["host"] == socket.gethostname()


def test_a_process_group_from_before_a_reboot_is_never_signalled(
    workspace: Workspace, bystander: subprocess.Popen[bytes]
) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    kill_9(started_tick(workspace))
    kill(number_in(workspace.root / "pid"))
    started = int(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
    workspace.sql("UPDATE task_runs SET owner_boot = 'earlier'")
    edit_lock(workspace, "a", pgid=bystander.pid, pgid_started=started, boot_id="earlier")
    workspace.tick()
    assert bystander.poll() is None
    assert_run_again(workspace)


def test_a_recycled_pid_is_a_dead_owner_and_is_never_signalled(
    workspace: Workspace, bystander: subprocess.Popen[bytes]
) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    kill_9(started_tick(workspace))
    workspace.sql("UPDATE task_runs SET owner_pid = ?, owner_started = 1", bystander.pid)
    past = {"deadline": "2020-01-01T00:00:00.000Z", "deadline_monotonic": 0.0}
    edit_lock(workspace, "a", pid=bystander.pid, pid_started=1, pgid=bystander.pid, pgid_started=1, **past)
    workspace.tick()
    assert_run_again(workspace)
    assert bystander.poll() is None and alive(bystander.pid)


def test_five_ticks_at_once_take_over_a_dead_run_once(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    kill_9(started_tick(workspace))
    ticks = [workspace.start("tick") for _ in range(5)]
    assert [(tick.communicate()[1], tick.returncode) for tick in ticks] == [("", 0)] * 5
    assert_run_again(workspace)


def test_a_tick_that_is_stopped_while_taking_over_leaves_the_run_to_the_next(workspace: Workspace) -> None:
    stubborn = "exec 2> /dev/null; trap 'touch termed' TERM; : > ready; while :; do sleep 0.05; done"
    workspace.task("a", HANG_ONCE.replace("exec sleep 1000", f"{{ {stubborn}; }}"), schedule="1h")
    kill_9(started_tick(workspace))
    wait_for((workspace.root / "ready").exists, "the trap to be set")
    taking_over = workspace.start("tick")
    wait_for((workspace.root / "termed").exists, "the leftover to be told")
    taking_over.terminate()
    taking_over.communicate()
    assert taking_over.returncode == 143
    assert workspace.last_run("a")["status"] == "running"
    kill(number_in(workspace.root / "pid"))
    workspace.tick()
    assert_run_again(workspace)


# --- the owner lives -----------------------------------------------------------------------------------------------


def test_a_supervisor_within_its_deadline_is_left_alone(workspace: Workspace) -> None:
    work = "echo $TICKDOWN_ATTEMPT >> starts; until [ -e go ]; do sleep 0.02; done"
    workspace.task("a", work, schedule="1h")
    tick = started_tick(workspace)
    workspace.tick()
    # Late, but not yet by more than a minute.
    edit_lock(workspace, "a", deadline_monotonic=time.monotonic() - 5)
    workspace.tick()
    assert tick.poll() is None and workspace.last_run("a")["status"] == "running"
    (workspace.root / "go").touch()
    tick.communicate()
    assert attempts(workspace) == [(1, "run", "success")]


def test_a_hung_supervisor_is_ended_with_its_task_and_its_other_runs_are_orphans(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    workspace.task("hung", "echo $$ > hung; exec sleep 1000", schedule="1h")
    tick = started_tick(workspace)
    stuck = number_in(workspace.root / "hung")
    wait_for(lambda: leader_in_lock(workspace, "hung") == stuck)
    tick.send_signal(signal.SIGSTOP)
    edit_lock(workspace, "hung", deadline="2020-01-01T00:00:00.000Z", deadline_monotonic=time.monotonic() - 61)
    done = workspace.tick()
    tick.communicate()
    assert tick.returncode == -signal.SIGKILL
    assert not alive(stuck)
    killed = workspace.last_run("hung")
    assert (killed["status"], killed["attempts"]) == ("killed", 1)
    assert "its supervisor hung" in killed["error"]
    assert failures(workspace, "hung") == 1
    assert "hung failed" in done.stderr
    assert workspace.sql("SELECT task_id, kind FROM tickets WHERE closed_at IS NULL") == [("hung", "timeout")]
    run = workspace.last_run("a")
    assert (run["status"], run["attempts"]) == ("success", 2) and starts(workspace) == ["1", "2"]


def test_a_supervisor_that_was_only_slow_records_the_same_end_itself(workspace: Workspace) -> None:
    workspace.task("a", HANG_ALWAYS, schedule="1h")
    tick = started_tick(workspace)
    pid = number_in(workspace.root / "pid")
    wait_for(lambda: leader_in_lock(workspace, "a") == pid)
    edit_lock(workspace, "a", deadline="2020-01-01T00:00:00.000Z", deadline_monotonic=time.monotonic() - 61)
    other = workspace.start("tick")
    wait_for(lambda: not alive(pid), "the end of the task")
    other.send_signal(signal.SIGSTOP)  # it would give the first only some seconds, and a busy machine may need more
    tick.communicate()
    other.send_signal(signal.SIGCONT)
    other.communicate()
    assert other.returncode == 0
    assert tick.returncode == 0  # it saw its task end and went on
    assert workspace.last_run("a")["status"] == "killed"
    assert attempts(workspace) == [(1, "run", "killed")]


# --- the lock file -------------------------------------------------------------------------------------------------


def test_the_lock_file_tells_who_runs_what_until_when(workspace: Workspace) -> None:
    workspace.task("a", HANG_ALWAYS, schedule="1h", timeout="10m")
    tick = started_tick(workspace)
    path = lock_file(workspace, "a")
    pid = number_in(workspace.root / "pid")
    wait_for(lambda: json.loads(path.read_text())["pgid"] == pid)
    record = json.loads(path.read_text())
    assert record["host"] == socket.gethostname() and record["pid"] == tick.pid
    assert record["pid_started"] == int(Path(f"/proc/{tick.pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert record["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert record["run_id"] == workspace.last_run("a")["run_id"]
    assert os.getpgid(pid) == record["pgid"]
    started = workspace.sql("SELECT started_at FROM task_runs")[0][0]
    assert started < record["deadline"]
    assert time.monotonic() < record["deadline_monotonic"] < time.monotonic() + 600
    assert path.stat().st_mode & 0o777 == 0o600
    assert {folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent)} == {0o700}
    tick.terminate()
    tick.communicate()
    assert path.read_text() == ""  # the file stays, its text goes with its owner


def test_a_lock_file_that_is_a_link_is_refused_and_other_tasks_run(workspace: Workspace) -> None:
    target = workspace.root / "precious"
    target.write_text("precious\n")
    workspace.task("a", "touch a-ran", schedule="1h")
    workspace.task("b", "touch b-ran", schedule="1h")
    path = lock_file(workspace, "a")
    path.parent.mkdir(parents=True)
    path.symlink_to(target)
    done = workspace.tick()
    assert "a failed" in done.stderr and str(path) in done.stderr
    assert (workspace.root / "b-ran").exists() and not (workspace.root / "a-ran").exists()
    assert target.read_text() == "precious\n"
    assert (workspace.last_run("a")["status"], failures(workspace, "a")) == ("failed", 1)
    assert not workspace.tick().stderr  # it had its occurrence
    path.unlink()
    workspace.cli("run", "a")
    assert (workspace.root / "a-ran").exists()


def test_a_lock_file_that_became_a_link_stops_only_the_recovery_of_its_task(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    kill_9(started_tick(workspace))
    target = workspace.root / "precious"
    target.write_text("precious\n")
    lock_file(workspace, "a").unlink()
    lock_file(workspace, "a").symlink_to(target)
    workspace.task("b", "touch b-ran", schedule="1h")
    done = workspace.tick()
    assert (workspace.root / "b-ran").exists() and target.read_text() == "precious\n"
    assert str(lock_file(workspace, "a")) in done.stderr
    lock_file(workspace, "a").unlink()
    workspace.tick()
    assert_run_again_beside_b(workspace)


def assert_run_again_beside_b(workspace: Workspace) -> None:
    run = workspace.last_run("a")
    assert (run["status"], run["attempts"]) == ("success", 2) and starts(workspace) == ["1", "2"]


def test_a_lock_is_never_inherited_by_what_a_task_leaves_behind(workspace: Workspace) -> None:
    workspace.task("a", "sleep 1000 & echo $! > pid", schedule="1s")
    workspace.tick()
    first = number_in(workspace.root / "pid")
    assert workspace.cli("run", "a").returncode == 0
    second = number_in(workspace.root / "pid")
    for pid in (first, second):
        kill(pid)


def test_garbage_in_a_lock_file_harms_nobody(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    kill_9(started_tick(workspace))
    for text in ("\x00\xff{", "[]", '{"pid": "x"}', "7" * 100_000):
        lock_file(workspace, "a").write_text(text)
        probe = [sys.executable, "-c", "import sys; from tickdown.processes.lock import read_holder; from pathlib import Path; "
                 f"sys.exit(read_holder(Path({str(lock_file(workspace, 'a').parent)!r}), 'a') is not None)"]  # fmt: skip
        assert subprocess.run(probe, cwd=PROJECT / "lib").returncode == 0
    workspace.tick()
    assert_run_again(workspace)


def test_an_interrupted_retry_is_not_retried_more_often_than_the_task_asks(workspace: Workspace) -> None:
    """The first attempt fails, the retry is cut off with its tick; the rerun fails too, and that is the end."""
    count = workspace.root / "count"
    workspace.task(
        "job",
        f'echo >> {count}; if [ "$TICKDOWN_ATTEMPT" = 2 ]; then sleep 1000; fi; exit 1',
        schedule="1h",
        retry=1,
    )
    tick = workspace.start("tick")
    wait_for(lambda: count.exists() and len(count.read_text()) == 2)
    tick.kill()
    tick.communicate()
    workspace.tick()
    run = workspace.last_run("job")
    assert (run["status"], run["attempts"], len(count.read_text())) == ("failed", 3, 3)


def test_stop_records_a_run_whose_supervisor_is_dead(workspace: Workspace) -> None:
    workspace.task("a", HANG_ALWAYS)
    run = workspace.start("run", "a")
    pid = number_in(workspace.root / "pid")
    kill_9(run)
    assert "a: cancelled" in workspace.cli("stop", "a").stdout
    assert workspace.last_run("a")["status"] == "cancelled" and not alive(pid)


# --- the order of signals --------------------------------------------------------------------------------------------


def test_parents_are_told_before_their_children(workspace: Workspace) -> None:
    """A shell that saw its child end first would go on with the next command of its line."""
    workspace.task("a", "( sleep 1000; touch ran ) & sh -c 'sleep 1000; touch ran' & wait; touch ran", schedule="1h")
    tick = workspace.start("tick")
    wait_for(lambda: len(workspace.processes()) == 6, "the tick, the shells and what they wait for")
    (run_id,) = workspace.sql("SELECT run_id FROM task_runs")[0]
    found = list(processes_of(run_id, None))
    parents = {pid: info.parent for pid in found if (info := process_info(pid)) is not None}
    assert len(parents) == 5
    assert all(found.index(parent) < found.index(pid) for pid, parent in parents.items() if parent in found)
    tick.terminate()
    tick.communicate(timeout=PATIENCE)
    assert not (workspace.root / "ran").exists()


def test_a_dry_run_tells_what_would_be_taken_over(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    kill_9(started_tick(workspace))
    assert "recover a  its supervisor died" in workspace.tick("--dry-run").stdout
    assert workspace.json("tick", "--dry-run")["recover"] == ["a"]
    workspace.tick()
    assert_run_again(workspace)


def test_looking_tells_of_a_run_that_was_cut_off_before_the_next_tick_does(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE, schedule="1h")
    workspace.task("b", schedule="@yearly")
    tick = started_tick(workspace)
    assert re.search(r"^a +running +1h", workspace.cli("list").stdout, re.MULTILINE)
    assert "now        it is running" in workspace.cli("why", "a").stdout
    assert workspace.json("show", "a")["cut_off"] is False
    kill_9(tick)
    words = f"cut off: its tick (pid {tick.pid}) is gone; the next tick takes it over"
    listed = workspace.cli("list").stdout
    assert re.search(r"^a +running \(cut off\) +1h", listed, re.MULTILINE)
    assert re.search(r"^b +active +@yearly", listed, re.MULTILINE)
    assert f"now        {words}\n" in workspace.cli("why", "a").stdout
    assert f"now        {words}\n" in workspace.cli("show", "a").stdout
    assert words in workspace.cli("history", "a").stdout
    assert [task["state"] for task in workspace.json("list")] == ["running", "active"]
    assert workspace.json("why", "a")["cut_off"] is True and workspace.json("show", "a")["cut_off"] is True
    workspace.tick()
    assert_run_again(workspace)
    assert "cut off" not in workspace.cli("list").stdout + workspace.cli("show", "a").stdout.partition("\n\n")[0]


def test_a_run_by_hand_that_was_cut_off_is_told_as_one(workspace: Workspace) -> None:
    workspace.task("a", HANG_ONCE)
    process = workspace.start("run", "a")
    wait_for(lambda: (workspace.root / "state/tickdown.db").exists() and starts(workspace), "its start")
    kill_9(process)
    assert f"cut off: its `scheduler.py run` (pid {process.pid}) is gone" in workspace.cli("why", "a").stdout
    workspace.tick()
