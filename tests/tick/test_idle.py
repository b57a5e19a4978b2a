"""A tick with nothing to do: what it costs, and that nothing which is to be done is ever taken for nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PROJECT, Workspace, half_past, wait_for
from tickdown.store.heartbeat import SCHEMA_VERSION
from tickdown.store.schema import MIGRATIONS
from tickdown.workspace.scan import UNTRUSTED, scan

FAR_AWAY = "30 3 29 2 *"
# Everything that the shortest way needs beyond what Python has loaded by itself.
LIGHT = {
    "_blake2", "_collections", "_datetime", "_functools", "_operator", "_sqlite3", "collections", "collections.abc", "datetime",
    "functools", "itertools", "keyword", "tickdown", "tickdown.base", "tickdown.base.machine", "tickdown.entry", "tickdown.store",
    "tickdown.store.heartbeat", "tickdown.tick", "tickdown.tick.idle", "tickdown.time",
    "tickdown.time.instants", "tickdown.workspace", "tickdown.workspace.scan", "tickdown.workspace.shortcut",
    "math", "operator", "reprlib", "scheduler", "sqlite3", "sqlite3.dbapi2",
}  # fmt: skip
HEAVY = {
    "yaml", "frontmatter", "croniter", "requests", "rich", "filelock", "pytz", "subprocess", "asyncio", "argparse", "json",
    "dataclasses", "pathlib", "re", "typing", "hashlib", "zoneinfo", "logging", "tickdown.ui.cli",
}  # fmt: skip


def probe(workspace: Workspace, *arguments: str) -> dict[str, Any]:
    """What a command imports, opens and asks; without the packages in reach that it must not need."""
    out = workspace.root.parent / "probe.json"
    command = [sys.executable, str(PROJECT / "tests" / "tick" / "probe.py"), str(out), *arguments]
    command += ["--workspace", str(workspace.root)]
    done = subprocess.run(command, env=workspace.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def is_idle(workspace: Workspace) -> bool:
    """Whether the next tick goes the shortest way."""
    return "tickdown.ui.cli" not in probe(workspace, "tick")["modules"]


def many(workspace: Workspace, count: int) -> None:
    for number in range(count):
        text = f"---\nid: t{number}\nschedule: '{FAR_AWAY}'\ncommand: 'true'\n---\n"
        (workspace.root / "tasks" / f"t{number}.md").write_text(text)


@pytest.fixture
def settled(workspace: Workspace) -> Workspace:
    """A workspace whose next tick has nothing to do."""
    workspace.task("a", schedule=FAR_AWAY)
    workspace.tick()
    assert is_idle(workspace)
    return workspace


# --- what it costs ---------------------------------------------------------------------------------------------


def test_an_idle_tick_knows_how_many_migrations_there_are() -> None:
    assert len(MIGRATIONS) == SCHEMA_VERSION


def test_nothing_is_imported_that_an_idle_tick_does_not_need(settled: Workspace) -> None:
    modules = set(probe(settled, "tick")["modules"])
    assert modules <= LIGHT, modules - LIGHT
    assert not modules & HEAVY


def test_an_idle_tick_costs_the_same_for_10_and_for_10_000_tasks(workspace: Workspace, tmp_path: Path) -> None:
    few, lots = workspace, Workspace(tmp_path / "lots")
    for place, count in ((few, 10), (lots, 10_000)):
        many(place, count)
        place.tick()
    first, second = probe(few, "tick"), probe(lots, "tick")
    assert "tickdown.ui.cli" not in second["modules"]
    assert len(first["statements"]) == len(second["statements"]) <= 8, second["statements"]
    assert len(first["opened"]) == len(second["opened"]) <= 5, second["opened"]
    assert first["modules"] == second["modules"]


def test_a_due_task_among_10_000_is_the_only_one_that_is_looked_at(workspace: Workspace) -> None:
    many(workspace, 1000)
    workspace.task("due", schedule="* * * * *")
    workspace.tick()
    workspace.move_back("due", "-1 minutes")
    asked = probe(workspace, "tick")
    assert workspace.rows("due") == [("success", None, 1)]
    assert len(asked["statements"]) < 120, len(asked["statements"])
    assert "yaml" not in asked["modules"] and "croniter" not in asked["modules"]
    read = [path for path in asked["opened"] if path.endswith(".md")]
    assert read == []


def test_a_run_that_simply_succeeds_costs_few_statements(workspace: Workspace) -> None:
    just_over = datetime.now(UTC) - timedelta(minutes=5)  # none comes while this runs
    workspace.task("plain", schedule=f"{just_over.minute} * * * *", timezone="UTC")
    workspace.tick()
    workspace.move_back("plain", "-1 hours")
    asked = probe(workspace, "tick")["statements"]
    ((run_id, status),) = workspace.sql("SELECT run_id, status FROM task_runs")
    assert status == "success"
    about = [one for one in asked if "'plain'" in one or run_id in one]
    # A trigger is traced as what has fired it once more.
    once = [one for one, before in zip(about, ["", *about], strict=False) if one != before]
    assert len(once) <= 8, once  # three for its claim, four for its end, one for when to look again


def test_one_changed_file_costs_one_file(workspace: Workspace, tmp_path: Path) -> None:
    few, lots = workspace, Workspace(tmp_path / "lots")
    asked = []
    for place, count in ((few, 10), (lots, 1000)):
        many(place, count)
        place.tick()
        assert is_idle(place)
        place.task("t7", schedule=FAR_AWAY, title="another")
        changed = probe(place, "tick")
        assert [path for path in changed["opened"] if path.endswith(".md")] == [str(place.root / "tasks" / "t7.md")]
        assert changed["listed"].count(str(place.root / "tasks")) == 1
        assert is_idle(place)
        asked.append(changed)
    first, second = asked
    assert len(first["statements"]) == len(second["statements"])
    assert len(first["opened"]) == len(second["opened"])
    assert first["modules"] == second["modules"]


# --- it is a tick all the same ---------------------------------------------------------------------------------


def test_an_idle_tick_leaves_its_heartbeat_and_its_snapshot(settled: Workspace) -> None:
    before = settled.sql("SELECT (SELECT COUNT(*) FROM heartbeats), (SELECT COUNT(*) FROM snapshots)")[0]
    done = settled.tick()
    assert (done.stdout, done.stderr) == ("", "")
    after = settled.sql("SELECT (SELECT COUNT(*) FROM heartbeats), (SELECT COUNT(*) FROM snapshots)")[0]
    assert after == (before[0] + 1, before[1] + 1)
    load, memory = settled.sql("SELECT load1, memory_available_kib FROM snapshots ORDER BY at DESC LIMIT 1")[0]
    assert load is not None and memory > 0
    assert settled.json("doctor")["ok"]


def test_five_at_once_all_leave_theirs(settled: Workspace) -> None:
    before = settled.sql("SELECT COUNT(*) FROM heartbeats")[0][0]
    ticks = [settled.start("tick") for _ in range(5)]
    assert [tick.wait(timeout=120) for tick in ticks] == [0] * 5
    for tick in ticks:
        assert tick.communicate() == ("", "")
    assert settled.sql("SELECT COUNT(*) FROM heartbeats")[0][0] == before + 5


def test_the_workspace_may_be_named_in_every_way(settled: Workspace) -> None:
    plain = [sys.executable, str(settled.scheduler)]
    ways = [
        ([*plain, "--workspace", str(settled.root), "tick"], {}),
        ([*plain, "tick"], {"TICKDOWN_HOME": str(settled.root)}),
        ([*plain, "tick"], {"TICKDOWN_HOME": f"~/../{settled.root.name}", "HOME": str(settled.root)}),
    ]
    for number, (command, more) in enumerate(ways, 1):
        subprocess.run(command, env=settled.environment | more, check=True, timeout=60)
        assert settled.sql("SELECT COUNT(*) FROM heartbeats")[0][0] == 2 + number


def test_whatever_else_is_asked_of_a_tick_takes_the_long_way(settled: Workspace) -> None:
    for option in ("--dry-run", "--json", "--every=40s", "--detach"):
        assert settled.tick(option).returncode == 0


def test_a_wrong_argument_is_still_refused(settled: Workspace) -> None:
    assert "usage" in settled.cli("tick", "tick", code=2).stderr
    assert "usage" in settled.cli("tick", "--wrong", code=2).stderr
    done = subprocess.run(
        [sys.executable, str(settled.scheduler), "tick", "--workspace"], env=settled.environment, capture_output=True
    )
    assert done.returncode == 2


# --- a changed file is never overlooked ------------------------------------------------------------------------


def same_size_and_second(path: Path) -> None:
    info = path.stat()
    text = path.read_text()
    path.write_text(text.replace("true", "fals"))
    assert path.stat().st_size == info.st_size
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns // 10**9 * 10**9 + 1))


def same_size_and_time(path: Path) -> None:
    info = path.stat()
    path.write_text(path.read_text().replace("true", "fals"))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_text(path.read_text())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


def renamed(path: Path) -> None:
    path.rename(path.with_name("b.md"))


CHANGES: dict[str, Callable[[Path], object]] = {
    "same size and second": same_size_and_second,
    "same size and time": same_size_and_time,
    "replaced": replaced,
    "touched": lambda path: path.touch(),
    "made writable for all": lambda path: path.chmod(0o666),
    "added": lambda path: path.with_name("new.md").write_text("---\nid: new\nschedule: manual\ncommand: x\n---\n"),
    # After these the file is not there any more: last in its third.
    "renamed": renamed,
    "removed": lambda path: path.unlink(),
    "added below": lambda path: (path.parent / "sub").mkdir() or (path.parent / "sub" / "c.md").write_text("x"),
}


@pytest.mark.parametrize("number", range(3))
def test_the_next_tick_notices_a_file(settled: Workspace, number: int) -> None:
    """A third of the changes one after the other, each of a workspace whose next tick would have had nothing to do."""
    for name in list(CHANGES)[number::3]:
        CHANGES[name](settled.root / "tasks" / "a.md")
        assert not is_idle(settled), name
        assert is_idle(settled), f"after {name}"


def test_what_was_edited_within_the_second_runs_as_it_says_now(settled: Workspace) -> None:
    same_size_and_time(settled.root / "tasks" / "a.md")
    settled.tick()
    assert settled.json("show", "a")["command"] == "fals"


def tick_interrupted_by(workspace: Workspace, happens: str) -> subprocess.CompletedProcess[str]:
    """A tick that has something to do; this Python happens after its look at the files, before it goes on from there."""
    script = (
        "import subprocess, sys; from pathlib import Path; from tickdown.tick import idle; from tickdown.ui import cli\n"
        "words, tasks = ['tick', '--workspace', sys.argv[1]], Path(sys.argv[1]) / 'tasks'\n"
        "is_idle, look = idle.look_around(words, '/')\n"
        "assert not is_idle\n"
        f"{happens}\n"
        "sys.exit(cli.main(words, look, '/'))"
    )
    environment = workspace.environment | {"PYTHONPATH": str(PROJECT / "lib")}
    command = [sys.executable, "-c", script, str(workspace.root), *workspace.argv()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


ANOTHER_TICK = "subprocess.run([*sys.argv[2:4], 'tick', *sys.argv[4:]], check=True)"
NEWER = "---\\nid: newer\\nschedule: manual\\ncommand: x\\n---\\n"


def test_a_file_that_another_tick_has_met_meanwhile_is_not_taken_for_gone(settled: Workspace) -> None:
    settled.task("a", schedule=FAR_AWAY, title="another")
    tick_interrupted_by(settled, f"(tasks / 'newer.md').write_text('{NEWER}'); {ANOTHER_TICK}")
    assert settled.sql("SELECT id, gone FROM tasks ORDER BY id") == [("a", 0), ("newer", 0)]
    assert len(settled.sql("SELECT 1 FROM files")) == 2
    assert is_idle(settled)


def test_a_file_that_a_command_has_met_meanwhile_is_not_taken_for_gone(settled: Workspace) -> None:
    """What commands leave is not complete, so that nobody can tell by it whether they have been there."""
    back = settled.task("back", schedule=FAR_AWAY)
    text = back.read_text()
    settled.tick()
    back.unlink()
    settled.tick()
    settled.task("other", schedule=FAR_AWAY)
    settled.cli("comment", "other", "/skip")
    settled.sql("UPDATE tasks SET look_at = '2099-01-01T00:00:00.000Z'")
    command = "subprocess.run([*sys.argv[2:4], 'run', 'back', *sys.argv[4:]], check=True)"
    tick_interrupted_by(settled, f"(tasks / 'back.md').write_text({text!r}); {command}")
    assert settled.sql("SELECT gone FROM tasks WHERE id = 'back'") == [(0,)]
    assert ("tasks/back.md",) in settled.sql("SELECT path FROM files")


@pytest.mark.parametrize("happens", ["rename(tasks / 'b.md')", "unlink()"])
def test_a_file_that_is_moved_or_removed_before_it_is_read_is_not_rejected(settled: Workspace, happens: str) -> None:
    settled.task("a", schedule="1h", title="another")
    done = tick_interrupted_by(settled, f"(tasks / 'a.md').{happens}")
    assert done.stderr == "" and settled.sql("SELECT * FROM alerts") == []
    if "rename" in happens:
        assert settled.rows("a") == [("success", None, 1)]
    else:
        assert settled.sql("SELECT gone FROM tasks WHERE id = 'a'") == [(1,)]


def test_a_folder_that_was_away_while_it_was_read_is_read_again(settled: Workspace) -> None:
    """Its files come back as they were, times included."""
    settled.write_task("sub/b", "---\nid: b\nschedule: manual\ncommand: 'true'\n---\n")
    settled.tick()
    settled.write_task("sub/b", "---\nid: b\nschedule: manual\ncommand: 'false'\n---\n")
    tick_interrupted_by(settled, "(tasks / 'sub').rename(tasks.parent / 'away')")
    (settled.root / "away").rename(settled.root / "tasks" / "sub")
    assert not is_idle(settled)
    assert settled.sql("SELECT gone FROM tasks WHERE id = 'b'") == [(0,)]
    assert is_idle(settled)


def test_a_tick_that_had_to_wait_looks_at_the_files_once_more(settled: Workspace) -> None:
    b = settled.task("b", "touch ran", schedule="manual")
    settled.tick()
    settled.task("b", "touch ran", schedule="1h")
    off = b.read_text().replace("command:", "enabled: false\ncommand:")
    tick_interrupted_by(settled, f"(tasks / 'b.md').write_text({off!r}); look.until = 0.0")
    assert settled.rows("b") == []


def test_a_link_that_leads_elsewhere_is_noticed(settled: Workspace) -> None:
    one, two = settled.root / "one.txt", settled.root / "two.txt"
    for path in (one, two):
        path.write_text("---\nid: linked\nschedule: manual\ncommand: 'true'\n---\n")
        path.chmod(0o644)
        os.utime(path, (0, 0))
    link = settled.root / "tasks" / "linked.md"
    link.symlink_to("../one.txt")
    settled.tick()
    assert is_idle(settled)
    one.write_text(one.read_text().replace("true", "fals"))
    assert not is_idle(settled)
    assert is_idle(settled)
    link.unlink()
    link.symlink_to("../two.txt")
    assert not is_idle(settled)


def test_a_file_that_was_changed_this_very_moment_is_not_trusted_yet(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    seen = set()
    for number in range(50):
        path.write_text(str(number % 10))
        seen |= {stamp for _, stamp in scan(str(tmp_path))}
    assert seen == {UNTRUSTED}


def test_a_clock_of_whole_seconds_is_given_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that keeps no fractions, two changes within a second look the same."""
    (tmp_path / "a.md").write_text("x")
    changed = (tmp_path / "a.md").stat().st_ctime_ns
    later = changed + 1_500_000_000
    monkeypatch.setattr("tickdown.workspace.scan.time.time_ns", lambda: later)
    assert [stamp != UNTRUSTED for _, stamp in scan(str(tmp_path))] == [True]
    if changed % 1_000_000_000:
        monkeypatch.setattr("tickdown.workspace.scan._FINE_STEP", 2_000_000_000)
        assert [stamp for _, stamp in scan(str(tmp_path))] == [UNTRUSTED]


@pytest.mark.parametrize("name", ["config.yaml", ".env"])
def test_changed_settings_are_noticed(settled: Workspace, name: str) -> None:
    path = settled.root / name
    path.write_text("# nothing\n")
    path.chmod(0o600)
    assert not is_idle(settled)
    assert is_idle(settled)
    path.write_text("# something\n")
    assert not is_idle(settled)
    path.unlink()
    assert not is_idle(settled)


def test_the_parser_of_a_configuration_that_did_not_change_is_not_loaded(workspace: Workspace) -> None:
    """Whatever its line endings are, and unless what is remembered of it is spoilt."""

    def loads_yaml() -> bool:
        workspace.move_back("a", "-1 minutes")
        asked = probe(workspace, "tick")
        assert asked["code"] == 0
        return "yaml" in asked["modules"]

    workspace.task("a", schedule="* * * * *", group="gpu")
    (workspace.root / "config.yaml").write_bytes(b"max_concurrent: 3\r\ngroups: {gpu: 1}  # one\r\n")
    workspace.tick()
    assert not loads_yaml()
    remembered = workspace.root / "state" / "config"
    head, tree = remembered.read_bytes().rsplit(b"\n", 1)
    for spoilt in (b"", b"\xff\xfe", head + b"\n" + b"[" * 100_000, head + b"\n" + tree[:-9], head + b"\n[1, 2]"):
        remembered.write_bytes(spoilt)
        assert loads_yaml()
        assert not loads_yaml()
    assert remembered.stat().st_mode & 0o777 == 0o600


def test_a_configuration_of_the_same_size_and_time_is_another_one(workspace: Workspace) -> None:
    workspace.task("a", schedule="* * * * *")
    workspace.config("max_concurrent: 3\n")
    workspace.tick()
    path = workspace.root / "config.yaml"
    before = path.stat()
    path.write_text("max_concurrent: x\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = workspace.tick(code=2)
    assert "config.yaml:1: max_concurrent: 'x' is not" in done.stdout + done.stderr


def test_a_variable_that_the_configuration_refers_to_is_noticed(settled: Workspace) -> None:
    settled.config('notify: {telegram: {token: "${MY_TOKEN}"}}\n')
    settled.tick(env={"MY_TOKEN": "one"})
    settled.environment["MY_TOKEN"] = "one"
    assert is_idle(settled)
    settled.environment["ANOTHER"] = "x"
    assert is_idle(settled)
    settled.environment["MY_TOKEN"] = "two"
    assert not is_idle(settled)


def test_another_time_zone_is_noticed(settled: Workspace) -> None:
    settled.environment["TZ"] = "Asia/Tokyo"
    assert not is_idle(settled)
    assert is_idle(settled)


def test_a_database_elsewhere_is_found(settled: Workspace) -> None:
    settled.config("database: elsewhere/other.db\n")
    settled.tick()
    assert is_idle(settled)
    assert (settled.root / "elsewhere" / "other.db").exists()


def test_where_a_watcher_is_to_be_told_no_tick_is_idle(settled: Workspace) -> None:
    settled.config('ping_url: "http://127.0.0.1:9/ping"\n')
    settled.tick()
    assert not (settled.root / "state" / "shortcut").exists()
    assert not is_idle(settled)


# --- nothing that is due is ever taken for nothing --------------------------------------------------------------

REASONS: dict[str, Callable[[Workspace], object]] = {
    "a comment": lambda ws: ws.cli("comment", "a", "please look"),
    "a hint": lambda ws: ws.cli("hint", "a", "--every", "1h"),
    "a pause": lambda ws: ws.cli("pause", "a", "--for", "1h"),
    "a resume": lambda ws: ws.cli("resume", "a"),
    "a manual run": lambda ws: ws.cli("run", "a"),
    "an alert that waits": lambda ws: ws.sql(
        "INSERT INTO alerts (created_at, kind, forced, title, body, output) VALUES ('2026', 'crash', 0, 't', 'b', '')"
    ),
    "the ticket of a crash": lambda ws: ws.sql(
        "INSERT INTO tickets (kind, title, body, opened_at, updated_at) VALUES ('crash', 't', 'b', '2026', '2026')"
    ),
    "a day without cleaning": lambda ws: ws.sql("UPDATE meta SET value = '2026-01-01T00:00:00.000Z' WHERE name = 'last_prune'"),
    "an outage": lambda ws: ws.sql("UPDATE heartbeats SET at = '2026-01-01T00:00:00.000Z'"),
    "a clock set back": lambda ws: ws.sql("UPDATE heartbeats SET at = '2099-01-01T00:00:00.000Z'"),
    "an open door": lambda ws: (ws.root / "state").chmod(0o755),
    "a lost database": lambda ws: (ws.root / "state" / "tickdown.db").unlink(),
    "a lost shortcut": lambda ws: (ws.root / "state" / "shortcut").unlink(),
}  # fmt: skip


DONE_BY_ONE_TICK = ("a comment", "a hint", "a pause", "a resume", "a manual run", "an open door")


@pytest.mark.parametrize("name", REASONS)
def test_there_is_something_to_do_about(settled: Workspace, name: str) -> None:
    """Once it is done, ticks are idle again."""
    REASONS[name](settled)
    assert not is_idle(settled)
    if name in DONE_BY_ONE_TICK:
        assert is_idle(settled)


def test_a_run_that_goes_on_is_looked_after(settled: Workspace) -> None:
    settled.task("long", "sleep 60")
    run = settled.start("run", "long")
    try:
        wait_for(lambda: settled.sql("SELECT 1 FROM task_runs WHERE status = 'running'"), "the run")
        assert not is_idle(settled)
        assert not is_idle(settled)
    finally:
        settled.cli("stop", "long")
        run.communicate(timeout=60)
    settled.tick()
    assert is_idle(settled)


@pytest.mark.parametrize("schedule", ["* * * * *", "10m", "in 1 minute"])
def test_a_task_is_due_when_its_time_has_come_and_not_before(settled: Workspace, schedule: str) -> None:
    settled.task("b", schedule=schedule)
    settled.tick()
    before = len(settled.rows("b"))
    settled.sql("UPDATE tasks SET look_at = '2099-01-01T00:00:00.000Z' WHERE look_at > ''")
    assert is_idle(settled)
    assert len(settled.rows("b")) == before
    column = "anchored_at" if schedule.startswith("in ") else "last_end" if schedule == "10m" else "armed_at"
    settled.sql(f"UPDATE tasks SET {column} = strftime('%Y-%m-%dT%H:%M:%fZ', {column}, '-10 minutes') WHERE id = 'b'")
    settled.sql("UPDATE tasks SET armed_at = strftime('%Y-%m-%dT%H:%M:%fZ', armed_at, '-10 minutes') WHERE id = 'b'")
    settled.tick()
    assert len(settled.rows("b")) > before


def test_the_end_of_a_task_wakes_the_one_that_follows(settled: Workspace) -> None:
    settled.task("first")
    settled.task("second", after="first")
    settled.tick()
    assert is_idle(settled)
    settled.cli("run", "first")
    settled.tick()
    assert settled.rows("second") == [("success", None, 1)]
    assert is_idle(settled)


def test_a_broken_file_stays_idle_until_its_task_is_due(settled: Workspace) -> None:
    path = settled.task("b", schedule=half_past())
    settled.tick()
    path.write_text("---\nid: b\nschedule: nonsense\n---\n")
    settled.tick()
    settled.sql("UPDATE tasks SET look_at = '2099-01-01T00:00:00.000Z' WHERE look_at > ''")
    assert is_idle(settled)
    settled.move_back("b", "-1 hours")
    settled.tick()
    assert settled.rows("b") == [("skipped", "rejected", 1)]


def test_duplicates_are_told_in_every_tick(settled: Workspace) -> None:
    settled.write_task("twin", "---\nid: A\nschedule: manual\ncommand: x\n---\n")
    for _ in range(2):
        assert "duplicate id" in settled.tick(code=3).stdout
    (settled.root / "tasks" / "twin.md").unlink()
    assert is_idle(settled)


def test_an_agent_that_is_missing_is_looked_for_in_every_tick(settled: Workspace) -> None:
    settled.config("agents: {helper: {argv: [no-such-program], format: text}}\n")
    settled.task("b", schedule=FAR_AWAY, run_as="helper")
    settled.tick()
    assert not is_idle(settled)
    program = settled.root / "bin" / "no-such-program"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    settled.environment["PATH"] += f":{program.parent}"
    settled.tick()
    assert is_idle(settled)


def test_a_file_with_an_impossible_name_does_not_keep_ticks_busy(settled: Workspace) -> None:
    (settled.root / "tasks" / os.fsdecode(b"\xff.md")).write_text("x")
    settled.tick()
    assert is_idle(settled)


def test_a_link_that_leads_nowhere_does_not_keep_ticks_busy(settled: Workspace) -> None:
    (settled.root / "tasks" / "lost.md").symlink_to("nowhere.md")
    settled.tick()
    assert is_idle(settled)
    (settled.root / "tasks" / "nowhere.md").write_text("---\nid: b\nschedule: manual\ncommand: x\n---\n")
    assert not is_idle(settled)


def test_a_configuration_that_changes_while_a_tick_runs_is_noticed(settled: Workspace) -> None:
    """It has read the old one, so what it makes of the files must not be kept under the new one."""
    settled.task("c", schedule="manual", group="late")
    tick = settled.start("tick", "--every", "1s")
    wait_for(lambda: settled.sql("SELECT 1 FROM files WHERE task_id = 'c'"), "the first pass")
    settled.config("groups: {late: 1}\n")
    settled.task("d")
    wait_for(
        lambda: settled.sql("SELECT 1 FROM files WHERE task_id = 'd'"), "a pass with the new configuration in place"
    )
    tick.terminate()
    tick.communicate(timeout=60)
    settled.tick()
    assert settled.json("show", "c")["group"] == "late"


def test_a_clock_that_was_ahead_once_does_not_keep_ticks_busy(settled: Workspace) -> None:
    settled.sql("INSERT INTO heartbeats VALUES ('2099-01-01T00:00:00.000Z', 'h', 1)")
    assert not is_idle(settled)
    assert is_idle(settled)


def test_a_broken_file_that_a_command_met_first_is_still_told_of(settled: Workspace) -> None:
    settled.write_task("broken", "---\nid: broken\nschedule: nonsense\n---\n")
    settled.cli("hint", "a", "--every", "1h")
    assert "broken" in settled.tick().stderr


def test_a_comment_that_could_not_be_obeyed_is_tried_again(settled: Workspace) -> None:
    settled.task("once", schedule="on 2099-01-01 at 12:00")
    settled.tick()
    settled.cli("run", "once")
    settled.sql("UPDATE tasks SET last_occurrence = '2099-01-01T12:00:00.000Z' WHERE id = 'once'")
    settled.cli("comment", "once", "/resume")
    settled.tick()
    assert not is_idle(settled) and not is_idle(settled)


def test_once_a_day_everything_is_read_and_looked_at_anew(settled: Workspace) -> None:
    """Whatever was overlooked, it is not overlooked for ever."""
    settled.sql("UPDATE tasks SET look_at = NULL")
    settled.sql("UPDATE files SET task = replace(task, '\"true\"', '\"wrong\"')")
    settled.sql("UPDATE meta SET value = '2026-01-01T00:00:00.000Z' WHERE name = 'last_prune'")
    settled.tick()
    assert settled.sql("SELECT COUNT(*) FROM tasks WHERE look_at IS NOT NULL") == [(1,)]
    assert settled.json("show", "a")["command"] == "true"


def test_a_hundred_ticks_leave_a_small_log_of_the_database(settled: Workspace) -> None:
    """Idle ticks don't merge what they write into the database; SQLite does so itself when it gets long."""
    for _ in range(60):
        settled.tick()
    wal = settled.root / "state" / "tickdown.db-wal"
    assert wal.exists() and wal.stat().st_size < 5_000_000
    assert settled.sql("PRAGMA integrity_check") == [("ok",)]


def test_a_tick_with_work_to_do_loads_neither_the_parsers_nor_the_healer(workspace: Workspace) -> None:
    """Neither is needed where nothing was edited and nothing fails; all of them are slow to load."""
    workspace.task("a", schedule="0 0 * * *")
    workspace.tick()
    assert is_idle(workspace)
    workspace.cli("comment", "a", "/run")
    modules = set(probe(workspace, "tick")["modules"])
    assert workspace.last_run("a")["status"] == "success"
    slow = {
        "argparse",
        "yaml",
        "frontmatter",
        "croniter",
        "requests",
        "rich",
        "subprocess",
        "tickdown.heal.healer",
        "tickdown.heal.rung",
        "tickdown.ui.arguments",
    }
    assert "tickdown.run.execution" in modules
    assert sorted(slow & modules) == []
