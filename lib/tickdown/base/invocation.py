"""How this program was called, so that messages name commands that can be pasted into a terminal.

Set once when a command starts, by `ui/cli.py`; everybody else only asks.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from tickdown.base.program import IS_CLONE

_name = "scheduler.py" if IS_CLONE else "tickdown"
_option = ""


def set_name(called_as: str) -> None:
    """From the first word of the command line, which may be a path."""
    global _name
    name = os.path.basename(called_as)
    _name = "python -m tickdown" if name == "__main__.py" else _storable(name)


def set_workspace(root: Path, default: Path | None, environment: Mapping[str, str]) -> None:
    """`default` is where a later call works by itself; None if nobody knows where that will be made."""
    global _option
    home = environment.get("TICKDOWN_HOME")
    leads_elsewhere = bool(home) and Path(os.path.expanduser(home or "")).resolve() != root
    needed = default is None or default.resolve() != root or leads_elsewhere
    _option = f" --workspace {shlex.quote(_storable(str(root)))}" if needed else ""


def program_name() -> str:
    """For the beginning of a complaint, and where a command is spoken of but not to be pasted."""
    return _name


def command_line(*words: str) -> str:
    """A command of this program for the same workspace: `scheduler.py resume web --workspace /srv/jobs`."""
    return " ".join([_name, *map(shlex.quote, words)]) + _option


def _storable(text: str) -> str:
    """Names of files may be no text; messages go into the database, which takes nothing else."""
    return text.encode("utf-8", "backslashreplace").decode()
