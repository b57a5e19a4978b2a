"""Alerts leave while other tasks of the same tick still run."""

from __future__ import annotations

import re
import resource
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tests.alerts.test_alerts import OK, outbox, quiet_now
from tests.helpers import PATIENCE, Gate, Telegram, Workspace, kill, wait_for


def held_tick(workspace: Workspace, gate: Gate) -> subprocess.Popen[str]:
    """A tick that goes on until the gate is opened."""
    workspace.task("slow", gate.command, schedule="1h")
    process = workspace.start("tick")
    gate.wait()
    return process


def end(process: subprocess.Popen[str], gate: Gate) -> str:
    gate.open()
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    return told


def test_an_alert_arrives_while_another_task_still_runs(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    gate = Gate(workspace)
    workspace.task("bad", "exit 1", schedule="1h")
    process = held_tick(workspace, gate)
    wait_for(lambda: outbox(workspace) == [("failed", "sent")], "the alert")
    assert "bad failed" in telegram.texts[0]
    [(written, sent)] = workspace.sql("SELECT created_at, sent_at FROM alerts")
    assert (datetime.fromisoformat(sent) - datetime.fromisoformat(written)).total_seconds() < 15
    assert workspace.last_run("slow")["status"] == "running"
    end(process, gate)
    assert len(telegram.texts) == 1


def test_what_fails_together_is_still_one_digest(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, "max_concurrent: 10\n")
    gate = Gate(workspace)
    for number in range(6):
        workspace.task(f"bad{number}", "exit 1", schedule="1h")
    process = held_tick(workspace, gate)
    wait_for(lambda: telegram.texts, "the digest")
    assert "6 alerts" in telegram.texts[0]
    end(process, gate)
    assert len(telegram.texts) == 1


def test_quiet_hours_hold_what_fails_while_others_run(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, quiet_now())
    gate = Gate(workspace)
    workspace.task("bad", "exit 1", schedule="1h")
    process = held_tick(workspace, gate)
    wait_for(lambda: workspace.sql("SELECT held FROM alerts") == [(1,)], "the alert is held")
    end(process, gate)
    assert telegram.texts == [] and outbox(workspace) == [("failed", "pending")]


def test_alerts_for_stderr_arrive_meanwhile_too(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("bad", "exit 1", schedule="1h")
    process = held_tick(workspace, gate)
    wait_for(lambda: outbox(workspace) == [("failed", "sent")], "the alert")
    assert end(process, gate).count("bad failed") == 1


def test_a_stalled_server_holds_up_neither_a_deadline_nor_the_end_of_a_run(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: "stall" if number == 1 else OK
    gate, other = Gate(workspace), Gate(workspace, "other")
    workspace.task("bad", "exit 1", schedule="1h")
    workspace.task("endless", "sleep 600", schedule="1h", timeout="8s", notify_on="never")
    workspace.task("other", other.command, schedule="1h")
    process = held_tick(workspace, gate)
    wait_for(lambda: telegram.texts, "the request that is not answered")
    other.open()
    wait_for(lambda: workspace.last_run("other")["status"] == "success", "the end of a run")
    wait_for(lambda: workspace.last_run("endless")["status"] == "timeout", "a deadline")
    assert workspace.sql("SELECT tries FROM alerts WHERE task_id = 'bad'") == [(0,)], "it is still stalled"
    telegram.hang_up()
    end(process, gate)
    assert set(outbox(workspace)) == {("failed", "sent")}
    assert len(telegram.texts) == 2


def test_where_no_thread_can_be_started_alerts_leave_at_the_end(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    gate, other = Gate(workspace), Gate(workspace, "other")
    workspace.task("bad", f"{other.command}; exit 1", schedule="1h")
    process = held_tick(workspace, gate)
    other.wait()
    found = re.search(r"VmSize:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    before = resource.prlimit(process.pid, resource.RLIMIT_AS)
    room = int(found[1]) * 1024 + 4 * 2**20  # for what the tick does, not for the stack of a thread
    resource.prlimit(process.pid, resource.RLIMIT_AS, (room, before[1]))
    other.open()
    wait_for(lambda: "alerts_wait" in workspace.scheduler_log(), "a thread that can't be started")
    assert telegram.texts == []
    resource.prlimit(process.pid, resource.RLIMIT_AS, before)
    end(process, gate)
    assert len(telegram.texts) == 1 and outbox(workspace) == [("failed", "sent")]


def test_a_tick_that_is_killed_while_it_sends_loses_no_alert(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: "stall" if number == 1 else OK
    gate = Gate(workspace)
    workspace.task("bad", "exit 1", schedule="1h")
    process = held_tick(workspace, gate)
    wait_for(lambda: telegram.texts, "the request that is not answered")
    kill(process.pid)
    process.communicate()
    workspace.task("slow", "true", schedule="1h", rerun_interrupted=False)
    workspace.tick()
    assert sum("bad failed" in text for text in telegram.texts) == 1, "somebody may still be sending it"
    past = datetime(2020, 1, 1, tzinfo=UTC).isoformat()
    workspace.sql("UPDATE alerts SET lease_until = ? WHERE status = 'pending'", past)
    workspace.tick()
    workspace.tick()
    assert sum("bad failed" in text for text in telegram.texts) == 2, "the first may have arrived; it is sent once more"
    assert all(status == "sent" for _, status in outbox(workspace))
