"""What agents may still spend: of one run, of a task today, of all tasks today."""

from __future__ import annotations

from datetime import datetime

from tickdown.context.context import Context
from tickdown.store import costs, runs
from tickdown.tasks.task import Task


def left_to_spend(context: Context, task: Task, run_id: str | None, now: datetime) -> float | None:
    """In US dollars; None if nothing limits it."""
    today, config = context.midnight(now), context.settings.config
    left = []
    if task.budget_usd is not None:
        run = runs.get_run(context.db, run_id) if run_id is not None else None
        left.append(task.budget_usd - ((run.usage.cost_usd or 0.0) if run is not None else 0.0))
    if task.budget_usd_per_day is not None:
        left.append(task.budget_usd_per_day - costs.spent(context.db, today, task.id))
    if config.budget_usd_per_day is not None:
        left.append(config.budget_usd_per_day - costs.spent(context.db, today))
    return min(left, default=None)


def over_budget(task: Task, cost_usd: float) -> bool:
    """Whether a run has cost more than it may. Agents are told what is left, but not all of them stop there."""
    if task.agent is None or task.budget_usd is None:
        return False
    return round(cost_usd - task.budget_usd, 6) > 0  # not by what a sum of fractions is off


def left_today(context: Context, now: datetime) -> float | None:
    """For an agent that heals or reads comments, which may always spend a cent."""
    limit = context.settings.config.budget_usd_per_day
    return None if limit is None else max(0.01, limit - costs.spent(context.db, context.midnight(now)))
