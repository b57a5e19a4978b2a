"""Schedules in plain English: what they say, and that it is so. A reader of the readings holds them to their word."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, date, timedelta
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tickdown.schedule.cron import Cron, ScheduleError
from tickdown.schedule.schedule import parse_schedule
from tickdown.schedule.wording import LONGEST, reading


def read(text: str, task_id: str = "a") -> str:
    return reading(parse_schedule(text, task_id, UTC))


# --- the readings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* * * * *", "every minute"),
        ("*/1 */1 * * *", "every minute"),
        ("*/10 * * * *", "every 10 minutes"),
        ("0,30 * * * *", "every 30 minutes"),
        ("0 * * * *", "every hour, on the hour"),
        ("5 * * * *", "every hour at 5 minutes past"),
        ("1 * * * *", "every hour at 1 minute past"),
        ("0 6 * * *", "at 06:00, every day"),
        ("0 */6 * * *", "at 00:00, 06:00, 12:00 and 18:00, every day"),
        ("*/30 8 * * *", "at 08:00 and 08:30, every day"),
        ("*/10 8-18 * * *", "every 10 minutes from 08:00 to 18:50, every day"),
        ("* 8 * * *", "every minute from 08:00 to 08:59, every day"),
        ("0-30 8 * * *", "every minute from 08:00 to 08:30, every day"),
        ("10-55/15 3 * * *", "at 03:10, 03:25, 03:40 and 03:55, every day"),
        ("*/7 8 * * *", "every 7 minutes from 08:00 to 08:56, every day"),
        ("*/10 8-11,15 * * *", "every 10 minutes from 08:00 to 11:50 and from 15:00 to 15:50, every day"),
        ("15,45 * * * *", "every 30 minutes from 00:15 to 23:45, every day"),
        ("3-59/10 * * * *", "every 10 minutes from 00:03 to 23:53, every day"),
        ("0 8-18 * * *", "every hour from 08:00 to 18:00, every day"),
        ("30 */2 * * *", "every 2 hours from 00:30 to 22:30, every day"),
        ("0 1-5,7,9,11,13 * * *", "every hour from 01:00 to 05:00, and at 07:00, 09:00, 11:00 and 13:00, every day"),
        ("15 0-5,11-14 * * *", "every hour from 00:15 to 05:15 and from 11:15 to 14:15, every day"),
        ("0 0,1,3,4,6,7,9,10,12,13,15 * * *", "at 0 minutes past 11 of the hours 00 to 15, every day"),
    ],
)
def test_times_of_the_day(text, says):
    assert read(text) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("*/7 * * * *", "every 7 minutes from 0 to 56 past every hour"),  # not every 7 minutes: 4 from :56 to :00
        ("0-10 * * * *", "every minute from 0 to 10 past every hour"),
        ("5,10,20 * * * *", "at 5, 10 and 20 minutes past every hour"),
        ("1-3,8,20 9-17 * * *", "at 1 to 3, 8 and 20 minutes past every hour from 09 to 17, every day"),
        ("5,20,35 9-17 * * *", "every 15 minutes from 5 to 35 past every hour from 09 to 17, every day"),
        ("*/10 */2 * * *", "every 10 minutes from 0 to 50 past every 2nd hour from 00 to 22, every day"),
        ("5,6 1,3,8,9,20 * * *", "at 5 and 6 minutes past the hours 01, 03, 08, 09 and 20, every day"),
        ("1,2,3,5,8,13,21,34,55 8 * * *", "at 1 to 3, 5, 8, 13, 21, 34 and 55 minutes past 08:00, every day"),
        ("1,3,6,8,11,13,16,18,21,23,26 * * * *", "at 11 of the minutes 1 to 26 past every hour"),
    ],
)
def test_uneven_times_are_told_exactly_or_counted(text, says):
    assert read(text) == says


@pytest.mark.parametrize(
    ("days", "says"),
    [
        # weekdays
        ("* * 1-5", "Monday to Friday"),
        ("* * mon", "on Mondays"),
        ("* * 7", "on Sundays"),
        ("* * 6,0", "on Saturdays and Sundays"),
        ("* * 1,3,5", "on Mondays, Wednesdays and Fridays"),
        ("* * 0-4", "Sunday to Thursday"),
        ("* * 5-7", "Friday to Sunday"),
        ("* * 0,1,6", "Saturday to Monday"),
        ("* * 0-7", "every day"),
        ("* * mon#1", "on the first Monday of the month"),
        ("* * mon#1,mon#3", "on the first and third Monday of the month"),
        ("* * mon#1,mon#3,7#5", "on the first and third Monday and the fifth Sunday of the month"),
        ("* * mon#1,mon#1", "on the first Monday of the month"),
        ("* * mon#1,fri", "on Fridays and on the first Monday of the month"),
        ("* * fri#1,fri", "on Fridays"),
        ("* * mon#1,mon#2,mon#3,mon#4,mon#5", "on Mondays"),
        # days of the month
        ("1,15 * *", "on the 1st and 15th of the month"),
        ("2,3,22,31 * *", "on the 2nd, 3rd, 22nd and 31st of the month"),
        ("11,12,13 * *", "from the 11th to the 13th of the month"),
        ("L * *", "on the last day of the month"),
        ("15,L * *", "on the 15th and last day of the month"),
        ("1,5-9,20 * *", "on the 1st, 5th to 9th and 20th of the month"),
        ("*/7 * *", "on every 7th day from the 1st to the 29th of the month"),
        ("*/31 * *", "on the 1st of the month"),
        # both: either may match ...
        ("1 * 1", "on the 1st of the month or on a Monday"),
        ("1,15 * mon,wed", "on the 1st and 15th of the month or on a Monday or Wednesday"),
        ("1 * 1-5", "on the 1st of the month or on a day from Monday to Friday"),
        ("1-7 * mon", "on any day from the 1st to the 7th of the month or on a Monday"),
        ("L * fri,mon#5", "on the last day of the month or on a Friday or on the fifth Monday of the month"),
        ("1-31 * 1", "every day"),
        ("1 * 0-6", "every day"),
        # ... or, with a star in front of one of them, both must
        ("13 * */5", "on the 13th of the month if it is a Friday or Sunday"),
        ("13 * */7", "on the 13th of the month if it is a Sunday"),
        ("1-7 * */7", "on any day from the 1st to the 7th of the month if it is a Sunday"),
        ("*/2 * 1-5", "on every 2nd day from the 1st to the 31st of the month if it is a day from Monday to Friday"),
        ("*/100 * mon#1,tue", "on the 1st of the month if it is a Tuesday or the first Monday of the month"),
        # months
        ("* 1,7 *", "every day in January and July"),
        ("* 3-5 *", "every day from March to May"),
        ("1 1,7 *", "on the 1st of the month, in January and July"),
        ("* 1-3,12 1", "on Mondays, in January to March and December"),
        ("1 1 *", "on 1 January"),
        ("29 2 *", "on 29 February"),
        ("1,15-20 3 *", "on 1 and 15 to 20 March"),
        ("L 2 *", "on the last day of February"),
        ("15,L 2 *", "on the 15th and last day of the month, in February"),
        ("1 */2 *", "on the 1st of the month, in January, March, May, July, September and November"),
        ("31 2 1", "on Mondays, in February"),  # there is no such day
        ("30,31 4 *", "on 30 April"),
    ],
)
def test_days(days, says):
    assert read(f"0 9 {days}") == f"at 09:00, {says}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 6 * * 1-5", "at 06:00, Monday to Friday"),
        ("*/10 8-18 * * mon-fri", "every 10 minutes from 08:00 to 18:50, Monday to Friday"),
        ("* * * 1 *", "every minute, in January"),
        ("*/20 * 1 * *", "every 20 minutes, on the 1st of the month"),
        ("0 * * * sat", "every hour, on the hour, on Saturdays"),
        ("@daily", "at 00:00, every day"),
        ("@weekly", "at 00:00, on Sundays"),
        ("@monthly", "at 00:00, on the 1st of the month"),
        ("@yearly", "at 00:00, on 1 January"),
        ("@hourly", "every hour, on the hour"),
        ("every weekday at 18:30", "at 18:30, Monday to Friday"),
        ("weekly", "at 09:00, on Mondays"),
    ],
)
def test_whole_lines(text, says):
    assert read(text) == says


def test_a_spread_schedule_is_read_as_what_it_became():
    assert re.fullmatch(r"at \d\d:\d\d, every day", read("H H * * *"))
    assert len({read("H H * * *", f"task-{number}") for number in range(50)}) > 40


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10m", "10 minutes after the last end"),
        ("every 15 minutes", "15 minutes after the last end"),
        ("hourly", "1 hour after the last end"),
        ("1.5h", "90 minutes after the last end"),
        ("36h", "36 hours after the last end"),
        ("365d", "365 days after the last end"),
        ("1w", "1 week after the last end"),
        ("1s", "1 second after the last end"),
        ("1.5s", "1.5 seconds after the last end"),
        ("3661s", "1 hour, 1 minute and 1 second after the last end"),
        ("86460s", "1 day and 1 minute after the last end"),
        ("in 30 minutes", "once, 30 minutes after it was first seen"),
        ("at 17:00", "once, at 17:00 (the first after it was first seen)"),
        ("tomorrow", "once, tomorrow at 09:00 (counted from when it was first seen)"),
        ("on 2026-06-01 at 12:00", "once, on 2026-06-01 at 12:00"),
        ("@reboot", "once after each boot"),
        ("manual", "only by hand or after other tasks"),
    ],
)
def test_what_is_not_cron(text, says):
    assert read(text) == says


def test_a_line_of_many_lists_is_counted_and_stays_short():
    line = (
        "1,5,8,13,21,34,55,56,59 0,1,3,4,6,7,9,10,12,13,15 1,3,6,8,11,13,16,19,22,25,L 1,2,4,5,7,8,10,11 "
        "mon,wed,fri,tue#2,tue#3,thu#4,sat#1,sun#2"
    )
    assert read(line) == (
        "at 9 of the minutes 1 to 59 past 11 of the hours 00 to 15, on 10 days and the last day of the month or on "
        "one of 3 weekdays or on one of 5 numbered weekdays of the month, in 8 months"
    )


def test_the_longest_of_all_readings_is_short_enough():
    numbered = ",".join(f"{weekday}#{nth}" for weekday in (0, 2, 4, 5, 6) for nth in (1, 2, 3, 4))
    for minutes, days, months in product(
        ["10-54/11", "10,11,13,14,16,17,19,20,22,23,25"],
        ["26-29,L", "26-29", "21,23,24,26,27,29,L"],
        ["1-10", "9", "*"],
    ):
        assert len(read(f"{minutes} */2 {days} {months} 1,3,{numbered}")) < LONGEST


# --- what a reading says is so ---------------------------------------------------------------------------------

MONTHS, WEEKDAYS = list(calendar.month_name)[1:], ["Sunday", *list(calendar.day_name)[:-1]]
MONTH, WEEKDAY, NTH = "|".join(MONTHS), "|".join(WEEKDAYS), ["first", "second", "third", "fourth", "fifth"]
NUMBER = r"\d+(?: to \d+)?"
DAYS = [date(2027, 1, 1) + timedelta(days=number) for number in range(2 * 365 + 1)]
COUNTED = re.compile(r"\d+ (of the|days|numbered|weekdays|months)")


def series(item: str) -> str:
    return rf"{item}(?:(?:, | and | or ){item})*"


def numbers(text: str) -> set[int]:
    """`1, 5 to 9 and 20`, also as ordinals."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)[a-z]{0,2}(?: to (\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def minute_of_day(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


def times_and_rest(text: str) -> tuple[set[int], str]:
    """The minutes of the day that a reading names, and what it says after them."""
    clock = r"\d\d:\d\d"
    span = rf"from {clock} to {clock}"
    end = r"(?:, |$)(.*)"
    if found := re.fullmatch(rf"every (?:(\d+) )?minutes?{end}", text):
        return set(range(0, 1440, int(found[1] or 1))), found[2]
    if found := re.fullmatch(rf"every hour(?:, on the hour| at (\d+) minutes? past){end}", text):
        return set(range(int(found[1] or 0), 1440, 60)), found[2]
    if found := re.fullmatch(
        rf"every (\d*) ?(minute|hour)s? ({series(span)})(?:, and at ({series(clock)}))?{end}", text
    ):
        step = int(found[1] or 1) * (60 if found[2] == "hour" else 1)
        times = {minute_of_day(clock) for clock in re.findall(clock, found[4] or "")}
        for first, last in re.findall(rf"from ({clock}) to ({clock})", found[3]):
            assert (minute_of_day(last) - minute_of_day(first)) % step == 0  # it ends where it says
            times |= set(range(minute_of_day(first), minute_of_day(last) + 1, step))
        return times, found[5]
    if found := re.fullmatch(rf"at ({series(clock)}){end}", text):
        return {minute_of_day(clock) for clock in re.findall(clock, found[1])}, found[2]
    hour = rf"every hour|{clock}|every hour from \d+ to \d+|every \d+[a-z]+ hour from \d+ to \d+|the hours {series(NUMBER)}"
    minute = rf"at {series(NUMBER)} minutes?|every \d* ?minutes? from \d+ to \d+"
    found = re.fullmatch(rf"({minute}) past ({hour}){end}", text)
    assert found, text
    minutes, hours = (stepped(part) or numbers(part) for part in (found[1], found[2].removesuffix(":00")))
    return {60 * hour + minute for hour, minute in product(hours or range(24), minutes)}, found[3]


def stepped(text: str) -> set[int]:
    found = re.search(r"every (\d*)\D* from (?:the )?(\d+)\w* to (?:the )?(\d+)", text)
    return set(range(int(found[2]), int(found[3]) + 1, int(found[1] or 1))) if found else set()


def days_of(text: str) -> set[date]:
    """The days of two years that a reading names."""
    month = rf"(?:{MONTH})(?: to (?:{MONTH}))?"
    if found := re.fullmatch(rf"on ({series(NUMBER)}|the last day of) ({MONTH})", text):
        in_month = {day for day in DAYS if MONTHS[day.month - 1] == found[2]}
        return {day for day in in_month if (is_last(day) if "last" in found[1] else day.day in numbers(found[1]))}
    days = set(DAYS)
    if found := re.search(rf"(?:^|, | )(?:in|from) ({series(month)})$", text):
        text = text[: found.start()]
        named = set()
        for first, last in re.findall(rf"({MONTH})(?: to ({MONTH}))?", found[1]):
            named |= set(range(MONTHS.index(first) + 1, MONTHS.index(last or first) + 2))
        days = {day for day in days if day.month in named}
    if text in ("", "every day"):
        return days
    by_date, condition, by_weekday = text.partition(" if it is ")
    if condition:
        return days & on_dates(by_date) & on_weekdays(by_weekday)
    if found := re.match(
        r"(?:on|from) (?:the|any day from the|every \w+ day from the) (?:\d|last).*? of the month", text
    ):
        assert found.end() == len(text) or text[found.end() :].startswith(" or on "), text
        return days & (on_dates(found[0]) | on_weekdays(text[found.end() :]))
    return days & on_weekdays(text)


def is_last(day: date) -> bool:
    return day.day == calendar.monthrange(day.year, day.month)[1]


def on_dates(text: str) -> set[date]:
    wanted = stepped(text) or numbers(text.replace("to the", "to"))
    return {day for day in DAYS if day.day in wanted or ("last day" in text and is_last(day))}


def on_weekdays(text: str) -> set[date]:
    numbered, plain = set(), set()
    for nths, weekday in re.findall(rf"((?:(?:{'|'.join(NTH)})(?:, | and | or | ))+)({WEEKDAY})", text):
        numbered |= {(weekday, NTH.index(nth) + 1) for nth in re.findall(r"\w+", nths) if nth in NTH}
    text = re.sub(rf"(?:{'|'.join(NTH)}) (?:{WEEKDAY})", "", text)
    for first, last in re.findall(rf"({WEEKDAY})(?: to ({WEEKDAY}))?", text):
        begin, end = WEEKDAYS.index(first), WEEKDAYS.index(last or first)
        plain |= {WEEKDAYS[(begin + number) % 7] for number in range((end - begin) % 7 + 1)}
    return {
        day
        for day in DAYS
        if (name := WEEKDAYS[day.isoweekday() % 7]) in plain or (name, (day.day + 6) // 7) in numbered
    }


def meaning(cron: Cron) -> tuple[set[int], set[date]]:
    minutes, hours, by_date, months, by_weekday = cron.parts

    def matches(day: date) -> bool:
        weekday = day.isoweekday() % 7
        dated = "*" in by_date or str(day.day) in by_date or ("l" in by_date and is_last(day))
        named = bool({"*", str(weekday), f"{weekday}#{(day.day + 6) // 7}"} & set(by_weekday))
        return str(day.month) in months and (dated and named if cron.both_days else dated or named)

    times = {60 * int(hour) + int(minute) for hour, minute in product(hours, minutes)}
    return times, {day for day in DAYS if matches(day)}


def field(low: int, high: int, *extra: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.lists(number, min_size=2, max_size=2).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    return st.one_of(
        st.just("*"),
        st.builds("*/{}".format, st.integers(1, high)),
        number.map(str),
        st.builds("{}/{}".format, span, st.integers(1, 9)),
        st.lists(st.one_of(number.map(str), span, *extra), min_size=1, max_size=9).map(",".join),
    )


LINES = st.builds(
    "{} {} {} {} {}".format,
    field(0, 59),
    field(0, 23),
    field(1, 31, st.just("L")),
    field(1, 12),
    field(0, 6, st.builds("{}#{}".format, st.integers(0, 6), st.integers(1, 5))),
)


def cron_of(line: str) -> Cron:
    try:
        schedule = parse_schedule(line, "a", UTC)
    except ScheduleError as error:
        assert "never happens" in str(error)
        assume(False)
    assert isinstance(schedule, Cron)
    return schedule


@given(LINES)
@settings(max_examples=300)
def test_a_reading_is_short_and_true(line):
    cron = cron_of(line)
    says = reading(cron)
    assert 0 < len(says) < LONGEST
    assert says == reading(cron_of(line))
    if not COUNTED.search(says):
        times, rest = times_and_rest(says)
        assert (times, days_of(rest)) == meaning(cron), says


@given(LINES, LINES, st.integers(0, 4))
@settings(max_examples=150)
def test_lines_that_differ_read_differently(line, other, place):
    """One field is exchanged: so close are two lines that somebody mixes up."""
    words = line.split()
    words[place] = other.split()[place]
    first, second = cron_of(line), cron_of(" ".join(words))
    if not COUNTED.search(reading(first)) and meaning(first) != meaning(second):
        assert reading(first) != reading(second)


def test_no_two_simple_lines_read_alike():
    lines = [
        f"{minute} {hour} * * {weekday}"
        for minute in range(0, 60, 7)
        for hour in ["*", "*/5", "9-17", *range(0, 24, 5)]
        for weekday in ["*", "1-5", *range(7)]
    ]
    assert len({read(line) for line in lines}) == len(lines)
