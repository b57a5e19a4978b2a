"""What is decided about one task: the governor's plan, from its file, the facts and what keeps its agent from starting."""

from __future__ import annotations

from datetime import datetime, timedelta

from tickdown.attempt.command import find_agent, own_variables
from tickdown.base.model import Facts, Held, SkipReason
from tickdown.base.records import record, replace
from tickdown.context.budget import left_to_spend
from tickdown.context.context import Context
from tickdown.governor.governor import Plan, plan
from tickdown.governor.miss_reasons import lacks_reasons, with_reasons
from tickdown.processes.lock import look_at
from tickdown.processes.process import boot_id
from tickdown.store import runs, tasks, ticks
from tickdown.tasks.catalogue import reread
from tickdown.tasks.task import Task

# A run whose end is on record lets go of its lock within moments; but its process may have been kept from it.
LET_GO_WITHIN = timedelta(seconds=60)


@record(frozen=True)
class Decision:
    """The pure part of a tick, for one task."""

    task: Task
    facts: Facts
    plan: Plan
    hindered: SkipReason | None = None  # what keeps its agent from starting


def decide(context: Context, task: Task, facts: Facts, now: datetime) -> Decision:
    """What is to be done about a task now. Why something was missed is looked up only if something was."""
    hindered = hindrance(context, task, now)
    what = plan(now, task, facts, boot_id(), hindered)
    if what.beside is not None and lacks_reasons(what.beside):
        what = replace(what, beside=_explained(context, task, what.beside))
    return Decision(task, facts, _explained(context, task, what) if lacks_reasons(what) else what, hindered)


def _explained(context: Context, task: Task, what: Plan) -> Plan:
    return with_reasons(what, task.schedule, ticks.stoppages(context.db, what.unrun[0].first))


def decide_again(context: Context, task: Task, now: datetime) -> Decision | None:
    """The same, from the file and the facts as they are now: meanwhile it may have been edited, paused or removed."""
    edited = reread(task, context.workspace, context.settings.config.surroundings())
    facts = tasks.facts(context.db, task.id)
    return decide(context, edited, facts, now) if edited is not None and facts is not None else None


def by_its_lock(context: Context, facts: Facts, now: datetime) -> Facts:
    """With whoever holds the lock of a task though no run of it is on record: a run that a set-aside database knew of, or a
    stranger. Not who is about to record a run, nor who has just done so with its end."""
    seen = look_at(context.workspace.locks, facts.task_id) if not facts.running else None
    if seen is None or seen.is_claiming or _has_just_ended(context, seen.run_id, now):
        return replace(facts, held=None) if facts.held is not None else facts
    before = facts.held or Held(seen.words, now)
    return replace(facts, held=replace(before, by=seen.words))


def _has_just_ended(context: Context, run_id: str | None, now: datetime) -> bool:
    run = runs.get_run(context.db, run_id) if run_id is not None else None
    return run is not None and (run.finished_at is None or abs(now - run.finished_at) < LET_GO_WITHIN)


def hindrance(context: Context, task: Task, now: datetime) -> SkipReason | None:
    """What keeps a task of an agent from starting."""
    if task.agent is None:
        return None
    path = own_variables(task, context.settings.environment).get("PATH")
    if find_agent(context.settings.config.agents[task.agent], context.place, path) is None:
        return SkipReason.MISSING_AGENT
    left = left_to_spend(context, task, None, now)
    return SkipReason.BUDGET_EXCEEDED if left is not None and left <= 0 else None
