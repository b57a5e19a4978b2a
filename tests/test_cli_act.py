"""`run`, `pause`, `resume`, `stop`, `prune`, and what every command has in common."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, PROJECT, SCHEDULER, Gate, Workspace, alive, half_past, wait_for
from tickdown.ui import cli
from tickdown.ui.arguments import parsed


def run_plainly(*arguments: str, cwd: Path, env: dict[str, str], code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command line without the `--workspace` that the helper adds."""
    done = subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


# --- run -------------------------------------------------------------------------------------------------------


def test_run_streams_the_output_while_the_task_still_runs(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", f"echo first words; {gate.command}; echo last words")
    process = workspace.start("run", "slow")
    assert process.stdout is not None
    assert process.stdout.readline() == "first words\n"
    assert workspace.rows("slow") == [("running", None, 1)]
    gate.open()
    rest, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and errors == ""
    assert re.fullmatch(r"last words\nslow: success in .*\(run [0-9A-Za-z-]+\)\n", rest)


def test_run_of_a_task_that_fails_ends_with_1_and_says_why(workspace: Workspace) -> None:
    workspace.task("bad", "echo oh no; exit 3")
    output = workspace.cli("run", "bad", code=1).stdout
    assert re.search(r"^bad: failed in .*exit code 3: oh no \(run ", output, re.MULTILINE)
    assert workspace.rows("bad") == [("failed", None, 1)]


def test_run_shows_no_escape_sequences_of_the_task(workspace: Workspace) -> None:
    workspace.task("job", r"printf '\033[31mred\033[0m\n'")
    assert workspace.cli("run", "job").stdout.startswith("red\n")


def test_run_json_is_one_document_and_the_output_goes_to_stderr(workspace: Workspace) -> None:
    workspace.task("job", "echo hello")
    done = workspace.cli("run", "job", "--json")
    assert done.stderr.startswith("hello\n") and '"status": "success"' in done.stdout


def test_a_disabled_task_still_runs_by_hand_and_stays_disabled(workspace: Workspace) -> None:
    path = workspace.task("job", schedule="1h", enabled=False)
    before = path.read_text()
    workspace.cli("run", "job")
    assert workspace.rows("job") == [("success", None, 1)] and path.read_text() == before


def test_run_takes_an_id_without_regard_to_case(workspace: Workspace) -> None:
    workspace.task("MixedCase")
    workspace.cli("run", "mixedcase")
    assert workspace.rows("MixedCase") == [("success", None, 1)]


def test_a_task_that_already_runs_is_refused_with_5(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", gate.command)
    first = workspace.start("run", "slow")
    gate.wait()
    assert "already runs" in workspace.cli("run", "slow", code=5).stderr
    gate.open()
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 0 and len(workspace.rows("slow")) == 1


def test_a_key_is_run_once_and_later_answered_from_the_record(workspace: Workspace) -> None:
    path = workspace.task("job", "echo >> ran")
    workspace.cli("run", "job", "--key", "deploy-42")
    assert "deploy-42" in workspace.cli("run", "job", "--key", "deploy-42").stdout
    workspace.cli("run", "job", "--key", "deploy-43")
    path.write_text(path.read_text().replace("id: job", "id: JOB"))
    assert "deploy-43" in workspace.cli("run", "job", "--key", "deploy-43").stdout, "an id has no case"
    path.write_text(path.read_text().replace("id: JOB", "id: job"))
    assert (workspace.root / "ran").read_text() == "\n\n"
    workspace.task("bad", "exit 1")
    workspace.cli("run", "bad", "--key", "x", code=1)
    workspace.cli("run", "bad", "--key", "x", code=1)
    assert len(workspace.rows("bad")) == 1


def test_a_key_whose_run_goes_on_is_answered_with_5(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", gate.command)
    first = workspace.start("run", "slow", "--key", "k")
    gate.wait()
    workspace.cli("run", "slow", "--key", "k", code=5)
    gate.open()
    first.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("command", ["true", "exit 1"])
def test_a_key_that_was_used_is_told_of_as_the_run_was(workspace: Workspace, command: str) -> None:
    workspace.task("job", command, retries=0)
    first, second = (workspace.json("run", "job", "--key", "k", code=None) for _ in range(2))
    assert first == second and first["state"] == "active" and first["failures"] == (command != "true")


def test_run_dry_run_shows_the_command_and_runs_nothing(workspace: Workspace) -> None:
    workspace.task("job", "touch ran", env={"COLOUR": "blue"}, timeout="5m", retry=2)
    output = workspace.cli("run", "job", "--dry-run").stdout
    for part in ("touch ran", str(workspace.root), "COLOUR=blue", "timeout 5m, retries 2"):
        assert part in output
    assert not (workspace.root / "ran").exists() and workspace.history() == []


def test_the_command_of_a_dry_run_can_be_pasted(workspace: Workspace) -> None:
    """Several lines stay several lines, however long they are."""
    command = (
        "cd \"$WHERE\"\nif true; then\n    printf '%s\\n' one\nfi  # " + "x" * 600 + "\ncat <<END\n  two  three\nEND\n"
    )
    workspace.task("job", command, env={"WHERE": "/"})
    output = workspace.cli("run", "job", "--dry-run").stdout
    pasted = output.removeprefix("would run  ").partition("\nin         ")[0]
    done = subprocess.run(["sh", "-c", pasted], capture_output=True, text=True, env={"WHERE": "/"})
    assert done.stdout == "one\n  two  three\n", output
    assert "note " not in output


def test_the_command_of_a_dry_run_does_nothing_to_the_terminal_and_says_what_it_left_out(workspace: Workspace) -> None:
    workspace.task("job", "printf '\x1b[2J'\necho \x07 two")
    output = workspace.cli("run", "job", "--dry-run").stdout
    assert "\x1b" not in output and "\x07" not in output
    assert "control characters, which are left out here; --json has them all" in output
    assert workspace.json("run", "job", "--dry-run")["argv"][-1] == "printf '\x1b[2J'\necho \x07 two"


def test_heal_without_a_healer_says_so_and_runs_all_the_same(workspace: Workspace) -> None:
    workspace.task("job", "touch ran")
    told = workspace.cli("run", "job", "--heal").stderr
    assert "--heal has no effect: self-healing is off: no healer is configured" in told
    assert (workspace.root / "ran").exists()


@pytest.mark.parametrize("command", ["run", "pause", "resume", "stop"])
def test_an_unknown_id_ends_with_4_and_the_nearest_names(workspace: Workspace, command: str) -> None:
    workspace.task("backup-photos")
    assert "did you mean backup-photos?" in workspace.cli(command, "bakcup-photos", code=4).stderr


def test_a_rejected_task_is_refused_with_its_problems(workspace: Workspace) -> None:
    workspace.write_task("bad", "---\nid: bad\nschedule: 5x\ncommand: touch ran\n---\n")
    assert "tasks/bad.md:3: schedule:" in workspace.cli("run", "bad", code=1).stderr
    assert not (workspace.root / "ran").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_run_and_ends_its_processes(workspace: Workspace, number: int, code: int) -> None:
    gate = Gate(workspace)
    workspace.task("slow", f"echo $$ > pid; {gate.command}", retry=3)
    process = workspace.start("run", "slow")
    gate.wait()
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code and "slow: cancelled" in output
    assert workspace.rows("slow") == [("cancelled", None, 1)]
    assert not alive(int((workspace.root / "pid").read_text()))
    assert workspace.sql("SELECT failures FROM tasks") == [(0,)]


# --- pause and resume ------------------------------------------------------------------------------------------

COMMENTED = """---
# Kept as it is.
id: job        # the name
schedule: '1h'
command: "true"
# enabled: maybe
---
The body.
"""


def test_pause_and_resume_edit_the_file_and_keep_the_rest_of_it(workspace: Workspace) -> None:
    path = workspace.write_task("job", COMMENTED)
    path.chmod(0o640)
    workspace.cli("pause", "job")
    paused = path.read_text()
    assert paused == COMMENTED.replace("maybe\n", "maybe\nenabled: false\ndisabled_reason: paused\n")
    assert path.stat().st_mode & 0o777 == 0o640
    workspace.tick()
    assert workspace.rows("job") == [] and workspace.listed()[0]["state"] == "paused"
    workspace.cli("resume", "job")
    assert path.read_text() == COMMENTED.replace("maybe\n", "maybe\nenabled: true\n")
    workspace.tick()
    assert workspace.rows("job") == [("success", None, 1)]


def test_a_pause_for_a_time_is_remembered_and_leaves_rows(workspace: Workspace) -> None:
    path = workspace.task("job", schedule=half_past())
    before = path.read_text()
    assert "paused until" in workspace.cli("pause", "job", "--for", "2h").stdout
    assert path.read_text() == before and workspace.listed()[0]["state"] == "paused"
    for _ in range(2):
        workspace.move_back("job", "-2 hours")
        workspace.tick()
    assert workspace.rows("job") == [("skipped", "paused", 4)]
    (run,) = workspace.history("job")
    assert run["reason"] == "paused" and run["count"] == 4
    workspace.sql("UPDATE tasks SET paused_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 second')")
    workspace.move_back("job", "-1 hour")
    workspace.tick()
    assert workspace.rows("job")[-1] == ("success", None, 1)


def test_a_pause_until_a_time_counts_in_the_zone_of_the_task(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h", timezone="Asia/Tokyo")
    asked_at = datetime.now(UTC)
    day = f"{asked_at.year + 2}-06-01"
    workspace.cli("pause", "job", "--until", f"{day}T09:00")
    assert workspace.sql("SELECT paused_until FROM tasks") == [(f"{day}T00:00:00.000Z",)]
    document = workspace.json("pause", "job", "--until", "09:30")
    until = datetime.fromisoformat(document["paused_until"])
    assert (until.hour, until.minute, until.utcoffset()) == (9, 30, timedelta(hours=9)) and until > asked_at


def test_resume_counts_from_now_and_does_not_fire_what_was_missed(workspace: Workspace) -> None:
    workspace.task("cron", schedule=half_past())
    workspace.task("interval", schedule="1h")
    workspace.tick()
    for task_id in ("cron", "interval"):
        workspace.cli("pause", task_id, "--for", "1d")
        workspace.move_back(task_id, "-5 hours")
        workspace.cli("resume", task_id)
    workspace.tick()
    assert workspace.rows("cron") == [] and workspace.rows("interval") == [("success", None, 1)]


def test_resume_clears_the_failures_and_closes_the_tickets(workspace: Workspace) -> None:
    path = workspace.task("job", "exit 1", schedule="1h", suspend_after=1)
    workspace.tick()
    assert "auto_suspended" in path.read_text()
    workspace.cli("resume", "job")
    assert "auto_suspended" not in path.read_text()
    assert workspace.sql("SELECT failures, closing FROM tasks") == [(0, None)]
    assert workspace.sql("SELECT COUNT(*) FROM tickets WHERE closed_at IS NULL") == [(0,)]
    assert workspace.listed()[0]["state"] == "active"


@pytest.mark.parametrize(
    "arguments",
    [("--for", "5"), ("--for", "0m"), ("--until", "someday"), ("--until", "2001-01-01"), ("--for", "1h", "--until", "9:00")],
)  # fmt: skip
def test_a_pause_that_makes_no_sense_is_refused(workspace: Workspace, arguments: tuple[str, ...]) -> None:
    path = workspace.task("job")
    before = path.read_text()
    assert arguments[0] in workspace.cli("pause", "job", *arguments, code=2).stderr
    assert path.read_text() == before


# --- stop ------------------------------------------------------------------------------------------------------


def test_stop_ends_a_run_as_cancelled(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", f"echo $$ > pid; {gate.command}", schedule="1h", retry=2)
    tick = workspace.start("tick")
    gate.wait()
    assert "slow: cancelled" in workspace.cli("stop", "SLOW").stdout
    assert not alive(int((workspace.root / "pid").read_text()))
    tick.communicate(timeout=PATIENCE)
    assert tick.returncode == 0 and workspace.rows("slow") == [("cancelled", None, 1)]
    assert workspace.sql("SELECT failures FROM tasks") == [(0,)]


def test_stop_ends_a_run_that_waits_for_its_retry(workspace: Workspace) -> None:
    workspace.task("bad", "echo >> tried; exit 1", schedule="1h", retry=1, retry_delay=60)
    tick = workspace.start("tick")
    wait_for(
        lambda: (workspace.root / "tried").exists()
        and workspace.sql("SELECT status FROM attempts") == [("failed",)],
        "the first attempt's end",
    )  # fmt: skip
    workspace.cli("stop", "bad")
    tick.communicate(timeout=PATIENCE)
    assert workspace.rows("bad") == [("cancelled", None, 1)]
    assert (workspace.root / "tried").read_text() == "\n"


def test_stop_of_what_does_not_run_ends_with_1(workspace: Workspace) -> None:
    workspace.task("job")
    assert "job is not running" in workspace.cli("stop", "job", code=1).stderr


# --- prune -----------------------------------------------------------------------------------------------------


def test_prune_removes_old_runs_with_their_logs_and_keeps_the_last_of_each_task(workspace: Workspace) -> None:
    for task_id in ("old", "busy"):
        workspace.task(task_id)
        workspace.cli("run", task_id)
        workspace.cli("run", task_id)
    workspace.config("keep_runs: 30d\n")
    columns = ("recorded_at", "started_at", "finished_at")
    aged = ", ".join(f"{column} = strftime('%Y-%m-%dT%H:%M:%fZ', {column}, '-40 days')" for column in columns)
    workspace.sql(f"UPDATE task_runs SET {aged}")
    workspace.cli("run", "busy")
    assert "removed 3 runs and 3 logs" in workspace.cli("prune").stdout
    assert len(workspace.rows("old")) == len(workspace.rows("busy")) == 1
    kept = {run["log"] for run in workspace.history()}
    assert {str(path.relative_to(workspace.root)) for path in (workspace.root / "logs" / "runs").rglob("*.log")} == kept
    assert workspace.sql("SELECT COUNT(*) FROM attempts") == [(2,)]
    assert workspace.json("prune")["runs"] == 0


def test_a_skip_after_the_last_run_does_not_let_the_run_be_forgotten(workspace: Workspace) -> None:
    workspace.task("job", schedule=half_past())
    workspace.cli("run", "job")
    workspace.sql("UPDATE task_runs SET recorded_at = strftime('%Y-%m-%dT%H:%M:%fZ', recorded_at, '-400 days')")
    workspace.cli("pause", "job", "--for", "1d")
    workspace.move_back("job", "-1 hour")
    workspace.tick()
    workspace.cli("prune")
    assert workspace.listed()[0]["last_run"]["status"] == "success"


def test_the_first_tick_of_a_day_prunes_by_itself(workspace: Workspace) -> None:
    workspace.task("job")
    workspace.cli("run", "job")
    workspace.sql("UPDATE task_runs SET recorded_at = '2020-01-01T00:00:00.000Z'")
    workspace.cli("run", "job")
    workspace.tick()
    assert len(workspace.rows("job")) == 1


# --- what all commands share -----------------------------------------------------------------------------------


def test_the_workspace_can_be_named_before_or_after_the_command_or_in_the_environment(workspace: Workspace) -> None:
    workspace.task("here")
    root, env = str(workspace.root), workspace.environment
    for arguments, more in (
        (["--workspace", root, "list"], {}),
        (["list", "--workspace", root], {}),
        (["list"], {"TICKDOWN_HOME": root}),
        (["--workspace", root, "list"], {"TICKDOWN_HOME": "/nowhere"}),
    ):
        done = run_plainly(sys.executable, str(SCHEDULER), *arguments, cwd=Path("/"), env=env | more)
        assert "here" in done.stdout


def test_json_can_be_asked_for_before_the_command(workspace: Workspace) -> None:
    done = run_plainly(
        sys.executable, str(SCHEDULER), "--json", "--workspace", str(workspace.root), "list",
        cwd=workspace.root, env=workspace.environment,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_a_missing_workspace_or_tasks_folder_is_a_usage_error(workspace: Workspace) -> None:
    (workspace.root / "tasks").rmdir()
    assert "has no tasks/ folder" in workspace.cli("list", code=2).stderr
    env = workspace.environment | {"TICKDOWN_HOME": "/nowhere/at/all"}
    done = run_plainly(sys.executable, str(SCHEDULER), "list", cwd=workspace.root, env=env, code=2)
    assert "/nowhere/at/all: no such folder" in done.stderr


def test_the_version_is_told(workspace: Workspace) -> None:
    assert re.fullmatch(r"tickdown \d+\.\d+\.\d+\n", workspace.cli("--version").stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("nonsense",), ("run",), ("list", "--state", "happy"), ("history", "--status", "great"),
        ("history", "--limit", "0"), ("history", "--since", "yesterday-ish"), ("tick", "--every", "0s"),
        ("tick", "--every", "soon"), ("list", "--nonsense"), ("run", "job", "--key", " "),
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_2_and_a_message(workspace: Workspace, arguments: tuple[str, ...]) -> None:
    workspace.task("job", "touch ran")
    done = workspace.cli(*arguments, code=2)
    assert done.stderr and "Traceback" not in done.stderr
    assert not (workspace.root / "ran").exists()


def test_list_works_in_a_fresh_copy_of_the_project(tmp_path: Path) -> None:
    copy = tmp_path / "clone"
    copy.mkdir()
    shutil.copy(SCHEDULER, copy)
    shutil.copytree(PROJECT / "lib", copy / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    # The examples as they are shipped, not what lies in this clone by now.
    shipped = subprocess.run(["git", "archive", "HEAD", "tasks"], cwd=PROJECT, capture_output=True)
    if shipped.returncode != 0:
        pytest.skip("not a git checkout: the shipped examples can't be told from the user's own tasks")
    subprocess.run(["tar", "-x", "-C", copy], input=shipped.stdout, check=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_plainly(sys.executable, str(copy / "scheduler.py"), "list", cwd=tmp_path, env=environment)
    assert "hello" in done.stdout and "rejected" not in done.stdout and done.stderr == ""
    run_plainly(sys.executable, str(copy / "scheduler.py"), "validate", cwd=tmp_path, env=environment)


def test_what_is_written_is_private(workspace: Workspace) -> None:
    workspace.task("job")
    workspace.cli("run", "job")
    for folder in ("state", "logs"):
        for path in [workspace.root / folder, *(workspace.root / folder).rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path


def test_with_a_wrong_configuration_nothing_is_changed_but_a_task_can_be_stopped(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("job", gate.command)
    run = workspace.start("run", "job")
    gate.wait()
    workspace.config("keep_runs: [\n")
    for command in (["prune"], ["pause", "job"], ["pause", "job", "--for", "1h"], ["resume", "job"], ["run", "job"]):
        assert "config.yaml:2: bad YAML" in workspace.cli(*command, code=2).stderr
    done = workspace.cli("stop", "job")
    assert "job: cancelled" in done.stdout and "config.yaml:2: bad YAML" in done.stderr
    run.communicate(timeout=PATIENCE)


def test_a_full_terminal_does_not_end_the_run(workspace: Workspace) -> None:
    workspace.task("job", "echo one; echo two; touch ended")
    with open("/dev/full", "w") as full:
        run = workspace.start("run", "job", stdout=full)
        run.communicate(timeout=PATIENCE)
    assert (workspace.root / "ended").exists()
    assert workspace.last_run("job")["status"] == "success"


def test_a_task_that_does_not_run_anyway_is_not_paused(workspace: Workspace) -> None:
    path = workspace.task("job", schedule="1h", enabled=False, disabled_reason="retired")
    before = path.read_bytes()
    for more in ([], ["--for", "1h"]):
        assert "does not run anyway (retired)" in workspace.cli("pause", "job", *more, code=1).stderr
    assert path.read_bytes() == before


def test_the_command_that_pause_names_for_a_one_shot_that_is_over_works(workspace: Workspace) -> None:
    workspace.task("job", "echo >> ran", schedule="in 1 day", enabled=False, disabled_reason="completed")
    assert f"`{workspace.typed('run job')}` lets it run again" in workspace.cli("pause", "job", code=1).stderr
    workspace.cli("run", "job")
    assert (workspace.root / "ran").exists()


# --- another Python --------------------------------------------------------------------------------------------


@pytest.fixture
def bare_copy(tmp_path: Path) -> Path:
    """The program without a virtual environment beside it."""
    shutil.copy(SCHEDULER, tmp_path)
    (tmp_path / "lib").symlink_to(PROJECT / "lib")
    (tmp_path / "tasks").mkdir()
    return tmp_path


def test_a_python_without_the_packages_says_what_to_do(bare_copy: Path) -> None:
    command = [sys.executable, "-S", str(bare_copy / "scheduler.py"), "list"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 1 and f"`make run` in {bare_copy} installs what is needed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_python_without_the_packages_hands_over_to_the_one_in_the_folder(bare_copy: Path) -> None:
    """So that `./scheduler.py hint …` works inside a task, whatever `python3` is there."""
    own = bare_copy / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text('#!/bin/sh\necho "own python: $*"\n')
    own.chmod(0o755)
    command = [sys.executable, "-S", str(bare_copy / "scheduler.py"), "list", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.stdout == f"own python: {bare_copy}/scheduler.py list --json\n"


# --- the shortest way to a plain tick ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["tick"], ["tick", "--workspace", "/w"], ["--workspace", "/w", "tick"], ["tick", "--workspace", ""],
        ["tick", "--detach"], ["tick", "--every", "10s"], ["tick", "--dry-run", "--workspace", "/w"], ["tick", "--json"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_plain_tick_is_understood_without_the_parser_as_with_it(argv: list[str]) -> None:
    assert vars(cli._arguments(argv)) == vars(parsed(argv))


@pytest.mark.parametrize(
    "argv", [["tick", "tick"], ["tick", "--workspace"], ["tick", "--workspace", "--json"]], ids=" ".join
)
def test_what_only_looks_like_a_plain_tick_is_a_wrong_usage(workspace: Workspace, argv: list[str]) -> None:
    done = run_plainly(sys.executable, str(SCHEDULER), *argv, cwd=workspace.root, env=workspace.environment, code=2)
    assert done.stderr.startswith("usage: ")


def test_a_failure_by_hand_says_what_it_counts_for(workspace: Workspace) -> None:
    def last_line(*words: str, code: int = 1) -> str:
        return workspace.cli(*words, code=code).stdout.splitlines()[-1]

    path = workspace.task("job", "exit $(cat code)", schedule="1h", suspend_after=4)
    resume = workspace.typed("resume job")
    (workspace.root / "code").write_text("1")
    workspace.tick()
    assert last_line("run", "job") == "failure 2 in a row; at 4 it is suspended"
    workspace.config("agents: {fake: {argv: ['true'], format: text}}\nhealer: fake\n")
    assert last_line("retry", "job") == "failure 3 in a row; at 4 at the latest it is suspended"
    assert last_line("run", "job") == f"failure 4 in a row; it is now suspended; go on with: {resume}"
    assert "auto_suspended" in path.read_text()
    document = workspace.json("run", "job", code=1)
    assert (document["state"], document["failures"]) == ("suspended", 5)
    assert last_line("run", "job") == f"failure 6 in a row; it is still suspended; go on with: {resume}"
    workspace.cli("resume", "job")
    workspace.cli("pause", "job")
    assert last_line("run", "job") == "failure 1 in a row"
    (workspace.root / "code").write_text("0")
    assert last_line("run", "job", code=0).startswith("job: success in ")


def test_a_failure_that_does_not_count_is_not_numbered(workspace: Workspace) -> None:
    workspace.task("job", "echo 'curl: (6) Could not resolve host'; exit 6")
    assert workspace.cli("run", "job", code=1).stdout.splitlines()[-1].startswith("job: failed in ")
