"""All that is known of one task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tickdown.base.model import ActionTaken, Attempt, Comment, Facts, Run
from tickdown.base.records import record
from tickdown.context.app import Opened, facts_as_synced
from tickdown.queries.tasks import TaskView, cut_off, held_now, task_view, transient_since
from tickdown.store import actions, comments, runs
from tickdown.store.tickets import TicketRow, list_tickets
from tickdown.tasks.task import Task
from tickdown.tasks.yaml_tree import Problem

RUNS_SHOWN = 5
ACTIONS_SHOWN = 5


@record(frozen=True)
class Details:
    view: TaskView
    facts: Facts | None
    runs: Sequence[Run]  # the last ones, newest first
    attempts: dict[str, Sequence[Attempt]]  # of those and of its last real run, by id of the run
    tickets: Sequence[TicketRow]
    unread: Sequence[Comment]
    actions: Sequence[ActionTaken]  # the last ones, newest first
    warnings: Sequence[Problem]  # about its file
    transient_since: datetime | None  # since when it fails with what passes by itself


def details(opened: Opened, task: Task) -> Details:
    db, catalog, now = opened.db, opened.catalog, opened.now
    facts = facts_as_synced(db, catalog, now).get(task.id.lower())
    facts = held_now(facts, opened.app.workspace.locks) if facts is not None else None
    last = runs.last_run_of(db, task.id)
    recent = runs.list_runs(db, task.id, limit=RUNS_SHOWN)
    shown = {run.run_id for run in (*recent, *([last] if last is not None else []))}
    return Details(
        view=task_view(task, facts, last, now, cut_off(db)),
        facts=facts,
        runs=recent,
        attempts={run_id: runs.attempts_of(db, run_id) for run_id in shown},
        tickets=list_tickets(db, task.id),
        unread=comments.unread_of(db, task.id),
        actions=actions.last_of(db, task.id, ACTIONS_SHOWN),
        warnings=next((file.warnings for file in catalog.files if file.path == task.path), []),
        transient_since=transient_since(db, last),
    )
