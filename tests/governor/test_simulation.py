"""The governor replayed: what would run when, without clock, disk or process."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickdown.base.model import CatchUp, ChainOn, DisabledReason, Facts, Hint, HintKind, Source
from tickdown.base.records import replace
from tickdown.governor.simulation import (
    Effort,
    Replay,
    Simulation,
    Start,
    Subject,
    TooMuch,
    Walk,
    facts_at,
    simulate,
    with_upstreams,
)
from tickdown.schedule.blackout import parse_blackout
from tickdown.schedule.cron import clock_note, count_occurrences, next_occurrence, occurrences
from tickdown.schedule.schedule import parse_schedule
from tickdown.tasks.task import Task

NOW = datetime(2026, 6, 1, 12, 0, 20, tzinfo=UTC)  # a Monday
NOON = NOW.replace(second=0)
BOOT = "boot-1"
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NEW_YORK = ZoneInfo("America/New_York")


def subject(
    task_id: str = "a", schedule: str = "0 * * * *", zone=UTC, lasts=timedelta(0), known=None, **fields
) -> Subject:
    """A task that was met and last taken up at NOW; `known` are facts of it."""
    task = Task(id=task_id, schedule=parse_schedule(schedule, task_id, zone), zone=zone, path="x", **fields)
    facts = Facts(task_id, armed_at=NOW, last_end=NOW, boot_id=BOOT)
    return Subject(task, replace(facts, **(known or {})), lasts)


def starts(*subjects: Subject, count: int = 5, now: datetime = NOW) -> list[Start]:
    return list(islice(Replay(subjects, now, BOOT, Effort()).starts(), count))


def times(*subjects: Subject, count: int = 5, now: datetime = NOW) -> list[datetime]:
    return [start.at for start in starts(*subjects, count=count, now=now)]


def load(*subjects: Subject, begin: datetime = NOW, end: datetime = NOW + DAY, now: datetime = NOW) -> Simulation:
    return simulate(subjects, begin, end, now, BOOT, UTC)


def step_by_step(what: Subject, end: datetime) -> tuple[list[datetime], int]:
    """The starts, and how many occurrences a run is in the way of: by the governor alone."""
    walk, found = Walk(what, NOW, BOOT, Effort(), end), []
    while (start := walk.upcoming()) is not None and start.at < end:
        found.append(start.at)
        walk.take(start)
    return found, walk.overlapped


def at_once(what: Subject, end: datetime) -> tuple[list[datetime], int]:
    walk = Walk(what, NOW, BOOT, Effort(), end)
    return walk.starts_before(end), walk.overlapped


# --- one after another -----------------------------------------------------------------------------------------


def test_a_cron_line_comes_at_each_of_its_occurrences():
    assert times(subject()) == [NOON + n * HOUR for n in range(1, 6)]


def test_an_interval_counts_from_the_end_of_each_run():
    assert times(subject(schedule="10m", lasts=2 * MINUTE), count=3) == [NOW + n * MINUTE for n in (10, 22, 34)]


def test_a_new_interval_task_starts_at_once():
    assert times(subject(schedule="1h", known={"last_end": None}), count=2) == [NOW, NOW + HOUR]


def test_back_off_ends_with_the_first_success():
    failing = subject(schedule="10m", known={"failures": 2})
    assert times(failing, count=3) == [NOW + n * MINUTE for n in (40, 50, 60)]


def test_a_one_shot_comes_once():
    assert times(subject(schedule="in 30 minutes")) == [NOW + 30 * MINUTE]


def test_what_was_missed_is_caught_up_first():
    late = subject(known={"armed_at": NOW - 9 * HOUR, "last_occurrence": NOON - 3 * HOUR}, catch_up=CatchUp.ALL)
    found = starts(late, now=NOW + 30 * MINUTE, count=5)
    assert [start.source for start in found] == [Source.CATCH_UP] * 3 + [Source.BASELINE_CRON] * 2
    assert [start.at for start in found] == [NOW + 30 * MINUTE] * 3 + [NOON + HOUR, NOON + 2 * HOUR]


@pytest.mark.parametrize("task", [subject(enabled=False), subject(schedule="manual"), subject(schedule="@reboot")])
def test_what_never_starts_by_itself_has_no_starts(task):
    assert starts(task) == []


def test_a_run_that_goes_on_is_waited_for():
    busy = replace(subject(schedule="*/5 * * * *", known={"running": True}), busy_until=NOW + 12 * MINUTE)
    assert times(busy, count=2) == [NOON + 15 * MINUTE, NOON + 20 * MINUTE]
    interval = replace(subject(schedule="10m", known={"running": True}), busy_until=NOW + 12 * MINUTE)
    assert times(interval, count=1) == [NOW + 22 * MINUTE]


# --- pauses, hints, blackouts ----------------------------------------------------------------------------------


def test_a_pause_ends():
    paused = subject(known={"paused_until": NOW + 150 * MINUTE})
    found = starts(paused, count=2)
    assert [(start.at, start.source) for start in found] == [
        (NOON + 3 * HOUR, Source.PAUSED), (NOON + 4 * HOUR, Source.BASELINE_CRON),
    ]  # fmt: skip


def hint(every: timedelta | None = None, at: datetime | None = None, until: datetime | None = None) -> Hint:
    return Hint(HintKind.INTERVAL if every else HintKind.ONE_SHOT, NOW, every=every, at=at, until=until)


def test_an_interval_hint_holds_until_it_expires_and_then_the_schedule_counts_again():
    hinted = subject(known={"hints": (hint(every=10 * MINUTE, until=NOW + 25 * MINUTE),)})
    found = starts(hinted, count=4)
    assert [start.at for start in found] == [NOW + 10 * MINUTE, NOW + 20 * MINUTE, NOON + HOUR, NOON + 2 * HOUR]
    assert [start.source for start in found[1:3]] == [Source.AI_INTERVAL, Source.BASELINE_CRON]


def test_a_hint_that_expires_before_it_would_count_leaves_the_schedule_its_turn():
    hinted = subject(schedule="*/10 * * * *", known={"hints": (hint(every=HOUR, until=NOW + 25 * MINUTE),)})
    assert times(hinted, count=2) == [NOON + 30 * MINUTE, NOON + 40 * MINUTE]


def test_a_one_shot_hint_is_used_up():
    hinted = subject(known={"hints": (hint(at=NOW + 20 * MINUTE),)})
    assert times(hinted, count=3) == [NOW + 20 * MINUTE, NOON + HOUR, NOON + 2 * HOUR]


def test_nothing_starts_in_a_blackout():
    dark = (parse_blackout("13:30-16:30"),)
    assert times(subject(blackout=dark), count=2) == [NOON + HOUR, NOON + 5 * HOUR]
    every = subject(schedule="1h", blackout=dark)
    assert times(every, count=3) == [NOW + HOUR, NOON + 270 * MINUTE, NOON + 330 * MINUTE]


# --- chains ----------------------------------------------------------------------------------------------------


def test_a_task_starts_when_those_it_comes_after_have_ended():
    first = subject("first", lasts=10 * MINUTE)
    second = subject("second", "manual", lasts=5 * MINUTE, after={"FIRST": ChainOn.SUCCESS})
    third = subject("third", "manual", after={"first": ChainOn.ALWAYS, "second": ChainOn.SUCCESS})
    found = [(start.task_id, start.at - NOON - HOUR) for start in starts(third, second, first, count=4)]
    assert found == [("first", 0 * HOUR), ("second", 10 * MINUTE), ("third", 15 * MINUTE), ("first", HOUR)]


def test_all_upstreams_must_have_ended_since_the_last_time():
    often, seldom = subject("often", "*/10 * * * *"), subject("seldom", "0 */2 * * *")
    both = subject("both", "manual", after={"often": ChainOn.SUCCESS, "seldom": ChainOn.SUCCESS})
    found = [start.at for start in starts(often, seldom, both, count=40) if start.task_id == "both"]
    assert found == [NOON + 2 * HOUR, NOON + 4 * HOUR]


def test_an_end_that_has_come_already_is_not_waited_for_again():
    often, seldom = subject("often", "*/10 * * * *"), subject("seldom", "0 0 * * *")
    both = subject("both", "manual", after={"often": ChainOn.SUCCESS, "seldom": ChainOn.SUCCESS})
    both = replace(both, ended={"Seldom": NOW - HOUR})
    assert [start.at for start in starts(often, seldom, both, count=3) if start.task_id == "both"] == [
        NOON + 10 * MINUTE
    ]


@pytest.mark.parametrize("until", [None, NOW + HOUR])
def test_the_end_of_the_run_that_goes_on_counts(until):
    busy = replace(subject("first", "0 0 * * *", known={"running": True}), busy_until=NOW + 10 * MINUTE)
    second = subject("second", "manual", after={"first": ChainOn.SUCCESS})
    found = list(islice(Replay([second, busy], NOW, BOOT, Effort(), until).starts(), 1))
    assert [(start.task_id, start.at) for start in found] == [("second", NOW + 10 * MINUTE)]


def test_who_waits_for_a_failure_waits_in_vain():
    first, cleanup = subject("first"), subject("cleanup", "manual", after={"first": ChainOn.FAILURE})
    assert {start.task_id for start in starts(first, cleanup)} == {"first"}
    assert dict(load(first, cleanup).never) == {"cleanup": "starts only when first fails, and success is assumed"}


def test_a_chain_of_five_hundred_is_followed_to_its_end():
    links = [subject("t0", "0 0 * * *")]
    links += [subject(f"t{n}", "manual", after={f"t{n - 1}": ChainOn.SUCCESS}) for n in range(1, 500)]
    assert load(*links[::-1]).total == 500
    assert [one.task.id for one in with_upstreams(links, "T2")] == ["t2", "t1", "t0"]


def test_steps_without_end_are_given_up():
    with pytest.raises(TooMuch):
        list(Replay([subject(schedule="1s")], NOW, BOOT, Effort(20)).starts())
    with pytest.raises(TooMuch):
        load(*(subject(f"t{n}", "1s") for n in range(2)), end=NOW + 366 * DAY)


@settings(max_examples=60)
@given(
    st.sampled_from(["*/5 * * * *", "10m", "0 * * * *", "*/7 * * * *"]),
    st.sampled_from([timedelta(0), 2 * MINUTE, 7 * MINUTE, HOUR]),
    st.sampled_from([timedelta(0), 2 * MINUTE, 7 * MINUTE, HOUR]),
    st.sampled_from(list(CatchUp)),
)
def test_who_only_follows_others_starts_when_the_governor_says_so(schedule, first_lasts, second_lasts, catch_up):
    tasks = [
        subject("first", schedule, lasts=first_lasts),
        subject("other", "*/10 * * * *", lasts=MINUTE),
        subject("follows", "manual", lasts=second_lasts, after={"first": ChainOn.SUCCESS}, catch_up=catch_up),
        subject("last", "manual", after={"follows": ChainOn.ALWAYS, "other": ChainOn.SUCCESS}, catch_up=catch_up),
    ]
    by_governor = Replay(tasks, NOW, BOOT, Effort())
    for walk in by_governor.walks:
        walk._nothing_special = lambda: False
    expected = [(start.task_id, start.at, start.source) for start in islice(by_governor.starts(), 60)]
    assert [(start.task_id, start.at, start.source) for start in starts(*tasks, count=60)] == expected
    until = expected[-1][1]
    at_once = [(start.task_id, start.at) for start in Replay(tasks, NOW, BOOT, Effort(), until).starts()]
    assert at_once == [(task_id, at) for task_id, at, _ in expected if at < until]


# --- many at once are the same as one after another ------------------------------------------------------------

DARK = [(), (parse_blackout("13:05-14:10"),), (parse_blackout("tue"), parse_blackout("22:00-03:00"))]
SCHEDULES = ["*/5 * * * *", "*/7 * * * *", "0 * * * *", "17 3 * * *", "*/20 1-3 * * *", "30 1,2 * * *", "0 9 * * 1-5",
             "10m", "45s", "3h", "manual", "in 2 hours", "@reboot"]  # fmt: skip


@st.composite
def tasks(draw: st.DrawFn) -> Subject:
    schedule = draw(st.sampled_from(SCHEDULES))
    known: dict[str, object] = {"failures": draw(st.sampled_from([0, 0, 3]))}
    if draw(st.booleans()):
        known["last_end"] = draw(st.sampled_from([None, NOW - MINUTE, NOW - 5 * HOUR]))
    if draw(st.booleans()):
        known |= {"armed_at": NOW - DAY, "last_occurrence": draw(st.sampled_from([None, NOON, NOON - 2 * HOUR]))}
    if draw(st.integers(0, 3)) == 0:
        known["paused_until"] = NOW + draw(st.sampled_from([-HOUR, 30 * MINUTE, 5 * HOUR]))
    if draw(st.integers(0, 3)) == 0:
        until = draw(st.sampled_from([None, NOW + 40 * MINUTE, NOW + 3 * HOUR]))
        known["hints"] = draw(
            st.sampled_from([(hint(every=17 * MINUTE, until=until),), (hint(at=NOW + 31 * MINUTE, until=until),)])
        )
    if draw(st.integers(0, 5)) == 0:
        known |= {"retry_at": NOW + 3 * MINUTE, "retry_follows": "r1"}
    return subject(
        "a",
        schedule,
        draw(st.sampled_from([UTC, NEW_YORK])),
        draw(st.sampled_from([timedelta(0), timedelta(0), 3 * SECOND, 2 * MINUTE, 11 * MINUTE, 2 * HOUR])),
        known,
        jitter=draw(st.sampled_from([None, None, 30 * SECOND, 4 * MINUTE, 30 * MINUTE])),
        blackout=draw(st.sampled_from(DARK)),
        catch_up=draw(st.sampled_from(list(CatchUp))),
        min_interval=draw(st.sampled_from([None, None, None, 25 * MINUTE])),
        max_interval=draw(st.sampled_from([None, None, None, 2 * HOUR])),
    )


@settings(max_examples=80)
@given(tasks(), st.sampled_from([HOUR, 5 * HOUR, 13 * HOUR]))
def test_all_starts_at_once_are_those_of_the_governor_step_by_step(task, length):
    assert at_once(task, NOW + length) == step_by_step(task, NOW + length)


@settings(max_examples=60)
@given(
    st.sampled_from(["*/5 * * * *", "30 1,2 * * *", "0 0 * * *", "15 */2 8 3 *", "59 23 L * *", "7 2-3 * * sun#2"]),
    st.sampled_from(["America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Goose_Bay", "Africa/Cairo"]),
    st.sampled_from([datetime(2026, 3, 8, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC), datetime(2010, 11, 7, tzinfo=UTC),
                     datetime(2026, 4, 24, tzinfo=UTC), datetime(2010, 3, 14, tzinfo=UTC)]),
    st.integers(-2 * 86400, 2 * 86400),
    st.integers(0, 3 * 86400),
)  # fmt: skip
def test_occurrences_a_day_at_a_time_are_those_one_by_one(line, zone, around, before, seconds):
    cron = parse_schedule(line, "a", ZoneInfo(zone))
    begin = around + before * SECOND
    end, expected = begin + seconds * SECOND, []
    while (following := next_occurrence(cron, expected[-1] if expected else begin)) <= end:
        expected.append(following)
    assert list(occurrences(cron, begin, end)) == expected
    assert count_occurrences(cron, begin, end) == len(expected)


# --- the clock changes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "begin", "expected", "noted"),
    [
        ("30 2 * * *", datetime(2026, 3, 6, 12, tzinfo=UTC),
         ["03-07 02:30 EST", "03-08 03:00 EDT", "03-09 02:30 EDT", "03-10 02:30 EDT", "03-11 02:30 EDT"], [1]),
        ("30 1 * * *", datetime(2026, 10, 30, 12, tzinfo=UTC),
         ["10-31 01:30 EDT", "11-01 01:30 EDT", "11-02 01:30 EST", "11-03 01:30 EST", "11-04 01:30 EST"], [1]),
        ("*/30 * * * *", datetime(2026, 11, 1, 4, 45, tzinfo=UTC),
         ["11-01 01:00 EDT", "11-01 01:30 EDT", "11-01 01:00 EST", "11-01 01:30 EST", "11-01 02:00 EST"], []),
        ("*/30 * * * *", datetime(2026, 3, 8, 6, 15, tzinfo=UTC),
         ["03-08 01:30 EST", "03-08 03:00 EDT", "03-08 03:30 EDT", "03-08 04:00 EDT", "03-08 04:30 EDT"], []),
    ],
)  # fmt: skip
def test_the_next_five_in_new_york_over_a_change_of_the_clock(line, begin, expected, noted):
    task = subject(schedule=line, zone=NEW_YORK, known={"armed_at": begin, "last_end": None})
    found = starts(task, now=begin)
    assert [f"{start.at.astimezone(NEW_YORK):%m-%d %H:%M %Z}" for start in found] == expected
    occurrence_times = [start.occurrence.at for start in found]
    assert [n for n, at in enumerate(occurrence_times) if clock_note(task.task.schedule, at)] == noted


# --- the load of a window --------------------------------------------------------------------------------------


def test_runs_are_counted_by_hour_over_the_whole_window():
    result = load(subject(schedule="*/30 * * * *"), subject("b", "0 15 * * *"), begin=NOW, end=NOON + 4 * HOUR)
    assert [(at.hour, runs) for at, runs in result.by_hour] == [(12, 1), (13, 2), (14, 2), (15, 3)]
    assert result.total == 8


def test_hours_are_those_of_the_clock():
    kolkata = ZoneInfo("Asia/Kolkata")
    result = simulate([subject(schedule="*/30 * * * *")], NOW, NOW + 2 * HOUR, NOW, BOOT, kolkata)
    assert [(f"{at.astimezone(kolkata):%H:%M}", runs) for at, runs in result.by_hour] == [
        ("17:00", 0), ("18:00", 2), ("19:00", 2),
    ]  # fmt: skip


def test_the_worst_minutes_come_first_with_their_tasks():
    result = load(
        subject("a"), subject("b"), subject("c", "0 15 * * *"), subject("d", "5 15 * * *"), end=NOW + 5 * HOUR
    )
    assert result.worst_minutes[0].tasks == ("a", "b", "c") and result.worst_minutes[0].at == NOON + 3 * HOUR
    assert [minute.runs for minute in result.worst_minutes] == [3, 2, 2, 2, 2] and result.as_bad == 1


def test_tasks_that_never_start_say_why():
    result = load(
        subject("off", enabled=False, disabled_reason=DisabledReason.RETIRED),
        subject("by-hand", "manual"),
        subject("boot", "@reboot"),
        subject("yearly", "0 0 1 1 *"),
        subject("resting", known={"paused_until": NOW + 3 * DAY}),
        subject("spent", "in 1 hour", known={"armed_at": NOW - DAY, "last_occurrence": NOW}),
        subject("dark", "0 9 * * *", blackout=(parse_blackout("08:00-10:00"),)),
        subject("waits", "manual", after={"yearly": ChainOn.SUCCESS}),
        subject("works"),
    )
    assert dict(result.never) == {
        "off": "disabled (retired)",
        "by-hand": "manual: only `run`, a hint or a chain starts it",
        "boot": "waits for the next boot",
        "yearly": "its next run is on 2027-01-01 00:00",
        "resting": "paused until 2026-06-04 12:00",
        "spent": "its one run is over",
        "dark": "every start lies in a blackout",
        "waits": "waits for yearly",
    }


def test_runs_longer_than_their_distance_overlap():
    result = load(subject(schedule="*/5 * * * *", lasts=12 * MINUTE), subject("b"), end=NOW + HOUR)
    [overlap] = result.overlaps
    assert (overlap.task_id, overlap.runs, overlap.skipped) == ("a", 4, 8)


def test_overlaps_are_found_in_chains_too():
    upstream = subject(schedule="*/5 * * * *", lasts=12 * MINUTE)
    both = subject("b", "*/30 * * * *", lasts=40 * MINUTE, after={"a": ChainOn.SUCCESS})
    assert {overlap.task_id for overlap in load(upstream, both, end=NOW + 3 * HOUR).overlaps} == {"a", "b"}


def test_the_peak_counts_what_runs_at_once_over_all_and_by_group():
    result = load(
        subject("long", "0 13 * * *", lasts=2 * HOUR, group="gpu"),
        subject("other", "0 14 * * *", lasts=MINUTE, group="gpu"),
        subject("third", "0 14 * * *", lasts=MINUTE),
        subject("short", "59 12 * * *", lasts=MINUTE),
    )
    assert (result.peak.runs, result.peak.at) == (3, NOON + 2 * HOUR)
    assert {name: peak.runs for name, peak in result.group_peaks.items()} == {"gpu": 2}


def test_a_window_in_the_past_follows_the_schedules_alone():
    paused = subject(known={"paused_until": NOW + 9 * DAY, "last_occurrence": NOON, "armed_at": NOW - MINUTE})
    result = load(paused, begin=NOW - 2 * DAY, end=NOW - DAY)
    assert result.total == 24


def test_a_window_over_now_follows_the_schedules_until_now_and_the_tasks_as_they_stand_from_then_on():
    paused = subject(known={"paused_until": NOW + 9 * DAY, "last_occurrence": NOON, "armed_at": NOW - MINUTE})
    assert load(paused, begin=NOON - 5 * HOUR, end=NOW + DAY).total == 6


def test_a_window_in_the_future_knows_of_hints_and_pauses_that_still_hold_then():
    begin = NOON + 10 * DAY
    known = {"hints": (hint(every=10 * MINUTE, until=begin + HOUR), hint(at=NOW + HOUR))}
    assert [one.kind for one in facts_at(begin, NOW, subject(known=known)).hints] == [HintKind.INTERVAL]
    assert load(subject(known={"paused_until": begin + 2 * HOUR}), begin=begin, end=begin + 5 * HOUR).total == 3
    assert load(subject(schedule="in 2 days"), begin=begin, end=begin + DAY).total == 0
    assert load(subject(schedule="in 10 days"), begin=begin, end=begin + DAY).total == 1


@given(st.integers(-400, 400), st.integers(0, 30))
def test_an_interval_keeps_its_rhythm_in_windows_elsewhere(hours, lasts):
    task = subject(schedule="50m", lasts=lasts * MINUTE)
    begin = NOW + hours * HOUR
    last_end = facts_at(begin, NOW, task).last_end
    assert begin - (50 + lasts) * MINUTE < last_end <= begin
    assert (last_end - NOW) % ((50 + lasts) * MINUTE) == timedelta(0)


@settings(max_examples=30)
@given(st.lists(tasks(), min_size=1, max_size=5), st.sampled_from([HOUR, 5 * HOUR]))
def test_the_load_adds_up(found, length):
    several = [
        replace(one, task=replace(one.task, id=f"t{number}"), facts=replace(one.facts, task_id=f"t{number}"))
        for number, one in enumerate(found)
    ]
    result = load(*several, end=NOW + length)
    each = Counter({one.task.id: len(step_by_step(one, NOW + length)[0]) for one in several})
    assert result.total == each.total() == sum(runs for _, runs in result.by_hour)
    assert {name for name, _ in result.never} == {one.task.id for one in several if not each[one.task.id]}
