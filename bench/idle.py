"""The tick that finds nothing to do, which is nearly every tick."""

from __future__ import annotations

from bench import workspaces
from bench.measure import FLOOR, interleaved
from bench.report import Goal, Section, mib, ms, table, times
from bench.scale import Bench


def measure_idle(bench: Bench) -> Section:
    section = Section(
        "Idle tick",
        "Nothing is due and nothing has changed. The floor is `python -c 'import sqlite3'` with the same interpreter;"
        f" floor and tick take turns, {bench.scale.rounds} rounds. Peak memory is `ru_maxrss` of the process.",
    )
    rows = []
    for count, limit in ((bench.scale.some_tasks, 2.5), (bench.scale.many_tasks, 5.0)):
        workspace = workspaces.make(bench.folder / f"idle-{count}", count, workspaces.realistic)
        workspace.settle()
        floor, tick = interleaved(bench.scale.rounds, FLOOR, workspace.command("tick"))
        wall, memory = tick.wall / floor.wall, tick.peak_kib / floor.peak_kib
        rows += [
            [f"{count:,}", "wall, median", ms(floor.wall), ms(tick.wall), times(wall)],
            ["", "wall, least", ms(floor.least_wall), ms(tick.least_wall), times(tick.least_wall / floor.least_wall)],
            ["", "peak memory", mib(floor.peak_kib), mib(tick.peak_kib), times(memory)],
        ]
        section.goals += [
            Goal(f"idle tick at {count:,} tasks over the floor, wall time", wall, limit),
            Goal(f"idle tick at {count:,} tasks over the floor, peak memory", memory, 2.0),
        ]
    section.tables.append(table(["tasks", "", "floor", "tick", "ratio"], rows))
    return section
