"""The verdict on a task at the end of one of its runs, who is told, and the rows of both."""

from __future__ import annotations

from datetime import datetime

from tickdown.alerts import messages
from tickdown.base.model import AlertKind, ErrorClass, Facts, NotifyOn, RunStatus, Source
from tickdown.base.records import replace
from tickdown.context.budget import over_budget
from tickdown.failure.ladder import Circumstances, Verdict, judge
from tickdown.governor.governor import is_spent
from tickdown.store import outbox, runs, tasks
from tickdown.store.database import Database
from tickdown.tasks.task import Task


def conclude(
    db: Database, task: Task, ending: runs.Ending, how: Circumstances, told: messages.Tried, now: datetime
) -> Verdict | None:
    """In the transaction that is going on; no verdict on a run that another follows."""
    facts = tasks.record_of(db, task.id) or Facts(task.id, armed_at=now)
    outcome, verdict = ending.outcome, None
    if ending.retry_at is None:
        is_last = ending.source is not Source.MANUAL and is_spent(task, facts)
        verdict = judge(task, facts, outcome, now, replace(how, last_of_one_shot=is_last))
        since = facts.incident_since or verdict.incident_since
        alert = messages.run_alert(task, verdict, outcome, ending.run_id, ending.summary, since, told)
        tickets = messages.run_tickets(task, verdict, outcome, ending.run_id, told)
        ending = replace(ending, verdict=verdict, alerts=[alert] if alert is not None else [], tickets=tickets)
    note = "It succeeded again." if outcome.status is RunStatus.SUCCESS and facts.failures else None
    ending = _with_its_cost(db, task, replace(ending, note=note, story=messages.story(told, outcome)), now)
    runs.finish_run(db.connection, ending, now)
    return verdict


def _with_its_cost(db: Database, task: Task, ending: runs.Ending, now: datetime) -> runs.Ending:
    """A run that went over its budget says so, however it ended; it is told once a day, unless its error tells."""
    before = runs.get_run(db, ending.run_id) if task.budget_usd is not None else None
    if before is None or task.budget_usd is None:
        return ending
    cost = (before.usage.cost_usd or 0.0) + (ending.outcome.usage.cost_usd or 0.0)
    if not over_budget(task, cost):
        return ending
    today = now.astimezone(task.zone).replace(hour=0, minute=0, second=0, microsecond=0)
    is_told = (
        task.notify_on is NotifyOn.NEVER
        or ending.outcome.error_class is ErrorClass.BUDGET
        or outbox.told_since(db, AlertKind.OVER_BUDGET, today, task.id)
    )
    more = [] if is_told else [messages.over_budget_alert(task, ending.run_id, task.budget_usd, cost)]
    story = filter(None, [ending.story, messages.over_budget_note(task.budget_usd, cost)])
    return replace(ending, alerts=[*ending.alerts, *more], story="; ".join(story), over_budget=True)
