"""Who may import whom, as ARCHITECTURE.md draws it: a package imports only those that stand before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import PROJECT
from tickdown.workspace.shortcut import PARSER

PACKAGE = PROJECT / "lib" / "tickdown"
# From what knows nothing of the others to the door that people come in by.
ORDER = (
    "base", "time", "workspace", "processes", "agents", "schedule", "tasks", "governor", "config", "failure", "attempt", "store",
    "alerts", "context", "heal", "comments", "run", "queries", "actions", "tick", "ui", "entry",
)  # fmt: skip
# Decisions: no clock, no files, no network, no processes.
PURE = {"time", "schedule", "governor", "failure"}
PURE_MODULES = {
    "tasks.task",
    "tasks.yaml_tree",
    "tasks.remembered",
    "alerts.messages",
    "comments.meaning",
    "agents.calls",
}
IMPURE = {"os", "subprocess", "socket", "sqlite3", "requests", "shutil", "tempfile", "threading", "signal"}
SQL = re.compile(r"\s*(SELECT\s.*\sFROM|INSERT\s.*INTO|UPDATE\s.*\sSET|DELETE FROM|PRAGMA|BEGIN\b)\s", re.DOTALL)
READS_ZONE_FILES = {"time.zones"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py") if module_name(path)}


def imported(path: Path) -> Iterator[str]:
    """Every module, wherever in the file the import stands; ours without `tickdown.`"""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("tickdown.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            base = node.module.removeprefix("tickdown").removeprefix(".")
            if node.module.partition(".")[0] != "tickdown":
                yield node.module
            elif base in MODULES and MODULES[base].name != "__init__.py":
                yield base
            else:
                yield from (f"{base}.{alias.name}".removeprefix(".") for alias in node.names)


def own(name: str) -> set[str]:
    return {target for target in imported(MODULES[name]) if target in MODULES}


def test_every_package_has_its_place() -> None:
    assert {name.partition(".")[0] for name in MODULES} == {*ORDER, "__main__"}


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_those_that_stand_before_it(package: str) -> None:
    allowed = ORDER[: ORDER.index(package) + 1]
    wrong = {
        f"{name} imports {target}"
        for name in MODULES
        if name.partition(".")[0] == package
        for target in own(name)
        if target.partition(".")[0] not in allowed
    }
    assert not wrong


def test_commands_only_parse_call_and_print() -> None:
    """What they do and show is for other doors too; only a tick, which replaces a damaged database, must know one."""
    knows_the_store = {
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if name.startswith("ui.")
        for target in imported(path)
        if target.partition(".")[0] in ("store", "sqlite3")
    }
    assert knows_the_store <= {"ui.commands.tick imports store.database"}


def test_actions_and_queries_know_no_terminal() -> None:
    """No printing and no parsing: whoever asks shows the result. That they import nothing of `ui` is said by the order."""
    for name, path in MODULES.items():
        if name.partition(".")[0] in ("actions", "queries"):
            found = {target.partition(".")[0] for target in imported(path)}
            assert not found & {"argparse", "ui"}, name
            assert "print(" not in path.read_text(), name


def test_decisions_touch_nothing_outside() -> None:
    for name, path in MODULES.items():
        if (name.partition(".")[0] in PURE or name in PURE_MODULES) and name not in READS_ZONE_FILES:
            found = {target.partition(".")[0] for target in imported(path)}
            assert not found & IMPURE, name
    assert set(MODULES) >= PURE_MODULES | READS_ZONE_FILES


def test_only_the_store_knows_its_engine() -> None:
    """And the shortcut of an idle tick, which can't afford anything but the bare file."""
    knows = {name for name, path in MODULES.items() if "sqlite3" in set(imported(path))}
    assert knows == {"store.database", "store.heartbeat", "tick.idle"}


def test_the_store_does_not_know_the_shortcut_of_an_idle_tick() -> None:
    """What the two have in common is in `store.heartbeat`."""
    shortcut = {"workspace.shortcut", "workspace.scan", "tick.idle"}
    assert [name for name in MODULES if name.startswith("store") and own(name) & shortcut] == []


def test_nobody_but_the_store_speaks_sql() -> None:
    for name, path in MODULES.items():
        if name.partition(".")[0] != "store" and name != "tick.idle":
            words = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
            assert not [word for word in words if isinstance(word, str) and SQL.match(word)], name


def test_there_is_no_import_cycle() -> None:
    graph = {name: own(name) - {name} for name in MODULES}

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        return any(
            target == goal or (target not in seen and not seen.add(target) and reaches(target, goal, seen))  # type: ignore[func-returns-value]
            for target in graph[start]
        )

    assert [name for name in graph if reaches(name, name, set())] == []


def test_architecture_tells_of_every_package_in_this_order() -> None:
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    rows = [re.findall(r"`([a-z]+)/?`", row) for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)]
    # Those that share a row may stand in either order.
    assert [name for row in rows for name in sorted(row, key=ORDER.index)] == list(ORDER)


def test_what_makes_remembered_tasks_invalid_exists() -> None:
    """An idle tick notices an edited parser by these names; a renamed file would never change."""
    assert [name for name in PARSER if not (PACKAGE / name).exists()] == []
    files = [name for name in PARSER if name.endswith(".py")]
    assert {"task", "cron", "remembered"} <= {Path(name).stem for name in files}
