"""No text, however long and however made, takes a reader minutes or gigabytes."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers import PROJECT

# The processor's seconds that all of it may take: some twenty times what it needs, and nothing against what one pattern that
# looks at a long text from each of its places would need. And KiB of address space.
SECONDS, KIB = 200, 1024 * 1024


def test_the_longest_inputs_take_neither_minutes_nor_gigabytes() -> None:
    limits = ["sh", "-c", f'ulimit -t {SECONDS}; ulimit -v {KIB}; exec "$@"', "sh"]
    done = subprocess.run(
        [*limits, sys.executable, "-m", "tests.faults.long_inputs"], capture_output=True, text=True, cwd=PROJECT
    )
    assert done.returncode == 0, f"{done.returncode} at {done.stdout.splitlines()[-1:]}\n{done.stderr[-3000:]}"
