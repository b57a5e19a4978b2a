"""What Tickdown costs, measured side by side with what it is compared to: `make bench`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))
