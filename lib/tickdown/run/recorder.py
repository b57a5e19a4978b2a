"""The end of a run: everything about it as one value, and its rows.

Making the value may take files back and ask the database; it is done once, when the run is over. Writing the rows is done in
a transaction that several ends share, and once more if that is rolled back.
"""

from __future__ import annotations

from datetime import datetime

from tickdown.alerts import messages
from tickdown.attempt.run_log import SUMMARY_BYTES
from tickdown.base.model import NO_USAGE, HealStatus, Rung, RunStatus, Source
from tickdown.base.records import record, replace
from tickdown.context.context import Context
from tickdown.failure.ladder import USUAL, Circumstances, is_unremarkable, on_probation
from tickdown.failure.outcomes import Outcome, cleaned
from tickdown.run.live_run import LiveRun, Used
from tickdown.run.verdict import conclude
from tickdown.store import heals, runs, tasks
from tickdown.tasks.task import Task


@record(frozen=True)
class End:
    """How a run ended, before it is recorded."""

    outcome: Outcome
    at: datetime
    how: Circumstances
    summary: str
    told: messages.Tried
    retry_at: datetime | None = None  # when a run of its own follows
    used: Used = Used()  # with that one


@record(frozen=True)
class Recorded:
    outcome: Outcome
    closes: bool = False  # the task is over with this run, and its file must say so


def is_plain(run: LiveRun, outcome: Outcome) -> bool:
    """What nearly every run comes to: it is recorded in short, with fewer statements."""
    return (
        run.attempt == 1 and run.rung is Rung.RUN and outcome.usage is NO_USAGE and is_unremarkable(run.task, outcome)
    )


def end_of(
    run: LiveRun,
    outcome: Outcome,
    now: datetime,
    how: Circumstances = USUAL,
    retry_at: datetime | None = None,
    used: Used | None = None,
) -> End:
    """`used` differs from what the run has used up if another follows it."""
    outcome = cleaned(outcome, run.redactor)
    # What the task printed, even if the last word was a healer's.
    printed = run.failed_summary if run.rung is Rung.HEAL else run.transcript.summary()
    # Masked again: cut off from its beginning, what was an escape sequence may be text.
    summary = run.redactor.text(outcome.usage.text[-SUMMARY_BYTES:] if outcome.usage.text else printed)
    told = _what_was_tried(run, outcome, how, now)
    how = replace(
        how,
        by_a_person=run.by_a_person or run.source is Source.MANUAL,
        healed_in=run.run_id if run.is_healed and outcome.status is RunStatus.SUCCESS else None,
    )
    return End(outcome, now, how, summary, told, retry_at, used or run.used)


def record_end(run: LiveRun, end: End) -> Recorded:
    """Its rows, the task's counters, alerts and tickets, in the transaction that is going on."""
    if is_plain(run, end.outcome):
        if _record_in_short(run, end):
            return Recorded(end.outcome)
        # Somebody wants it to end as something else, or its task has a past that this end changes.
        end = end_of(run, run.as_requested(end.outcome), end.at)
    return _record_in_full(run, end)


def _record_in_short(run: LiveRun, end: End) -> bool:
    started_at = None if run.holds_slot else run.started_at
    return runs.finish_unremarkable(
        run.context.db.connection, run.lease, run.task.id, end.outcome, run.transcript.span, end.summary, run.source,
        end.at, started_at,
    )  # fmt: skip


def _record_in_full(run: LiveRun, end: End) -> Recorded:
    db = run.context.db
    if not run.holds_slot and run.started_at is not None:
        runs.hold_slots(db.connection, [(run.lease, run.started_at)])
    ending = runs.Ending(
        run.lease, run.task.id, run.attempt, end.outcome, run.transcript.span, end.summary, run.source,
        retry_at=end.retry_at, retries_used=end.used.retries, transient_retries_used=end.used.transient_retries,
    )  # fmt: skip
    as_told = replace(run.task, title=run.redactor.text(run.task.title))  # with which alerts begin
    verdict = conclude(db, as_told, ending, end.how, end.told, end.at)
    return Recorded(end.outcome, closes=verdict is not None and verdict.closing is not None)


def _what_was_tried(run: LiveRun, outcome: Outcome, how: Circumstances, now: datetime) -> messages.Tried:
    """For alerts and tickets. A heal on probation is taken back here, before anybody is told."""
    if run.attempt == 1 and outcome.status is RunStatus.SUCCESS:
        return messages.NOTHING_ELSE
    db, probation = run.context.db, None
    if how.suspend:
        runs.must_hold(db.connection, run.lease)  # files may be put back here
        probation = _end_probation(run.context, run.task, now)
    if probation is not None:
        run.use_edited_task()
    no_heal = run.no_heal(now) if outcome.status is RunStatus.FAILED else None
    return messages.Tried(
        attempts=[
            (one.rung, one.status, run.redactor.text(one.note or one.error or ""))
            for one in runs.attempts_of(db, run.run_id)
            if one.number != run.attempt or one.status is not RunStatus.RUNNING
        ],
        last_rung=run.rung,
        heals=heals.of_chain(db, run.run_id),
        no_heal=no_heal,
        probation=probation,
        retries=run.used.retries + run.used.transient_retries,
    )


def _end_probation(context: Context, task: Task, now: datetime) -> str | None:
    """Take a heal on probation back, and say what became of it; None if there is none."""
    facts = tasks.facts(context.db, task.id)
    if facts is None or facts.probation is None or not on_probation(facts, now):
        return None
    from tickdown.heal import healer

    is_undone, told = healer.end_probation(context, facts.probation.run_id, now)
    heals.undone(context.db, task.id, facts.probation.run_id, HealStatus.RESTORED if is_undone else HealStatus.KEPT)
    return told
