"""Whether the healer may be asked about a task. Apart from `heal`, which is large and which most ticks never need."""

from __future__ import annotations

from datetime import datetime

from tickdown.attempt.command import find_agent
from tickdown.base.model import TicketKind
from tickdown.context.context import Context
from tickdown.failure.ladder import NoHeal
from tickdown.store import costs, heals
from tickdown.store.tickets import is_open
from tickdown.tasks.task import Task


def why_no_heal(context: Context, task: Task, now: datetime, *, allowed: bool = True) -> NoHeal | None:
    """None if it may be asked now."""
    healer = context.healer
    if healer is None:
        return NoHeal.OFF
    if not task.self_heal:
        return NoHeal.BY_TASK
    if task.request is not None:
        return NoHeal.NOTHING_TO_EDIT
    if find_agent(healer, context.place) is None:
        return NoHeal.NOT_INSTALLED
    if not allowed:
        return NoHeal.BY_HAND
    if is_open(context.db, task.id, TicketKind.NEEDS_HUMAN):
        return NoHeal.ASKED_A_HUMAN
    today, config = context.midnight(now), context.settings.config
    if config.budget_usd_per_day is not None and costs.spent(context.db, today) >= config.budget_usd_per_day:
        return NoHeal.NO_BUDGET
    return heals.no_heal_left(context.db, task.id, today, config.heals_per_day)
