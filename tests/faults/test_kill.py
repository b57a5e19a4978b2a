"""What the ticks that die at chosen points can be relied on for, and single cases that they found."""

from __future__ import annotations

import os
import signal
from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.faults.kill import SURE, prepared, run_mortal
from tests.helpers import Workspace, wait_for


def attempts(workspace: Workspace) -> list[tuple[Any, ...]]:
    return workspace.sql("SELECT number, rung, status FROM attempts ORDER BY run_id, number")


@pytest.mark.parametrize("share", [0, 8])
def test_no_transaction_and_no_start_is_without_its_points(workspace: Workspace, share: int) -> None:
    """Otherwise the kinds of faults in `kill` would try nothing, and say that it held."""
    with prepared(Random(1), workspace) as trial:
        code, points = run_mortal(workspace, share=share)
        assert code == 0
        passed = Counter(points)
        sql = (workspace.root.parent / "ledger-1.sql").read_text().splitlines()
        assert Counter(sql) == {
            "begin": passed["before begin"],
            "commit": passed["before commit"],
        }  # nothing written alone
        assert passed["before spawn"] == workspace.sql("SELECT COUNT(*) FROM attempts")[0][0] == 28
        assert passed["before answer"] == len(trial.telegram.messages) > 0
        assert passed["before fork"] == (share > 0) and passed["after fork"] == 2 * passed["before fork"]
        assert passed["before rename"] >= 2  # the files of two one-shots
        for label in ("begin", "commit", "spawn", "answer", "rename"):
            assert passed[f"before {label}"] == passed[f"after {label}"] >= SURE[label] / 2
        trial.settle()
        trial.check()


def test_a_tick_that_dies_before_a_retry_leaves_it_to_the_next(workspace: Workspace) -> None:
    """No attempt was cut off, so none is an orphan, and there are no more of them than the task asks for."""
    workspace.task("a", "exit 1", "1h", retry=1, retry_delay=50, rerun_interrupted=False)
    tick = workspace.start("tick")
    wait_for(lambda: trace(workspace) and attempts(workspace) == [(1, "run", "failed")], "the end of the first attempt")
    tick.kill()
    tick.communicate()
    workspace.task("a", "exit 1", "1h", retry=1, rerun_interrupted=False)
    workspace.tick()
    assert attempts(workspace) == [(1, "run", "failed"), (2, "retry", "failed")]
    assert workspace.sql("SELECT status, interruptions FROM task_runs") == [("failed", 0)]


def test_a_tick_that_dies_before_it_runs_an_orphan_again_leaves_that_to_the_next(workspace: Workspace) -> None:
    """The task has been cut off once, whoever else died since."""
    workspace.task("a", "[ $TICKDOWN_ATTEMPT != 1 ] || exec sleep 1000", "1h")
    tick = workspace.start("tick")
    wait_for(lambda: trace(workspace))
    tick.kill()
    tick.communicate()
    # What a tick has written that takes over the run, when it has ended what was left and started nothing yet.
    workspace.kill_everything()
    workspace.sql("UPDATE attempts SET status = 'orphaned', finished_at = started_at")
    workspace.sql("UPDATE task_runs SET interruptions = 1")
    workspace.tick()
    assert attempts(workspace) == [(1, "run", "orphaned"), (2, "rerun", "success")]
    assert workspace.sql("SELECT status, interruptions FROM task_runs") == [("success", 1)]


def test_a_broken_file_is_reported_whenever_the_tick_that_found_it_died(workspace: Workspace) -> None:
    """Also by ticks that have nothing else to do, and would take the short way."""
    workspace.task("a", schedule="manual")
    workspace.tick()
    for number in range(1, 5):
        workspace.write_task(f"broken-{number}", f"---\nid: b{number}\nschedule: whenever\n---\n")
        assert run_mortal(workspace, "after commit", number)[0] == -signal.SIGKILL
        workspace.tick()
        workspace.tick()
        assert workspace.sql("SELECT COUNT(*) FROM alerts WHERE kind = 'rejected'") == [(number,)]


def test_what_a_killed_writer_left_beside_a_task_file_goes_with_the_old_runs(workspace: Workspace) -> None:
    workspace.task("a")
    assert run_mortal(workspace, "before rename", 1, command=("pause", "a"))[0] == -signal.SIGKILL
    folder = workspace.root / "tasks"
    (left,) = folder.glob(".*")
    others = [folder / name for name in (".a.md.original", ".tickdown-notes.md")]
    for path in (left, *others):
        path.touch()
    workspace.cli("prune")
    assert left.exists()  # its writer may be at it
    for path in (left, *others):
        os.utime(path, (0, 0))
    workspace.cli("prune")
    assert not left.exists() and all(path.exists() for path in others)


def trace(workspace: Workspace) -> bool:
    """Whether a run has begun."""
    return any((workspace.root / "logs" / "runs").glob("*/*.log"))
