"""Run a command of the scheduler and write down what it took: measured.py OUT SCHEDULER ARGUMENT…

One line is added to OUT: the most memory that it had at once, in KiB, and how many descriptors are open at its end.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path

MOST_DESCRIPTORS = 64  # at any moment, beside those kept for last words: who leaks a few per run does not get far
out, program, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.path[:1] = [os.path.dirname(program), os.path.join(os.path.dirname(program), "lib")]

import scheduler  # noqa: E402
from tickdown.ui.cli import LAST_WORDS  # noqa: E402

# With none left the fake clock can't be read, and the time is the machine's own.
resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS + LAST_WORDS,) * 2)

code = scheduler.main(arguments)
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
assert peak is not None
with open(out, "a", encoding="utf-8") as file:
    file.write(f"{peak[1]} {len(os.listdir('/proc/self/fd'))}\n")
sys.exit(code)
