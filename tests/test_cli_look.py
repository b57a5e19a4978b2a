"""`list`, `history`, `show` and `logs`, as a person and as a program see them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from tests.helpers import PATIENCE, Gate, Workspace, wait_for

TASK_KEYS = [
    "id", "title", "schedule", "enabled", "state", "disabled_reason", "last_run", "next_run_at", "source", "tags", "path",
]  # fmt: skip
RUN_KEYS = {
    "run_id", "task_id", "status", "scheduled_for", "started_at", "finished_at", "duration_ms", "exit_code", "attempts",
    "source", "reason", "host", "trace_id", "error", "log",
}  # fmt: skip


def on_a_terminal(workspace: Workspace, *arguments: str, **variables: str) -> str:
    """What a command writes when its output is a terminal."""
    ours, theirs = pty.openpty()
    environment = workspace.environment | {"TERM": "xterm-256color", "COLUMNS": "200"} | variables
    process = workspace.start(*arguments, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody has the other side open any more
            break
        written += data
    os.close(ours)
    assert process.wait(timeout=PATIENCE) == 0
    return written.decode().replace("\r\n", "\n")


def ids(workspace: Workspace, *arguments: str) -> list[str]:
    return [task["id"] for task in workspace.json("list", *arguments)]


# --- list ------------------------------------------------------------------------------------------------------


def test_list_tells_state_schedule_last_and_next_run_in_words(workspace: Workspace) -> None:
    hour = (datetime.now(UTC).hour + 12) % 24  # never just now
    workspace.task("nightly", schedule=f"0 {hour} * * *", title="Every night")
    workspace.task("often", schedule="2h", title="Quite often")
    workspace.task("by-hand")
    workspace.task("resting", schedule="1h", enabled=False, disabled_reason="by_choice")
    workspace.tick()
    lines = {line.split()[0]: line for line in workspace.cli("list").stdout.splitlines()}
    assert re.search(
        rf"nightly +active +0 {hour} \* \* \* +never +in 1[12] h \([^)]*\b{hour:02}:00(:00)?\) +Every night",
        lines["nightly"],
    )
    assert re.search(
        r"often +active +2h +success (just now|\d+ s ago) \(.*\) +in (2 h|120 min) \(.*\) +Quite often", lines["often"]
    )
    assert re.search(r"by-hand +active +manual +never +by hand", lines["by-hand"])
    assert re.search(r"resting +disabled", lines["resting"])


def test_list_json_has_exactly_the_promised_keys(workspace: Workspace) -> None:
    workspace.task("job", schedule="0 3 * * *", timezone="Asia/Tokyo", tags=["a", "b"], title="A title")
    workspace.tick()
    workspace.cli("run", "job")
    (task,) = workspace.json("list")
    assert workspace.listed() == [task]  # what all other tests look at
    assert list(task) == TASK_KEYS
    assert task["last_run"].keys() >= RUN_KEYS and task["last_run"]["status"] == "success"
    following = datetime.fromisoformat(task["next_run_at"])
    assert (following.hour, following.utcoffset()) == (3, timedelta(hours=9))
    del task["last_run"], task["next_run_at"]
    assert task == {
        "id": "job", "title": "A title", "schedule": "0 3 * * *", "enabled": True, "state": "active",
        "disabled_reason": None, "source": "baseline-cron", "tags": ["a", "b"], "path": "tasks/job.md",
    }  # fmt: skip


def test_list_filters_by_tag_and_by_state(workspace: Workspace) -> None:
    workspace.task("a", tags=["home", "disk"])
    workspace.task("b", tags=["work"])
    workspace.task("c", enabled=False, disabled_reason="paused")
    workspace.task("d", enabled=False, disabled_reason="auto_suspended")
    workspace.task("e", enabled=False)
    workspace.write_task("f", "---\nid: f\n---\n")
    assert ids(workspace, "--tag", "disk") == ["a"]
    assert ids(workspace, "--tag", "work", "--state", "paused") == []
    found = {state: ids(workspace, "--state", state) for state in ("active", "paused", "suspended", "disabled")}
    assert found == {"active": ["a", "b"], "paused": ["c"], "suspended": ["d"], "disabled": ["e"]}
    assert ids(workspace, "--state", "rejected") == ["f"]
    assert "no task matches" in workspace.cli("list", "--tag", "nothing").stdout


def test_list_shows_a_rejected_file_and_what_is_wrong_with_it(workspace: Workspace) -> None:
    workspace.write_task("bad", "---\nid: bad\nschedule: 5x\ncommand: 'true'\n---\n")
    (task,) = workspace.json("list")
    assert workspace.listed() == [task]
    assert task["state"] == "rejected" and task.keys() >= set(TASK_KEYS)
    assert "1 problem: scheduler.py validate tasks/bad.md" in workspace.cli("list").stdout
    assert task["problems"][0].startswith("tasks/bad.md:3: schedule:")


def test_a_rejected_task_that_has_run_is_listed_with_its_last_run(workspace: Workspace) -> None:
    path = workspace.task("job", schedule="1h")
    workspace.tick()
    last = workspace.json("list")[0]["last_run"]
    assert last["status"] == "success"
    for text in (path.read_text().replace("1h", "5x"), "---\nid: [\n---\n"):
        path.write_text(text)
        (task,) = workspace.json("list")
        assert (task["id"], task["state"], task["last_run"]) == ("job", "rejected", last)
        assert workspace.listed() == [task]


def test_a_running_task_is_listed_as_running(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", gate.command, schedule="1h")
    tick = workspace.start("tick")
    gate.wait()
    (task,) = workspace.json("list")
    assert (task["state"], task["last_run"]["status"], task["last_run"]["finished_at"]) == ("running", "running", None)
    gate.open()
    tick.communicate(timeout=PATIENCE)


def test_list_without_tasks_says_what_to_do(workspace: Workspace) -> None:
    assert "tasks/" in workspace.cli("list").stdout
    assert workspace.json("list") == []


# --- history ---------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(workspace: Workspace) -> Workspace:
    """Twenty-five runs over twenty-five hours, the last half an hour ago, every fifth of them a failure."""
    workspace.task("job", timezone="America/New_York")
    workspace.task("other")
    workspace.cli("list")
    met = "2026-01-01T00:00:00.000Z"
    workspace.sql("INSERT INTO tasks (id, path, schedule, timezone, enabled, first_seen, armed_at, anchored_at) VALUES"
                  " ('job', 'tasks/job.md', 'manual', 'local', 1, ?, ?, ?)", met, met, met)  # fmt: skip
    for number in range(25):
        moment = f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{25 - number} hours', '+30 minutes')"
        workspace.sql(
            "INSERT INTO task_runs (run_id, task_id, key, status, source, recorded_at, scheduled_for, started_at, finished_at,"
            f" attempts, host) VALUES (?, 'job', ?, ?, 'manual', {moment}, {moment}, {moment}, {moment}, 1, 'here')",
            f"run-{number:02}", f"job@{number}", "failed" if number % 5 == 0 else "success",
        )  # fmt: skip
    return workspace


def run_ids(workspace: Workspace, *arguments: str) -> list[str]:
    return [run["run_id"] for run in workspace.json("history", *arguments)]


def test_history_shows_the_last_twenty_newest_first(busy: Workspace) -> None:
    newest_first = [f"run-{number:02}" for number in reversed(range(25))]
    assert run_ids(busy) == newest_first[:20]
    assert run_ids(busy, "job", "--limit", "3") == newest_first[:3]
    assert len(busy.cli("history").stdout.splitlines()) == 21


def test_history_filters_by_status_and_by_time(busy: Workspace) -> None:
    assert run_ids(busy, "--status", "failed", "--limit", "2") == ["run-20", "run-15"]
    assert run_ids(busy, "--since", "3h") == ["run-24", "run-23", "run-22"]
    assert run_ids(busy, "--since", "2000-01-01", "--limit", "100")[-1] == "run-00"
    assert run_ids(busy, "--since", "2999-01-01") == []
    assert run_ids(busy, "OTHER") == []
    assert "no runs" in busy.cli("history", "other").stdout


def test_since_a_time_of_day_means_its_last_passing(busy: Workspace) -> None:
    ((started,),) = busy.sql("SELECT started_at FROM task_runs WHERE run_id = 'run-20'")
    assert run_ids(busy, "--since", started[11:16]) == [f"run-{number}" for number in (24, 23, 22, 21, 20)]


def test_history_json_has_every_key_and_times_in_the_zone_of_the_task(workspace: Workspace) -> None:
    workspace.task("job", "exit 7", schedule="1h", timezone="Asia/Kolkata")
    workspace.tick()
    (run,) = workspace.json("history", "job")
    assert run.keys() >= RUN_KEYS
    for name in ("scheduled_for", "started_at", "finished_at"):
        assert datetime.fromisoformat(run[name]).utcoffset() == timedelta(hours=5, minutes=30)
    assert (run["status"], run["exit_code"], run["attempts"], run["source"]) == ("failed", 7, 1, "baseline-interval")
    assert run["error"] == "exit code 7" and run["reason"] is None and run["duration_ms"] >= 0
    assert re.fullmatch(r"[0-9a-f]{32}", run["trace_id"]) and (workspace.root / run["log"]).is_file()


@pytest.mark.parametrize("command", [["history"], ["show"], ["logs"]])
def test_an_unknown_id_ends_with_4_and_the_nearest_names(workspace: Workspace, command: list[str]) -> None:
    workspace.task("backup-photos")
    done = workspace.cli(*command, "backup-photo", code=4)
    assert "backup-photos" in done.stderr and done.stdout == ""


def test_the_history_of_a_task_that_is_gone_can_still_be_read(workspace: Workspace) -> None:
    path = workspace.task("gone", "echo last words")
    workspace.cli("run", "gone")
    path.unlink()
    assert len(workspace.json("history", "gone")) == 1
    assert "last words" in workspace.cli("logs", "gone").stdout


@pytest.mark.parametrize("command", ["show", "why", "resume", "run", "retry", "stop"])
def test_a_task_that_is_gone_or_hidden_in_a_broken_file_is_not_simply_unknown(
    workspace: Workspace, command: str
) -> None:
    gone = workspace.task("gone")
    workspace.cli("run", "gone")
    workspace.write_task("file", "---\nid: sh1\nschedule: manual\ncommand: 'true'\n---\n")
    workspace.tick()
    gone.unlink()
    words = f"no task 'gone': its file is gone; `{workspace.typed('history gone')}` tells what it did"
    assert words in workspace.cli(command, "gone", code=4).stderr
    assert "rejected" not in workspace.cli(command, "never-there", code=4).stderr
    workspace.write_task("file", "---\nid: [sh1\n---\n")
    words = f"no task 'sh1': its file tasks/file.md is rejected: {workspace.typed('validate tasks/file.md')}"
    assert words in workspace.cli(command, "sh1", code=4).stderr
    told = workspace.cli(command, "never-there", code=4).stderr
    assert told.endswith(f"1 file is rejected; it may be that one: {workspace.typed('validate')}\n"), told
    workspace.write_task("more", "---\nid: [\n---\n")
    told = workspace.cli(command, "never-there", code=4).stderr
    assert f"2 files are rejected; it may be in one of them: {workspace.typed('validate')}\n" in told


# --- show ------------------------------------------------------------------------------------------------------


def test_show_tells_all_about_a_task(workspace: Workspace) -> None:
    workspace.task("job", "echo something broke; exit 9", schedule="1h", title="A job", retry=1, tags=["x"], tittle="?")
    workspace.tick()
    text = workspace.cli("show", "JOB").stdout
    for part in ("A job", "tasks/job.md", "1h", "timeout 10m, retries 1", "tags", "failing", "1 in a row", "tittle",
                 "attempt 1 (run) failed exit 9", "attempt 2 (retry) failed exit 9", "| something broke"):  # fmt: skip
        assert part in text, part


def test_show_json_has_the_task_its_runs_and_their_attempts(workspace: Workspace) -> None:
    workspace.task("job", "echo something broke; exit 9", schedule="1h", retry=1, suspend_after=1)
    workspace.tick()
    task = workspace.json("show", "job")
    assert task.keys() >= {*TASK_KEYS, "command", "runs", "tickets"} and task["state"] == "suspended"
    (run,) = task["runs"]
    assert [attempt["rung"] for attempt in run["attempt_details"]] == ["run", "retry"]
    assert run["summary"] == "something broke\n"
    assert [ticket["kind"] for ticket in task["tickets"]] == ["suspended"]


def test_the_attempts_in_show_json_carry_times_with_an_offset_in_the_zone_of_the_task(workspace: Workspace) -> None:
    workspace.task("job", timezone="Asia/Kolkata")
    workspace.cli("run", "job")
    (attempt,) = workspace.json("show", "job")["runs"][0]["attempt_details"]
    for name in ("started_at", "finished_at"):
        assert datetime.fromisoformat(attempt[name]).utcoffset() == timedelta(hours=5, minutes=30)


def test_show_leaves_a_command_of_several_lines_as_it_is(workspace: Workspace) -> None:
    workspace.task("job", "if true; then\n    echo one\nfi\n")
    workspace.task("long", "\n".join(["echo " + "x" * 400, *(f"echo {number}" for number in range(25))]))
    assert (
        "runs       shell:\n             if true; then\n                 echo one\n             fi\n"
        in workspace.cli("show", "job").stdout
    )
    text = workspace.cli("show", "long").stdout
    assert (
        f"echo 18\n             … (and 6 more lines: `{workspace.typed('run long --dry-run')}` shows all of it)" in text
    )
    assert f"echo {'x' * 294}…\n" in text


# --- logs ------------------------------------------------------------------------------------------------------


def test_logs_takes_a_task_a_run_or_the_beginning_of_a_run(workspace: Workspace) -> None:
    workspace.task("job", "echo number $(cat number)")
    for number in ("one", "two"):
        (workspace.root / "number").write_text(number)
        workspace.cli("run", "job")
    first, second = (run["run_id"] for run in workspace.runs("job"))
    assert "number two" in workspace.cli("logs", "job").stdout
    assert "number one" in workspace.cli("logs", first).stdout
    assert "number two" in workspace.cli("logs", second[:-3]).stdout
    assert "number one" in workspace.json("logs", first)["text"]


def test_logs_of_what_never_ran_says_so(workspace: Workspace) -> None:
    workspace.task("job")
    assert "has not run yet" in workspace.cli("logs", "job", code=1).stderr


def test_logs_leaves_out_escape_sequences_unless_asked_for_raw(workspace: Workspace) -> None:
    workspace.task("job", r"printf '\033[31mred\033[0m \033]0;title\007\033[2Jend\n'")
    workspace.cli("run", "job")
    assert "red end" in workspace.cli("logs", "job").stdout
    assert "\x1b" not in workspace.cli("logs", "job").stdout
    assert "\x1b[31mred\x1b[0m" in workspace.cli("logs", "job", "--raw").stdout


def test_logs_f_follows_a_run_to_its_end(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", f"echo begun; {gate.command}; echo done", schedule="1h")
    tick = workspace.start("tick")
    gate.wait()
    follower = workspace.start("logs", "slow", "-f")
    assert follower.stdout is not None
    seen = [follower.stdout.readline(), follower.stdout.readline()]
    assert "attempt 1" in seen[0] and seen[1] == "begun\n"
    assert follower.poll() is None, "the run still goes on"
    gate.open()
    rest, errors = follower.communicate(timeout=PATIENCE)
    assert (rest, errors, follower.returncode) == ("done\n", "", 0)
    tick.communicate(timeout=PATIENCE)


# --- terminals and pipes ---------------------------------------------------------------------------------------


def test_on_a_terminal_there_are_tables_and_colours(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.tick()
    listing = on_a_terminal(workspace, "list")
    assert "\x1b[32mactive" in listing and "─" in listing
    assert "\x1b[32msuccess" in on_a_terminal(workspace, "history")


def test_on_a_terminal_a_tick_says_whether_nothing_was_due_or_nothing_ran(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.cli("comment", "job", "/skip")
    assert on_a_terminal(workspace, "tick").splitlines() == ["skipped   job  /skip", "tick: nothing ran"]
    assert on_a_terminal(workspace, "tick").splitlines() == ["tick: nothing due"]


def test_no_color_is_obeyed_on_a_terminal(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    listing = on_a_terminal(workspace, "list", NO_COLOR="1")
    assert "active" in listing and "─" in listing and "\x1b[" not in listing


def test_in_a_pipe_there_is_plain_text(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    listing = workspace.cli("list", env={"FORCE_COLOR": "1", "TERM": "xterm"}).stdout
    assert "\x1b" not in listing and "─" not in listing
    assert listing.splitlines()[0].split() == ["ID", "STATE", "SCHEDULE", "LAST", "RUN", "NEXT", "RUN", "TITLE"]


def test_a_hostile_title_can_not_play_with_the_terminal(workspace: Workspace) -> None:
    workspace.task("job", title="nice\x1b]0;owned\x07 \x1b[2Jtitle [red]x[/red]")
    for text in (workspace.cli("list").stdout, on_a_terminal(workspace, "list", NO_COLOR="1")):
        assert "\x1b" not in text and "owned" not in text and "[red]x[/red]" in text


@pytest.mark.parametrize("count", [3, 600])
def test_a_reader_that_leaves_early_gets_no_traceback(workspace: Workspace, count: int) -> None:
    for number in range(count):
        workspace.task(f"task-{number}", title="x" * 100)
    reader, writer = os.pipe()
    process = workspace.start("list", stdout=writer)
    os.close(writer)
    os.close(reader)
    _, errors = process.communicate(timeout=PATIENCE)
    assert errors == "" and process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("run bigfail", 1), ("run bigfail --json", 1), ("validate", 1), ("validate --json", 1), ("doctor", 1), ("run big", 0),
     ("logs big", 0), ("show nosuch", 4)],
)  # fmt: skip
def test_the_exit_code_is_the_same_for_a_reader_that_leaves_early(
    workspace: Workspace, arguments: str, code: int
) -> None:
    workspace.task("big", "seq 200000")
    workspace.task("bigfail", "seq 200000; exit 1", retries=0)
    if "big" not in arguments:
        for number in range(300):
            workspace.task(f"bad-{number}", schedule="x" * 40)
    elif "logs" in arguments:
        workspace.cli("run", "big")
    command = workspace.argv(*arguments.split())
    line = '"$@" 2>&1 | head -1; exit ${PIPESTATUS[0]}'
    done = subprocess.run(
        ["bash", "-c", line, "bash", *command], env=workspace.environment, capture_output=True, text=True
    )
    assert done.returncode == code and len(done.stdout.splitlines()) == 1 and done.stderr == ""
    reader, writer = os.pipe()
    os.close(reader)
    unread = workspace.start(*arguments.split(), stdout=writer, stderr=writer)
    os.close(writer)
    assert unread.wait(PATIENCE) == code


def test_head_gets_its_line(workspace: Workspace) -> None:
    for number in range(600):
        workspace.task(f"task-{number}", title="x" * 100)
    process = workspace.start("list")
    head = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, text=True, check=True)
    assert process.stdout is not None
    process.stdout.close()
    wait_for(lambda: process.poll() is not None, "the end of list")
    assert head.stdout.startswith("ID ")
    assert process.stderr is not None and process.stderr.read() == ""
    process.stderr.close()


def test_a_log_that_could_not_be_written_is_not_shown_as_if_it_were_there(workspace: Workspace) -> None:
    workspace.bind_by_modes()
    workspace.task("job", "echo hello; exit $(cat code)", schedule="1h")
    (workspace.root / "code").write_text("0")
    workspace.tick()
    assert f"log {workspace.last_run('job')['log']}" in workspace.cli("show", "job").stdout
    logs = workspace.root / "logs"
    folders = [logs, logs / "runs", logs / "runs" / "job"]
    for folder in folders:
        folder.chmod(0o500)
    assert "hello" in workspace.cli("run", "job").stdout
    run_id = workspace.last_run("job")["run_id"]
    lost = "no log: it could not be written, or is gone"
    assert workspace.cli("logs", "job", code=1).stderr == f"scheduler.py: run {run_id} (success) has {lost}\n"
    assert f"last run   {run_id}, {lost}\n" in workspace.cli("show", "job").stdout
    (workspace.root / "code").write_text("1")
    workspace.cli("run", "job", code=1)
    assert workspace.cli("logs", "job", code=1).stderr.endswith(f"(failed) has {lost}; exit code 1\n")
    (found,) = [line for line in workspace.cli("doctor", code=1).stdout.splitlines() if line.startswith("PROBLEM")]
    assert found.startswith("PROBLEM  logs         logs are lost: logs/ is not writable for ")
    assert f"(mode 0500): chmod u+w {logs}; and 2 more like it" in found
    for folder in folders:
        folder.chmod(0o700)
    assert "PROBLEM" not in workspace.cli("doctor").stdout
