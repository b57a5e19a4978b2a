"""scheduler.py as it is, but what waits in the queue of a tick leaves its row at once and not after a while."""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "lib")]

from tickdown.tick import tick  # noqa: E402

tick.NOTE_WAITING_AFTER = 0.0

import scheduler  # noqa: E402

sys.exit(scheduler.main())
