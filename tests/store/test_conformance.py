"""What every engine of the store must do. Only its verbs are used here: a second engine is another name in ENGINES, and
nothing below needs to change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tickdown.base.model import (
    ActionName,
    ActionTaken,
    Alert,
    AlertKind,
    AskedBy,
    Asker,
    Facts,
    HealRow,
    HealStatus,
    HealVerdict,
    Hint,
    HintKind,
    Lease,
    MissReason,
    Modification,
    Occurrence,
    Owner,
    Run,
    Rung,
    RunStatus,
    Source,
    Ticket,
    TicketKind,
    Usage,
)
from tickdown.base.records import replace
from tickdown.failure.ladder import NoHeal, judge
from tickdown.failure.outcomes import Outcome
from tickdown.schedule.schedule import parse_schedule
from tickdown.store import actions, comments, costs, heals, hints, outbox, runs, tasks, tickets, ticks
from tickdown.store.database import Database
from tickdown.store.errors import Busy, LostLease
from tickdown.tasks.catalogue import Catalog, catalog_of, scan_tasks
from tickdown.tasks.task import Surroundings, Task
from tickdown.workspace.folders import find_workspace

NOW = datetime(2026, 7, 1, 12, 0, 1, tzinfo=UTC)
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
FIRST, SECOND_HOST = Owner("one", 11, 1, "boot-one"), Owner("two", 22, 2, "boot-two")
SUCCESS, FAILED = Outcome(RunStatus.SUCCESS, 0), Outcome(RunStatus.FAILED, 1, error="exit code 1")
JOB = Task("job", parse_schedule("* * * * *", "job", UTC), UTC, "tasks/job.md")
TASKS = {"job": "", "other": "", "third": "", "next": "after: job\n", "sorry": "after: {job: failure}\n"}

Opener = Callable[[], Database]


def sqlite(folder: Path) -> Opener:
    return lambda: Database(folder / "state" / "tickdown.db")


ENGINES: dict[str, Callable[[Path], Opener]] = {"sqlite": sqlite}


@pytest.fixture(params=ENGINES)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens one fresh store, which knows some tasks; to be closed by whoever uses it."""
    found = ENGINES[request.param](tmp_path)
    db = found()
    with db.transaction() as connection:
        tasks.sync(connection, catalogue(tmp_path), NOW - MINUTE, "boot")
    db.close()
    return found


@pytest.fixture
def connect(opener: Opener) -> Iterator[Opener]:
    """Another connection to it each time."""
    opened: list[Database] = []

    def another() -> Database:
        opened.append(opener())
        return opened[-1]

    yield another
    for db in opened:
        db.close()


@pytest.fixture
def db(connect: Opener) -> Database:
    return connect()


def catalogue(root: Path) -> Catalog:
    (root / "tasks").mkdir(exist_ok=True)
    for task_id, more in TASKS.items():
        path = root / "tasks" / f"{task_id}.md"
        path.write_text(f"---\nid: {task_id}\nschedule: '* * * * *'\ntimezone: UTC\ncommand: 'true'\n{more}---\n")
        path.chmod(0o644)
    workspace = find_workspace(str(root), {}, root)
    return catalog_of(scan_tasks(workspace), workspace, Surroundings(), {}, NOW - MINUTE)


def task(root: Path, task_id: str = "job") -> Task:
    found = catalogue(root).get(task_id)
    assert found is not None
    return found


def facts(db: Database, task_id: str = "job") -> Facts:
    found = tasks.facts(db, task_id)
    assert found is not None
    return found


def run_of(db: Database, lease: Lease) -> Run:
    found = runs.get_run(db, lease.run_id)
    assert found is not None
    return found


def new_run(task_id: str = "job", owner: Owner = FIRST, at: datetime = NOW, group: str | None = None) -> runs.NewRun:
    occurrence = Occurrence(task_id, at, Source.BASELINE_CRON, f"{task_id}@{at.isoformat()}", at)
    known = Facts(task_id, armed_at=at)
    return runs.NewRun(runs.new_run_id(at), occurrence, owner, "trace", "log", known, group=group)


def claim(db: Database, new: runs.NewRun, known: Facts, at: datetime, **limits: int | None) -> runs.Claim:
    return runs.claim(db, replace(new, facts=known, **limits), at)


def claimed(db: Database, task_id: str = "job", owner: Owner = FIRST, at: datetime = NOW) -> Lease:
    new = new_run(task_id, owner, at)
    assert claim(db, new, facts(db, task_id), at, limit=9) is runs.Claim.WON
    return new.lease


def taken_over(db: Database, lease: Lease, *, cut_off: bool = True) -> Lease:
    died = Outcome(RunStatus.ORPHANED, error="its host went away")
    taken = runs.interrupted(db, run_of(db, lease), SECOND_HOST, 1, died, NOW + MINUTE, cut_off=cut_off)
    assert taken is not None
    return taken


def finish(db: Database, lease: Lease, outcome: Outcome, at: datetime = NOW + SECOND) -> None:
    verdict = judge(JOB, facts(db), outcome, at)
    ending = runs.Ending(lease, "job", 1, outcome, (0, 5), "said\n", Source.BASELINE_CRON, verdict)
    with db.transaction() as connection:
        runs.finish_run(connection, ending, at)


def finish_shortly(db: Database, lease: Lease) -> bool:
    with db.transaction() as connection:
        return runs.finish_unremarkable(
            connection, lease, "job", SUCCESS, (0, 5), "said\n", Source.BASELINE_CRON, NOW + SECOND
        )


# --- transactions --------------------------------------------------------------------------------------------------


def test_what_is_written_in_a_transaction_that_fails_was_never_written(connect: Opener) -> None:
    db = connect()
    with pytest.raises(ZeroDivisionError), db.transaction() as connection:
        comments.add_comment(connection, "job", "anna", "hello", NOW)
        raise ZeroDivisionError
    assert comments.list_comments(connect(), None, 10) == []
    with db.transaction() as connection:
        comments.add_comment(connection, "job", "anna", "again", NOW)
    assert [one.text for one in comments.list_comments(connect(), None, 10)] == ["again"]


def test_a_transaction_inside_another_is_a_part_of_it(connect: Opener) -> None:
    db = connect()
    with pytest.raises(ZeroDivisionError), db.transaction():
        hints.give_hints(db, "job", [Hint(HintKind.INTERVAL, NOW, every=MINUTE)])
        raise ZeroDivisionError
    assert facts(connect()).hints == ()


def test_a_rehearsal_leaves_nothing(connect: Opener) -> None:
    db = connect()
    with db.rehearsal():
        claimed(db)
        assert runs.running_runs(db)
    assert runs.running_runs(db) == runs.running_runs(connect()) == []


def test_whoever_waits_too_long_for_a_writer_is_told_that_it_is_busy(connect: Opener) -> None:
    one, two = connect(), connect()
    two.wait_no_longer_than(0.05)
    with one.transaction() as connection:
        comments.add_comment(connection, "job", "anna", "hello", NOW)
        with pytest.raises(Busy), two.transaction() as other:
            comments.add_comment(other, "job", "ben", "hello", NOW)
    assert len(comments.list_comments(two, None, 10)) == 1


# --- claims --------------------------------------------------------------------------------------------------------


def test_of_many_who_claim_an_occurrence_at_once_one_wins(opener: Opener, db: Database) -> None:
    known, ready, claims = facts(db), threading.Barrier(6), list[runs.Claim]()

    def try_it(number: int) -> None:
        mine = opener()
        ready.wait()
        claims.append(claim(mine, new_run(owner=Owner(f"host{number}", 1, 1, "boot")), known, NOW, limit=9))
        mine.close()

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.name for one in claims) == ["LOST"] * 5 + ["WON"]
    assert len(runs.running_runs(db)) == 1


def test_a_task_that_runs_is_not_claimed_again(db: Database) -> None:
    claimed(db)
    assert claim(db, new_run(at=NOW + MINUTE), facts(db), NOW, limit=9) is runs.Claim.LOST
    assert facts(db).running and not facts(db, "other").running


def test_a_decision_from_facts_that_have_changed_claims_nothing(db: Database) -> None:
    before = facts(db)
    finish(db, claimed(db), SUCCESS)
    assert claim(db, new_run(at=NOW + MINUTE), before, NOW + MINUTE, limit=9) is runs.Claim.LOST
    assert claim(db, new_run(at=NOW + MINUTE), facts(db), NOW + MINUTE, limit=9) is runs.Claim.WON


def test_no_more_run_than_there_are_slots(db: Database) -> None:
    assert claim(db, new_run("job"), facts(db, "job"), NOW, limit=1) is runs.Claim.WON
    assert claim(db, new_run("other"), facts(db, "other"), NOW, limit=1) is runs.Claim.AT_CAPACITY
    assert claim(db, new_run("third"), facts(db, "third"), NOW, limit=None) is runs.Claim.WON
    assert runs.slots_held(db) == 2


def test_no_more_of_a_group_run_than_it_may(db: Database) -> None:
    def claim_in_group(task_id: str, group: str) -> runs.Claim:
        return claim(db, new_run(task_id, group=group), facts(db, task_id), NOW, limit=9, group_limit=1)

    assert claim_in_group("job", "gpu") is runs.Claim.WON
    assert claim_in_group("other", "gpu") is runs.Claim.GROUP_FULL
    assert claim_in_group("third", "disk") is runs.Claim.WON


def test_what_is_claimed_ahead_holds_no_slot_until_it_takes_one(db: Database) -> None:
    new = new_run()
    with db.transaction() as connection:
        going = runs.ActiveRuns(connection)
        assert (
            runs.claim_in(connection, going, replace(new, facts=facts(db), limit=1, ahead=True), NOW) is runs.Claim.WON
        )
    assert runs.slots_held(db) == 0
    assert not runs.take_slot(db, new.lease, 0, NOW)
    assert runs.take_slot(db, new.lease, 1, NOW + SECOND)
    assert runs.slots_held(db) == 1


def test_what_was_claimed_ahead_can_be_given_back_as_if_it_had_never_been(db: Database) -> None:
    before, new = facts(db), new_run()
    with db.transaction() as connection:
        runs.claim_in(connection, runs.ActiveRuns(connection), replace(new, facts=before, limit=1, ahead=True), NOW)
    with db.transaction() as connection:
        assert runs.unclaim(connection, new.lease)
        assert not runs.unclaim(connection, new.lease)
    assert runs.get_run(db, new.run_id) is None
    assert facts(db).last_occurrence == before.last_occurrence
    claimed(db)


def test_what_has_begun_is_not_given_back(db: Database) -> None:
    lease = claimed(db)
    with db.transaction() as connection:
        assert not runs.unclaim(connection, lease)
    assert run_of(db, lease).status is RunStatus.RUNNING


# --- leases --------------------------------------------------------------------------------------------------------


def test_a_claim_begins_with_the_first_lease_and_each_takeover_raises_it(db: Database) -> None:
    first = claimed(db)
    assert (first.number, run_of(db, first).lease) == (1, first)
    second = taken_over(db, first)
    third = taken_over(db, second)
    assert (second.number, third.number, run_of(db, first).lease) == (2, 3, third)
    assert run_of(db, first).interruptions == 2 and run_of(db, first).owner == SECOND_HOST


def test_of_two_who_take_over_one_wins(connect: Opener) -> None:
    db, other = connect(), connect()
    run = run_of(db, claimed(db))
    died = Outcome(RunStatus.ORPHANED, error="died")
    won = [runs.interrupted(one, run, SECOND_HOST, 1, died, NOW) for one in (db, other)]
    assert won == [Lease(run.run_id, 2), None]


def test_a_lease_is_renewed_by_who_holds_it(db: Database) -> None:
    lost, held = claimed(db), claimed(db, "other")
    new = taken_over(db, lost)
    later = NOW + 5 * MINUTE
    assert runs.renew_heartbeats(db, [lost, held], later) == [lost]
    assert run_of(db, held).heartbeat_at == later and run_of(db, lost).heartbeat_at == NOW + MINUTE
    assert runs.renew_heartbeats(db, [new, held], later) == []
    assert run_of(db, lost).heartbeat_at == later


LATE_WRITES: dict[str, Callable[[Database, Lease], object]] = {
    "the end": lambda db, lease: finish(db, lease, FAILED),
    "the end of an attempt": lambda db, lease: runs.finish_attempt(db, lease, 1, FAILED, None, NOW),
    "a further attempt": lambda db, lease: runs.start_attempt(db, lease, 2, Rung.RETRY, NOW),
    "a slot": lambda db, lease: runs.take_slot(db, lease, 9, NOW),
    "a heal": lambda db, lease: heals.start(db, a_heal(lease), lease, midnight=NOW - DAY, most_a_day=9, now=NOW),
    "a modification": lambda db, lease: in_one(db, lambda it: runs.modify(it, lease, Modification({}, "short"))),
    "giving it back": lambda db, lease: in_one(db, lambda it: runs.give_back(it, lease, "job")),
    "forgetting its attempt": lambda db, lease: in_one(db, lambda it: runs.forget_unstarted(it, lease)),
}


def in_one(db: Database, verb: Callable[..., object]) -> None:
    with db.transaction() as connection:
        verb(connection)


@pytest.mark.parametrize("write", LATE_WRITES)
@pytest.mark.parametrize("has_ended", [False, True])
def test_who_has_lost_a_run_can_write_nothing_to_it(db: Database, write: str, has_ended: bool) -> None:
    lost = claimed(db)
    new = taken_over(db, lost)
    if has_ended:
        assert finish_shortly(db, new)
    before = run_of(db, lost), runs.attempts_of(db, lost.run_id), facts(db), heals.of_run(db, lost.run_id)
    with pytest.raises(LostLease):
        LATE_WRITES[write](db, lost)
    assert not finish_shortly(db, lost)
    with db.transaction() as connection:
        assert not runs.unclaim(connection, lost)
        runs.hold_slots(connection, [(lost, NOW + MINUTE)])
    assert before == (run_of(db, lost), runs.attempts_of(db, lost.run_id), facts(db), heals.of_run(db, lost.run_id))


def test_a_run_ends_once(db: Database) -> None:
    lease = claimed(db)
    finish(db, lease, SUCCESS)
    with pytest.raises(LostLease):
        finish(db, lease, FAILED)
    assert run_of(db, lease).status is RunStatus.SUCCESS and facts(db).failures == 0


# --- ends ----------------------------------------------------------------------------------------------------------


def test_the_end_of_a_run_is_on_its_row_its_attempt_and_its_task(db: Database) -> None:
    lease = claimed(db)
    finish(db, lease, FAILED)
    run, (attempt,) = run_of(db, lease), runs.attempts_of(db, lease.run_id)
    assert (run.status, run.exit_code, run.error, run.finished_at) == (RunStatus.FAILED, 1, "exit code 1", NOW + SECOND)
    assert (attempt.status, attempt.exit_code, attempt.log_end) == (RunStatus.FAILED, 1, 5)
    assert (facts(db).failures, facts(db).running, facts(db).last_end) == (1, False, NOW + SECOND)
    assert runs.last_failed(db, "job") == run


def test_those_that_come_after_are_told_with_the_end(db: Database) -> None:
    lease = claimed(db)
    assert finish_shortly(db, lease)
    told = facts(db, "next").chained
    assert told is not None and told.run_id == lease.run_id
    assert facts(db, "sorry").chained is None


def test_the_short_way_is_not_for_a_task_with_a_past(db: Database) -> None:
    finish(db, claimed(db), FAILED)
    lease = claimed(db, at=NOW + MINUTE)
    assert not finish_shortly(db, lease) and run_of(db, lease).status is RunStatus.RUNNING


def test_who_is_asked_to_end_finds_out(db: Database) -> None:
    lease = claimed(db)
    runs.request_end(db, lease.run_id, RunStatus.CANCELLED)
    runs.request_end(db, lease.run_id, RunStatus.KILLED)  # what a person asked for stays
    assert runs.requested_end(db, lease.run_id) is RunStatus.CANCELLED
    assert not runs.start_attempt(db, lease, 2, Rung.RETRY, NOW) and not finish_shortly(db, lease)


def test_what_attempts_cost_is_summed_up(db: Database) -> None:
    lease = claimed(db)
    spent = Outcome(RunStatus.FAILED, 1, usage=Usage(10, 5, 0.25))
    runs.finish_attempt(db, lease, 1, spent, None, NOW)
    assert runs.start_attempt(db, lease, 2, Rung.RETRY, NOW)
    runs.finish_attempt(db, lease, 2, spent, None, NOW)
    assert run_of(db, lease).usage.cost_usd == costs.spent(db, NOW - MINUTE, "JOB") == 0.5
    assert costs.spent(db, NOW + MINUTE) == costs.spent(db, NOW - MINUTE, "other") == 0
    (cost,) = costs.by_task_and_day(db, NOW - MINUTE, UTC)
    assert (cost.task_id, cost.calls, cost.input_tokens) == ("job", 2, 20)


def test_history_is_newest_first_and_by_task_and_status(db: Database) -> None:
    for number in range(3):
        finish(db, claimed(db, at=NOW + number * MINUTE), SUCCESS if number else FAILED, NOW + number * MINUTE + SECOND)
    claimed(db, "other", at=NOW + 9 * MINUTE)
    assert [run.task_id for run in runs.list_runs(db)] == ["other", "job", "job", "job"]
    assert len(runs.list_runs(db, "JOB", status="success")) == 2
    assert len(runs.list_runs(db, since=NOW + 2 * MINUTE, limit=5)) == 2


# --- what is said to tasks -----------------------------------------------------------------------------------------


def test_a_hint_replaces_one_of_its_kind_and_can_be_cleared(db: Database, tmp_path: Path) -> None:
    hints.give_hints(db, "job", [Hint(HintKind.INTERVAL, NOW, every=MINUTE), Hint(HintKind.ONE_SHOT, NOW, at=NOW)])
    hints.give_hints(db, "job", [Hint(HintKind.INTERVAL, NOW, every=5 * MINUTE, reason="calm", author="anna")])
    assert {hint.kind: hint.every for hint in facts(db).hints} == {
        HintKind.INTERVAL: 5 * MINUTE,
        HintKind.ONE_SHOT: None,
    }
    assert hints.clear_hints(db, task(tmp_path), NOW) == 2 and facts(db).hints == ()


def test_a_moment_that_was_asked_for_is_met_by_a_claim(db: Database) -> None:
    hints.give_hints(
        db, "job", [Hint(HintKind.ONE_SHOT, NOW - SECOND, at=NOW), Hint(HintKind.INTERVAL, NOW, every=DAY)]
    )
    claimed(db)
    assert [hint.kind for hint in facts(db).hints] == [HintKind.INTERVAL]


def test_whatever_is_said_to_a_task_makes_it_looked_at(db: Database) -> None:
    def calm() -> None:
        tasks.look_later(db, [(one, NOW + DAY) for one in tasks.all_facts(db).values()])
        assert tasks.facts_to_look_at(db, NOW) == {}

    calm()
    hints.give_hints(db, "job", [Hint(HintKind.INTERVAL, NOW, every=MINUTE)])
    assert set(tasks.facts_to_look_at(db, NOW)) == {"job"}
    calm()
    in_one(db, lambda it: comments.add_comment(it, "Other", "anna", "hello", NOW))
    assert set(tasks.facts_to_look_at(db, NOW)) == {"other"}
    calm()
    tasks.pause(db, "third", NOW + MINUTE)
    assert set(tasks.facts_to_look_at(db, NOW)) == {"third"}


def test_who_decided_from_old_facts_does_not_put_off_a_task(db: Database) -> None:
    old = facts(db)
    tasks.pause(db, "job", NOW + MINUTE)
    tasks.look_later(db, [(old, NOW + DAY)])
    assert "job" in tasks.facts_to_look_at(db, NOW)


def test_a_comment_is_read_once(connect: Opener) -> None:
    db, other = connect(), connect()
    in_one(db, lambda it: comments.add_comment(it, "job", "anna", "hello", NOW))
    (comment,) = comments.unread_of(db, "JOB")
    with db.transaction() as connection:
        assert comments.mark_read(connection, {comment.id: "done"}, NOW)
    with other.transaction() as connection:
        assert not comments.mark_read(connection, {comment.id: "me too"}, NOW)
    assert comments.unread(other) == {} and comments.tasks_with_unread(db) == set()
    assert [one.answer for one in comments.list_comments(other, "job", 5)] == ["done"]


# --- what people are told ------------------------------------------------------------------------------------------


def test_an_alert_is_leased_by_one_and_by_another_when_that_has_run_out(connect: Opener) -> None:
    db, other = connect(), connect()
    in_one(db, lambda it: outbox.add_alert(it, Alert(AlertKind.FAILED, "job failed"), NOW))
    (mine,) = outbox.lease_due(db, None, NOW)
    assert outbox.lease_due(other, None, NOW + SECOND) == []
    assert outbox.keep_lease(db, [mine], NOW + SECOND)
    (theirs,) = outbox.lease_due(other, None, NOW + 2 * outbox.LEASE)
    assert theirs.id == mine.id and not outbox.keep_lease(db, [mine], NOW + 2 * outbox.LEASE)
    outbox.sent(other, [theirs.id], NOW)
    assert not outbox.any_pending(db) and outbox.lease_due(db, None, NOW + DAY) == []


def test_an_alert_that_could_not_be_sent_waits(db: Database) -> None:
    in_one(db, lambda it: outbox.add_alert(it, Alert(AlertKind.FAILED, "job failed"), NOW))
    (alert,) = outbox.lease_due(db, None, NOW)
    outbox.put_back(db, [alert.id], "no route", NOW + MINUTE)
    assert outbox.outbox_state(db) == (1, "no route")
    assert outbox.lease_due(db, None, NOW + SECOND) == []
    assert len(outbox.lease_due(db, None, NOW + 2 * MINUTE)) == 1


def test_the_same_trouble_is_told_once_in_a_while(db: Database) -> None:
    told = [
        outbox.add_alert_once_per(db, outbox.HOUR, Alert(AlertKind.FAILED, "no room"), NOW + m * MINUTE)
        for m in (0, 5, 70)
    ]
    assert told == [True, False, True]
    assert outbox.told_since(db, AlertKind.FAILED, NOW) and not outbox.told_since(db, AlertKind.FAILED, NOW + DAY)


def test_there_is_one_open_ticket_of_a_kind(db: Database) -> None:
    ticket = Ticket(TicketKind.SUSPENDED, "job is suspended", "why", "job")
    for _ in range(2):
        in_one(db, lambda it: tickets.open_ticket(it, ticket, NOW))
    (row,) = tickets.list_tickets(db, "JOB")
    assert tickets.is_open(db, "job", TicketKind.SUSPENDED)
    assert tickets.close_ticket(db, row.id, "seen to", NOW) is True
    assert tickets.close_ticket(db, row.id, "again", NOW) is False and tickets.close_ticket(db, 99, "", NOW) is None
    in_one(db, lambda it: tickets.open_ticket(it, ticket, NOW))
    assert len(tickets.list_tickets(db)) == 1 and len(tickets.list_tickets(db, closed_too=True)) == 2


# --- ticks and heals -----------------------------------------------------------------------------------------------


def test_an_outage_is_told_by_the_first_tick_after_it(connect: Opener) -> None:
    db, other, now = connect(), connect(), datetime.now(UTC)

    def outage(last: datetime) -> Alert | None:
        return Alert(AlertKind.FAILED, "down") if now - last > MINUTE else None

    ticks.beat(db, "one", 1, now - DAY, outage)
    for one in (db, other):
        ticks.beat(one, "one", 2, now, outage)
    assert len(outbox.lease_due(db, None, now)) == 1
    assert ticks.last_heartbeat(other, now) == ticks.last_heartbeat(db, now)


def test_what_is_done_once_a_day_is_done_by_one(connect: Opener) -> None:
    db, other = connect(), connect()
    assert [ticks.claim_daily(one, "last_prune", NOW) for one in (db, other)] == [True, False]
    assert ticks.claim_daily(other, "last_prune", NOW + DAY)


def test_stoppages_for_the_same_reason_are_one(db: Database) -> None:
    for minutes in range(3):
        ticks.stopped(db, MissReason.DATABASE, NOW + minutes * MINUTE)
    (stoppage,) = ticks.stoppages(db, NOW)
    assert (stoppage.since, stoppage.until) == (NOW, NOW + 2 * MINUTE)


def test_old_runs_go_but_the_last_of_each_task_stays(db: Database) -> None:
    for number in range(3):
        finish(db, claimed(db, at=NOW + number * MINUTE), SUCCESS, NOW + number * MINUTE + SECOND)
    lots = list(ticks.remove_old_runs(db, NOW + DAY))
    assert sum(map(len, lots)) == 2
    assert [run.scheduled_for for run in runs.list_runs(db)] == [NOW + 2 * MINUTE]


def a_heal(lease: Lease, attempt: int = 2) -> HealRow:
    return HealRow(lease.run_id, attempt, "job", NOW, HealStatus.RUNNING, "exit 1")


def test_a_heal_counts_from_its_begin_and_within_the_limits(db: Database) -> None:
    lease = claimed(db)

    def begin(attempt: int, most_a_day: int = 9) -> NoHeal | bool:
        row = a_heal(lease, attempt)
        return heals.start(db, row, lease, midnight=NOW - MINUTE, most_a_day=most_a_day, now=NOW)

    assert begin(2) is True
    assert heals.is_healed_now(db, "JOB") and heals.running_since(db) == NOW
    assert begin(3, most_a_day=1) is NoHeal.ALL_LIMIT
    row = HealRow(
        lease.run_id, 2, "job", NOW, HealStatus.KEPT, "exit 1", HealVerdict.FIXED, "a typo", None, ("run.sh",), 0.5
    )
    in_one(db, lambda it: heals.record(it, row))
    assert heals.of_run(db, lease.run_id) == heals.of_chain(db, lease.run_id) == [row]
    heals.undone(db, "job", lease.run_id)
    assert [one.status for one in heals.of_run(db, lease.run_id)] == [HealStatus.UNDONE]


def test_who_asked_for_what_is_kept_until_it_is_old(db: Database) -> None:
    anna = Asker(AskedBy.PERSON, "anna")
    paused = ActionTaken(NOW, ActionName.PAUSE, anna, "job", detail="until tomorrow")
    stopped = ActionTaken(NOW + MINUTE, ActionName.STOP, Asker(AskedBy.AGENT, "other"), "job", "a-run")
    resumed = ActionTaken(NOW + DAY, ActionName.RESUME, anna, "JOB")
    for taken in (paused, ActionTaken(NOW, ActionName.PRUNE, anna), stopped):
        in_one(db, lambda it, taken=taken: actions.add(it, taken))  # type: ignore[misc]
    assert actions.last_of(db, "JOB", 9) == [stopped, paused] and actions.last_of(db, "job", 1) == [stopped]
    assert actions.last_pause(db, "job") == paused and actions.last_pause(db, "other") is None
    in_one(db, lambda it: actions.add(it, resumed))
    assert actions.last_pause(db, "job") is None
    ticks.remove_old_bookkeeping(db, DAY, NOW + DAY + 2 * MINUTE)
    assert actions.last_of(db, "job", 9) == [resumed]
