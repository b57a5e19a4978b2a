"""Files that a tick has not seen before."""

from __future__ import annotations

import statistics
import time

from bench import workspaces
from bench.measure import PROJECT, PYTHON, Series, run
from bench.report import Goal, Section, ms, table, times
from bench.scale import Bench
from bench.workspaces import FILES_ARE_OLD_AFTER, TextOf

A_FEW = 10


def measure_load(bench: Bench) -> Section:
    count, rounds = bench.scale.many_tasks, bench.scale.some_rounds
    section = Section(
        "First load",
        f"The first tick over {count:,} new files of which none is due, against one process that reads the same files and"
        f" parses their heads with libyaml (`CSafeLoader`); both with their start, taking turns, medians of {rounds} rounds.",
    )
    rows = []
    texts: list[tuple[str, TextOf]] = [
        ("seven fields and a text", workspaces.realistic),
        ("three fields", workspaces.minimal),
    ]
    for name, text_of in texts:
        parse, first = _first_load(bench, text_of, rounds)
        ratio = first.wall / parse.wall
        rows.append([name, ms(parse.wall), ms(first.wall), times(ratio)])
        section.goals.append(Goal(f"first tick over {count:,} files over libyaml, {name}", ratio, 3.0))
    section.tables.append(table(["files with", "libyaml alone", "first tick", "ratio"], rows))
    section.tables.append("One changed file: what a tick takes more than an idle one, medians.")
    section.tables.append(_one_change(bench))
    return section


def _first_load(bench: Bench, text_of: TextOf, rounds: int) -> tuple[Series, Series]:
    count = bench.scale.many_tasks
    workspace = workspaces.make(bench.folder / f"load-{text_of.__name__}", count, text_of)
    parse_argv = [PYTHON, str(PROJECT / "bench/parse_yaml.py"), str(workspace.root / "tasks"), str(count)]
    parses, firsts = [], []
    for _ in range(rounds):
        parses.append(run(parse_argv))
        workspace.forget()
        firsts.append(workspace.first_tick())
    return Series(tuple(parses)), Series(tuple(firsts))


def _one_change(bench: Bench) -> str:
    sizes = (bench.scale.many_tasks, A_FEW)
    spaces = [workspaces.make(bench.folder / f"change-{count}", count, workspaces.realistic) for count in sizes]
    for workspace in spaces:
        workspace.settle()
    idle, changed = [], []
    for number in range(bench.scale.some_rounds):
        idle.append([workspace.tick().wall for workspace in spaces])
        for workspace in spaces:
            workspace.write_task(0, workspaces.realistic(0, title=f"Version {number}"))
        changed.append([workspace.tick().wall for workspace in spaces])
        time.sleep(FILES_ARE_OLD_AFTER)
        for workspace in spaces:
            workspace.tick()
    rows = []
    for count, befores, afters in zip(sizes, zip(*idle, strict=True), zip(*changed, strict=True), strict=True):
        before, after = statistics.median(befores), statistics.median(afters)
        rows.append([f"{count:,}", ms(before), ms(after), ms(after - before)])
    return table(["tasks", "idle tick", "one file changed", "difference"], rows)
