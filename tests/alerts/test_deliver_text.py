"""The texts of alerts: escaped, within Telegram's limit, bundled; and when it is quiet."""

from __future__ import annotations

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import well_formed
from tickdown.alerts.channels.telegram import LIMIT, html_text
from tickdown.alerts.delivery import DIGEST_ABOVE, bundle, is_quiet
from tickdown.alerts.message import Message, plain_text
from tickdown.alerts.messages import broken_file_alert
from tickdown.base.model import Alert
from tickdown.base.redact import Redactor
from tickdown.store.outbox import Outgoing

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
NO_SECRETS = Redactor()


def outgoing(number: int = 1, held: bool = False, **fields) -> Outgoing:
    return Outgoing(number, NOW, Alert(**({"kind": "failed", "title": f"task{number} failed"} | fields)), held)


def message(**fields) -> Message:
    return Message((outgoing(**fields),))


# --- html ------------------------------------------------------------------------------------------------------


def test_an_alert_says_what_why_and_the_last_lines():
    text = html_text(
        message(title="backup failed", body="failed: exit code 3\nMore: scheduler.py logs r1", output="boom"),
        NO_SECRETS,
    )
    assert text.startswith("<b>backup failed</b>\nfailed: exit code 3\nMore: scheduler.py logs r1\n")
    assert text.endswith("\n<pre>boom</pre>")


def test_everything_from_outside_is_escaped():
    text = html_text(message(title="<a&b>", body="</b> &amp; <script>", output="</pre><b>x"), NO_SECRETS)
    assert "<b>&lt;a&amp;b&gt;</b>" in text and "&lt;/b&gt; &amp;amp; &lt;script&gt;" in text
    assert "<pre>&lt;/pre&gt;&lt;b&gt;x</pre>" in text


def test_escape_sequences_and_secrets_are_left_out():
    text = html_text(
        message(title="t", body="\x1b[31mred\x1b[0m hunter2222", output="\u202ehunter2222"), Redactor(["hunter2222"])
    )
    assert "red ***" in text and "<pre>***</pre>" in text


def test_long_output_loses_its_beginning():
    lines = "\n".join(f"line {number}" for number in range(2000))
    shown = well_formed(html_text(message(output=lines), NO_SECRETS))
    assert shown.endswith("line 1999") and "line 0\n" not in shown


ANYTHING = st.text(st.one_of(st.sampled_from("&<>\"'\n\x1b"), st.characters(codec=None)), max_size=60)
TEXTS = st.builds(lambda text, times: text * times, ANYTHING, st.integers(0, 200))


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=12))
def test_whatever_the_content_a_message_fits_and_is_well_formed(contents):
    parts = [outgoing(n, title=title, body=body, output=output) for n, (title, body, output) in enumerate(contents)]
    text = html_text(Message(tuple(parts)), NO_SECRETS)
    assert 0 < len(text) <= LIMIT
    well_formed(text)


@pytest.mark.parametrize("character", ["&", "<", "x", "🎉", "\n"])
def test_even_the_worst_characters_fit(character):
    text = html_text(message(title=character * 5000, body=character * 5000, output=character * 5000), NO_SECRETS)
    assert 0 < len(text) <= LIMIT
    well_formed(text)


@pytest.mark.parametrize("at", range(290, 301))
def test_no_cut_shows_half_a_secret(at):
    secret = "hunter2222"
    for fields in (
        {"title": "x" * at + secret},
        {"body": "x" * (at + 1200) + secret},
        {"output": secret + "x" * (at + 3500)},
    ):
        shown = well_formed(html_text(message(**fields), Redactor([secret])))
        assert "hunter" not in shown and "er2222" not in shown


# --- digests ---------------------------------------------------------------------------------------------------


def test_up_to_five_alerts_go_one_by_one():
    parts = [outgoing(number) for number in range(DIGEST_ABOVE)]
    assert [one.ids for one in bundle(parts)] == [[number] for number in range(DIGEST_ABOVE)]


def test_more_than_five_alerts_are_one_digest():
    parts = [outgoing(number, held=number % 2 == 0) for number in range(DIGEST_ABOVE + 1)]
    assert [one.ids for one in bundle(parts)] == [list(range(DIGEST_ABOVE + 1))]


def test_what_was_held_leaves_as_one_digest_before_the_rest():
    parts = [outgoing(1), outgoing(2, held=True), outgoing(3), outgoing(4, held=True)]
    assert [one.ids for one in bundle(parts)] == [[2, 4], [1], [3]]


def test_nothing_to_send_is_no_message():
    assert bundle([]) == []


def test_a_digest_names_a_rejected_file_once():
    broken = broken_file_alert("tasks/x.md", ["tasks/x.md:3: schedule: '5x' …", "tasks/x.md:4: id: …"])
    both = Message((Outgoing(1, NOW, broken, False), outgoing(2)))
    assert "- tasks/x.md is rejected: line 3: schedule: '5x' …\n" in plain_text(both, NO_SECRETS)
    assert "<b>tasks/x.md is rejected</b>: line 3: schedule: '5x' …\n" in html_text(both, NO_SECRETS)


def test_a_digest_names_every_alert_with_its_first_line():
    digest = Message(tuple(outgoing(number, body=f"\nwhy {number}\nmore") for number in range(6)))
    for text in (well_formed(html_text(digest, NO_SECRETS)), plain_text(digest, NO_SECRETS)):
        assert all(f"task{number} failed: why {number}" in text for number in range(6))
        assert "6 alerts" in text and "more" not in text


def test_a_digest_that_is_too_long_says_how_many_are_left():
    digest = Message(tuple(outgoing(number, body="x" * 300) for number in range(100)))
    text = html_text(digest, NO_SECRETS)
    shown = text.count("•")
    assert len(text) <= LIMIT and 10 < shown < 100
    assert text.endswith(f"… and {100 - shown} more: scheduler.py history")


def test_plain_text_indents_the_output():
    text = plain_text(message(title="t", body="b", output="one\ntwo\x1b[0m"), NO_SECRETS)
    assert text.endswith(": t\nb\n  | one\n  | two")


# --- quiet hours -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "clock", "quiet"),
    [
        ((time(22), time(7)), "21:59", False),
        ((time(22), time(7)), "22:00", True),
        ((time(22), time(7)), "23:59", True),
        ((time(22), time(7)), "00:00", True),
        ((time(22), time(7)), "06:59", True),
        ((time(22), time(7)), "07:00", False),
        ((time(12), time(13, 30)), "11:59", False),
        ((time(12), time(13, 30)), "12:00", True),
        ((time(12), time(13, 30)), "13:29", True),
        ((time(12), time(13, 30)), "13:30", False),
        (None, "03:00", False),
    ],
)
def test_quiet_hours_reach_over_midnight(hours, clock, quiet):
    moment = datetime.fromisoformat(f"2026-06-01T{clock}:00+00:00")
    assert is_quiet(moment, UTC, hours) is quiet


def test_quiet_hours_are_those_of_the_zone():
    moment = datetime(2026, 6, 1, 20, 30, tzinfo=UTC)
    assert is_quiet(moment, ZoneInfo("Europe/Berlin"), (time(22), time(7)))
    assert not is_quiet(moment, UTC, (time(22), time(7)))
