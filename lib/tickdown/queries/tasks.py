"""The tasks as they stand: state, last run, next run, what holds them up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tickdown.base.model import ErrorClass, Facts, Held, Run, RunStatus, TaskState
from tickdown.base.records import record, replace
from tickdown.context.app import facts_as_synced
from tickdown.governor.governor import NextRun, next_run, state_of
from tickdown.processes.lock import is_held
from tickdown.processes.process import boot_id
from tickdown.store import runs, tasks
from tickdown.store.database import Database
from tickdown.tasks.catalogue import Catalog, TaskFile
from tickdown.tasks.task import Task


@record(frozen=True)
class TaskView:
    """A task with everything that `list` tells of it."""

    task: Task
    state: TaskState
    next_run: NextRun
    last_run: Run | None
    cut_off: Run | None = None  # the run that says it is going on, but nobody looks after it any more
    held: Held | None = None


def held_now(facts: Facts, locks: Path) -> Facts:
    """Without a lock that a tick has found held, if it is free by now."""
    if facts.held is None or (not facts.running and is_held(locks, facts.task_id)):
        return facts
    return replace(facts, held=None)


def task_view(
    task: Task, facts: Facts | None, last: Run | None, now: datetime, cut_off: Mapping[str, Run] | None = None
) -> TaskView:
    """`cut_off` is what the function of this name has found, where that is to be told."""
    state = state_of(now, task, facts)
    dead = cut_off.get(task.id.lower()) if cut_off else None
    held = facts.held if facts is not None else None
    return TaskView(task, state, next_run(now, task, facts, boot_id()), last, dead, held)


def cut_off(db: Database) -> dict[str, Run]:
    """Runs that say they are going on but have lost their supervisor, by lower-case id of the task."""
    if not runs.running_runs(db):
        return {}
    from tickdown.run.recovery import dead_runs  # with all that runs need, which is much for `list`

    return {run.task_id.lower(): run for run in dead_runs(db)}


def task_views(db: Database, catalog: Catalog, now: datetime, locks: Path) -> list[TaskView]:
    facts = {key: held_now(fact, locks) for key, fact in facts_as_synced(db, catalog, now).items()}
    last, dead = runs.last_runs(db), cut_off(db)
    return [task_view(task, facts.get(task.id.lower()), last.get(task.id.lower()), now, dead) for task in catalog.tasks]


def rejected_files(db: Database, catalog: Catalog) -> list[tuple[TaskFile, str | None, Run | None]]:
    """Each with the id that it has, or had when it was last whole, and the last run under that."""
    if not catalog.rejected:
        return []
    names = {known.path: known.task_id for known in tasks.remembered(db).values()}
    found = [(file, file.task_id or names.get(file.path)) for file in catalog.rejected]
    return [(file, task_id, runs.last_run_of(db, task_id) if task_id else None) for file, task_id in found]


def transient_since(db: Database, last: Run | None) -> datetime | None:
    """When a row of failures began that pass by themselves, if the last run is one of them. Not farther back than matters
    to a person."""
    if last is None or not _passes(last):
        return None
    started = last.started_at
    for run in runs.list_runs(db, last.task_id, limit=100):
        if run.status in (RunStatus.SKIPPED, RunStatus.MISSED):
            continue
        if not _passes(run):
            break
        started = run.started_at
    return started


def _passes(run: Run) -> bool:
    return run.status is RunStatus.FAILED and run.error_class == ErrorClass.TRANSIENT
