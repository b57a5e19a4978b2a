"""Files of others, links in the place of our own, modes that are too open: refused or put right, each with its message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.helpers import Telegram, Workspace

RAN = [("success", None, 1)]
STRANGER = 54321  # neither root, nor us, nor the owner of the workspace
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(workspace: Workspace, says: str) -> None:
    """The task `bad` is told of and does not run; the others do."""
    workspace.task("good", schedule="1h")
    told = workspace.tick().stderr
    assert says in told, told
    assert workspace.rows("good") == RAN and workspace.rows("bad") == []
    assert not (workspace.root / "ran").exists()


def test_a_file_that_everyone_may_write_is_not_run(workspace: Workspace) -> None:
    workspace.task("bad", "touch ran", schedule="1h").chmod(0o666)
    refused(workspace, "tasks/bad.md:1: is writable by everyone; run chmod o-w on it")


@needs_root
def test_a_file_of_another_user_is_not_run(workspace: Workspace) -> None:
    os.chown(workspace.task("bad", "touch ran", schedule="1h"), STRANGER, -1)
    refused(workspace, f"tasks/bad.md:1: belongs to another user (uid {STRANGER})")


@needs_root
def test_a_file_that_a_foreign_group_may_write_is_not_run(workspace: Workspace) -> None:
    path = workspace.task("bad", "touch ran", schedule="1h")
    os.chown(path, -1, STRANGER)
    path.chmod(0o664)
    refused(workspace, f"tasks/bad.md:1: is writable by another group (gid {STRANGER}); run chmod g-w on it")


@needs_root
def test_the_group_of_the_workspace_may_write_and_a_foreign_one_may_read(workspace: Workspace) -> None:
    os.chown(workspace.root, -1, STRANGER)
    shared = workspace.task("shared", schedule="1h")
    os.chown(shared, -1, STRANGER)
    shared.chmod(0o664)
    seen = workspace.task("seen", schedule="1h")
    os.chown(seen, -1, STRANGER + 1)
    seen.chmod(0o640)
    workspace.tick()
    assert workspace.rows("shared") == workspace.rows("seen") == RAN


@needs_root
def test_settings_that_a_foreign_group_may_write_stop_the_tick(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.config("max_concurrent: 3\n")
    os.chown(workspace.root / "config.yaml", -1, STRANGER)
    (workspace.root / "config.yaml").chmod(0o664)
    assert "config.yaml:1: is writable by another group" in workspace.tick(code=2).stderr


def test_a_link_that_is_pointed_out_of_the_workspace_later_is_not_followed(
    workspace: Workspace, tmp_path: Path
) -> None:
    inside = workspace.root / "inside.md"
    text = "---\nid: bad\nschedule: 1s\ncommand: echo >> ran\n---\n"
    inside.write_text(text)
    inside.chmod(0o644)
    link = workspace.root / "tasks" / "bad.md"
    link.symlink_to(inside)
    workspace.tick()
    assert workspace.rows("bad") == RAN
    outside = tmp_path / "outside.md"
    outside.write_text(text.replace("echo >> ran", "touch escaped"))
    link.unlink()
    link.symlink_to(outside)
    assert "a link that leaves the workspace" in workspace.tick().stderr
    assert not (workspace.root / "escaped").exists()


def test_a_linked_folder_is_not_entered_and_validate_says_so(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "bad.md").write_text("---\nid: bad\nschedule: 1h\ncommand: touch ran\n---\n")
    (workspace.root / "tasks" / "more").symlink_to(tmp_path / "elsewhere")
    workspace.tick()
    assert not (workspace.root / "ran").exists()
    assert "tasks/more:1: warning: is a linked folder, which is not looked into" in workspace.cli("validate").stdout


def test_a_database_that_became_a_link_is_not_followed(
    workspace: Workspace, telegram: Telegram, tmp_path: Path
) -> None:
    telegram.configure(workspace)
    workspace.task("job", schedule="1h")
    workspace.tick()
    workspace.tick()  # from here on a tick would be an idle one
    database, moved = workspace.root / "state" / "tickdown.db", tmp_path / "moved.db"
    database.rename(moved)
    database.symlink_to(moved)
    before = moved.read_bytes()
    first, second = workspace.tick(code=1), workspace.tick(code=1)
    says = f"the database {database} is a symbolic link, which is not followed; remove it"
    assert says in first.stderr and says in second.stdout and not second.stderr
    assert moved.read_bytes() == before
    assert len(telegram.texts) == 1 and "symbolic link" in telegram.texts[0]
    database.unlink()
    moved.rename(database)
    workspace.tick()
    assert workspace.rows("job") == RAN


def test_a_log_that_became_a_link_is_not_written_through(workspace: Workspace, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (workspace.root / "logs").mkdir()
    (workspace.root / "logs" / "scheduler.log").symlink_to(victim)
    workspace.task("job", schedule="1h")
    workspace.tick()
    assert victim.read_text() == "mine" and workspace.rows("job") == RAN


def test_modes_that_are_too_open_are_put_right(workspace: Workspace) -> None:
    workspace.task("job", schedule="1s")
    workspace.tick()
    state, logs = workspace.root / "state", workspace.root / "logs"
    for path, wrong in ((state, 0o777), (state / "locks", 0o755), (state / "tickdown.db", 0o666), (logs, 0o777)):
        path.chmod(wrong)
    workspace.task("other", schedule="1h")
    workspace.tick()
    assert [mode(path) for path in (state, state / "locks", state / "tickdown.db")] == [0o700, 0o700, 0o600]
    assert mode(logs) == 0o755  # who may read the logs is their owner's choice


def test_doctor_names_folders_that_everyone_may_write(workspace: Workspace) -> None:
    workspace.tick()
    (workspace.root / "tasks").chmod(0o777)
    assert f"chmod o-w {workspace.root / 'tasks'}" in workspace.cli("doctor", code=1).stdout


def test_a_database_from_a_newer_version_is_told_by_telegram_once_and_nothing_is_lost(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    workspace.task("job", schedule="1h")
    workspace.tick()
    ((version,),) = workspace.sql("PRAGMA user_version")
    workspace.sql("PRAGMA user_version = 999")
    workspace.move_back("job", "-2 hours")
    first, second = workspace.tick(code=1), workspace.tick(code=1)
    assert "newer version" in first.stderr and "newer version" in second.stdout and not second.stderr
    assert len(telegram.texts) == 1 and "newer version" in telegram.texts[0]
    workspace.sql(f"PRAGMA user_version = {version}")
    workspace.tick()
    assert [run["status"] for run in workspace.runs("job")] == ["success", "success"]
