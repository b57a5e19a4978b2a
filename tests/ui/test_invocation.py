"""Commands that messages name: as the program was called, and such that they can be pasted from anywhere."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, PROJECT, SCHEDULER, Workspace


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the program that is its own default workspace, with a task that is paused."""
    folder = tmp_path / "clone"
    (folder / "tasks").mkdir(parents=True)
    (folder / "lib").symlink_to(PROJECT / "lib")
    shutil.copy(SCHEDULER, folder)
    (folder / "tasks" / "job.md").write_text(
        "---\nid: job\nschedule: manual\nenabled: false\ncommand: 'true'\n---\nA test.\n"
    )
    return folder


def said(program: Path, *arguments: str, home: Path | None = None) -> str:
    """What the program says, on whatever stream."""
    environment = {"PATH": os.environ["PATH"]}
    if home is not None:
        environment["TICKDOWN_HOME"] = str(home)
    done = subprocess.run(
        [sys.executable, str(program), *arguments], env=environment, cwd="/", capture_output=True, text=True, timeout=PATIENCE
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_default_workspace_needs_no_option(clone: Path) -> None:
    assert "go on with: scheduler.py resume job\n" in said(clone / "scheduler.py", "why", "job")
    named = said(clone / "scheduler.py", "why", "job", "--workspace", str(clone))
    assert "go on with: scheduler.py resume job\n" in named
    assert "go on with: scheduler.py resume job\n" in said(clone / "scheduler.py", "why", "job", home=clone)


def test_another_workspace_is_named_however_it_was_chosen(clone: Path, workspace: Workspace) -> None:
    workspace.task("job", enabled=False)
    way_on = f"go on with: scheduler.py resume job --workspace {workspace.root}\n"
    assert way_on in said(clone / "scheduler.py", "why", "job", "--workspace", str(workspace.root))
    assert way_on in said(clone / "scheduler.py", "why", "job", home=workspace.root)
    back = said(clone / "scheduler.py", "why", "job", "--workspace", str(clone), home=workspace.root)
    assert f"go on with: scheduler.py resume job --workspace {clone}\n" in back, (
        "a later call would go to TICKDOWN_HOME"
    )


def test_the_name_is_the_one_it_was_called_by(clone: Path, tmp_path: Path) -> None:
    link = tmp_path / "td"
    link.symlink_to(clone / "scheduler.py")
    assert "go on with: td resume job\n" in said(link, "why", "job")
    assert said(link, "show", "nosuch").startswith("td: no task 'nosuch'; `td list` shows all")
    assert said(link, "nosuch").startswith("usage: td ")


def test_what_is_named_can_be_pasted_from_anywhere(workspace: Workspace) -> None:
    moved = workspace.root.rename(workspace.root.parent / "a folder; with 'signs'")
    workspace.root = moved
    workspace.write_task("bad file", "---\nid: bad\nschedule: never\ncommand: 'true'\n---\n")
    workspace.tick()
    found = re.search(r"problem: scheduler\.py (validate .*?)  ", workspace.cli("list").stdout)
    assert found is not None
    told = said(SCHEDULER, *shlex.split(found[1]))
    assert told.startswith("tasks/bad file.md:3: ") and "1 file" in told, told


def test_no_message_spells_the_name_out() -> None:
    """There is one place that knows it; see base/invocation.py."""
    knows = {"base/invocation.py", "base/program.py", "heal/guard.py"}
    found = set()
    for path in (PROJECT / "lib" / "tickdown").rglob("*.py"):
        tree = ast.parse(path.read_text())
        documented = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        docstrings = {id(node.body[0].value) for node in documented if node.body and isinstance(node.body[0], ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and "scheduler.py" in str(node.value) and id(node) not in docstrings:
                found.add(str(path.relative_to(PROJECT / "lib" / "tickdown")))
    assert found == knows
