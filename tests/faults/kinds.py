"""The kinds of faults that can be tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random

from tests.helpers import Workspace

# Modules whose import registers kinds, in the order of the table.
SUBJECTS: tuple[str, ...] = (
    "kill", "lonely", "crowd", "disk", "database", "permissions", "clock", "soak", "hostile", "accounting",
)  # fmt: skip


class CannotTry(Exception):
    """This machine lacks what the fault needs: a right, a tool, a file system."""


Trial = Callable[[Random, Workspace], None]


@dataclass(frozen=True, slots=True)
class Kind:
    name: str  # a few words for a table
    trial: Trial
    seeds: int  # trials in the suite (0: only in `make torture`); there, there are as many as there is time for
    seconds: float = 0  # what a trial takes: `make torture` leaves it out where it has less, unless asked for by name


_KINDS: dict[str, Kind] = {}


def kind(name: str, *, seeds: int = 1, seconds: float = 0) -> Callable[[Trial], Trial]:
    """A violated invariant is an AssertionError (or any other error) that leaves the trial."""

    def register(trial: Trial) -> Trial:
        assert name not in _KINDS, name
        _KINDS[name] = Kind(name, trial, seeds, seconds)
        return trial

    return register


def all_kinds() -> list[Kind]:
    for subject in SUBJECTS:
        import_module(f"tests.faults.{subject}")
    return list(_KINDS.values())


@contextmanager
def fresh_workspace(folder: Path) -> Iterator[Workspace]:
    """One that leaves no process behind, however the trial ends."""
    workspace = Workspace(folder)
    try:
        yield workspace
    except BaseException:
        workspace.kill_everything()
        raise
    left = workspace.kill_everything()
    assert not left, f"processes left behind: {left}"
