"""When a task runs and why: the decisions by themselves, without clock, disk or process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickdown.base.model import (
    CatchUp,
    DisabledReason,
    Facts,
    Held,
    Hint,
    HintKind,
    Occurrence,
    RunStatus,
    SkipReason,
    Source,
    TaskState,
    Waiting,
)
from tickdown.base.records import replace
from tickdown.governor.governor import (
    NextRun,
    Plan,
    Unrun,
    look_again,
    next_run,
    occurrence_key,
    plan,
    spread_catch_ups,
    start_time,
    state_of,
)
from tickdown.schedule.blackout import parse_blackout
from tickdown.schedule.cron import occurrences
from tickdown.schedule.schedule import parse_schedule
from tickdown.tasks.task import Task

NOW = datetime(2026, 6, 1, 12, 0, 20, tzinfo=UTC)
NOON = NOW.replace(second=0)
BOOT = "boot-1"
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def task(schedule: str = "0 * * * *", **fields) -> Task:
    return Task(id="a", schedule=parse_schedule(schedule, "a", UTC), zone=UTC, path="tasks/a.md", command="x", **fields)


def facts(armed: datetime = NOW - 30 * DAY, last: datetime | None = NOON - HOUR, **fields) -> Facts:
    return Facts("a", armed_at=armed, last_occurrence=last, boot_id=BOOT, **fields)


def starts(what: Task, known: Facts, now: datetime = NOW) -> list[datetime]:
    return [start.at for start in plan(now, what, known, BOOT).starts]


# --- first sight -----------------------------------------------------------------------------------------------


def test_a_new_cron_task_waits_for_its_first_occurrence():
    new = facts(armed=NOON - timedelta(minutes=30), last=None)
    assert plan(NOON - timedelta(seconds=1), task(), new, BOOT).reason is SkipReason.NOT_DUE
    assert starts(task(), new) == [NOON]


def test_a_cron_task_seen_in_the_very_minute_of_its_occurrence_waits_for_the_next():
    new = facts(armed=NOON + timedelta(seconds=5), last=None)
    assert starts(task(), new) == []
    assert next_run(NOW, task(), new, BOOT) == NextRun(NOON + HOUR, Source.BASELINE_CRON)


def test_a_new_interval_task_is_due_at_once():
    new = facts(armed=NOW, last=None)
    [start] = plan(NOW, task("10m"), new, BOOT).starts
    assert (start.at, start.source, start.key) == (NOW, Source.BASELINE_INTERVAL, "a@2026-06-01T12:00:20Z")


def test_an_interval_counts_from_the_last_end():
    known = facts(last=NOW - HOUR, last_end=NOW - timedelta(minutes=9))
    assert starts(task("10m"), known) == []
    assert next_run(NOW, task("10m"), known, BOOT) == NextRun(NOW + MINUTE, Source.BASELINE_INTERVAL)
    assert starts(task("10m"), known, NOW + MINUTE) == [NOW + MINUTE]


def test_an_interval_has_one_start_however_long_it_waited():
    due = plan(NOW, task("10m", catch_up=CatchUp.ALL), facts(last_end=NOW - 30 * DAY), BOOT)
    assert (len(due.starts), due.unrun) == (1, ())


def test_a_manual_task_never_starts_by_itself():
    assert plan(NOW, task("manual"), facts(), BOOT).reason is SkipReason.MANUAL_ONLY
    assert next_run(NOW, task("manual"), facts(), BOOT) == NextRun(None, Source.MANUAL)


def test_a_reboot_task_starts_once_per_boot():
    assert starts(task("@reboot"), facts(last=None)) == []
    [start] = plan(NOW, task("@reboot"), facts(last=None), "boot-2").starts
    assert (start.source, start.key) == (Source.REBOOT, "a@boot-boot-2")
    assert plan(NOW, task("@reboot"), facts(last=None, running=True), "boot-2").starts == ()
    assert next_run(NOW, task("@reboot"), facts(), BOOT) == NextRun(None, Source.REBOOT)


# --- due -------------------------------------------------------------------------------------------------------


def test_an_occurrence_on_time_starts_under_its_own_name():
    assert plan(NOW, task(), facts(), BOOT).starts == (
        Occurrence("a", NOON, Source.BASELINE_CRON, "a@2026-06-01T12:00:00Z", NOON),
    )


def test_what_was_taken_up_is_not_due_again_whatever_its_outcome():
    for failures in (0, 5):
        assert plan(NOW, task(), facts(last=NOON, failures=failures), BOOT).reason is SkipReason.NOT_DUE


def test_two_minutes_late_is_on_time_and_more_is_a_catch_up():
    known = facts()
    assert plan(NOON + 2 * MINUTE, task(), known, BOOT).starts[0].source is Source.BASELINE_CRON
    assert plan(NOON + 2 * MINUTE + timedelta(seconds=1), task(), known, BOOT).starts[0].source is Source.CATCH_UP


@pytest.mark.parametrize("fields", [{"enabled": False}, {"enabled": False, "catch_up": CatchUp.ALL}])
def test_a_disabled_task_does_not_start(fields):
    assert plan(NOW, task(**fields), facts(), BOOT).reason is SkipReason.DISABLED
    assert next_run(NOW, task(**fields), facts(), BOOT) == NextRun(None, None)


def test_a_suspension_counts_before_the_file_says_so():
    assert plan(NOW, task(), facts(closing=DisabledReason.AUTO_SUSPENDED), BOOT).reason is SkipReason.DISABLED
    assert next_run(NOW, task(), facts(closing=DisabledReason.AUTO_SUSPENDED), BOOT).at is None


@pytest.mark.parametrize("back", [timedelta(seconds=1), HOUR, 3 * DAY])
def test_a_clock_set_back_re_runs_nothing(back):
    known = facts(last=NOON)
    assert starts(task(), known, NOW - back) == []
    assert starts(task("10m"), facts(last=NOON, last_end=NOW), NOW - back) == []


def test_a_clock_set_forward_is_a_missed_occurrence_like_any_other():
    due = plan(NOW + 5 * HOUR, task(), facts(), BOOT)
    assert [start.at for start in due.starts] == [NOON + 5 * HOUR]
    assert due.unrun == (Unrun(NOON, NOON + 4 * HOUR, 5),)


@pytest.mark.parametrize("change", [{"title": "new"}, {"timeout": HOUR}, {"notify_to": "home"}, {"tags": ("x",)}])
def test_editing_an_unrelated_field_changes_no_decision(change):
    for known in (facts(), facts(last=NOON), facts(last=NOON - 5 * HOUR)):
        assert plan(NOW, replace(task(), **change), known, BOOT) == plan(NOW, task(), known, BOOT)


def test_a_new_schedule_counts_from_the_last_occurrence_taken_up():
    known = facts(last=NOON)
    assert starts(task("*/5 * * * *"), known, NOON + 5 * MINUTE) == [NOON + 5 * MINUTE]
    assert starts(task("30 11 * * *"), known) == []


def skipped(first: datetime, last: datetime, count: int, reason: SkipReason) -> Unrun:
    return Unrun(first, last, count, RunStatus.SKIPPED, reason)


def dark(first: datetime, last: datetime, count: int) -> Unrun:
    return skipped(first, last, count, SkipReason.BLACKOUT)


# --- missed ----------------------------------------------------------------------------------------------------


def test_once_runs_one_for_all_that_were_missed():
    due = plan(NOW + 30 * MINUTE, task(), facts(last=NOON - 10 * HOUR), BOOT)
    [start] = due.starts
    assert (start.at, start.source) == (NOON, Source.CATCH_UP)
    assert due.unrun == (Unrun(NOON - 9 * HOUR, NOON - HOUR, 9),)


def test_skip_runs_none_of_those_that_were_missed():
    due = plan(NOW + 30 * MINUTE, task(catch_up=CatchUp.SKIP), facts(last=NOON - 10 * HOUR), BOOT)
    assert due.starts == ()
    assert due.unrun == (Unrun(NOON - 9 * HOUR, NOON, 10),)


def test_skip_still_runs_the_one_that_is_on_time():
    due = plan(NOW, task(catch_up=CatchUp.SKIP), facts(last=NOON - 10 * HOUR), BOOT)
    assert [(start.at, start.source) for start in due.starts] == [(NOON, Source.BASELINE_CRON)]
    assert due.unrun == (Unrun(NOON - 9 * HOUR, NOON - HOUR, 9),)


def test_all_runs_each_in_order():
    due = plan(NOW, task(catch_up=CatchUp.ALL), facts(last=NOON - 3 * HOUR), BOOT)
    assert [start.at for start in due.starts] == [NOON - 2 * HOUR, NOON - HOUR, NOON]
    assert [start.source for start in due.starts] == [Source.CATCH_UP, Source.CATCH_UP, Source.BASELINE_CRON]
    assert due.unrun == () and [one.at for one in due.waiting] == [start.at for start in due.starts[1:]]


@pytest.mark.parametrize(("hours", "run", "missed"), [(24, 24, 0), (25, 24, 1), (100, 24, 76)])
def test_all_runs_at_most_24(hours, run, missed):
    due = plan(NOW, task(catch_up=CatchUp.ALL), facts(last=NOON - hours * HOUR), BOOT)
    assert [start.at for start in due.starts] == [NOON - n * HOUR for n in reversed(range(run))]
    expected = Unrun(NOON - (hours - 1) * HOUR, NOON - 24 * HOUR, missed)
    assert due.unrun == ((expected,) if missed else ())


def test_grace_makes_what_is_older_count_as_skip():
    known = facts(last=NOON - 10 * HOUR)
    late = NOW + 30 * MINUTE
    assert plan(late, task(grace=2 * HOUR), known, BOOT).starts[0].at == NOON
    due = plan(late, task(grace=10 * MINUTE), known, BOOT)
    assert (due.starts, due.unrun) == ((), (Unrun(NOON - 9 * HOUR, NOON, 10),))


def test_grace_with_all_keeps_the_young_ones():
    due = plan(NOW, task(catch_up=CatchUp.ALL, grace=2 * HOUR + MINUTE), facts(last=NOON - 6 * HOUR), BOOT)
    assert [start.at for start in due.starts] == [NOON - 2 * HOUR, NOON - HOUR, NOON]
    assert due.unrun == (Unrun(NOON - 5 * HOUR, NOON - 3 * HOUR, 3),)


def test_grace_shorter_than_a_beat_of_cron_does_not_lose_what_is_on_time():
    assert starts(task(grace=timedelta(seconds=1)), facts(), NOON + MINUTE) == [NOON]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_year_without_ticks_is_counted_exactly(zone):
    every_minute = replace(task(), schedule=parse_schedule("* * * * *", "a", ZoneInfo(zone)))
    due = plan(NOON, every_minute, facts(armed=NOON - 800 * DAY, last=NOON - 365 * DAY), BOOT)
    assert [start.at for start in due.starts] == [NOON]
    assert due.unrun == (Unrun(NOON - 365 * DAY + MINUTE, NOON - MINUTE, 365 * 1440 - 1),)


# --- pause, running, capacity ------------------------------------------------------------------------------------


def test_a_pause_wins_over_everything_and_leaves_a_row():
    paused = facts(last=NOON - 3 * HOUR, paused_until=NOW + MINUTE)
    due = plan(NOW, task(), paused, BOOT)
    assert (due.starts, due.reason) == ((), SkipReason.PAUSED)
    assert due.unrun == (skipped(NOON - 2 * HOUR, NOON, 3, SkipReason.PAUSED),)
    assert next_run(NOW, task(), paused, BOOT) == NextRun(NOON + HOUR, Source.PAUSED)
    retry = replace(paused, retry_at=NOON, retry_follows="r1")
    assert next_run(NOW, task(), retry, BOOT) == NextRun(NOW + MINUTE, Source.PAUSED)


def test_a_pause_ends_by_itself():
    assert starts(task(), facts(paused_until=NOW)) == [NOON]


def test_a_paused_interval_comes_when_the_pause_is_over():
    paused = facts(last_end=NOW - HOUR, paused_until=NOW + HOUR)
    assert next_run(NOW, task("10m"), paused, BOOT) == NextRun(NOW + HOUR, Source.PAUSED)


def test_a_cron_occurrence_that_comes_while_the_task_runs_is_skipped():
    due = plan(NOW, task(), facts(running=True), BOOT)
    assert (due.starts, due.reason) == ((), SkipReason.ALREADY_RUNNING)
    assert due.unrun == (skipped(NOON, NOON, 1, SkipReason.ALREADY_RUNNING),)


def test_with_all_an_occurrence_waits_for_the_run_before_it():
    due = plan(NOW, task(catch_up=CatchUp.ALL), facts(running=True), BOOT)
    waits = Waiting(NOON, Source.BASELINE_CRON)
    assert (due.starts, due.unrun, due.waiting, due.reason) == ((), (), (waits,), SkipReason.ALREADY_RUNNING)
    known = facts(last=NOON, running=True, waiting=(waits,))
    assert not plan(NOW, task(catch_up=CatchUp.ALL), known, BOOT).does_something, "it has its row"


def test_an_interval_waits_for_its_own_end():
    running = facts(last=NOW - HOUR, last_end=NOW - 2 * HOUR, running=True)
    assert not plan(NOW, task("10m"), running, BOOT).does_something
    assert next_run(NOW, task("10m"), running, BOOT).at is None


@pytest.mark.parametrize(
    ("what", "known", "unrun", "waits"),
    [
        (task(), facts(last=NOON - 3 * HOUR), 3, []),
        (task(catch_up=CatchUp.ALL), facts(last=NOON - 2 * HOUR), 0, [NOON - HOUR, NOON]),
        (task("10m"), facts(last_end=NOON - HOUR), 0, [NOON - 50 * MINUTE]),
        (task("10m"), facts(last_end=NOON - HOUR, deferred=NOON - 50 * MINUTE), 0, []),
        (task("manual"), facts(retry_at=NOON, retry_follows="r1"), 0, [NOON]),
    ],
)
def test_a_lock_that_a_stranger_holds_is_like_a_run_but_what_waits_leaves_a_row(what, known, unrun, waits):
    due = plan(NOW, what, replace(known, held=Held("pid 1", NOON)), BOOT)
    assert (due.starts, due.reason) == ((), SkipReason.ALREADY_RUNNING)
    assert sum(one.count for one in due.unrun) == unrun and [one.at for one in due.waiting] == waits


def test_a_lock_that_is_held_is_looked_at_when_a_run_would_have_timed_out_and_then_it_is_told():
    known, what = facts(last=NOON), task(timeout=10 * MINUTE)
    assert look_again(NOW, what, replace(known, held=Held("pid 1", NOON)), BOOT) == NOON + 10 * MINUTE
    assert look_again(NOW, what, replace(known, held=Held("pid 1", NOON, told=True)), BOOT) == NOON + HOUR


def test_what_waited_for_a_slot_is_not_late():
    waited = facts(last=NOON, waiting=(Waiting(NOON, Source.BASELINE_CRON),))
    late = NOON + 30 * MINUTE
    for fields in ({"catch_up": CatchUp.SKIP}, {"grace": 31 * MINUTE}, {}):
        [start] = plan(late, task(**fields), waited, BOOT).starts
        assert (start.at, start.source) == (NOON, Source.BASELINE_CRON)
    too_old = plan(late, task(grace=29 * MINUTE), waited, BOOT)
    assert (too_old.starts, too_old.waiting, too_old.unrun) == ((), (), ()), "grace is about every wait; it has its row"
    assert too_old.settles is not None


# --- follow-ups ------------------------------------------------------------------------------------------------


def test_a_follow_up_starts_at_its_time_and_names_the_run_it_follows():
    waiting = facts(last=NOON, retry_at=NOW + 5 * MINUTE, retry_follows="r1")
    assert starts(task(), waiting) == []
    assert next_run(NOW, task(), waiting, BOOT) == NextRun(NOW + 5 * MINUTE, Source.RETRY)
    [start] = plan(NOW + 5 * MINUTE, task(), waiting, BOOT).starts
    assert (start.source, start.key, start.follows) == (Source.RETRY, "a@r1+retry", "r1")


def test_a_regular_occurrence_goes_before_a_follow_up():
    waiting = facts(retry_at=NOON - MINUTE, retry_follows="r1")
    assert plan(NOW, task(), waiting, BOOT).starts[0].source is Source.BASELINE_CRON


@pytest.mark.parametrize("fields", [{"running": True}, {"paused_until": NOW + HOUR}])
def test_a_follow_up_waits_too(fields):
    waiting = facts(last=NOON, retry_at=NOW - MINUTE, retry_follows="r1", **fields)
    assert plan(NOW, task(), waiting, BOOT).starts == ()


# --- jitter ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sampled_from(["a", "backup", "x-1"]))
def test_jitter_is_a_fixed_share_of_its_length(hours, task_id):
    at = NOON + hours * HOUR
    start = start_time(task_id, at, timedelta(seconds=30))
    assert at <= start < at + timedelta(seconds=30)
    assert start == start_time(task_id.upper(), at, timedelta(seconds=30))
    assert start_time(task_id, at, None) == start_time(task_id, at, timedelta(0)) == at


def test_jitter_differs_by_task_and_by_occurrence():
    by_task = {start_time(f"t{number}", NOON, MINUTE) for number in range(100)}
    by_time = {start_time("a", NOON + number * HOUR, MINUTE) - number * HOUR for number in range(100)}
    assert len(by_task) > 90 and len(by_time) > 90


def test_jitter_does_not_change_the_name_of_an_occurrence():
    [start] = plan(NOW, task(jitter=timedelta(seconds=30)), facts(), BOOT).starts
    assert (start.at, start.key) == (NOON, occurrence_key("a", NOON))
    assert start.start_at == start_time("a", NOON, timedelta(seconds=30))


def test_a_start_far_ahead_is_left_to_a_later_tick():
    jittered = task(jitter=40 * MINUTE)
    start = start_time("a", NOON, 40 * MINUTE)
    assert start > NOON + 3 * MINUTE
    assert starts(jittered, facts(), start - timedelta(seconds=61)) == []
    assert starts(jittered, facts(), start - timedelta(seconds=60)) == [NOON]
    [on_time] = plan(start + MINUTE, jittered, facts(), BOOT).starts
    assert on_time.source is Source.BASELINE_CRON


def test_an_interval_with_jitter_is_foretold_as_it_starts_and_max_interval_holds():
    known = facts(last_end=NOW - 9 * MINUTE)
    for fields in ({}, {"min_interval": 12 * MINUTE}, {"max_interval": 10 * MINUTE}):
        what = task("10m", jitter=9 * MINUTE, **fields)
        foretold = next_run(NOW, what, known, BOOT).at
        assert {next_run(NOW + n * MINUTE, what, known, BOOT).at for n in range(2)} == {foretold}
        [start] = plan(foretold, what, known, BOOT).starts
        assert start.start_at == foretold
        assert foretold <= known.last_end + fields.get("max_interval", DAY)


def test_next_run_counts_jitter_in():
    assert next_run(NOW, task(jitter=MINUTE), facts(last=NOON), BOOT).at == start_time("a", NOON + HOUR, MINUTE)


# --- after an outage -------------------------------------------------------------------------------------------


def occurrence(number: int, source: Source) -> Occurrence:
    at = NOON - number * MINUTE
    return Occurrence(f"t{number}", at, source, occurrence_key(f"t{number}", at), at)


def test_up_to_three_catch_ups_start_at_once():
    late = [occurrence(number, Source.CATCH_UP) for number in range(3)]
    assert spread_catch_ups(late, NOW) == sorted(late, key=lambda start: start.at)


def test_more_catch_ups_are_spread_over_half_a_minute_oldest_first():
    late = [occurrence(number, Source.CATCH_UP) for number in range(60)]
    spread = spread_catch_ups(late, NOW)
    delays = [start.start_at - NOW for start in spread]
    assert [start.at for start in spread] == sorted(start.at for start in late)
    assert delays == sorted(delays) and len(set(delays)) == 60
    assert delays[0] == timedelta(0) and delays[-1] <= timedelta(seconds=30)


def test_what_is_on_time_is_not_put_off():
    regular = [occurrence(number, Source.BASELINE_CRON) for number in range(10)]
    late = [occurrence(number, Source.CATCH_UP) for number in range(10, 20)]
    spread = spread_catch_ups(regular + late, NOW)
    assert {start for start in spread if start.source is Source.BASELINE_CRON} == set(regular)


# --- states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (None, TaskState.DISABLED),
        (DisabledReason.BY_CHOICE, TaskState.DISABLED),
        (DisabledReason.RETIRED, TaskState.DISABLED),
        (DisabledReason.AUTO_SUSPENDED, TaskState.SUSPENDED),
        (DisabledReason.PAUSED, TaskState.PAUSED),
        (DisabledReason.COMPLETED, TaskState.COMPLETED),
        (DisabledReason.FAILED, TaskState.FAILED),
    ],
)
def test_the_state_of_a_disabled_task_is_its_reason(reason, state):
    assert state_of(NOW, task(enabled=False, disabled_reason=reason), None) is state


def test_a_reason_without_a_disabling_means_nothing():
    assert state_of(NOW, task(disabled_reason=DisabledReason.PAUSED), facts()) is TaskState.ACTIVE


def test_states_that_only_the_store_knows():
    assert state_of(NOW, task(enabled=False), facts(running=True)) is TaskState.RUNNING
    assert state_of(NOW, task(), facts(closing=DisabledReason.AUTO_SUSPENDED)) is TaskState.SUSPENDED
    assert state_of(NOW, task(), facts(paused_until=NOW + MINUTE)) is TaskState.PAUSED
    assert state_of(NOW, task(), facts(paused_until=NOW)) is TaskState.ACTIVE
    assert state_of(NOW, task(), None) is TaskState.ACTIVE


# --- the promise -----------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["*/5 * * * *", "0 * * * *", "30 2 * * *"]),
    st.sampled_from(list(CatchUp)),
    st.sampled_from([None, 10 * MINUTE, 3 * HOUR]),
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
)
def test_every_due_occurrence_is_either_started_or_written_off(schedule, catch_up, grace, pauses):
    """Ticks at odd times: the occurrences started and those missed add up to all there were, none twice."""
    berlin = ZoneInfo("Europe/Berlin")
    what = replace(task(catch_up=catch_up, grace=grace), schedule=parse_schedule(schedule, "a", berlin), zone=berlin)
    begin = now = datetime(2024, 10, 26, 20, 0, tzinfo=UTC)  # over the end of summer time
    known, taken, missed = facts(armed=begin, last=None), [], 0
    for minutes in pauses:
        now += minutes * MINUTE
        while True:
            due = plan(now, what, known, BOOT)
            if not due.does_something:
                break
            missed += sum(unrun.count for unrun in due.unrun)
            taken += [start.at for start in due.starts[:1]]
            known = replace(known, last_occurrence=due.settles, waiting=due.waiting)
    there_were = list(occurrences(what.schedule, begin, now))
    assert len(set(taken)) == len(taken) and set(taken) <= set(there_were)
    assert len(taken) + missed == len(there_were)


# --- several lines, blackouts ------------------------------------------------------------------------------------


def test_what_is_due_by_the_clock_is_not_settled_by_a_hint_that_came_later():
    """The run of the hint would take up 12:00 to 12:02 without a row."""
    every_minute, now = task("* * * * *"), NOON + 5 * MINUTE
    hinted = facts(last=NOON - MINUTE, hints=(Hint(HintKind.ONE_SHOT, NOON, at=NOON + 2 * MINUTE),))
    due = plan(now, every_minute, hinted, BOOT)
    assert [(start.at, start.source) for start in due.starts] == [(now, Source.BASELINE_CRON)]
    assert due.unrun == (Unrun(NOON, NOON + 4 * MINUTE, 5),)


def blacked_out(*texts: str, **fields) -> Task:
    return task(blackout=tuple(map(parse_blackout, texts)), **fields)


def test_an_occurrence_in_a_blackout_is_skipped_and_the_next_is_after_it():
    due = plan(NOW, blacked_out("11:30-13:30"), facts(), BOOT)
    assert (due.starts, due.reason, due.unrun) == ((), SkipReason.BLACKOUT, (dark(NOON, NOON, 1),))
    assert next_run(NOW, blacked_out("11:30-13:30"), facts(), BOOT).at == NOON + 2 * HOUR


def test_what_was_missed_before_a_blackout_is_caught_up_and_each_of_the_others_has_its_reason():
    """Due since 08:00; 10:00 to 12:00 lie in the blackout, which is over."""
    what = blacked_out("09:30-12:00", catch_up=CatchUp.ONCE)
    due = plan(NOON - MINUTE + HOUR, what, facts(last=NOON - 5 * HOUR), BOOT)
    assert [start.at for start in due.starts] == [NOON]
    assert due.unrun == (Unrun(NOON - 4 * HOUR, NOON - 3 * HOUR, 2), dark(NOON - 2 * HOUR, NOON - HOUR, 2))
    what = blacked_out("09:30-12:30")
    due = plan(NOON + 35 * MINUTE, what, facts(last=NOON - 5 * HOUR), BOOT)
    assert [start.at for start in due.starts] == [NOON - 3 * HOUR]
    assert due.unrun == (Unrun(NOON - 4 * HOUR, NOON - 4 * HOUR, 1), dark(NOON - 2 * HOUR, NOON, 3))
    assert due.settles == NOON


def test_what_was_missed_waits_for_the_end_of_a_blackout():
    what, known, waits = blacked_out("11:30-13:30"), facts(last=NOON - 2 * HOUR), Waiting(NOON - HOUR, Source.CATCH_UP)
    due = plan(NOON - MINUTE, what, known, BOOT)
    assert (due.starts, due.reason, due.waiting) == ((), SkipReason.BLACKOUT, (waits,))
    known = replace(known, last_occurrence=NOON - HOUR, waiting=(waits,))
    assert plan(NOON - MINUTE, what, known, BOOT) == Plan(reason=SkipReason.BLACKOUT)
    due = plan(NOON + MINUTE, what, known, BOOT)
    assert (due.waiting, due.unrun) == ((waits,), (dark(NOON, NOON, 1),)), "meanwhile the others have their rows"
    later = plan(NOON + 2 * HOUR, what, replace(known, last_occurrence=NOON + HOUR), BOOT)
    assert [start.at for start in later.starts] == [NOON + 2 * HOUR] and later.waiting == ()


def test_an_interval_hint_that_ends_first_leaves_the_next_run_to_the_schedule():
    hinted = facts(
        last=NOON, last_end=NOON, hints=(Hint(HintKind.INTERVAL, NOON, every=HOUR, until=NOON + 25 * MINUTE),)
    )
    assert next_run(NOW, task("*/10 * * * *"), hinted, BOOT) == NextRun(NOON + 30 * MINUTE, Source.BASELINE_CRON)


def test_a_hint_leaves_what_was_due_before_it_to_the_schedule():
    """Given at 12:00:10, after the occurrence and before the tick."""
    hint = Hint(HintKind.INTERVAL, NOON + timedelta(seconds=10), every=HOUR)
    assert starts(task(), facts(hints=(hint,))) == [NOON]
    assert starts(task(), facts(hints=(replace(hint, given_at=NOON - MINUTE),))) == []
    expired = facts(hints=(replace(hint, until=NOW),))
    assert starts(task(), expired) == [NOON]


def test_a_hint_given_in_a_run_counts_when_that_is_over():
    hint = Hint(HintKind.INTERVAL, NOON - MINUTE, every=HOUR)
    running = facts(last=NOON - 2 * HOUR, last_end=NOON - 2 * HOUR, running=True, hints=(hint,))
    due = plan(NOW, task(), running, BOOT)
    assert due.unrun == (skipped(NOON - HOUR, NOON, 2, SkipReason.ALREADY_RUNNING),)


def test_a_day_of_minutes_in_the_way_of_a_blackout_loses_no_catch_up():
    """Off from 10:00 to 22:30; the blackout began at 22:00."""
    what, evening = (
        replace(blacked_out("22:00-06:00"), schedule=parse_schedule("* * * * *", "a", UTC)),
        NOON + 10.5 * HOUR,
    )
    due = plan(evening, what, facts(last=NOON - 2 * HOUR), BOOT)
    assert (due.starts, due.reason, len(due.waiting)) == ((), SkipReason.BLACKOUT, 1)
    morning = plan(evening + 8 * HOUR, what, facts(last=NOON - 2 * HOUR), BOOT)
    assert [start.at for start in morning.starts] == [evening + 8 * HOUR]
