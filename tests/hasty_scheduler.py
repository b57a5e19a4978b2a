"""scheduler.py as it is, but what waits in the queue of a tick leaves its row at once and not after a while."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib import tick

tick.NOTE_WAITING_AFTER = 0.0

import scheduler  # noqa: E402

sys.exit(scheduler.main())
