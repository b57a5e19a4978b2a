"""A task or a run by the name that somebody gave; or an error that says what there is."""

from __future__ import annotations

import re

from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import Run
from tickdown.base.terminal import one_line
from tickdown.store import runs, tasks
from tickdown.store.database import Database
from tickdown.tasks.catalogue import Catalog, unknown_id
from tickdown.tasks.task import Task


def find_run(db: Database, catalog: Catalog, name: str) -> Run:
    """By run id (or the beginning of one), else the last real run of a task."""
    exact = runs.get_run(db, name)
    if exact is not None:
        return exact
    by_task = runs.last_run_of(db, name)
    if by_task is not None:
        return by_task
    by_prefix = runs.runs_starting_with(db, name) if len(name) >= 8 else []
    if len(by_prefix) == 1:
        return by_prefix[0]
    if re.fullmatch(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}", name):
        raise TickdownError(f"no run {name}; it may have been pruned (keep_runs)", Exit.UNKNOWN_ID)
    task = catalog.find(name)  # says so if there is no such task
    raise TickdownError(f"{task.id} has not run yet")


def known_ids(catalog: Catalog) -> list[str]:
    return [file.task_id for file in catalog.files if file.task_id]


def check_known(db: Database, catalog: Catalog, task_id: str) -> None:
    """A task that is gone still has its history."""
    if task_id.lower() not in {known.lower() for known in known_ids(catalog)} and not runs.list_runs(
        db, task_id, limit=1
    ):
        raise unknown_id(task_id, known_ids(catalog), catalog.nameless)


def find_task(db: Database, catalog: Catalog, task_id: str) -> Task:
    """The task of this id; for one that was there before, the error says what became of its file."""
    try:
        return catalog.find(task_id)
    except TickdownError as error:
        if error.code is not Exit.UNKNOWN_ID:
            raise
        before = tasks.remembered(db).get(task_id.lower())
        if before is not None and catalog.rejects(before.path):
            advice = f"its file {before.path} is rejected: {command_line('validate', before.path)}"
        elif runs.list_runs(db, task_id, limit=1):
            advice = f"its file is gone; `{command_line('history', task_id)}` tells what it did"
        else:
            raise
        raise TickdownError(f"no task {task_id!r}: {one_line(advice, 500)}", Exit.UNKNOWN_ID) from None
