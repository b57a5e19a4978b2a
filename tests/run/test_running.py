"""How a command is run: its arguments, surroundings, limits, output, retries, and how it is ended."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, Gate, Telegram, Workspace, alive, kill, wait_for

WAIT_FOR_GO = "until [ -e go ]; do sleep 0.02; done"


def run(workspace: Workspace, task_id: str = "a", code: int = 0) -> dict[str, Any]:
    """Run a task by hand to its end."""
    return workspace.json("run", task_id, code=code)


def output(workspace: Workspace, a_run: dict[str, Any]) -> str:
    """The log without its headers."""
    return re.sub(r"(?m)^=== attempt .*\n", "", workspace.log_text(a_run))


def words(workspace: Workspace, name: str) -> list[str]:
    path = workspace.root / name
    return path.read_text().split() if path.exists() else []


def pid_in(workspace: Workspace, name: str) -> int:
    return int(wait_for(lambda: words(workspace, name), f"{name} to be written")[0])


def row(workspace: Workspace, columns: str) -> tuple[Any, ...]:
    (found,) = workspace.sql(f"SELECT {columns} FROM task_runs")
    return found


# --- what is run ---------------------------------------------------------------------------------------------------


def test_a_shell_task_is_a_bash_script_without_the_users_profile(workspace: Workspace) -> None:
    (workspace.root / ".bashrc").write_text("echo profile\n")
    (workspace.root / ".profile").write_text("echo profile\n")
    workspace.task("a", "x=(1 2 3); echo ${#x[@]} | cat; [[ $- != *i* ]] && echo quiet")
    assert output(workspace, run(workspace)) == "3\nquiet\n"


def test_a_script_task_is_split_into_words_and_sees_no_shell(workspace: Workspace) -> None:
    command = f"{sys.executable} -c 'import sys; print(sys.argv[1:])' 'a b' $HOME '*' \"x;y\" '|' cat"
    workspace.task("a", command, run_as="script")
    assert output(workspace, run(workspace)) == "['a b', '$HOME', '*', 'x;y', '|', 'cat']\n"


@pytest.mark.parametrize(
    ("name", "text", "needs"),
    [
        ("job.py", "import sys; print('ran', sys.argv[1:])", None),
        ("job.sh", "x=(1); echo \"ran ['$1']\"", "bash"),
        ("job.js", "console.log(`ran ['${process.argv[2]}']`)", "node"),
    ],
)
def test_a_bare_script_file_runs_with_its_interpreter(
    workspace: Workspace, name: str, text: str, needs: str | None
) -> None:
    if needs and not shutil.which(needs):
        pytest.skip(f"{needs} is not installed")
    (workspace.root / "jobs").mkdir()
    (workspace.root / "jobs" / name).write_text(text + "\n")  # not executable
    workspace.task("a", f"jobs/{name} 'one argument'", run_as="script")
    assert output(workspace, run(workspace)) == "ran ['one argument']\n"


def test_an_executable_in_the_working_folder_runs_by_its_relative_path(workspace: Workspace) -> None:
    (workspace.root / "job").write_text('#!/bin/sh\necho "ran $1"\n')
    (workspace.root / "job").chmod(0o755)
    workspace.task("a", "./job x", run_as="script")
    assert output(workspace, run(workspace)) == "ran x\n"


@pytest.mark.parametrize(
    ("run_as", "command", "code"),
    [
        ("shell", "no-such-command-here", 127),
        ("script", "no-such-command-here", 127),
        ("script", "./no/such/file", 127),
        ("shell", "./plain", 126),
        ("script", "./plain", 126),
    ],
)
def test_what_is_missing_or_not_executable_has_the_exit_code_of_a_shell(
    workspace: Workspace, run_as: str, command: str, code: int
) -> None:
    (workspace.root / "plain").write_text("text\n")
    workspace.task("a", command, run_as=run_as)
    a_run = run(workspace, code=1)
    assert (a_run["status"], a_run["exit_code"]) == ("failed", code)
    assert row(workspace, "error_class") == ("missing_tool",)
    assert command.split("/")[-1] in a_run["error"] + output(workspace, a_run)


def test_the_exit_code_and_the_last_line_are_recorded(workspace: Workspace) -> None:
    workspace.task("a", "echo first; echo it broke >&2; exit 3")
    a_run = run(workspace, code=1)
    assert (a_run["status"], a_run["exit_code"], a_run["attempts"]) == ("failed", 3, 1)
    assert a_run["error"] == "exit code 3: it broke"
    assert row(workspace, "exit_code, signal, error_class") == (3, None, "error")
    assert workspace.sql("SELECT exit_code, signal, status FROM attempts") == [(3, None, "failed")]


def test_the_signal_that_ended_a_task_is_recorded(workspace: Workspace) -> None:
    workspace.task("a", "kill -KILL $$")
    a_run = run(workspace, code=1)
    assert (a_run["status"], a_run["exit_code"]) == ("failed", None) and "signal 9" in a_run["error"]
    assert row(workspace, "exit_code, signal") == (None, 9)
    assert workspace.sql("SELECT exit_code, signal FROM attempts") == [(None, 9)]


def test_a_nul_in_a_command_fails_that_task_and_no_other(workspace: Workspace) -> None:
    workspace.write_task("a", '---\nid: a\nschedule: 1h\ncommand: "echo \\0"\n---\n')
    workspace.task("b", "true", schedule="1h")
    workspace.tick()
    rows = {run["task_id"]: run["status"] for run in workspace.history()}
    assert rows.get("a", "rejected") in ("failed", "rejected") and rows["b"] == "success"


def test_variables_too_big_for_the_system_fail_the_run_with_its_words(workspace: Workspace) -> None:
    workspace.task("a", "true", env={"BIG": "x" * 140_000})
    a_run = run(workspace, code=1)
    assert a_run["status"] == "failed" and "Argument list too long" in a_run["error"]


def test_a_large_environment_reaches_the_task(workspace: Workspace) -> None:
    workspace.environment |= {f"FILLER_{number}": "x" * 100_000 for number in range(10)}
    workspace.task("a", "env | wc -c")
    assert int(output(workspace, run(workspace))) > 1_000_000


# --- its surroundings ----------------------------------------------------------------------------------------------


def test_a_task_is_told_who_it_is(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("a", "env; [ $TICKDOWN_ATTEMPT = 2 ]", schedule="1h", retry=True, timezone="Asia/Tokyo")
    workspace.tick()
    (a_run,) = workspace.history("a")  # in the zone of the task
    text = workspace.log_text(a_run)
    first, second = (dict(re.findall(r"(?m)^(\w+)=(.*)$", part)) for part in text.split("=== attempt ")[1:])
    assert second["TICKDOWN_TASK_ID"] == "a" and second["TICKDOWN_RUN_ID"] == a_run["run_id"]
    assert (first["TICKDOWN_ATTEMPT"], second["TICKDOWN_ATTEMPT"]) == ("1", "2")
    assert second["TICKDOWN_TRACE_ID"] == a_run["trace_id"]
    assert second["TICKDOWN_NOTIFY_DEST"] == "home"
    assert second["TICKDOWN_WORKSPACE"] == str(workspace.root)
    assert second["TICKDOWN_SCHEDULED_FOR"] == a_run["scheduled_for"][:19] + "+09:00"
    assert re.fullmatch(rf"00-{a_run['trace_id']}-[0-9a-f]{{16}}-01", second["TRACEPARENT"])
    assert first["TRACEPARENT"] != second["TRACEPARENT"] and re.fullmatch("[0-9a-f]{32}", a_run["trace_id"])


def test_a_task_knows_its_shell_as_under_cron(workspace: Workspace) -> None:
    workspace.environment.pop("SHELL", None)
    workspace.task("a", "echo $SHELL; printenv SHELL")
    workspace.task("script", "printenv SHELL", run_as="script")
    workspace.task("own", "printenv SHELL", env={"SHELL": "/bin/other"})
    shell = shutil.which("bash", path=workspace.environment.get("PATH")) or "/bin/sh"
    assert output(workspace, run(workspace)) == f"{shell}\n" * 2
    assert output(workspace, run(workspace, "script")) == f"{shell}\n"
    assert output(workspace, run(workspace, "own")) == "/bin/other\n"
    workspace.environment["SHELL"] = "/bin/mine"
    assert output(workspace, run(workspace)) == "/bin/mine\n" * 2


def test_no_signal_is_ignored_in_a_task_because_it_was_where_the_tick_was_started(workspace: Workspace) -> None:
    workspace.prefix = ["sh", "-c", 'trap "" HUP USR1; exec "$@"', "sh"]
    workspace.task("a", "grep SigIgn: /proc/self/status", run_as="script")
    ignored = int(output(workspace, run(workspace)).split()[1], 16)
    assert [number for number in signal.valid_signals() if ignored >> (number - 1) & 1] == []


def test_a_task_works_in_the_workspace_unless_it_says_otherwise(workspace: Workspace) -> None:
    (workspace.root / "inside").mkdir()
    workspace.config(f"cwd_policies: {{site: '{workspace.root}/inside', home: '~'}}\n")
    workspace.task("default", "pwd")
    workspace.task("relative", "pwd", cwd="inside")
    workspace.task("absolute", "pwd", cwd="/")
    workspace.task("policy", "pwd", cwd_policy="site")
    workspace.task("tilde", "pwd", cwd_policy="home")
    inside = f"{workspace.root}/inside"
    expected = {
        "default": workspace.root,
        "relative": inside,
        "absolute": "/",
        "policy": inside,
        "tilde": workspace.root,
    }
    for task_id, folder in expected.items():
        assert output(workspace, run(workspace, task_id)) == f"{folder}\n"


def test_a_missing_working_folder_fails_the_run_and_is_named(workspace: Workspace) -> None:
    workspace.task("a", "true", cwd="no/such/folder")
    a_run = run(workspace, code=1)
    assert a_run["status"] == "failed" and f"{workspace.root}/no/such/folder is not a folder" in a_run["error"]
    assert a_run["error"] in workspace.log_text(a_run)


def test_a_working_folder_that_may_not_be_entered_is_named(workspace: Workspace) -> None:
    workspace.bind_by_modes()
    (workspace.root / "closed").mkdir(mode=0o000)
    workspace.task("a", "true", cwd="closed")
    assert "closed" in run(workspace, code=1)["error"]


def test_what_a_task_starts_to_clean_up_is_not_ended_before_its_time(workspace: Workspace) -> None:
    """Each step takes longer than a tick takes to look again."""
    steps = "; ".join(f"bash -c 'sleep 0.7; touch cleaned-{number}'" for number in range(3))
    workspace.task("a", f'trap "{steps}; exit 0" TERM; while :; do sleep 0.05; done', timeout=1)
    assert run(workspace, code=1)["status"] == "timeout"
    assert sorted(path.name for path in workspace.root.glob("cleaned-*")) == ["cleaned-0", "cleaned-1", "cleaned-2"]
    assert workspace.processes() == []


def test_a_folder_that_closes_behind_the_tick_costs_no_run(workspace: Workspace) -> None:
    """It can't go back to where it was started, and looks after what it has started all the same."""
    start = workspace.root.parent / "start"
    start.mkdir()
    workspace.task("a", f"chmod 000 {start}", schedule="1h", priority=1)
    workspace.task("b", "true", schedule="manual", after="a")
    try:
        done = subprocess.run(workspace.argv("tick"), cwd=start, env=workspace.environment, timeout=PATIENCE)
    finally:
        start.chmod(0o700)
    assert done.returncode == 0
    assert [workspace.last_run(name)["status"] for name in "ab"] == ["success", "success"]


def test_variables_are_filled_from_the_env_file_and_the_environment(workspace: Workspace) -> None:
    (workspace.root / ".env").write_text("FROM_FILE=file\nBOTH=file\n")
    workspace.environment |= {"FROM_OUTSIDE": "outside"}
    workspace.task("a", "echo $X $Y", env={"X": "<${FROM_FILE}>", "Y": "${FROM_OUTSIDE}${FROM_OUTSIDE}"})
    assert output(workspace, run(workspace)) == "<file> outsideoutside\n"


def test_a_variable_that_is_set_nowhere_fails_the_run_and_is_named(workspace: Workspace) -> None:
    workspace.task("a", "touch ran", env={"X": "${NOT_SET_ANYWHERE}"})
    a_run = run(workspace, code=1)
    assert a_run["status"] == "failed" and "${NOT_SET_ANYWHERE}" in a_run["error"] and "X" in a_run["error"]
    assert not (workspace.root / "ran").exists()


def test_a_task_has_no_input_and_a_session_of_its_own(workspace: Workspace) -> None:
    workspace.task("a", "readlink /proc/$$/fd/0; cat; cut -d' ' -f1,5,6 /proc/$$/stat")
    null, ids = output(workspace, run(workspace)).splitlines()
    assert null == "/dev/null" and len(set(ids.split())) == 1


def test_a_task_inherits_umask_and_limits_but_no_open_files(workspace: Workspace) -> None:
    workspace.task("a", "umask; ulimit -n; ls -l /proc/$$/fd", schedule="1h")
    tick = workspace.start("tick", umask=0o027, preexec_fn=_fewer_files)
    tick.communicate()
    lines = output(workspace, workspace.last_run("a")).splitlines()
    assert lines[:2] == ["0027", "123"]
    open_files = [line.partition(" -> ")[2] for line in lines if " -> " in line]
    assert all(re.match(r"/dev/null|pipe:|/proc/", target) for target in open_files)


def _fewer_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (123, 123))


# --- output --------------------------------------------------------------------------------------------------------


def test_both_streams_are_kept_in_the_order_they_were_written(workspace: Workspace) -> None:
    workspace.task("a", "for i in {1..200}; do echo out $i; echo err $i >&2; done")
    expected = "".join(f"out {number}\nerr {number}\n" for number in range(1, 201))
    assert output(workspace, run(workspace)) == expected


def test_output_is_in_the_log_as_soon_as_it_is_written(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "fifo")
    workspace.task("a", "echo one; read x < fifo; echo two", schedule="1h")
    tick = workspace.start("tick")
    logs = workspace.root / "logs" / "runs" / "a"
    path = wait_for(lambda: next(logs.glob("*.log"), None))
    wait_for(lambda: "one\n" in path.read_text())
    assert "two" not in path.read_text()
    (workspace.root / "fifo").write_text("go\n")
    tick.communicate()
    assert path.read_text().endswith("one\ntwo\n")


def test_each_attempt_has_its_own_header(workspace: Workspace) -> None:
    workspace.task("a", "printf 'no newline at the end'; exit 1", retry=2)
    text = workspace.log_text(run(workspace, code=1))
    headers = re.findall(r"(?m)^=== attempt (\d) \((\w+)\) a \S+ ===$", text)
    assert headers == [("1", "run"), ("2", "retry"), ("3", "retry")]
    spans = workspace.sql("SELECT log_start, log_end FROM attempts ORDER BY number")
    assert {text.encode()[start:end].decode().strip() for start, end in spans} == {"no newline at the end"}


def test_a_background_child_that_keeps_the_output_open_does_not_hold_the_run(workspace: Workspace) -> None:
    workspace.task("a", "sleep 1000 & echo $! > pid; echo done")
    a_run = run(workspace)
    child = pid_in(workspace, "pid")
    assert a_run["status"] == "success" and output(workspace, a_run) == "done\n"
    assert alive(child)  # after a normal end it is left alone
    kill(child)


def test_output_that_is_no_text_is_kept_byte_by_byte(workspace: Workspace) -> None:
    workspace.task("a", r"printf 'a\xff\xfe\x00b\r\n\xc3'; exit 1")
    a_run = run(workspace, code=1)
    assert (workspace.root / a_run["log"]).read_bytes().endswith(b"a\xff\xfe\x00b\r\n\xc3")
    assert workspace.history("a")[0]["status"] == "failed"
    workspace.cli("logs", "a")
    workspace.cli("show", "a")


def test_of_a_huge_output_the_first_and_the_last_half_are_kept(workspace: Workspace) -> None:
    limit, total = 64 * 1024, 200_000_000
    workspace.task("a", f"yes 0123456789 | head -c {total}; echo; echo the end", schedule="1h", max_log="64 KiB")
    tick = workspace.start("tick")
    path = wait_for(lambda: next((workspace.root / "logs" / "runs").glob("a/*.log"), None))
    biggest = 0
    while tick.poll() is None:
        biggest = max(biggest, path.stat().st_size)
        time.sleep(0.002)
    tick.communicate()
    assert biggest <= 2 * limit
    assert workspace.last_run("a")["status"] == "success"
    data = path.read_bytes()
    notice = re.search(rb"\n=== (\d+) bytes dropped \(over max_log\) ===\n", data)
    assert notice is not None and len(data) == limit + len(notice[0])
    header, _, first = data[: limit // 2].partition(b"\n")
    last = data[notice.end() :]
    whole = len(header) + 1 + total + len("\nthe end\n")
    assert int(notice[1]) == whole - limit
    assert (b"0123456789\n" * limit).startswith(first) and len(last) == limit // 2
    assert last.endswith(b"\nthe end\n") and set(last.splitlines()[1:-2]) == {b"0123456789"}


def test_a_log_at_its_limit_is_whole(workspace: Workspace) -> None:
    workspace.task("a", "head -c 1900 /dev/zero | tr '\\0' x", max_log=2048)
    assert len(output(workspace, run(workspace))) == 1900


def test_the_summary_is_the_last_4_kib(workspace: Workspace) -> None:
    workspace.task("a", "seq 1 5000")
    run(workspace)
    everything = "".join(f"{number}\n" for number in range(1, 5001))
    assert row(workspace, "summary") == (everything[-4096:],)


def test_a_secret_never_reaches_the_log_even_in_two_pieces(workspace: Workspace) -> None:
    (workspace.root / ".env").write_text("API=correct-horse-battery\n")
    os.mkfifo(workspace.root / "fifo")
    pieces = "printf 'begin correct-ho'; read x < fifo; printf 'rse-battery end\\n'; echo $API; exit 1"
    workspace.task("a", pieces, schedule="1h")
    tick = workspace.start("tick")
    path = wait_for(lambda: next((workspace.root / "logs" / "runs").glob("a/*.log"), None))
    wait_for(lambda: "begin " in path.read_text())
    assert "correct" not in path.read_text()
    (workspace.root / "fifo").write_text("go\n")
    told = "".join(tick.communicate())
    assert output(workspace, workspace.last_run("a")) == "begin *** end\n***\n"
    everything = (
        told + json.dumps(workspace.history()) + workspace.scheduler_log() + str(workspace.sql("SELECT * FROM alerts"))
    )
    assert "correct-horse" not in everything and "***" in everything


def test_what_looks_like_the_beginning_of_a_secret_is_not_lost(workspace: Workspace) -> None:
    (workspace.root / ".env").write_text("API=correct-horse-battery\n")
    workspace.task("a", "printf correct-; exit 1", retry=True)
    a_run = run(workspace, code=1)
    assert output(workspace, a_run) == "correct-\ncorrect-"
    assert a_run["error"] == "exit code 1: correct-"


# --- timeouts ------------------------------------------------------------------------------------------------------
# Five seconds: a busy machine may need one or two until a shell has set its trap or a daemon has left.


def test_a_task_over_its_time_gets_sigterm_and_a_ticket(workspace: Workspace) -> None:
    clean_up = "trap 'echo cleaning up; exit 0' TERM; while :; do sleep 0.05; done"
    workspace.task("a", clean_up, schedule="1h", timeout="5s", retry=3)
    done = workspace.tick()
    a_run = workspace.last_run("a")
    assert (a_run["status"], a_run["attempts"], a_run["exit_code"]) == ("timeout", 1, 0)
    assert a_run["error"] == "did not end within 5s" and "cleaning up" in workspace.log_text(a_run)
    assert row(workspace, "error_class") == ("timeout",)
    assert "a failed" in done.stderr and "did not end within 5s" in done.stderr
    assert workspace.sql("SELECT task_id, kind FROM tickets") == [("a", "timeout")]


def test_a_task_that_ignores_sigterm_is_killed_with_all_it_started(workspace: Workspace) -> None:
    workspace.task("a", "trap '' TERM; setsid sleep 1000 & sleep 1000 & while :; do sleep 0.1; done", timeout="5s")
    a_run = run(workspace, code=1)
    assert a_run["status"] == "timeout" and row(workspace, "signal") == (signal.SIGKILL,)
    assert a_run["duration_ms"] >= 15_000
    assert workspace.processes() == []


def test_a_daemon_that_left_session_and_parents_does_not_survive_a_timeout(workspace: Workspace) -> None:
    daemon = "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &) ; env -i setsid sleep 1000 & echo $! > bare; wait"
    workspace.task("a", daemon, timeout="5s")
    assert run(workspace, code=1)["status"] == "timeout"
    assert not alive(pid_in(workspace, "daemon")) and not alive(pid_in(workspace, "bare"))


# --- retries -------------------------------------------------------------------------------------------------------


def test_a_script_without_its_interpreter_is_a_missing_tool(workspace: Workspace) -> None:
    program = workspace.root / "bin" / "odd-program"
    program.parent.mkdir()
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    workspace.task("a", "odd-program", run_as="script", env={"PATH": f"bin:{workspace.environment['PATH']}"})
    workspace.cli("run", "a", code=1)
    run = workspace.last_run("a")
    assert run["exit_code"] == 127 and "odd-program: command not found" in run["error"]


def test_a_task_gets_no_descriptor_that_the_scheduler_was_started_with(workspace: Workspace) -> None:
    workspace.task("a", "ls -l /proc/self/fd", schedule="10m")
    with open(workspace.root / "held", "w") as held:
        os.set_inheritable(held.fileno(), True)
        tick = workspace.start("tick", pass_fds=[held.fileno()])
        assert tick.wait(timeout=60) == 0
        tick.communicate()
    assert "held" not in workspace.log_text(workspace.last_run("a"))


def test_a_task_is_retried_as_often_as_it_says(workspace: Workspace) -> None:
    workspace.task("a", "[ $TICKDOWN_ATTEMPT = 3 ]", schedule="1h", retry=2)
    done = workspace.tick()
    a_run = workspace.last_run("a")
    assert (a_run["status"], a_run["attempts"], a_run["error"]) == ("success", 3, None)
    assert not done.stderr
    attempts = workspace.sql("SELECT rung, status, exit_code FROM attempts ORDER BY number")
    assert attempts == [("run", "failed", 1), ("retry", "failed", 1), ("retry", "success", 0)]


def test_a_retry_waits_for_its_delay(workspace: Workspace) -> None:
    workspace.task("a", "false", retry=True, retry_delay="1s")
    run(workspace, code=1)
    ((waited,),) = workspace.sql(
        "SELECT (julianday(b.started_at) - julianday(a.finished_at)) * 86400 FROM attempts a, attempts b"
        " WHERE a.number = 1 AND b.number = 2"
    )
    assert waited > 0.99


def test_no_retry_starts_beside_a_leftover_of_the_attempt_before(workspace: Workspace) -> None:
    first = "setsid sleep 1000 & echo $! > pid; exit 1"
    second = "grep State: /proc/$(cat pid)/status 2> /dev/null > seen; exit 0"
    workspace.task("a", f"if [ $TICKDOWN_ATTEMPT = 1 ]; then {first}; else {second}; fi", retry=True)
    assert run(workspace)["attempts"] == 2
    assert words(workspace, "seen") in ([], ["State:", "Z", "(zombie)"])
    assert not alive(pid_in(workspace, "pid"))


def move_retry_back(workspace: Workspace) -> None:
    workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 second')")


def test_a_retry_far_away_is_a_run_of_its_own_that_names_the_one_before(workspace: Workspace) -> None:
    workspace.task("a", "echo >> ran; exit 1", schedule="1d", retry=2, retry_delay="5m")
    quiet = workspace.tick()
    assert workspace.last_run("a")["status"] == "failed" and not quiet.stderr
    workspace.tick()
    assert len(workspace.runs("a")) == 1  # not yet
    move_retry_back(workspace)
    assert not workspace.tick().stderr
    move_retry_back(workspace)
    told = workspace.tick()
    assert "a failed" in told.stderr
    first, second, third = workspace.runs("a")
    assert [item["source"] for item in (first, second, third)] == ["baseline-interval", "retry", "retry"]
    assert workspace.sql("SELECT follows FROM task_runs ORDER BY recorded_at, rowid") == [
        (None,), (first["run_id"],), (second["run_id"],)
    ]  # fmt: skip
    assert workspace.sql("SELECT failures, retry_at FROM tasks") == [(1, None)]
    assert workspace.sql("SELECT COUNT(*) FROM alerts") == [(1,)]


def test_a_late_retry_that_succeeds_leaves_no_failure(workspace: Workspace) -> None:
    workspace.task("a", "[ -e fixed ]", schedule="1d", retry=1, retry_delay="5m")
    workspace.tick()
    (workspace.root / "fixed").touch()
    move_retry_back(workspace)
    assert not workspace.tick().stderr
    assert [item["status"] for item in workspace.runs("a")] == ["failed", "success"]
    assert workspace.sql("SELECT failures, retry_at FROM tasks") == [(0, None)]


# --- being stopped -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_tick_that_is_told_to_stop_ends_its_tasks_and_starts_no_more(
    workspace: Workspace, number: signal.Signals, code: int
) -> None:
    workspace.config("max_concurrent: 1\n")
    polite = "trap 'echo got the signal; exit 0' TERM; touch started; while :; do sleep 0.05; done"
    workspace.task("a", polite, schedule="1h", retry=True)
    workspace.task("b", "touch b-ran", schedule="1h")
    tick = workspace.start("tick")
    wait_for((workspace.root / "started").exists)
    tick.send_signal(number)
    told = tick.communicate()[1]
    assert tick.returncode == code
    # Who presses Ctrl-C knows; what a shutdown cuts off must be told.
    assert ("a was interrupted and is not run again" in told) is (number is signal.SIGTERM)
    a_run = workspace.last_run("a")
    assert (a_run["status"], a_run["attempts"]) == ("cancelled", 1)
    assert number.name in a_run["error"] and "got the signal" in workspace.log_text(a_run)
    assert workspace.sql("SELECT failures FROM tasks WHERE id = 'a'") == [(0,)]
    assert not (workspace.root / "b-ran").exists() and workspace.runs("b") == []
    workspace.tick()
    assert (workspace.root / "b-ran").exists()


def test_a_second_signal_kills_at_once(workspace: Workspace) -> None:
    workspace.task("a", "trap 'touch termed' TERM; touch started; while :; do sleep 0.05; done", schedule="1h")
    tick = workspace.start("tick")
    wait_for((workspace.root / "started").exists)
    tick.terminate()
    wait_for((workspace.root / "termed").exists)
    tick.terminate()
    tick.communicate()
    assert tick.returncode == 143
    assert workspace.last_run("a")["status"] == "cancelled" and row(workspace, "signal") == (signal.SIGKILL,)
    assert workspace.last_run("a")["duration_ms"] < 30_000  # the time that one signal gives


def test_a_run_by_hand_that_is_interrupted_is_cancelled(workspace: Workspace) -> None:
    workspace.task("a", f"touch started; {WAIT_FOR_GO}")
    by_hand = workspace.start("run", "a")
    wait_for((workspace.root / "started").exists)
    by_hand.send_signal(signal.SIGINT)
    by_hand.communicate()
    assert by_hand.returncode == 130 and workspace.last_run("a")["status"] == "cancelled"
    assert workspace.processes() == []


def test_a_signal_while_a_retry_is_waited_for_ends_the_run(workspace: Workspace) -> None:
    workspace.task("a", "echo >> ran; exit 1", schedule="1h", retry=True, retry_delay="60s")
    tick = workspace.start("tick")
    wait_for(lambda: '"rung": "run"' in workspace.scheduler_log())
    wait_for(lambda: workspace.sql("SELECT 1 FROM attempts WHERE status = 'failed'"))
    tick.terminate()
    tick.communicate()
    assert tick.returncode == 143 and workspace.last_run("a")["status"] == "cancelled"
    assert (workspace.root / "ran").read_text() == "\n"


def test_stop_ends_a_run_as_cancelled(workspace: Workspace) -> None:
    workspace.task("a", f"touch started; setsid sleep 1000 & {WAIT_FOR_GO}", schedule="1h", retry=True)
    tick = workspace.start("tick")
    wait_for((workspace.root / "started").exists)
    workspace.cli("stop", "a")
    tick.communicate()
    assert (tick.returncode, workspace.last_run("a")["status"]) == (0, "cancelled")
    assert len(workspace.sql("SELECT 1 FROM attempts")) == 1


def test_a_detached_tick_returns_at_once_and_its_child_does_the_work(workspace: Workspace) -> None:
    workspace.task("a", f"touch started; {WAIT_FOR_GO}; touch done", schedule="1h")
    workspace.tick("--detach")
    assert not (workspace.root / "done").exists()
    wait_for((workspace.root / "started").exists)
    (workspace.root / "go").touch()
    wait_for(lambda: not workspace.processes(), "the end of the child")
    assert workspace.last_run("a")["status"] == "success" and Path(workspace.root / "done").exists()


def test_a_daemon_without_environment_session_or_parents_does_not_survive_a_timeout(workspace: Workspace) -> None:
    pid_file = workspace.root / "daemon.pid"
    workspace.task(
        "sly",
        f"(env -i setsid sh -c 'echo $$ > {pid_file}; exec sleep 1000' >/dev/null 2>&1 </dev/null &); "
        f"while [ ! -s {pid_file} ]; do sleep 0.02; done; sleep 1000",
        schedule="1h",
        timeout="5s",
    )
    workspace.tick()
    assert workspace.last_run("sly")["status"] == "timeout"
    assert not alive(int(pid_file.read_text()))


def test_a_background_child_that_prints_after_the_end_lives_on(workspace: Workspace) -> None:
    gate, marker = workspace.root / "gate", workspace.root / "marker"
    os.mkfifo(gate)
    workspace.task(
        "starter", f"(read line < {gate}; echo one; echo two; echo $$ > {marker}) & echo started", schedule="1h"
    )
    workspace.tick()
    assert workspace.last_run("starter")["status"] == "success"
    gate.write_text("go\n")
    wait_for(lambda: marker.exists() and marker.read_text())
    wait_for(lambda: not workspace.processes())


@pytest.mark.parametrize(
    "fields",
    [
        {"cwd": "~nosuchuser/x"},
        {"cwd": "x" * 5000},
        {"run_as": "script", "command": "y" * 300 + ".py"},
        {"run_as": "script", "command": "~nosuchuser/z.sh"},
    ],
)
def test_an_odd_folder_or_program_fails_its_own_run_and_no_other(workspace: Workspace, fields: dict[str, str]) -> None:
    workspace.task("a-odd", **({"command": "true", "schedule": "1h"} | fields))
    workspace.task("b-fine", schedule="1h")
    workspace.tick()
    assert workspace.last_run("a-odd")["status"] == "failed"
    assert workspace.last_run("b-fine")["status"] == "success"
    workspace.cli("validate")


def test_without_bash_a_shell_task_runs_with_sh(workspace: Workspace) -> None:
    workspace.environment["PATH"] = str(workspace.root)
    workspace.task("a", 'echo "$0"', schedule="1h")
    workspace.tick()
    assert "/bin/sh\n" in workspace.log_text(workspace.last_run("a"))


def test_a_running_task_renews_its_heartbeat(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("long", gate.command, schedule="1h")
    tick = workspace.start("tick")
    gate.wait()
    wait_for(lambda: workspace.sql("SELECT 1 FROM task_runs WHERE heartbeat_at > started_at"))
    gate.open()
    tick.communicate()
    assert workspace.last_run("long")["status"] == "success"
