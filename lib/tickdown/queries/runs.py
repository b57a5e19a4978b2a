"""Runs that were, what they cost, and their logs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from pathlib import Path

from tickdown.base.model import Run, RunStatus
from tickdown.base.records import record
from tickdown.context.app import App, Opened
from tickdown.queries.find import check_known, find_run
from tickdown.queries.tasks import cut_off
from tickdown.store import costs, runs
from tickdown.store.costs import Cost
from tickdown.store.database import Database
from tickdown.time.zones import get_zone


@record(frozen=True)
class History:
    runs: Sequence[Run]  # newest first
    cut_off: Collection[str]  # ids of those that nobody looks after any more


def history(
    opened: Opened, task_id: str | None, limit: int, status: str | None = None, since: datetime | None = None
) -> History:
    if task_id is not None:
        check_known(opened.db, opened.catalog, task_id)
    found = runs.list_runs(opened.db, task_id, status, since, limit)
    return History(found, {run.run_id for run in cut_off(opened.db).values()} if found else ())


def runs_by_id(db: Database, run_ids: Iterable[str]) -> list[Run]:
    """Those that are still there."""
    return [run for run in (runs.get_run(db, run_id) for run_id in run_ids) if run is not None]


# --- costs -----------------------------------------------------------------------------------------------------


@record(frozen=True)
class Costs:
    """What agents have cost, by day and task."""

    since: datetime
    costs: Sequence[Cost]
    today_usd: float
    limit_usd: float | None  # for a day

    @property
    def total_usd(self) -> float:
        return sum(cost.cost_usd for cost in self.costs)

    @property
    def over_budget(self) -> int:
        return sum(cost.over_budget for cost in self.costs)


def costs_since(app: App, since: datetime, now: datetime) -> Costs:
    """Without the tasks: what was spent is known whatever their files say."""
    context, config = app.context(app.database()), app.settings.config
    found = costs.by_task_and_day(context.db, since, get_zone(config.timezone))
    return Costs(since, found, costs.spent(context.db, context.midnight(now)), config.budget_usd_per_day)


# --- logs ------------------------------------------------------------------------------------------------------


@record(frozen=True)
class RunLog:
    """The log of a run, which may be going on."""

    run: Run
    path: Path
    db: Database

    @property
    def is_there(self) -> bool:
        return bool(self.run.log) and self.path.is_file()

    def run_now(self) -> Run:
        """As it is by now."""
        return runs.get_run(self.db, self.run.run_id) or self.run

    def is_over(self) -> bool:
        current = runs.get_run(self.db, self.run.run_id)
        return current is None or current.status is not RunStatus.RUNNING


def run_log(opened: Opened, name: str) -> RunLog:
    """Of a run, or of the last run of a task."""
    run = find_run(opened.db, opened.catalog, name)
    return RunLog(run, opened.app.workspace.root / (run.log or ""), opened.db)
