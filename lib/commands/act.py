"""`tick`, `run`, `pause`, `resume`, `stop`, `prune`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from lib.app import App, sync_catalog
from lib.catalog import Catalog
from lib.context import Context
from lib.crash import replace_and_report
from lib.deliver import deliver
from lib.errors import Exit, NotSupportedYet, TickdownError
from lib.execute import Execution, new_run
from lib.governor import Plan
from lib.housekeeping import prune as prune_now
from lib.lock import TaskLock, read_holder
from lib.model import Facts, Occurrence, Run, Rung, RunStatus, Source
from lib.process import boot_id, is_alive
from lib.recover import recover
from lib.runners import CannotRun, prepare
from lib.store import runs, tasks
from lib.store.database import DamagedDatabase, Database
from lib.supervisor import Supervisor
from lib.task import Task
from lib.taskfile import set_fields
from lib.terminal import PrintableStream, one_line
from lib.termination import Termination
from lib.tick import Decision, Report, Tick, dry_run
from lib.times import LONGEST, duration_text, in_words, iso, parse_duration, parse_moment
from lib.views import Screen, duration_ms, run_json, verdict_line
from lib.zones import get_zone

STOP_GRACE = 10.0
RECORDED_WITHIN = 15.0


# --- tick ------------------------------------------------------------------------------------------------------


def tick(app: App, screen: Screen, is_dry_run: bool, every: timedelta | None, detach: bool) -> Exit:
    if is_dry_run:
        db = app.database() if app.database_path().exists() else Database(None)
        report = dry_run(app.context(db), app.catalog(), datetime.now(UTC))
        _show_decisions(app, screen, report)
        return report.exit_code
    catalog = app.catalog()
    if detach and not catalog.duplicates and _leave_to_child(app):
        return _done(screen, "", {"detached": True})
    try:
        db = app.database()
    except DamagedDatabase as error:
        return replace_and_report(app, str(error))
    report = Tick(app.context(db), catalog, every, tell=_teller(screen)).run()
    _show_report(app, screen, db, report)
    return report.exit_code


def _teller(screen: Screen) -> Callable[[str], None]:
    def tell(text: str) -> None:
        try:
            screen.line(text)
            sys.stdout.flush()
        except OSError:
            # The reader left or the terminal was closed; the tasks still need their supervisor.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return tell


def _leave_to_child(app: App) -> bool:
    """Fork; True in the parent. The child gets a session of its own and writes where a person can find it, since the
    terminal or the pipe that the parent had may be closed."""
    from lib.workspace import make_dir, private_opener

    try:
        make_dir(app.workspace.logs)
        log = open(app.workspace.logs / "detached.log", "ab", opener=private_opener)
    except OSError as error:
        raise TickdownError(f"{app.workspace.logs}: can't be used: {error.strerror}") from None
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
        done = [run for run in (runs.get_run(db, run_id) for run_id in report.run_ids) if run is not None]
        screen.json({
            "started_at": iso(report.started_at, zone),
            "finished_at": iso(report.finished_at, zone),
            "due": report.due,
            "runs": [run_json(run, zone) for run in done],
            "deferred": report.deferred,
            "rejected": [file.path for file in report.rejected],
            "duplicates": report.duplicates,
        })  # fmt: skip
        return
    for line in report.duplicates:
        print(f"{line}; nothing runs until this is put right", file=sys.stderr)
    if report.run_ids:
        screen.line(f"tick: {len(report.run_ids)} run" + ("s" if len(report.run_ids) != 1 else ""))
    elif screen.on_terminal and not report.duplicates and not report.deferred:
        screen.line("tick: nothing due")


def _show_decisions(app: App, screen: Screen, report: Report) -> None:
    rows = [_decision_json(decision) for decision in report.decisions]
    if screen.as_json:
        screen.json({
            "at": iso(report.started_at, get_zone(app.settings.config.timezone)),
            "decisions": rows,
            "rejected": [file.path for file in report.rejected],
            "duplicates": report.duplicates,
        })  # fmt: skip
        return
    for line in report.duplicates:
        print(f"{line}; nothing would run", file=sys.stderr)
    for row in rows:
        why = row["reason"] or f"{row['source']}, due {row['scheduled_for']}"
        count = f" ({row['count']})" if row["count"] > 1 else ""
        screen.line(f"{row['action']:<7} {row['task_id']}  {why}{count}")
    for file in report.rejected:
        screen.line(f"{'reject':<7} {file.path}  {len(file.errors)} problem(s), see: scheduler.py validate")
    screen.line(f"dry run: {report.due} would start; nothing was changed")


def _decision_json(decision: Decision) -> dict[str, Any]:
    task, what = decision.task, decision.plan
    start = what.starts[0] if what.starts else None
    unrun = what.skipped or what.missed
    return {
        "task_id": task.id,
        "action": "run" if start else ("skip" if what.skipped else ("missed" if what.missed else "wait")),
        "reason": None if start else _reason(what),
        "source": start.source if start else None,
        "scheduled_for": iso(start.at, task.zone) if start else None,
        "start_at": iso(start.start_at, task.zone) if start else None,
        "count": len(what.starts) or (unrun.count if unrun else 0),
    }


def _reason(what: Plan) -> str:
    return what.reason or ("too late to run" if what.missed else "not_due")


# --- run -------------------------------------------------------------------------------------------------------


def run(app: App, screen: Screen, task_id: str, heal: bool, key: str | None, is_dry_run: bool) -> Exit:
    if heal:
        raise NotSupportedYet("--heal")
    catalog = app.catalog()
    task = catalog.find(task_id)
    if is_dry_run:
        return _show_command(app, screen, task)
    db = app.database()
    context = app.context(db)
    now = datetime.now(UTC)
    sync_catalog(db, catalog, now)
    occurrence = _manual_occurrence(task, key, now)
    if key is not None:
        earlier = runs.run_by_key(db, occurrence.key)
        if earlier is not None:
            return _already_done(screen, task, key, earlier)
    lock = TaskLock(app.workspace.locks, task.id)
    if not lock.acquire():
        raise _already_running(db, task)
    new = new_run(context, occurrence, now)
    claimed = runs.claim(db, new, Facts(task.id, armed_at=now), now, limit=None)
    if claimed is not runs.Claim.WON:
        lock.release()
        earlier = runs.run_by_key(db, occurrence.key)
        if key is not None and earlier is not None:  # somebody was faster with the same key
            return _already_done(screen, task, key, earlier)
        raise _already_running(db, task)
    echo = _Echo(sys.stderr if screen.as_json else sys.stdout)
    execution = Execution(context, task, lock, new.run_id, Source.MANUAL, now, new.trace_id, echo=echo)
    with Supervisor(db, on_done=lambda job: None) as supervisor:
        execution.begin(Rung.RUN, now, time.monotonic())
        supervisor.add(execution)
        while supervisor.jobs:
            supervisor.wait(None)
    echo.flush()
    deliver(db, app.settings.config, app.redactor, app.log, datetime.now(UTC))
    return _verdict(db, screen, task, execution, supervisor.received)


def _manual_occurrence(task: Task, key: str | None, now: datetime) -> Occurrence:
    if key is not None and (not key.strip() or len(key) > 200):
        raise TickdownError("--key: 1 to 200 characters", Exit.USAGE)
    name = f"key:{key}" if key is not None else f"manual:{runs.new_run_id(now)}"
    return Occurrence(task.id, now, Source.MANUAL, f"{task.id}@{name}", now)


def _already_running(db: Database, task: Task) -> TickdownError:
    current = runs.running_runs(db, task.id)
    since = (
        f", started {in_words(current[0].started_at, datetime.now(UTC))}" if current and current[0].started_at else ""
    )
    which = f" (run {current[0].run_id}{since})" if current else ""
    return TickdownError(f"{task.id} already runs{which}; `scheduler.py stop {task.id}` ends it", Exit.ALREADY_RUNNING)


def _already_done(screen: Screen, task: Task, key: str, earlier: Run) -> Exit:
    if screen.as_json:
        screen.json(run_json(earlier, task.zone))
    screen.line(f"nothing done: key {one_line(key)} was used by run {earlier.run_id} ({earlier.status})")
    if earlier.status is RunStatus.RUNNING:
        return Exit.ALREADY_RUNNING
    return Exit.OK if earlier.status is RunStatus.SUCCESS else Exit.FAILED


class _Echo:
    """The task's output, live and without its escape sequences."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clean = PrintableStream()
        self._at_line_start = True

    def __call__(self, data: bytes) -> None:
        self._print(self._clean.feed(data))

    def flush(self) -> None:
        self._print(self._clean.flush())
        self._print("" if self._at_line_start else "\n")

    def _print(self, text: str) -> None:
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        try:
            print(text, end="", flush=True, file=self._stream)
        except OSError:
            self._stream = open(os.devnull, "w", encoding="utf-8")  # the reader left or is full; the run goes on


def _verdict(db: Database, screen: Screen, task: Task, execution: Execution, received: signal.Signals | None) -> Exit:
    ended = runs.get_run(db, execution.run_id)
    assert ended is not None and execution.outcome is not None
    if screen.as_json:
        screen.json(run_json(ended, task.zone))
    screen.line(verdict_line(task.id, ended.run_id, execution.outcome, duration_ms(ended)))
    if received is not None:
        return Exit.INTERRUPTED if received is signal.SIGINT else Exit.TERMINATED
    return Exit.OK if ended.status is RunStatus.SUCCESS else Exit.FAILED


def _show_command(app: App, screen: Screen, task: Task) -> Exit:
    try:
        command = prepare(task, app.workspace, app.settings.config.cwd_policies, app.settings.environment, {})
    except CannotRun as error:
        raise TickdownError(str(error)) from None
    added = {name: command.environment[name] for name in task.env}
    screen = replace(screen, redactor=screen.redactor.knowing(added))
    if screen.as_json:
        screen.json({
            "task_id": task.id, "argv": command.argv, "cwd": str(command.cwd), "env": added,
            "timeout_s": task.timeout.total_seconds(), "retries": task.retries,
        })  # fmt: skip
    screen.line(f"would run  {one_line(' '.join(command.argv), 500)}")
    screen.line(f"in         {command.cwd}")
    for name, value in added.items():
        screen.line(f"env        {name}={one_line(value)}")
    screen.line(f"limits     timeout {duration_text(task.timeout)}, retries {task.retries}")
    return Exit.OK


# --- pause, resume, stop, prune --------------------------------------------------------------------------------


def pause(app: App, screen: Screen, task_id: str, for_: str | None, until: str | None) -> Exit:
    """For a time: remembered beside the schedule. For good: written into the file."""
    catalog, now = app.catalog(), datetime.now(UTC)
    task = catalog.find(task_id)
    end = _pause_end(task, for_, until, now)
    if end is None:
        set_fields(app.workspace.root / task.path, {"enabled": "false", "disabled_reason": "paused"}, task.id)
        message = f"{task.id} is paused (enabled: false in {task.path}); go on with: scheduler.py resume {task.id}"
    else:
        db = app.database()
        sync_catalog(db, catalog, now)
        tasks.pause(db, task.id, end)
        message = f"{task.id} is paused until {end.astimezone(task.zone):%Y-%m-%d %H:%M %Z} ({in_words(end, now)})"
    app.log.info("paused", task_id=task.id, until=end)
    return _done(screen, message, {"task_id": task.id, "paused_until": iso(end, task.zone)})


def _pause_end(task: Task, for_: str | None, until: str | None, now: datetime) -> datetime | None:
    if for_ is None and until is None:
        return None
    try:
        end = now + parse_duration(for_) if for_ is not None else parse_moment(until or "", task.zone, now)
    except ValueError as error:
        raise TickdownError(f"{'--for' if for_ is not None else '--until'}: {error}", Exit.USAGE) from None
    if end <= now:
        raise TickdownError(f"--until: {until!r} is in the past", Exit.USAGE)
    if end > now + LONGEST:
        raise TickdownError(f"--until: {until!r} is more than ten years away; pause without it", Exit.USAGE)
    return end


def resume(app: App, screen: Screen, task_id: str) -> Exit:
    catalog, now = app.catalog(), datetime.now(UTC)
    task = catalog.find(task_id)
    db = app.database()
    sync_catalog(db, catalog, now)
    if not task.enabled or task.disabled_reason is not None:
        changes: dict[str, str | None] = {"disabled_reason": None}
        if not task.enabled:
            changes["enabled"] = "true"
        set_fields(app.workspace.root / task.path, changes, task.id)
    tasks.resume(db, task, now, boot_id())
    app.log.info("resumed", task_id=task.id)
    return _done(screen, f"{task.id} is active again; counted from now", {"task_id": task.id})


def stop(app: App, screen: Screen, task_id: str) -> Exit:
    """Leave word in the database, end the processes, and wait until the run's owner has recorded it; a dead owner's run
    is recorded here."""
    catalog, db = app.catalog(), app.database()
    running = runs.running_runs(db, task_id)
    if not running:
        task = catalog.find(task_id)
        raise TickdownError(f"{task.id} is not running")
    run_id = running[0].run_id
    runs.request_end(db, run_id, RunStatus.CANCELLED)
    current = runs.get_run(db, run_id) or running[0]
    if current.owner is not None and not is_alive(current.owner):
        _take_over(app.context(db), catalog, current)
    else:
        holder = read_holder(app.workspace.locks, current.task_id)
        leader = holder.child if holder is not None and holder.run_id == run_id else None
        termination = Termination(run_id, leader, STOP_GRACE, time.monotonic())
        _until(lambda: termination.step(time.monotonic()) is None, STOP_GRACE + 30)
        _until(lambda: _is_over(db, run_id), RECORDED_WITHIN)
    ended = runs.get_run(db, run_id)
    if ended is None or ended.status is RunStatus.RUNNING:
        raise TickdownError(f"the processes of {current.task_id} are ended; the next tick records run {run_id}")
    document = run_json(ended, get_zone(app.settings.config.timezone))
    return _done(screen, f"{current.task_id}: {ended.status} (run {run_id})", document)


def _take_over(context: Context, catalog: Catalog, run: Run) -> None:
    with Supervisor(context.db, on_done=lambda job: None) as supervisor:
        recover(context, catalog.by_id, datetime.now(UTC), time.monotonic(), supervisor.add, only=run.run_id)
        while supervisor.jobs:
            supervisor.wait(None)


def _is_over(db: Database, run_id: str) -> bool:
    ended = runs.get_run(db, run_id)
    return ended is None or ended.status is not RunStatus.RUNNING


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def prune(app: App, screen: Screen) -> Exit:
    context: Context = app.context(app.database())
    pruned = prune_now(context, datetime.now(UTC))
    return _done(
        screen,
        f"removed {pruned.runs} runs and {pruned.logs} logs from before {pruned.before}",
        {"runs": pruned.runs, "logs": pruned.logs, "before": pruned.before},
    )


def _done(screen: Screen, message: str, document: dict[str, object]) -> Exit:
    if screen.as_json:
        screen.json(document)
    if message:
        screen.line(message)
    return Exit.OK
