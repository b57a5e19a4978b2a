"""A database that has grown for months."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from bench import workspaces
from bench.measure import ENVIRONMENT, CannotMeasure, Measured, Series, interleaved
from bench.report import Goal, Section, mib, ms, table, times
from bench.scale import Bench
from bench.workspaces import Workspace, task_id

SPREAD = timedelta(days=80)
KEPT_DAYS = 72  # of 80: a tenth of the runs is older
BUSY_TASK = 7  # it has two of a hundred runs, so that its history fills a page in both databases
RUNS = (
    "INSERT INTO task_runs (run_id, task_id, key, status, source, recorded_at, scheduled_for, started_at, finished_at,"
    " exit_code, attempts, host, trace_id, error, error_class, log)"
    " VALUES (?, ?, ?, ?, 'baseline-cron', ?, ?, ?, ?, ?, 1, 'bench', ?, ?, ?, ?)"
)
ATTEMPTS = (
    "INSERT INTO attempts (run_id, number, rung, status, started_at, finished_at, exit_code, error_class, error, log_start,"
    " log_end) SELECT run_id, 1, 'run', status, started_at, finished_at, exit_code, error_class, error, 0, 120 FROM task_runs"
)


def measure_history(bench: Bench) -> Section:
    scale = bench.scale
    section = Section(
        "Big history",
        f"The same commands on {scale.many_tasks:,} tasks with {scale.some_runs:,} and with {scale.many_runs:,} stored runs over"
        f" {SPREAD.days} days, taking turns, medians of {scale.some_rounds} rounds. ID is a task with 2 % of all runs.",
    )
    few, many = (_filled(bench, runs) for runs in (scale.some_runs, scale.many_runs))
    busy = task_id(BUSY_TASK)
    rows = []
    for words in (["list"], ["history"], ["history", busy], ["show", busy], ["why", busy]):
        short, long = interleaved(scale.some_rounds, few.command(*words), many.command(*words))
        name = "`" + " ".join(words).replace(busy, "ID") + "`"
        ratio = long.wall / short.wall
        rows.append([name, ms(short.wall), ms(long.wall), times(ratio), mib(short.peak_kib), mib(long.peak_kib)])
        section.goals.append(Goal(f"{name} at {scale.many_runs:,} runs over {scale.some_runs:,}", ratio, 1.5))
    head = ["", f"{scale.some_runs:,} runs", f"{scale.many_runs:,} runs", "ratio", "peak memory", "peak memory"]
    section.tables.append(table(head, rows))
    section.notes.append(f"The database with {scale.many_runs:,} runs has {mib(many.database.stat().st_size / 1024)}.")
    _prune_beside_ticks(bench, many, section)
    return section


def _filled(bench: Bench, runs: int) -> Workspace:
    workspace = workspaces.make(bench.folder / f"history-{runs}", bench.scale.many_tasks, workspaces.realistic)
    workspace.first_tick()
    connection = sqlite3.connect(workspace.database)
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        connection.executemany(RUNS, _runs(runs, bench.scale.many_tasks))
        connection.execute(ATTEMPTS)
    connection.close()
    workspace.settle()
    return workspace


def _runs(count: int, tasks: int) -> Iterator[tuple[object, ...]]:
    """From the oldest to the newest, as they would have come."""
    now = datetime.now(UTC)
    for number in range(count):
        at = now - SPREAD + SPREAD * number / count
        start, end = _stored(at), _stored(at + timedelta(seconds=2))
        task = task_id(BUSY_TASK if number % 50 == 0 else number % tasks)
        run_id = f"{at:%Y%m%dT%H%M%S}-{number:08x}"
        failed = number % 33 == 1
        error = ("exit code 1: the shop does not answer", "error") if failed else (None, None)
        yield (run_id, task, f"{task}@{number}", "failed" if failed else "success", start, start, start, end, int(failed),
               f"{number:032x}", *error, f"logs/runs/{task}/{run_id}.log")  # fmt: skip


def _stored(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _prune_beside_ticks(bench: Bench, workspace: Workspace, section: Section) -> None:
    (workspace.root / "config.yaml").write_text(f"keep_runs: {KEPT_DAYS}d\n")
    workspace.settle()
    stored = workspace.rows("task_runs")
    alone = Series(tuple(workspace.tick() for _ in range(bench.scale.some_rounds)))
    beside: list[Measured] = []
    with subprocess.Popen(workspace.command("prune"), env=ENVIRONMENT, stdout=subprocess.DEVNULL) as prune:
        while prune.poll() is None:
            beside.append(workspace.tick())
    removed = stored - workspace.rows("task_runs")
    if prune.returncode != 0 or not 0.09 < removed / stored < 0.11:
        raise CannotMeasure(f"prune ended with {prune.returncode} and removed {removed} of {stored} runs")
    during = Series(tuple(beside))
    ratio = times(during.longest_wall / alone.wall)
    row = [ms(alone.wall), str(len(beside)), ms(during.wall), ms(during.longest_wall), ratio]
    section.tables += [
        f"Retention: `prune` removes {removed:,} of {stored:,} runs (rows without log files) while idle ticks run one after another.",
        table(["idle tick alone", "ticks beside prune", "median", "longest", "longest over alone"], [row]),
    ]
