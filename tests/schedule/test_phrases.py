"""Schedules in words, one-shots and what they count from, and what a change of the clock does to fixed times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickdown.schedule.cron import Cron, ScheduleError, clock_note, notes_between, occurrences
from tickdown.schedule.schedule import LONGEST_TEXT, Interval, OneShot, next_after, parse_schedule
from tickdown.time.wall_clock import clock_changes

NEW_YORK, BERLIN, LORD_HOWE = ZoneInfo("America/New_York"), ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe")
APIA = ZoneInfo("Pacific/Apia")


def cron(text: str, zone=UTC) -> Cron:
    schedule = parse_schedule(text, "a", zone)
    assert isinstance(schedule, Cron)
    return schedule


def once(text: str, zone=UTC) -> OneShot:
    schedule = parse_schedule(text, "a", zone)
    assert isinstance(schedule, OneShot)
    return schedule


def local(text: str, zone=UTC, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).astimezone(UTC)


# --- recurring -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("every day at 09:00", "0 9 * * *"),
        ("every day at 7:05", "5 7 * * *"),
        ("every day", "0 9 * * *"),
        ("every 1 day at 00:00", "0 0 * * *"),
        ("every 1d", "0 9 * * *"),
        ("daily", "0 9 * * *"),
        ("daily at 23:59", "59 23 * * *"),
        ("every week on monday at 09:00", "0 9 * * 1"),
        ("every week on sun", "0 9 * * 0"),
        ("every week at 10:30", "30 10 * * 1"),
        ("every week", "0 9 * * 1"),
        ("every 1 week on fri", "0 9 * * 5"),
        ("weekly", "0 9 * * 1"),
        ("weekly on friday", "0 9 * * 5"),
        ("weekly on friday at 16:00", "0 16 * * 5"),
        ("weekly at 16:00", "0 16 * * 1"),
        ("every monday at 09:00", "0 9 * * 1"),
        ("every sunday", "0 9 * * 0"),
        ("every weekday at 18:30", "30 18 * * 1-5"),
        ("every weekday", "0 9 * * 1-5"),
        # however it is written
        ("EVERY Monday AT 9:00", "0 9 * * 1"),
        ("  every \t monday\n at   09:00 ", "0 9 * * 1"),
        ("every\u00a0monday", "0 9 * * 1"),
        ("Daily", "0 9 * * *"),
    ],
)
def test_a_phrase_with_a_time_of_day_means_its_cron_line(text, line):
    schedule = cron(text)
    assert schedule.parts == cron(line).parts
    assert not schedule.follows_elapsed_time
    assert schedule.text == text


@pytest.mark.parametrize(
    ("names", "number"),
    [("sunday sun", 0), ("monday mon", 1), ("tuesday tue tues", 2), ("wednesday wed weds", 3),
     ("thursday thu thur thurs", 4), ("friday fri", 5), ("saturday sat", 6)],
)  # fmt: skip
def test_weekdays_have_short_names(names, number):
    for name in names.split():
        assert cron(f"every {name} at 10:00").parts == cron(f"0 10 * * {number}").parts
        assert cron(f"weekly on {name.title()}").parts == cron(f"0 9 * * {number}").parts


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("every 15 minutes", timedelta(minutes=15)),
        ("every 15 min", timedelta(minutes=15)),
        ("every 15m", timedelta(minutes=15)),
        ("Every  15\tMINS", timedelta(minutes=15)),
        ("every minute", timedelta(minutes=1)),
        ("every 1 minute", timedelta(minutes=1)),
        ("every 30 seconds", timedelta(seconds=30)),
        ("every 30s", timedelta(seconds=30)),
        ("every hour", timedelta(hours=1)),
        ("hourly", timedelta(hours=1)),
        ("HOURLY", timedelta(hours=1)),
        ("every 1.5 hours", timedelta(minutes=90)),
        ("every 2 hrs", timedelta(hours=2)),
        ("every 2 days", timedelta(days=2)),
        ("every 2w", timedelta(weeks=2)),
    ],
)
def test_a_phrase_without_a_time_of_day_is_an_interval(text, every):
    assert parse_schedule(text, "a", UTC) == Interval(text, every)


# --- once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "zone", "first_seen", "expected"),
    [
        ("in 30 minutes", UTC, "2026-05-04 12:00:10", "2026-05-04 12:30:10"),
        ("in 30m", UTC, "2026-05-04 12:00", "2026-05-04 12:30"),
        ("IN  1.5\tHours", UTC, "2026-05-04 12:00", "2026-05-04 13:30"),
        ("in 2 weeks", UTC, "2026-05-04 12:00", "2026-05-18 12:00"),
        ("in 1 day", NEW_YORK, "2026-03-07 12:00", "2026-03-08 13:00"),  # 24 hours, whatever the clock shows
        ("at 17:00", UTC, "2026-05-04 12:00", "2026-05-04 17:00"),
        ("at 17:00", UTC, "2026-05-04 16:59:59", "2026-05-04 17:00"),
        ("at 17:00", UTC, "2026-05-04 17:00", "2026-05-05 17:00"),
        ("At 9:05", UTC, "2026-12-31 12:00", "2027-01-01 09:05"),
        ("at 17:00", NEW_YORK, "2026-05-04 16:00", "2026-05-04 17:00"),
        ("at 00:00", NEW_YORK, "2026-05-04 23:59", "2026-05-05 00:00"),
        ("tomorrow", UTC, "2026-05-04 08:00", "2026-05-05 09:00"),
        ("tomorrow at 09:00", UTC, "2026-05-04 12:00", "2026-05-05 09:00"),
        ("TOMORROW at 23:30", NEW_YORK, "2026-05-04 22:00", "2026-05-05 23:30"),  # already tomorrow in UTC
        ("on 2026-06-01", UTC, "2026-05-04 12:00", "2026-06-01 09:00"),
        ("on 2026-06-01 at 12:00", UTC, "2026-05-04 12:00", "2026-06-01 12:00"),
        ("on  2026-06-01  AT 7:00", BERLIN, "2026-05-04 12:00", "2026-06-01 07:00"),
        ("on 2028-02-29", UTC, "2026-05-04 12:00", "2028-02-29 09:00"),
        # a time that does not exist: at the end of the gap
        ("at 02:30", NEW_YORK, "2026-03-08 01:00", "2026-03-08 03:00"),
        ("tomorrow at 02:30", NEW_YORK, "2026-03-07 12:00", "2026-03-08 03:00"),
        ("on 2026-03-29 at 02:15", BERLIN, "2026-01-01 12:00", "2026-03-29 03:00"),
        ("on 2026-10-04 at 02:10", LORD_HOWE, "2026-01-01 12:00", "2026-10-04 02:30"),
        ("at 02:30", NEW_YORK, "2026-03-08 03:00", "2026-03-09 02:30"),
        ("tomorrow", APIA, "2011-12-29 12:00", "2011-12-31 00:00"),  # a day that was left out
    ],
)
def test_a_one_shot_is_one_moment(text, zone, first_seen, expected):
    schedule, seen = once(text, zone), local(first_seen, zone)
    assert schedule.moment(seen) == local(expected, zone)
    assert schedule.moment(seen).tzinfo is UTC


@pytest.mark.parametrize(
    ("text", "zone", "first_seen", "expected"),
    [
        ("at 01:30", NEW_YORK, "2026-11-01 00:30", "2026-11-01 05:30"),
        ("tomorrow at 01:30", NEW_YORK, "2026-10-31 12:00", "2026-11-01 05:30"),
        ("on 2026-10-25 at 02:30", BERLIN, "2026-01-01 12:00", "2026-10-25 00:30"),
        ("on 2026-04-05 at 01:45", LORD_HOWE, "2026-01-01 12:00", "2026-04-04 14:45"),
    ],
)
def test_a_one_shot_at_a_time_that_comes_twice_takes_the_first(text, zone, first_seen, expected):
    assert once(text, zone).moment(local(first_seen, zone)) == local(expected)


def test_a_time_between_two_that_are_equal_is_past():
    between = local("2026-11-01 01:15", NEW_YORK, fold=1)
    assert once("at 01:30", NEW_YORK).moment(between) == local("2026-11-02 01:30", NEW_YORK)


ONE_SHOTS = ["in 30 minutes", "in 2 days", "at 17:00", "at 02:30", "tomorrow", "tomorrow at 01:30"]
MOMENTS = st.datetimes(datetime(2010, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))


@given(
    st.sampled_from(ONE_SHOTS), st.sampled_from([UTC, NEW_YORK, LORD_HOWE, APIA]), MOMENTS, st.timedeltas(timedelta(0))
)
@settings(max_examples=200)
def test_a_one_shot_counts_from_when_it_was_first_seen_and_never_drifts(text, zone, first_seen, later):
    schedule = once(text, zone)
    moment = schedule.moment(first_seen)
    assert first_seen < moment <= first_seen + timedelta(days=3)
    assert schedule.moment(first_seen.astimezone(zone)) == moment  # the same instant, the same answer
    asked = first_seen + min(later, timedelta(days=4))
    assert next_after(schedule, asked, first_seen) == (moment if asked < moment else None)


@given(MOMENTS)
@settings(max_examples=50)
def test_a_date_does_not_count_from_anything(first_seen):
    assert once("on 2026-06-01 at 12:00", BERLIN).moment(first_seen) == local("2026-06-01 12:00", BERLIN)


# --- what is wrong ---------------------------------------------------------------------------------------------

DURATION, CLOCK = "s, m, h, d or w, as in 30s, 10m", "write hours and minutes from 00:00 to 23:59"
RECURRING, ONCE = "write every 15 minutes, every hour, every day at 09:00", "write in 30 minutes, at 17:00, tomorrow at"
WEEKDAY, DATE = "write monday to sunday, or mon to sun", "write year-month-day, as in on 2026-06-01 at 12:00"
AT = "'at' and a time such as 09:00 may come there"


@pytest.mark.parametrize(
    ("text", "wrong", "accepted"),
    [
        ("every", "'every' ends too early", RECURRING),
        ("every mondey at 09:00", "'mondey' is not understood after 'every'", RECURRING),
        ("every month", "'month' is not understood", RECURRING),
        ("every other day", "'other' is not understood", RECURRING),
        ("every monday, tuesday", "'monday,' is not understood", RECURRING),
        ("every 15", "'15' has no unit", DURATION),
        ("every 0 minutes", "'0 minutes' is zero", DURATION),
        ("every -5m", "'-5m' is negative", DURATION),
        ("every 5x", "'5x' has the unknown unit 'x'", DURATION),
        ("every 5 at 09:00", "'5 at' has the unknown unit 'at'", DURATION),
        ("every 1.5.5 hours", "'1.5.5 hours' is not a duration", DURATION),
        ("every 2 days at 09:00", "'at 09:00' is too much", "write a cron line such as 0 9 */2 * *"),
        ("every hour at 5", "'at 5' is too much in 'every hour at 5'", RECURRING),
        ("hourly please", "'please' is too much", RECURRING),
        ("every day at", "'every day at' ends too early", RECURRING),
        ("every day at 25:00", "'25:00' is not a time of day", CLOCK),
        ("every day at 09:60", "'09:60' is not a time of day", CLOCK),
        ("every day at 09:00:00", "'09:00:00' is not a time of day", CLOCK),
        ("every day at noon", "'noon' is not a time of day", CLOCK),
        ("every day at 09:00 sharp", "'sharp' is too much", RECURRING),
        ("every day 09:00", "'09:00' is not understood in 'every day 09:00'", AT),
        ("every day on monday", "'on' is not understood", AT),
        ("every monday and friday at 09:00", "'and' is not understood", AT),
        ("daily monday", "'monday' is not understood", AT),
        ("weekly on", "'weekly on' ends too early", RECURRING),
        ("weekly on xday", "'xday' is no weekday", WEEKDAY),
        ("every week on 1", "'1' is no weekday", WEEKDAY),
        ("weekly monday", "'monday' is not understood in 'weekly monday'", AT),
        ("in", "'in' ends too early", ONCE),
        ("in 5", "'5' has no unit", DURATION),
        ("in 0m", "'0m' is zero", DURATION),
        ("in -5m", "'-5m' is negative", DURATION),
        ("in 5x", "'5x' has the unknown unit 'x'", DURATION),
        ("in an hour", "'an hour' is not a duration", DURATION),
        ("in 1 hour 30 minutes", "'1 hour 30 minutes' is not a duration", DURATION),
        ("in 9999999999d", "'9999999999d' is longer", "ten years"),
        ("at", "'at' ends too early", ONCE),
        ("at 9", "'9' is not a time of day", CLOCK),
        ("at 5pm", "'5pm' is not a time of day", CLOCK),
        ("at 24:00", "'24:00' is not a time of day", CLOCK),
        ("at 17:00 tomorrow", "'tomorrow' is too much in 'at 17:00 tomorrow'", ONCE),
        ("tomorrow at", "'tomorrow at' ends too early", ONCE),
        ("tomorrow 09:00", "'09:00' is not understood", AT),
        ("on", "'on' ends too early", ONCE),
        ("on 2026-02-30", "'2026-02-30' is no date", DATE),
        ("on 2026-6-1", "'2026-6-1' is no date", DATE),
        ("on 20260601", "'20260601' is no date", DATE),
        ("on 2026-W23-1", "'2026-w23-1' is no date", DATE),
        ("on monday", "'monday' is no date", DATE),
        ("on 2026-06-01T12:00", "'2026-06-01t12:00' is no date", DATE),
        ("on 2026-06-01 12:00", "'12:00' is not understood", AT),
        ("on 0001-01-01", "'0001-01-01' is out of range", "a date from 2000 to 2199"),
        ("on 9999-12-31 at 23:59", "'9999-12-31' is out of range", "a date from 2000 to 2199"),
        # digits of other scripts, and what does not print
        ("every ١٥ minutes", "'١٥' is not understood", RECURRING),
        ("in ٣٠ minutes", "'٣٠ minutes' is not a duration", DURATION),
        ("in ３０m", "'３０m' is not a duration", DURATION),
        ("at ١٧:٠٠", "'١٧:٠٠' is not a time of day", CLOCK),
        ("on ٢٠٢٦-٠٦-٠١", "is no date", DATE),
        ("every \x00monday", r"'\x00monday' is not understood", RECURRING),
        ("at \x1b[31m09:00", r"'\x1b[31m09:00' is not a time of day", CLOCK),
        ("in 5m\u202e", r"unknown unit 'm\u202e'", DURATION),
        ("every\x00 monday", r"'every\x00 monday' is not understood", "every monday at 09:00"),
        ("İn 5m", "is not understood", "in 30 minutes"),
    ],
)
def test_a_wrong_phrase_is_told_the_word_and_what_is_accepted(text, wrong, accepted):
    with pytest.raises(ScheduleError) as error:
        parse_schedule(text, "a", UTC)
    assert wrong in str(error.value)
    assert accepted in str(error.value)


@pytest.mark.parametrize(
    ("text", "near"),
    [("at 9", "09:00"), ("every weekday at 9AM", "09:00"), ("tomorrow at 9:30pm", "21:30"), ("daily at 12am", "00:00"),
     ("at 12pm", "12:00"), ("at 17.45", "17:45"), ("at 13pm", None), ("at 24", None), ("at 9:75", None), ("at noon", None)],
)  # fmt: skip
def test_a_time_of_day_in_another_form_is_told_in_ours(text, near):
    with pytest.raises(ScheduleError) as error:
        parse_schedule(text, "a", UTC)
    assert str(error.value).partition("; did you mean ")[2] == (f"{near}?" if near else "")


@pytest.mark.parametrize(
    ("text", "near"),
    [("every mondey at 09:00", "monday"), ("every weekdays", "weekday"), ("weekly on firday", "friday"),
     ("every minuet", "minute")],
)  # fmt: skip
def test_a_misspelt_word_is_told_the_nearest(text, near):
    with pytest.raises(ScheduleError, match=f"; did you mean '{near}'\\?$"):
        parse_schedule(text, "a", UTC)


@pytest.mark.parametrize(
    "text",
    ["every " + "a" * 200_000, "in " + "9" * 200_000 + "m", "at " * 70_000, "on " + "2026-06-01" * 20_000, "1," * 100_000,
     "* * * * " + "1," * 100_000 + "1", "every" + " " * 200_000 + "day"],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_an_endless_phrase_is_refused_in_few_words(text):
    with pytest.raises(ScheduleError, match="characters; at most 500 are accepted") as error:
        parse_schedule(text, "a", UTC)
    assert len(str(error.value)) < 200


def test_the_longest_line_with_a_meaning_is_still_read():
    fields = [range(60), range(24), range(1, 32), range(1, 13)]
    days = ",".join(f"{weekday}#{nth}" for weekday in range(7) for nth in range(1, 6))
    line = " ".join([*(",".join(map(str, values)) for values in fields), days])
    assert len(line) <= LONGEST_TEXT
    assert len(list(occurrences(cron(line), BEGIN_2026, BEGIN_2026 + timedelta(days=1)))) == 1440


SOUP = """every hourly daily weekly in at on tomorrow day days week weekday hour minutes min m s 15 15m 1 1.0 0 -5m 5x +1
. 1.. monday mon mondey tues 09:00 9:00 24:00 : 2026-06-01 2026-02-30 0000-00-00 9999-12-31 manual @reboot * L H 1#1 ١٥
\x00 \x1b \u202e İ 999999999999 0.000001 1e9 nan inf"""
WORDS = st.sampled_from(SOUP.split())
PHRASES = st.builds(
    lambda words, between: between.join(words),
    st.lists(st.one_of(WORDS, st.text(max_size=6)), max_size=8),
    st.sampled_from([" ", "  ", "\t", "\n", "\u00a0", "\u2003"]),
)


@given(PHRASES, st.sampled_from([UTC, NEW_YORK, LORD_HOWE]))
@settings(max_examples=600)
def test_no_phrase_brings_the_reader_down(text, zone):
    first_seen = datetime(2026, 5, 4, 12, tzinfo=UTC)
    try:
        schedule = parse_schedule(text, "a", zone)
    except ScheduleError as error:
        assert str(error).isprintable()
        return
    after = next_after(schedule, first_seen, first_seen)
    assert after is None or after > first_seen


# --- changes of the clock --------------------------------------------------------------------------------------

BEGIN_2026, END_2026 = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "zone", "notes"),
    [
        ("30 2 * * *", NEW_YORK, ["02:30 does not exist on 2026-03-08: it runs at 03:00, when the clock has jumped"]),
        ("30 1 * * *", NEW_YORK, ["01:30 comes twice on 2026-11-01: it runs the first time only"]),
        ("every sunday at 02:30", NEW_YORK,
         ["02:30 does not exist on 2026-03-08: it runs at 03:00, when the clock has jumped"]),
        ("30 1,2 * * *", NEW_YORK, ["02:30 does not exist on 2026-03-08: it runs at 03:00, when the clock has jumped",
                                    "01:30 comes twice on 2026-11-01: it runs the first time only"]),
        ("0 2,3 * * *", NEW_YORK, ["02:00 does not exist on 2026-03-08: it runs at 03:00, when the clock has jumped"]),
        ("0,15,30 2 * * *", NEW_YORK,
         ["02:00 to 02:30 (3 times) do not exist on 2026-03-08: they run once at 03:00, when the clock has jumped"]),
        ("0 3 * * *", NEW_YORK, []),
        ("59 0 * * *", NEW_YORK, []),
        ("0 2 * * *", NEW_YORK, ["02:00 does not exist on 2026-03-08: it runs at 03:00, when the clock has jumped"]),
        ("0 1 * * *", NEW_YORK, ["01:00 comes twice on 2026-11-01: it runs the first time only"]),
        ("30 2 * * mon", NEW_YORK, []),
        ("30 2 1 * *", NEW_YORK, []),
        # half an hour
        ("15 2 * * *", LORD_HOWE, ["02:15 does not exist on 2026-10-04: it runs at 02:30, when the clock has jumped"]),
        ("45 1 * * *", LORD_HOWE, ["01:45 comes twice on 2026-04-05: it runs the first time only"]),
        ("15 1 * * *", LORD_HOWE, []),
        ("45 2 * * *", LORD_HOWE, []),
        # a star follows elapsed time, so nothing is moved
        ("30 * * * *", NEW_YORK, []),
        ("*/15 2 * * *", NEW_YORK, []),
        ("0 */2 * * *", NEW_YORK, []),
        ("* * * * *", LORD_HOWE, []),
        ("30 2 * * *", UTC, []),
        ("0-59 0-23 * * *", UTC, []),
        ("30 2 * * *", ZoneInfo("Asia/Kolkata"), []),
    ],
)  # fmt: skip
def test_a_year_tells_which_occurrences_the_clock_moves(text, zone, notes):
    assert list(notes_between(cron(text, zone), BEGIN_2026, END_2026)) == notes


def test_a_note_is_told_where_a_day_was_left_out():
    window = datetime(2011, 12, 1, tzinfo=UTC), datetime(2012, 1, 10, tzinfo=UTC)
    assert list(notes_between(cron("0 12 * * *", APIA), *window)) == [
        "12:00 does not exist on 2011-12-30: it runs at 00:00 on 2011-12-31, when the clock has jumped"
    ]


@pytest.mark.parametrize(
    ("after", "until", "count"),
    [
        ("2026-11-01 00:00", "2026-11-01 01:45", 1),  # it ends between the two
        ("2026-11-01 00:00", "2026-11-01 01:30", 1),
        ("2026-11-01 00:00", "2026-11-01 01:29", 0),
        ("2026-11-01 01:30", "2026-11-02 12:00", 0),
        ("2026-10-01 00:00", "2026-12-01 00:00", 1),
    ],
)
def test_notes_are_about_the_occurrences_inside_the_window(after, until, count):
    line = cron("30 1 * * *", NEW_YORK)
    assert len(list(notes_between(line, local(after, NEW_YORK), local(until, NEW_YORK)))) == count


@pytest.mark.parametrize("zone", [NEW_YORK, BERLIN, LORD_HOWE], ids=str)
@pytest.mark.parametrize("text", ["30 2 * * *", "15,45 1-3 * * *", "0 0-5 * * 0", "*/30 1 * * *"])
def test_the_notes_of_a_window_are_those_of_its_occurrences(text, zone):
    line = cron(text, zone)
    noted = [clock_note(line, moment) for moment in occurrences(line, BEGIN_2026, END_2026)]
    assert list(notes_between(line, BEGIN_2026, END_2026)) == [note for note in noted if note]


def test_an_ordinary_occurrence_has_no_note():
    line = cron("30 2 * * *", NEW_YORK)
    assert clock_note(line, local("2026-03-07 02:30", NEW_YORK)) is None
    assert clock_note(line, local("2026-03-08 03:00", NEW_YORK)) is not None


def test_the_clock_changes_at_exact_instants():
    assert list(clock_changes(NEW_YORK, BEGIN_2026, END_2026)) == [local("2026-03-08 07:00"), local("2026-11-01 06:00")]
    assert list(clock_changes(UTC, BEGIN_2026, END_2026)) == []


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("on 2026-03-08 at 02:30", "02:30 does not exist then: it runs at 03:00 on 2026-03-08, when the clock has jumped"),
        ("on 2026-11-01 at 01:30", "01:30 comes twice on 2026-11-01: it runs the first time only"),
        ("on 2026-03-09 at 02:30", None),
        ("in 30 minutes", None),
    ],
)  # fmt: skip
def test_a_one_shot_says_what_a_change_of_the_clock_does_to_it(text, note):
    zone = ZoneInfo("America/New_York")
    schedule = parse_schedule(text, "a", zone)
    assert schedule.once.clock_note(datetime(2026, 1, 1, tzinfo=UTC), zone) == note
