"""Durations, sizes and moments: what people write, and what people read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickdown.time.durations import (
    checked_duration,
    duration_text,
    in_words,
    iso,
    parse_duration,
    parse_moment,
    parse_size,
    took,
)
from tickdown.time.instants import from_store, to_milliseconds, to_store

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10m", 600), ("1.5h", 5400), ("2d", 172800), ("1w", 604800), (" 10 min ", 600), ("5 Minutes", 300),
     ("1hr", 3600), ("+3s", 3), ("0.25s", 0.25), ("90sec", 90), ("2 weeks", 1209600)],
)  # fmt: skip
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "rule"),
    [("5", "has no unit"), ("0m", "is zero"), ("-5m", "is negative"), ("5x", "unknown unit 'x'"),
     ("", "is not a duration"), ("m", "is not a duration"), ("1h30m", "is not a duration"), ("1,5h", "is not a duration"),
     ("1.h", "is not a duration"), ("11y", "unknown unit"), ("4000d", "longer than ten years"),
     ("999999999999w", "longer than ten years"), ("1e3s", "is not a duration"), ("٣m", "is not a duration")],
)  # fmt: skip
def test_a_bad_duration_says_which_rule_was_broken(text, rule):
    with pytest.raises(ValueError, match=rule):
        parse_duration(text)


@pytest.mark.parametrize("text", ["5", "0m", "-5m", "5x", "soon"])
def test_a_bad_duration_says_what_is_accepted(text):
    with pytest.raises(ValueError, match="s, m, h, d or w"):
        parse_duration(text)


def test_zero_is_accepted_where_it_means_something():
    assert parse_duration("0s", allow_zero=True) == timedelta(0)
    assert checked_duration(0, "0", allow_zero=True) == timedelta(0)


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
def test_an_endless_duration_is_an_error(seconds):
    with pytest.raises(ValueError, match="longer than ten years"):
        checked_duration(seconds, seconds, allow_zero=False)


@pytest.mark.parametrize(
    ("text", "size"),
    [("500", 500), ("10 MiB", 10 * 1024**2), ("10MB", 10**7), ("1k", 1024), ("1.5 KiB", 1536), ("2g", 2 * 1024**3),
     ("7 b", 7), ("1 kb", 1000)],
)  # fmt: skip
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "MiB", "10 TiB", "1e3", "10 MiB x", "ten"])
def test_a_bad_size_says_what_is_accepted(text):
    with pytest.raises(ValueError, match=r"is not a size; write a number of bytes.*10 MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(30, "30s"), (5400, "90m"), (7200, "2h"), (86400, "1d"), (604800, "1w"), (0, "0s"), (1.5, "1.5s"), (61, "61s"),
     (1234567, "1234567s")],
)  # fmt: skip
def test_a_duration_is_written_in_its_shortest_exact_form(seconds, text):
    assert duration_text(timedelta(seconds=seconds)) == text


@given(st.integers(1, 3660 * 86400 * 1000))
def test_a_written_duration_reads_as_itself(milliseconds):
    delta = timedelta(milliseconds=milliseconds)
    assert parse_duration(duration_text(delta)) == delta


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "just now"), (0.9, "now"), (-0.9, "just now"), (3, "in 3 s"), (-89, "89 s ago"), (180, "in 3 min"), (-7200, "2 h ago"),
     (3 * 86400, "in 3 d"), (21 * 86400, "in 3 wk"), (-200 * 86400, "7 mo ago"), (1461 * 86400, "in 4 y")],
)  # fmt: skip
def test_a_moment_is_told_in_words(seconds, words):
    assert in_words(NOW + timedelta(seconds=seconds), NOW) == words


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(None, "-"), (0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (600_000, "10 min")]
)
def test_how_long_something_took(milliseconds, text):
    assert took(milliseconds) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-06-02", datetime(2026, 6, 1, 22, tzinfo=UTC)),
        ("2026-06-02T09:30", datetime(2026, 6, 2, 7, 30, tzinfo=UTC)),
        ("2026-06-02 09:30", datetime(2026, 6, 2, 7, 30, tzinfo=UTC)),
        ("2026-06-02T09:30Z", datetime(2026, 6, 2, 9, 30, tzinfo=UTC)),
        ("2026-06-02T09:30+05:00", datetime(2026, 6, 2, 4, 30, tzinfo=UTC)),
        ("14:01", datetime(2026, 6, 1, 12, 1, tzinfo=UTC)),  # it is 14:00 in Berlin
        ("14:00", datetime(2026, 6, 2, 12, 0, tzinfo=UTC)),
        (" 9:05 ", datetime(2026, 6, 2, 7, 5, tzinfo=UTC)),
    ],
)
def test_a_moment_is_read_in_its_zone(text, expected):
    assert parse_moment(text, BERLIN, NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "24:00", "09:60", "2026-02-30", "12", "0001-01-01", "9999-12-31T23:59-12:00"]
)
def test_what_is_no_moment_is_an_error_that_shows_the_forms(text):
    with pytest.raises(ValueError, match="is not a time; write 2026-06-01"):
        parse_moment(text, BERLIN, NOW)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.sampled_from([UTC, BERLIN])))
def test_a_stored_moment_is_itself_again(moment):
    cut = to_milliseconds(moment)
    assert from_store(to_store(cut)) == cut.astimezone(UTC)


def test_the_hour_that_comes_twice_is_stored_as_the_two_hours_that_it_is():
    first, second = (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1))
    assert [to_store(first), to_store(second)] == ["2026-10-25T00:30:00.000Z", "2026-10-25T01:30:00.000Z"]


@given(*[st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))] * 2)
def test_stored_moments_sort_as_text(one, other):
    one, other = to_milliseconds(one), to_milliseconds(other)
    assert (to_store(one) < to_store(other)) == (one < other)


def test_iso_times_carry_the_offset_of_the_zone():
    assert iso(NOW, BERLIN) == "2026-06-01T14:00:00+02:00"
    assert iso(NOW + timedelta(milliseconds=5), BERLIN) == "2026-06-01T14:00:00.005+02:00"
    assert iso(None, BERLIN) is None
