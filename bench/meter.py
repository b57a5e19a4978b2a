"""Runs one command and prints its wall time, peak memory (KiB) and exit code.

A small process of its own, started with -I -S: Linux counts the memory of whoever starts a program towards the peak of
that program, so whoever starts it must be smaller than anything that is measured.
"""

import os
import sys
import time

start_at, argv = float(sys.argv[1]), sys.argv[2:]
time.sleep(max(0.0, start_at - time.time()))
began = time.perf_counter()
pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
_, status, used = os.wait4(pid, 0)
wall = time.perf_counter() - began
print(wall, used.ru_maxrss, os.waitstatus_to_exitcode(status))
