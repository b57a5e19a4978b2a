"""`validate` and `doctor`: what is wrong, where, and what to do about it."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from tests.helpers import Telegram, Workspace

GOOD = "---\nid: good\nschedule: 1h\ncommand: 'true'\n---\n"


def problems(workspace: Workspace, *paths: str, code: int = 1) -> list[str]:
    """The lines of `validate`, without the last one, which counts."""
    return workspace.cli("validate", *paths, code=code).stdout.splitlines()[:-1]


def doctors_problems(workspace: Workspace) -> list[str]:
    return [check["name"] for check in workspace.json("doctor", code=None)["checks"] if not check["ok"]]


# --- validate --------------------------------------------------------------------------------------------------


def test_validate_is_content_with_good_files(workspace: Workspace) -> None:
    workspace.write_task("good", GOOD)
    workspace.write_task("sub/also", GOOD.replace("good", "also"))
    assert "2 files, no problems" in workspace.cli("validate").stdout


def test_validate_names_every_problem_of_every_file_on_one_line_each(workspace: Workspace) -> None:
    workspace.write_task("good", GOOD)
    workspace.write_task("a", "---\nid: a b\nschedule: 5\ncommand: 'true'\ntimeout: soon\nretry: maybe\n---\n")
    workspace.write_task("b", "---\ntitle: neither id nor schedule\n---\n")
    workspace.write_task("c", "---\nid: c\nschedule: [1h\n---\n")
    workspace.write_task("d", "no frontmatter at all\n")
    workspace.write_task(
        "e", "---\nid: e\nschedule: 0 0 31 2 *\ncommand: 'true'\nrun_as: shel\nenabled: perhaps\n---\n"
    )
    workspace.write_task("f", "---\nid: f\nschedule: every now and then\ncommand: 'true'\n---\n")
    found = problems(workspace)
    for pattern in (
        r"tasks/a\.md:2: id: 'a b' ", r"tasks/a\.md:3: schedule: '5' has no unit", r"tasks/a\.md:5: timeout: .*soon",
        r"tasks/a\.md:6: retry: .*maybe", r"tasks/b\.md:\d+: id: required", r"tasks/b\.md:\d+: schedule: required",
        r"tasks/c\.md:\d+: ", r"tasks/d\.md:1: no frontmatter", r"tasks/e\.md:3: schedule: .*never happens",
        r"tasks/e\.md:5: run_as: 'shel' .*shell", r"tasks/e\.md:6: enabled: .*perhaps",
            r"tasks/f\.md:3: schedule: 'now' .*every monday at 09:00",
    ):  # fmt: skip
        assert sum(bool(re.match(pattern, line)) for line in found) == 1, (pattern, found)
    assert all(re.match(r"tasks/[a-f]\.md:\d+: ", line) for line in found)


def test_validate_tells_hostile_files_apart(workspace: Workspace) -> None:
    outside = workspace.root.parent / "outside.md"
    outside.write_text(GOOD)
    (workspace.root / "tasks" / "link.md").symlink_to(outside)
    os.mkfifo(workspace.root / "tasks" / "pipe.md")
    workspace.write_task("open", GOOD).chmod(0o666)
    workspace.write_task("big", GOOD + "x" * 300_000)
    workspace.write_task("alias", "---\nid: &a alias\nschedule: *a\n---\n")
    (workspace.root / "tasks" / "bytes.md").write_bytes(b"---\nid: \xff\n---\n")
    (workspace.root / "tasks" / "nul.md").write_bytes(b"---\nid: a\0b\n---\n")
    text = "\n".join(problems(workspace))
    for name, word in (("link", "leaves the workspace"), ("pipe", "regular file"), ("open", "everyone"), ("big", "256"),
                       ("alias", "alias"), ("bytes", "UTF-8"), ("nul", "NUL")):  # fmt: skip
        assert re.search(rf"tasks/{name}\.md:\d+: .*{word}", text), name


def test_validate_looks_only_at_the_paths_it_is_given(workspace: Workspace) -> None:
    good = workspace.write_task("good", GOOD)
    workspace.write_task("sub/bad", "---\nid: bad\n---\n")
    assert "1 file, no problems" in workspace.cli("validate", str(good)).stdout
    assert all(line.startswith("tasks/sub/bad.md:") for line in problems(workspace, "tasks/sub"))
    assert problems(workspace, "tasks/good.md", "tasks/sub/bad.md")
    assert problems(workspace, "tasks/nothing.md", "tasks/good.md") == ["tasks/nothing.md:1: no such file or folder"]


def test_warnings_are_shown_but_do_not_fail(workspace: Workspace) -> None:
    workspace.task("job", tiemout=5, env={"COPY": "${NOT_SET_ANYWHERE}"}, cwd="missing")
    found = "\n".join(problems(workspace, code=0))
    for part in ("tiemout", "'timeout'", "NOT_SET_ANYWHERE", "missing"):
        assert part in found


def test_validate_names_both_files_of_a_duplicate_id(workspace: Workspace) -> None:
    workspace.write_task("one", GOOD)
    workspace.write_task("two", GOOD.replace("id: good", "id: GOOD"))
    first, second = problems(workspace)
    assert first.startswith("tasks/one.md:") and "tasks/two.md" in first
    assert second.startswith("tasks/two.md:") and "tasks/one.md" in second


@pytest.mark.parametrize(
    ("config", "line", "parts"),
    [
        ("max_concurrent: 0\n", 1, ["max_concurrent", "0"]),
        ("# one\n# two\nmax_concurent: 3\n", 3, ["max_concurent", "max_concurrent"]),
        ("timezone: Europe/Nowhere\n", 1, ["timezone", "Europe/Nowhere"]),
        ("keep_runs: 5\n", 1, ["keep_runs", "5"]),
        ("notify:\n  quiet_hours: late\n", 2, ["notify.quiet_hours", "late"]),
        ("notify:\n  destinations: {a: {chat: '1'}}\n  default: b\n", 3, ["notify.default", "'b'"]),
        ("database: postgresql://host/db\n", 1, ["database", "not available in this version"]),
        ("max_concurrent: [\n", 2, []),
    ],
)
def test_validate_names_key_value_and_line_of_a_wrong_configuration(
    workspace: Workspace, config: str, line: int, parts: list[str]
) -> None:
    workspace.config(config)
    found, _ = workspace.cli("validate", code=1).stdout.splitlines()
    assert found.startswith(f"config.yaml:{line}: ") and all(part in found for part in parts), found
    assert workspace.cli("list").stderr.startswith("scheduler.py: config.yaml:"), "looking still works"
    assert workspace.cli("list").stderr.endswith("\nnothing runs until this is put right\n")
    assert "config.yaml:" in workspace.cli("doctor", code=1).stdout
    assert workspace.cli("run", "any", code=2).stderr.startswith("scheduler.py: config.yaml:"), "running does not"


def test_validate_json_is_one_document(workspace: Workspace) -> None:
    workspace.task("warned", tiemout=5)
    assert workspace.json("validate")["ok"] is True
    workspace.write_task("bad", "---\nid: bad\nschedule: 5x\ncommand: 'true'\n---\n")
    document = workspace.json("validate", code=1)
    assert document["ok"] is False and document["files"] == 2
    (error,) = [problem for problem in document["problems"] if not problem["warning"]]
    assert (error["path"], error["line"], error["field"]) == ("tasks/bad.md", 3, "schedule")
    assert "5x" in error["message"]


# --- doctor ----------------------------------------------------------------------------------------------------


def test_doctor_is_content_with_a_sound_installation(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.tick()
    assert "all well" in workspace.cli("doctor").stdout
    document = workspace.json("doctor")
    assert document["ok"] is True and all(check.keys() == {"name", "ok", "message"} for check in document["checks"])


def test_doctor_notices_that_no_tick_ever_came(workspace: Workspace) -> None:
    workspace.task("job")
    text = workspace.cli("doctor", code=1).stdout
    assert re.search(r"PROBLEM +tick +no tick has ever run", text) and "crontab.example" in text


def test_doctor_notices_that_the_last_tick_is_old(workspace: Workspace) -> None:
    workspace.tick()
    workspace.sql("UPDATE heartbeats SET at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-10 minutes')")
    assert re.search(r"PROBLEM +tick +.*10 min ago", workspace.cli("doctor", code=1).stdout)


def test_doctor_notices_an_open_ticket_of_the_installation(workspace: Workspace) -> None:
    workspace.tick()
    workspace.sql("ALTER TABLE snapshots RENAME TO elsewhere")
    workspace.tick(code=70)
    workspace.sql("ALTER TABLE elsewhere RENAME TO snapshots")
    assert doctors_problems(workspace) == ["ticket"]
    workspace.cli("doctor", code=1)


def test_doctor_tells_of_failing_tasks(workspace: Workspace) -> None:
    workspace.task("job", "exit 1", schedule="1h")
    workspace.tick()
    workspace.task("offline", "echo 'curl: (7) Failed to connect'; exit 7", schedule="1h")
    workspace.tick()
    doctor = workspace.cli("doctor", code=None).stdout
    assert re.search(r"failing +job, offline: ", doctor) and "all well" not in doctor
    workspace.sql("UPDATE task_runs SET status = 'orphaned' WHERE task_id = 'job'")
    doctor = workspace.cli("doctor", code=None).stdout
    assert re.search(r"failing +job, offline: ", doctor) and "2 failed runs in the last 24 h (1 interrupted)" in doctor
    workspace.sql("UPDATE task_runs SET status = 'success'")
    assert workspace.cli("doctor").stdout.endswith("all well\n")


def test_doctor_notices_rejected_and_duplicate_files(workspace: Workspace) -> None:
    workspace.write_task("good", GOOD)
    workspace.tick()
    workspace.write_task("bad", "---\nid: bad\n---\n")
    assert doctors_problems(workspace) == ["tasks"]
    shutil.copy(workspace.root / "tasks" / "good.md", workspace.root / "tasks" / "bad.md")
    assert "duplicate id 'good'" in workspace.cli("doctor", code=1).stdout
    workspace.write_task("bad", "---\nid: bad\nschedule: on 2020-01-01 at 10:00\ncommand: 'true'\n---\n")
    assert "1 rejected (tasks/bad.md)" in workspace.cli("doctor", code=1).stdout


def test_doctor_notes_that_no_task_file_can_be_edited(workspace: Workspace) -> None:
    workspace.bind_by_modes()
    workspace.tick()
    folder = workspace.root / "tasks"
    folder.chmod(0o500)
    try:
        assert f"chmod u+w {folder}" in workspace.cli("doctor").stdout
    finally:
        folder.chmod(0o700)


def test_doctor_says_what_is_wrong_with_a_healer_that_is_named_by_its_path(workspace: Workspace) -> None:
    workspace.tick()
    healer = workspace.root / "mend.sh"
    workspace.config(f"healer: mender\nagents: {{mender: {{argv: [{healer}], format: text}}}}\n")
    assert f"there is no {healer}, so nothing is healed" in workspace.cli("doctor", code=1).stdout
    healer.write_text("#!/bin/sh\n")
    assert f"{healer} is not executable: chmod +x {healer}" in workspace.cli("doctor", code=1).stdout
    healer.chmod(0o755)
    assert f"mender ({healer}) repairs failing tasks" in workspace.cli("doctor").stdout


def test_validate_warns_of_a_budget_that_can_not_bind(workspace: Workspace) -> None:
    workspace.config("agents: {mine: {argv: [mine], format: text}}\n")
    workspace.write_task(
        "job", "---\nid: job\nschedule: 1h\nrun_as: mine\nprompt: work\nbudget_usd: 1\nbudget_usd_per_day: 2\n---\n"
    )
    said = workspace.cli("validate").stdout
    assert said.count("mine does not say what it costs, so this limits nothing") == 2
    workspace.write_task("job", "---\nid: job\nschedule: 1h\nrun_as: claude\nprompt: work\nbudget_usd: 1\n---\n")
    assert "costs" not in workspace.cli("validate").stdout


def test_doctor_notices_secrets_that_others_can_read(workspace: Workspace) -> None:
    workspace.tick()
    (workspace.root / ".env").write_text("A=b\n")
    (workspace.root / ".env").chmod(0o644)
    assert doctors_problems(workspace) == [".env"]


def test_doctor_notices_destinations_without_a_token(workspace: Workspace) -> None:
    workspace.tick()
    workspace.config("notify: {destinations: {home: {chat: '1'}}}\n")
    assert doctors_problems(workspace) == ["alerts"]


@pytest.mark.parametrize("where", ["the header", "a table"])
def test_doctor_notices_a_damaged_database_and_leaves_it_alone(workspace: Workspace, where: str) -> None:
    workspace.task("job", schedule="1h")
    workspace.tick()
    database = workspace.root / "state" / "tickdown.db"
    ((page,),) = workspace.sql("SELECT rootpage FROM sqlite_master WHERE name = 'tasks'")
    offset = 0 if where == "the header" else (page - 1) * 4096
    content = bytearray(database.read_bytes())
    content[offset : offset + 4000] = b"\xa5" * 4000
    database.write_bytes(content)
    assert "database" in doctors_problems(workspace)
    assert "is damaged" in workspace.cli("list", code=1).stderr
    assert database.read_bytes() == content


def test_doctor_tells_that_alerts_can_not_be_sent(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: (500, b"")
    workspace.task("job", "exit 1", schedule="1h")
    workspace.tick()
    out = workspace.cli("doctor", code=1).stdout
    assert re.search(r"PROBLEM +alerts +Telegram, to home, work; 1 alert waits to be sent, so far in vain: .*500", out)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_doctor_notices_what_another_user_has_written(workspace: Workspace) -> None:
    workspace.tick()
    (workspace.root / "state" / "locks").mkdir(exist_ok=True)
    os.chown(workspace.root / "state" / "locks", 65534, 65534)
    assert "locks belongs to another user: chown it" in workspace.cli("doctor", code=1).stdout


@pytest.mark.parametrize(
    ("path", "mode", "says"),
    [
        ("state", 0o200, "state/ is not writable for .* \\(mode 0200\\): chmod u\\+rx /.*/state"),
        ("state", 0o500, "state/ is not writable for .* \\(mode 0500\\): chmod u\\+w /.*/state"),
        ("state/locks", 0o500, "state/locks/ is not writable for .* \\(mode 0500\\): chmod u\\+w /.*/state/locks"),
        ("state/tickdown.db", 0o400, "state/tickdown.db is not writable for .* \\(mode 0400\\): chmod u\\+w /.*"),
    ],
)
def test_doctor_says_what_can_not_be_written_and_goes_on(workspace: Workspace, path: str, mode: int, says: str) -> None:
    workspace.bind_by_modes()
    workspace.task("job", schedule="1h")
    workspace.tick()
    place = workspace.root / path
    before = place.stat().st_mode
    place.chmod(mode)
    lines = workspace.cli("doctor", code=1).stdout.splitlines()
    place.chmod(before)
    assert [line for line in lines if re.fullmatch(f"PROBLEM  database     {says}", line)], lines
    assert any(line.startswith("ok       alerts ") for line in lines) and not any("logs" in line for line in lines)
    assert "all well" in workspace.cli("doctor").stdout


def test_doctor_says_why_the_database_can_not_be_used_and_goes_on(workspace: Workspace) -> None:
    workspace.tick()
    (workspace.root / "state" / "tickdown.db-wal").mkdir()
    lines = workspace.cli("doctor", code=1).stdout.splitlines()
    assert any(line.startswith("PROBLEM  database ") and "can't be used: unable to open" in line for line in lines), (
        lines
    )
    assert any(line.startswith("ok       healing ") for line in lines)


def test_doctor_and_show_tell_of_a_field_that_nobody_knows(workspace: Workspace) -> None:
    workspace.write_task("job", "---\nid: job\nschedule: 1h\ntimout: 5\nretri: 1\ncommand: 'true'\n---\n")
    workspace.tick()
    lines = workspace.cli("doctor").stdout.splitlines()
    assert f"note     tasks        2 warnings in task files: {workspace.typed('validate')}" in lines
    assert lines[-1] == "the installation is well; see the notes"
    shown = [line for line in workspace.cli("show", "job").stdout.splitlines() if line.startswith("warning")]
    assert shown[0] == "warning    tasks/job.md:4: timout: unknown; did you mean 'timeout'?" and len(shown) == 2
    assert workspace.json("show", "job")["warnings"][0].startswith("tasks/job.md:4: warning: timout: unknown")
    workspace.task("job", schedule="1h")
    assert workspace.cli("doctor").stdout.endswith("all well\n")


def test_doctor_counts_every_kind_of_failure(workspace: Workspace) -> None:
    workspace.task("bad", "exit 1", schedule="1h")
    workspace.task("slow", "sleep 1000", schedule="1h", timeout=1)
    workspace.tick()
    rows = {check["name"]: check["message"] for check in workspace.json("doctor")["checks"]}
    assert rows["history"] == "2 failed runs in the last 24 h (1 timed out)"
    workspace.sql("UPDATE task_runs SET status = 'killed' WHERE task_id = 'bad'")
    assert "2 failed runs in the last 24 h (1 timed out, 1 killed)\n" in workspace.cli("doctor").stdout
    workspace.sql("UPDATE task_runs SET status = 'failed'")
    assert "2 failed runs in the last 24 h\n" in workspace.cli("doctor").stdout
