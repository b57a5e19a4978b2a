"""What was measured, as Markdown: for the terminal, and for RESULTS.md when everything ran."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml
from yaml import _yaml

from bench.measure import PROJECT
from tickdown import VERSION

RESULTS = PROJECT / "bench/RESULTS.md"

LIMITS = """## Limits, and what comes after them

- **Files.** Every tick asks for the times of every file, about 5 µs each: up to some 20,000 tasks nobody notices, and at 100,000 an
  idle tick costs more than half a second of each minute. What would come next is a watcher that stays running (inotify) and
  leaves word, which is what this program was made to do without; or several workspaces, each with its own line in the crontab.
  A tick that finds a change reads that file alone, and fetches what it knows of the others, less than 10 µs each.
- **Starting.** A run costs about 0.9 ms of processor time beyond the command itself: its claim, lock, log, two commits shared with
  others and one line of history. A command that lives in the shell alone (`echo`) costs little more than that, so a burst of
  those shows it; a command that starts one program hides most of it. A second process takes half of a long queue; more
  processors would take their share too, until SQLite is the limit.
- **Writing.** One SQLite file takes one writer at a time, and each commit waits for the disk. Starts and ends that come together
  share one; with a disk of 1 ms that is some thousand starts a second. Behind that lies PostgreSQL.
- **History.** What commands show is found by index, so a million runs look like a thousand. The database grows by about 0.6 KiB
  for a run; `keep_runs` says when they go, and they go in lots of 500, so that nobody waits.
"""


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    ratio: float
    limit: float

    @property
    def row(self) -> list[str]:
        met = "yes" if self.ratio <= self.limit else "**no**"
        return [self.what, times(self.ratio), f"≤ {self.limit:g}×", met]


@dataclass(slots=True)
class Section:
    title: str
    how: str
    tables: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        parts = [f"## {self.title}", self.how, *self.tables]
        if self.goals:
            parts.append(goals_table(self.goals))
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"


def goals_table(goals: Sequence[Goal]) -> str:
    return table(["ratio", "measured", "goal", "met"], [goal.row for goal in goals])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Padded, so that it can be read in a terminal too."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


def mib(kib: float) -> str:
    return f"{kib / 1024:,.1f} MiB"


def times(ratio: float) -> str:
    return f"{ratio:.2f}×"


def write_results(sections: Sequence[Section], minutes: float) -> None:
    goals = [goal for section in sections for goal in section.goals]
    parts = [
        "# What Tickdown costs\n\nMade by `make bench`; every number is from one run of it, on this machine:",
        table(["", ""], [[name, value] for name, value in machine().items()] + [["took", f"{minutes:.0f} minutes"]]),
        "Ratios carry over to other machines better than times do. All goals at a glance:",
        goals_table(goals) if goals else "(none was measured)",
        *(section.markdown().rstrip() for section in sections),
        LIMITS,
    ]
    RESULTS.write_text("\n\n".join(parts))


def machine() -> dict[str, str]:
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    folder = Path(tempfile.gettempdir()).resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    _, filesystem = max((len(point), kind) for point, kind in mounts if folder.is_relative_to(point))
    return {
        "Tickdown": VERSION,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "processor": f"{cpu[1] if cpu else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem,
        "Python, SQLite": f"{platform.python_version()}, {sqlite3.sqlite_version}",
        "PyYAML, libyaml": f"{yaml.__version__}, {_yaml.get_version_string()}",
        "bash": _first_line("bash", "--version"),
        "xargs": _first_line("xargs", "--version"),
        "cron": _first_line("dpkg-query", "-W", "cron"),
    }


def _first_line(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    except OSError:
        return "not found"
    return done.stdout.partition("\n")[0].replace("\t", " ") or "not found"
