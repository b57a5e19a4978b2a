"""`heal`: what a healer would be told, what a past heal changed, and taking it back."""

from __future__ import annotations

from datetime import UTC, datetime

from tickdown.actions.heals import undo_heals
from tickdown.base.errors import Exit
from tickdown.base.model import HealRow
from tickdown.base.money import usd
from tickdown.base.terminal import one_line, printable
from tickdown.context.app import App, Opened
from tickdown.queries.find import find_task
from tickdown.queries.heals import HealsOfRun, heals_of, rehearsal
from tickdown.tasks.task import Task
from tickdown.time.durations import iso
from tickdown.time.moments import when
from tickdown.ui.asker import who_asks
from tickdown.ui.views import Screen, done


def heal(app: App, screen: Screen, task_id: str, is_dry_run: bool, diff: str | None, undo_run: str | None) -> Exit:
    opened = app.opened(datetime.now(UTC))
    task = find_task(opened.db, opened.catalog, task_id)
    if is_dry_run:
        return _rehearse(opened, screen, task)
    found = heals_of(opened, task, diff or undo_run or "")
    if diff is not None:
        return _show(screen, task, found, opened.now)
    return _undo(opened, screen, task, found)


def _rehearse(opened: Opened, screen: Screen, task: Task) -> Exit:
    found = rehearsal(opened, task)
    scope, why = found.scope, found.why_not
    document = {
        "task_id": task.id,
        "would_heal": why is None,
        "reason": why,
        "run_id": found.failed.run_id if found.failed else None,
        "files": [scope.shown(path) for path in scope.editable],
        "never": [{"path": path, "reason": reason} for path, reason in scope.refused],
        "prompt": found.prompt,
    }
    if screen.as_json:
        screen.json(document)
        return Exit.OK
    screen.line(
        f"healer     {opened.app.settings.config.healer or '-'}: " + (f"not asked: {why}" if why else "would be asked")
    )
    for path in scope.editable:
        screen.line(
            f"may edit   {one_line(scope.shown(path))}"
            + (" (body, command, timeout, env)" if path == scope.task_file else "")
        )
    for path_text, reason in scope.refused:
        screen.line(f"may not    {one_line(path_text)}: {reason}")
    screen.line("prompt:")
    screen.line(printable(found.prompt))
    return Exit.OK


def _show(screen: Screen, task: Task, found: HealsOfRun, now: datetime) -> Exit:
    if screen.as_json:
        heals = [_json(row, diff, task) for row, diff in zip(found.rows, found.diffs, strict=True)]
        screen.json({"task_id": task.id, "run_id": found.run.run_id, "heals": heals})
        return Exit.OK
    for number, (row, diff) in enumerate(zip(found.rows, found.diffs, strict=True), 1):
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


def _undo(opened: Opened, screen: Screen, task: Task, found: HealsOfRun) -> Exit:
    run_id = found.run.run_id
    files = undo_heals(opened, who_asks(opened.catalog), task, found.run, found.rows)
    message = f"{task.id} is as it was before run {run_id}: {', '.join(files) or 'no file had been changed'}"
    return done(screen, message, {"task_id": task.id, "run_id": run_id, "files": files})
