"""Running a task now, running its last failure again, and ending the run that is going on."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from signal import Signals
from typing import Protocol

from tickdown.actions.record import log_action, record_action
from tickdown.alerts.delivery import deliver
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import (
    ActionName,
    ActionTaken,
    Asker,
    Facts,
    Occurrence,
    Run,
    RunStatus,
    SkipReason,
    Source,
    TaskState,
)
from tickdown.base.records import record, replace
from tickdown.context.app import Opened
from tickdown.context.task_file import edit_file
from tickdown.failure.outcomes import Outcome
from tickdown.governor.governor import NOTHING, is_spent, state_of
from tickdown.heal.policy import why_no_heal
from tickdown.processes.lock import look_at, read_holder
from tickdown.processes.process import is_alive
from tickdown.processes.termination import Termination
from tickdown.queries.find import find_task
from tickdown.run.decision import Decision, hindrance
from tickdown.run.recovery import recover
from tickdown.run.slots import Slots
from tickdown.run.supervisor import Supervisor
from tickdown.schedule.schedule import OneShot
from tickdown.store import runs, tasks
from tickdown.store.database import Database
from tickdown.tasks.catalogue import reread
from tickdown.tasks.task import Task
from tickdown.time.durations import in_words

STARTED_WITHIN = 3.0
STOP_GRACE = 10.0
RECORDED_WITHIN = 15.0


class Watcher(Protocol):
    """Whoever looks on while a task runs."""

    def remark(self, text: str) -> None:
        """What is worth knowing before it starts."""

    def output(self, data: bytes) -> None:
        """What the task writes, as it comes."""

    def end(self) -> None:
        """No output comes any more."""


@record(frozen=True)
class Ended:
    """A run that somebody asked for, at its end, with the task as it is then."""

    run: Run
    task: Task
    state: TaskState
    facts: Facts | None
    failures_before: int
    outcome: Outcome | None  # None: nothing was done, this run had used the key before
    received: Signals | None = None  # this process was told to end meanwhile


def run(
    opened: Opened, asker: Asker, task: Task, watcher: Watcher, *, heal: bool = False, key: str | None = None
) -> Ended:
    """Now, whatever the schedule and the slots say. With a key that was used before nothing is done."""
    db, now = opened.db, opened.now
    opened.sync()
    context = opened.context
    if hindrance(context, task, now) is SkipReason.BUDGET_EXCEEDED:
        raise TickdownError(
            f"{task.id}: the budget is used up (budget_usd_per_day); `{command_line('costs')}` shows what was spent"
        )
    if heal and (why := why_no_heal(context, task, now)) is not None:
        watcher.remark(f"--heal has no effect: {why}")
    occurrence = _manual_occurrence(task, key, now)
    if key is not None:
        earlier = runs.run_by_key(db, occurrence.key)
        if earlier is not None:
            return _already_done(db, task, earlier)
    asked = Decision(task, Facts(task.id, armed_at=now), NOTHING)
    ended = _run_now(opened, asker, asked, occurrence, watcher, heal=heal)
    if ended is None:
        earlier = runs.run_by_key(db, occurrence.key)
        if key is not None and earlier is not None:  # somebody was faster with the same key
            return _already_done(db, task, earlier)
        raise _already_running(opened, task)
    return ended


def retry(opened: Opened, asker: Asker, task: Task, watcher: Watcher) -> Ended:
    """The last failed occurrence once more, now. A one-shot that had failed counts again: its file says how it ends."""
    db, now = opened.db, opened.now
    opened.sync()
    if runs.running_runs(db, task.id):
        raise _already_running(opened, task)
    failed = runs.last_failed(db, task.id, or_missed=isinstance(task.schedule, OneShot))
    facts = tasks.facts(db, task.id)
    if failed is None or facts is None:
        raise TickdownError(f"{task.id} has no failed run; `{command_line('run', task.id)}` runs it now")
    if is_spent(task, facts):
        # Before the run, so that the next tick may go on with it should this process die.
        if not task.enabled:
            edit_file(opened.context, task, {"enabled": "true", "disabled_reason": None}, now)
            task = replace(task, enabled=True, disabled_reason=None)
        tasks.reopen(db, task.id, now)
    at = failed.last_scheduled_for or failed.scheduled_for or now
    key = f"{task.id}@{failed.run_id}+retry:{runs.new_run_id(now)}"
    occurrence = Occurrence(task.id, at, Source.RETRY, key, now, follows=failed.run_id)
    anew = replace(facts, retries_used=0, transient_retries_used=0)  # a chain of its own begins
    ended = _run_now(opened, asker, Decision(task, anew, NOTHING), occurrence, watcher)
    if ended is None:
        raise _already_running(opened, task)
    return ended


def _run_now(
    opened: Opened, asker: Asker, asked: Decision, occurrence: Occurrence, watcher: Watcher, *, heal: bool = False
) -> Ended | None:
    """Run it to its end; None if somebody else runs it."""
    app, db, context, task = opened.app, opened.db, opened.context, asked.task
    before = tasks.facts(db, task.id)
    action = ActionName.RETRY if occurrence.source is Source.RETRY else ActionName.RUN
    detail = f"of run {occurrence.follows}" if occurrence.follows else ""
    taken = ActionTaken(opened.now, action, asker, task.id, detail=detail)
    with Supervisor(context) as supervisor:
        slots = Slots(context, supervisor, 1)
        execution = slots.claim_by_hand(asked, occurrence, taken, may_heal=heal, echo=watcher.output)
        if execution is None:
            return None
        run_id, trace_id = execution.run.run_id, execution.run.trace_id
        log_action(context.log, f"{action}_asked", asker, task_id=task.id, run_id=run_id, trace_id=trace_id)
        slots.run_to_the_end()
    watcher.end()
    deliver(db, app.settings.config, app.redactor, app.log, datetime.now(UTC))
    ended = runs.get_run(db, run_id)
    if ended is None or execution.outcome is None:
        told = command_line("history", task.id)
        raise TickdownError(f"{task.id}: another process has taken this run over; `{told}` tells how it ended")
    facts = tasks.facts(db, task.id)
    # The run may have changed the file, and so may somebody meanwhile.
    edited = reread(task, app.workspace, app.settings.config.surroundings())
    state = state_of(datetime.now(UTC), edited or task, facts)
    failures = before.failures if before is not None else 0
    return Ended(ended, task, state, facts, failures, execution.outcome, supervisor.received)


def _manual_occurrence(task: Task, key: str | None, now: datetime) -> Occurrence:
    if key is not None and (not key.strip() or len(key) > 200):
        raise TickdownError("--key: 1 to 200 characters", Exit.USAGE)
    name = f"key:{key}" if key is not None else f"manual:{runs.new_run_id(now)}"
    return Occurrence(task.id, now, Source.MANUAL, f"{task.id.lower()}@{name}", now)  # ids have no case


def _already_running(opened: Opened, task: Task) -> TickdownError:
    current = runs.running_runs(opened.db, task.id)
    seen = look_at(opened.app.workspace.locks, task.id) if not current else None
    if seen is not None and not seen.is_claiming:
        words = f"{task.id} can't start: its lock is held by {seen.words}, though no run of it is on record"
        return TickdownError(words, Exit.ALREADY_RUNNING)
    since = (
        f", started {in_words(current[0].started_at, datetime.now(UTC))}" if current and current[0].started_at else ""
    )
    which = f" (run {current[0].run_id}{since})" if current else ""
    return TickdownError(
        f"{task.id} already runs{which}; `{command_line('stop', task.id)}` ends it", Exit.ALREADY_RUNNING
    )


def _already_done(db: Database, task: Task, earlier: Run) -> Ended:
    facts = tasks.facts(db, task.id)
    state = state_of(datetime.now(UTC), task, facts)
    return Ended(earlier, task, state, facts, facts.failures if facts is not None else 0, outcome=None)


# --- stop ------------------------------------------------------------------------------------------------------


def stop(opened: Opened, asker: Asker, task_id: str) -> Run:
    """Leave word in the database, end the processes, and wait until the run's owner has recorded it; a dead owner's run
    is recorded here. By id, since the file of a task that runs may be gone."""
    db, locks = opened.db, opened.app.workspace.locks
    running = runs.running_runs(db, task_id)
    if not running:
        task = find_task(db, opened.catalog, task_id)
        seen = look_at(locks, task.id)
        held = f", as far as is on record; but its lock is held by {seen.words}" if seen is not None else ""
        raise TickdownError(f"{task.id} is not running{held}")
    run_id = running[0].run_id
    with db.transaction() as connection:
        runs.request_end(db, run_id, RunStatus.CANCELLED)
        record_action(connection, opened, asker, ActionName.STOP, running[0].task_id, run_id)
    log_action(opened.app.log, "stop_asked", asker, task_id=running[0].task_id, run_id=run_id)
    current = runs.get_run(db, run_id)
    if current is None:  # claimed ahead, and given back this moment
        raise TickdownError(f"{running[0].task_id} is not running")
    if current.owner is not None and not is_alive(current.owner):
        _take_over(opened, current)
    else:
        _until(lambda: _is_started(db, run_id), STARTED_WITHIN)
        holder = read_holder(locks, current.task_id)
        leader = holder.child if holder is not None and holder.run_id == run_id else None
        termination = Termination(run_id, leader, STOP_GRACE, time.monotonic())
        _until(lambda: termination.step(time.monotonic()) is None, STOP_GRACE + 30)
        _until(lambda: _is_over(db, run_id), RECORDED_WITHIN)
    ended = runs.get_run(db, run_id)
    if ended is None or ended.status is RunStatus.RUNNING:
        raise TickdownError(f"the processes of {current.task_id} are ended; the next tick records run {run_id}")
    return ended


def _take_over(opened: Opened, run: Run) -> None:
    context = opened.context
    with Supervisor(context) as supervisor:
        for job in recover(context, opened.catalog.get, datetime.now(UTC), time.monotonic(), only=run.run_id):
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
