"""A tick from the outside: what is due, what runs beside what, and what a broken installation does."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import shlex
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, Gate, Telegram, Workspace, half_past, wait_for

RAN = ("success", None, 1)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, errors
    return output


def sources(workspace: Workspace, task_id: str) -> list[str]:
    rows = workspace.sql("SELECT source FROM task_runs WHERE task_id = ? ORDER BY recorded_at, rowid", task_id)
    return [source for (source,) in rows]


def hold_back(workspace: Workspace, task_id: str, hours: int) -> None:
    """A task that was last looked at some hours ago, so that as many hourly occurrences are due."""
    workspace.tick()
    workspace.move_back(task_id, f"-{hours} hours")
    workspace.tick()


# --- what is due -----------------------------------------------------------------------------------------------


def test_a_new_interval_task_is_due_at_once_and_a_new_cron_task_waits(workspace: Workspace) -> None:
    workspace.task("now", schedule="1h")
    workspace.task("later", schedule=half_past())
    workspace.task("never", schedule="manual")
    workspace.tick()
    workspace.tick()
    assert workspace.rows("now") == [RAN]
    assert workspace.rows("later") == workspace.rows("never") == []


def test_a_task_that_fails_is_not_due_again_before_its_next_occurrence(workspace: Workspace) -> None:
    workspace.task("bad", "exit 3", schedule=half_past())
    hold_back(workspace, "bad", 1)
    workspace.tick()
    assert workspace.rows("bad") == [("failed", None, 1)]


def test_a_forced_run_uses_up_no_occurrence_and_moves_none(workspace: Workspace) -> None:
    workspace.task("job", schedule=half_past())
    workspace.tick()
    before = workspace.listed()[0]["next_run_at"]
    workspace.cli("run", "job")
    assert workspace.listed()[0]["next_run_at"] == before
    workspace.move_back("job", "-1 hour")
    workspace.cli("run", "job")
    workspace.tick()
    assert sources(workspace, "job") == ["manual", "manual", "catch-up"]


def test_editing_an_unrelated_field_neither_fires_nor_skips_an_occurrence(workspace: Workspace) -> None:
    schedule = half_past()  # once: a minute later it would be another, and that re-arms the task
    workspace.task("job", schedule=schedule)
    workspace.tick()
    workspace.move_back("job", "-1 hour")
    workspace.task("job", schedule=schedule, title="Another title")
    workspace.tick()
    workspace.task("job", schedule=schedule, title="Yet another")
    workspace.tick()
    assert workspace.rows("job") == [RAN]


def test_catch_up_once_runs_one_for_all_that_was_missed(workspace: Workspace) -> None:
    workspace.task("job", "echo $TICKDOWN_SCHEDULED_FOR > at", schedule=half_past())
    hold_back(workspace, "job", 5)
    assert workspace.rows("job") == [("missed", "outage", 4), RAN]
    assert sources(workspace, "job")[1] == "catch-up"
    ran_for = datetime.fromisoformat((workspace.root / "at").read_text().strip())
    assert ran_for == datetime.fromisoformat(workspace.last_run("job")["scheduled_for"])


def test_catch_up_skip_runs_none_of_them(workspace: Workspace) -> None:
    workspace.task("job", schedule=half_past(), catch_up="skip")
    hold_back(workspace, "job", 5)
    workspace.tick()
    assert workspace.rows("job") == [("missed", "outage", 5)]


def test_catch_up_all_runs_each_in_order_up_to_24(workspace: Workspace) -> None:
    workspace.task("job", "echo $TICKDOWN_SCHEDULED_FOR >> order", schedule=half_past(), catch_up="all")
    hold_back(workspace, "job", 30)
    assert workspace.rows("job") == [("missed", "outage", 6)] + [RAN] * 24
    order = (workspace.root / "order").read_text().split()
    assert order == sorted(set(order)) and len(order) == 24


def test_grace_lets_only_the_recent_ones_be_caught_up(workspace: Workspace) -> None:
    workspace.task("job", schedule=half_past(), catch_up="all", grace="2h")
    hold_back(workspace, "job", 5)
    assert workspace.rows("job") == [("missed", "outage", 3), RAN, RAN]


def test_every_repeats_the_tick_inside_its_minute(workspace: Workspace) -> None:
    workspace.task("often", "echo >> beats", schedule="1s")
    beats = workspace.root / "beats"
    process = workspace.start("tick", "--every", "1s")
    wait_for(lambda: beats.exists() and len(beats.read_text()) > 1, "a second run within one tick")
    process.terminate()
    finish(process, 143)
    assert workspace.sql("SELECT COUNT(*) FROM heartbeats") == [(1,)]


def test_a_detached_tick_returns_while_its_child_finishes_the_task(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", gate.command, schedule="1h")
    workspace.tick("--detach")
    gate.wait()
    assert workspace.rows("slow") == [("running", None, 1)]
    gate.open()
    wait_for(lambda: workspace.rows("slow") == [RAN], "the child's record")
    wait_for(lambda: not workspace.processes(), "the child's end")


def test_a_dry_run_tells_the_decisions_and_changes_nothing(workspace: Workspace) -> None:
    workspace.task("old", schedule="1h")
    workspace.tick()
    workspace.move_back("old", "-2 hours")
    workspace.task("new", "touch ran", schedule="1h")
    workspace.task("waits", schedule=half_past())
    workspace.write_task("broken", "---\nid: broken\n---\n")
    before = everything(workspace)
    output = workspace.tick("--dry-run").stdout
    decisions = {row["task_id"]: row for row in workspace.json("tick", "--dry-run")["decisions"]}
    assert everything(workspace) == before
    assert "run     new" in output and "reject  tasks/broken.md" in output and "2 would start" in output
    assert decisions["old"]["action"] == "run" and decisions["waits"]["reason"] == "not_due"


def test_a_dry_run_in_an_untouched_workspace_leaves_it_untouched(workspace: Workspace) -> None:
    workspace.task("new", schedule="1h")
    workspace.tick("--dry-run")
    assert sorted(path.name for path in workspace.root.iterdir()) == ["tasks"]


def everything(workspace: Workspace) -> dict[str, object]:
    """Every row and every file. The database's own bytes may move (its log is folded in when it is closed)."""
    tables = [name for (name,) in workspace.sql("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found: dict[str, object] = {name: workspace.sql(f"SELECT * FROM {name}") for name in tables}
    for path in workspace.root.rglob("*"):
        if path.is_file() and not path.name.startswith("tickdown.db"):
            found[str(path)] = (path.read_bytes(), path.stat().st_mtime_ns)
    return found


# --- beside each other -----------------------------------------------------------------------------------------


def test_a_long_task_does_not_delay_another(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("long", gate.command, schedule="1h")
    first = workspace.start("tick")
    gate.wait()
    workspace.task("short", schedule="1h")
    workspace.tick()
    assert workspace.rows("short") == [RAN] and workspace.rows("long") == [("running", None, 1)]
    gate.open()
    finish(first)
    assert workspace.rows("long") == [RAN]


def test_max_concurrent_holds_over_several_ticks(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 2\n")
    (workspace.root / "inside").mkdir()
    count = "touch inside/$TICKDOWN_TASK_ID; ls inside | wc -l >> overlap"
    wait = "until [ -e go ]; do sleep 0.02; done; rm inside/$TICKDOWN_TASK_ID"
    ids = [f"task-{number}" for number in range(6)]
    for task_id in ids:
        workspace.task(task_id, f"{count}; {wait}", schedule="1h")
    ticks = [workspace.start("tick") for _ in range(3)]
    overlap = workspace.root / "overlap"
    wait_for(lambda: overlap.exists() and len(overlap.read_text().split()) == 2, "two tasks that have seen each other")
    # At least one of the ticks finds no slot for anything, and does not wait for the others.
    wait_for(lambda: any(process.poll() is not None for process in ticks), "the end of a tick without a slot")
    (workspace.root / "go").touch()
    for process in ticks:
        finish(process)
    workspace.tick()
    # In the order of writing: the clock was read before the wait for the database, so its order may differ.
    in_order = "SELECT status, reason, count FROM task_runs WHERE task_id = ? ORDER BY rowid"
    assert all(workspace.sql(in_order, task_id)[-1] == RAN for task_id in ids)
    counts = [int(line) for line in overlap.read_text().split()]
    assert len(counts) == 6 and max(counts) == 2


def test_what_finds_no_slot_leaves_a_row_and_runs_later(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 1\n")
    gate = Gate(workspace)
    workspace.task("first", gate.command, schedule="1h")
    holder = workspace.start("tick")
    gate.wait()
    workspace.task("second", schedule="1h")
    assert "deferred  second" in workspace.tick().stdout
    workspace.tick()
    assert workspace.rows("second") == [("skipped", "at_capacity", 2)]
    gate.open()
    finish(holder)
    workspace.tick()
    assert workspace.rows("second") == [("skipped", "at_capacity", 2), RAN]


def test_an_occurrence_that_comes_while_the_task_runs_is_skipped_and_counted(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", gate.command, schedule=half_past())
    workspace.tick()
    workspace.move_back("slow", "-1 hour")
    first = workspace.start("tick")
    gate.wait()
    workspace.move_back("slow", "-3 hours")
    workspace.tick()
    assert workspace.rows("slow")[1:] == [("skipped", "already_running", 3)]
    workspace.move_back("slow", "-2 hours")
    workspace.tick()
    assert workspace.rows("slow")[1:] == [("skipped", "already_running", 5)]
    gate.open()
    finish(first)
    assert workspace.rows("slow")[0] == RAN


def test_a_tick_whose_output_nobody_reads_still_supervises_its_tasks(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("a-slow", gate.command, schedule="1h")
    workspace.task("b-quick", schedule="1h")
    process = workspace.start("tick", env=workspace.environment | {"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    process.stdout.close()
    gate.wait()
    wait_for(lambda: workspace.rows("b-quick") == [RAN], "the end of the quick one")
    gate.open()
    process.wait(timeout=PATIENCE)
    assert process.stderr is not None and process.stderr.read() == ""
    process.stderr.close()
    assert workspace.rows("a-slow") == workspace.rows("b-quick") == [RAN]


# --- broken files ----------------------------------------------------------------------------------------------


def test_a_rejected_file_is_reported_once_per_version_and_stops_nobody(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    workspace.task("good", schedule="1h")
    workspace.write_task("bad", "---\nid: bad\nschedule: 5x\ncommand: 'true'\n---\n")
    workspace.tick()
    workspace.tick()
    assert workspace.rows("good") == [RAN]
    assert len(telegram.texts) == 1 and "tasks/bad.md:3: schedule:" in telegram.texts[0]
    workspace.write_task("bad", "---\nid: bad\nschedule: 6x\ncommand: 'true'\n---\n")
    workspace.tick()
    assert len(telegram.texts) == 2 and "6x" in telegram.texts[1]


def test_due_occurrences_of_a_file_that_broke_leave_rows(workspace: Workspace) -> None:
    path = workspace.task("job", schedule=half_past())
    workspace.tick()
    path.write_text(path.read_text().replace("id: job", "id: job\nretry: maybe"))
    workspace.move_back("job", "-2 hours")
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "rejected", 2)]


def test_duplicate_ids_stop_everything_with_one_forced_alert_an_hour(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, "  quiet_hours: '00:00-23:59'\n")
    workspace.task("same", "touch ran", schedule="1h")
    shutil.copy(workspace.root / "tasks" / "same.md", workspace.root / "tasks" / "other.md")
    workspace.task("innocent", "touch ran", schedule="1h")
    first, second = workspace.tick(code=3), workspace.tick(code=3)
    line = "duplicate id 'same': tasks/other.md and tasks/same.md; nothing runs until this is put right"
    assert (first.stdout, first.stderr) == ("", f"{line}\n")
    assert (second.stdout, second.stderr) == (f"{line}\n", ""), "cron mails what is on stderr"
    assert not (workspace.root / "ran").exists() and workspace.history() == []
    assert len(telegram.texts) == 1
    assert "tasks/other.md" in telegram.texts[0] and "tasks/same.md" in telegram.texts[0]
    workspace.sql("UPDATE alerts SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', created_at, '-61 minutes')")
    assert workspace.tick(code=3).stderr == f"{line}\n" and len(telegram.texts) == 2


def duplicate(workspace: Workspace) -> int:
    workspace.task("same", schedule="1h")
    shutil.copy(workspace.root / "tasks" / "same.md", workspace.root / "tasks" / "other.md")
    return 3


def misconfigure(workspace: Workspace) -> int:
    workspace.config("max_concurrent: [tasks/other.md and tasks/same.md]\n")
    return 2


def spoil_env(workspace: Workspace) -> int:
    (workspace.root / ".env").write_text("not a line, tasks/other.md and tasks/same.md\n")
    return 2


@pytest.mark.parametrize("spoil", [duplicate, misconfigure, spoil_env])
def test_what_stops_every_tick_is_on_stderr_once_an_hour(
    workspace: Workspace, spoil: Callable[[Workspace], int]
) -> None:
    workspace.tick()
    code = spoil(workspace)
    first, second = workspace.tick(code=code), workspace.tick(code=code)
    assert first.stderr.startswith("tickdown on ") and second.stderr == "" != second.stdout
    (words,) = second.stdout.splitlines()
    said = words.removeprefix("scheduler.py: ").partition("; nothing runs")[0]
    assert first.stderr.count(said) == 1 and first.stdout == second.stdout, "what the alert says is not said beside it"
    assert words in on_terminal(workspace, code)
    workspace.sql("UPDATE alerts SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', created_at, '-61 minutes')")
    assert said in workspace.tick(code=code).stderr
    as_json = workspace.tick("--json", code=code)
    assert json.loads(as_json.stdout)["duplicates"] if code == 3 else words in as_json.stderr and not as_json.stdout


def on_terminal(workspace: Workspace, code: int) -> str:
    """What a tick prints on stderr where that is a terminal."""
    ours, theirs = pty.openpty()
    done = subprocess.run(workspace.argv("tick"), env=workspace.environment, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    with open(ours, "rb", buffering=0) as screen:
        text = screen.read(10_000).decode()
    assert done.returncode == code
    return text


# --- being watched ---------------------------------------------------------------------------------------------


def test_every_line_of_the_scheduler_log_is_json_with_the_same_keys(workspace: Workspace) -> None:
    workspace.task("good", schedule="1h")
    workspace.task("bad", "exit 1", schedule="1h")
    workspace.write_task("broken", "---\n---\n")
    workspace.tick()
    lines = [json.loads(line) for line in workspace.scheduler_log().splitlines()]
    for line in lines:
        assert {"timestamp", "level", "event", "task_id", "run_id", "trace_id"} <= line.keys(), line
        assert datetime.fromisoformat(line["timestamp"]).utcoffset() is not None
    ended = {line["task_id"]: line for line in lines if line["event"] == "run_finished"}
    run = workspace.last_run("bad")
    assert (ended["bad"]["run_id"], ended["bad"]["trace_id"]) == (run["run_id"], run["trace_id"])
    assert (ended["good"]["level"], ended["bad"]["level"]) == ("info", "warning")


def test_every_tick_leaves_a_heartbeat_and_a_snapshot_of_the_machine(workspace: Workspace) -> None:
    workspace.task("a", schedule="1h")
    workspace.task("b", schedule="1h")
    workspace.tick()
    workspace.tick()
    assert workspace.sql("SELECT COUNT(*) FROM heartbeats") == [(2,)]
    snapshots = workspace.sql("SELECT running, due, load1 IS NULL, memory_available_kib > 0 FROM snapshots ORDER BY at")
    assert snapshots == [(0, 2, 0, 1), (0, 0, 0, 1)]


def test_the_first_tick_after_an_outage_reports_it_once(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.tick()
    workspace.sql("UPDATE heartbeats SET at = strftime('%Y-%m-%dT%H:%M:%fZ', at, '-2 hours')")
    ((last,),) = workspace.sql("SELECT at FROM heartbeats")
    workspace.tick()
    workspace.tick()
    assert len(telegram.texts) == 1
    assert f"down from {last[:10]} {last[11:16]} to " in telegram.texts[0]


def test_the_watcher_hears_of_the_start_and_the_end_of_a_tick(workspace: Workspace, telegram: Telegram) -> None:
    workspace.config(f"ping_url: {telegram.url}/ping/abc\n")
    workspace.task("bad", "exit 1", schedule="1h")
    workspace.tick()
    assert [path.partition("?")[0] for path in telegram.paths] == ["/ping/abc/start", "/ping/abc"]
    assert len({path.partition("?")[2] for path in telegram.paths}) == 1, "both belong to the same tick"


def test_the_watcher_hears_of_a_tick_that_could_not_work(workspace: Workspace, telegram: Telegram) -> None:
    workspace.config(f"ping_url: {telegram.url}/ping\n")
    workspace.write_task("a", "---\nid: same\nschedule: manual\ncommand: 'true'\n---\n")
    shutil.copy(workspace.root / "tasks" / "a.md", workspace.root / "tasks" / "b.md")
    workspace.tick(code=3)
    assert [path.partition("?")[0] for path in telegram.paths] == ["/ping/start", "/ping/fail"]


def test_a_watcher_that_is_away_costs_nothing_but_a_log_line(workspace: Workspace) -> None:
    workspace.config("ping_url: http://127.0.0.1:9/ping\n")
    workspace.task("job", schedule="1h")
    workspace.tick()
    assert workspace.rows("job") == [RAN] and "ping_failed" in workspace.scheduler_log()


# --- a broken installation -------------------------------------------------------------------------------------


def test_a_crash_of_the_tick_is_told_recorded_and_ticketed(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, f"  quiet_hours: '00:00-23:59'\nping_url: {telegram.url}/ping\n")
    workspace.task("job", "touch ran", schedule=half_past())
    workspace.tick()
    telegram.paths.clear()
    workspace.sql("DROP TABLE heartbeats")
    crashed = workspace.tick(code=70)
    workspace.tick(code=70)
    assert "a bug" in crashed.stderr and "Traceback" not in crashed.stderr
    last = [json.loads(line) for line in workspace.scheduler_log().splitlines() if '"crash"' in line][-1]
    assert "Traceback" in last["traceback"] and "no such table: heartbeats" in last["traceback"]
    assert len(telegram.texts) == 1 and "all tasks paused" in telegram.texts[0]
    assert any(path.startswith("/ping/fail") for path in telegram.paths)
    assert workspace.sql("SELECT kind, closed_at FROM tickets") == [("crash", None)]


def test_a_damaged_database_is_set_aside_and_nothing_runs_on_a_guess(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("job", "echo >> ran", schedule="1s")
    workspace.tick()
    database = workspace.root / "state" / "tickdown.db"
    garbage = b"these are not the rows you are looking for " * 500
    database.write_bytes(garbage)
    failed = workspace.tick(code=1)
    (aside,) = database.parent.glob("tickdown.db.damaged-*")
    assert aside.read_bytes() == garbage and aside.name in failed.stderr
    assert len(telegram.texts) == 1 and aside.name in telegram.texts[0]
    assert (workspace.root / "ran").read_text() == "\n" and workspace.rows("job") == []
    wait_for(lambda: workspace.tick() and workspace.rows("job") == [RAN], "the next ticks to work again")


def test_a_database_from_a_newer_version_is_refused_and_untouched(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.tick()
    workspace.sql("PRAGMA user_version = 999")
    database = workspace.root / "state" / "tickdown.db"
    workspace.move_back("job", "-2 hours")
    before = database.read_bytes()
    assert "newer version" in workspace.tick(code=1).stderr
    assert "newer version" in workspace.cli("list", code=1).stderr
    assert database.read_bytes() == before and workspace.rows("job") == [RAN]


def test_a_broken_configuration_stops_the_tick_and_is_told(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, "max_concurent: 3\n")
    workspace.task("job", "touch ran", schedule="1h")
    failed = workspace.tick(code=2)
    workspace.tick(code=2)
    assert "config.yaml:5: max_concurent: " in failed.stderr and "max_concurrent" in failed.stderr
    assert len(telegram.texts) == 1 and "max_concurent" in telegram.texts[0]
    assert not (workspace.root / "ran").exists()


def test_a_wrong_value_in_the_configuration_shows_no_secret(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, "ping_url: '${HC_PING}'\n")
    with (workspace.root / ".env").open("a") as file:
        file.write("HC_PING=hidden-address-of-the-watcher\n")
    failed = workspace.tick(code=2)
    assert "ping_url" in failed.stderr
    assert "hidden-address" not in failed.stderr + workspace.scheduler_log() + "".join(telegram.texts)


def test_one_task_that_can_not_be_started_stops_no_other(workspace: Workspace) -> None:
    workspace.task("blocked", schedule="1h")
    workspace.task("fine", schedule="1h")
    locks = workspace.root / "state" / "locks"
    locks.mkdir(parents=True)
    Path(locks / "blocked.lock").symlink_to("/dev/null")
    told = workspace.tick().stderr
    assert "blocked failed" in told and "blocked.lock can't be opened" in told
    assert workspace.rows("blocked") == [("failed", None, 1)]
    assert workspace.rows("fine") == [RAN]


def test_a_broken_env_file_stops_the_tick_and_is_told(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    (workspace.root / ".env").write_text("not a line\n")
    done = workspace.tick(code=2)
    assert ".env:1: not a NAME=value line" in done.stderr
    assert '"event": "tick_stopped"' in workspace.scheduler_log()
    (workspace.root / ".env").unlink()
    assert workspace.sql("SELECT kind, forced FROM alerts") == [("stopped", 1)]
    assert workspace.history() == []


def test_closed_streams_do_not_disturb_a_tick(workspace: Workspace) -> None:
    workspace.task("quick", "echo one", schedule="1h")
    workspace.task("slow", "sleep 0.5; echo two", schedule="1h")
    line = " ".join(shlex.quote(word) for word in workspace.argv("tick"))
    done = subprocess.run(["sh", "-c", f"{line} <&- >&- 2>&-"], env=workspace.environment)
    assert done.returncode == 0
    assert workspace.rows("quick") == workspace.rows("slow") == [RAN]


def test_a_file_whose_name_is_no_text_is_rejected_and_stops_no_other(workspace: Workspace) -> None:
    workspace.task("fine", schedule="1h")
    source = workspace.task("odd", schedule="1h")
    os.rename(bytes(source), os.path.dirname(bytes(source)) + b"/b\xff.md")
    assert "its name is not valid UTF-8; rename it" in workspace.tick().stderr
    assert workspace.rows("fine") == [RAN]
    assert r"tasks/b\udcff.md:1: its name" in workspace.cli("validate", code=1).stdout


def test_a_catch_up_chain_obeys_a_pause_and_an_edit(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("chain", f"echo >> old; {gate.command}", schedule="* * * * *", catch_up="all")
    workspace.tick()
    workspace.move_back("chain", "-5 minutes")
    tick = workspace.start("tick")
    wait_for((workspace.root / "old").exists)
    workspace.cli("pause", "chain")
    gate.open()
    tick.communicate(timeout=PATIENCE)
    assert (workspace.root / "old").read_text() == "\n", "the next one of the chain was not started"


def test_a_tasks_folder_that_is_away_for_a_moment_costs_no_running_task(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("long", f"touch started; {gate.command}", schedule="1h")
    tick = workspace.start("tick", "--every", "1s")
    wait_for((workspace.root / "started").exists)
    (workspace.root / "tasks").rename(workspace.root / "away")
    wait_for(lambda: '"event": "catalog"' in workspace.scheduler_log())
    (workspace.root / "away").rename(workspace.root / "tasks")
    gate.open()
    wait_for(lambda: workspace.rows("long") == [RAN])
    tick.terminate()
    tick.communicate(timeout=PATIENCE)


def test_a_clock_that_was_ahead_is_told_and_resume_goes_on(workspace: Workspace) -> None:
    workspace.task("job", schedule="* * * * *")
    workspace.task("often", schedule="1s")
    workspace.tick()
    future = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+1 year')"
    workspace.sql(f"UPDATE tasks SET last_occurrence = {future}, last_end = {future}")
    workspace.sql(f"INSERT INTO heartbeats SELECT {future}, 'x', 1")
    told = workspace.tick().stderr
    assert "the clock was ahead: tasks wait until" in told
    assert "\njob\n" in told, "and not `often`: an interval counts from now"
    assert workspace.tick().stderr == "", "once a day"
    (task,) = [task for task in workspace.listed() if task["id"] == "job"]
    assert task["next_run_at"] > f"{datetime.now(UTC).year + 1}"
    workspace.cli("resume", "job")
    workspace.move_back("job", "-2 minutes")
    workspace.tick()
    assert [run["status"] for run in workspace.runs("job")] == ["success"]


def test_a_key_that_looks_like_an_occurrence_blocks_nothing(workspace: Workspace) -> None:
    workspace.task("job", schedule=half_past(), catch_up="all")
    workspace.tick()
    workspace.move_back("job", "-3 hours")
    due = workspace.json("tick", "--dry-run")["decisions"][0]["scheduled_for"]
    workspace.cli("run", "job", "--key", due.replace("+00:00", "Z"))
    workspace.tick()
    assert workspace.json("tick", "--dry-run")["decisions"][0]["action"] == "wait"


def test_a_task_whose_file_was_away_starts_anew_when_it_is_back(workspace: Workspace) -> None:
    path = workspace.task("job", schedule="* * * * *")
    workspace.tick()
    path.rename(workspace.root / "kept")
    workspace.tick()
    workspace.cli("history", "job", code=4)
    workspace.move_back("job", "-90 days")
    (workspace.root / "kept").rename(path)
    workspace.tick()
    assert workspace.rows("job") == []


def test_a_pause_outlasts_the_absence_of_its_file(workspace: Workspace) -> None:
    path = workspace.task("job", schedule="* * * * *")
    workspace.cli("pause", "job", "--for", "2d")
    path.rename(workspace.root / "kept")
    workspace.tick()
    (workspace.root / "kept").rename(path)
    workspace.tick()
    assert [task["state"] for task in workspace.listed()] == ["paused"]


def test_a_tasks_folder_that_leads_out_of_the_workspace_is_rejected(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    outside = workspace.root.parent / "outside"
    (workspace.root / "tasks").rename(outside)
    (workspace.root / "tasks").symlink_to(outside)
    assert "lies behind, a link that leaves the workspace" in workspace.tick().stderr
    assert workspace.history() == []


def test_a_reboot_task_runs_once_after_a_boot(workspace: Workspace) -> None:
    workspace.task("job", schedule="@reboot")
    workspace.tick()
    assert workspace.rows("job") == [], "it was met after this boot"
    workspace.sql("UPDATE tasks SET boot_id = 'the boot before'")
    workspace.tick()
    workspace.tick()
    assert [(run["status"], run["source"]) for run in workspace.runs("job")] == [("success", "reboot")]


def test_a_jittered_start_is_waited_for_inside_the_tick(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h", jitter="3s")
    workspace.tick()
    run = workspace.last_run("job")
    delay = datetime.fromisoformat(run["started_at"]) - datetime.fromisoformat(run["scheduled_for"])
    assert run["status"] == "success" and delay > timedelta(0)


def test_the_log_is_rotated_when_it_is_large(workspace: Workspace) -> None:
    workspace.tick()
    log = workspace.root / "logs" / "scheduler.log"
    for _ in range(7):
        log.write_bytes(b"x" * (10 * 1024 * 1024))
        workspace.tick()
    names = sorted(path.name for path in log.parent.glob("scheduler.log*"))
    assert names == [f"scheduler.log.{number}" for number in range(1, 6)]


def test_a_wrong_option_is_no_trouble_of_the_scheduler(workspace: Workspace) -> None:
    assert "has no unit" in workspace.tick("--every", "10", code=2).stderr
    assert not (workspace.root / "state").exists()


def test_the_ticket_of_a_crash_closes_with_the_next_good_tick(workspace: Workspace) -> None:
    workspace.tick()
    workspace.sql("ALTER TABLE snapshots RENAME TO hidden")
    workspace.tick(code=70)
    assert workspace.sql("SELECT kind FROM tickets WHERE closed_at IS NULL") == [("crash",)]
    workspace.sql("ALTER TABLE hidden RENAME TO snapshots")
    workspace.tick()
    assert workspace.sql("SELECT kind FROM tickets WHERE closed_at IS NULL") == []


def test_trouble_with_the_database_that_is_over_is_told_as_past(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    gate = Gate(workspace)
    workspace.task("job", gate.command, schedule="1h")
    tick = workspace.start("tick")
    gate.wait()
    before = resource.prlimit(tick.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(tick.pid, resource.RLIMIT_FSIZE, (0, before[1]))  # as on a full disk
    gate.open()
    assert tick.stderr is not None and "can't be written" in tick.stderr.readline()
    resource.prlimit(tick.pid, resource.RLIMIT_FSIZE, before)
    _, errors = tick.communicate(timeout=PATIENCE)
    assert tick.returncode == 1 and "can't be used" in errors
    assert len(telegram.texts) == 1 and "the scheduler could not work for a while" in telegram.texts[0]
    assert "nothing runs" not in telegram.texts[0] and workspace.rows("job") == [RAN]


def test_a_state_that_can_not_be_written_is_said_and_is_no_bug(workspace: Workspace) -> None:
    workspace.bind_by_modes()
    workspace.task("job", schedule="1h")
    workspace.tick()
    (workspace.root / "state" / "tickdown.db").chmod(0o400)
    assert "can't be opened" in workspace.tick(code=1).stderr


def test_a_state_folder_that_can_not_be_written_is_told_once_an_hour(workspace: Workspace, telegram: Telegram) -> None:
    workspace.bind_by_modes()
    telegram.configure(workspace)
    workspace.tick()
    state = workspace.root / "state"
    state.chmod(0o500)
    first, second = workspace.tick(code=1), workspace.tick(code=1)
    assert re.match(
        "tickdown on .*: the scheduler can't work: nothing runs\nthe database .* can't be used: ", first.stderr
    )
    assert second.stderr == "" and "can't be used" in second.stdout and len(telegram.texts) == 1
    mark = workspace.root / "logs" / "told"
    os.utime(mark, (mark.stat().st_mtime - 3700,) * 2)
    assert workspace.tick(code=1).stderr == first.stderr and len(telegram.texts) == 2
    state.chmod(0o700)
    workspace.tick()


def test_tasks_in_a_folder_that_can_not_be_read_leave_rows_and_stay_known(workspace: Workspace) -> None:
    workspace.bind_by_modes()
    path = workspace.write_task("sub/job", "---\nid: job\nschedule: '* * * * *'\ncommand: 'true'\n---\n")
    workspace.task("fine", schedule="1h")
    workspace.tick()
    workspace.move_back("job", "-2 minutes")
    path.parent.chmod(0)
    workspace.tick()
    path.parent.chmod(0o755)
    assert [row[:2] for row in workspace.rows("job")] == [("skipped", "rejected")]
    assert workspace.rows("fine") == [RAN]
    assert workspace.sql("SELECT gone FROM tasks WHERE id = 'job'") == [(0,)]
    path.unlink()
    path.parent.rmdir()
    workspace.tick()
    assert workspace.sql("SELECT id FROM tasks WHERE gone") == [("job",)]


def test_a_task_whose_file_has_another_id_now_is_gone_and_one_whose_file_was_moved_is_not(workspace: Workspace) -> None:
    renamed, moved, broken = (workspace.task(name, schedule="0 0 1 1 *") for name in ("before", "moved", "broken"))
    workspace.tick()
    renamed.write_text(renamed.read_text().replace("id: before", "id: after"))
    moved.rename(moved.with_name("elsewhere.md"))
    broken.write_text("nothing")
    workspace.tick()
    assert workspace.sql("SELECT id FROM tasks WHERE gone") == [("before",)]
    broken.unlink()
    workspace.tick()
    assert workspace.sql("SELECT id FROM tasks WHERE gone ORDER BY id") == [("before",), ("broken",)]


def test_a_task_whose_file_became_anothers_through_a_chain_is_gone(workspace: Workspace) -> None:
    path = workspace.task("report", schedule="0 0 1 1 *")
    workspace.tick()
    path.write_text(path.read_text().replace("id: report", "id: summary\nafter: extract"))
    workspace.tick()
    assert workspace.sql("SELECT id FROM tasks WHERE gone") == []  # its file is rejected
    workspace.task("extract", schedule="0 0 1 1 *")
    workspace.tick()
    assert workspace.sql("SELECT id FROM tasks WHERE gone") == [("report",)]


def test_a_task_that_ends_at_once_does_not_keep_a_tick_busy(workspace: Workspace) -> None:
    """`catch_up: all` goes on with what was missed, not with what is due again meanwhile."""
    workspace.task("fast", schedule="1s", catch_up="all", max_interval="1s")
    workspace.task("clamped", schedule="0 0 1 1 *", catch_up="all", max_interval="1s")
    workspace.tick()
    workspace.sql("UPDATE tasks SET last_end = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 day')")
    workspace.tick()
    assert [len(workspace.rows(name)) for name in ("fast", "clamped")] == [2, 1]


def test_a_dry_run_and_a_list_know_of_an_edit_that_no_tick_has_seen(workspace: Workspace) -> None:
    half = half_past()
    workspace.task("job", schedule="0 0 1 1 *")
    workspace.tick()
    workspace.move_back("job", "-5 hours")
    workspace.task("job", schedule=half)
    before = workspace.sql("SELECT * FROM tasks")
    assert workspace.json("tick", "--dry-run")["decisions"][0]["action"] == "wait"
    assert workspace.json("why", "job")["action"] == "wait"
    (task,) = workspace.listed()
    assert datetime.fromisoformat(task["next_run_at"]) > datetime.now(UTC)
    assert workspace.sql("SELECT * FROM tasks") == before
    workspace.tick()
    assert workspace.rows("job") == []


def test_what_is_missed_is_told_by_its_own_source(workspace: Workspace) -> None:
    workspace.task("job", schedule=half_past())
    workspace.tick()
    workspace.move_back("job", "-3 hours")
    workspace.tick()
    assert workspace.sql("SELECT status, source FROM task_runs ORDER BY status") == [
        ("missed", "baseline-cron"), ("success", "catch-up"),
    ]  # fmt: skip
