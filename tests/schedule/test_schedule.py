"""Cron lines, shorthands and intervals; daylight saving; counting. test_schedule_oracle.py compares with cronsim."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cron_by_hand import by_hand
from tickdown.schedule.cron import Cron, ScheduleError, count_occurrences, latest_occurrences, occurrences
from tickdown.schedule.schedule import Interval, Manual, Reboot, next_after, parse_schedule

NEW_YORK, LORD_HOWE = ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe")
APIA, BERLIN = ZoneInfo("Pacific/Apia"), ZoneInfo("Europe/Berlin")


def cron(text: str, zone=UTC, task_id: str = "a") -> Cron:
    schedule = parse_schedule(text, task_id, zone)
    assert isinstance(schedule, Cron)
    return schedule


def clock_times(text: str, zone, start: str, days: float) -> list[str]:
    """The occurrences in a window, as clock times with their offset."""
    begin = datetime.fromisoformat(start).replace(tzinfo=zone).astimezone(UTC)
    return [
        f"{moment.astimezone(zone):%m-%d %H:%M %z}"
        for moment in occurrences(cron(text, zone), begin, begin + timedelta(days=days))
    ]


def dates(text: str, start: str, count: int) -> list[str]:
    moment, found = datetime.fromisoformat(start).replace(tzinfo=UTC), []
    for _ in range(count):
        moment = next_after(cron(text), moment)
        found.append(f"{moment:%Y-%m-%d}")
    return found


# --- the forms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["manual", "Manual", " MANUAL "])
def test_manual_is_no_schedule(text):
    assert isinstance(parse_schedule(text, "a", UTC), Manual)


def test_reboot_is_a_schedule_of_its_own():
    assert isinstance(parse_schedule("@Reboot", "a", UTC), Reboot)


@pytest.mark.parametrize(
    ("text", "line"),
    [("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@midnight", "0 0 * * *"), ("@weekly", "0 0 * * 0"),
     ("@monthly", "0 0 1 * *"), ("@yearly", "0 0 1 1 *"), ("@annually", "0 0 1 1 *"), ("@DAILY", "0 0 * * *")],
)  # fmt: skip
def test_a_shorthand_means_its_cron_line(text, line):
    assert cron(text).parts == cron(line).parts
    assert cron(text).text == text


@pytest.mark.parametrize(
    ("text", "every"),
    [("30s", timedelta(seconds=30)), ("10m", timedelta(minutes=10)), ("1.5h", timedelta(minutes=90)),
     ("2d", timedelta(days=2)), ("1w", timedelta(weeks=1)), ("10 minutes", timedelta(minutes=10))],
)  # fmt: skip
def test_intervals_are_read(text, every):
    assert parse_schedule(text, "a", UTC) == Interval(text, every)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; write a cron line"),
        ("   ", "is empty"),
        ("5", "has no unit"),
        ("0m", "is zero"),
        ("-5m", "is negative"),
        ("5x", "unknown unit 'x'"),
        ("@dayly", "unknown shorthand '@dayly'.*@hourly @daily"),
        ("@every 5m", "unknown shorthand"),
        ("* * * *", "has 4 fields; a cron line has 5"),
        ("0 0 * * * *", "has 6 fields; a cron line has 5"),
        ("whenever", "is not understood; write a cron line.*shorthand.*interval.*manual"),
        ("60 * * * *", "minute '60': '60' is not accepted; 0-59"),
        ("* 24 * * *", "hour '24': '24' is not accepted; 0-23"),
        ("0 0 0 * *", "day of month '0': '0' is not accepted; 1-31"),
        ("0 0 32 * *", "day of month '32'"),
        ("0 0 * 13 *", "month '13': '13' is not accepted; 1-12 or jan-dec"),
        ("0 0 * * 8", "day of week '8': '8' is not accepted; 0-7 or sun-sat"),
        ("0 0 * foo *", "month 'foo'"),
        ("0 0 * * monday", "day of week 'monday'"),
        ("mon 0 * * *", "minute 'mon'|not understood"),
        ("30-10 * * * *", "the range 30-10 runs backwards"),
        ("0 0 * * fri-mon", "runs backwards"),
        ("*/0 * * * *", "the step '0' must be a whole number above 0"),
        ("*/x * * * *", "the step 'x'"),
        ("*/ * * * *", "the step ''"),
        ("5/15 * * * *", "a step needs a range; write 5-59/15 or \\*/15"),
        ("1,,2 * * * *", "minute '1,,2': '' is not accepted"),
        ("-1 * * * *", "minute '-1'"),
        ("1-2-3 * * * *", "minute '1-2-3'"),
        ("** * * * *", "minute"),
        ("0 L * * *", "hour 'L'"),
        ("0 0 * * L", "day of week 'L'"),
        ("0 0 mon#1 * *", "day of month 'mon#1'"),
        ("0 0 * * mon#6", "day of week 'mon#6'"),
        ("0 0 * * mon#0", "day of week 'mon#0'"),
        ("H(20-10) * * * *", "runs backwards"),
        ("H(0-99) * * * *", "minute"),
        ("0 0 30 2 *", "never happens"),
        ("0 0 31 4,6,9,11 *", "never happens"),
        ("0 0 */31 4 mon#2", "never happens"),
        ("0 0 *,32 * *", "day of month"),
    ],
)
def test_a_bad_schedule_says_what_is_wrong(text, says):
    with pytest.raises(ScheduleError, match=says):
        parse_schedule(text, "a", UTC)


@given(st.text(alphabet="0123456789*/,-#LHlhmon@ ()sjT.\t", max_size=24))
def test_no_text_brings_the_reader_down(text):
    try:
        schedule = parse_schedule(text, "a", UTC)
    except ScheduleError:
        return
    if isinstance(schedule, Cron):
        assert next_after(schedule, datetime(2026, 1, 1, tzinfo=UTC)).second == 0


# --- which days ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("0 0 L * *", "2024-01-15", ["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"]),
        ("0 0 15,L * *", "2025-02-01", ["2025-02-15", "2025-02-28", "2025-03-15"]),
        ("0 9 * * mon#1", "2024-01-02", ["2024-02-05", "2024-03-04"]),
        ("0 9 * * 7#2", "2024-01-02", ["2024-01-14", "2024-02-11"]),
        ("0 9 * * mon#1,fri", "2024-01-06", ["2024-01-12", "2024-01-19", "2024-01-26", "2024-02-02", "2024-02-05"]),
        ("0 9 * * mon#1,MON#3", "2024-01-02", ["2024-01-15", "2024-02-05", "2024-02-19"]),
        ("0 0 * Feb Sun", "2024-01-01", ["2024-02-04", "2024-02-11"]),
        ("0 0 * * 6-7", "2024-01-01", ["2024-01-06", "2024-01-07", "2024-01-13"]),
        ("0 0 * * 0-7", "2024-01-01", ["2024-01-02", "2024-01-03"]),
        ("0 0 29 2 *", "2024-03-01", ["2028-02-29", "2032-02-29"]),
        ("0 0 29 2 *", "2096-03-01", ["2104-02-29"]),
        ("0 0 * 2 mon#5", "2024-03-01", ["2044-02-29"]),
        # Both given: either may match ...
        ("0 0 13 * 5", "2024-09-01", ["2024-09-06", "2024-09-13", "2024-09-20"]),
        ("0 0 1-31 * 1", "2024-01-01", ["2024-01-02", "2024-01-03"]),
        ("0 0 31 2 1", "2024-01-01", ["2024-02-05", "2024-02-12"]),
        # ... but with a star in front of one of them, both must.
        ("0 0 */2 * 1", "2024-01-02", ["2024-01-15", "2024-01-29", "2024-02-05", "2024-02-19"]),
        ("0 0 13 * */5", "2024-09-02", ["2024-09-13", "2024-10-13", "2024-12-13"]),
        ("0 0 */100 * 1", "2024-01-02", ["2024-04-01", "2024-07-01"]),
        ("0 0 */2 * mon#1,tue", "2024-02-01", ["2024-02-05", "2024-02-13", "2024-02-27", "2024-03-05"]),
    ],
)  # fmt: skip
def test_days_match_as_in_debian_cron(text, start, expected):
    assert dates(text, start, len(expected)) == expected


def test_steps_begin_at_the_start_of_their_range():
    assert clock_times("10-40/15 3,5 * * *", UTC, "2024-01-01", 0.25) == [
        f"01-01 0{hour}:{minute} +0000" for hour in (3, 5) for minute in (10, 25, 40)
    ]


# --- H ---------------------------------------------------------------------------------------------------------


def test_h_is_the_same_for_the_same_id_whatever_its_case():
    assert cron("H H H H H", task_id="backup").parts == cron("H H H H H", task_id="BackUp").parts


def test_h_spreads_different_ids():
    minutes = {cron("H * * * *", task_id=f"task-{number}").parts[0] for number in range(300)}
    assert len(minutes) > 50


def test_h_spreads_each_field_by_itself():
    pairs = {cron("H H(0-23) * * *", task_id=f"t{number}").parts[:2] for number in range(300)}
    assert len({hour for minute, hour in pairs}) > 20
    assert len(pairs) > 200


@pytest.mark.parametrize("number", range(40))
def test_h_stays_within_its_range(number):
    minute, hour, day, _, _ = map(",".join, cron("H(10-20) H/6 H * *", task_id=f"t{number}").parts)
    assert 10 <= int(minute) <= 20
    hours = [int(text) for text in hour.split(",")]
    assert len(hours) == 4 and hours[0] < 6 and all(later - earlier == 6 for earlier, later in pairwise(hours))
    assert 1 <= int(day) <= 28


# --- daylight saving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "zone", "start", "expected"),
    [
        # A fixed time inside the gap: once, right after it.
        ("30 2 * * *", NEW_YORK, "2024-03-09 12:00", ["03-10 03:00 -0400", "03-11 02:30 -0400"]),
        ("0,15,30 2 * * *", NEW_YORK, "2024-03-09 12:00", ["03-10 03:00 -0400", "03-11 02:00 -0400",
                                                           "03-11 02:15 -0400", "03-11 02:30 -0400"]),
        ("0 2,3 * * *", NEW_YORK, "2024-03-09 12:00", ["03-10 03:00 -0400", "03-11 02:00 -0400", "03-11 03:00 -0400"]),
        ("30 2 * * *", BERLIN, "2024-03-30 12:00", ["03-31 03:00 +0200", "04-01 02:30 +0200"]),
        ("15 2 * * *", LORD_HOWE, "2024-10-05 12:00", ["10-06 02:30 +1100", "10-07 02:15 +1100"]),
        # A day that was left out altogether.
        ("0 12 * * *", APIA, "2011-12-29 00:00", ["12-29 12:00 -1000", "12-31 00:00 +1400", "12-31 12:00 +1400"]),
        ("0 12 30 12 *", APIA, "2011-12-29 00:00", ["12-31 00:00 +1400"]),
        # A fixed time that happens twice: the first time only.
        ("30 1 * * *", NEW_YORK, "2024-11-02 12:00", ["11-03 01:30 -0400", "11-04 01:30 -0500"]),
        ("30 2 * * *", BERLIN, "2024-10-26 12:00", ["10-27 02:30 +0200", "10-28 02:30 +0100"]),
        ("45 1 * * *", LORD_HOWE, "2024-04-06 12:00", ["04-07 01:45 +1100", "04-08 01:45 +1030"]),
    ],
)  # fmt: skip
def test_a_fixed_time_runs_once_when_the_clock_changes(text, zone, start, expected):
    assert clock_times(text, zone, start, 2) == expected


@pytest.mark.parametrize(
    ("text", "zone", "start", "hours", "expected"),
    [
        ("30 * * * *", NEW_YORK, "2024-03-10 00:00", 3, ["00:30 -0500", "01:30 -0500", "03:30 -0400"]),
        ("*/15 2 * * *", NEW_YORK, "2024-03-10 00:00", 20, []),
        ("30 * * * *", NEW_YORK, "2024-11-03 00:00", 4, ["00:30 -0400", "01:30 -0400", "01:30 -0500", "02:30 -0500"]),
        ("*/30 1 * * *", BERLIN, "2024-10-27 00:00", 12, ["01:00 +0200", "01:30 +0200"]),
        ("*/30 2 * * *", BERLIN, "2024-10-27 00:00", 12, ["02:00 +0200", "02:30 +0200", "02:00 +0100", "02:30 +0100"]),
        ("0 */1 * * *", LORD_HOWE, "2024-10-06 00:30", 3, ["01:00 +1030", "03:00 +1100", "04:00 +1100"]),
        ("45 * * * *", LORD_HOWE, "2024-04-07 01:00", 2.5, ["01:45 +1100", "01:45 +1030", "02:45 +1030"]),
        ("0 */12 * * *", APIA, "2011-12-29 06:00", 30, ["12:00 -1000", "00:00 +1400", "12:00 +1400"]),
    ],
)  # fmt: skip
def test_a_wildcard_follows_elapsed_time_when_the_clock_changes(text, zone, start, hours, expected):
    assert [found[6:] for found in clock_times(text, zone, start, hours / 24)] == expected


@pytest.mark.parametrize("zone", [NEW_YORK, LORD_HOWE, APIA, BERLIN], ids=str)
@pytest.mark.parametrize("text", ["30 2 * * *", "*/7 * * * *", "0,30 0-5 * * *", "15 */2 * * 0", "59 23 * * *"])
def test_the_next_occurrence_is_always_later(text, zone):
    moment = datetime(2011, 12, 29, tzinfo=UTC)
    for _ in range(150):
        following = next_after(cron(text, zone), moment)
        assert following > moment
        moment = following


@given(
    st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 0 L * *", "15 */2 * * 0"]),
    st.sampled_from([NEW_YORK, LORD_HOWE, APIA, BERLIN]),
    st.datetimes(datetime(2005, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
)
@settings(max_examples=100)
def test_the_next_occurrence_is_later_than_any_moment_with_microseconds(text, zone, moment):
    found = next_after(cron(text, zone), moment)
    assert found > moment and found.microsecond == 0
    assert next_after(cron(text, zone), found - timedelta(microseconds=1)) == found


# --- against a walk by hand ------------------------------------------------------------------------------------


WINDOWS = [
    (NEW_YORK, datetime(2024, 3, 6, 12, 34, 56, tzinfo=UTC)),
    (NEW_YORK, datetime(2024, 10, 30, 3, 0, tzinfo=UTC)),
    (LORD_HOWE, datetime(2024, 10, 2, 7, 30, tzinfo=UTC)),
    (LORD_HOWE, datetime(2024, 4, 3, 7, 29, 59, tzinfo=UTC)),
    (APIA, datetime(2011, 12, 26, 1, 0, tzinfo=UTC)),
    (APIA, datetime(2011, 12, 27, 9, 59, tzinfo=UTC)),
    (BERLIN, datetime(2024, 3, 27, 23, 0, tzinfo=UTC)),
    (BERLIN, datetime(2024, 10, 23, 22, 0, tzinfo=UTC)),
    (ZoneInfo("America/Sao_Paulo"), datetime(2018, 11, 1, 5, 0, tzinfo=UTC)),  # the gap begins at midnight
    (ZoneInfo("America/Sao_Paulo"), datetime(2018, 2, 14, 5, 0, tzinfo=UTC)),
    (ZoneInfo("America/Havana"), datetime(2024, 10, 31, 5, 0, tzinfo=UTC)),  # midnight happens twice
]
LINES = ["30 2 * * *", "0,30 0-3 * * *", "*/20 * * * *", "15 */3 * * *", "0 12 30 * *", "0 0 * * 0", "30 0 L * 3",
         "45 1 */2 * *", "* 2 * * 0", "10 23 * * 6#5", "0 0,12 * * *"]  # fmt: skip


@pytest.mark.parametrize(("zone", "start"), WINDOWS, ids=lambda value: str(value)[:16])
@pytest.mark.parametrize("text", LINES)
def test_occurrences_and_counts_equal_a_walk_by_hand(text, zone, start):
    until = start + timedelta(days=6, hours=3)
    expected = by_hand(text, zone, start, until)
    schedule = cron(text, zone)
    assert list(occurrences(schedule, start, until)) == expected
    assert count_occurrences(schedule, start, until) == len(expected)
    for most in (1, 3, 25):
        assert latest_occurrences(schedule, start, until, most) == expected[-most:]


@pytest.mark.parametrize("days", [2, 3.01, 4, 6])
@pytest.mark.parametrize("hour", [9, 10, 11])
def test_counts_are_right_wherever_a_window_begins_and_ends(days, hour):
    for text in ("0 12 * * *", "0 12 30 * *", "0 0 * * *", "0 */6 * * *"):
        start = datetime(2011, 12, 28, hour, 0, tzinfo=UTC)
        until = start + timedelta(days=days)
        assert count_occurrences(cron(text, APIA), start, until) == len(by_hand(text, APIA, start, until)), text


def test_the_count_over_a_year_of_minutes_is_exact():
    start, until = datetime(2024, 1, 1, 5, tzinfo=UTC), datetime(2025, 1, 1, 5, tzinfo=UTC)
    assert count_occurrences(cron("* * * * *", NEW_YORK), start, until) == 366 * 1440
    assert count_occurrences(cron("30 2 * * *", NEW_YORK), start, until) == 366


def test_an_empty_window_has_no_occurrences():
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert count_occurrences(cron("* * * * *"), moment, moment) == 0
    assert latest_occurrences(cron("* * * * *"), moment, moment, 5) == []
