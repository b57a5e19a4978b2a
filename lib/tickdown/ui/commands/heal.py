"""`heal`: what a healer would be told, what a past heal changed, and taking it back."""

from __future__ import annotations

from datetime import UTC, datetime

from tickdown.attempt.command import own_variables
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import HealRow, HealStatus, Run
from tickdown.base.terminal import one_line, printable
from tickdown.context.app import App
from tickdown.context.context import Context
from tickdown.heal.healer import heal_prompt, log_tail, saved_diff, scope_for, undo
from tickdown.heal.policy import why_no_heal
from tickdown.processes.lock import TaskLock
from tickdown.queries.find import find_task
from tickdown.store import heals, runs
from tickdown.store.database import Database
from tickdown.tasks.task import Task
from tickdown.time.durations import iso
from tickdown.time.moments import when
from tickdown.ui.views import Screen, done, usd


def heal(app: App, screen: Screen, task_id: str, is_dry_run: bool, diff: str | None, undo_run: str | None) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    if is_dry_run:
        return _rehearse(app, screen, db, task, now)
    run = runs.get_run(db, diff or undo_run or "") or _by_beginning(db, diff or undo_run or "")
    if run.task_id.lower() != task.id.lower():
        raise TickdownError(f"run {run.run_id} is one of {run.task_id}, not of {task.id}", Exit.USAGE)
    rows = heals.of_run(db, run.run_id)
    if not rows:
        raise TickdownError(
            f"nothing was healed in run {run.run_id}; `{command_line('show', task.id)}` shows the last runs"
        )
    if diff is not None:
        return _show(app, screen, task, rows, now)
    return _undo(app.context(db), screen, task, run, rows, now)


def _by_beginning(db: Database, name: str) -> Run:
    found = runs.runs_starting_with(db, name) if len(name) >= 8 else []
    if len(found) != 1:
        raise TickdownError(f"no run {one_line(name, 60)!r}; `{command_line('history')}` lists them", Exit.UNKNOWN_ID)
    return found[0]


def _rehearse(app: App, screen: Screen, db: Database, task: Task, now: datetime) -> Exit:
    """The prompt, and the files that could be touched; nothing is started, nothing is changed."""
    context = app.context(db)
    redactor = app.redactor.knowing(own_variables(task, app.settings.environment))
    failed = runs.last_failed(db, task.id)
    why = why_no_heal(context, task, now)
    scope = scope_for(context, task)
    log = log_tail(f"{app.workspace.root}/{failed.log}") if failed is not None and failed.log else ""
    error = (failed.error if failed is not None else None) or "(it has not failed yet)"
    text = heal_prompt(context, task, scope, error, log, (), redactor)
    document = {
        "task_id": task.id,
        "would_heal": why is None,
        "reason": why,
        "run_id": failed.run_id if failed else None,
        "files": [scope.shown(path) for path in scope.editable],
        "never": [{"path": path, "reason": reason} for path, reason in scope.refused],
        "prompt": text,
    }
    if screen.as_json:
        screen.json(document)
        return Exit.OK
    screen.line(
        f"healer     {app.settings.config.healer or '-'}: " + (f"not asked: {why}" if why else "would be asked")
    )
    for path in scope.editable:
        screen.line(
            f"may edit   {one_line(scope.shown(path))}"
            + (" (body, command, timeout, env)" if path == scope.task_file else "")
        )
    for path_text, reason in scope.refused:
        screen.line(f"may not    {one_line(path_text)}: {reason}")
    screen.line("prompt:")
    screen.line(printable(text))
    return Exit.OK


def _show(app: App, screen: Screen, task: Task, rows: list[HealRow], now: datetime) -> Exit:
    found = [(row, saved_diff(app.workspace, row)) for row in rows]
    if screen.as_json:
        screen.json(
            {"task_id": task.id, "run_id": rows[0].run_id, "heals": [_json(row, diff, task) for row, diff in found]}
        )
        return Exit.OK
    for number, (row, diff) in enumerate(found, 1):
        cost = f", {usd(row.cost_usd)}" if row.cost_usd is not None else ""
        screen.line(f"heal {number} of run {row.run_id}, {when(row.started_at, now, task.zone)}: {row.status}{cost}")
        screen.line(f"verdict  {row.verdict or 'none'}: {one_line(row.cause or 'no cause given', 500)}")
        if row.problem:
            screen.line(f"problem  {one_line(row.problem, 500)}")
        screen.line(printable(diff).rstrip() or "nothing was changed")
    return Exit.OK


def _json(row: HealRow, diff: str, task: Task) -> dict[str, object]:
    return {
        "attempt": row.attempt,
        "started_at": iso(row.started_at, task.zone),
        "status": row.status,
        "verdict": row.verdict,
        "cause": row.cause,
        "problem": row.problem,
        "files": list(row.files),
        "cost_usd": row.cost_usd,
        "diff": diff,
    }


def _undo(context: Context, screen: Screen, task: Task, run: Run, rows: list[HealRow], now: datetime) -> Exit:
    if not any(row.status is HealStatus.KEPT for row in rows):
        raise TickdownError(f"nothing is left of the heals of run {run.run_id}: {rows[-1].status}")
    lock = TaskLock(context.workspace.locks, task.id)
    if not lock.acquire(context.owner):
        raise TickdownError(f"{task.id} is running; `{command_line('stop', task.id)}` ends it", Exit.ALREADY_RUNNING)
    try:
        files = undo(context, run.run_id, now)
        heals.undone(context.db, task.id, run.run_id)
    finally:
        lock.release()
    context.log.info("heal_undone", task_id=task.id, run_id=run.run_id, files=files)
    message = f"{task.id} is as it was before run {run.run_id}: {', '.join(files) or 'no file had been changed'}"
    return done(screen, message, {"task_id": task.id, "run_id": run.run_id, "files": files})
