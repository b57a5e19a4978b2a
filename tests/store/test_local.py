"""What only one host knows is beside the database, and can be lost: then every file is read anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import Workspace
from tests.tick.test_idle import FAR_AWAY, is_idle, probe
from tickdown.config import load_settings
from tickdown.context.app import app_with
from tickdown.store import schema
from tickdown.workspace.folders import find_workspace

LOSSES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "damaged": lambda path: path.write_bytes(b"these are not the rows you are looking for " * 100),
    "damaged inside": lambda path: path.write_bytes(
        path.read_bytes()[:4096] + b"no rows " * 512 * (path.stat().st_size // 4096 - 1)
    ),
    "not to be opened": lambda path: (path.unlink(), path.symlink_to("elsewhere")),
    "of another layout": lambda path: path.write_bytes(path.read_bytes()[:60] + b"\0\0\0\x63" + path.read_bytes()[64:]),
}


def read_files(workspace: Workspace) -> list[str]:
    return [Path(path).name for path in probe(workspace, "tick")["opened"] if path.endswith(".md")]


@pytest.fixture
def settled(workspace: Workspace) -> Workspace:
    for name in ("a", "b"):
        workspace.task(name, schedule=FAR_AWAY)
    workspace.tick()
    assert is_idle(workspace)
    return workspace


@pytest.mark.parametrize("name", LOSSES)
def test_without_it_every_file_is_read_anew(settled: Workspace, name: str) -> None:
    LOSSES[name](settled.root / "state" / "local.db")
    settled.task("a", schedule=FAR_AWAY, title="another")  # an idle tick does not even look at it
    assert sorted(read_files(settled)) == ["a.md", "b.md"]
    assert settled.json("show", "a")["title"] == "another"
    assert is_idle(settled)
    assert not list((settled.root / "state").glob("*damaged*"))


def test_what_it_knows_counts_only_for_the_database_that_it_was_read_for(settled: Workspace, tmp_path: Path) -> None:
    """As an older copy of the database that somebody puts back."""
    copy = tmp_path / "copy.db"
    settled.sql("VACUUM INTO ?", str(copy))
    settled.task("c", schedule=FAR_AWAY)
    settled.tick()
    (settled.root / "tasks" / "b.md").unlink()
    settled.tick()
    for suffix in ("", "-wal", "-shm"):
        (settled.root / "state" / f"tickdown.db{suffix}").unlink(missing_ok=True)
    shutil.copy(copy, settled.root / "state" / "tickdown.db")
    assert not is_idle(settled)
    assert settled.sql("SELECT id, gone FROM tasks ORDER BY id") == [("a", 0), ("b", 1), ("c", 0)]
    assert is_idle(settled)


def test_two_checkouts_share_a_database(settled: Workspace, tmp_path: Path) -> None:
    other = Workspace(tmp_path / "other")
    other.config(f"database: {settled.root}/state/tickdown.db\n")
    for name in ("a", "b"):
        other.task(name, schedule=FAR_AWAY)
    other.tick()
    assert is_idle(other) and is_idle(settled)


def test_edits_that_an_earlier_version_noted_are_moved(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.task("a", schedule=FAR_AWAY)
    found = find_workspace(str(workspace.root), {}, workspace.root)
    app = app_with(found, load_settings(found, {}))
    when_moved = next(number for number, sql in enumerate(schema.MIGRATIONS) if "DROP TABLE files" in sql)
    with monkeypatch.context() as earlier:
        earlier.setattr("tickdown.store.database.MIGRATIONS", schema.MIGRATIONS[:when_moved])
        app.database().close()
    workspace.sql("INSERT INTO own_edits VALUES ('tasks/a.md', 'digest', '2099-01-01T00:00:00.000Z')")
    workspace.sql("INSERT INTO files VALUES ('tasks/a.md', 's', 'd', 'a', NULL, '[]', 0, 0)")
    workspace.tick()
    assert workspace.local("SELECT path, digest FROM own_edits") == [("tasks/a.md", "digest")]
    assert workspace.sql("SELECT COUNT(*) FROM own_edits") == [(0,)]
    assert workspace.local("SELECT path FROM files") == [("tasks/a.md",)]
