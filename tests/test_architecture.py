"""Who may import whom, as ARCHITECTURE.md says it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.helpers import PROJECT

DECISIONS = [
    "records",
    "model",
    "errors",
    "times",
    "instants",
    "clock",
    "zones",
    "near",
    "terminal",
    "redact",
    "yamltree",
    "task",
    "cron",
    "phrases",
    "schedule",
    "wording",
    "blackout",
    "chains",
    "parsed",
    "governor",
    "absence",
    "simulation",
    "agents",
    "outcomes",
    "comments",
    "signature",
    "ladder",
    "messages",
]
OUTSIDE = [
    "idle",
    "scan",
    "stopmark",
    "machine",
    "workspace",
    "config",
    "catalog",
    "taskfile",
    "store",
    "store.schema",
    "store.database",
    "store.files",
    "store.pulse",
    "store.tasks",
    "store.runs",
    "store.hints",
    "store.outbox",
    "store.tickets",
    "store.ticks",
    "store.heals",
    "store.comments",
    "store.costs",
    "lock",
    "process",
    "termination",
    "runners",
    "http_call",
    "runlog",
    "transcript",
    "guard",
    "prompts",
    "log",
    "deliver",
    "ping",
]
WIRING = [
    "context",
    "closing",
    "conclusion",
    "willing",
    "heal",
    "healing",
    "spending",
    "remarks",
    "steering",
    "deciding",
    "execute",
    "supervisor",
    "helper",
    "recover",
    "starting",
    "tick",
    "housekeeping",
    "crash",
    "app",
    "cli",
    "arguments",
    "views",
    "commands",
    "commands.act",
    "commands.add",
    "commands.ahead",
    "commands.why",
    "commands.steer",
    "commands.look",
    "commands.check",
    "commands.heal",
    "commands.talk",
]

# What a decision must not touch: the clock, files, the network, processes.
IMPURE = {"os", "subprocess", "socket", "sqlite3", "time", "requests", "shutil", "tempfile", "threading", "signal"}
READS_ZONE_FILES = {"zones"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT / "lib").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path) -> tuple[set[str], set[str]]:
    """(modules of lib, everything else), wherever in the file the import stands."""
    own, other = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            other |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.partition(".")[0] != "lib":
                other.add(node.module.partition(".")[0])
            elif node.module in ("lib", "lib.store", "lib.commands"):
                own |= {f"{node.module}.{alias.name}".removeprefix("lib.") for alias in node.names}
            else:
                own.add(node.module.removeprefix("lib."))
    return own - {"VERSION"}, other


MODULES = {module_name(path): path for path in (PROJECT / "lib").rglob("*.py") if module_name(path)}


def test_every_module_has_its_place() -> None:
    assert set(MODULES) == {*DECISIONS, *OUTSIDE, *WIRING}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_what_its_place_allows(name: str) -> None:
    own, other = imports(MODULES[name])
    if name in DECISIONS:
        assert own <= set(DECISIONS)
        assert name in READS_ZONE_FILES or not other & IMPURE
    elif name in OUTSIDE:
        assert own <= {*DECISIONS, *OUTSIDE}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_architecture_names_every_module(name: str) -> None:
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    assert re.search(rf"`{re.escape(name.rpartition('.')[2])}/?`", text), f"{name} is missing in ARCHITECTURE.md"


def test_there_is_no_import_cycle() -> None:
    graph = {name: {target for target in imports(path)[0] if target in MODULES} for name, path in MODULES.items()}

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        return any(
            target == goal or (target not in seen and not seen.add(target) and reaches(target, goal, seen))  # type: ignore[func-returns-value]
            for target in graph[start]
        )

    assert [name for name in graph if reaches(name, name, set())] == []
