"""`tick`, `run`, `retry`, `stop`, `prune`."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from tickdown.alerts.delivery import complain, deliver
from tickdown.attempt.command import CannotRun, Place, prepare
from tickdown.base.errors import Exit, TickdownError, explained
from tickdown.base.model import AlertKind, Facts, Occurrence, Run, RunStatus, SkipReason, Source, TaskState
from tickdown.base.records import replace
from tickdown.base.terminal import PrintableStream, one_line, printable
from tickdown.context.app import App, reject_past_dates, sync_catalog
from tickdown.context.context import Context
from tickdown.context.task_file import edit_file
from tickdown.governor.governor import NOTHING, Plan, is_spent, state_of
from tickdown.heal.policy import why_no_heal
from tickdown.processes.lock import look_at, read_holder
from tickdown.processes.process import is_alive, stop_writing_to
from tickdown.processes.termination import Termination
from tickdown.queries.find import find_task
from tickdown.run.decision import Decision, hindrance
from tickdown.run.execution import Execution
from tickdown.run.recovery import recover
from tickdown.run.slots import Slots
from tickdown.run.supervisor import Supervisor
from tickdown.schedule.schedule import OneShot
from tickdown.store import outbox, runs, tasks
from tickdown.store.database import DamagedDatabase, Database
from tickdown.tasks.catalogue import Catalog, reread
from tickdown.tasks.task import Task
from tickdown.tick.tick import Report, Tick, dry_run
from tickdown.time.durations import duration_text, in_words, iso
from tickdown.time.zones import get_zone
from tickdown.ui.views import Screen, action_word, done, duration_ms, run_json, verdict_line
from tickdown.workspace.shortcut import Look

STARTED_WITHIN = 3.0
STOP_GRACE = 10.0
RECORDED_WITHIN = 15.0


# --- tick ------------------------------------------------------------------------------------------------------


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
    if report.duplicates:
        told = outbox.told_since(db, AlertKind.DUPLICATES, report.started_at)
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
        why = row["reason"] or f"{row['source']}, due {row['scheduled_for']}"
        count = f" ({row['count']})" if row["count"] > 1 else ""
        screen.line(f"{row['action']:<7} {row['task_id']}  {why}{count}")
    for file in report.rejected:
        screen.line(f"{'reject':<7} {one_line(file.path)}  {len(file.errors)} problem(s), see: scheduler.py validate")
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


# --- run -------------------------------------------------------------------------------------------------------


def run(app: App, screen: Screen, task_id: str, heal: bool, key: str | None, is_dry_run: bool) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    if is_dry_run:
        return _show_command(app, screen, task)
    sync_catalog(db, catalog, now)
    context = app.context(db)
    if hindrance(context, task, now) is SkipReason.BUDGET_EXCEEDED:
        raise TickdownError(
            f"{task.id}: the budget is used up (budget_usd_per_day); `scheduler.py costs` shows what was spent"
        )
    if heal and (why := why_no_heal(context, task, now)) is not None:
        print(f"scheduler.py: --heal has no effect: {why}", file=sys.stderr)
    occurrence = _manual_occurrence(task, key, now)
    if key is not None:
        earlier = runs.run_by_key(db, occurrence.key)
        if earlier is not None:
            return _already_done(db, screen, task, key, earlier)
    asked = Decision(task, Facts(task.id, armed_at=now), NOTHING)
    ended = _run_now(app, db, screen, asked, occurrence, may_heal=heal)
    if ended is None:
        earlier = runs.run_by_key(db, occurrence.key)
        if key is not None and earlier is not None:  # somebody was faster with the same key
            return _already_done(db, screen, task, key, earlier)
        raise _already_running(app, db, task)
    return ended


def retry(app: App, screen: Screen, task_id: str) -> Exit:
    """The last failed occurrence once more, now. A one-shot that had failed counts again: its file says how it ends."""
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    sync_catalog(db, catalog, now)
    if runs.running_runs(db, task.id):
        raise _already_running(app, db, task)
    failed = runs.last_failed(db, task.id, or_missed=isinstance(task.schedule, OneShot))
    facts = tasks.facts(db, task.id)
    if failed is None or facts is None:
        raise TickdownError(f"{task.id} has no failed run; `scheduler.py run {task.id}` runs it now")
    if is_spent(task, facts):
        # Before the run, so that the next tick may go on with it should this process die.
        if not task.enabled:
            edit_file(app.context(db), task, {"enabled": "true", "disabled_reason": None}, now)
            task = replace(task, enabled=True, disabled_reason=None)
        tasks.reopen(db, task.id, now)
    at = failed.last_scheduled_for or failed.scheduled_for or now
    key = f"{task.id}@{failed.run_id}+retry:{runs.new_run_id(now)}"
    occurrence = Occurrence(task.id, at, Source.RETRY, key, now, follows=failed.run_id)
    anew = replace(facts, retries_used=0, transient_retries_used=0)  # a chain of its own begins
    ended = _run_now(app, db, screen, Decision(task, anew, NOTHING), occurrence)
    if ended is None:
        raise _already_running(app, db, task)
    return ended


def _run_now(
    app: App, db: Database, screen: Screen, asked: Decision, occurrence: Occurrence, *, may_heal: bool = False
) -> Exit | None:
    """Run it to its end and say how it ended; None if somebody else runs it."""
    context, task = app.context(db), asked.task
    before = tasks.facts(db, task.id)
    echo = Echo(sys.stderr if screen.as_json else sys.stdout)
    with Supervisor(context) as supervisor:
        slots = Slots(context, supervisor, 1)
        execution = slots.claim_by_hand(asked, occurrence, may_heal=may_heal, echo=echo)
        if execution is None:
            return None
        slots.run_to_the_end()
    echo.flush()
    deliver(app.workspace, db, app.settings.config, app.redactor, app.log, datetime.now(UTC))
    return _verdict(app, db, screen, task, execution, before, supervisor.received)


def _manual_occurrence(task: Task, key: str | None, now: datetime) -> Occurrence:
    if key is not None and (not key.strip() or len(key) > 200):
        raise TickdownError("--key: 1 to 200 characters", Exit.USAGE)
    name = f"key:{key}" if key is not None else f"manual:{runs.new_run_id(now)}"
    return Occurrence(task.id, now, Source.MANUAL, f"{task.id.lower()}@{name}", now)  # ids have no case


def _already_running(app: App, db: Database, task: Task) -> TickdownError:
    current = runs.running_runs(db, task.id)
    seen = look_at(app.workspace.locks, task.id) if not current else None
    if seen is not None and not seen.is_claiming:
        words = f"{task.id} can't start: its lock is held by {seen.words}, though no run of it is on record"
        return TickdownError(words, Exit.ALREADY_RUNNING)
    since = (
        f", started {in_words(current[0].started_at, datetime.now(UTC))}" if current and current[0].started_at else ""
    )
    which = f" (run {current[0].run_id}{since})" if current else ""
    return TickdownError(f"{task.id} already runs{which}; `scheduler.py stop {task.id}` ends it", Exit.ALREADY_RUNNING)


def _already_done(db: Database, screen: Screen, task: Task, key: str, earlier: Run) -> Exit:
    if screen.as_json:
        facts = tasks.facts(db, task.id)
        screen.json(_ended_json(earlier, task, facts, state_of(datetime.now(UTC), task, facts)))
    screen.line(f"nothing done: key {one_line(key)} was used by run {earlier.run_id} ({earlier.status})")
    if earlier.status is RunStatus.RUNNING:
        return Exit.ALREADY_RUNNING
    return Exit.OK if earlier.status is RunStatus.SUCCESS else Exit.FAILED


def _ended_json(run: Run, task: Task, facts: Facts | None, state: TaskState) -> dict[str, Any]:
    """What `run --json` tells, whether it ran now or had been run before."""
    return run_json(run, task.zone) | {"state": state, "failures": facts.failures if facts else 0}


class Echo:
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
        except BrokenPipeError:
            stop_writing_to(self._stream)  # the reader left; the run goes on
        except OSError:
            self._stream = open(os.devnull, "w", encoding="utf-8")  # it is full


def _verdict(
    app: App, db: Database, screen: Screen, task: Task, execution: Execution, before: Facts | None,
    received: signal.Signals | None,
) -> Exit:  # fmt: skip
    ended = runs.get_run(db, execution.run_id)
    assert ended is not None and execution.outcome is not None
    facts = tasks.facts(db, task.id)
    failures = facts.failures if facts else 0
    # The run may have changed the file, and so may somebody meanwhile.
    edited = reread(task, app.workspace, app.settings.config.surroundings())
    state = state_of(datetime.now(UTC), edited or task, facts)
    if screen.as_json:
        screen.json(_ended_json(ended, task, facts, state))
    screen.line(verdict_line(task.id, ended.run_id, execution.outcome, duration_ms(ended)))
    if ended.status is RunStatus.SUCCESS and state is TaskState.SUSPENDED:
        screen.line(f"it succeeded, but is still suspended; go on with: scheduler.py resume {task.id}")
    elif failures > (before.failures if before else 0):
        screen.line(_counted(app, task, failures, state))
    if received is not None:
        return Exit.INTERRUPTED if received is signal.SIGINT else Exit.TERMINATED
    return Exit.OK if ended.status is RunStatus.SUCCESS else Exit.FAILED


def _counted(app: App, task: Task, failures: int, state: TaskState) -> str:
    """What a failure by hand means for the task, since it counts like any other."""
    words = f"failure {failures} in a row"
    if state is TaskState.SUSPENDED:
        since = "now" if task.enabled else "still"
        return f"{words}; it is {since} suspended; go on with: scheduler.py resume {task.id}"
    if not task.enabled or state is TaskState.FAILED:
        return words  # there is nothing to be suspended
    may_be_healed = task.self_heal and app.settings.config.healer is not None
    return f"{words}; at {task.suspend_after}{' at the latest' * may_be_healed} it is suspended"


def _show_command(app: App, screen: Screen, task: Task) -> Exit:
    try:
        command = prepare(task, Place(app.workspace, app.settings), {})
    except CannotRun as error:
        raise TickdownError(str(error)) from None
    added = {name: command.environment[name] for name in task.env}
    screen = replace(screen, redactor=screen.redactor.knowing(added))
    if screen.as_json:
        screen.json({
            "task_id": task.id, "argv": command.argv, "cwd": str(command.cwd), "env": added,
            "timeout_s": task.timeout.total_seconds(), "retries": task.retries,
            "stdin": command.stdin.decode("utf-8", "replace") if command.stdin is not None else None,
        })  # fmt: skip
    # To be pasted, so its further lines are not indented: that would be another command.
    words = shlex.join(command.argv) if task.request is None else task.what
    screen.line(f"would run  {words}")
    if printable(words) != words:
        screen.line("note       it has control characters, which are left out here; --json has them all")
    screen.line(f"in         {one_line(str(command.cwd), 500)}")
    if command.stdin is not None:
        screen.line("told       " + command.stdin.decode("utf-8", "replace").rstrip())
    for name, value in added.items():
        screen.line(f"env        {name}={one_line(value)}")
    screen.line(f"limits     timeout {duration_text(task.timeout)}, retries {task.retries}")
    return Exit.OK


# --- stop, prune ------------------------------------------------------------------------------------------------


def stop(app: App, screen: Screen, task_id: str) -> Exit:
    """Leave word in the database, end the processes, and wait until the run's owner has recorded it; a dead owner's run
    is recorded here."""
    catalog, db = app.open(datetime.now(UTC))
    running = runs.running_runs(db, task_id)
    if not running:
        task = find_task(db, catalog, task_id)
        seen = look_at(app.workspace.locks, task.id)
        held = f", as far as is on record; but its lock is held by {seen.words}" if seen is not None else ""
        raise TickdownError(f"{task.id} is not running{held}")
    run_id = running[0].run_id
    runs.request_end(db, run_id, RunStatus.CANCELLED)
    current = runs.get_run(db, run_id)
    if current is None:  # claimed ahead, and given back this moment
        raise TickdownError(f"{running[0].task_id} is not running")
    if current.owner is not None and not is_alive(current.owner):
        _take_over(app.context(db), catalog, current)
    else:
        _until(lambda: _is_started(db, run_id), STARTED_WITHIN)
        holder = read_holder(app.workspace.locks, current.task_id)
        leader = holder.child if holder is not None and holder.run_id == run_id else None
        termination = Termination(run_id, leader, STOP_GRACE, time.monotonic())
        _until(lambda: termination.step(time.monotonic()) is None, STOP_GRACE + 30)
        _until(lambda: _is_over(db, run_id), RECORDED_WITHIN)
    ended = runs.get_run(db, run_id)
    if ended is None or ended.status is RunStatus.RUNNING:
        raise TickdownError(f"the processes of {current.task_id} are ended; the next tick records run {run_id}")
    document = run_json(ended, get_zone(app.settings.config.timezone))
    return done(screen, f"{current.task_id}: {ended.status} (run {run_id})", document)


def _take_over(context: Context, catalog: Catalog, run: Run) -> None:
    with Supervisor(context) as supervisor:
        for job in recover(context, catalog.get, datetime.now(UTC), time.monotonic(), only=run.run_id):
            supervisor.add(job)
        Slots(context, supervisor, 1).run_to_the_end()


def _is_over(db: Database, run_id: str) -> bool:
    ended = runs.get_run(db, run_id)
    return ended is None or ended.status is not RunStatus.RUNNING


def _is_started(db: Database, run_id: str) -> bool:
    """And on record: one that was claimed ahead is about to be, and before that has no process that could be ended."""
    run = runs.get_run(db, run_id)
    return run is None or run.status is not RunStatus.RUNNING or run.heartbeat_at is not None


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def prune(app: App, screen: Screen) -> Exit:
    from tickdown.tick.housekeeping import prune as prune_now  # which a tick needs once a day

    context: Context = app.context(app.database())
    pruned = prune_now(context, datetime.now(UTC))
    return done(
        screen,
        f"removed {pruned.runs} runs and {pruned.logs} logs from before {pruned.before}",
        {"runs": pruned.runs, "logs": pruned.logs, "before": pruned.before},
    )
