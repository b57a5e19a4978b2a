"""Where the program is: a clone with `scheduler.py`, or an installed package with the command `tickdown`."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_AROUND = PACKAGE.parent.parent
IS_CLONE = (_AROUND / "scheduler.py").is_file()
# Everything that belongs to the program is below it.
ROOT = _AROUND if IS_CLONE else PACKAGE
# Prompts and example tasks. The package keeps its own copy of those that a clone has at its top.
SHIPPED = ROOT if IS_CLONE else PACKAGE / "shipped"
# What starts a command of ours from anywhere.
EXECUTABLE = ROOT / "scheduler.py" if IS_CLONE else Path(sys.prefix) / "bin" / "tickdown"
