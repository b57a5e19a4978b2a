"""The program as it is installed: a wheel in an environment of its own, far from the clone, with the command `tickdown`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from filelock import FileLock
from packaging.requirements import Requirement

from tests.healing import FIX, Healing, says
from tests.helpers import PATIENCE, PROJECT, Workspace, wait_for
from tickdown import VERSION

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
TASK = "---\nid: {id}\nschedule: 1h\ncommand: {command}\n---\nA task of a test.\n"


def call(*argv: str | Path, code: int | None = 0, cwd: Path | None = None, **variables: str) -> str:
    """What a command prints, on whatever stream. Of this environment it knows what cron would give it, and pip's settings."""
    environment = {
        name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("PIP_")
    }
    done = subprocess.run(
        list(map(str, argv)), cwd=cwd, env=environment | {"LANG": "C.UTF-8"} | variables, text=True, timeout=PATIENCE * 3,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert code is None or done.returncode == code, done.stdout
    return done.stdout


class Installed:
    def __init__(self, folder: Path) -> None:
        self.wheel = folder / "wheel"
        self.environment = folder / "environment"
        self.python = self.environment / "bin" / "python"
        self.command = self.environment / "bin" / "tickdown"

    @property
    def packages(self) -> Path:
        return next((self.environment / "lib").glob("python*/site-packages"))

    def build(self, source: Path) -> None:
        copy_what_is_built_from(source)
        (source / "tasks" / "private.md").write_text(TASK.format(id="private", command="'true'"))
        alone = ["--no-build-isolation"] if find_spec("hatchling") else []  # or pip fetches it from its index
        call(sys.executable, "-m", "pip", "wheel", *alone, "--no-deps", "-w", self.wheel, source)

    def install(self) -> None:
        """What the wheel asks for is taken from the environment of the tests, and nothing else is: no index is needed, and
        a dependency that is not declared is missing."""
        call(sys.executable, "-m", "venv", "--without-pip", self.environment)
        pip = (sys.executable, "-m", "pip", "--python", self.python)
        call(*pip, "install", "--no-deps", "--no-index", *self.wheel.glob("*.whl"))
        for needed in all_needed(PYPROJECT["project"]["dependencies"], {}).values():
            for name in {file.parts[0] for file in needed.files or () if file.parts[0] not in ("..", "__pycache__")}:
                if not (self.packages / name).exists():
                    (self.packages / name).symlink_to(needed.locate_file(name))
        assert "No broken requirements found" in call(*pip, "check")


def copy_what_is_built_from(folder: Path) -> None:
    parts = ["lib", "prompts", "tasks", "*.md", "*.example*", "*.txt", "pyproject.toml", "scheduler.py"]
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *parts]
    found = subprocess.run(listing, cwd=PROJECT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("not a git checkout: nobody can tell what belongs to the program")
    for name in found.stdout.split("\0"):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((PROJECT / name).read_bytes())


def all_needed(requirements: list[str], known: dict[str, Distribution]) -> dict[str, Distribution]:
    """With what they need in turn."""
    for requirement in map(Requirement, requirements):
        if requirement.name not in known and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            known[requirement.name] = distribution(requirement.name)
            all_needed(known[requirement.name].requires or [], known)
    return known


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Once for all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "package"
    made = Installed(folder)
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            made.build(folder / "source")
            made.install()
            (folder / "ready").touch()
    return made


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A workspace as somebody makes it who has read one page."""
    (tmp_path / "house" / "tasks").mkdir(parents=True)
    return tmp_path / "house"


def write_task(house: Path, task_id: str, command: str) -> None:
    (house / "tasks" / f"{task_id}.md").write_text(TASK.format(id=task_id, command=json.dumps(command)))


def rows(installed: Installed, house: Path) -> list[dict[str, Any]]:
    return json.loads(call(installed.command, "history", "--json", cwd=house))


def test_a_folder_with_tasks_is_all_that_a_tick_needs(installed: Installed, house: Path) -> None:
    write_task(house, "x", "echo done by $TICKDOWN_TASK_ID")
    call(installed.command, "tick", cwd=house)
    assert [(row["task_id"], row["status"]) for row in rows(installed, house)] == [("x", "success")]
    assert "x" in call(installed.command, "list", cwd=house)
    assert "done by x" in call(installed.command, "logs", "x", cwd=house)
    assert call(installed.command, "--version", cwd=house) == f"tickdown {VERSION}\n"


def test_an_idle_tick_goes_the_shortest_way(installed: Installed, house: Path) -> None:
    write_task(house, "x", "true")

    def is_idle() -> bool:
        loaded = call(installed.python, "-X", "importtime", installed.command, "tick", cwd=house)
        return "tickdown.entry" in loaded and "tickdown.ui.cli" not in loaded

    wait_for(is_idle, "a tick that finds nothing to do")  # files of this very moment are looked at once more
    assert len(rows(installed, house)) == 1


def test_a_task_can_call_the_scheduler(installed: Installed, house: Path) -> None:
    write_task(house, "x", '"$TICKDOWN_SCHEDULER" comment x "said by the task"')
    call(installed.command, "tick", cwd=house)
    assert [row["status"] for row in rows(installed, house)] == ["success"]
    (comment,) = json.loads(call(installed.command, "comments", "--json", cwd=house))
    assert comment["text"] == "said by the task"


def test_it_is_a_module_too(installed: Installed, house: Path) -> None:
    write_task(house, "x", "true")
    call(installed.python, "-m", "tickdown", "tick", cwd=house)
    assert [row["status"] for row in rows(installed, house)] == ["success"]
    assert call(installed.python, "-m", "tickdown", "--help").startswith("usage: python -m tickdown ")


def test_commands_are_named_as_they_can_be_typed(installed: Installed, house: Path) -> None:
    path = house / "tasks" / "x.md"
    path.write_text("---\nid: x\nschedule: 1h\ncommand: exit 1\nsuspend_after: 1\n---\n")
    alert = call(installed.command, "tick", cwd=house)
    assert f"Go on with: tickdown resume x --workspace {house}\n" in alert, "who reads an alert is nowhere yet"
    assert "go on with: tickdown resume x\n" in call(installed.command, "why", "x", cwd=house)
    elsewhere = call(installed.command, "why", "x", cwd=Path("/"), TICKDOWN_HOME=str(house))
    assert f"go on with: tickdown resume x --workspace {house}\n" in elsewhere
    assert call(installed.command, "nosuch", cwd=house, code=2).startswith("usage: tickdown ")


def test_where_there_is_no_workspace_it_says_what_to_do(installed: Installed, tmp_path: Path) -> None:
    for command in ("list", "tick"):
        said = call(installed.command, command, cwd=tmp_path, code=2)
        assert said.startswith(f"tickdown: {tmp_path} is no workspace: it has no tasks/ folder."), said
        assert "--workspace DIR" in said and "TICKDOWN_HOME" in said and "mkdir tasks" in said
    assert list(tmp_path.iterdir()) == []


def test_a_current_folder_that_is_gone_is_no_bug(installed: Installed, house: Path, tmp_path: Path) -> None:
    write_task(house, "x", "true")
    away = 'mkdir "$1/gone" && cd "$1/gone" && rmdir "$1/gone" && shift && exec "$@"'
    said = call("sh", "-c", away, "sh", tmp_path, installed.command, "list", code=2)
    assert said == "tickdown: the current folder is gone; name the workspace with --workspace DIR\n"
    call("sh", "-c", away, "sh", tmp_path, installed.command, "tick", "--workspace", house)
    assert [row["status"] for row in rows(installed, house)] == ["success"]


def test_prompts_and_examples_are_shipped_and_nobodys_own_tasks(installed: Installed, house: Path) -> None:
    (wheel,) = installed.wheel.glob("*.whl")
    names = {name.removeprefix("tickdown/") for name in ZipFile(wheel).namelist() if name.startswith("tickdown/")}
    known = subprocess.run(
        ["git", "ls-files", "prompts", "tasks", "*.example*"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert {name for name in names if name.startswith("shipped/")} == {
        f"shipped/{name}" for name in known.stdout.split()
    }
    modules = {str(path.relative_to(PROJECT / "lib/tickdown")) for path in (PROJECT / "lib/tickdown").rglob("*.py")}
    assert {name for name in names if not name.startswith("shipped/")} == modules
    examples = installed.packages / "tickdown" / "shipped" / "tasks"
    assert "no problems" in call(installed.command, "validate", examples, "--workspace", house)
    write_task(house, "x", "exit 1")
    (house / "config.yaml").write_text("agents: {doctor: ['true']}\nhealer: doctor\n")
    shown = call(installed.command, "heal", "x", "--dry-run", cwd=house)
    first = (PROJECT / "prompts" / "self-heal.txt").read_text().splitlines()[0]
    assert first.partition("{{")[0] in shown


class InstalledWorkspace(Workspace):
    def __init__(self, root: Path, command: Path) -> None:
        super().__init__(root)
        self.command = command

    def argv(self, *arguments: str) -> list[str]:
        return [str(self.command), *arguments, "--workspace", str(self.root)]


def test_a_healer_does_not_change_what_is_installed(installed: Installed, tmp_path: Path) -> None:
    """The package and its command are put back; the rest of the environment can't be, but nothing is added to it."""
    module, added = installed.packages / "tickdown" / "base" / "model.py", installed.packages / "added.pth"
    before = {path: path.read_bytes() for path in (module, installed.command)}
    agent = f"{FIX}; echo >> {module}; echo >> {installed.command}; echo >> {added}; {says()}"
    healing = Healing(InstalledWorkspace(tmp_path / "ws", installed.command), agent)
    assert healing.tick()["status"] == "failed"
    assert {path: path.read_bytes() for path in before} == before and not added.exists()
    problem = healing.audit()[0]["problem"]
    assert all(str(path) in problem for path in (module, installed.command, added)) and "may not" in problem, problem
    assert healing.changed() == {"ws/tasks/job.md"}, "which says that it is suspended"


def test_no_task_can_put_what_is_installed_into_the_hands_of_its_healer(installed: Installed, house: Path) -> None:
    own = [installed.packages / "tickdown" / "__init__.py", installed.command, installed.environment / "pyvenv.cfg"]
    path = house / "tasks" / "x.md"
    path.write_text(f"---\nid: x\nschedule: 1h\ncommand: 'true'\nheal_paths: {json.dumps(list(map(str, own)))}\n---\n")
    told = call(installed.command, "validate", cwd=house)
    assert told.count("belongs to Tickdown itself: never edited") == len(own), told


def test_the_pinned_versions_are_in_the_ranges() -> None:
    lines = (PROJECT / "requirements.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    for requirement in map(Requirement, PYPROJECT["project"]["dependencies"]):
        assert pins[requirement.name.lower()] in requirement.specifier, requirement


def test_later_extras_have_their_names() -> None:
    assert set(PYPROJECT["project"]["optional-dependencies"]) == {"postgres", "web", "notify", "mcp"}
