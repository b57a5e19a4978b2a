"""Workspaces full of tasks."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import measure

EVERY_MINUTE = "* * * * *"
# Schedulers that go by the time stamps of files may not trust one that is only a moment old.
FILES_ARE_OLD_AFTER = 0.5

TextOf = Callable[[int], str]  # from the number of a task to its file


def task_id(number: int) -> str:
    return f"task-{number:06}"


def far_schedule(number: int) -> str:
    """Once a year, and not before months; hardly two of 10,000 tasks share it, so that none profits from another."""
    day = datetime.now(UTC) + timedelta(days=120 + number % 97)
    return f"{number % 60} {number // 60 % 24} {min(day.day, 28)} {day.month} *"


def minimal(number: int, schedule: str | None = None, command: str = "true") -> str:
    return f'---\nid: {task_id(number)}\nschedule: "{schedule or far_schedule(number)}"\ncommand: "{command}"\n---\n'


def realistic(number: int, schedule: str | None = None, title: str = "Copy the orders") -> str:
    return f"""---
id: {task_id(number)}
title: "{title} of shop {number}"
schedule: "{schedule or far_schedule(number)}"
command: "true"
timeout: {5 + number % 20}m
notify_on: {"always" if number % 10 == 0 else "failure"}
tags: [shop-{number % 50}, orders]
---
Fetches the orders of shop {number} and puts them where the report looks for them.

If it fails, look at the shop's own log first; running it twice does no harm.
"""


@dataclass(frozen=True, slots=True)
class Workspace:
    root: Path
    count: int
    folders: int

    @property
    def database(self) -> Path:
        return self.root / "state/tickdown.db"

    def command(self, *words: str) -> list[str]:
        return [measure.PYTHON, str(measure.PROJECT / "scheduler.py"), *words, "--workspace", str(self.root)]

    def tick(self, at: float = 0) -> measure.Measured:
        return measure.run(self.command("tick"), at)

    def first_tick(self) -> measure.Measured:
        """Makes the tasks known, and all of them: one that was rejected would cost less than it should."""
        tick = self.tick()
        if (known := self.rows("tasks")) != self.count:
            raise measure.CannotMeasure(f"{known} of {self.count} tasks are known after the first tick")
        return tick

    def settle(self) -> measure.Measured:
        """Until the tasks are known, their files old, and what only the first ticks have to do is done."""
        first = self.first_tick()
        time.sleep(FILES_ARE_OLD_AFTER)
        self.tick()
        self.tick()
        return first

    def forget(self) -> None:
        """As if no tick had ever run here."""
        for name in ("state", "logs"):
            if (self.root / name).exists():
                (self.root / name).rename(self.root / f"{name}-{time.monotonic_ns()}")

    def write_task(self, number: int, text: str) -> None:
        folder = self.root / "tasks"
        if self.folders > 1:
            folder /= f"part-{number % self.folders:03}"
        (folder / f"{task_id(number)}.md").write_text(text)

    def check_recorded(self, count: int, moment: float) -> None:
        """Every run since then has its row, and has succeeded."""
        since = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        recorded = self.rows(f"task_runs WHERE started_at >= '{since}'")
        successful = self.rows(f"task_runs WHERE started_at >= '{since}' AND status = 'success'")
        if not recorded == successful == count:
            raise measure.CannotMeasure(f"{count} jobs, {recorded} recorded runs, {successful} of them successful")

    def rows(self, of: str) -> int:
        connection = sqlite3.connect(self.database)
        (count,) = connection.execute(f"SELECT COUNT(*) FROM {of}").fetchone()
        connection.close()
        return int(count)


def make(root: Path, count: int, text_of: TextOf, folders: int = 1, config: str = "") -> Workspace:
    workspace = Workspace(root, count, folders)
    (root / "tasks").mkdir(parents=True)
    if folders > 1:
        for number in range(folders):
            (root / f"tasks/part-{number:03}").mkdir()
    if config:
        (root / "config.yaml").write_text(config)
    for number in range(count):
        workspace.write_task(number, text_of(number))
    return workspace
