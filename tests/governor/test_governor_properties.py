"""What holds for the governor whatever it is asked: over random tasks, states, hints, pauses and sequences of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from tickdown.base.model import CatchUp, Chained, ChainOn, Facts, Held, Hint, HintKind, Occurrence, SkipReason, Source
from tickdown.base.records import replace
from tickdown.governor.governor import (
    LOOK_AHEAD,
    MOST_CATCH_UPS,
    Plan,
    back_off,
    forecast,
    look_again,
    next_run,
    plan,
    without_expired,
)
from tickdown.schedule.blackout import covering, parse_blackout
from tickdown.schedule.cron import Cron
from tickdown.schedule.schedule import Interval, OneShot, parse_schedule
from tickdown.tasks.task import Task

BOOT = "boot-1"
START = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
# Started by something else than a schedule that comes again: the clamps are not for these.
UNCLAMPED = (Source.RETRY, Source.ONE_SHOT, Source.REBOOT)

moments = st.integers(-3 * 86400, 3 * 86400).map(lambda seconds: START + seconds * SECOND)
durations = st.integers(1, 90_000).map(lambda seconds: seconds * SECOND)
schedules = st.sampled_from(
    ["0 * * * *", "*/5 * * * *", "30 2 * * *", "0 0 1 * *", "H H * * *", "@daily", "10m", "1s", "1d", "every 15 minutes",
     "every weekday at 18:30", "in 30 minutes", "at 17:00", "tomorrow at 09:00", "on 2026-06-02 at 12:00", "@reboot", "manual"]
)  # fmt: skip


# Made once: a strategy that is made anew for every value is also checked anew for every value.
maybe_moments, maybe_durations = st.none() | moments, st.none() | durations
zones = st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe"]).map(ZoneInfo)
blackouts = st.sampled_from([[], [], ["22:00-06:00"], ["sat-sun"], ["2026-06-01/2026-06-02", "12:00-13:00"]])
jitters = st.none() | st.integers(0, 300).map(lambda seconds: seconds * SECOND)
catch_ups, chains = st.sampled_from(CatchUp), st.sampled_from([{}, {"b": ChainOn.SUCCESS}])
yes_or_no, failure_counts, boots = st.booleans(), st.integers(0, 20), st.sampled_from([BOOT, "another"])
maybe_chained = st.none() | st.builds(Chained, moments, st.just("r2"))
maybe_held = st.none() | st.builds(Held, st.just("pid 1"), moments, st.booleans())


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    zone = draw(zones)
    least = draw(maybe_durations)
    most = draw(maybe_durations)
    if least and most and least > most:
        least, most = most, least
    return Task(
        id="a", schedule=parse_schedule(draw(schedules), "a", zone), zone=zone, path="tasks/a.md", command="x",
        catch_up=draw(catch_ups), grace=draw(maybe_durations), min_interval=least, max_interval=most, jitter=draw(jitters),
        after=draw(chains), blackout=tuple(map(parse_blackout, draw(blackouts))),
    )  # fmt: skip


@st.composite
def hints(draw: st.DrawFn) -> tuple[Hint, ...]:
    found = []
    if draw(yes_or_no):
        found.append(Hint(HintKind.INTERVAL, draw(moments), every=draw(durations), until=draw(maybe_moments)))
    if draw(yes_or_no):
        found.append(Hint(HintKind.ONE_SHOT, draw(moments), at=draw(moments), until=draw(maybe_moments)))
    return tuple(found)


some_hints = hints()


@st.composite
def states(draw: st.DrawFn) -> Facts:
    armed = draw(moments)
    retry = draw(maybe_moments)
    return Facts(
        "a", armed_at=armed, anchored_at=draw(maybe_moments), last_occurrence=draw(maybe_moments), last_end=draw(maybe_moments),
        boot_id=draw(boots), paused_until=draw(maybe_moments), failures=draw(failure_counts), deferred=draw(maybe_moments),
        retry_at=retry, retry_follows="r1" if retry else None, running=draw(yes_or_no), hints=draw(some_hints),
        chained=draw(maybe_chained), held=draw(maybe_held),
    )  # fmt: skip


@given(moments, tasks(), states())
def test_nothing_starts_while_its_lock_is_held(now: datetime, task: Task, facts: Facts) -> None:
    assert facts.held is None or not plan(now, task, facts, BOOT).starts


def is_paused(facts: Facts, now: datetime) -> bool:
    return facts.paused_until is not None and facts.paused_until > now


@given(moments, tasks(), states())
def test_the_same_input_has_the_same_answer(now: datetime, task: Task, facts: Facts) -> None:
    again = replace(task, schedule=parse_schedule(task.schedule.text, "a", task.zone))
    assert plan(now, task, facts, BOOT) == plan(now, again, replace(facts), BOOT)
    assert forecast(now, task, facts, BOOT) == forecast(now, again, replace(facts), BOOT)


@given(moments, tasks(), states())
def test_the_next_run_is_never_in_the_past(now: datetime, task: Task, facts: Facts) -> None:
    following = next_run(now, task, facts, BOOT).at
    assert following is None or following >= now


@given(moments, tasks(), states())
def test_a_plan_starts_or_skips_but_not_both_and_says_why(now: datetime, task: Task, facts: Facts) -> None:
    what = plan(now, task, facts, BOOT)
    assert not (what.starts and what.reason)
    assert what.starts or what.unrun or what.reason or (facts.waiting and what.settles), (
        "or what waited has become too old"
    )
    assert len(what.starts) <= MOST_CATCH_UPS
    assert all(start.at <= now and start.start_at <= now + LOOK_AHEAD for start in what.starts)
    assert [start.at for start in what.starts] == sorted({start.at for start in what.starts})


@given(moments, tasks(), states())
def test_a_pause_always_wins(now: datetime, task: Task, facts: Facts) -> None:
    if not is_paused(facts, now):
        facts = replace(facts, paused_until=now + HOUR)
    assert facts.paused_until is not None
    what = plan(now, task, facts, BOOT)
    assert what.starts == () and (not what.does_something or what.reason is SkipReason.PAUSED)
    following = next_run(now, task, facts, BOOT)
    assert following.source is Source.PAUSED
    assert following.at is None or following.at >= facts.paused_until


@given(moments, tasks(), states())
def test_nothing_starts_in_a_blackout(now: datetime, task: Task, facts: Facts) -> None:
    for start in plan(now, task, facts, BOOT).starts:
        assert covering(task.blackout, max(now, start.start_at), task.zone) is None
    following = next_run(now, task, facts, BOOT).at
    if following is not None and following > now:
        assert covering(task.blackout, following, task.zone) is None


@given(moments, tasks(), states())
def test_the_least_distance_always_holds(now: datetime, task: Task, facts: Facts) -> None:
    if task.min_interval is None or facts.last_end is None:
        return
    earliest = facts.last_end + task.min_interval
    for start in plan(now, task, facts, BOOT).starts:
        late = start.source is Source.CATCH_UP and isinstance(task.schedule, OneShot)
        assert start.source in UNCLAMPED or late or start.start_at >= earliest or now >= earliest
    following = next_run(now, task, facts, BOOT)
    if following.at is not None and not is_paused(facts, now) and not isinstance(task.schedule, OneShot):
        assert following.source in UNCLAMPED or following.at >= earliest


@given(moments, tasks(), states())
def test_the_greatest_distance_always_holds(now: datetime, task: Task, facts: Facts) -> None:
    facts, task = replace(facts, running=False, paused_until=None), replace(task, blackout=(), jitter=None)
    if task.max_interval is None or facts.last_end is None or not isinstance(task.schedule, (Cron, Interval)):
        return
    following = next_run(now, task, facts, BOOT).at
    assert following is not None and following <= max(now, facts.last_end + task.max_interval)


@given(moments, tasks(), states())
def test_a_hint_that_has_run_out_changes_nothing(now: datetime, task: Task, facts: Facts) -> None:
    expired = tuple(replace(hint, until=now - MINUTE) for hint in facts.hints)
    with_them, cleared = replace(facts, hints=expired), without_expired(now, task, replace(facts, hints=expired))
    assert cleared.hints == ()
    assert plan(now, task, with_them, BOOT) == plan(now, task, cleared, BOOT)
    assert forecast(now, task, with_them, BOOT) == forecast(now, task, cleared, BOOT)
    assert next_run(now, task, with_them, BOOT).source not in (Source.AI_INTERVAL, Source.AI_ONESHOT)


@given(moments, tasks(), states(), durations)
def test_hints_rule_as_they_are_ordered(now: datetime, task: Task, facts: Facts, every: timedelta) -> None:
    task = replace(task, schedule=parse_schedule("0 0 1 1 *", "a", task.zone), min_interval=None, max_interval=None,
                   blackout=(), jitter=None)  # fmt: skip
    facts = Facts("a", armed_at=now, last_end=min(facts.last_end or now, now), boot_id=BOOT)
    baseline = next_run(now, task, facts, BOOT)
    assert baseline.source is Source.BASELINE_CRON
    interval = Hint(HintKind.INTERVAL, now, every=every)
    once = Hint(HintKind.ONE_SHOT, now, at=now + HOUR)
    late = replace(once, at=baseline.at + MINUTE if baseline.at else None)
    alone = next_run(now, task, replace(facts, hints=(interval,)), BOOT)
    assert (alone.at, alone.source) == (now + every, Source.AI_INTERVAL)
    both = next_run(now, task, replace(facts, hints=(interval, once)), BOOT)
    assert both.at == min(now + every, now + HOUR)
    assert next_run(now, task, replace(facts, hints=(interval, late)), BOOT) == alone
    if baseline.at and baseline.at > now + HOUR:
        first = next_run(now, task, replace(facts, hints=(once,)), BOOT)
        assert (first.at, first.source) == (now + HOUR, Source.AI_ONESHOT)
    assert next_run(now, task, replace(facts, hints=(late,)), BOOT) == baseline


@given(st.integers(0, 40), durations)
def test_an_interval_backs_off_while_it_fails_and_is_itself_again_after_a_success(
    failures: int, every: timedelta
) -> None:
    task = Task("a", Interval("x", every), UTC, "tasks/a.md")
    facts = Facts("a", armed_at=START, last_end=START, boot_id=BOOT, failures=failures)
    factor = min(2**failures, 32)
    assert back_off(facts) == factor
    assert next_run(START, task, facts, BOOT).at == START + every * factor
    assert next_run(START, task, replace(facts, failures=0), BOOT).at == START + every


def test_a_cron_line_does_not_back_off() -> None:
    task = Task("a", parse_schedule("0 * * * *", "a", UTC), UTC, "tasks/a.md")
    facts = Facts("a", armed_at=START, last_occurrence=START, last_end=START, boot_id=BOOT, failures=9)
    assert next_run(START, task, facts, BOOT).at == START + HOUR


# --- sequences -------------------------------------------------------------------------------------------------


def taken_up(facts: Facts, start: Occurrence, what: Plan, now: datetime) -> Facts:
    """What the store remembers of a start whose run ends at once."""
    if start.source is Source.RETRY:
        return replace(facts, retry_at=None, retry_follows=None, last_end=now)
    kept = tuple(hint for hint in facts.hints if hint.at is None or hint.at > now)
    chained = None if start.key.endswith("@after:r2") else facts.chained
    last = max(what.settles or start.at, facts.last_occurrence or start.at)
    waiting = facts.waiting if what.settles is None else what.waiting
    return replace(facts, last_occurrence=last, waiting=waiting, last_end=now, boot_id=BOOT, hints=kept, chained=chained, deferred=None,
                   retry_at=None, retry_follows=None)  # fmt: skip


def written_off(facts: Facts, what: Plan, task: Task, now: datetime) -> Facts:
    if what.waiting and what.settles is None:
        return replace(facts, deferred=what.waiting[0].at)
    last = max(facts.last_occurrence or START, what.settles or what.unrun[-1].last)
    last_end = now if isinstance(task.schedule, Interval) else facts.last_end
    chained = None if what.source is Source.AFTER else facts.chained
    waiting = what.waiting if what.settles is not None else facts.waiting
    return replace(facts, last_occurrence=last, last_end=last_end, boot_id=BOOT, deferred=None, chained=chained,
                   waiting=waiting)  # fmt: skip


steps = st.lists(st.tuples(st.integers(0, 7200), some_hints, maybe_moments), min_size=1, max_size=8)


@settings(max_examples=150)
@given(tasks(), states(), steps)
def test_no_sequence_of_inputs_gives_a_tight_loop(
    task: Task, facts: Facts, sequence: list[tuple[int, tuple[Hint, ...], datetime | None]]
) -> None:
    """At any one moment a task comes to rest: what is due is started or written off a few times, then waits."""
    now, facts = START, replace(facts, running=False)
    for seconds, given_hints, pause in sequence:
        now += seconds * SECOND
        facts = replace(facts, hints=given_hints, paused_until=pause)
        for _ in range(MOST_CATCH_UPS + 6):
            what = plan(now, task, facts, BOOT)
            if what.starts:
                before = facts
                facts = taken_up(facts, what.starts[0], what, max(now, what.starts[0].start_at))
                assert facts != before
            elif what.does_something:
                facts = written_off(facts, what, task, now)
            else:
                break
        else:
            raise AssertionError(f"still busy at {now}: {what}")
        following = next_run(now, task, facts, BOOT).at
        assert following is None or following >= now


@settings(max_examples=400)
@given(moments, tasks(), states(), st.integers(0, 3 * 86400), st.booleans())
def test_before_the_moment_to_look_again_there_is_nothing_to_do(
    now: datetime, task: Task, facts: Facts, later: int, just_before: bool
) -> None:
    look = look_again(now, task, facts, BOOT)
    moment = look - SECOND / 1000 if look is not None and just_before else now + later * SECOND
    if moment < now or (look is not None and moment >= look):
        return
    what = plan(moment, task, facts, BOOT)
    assert not what.does_something, (look, what)


@given(moments, tasks(), states())
def test_what_is_due_now_is_to_be_looked_at_now(now: datetime, task: Task, facts: Facts) -> None:
    what = plan(now, task, facts, BOOT)
    if what.does_something:
        look = look_again(now, task, facts, BOOT)
        assert look is not None and look <= now


@given(moments, tasks(), states())
def test_a_task_that_is_disabled_is_looked_at_only_to_clear_its_hints(now: datetime, task: Task, facts: Facts) -> None:
    ends = [hint.until for hint in facts.hints if hint.until is not None]
    assert look_again(now, replace(task, enabled=False), facts, BOOT) == min(ends, default=None)
