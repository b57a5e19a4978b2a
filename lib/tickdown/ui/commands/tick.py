"""`tick`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tickdown.alerts.delivery import complain
from tickdown.base.errors import Exit, TickdownError, explained
from tickdown.base.invocation import command_line
from tickdown.base.model import AlertKind
from tickdown.base.terminal import one_line, printable
from tickdown.context.app import App, reject_past_dates
from tickdown.governor.governor import Plan
from tickdown.processes.process import stop_writing_to
from tickdown.run.decision import Decision
from tickdown.store.database import DamagedDatabase, Database
from tickdown.tick.tick import Report, Tick, dry_run
from tickdown.time.durations import iso
from tickdown.time.zones import get_zone
from tickdown.ui.views import Screen, action_word, done, run_json, source_word
from tickdown.workspace.shortcut import Look


def tick(app: App, screen: Screen, is_dry_run: bool, every: timedelta | None, detach: bool, look: Look | None) -> Exit:
    if is_dry_run:
        now, db = datetime.now(UTC), app.database_to_look_at()
        report = dry_run(app.context(db), reject_past_dates(app.catalog(db), db, now), now)
        _show_decisions(app, screen, report)
        return report.exit_code
    try:
        if detach and not _has_duplicates(app) and _leave_to_child(app):
            return done(screen, "", {"detached": True})
        db = app.database()
    except DamagedDatabase as error:
        from tickdown.tick.crash import replace_and_report

        return replace_and_report(app, str(error))
    report = Tick(app.context(db), every, _teller(screen), look).run()
    _show_report(app, screen, db, report)
    db.close()  # whoever is last leaves one file, without a log beside it
    gc.freeze()  # what is left goes with the process; nobody needs to look for cycles among 10,000 tasks first
    return report.exit_code


def _has_duplicates(app: App) -> bool:
    """Then the exit code must tell, so nothing is left to a child. The connection is closed: none may live on in a child."""
    db = app.database()
    try:
        return bool(app.catalog(db).duplicates)
    finally:
        db.close()


def _teller(screen: Screen) -> Callable[[str], None]:
    def tell(text: str) -> None:
        try:
            screen.line(text)
            sys.stdout.flush()
        except OSError:
            # The reader left or the terminal was closed; the tasks still need their supervisor.
            stop_writing_to(sys.stdout)

    return tell


def _leave_to_child(app: App) -> bool:
    """Fork; True in the parent. The child gets a session of its own and writes where a person can find it, since the
    terminal or the pipe that the parent had may be closed."""
    from tickdown.workspace.folders import make_dir, private_opener

    try:
        make_dir(app.workspace.logs)
        log = open(app.workspace.logs / "detached.log", "ab", opener=private_opener)
    except OSError as error:
        raise TickdownError(f"{app.workspace.logs}: can't be used: {explained(error)}") from None
    sys.stdout.flush()
    sys.stderr.flush()
    with log, open(os.devnull, "rb") as nothing:
        if os.fork():
            return True
        os.setsid()
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if sys.stderr.name == os.devnull:  # it was closed before, now it is that log
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)
    return False


def _show_report(app: App, screen: Screen, db: Database, report: Report) -> None:
    zone = get_zone(app.settings.config.timezone)
    if screen.as_json:
        from tickdown.queries.runs import runs_by_id  # which cron never asks for

        screen.json({
            "started_at": iso(report.started_at, zone),
            "finished_at": iso(report.finished_at, zone),
            "due": report.due,
            "runs": [run_json(run, zone) for run in runs_by_id(db, report.run_ids)],
            "deferred": report.deferred,
            "rejected": [file.path for file in report.rejected],
            "duplicates": report.duplicates,
        })  # fmt: skip
        return
    if report.duplicates:
        from tickdown.queries.alerts import told_since

        told = told_since(db, AlertKind.DUPLICATES, report.started_at)
        by_stderr = app.settings.config.notify.destination(None) is None  # where the alert has the same lines
        for line in report.duplicates:
            complain(f"{printable(line)}; nothing runs until this is put right", aloud=told and not by_stderr)
    if report.run_ids:
        screen.line(f"tick: {len(report.run_ids)} run" + ("s" if len(report.run_ids) != 1 else ""))
    elif screen.on_terminal and not report.duplicates and not report.deferred:
        screen.line("tick: nothing ran" if report.due else "tick: nothing due")


def _show_decisions(app: App, screen: Screen, report: Report) -> None:
    rows = [_decision_json(decision) for decision in report.decisions]
    if screen.as_json:
        screen.json({
            "at": iso(report.started_at, get_zone(app.settings.config.timezone)),
            "decisions": rows,
            "recover": report.dead,
            "free_slots": report.free_slots,
            "rejected": [file.path for file in report.rejected],
            "duplicates": report.duplicates,
        })  # fmt: skip
        return
    for line in report.duplicates:
        print(f"{printable(line)}; nothing would run", file=sys.stderr)
    for row in rows:
        why = row["reason"] or f"{source_word(row['source'])}, due {row['scheduled_for']}"
        count = f" ({row['count']})" if row["count"] > 1 else ""
        screen.line(f"{row['action']:<7} {row['task_id']}  {why}{count}")
    for file in report.rejected:
        screen.line(
            f"{'reject':<7} {one_line(file.path)}  {len(file.errors)} problem(s), see: {command_line('validate')}"
        )
    once_more = "it runs once more, unless that was its second time or it has rerun_interrupted: false"
    for task_id in report.dead:
        screen.line(f"{'recover':<7} {task_id}  its supervisor died: what it left is ended, and {once_more}")
    slots = f", for {report.free_slots} free slots" if report.due > report.free_slots else ""
    screen.line(f"dry run: {report.due} would start{slots}; nothing was changed")


def _decision_json(decision: Decision) -> dict[str, Any]:
    task, what = decision.task, decision.plan
    start = what.starts[0] if what.starts else None
    not_run = len(what.waiting) + sum(unrun.count for unrun in what.unrun)
    return {
        "task_id": task.id,
        "action": action_word(what),
        "reason": None if start else _reason(what),
        "source": start.source if start else None,
        "scheduled_for": iso(start.at, task.zone) if start else None,
        "start_at": iso(start.start_at, task.zone) if start else None,
        "count": len(what.starts) or not_run,
    }


def _reason(what: Plan) -> str:
    return what.reason or ("too late to run" if what.unrun else "not_due")
