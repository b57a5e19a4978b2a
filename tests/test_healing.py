"""The ladder with a healer, walked from end to end by real ticks and a scripted agent."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.healing import BROKEN, FIX, FIXED, TASK, Healing, program_with, says
from tests.helpers import Gate, Telegram, Workspace, alive, kill, wait_for

AUDIT_KEYS = {
    "time", "task", "run", "attempt", "error_signature", "files", "diff", "verdict", "cost", "rerun_result", "cause", "problem",
    "status",
}  # fmt: skip
SUSPENDED_TASK = TASK.replace("tags: [a, b]\n", "tags: [a, b]\nenabled: false\ndisabled_reason: auto_suspended\n")


def suspended(healing: Healing) -> None:
    """Everything is as it was, but for the two lines that say so."""
    assert healing.state() == "suspended"
    assert healing.changed() == {"ws/tasks/job.md"}
    assert healing.file("tasks/job.md") == SUSPENDED_TASK
    assert healing.snapshots_left() == []


# --- heals that help -------------------------------------------------------------------------------------------------


def test_a_heal_that_works_the_first_time_ends_in_success_within_the_same_tick(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}\n{says()}")
    run = healing.tick()
    assert (run["status"], run["attempts"], run["exit_code"]) == ("success", 3, 0)
    assert healing.attempts() == [("run", "failed"), ("heal", "success"), ("verify", "success")]
    assert healing.changed() == {"ws/scripts/job.sh"}
    assert healing.file("scripts/job.sh") == FIXED
    (line,) = healing.audit()
    assert set(line) == AUDIT_KEYS
    assert (line["task"], line["run"], line["attempt"], line["verdict"]) == ("job", run["run_id"], 2, "fixed")
    assert (line["files"], line["rerun_result"], line["status"]) == (["scripts/job.sh"], "success", "kept")
    assert "-cat input.txt || exit 4\n+cat data/input.txt || exit 4\n" in line["diff"]
    assert healing.alerts() == [("healed", False)]
    assert healing.tickets() == []
    assert "healed: the path was wrong (scripts/job.sh)" in workspace.cli("history").stdout
    shown = workspace.cli("show", "job").stdout
    assert "probation  healed in run" in shown and "attempt 2 (heal) success" in shown
    assert healing.snapshots_left() == []


def test_a_second_heal_is_told_what_the_first_did_and_why_that_did_not_help(workspace: Workspace) -> None:
    wrong = "sed -i 's|cat input|cat nowhere/input|' scripts/job.sh"
    healing = Healing(
        workspace, f"if [ $CALL = 1 ]; then {wrong}; {says(cause='a first guess')}; else {FIX}; {says()}; fi"
    )
    run = healing.tick()
    assert run["status"] == "success"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal", "verify", "heal", "verify"]
    assert healing.file("scripts/job.sh") == FIXED and healing.changed() == {"ws/scripts/job.sh"}
    first, second = healing.prompts
    assert "A repair was tried before" not in first and "cat: input.txt" in first
    assert "A repair was tried before: it said fixed, cause: a first guess; it changed scripts/job.sh" in second
    assert "cat: nowhere/input.txt" in second
    assert [(line["rerun_result"], line["status"]) for line in healing.audit()] == [
        ("failed", "restored"),
        ("success", "kept"),
    ]


def test_the_command_timeout_and_env_of_the_task_may_be_healed_and_the_rest_is_put_back(workspace: Workspace) -> None:
    edit = (
        "cat > tasks/job.md <<'END'\n---\nid: other-id\nschedule: 1m\ncommand: cat data/input.txt\ntimeout: 99\n"
        "enabled: true\nself_heal: true\nenv:\n  MODE: careful\n---\nPrints the input, from where it is.\nEND\n"
    )
    healing = Healing(workspace, f"{edit}{says()}")
    assert healing.tick()["status"] == "success"
    assert healing.changed() == {"ws/tasks/job.md"}
    assert healing.file("tasks/job.md") == (
        "---\nid: job\nschedule: 1h   # every hour\ncommand: cat data/input.txt\nsuspend_after: 5\n# the owner's own remark\n"
        "tags: [a, b]\ntimeout: 99\nenv:\n  MODE: careful\n---\nPrints the input, from where it is.\n"
    )
    assert healing.audit()[0]["files"] == ["tasks/job.md"]


def test_a_mode_that_the_agents_tool_lost_is_put_back(workspace: Workspace) -> None:
    rewrite = "sed 's|cat input|cat data/input|' scripts/job.sh > new; mv new scripts/job.sh; chmod 600 scripts/job.sh"
    healing = Healing(workspace, f"{rewrite}; {says()}")
    assert healing.tick()["status"] == "success"
    assert (healing.root / "scripts/job.sh").stat().st_mode & 0o777 == 0o755


def test_heal_paths_may_be_edited_also_outside_the_workspace_or_made(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    path = healing.outside / "settings.ini"
    path.write_text("path=input.txt\n")
    workspace.write_task(
        "job",
        TASK.replace("./scripts/job.sh", f'cat "$(sed s/path=// {path})" made.txt').replace(
            "tags:", f"heal_paths: [{path}, made.txt]\ntags:"
        ),
    )
    healing.script(f"echo path=data/input.txt > {path}; echo x > made.txt; {says()}")
    healing.before = healing.tree()
    assert healing.tick()["status"] == "success"
    assert healing.changed() == {"ws/made.txt"} and path.read_text() == "path=data/input.txt\n"


def makes_folders(workspace: Workspace, more: str = "") -> Healing:
    """A healer that has to make the folders of the file that it may make."""
    healing = Healing(workspace, f"mkdir -p conf/deep; echo 1 > conf/deep/new.txt; {more} {says()}")
    workspace.write_task(
        "job",
        TASK.replace("./scripts/job.sh", "test $(cat conf/deep/new.txt) = 1").replace(
            "tags:", "heal_paths: [conf/deep/new.txt]\ntags:"
        ),
    )
    healing.before = healing.tree()
    return healing


def test_the_folders_of_a_file_that_may_be_made_may_be_made(workspace: Workspace) -> None:
    healing = makes_folders(workspace)
    run = healing.tick()
    assert run["status"] == "success" and healing.audit()[0]["files"] == ["conf/deep/new.txt"]
    assert healing.changed() == {"ws/conf/deep/new.txt"}
    (healing.root / "conf/mine.txt").write_text("mine\n")
    assert ": conf/deep/new.txt\n" in workspace.cli("heal", "job", "--undo", run["run_id"]).stdout
    assert healing.changed() == {"ws/conf/mine.txt"} and not (healing.root / "conf/deep").exists()


@pytest.mark.parametrize("more", ["echo 2 > conf/deep/new.txt;", "echo 2 > conf/evil.txt;"])
def test_folders_that_were_made_go_with_a_heal_that_does_not_help(workspace: Workspace, more: str) -> None:
    healing = makes_folders(workspace, more)
    assert healing.tick()["status"] == "failed" and healing.state() == "suspended"
    assert not (healing.root / "conf").exists()
    assert refused(healing) == (["made conf/evil.txt, which it may not"] if "evil" in more else [])


def test_the_healer_may_do_its_work_without_an_edit(workspace: Workspace) -> None:
    healing = Healing(workspace, says(cause="the folder had gone"))
    outside = healing.outside / "made"
    workspace.write_task("job", TASK.replace("./scripts/job.sh", f"ls {outside}"))
    healing.script(f"mkdir {outside}; {says()}")
    run = healing.tick()
    assert run["status"] == "success" and healing.audit()[0]["files"] == []


# --- heals that do not -----------------------------------------------------------------------------------------------


def test_two_heals_in_vain_suspend_the_task_with_every_byte_restored(workspace: Workspace, telegram: Telegram) -> None:
    healing = Healing(workspace, f"echo '# try '$CALL >> scripts/job.sh; {says()}", telegram=telegram)
    run = healing.tick()
    assert (run["status"], run["exit_code"]) == ("failed", 4)
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal", "verify", "heal", "verify"]
    suspended(healing)
    assert [(line["files"], line["rerun_result"]) for line in healing.audit()] == [(["scripts/job.sh"], "failed")] * 2
    assert healing.alerts() == [("suspended", True)]
    (text,) = telegram.texts
    assert "job is suspended after 2 heals" in text and "scheduler.py resume job" in text
    (ticket,) = healing.tickets()
    assert (ticket["kind"], ticket["task_id"], ticket["run_id"]) == ("suspended", "job", run["run_id"])
    assert ticket["command"] == "scheduler.py resume job" and "exit code 4" in ticket["error"]
    assert len(ticket["tried"]) == 5 and "heal: success, fixed: the path was wrong" in ticket["tried"][1]
    assert "2 heals did not help" in workspace.cli("history").stdout


def test_a_script_that_rewrites_itself_in_the_failed_run_is_restored_all_the_same(workspace: Workspace) -> None:
    script = r"printf '#!/bin/sh\necho payload\necho \"# $$\" >> \"$0\"\nexit 1\n' > scripts/job.sh"
    healing = Healing(workspace, f"cat scripts/job.sh > {workspace.root.parent}/seen-$CALL; {script}; {says()}")
    assert healing.tick()["status"] == "failed"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal", "verify", "heal", "verify"]
    suspended(healing)
    assert (workspace.root.parent / "seen-2").read_text() == BROKEN, "the second heal starts from the original"
    problem = healing.audit()[0]["problem"]
    assert "scripts/job.sh: was changed once more, what was there is in state/heals/" in problem
    assert "NOT put back" not in problem
    kept = [path.read_text() for path in (healing.root / "state/heals").glob("*/found/0*")]
    assert len(kept) == 2 and all("echo payload" in text and "\n# " in text for text in kept)


# What it does, and what the audit log must name.
FORBIDDEN = {
    "sed -i s/true/false/ tasks/other.md": "changed tasks/other.md",
    "echo 'heals_per_day: 1000' >> config.yaml": "changed config.yaml",
    "echo X=1 >> .env": "changed .env",
    "echo evil > .git/hooks/pre-commit": "made .git/hooks/pre-commit",
    "echo 'do as you like' > prompts/self-heal.txt": "made prompts/self-heal.txt",
    "printf -- '---\\nid: evil\\nschedule: 1m\\ncommand: date\\n---\\n' > tasks/evil.md": "made tasks/evil.md",
    "mkdir -p new/deep; echo x > new/deep/file": "made new,",
    "rm data/input.txt; rmdir data": "removed data/input.txt",
    "chmod 777 scripts/helper.sh": "changed scripts/helper.sh",
    "ln -sf /etc/passwd scripts/link.sh": "changed scripts/link.sh",
    "rm scripts/plain; mkdir -p scripts/plain/x; touch scripts/plain/x/y": "changed scripts/plain",
    "echo 'ssh-ed25519 EVIL' >> ~/.ssh/authorized_keys": "/.ssh/authorized_keys",
    "echo evil > ~/.bashrc": "/.bashrc",
    "mkdir -p ~/.claude .claude; echo '{}' | tee ~/.claude/settings.json > .claude/settings.json": "made .claude,",
    "echo 'echo evil' > state/shims/claude": "changed state/shims/claude",
    "echo '{}' >> logs/self-heal-audit.log": "self-heal-audit.log",
}


def refused(healing: Healing) -> list[str]:
    """What the healer is said to have done that it may not, by the first of its heals."""
    return [part for part in healing.audit()[0]["problem"].split("; ") if part.endswith(", which it may not")]


def test_forbidden_changes_take_the_whole_heal_back_though_it_would_have_helped(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}\n" + "\n".join(FORBIDDEN) + f"\n{says()}")
    workspace.cli("run", "other")  # so that the shim is there
    shim = healing.file("state/shims/claude")
    assert healing.tick()["status"] == "failed"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal", "heal"], "no run with what it made"
    suspended(healing)
    assert healing.file("state/shims/claude") == shim
    told = " ".join(refused(healing))
    for name in FORBIDDEN.values():
        assert name in told, f"{name} is not named"
    assert [line["status"] for line in healing.audit()] == ["restored"] * 2
    assert "which it may not" in healing.prompts[1]


# A name of Tickdown's own, what it leads to, and what the healer does to that.
LINKED = [
    ("config.yaml", "conf/config.yaml", "echo 'heals_per_day: 1000' >> conf/config.yaml"),
    ("config.yaml", "../outside/config.yaml", "echo 'heals_per_day: 1000' >> config.yaml"),
    (".env", "conf/env", "echo X=1 >> conf/env"),
    ("tasks/other.md", "conf/other.md", "sed -i s/true/false/ conf/other.md"),
    ("prompts", "conf/prompts", "echo 'do as you like' > conf/prompts/self-heal.txt"),
]


@pytest.mark.parametrize(("name", "target", "change"), LINKED, ids=[f"{name} {target}" for name, target, _ in LINKED])
def test_what_tickdowns_own_names_lead_to_is_as_much_out_of_bounds(
    workspace: Workspace, name: str, target: str, change: str
) -> None:
    healing = Healing(workspace, f"{FIX}\n{change}\n{says()}")
    real = healing.root / target
    real.parent.mkdir(exist_ok=True)
    (healing.root / name).rename(real)
    (healing.root / name).symlink_to(os.path.relpath(real, (healing.root / name).parent))
    path = f"{target}/self-heal.txt" if real.is_dir() else target
    workspace.write_task("job", TASK.replace("tags:", f"heal_paths: [{path}]\ntags:"))
    assert [row["path"] for row in workspace.json("heal", "job", "--dry-run")["never"]] == [path]
    healing.before, outside = healing.tree(), "" if real.is_dir() else real.read_text()
    healing.tick()
    assert healing.state() == "suspended" and os.path.basename(path) in " ".join(refused(healing))
    assert healing.changed() == {"ws/tasks/job.md"} and (real.is_dir() or real.read_text() == outside)


@pytest.mark.parametrize("change", ["sed -i s/true/false/ tasks/other.md", "mkdir -p new/deep; echo x > new/deep/file"])
def test_one_forbidden_change_is_enough(workspace: Workspace, change: str) -> None:
    healing = Healing(workspace, f"{FIX}\n{change}\n{says()}")
    assert healing.tick()["status"] == "failed"
    suspended(healing)
    assert refused(healing)


def test_what_a_forbidden_change_overwrote_is_kept_aside_since_it_may_have_been_somebody_else(
    workspace: Workspace,
) -> None:
    healing = Healing(workspace, f"{FIX}; echo '# mine' >> tasks/other.md; {says()}")
    healing.tick()
    kept = [
        path.read_text() for path in (healing.root / "state/heals").glob("*/found/*") if path.name != "manifest.json"
    ]
    assert any(text.endswith("# mine\n") for text in kept)


def test_the_database_survives_a_healer_that_overwrites_or_removes_it(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}\n[ $CALL = 1 ] && echo garbage > state/tickdown.db || rm -rf state\n{says()}")
    run = healing.tick()
    assert run["status"] == "failed" and healing.state() == "suspended"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal", "heal"]
    assert [line["status"] for line in healing.audit()] == ["restored"] * 2
    assert "damaged the database" in healing.audit()[0]["problem"]
    assert healing.file("scripts/job.sh") == BROKEN
    database = sqlite3.connect(healing.root / "state/tickdown.db")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM heals",
        "UPDATE heals SET started_at = '2020-01-01T00:00:00.000Z'",
        "UPDATE heals SET task_id = 'other'",
        "DROP TABLE heals",
    ],
)
def test_a_healer_can_not_have_its_heals_forgotten(workspace: Workspace, statement: str) -> None:
    healing = Healing(workspace, "")
    program = f'import sqlite3\nwith sqlite3.connect("state/tickdown.db") as db:\n    db.execute("{statement}")\n'
    (healing.outside / "forget.py").write_text(program)
    healing.script(f"{FIX}; {sys.executable} {healing.outside}/forget.py; {says()}")
    assert healing.tick()["status"] == "failed"
    suspended(healing)
    told = "damaged the database" if "DROP" in statement else "changed the counters of heals in the database"
    assert all(told in line["problem"] for line in healing.audit())
    rows = workspace.sql("SELECT task_id, status, started_at > '2026' FROM heals ORDER BY attempt")
    assert rows == [("job", "restored", 1)] * 2


def test_a_script_that_the_healer_removes_is_back_and_was_not_run(workspace: Workspace) -> None:
    healing = Healing(workspace, f"rm scripts/job.sh; {says()}")
    assert healing.tick()["status"] == "failed"
    suspended(healing)
    assert "scripts/job.sh: was removed" in healing.audit()[0]["problem"]


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ("echo 'if then' >> scripts/job.sh", "scripts/job.sh: "),
        ("sed -i 's/command: .*/command: \"if then\"/' tasks/job.md", "command: "),
        ("sed -i 's/command: .*/command: [/' tasks/job.md", "tasks/job.md"),
        ("sed -i 's/command: .*/timeout: -5/' tasks/job.md", "tasks/job.md"),
        ("printf '\\xff\\xfe' > tasks/job.md", "not valid UTF-8"),
        ("rm tasks/job.md", "was removed"),
    ],
)
def test_edits_that_fail_their_check_are_undone_and_never_run(workspace: Workspace, edit: str, problem: str) -> None:
    healing = Healing(workspace, f"{edit}\n{says()}")
    assert healing.tick()["status"] == "failed"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal", "heal"]
    suspended(healing)
    assert problem in healing.audit()[0]["problem"]


@pytest.mark.parametrize(("name", "text"), [("x.py", "def f(:\n"), ("x.json", "{"), ("x.yaml", "a: [")])
def test_other_kinds_of_files_are_checked_too(workspace: Workspace, name: str, text: str) -> None:
    healing = Healing(workspace, "")
    workspace.write_task("job", TASK.replace("tags:", f"heal_paths: [{name}]\ntags:"))
    healing.script(f"cat > {name} <<'END'\n{text}END\n{says()}")
    healing.tick()
    assert not (healing.root / name).exists()
    assert f"{name}: " in healing.audit()[0]["problem"]


def test_a_healer_that_dies_is_taken_back(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}; {says()}; exit 9")
    assert healing.tick()["status"] == "failed"
    suspended(healing)
    assert "the healer failed: exit code 9" in healing.audit()[0]["problem"]


def test_a_healer_without_a_verdict_is_judged_by_the_next_run_alone(workspace: Workspace) -> None:
    healing = Healing(workspace, f"[ $CALL = 2 ] && {FIX}; echo I did something")
    run = healing.tick()
    assert run["status"] == "success"
    assert [line["verdict"] for line in healing.audit()] == [None, None]


def test_a_healer_that_gives_up_is_asked_once_more_and_its_edits_are_undone(workspace: Workspace) -> None:
    healing = Healing(workspace, f"echo >> scripts/job.sh; {says('gave_up')}")
    assert healing.tick()["status"] == "failed"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal", "heal"]
    suspended(healing)


def test_needs_human_goes_straight_to_a_ticket_and_stops_the_healing(workspace: Workspace) -> None:
    healing = Healing(workspace, f"echo >> scripts/job.sh; {says('needs_human', 'the password has expired')}")
    run = healing.tick()
    assert run["status"] == "failed"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal"]
    assert healing.changed() == set() and healing.state() == "active"
    (ticket,) = healing.tickets()
    assert ticket["kind"] == "needs_human" and "the password has expired" in ticket["body"]
    assert healing.alerts() == [("needs a human", True)]
    healing.due_again()
    healing.tick()
    assert len(healing.prompts) == 1, "while a human is asked, the healer is not"
    workspace.cli("resume", "job")
    healing.due_again()
    healing.tick()
    assert len(healing.prompts) == 2 and len(workspace.json("tickets", "--all")) == 2


def test_a_healer_that_hangs_is_ended_with_all_it_started(workspace: Workspace) -> None:
    healing = Healing(
        workspace,
        f"{FIX}; sleep 1000 & echo $! > {workspace.root.parent}/pid; setsid sleep 1000; {says()}",
        "heal_timeout: 2s\n",
    )
    config = healing.file("config.yaml").replace("heal_timeout: 60s\n", "")
    workspace.config(config)
    healing.before = healing.tree()
    assert healing.tick()["status"] == "failed"
    suspended(healing)
    assert "did not end within 2s" in healing.audit()[0]["problem"]
    assert not alive(int((workspace.root.parent / "pid").read_text()))


def test_what_a_healer_leaves_in_the_background_is_ended_before_its_edits_are_looked_at(workspace: Workspace) -> None:
    pid = workspace.root.parent / "pid"
    background = f"setsid sh -c 'echo $$ > {pid}; sleep 1000; echo evil >> scripts/job.sh' &"
    healing = Healing(workspace, f"{FIX}\n{background}\nuntil [ -s {pid} ]; do sleep 0.02; done\n{says()}")
    assert healing.tick()["status"] == "success"
    assert not alive(int(pid.read_text())) and healing.file("scripts/job.sh") == FIXED


def test_nothing_is_lost_by_a_healer_that_moves_things_around(workspace: Workspace) -> None:
    healing = Healing(workspace, "mv data newdata; mv scripts .old; ln -s .old scripts; " + says())
    big = healing.root / "data" / "big.bin"
    with big.open("wb") as file:
        file.truncate(5 * 1024 * 1024)
        file.write(b"the end")
    healing.before = healing.tree()
    assert healing.tick()["status"] == "failed"
    suspended(healing)


@pytest.mark.parametrize(
    "change",
    ["touch data/$'bad\\xff'", "mkdir -p $(printf 'd/%.0s' $(seq 1100))", "touch scripts/$(printf 'x%.0s' $(seq 250))"],
)
def test_odd_names_do_not_bring_the_scheduler_down(workspace: Workspace, change: str) -> None:
    healing = Healing(workspace, f"{FIX}\n{change}\n{says()}", more_config="max_concurrent: 1\n")
    workspace.task("beside", "true", schedule="1h", priority=-1)
    assert healing.tick()["status"] == "failed"
    assert healing.file("scripts/job.sh") == BROKEN and workspace.rows("beside") == [("success", None, 1)]
    assert workspace.sql("SELECT DISTINCT status FROM heals") == [("restored",)]
    assert not any("a bug" in line["problem"] for line in healing.audit())
    workspace.sql("UPDATE task_runs SET recorded_at = '2020-01-01T00:00:00.000Z'")
    workspace.task("job", schedule="1h")
    workspace.cli("run", "job")  # so that the one with the heals is not the last, which stays
    workspace.cli("prune")
    assert list((healing.root / "state/heals").iterdir()) == []
    subprocess.run(
        ["rm", "-rf", str(workspace.root)], check=True
    )  # deeper than Python's own removal gets, and so pytest's


def test_what_can_not_be_put_back_calls_a_human_and_the_snapshot_stays(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    os.mkfifo(healing.root / "pipe")
    healing.script(f"{FIX}; rm pipe; {says()}")
    assert healing.tick()["status"] == "failed"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal"] and healing.changed() == set()
    (ticket,) = healing.tickets()
    assert ticket["kind"] == "needs_human" and "NOT put back" in healing.audit()[0]["problem"]
    assert len(healing.snapshots_left()) == 1


def test_what_the_task_itself_writes_is_not_undone_with_a_heal(workspace: Workspace) -> None:
    healing = Healing(workspace, f"echo '# try' >> scripts/job.sh; {says()}")
    workspace.write_task(
        "job", TASK.replace("./scripts/job.sh", "echo $TICKDOWN_ATTEMPT >> data/journal; ./scripts/job.sh")
    )
    (healing.root / "data/journal").touch()
    healing.tick()
    assert healing.file("data/journal").split() == ["1", "3", "5"] and healing.file("scripts/job.sh") == BROKEN


def test_two_tasks_that_fail_at_once_are_healed_one_after_the_other_up_to_the_proof(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    for name in ("a", "b"):
        workspace.task(name, "sleep 0.5; exit 3", schedule="1h")
    before = {name: healing.file(f"tasks/{name}.md") for name in ("a", "b")}
    healing.script(f"sed -i 's/^command: .*/command: \"sleep 0.5; exit 4\"/' tasks/$TICKDOWN_TASK_ID.md; {says()}")
    (healing.root / "tasks/job.md").unlink()
    workspace.tick()
    closed = "enabled: false\ndisabled_reason: auto_suspended\n---\n"
    for name, text in before.items():
        assert healing.file(f"tasks/{name}.md") == text.replace("\n---\nA task", f"\n{closed}A task")
    audit = healing.audit()
    assert len(audit) == 4 and not any("which it may not" in (line["problem"] or "") for line in audit)


@pytest.mark.parametrize(
    "trouble",
    ["echo 'Claude AI usage limit reached|1794900000'; exit 1", "echo 'Invalid API key. Please run /login'; exit 1"],
)
def test_a_healer_that_does_not_work_itself_suspends_nobody(workspace: Workspace, trouble: str) -> None:
    healing = Healing(workspace, trouble)
    run = healing.tick()
    assert run["status"] == "failed" and healing.state() == "active"
    assert workspace.json("show", "job")["failures"] == 1
    assert "not healed: the healer itself does not work" in workspace.log_text(workspace.last_run("job"))


def test_a_pause_during_a_heal_is_written_when_the_heal_is_over(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    gate = Gate(workspace)
    workspace.task("beside", gate.command, schedule="manual")
    healing.script(f"{FIX}; {gate.command}; {says()}")
    tick = workspace.start("tick")
    gate.wait()
    assert "it is being healed" in workspace.cli("pause", "job").stdout
    (healing.root / "gate.arrived").unlink()  # it would be the healer's
    gate.open()
    tick.communicate()
    assert workspace.last_run("job")["status"] == "success"
    workspace.tick()
    assert "disabled_reason: paused" in healing.file("tasks/job.md") and healing.file("scripts/job.sh") == FIXED


@pytest.mark.parametrize("how", ["", "env -u TICKDOWN_HEALING ", "env -i PATH=$PATH sh -c 'exec \"$@\"' sh "])
def test_a_healer_can_not_use_the_commands_that_change_something(workspace: Workspace, how: str) -> None:
    healing = Healing(workspace, "")
    call = " ".join(workspace.argv("pause", "other"))
    healing.script(f"{FIX}; {how}{call} > {healing.outside}/told 2>&1; {says()}")
    assert healing.tick()["status"] == "success"
    assert "is not for a healer" in (healing.outside / "told").read_text()
    assert healing.changed() == {"ws/scripts/job.sh"}


def test_tickdown_itself_is_watched_too(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    program = workspace.scheduler.parent
    before = (program / "lib/tickdown/base/errors.py").read_bytes()
    cached = program / "lib/tickdown/__pycache__/evil.pyc"
    healing.script(f"{FIX}; echo evil >> {program}/lib/tickdown/base/errors.py; echo evil > {cached}; {says()}")
    assert healing.tick()["status"] == "failed"
    assert (program / "lib/tickdown/base/errors.py").read_bytes() == before and not cached.exists()
    suspended(healing)


@pytest.mark.parametrize("name", ["tests/conftest.py", ".git/hooks/post-commit", ".git/config"])
def test_what_belongs_to_the_program_is_watched_where_the_workspace_is_elsewhere(
    workspace: Workspace, name: str
) -> None:
    healing = Healing(workspace, "")
    workspace.scheduler = program_with(healing.outside / "program")
    path = workspace.scheduler.parent / name
    path.parent.mkdir(parents=True)
    path.write_text("the original\n")
    healing.script(f"{FIX}; echo evil >> {path}; {says()}")
    assert healing.tick()["status"] == "failed"
    assert path.read_text() == "the original\n" and f"changed {path}" in " ".join(refused(healing))
    suspended(healing)


# Compiles a file that says something else, and makes it look as if it came from the source that is there.
FORGE = """
import importlib.util, marshal, os, pathlib, sys
source = pathlib.Path("scripts/util.py")
info = source.stat()
code = marshal.dumps(compile("print('evil')", str(source), "exec"))
header = importlib.util.MAGIC_NUMBER + b"".join(n.to_bytes(4, "little") for n in (0, int(info.st_mtime), info.st_size))
cached = pathlib.Path(importlib.util.cache_from_source(str(source)))
cached.parent.mkdir(exist_ok=True)
cached.write_bytes(header + code)
os.utime(cached, (1, 1))
"""


PYTHON = f"env -u PYTHONDONTWRITEBYTECODE {sys.executable}"


@pytest.mark.parametrize("compiled_before", [True, False])
def test_compiled_python_of_a_heal_does_not_stay(workspace: Workspace, compiled_before: bool) -> None:
    healing = Healing(workspace, "")
    python = f"{PYTHON} -c 'import sys; sys.path.insert(0, \"scripts\"); import util'"
    workspace.write_task("job", TASK.replace("./scripts/job.sh", f"./scripts/job.sh && {python}"))
    (healing.root / "scripts/util.py").write_text("print('good')\n")
    (healing.outside / "forge.py").write_text(FORGE)
    if compiled_before:
        subprocess.run(python, shell=True, check=True, cwd=healing.root)
        assert list((healing.root / "scripts/__pycache__").iterdir())
    healing.script(f"{FIX}; {sys.executable} {healing.outside}/forge.py; {python} > {healing.outside}/seen; {says()}")
    run = healing.tick()
    assert (healing.outside / "seen").read_text() == "evil\n", "it would have worked"
    assert run["status"] == "success", "and nobody is blamed for what Python writes"
    log = workspace.log_text(workspace.last_run("job"))
    assert "good" in log and "evil" not in log


def test_what_a_failed_run_compiled_from_an_edit_goes_with_it(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    workspace.write_task(
        "job",
        TASK.replace("./scripts/job.sh", f"{PYTHON} scripts/job.py").replace(
            "tags:", "heal_paths: [scripts/util.py]\ntags:"
        ),
    )
    (healing.root / "scripts/job.py").write_text("import util\nraise SystemExit(3)\n")
    (healing.root / "scripts/util.py").write_text("print('good')\n")
    edit = "touch -r scripts/util.py mark; echo \"print('evil')\" > scripts/util.py; touch -r mark scripts/util.py; rm mark"
    healing.script(f"{edit}; rm -rf scripts/__pycache__; {says()}")
    healing.tick()
    assert "evil" in workspace.log_text(workspace.last_run("job")), "it was compiled"
    assert healing.file("scripts/util.py") == "print('good')\n" and len(healing.prompts) == 2
    workspace.cli("run", "job", code=1)
    log = workspace.log_text(workspace.last_run("job"))
    assert "good" in log and "evil" not in log


def test_more_than_two_heals_are_not_had_by_way_of_a_follow_up(workspace: Workspace) -> None:
    healing = Healing(workspace, f"echo '# try' >> scripts/job.sh; {says()}")
    script = '#!/bin/sh\n[ "$TICKDOWN_ATTEMPT" = 1 ] && exit 3\necho "curl: (7) Failed to connect"\nexit 7\n'
    (healing.root / "scripts/job.sh").write_text(script)
    healing.tick()
    assert len(healing.prompts) == 1
    workspace.sql("UPDATE tasks SET retry_at = '2026-01-01T00:00:00.000Z'")
    (healing.root / "scripts/job.sh").write_text("#!/bin/sh\nexit 3\n")
    healing.tick()
    assert len(healing.prompts) == 2 and healing.state() == "suspended"


def test_a_second_heal_in_a_follow_up_is_told_of_the_first_and_both_are_counted(
    workspace: Workspace, telegram: Telegram
) -> None:
    healing = Healing(workspace, f'echo "# try $CALL" >> scripts/job.sh; {says(cause="guess")}', telegram=telegram)
    script = '#!/bin/sh\n[ "$TICKDOWN_ATTEMPT" = 1 ] && exit 3\necho "curl: (7) Failed to connect"\nexit 7\n'
    (healing.root / "scripts/job.sh").write_text(script)
    healing.tick()
    workspace.sql("UPDATE tasks SET retry_at = '2026-01-01T00:00:00.000Z'")
    (healing.root / "scripts/job.sh").write_text("#!/bin/sh\nexit 5\n")
    healing.tick()
    second = healing.prompts[1]
    assert "A repair was tried before: it said fixed, cause: guess; it changed scripts/job.sh" in second
    assert "Failed to connect" in second and "exit code 5" in second
    assert "job is suspended after 2 heals" in telegram.texts[-1] and "Heal 2: " in telegram.texts[-1]
    assert "2 heals did not help" in workspace.cli("history").stdout


# --- probation -------------------------------------------------------------------------------------------------------


def healed(workspace: Workspace, script: str = f"{FIX}; {says()}") -> Healing:
    healing = Healing(workspace, script)
    assert healing.tick()["status"] == "success"
    healing.due_again()
    return healing


def test_a_failure_on_probation_restores_and_suspends_without_a_further_heal(workspace: Workspace) -> None:
    healing = healed(workspace)
    (healing.root / "data/input.txt").rename(healing.root / "data/gone.txt")
    run = healing.tick()
    assert run["status"] == "failed" and len(healing.prompts) == 1
    assert healing.file("scripts/job.sh") == BROKEN and healing.state() == "suspended"
    assert healing.alerts()[-1] == ("suspended", True)
    (ticket,) = healing.tickets()
    assert "was on probation and is undone: scripts/job.sh" in ticket["body"]
    assert workspace.sql("SELECT status FROM heals") == [("restored",)]


def test_an_edit_of_a_person_since_the_heal_is_not_lost_when_probation_fails(workspace: Workspace) -> None:
    healing = healed(workspace)
    mine = FIXED + "exit 5 # mine\n"
    (healing.root / "scripts/job.sh").write_text(mine)
    assert healing.tick()["status"] == "failed"
    assert healing.file("scripts/job.sh") == mine and healing.state() == "suspended"
    assert "edited since the heal: scripts/job.sh" in healing.tickets()[0]["body"]


def test_a_damaged_copy_is_never_written_over_a_file(workspace: Workspace) -> None:
    healing = healed(workspace)
    run_id = workspace.last_run("job")["run_id"]
    (copy,) = (path for path in (healing.root / "state/heals").glob("*/before/*") if path.name != "manifest.json")
    copy.write_text("#!/bin/sh\necho evil\n")
    told = workspace.cli("heal", "job", "--undo", run_id, code=1).stderr
    assert "the copy of scripts/job.sh in" in told and "is damaged" in told
    (healing.root / "data/input.txt").rename(healing.root / "data/gone.txt")
    assert healing.tick()["status"] == "failed"
    assert healing.file("scripts/job.sh") == FIXED and healing.state() == "suspended"
    assert "is still there: the copy of scripts/job.sh" in healing.tickets()[0]["body"]


def test_a_later_healer_may_not_touch_what_a_heal_on_probation_would_be_restored_from(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}; {says()}")
    run_id = healing.tick()["run_id"]
    evil = "for file in state/heals/*/before/*; do echo evil > $file; done; rm -r state/heals/*/after"
    healing.script(f"{evil}; {says()}")
    workspace.task("second", "exit 3", schedule="1h")
    workspace.tick()
    problem = next(line["problem"] for line in healing.audit() if line["task"] == "second")
    assert "changed state/heals/" in problem and "removed state/heals/" in problem
    workspace.cli("heal", "job", "--undo", run_id)
    assert healing.file("scripts/job.sh") == BROKEN


EDIT_TASK = "sed -i 's|^command: .*|command: cat data/input.txt|' tasks/job.md"


def test_a_pause_since_the_heal_does_not_keep_it_from_being_undone(workspace: Workspace) -> None:
    healing = healed(workspace, f"{EDIT_TASK}; {says()}")
    workspace.cli("pause", "job")
    (healing.root / "data/input.txt").unlink()
    workspace.cli("run", "job", code=1)
    assert healing.file("tasks/job.md") == SUSPENDED_TASK and healing.state() == "suspended"
    assert "was on probation and is undone: tasks/job.md" in healing.tickets()[0]["body"]
    assert workspace.sql("SELECT status FROM heals") == [("restored",)]


def test_a_heal_that_is_still_there_after_its_probation_is_not_called_restored(workspace: Workspace) -> None:
    healing = healed(workspace, f"{EDIT_TASK}; {says()}")
    run_id = workspace.last_run("job")["run_id"]
    task = healing.file("tasks/job.md").replace("id: job\n", "id: job\ntitle: Mine\n")
    workspace.write_task("job", task)
    (healing.root / "data/input.txt").unlink()
    assert healing.tick()["status"] == "failed" and healing.state() == "suspended"
    assert "is still there: edited since the heal: tasks/job.md" in healing.tickets()[0]["body"]
    assert f"heal 1 of run {run_id}" in (shown := workspace.cli("heal", "job", "--diff", run_id).stdout)
    assert ": kept" in shown and workspace.json("show", "job")["probation"] is None
    assert "edited since the heal" in workspace.cli("heal", "job", "--undo", run_id, code=1).stderr
    workspace.write_task("job", healing.file("tasks/job.md").replace("title: Mine\n", ""))
    workspace.cli("heal", "job", "--undo", run_id)
    assert healing.file("tasks/job.md") == SUSPENDED_TASK


def test_the_heal_of_a_one_shot_can_be_undone_though_its_file_says_completed(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{EDIT_TASK}; {says()}")
    original = TASK.replace("schedule: 1h   # every hour", "schedule: in 1 hour")
    workspace.write_task("job", original)
    workspace.tick()
    workspace.sql("UPDATE tasks SET anchored_at = strftime('%Y-%m-%dT%H:%M:%fZ', anchored_at, '-90 minutes')")
    workspace.move_back("job", "-90 minutes")
    run = healing.tick()
    assert run["status"] == "success" and "disabled_reason: completed" in healing.file("tasks/job.md")
    workspace.cli("heal", "job", "--undo", run["run_id"])
    assert healing.file("tasks/job.md") == original.replace(
        "tags: [a, b]\n", "tags: [a, b]\nenabled: false\ndisabled_reason: completed\n"
    )


def test_three_clean_runs_end_the_probation_and_healing_begins_anew(workspace: Workspace) -> None:
    healing = healed(workspace)
    assert "probation  healed in run" in workspace.cli("why", "job").stdout
    for left in (2, 1, None):
        assert healing.tick()["status"] == "success"
        probation = workspace.json("show", "job")["probation"]
        assert (probation["left"] if probation else None) == left
        words = f"; ends after {left} clean run{'s' * (left != 1)}, or in "
        assert (words in workspace.cli("why", "job").stdout) is bool(left)
        healing.due_again()
    (healing.root / "scripts/job.sh").write_text(BROKEN)
    assert healing.tick()["status"] == "success" and len(healing.prompts) == 2


def test_a_day_ends_the_probation_too(workspace: Workspace) -> None:
    healing = healed(workspace)
    workspace.sql("UPDATE tasks SET probation_until = '2020-01-01T00:00:00.000Z'")
    (healing.root / "scripts/job.sh").write_text(BROKEN)
    assert healing.tick()["status"] == "success" and len(healing.prompts) == 2


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_task_has_three_heals_a_day_and_then_only_counts(workspace: Workspace) -> None:
    healing = healed(workspace)
    for _ in range(3):
        workspace.sql("UPDATE tasks SET probation_run = NULL")
        (healing.root / "scripts/job.sh").write_text(BROKEN)
        run = healing.tick()
        healing.due_again()
    assert run["status"] == "failed" and len(healing.prompts) == 3
    assert workspace.json("show", "job")["failures"] == 1
    reason = workspace.json("heal", "job", "--dry-run")["reason"]
    assert reason == "this task has had its heals for today"


def test_heals_per_day_is_over_all_tasks(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}; {says()}", "heals_per_day: 1\n")
    workspace.task("second", "exit 3", schedule="1h")
    workspace.tick()
    assert len(healing.prompts) == 1
    assert workspace.sql("SELECT COUNT(*) FROM heals") == [(1,)]


def the_victim_is_put_back(healing: Healing) -> None:
    """Another task, far down, that the healer of a tick edits."""
    victim = healing.root / "tasks/team/prod/victim.md"
    victim.parent.mkdir(parents=True)
    victim.write_text(TASK.replace("id: job", "id: victim").replace("schedule: 1h ", "schedule: manual "))
    healing.before = healing.tree()
    assert healing.tick()["status"] == "failed"
    suspended(healing)


def test_much_data_does_not_use_up_the_room_for_small_files(workspace: Workspace) -> None:
    healing = Healing(
        workspace, f"{FIX}; echo evil > scripts/helper.sh; echo evil > tasks/team/prod/victim.md; {says()}"
    )
    for number in range(23):
        with (healing.root / f"data/{number}.bin").open("wb") as file:
            file.truncate(4 * 1024 * 1024)
    the_victim_is_put_back(healing)


def test_many_files_do_not_use_up_the_room_for_what_is_never_edited(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}; echo evil > tasks/team/prod/victim.md; {says()}")
    workspace.scheduler = program_with(healing.outside / "program", MOST_WATCHED=600)
    for number in range(600):
        (healing.root / f"data/{number}").touch()
    the_victim_is_put_back(healing)
    assert "not watched, too much in it: data" in healing.audit()[0]["problem"]


@pytest.mark.parametrize("limits", [{"MOST_WATCHED": 50}, {"MOST_KEPT": 2000}])
def test_where_what_is_never_edited_can_not_be_watched_nobody_is_healed(
    workspace: Workspace, limits: dict[str, int]
) -> None:
    healing = Healing(workspace, f"{FIX}; {says()}")
    workspace.scheduler = program_with(healing.outside / "program", **limits)
    run = healing.tick()
    assert (run["status"], healing.prompts, healing.state()) == ("failed", [], "active")
    log = workspace.log_text(workspace.last_run("job"))
    assert "there is too much to watch, of what no healer may change: " in log
    assert "not healed: what it may touch could not be saved first" in log
    assert workspace.json("show", "job")["failures"] == 1, "as if there were no healer"


def test_heals_come_one_at_a_time(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    trace = healing.outside / "trace"
    for number in range(3):
        workspace.task(f"t{number}", "exit 3", schedule="1h")
    healing.script(f"echo in >> {trace}; sleep 0.2; echo out >> {trace}; {says('needs_human')}")
    workspace.tick()
    assert trace.read_text().split() == ["in", "out"] * 4


def deadlines_in(lock: Path) -> dict[str, str] | None:
    """None while only its claim is in there, or its text is being written."""
    text = lock.read_text()
    return json.loads(text) if "ladder_deadline" in text and text.endswith("\n") else None


def test_the_deadline_of_the_ladder_is_in_the_lock_and_ends_the_wait_for_a_heal(workspace: Workspace) -> None:
    healing = Healing(workspace, says(), "")
    workspace.config(healing.file("config.yaml").replace("heal_timeout: 60s", "heal_timeout: 1s"))
    workspace.task("job", "exit 3", schedule="1h", timeout="1s")
    gate = Gate(workspace)
    workspace.task("holder", "exit 3", schedule="manual")
    healing.script(f"{gate.command}; {says('needs_human')}")
    (healing.root / "state").mkdir(mode=0o700, exist_ok=True)
    import fcntl

    with open(healing.root / "state" / "heal.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        tick = workspace.start("tick")
        lock = healing.root / "state/locks/job.lock"
        holder = wait_for(lambda: lock.exists() and deadlines_in(lock), "the lock of a run that has begun")
        assert holder["ladder_deadline"] > holder["deadline"]
        tick.communicate()
    run = workspace.last_run("job")
    assert run["status"] == "failed" and "not healed: there is no time left for it" in workspace.log_text(run)
    assert workspace.json("show", "job")["failures"] == 1 and healing.prompts == []


def test_where_healing_is_off_failures_are_counted_told_and_suspend_at_last(workspace: Workspace) -> None:
    healing = Healing(workspace, says())
    workspace.config(healing.file("config.yaml").replace("healer: doctor\n", ""))
    workspace.task("job", "echo broken; exit 4", schedule="1h", suspend_after=4)
    for _ in range(4):
        healing.tick()
        healing.due_again()
    assert healing.alerts() == [("failed", False), ("still failing", True), ("suspended", True)]
    assert [ticket["kind"] for ticket in healing.tickets()] == ["failing", "suspended"]
    assert healing.state() == "suspended" and healing.prompts == []


@pytest.mark.parametrize(
    ("config", "task", "reason"),
    [
        ("healer: null\n", {}, "no healer is configured"),
        ("", {"self_heal": False}, "self_heal: false"),
        ("healer: ghost\n", {}, "the healer is not installed"),
    ],
)
def test_where_healing_is_impossible_it_is_said_why(
    workspace: Workspace, config: str, task: dict[str, object], reason: str
) -> None:
    healing = Healing(workspace, says())
    base = healing.file("config.yaml")
    if config:
        base = base.replace("healer: doctor\n", config).replace("agents:\n", "agents:\n  ghost: [no-such-program]\n")
    workspace.config(base)
    workspace.task("job", "echo broken; exit 4", schedule="1h", **task)
    healing.tick()
    assert healing.prompts == [] and workspace.sql("SELECT failures FROM tasks WHERE id = 'job'") == [(1,)]
    assert reason in workspace.json("heal", "job", "--dry-run")["reason"]


@pytest.mark.parametrize(
    ("command", "status", "kind"),
    [
        ("no-such-command", "failed", "missing_tool"),
        ("sleep 100", "timeout", "timeout"),
        ("echo 'curl: (7) Failed to connect to localhost port 1'; exit 7", "failed", "transient"),
        ("echo 'fatal: Authentication failed for https://example.org/'; exit 128", "failed", "auth"),
    ],
)
def test_what_no_edit_can_cure_is_not_healed(workspace: Workspace, command: str, status: str, kind: str) -> None:
    healing = Healing(workspace, says())
    workspace.task("job", command, schedule="1h", timeout="1s")
    run = healing.tick()
    assert (run["status"], run["error_class"], healing.prompts) == (status, kind, [])


def test_a_run_by_hand_heals_only_when_asked(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}; {says()}")
    workspace.cli("run", "job", code=1)
    assert healing.prompts == [] and healing.changed() == set()
    done = workspace.cli("run", "job", "--heal")
    assert "all done" in done.stdout and healing.file("scripts/job.sh") == FIXED


# --- what the healer is told ---------------------------------------------------------------------------------------


def test_the_prompt_has_the_end_of_the_log_as_data_without_secrets(workspace: Workspace) -> None:
    healing = Healing(workspace, says("gave_up"))
    noise = (
        "for i in $(seq 1 500); do echo line-$i; done; echo pass $SERVICE_PASSWORD; printf '\\033[31mred\\n'; exit 4"
    )
    workspace.task("job", noise, schedule="1h")
    healing.tick()
    prompt = healing.prompts[0]
    log = prompt.split("\n----- ")[1]
    assert "line-500\npass ***\nred" in log and "line-303\n" in log and "line-302\n" not in log
    assert "correct-horse-battery" not in prompt and "\x1b" not in prompt
    assert prompt.count(prompt.split("It ends at the line\n")[1].split("\n")[0]) == 2


def test_a_prompt_of_the_workspace_takes_the_place_of_the_shipped_one(workspace: Workspace) -> None:
    healing = Healing(workspace, says("gave_up"))
    (healing.root / "prompts/self-heal.txt").write_text("Mend {{task_id}} in {{files}}; {{unknown}}\n{{log}}")
    healing.tick()
    assert healing.prompts[0].startswith("Mend job in - tasks/job.md\n- scripts/job.sh; {{unknown}}\nstarting\n")


# --- interruptions -----------------------------------------------------------------------------------------------------


def test_a_heal_whose_supervisor_is_killed_is_taken_back_and_the_task_run_once_more(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    gate = Gate(workspace)
    healing.script(f"{FIX}; echo evil >> config.yaml; {gate.command}; {says()}")
    healing.before = healing.tree()
    tick = workspace.start("tick")
    gate.wait()
    kill(tick.pid)
    tick.communicate()
    (healing.root / "mine.txt").write_text("a week of work\n")
    healing.script(says("needs_human"))
    workspace.tick(code=2)  # the configuration is broken; nothing runs, but the heal that broke it is taken back
    run = healing.tick()
    assert healing.file("scripts/job.sh") == BROKEN and healing.changed() == {"ws/gate.arrived", "ws/mine.txt"}
    assert healing.file("mine.txt") == "a week of work\n", "what people made meanwhile is left alone"
    assert [rung for rung, _ in healing.attempts()] == ["run", "heal", "rerun", "heal"]
    assert healing.attempts()[1] == ("heal", "orphaned")
    assert run["status"] == "failed"
    assert [line["rerun_result"] for line in healing.audit()] == ["interrupted", "not run"]


@pytest.mark.parametrize("how", ["stop", "SIGTERM"])
def test_a_heal_that_is_stopped_leaves_nothing_behind(workspace: Workspace, how: str) -> None:
    healing = Healing(workspace, "")
    gate = Gate(workspace)
    healing.script(f"{FIX}; {gate.command}; {says()}")
    healing.before = healing.tree()
    tick = workspace.start("tick")
    gate.wait()
    if how == "stop":
        workspace.cli("stop", "job")
    else:
        os.kill(tick.pid, signal.SIGTERM)
    tick.communicate()
    assert workspace.last_run("job")["status"] == "cancelled"
    assert healing.changed() == set() and healing.state() == "active"
    assert [line["rerun_result"] for line in healing.audit()] == ["cancelled"]


def test_edits_that_were_not_proven_yet_are_undone_when_the_supervisor_dies(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    gate = Gate(workspace)
    workspace.write_task("job", TASK.replace("./scripts/job.sh", "./scripts/job.sh && { " + gate.command + "; }"))
    healing.script(f"{FIX}; {says()}")
    healing.before = healing.tree()
    tick = workspace.start("tick")
    gate.wait()
    assert healing.file("scripts/job.sh") == FIXED
    kill(tick.pid)
    tick.communicate()
    healing.script(says("needs_human"))
    healing.tick()
    assert healing.changed() <= {"ws/gate.arrived"}
    assert healing.audit()[0]["rerun_result"] == "interrupted"


def test_what_other_tasks_and_the_program_itself_write_during_a_heal_is_left_alone(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    gate = Gate(workspace)
    workspace.task("writer", "echo result > data/result.txt", schedule="manual")
    healing.script(f"{FIX}; {gate.command}; {says()}")
    tick = workspace.start("tick")
    gate.wait()
    workspace.cli("run", "writer")
    workspace.cli("pause", "other")
    gate.open()
    tick.communicate()
    assert workspace.last_run("job")["status"] == "success" and healing.file("scripts/job.sh") == FIXED
    assert healing.file("data/result.txt") == "result\n"
    assert "disabled_reason: paused" in healing.file("tasks/other.md")
    assert "left alone, another task was running: data/result.txt" in healing.audit()[0]["problem"]


def test_during_a_heal_a_task_file_that_somebody_touched_does_not_start(workspace: Workspace) -> None:
    healing = Healing(workspace, "")
    gate = Gate(workspace)
    healing.script(
        f"sed -i 's/command: .*/command: touch evil/; s/manual/1s/' tasks/other.md; {gate.command}; {says()}"
    )
    tick = workspace.start("tick")
    gate.wait()
    workspace.tick()
    assert not (healing.root / "evil").exists() and workspace.runs("other") == []
    gate.open()
    wait_for(lambda: len(healing.prompts) == 2, "the second heal")
    gate.open()
    tick.communicate()
    assert "touch evil" not in healing.file("tasks/other.md")


# --- afterwards ------------------------------------------------------------------------------------------------------


def test_a_heal_can_be_shown_and_taken_back_later(workspace: Workspace) -> None:
    healing = healed(workspace)
    run_id = workspace.last_run("job")["run_id"]
    shown = workspace.cli("heal", "job", "--diff", run_id).stdout
    assert "+cat data/input.txt || exit 4" in shown and "verdict  fixed: the path was wrong" in shown
    workspace.cli("heal", "job", "--undo", run_id)
    assert healing.changed() == set()
    assert workspace.json("show", "job")["probation"] is None
    assert "nothing is left" in workspace.cli("heal", "job", "--undo", run_id, code=1).stderr


def test_an_undo_does_not_overwrite_what_was_edited_since(workspace: Workspace) -> None:
    healing = healed(workspace)
    (healing.root / "scripts/job.sh").write_text("echo mine\n")
    done = workspace.cli("heal", "job", "--undo", workspace.last_run("job")["run_id"], code=1)
    assert "edited since the heal: scripts/job.sh" in done.stderr and healing.file("scripts/job.sh") == "echo mine\n"


def test_a_dry_run_shows_the_prompt_and_the_files_and_starts_nothing(workspace: Workspace) -> None:
    healing = Healing(workspace, "touch started")
    workspace.write_task("job", TASK.replace("tags:", "heal_paths: [config.yaml, tasks/other.md, notes.txt]\ntags:"))
    workspace.cli("run", "job", code=1)
    shown = workspace.json("heal", "job", "--dry-run")
    assert shown["would_heal"] is True and shown["files"] == ["tasks/job.md", "scripts/job.sh", "notes.txt"]
    assert {row["path"]: row["reason"] for row in shown["never"]} == {
        "config.yaml": "is Tickdown's configuration",
        "tasks/other.md": "is another task",
    }
    assert "cat: input.txt" in shown["prompt"] and healing.prompts == []
    plain = workspace.cli("heal", "job", "--dry-run").stdout
    assert "may edit   scripts/job.sh" in plain and "may not    config.yaml" in plain


@pytest.mark.parametrize("arguments", [("job",), ("job", "--diff", "x", "--undo", "y")])
def test_heal_wants_one_thing_at_a_time(workspace: Workspace, arguments: tuple[str, ...]) -> None:
    workspace.task("job")
    workspace.cli("heal", *arguments, code=2)


def test_the_first_failure_without_a_healer_says_how_to_get_one(workspace: Workspace) -> None:
    workspace.task("job", "exit 3", schedule="1h")
    assert "healer: claude" in workspace.tick().stderr
    assert "healer: claude" in workspace.cli("doctor", code=None).stdout


def test_old_snapshots_go_with_their_runs(workspace: Workspace) -> None:
    healing = healed(workspace)
    assert list((healing.root / "state/heals").iterdir())
    healing.tick()
    workspace.sql(
        "UPDATE task_runs SET recorded_at = '2020-01-01T00:00:00.000Z' WHERE run_id IN (SELECT run_id FROM heals)"
    )
    workspace.cli("prune")
    assert list((healing.root / "state/heals").iterdir()) == []
