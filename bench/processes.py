"""Programs that stay: starting and ending them with all their children, and what they use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.measure import ENVIRONMENT, CannotMeasure

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on a process whose parent has died becomes a child of this one, so that none can be lost."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))) and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        todo += (below := children.get(todo.pop(), []))
        found += below
    return found


def end_everything() -> None:
    """Whatever is left of what this process has started."""
    while left := descendants(os.getpid()):
        _kill(set(left))
        time.sleep(0.05)


def _kill(pids: set[int]) -> None:
    """Only what is still below this process: the number of another may have been given away again."""
    for pid in pids.intersection(descendants(os.getpid())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def resident(argv: Sequence[str], log: Path) -> Iterator[int]:
    """A program in the background; afterwards it and everything it started are gone."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process.pid
    except CannotMeasure as error:
        if process.poll() is None:
            raise
        raise CannotMeasure(f"it ended by itself: {log.read_text(errors='replace').strip()[-300:]}") from error
    finally:
        started = {process.pid, *descendants(process.pid)}
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        _kill(started)
        process.wait()


def cpu_seconds(pid: int) -> float:
    """Of a process that stays and of all its children that have ended. Its own share is in nanoseconds."""
    own = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    fields = _stat(pid)
    return own / 1e9 + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def resident_kib(pid: int) -> int:
    pages = sum(int(fields[21]) for each in (pid, *descendants(pid)) if (fields := _stat(each)))
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def _stat(pid: int) -> list[str]:
    """What follows the name in /proc/PID/stat, from the state on; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []
