"""Tests through the real program. `python -m tests.faults` needs the path that pytest is told in pyproject.toml."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))
