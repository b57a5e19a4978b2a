"""The end of a run that simply succeeds is recorded in short: with the same effect as the long way, and only where it may be."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import Workspace
from tickdown.base.model import Facts, Lease, NotifyOn, Occurrence, Owner, RunStatus, Source
from tickdown.base.records import replace
from tickdown.failure.ladder import is_unremarkable, judge
from tickdown.failure.outcomes import Outcome
from tickdown.schedule.schedule import parse_schedule
from tickdown.store import runs, tasks
from tickdown.store.database import Database
from tickdown.tasks.task import Task

NOW = datetime(2026, 7, 1, 12, 0, 1, tzinfo=UTC)
DUE = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
TASK = Task("job", parse_schedule("* * * * *", "job", UTC), UTC, "tasks/job.md")
SUCCESS = Outcome(RunStatus.SUCCESS, 0)
RUN = Lease("20260701T120000-00000001")
SPAN, SUMMARY = (40, 45), "done\n"


def with_a_run(path: Path, source: Source) -> Database:
    db = Database(path)
    stamp = "2026-07-01T11:00:00.000Z"
    db.connection.execute(
        "INSERT INTO tasks (id, path, schedule, timezone, enabled, first_seen, armed_at, anchored_at, look_at)"
        " VALUES ('job', 'tasks/job.md', '* * * * *', 'UTC', 1, ?, ?, ?, '2026-07-02T00:00:00.000Z')",
        (stamp, stamp, stamp),
    )
    for task_id, wants in (("glad", "success"), ("sorry", "failure"), ("anyway", "always")):
        db.connection.execute("INSERT INTO chains (task_id, upstream, wants) VALUES (?, 'job', ?)", (task_id, wants))
    facts = tasks.facts(db, "job")
    assert facts is not None
    new = runs.NewRun(
        RUN.run_id,
        Occurrence("job", DUE, source, "job@due", DUE),
        Owner("host", 1, 1, "boot"),
        "trace",
        "log",
        facts,
        limit=1,
    )
    assert runs.claim(db, new, NOW) is runs.Claim.WON
    return db


def in_short(db: Database, source: Source) -> bool:
    with db.transaction() as connection:
        return runs.finish_unremarkable(
            connection, RUN, "job", SUCCESS, SPAN, SUMMARY, source, NOW + timedelta(seconds=5)
        )


def at_length(db: Database, source: Source) -> None:
    at = NOW + timedelta(seconds=5)
    facts = tasks.record_of(db, "job") or Facts("job", armed_at=NOW)
    ending = runs.Ending(RUN, "job", 1, SUCCESS, SPAN, SUMMARY, source, judge(TASK, facts, SUCCESS, at))
    with db.transaction() as connection:
        runs.finish_run(connection, ending, at)


def contents(db: Database) -> dict[str, list[tuple[Any, ...]]]:
    names = [row[0] for row in db.all("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: [tuple(row) for row in db.all(f"SELECT * FROM {name} ORDER BY 1, 2")] for name in names}


@pytest.mark.parametrize("source", [Source.BASELINE_CRON, Source.CATCH_UP, Source.AFTER, Source.MANUAL])
def test_the_short_way_writes_what_the_long_one_does(tmp_path: Path, source: Source) -> None:
    short, long = (with_a_run(tmp_path / name, source) for name in ("short.db", "long.db"))
    before = contents(short)
    assert in_short(short, source)
    at_length(long, source)
    assert contents(short) == contents(long) != before
    assert short.all("SELECT ended_run FROM chains WHERE task_id IN ('glad', 'anyway') AND ended_run IS NULL") == []
    short.close()
    long.close()


PASTS = {
    "failures": "UPDATE tasks SET failures = 1",
    "an incident": "UPDATE tasks SET incident = 'error:1'",
    "an alert of it": "UPDATE tasks SET incident_alerted_at = '2026-07-01T11:00:00.000Z'",
    "a heal on probation": "UPDATE tasks SET probation_run = 'r', probation_left = 2, probation_until = '2026-07-02'",
    "no row of the task": "DELETE FROM tasks",
    "somebody wants it cancelled": "UPDATE task_runs SET end_as = 'cancelled'",
    "another process has ended it": "UPDATE task_runs SET status = 'orphaned', finished_at = '2026-07-01T12:00:03.000Z'",
}


@pytest.mark.parametrize("past", PASTS.values(), ids=PASTS)
def test_where_more_is_to_be_said_the_short_way_writes_nothing(tmp_path: Path, past: str) -> None:
    db = with_a_run(tmp_path / "one.db", Source.BASELINE_CRON)
    db.connection.execute(past)
    before = contents(db)
    assert not in_short(db, Source.BASELINE_CRON)
    assert contents(db) == before
    db.close()


@pytest.mark.parametrize(
    ("task", "outcome", "expected"),
    [
        (TASK, SUCCESS, True),
        (replace(TASK, notify_on=NotifyOn.NEVER), SUCCESS, True),
        (replace(TASK, notify_on=NotifyOn.SUCCESS), SUCCESS, False),
        (replace(TASK, notify_on=NotifyOn.ALWAYS), SUCCESS, False),
        (replace(TASK, schedule=parse_schedule("in 5 minutes", "job", UTC)), SUCCESS, False),
        (TASK, Outcome(RunStatus.FAILED, 1), False),
        (TASK, Outcome(RunStatus.CANCELLED), False),
    ],
)
def test_what_is_unremarkable(task: Task, outcome: Outcome, expected: bool) -> None:
    assert is_unremarkable(task, outcome) is expected


def test_a_run_that_is_stopped_while_it_succeeds_is_cancelled(workspace: Workspace) -> None:
    code = (
        "import os, sqlite3; c = sqlite3.connect('state/tickdown.db'); "
        "c.execute(\"UPDATE task_runs SET end_as = 'cancelled' WHERE run_id = ?\", (os.environ['TICKDOWN_RUN_ID'],)); c.commit()"
    )
    (workspace.root / "stopped.py").write_text(code)
    workspace.task("a", command=f"{sys.executable} stopped.py", schedule="* * * * *")
    workspace.tick()
    workspace.move_back("a", "-1 minutes")
    workspace.tick()
    assert workspace.rows("a") == [("cancelled", None, 1)]
