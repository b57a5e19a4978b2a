"""What follows an outcome: the next step of a run, and what its end means for the task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tickdown.base.model import (
    AlertKind,
    DisabledReason,
    ErrorClass,
    Facts,
    HealVerdict,
    NotifyOn,
    Probation,
    RunStatus,
    TicketKind,
)
from tickdown.base.records import replace
from tickdown.failure.ladder import (
    AskHuman,
    Circumstances,
    Finish,
    FollowUp,
    Heal,
    NoHeal,
    Progress,
    Rerun,
    Retry,
    Verify,
    after_heal,
    judge,
    next_step,
    on_probation,
    total_time,
)
from tickdown.failure.outcomes import Outcome, classify
from tickdown.schedule.schedule import Manual
from tickdown.tasks.task import Task

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
SUCCESS = Outcome(RunStatus.SUCCESS, 0)
FAILED = Outcome(RunStatus.FAILED, 3, None, ErrorClass.ERROR, "exit code 3")
TIMEOUT = Outcome(RunStatus.TIMEOUT, None, 15, ErrorClass.TIMEOUT, "did not end within 10m")
KILLED = replace(TIMEOUT, status=RunStatus.KILLED)
ORPHANED = Outcome(RunStatus.ORPHANED, error="the process died")
CANCELLED = Outcome(RunStatus.CANCELLED, error="stopped")
QUIET = Facts("a", armed_at=NOW)


def task(**fields) -> Task:
    return Task(id="a", schedule=Manual(), zone=UTC, path="a.md", command="x", **fields)


# --- outcomes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "signal", "status", "kind", "error"),
    [
        (0, None, RunStatus.SUCCESS, None, None),
        (1, None, RunStatus.FAILED, ErrorClass.ERROR, "exit code 1"),
        (126, None, RunStatus.FAILED, ErrorClass.MISSING_TOOL, "exit code 126 (not executable)"),
        (127, None, RunStatus.FAILED, ErrorClass.MISSING_TOOL, "exit code 127 (command not found)"),
        (None, 9, RunStatus.FAILED, ErrorClass.ERROR, "ended by signal 9"),
    ],
)
def test_an_end_is_classified_by_exit_code_and_signal(exit_code, signal, status, kind, error):
    outcome = classify(exit_code, signal)
    assert (outcome.status, outcome.error_class, outcome.error) == (status, kind, error)


# --- the next step ---------------------------------------------------------------------------------------------


def failed(kind: ErrorClass, **fields) -> Outcome:
    return replace(FAILED, error_class=kind, **fields)


TRANSIENT, AUTH, BUDGET = (failed(kind) for kind in (ErrorClass.TRANSIENT, ErrorClass.AUTH, ErrorClass.BUDGET))
MISSING = failed(ErrorClass.MISSING_TOOL, exit_code=127)
CAN_HEAL = {"no_heal": None}
UNCOUNTED = Finish(RunStatus.FAILED, counted=False)
SUSPEND = Finish(RunStatus.FAILED, suspend=True)
END = Finish(RunStatus.FAILED)


@pytest.mark.parametrize(
    ("fields", "progress", "outcome", "step"),
    [
        # success and what no rung is for
        ({}, {}, SUCCESS, Finish(RunStatus.SUCCESS)),
        ({"retries": 3}, CAN_HEAL, SUCCESS, Finish(RunStatus.SUCCESS)),
        ({"retries": 5}, CAN_HEAL, TIMEOUT, Finish(RunStatus.TIMEOUT)),
        ({"retries": 5}, CAN_HEAL, KILLED, Finish(RunStatus.KILLED)),
        ({"retries": 5}, CAN_HEAL, CANCELLED, Finish(RunStatus.CANCELLED)),
        # retries
        ({}, {}, FAILED, END),
        ({"retries": 1}, {}, FAILED, Retry(timedelta(0))),
        ({"retries": 1}, {"retries_used": 1}, FAILED, END),
        ({"retries": 3}, {"retries_used": 2}, FAILED, Retry(timedelta(0))),
        ({"retries": 3}, {"retries_used": 3}, FAILED, END),
        ({"retries": 1, "retry_delay": 5 * SECOND}, {"next_regular": NOW + SECOND}, FAILED, Retry(5 * SECOND)),
        ({"retries": 1, "retry_delay": MINUTE}, {}, FAILED, Retry(MINUTE)),
        ({"retries": 1, "retry_delay": 61 * SECOND}, {}, FAILED, FollowUp(NOW + 61 * SECOND)),
        ({"retries": 2, "retry_delay": HOUR}, {"retries_used": 1, "next_regular": NOW + 2 * HOUR}, FAILED, FollowUp(NOW + HOUR)),
        ({"retries": 2, "retry_delay": HOUR}, {"retries_used": 2, "next_regular": NOW + 2 * HOUR}, FAILED, END),
        # The next occurrence comes first: it is the retry.
        ({"retries": 1, "retry_delay": HOUR}, {"next_regular": NOW + HOUR}, FAILED, END),
        ({"retries": 1, "retry_delay": HOUR}, {"next_regular": NOW + MINUTE}, FAILED, END),
        ({"retries": 1}, {}, MISSING, Retry(timedelta(0))),
        # heals come behind the retries, two of them, then the suspension
        ({"retries": 1}, CAN_HEAL, FAILED, Retry(timedelta(0))),
        ({"retries": 1}, CAN_HEAL | {"retries_used": 1}, FAILED, Heal(1)),
        ({}, CAN_HEAL, FAILED, Heal(1)),
        ({"retries": 1}, CAN_HEAL | {"heals_used": 1}, FAILED, Heal(2)),
        ({}, CAN_HEAL | {"heals_used": 2}, FAILED, SUSPEND),
        ({}, {"heals_used": 1, "no_heal": NoHeal.TASK_LIMIT}, FAILED, SUSPEND),
        *(({}, {"no_heal": reason}, FAILED, END) for reason in NoHeal),
        # what no edit can cure
        ({}, CAN_HEAL, MISSING, END),
        ({"retries": 3}, CAN_HEAL, AUTH, END),
        ({"retries": 3}, CAN_HEAL, BUDGET, END),
        # probation: no heal, but out
        ({}, CAN_HEAL | {"on_probation": True}, FAILED, SUSPEND),
        ({"retries": 1}, CAN_HEAL | {"on_probation": True}, FAILED, Retry(timedelta(0))),
        ({}, CAN_HEAL | {"on_probation": True}, AUTH, SUSPEND),
        ({}, {"on_probation": True}, TIMEOUT, Finish(RunStatus.TIMEOUT, suspend=True)),
        ({}, {"on_probation": True}, CANCELLED, Finish(RunStatus.CANCELLED)),
        ({}, {"on_probation": True}, SUCCESS, Finish(RunStatus.SUCCESS)),
        ({}, {"on_probation": True, "transient_retries_used": 3}, TRANSIENT, UNCOUNTED),
        # what passes by itself is looked at again after 5, 15 and 30 minutes, or when it is said to be over
        ({}, CAN_HEAL, TRANSIENT, FollowUp(NOW + 5 * MINUTE)),
        ({}, {"transient_retries_used": 1}, TRANSIENT, FollowUp(NOW + 15 * MINUTE)),
        ({}, {"transient_retries_used": 2}, TRANSIENT, FollowUp(NOW + 30 * MINUTE)),
        ({"retries": 9}, {"transient_retries_used": 3}, TRANSIENT, UNCOUNTED),
        # neither kind of retry uses up the other
        ({"retries": 3}, {"retries_used": 3}, TRANSIENT, FollowUp(NOW + 5 * MINUTE)),
        ({"retries": 1}, {"transient_retries_used": 3}, FAILED, Retry(timedelta(0))),
        ({"retries": 1}, {"transient_retries_used": 3, "retries_used": 1}, FAILED, END),
        ({}, {}, replace(TRANSIENT, reset_at=NOW + 2 * HOUR), FollowUp(NOW + 2 * HOUR)),
        ({}, {"next_regular": NOW + MINUTE}, TRANSIENT, UNCOUNTED),
        ({}, {"next_regular": NOW + HOUR}, replace(TRANSIENT, reset_at=NOW + 2 * HOUR), UNCOUNTED),
    ],
)  # fmt: skip
def test_the_next_step_of_a_run(fields, progress, outcome, step):
    assert next_step(task(**fields), Progress(**progress), outcome, NOW) == step


@pytest.mark.parametrize(
    ("rerun", "interruptions", "step"),
    [
        (True, 1, Rerun()),
        (True, 2, Finish(RunStatus.ORPHANED)),
        (False, 1, Finish(RunStatus.ORPHANED)),
    ],
)
def test_an_interrupted_run_is_run_once_more(rerun, interruptions, step):
    progress = Progress(interruptions=interruptions, on_probation=True)
    assert next_step(task(rerun_interrupted=rerun), progress, ORPHANED, NOW) == step


def test_an_interruption_uses_up_no_retry():
    assert next_step(task(retries=1), Progress(interruptions=1), FAILED, NOW) == Retry(timedelta(0))


@pytest.mark.parametrize(
    ("verdict", "edited", "heals_used", "step"),
    [
        (HealVerdict.FIXED, True, 1, Verify()),
        (None, True, 1, Verify()),
        (HealVerdict.FIXED, False, 1, Heal(2)),
        (HealVerdict.FIXED, False, 2, SUSPEND),
        (HealVerdict.GAVE_UP, True, 1, Heal(2)),
        (HealVerdict.GAVE_UP, False, 2, SUSPEND),
        (HealVerdict.NEEDS_HUMAN, True, 1, AskHuman()),
        (HealVerdict.NEEDS_HUMAN, False, 2, AskHuman()),
        (None, False, 1, Heal(2)),
    ],
)
def test_what_follows_a_heal(verdict, edited, heals_used, step):
    progress = Progress(heals_used=heals_used, no_heal=None)
    assert after_heal(task(), progress, FAILED, verdict, edited, NOW) == step


def test_the_whole_ladder_has_one_deadline():
    plain = task(timeout=10 * MINUTE, retries=2, retry_delay=30 * SECOND)
    assert total_time(plain, None) == 31 * MINUTE
    assert total_time(plain, 15 * MINUTE) == 31 * MINUTE + 2 * 25 * MINUTE
    assert total_time(task(retries=1, retry_delay=HOUR), None) == 20 * MINUTE, "a late retry is a run of its own"


# --- what the end means ------------------------------------------------------------------------------------------


def after(
    what: Task, outcomes: list[Outcome], step: timedelta = HOUR
) -> list[tuple[str | None, bool, tuple[str, ...]]]:
    """What people are told, run after run."""
    facts, told = QUIET, []
    for number, outcome in enumerate(outcomes):
        verdict = judge(what, facts, outcome, NOW + number * step)
        told.append((verdict.alert, verdict.forced, verdict.tickets))
        facts = replace(
            facts, failures=verdict.failures, incident=verdict.incident, incident_since=verdict.incident_since,
            incident_alerted_at=verdict.incident_alerted_at,
        )  # fmt: skip
    return told


NOTHING = (None, False, ())


def test_the_first_and_the_third_failure_are_told_and_the_last_suspends():
    assert after(task(suspend_after=5), [FAILED] * 5) == [
        ("failed", False, ()),
        NOTHING,
        ("still failing", True, ("failing",)),
        NOTHING,
        ("suspended", True, ("suspended",)),
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_a_task_is_suspended_at_its_limit_and_not_before(limit):
    for failures in range(limit):
        verdict = judge(task(suspend_after=limit), replace(QUIET, failures=failures), FAILED, NOW)
        assert verdict.closing == (DisabledReason.AUTO_SUSPENDED if failures + 1 == limit else None)
        assert verdict.failures == failures + 1


def test_a_task_that_is_disabled_already_is_not_suspended_by_a_forced_run():
    verdict = judge(task(enabled=False, suspend_after=1), QUIET, FAILED, NOW)
    assert (verdict.closing, verdict.tickets) == (None, ())


@pytest.mark.parametrize("outcome", [TIMEOUT, KILLED])
def test_a_timeout_opens_a_ticket_and_counts(outcome):
    verdict = judge(task(), QUIET, outcome, NOW)
    assert (verdict.failures, verdict.alert, verdict.tickets) == (1, "failed", ("timeout",))


def test_a_reminder_comes_at_most_daily():
    told = after(task(suspend_after=1000), [FAILED] * 60)
    assert [number for number, (alert, _, _) in enumerate(told) if alert] == [0, 2, 26, 50]
    assert {told[26][0], told[50][0]} == {"reminder"}
    nightly = after(task(suspend_after=1000), [FAILED] * 6, timedelta(days=1) - timedelta(seconds=1))
    assert [alert for alert, _, _ in nightly[3:]] == ["reminder"] * 3, (
        "a run that ended a second sooner than yesterday's"
    )


def test_one_success_resets_the_count_and_is_told_once():
    assert after(task(), [FAILED, FAILED, SUCCESS, SUCCESS, FAILED]) == [
        ("failed", False, ()), NOTHING, ("recovered", False, ()), NOTHING, ("failed", False, ()),
    ]  # fmt: skip
    verdict = judge(task(), Facts("a", NOW, failures=7, incident="x", incident_since=NOW), SUCCESS, NOW)
    assert (verdict.failures, verdict.incident, verdict.incident_since, verdict.incident_alerted_at) == (
        0,
        None,
        None,
        None,
    )


def test_another_error_is_another_incident_since_the_first_failure():
    other = replace(FAILED, exit_code=4, error="exit code 4")
    assert [alert for alert, _, _ in after(task(), [FAILED, other])] == ["failed", "failed"]
    first = judge(task(), QUIET, FAILED, NOW)
    facts = replace(QUIET, failures=1, incident=first.incident, incident_since=first.incident_since)
    assert judge(task(), facts, other, NOW + HOUR).incident_since == NOW


@pytest.mark.parametrize(
    ("notify_on", "expected"),
    [
        (NotifyOn.FAILURE, ["failed", None, "still failing", None, "recovered", None]),
        (NotifyOn.SUCCESS, [None, None, "still failing", None, "recovered", "success"]),
        (NotifyOn.ALWAYS, ["failed", "reminder", "still failing", "reminder", "recovered", "success"]),
        (NotifyOn.NEVER, [None, None, None, None, None, None]),
    ],
)
def test_notify_on_decides_what_is_told(notify_on, expected):
    told = after(task(notify_on=notify_on), [FAILED] * 4 + [SUCCESS] * 2)
    assert [alert for alert, _, _ in told] == expected


def test_a_success_after_failures_nobody_was_told_of_is_just_a_success():
    told = after(task(notify_on=NotifyOn.SUCCESS), [FAILED, SUCCESS])
    assert [alert for alert, _, _ in told] == [None, "success"]


def test_never_hides_alerts_but_not_the_ticket_and_the_suspension():
    verdict = judge(task(notify_on=NotifyOn.NEVER, suspend_after=1), QUIET, FAILED, NOW)
    assert (verdict.alert, verdict.closing, verdict.tickets) == (None, DisabledReason.AUTO_SUSPENDED, ("suspended",))


@pytest.mark.parametrize("outcome", [CANCELLED, ORPHANED])
def test_what_a_person_or_the_machine_ended_counts_neither_way(outcome):
    facts = Facts("a", NOW, failures=2, incident="x", incident_since=NOW, incident_alerted_at=NOW)
    verdict = judge(task(suspend_after=1), facts, outcome, NOW + HOUR)
    assert (verdict.failures, verdict.incident, verdict.incident_alerted_at) == (2, "x", NOW)
    assert (verdict.closing, verdict.tickets) == (None, ())


@pytest.mark.parametrize(
    ("outcome", "notify_on", "alert"),
    [
        (ORPHANED, NotifyOn.FAILURE, "interrupted"),
        (ORPHANED, NotifyOn.NEVER, None),
        (CANCELLED, NotifyOn.ALWAYS, None),
    ],
)
def test_an_interruption_is_told_a_cancellation_is_not(outcome, notify_on, alert):
    assert judge(task(notify_on=notify_on), QUIET, outcome, NOW).alert == alert


def test_errors_that_alternate_are_told_once_each():
    facts = Facts("job", armed_at=NOW)
    told = []
    for error in ("alpha", "beta") * 4:
        verdict = judge(
            task(suspend_after=100), facts, Outcome(RunStatus.FAILED, 1, None, ErrorClass.ERROR, error), NOW
        )
        told.append(verdict.alert)
        facts = replace(
            facts, failures=verdict.failures, incident=verdict.incident, incident_since=verdict.incident_since,
            incident_alerted_at=verdict.incident_alerted_at,
        )  # fmt: skip
    assert told == [AlertKind.FAILED, AlertKind.FAILED, AlertKind.STILL_FAILING, *[None] * 5]


# --- heals, probation and what is not counted ------------------------------------------------------------------------


def test_a_heal_that_worked_is_told_and_puts_the_task_on_probation():
    verdict = judge(task(), replace(QUIET, failures=2, incident="x"), SUCCESS, NOW, Circumstances(healed_in="r1"))
    assert (verdict.alert, verdict.failures) == (AlertKind.HEALED, 0)
    assert verdict.probation == Probation("r1", 3, NOW + 24 * HOUR)


def test_three_clean_runs_or_a_day_end_the_probation():
    facts = replace(QUIET, probation=Probation("r1", 3, NOW + HOUR))
    left = []
    while facts.probation is not None:
        facts = replace(facts, probation=judge(task(), facts, SUCCESS, NOW).probation)
        left.append(facts.probation.left if facts.probation else 0)
    assert left == [2, 1, 0]
    late = replace(QUIET, probation=Probation("r1", 3, NOW))
    assert not on_probation(late, NOW) and judge(task(), late, SUCCESS, NOW).probation is None


def test_a_step_that_suspends_does_so_at_the_first_failure():
    verdict = judge(task(), QUIET, FAILED, NOW, Circumstances(suspend=True))
    assert (verdict.closing, verdict.alert, verdict.forced) == ("auto_suspended", AlertKind.SUSPENDED, True)
    assert verdict.tickets == (TicketKind.SUSPENDED,)


def test_a_disabled_task_is_not_suspended_by_a_heal_that_failed():
    assert judge(task(enabled=False), QUIET, FAILED, NOW, Circumstances(suspend=True)).closing is None


def test_a_human_who_is_needed_is_called():
    verdict = judge(task(), QUIET, FAILED, NOW, Circumstances(needs_human=True))
    assert (verdict.alert, verdict.forced, verdict.tickets) == (AlertKind.NEEDS_HUMAN, True, (TicketKind.NEEDS_HUMAN,))
    assert (verdict.closing, verdict.failures) == (None, 1)


def test_what_passes_by_itself_is_told_once_and_never_counts():
    facts, told = replace(QUIET, failures=2), []
    for _ in range(5):
        verdict = judge(task(suspend_after=3), facts, TRANSIENT, NOW, Circumstances(counted=False))
        told.append(verdict.alert)
        facts = replace(
            facts, failures=verdict.failures, incident=verdict.incident, incident_alerted_at=verdict.incident_alerted_at
        )
    assert told == [AlertKind.FAILED, None, None, None, None] and facts.failures == 2
