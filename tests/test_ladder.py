"""What follows an outcome: the next step of a run, and what its end means for the task."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lib.ladder import Finish, FollowUp, Outcome, Rerun, Retry, classify, error_signature, judge, next_step
from lib.model import AlertKind, DisabledReason, ErrorClass, Facts, NotifyOn, RunStatus
from lib.schedule import Manual
from lib.task import Task

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


@pytest.mark.parametrize(
    ("fields", "outcome", "retries_used", "next_regular", "step"),
    [
        ({}, SUCCESS, 0, None, Finish(RunStatus.SUCCESS)),
        ({"retries": 3}, SUCCESS, 0, None, Finish(RunStatus.SUCCESS)),
        ({}, FAILED, 0, None, Finish(RunStatus.FAILED)),
        ({"retries": 1}, FAILED, 0, None, Retry(timedelta(0))),
        ({"retries": 1}, FAILED, 1, None, Finish(RunStatus.FAILED)),
        ({"retries": 3}, FAILED, 2, None, Retry(timedelta(0))),
        ({"retries": 3}, FAILED, 3, None, Finish(RunStatus.FAILED)),
        ({"retries": 1, "retry_delay": 5 * SECOND}, FAILED, 0, NOW + SECOND, Retry(5 * SECOND)),
        ({"retries": 1, "retry_delay": MINUTE}, FAILED, 0, None, Retry(MINUTE)),
        ({"retries": 1, "retry_delay": 61 * SECOND}, FAILED, 0, None, FollowUp(NOW + 61 * SECOND)),
        ({"retries": 2, "retry_delay": HOUR}, FAILED, 1, NOW + 2 * HOUR, FollowUp(NOW + HOUR)),
        ({"retries": 2, "retry_delay": HOUR}, FAILED, 2, NOW + 2 * HOUR, Finish(RunStatus.FAILED)),
        # The next occurrence comes first: it is the retry.
        ({"retries": 1, "retry_delay": HOUR}, FAILED, 0, NOW + HOUR, Finish(RunStatus.FAILED)),
        ({"retries": 1, "retry_delay": HOUR}, FAILED, 0, NOW + MINUTE, Finish(RunStatus.FAILED)),
        ({"retries": 5}, TIMEOUT, 0, None, Finish(RunStatus.TIMEOUT)),
        ({"retries": 5}, KILLED, 0, None, Finish(RunStatus.KILLED)),
        ({"retries": 5}, CANCELLED, 0, None, Finish(RunStatus.CANCELLED)),
    ],
)  # fmt: skip
def test_the_next_step_of_a_run(fields, outcome, retries_used, next_regular, step):
    assert next_step(task(**fields), outcome, retries_used, 0, NOW, next_regular) == step


@pytest.mark.parametrize(
    ("rerun", "interruptions", "step"),
    [
        (True, 1, Rerun()),
        (True, 2, Finish(RunStatus.ORPHANED)),
        (False, 1, Finish(RunStatus.ORPHANED)),
    ],
)
def test_an_interrupted_run_is_run_once_more(rerun, interruptions, step):
    assert next_step(task(rerun_interrupted=rerun), ORPHANED, 0, interruptions, NOW, None) == step


def test_an_interruption_uses_up_no_retry():
    assert next_step(task(retries=1), FAILED, 0, 1, NOW, None) == Retry(timedelta(0))


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


# --- the signature of an error -----------------------------------------------------------------------------------


def signature(error: str | None, **fields) -> str:
    return error_signature(replace(FAILED, error=error, **fields))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("exit code 3: line 17: oops", "exit code 3: line 123: oops"),
        ("at 2026-06-01 12:00:00", "at 2026-07-02 13:45:01"),
        ("object at 0x7f12ab", "object at 0xdeadbeef"),
    ],
)
def test_numbers_do_not_make_another_error(one, other):
    assert signature(one) == signature(other)


def test_another_text_code_signal_or_class_is_another_error():
    others = [
        signature("oops"), signature("other"), signature("oops", exit_code=4), signature("oops", exit_code=None, signal=9),
        signature("oops", status=RunStatus.TIMEOUT), signature("oops", error_class=ErrorClass.MISSING_TOOL), signature(None),
    ]  # fmt: skip
    assert len(set(others)) == len(others)


def test_an_error_that_is_no_proper_text_has_a_signature():
    assert signature("\udcff broken")


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
