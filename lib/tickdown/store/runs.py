"""Runs and attempts: claiming an occurrence, recording how it ends, taking over what a dead process left.

Where every run comes by, states go into the database by their `value`: for anything but a plain text Python's sqlite3 first
looks for somebody who would convert it, which takes longer than the rest of the binding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum, auto

from tickdown.base.model import (
    FAILURES,
    NO_USAGE,
    ActionTaken,
    Alert,
    Attempt,
    ChainOn,
    DisabledReason,
    ErrorClass,
    Facts,
    Lease,
    Modification,
    Occurrence,
    Owner,
    Probation,
    Run,
    Rung,
    RunStatus,
    SkipReason,
    Source,
    Ticket,
    Usage,
    Waiting,
)
from tickdown.base.records import record, replace
from tickdown.failure.ladder import Verdict
from tickdown.failure.outcomes import Outcome
from tickdown.governor.governor import Plan, Unrun, is_by_chain, occurrence_key
from tickdown.store import actions, outbox, tasks
from tickdown.store.database import Connection, Database, Row
from tickdown.store.errors import LostLease
from tickdown.store.tickets import note_on_tickets, open_ticket
from tickdown.time.instants import from_store, maybe_from_store, to_store

_BY_CLOCK = frozenset({Source.BASELINE_CRON, Source.CATCH_UP, Source.CLAMPED_MIN})  # what a cron line's rows may have
_USUAL_FROM = 9  # runs that tell how long a task takes


class Claim(Enum):
    WON = auto()
    LOST = auto()
    AT_CAPACITY = auto()
    GROUP_FULL = auto()


@record(frozen=True)
class NewRun:
    """All that a claim needs: the run, and the decision that it was made from."""

    run_id: str
    occurrence: Occurrence
    owner: Owner
    trace_id: str
    log: str
    facts: Facts  # as they were when this was decided
    plan: Plan | None = None  # what it says of other occurrences is recorded with the claim
    group: str | None = None
    rung: Rung = Rung.RUN
    limit: int | None = None  # of slots; None: it waits for none
    group_limit: int | None = None
    next_boot_id: str | None = None
    ahead: bool = False  # it holds no slot, see `claim_in`
    asked: ActionTaken | None = None  # who asked for it, if it was not its schedule

    @property
    def lease(self) -> Lease:
        """The first one: what is claimed anew is another run."""
        return Lease(self.run_id)


class ActiveRuns:
    """What goes on while claims are made: known to all claims of one transaction, and read once for them."""

    def __init__(self, connection: Connection) -> None:
        running = connection.execute("SELECT task_id, heartbeat_at FROM task_runs WHERE status = 'running'").fetchall()
        self.tasks = {row[0].lower() for row in running}
        self.slots_held = sum(row[1] is not None for row in running)
        self.has_hints = connection.execute("SELECT 1 FROM hints LIMIT 1").fetchone() is not None


def claim(db: Database, new: NewRun, now: datetime) -> Claim:
    """Take up an occurrence: whoever inserts the row runs it.

    In one transaction: nobody else took up an occurrence of this task meanwhile (the remembered one is still what the
    decision was made from), no run of it is going on, and there is a free slot. A manual run uses up no occurrence.
    """
    with db.transaction() as connection:
        return claim_in(connection, ActiveRuns(connection), new, now)


def claim_in(connection: Connection, going: ActiveRuns, new: NewRun, now: datetime) -> Claim:
    """The same, as a part of the caller's transaction. Claimed `ahead`, a run holds no slot, which is to say that it has no
    heartbeat: it starts in the place of another run of this process (`hold_slots`), or is given back (`unclaim`)."""
    facts, plan, limit, ahead = new.facts, new.plan, new.limit, new.ahead
    occurrence, stamp = new.occurrence, to_store(now)
    regular = occurrence.source is not Source.MANUAL
    if occurrence.task_id.lower() in going.tasks:
        return Claim.LOST
    if limit is not None and going.slots_held >= limit and not ahead:
        return Claim.AT_CAPACITY
    if new.group_limit is not None:
        (running,) = connection.execute(
            "SELECT COUNT(*) FROM task_runs WHERE status = 'running' AND concurrency_group = ?", (new.group,)
        ).fetchone()
        if running >= new.group_limit:
            return Claim.GROUP_FULL
    settles = plan.settles if plan is not None else None
    if regular and not _take_up(connection, facts, occurrence, new.next_boot_id, settles):
        return Claim.LOST
    note = _no_longer_waits(connection, occurrence) if _waits(occurrence, facts) else None
    if regular and going.has_hints and occurrence.source is not Source.RETRY:
        # A moment that a hint asked for is met by any run that starts from then on.
        connection.execute(
            "DELETE FROM hints WHERE task_id = ? AND kind = 'one-shot' AND at <= ?", (facts.task_id, stamp)
        )
    if plan is not None and regular:
        _record_unrun(connection, facts, plan, SkipReason.ALREADY_RUNNING, new.owner.host, now)
    inserted = connection.execute(
        "INSERT INTO task_runs (run_id, task_id, key, status, source, note, recorded_at, scheduled_for, started_at, attempts,"
        " host, owner_pid, owner_started, owner_boot, heartbeat_at, trace_id, log, follows, concurrency_group,"
        " previous_occurrence) VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
        (new.run_id, occurrence.task_id, occurrence.key, occurrence.source.value, note, stamp,
         to_store(occurrence.at) if regular else None, stamp, new.owner.host, new.owner.pid,
         new.owner.started, new.owner.boot_id, None if ahead else stamp, new.trace_id, new.log, occurrence.follows,
         new.group, _maybe(facts.last_occurrence) if ahead else None),
    )  # fmt: skip
    if inserted.rowcount != 1:
        # It has its row already; taken up all the same, or it would be due for ever. So would an interval that, after the
        # clock was set back, comes to a moment that it has been at before: it counts from there.
        if regular:
            connection.execute(
                "UPDATE tasks SET last_end = MAX(COALESCE(last_end, ''), ?) WHERE id = ?",
                (to_store(occurrence.at), facts.task_id),
            )
        return Claim.LOST
    _insert_attempt(connection, new.run_id, 1, new.rung, now)
    if new.asked is not None:
        actions.add(connection, replace(new.asked, run_id=new.run_id))
    going.tasks.add(occurrence.task_id.lower())
    going.slots_held += not ahead
    return Claim.WON


def hold_slots(connection: Connection, started: Sequence[tuple[Lease, datetime]]) -> None:
    """Of runs that were claimed ahead: each has taken the slot of one that ended, and started then. One that is another's by
    now is passed over: its loss is noticed when it is renewed or ends."""
    held = connection.executemany(
        "UPDATE task_runs SET heartbeat_at = ?1, started_at = ?1 WHERE run_id = ?2 AND lease = ?3 AND heartbeat_at IS NULL",
        [(to_store(at), lease.run_id, lease.number) for lease, at in started],
    )
    if held.rowcount != len(started):
        started = [one for one in started if _is_held(connection, one[0])]
    connection.executemany(
        "UPDATE attempts SET started_at = ? WHERE run_id = ? AND number = 1",
        [(to_store(at), lease.run_id) for lease, at in started],
    )


def _is_held(connection: Connection, lease: Lease) -> bool:
    found = connection.execute("SELECT 1 FROM task_runs WHERE run_id = ? AND lease = ?", (lease.run_id, lease.number))
    return found.fetchone() is not None


def must_hold(connection: Connection, lease: Lease) -> None:
    """Before something is done to files that the end of the run is to record."""
    if not _is_held(connection, lease):
        raise LostLease(lease)


def slots_held(db: Database) -> int:
    return ActiveRuns(db.connection).slots_held


def take_slot(db: Database, lease: Lease, limit: int, now: datetime) -> bool:
    """For a run that was claimed ahead and can't start in the place of another any more. False if there is none free."""
    with db.transaction() as connection:
        if ActiveRuns(connection).slots_held >= limit:
            return False
        taken = connection.execute(
            "UPDATE task_runs SET heartbeat_at = ? WHERE run_id = ? AND status = 'running' AND lease = ?",
            (to_store(now), lease.run_id, lease.number),
        )
        if taken.rowcount != 1:
            raise LostLease(lease)
    return True


def unclaim(connection: Connection, lease: Lease) -> bool:
    """Of a run that was claimed ahead and not started: as if it had never been claimed. False if somebody wants it to end,
    which is to be on record, or has it already."""
    found = connection.execute(
        "SELECT task_id, scheduled_for, previous_occurrence, source, host FROM task_runs WHERE run_id = ? AND status = 'running'"
        " AND heartbeat_at IS NULL AND end_as IS NULL AND lease = ?",
        (lease.run_id, lease.number),
    ).fetchone()
    if found is None:
        return False
    task_id, scheduled_for, previous, source, host = found
    connection.execute("DELETE FROM task_runs WHERE run_id = ?", (lease.run_id,))
    back = connection.execute(
        "UPDATE tasks SET last_occurrence = ? WHERE id = ? AND last_occurrence = ?", (previous, task_id, scheduled_for)
    )
    if back.rowcount == 0 and source == Source.BASELINE_CRON:  # meanwhile a later one was dealt with: this one waits
        waiting = Waiting(from_store(scheduled_for), Source(source))
        _let_wait(connection, task_id, waiting, SkipReason.AT_CAPACITY, host, waiting.at, None)
        connection.execute("UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = ?", (task_id,))
    return True


def _take_up(
    connection: Connection, facts: Facts, occurrence: Occurrence, boot_id: str | None, settles: datetime | None
) -> bool:
    """`settles`: every occurrence of the schedule up to then is dealt with by this decision."""
    if occurrence.source is Source.RETRY:
        taken = connection.execute(
            "UPDATE tasks SET retry_at = NULL, retry_follows = NULL, retries_used = ?, transient_retries_used = ?"
            " WHERE id = ? AND retry_follows IS ?",
            (facts.retries_used, facts.transient_retries_used, facts.task_id, facts.retry_follows),
        )
        return taken.rowcount == 1
    by_chain = is_by_chain(occurrence, facts)
    if by_chain and not _chain_stands(connection, facts):
        return False
    if facts.waiting and not _is_unchanged(connection, facts):
        return False
    at = to_store(occurrence.at)
    taken = connection.execute(
        "UPDATE tasks SET last_occurrence = CASE WHEN ? THEN last_occurrence ELSE MAX(COALESCE(last_occurrence, ''), ?) END,"
        " boot_id = COALESCE(?, boot_id), deferred = NULLIF(deferred, ?), retry_at = NULL, retry_follows = NULL,"
        " retries_used = 0, transient_retries_used = 0, look_at = '', revision = revision + 1"
        " WHERE id = ? AND last_occurrence IS ? AND armed_at = ?",
        (occurrence.apart, at if settles is None else to_store(settles), boot_id, at, facts.task_id,
         _maybe(facts.last_occurrence), to_store(facts.armed_at)),
    )  # fmt: skip
    if taken.rowcount != 1:
        return False
    if by_chain:
        _answer_chain(connection, facts)
    return True


def _is_unchanged(connection: Connection, facts: Facts) -> bool:
    """What waits can change while the last occurrence stays the same."""
    (revision,) = connection.execute("SELECT revision FROM tasks WHERE id = ?", (facts.task_id,)).fetchone() or (None,)
    return bool(revision == facts.revision)


def _no_longer_waits(connection: Connection, occurrence: Occurrence) -> str | None:
    """It starts: from here on its run is its row. That it has waited for others than itself is worth a note."""
    which = (occurrence.task_id, to_store(occurrence.at))
    row = connection.execute(
        "SELECT run_id, reason FROM task_runs WHERE key = (SELECT key FROM waiting WHERE task_id = ? AND occurrence = ?)",
        which,
    ).fetchone()
    connection.execute("DELETE FROM waiting WHERE task_id = ? AND occurrence = ?", which)
    if row is not None:
        connection.execute("DELETE FROM task_runs WHERE run_id = ?", (row["run_id"],))
    return f"waited: {row['reason']}" if row is not None and row["reason"] != SkipReason.ALREADY_RUNNING else None


def _waits(occurrence: Occurrence, facts: Facts) -> bool:
    return any(one.at == occurrence.at for one in facts.waiting) and not occurrence.apart


def _waiting_key(task_id: str, at: datetime) -> str:
    return f"{occurrence_key(task_id, at)}+waiting"


def _chain_stands(connection: Connection, facts: Facts) -> bool:
    """False if somebody else has answered the ends of this decision, or a newer one is in the place of the last."""
    ended_run = facts.chained.run_id if facts.chained else None
    found = connection.execute("SELECT 1 FROM chains WHERE task_id = ? AND ended_run = ?", (facts.task_id, ended_run))
    return found.fetchone() is not None


def _answer_chain(connection: Connection, facts: Facts) -> None:
    """The ends that this decision was made from have had their effect; one that came since has not."""
    assert facts.chained is not None
    connection.execute(
        "UPDATE chains SET ended_at = NULL, ended_run = NULL WHERE task_id = ? AND ended_at <= ?",
        (facts.task_id, to_store(facts.chained.at)),
    )


def write_off(
    db: Database, facts: Facts, plan: Plan, host: str, now: datetime, *, is_interval: bool = False,
    next_boot_id: str | None = None, closing: DisabledReason | None = None, note: str | None = None,
) -> bool:  # fmt: skip
    """Occurrences that will not run, or not yet: a row with a count, shared by consecutive ones of the same reason. False if
    somebody else has decided about them meanwhile."""
    with db.transaction() as connection:
        if plan.source is Source.AFTER:  # not of the schedule, so nothing of that is settled
            if not _chain_stands(connection, facts):
                return False
            _answer_chain(connection, facts)
        elif not _settle(connection, facts, plan, now, is_interval, next_boot_id, closing):
            return False
        _record_unrun(connection, facts, plan, plan.reason, host, now, note)
    return True


def _record_unrun(
    connection: Connection, facts: Facts, plan: Plan, reason: SkipReason | None, host: str, now: datetime,
    note: str | None = None,
) -> None:  # fmt: skip
    """What waits has its own rows, before those of what will not run: only the latter are shared."""
    if plan.settles is not None and (
        plan.waiting or facts.waiting
    ):  # another line than the clock's leaves alone what waits
        _set_waiting(connection, facts, plan, reason, host, now, note)
    for unrun in plan.unrun:
        if unrun.status is RunStatus.SKIPPED and _extend_last_skip(
            connection, facts.task_id, unrun, plan.source, now, note
        ):
            continue
        insert_unrun(connection, facts.task_id, unrun, plan.source, host, now, note=note)


def _set_waiting(
    connection: Connection, facts: Facts, plan: Plan, reason: SkipReason | None, host: str, now: datetime,
    note: str | None,
) -> None:  # fmt: skip
    """From now on these wait. One that does no longer, and was not started, has its row already: the reason was to last."""
    kept = {one.at for one in plan.waiting} | {start.at for start in plan.starts[:1]}
    known = {one.at for one in facts.waiting}
    for at in sorted(known - kept):
        key = _waiting_key(facts.task_id, at)
        connection.execute("DELETE FROM waiting WHERE key = ?", (key,))
        row = connection.execute("SELECT run_id, reason, note FROM task_runs WHERE key = ?", (key,)).fetchone()
        over = Unrun(at, at, 1, RunStatus.SKIPPED, row["reason"]) if row is not None else None
        if over is not None and _extend_last_skip(
            connection, facts.task_id, over, Source.BASELINE_CRON, now, row["note"], but=row["run_id"]
        ):
            connection.execute("DELETE FROM task_runs WHERE run_id = ?", (row["run_id"],))
    for one in plan.waiting:
        if one.at not in known:
            _let_wait(connection, facts.task_id, one, reason, host, now, note)


def _let_wait(
    connection: Connection, task_id: str, one: Waiting, reason: SkipReason | None, host: str, now: datetime,
    note: str | None,
) -> None:  # fmt: skip
    key, waits = _waiting_key(task_id, one.at), Unrun(one.at, one.at, 1, RunStatus.SKIPPED, reason)
    insert_unrun(connection, task_id, waits, one.source, host, now, key=key, note=note)
    connection.execute(
        "INSERT OR IGNORE INTO waiting VALUES (?, ?, ?, ?)", (task_id, to_store(one.at), one.source, key)
    )


def _settle(
    connection: Connection, facts: Facts, plan: Plan, now: datetime, is_interval: bool, boot_id: str | None,
    closing: DisabledReason | None,
) -> bool:  # fmt: skip
    if (facts.waiting or plan.waiting) and not _is_unchanged(connection, facts):
        return False
    last = plan.settles or plan.unrun[-1].last
    first = plan.unrun[0].first if plan.unrun else last
    settled = connection.execute(
        "UPDATE tasks SET last_occurrence = MAX(COALESCE(last_occurrence, ''), ?), last_end = CASE WHEN ? THEN ? ELSE"
        " last_end END, closing = COALESCE(?, closing), boot_id = COALESCE(?, boot_id),"
        " deferred = CASE WHEN deferred BETWEEN ? AND ? THEN NULL ELSE deferred END"
        " WHERE id = ? AND last_occurrence IS ? AND armed_at = ?",
        (to_store(last), is_interval, to_store(now), closing, boot_id, to_store(first), to_store(last),
         facts.task_id, _maybe(facts.last_occurrence), to_store(facts.armed_at)),
    )  # fmt: skip
    return settled.rowcount == 1


def defer(db: Database, facts: Facts, plan: Plan, host: str, now: datetime, note: str | None = None) -> None:
    """What is no occurrence of a cron line can't start now and stays due; each tick that it waits leaves a trace."""
    (waiting,), reason = plan.waiting, plan.reason
    at = waiting.at
    waits = Unrun(at, at, 1, RunStatus.SKIPPED, reason)
    with db.transaction() as connection:
        if tasks.facts(db, facts.task_id) != facts:
            return  # another tick has started it or noted this; the next one decides anew
        connection.execute("UPDATE tasks SET deferred = ? WHERE id = ?", (to_store(at), facts.task_id))
        if _extend_last_skip(connection, facts.task_id, waits, waiting.source, now, note):
            return
        key = f"{occurrence_key(facts.task_id, at)}+{reason}"
        insert_unrun(connection, facts.task_id, waits, waiting.source, host, now, key=key, note=note)


def _extend_last_skip(
    connection: Connection,
    task_id: str,
    unrun: Unrun,
    source: Source,
    now: datetime,
    note: str | None = None,
    *,
    but: str | None = None,
) -> bool:
    """Whether the last row of the task, `but` for that one and for what waits, is of the same reason: then it counts these too.
    Not if another occurrence lies between, which has a row of its own."""
    last = connection.execute(
        "SELECT run_id, status, reason, note, source, last_scheduled_for FROM task_runs WHERE task_id = ? AND run_id IS NOT ? AND key"
        " NOT IN (SELECT key FROM waiting WHERE task_id = ?) ORDER BY recorded_at DESC, rowid DESC LIMIT 1",
        (task_id, but, task_id),
    ).fetchone()
    if last is None or last["status"] != RunStatus.SKIPPED or (last["reason"], last["note"]) != (unrun.reason, note):
        return False
    if (last["source"] in _BY_CLOCK) != (source in _BY_CLOCK):
        return False
    if but is not None and last["last_scheduled_for"] > to_store(unrun.first):
        return False
    between = connection.execute(
        "SELECT 1 FROM waiting WHERE task_id = ? AND occurrence > ? AND occurrence < ?",
        (task_id, last["last_scheduled_for"], to_store(unrun.first)),
    ).fetchone()
    if between is not None:
        return False
    connection.execute(
        "UPDATE task_runs SET count = count + ?, last_scheduled_for = ?, recorded_at = ?, finished_at = ? WHERE run_id = ?",
        (unrun.count, to_store(unrun.last), to_store(now), to_store(now), last["run_id"]),
    )
    return True


def insert_unrun(
    connection: Connection, task_id: str, unrun: Unrun, source: Source, host: str, now: datetime,
    key: str | None = None, note: str | None = None,
) -> None:  # fmt: skip
    connection.execute(
        "INSERT INTO task_runs (run_id, task_id, key, status, source, reason, recorded_at, scheduled_for,"
        " last_scheduled_for, count, finished_at, host, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (key) DO UPDATE SET count = count + excluded.count, recorded_at = excluded.recorded_at,"
        " last_scheduled_for = excluded.last_scheduled_for",
        (new_run_id(now), task_id, key or f"{occurrence_key(task_id, unrun.first)}+{unrun.status}", unrun.status, source,
         unrun.reason, to_store(now), to_store(unrun.first), to_store(unrun.last), unrun.count, to_store(now), host, note),
    )  # fmt: skip


def new_run_id(now: datetime) -> str:
    """Sorts by time, reads as a time, and fits a file name."""
    return f"{to_store(now)[:19].replace('-', '').replace(':', '')}-{os.urandom(4).hex()}"


def _insert_attempt(connection: Connection, run_id: str, number: int, rung: Rung, now: datetime) -> None:
    connection.execute(
        "INSERT INTO attempts (run_id, number, rung, status, started_at) VALUES (?, ?, ?, 'running', ?)",
        (run_id, number, rung.value, to_store(now)),
    )


def start_attempt(db: Database, lease: Lease, number: int, rung: Rung, now: datetime) -> bool:
    with db.transaction() as connection:
        return insert_attempt(connection, lease, number, rung, now)


def insert_attempt(connection: Connection, lease: Lease, number: int, rung: Rung, now: datetime) -> bool:
    """A further attempt of a run; False if somebody wants it to end."""
    alive = connection.execute(
        "UPDATE task_runs SET attempts = ? WHERE run_id = ? AND status = 'running' AND end_as IS NULL AND lease = ?",
        (number, lease.run_id, lease.number),
    )
    if alive.rowcount != 1:
        must_hold(connection, lease)
        return False
    _insert_attempt(connection, lease.run_id, number, rung, now)
    return True


def finish_attempt(
    db: Database,
    lease: Lease,
    number: int,
    outcome: Outcome,
    span: tuple[int, int] | None,
    now: datetime,
    note: str = "",
) -> None:
    with db.transaction() as connection:
        end_attempt(connection, lease, number, outcome, span, now, note)


def end_attempt(
    connection: Connection,
    lease: Lease,
    number: int,
    outcome: Outcome,
    span: tuple[int, int] | None,
    now: datetime,
    note: str = "",
    started_at: datetime | None = None,
) -> None:
    used = outcome.usage
    ended = connection.execute(
        "UPDATE attempts SET status = ?, started_at = COALESCE(?, started_at), finished_at = ?, exit_code = ?, signal = ?,"
        " error_class = ?, error = ?, log_start = ?, log_end = ?,"
        " input_tokens = ?, output_tokens = ?, cost_usd = ?, session_id = ?, note = ?"
        " WHERE run_id = ? AND number = ? AND status = 'running'"
        " AND EXISTS (SELECT 1 FROM task_runs WHERE run_id = ? AND lease = ?)",
        (outcome.status.value, _maybe(started_at), to_store(now), outcome.exit_code, outcome.signal, outcome.error_class,
         outcome.error, span[0] if span else None, span[1] if span else None, used.input_tokens, used.output_tokens, used.cost_usd,
         used.session_id, note or None, lease.run_id, number, lease.run_id, lease.number),
    )  # fmt: skip
    if ended.rowcount != 1:  # unless it has ended before
        must_hold(connection, lease)
    elif used != NO_USAGE:
        connection.execute(
            "UPDATE task_runs SET (input_tokens, output_tokens, cost_usd) = (SELECT SUM(input_tokens), SUM(output_tokens),"
            " SUM(cost_usd) FROM attempts WHERE attempts.run_id = task_runs.run_id) WHERE run_id = ?",
            (lease.run_id,),
        )


@record(frozen=True)
class Ending:
    """Everything that the end of a run changes, applied in one transaction."""

    lease: Lease
    task_id: str
    attempt: int
    outcome: Outcome
    span: tuple[int, int] | None
    summary: str
    source: Source
    verdict: Verdict | None = None
    alerts: Sequence[Alert] = ()
    tickets: Sequence[Ticket] = ()
    note: str | None = None
    retry_at: datetime | None = None
    retries_used: int = 0
    transient_retries_used: int = 0
    reason: SkipReason | None = None  # of a run that a comment kept from being one
    story: str | None = None  # what else is worth telling
    over_budget: bool = False

    @property
    def run_id(self) -> str:
        return self.lease.run_id


def finish_unremarkable(
    connection: Connection, lease: Lease, task_id: str, outcome: Outcome, span: tuple[int, int] | None, summary: str,
    source: Source, now: datetime, started_at: datetime | None = None,
) -> bool:  # fmt: skip
    """What `finish_run` writes for nearly every run: its first attempt succeeded, and its task has no past that this would
    change. False, and nothing is written, if it has one, if the run is to end as something else, or is not ours any more.
    `started_at` is given if that is not on record yet."""
    ended = connection.execute(
        "UPDATE task_runs SET status = 'success', started_at = COALESCE(?, started_at), finished_at = ?, exit_code = 0, summary = ?"
        " WHERE run_id = ? AND status = 'running' AND end_as IS NULL AND lease = ? AND EXISTS (SELECT 1 FROM tasks WHERE id = ?"
        " AND failures = 0 AND incident IS NULL AND incident_alerted_at IS NULL AND probation_run IS NULL)",
        (_maybe(started_at), to_store(now), summary, lease.run_id, lease.number, task_id),
    )
    if ended.rowcount != 1:
        return False
    end_attempt(connection, lease, 1, outcome, span, now, started_at=started_at)
    connection.execute(
        "UPDATE tasks SET last_end = COALESCE(?, last_end), look_at = '', revision = revision + 1 WHERE id = ?",
        (_last_end(source, now), task_id),
    )
    _tell_those_after(connection, lease.run_id, task_id, outcome.status, now)
    return True


def _last_end(source: Source, now: datetime) -> str | None:
    """The next of an interval counts from it; a manual run is beside the schedule."""
    return to_store(now) if source is not Source.MANUAL else None


def finish_run(connection: Connection, ending: Ending, now: datetime) -> None:
    """LostLease if somebody else has taken this run over: then nothing is changed."""
    outcome, lease = ending.outcome, ending.lease
    ended = connection.execute(
        "UPDATE task_runs SET status = ?, finished_at = ?, exit_code = ?, signal = ?, error_class = ?, error = ?, summary = ?,"
        " session_id = ?, result = ?, reason = ?, note = COALESCE(?, note), over_budget = ? WHERE run_id = ? AND status = 'running'"
        " AND lease = ?",
        (outcome.status.value, to_store(now), outcome.exit_code, outcome.signal, outcome.error_class, outcome.error,
         ending.summary, outcome.usage.session_id, outcome.usage.text, ending.reason, ending.story,
         int(ending.over_budget), lease.run_id, lease.number),
    )  # fmt: skip
    if ended.rowcount != 1:
        raise LostLease(lease)
    if ending.outcome.status is not RunStatus.SKIPPED:  # then the attempt that found so has ended before
        end_attempt(connection, lease, ending.attempt, outcome, ending.span, now)
    last_end = _last_end(ending.source, now)
    if last_end is not None and ending.verdict is None:
        connection.execute("UPDATE tasks SET last_end = ? WHERE id = ?", (last_end, ending.task_id))
    if ending.retry_at is not None:
        connection.execute(
            "UPDATE tasks SET retry_at = ?, retry_follows = ?, retries_used = ?, transient_retries_used = ? WHERE id = ?",
            (to_store(ending.retry_at), ending.run_id, ending.retries_used, ending.transient_retries_used,
             ending.task_id),
        )  # fmt: skip
    verdict = ending.verdict
    if verdict is not None:
        connection.execute(
            "UPDATE tasks SET last_end = COALESCE(?, last_end), failures = ?, incident = ?, incident_since = ?, incident_alerted_at = ?,"
            " closing = COALESCE(?, closing), probation_run = ?, probation_left = ?, probation_until = ?,"
            " look_at = '', revision = revision + 1 WHERE id = ?",
            (last_end, verdict.failures, verdict.incident, _maybe(verdict.incident_since), _maybe(verdict.incident_alerted_at),
             verdict.closing, *_probation_values(verdict.probation), ending.task_id),
        )  # fmt: skip
        _tell_those_after(connection, ending.run_id, ending.task_id, outcome.status, now)
    for alert in ending.alerts:
        outbox.add_alert(connection, alert, now)
    for ticket in ending.tickets:
        open_ticket(connection, ticket, now)
    if ending.note:
        note_on_tickets(connection, ending.task_id, ending.note, now)


def _probation_values(probation: Probation | None) -> tuple[object, ...]:
    return (None, None, None) if probation is None else (probation.run_id, probation.left, to_store(probation.until))


def forget_unstarted(connection: Connection, lease: Lease) -> None:
    """Of a run that a comment kept from starting: the attempt that was to be its first."""
    must_hold(connection, lease)
    connection.execute("DELETE FROM attempts WHERE run_id = ? AND status = 'running'", (lease.run_id,))
    connection.execute(
        "UPDATE task_runs SET attempts = (SELECT COUNT(*) FROM attempts WHERE run_id = ?) WHERE run_id = ?",
        (lease.run_id, lease.run_id),
    )


def give_back(connection: Connection, lease: Lease, task_id: str) -> None:
    """The occurrence that this run took up is to come again: its key and its place are free."""
    must_hold(connection, lease)
    connection.execute("UPDATE task_runs SET key = key || '+' || run_id WHERE run_id = ?", (lease.run_id,))
    connection.execute("UPDATE tasks SET last_occurrence = NULL WHERE id = ?", (task_id,))


def modify(connection: Connection, lease: Lease, change: Modification) -> None:
    """What a comment changes for this run, kept for its further attempts."""
    must_hold(connection, lease)
    text = json.dumps({"env": dict(change.env), "prompt": change.prompt})
    connection.execute("UPDATE task_runs SET modification = ? WHERE run_id = ?", (text, lease.run_id))


def _tell_those_after(connection: Connection, run_id: str, task_id: str, status: RunStatus, now: datetime) -> None:
    """In the transaction of the end, so that no chain breaks where the scheduler does."""
    wanted = None
    if status is RunStatus.SUCCESS:
        wanted = ChainOn.SUCCESS.value
    elif status in FAILURES:
        wanted = ChainOn.FAILURE.value
    connection.execute(
        "UPDATE chains SET ended_at = ?, ended_run = ? WHERE upstream = ? AND wants IN ('always', ?)",
        (to_store(now), run_id, task_id, wanted),
    )


def interrupted(
    db: Database, run: Run, new_owner: Owner, number: int, outcome: Outcome, now: datetime, *, cut_off: bool = True
) -> Lease | None:
    """Take over the run of a dead owner: its attempt ends here, unless it had ended before and none was `cut_off`. What the
    dead one might still write is fenced off by the new lease. None if another process was faster."""
    with db.transaction() as connection:
        taken = connection.execute(
            "UPDATE task_runs SET host = ?, owner_pid = ?, owner_started = ?, owner_boot = ?,"
            " heartbeat_at = CASE WHEN heartbeat_at IS NOT NULL THEN ? END, interruptions = interruptions + ?,"
            " lease = lease + 1 WHERE run_id = ? AND status = 'running' AND lease = ?",
            (
                new_owner.host,
                new_owner.pid,
                new_owner.started,
                new_owner.boot_id,
                to_store(now),
                int(cut_off),
                run.run_id,
                run.lease_number,
            ),
        )
        if taken.rowcount != 1:
            return None
        lease = Lease(run.run_id, run.lease_number + 1)
        end_attempt(connection, lease, number, outcome, None, now)
    return lease


def renew_heartbeats(db: Database, leases: Sequence[Lease], now: datetime) -> list[Lease]:
    """Which of them are lost: all others are renewed."""
    with db.transaction() as connection:
        renewed = connection.executemany(
            "UPDATE task_runs SET heartbeat_at = ? WHERE run_id = ? AND status = 'running' AND lease = ?",
            [(to_store(now), lease.run_id, lease.number) for lease in leases],
        )
        if renewed.rowcount == len(leases):
            return []
        return [lease for lease in leases if not _is_held(connection, lease)]


def request_end(db: Database, run_id: str, end_as: RunStatus) -> None:
    """Leave word for the run's owner: however the processes end now, this is the status to record."""
    with db.transaction() as connection:
        connection.execute(
            "UPDATE task_runs SET end_as = CASE WHEN end_as = 'cancelled' THEN end_as ELSE ? END"
            " WHERE run_id = ? AND status = 'running'",
            (end_as, run_id),
        )  # what a person asked for stays


def requested_end(db: Database, run_id: str) -> RunStatus | None:
    row = db.one("SELECT end_as FROM task_runs WHERE run_id = ?", run_id)
    return RunStatus(row["end_as"]) if row and row["end_as"] else None


# --- reading ---------------------------------------------------------------------------------------------------


def get_run(db: Database, run_id: str) -> Run | None:
    row = db.one("SELECT * FROM task_runs WHERE run_id = ?", run_id)
    return to_run(row) if row else None


def run_by_key(db: Database, key: str) -> Run | None:
    row = db.one("SELECT * FROM task_runs WHERE key = ?", key)
    return to_run(row) if row else None


def running_runs(db: Database, task_id: str | None = None) -> list[Run]:
    where, values = ("", ()) if task_id is None else (" AND task_id = ?", (task_id,))
    return [to_run(row) for row in db.all(f"SELECT * FROM task_runs WHERE status = 'running'{where}", *values)]


def list_runs(
    db: Database, task_id: str | None = None, status: str | None = None, since: datetime | None = None, limit: int = 20
) -> list[Run]:
    """Newest first."""
    conditions, values = ["1"], []
    for condition, value in (("task_id = ?", task_id), ("status = ?", status), ("recorded_at >= ?", _maybe(since))):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    where = " AND ".join(conditions)
    rows = db.all(
        f"SELECT * FROM task_runs WHERE {where} ORDER BY recorded_at DESC, rowid DESC LIMIT ?", *values, limit
    )
    return [to_run(row) for row in rows]


def last_runs(db: Database) -> dict[str, Run]:
    """The newest row of each task that was a real run, by lower-case id."""
    rows = db.all(
        "SELECT r.* FROM tasks t JOIN task_runs r ON r.rowid = (SELECT rowid FROM task_runs WHERE task_id = t.id"
        " AND status NOT IN ('skipped', 'missed') ORDER BY recorded_at DESC, rowid DESC LIMIT 1)"
    )
    return {row["task_id"].lower(): to_run(row) for row in rows}


def last_run_of(db: Database, task_id: str) -> Run | None:
    row = db.one(
        "SELECT * FROM task_runs WHERE task_id = ? AND status NOT IN ('skipped', 'missed') ORDER BY recorded_at DESC, rowid DESC"
        " LIMIT 1",
        task_id,
    )
    return to_run(row) if row else None


def typical_durations(db: Database) -> dict[str, timedelta]:
    """What a run of each task usually takes: the middle one of its last few, by lower-case id."""
    rows = db.all(
        "SELECT t.id, r.started_at, r.finished_at FROM tasks t JOIN task_runs r ON r.rowid IN (SELECT rowid FROM task_runs"
        " WHERE task_id = t.id AND status IN ('success', 'failed', 'timeout', 'killed') ORDER BY recorded_at DESC LIMIT ?)",
        _USUAL_FROM,
    )
    found: dict[str, list[timedelta]] = {}
    for row in rows:
        if row["started_at"] is not None:
            lasted = from_store(row["finished_at"]) - from_store(row["started_at"])
            found.setdefault(row["id"].lower(), []).append(max(lasted, timedelta(0)))
    return {task_id: sorted(lasted)[len(lasted) // 2] for task_id, lasted in found.items()}


def last_failed(db: Database, task_id: str, *, or_missed: bool = False) -> Run | None:
    """The newest occurrence that did not come to a good end, even if a later one did; not one that was run again since."""
    row = db.one(
        "SELECT * FROM task_runs AS bad WHERE task_id = ? AND status IN ('failed', 'timeout', 'killed', 'orphaned', 'cancelled',"
        " ?) AND NOT EXISTS (SELECT 1 FROM task_runs WHERE task_id = bad.task_id AND follows = bad.run_id AND recorded_at >="
        " bad.recorded_at) ORDER BY recorded_at DESC, rowid DESC LIMIT 1",
        task_id,
        RunStatus.MISSED if or_missed else "",
    )
    return to_run(row) if row else None


def runs_starting_with(db: Database, prefix: str) -> list[Run]:
    rows = db.all("SELECT * FROM task_runs WHERE substr(run_id, 1, ?) = ? LIMIT 2", len(prefix), prefix)
    return [to_run(row) for row in rows]


def attempts_of(db: Database, run_id: str) -> list[Attempt]:
    return [_attempt(row) for row in db.all("SELECT * FROM attempts WHERE run_id = ? ORDER BY number", run_id)]


def _attempt(row: Row) -> Attempt:
    return Attempt(
        number=row["number"],
        rung=Rung(row["rung"]),
        status=RunStatus(row["status"]),
        started_at=from_store(row["started_at"]),
        finished_at=maybe_from_store(row["finished_at"]),
        exit_code=row["exit_code"],
        signal=row["signal"],
        error_class=ErrorClass(row["error_class"]) if row["error_class"] else None,
        error=row["error"],
        note=row["note"],
        log_start=row["log_start"],
        log_end=row["log_end"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cost_usd=row["cost_usd"],
        session_id=row["session_id"],
    )


def outcome_of(attempt: Attempt) -> Outcome:
    """How an attempt ended, as far as it is kept."""
    return Outcome(attempt.status, attempt.exit_code, attempt.signal, attempt.error_class, attempt.error)


def to_run(row: Row) -> Run:
    owner = None
    if row["owner_pid"] is not None:
        owner = Owner(row["host"], row["owner_pid"], row["owner_started"], row["owner_boot"])
    return Run(
        run_id=row["run_id"],
        task_id=row["task_id"],
        key=row["key"],
        status=RunStatus(row["status"]),
        source=Source(row["source"]),
        scheduled_for=maybe_from_store(row["scheduled_for"]),
        started_at=maybe_from_store(row["started_at"]),
        finished_at=maybe_from_store(row["finished_at"]),
        exit_code=row["exit_code"],
        signal=row["signal"],
        attempts=row["attempts"],
        reason=row["reason"],
        count=row["count"],
        last_scheduled_for=maybe_from_store(row["last_scheduled_for"]),
        host=row["host"],
        trace_id=row["trace_id"],
        error=row["error"],
        error_class=row["error_class"],
        log=row["log"],
        summary=row["summary"],
        follows=row["follows"],
        interruptions=row["interruptions"],
        end_as=RunStatus(row["end_as"]) if row["end_as"] else None,
        heartbeat_at=maybe_from_store(row["heartbeat_at"]),
        owner=owner,
        note=row["note"],
        over_budget=bool(row["over_budget"]),
        lease_number=row["lease"],
        usage=Usage(row["input_tokens"], row["output_tokens"], row["cost_usd"], row["session_id"], row["result"]),
        modification=Modification(**json.loads(row["modification"])) if row["modification"] else None,
    )


def _maybe(moment: datetime | None) -> str | None:
    return None if moment is None else to_store(moment)
