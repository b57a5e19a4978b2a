"""scheduler.py as it is, but it renews its leases twice a second and not twice a minute."""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "lib")]

from tickdown.run import supervisor  # noqa: E402

supervisor.HEARTBEAT_EVERY = 0.5

import scheduler  # noqa: E402

sys.exit(scheduler.main())
