"""scheduler.py as it is, but every run counts as quick, so that others are claimed ahead on any machine; they are kept for five
seconds, so that a test can look at them, and a locked database is waited for no longer than two."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib import idle

idle.BUSY_SECONDS = 2.0

from lib import starting  # noqa: E402

starting.IS_QUICK = 3600.0
starting.GIVE_BACK_AFTER = 5.0

import scheduler  # noqa: E402

sys.exit(scheduler.main())
