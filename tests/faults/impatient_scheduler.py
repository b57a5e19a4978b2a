"""scheduler.py as it is, but it waits for a locked database no longer than two seconds, so that a trial needs no minutes."""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "lib")]

from tickdown.store import heartbeat  # noqa: E402

heartbeat.BUSY_SECONDS = 2.0

import scheduler  # noqa: E402

sys.exit(scheduler.main())
