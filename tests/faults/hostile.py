"""Hostile input: garbage in every file and from everybody who answers, and texts that would like to be more than text."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from random import Random
from typing import Any

from tests.faults import garbage, nasty
from tests.faults.invariants import check
from tests.faults.kinds import CannotTry, kind
from tests.healing import copy_of_the_program
from tests.helpers import PATIENCE, Telegram, Workspace, well_formed

SECONDS = 60  # of processor time for one command, and
KIB = (
    2 * 1024 * 1024
)  # of address space: whoever needs more than that for such input is hanging or growing without bounds


def bounded(workspace: Workspace, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """A command with a limit of time and memory, far beyond what any machine needs for it."""
    limits = ["sh", "-c", f'ulimit -t {SECONDS}; ulimit -v {KIB}; exec "$@"', "sh"]
    done = subprocess.run(
        [*limits, *workspace.argv(*arguments)], env=workspace.environment, capture_output=True, cwd=workspace.root,
        timeout=PATIENCE * 3, text=True, errors="surrogateescape",
    )  # fmt: skip
    told = f"{arguments} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == code or (code is None and done.returncode in range(6)), told
    assert "Traceback" not in done.stderr, told
    return done


def nothing_broke(workspace: Workspace) -> None:
    """No bug was hit on the way, and what is written for programs can be read by them."""
    check(workspace)
    for line in workspace.scheduler_log().split("\n")[:-1]:
        event = json.loads(line)
        assert event["event"] not in ("crash", "heal_broken", "tick_stopped"), event
        assert "MemoryError" not in line, event
    audit = workspace.root / "logs" / "self-heal-audit.log"
    for line in audit.read_text().split("\n")[:-1] if audit.exists() else ():
        json.loads(line)
    assert not workspace.sql("SELECT * FROM tickets WHERE kind = 'crash'")


def program(workspace: Workspace, name: str, said: str, code: int = 0) -> Path:
    """An executable that prints this, and reads what it is told."""
    path = workspace.root / "bin" / name
    path.parent.mkdir(exist_ok=True)
    (path.parent / f"{name}.says").write_bytes(said.encode("utf-8", "surrogateescape"))
    path.write_text(f'#!/bin/sh\ncat > /dev/null\ncat "$0.says"\nexit {code}\n')
    path.chmod(0o755)
    return path


# --- every screen ----------------------------------------------------------------------------------------------------------


@kind("hostile texts on every screen")
def screens(random: Random, workspace: Workspace) -> None:
    """Titles, tags, commands, outputs, errors, comments, hints, notes, names of files and of agents, what agents say: all
    of it full of sequences and marks, and every command that shows something, on a terminal and in a pipe."""
    telegram = Telegram()
    try:
        ids = _loud_workspace(random, workspace, telegram)
        told = [bounded(workspace, "tick"), bounded(workspace, "run", "script", code=None)]
        reason = "".join(nasty.text(random, 2).split("\0"))[:400]
        bounded(workspace, "hint", "loud", "--every", "2h", f"--reason={reason}")
        workspace.cli("comment", "loud", "…" + nasty.text(random, 4).replace("\0", "")[:3000])
        author = nasty.text(random, 2).replace("\0", "") + "\udcff"
        workspace.cli("comment", "loud", "from a task", env={"TICKDOWN_TASK_ID": author})
        number = workspace.json("tickets")[0]["id"]
        bounded(workspace, "tickets", "--close", str(number), "--note", nasty.text(random, 4).replace("\0", ""))
        for task_id in ids:  # so that there is something to tell of the next tick, too
            workspace.move_back(task_id, "-3 hours")
        _look_at_everything(random, workspace)
        told.append(bounded(workspace, "tick"))
        (workspace.root / ".env").write_text("")  # no token: alerts go to stderr from here on
        for task_id in ids:
            workspace.move_back(task_id, "-3 days")
        told.append(bounded(workspace, "tick"))
        assert "tickdown on " in told[-1].stderr
        for done in told:
            nasty.shown_safely(done.stdout + done.stderr)
        for message in telegram.texts:
            nasty.shown_safely(well_formed(message))
            assert len(message.encode("utf-16-le")) // 2 <= 4096, "too long for Telegram"
        assert telegram.texts
        _names_are_safe(workspace, {*ids, "script"})
        nothing_broke(workspace)
    finally:
        telegram.close()


def _loud_workspace(random: Random, workspace: Workspace, telegram: Telegram) -> list[str]:
    def said(most: int = 6, begin: str = "") -> str:
        return nasty.in_yaml(begin + nasty.text(random, most).replace("\0", ""))

    def key() -> str:  # YAML wants keys of less than 1024 bytes
        return nasty.in_yaml(nasty.text(random, 3).replace("\0", "")[:150])

    workspace.scheduler = copy_of_the_program()  # healers are watched for changes of it
    telegram.configure(workspace)
    result = json.dumps({
        "type": "result", "subtype": "error_during_execution", "is_error": True, "result": nasty.text(random), "session_id": "x",
        "total_cost_usd": 0.25,
    })  # fmt: skip
    agent = program(workspace, "agent", result)
    verdict = json.dumps({"verdict": "needs_human", "cause": nasty.text(random), "files": []})
    doctor = program(workspace, "doctor", nasty.text(random) + verdict)
    (workspace.root / "noise").write_text("first\n" + nasty.text(random, 20) + "\nlast " + nasty.text(random, 3))
    with open(workspace.root / "config.yaml", "a") as config:
        config.write(
            f"agents:\n  loud: {{argv: [{agent}], format: claude}}\n  doctor: [{doctor}]\nhealer: doctor\n"
            f"groups: {{{key()}: 2, plain: 1}}\n"
        )
    head = "schedule: 1h\n"
    texts = f"title: {said()}\ntags: [{said()}, {said()}]\nenv: {{NOISE: {said(3)}}}\n"
    ignored = nasty.in_yaml("# " + " ".join(nasty.text(random, 3).replace("\0", "").split()))
    workspace.write_task(
        "loud", f"---\nid: loud\n{head}{texts}command: 'cat noise; exit 3'\n{key()}: unknown\n---\n{nasty.text(random)}"
        .replace("\0", ""),
    )  # fmt: skip
    workspace.write_task(
        "said", f"---\nid: said\n{head}{texts}run_as: loud\nprompt: {said(begin='look')}\nself_heal: false\n---\n"
    )
    workspace.write_task("script", f"---\nid: script\nschedule: manual\nrun_as: script\ncommand: {ignored}\n---\n")
    workspace.write_task(
        "later",
        f"---\nid: later\nschedule: every day at 09:00\n{texts}command: {said(begin='true #')}\ncwd: {said(2)}\n---\n",
    )
    for number in range(3):
        name = nasty.text(random, 3).replace("\0", "").replace("/", "")[:60]
        content = f"---\nid: {said(2)}\n{key()}: [{said(2)}\nschedule: {said(2)}\ntimeout: {said(2)}\n---\n"
        (workspace.root / "tasks" / f"{number}{name}.md").write_text(content)
    os.close(os.open(os.fsencode(workspace.root / "tasks") + b"/\xff\x1b[2J.md", os.O_CREAT | os.O_WRONLY, 0o644))
    return ["loud", "said", "later"]


def _look_at_everything(random: Random, workspace: Workspace) -> None:
    runs = workspace.json("history")
    logged = next(run for run in runs if run["task_id"] == "loud" and run["log"])
    healed = logged["run_id"]
    commands: list[tuple[str, ...]] = [
        ("list",), ("history",), ("show", "loud"), ("show", "said"), ("why", "loud"), ("next",), ("simulate",), ("validate",),
        ("doctor",), ("comments",), ("tickets", "--all"), ("costs",), ("heal", "loud", "--dry-run"), ("heal", "loud", "--diff", healed),
        ("logs", "loud"), ("logs", "loud", "-f"), ("tick", "--dry-run"), ("run", "loud", "--dry-run"), ("run", "later", "--dry-run"),
        ("show", "nobody" + nasty.text(random, 2).replace("\0", "")),
    ]  # fmt: skip
    lines = {}
    for command in commands:
        told = bounded(workspace, *command, code=None)
        nasty.shown_safely(told.stdout + told.stderr)
        nasty.shown_safely(on_terminal(workspace, *command), on_terminal=True)
        lines[command] = told.stdout.split("\n")
    tables = [("list",), ("history",), ("comments",), ("next",)]
    others = [command for command in commands[:13] if command not in tables]
    for command in tables + random.sample(others, 2):
        told = bounded(workspace, *command, "--json", code=None)
        nasty.shown_safely(told.stdout + told.stderr)
        rows = json.loads(told.stdout)
        if command in tables:  # the names of the columns, and the end
            assert told.returncode == 0 and len(lines[command]) == len(rows) + 2, (
                f"{command}: a row that is not one line"
            )
    raw = subprocess.run(
        workspace.argv("logs", "loud", "--raw"), env=workspace.environment, capture_output=True, check=True
    ).stdout
    assert raw == (workspace.root / logged["log"]).read_bytes()
    nasty.shown_safely(on_terminal(workspace, "run", "loud"), on_terminal=True)
    (workspace.root / logged["log"]).unlink()
    nasty.shown_safely(on_terminal(workspace, "logs", healed), on_terminal=True)


def on_terminal(workspace: Workspace, *arguments: str) -> str:
    """What a command writes, either stream, to a terminal."""
    ours, theirs = pty.openpty()
    environment = workspace.environment | {"TERM": "xterm-256color", "COLUMNS": "160"}
    process = workspace.start(*arguments, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            written += os.read(ours, 65536)
        except OSError:  # how Linux says that nobody has the other side open any more
            break
    os.close(ours)
    assert process.wait(timeout=PATIENCE) in range(6), written
    return written.decode()


def _names_are_safe(workspace: Workspace, ids: set[str]) -> None:
    locks = {path.name.removesuffix(".lock") for path in (workspace.root / "state" / "locks").iterdir()}
    logs = {path.name for path in (workspace.root / "logs" / "runs").iterdir()}
    assert locks <= ids and logs <= ids, (locks, logs)


@kind("files of one id with hostile names")
def duplicates(random: Random, workspace: Workspace) -> None:
    workspace.task("good")
    for number in range(2):
        name = nasty.text(random, 3).replace("\0", "").replace("/", "")[:60]
        text = "---\nid: twin\nschedule: 1h\ncommand: 'true'\n---\n"
        (workspace.root / "tasks" / f"{number}{name}.md").write_text(text)
    for command in (
        ("tick",),
        ("list",),
        ("tick", "--dry-run"),
        ("validate",),
        ("doctor",),
        ("run", "twin"),
        ("why", "good"),
    ):
        told = bounded(workspace, *command, code=3 if command[0] == "tick" else None)
        nasty.shown_safely(told.stdout + told.stderr)
    assert not workspace.sql("SELECT * FROM task_runs")


# --- files -----------------------------------------------------------------------------------------------------------------


@kind("garbage in task files", seeds=1)
def task_files(random: Random, workspace: Workspace) -> None:
    """The good one runs, whatever stands beside it, and every bad one is told of with its place."""
    workspace.task("good", schedule="1h")
    for number in range(60):
        path = workspace.root / "tasks" / f"bad{number}.md"
        path.write_bytes(garbage.task_file(random))
        path.chmod(0o644)
    _without_duplicates(workspace)
    bounded(workspace, "tick")
    assert workspace.last_run("good")["status"] == "success"
    found = bounded(workspace, "validate", code=None)
    nasty.shown_safely(found.stdout)
    problems = found.stdout.split("\n")[:-2]
    misplaced = [line for line in problems if not re.match(r"tasks/bad[0-9]+\.md:[1-9][0-9]*: \S", line)]
    assert not misplaced, f"problems without their place: {misplaced[:5]}"
    rejected = {task["path"] for task in workspace.json("list", "--state", "rejected")}
    told = {line.partition(":")[0] for line in problems if ": warning: " not in line}
    assert rejected == told, f"rejected without a reason, or the other way round: {rejected ^ told}"
    nothing_broke(workspace)


def _without_duplicates(workspace: Workspace) -> None:
    """Two files of one id stop everything, which is another kind's subject."""
    duplicates_of: dict[str, Any] = workspace.json("tick", "--dry-run", code=None)
    for line in duplicates_of["duplicates"]:
        for name in re.findall(r"tasks/bad[0-9]+\.md", line):
            (workspace.root / name).unlink()


@kind("garbage in config.yaml and .env")
def settings(random: Random, workspace: Workspace) -> None:
    """Every tick runs the task, or says in which line what is wrong."""
    for _ in range(5):
        config, env = workspace.root / "config.yaml", workspace.root / ".env"
        config.write_bytes(garbage.config_file(random) if random.random() < 0.8 else b"")
        env.write_bytes(garbage.env_file(random) if random.random() < 0.5 else b"")
        env.chmod(0o600)
        task = workspace.task("good", schedule="1h")
        for command in (("tick",), ("validate",)):
            done = bounded(workspace, *command, code=None)
            assert done.returncode in (0, 1, 2), done
            nasty.shown_safely(done.stdout + done.stderr)
            said = done.stderr + done.stdout  # there, if the same was told within the hour
            wrong = [line for line in said.replace("scheduler.py: ", "").split("\n") if "config.yaml" in line]
            assert all(re.search(r"(config\.yaml|\.env):[1-9][0-9]*: \S", line) for line in wrong), said
            if command == ("tick",) and done.returncode == 2:
                assert re.search(r"(config\.yaml|\.env):[1-9][0-9]*: \S", said), said
        task.touch()


# --- whoever answers ---------------------------------------------------------------------------------------------------------


@kind("garbage from HTTP servers")
def http_answers(random: Random, workspace: Workspace) -> None:
    """`run_as: http` ends in a verdict of one line, in time, and keeps no more than it says."""
    with garbage.Server(random) as server:
        chosen = random.sample(sorted(garbage.ANSWERS), 11)
        workspace.config("max_concurrent: 11\n")
        for name in chosen:
            seconds = 2 if name in garbage.ENDLESS else 60
            workspace.write_task(
                name,
                f"---\nid: {name}\nschedule: 1h\nrun_as: http\nurl: {server.url}/{name}\ntimeout: {seconds}\n---\n",
            )
        bounded(workspace, "tick")
        for name in chosen:
            run = workspace.last_run(name)
            assert run["status"] in ("success", "failed", "timeout"), run
            assert run["status"] != "timeout" or name in garbage.ENDLESS, run
            assert run["status"] == "success" or run["error"], run
            log = workspace.log_text(run)
            assert "Traceback" not in log and "MemoryError" not in log, log
            assert len(log) < 110 * 1024, f"{name}: {len(log)} characters are kept"
    nothing_broke(workspace)


@kind("garbage from whoever watches", seeds=1)
def pings(random: Random, workspace: Workspace) -> None:
    """`ping_url`: whatever comes back, the tick does its work, and says nothing that cron would mail."""
    with garbage.Server(random) as server:
        workspace.task("good", schedule="1h")
        for name in random.sample(sorted(garbage.ANSWERS.keys() - set(garbage.ENDLESS)), 6):
            workspace.config(f"ping_url: {server.url}/{name}\n")
            done = bounded(workspace, "tick")
            assert not done.stderr, f"{name}: {done.stderr}"
            workspace.move_back("good", "-2 hours")
        assert [run["status"] for run in workspace.runs("good")] == ["success"] * 6
    nothing_broke(workspace)


@kind("garbage from Telegram", seeds=1)
def telegram_answers(random: Random, workspace: Workspace) -> None:
    """However it answers, the tick ends well; the alert waits or becomes a ticket, and arrives once somebody listens."""
    workspace.task("bad", f"printf %s {_shell(nasty.text(random).replace(chr(0), ''))}; exit 3", schedule="1h")
    with garbage.Server(random) as server:
        telegram = Telegram()
        try:
            telegram.configure(workspace)
            config = (workspace.root / "config.yaml").read_text()
            (workspace.root / "config.yaml").write_text(config.replace(telegram.url, server.url))
            for _ in range(5):
                bounded(workspace, "tick")
                ((status,),) = workspace.sql("SELECT DISTINCT status FROM alerts")
                assert status in ("pending", "failed", "sent")
                tickets = workspace.sql("SELECT * FROM tickets WHERE kind = 'alert_failed' AND closed_at IS NULL")
                assert bool(tickets) or status != "failed", "refused for good without a ticket"
                # As if the time to wait were over, and somebody had asked for the alert again.
                workspace.sql("UPDATE alerts SET status = 'pending', not_before = NULL, lease_until = NULL")
            (workspace.root / "config.yaml").write_text(config)
            bounded(workspace, "tick")
            assert len(telegram.texts) == 1, telegram.texts
            assert workspace.sql("SELECT DISTINCT status FROM alerts") == [("sent",)]
            nothing_broke(workspace)
        finally:
            telegram.close()


def _shell(words: str) -> str:
    return "'" + words.replace("'", "'\\''") + "'"


@kind("garbage from agents")
def agents(random: Random, workspace: Workspace) -> None:
    """What an agent prints in the place of its result, of its verdict after a heal, or of what a comment asks for: the run
    has an end, and the sums in history are numbers."""
    workspace.scheduler = copy_of_the_program()
    lines = []
    for number in range(8):
        format_ = random.choice(("claude", "codex", "gemini", "text"))
        name = f"a{number}"
        path = program(workspace, name, garbage.agent_output(random), random.choice((0, 0, 0, 1, 41, 127)))
        lines.append(f"  {name}: {{argv: [{path}], format: {format_}}}")
        workspace.write_task(name, f"---\nid: {name}\nschedule: 1h\nrun_as: {name}\nself_heal: false\n---\nDo it.\n")
    doctor = program(workspace, "doctor", garbage.agent_output(random))
    lines.append(f"  doctor: {{argv: [{doctor}], format: {random.choice(('claude', 'text'))}}}")
    workspace.config("max_concurrent: 8\nagents:\n" + "\n".join(lines) + "\nhealer: doctor\n")
    workspace.task("broken", "exit 3", schedule="1h")
    for number in (0, 1, 2):
        workspace.cli("comment", f"a{number}", "please " + nasty.text(random, 3).replace("\0", "")[:2000])
    bounded(workspace, "tick")
    for task_id in ["broken", *(f"a{number}" for number in range(8))]:
        rows = workspace.rows(task_id)
        assert rows and rows[-1][0] in ("success", "failed", "skipped"), (task_id, rows)
    for command in (("costs",), ("history",), ("comments",), ("tickets",), ("show", "a0")):
        told = bounded(workspace, *command, "--json")
        nasty.shown_safely(told.stdout)
        json.loads(told.stdout, parse_constant=_no_such_number)
    nothing_broke(workspace)


def _no_such_number(name: str) -> None:
    raise AssertionError(f"{name} is no number of JSON")


# --- coverage-guided -----------------------------------------------------------------------------------------------------------


@kind("readers under coverage-guided fuzzing (atheris)", seeds=0)
def coverage_guided(random: Random, workspace: Workspace) -> None:
    """All readers of texts, in a process of their own: the fuzzer grows its input towards code it has not seen yet."""
    python = garbage.python_with_atheris()
    if python is None:
        raise CannotTry("atheris is not installed (tests/faults/requirements.txt)")
    garbage.fuzz(python, random, workspace.root, seconds=15)
