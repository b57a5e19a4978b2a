"""Each occurrence of a cron line has exactly one row, whatever else starts the task, holds it up or happens to the tick."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.helpers import PATIENCE, Gate, Workspace, wait_for
from tickdown.base.model import Chained, Facts, Lease, MissReason, Occurrence, Owner, SkipReason, Source, Waiting
from tickdown.base.records import replace
from tickdown.config import load_settings
from tickdown.context.app import app_with, sync_catalog
from tickdown.governor.governor import Plan, plan
from tickdown.schedule.schedule import parse_schedule
from tickdown.store import runs, tasks
from tickdown.store.database import Database
from tickdown.tasks.task import Task
from tickdown.workspace.folders import find_workspace

RAN = ("success", None, 1)
HASTY = Path(__file__).with_name("hasty_scheduler.py")
TEN = datetime(2026, 6, 1, 10, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HERE = Owner("here", 1, 1, "boot")


def every_minute(**fields: object) -> Task:
    return Task("job", parse_schedule("* * * * *", "job", UTC), UTC, "tasks/job.md", **fields)  # type: ignore[arg-type]


def just_over() -> str:
    """An hourly schedule whose last occurrence was five minutes ago: none comes while a test lasts."""
    return f"{(datetime.now(UTC) - 5 * MINUTE).minute} * * * *"


def behind_a_full_slot(workspace: Workspace) -> Gate:
    """`a` holds the only slot at a gate, `b` waits in the queue of the same tick."""
    workspace.config("max_concurrent: 1\n")
    gate = Gate(workspace)
    workspace.task("a", gate.command, schedule=just_over(), priority=1, timezone="UTC")
    workspace.task("b", schedule=just_over(), timezone="UTC")
    workspace.tick()
    for task_id in ("a", "b"):
        workspace.move_back(task_id, "-1 hours")
    return gate


def test_what_waits_in_the_queue_of_a_tick_that_goes_on_has_a_row_and_then_its_run(workspace: Workspace) -> None:
    gate = behind_a_full_slot(workspace)
    workspace.scheduler = HASTY
    tick = workspace.start("tick")
    gate.wait()
    wait_for(lambda: workspace.rows("b") == [("skipped", "at_capacity", 1)], "its row")
    gate.open()
    tick.communicate(timeout=PATIENCE)
    assert workspace.rows("b") == [RAN]
    assert workspace.sql("SELECT note FROM task_runs WHERE task_id = 'b'") == [("waited: at_capacity",)]


def test_what_waits_when_the_tick_is_told_to_stop_has_a_row(workspace: Workspace) -> None:
    gate = behind_a_full_slot(workspace)
    tick = workspace.start("tick")
    gate.wait()
    tick.send_signal(signal.SIGTERM)
    tick.communicate(timeout=PATIENCE)
    assert tick.returncode == 143
    assert workspace.rows("b") == [("skipped", "at_capacity", 1)]


def test_what_the_clock_names_while_a_chain_waits_for_a_slot_has_its_rows(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 1\n")
    gate = Gate(workspace)
    workspace.task("holder", gate.command, schedule="1h")
    workspace.task("up")
    workspace.task("job", schedule=just_over(), after="up", timezone="UTC")
    holder = workspace.start("tick")
    gate.wait()
    workspace.cli("run", "up")
    workspace.sql("UPDATE chains SET ended_at = '2026-01-01T00:00:00.000Z'")
    workspace.move_back("job", "-2 hours")
    workspace.tick()
    clock = workspace.sql("SELECT SUM(count) FROM task_runs WHERE task_id = 'job' AND key NOT LIKE '%+at_capacity'")
    assert clock == [(2,)], workspace.rows("job")
    gate.open()
    holder.communicate(timeout=PATIENCE)


def test_another_start_is_decided_beside_the_clock() -> None:
    """The chain came first; what the clock names is recorded, and waits for its turn."""
    facts = Facts("job", TEN - HOUR, last_occurrence=TEN - 3 * MINUTE, chained=Chained(TEN - 4 * MINUTE, "r1"))
    what = plan(TEN, every_minute(after={"up": "always"}), facts, "boot")
    assert [start.source for start in what.starts] == [Source.CATCH_UP] and what.beside is not None
    assert [one.count for one in what.beside.unrun] == [2] and [one.at for one in what.beside.waiting] == [TEN]
    after = replace(facts, last_occurrence=what.beside.settles, waiting=what.beside.waiting)
    assert plan(TEN, every_minute(after={"up": "always"}), after, "boot").beside is None


def test_what_a_later_one_stands_for_is_not_an_outage() -> None:
    ended = Facts("job", TEN - HOUR, last_occurrence=TEN, last_end=TEN)
    late = plan(TEN + 12 * MINUTE, every_minute(min_interval=10 * MINUTE), ended, "boot")
    assert [(one.count, one.reason) for one in late.unrun] == [(9, MissReason.MIN_INTERVAL), (2, None)]
    jittered = every_minute(jitter=10 * MINUTE)
    now, known = TEN, Facts("job", TEN - MINUTE)
    for _ in range(30):
        what = plan(now, jittered, known, "boot")
        assert all(one.reason is MissReason.JITTER for one in what.unrun), what
        if what.settles is not None:
            known = replace(
                known, last_occurrence=max(known.last_occurrence or what.settles, what.settles), waiting=what.waiting
            )
        now += MINUTE


def store(workspace: Workspace) -> Database:
    workspace.task("job", schedule="* * * * *", timezone="UTC")
    found = find_workspace(str(workspace.root), {}, workspace.root)
    app = app_with(found, load_settings(found, {}))
    db = app.database()
    sync_catalog(db, app.catalog(db), TEN - MINUTE, seen_to=True)
    return db


def facts_of(db: Database) -> Facts:
    found = tasks.facts(db, "job")
    assert found is not None
    return found


def a_claim(
    db: Database, at: datetime, what: Plan, *, ahead: bool = False, source: Source = Source.BASELINE_CRON
) -> str:
    run_id = runs.new_run_id(at)
    key = f"job@{at.isoformat()}"
    occurrence = Occurrence("job", at, source, key, at, apart=source is not Source.BASELINE_CRON)
    new = runs.NewRun(run_id, occurrence, HERE, "trace", "log", facts_of(db), what, limit=5, ahead=ahead)
    assert runs.claim(db, new, at) is runs.Claim.WON
    return run_id


def test_the_start_of_another_line_leaves_alone_what_waits(workspace: Workspace) -> None:
    db = store(workspace)
    waits = Waiting(TEN, Source.BASELINE_CRON)
    assert runs.write_off(
        db, facts_of(db), Plan(waiting=(waits,), reason=SkipReason.BLACKOUT, settles=TEN), "here", TEN
    )
    a_claim(db, TEN + MINUTE, Plan(source=Source.AI_ONESHOT), source=Source.AI_ONESHOT)
    assert facts_of(db).waiting == (waits,)
    assert [row["reason"] for row in db.all("SELECT reason FROM task_runs WHERE status = 'skipped'")] == ["blackout"]
    db.close()


def test_a_claim_that_is_given_back_after_a_later_occurrence_was_dealt_with_waits(workspace: Workspace) -> None:
    db = store(workspace)
    run_id = a_claim(db, TEN, Plan(settles=TEN), ahead=True)
    what = plan(TEN + MINUTE, every_minute(), facts_of(db), "boot")
    assert what.reason is SkipReason.ALREADY_RUNNING and runs.write_off(db, facts_of(db), what, "here", TEN + MINUTE)
    with db.transaction() as connection:
        assert runs.unclaim(connection, Lease(run_id))
    assert [one.at for one in facts_of(db).waiting] == [TEN]
    covered = db.all("SELECT scheduled_for, count FROM task_runs ORDER BY scheduled_for")
    assert [row["count"] for row in covered] == [1, 1]
    db.close()


def test_nonsense_about_the_clock_is_not_believed_and_mended(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.tick()
    ((booted,),) = workspace.sql("SELECT value FROM meta WHERE name = 'booted'")
    for nonsense in ("", "nan", "-1e300", "x y z"):
        workspace.sql("UPDATE meta SET value = ? WHERE name = 'booted'", f"{booted.partition(' ')[0]} {nonsense}")
        (workspace.root / "state" / f"stopped-{nonsense or 'crash'}").mkdir(exist_ok=True)
        workspace.move_back("job", "-2 hours")
        workspace.tick()
        ((mended,),) = workspace.sql("SELECT value FROM meta WHERE name = 'booted'")
        assert abs(float(mended.split()[1]) - float(booted.split()[1])) < 60
