"""What a healer would be told, and what past heals changed."""

from __future__ import annotations

from collections.abc import Sequence

from tickdown.attempt.command import own_variables
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import HealRow, Run
from tickdown.base.records import record
from tickdown.base.terminal import one_line
from tickdown.context.app import Opened
from tickdown.heal.guard import Scope
from tickdown.heal.healer import heal_prompt, log_tail, saved_diff, scope_for
from tickdown.heal.policy import why_no_heal
from tickdown.store import heals, runs
from tickdown.store.database import Database
from tickdown.tasks.task import Task


@record(frozen=True)
class Rehearsal:
    """What the next heal of a task would be; nothing is started, nothing is changed."""

    why_not: str | None  # None: it would be healed
    failed: Run | None  # its last failure
    scope: Scope  # the files that could be touched
    prompt: str


@record(frozen=True)
class HealsOfRun:
    run: Run
    rows: Sequence[HealRow]
    diffs: Sequence[str]  # what each of them changed


def rehearsal(opened: Opened, task: Task) -> Rehearsal:
    context, app = opened.context, opened.app
    redactor = app.redactor.knowing(own_variables(task, app.settings.environment))
    failed = runs.last_failed(opened.db, task.id)
    why_not = why_no_heal(context, task, opened.now)
    scope = scope_for(context, task)
    log = log_tail(f"{app.workspace.root}/{failed.log}") if failed is not None and failed.log else ""
    error = (failed.error if failed is not None else None) or "(it has not failed yet)"
    return Rehearsal(why_not, failed, scope, heal_prompt(context, task, scope, error, log, (), redactor))


def heals_of(opened: Opened, task: Task, name: str) -> HealsOfRun:
    """Of the run of this name, or whose name begins so."""
    run = runs.get_run(opened.db, name) or _by_beginning(opened.db, name)
    if run.task_id.lower() != task.id.lower():
        raise TickdownError(f"run {run.run_id} is one of {run.task_id}, not of {task.id}", Exit.USAGE)
    rows = heals.of_run(opened.db, run.run_id)
    if not rows:
        raise TickdownError(
            f"nothing was healed in run {run.run_id}; `{command_line('show', task.id)}` shows the last runs"
        )
    return HealsOfRun(run, rows, [saved_diff(opened.app.workspace, row) for row in rows])


def _by_beginning(db: Database, name: str) -> Run:
    found = runs.runs_starting_with(db, name) if len(name) >= 8 else []
    if len(found) != 1:
        raise TickdownError(f"no run {one_line(name, 60)!r}; `{command_line('history')}` lists them", Exit.UNKNOWN_ID)
    return found[0]
