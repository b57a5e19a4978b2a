"""Running commands and taking their time and memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
# What every tick is compared with: an interpreter that starts, loads what a tick can't do without, and ends.
FLOOR = [PYTHON, "-c", "import sqlite3"]
# Little and the same for everybody, as under cron. UTC, because not every tool looks at the machine's zone.
ENVIRONMENT = {
    "HOME": os.environ.get("HOME", "/"),
    "LANG": "C.UTF-8",
    "PATH": f"{Path(PYTHON).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TZ": "UTC",
}


class CannotMeasure(Exception):
    """What was to be measured did not happen, or not as it should; the text says what."""


@dataclass(frozen=True, slots=True)
class Measured:
    wall: float
    peak_kib: int


@dataclass(frozen=True, slots=True)
class Series:
    runs: tuple[Measured, ...]

    @property
    def wall(self) -> float:
        return statistics.median(run.wall for run in self.runs)

    @property
    def least_wall(self) -> float:
        return min(run.wall for run in self.runs)

    @property
    def longest_wall(self) -> float:
        return max(run.wall for run in self.runs)

    @property
    def peak_kib(self) -> float:
        return statistics.median(run.peak_kib for run in self.runs)


def run(argv: Sequence[str], at: float = 0) -> Measured:
    """One run of a command, started at that moment (seconds since 1970) or at once. It must succeed."""
    meter = [PYTHON, "-I", "-S", str(PROJECT / "bench/meter.py"), str(at), *argv]
    done = subprocess.run(meter, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    wall, peak_kib, exit_code = done.stdout.split()
    if int(exit_code) != 0:
        raise CannotMeasure(f"{' '.join(argv)} ended with {exit_code}: {done.stderr.strip()[-1000:]}")
    return Measured(float(wall), int(peak_kib))


def interleaved(rounds: int, *commands: Sequence[str]) -> list[Series]:
    """A B A B …, so that whatever else the machine does meets all of them alike."""
    taken = [[run(command) for command in commands] for _ in range(rounds)]
    return [Series(tuple(one[number] for one in taken)) for number in range(len(commands))]


def next_minute(least_seconds: float = 0) -> float:
    """The next full minute. If less than that is left until it, the one after it, and only once this one is over."""
    minute = (time.time() // 60 + 1) * 60
    if minute - time.time() >= least_seconds:
        return minute
    sleep_until(minute)
    return minute + 60


def sleep_until(moment: float) -> None:
    while (left := moment - time.time()) > 0:
        time.sleep(left)
