"""What more tasks cost."""

from __future__ import annotations

import time

from bench import workspaces
from bench.burst import CONFIG
from bench.measure import FLOOR, interleaved, next_minute
from bench.report import Section, mib, ms, table, times
from bench.scale import Bench
from bench.workspaces import EVERY_MINUTE, FILES_ARE_OLD_AFTER, Workspace

LONG_FROM = 50_000  # ticks over so many tasks are measured less often
IN_A_FOLDER = 1_000


def measure_growth(bench: Bench) -> Section:
    section = Section(
        "Growth",
        "Idle ticks against the same floor as above; then the schedules of 1 % of the tasks become `* * * * *`, and with the next"
        " minute one tick after the other, from the smallest to the largest, runs what is due (`true`, at most 16 at once),"
        " measured from its own start to its end. The files are in folders of 1,000.",
    )
    rows, spaces = [], []
    for count in bench.scale.growth:
        folders = max(1, count // IN_A_FOLDER)
        workspace = workspaces.make(bench.folder / f"growth-{count}", count, workspaces.realistic, folders, CONFIG)
        first = workspace.settle()
        rounds = bench.scale.few_rounds if count >= LONG_FROM else bench.scale.some_rounds
        floor, idle = interleaved(rounds, FLOOR, workspace.command("tick"))
        rows.append([f"{count:,}", ms(first.wall), ms(idle.wall), times(idle.wall / floor.wall), mib(idle.peak_kib)])
        spaces.append(workspace)
    minute = _let_one_percent_be_due(spaces)
    for workspace, row in zip(spaces, rows, strict=True):
        tick = workspace.tick(minute)
        workspace.check_recorded(len(_due(workspace)), minute)
        size = sum(path.stat().st_size for path in workspace.database.parent.glob(f"{workspace.database.name}*"))
        row += [ms(tick.wall), mib(tick.peak_kib), mib(size / 1024)]
    head = ["tasks", "first tick", "idle tick", "over floor", "peak memory", "1 % due", "peak memory", "database"]
    section.tables.append(table(head, rows))
    return section


def _due(workspace: Workspace) -> range:
    return range(0, workspace.count, 100)


def _let_one_percent_be_due(spaces: list[Workspace]) -> float:
    """All within one minute, so that the next one, which is returned, is the first for which they are due."""
    next_minute(least_seconds=45)
    for workspace in spaces:
        for number in _due(workspace):
            workspace.write_task(number, workspaces.realistic(number, EVERY_MINUTE))
        workspace.tick()
    time.sleep(FILES_ARE_OLD_AFTER)
    for workspace in spaces:
        workspace.tick()
    return next_minute()
