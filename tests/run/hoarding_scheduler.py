"""scheduler.py as it is, but every run counts as quick, so that others are claimed ahead on any machine; they are kept for five
seconds, so that a test can look at them, and a locked database is waited for no longer than two."""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "lib")]

from tickdown.store import heartbeat  # noqa: E402

heartbeat.BUSY_SECONDS = 2.0

from tickdown.run import slots  # noqa: E402

slots.IS_QUICK = 3600.0
slots.GIVE_BACK_AFTER = 5.0

import scheduler  # noqa: E402

sys.exit(scheduler.main())
