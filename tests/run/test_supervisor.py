"""Ends that share a commit: one that can't be recorded costs none of the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tickdown.attempt.attempt import Attempt
from tickdown.attempt.transcript import Transcript
from tickdown.base.model import Lease, Rung, RunStatus
from tickdown.context.context import Context
from tickdown.failure.outcomes import Outcome
from tickdown.processes.termination import Termination
from tickdown.run.execution import Execution, Phase
from tickdown.run.live_run import LiveRun
from tickdown.run.recorder import Recorded
from tickdown.run.slots import Claimed, Queued, Slots
from tickdown.run.supervisor import Job, Supervisor
from tickdown.store.database import Database
from tickdown.tasks.task import Task


def no_process() -> Attempt:
    return Attempt("run", cast(Transcript, None))


def a_run(run_id: str) -> LiveRun:
    run = cast(LiveRun, LiveRun.__new__(LiveRun))
    run.run_id, run.lease, run.task = (
        run_id,
        Lease(run_id),
        cast(Task, SimpleNamespace(id="a", rerun_interrupted=False)),
    )
    return run


class Ending(Execution):
    """A run that is over and records its end as a row; `trouble` is the bug that it meets, behind what it wrote."""

    def __init__(self, db: Database, name: str, trouble: Exception | None = None) -> None:
        self.db, self.name, self.trouble = db, name, trouble
        self.run = a_run(name)
        self.phase, self._current = Phase.OVER, no_process()
        self.failed_with: Exception | None = None

    def record_end(self) -> None:
        assert self.db.connection.in_transaction
        self.db.connection.execute("INSERT INTO meta (name, value) VALUES (?, 'ended')", (self.name,))
        if self.trouble is not None:
            raise self.trouble
        self.recorded = Recorded(Outcome(RunStatus.SUCCESS))

    def let_go(self) -> None:
        self.phase = Phase.DONE

    def fail(self, error: Exception, now: datetime, monotonic: float) -> None:
        self.failed_with, self.phase = error, Phase.DONE


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return Database(tmp_path / "tickdown.db")


def recorded(db: Database) -> list[str]:
    return [row["name"] for row in db.all("SELECT name FROM meta WHERE value = 'ended' ORDER BY name")]


def commits_of(db: Database) -> list[str]:
    seen: list[str] = []
    db.connection.set_trace_callback(lambda statement: seen.append(statement) if "COMMIT" in statement else None)
    return seen


@contextmanager
def loop_of(db: Database, *jobs: Job) -> Iterator[Slots]:
    context = cast(Context, SimpleNamespace(db=db))
    with Supervisor(context) as supervisor:
        supervisor.jobs = list(jobs)
        yield Slots(context, supervisor, len(jobs))


def test_ends_that_come_together_share_one_commit_with_what_takes_their_place(db: Database) -> None:
    ahead = Ending(db, "ahead")
    ahead.phase, ahead.run.holds_slot = Phase.WAITING, False
    with loop_of(db, *(Ending(db, name) for name in "abc")) as slots:
        slots.claimed = [Claimed(cast(Queued, None), ahead, Rung.RUN)]
        commits = commits_of(db)
        assert len(slots.turn(0)) == 3
    assert recorded(db) == ["a", "b", "c"]
    assert len(commits) == 1 and ahead.run.holds_slot


def test_an_end_that_can_not_be_recorded_leaves_nothing_and_costs_the_others_nothing(db: Database) -> None:
    trouble = ValueError("a bug")
    jobs = [Ending(db, "a"), Ending(db, "b", trouble), Ending(db, "c")]
    with loop_of(db, *jobs) as slots:
        assert slots.turn(0) == jobs
    assert recorded(db) == ["a", "c"]
    assert [job.failed_with for job in jobs] == [None, trouble, None]
    assert [job.recorded is not None for job in jobs] == [True, False, True]
    assert not db.connection.in_transaction


class EndingBadly(Execution):
    """A run whose processes are gone, and a bug in what is to follow."""

    def __init__(self) -> None:
        self.run = a_run("run")
        self.run.context = cast(Context, SimpleNamespace(log=SimpleNamespace(error=lambda *event, **details: None)))
        self.phase, self.wake_at = Phase.ENDING, 0.0
        self._current = no_process()
        self._current.termination = cast(Termination, SimpleNamespace(step=lambda monotonic: None, survivors=[]))
        self.ended_with: Outcome | None = None

    def _ending_done(self, *arguments: object) -> None:
        raise ValueError("unheard of")

    def _finish(self, outcome: Outcome, *more: object) -> None:
        self.ended_with, self.phase = outcome, Phase.DONE


def test_a_bug_after_the_end_of_its_processes_ends_a_run_and_does_not_keep_it_waiting(db: Database) -> None:
    job = EndingBadly()
    with loop_of(db, job) as slots:
        slots.turn(0)
    assert job.ended_with is not None and job.ended_with.error == "a bug: ValueError: unheard of"
