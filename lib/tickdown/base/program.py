"""Where the program is: a clone with `scheduler.py`, or an installed package with the command `tickdown`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_AROUND = PACKAGE.parent.parent
IS_CLONE = (_AROUND / "scheduler.py").is_file()
# Everything that belongs to the program is below it.
ROOT = _AROUND if IS_CLONE else PACKAGE
# Prompts and example tasks. The package keeps its own copy of those that a clone has at its top.
SHIPPED = ROOT if IS_CLONE else PACKAGE / "shipped"
# The virtual environment that this runs in, if it is one.
ENVIRONMENT = None if sys.prefix == sys.base_prefix else Path(sys.prefix).resolve()


def _installed_command() -> Path:
    """Installers put it beside the packages, but not at the same place in every case: an environment (or ~/.local, or
    /usr/local) has `bin` beside `lib/pythonX/site-packages`, `pip install --target` has it among the packages."""
    folders = (*PACKAGE.parents[3:4], PACKAGE.parent, Path(sys.prefix))
    places = [folder / "bin" / "tickdown" for folder in folders]
    return next((place for place in places if os.access(place, os.X_OK)), places[-1])


# What starts a command of ours from anywhere.
EXECUTABLE = ROOT / "scheduler.py" if IS_CLONE else _installed_command()
