"""A supervisor that was taken for dead and is not: it writes nothing over its successor, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, Workspace, alive, wait_for

RENEWING = Path(__file__).with_name("renewing_scheduler.py")
# It waits for the word to end, and with which exit code. Without the run's id in its environment another "host" on this
# machine does not see it, as it would not on another one.
WAIT = "echo $$ > pid; while [ ! -s word ]; do sleep 0.1; done; exit $(cat word)"
ON_THE_FIRST = f"exec env -u TICKDOWN_RUN_ID bash -c '{WAIT}'"


@pytest.fixture
def second_host(workspace: Workspace, tmp_path: Path) -> Workspace:
    """A checkout of its own, with locks of its own, and the same database."""
    other = Workspace(tmp_path / "second")
    other.config(f"database: {workspace.root}/state/tickdown.db\n")
    return other


@pytest.fixture
def freeze(workspace: Workspace) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a tick and stops it while its task is at work, at a moment when it does not hold the database."""
    ticks: list[subprocess.Popen[str]] = []

    def start_and_stop() -> subprocess.Popen[str]:
        workspace.task("a", ON_THE_FIRST, schedule="1h", suspend_after=1, self_heal=False)
        tick = workspace.start("tick")
        ticks.append(tick)
        wait_for(lambda: pid_in(workspace), "the task to start")
        os.kill(tick.pid, signal.SIGSTOP)
        while not is_free(workspace.root / "state" / "tickdown.db"):
            os.kill(tick.pid, signal.SIGCONT)
            os.kill(tick.pid, signal.SIGSTOP)
        return tick

    yield start_and_stop
    for tick in ticks:
        tick.kill()
        tick.communicate()


def pid_in(workspace: Workspace) -> int:
    path = workspace.root / "pid"
    return int(path.read_text().strip() or 0) if path.exists() else 0


def is_free(database: Path) -> bool:
    connection = sqlite3.connect(database, timeout=0.2, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


def take_over(workspace: Workspace, second_host: Workspace) -> subprocess.Popen[str]:
    """A tick of another host, to which the frozen one is a machine that has not renewed its lease for long. Its own attempt
    is at work."""
    workspace.sql(
        "UPDATE task_runs SET host = 'first', owner_boot = 'another', heartbeat_at = '2026-01-01T00:00:00.000Z'"
    )
    second_host.task("a", WAIT, schedule="1h", suspend_after=1, self_heal=False)
    tick = second_host.start("tick")
    wait_for(lambda: pid_in(second_host), "the second attempt")
    return tick


def recorded(workspace: Workspace) -> dict[str, list[tuple[Any, ...]]]:
    """All that a run leaves behind."""
    task = "SELECT id, last_occurrence, last_end, failures, incident, closing, retry_at FROM tasks"
    tables = ("task_runs", "attempts", "alerts", "tickets", "chains", "heals", "waiting")
    return {"tasks": workspace.sql(task)} | {name: workspace.sql(f"SELECT * FROM {name}") for name in tables}


def thaw(workspace: Workspace, tick: subprocess.Popen[str]) -> None:
    """It goes on to its end."""
    before = recorded(workspace)
    os.kill(tick.pid, signal.SIGCONT)
    tick.communicate(timeout=PATIENCE)
    assert recorded(workspace) == before
    assert "lease_lost" in (workspace.root / "logs" / "scheduler.log").read_text()


def end(workspace: Workspace, tick: subprocess.Popen[str], exit_code: int = 0) -> None:
    (workspace.root / "word").write_text(f"{exit_code}\n")
    tick.communicate(timeout=PATIENCE)


def test_a_thawed_supervisor_ends_its_processes_and_changes_nothing(
    workspace: Workspace, second_host: Workspace, freeze: Callable[[], subprocess.Popen[str]]
) -> None:
    workspace.scheduler = RENEWING
    first, process = freeze(), pid_in(workspace)
    second = take_over(workspace, second_host)
    assert alive(process)
    thaw(workspace, first)
    assert not alive(process) and workspace.processes() == []
    assert alive(pid_in(second_host))  # its successor is left alone
    end(second_host, second)
    assert workspace.sql("SELECT status, attempts, lease FROM task_runs") == [("success", 2, 2)]


@pytest.mark.parametrize("exit_code", [0, 1])
def test_what_ended_while_its_supervisor_was_frozen_is_not_recorded_over_its_successor(
    workspace: Workspace, second_host: Workspace, freeze: Callable[[], subprocess.Popen[str]], exit_code: int
) -> None:
    first, process = freeze(), pid_in(workspace)
    second = take_over(workspace, second_host)
    (workspace.root / "word").write_text(f"{exit_code}\n")
    wait_for(lambda: not alive(process), "the end of the task")
    thaw(workspace, first)
    assert "enabled: false" not in (workspace.root / "tasks" / "a.md").read_text()
    end(second_host, second)
    assert workspace.sql("SELECT status, exit_code, lease FROM task_runs") == [("success", 0, 2)]


def test_what_ended_after_its_successor_had_is_not_recorded_either(
    workspace: Workspace, second_host: Workspace, freeze: Callable[[], subprocess.Popen[str]]
) -> None:
    first = freeze()
    end(second_host, take_over(workspace, second_host), 1)
    (workspace.root / "word").write_text("0\n")
    thaw(workspace, first)
    assert workspace.sql("SELECT status, exit_code, lease FROM task_runs") == [("failed", 1, 2)]


def test_a_run_that_is_taken_over_on_its_own_machine_has_another_lease_too(workspace: Workspace) -> None:
    workspace.task("a", WAIT, schedule="1h")
    tick = workspace.start("tick")
    wait_for(lambda: pid_in(workspace), "the task")
    assert workspace.sql("SELECT lease FROM task_runs") == [(1,)]
    tick.kill()
    tick.communicate()
    (workspace.root / "word").write_text("0\n")
    workspace.tick()
    assert workspace.sql("SELECT status, lease FROM task_runs") == [("success", 2)]
