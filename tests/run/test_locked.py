"""A task whose lock somebody holds though no run of it is on record: a stranger, or a run that a damaged database knew of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import PROJECT, Gate, Telegram, Workspace, half_past, kill, start_together
from tickdown.processes.lock import TaskLock, look_at
from tickdown.processes.process import this_process

RAN = ("success", None, 1)
HOLD = "import fcntl, sys; file = open(sys.argv[1], 'a+'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"


def lock_file(workspace: Workspace, task_id: str) -> Path:
    return workspace.root / "state" / "locks" / f"{task_id}.lock"


@contextmanager
def stranger(workspace: Workspace, *task_ids: str) -> Iterator[int]:
    """A process that has nothing to do with Tickdown holds the locks of these tasks; the pid of the last."""
    holders = []
    for task_id in task_ids:
        lock_file(workspace, task_id).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = [sys.executable, "-c", HOLD, str(lock_file(workspace, task_id))]
        holders.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert holders[-1].stdout is not None and holders[-1].stdout.readline() == "held\n"
    try:
        yield holders[-1].pid
    finally:
        for holder in holders:
            holder.communicate()


def due(workspace: Workspace, task_id: str, command: str = "true", **fields: object) -> None:
    """An hourly task that has been seen, and missed one occurrence since."""
    workspace.task(task_id, command, schedule=half_past(), **fields)
    workspace.tick()
    workspace.move_back(task_id, "-1 hour")


def noted(workspace: Workspace, task_id: str) -> list[tuple[str, str | None, int, str | None]]:
    return workspace.sql(
        "SELECT status, reason, count, note FROM task_runs WHERE task_id = ? ORDER BY recorded_at, rowid", task_id
    )


def alerts(workspace: Workspace) -> list[str]:
    return [title for (title,) in workspace.sql("SELECT title FROM alerts WHERE kind = 'locked' ORDER BY id")]


# --- rows ------------------------------------------------------------------------------------------------------


def test_what_is_due_while_a_stranger_holds_the_lock_leaves_rows_that_name_him(workspace: Workspace) -> None:
    due(workspace, "job", "echo >> ran")
    with stranger(workspace, "job") as pid:
        note = f"its lock is held by pid {pid} ("
        told = workspace.tick().stdout
        assert told.startswith("skipped   job  already_running (1); " + note)
        workspace.move_back("job", "-2 hours")
        workspace.tick()
        ((status, reason, count, text),) = noted(workspace, "job")
        assert (
            (status, reason, count) == ("skipped", "already_running", 3) and text is not None and text.startswith(note)
        )
        (shown,) = workspace.history("job")
        assert shown["note"] == text and text in workspace.cli("history", "job").stdout
        assert '"lock_held"' in workspace.scheduler_log() and not (workspace.root / "ran").exists()
        workspace.move_back("job", "-1 hour")
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "already_running", 3), RAN]
    assert "held_by" not in workspace.json("list")[0] and '"lock_free"' in workspace.scheduler_log()


@pytest.mark.parametrize("schedule", ["1h", "in 1 hour", "@reboot"])
def test_what_can_not_be_missed_waits_with_one_row_and_runs_once_the_lock_is_free(
    workspace: Workspace, schedule: str
) -> None:
    workspace.task("job", schedule=schedule)
    workspace.cli("pause", "job", "--for", "1h")
    workspace.tick()
    workspace.cli("resume", "job")
    workspace.sql(
        "UPDATE tasks SET boot_id = 'another', anchored_at = '2026-01-01T00:00:00.000Z', armed_at = anchored_at"
    )
    workspace.sql(
        "UPDATE tasks SET armed_at = '2025-12-31T00:00:00.000Z', last_end = NULL, last_occurrence = NULL, deferred = NULL"
    )
    workspace.sql("DELETE FROM task_runs")
    with stranger(workspace, "job") as pid:
        for _ in range(3):
            workspace.tick()
        ((status, reason, count, note),) = noted(workspace, "job")
        assert (status, reason, count) == ("skipped", "already_running", 1) and f"pid {pid} " in (note or "")
        assert "due now" not in workspace.cli("list").stdout and "when its lock is free" in workspace.cli("list").stdout
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "already_running", 1), RAN]


def test_catch_up_all_waits_its_turn(workspace: Workspace) -> None:
    due(workspace, "job", catch_up="all")
    workspace.move_back("job", "-2 hours")
    with stranger(workspace, "job"):
        for _ in range(2):
            workspace.tick()
            assert workspace.rows("job") == [("skipped", "already_running", 1)] * 3
    workspace.tick()
    assert workspace.rows("job") == [RAN] * 3, "each has one row"


def test_what_waits_does_not_hide_what_the_clock_names_meanwhile(workspace: Workspace) -> None:
    due(workspace, "job")
    workspace.cli("hint", "job", "--at", "in 1 second")
    workspace.sql("UPDATE hints SET at = '2026-01-01T00:00:00.000Z'")
    with stranger(workspace, "job"):
        workspace.tick()
        workspace.tick()
        assert workspace.rows("job") == [("skipped", "already_running", 1)] * 2, "a row for the clock, one for the hint"
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "already_running", 1), ("skipped", "already_running", 1), RAN]
    assert workspace.last_run("job")["source"] == "ai-oneshot"


def test_a_run_that_a_damaged_database_knew_of_is_named_until_it_ends(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("job", f"echo >> ran; {gate.command}", schedule="1h")
    first = workspace.start("tick")
    gate.wait()
    (run,) = workspace.runs("job")
    database = workspace.root / "state" / "tickdown.db"
    for name in (database, database.with_name("tickdown.db-wal")):
        with name.open("r+b") as file:
            file.write(b"these are not the rows you are looking for " * 500)
    workspace.tick(code=1)
    assert list(database.parent.glob("tickdown.db.damaged-*"))
    workspace.tick()
    workspace.move_back("job", "-2 hours")
    workspace.tick()
    ((status, reason, count, note),) = noted(workspace, "job")
    assert (status, reason, count) == ("skipped", "already_running", 1)
    assert note is not None and note.startswith(f"its lock is held by run {run['run_id']}, pid {first.pid} on ")
    assert workspace.json("why", "job")["held_by"] in note
    refused = workspace.cli("run", "job", code=5).stderr
    assert run["run_id"] in refused and "no run of it is on record" in refused
    assert run["run_id"] in workspace.cli("stop", "job", code=1).stderr
    gate.open()
    first.communicate()
    assert (workspace.root / "ran").read_text() == "\n"
    second = workspace.start("tick")
    gate.open()
    second.communicate()
    assert workspace.rows("job") == [("skipped", "already_running", 1), RAN]


def test_many_held_locks_keep_no_other_task_waiting_and_are_looked_at_together(workspace: Workspace) -> None:
    names = [f"held{number}" for number in range(12)]
    for name in (*names, "free"):
        workspace.task(name, schedule="1h")
    with stranger(workspace, *names):
        workspace.tick()
        assert {workspace.rows(name)[0][:2] for name in names} == {("skipped", "already_running")}
        assert workspace.rows("free") == [RAN]
    workspace.tick()
    assert all(workspace.rows(name)[1:] == [RAN] for name in names)


# --- what is no stranger -----------------------------------------------------------------------------------------


def test_ticks_that_take_up_the_same_occurrence_leave_no_row_of_each_other(workspace: Workspace) -> None:
    for number in range(10):
        workspace.task(f"job{number}", "sleep 0.4", schedule="1h")
    workspace.config("max_concurrent: 20\n")
    assert all(done.returncode == 0 for done in start_together([workspace.argv("tick")] * 5, env=workspace.environment))
    assert [workspace.rows(f"job{number}") for number in range(10)] == [[RAN]] * 10


def test_who_is_about_to_record_a_run_is_no_stranger(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    locks = lock_file(workspace, "job").parent
    lock = TaskLock(locks, "job")
    assert lock.acquire(this_process())
    seen = look_at(locks, "job")
    assert seen is not None and seen.is_claiming and f"pid {os.getpid()} on " in seen.words
    workspace.tick()
    assert workspace.rows("job") == [] and workspace.json("why", "job")["held_by"] is None
    text = json.loads(lock_file(workspace, "job").read_text())
    lock_file(workspace, "job").write_text(json.dumps(text | {"claims_since": text["claims_since"] - 100}))  # it hangs
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "already_running", 1)]
    lock.release()
    assert look_at(locks, "job") is None
    workspace.tick()
    assert workspace.rows("job")[1:] == [RAN]


def test_the_words_of_a_dead_process_are_not_believed(workspace: Workspace) -> None:
    locks = lock_file(workspace, "job").parent
    locks.mkdir(parents=True, mode=0o700)
    claim = "import os, sys; from pathlib import Path; from tickdown.processes.lock import TaskLock; "
    claim += "from tickdown.processes.process import this_process; "
    claim += "assert TaskLock(Path(sys.argv[1]), 'other').acquire(this_process()); os._exit(0)"
    subprocess.run([sys.executable, "-c", claim, str(locks)], cwd=PROJECT / "lib", check=True)
    text = lock_file(workspace, "other").read_text()
    assert json.loads(text)["claims_since"] and look_at(locks, "other") is None
    with stranger(workspace, "job") as pid:
        lock_file(workspace, "job").write_text(text)
        seen = look_at(locks, "job")
        assert seen is not None and seen.words.startswith(f"pid {pid} (") and seen.run_id is None


def test_a_lock_that_was_inherited_is_named_by_who_has_it(workspace: Workspace) -> None:
    path = lock_file(workspace, "job")
    path.parent.mkdir(parents=True, mode=0o700)
    shell = subprocess.Popen(
        ["bash", "-c", f"exec 9> {path}; flock 9; echo held; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert shell.stdout is not None and shell.stdout.readline() == "held\n"
    seen = look_at(path.parent, "job")
    assert seen is not None and seen.words == f"pid {shell.pid} (bash)"
    shell.communicate("\n")
    assert look_at(path.parent, "job") is None


# --- who is told -------------------------------------------------------------------------------------------------


def test_list_why_show_and_doctor_tell_of_it_while_it_lasts(workspace: Workspace) -> None:
    due(workspace, "job")
    with stranger(workspace, "job") as pid:
        before = workspace.cli("why", "job").stdout  # no tick has met it yet
        assert f"its lock is held by pid {pid} (" in before and "the next tick starts it" not in before
        (decided,) = workspace.json("tick", "--dry-run")["decisions"]
        assert (decided["action"], decided["reason"]) == ("skip", "already_running")
        workspace.tick()
        (listed,) = workspace.json("list")
        assert listed["held_by"].startswith(f"pid {pid} (") and listed["state"] == "active"
        assert "active (locked)" in workspace.cli("list").stdout
        for command in ("why", "show"):
            assert f"its lock is held by pid {pid} (" in workspace.cli(command, "job").stdout
        checks = [check for check in workspace.json("doctor", code=None)["checks"] if check["name"] == "lock"]
        assert [(check["ok"], check["message"].startswith("job: its lock is held by")) for check in checks] == [
            (True, True)
        ]
        assert f"held by pid {pid}" in workspace.cli("run", "job", code=5).stderr
        assert workspace.json("next", "job")
    # Nobody has looked since, and yet it is not told as held.
    assert "held_by" not in workspace.json("list")[0] and "locked" not in workspace.cli("list").stdout
    assert "lock" not in workspace.cli("why", "job").stdout.partition("now ")[2]
    assert "lock is held" not in workspace.cli("show", "job").stdout.partition("RUN ")[0]
    assert all(check["name"] != "lock" for check in workspace.json("doctor", code=None)["checks"])


def test_one_alert_when_it_lasts_longer_than_a_run_may_take(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    due(workspace, "job", timeout="5m")
    with stranger(workspace, "job") as pid:
        workspace.tick()
        workspace.tick()
        assert alerts(workspace) == []
        workspace.sql(
            "UPDATE tasks SET held_since = strftime('%Y-%m-%dT%H:%M:%fZ', held_since, '-6 minutes'), look_at = ''"
        )
        for _ in range(3):
            workspace.tick()
            workspace.move_back("job", "-1 hour")
        assert alerts(workspace) == ["job can't start: its lock is held"]
        (text,) = telegram.texts
        assert f"pid {pid} (" in text and "a run may take 5m" in text and "state/locks/job.lock" in text
        assert workspace.json("tickets") == []
        checks = [check for check in workspace.json("doctor", code=1)["checks"] if check["name"] == "lock"]
        assert [check["ok"] for check in checks] == [False]
    workspace.move_back("job", "-1 hour")
    workspace.tick()
    assert workspace.last_run("job")["status"] == "success" and len(telegram.texts) == 1
    with stranger(workspace, "job"):
        workspace.move_back("job", "-1 hour")
        workspace.tick()
        workspace.sql("UPDATE tasks SET held_since = '2026-01-01T00:00:00.000Z', look_at = ''")
        workspace.tick()
        assert len(telegram.texts) == 2  # another one


def test_it_is_looked_at_again_when_it_is_to_be_told_and_not_in_every_tick(workspace: Workspace) -> None:
    due(workspace, "job", timeout="5m")
    with stranger(workspace, "job"):
        workspace.tick()
        ((look_at_, since),) = workspace.sql("SELECT look_at, held_since FROM tasks")
        ((planned,),) = workspace.sql("SELECT strftime('%Y-%m-%dT%H:%M:%fZ', ?, '+5 minutes')", since)
        assert look_at_ == planned
        workspace.sql("UPDATE tasks SET held_since = strftime('%Y-%m-%dT%H:%M:%fZ', ?, '-6 minutes')", since)
        workspace.sql("UPDATE tasks SET look_at = strftime('%Y-%m-%dT%H:%M:%fZ', ?, '-1 minute')", since)
        workspace.tick()
        assert len(alerts(workspace)) == 1
        ((look_at_, rows),) = workspace.sql("SELECT look_at, (SELECT COUNT(*) FROM task_runs) FROM tasks")
        assert look_at_ > planned and rows == 1  # its next occurrence


def test_a_dead_run_that_a_stranger_keeps_from_being_taken_over_is_told_of(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("job", f"[ -e ran ] || {{ touch ran; {gate.command}; }}", schedule="1h", timeout="5m")
    tick = workspace.start("tick")
    gate.wait()
    kill(tick.pid)
    tick.communicate()
    with stranger(workspace, "job") as pid:
        workspace.tick()
        assert workspace.sql("SELECT 1 FROM alerts WHERE kind = 'not recovered'") == []
        workspace.sql("UPDATE task_runs SET heartbeat_at = strftime('%Y-%m-%dT%H:%M:%fZ', heartbeat_at, '-6 minutes')")
        for _ in range(2):
            workspace.tick()
        ((body,),) = workspace.sql("SELECT body FROM alerts WHERE kind = 'not recovered'")
        assert f"its lock is held by pid {pid} (" in body
    workspace.tick()
    assert workspace.rows("job") == [RAN]
