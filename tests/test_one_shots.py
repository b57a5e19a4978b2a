"""Schedules that come once: when they are counted from, what the file says afterwards, and that they never come twice."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.helpers import PATIENCE, Gate, Workspace, kill, start_together, wait_for

RAN = ("success", None, 1)
FAILED = ("failed", None, 1)
UNEDITABLE = "x" * 247  # the name of a file beside which no temporary one can be written, not even by root


def come(workspace: Workspace, task_id: str, by: str = "-1 hour") -> None:
    """Pretend that a task was met and armed earlier, so that `in 1 hour` has come."""
    workspace.sql(
        "UPDATE tasks SET anchored_at = strftime('%Y-%m-%dT%H:%M:%fZ', anchored_at, ?) WHERE id = ?", by, task_id
    )
    workspace.move_back(task_id, by)


def met(workspace: Workspace, task_id: str = "once", command: str = "echo >> ran", **fields: Any) -> Path:
    """A one-shot that a tick has seen and whose time has come."""
    path = workspace.task(task_id, command, schedule="in 1 hour", **fields)
    workspace.tick()
    assert workspace.rows(task_id) == []
    come(workspace, task_id)
    return path


def closed(path: Path, reason: str) -> bool:
    return f"enabled: false\ndisabled_reason: {reason}\n---" in path.read_text()


def sources(workspace: Workspace, task_id: str = "once") -> list[str]:
    rows = workspace.sql("SELECT source FROM task_runs WHERE task_id = ? ORDER BY recorded_at, rowid", task_id)
    return [source for (source,) in rows]


def state(workspace: Workspace, task_id: str = "once") -> tuple[str, str | None]:
    (found,) = [task for task in workspace.listed() if task["id"] == task_id]
    return found["state"], found["next_run_at"]


def days_ahead(days: int) -> str:
    return f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}"


# --- when ------------------------------------------------------------------------------------------------------


def test_the_time_is_counted_once_from_the_first_sight_and_never_drifts(workspace: Workspace) -> None:
    before, date = datetime.now(UTC), days_ahead(3)
    far = f"{before + timedelta(hours=12):%H:%M}"
    schedules = {"delay": "In  90 Minutes", "clock": f"at {far}", "day": "tomorrow", "date": f"on {date} at 12:00"}
    for task_id, schedule in schedules.items():
        workspace.task(task_id, schedule=schedule)
    workspace.tick()
    after = datetime.now(UTC)
    first = {task["id"]: task["next_run_at"] for task in workspace.listed()}
    delay = datetime.fromisoformat(first["delay"]) - timedelta(minutes=90)
    assert before - timedelta(milliseconds=1) <= delay <= after
    assert first["clock"][11:16] == far and before < datetime.fromisoformat(first["clock"]) <= after + timedelta(days=1)
    assert first["day"][:10] in (f"{moment + timedelta(days=1):%Y-%m-%d}" for moment in (before, after))
    assert first["day"][11:16] == "09:00" and first["date"] == f"{date}T12:00:00+00:00"
    for task_id, schedule in schedules.items():
        workspace.task(task_id, schedule=schedule, title="Another title", timeout="5m")
    workspace.cli("pause", "delay", "--for", "1h")
    workspace.cli("pause", "clock")
    workspace.tick()
    for task_id in ("delay", "clock"):
        workspace.cli("resume", task_id)
    workspace.tick()
    assert {task["id"]: task["next_run_at"] for task in workspace.listed()} == first
    assert workspace.sql("SELECT * FROM task_runs") == []


def test_another_zone_reads_a_time_of_day_anew_and_moves_no_delay(workspace: Workspace) -> None:
    workspace.task("delay", schedule="in 1 hour")
    workspace.task("clock", schedule="at 12:00", timezone="Etc/GMT+12")
    workspace.tick()
    come(workspace, "delay")
    come(workspace, "clock", "-40 minutes")
    # By the clocks of the new zone the time has passed since the first sight: what is meant is its next passing.
    passed = datetime.now(UTC) - timedelta(minutes=20)
    workspace.sql("UPDATE tasks SET schedule = ? WHERE id = 'clock'", f"at {passed:%H:%M}")
    workspace.task("delay", schedule="in 1 hour", timezone="Etc/GMT-5")
    workspace.task("clock", schedule=f"at {passed:%H:%M}", timezone="UTC")
    workspace.tick()
    assert workspace.rows("delay") == [RAN] and workspace.rows("clock") == []
    at = state(workspace, "clock")[1]
    assert at is not None and datetime.fromisoformat(at) > datetime.now(UTC) + timedelta(hours=22)


def test_a_delay_with_many_decimals_runs_once_too(workspace: Workspace) -> None:
    workspace.task("once", "echo >> ran", schedule="in 0.77777 minutes")
    workspace.tick()
    come(workspace, "once", "-50 seconds")
    workspace.tick()
    workspace.tick()
    path = workspace.root / "tasks" / "once.md"
    assert workspace.rows("once") == [RAN] and closed(path, "completed")


# --- the end ---------------------------------------------------------------------------------------------------

BY_HAND = b"""---\r
# Kept as it is.\r
schedule:   'in 1 hour'   # soon\r
id: once\r
command: "echo >> ran"\r
\r
tags: [ a,b ]\r
---\r
The body:  enabled: maybe\r
"""


def test_after_success_the_file_says_completed_and_nothing_else_in_it_changes(workspace: Workspace) -> None:
    path = workspace.root / "tasks" / "once.md"
    path.write_bytes(BY_HAND)
    path.chmod(0o640)
    workspace.tick()
    come(workspace, "once")
    workspace.tick()
    ended = BY_HAND.replace(b"[ a,b ]\r\n", b"[ a,b ]\r\nenabled: false\r\ndisabled_reason: completed\r\n")
    assert path.read_bytes() == ended and path.stat().st_mode & 0o777 == 0o640
    assert state(workspace) == ("completed", None) and sources(workspace) == ["one-shot"]
    (run,) = workspace.runs("once")
    anchored = workspace.sql("SELECT anchored_at FROM tasks")[0][0]
    moment = datetime.fromisoformat(anchored) + timedelta(hours=1)
    assert datetime.fromisoformat(run["scheduled_for"]) == moment and run["reason"] is None


def test_one_that_is_over_comes_again_only_with_another_schedule(workspace: Workspace) -> None:
    path = met(workspace)
    workspace.tick()
    assert closed(path, "completed")
    done = workspace.cli("resume", "once", code=1)
    assert "another schedule" in done.stderr and "scheduler.py run once" in done.stderr and closed(path, "completed")
    by_hand = path.read_text().replace("enabled: false", "enabled: true")
    path.write_text(by_hand)
    workspace.tick()
    assert "another schedule" in workspace.cli("resume", "once", code=1).stderr
    workspace.tick()
    assert workspace.rows("once") == [RAN] and path.read_text() == by_hand
    assert [task["state"] for task in workspace.listed()] == ["completed"], "it must not look alive"
    path.write_text(path.read_text().replace("in 1 hour", "in 2 hours").replace("completed", "by_choice"))
    workspace.tick()
    assert state(workspace)[1] is not None
    come(workspace, "once", "-2 hours")
    workspace.tick()
    assert workspace.rows("once") == [RAN, RAN] and closed(path, "completed")


def test_after_the_last_retry_of_a_failure_the_file_says_failed(workspace: Workspace) -> None:
    path = met(workspace, command="echo >> ran; exit 3", retry=2)
    output = workspace.tick()
    assert closed(path, "failed") and state(workspace) == ("failed", None)
    assert (workspace.root / "ran").read_text() == "\n" * 3 and workspace.rows("once") == [FAILED]
    assert "scheduler.py retry once" in output.stderr
    workspace.tick()
    assert "retry once" in workspace.cli("resume", "once", code=1).stderr
    assert workspace.rows("once") == [FAILED]


def test_a_far_retry_decides_what_the_file_says(workspace: Workspace) -> None:
    far = {"retry": 1, "retry_delay": "10m"}
    good = workspace.task("good", "echo >> ran; [ $(wc -l < ran) -gt 1 ]", schedule="in 1 hour", **far)
    bad = met(workspace, "bad", "false", **far)
    come(workspace, "good")
    before = good.read_text(), bad.read_text()
    workspace.tick()
    workspace.tick()
    assert (good.read_text(), bad.read_text()) == before and workspace.rows("good") == workspace.rows("bad") == [FAILED]
    assert state(workspace, "bad")[0] == "active"
    workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', retry_at, '-10 minutes')")
    workspace.tick()
    workspace.tick()
    assert closed(good, "completed") and closed(bad, "failed")
    assert sources(workspace, "good") == sources(workspace, "bad") == ["one-shot", "retry"]


def test_a_pause_lifted_while_a_far_retry_is_to_come_keeps_the_retry(workspace: Workspace) -> None:
    path = met(workspace, command="echo >> ran; [ $(wc -l < ran) -gt 1 ]", retry=1, retry_delay="10m")
    workspace.tick()
    workspace.cli("pause", "once", "--for", "1h")
    workspace.cli("resume", "once")
    workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', retry_at, '-10 minutes')")
    workspace.tick()
    assert workspace.rows("once") == [FAILED, RAN] and closed(path, "completed")


def test_a_timeout_or_a_stop_is_a_failure(workspace: Workspace) -> None:
    late = met(workspace, "late", "sleep 600", timeout="0.1s", retry=3)
    gate = Gate(workspace)
    stopped = workspace.task("stopped", gate.command, schedule="in 1 hour", retry=3, retry_delay="10m")
    workspace.tick()
    come(workspace, "stopped")
    tick = workspace.start("tick")
    gate.wait()
    workspace.cli("stop", "stopped")
    tick.communicate(timeout=PATIENCE)
    assert workspace.rows("late") == [("timeout", None, 1)] and closed(late, "failed")
    assert workspace.rows("stopped") == [("cancelled", None, 1)] and closed(stopped, "failed")
    workspace.tick()
    assert len(workspace.rows("late") + workspace.rows("stopped")) == 2


def test_a_run_by_hand_neither_uses_it_up_nor_closes_it(workspace: Workspace) -> None:
    path = workspace.task("once", "echo >> ran", schedule="in 1 hour")
    before = path.read_text()
    workspace.cli("run", "once")
    first = state(workspace)[1]
    workspace.tick()
    assert path.read_text() == before and state(workspace) == ("active", first)
    come(workspace, "once")
    workspace.cli("run", "once")  # due, but not taken up yet
    assert path.read_text() == before
    workspace.tick()
    assert sources(workspace) == ["manual", "manual", "one-shot"] and closed(path, "completed")
    ended = path.read_text()
    workspace.cli("run", "once")
    workspace.tick()
    assert path.read_text() == ended and len(workspace.rows("once")) == 4


def test_a_file_that_cannot_be_edited_does_not_make_it_run_twice_and_is_told_once_a_day(workspace: Workspace) -> None:
    path = workspace.write_task(UNEDITABLE, '---\nid: once\nschedule: in 1 hour\ncommand: "echo >> ran"\n---\n')
    before = path.read_text()
    workspace.tick()
    come(workspace, "once")
    assert "could not be edited" in workspace.tick().stderr
    workspace.cli("run", "once")
    workspace.tick()
    assert sources(workspace) == ["one-shot", "manual"] and path.read_text() == before
    assert state(workspace) == ("completed", None)
    assert workspace.sql("SELECT kind FROM alerts") == [("not edited",)]
    workspace.sql("UPDATE alerts SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', created_at, '-25 hours')")
    workspace.tick()
    assert workspace.sql("SELECT COUNT(*) FROM alerts") == [(2,)]
    path.rename(path.with_name("short.md"))  # now it can be edited
    workspace.tick()
    assert closed(path.with_name("short.md"), "completed") and len(workspace.rows("once")) == 2


def test_a_file_that_is_another_task_by_now_is_left_alone(workspace: Workspace) -> None:
    path = met(workspace, command="sed -i 's/id: once/id: other/' tasks/once.md")
    workspace.tick()
    changed = path.read_text()
    assert "id: other" in changed and "enabled" not in changed and workspace.rows("once") == [RAN]


def test_another_schedule_written_while_it_runs_is_not_closed(workspace: Workspace) -> None:
    path = met(workspace, command="sed -i 's/in 1 hour/in 3 hours/' tasks/once.md")
    workspace.tick()
    assert "in 3 hours" in path.read_text() and "enabled" not in path.read_text()
    workspace.tick()
    assert state(workspace)[0] == "active" and state(workspace)[1] is not None


# --- not on time -----------------------------------------------------------------------------------------------


def test_what_an_outage_covered_is_run_late_or_written_off(workspace: Workspace) -> None:
    for task_id, fields in {
        "late": {},
        "never": {"catch_up": "skip"},
        "old": {"grace": "30m"},
        "young": {"grace": "3h"},
    }.items():
        workspace.task(task_id, schedule="in 1 hour", **fields)
    workspace.tick()
    for task_id in ("late", "never", "old", "young"):
        come(workspace, task_id, "-2 hours")
    workspace.tick()
    workspace.tick()
    for task_id in ("late", "young"):
        assert workspace.rows(task_id) == [RAN] and sources(workspace, task_id) == ["catch-up"]
        assert closed(workspace.root / "tasks" / f"{task_id}.md", "completed")
    for task_id in ("never", "old"):
        assert workspace.rows(task_id) == [("missed", "outage", 1)]
        assert closed(workspace.root / "tasks" / f"{task_id}.md", "failed")


def test_a_date_that_was_past_at_first_sight_is_rejected_and_told_once(workspace: Workspace) -> None:
    path = workspace.task("once", "touch ran", schedule="on 2020-06-01 at 12:00")
    assert (
        "tasks/once.md:3: schedule: 'on 2020-06-01 at 12:00' is in the past" in workspace.cli("validate", code=1).stdout
    )
    assert "is in the past" in workspace.tick().stderr
    workspace.tick()
    assert workspace.sql("SELECT kind FROM alerts") == [("rejected",)] and state(workspace) == ("rejected", None)
    assert "in the past" in workspace.cli("run", "once", code=1).stderr
    path.write_text(path.read_text().replace("---\nA task", "enabled: false\ndisabled_reason: completed\n---\nA task"))
    assert "no problems" in workspace.cli("validate").stdout
    workspace.tick()
    path.write_text(path.read_text().replace("enabled: false\ndisabled_reason: completed\n", ""))
    workspace.tick()
    assert state(workspace) == ("rejected", None) and workspace.sql("SELECT * FROM task_runs") == []


def test_a_date_that_passes_after_the_task_was_met_is_caught_up(workspace: Workspace) -> None:
    future, past = f"on {days_ahead(2)} at 12:00", f"on {days_ahead(-2)} at 12:00"
    path = workspace.task("once", "touch ran", schedule=future)
    workspace.tick()
    path.write_text(path.read_text().replace(future, past))
    workspace.sql("UPDATE tasks SET schedule = ?", past)
    come(workspace, "once", "-4 days")
    workspace.tick()
    assert sources(workspace) == ["catch-up"] and closed(path, "completed")
    assert "no problems" in workspace.cli("validate").stdout
    workspace.tick()
    assert workspace.rows("once") == [RAN] and workspace.sql("SELECT * FROM alerts") == []


def test_over_a_pause_it_waits_for_its_end_and_leaves_one_row(workspace: Workspace) -> None:
    path = workspace.task("once", "echo >> ran", schedule="in 1 hour", catch_up="skip")
    workspace.cli("pause", "once", "--for", "2h")
    come(workspace, "once")
    workspace.tick()
    workspace.tick()
    assert workspace.rows("once") == [("skipped", "paused", 1)]
    workspace.sql("UPDATE tasks SET paused_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')")
    workspace.tick()
    workspace.tick()
    assert workspace.rows("once") == [("skipped", "paused", 1), RAN] and closed(path, "completed")


def test_paused_in_the_file_over_its_time_it_is_not_run_and_resume_says_what_to_do(workspace: Workspace) -> None:
    path = workspace.task("once", "touch ran", schedule="in 1 hour")
    workspace.cli("pause", "once")
    workspace.tick()
    come(workspace, "once", "-2 hours")
    refused = workspace.cli("resume", "once", code=1).stderr
    assert (
        "the time of once has passed" in refused
        and f"`{workspace.typed('run once')}`" in refused
        and closed(path, "paused")
    )
    path.write_text(path.read_text().replace("enabled: false", "enabled: true"))
    workspace.tick()
    assert workspace.rows("once") == [] and not (workspace.root / "ran").exists()
    assert state(workspace) == ("completed", None), "it must not look alive"


def test_a_file_that_is_broken_at_the_time_only_puts_it_off(workspace: Workspace) -> None:
    path = met(workspace)
    whole = path.read_text()
    path.write_text(whole.replace("command", "timeout: soon\ncommand"))
    workspace.tick()
    workspace.tick()
    assert workspace.rows("once") == [("skipped", "rejected", 1)]
    path.write_text(whole)
    workspace.tick()
    assert workspace.rows("once") == [("skipped", "rejected", 1), RAN] and closed(path, "completed")


# --- twice -----------------------------------------------------------------------------------------------------


def test_a_tick_that_is_killed_lets_it_run_once_more_and_closes_it(workspace: Workspace) -> None:
    gate = Gate(workspace)
    path = met(workspace, command=f"echo >> ran; [ $(wc -l < ran) -gt 1 ] || {{ {gate.command}; }}")
    tick = workspace.start("tick")
    gate.wait()
    kill(tick.pid)
    tick.communicate()
    workspace.tick()
    assert workspace.rows("once") == [RAN] and (workspace.root / "ran").read_text() == "\n\n"
    assert closed(path, "completed") and workspace.sql("SELECT attempts FROM task_runs") == [(2,)]
    workspace.tick()
    assert workspace.rows("once") == [RAN]


def test_one_that_must_not_be_started_twice_is_closed_as_failed_when_it_was_cut_off(workspace: Workspace) -> None:
    gate = Gate(workspace)
    path = met(workspace, command=gate.command, rerun_interrupted=False)
    tick = workspace.start("tick")
    gate.wait()
    kill(tick.pid)
    tick.communicate()
    workspace.tick()
    assert workspace.rows("once") == [("orphaned", None, 1)] and closed(path, "failed")


def test_an_end_that_was_recorded_but_not_written_is_written_by_the_next_tick(workspace: Workspace) -> None:
    path = met(workspace)
    before = path.read_text()
    workspace.tick()
    path.write_text(before)  # as if the tick had died right before the edit
    workspace.sql("UPDATE tasks SET closing = 'completed', enabled = 1")
    workspace.tick()
    assert workspace.rows("once") == [RAN] and closed(path, "completed")


def test_ticks_at_the_same_instant_run_it_once(workspace: Workspace) -> None:
    path = met(workspace, command="echo >> ran; sleep 0.2")
    results = start_together([workspace.argv("tick")] * 4, env=workspace.environment, cwd=workspace.root)
    assert [done.returncode for done in results] == [0] * 4, results
    assert workspace.rows("once") == [RAN] and (workspace.root / "ran").read_text() == "\n"
    assert closed(path, "completed") and workspace.sql("SELECT COUNT(*) FROM alerts") == [(0,)]


def test_a_file_that_was_away_and_is_written_anew_counts_anew(workspace: Workspace) -> None:
    path = met(workspace)
    whole = path.read_text()
    workspace.tick()
    assert closed(path, "completed")
    path.unlink()
    workspace.tick()
    path.write_text(whole)
    workspace.tick()
    assert workspace.rows("once") == [RAN] and state(workspace)[0] == "active"
    come(workspace, "once")
    workspace.tick()
    assert workspace.rows("once") == [RAN, RAN] and closed(path, "completed")


def test_the_repeated_tick_meets_and_runs_one_within_its_minute(workspace: Workspace) -> None:
    workspace.task("keeps", "sleep 600", schedule="1h")
    path = workspace.task("once", "echo >> ran", schedule="in 1 second")
    tick = workspace.start("tick", "--every", "1s")
    wait_for(lambda: closed(path, "completed"), "the one run")
    assert os.path.getsize(workspace.root / "ran") == 1
    tick.terminate()
    tick.communicate(timeout=PATIENCE)
    assert workspace.rows("once") == [RAN]
