"""Times when nothing starts: what is read, what they cover, and when they end. Without clock or disk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickdown.schedule.blackout import covering, first_free, parse_blackout

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str, zone: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


def is_dark(text: str, moment: datetime, zone: tzinfo = UTC) -> bool:
    return covering([parse_blackout(text)], moment, zone) is not None


def end_of(text: str | list[str], moment: datetime, zone: str = "UTC") -> datetime | None:
    texts = [text] if isinstance(text, str) else text
    return first_free(map(parse_blackout, texts), moment, ZoneInfo(zone))


# --- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["22:00-06:00", " 9:00 - 17:30 ", "22:00-24:00", "SAT-Sun", "mon", "2026-12-24", "2026-12-24 / 2026-12-26"]
)
def test_the_text_is_kept_as_it_was_written(text: str) -> None:
    assert parse_blackout(text).text == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'22:00-06:00'"),
        ("at night", "'sat-sun'"),
        ("22:00", "'22:00-06:00'"),
        ("25:00-06:00", "25:00"),
        ("22:60-06:00", "22:60"),
        ("24:00-06:00", "24:00"),
        ("06:00-06:00", "begins and ends at the same time"),
        ("00:00-24:00", "begins and ends at the same time"),
        ("foo", "'foo' is not one of sun, mon, tue"),
        ("mon-foo", "'foo' is not one of"),
        ("2026-02-30", "day is out of range"),
        ("2026-12-26/2026-12-24", "ends before it begins"),
        ("2026-1-1", "'2026-12-24/2026-12-26'"),
        ("٢٢:00-06:00", "is not accepted"),
        ("sat-sun\n22:00-06:00", "is not accepted"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_blackout(text)
    assert why in str(refused.value) and "tuple" not in str(refused.value)


# --- what they cover -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("09:00-17:00", ["09:00:00", "16:59:59.999"], ["08:59:59.999", "17:00:00", "23:00"]),
        ("22:00-06:00", ["22:00", "23:59:59", "00:00", "05:59:59"], ["06:00", "21:59:59", "12:00"]),
        ("22:00-24:00", ["22:00", "23:59:59"], ["00:00", "21:59"]),
        ("22:00-00:00", ["22:00", "23:59:59"], ["00:00", "21:59"]),
        ("00:00-06:00", ["00:00", "05:59"], ["23:59:59", "06:00"]),
    ],
)
def test_hours_include_their_first_moment_and_not_their_last(text: str, inside: list[str], outside: list[str]) -> None:
    for clock in inside:
        assert is_dark(text, utc(f"2026-06-01T{clock}")), clock
    for clock in outside:
        assert not is_dark(text, utc(f"2026-06-01T{clock}")), clock


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("mon", [1]),
        ("sat-sun", [6, 7]),
        ("sat-mon", [6, 7, 1]),  # over the end of the week
        ("sun-sat", [1, 2, 3, 4, 5, 6, 7]),
        ("fri-thu", [1, 2, 3, 4, 5, 6, 7]),
        ("tue-thu", [2, 3, 4]),
    ],
)
def test_weekdays_may_wrap_around_the_week(text: str, days: list[int]) -> None:
    week = [utc("2026-06-01T00:00:00") + DAY * number for number in range(7)]  # a Monday
    assert [day.isoweekday() for day in week if is_dark(text, day)] == sorted(days)
    assert [day.isoweekday() for day in week if is_dark(text, day + DAY - timedelta(microseconds=1))] == sorted(days)


def test_dates_include_both_days() -> None:
    text = "2026-12-24/2026-12-26"
    assert not is_dark(text, utc("2026-12-23T23:59:59")) and is_dark(text, utc("2026-12-24T00:00:00"))
    assert is_dark(text, utc("2026-12-26T23:59:59")) and not is_dark(text, utc("2026-12-27T00:00:00"))
    assert is_dark("2026-12-24", utc("2026-12-24T12:00:00")) and not is_dark("2026-12-24", utc("2026-12-25T00:00:00"))


def test_they_are_on_the_clock_of_the_task() -> None:
    late = utc("2026-06-01T20:30:00")
    assert is_dark("22:00-06:00", late, BERLIN) and not is_dark("22:00-06:00", late)
    assert is_dark("tue", utc("2026-06-01T22:30:00"), BERLIN), "it is Tuesday in Berlin already"


def test_the_first_that_covers_is_named() -> None:
    both = [parse_blackout("sat"), parse_blackout("12:00-14:00"), parse_blackout("mon")]
    found = covering(both, utc("2026-06-01T12:30:00"), ZoneInfo("UTC"))
    assert found is not None and found.text == "12:00-14:00"


# --- when they end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "moment", "end"),
    [
        ("22:00-06:00", "2026-06-01T12:00:00", "2026-06-01T12:00:00"),
        ("22:00-06:00", "2026-06-01T23:00:00", "2026-06-02T06:00:00"),
        ("22:00-06:00", "2026-06-02T05:59:59", "2026-06-02T06:00:00"),
        ("22:00-24:00", "2026-06-30T22:00:00", "2026-07-01T00:00:00"),
        ("sat-mon", "2026-06-06T00:00:00", "2026-06-09T00:00:00"),
        ("2026-12-24/2026-12-31", "2026-12-25T10:00:00", "2027-01-01T00:00:00"),
        (["22:00-06:00", "06:00-08:00"], "2026-06-01T23:00:00", "2026-06-02T08:00:00"),
        (["sat-sun", "22:00-06:00"], "2026-06-06T12:00:00", "2026-06-08T06:00:00"),  # Sunday's night goes on on Monday
        (["2026-06-01", "tue", "00:00-06:00"], "2026-06-01T12:00:00", "2026-06-03T06:00:00"),
    ],
)
def test_the_end_of_all_of_them_together(text: str | list[str], moment: str, end: str) -> None:
    assert end_of(text, utc(moment)) == utc(end)


@pytest.mark.parametrize(
    "text", ["sun-sat", ["00:00-12:00", "12:00-24:00"], "2026-01-01/9999-12-31", "0001-01-01/9999-12-31"]
)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_some_never_end(text: str | list[str], zone: str) -> None:
    assert end_of(text, utc("2026-06-01T12:00:00"), zone) is None


def test_a_clock_set_forward_over_the_end_ends_it_there() -> None:
    """02:30 does not exist on 29 March 2026 in Berlin."""
    assert end_of("22:00-02:30", local("2026-03-29T01:00:00", "Europe/Berlin"), "Europe/Berlin") == utc(
        "2026-03-29T01:00"
    )


def test_a_clock_set_forward_over_the_beginning_begins_it_there() -> None:
    after_the_gap = utc("2026-03-29T01:00")
    assert is_dark("02:30-04:00", after_the_gap, BERLIN) and not is_dark("02:30-04:00", after_the_gap - MINUTE, BERLIN)


def test_hours_that_come_twice_are_covered_twice() -> None:
    """Berlin, 25 October 2026: 02:00 to 03:00 comes twice."""
    first, second = (local("2026-10-25T02:10:00", "Europe/Berlin", fold) for fold in (0, 1))
    assert is_dark("01:00-02:30", first, BERLIN) and is_dark("01:00-02:30", second, BERLIN)
    assert end_of("01:00-02:30", first, "Europe/Berlin") == utc("2026-10-25T00:30")
    assert end_of("01:00-02:30", second, "Europe/Berlin") == utc("2026-10-25T01:30")


def test_a_day_that_begins_with_a_jump_begins_at_its_end() -> None:
    """Havana's clock goes from 24:00 to 01:00."""
    saturday = local("2026-03-07T12:00:00", "America/Havana")
    assert end_of("sat", saturday, "America/Havana") == local("2026-03-08T01:00:00", "America/Havana")


def test_a_day_that_a_zone_leaves_out_is_no_trouble() -> None:
    """Samoa had no 30 December 2011."""
    assert end_of("2011-12-29", local("2011-12-29T12:00:00", "Pacific/Apia"), "Pacific/Apia") == utc("2011-12-30T10:00")


# --- whatever is asked -----------------------------------------------------------------------------------------

clocks = st.integers(0, 24 * 60 - 1).map(lambda minutes: f"{minutes // 60:02}:{minutes % 60:02}")
hours = st.tuples(clocks, clocks).filter(lambda pair: pair[0] != pair[1]).map("-".join)
weekdays = st.tuples(*[st.sampled_from(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])] * 2).map("-".join)
dates = st.tuples(st.integers(0, 300), st.integers(0, 20)).map(
    lambda days: "/".join(f"{utc('2026-01-01') + DAY * number:%Y-%m-%d}" for number in (days[0], sum(days)))
)
texts = st.lists(hours | weekdays | dates, max_size=4)
zones = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Kolkata"]
)
# Days on which those zones change their clocks, and any others.
moments = st.builds(
    lambda day, seconds: utc(day) + timedelta(seconds=seconds),
    st.sampled_from(["2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01", "2026-06-15"]),
    st.integers(-40 * 3600, 40 * 3600),
)


@given(texts, moments, zones)
def test_the_first_free_moment_is_free_is_not_past_and_is_the_first(
    wanted: list[str], moment: datetime, name: str
) -> None:
    blackouts, zone = [parse_blackout(text) for text in wanted], ZoneInfo(name)
    free = first_free(blackouts, moment, zone)
    assert free == first_free([parse_blackout(text) for text in wanted], moment, zone)
    if free is None:
        assert all(covering(blackouts, moment + DAY * number / 7, zone) for number in range(200))
        return
    assert free >= moment and covering(blackouts, free, zone) is None
    assert (free == moment) == (covering(blackouts, moment, zone) is None)
    looked_at = moment
    while looked_at < free - MINUTE:  # it is exact to the minute where a clock is set back
        assert covering(blackouts, looked_at, zone) is not None
        looked_at += 7 * MINUTE
