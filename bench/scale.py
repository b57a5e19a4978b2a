"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int = 21  # of what takes less than a second
    some_rounds: int = 7  # of what takes seconds
    few_rounds: int = 3  # of what takes minutes, or waits for them
    some_tasks: int = 1_000
    many_tasks: int = 10_000
    jobs: int = 1_000  # due in the same minute
    some_runs: int = 1_000
    many_runs: int = 1_000_000
    growth: tuple[int, ...] = (100, 1_000, 10_000, 100_000)


# Only to see that everything works: the numbers mean nothing.
QUICK = Scale(
    rounds=3, some_rounds=2, few_rounds=1, some_tasks=50, many_tasks=200, jobs=50, many_runs=20_000, growth=(100, 200)
)


@dataclass(frozen=True, slots=True)
class Bench:
    folder: Path  # for everything temporary
    scale: Scale
