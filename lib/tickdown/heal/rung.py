"""Healing as a rung of a run: a turn among all heals, the healer's attempt, and the proof by the task itself.

`heal` is about files, this about the run. It says what came of each step; what follows from that is the run's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum, auto

from tickdown.agents.calls import Answer
from tickdown.alerts.messages import heal_note
from tickdown.attempt.command import Command
from tickdown.attempt.transcript import Transcript
from tickdown.base.errors import TickdownError
from tickdown.base.model import ErrorClass, HealStatus, Lease, RunStatus
from tickdown.base.records import replace
from tickdown.base.redact import Redactor
from tickdown.context.context import Context
from tickdown.failure.ladder import NoHeal
from tickdown.failure.outcomes import Outcome, cleaned
from tickdown.heal.healer import Heal, Result, audit, log_tail, new_row, take_back_interrupted
from tickdown.processes.lock import TaskLock
from tickdown.store import heals, runs
from tickdown.store.errors import StoreError
from tickdown.tasks.task import Task


class Start(Enum):
    BEGUN = auto()  # its attempt is on record
    LATER = auto()  # another heal is going on
    STOPPED = auto()  # somebody wants the run to end


class Healing:
    """The heals of one run, one after another. `task_lock` is renewed after each: a healer may have removed its file."""

    def __init__(
        self, context: Context, lease: Lease, task_lock: TaskLock, redactor: Redactor, transcript: Transcript
    ) -> None:
        self.context, self.lease, self.run_id, self.task_lock = context, lease, lease.run_id, task_lock
        self.redactor, self.transcript = redactor, transcript
        self.is_proven = False
        self._turn: TaskLock | None = None
        self._current: Heal | None = None  # under way, or waiting for its proof
        self._judged: tuple[Heal, Result] | None = None  # one that is over, until what follows from it has been done

    @property
    def is_going_on(self) -> bool:
        return self._current is not None or self._judged is not None

    def start(self, task: Task, attempt: int, failed: Outcome, seconds_left: float, now: datetime) -> Start | NoHeal:
        """One at a time over all: who comes second waits for its turn, within the time of its ladder."""
        try:
            if not self._take_turn():
                return Start.LATER if seconds_left > 0 else NoHeal.NO_TIME
        except TickdownError:
            return NoHeal.NO_SNAPSHOT
        config = self.context.settings.config
        if seconds_left < config.heal_timeout.total_seconds() / 2:
            self.end_turn()
            return NoHeal.NO_TIME
        row = new_row(self.run_id, attempt, task.id, failed, now)
        current = Heal(self.context, task, row, self.redactor)  # before it is counted: it may not even be possible
        started = heals.start(
            self.context.db, row, self.lease, midnight=self.context.midnight(now),
            most_a_day=config.heals_per_day, now=now,
        )  # fmt: skip
        if started is not True:
            self.end_turn()
            return Start.STOPPED if started is False else started
        self._current = current
        return Start.BEGUN

    def command(
        self, failed: Outcome, span: tuple[int, int] | None, variables: Mapping[str, str], now: datetime
    ) -> Command:
        """`span` is where in the log the output of the failed attempt is."""
        assert self._current is not None
        *earlier, _ = heals.of_chain(self.context.db, self.run_id)
        log = log_tail(self.transcript.path, span)
        return self._current.begin(failed.error or "", log, earlier, variables, now)

    def judge(self, attempt: int, outcome: Outcome, answer: Answer | None, now: datetime) -> Result:
        """What the healer did, on record. May be called again, if the database could not be used for what follows; the edits
        are judged once."""
        if self._judged is None:
            assert self._current is not None
            runs.must_hold(self.context.db.connection, self.lease)  # files may be put back here
            self._judged = self._current, self._current.finish(answer, outcome, now)
            for line in (heal_note(self._judged[1].row), *self._judged[1].notes):
                self.transcript.note(line)
        current, result = self._judged
        self._record(attempt, outcome, result, now)
        if result.whole:
            current.recorded()
        self.task_lock.renew()
        self.context.log.info(
            "healed", task_id=result.row.task_id, run_id=self.run_id, attempt=attempt, result=heal_note(result.row)
        )
        if not result.edited and self._current is not None:
            self._current = None
            rerun = "cancelled" if outcome.status is RunStatus.CANCELLED else "not run"
            audit(self.context, result.row, result.diff, rerun, self.redactor, now)
            self.end_turn()
        return result

    def _record(self, attempt: int, outcome: Outcome, result: Result, now: datetime) -> None:
        note = heal_note(result.row)
        ended = outcome if outcome.status is not RunStatus.SUCCESS or result.edited else replace(
            outcome, status=RunStatus.FAILED, error_class=ErrorClass.ERROR, error=result.row.problem or note
        )  # fmt: skip
        with self.context.db.transaction() as connection:
            heals.record(connection, result.row)
            clean, span = cleaned(ended, self.redactor), self.transcript.span
            runs.end_attempt(connection, self.lease, attempt, clean, span, now, note)

    def healer_trouble(self, outcome: Outcome) -> NoHeal | None:
        """A healer that could not even begin, or has no network, login or money, says nothing about the task."""
        assert self._judged is not None
        current, result = self._judged
        if result.edited:
            return None
        if current.before is None:
            return NoHeal.NO_SNAPSHOT
        own_trouble = (ErrorClass.TRANSIENT, ErrorClass.AUTH, ErrorClass.BUDGET, ErrorClass.MISSING_TOOL)
        return NoHeal.UNAVAILABLE if outcome.error_class in own_trouble else None

    def settled(self) -> None:
        """What follows from the last heal has been done."""
        self._judged = None

    def prove(self, outcome: Outcome, now: datetime) -> bool:
        """Only a run that succeeds with the edits proves them; otherwise they go. True if there were any to prove."""
        current, self._current = self._current, None
        if current is None:
            return False
        if current.row.status is HealStatus.RUNNING:  # a bug cut it off
            take_back_interrupted(self.context, self.run_id, now, self.redactor)
            return False
        proven = outcome.status is RunStatus.SUCCESS
        failed, found = ([], []) if proven else current.undo()
        row = replace(current.row, status=HealStatus.KEPT if proven else HealStatus.RESTORED)
        if not proven:
            not_back = [f"NOT put back: {name}" for name in failed]
            trouble = [row.problem, f"the run after it: {outcome.error}", *not_back, *found]
            row = replace(row, problem=self.redactor.text("; ".join(filter(None, trouble))))
            if row.files:
                undone = f"NOT all undone: {'; '.join(failed)}" if failed else "undone: the task failed with them"
                self.transcript.note(f"the edits of the heal are {undone}")
        try:
            with self.context.db.transaction() as connection:
                heals.record(connection, row)
        except StoreError:
            self._current = current  # it still waits for its proof
            raise
        audit(self.context, row, current.diff, outcome.status, self.redactor, now)
        self.end_turn()  # only now: another heal must not take these edits for what was always there
        self.is_proven = proven
        return True

    def _take_turn(self) -> bool:
        if self._turn is None:
            turn = TaskLock(self.context.workspace.state, "heal")
            if not turn.acquire():
                return False
            self._turn = turn  # from now on it is let go of with the run, whatever happens
        return True

    def end_turn(self) -> None:
        if self._turn is not None:
            self._turn.release()
            self._turn = None
