"""`run`, `retry`, `stop`, `prune`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from tickdown.actions import runs
from tickdown.actions.runs import Ended
from tickdown.attempt.command import CannotRun, Place, prepare
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line, program_name
from tickdown.base.model import RunStatus, TaskState
from tickdown.base.records import replace
from tickdown.base.terminal import PrintableStream, one_line, printable
from tickdown.context.app import App
from tickdown.processes.process import stop_writing_to
from tickdown.queries.find import find_task
from tickdown.tasks.task import Task
from tickdown.time.durations import duration_text
from tickdown.time.zones import get_zone
from tickdown.ui.asker import who_asks
from tickdown.ui.views import Screen, done, duration_ms, run_json, verdict_line

# --- run, retry -------------------------------------------------------------------------------------------------


def run(app: App, screen: Screen, task_id: str, heal: bool, key: str | None, is_dry_run: bool) -> Exit:
    opened = app.opened(datetime.now(UTC))
    task = find_task(opened.db, opened.catalog, task_id)
    if is_dry_run:
        return _show_command(app, screen, task)
    ended = runs.run(opened, who_asks(opened.catalog), task, _watcher(screen), heal=heal, key=key)
    return _already_done(screen, ended, key or "") if ended.outcome is None else _verdict(app, screen, ended)


def retry(app: App, screen: Screen, task_id: str) -> Exit:
    opened = app.opened(datetime.now(UTC))
    task = find_task(opened.db, opened.catalog, task_id)
    return _verdict(app, screen, runs.retry(opened, who_asks(opened.catalog), task, _watcher(screen)))


def _watcher(screen: Screen) -> OnTerminal:
    return OnTerminal(sys.stderr if screen.as_json else sys.stdout)


class OnTerminal:
    """Shows the task's output, live and without its escape sequences."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clean = PrintableStream()
        self._at_line_start = True

    def remark(self, text: str) -> None:
        print(f"{program_name()}: {text}", file=sys.stderr)

    def output(self, data: bytes) -> None:
        self._print(self._clean.feed(data))

    def end(self) -> None:
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


def _already_done(screen: Screen, ended: Ended, key: str) -> Exit:
    earlier = ended.run
    if screen.as_json:
        screen.json(_ended_json(ended))
    screen.line(f"nothing done: key {one_line(key)} was used by run {earlier.run_id} ({earlier.status})")
    if earlier.status is RunStatus.RUNNING:
        return Exit.ALREADY_RUNNING
    return Exit.OK if earlier.status is RunStatus.SUCCESS else Exit.FAILED


def _ended_json(ended: Ended) -> dict[str, Any]:
    """What `run --json` tells, whether it ran now or had been run before."""
    return run_json(ended.run, ended.task.zone) | {"state": ended.state, "failures": _failures(ended)}


def _failures(ended: Ended) -> int:
    return ended.facts.failures if ended.facts is not None else 0


def _verdict(app: App, screen: Screen, ended: Ended) -> Exit:
    run, task = ended.run, ended.task
    assert ended.outcome is not None
    if screen.as_json:
        screen.json(_ended_json(ended))
    screen.line(verdict_line(task.id, run.run_id, ended.outcome, duration_ms(run)))
    if run.status is RunStatus.SUCCESS and ended.state is TaskState.SUSPENDED:
        screen.line(f"it succeeded, but is still suspended; go on with: {command_line('resume', task.id)}")
    elif _failures(ended) > ended.failures_before:
        screen.line(_counted(app, task, _failures(ended), ended.state))
    if ended.received is not None:
        return Exit.INTERRUPTED if ended.received is signal.SIGINT else Exit.TERMINATED
    return Exit.OK if run.status is RunStatus.SUCCESS else Exit.FAILED


def _counted(app: App, task: Task, failures: int, state: TaskState) -> str:
    """What a failure by hand means for the task, since it counts like any other."""
    words = f"failure {failures} in a row"
    if state is TaskState.SUSPENDED:
        since = "now" if task.enabled else "still"
        return f"{words}; it is {since} suspended; go on with: {command_line('resume', task.id)}"
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
    opened = app.opened(datetime.now(UTC))
    ended = runs.stop(opened, who_asks(opened.catalog), task_id)
    document = run_json(ended, get_zone(app.settings.config.timezone))
    return done(screen, f"{ended.task_id}: {ended.status} (run {ended.run_id})", document)


def prune(app: App, screen: Screen) -> Exit:
    from tickdown.actions import prune  # the one command that needs it

    opened = app.opened(datetime.now(UTC))
    pruned = prune.prune(opened, who_asks(opened.catalog))
    return done(
        screen,
        f"removed {pruned.runs} runs and {pruned.logs} logs from before {pruned.before}",
        {"runs": pruned.runs, "logs": pruned.logs, "before": pruned.before},
    )
