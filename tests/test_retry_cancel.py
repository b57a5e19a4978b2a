"""`retry` and `cancel` through the command line."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, Gate, Workspace, half_past, kill

ONLY_LATER = "echo >> ran; [ $(wc -l < ran) -gt 1 ]"  # fails the first time


def runs_of(workspace: Workspace, task_id: str) -> list[tuple[str, str, str | None, str | None]]:
    """(status, source, scheduled_for, follows) of everything recorded, oldest first."""
    return workspace.sql(
        "SELECT status, source, scheduled_for, follows FROM task_runs WHERE task_id = ? ORDER BY recorded_at, rowid",
        task_id,
    )


def failed_once(workspace: Workspace, task_id: str, command: str, **fields: Any) -> Path:
    """A one-shot whose time has come and whose run has failed."""
    path = workspace.task(task_id, command, schedule="in 1 hour", **fields)
    workspace.tick()
    workspace.sql(
        "UPDATE tasks SET anchored_at = strftime('%Y-%m-%dT%H:%M:%fZ', anchored_at, '-1 hour') WHERE id = ?", task_id
    )
    workspace.move_back(task_id, "-1 hour")
    workspace.tick()
    assert "disabled_reason: failed\n" in path.read_text()
    return path


# --- retry -----------------------------------------------------------------------------------------------------


def test_retry_runs_the_last_failed_occurrence_and_says_which(workspace: Workspace) -> None:
    workspace.task("job", f"echo for $TICKDOWN_SCHEDULED_FOR; {ONLY_LATER}", schedule=half_past())
    assert "job has no failed run" in workspace.cli("retry", "job", code=1).stderr
    workspace.move_back("job", "-1 hour")
    workspace.tick()
    ((status, _, occurrence, _),) = runs_of(workspace, "job")
    (run_id,) = workspace.sql("SELECT run_id FROM task_runs")[0]
    (before,) = workspace.sql("SELECT last_occurrence FROM tasks")
    done = workspace.cli("retry", "JOB")
    assert status == "failed" and occurrence is not None
    assert re.fullmatch(rf"for {occurrence[:19]}\+00:00\njob: success in .*\(run [0-9A-Za-z-]+\)\n", done.stdout)
    assert runs_of(workspace, "job")[1] == ("success", "retry", occurrence, run_id)
    assert workspace.sql("SELECT last_occurrence, failures FROM tasks") == [(*before, 0)]
    # That failure has been put right, so there is none any more.
    assert "job has no failed run" in workspace.cli("retry", "job", code=1).stderr
    assert "did you mean job?" in workspace.cli("retry", "jobb", code=4).stderr
    workspace.tick()
    assert len(runs_of(workspace, "job")) == 2


def test_a_retry_that_fails_ends_with_1_and_can_be_tried_again(workspace: Workspace) -> None:
    path = workspace.task("bad", "echo oh no; exit 3", schedule=half_past(), suspend_after=1)
    workspace.tick()
    workspace.move_back("bad", "-1 hour")
    workspace.tick()
    suspended = path.read_text()
    assert "auto_suspended" in suspended
    assert "bad: failed in" in workspace.cli("retry", "bad", code=1).stdout  # suspended, and runs all the same
    document = workspace.json("retry", "bad", code=1)
    assert document["source"] == "retry" and document["exit_code"] == 3
    first, second, third = [run for (run,) in workspace.sql("SELECT run_id FROM task_runs ORDER BY recorded_at, rowid")]
    assert [run[3] for run in runs_of(workspace, "bad")] == [None, first, second] and document["run_id"] == third
    assert len({run[2] for run in runs_of(workspace, "bad")}) == 1 and path.read_text() == suspended


def test_retry_is_refused_with_5_while_the_task_runs(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("job", f"{gate.command}; exit 1")
    process = workspace.start("run", "job")
    gate.wait()
    assert "job already runs" in workspace.cli("retry", "job", code=5).stderr
    gate.open()
    process.communicate(timeout=PATIENCE)
    assert [run[:2] for run in runs_of(workspace, "job")] == [("failed", "manual")]


def test_a_retry_takes_the_place_of_one_that_was_to_come(workspace: Workspace) -> None:
    workspace.task("job", ONLY_LATER, schedule=half_past(), retry=1, retry_delay="5m")
    workspace.tick()
    workspace.move_back("job", "-1 hour")
    workspace.tick()
    assert workspace.sql("SELECT retry_at IS NOT NULL FROM tasks") == [(1,)]
    workspace.cli("retry", "job")
    assert workspace.sql("SELECT retry_at, retry_follows FROM tasks") == [(None, None)]
    workspace.tick()
    assert [run[:2] for run in runs_of(workspace, "job")] == [("failed", "catch-up"), ("success", "retry")]


def test_a_retry_of_a_one_shot_decides_what_its_file_says(workspace: Workspace) -> None:
    path = failed_once(workspace, "once", "echo >> ran; [ $(wc -l < ran) -gt 2 ]", timeout="5m")
    workspace.cli("retry", "once", code=1)
    assert "disabled_reason: failed\n" in path.read_text()
    workspace.cli("retry", "once")
    assert "enabled: false\ndisabled_reason: completed\n" in path.read_text()
    occurrences = {run[2] for run in runs_of(workspace, "once")}
    assert len(occurrences) == 1 and [run[1] for run in runs_of(workspace, "once")] == ["one-shot", "retry", "retry"]
    # It is completed: nothing is left to be put right, and nothing comes again.
    before = path.read_text()
    assert "no failed run" in workspace.cli("retry", "once", code=1).stderr
    workspace.tick()
    assert path.read_text() == before and len(runs_of(workspace, "once")) == 3


def test_a_one_shot_that_was_missed_or_timed_out_can_be_retried(workspace: Workspace) -> None:
    late = failed_once(workspace, "late", "sleep 600", timeout="0.1s")
    missed = workspace.task("missed", schedule="in 1 hour", catch_up="skip")
    workspace.tick()
    workspace.sql(
        "UPDATE tasks SET anchored_at = strftime('%Y-%m-%dT%H:%M:%fZ', anchored_at, '-2 hours') WHERE id = 'missed'"
    )
    workspace.move_back("missed", "-2 hours")
    workspace.tick()
    (ticket,) = workspace.sql("SELECT body FROM tickets WHERE closed_at IS NULL")[0]
    assert "scheduler.py retry late" in ticket
    late.write_text(late.read_text().replace("0.1s", "5m").replace("sleep 600", "true"))
    for task_id, path in {"late": late, "missed": missed}.items():
        assert "disabled_reason: failed\n" in path.read_text()
        workspace.cli("retry", task_id)
        assert "disabled_reason: completed\n" in path.read_text()
        first, second = runs_of(workspace, task_id)
        assert first[2] == second[2] and second[:2] == ("success", "retry")
    assert workspace.sql("SELECT COUNT(*) FROM tickets WHERE closed_at IS NULL") == [(0,)]


def test_a_tick_beside_the_retry_of_a_past_date_does_not_reject_it(workspace: Workspace) -> None:
    """Nor does one that finds the retry cut off: it goes on with it."""
    gate = Gate(workspace)
    past = "on 2020-06-01 at 12:00"
    path = workspace.task(
        "once", f"{ONLY_LATER} || exit 1; [ $(wc -l < ran) -gt 2 ] || {{ {gate.command}; }}", schedule="manual"
    )
    workspace.tick()
    path.write_text(path.read_text().replace('"manual"', f'"{past}"'))
    long_ago = "2019-01-01T00:00:00.000Z"
    workspace.sql("UPDATE tasks SET schedule = ?, armed_at = ?, anchored_at = ?", past, long_ago, long_ago)
    workspace.tick()
    assert "disabled_reason: failed\n" in path.read_text()
    retry = workspace.start("retry", "once")
    gate.wait()
    workspace.tick()
    assert workspace.sql("SELECT kind FROM alerts") == [("failed",)] and "enabled: true\n" in path.read_text()
    kill(retry.pid)
    retry.communicate()
    workspace.tick()
    assert runs_of(workspace, "once")[-1][:2] == ("success", "retry") and len(runs_of(workspace, "once")) == 2
    assert "disabled_reason: completed\n" in path.read_text()


def test_retry_of_a_run_by_hand_leaves_a_one_shot_to_its_time_and_its_pause(workspace: Workspace) -> None:
    path = workspace.task("once", ONLY_LATER, schedule="in 1 hour")
    workspace.cli("run", "once", code=1)
    workspace.cli("pause", "once")
    paused = path.read_text()
    workspace.cli("retry", "once")
    assert path.read_text() == paused
    workspace.cli("resume", "once")
    (task,) = workspace.listed()
    assert task["state"] == "active" and task["next_run_at"] is not None
    assert [run[:2] for run in runs_of(workspace, "once")] == [("failed", "manual"), ("success", "retry")]


def test_a_one_shot_is_told_as_failed_and_never_as_suspended(workspace: Workspace) -> None:
    path = failed_once(workspace, "once", "exit 1", suspend_after=1)
    assert workspace.sql("SELECT kind, forced FROM alerts") == [("failed", 0)]
    assert "disabled_reason: failed\n" in path.read_text() and workspace.sql("SELECT * FROM tickets") == []


# --- the retries of a tick, plain and of trouble that passes by itself ------------------------------------------


def end_as(workspace: Workspace, task_id: str, ends: str, **fields: Any) -> None:
    """A task whose attempts end in turn as the letters say: p(lain error), t(ransient trouble), and well after those."""
    (workspace.root / "ends").write_text(ends)
    command = """
        end=$(head -c 1 ends); tail -c +2 ends > rest; mv rest ends
        case $end in p) exit 3;; t) echo "curl: (6) Could not resolve host: x"; exit 6;; esac
    """
    workspace.task(task_id, command, schedule="1d", **fields)


def waits_of(workspace: Workspace) -> list[int]:
    """Tick until nothing follows any more; after how many minutes each follow-up was to come."""
    waits: list[int] = []
    workspace.tick()
    while True:
        (run, retry_at), *_ = workspace.sql(
            "SELECT finished_at, retry_at FROM task_runs JOIN tasks ON id = task_id ORDER BY recorded_at DESC, task_runs.rowid DESC"
        )
        if retry_at is None:
            return waits
        apart = datetime.fromisoformat(retry_at) - datetime.fromisoformat(run)
        waits.append(round(apart.total_seconds() / 60))
        workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 second')")
        workspace.tick()


@pytest.mark.parametrize(
    ("fields", "ends", "waits", "attempts", "status"),
    [
        ({"retry": 3}, "ppptttt", [5, 15, 30], [4, 1, 1, 1], "failed"),
        ({"retry": 2}, "ppt", [5], [3, 1], "success"),
        ({"retry": 1}, "tp", [5], [1, 2], "success"),
        ({"retry": 1}, "tpp", [5], [1, 2], "failed"),
        ({"retry": 3}, "ptptptt", [5, 15, 30], [2, 2, 2, 1], "failed"),
        ({"retry": 2, "retry_delay": "10m"}, "tptptp", [5, 10, 15, 10, 30], [1, 1, 1, 1, 1, 1], "failed"),
        ({}, "tttt", [5, 15, 30], [1, 1, 1, 1], "failed"),
    ],
)
def test_plain_and_transient_retries_are_counted_apart_over_the_whole_chain(
    workspace: Workspace, fields: dict[str, Any], ends: str, waits: list[int], attempts: list[int], status: str
) -> None:
    end_as(workspace, "job", ends, **fields)
    assert waits_of(workspace) == waits
    runs = workspace.runs("job")
    assert [run["attempts"] for run in runs] == attempts and runs[-1]["status"] == status
    assert {run["status"] for run in runs[:-1]} == {"failed"}
    # The next occurrence begins anew.
    end_as(workspace, "job", "t", **fields)
    workspace.move_back("job", "-40 days")
    assert waits_of(workspace) == [5]


def test_a_chain_whose_tick_is_killed_goes_on_with_what_it_has_used(workspace: Workspace) -> None:
    end_as(workspace, "job", "tptp", retry=1)
    workspace.tick()
    gate = Gate(workspace)
    path = workspace.root / "tasks" / "job.md"
    calm = path.read_text()
    path.write_text(calm.replace('command: "', f'command: "{gate.command}; '))
    workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 second')")
    tick = workspace.start("tick")
    gate.wait()
    kill(tick.pid)
    tick.communicate()
    path.write_text(calm)
    assert waits_of(workspace) == [15], "the second wait, not the first again"
    statuses = workspace.sql(
        "SELECT rung, attempts.status FROM attempts JOIN task_runs USING (run_id) ORDER BY recorded_at, number"
    )
    assert statuses == [
        ("run", "failed"), ("run", "orphaned"), ("rerun", "failed"), ("retry", "failed"), ("run", "failed"),
    ]  # fmt: skip


def test_a_retry_by_hand_begins_a_chain_of_its_own(workspace: Workspace) -> None:
    end_as(workspace, "job", "tttt")
    assert waits_of(workspace) == [5, 15, 30]
    (workspace.root / "ends").write_text("tt")
    workspace.cli("retry", "job", code=1)
    assert waits_of(workspace) == [5, 15]


# --- cancel ----------------------------------------------------------------------------------------------------


def test_cancel_retires_a_task_with_its_hints_and_resume_brings_it_back(workspace: Workspace) -> None:
    path = workspace.task("job", "echo >> ran; exit 1", schedule="1h", retry=1, retry_delay="10m")
    before = path.read_text()
    workspace.tick()
    workspace.cli("hint", "job", "--every", "1m", "--at", "in 5 minutes")
    assert "job is retired" in workspace.cli("cancel", "JOB").stdout
    retired = before.replace("---\nA task", "enabled: false\ndisabled_reason: retired\n---\nA task")
    assert path.read_text() == retired
    assert workspace.sql("SELECT COUNT(*) FROM hints") == [(0,)]
    assert workspace.sql("SELECT retry_at, retry_follows FROM tasks") == [(None, None)]
    workspace.move_back("job", "-1 day")
    workspace.tick()
    assert len(workspace.rows("job")) == 1
    document = workspace.json("show", "job")
    assert (document["state"], document["disabled_reason"]) == ("disabled", "retired") and document["hints"] == []
    workspace.cli("resume", "job")
    assert path.read_text() == before.replace("---\nA task", "enabled: true\n---\nA task")
    workspace.move_back("job", "-1 hour")
    workspace.tick()
    assert len(workspace.rows("job")) == 2


def test_cancel_of_a_running_task_says_that_it_goes_on(workspace: Workspace) -> None:
    gate = Gate(workspace)
    path = workspace.task("job", f"{gate.command}; exit 1", schedule="1h", retry=1, retry_delay="10m")
    tick = workspace.start("tick")
    gate.wait()
    assert f"it is running, `{workspace.typed('stop job')}` ends that" in workspace.cli("cancel", "job").stdout
    gate.open()
    tick.communicate(timeout=PATIENCE)
    workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')")
    workspace.tick()
    assert workspace.rows("job") == [("failed", None, 1)] and "disabled_reason: retired\n" in path.read_text()


@pytest.mark.parametrize("over", [False, True])
def test_a_cancelled_one_shot_comes_back_only_if_it_had_not_run(workspace: Workspace, over: bool) -> None:
    path = failed_once(workspace, "once", "exit 1") if over else workspace.task("once", schedule="in 1 hour")
    workspace.cli("cancel", "once")
    assert "disabled_reason: retired\n" in path.read_text()
    workspace.cli("resume", "once", code=1 if over else 0)
    assert ("disabled_reason: retired\n" in path.read_text()) == over
    assert "did you mean once?" in workspace.cli("cancel", "onze", code=4).stderr
