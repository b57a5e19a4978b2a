"""A database that is deleted or emptied: said once, and nothing runs on a guess."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import Gate, Telegram, Workspace, start_together, wait_for

RAN = ("success", None, 1)


def delete(database: Path) -> None:
    database.unlink()


def delete_with_companions(database: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)


def leave_companions(database: Path) -> None:
    Path(f"{database}-wal").write_bytes(b"pages of another time" * 1000)
    Path(f"{database}-shm").write_bytes(b"\1" * 32768)
    database.unlink()


def empty(database: Path) -> None:
    os.truncate(database, 0)


WAYS = (delete, delete_with_companions, leave_companions, empty)


@pytest.fixture
def used(workspace: Workspace, telegram: Telegram) -> Workspace:
    """A workspace that has run a task of one second."""
    telegram.configure(workspace)
    workspace.task("job", "echo >> ran", schedule="1s")
    workspace.tick()
    assert workspace.rows("job") == [RAN]
    return workspace


def database_of(workspace: Workspace) -> Path:
    return workspace.root / "state" / "tickdown.db"


def times_ran(workspace: Workspace) -> int:
    return len((workspace.root / "ran").read_text().splitlines())


def note_of_history(workspace: Workspace) -> str | None:
    checks = workspace.json("doctor", code=None)["checks"]
    return next((check["message"] for check in checks if "history begins" in check["message"]), None)


@pytest.mark.parametrize("lose", WAYS, ids=lambda lose: lose.__name__)
def test_a_lost_database_is_told_once_and_nothing_runs_on_a_guess(
    used: Workspace, telegram: Telegram, lose: Callable[[Path], None]
) -> None:
    lose(database_of(used))
    used.tick()
    assert times_ran(used) == 1 and used.rows("job") == []
    (told,) = telegram.texts
    assert "the database is gone" in told and str(database_of(used)) in told
    wait_for(lambda: used.tick() and used.rows("job"), "the next occurrence")
    assert used.rows("job")[0] == RAN and len(telegram.texts) == 1
    assert used.sql("PRAGMA integrity_check") == [("ok",)]
    note = note_of_history(used)
    assert note is not None and "the database from before is gone" in note
    used.sql("UPDATE meta SET value = '2026-01-01T00:00:00.000Z' WHERE name = 'replaced_at'")
    assert note_of_history(used) is None


@pytest.mark.parametrize(
    "command", [("list",), ("doctor",), ("pause", "job"), ("history",)], ids=lambda words: words[0]
)
def test_it_is_told_whoever_notices_it_first(used: Workspace, telegram: Telegram, command: tuple[str, ...]) -> None:
    delete(database_of(used))
    done = used.cli(*command, code=None)
    assert command != ("doctor",) or "the database from before is gone" in done.stdout
    used.tick()
    used.tick()
    (told,) = telegram.texts
    assert "the database is gone" in told


def test_what_only_looks_leaves_it_to_others(used: Workspace, telegram: Telegram) -> None:
    empty(database_of(used))
    decided = used.tick("--dry-run").stdout
    assert database_of(used).stat().st_size == 0 and "1 due" not in decided
    used.tick()
    assert times_ran(used) == 1 and len(telegram.texts) == 1


def test_of_many_ticks_after_a_loss_one_tells(used: Workspace, telegram: Telegram) -> None:
    leave_companions(database_of(used))
    done = start_together([used.argv("tick")] * 6, env=used.environment, cwd=used.root)
    assert [one.returncode for one in done] == [0] * 6, done
    (told,) = telegram.texts
    assert "the database is gone" in told
    assert used.sql("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("lose", [delete, delete_with_companions, empty], ids=lambda lose: lose.__name__)
def test_a_tick_that_still_uses_it_harms_nobody(
    used: Workspace, telegram: Telegram, lose: Callable[[Path], None]
) -> None:
    gate = Gate(used)
    used.task("held", f"{gate.command}; echo >> held", schedule="1h")
    tick = used.start("tick")
    gate.wait()
    lose(database_of(used))
    used.tick()
    assert any("the database is gone" in text for text in telegram.texts)
    used.task("new", schedule="1h")
    used.tick()
    gate.open()
    stdout, stderr = tick.communicate(timeout=120)
    # One that finds its own pages gone says so.
    assert "success   held" in stdout if tick.returncode == 0 else "another tick has replaced it" in stderr, stderr
    used.tick()
    assert used.rows("new") == [RAN] and (used.root / "held").read_text() == "\n"
    assert used.sql("PRAGMA integrity_check") == [("ok",)]


def test_a_new_workspace_has_lost_nothing(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("job", "echo >> ran", schedule="1h")
    for command in (("validate",), ("list",), ("doctor",), ("tick",)):
        workspace.cli(*command, code=None)
    assert workspace.rows("job") == [RAN] and telegram.texts == [] and note_of_history(workspace) is None


def test_an_empty_file_in_a_new_workspace_is_no_loss(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("job", schedule="1h")
    (workspace.root / "state").mkdir()
    database_of(workspace).touch()
    workspace.tick()
    assert workspace.rows("job") == [RAN] and telegram.texts == []


def test_without_a_shortcut_the_logs_of_runs_tell(used: Workspace, telegram: Telegram) -> None:
    for path in (used.root / "state").rglob("*"):
        if path.is_file():
            path.unlink()
    used.tick()
    (told,) = telegram.texts
    assert "the database is gone" in told and times_ran(used) == 1


def test_another_path_in_the_configuration_is_no_loss(used: Workspace, telegram: Telegram) -> None:
    before = database_of(used)
    telegram.configure(used, "database: state/other.db\n")
    used.tick()
    (told,) = telegram.texts
    assert "another database is used" in told and str(before) in told and "is gone" not in told
    assert times_ran(used) == 1 and str(before) in str(note_of_history(used))
    assert used.rows("job") == [RAN]  # in the one before
    telegram.configure(used)
    wait_for(lambda: used.tick() and len(used.rows("job")) == 2, "the next occurrence")
    assert len(telegram.texts) == 1


def test_a_database_that_was_moved_is_the_same(used: Workspace, telegram: Telegram) -> None:
    database_of(used).rename(used.root / "moved.db")
    telegram.configure(used, "database: moved.db\n")
    wait_for(lambda: used.tick() and times_ran(used) == 2, "the next occurrence")
    assert telegram.texts == [] and note_of_history(used) is None
