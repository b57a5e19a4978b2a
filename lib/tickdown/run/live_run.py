"""A run that this process has in hand: what its claim gave, and how far it has come.

The loop reads it, the rungs move it on, and the recorder writes down what has become of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tickdown.attempt.command import own_variables
from tickdown.attempt.transcript import Transcript
from tickdown.base.model import ErrorClass, Lease, Modification, Rung, RunStatus, Source
from tickdown.base.records import record, replace
from tickdown.context.context import Context
from tickdown.failure.ladder import NoHeal
from tickdown.failure.outcomes import Outcome
from tickdown.heal.policy import why_no_heal
from tickdown.processes.lock import TaskLock
from tickdown.store import runs
from tickdown.tasks.catalogue import reread
from tickdown.tasks.task import Task

STOPPED_TEXT = "stopped"
KILLED_TEXT = "did not end in time and its supervisor hung"


@record(frozen=True)
class Used:
    """What a run and those that it follows have used up of the ladder."""

    retries: int = 0
    transient_retries: int = 0
    heals: int = 0

    def and_a_follow_up(self, outcome: Outcome) -> Used:
        """Of the kind that fits this failure."""
        if outcome.error_class is ErrorClass.TRANSIENT:
            return replace(self, transient_retries=self.transient_retries + 1)
        return replace(self, retries=self.retries + 1)


@record(frozen=True)
class RunToDo:
    """What a claim gives, or the takeover of a run whose owner died."""

    task: Task
    lease: Lease
    source: Source
    scheduled_for: datetime
    trace_id: str
    used: Used = Used()
    may_heal: bool = True
    modification: Modification | None = None  # what a comment has changed for this run
    uncommented: bool = False  # nobody has written anything that its first attempt must heed


class LiveRun:
    attempt = 1
    rung = Rung.RUN
    interruptions = 0
    holds_slot = True  # on record; False of one that was claimed ahead
    began_at = float("-inf")  # its first attempt, on the monotonic clock
    started_at: datetime | None = None  # the same, on the clock of the machine
    by_a_person = True  # should it be cancelled
    is_healed = False  # the task has succeeded with what a healer made of it
    failed_summary = ""  # what the last failed attempt printed
    failed_span: tuple[int, int] | None = None  # and where that is in the log

    def __init__(
        self, context: Context, lock: TaskLock, todo: RunToDo, echo: Callable[[bytes], None] | None = None
    ) -> None:
        self.context, self.lock, self.echo = context, lock, echo
        self.source, self.scheduled_for, self.trace_id = todo.source, todo.scheduled_for, todo.trace_id
        self.may_heal, self.uncommented = todo.may_heal, todo.uncommented
        # These change: a healer edits the task, a takeover raises the lease, a comment modifies the run.
        self.task, self.lease, self.run_id = todo.task, todo.lease, todo.lease.run_id
        self.used, self.modification = todo.used, todo.modification
        self.redactor = context.redactor.knowing(own_variables(todo.task, context.settings.environment))
        log = f"{context.workspace.root}/{context.workspace.run_log(todo.task.id, self.run_id)}"
        self.transcript = Transcript(log, todo.task.max_log, self.redactor, echo, self._log_failed)

    def no_heal(self, now: datetime) -> NoHeal | None:
        return why_no_heal(self.context, self.task, now, allowed=self.may_heal)

    def use_edited_task(self) -> None:
        known = self.context.settings.config.surroundings()
        self.task = reread(self.task, self.context.workspace, known) or self.task

    def as_requested(self, outcome: Outcome) -> Outcome:
        """How it ended does not matter to whoever asked for the end: `stop`, or a tick that found this run stale."""
        match runs.requested_end(self.context.db, self.run_id):
            case RunStatus.CANCELLED:
                return replace(outcome, status=RunStatus.CANCELLED, error_class=None, error=STOPPED_TEXT)
            case RunStatus.KILLED if outcome.status is not RunStatus.CANCELLED:
                return replace(outcome, status=RunStatus.KILLED, error_class=ErrorClass.TIMEOUT, error=KILLED_TEXT)
        return outcome

    def _log_failed(self, error: Exception) -> None:
        self.context.log.error("log_failed", task_id=self.task.id, run_id=self.run_id, error=str(error))
