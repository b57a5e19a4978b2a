"""No escape sequence of a task reaches a terminal or a message."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickdown.base.terminal import PrintableStream, one_line, printable

DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 🎉\n\ttext", "plain é 🎉\n\ttext"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[1;38;5;208mx\x1b[K", "x"),
        ("\x1b[38:2::1:2:3mx", "x"),
        ("\x1b[?25lx\x1b[2J\x1b[1;1H", "x"),
        ("\x9b31mx", "x"),
        ("\x1b]0;new title\x07x", "x"),
        ("\x1b]0;new title\x1b\\x", "x"),
        ("\x1b]8;;http://evil/\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;aGVsbG8=\x07x", "x"),
        ("\x1bPq#0;2;0\x1b\\x", "x"),
        ("\x1b_apc\x1b\\x", "x"),
        ("\x1b(Bx\x1b=y", "xy"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("a\x08b\x07c\x7fd\x00e", "abcde"),
        ("abc\u202egnp.exe\u2066x\u200f\u061cy", "abcgnp.exexy"),
        ("\x1b", ""),
        ("\x1b\x1b[0m[31mx", "[31mx"),
        ("half\udcff", "half?"),
    ],
)
def test_only_the_text_is_left(text, shown):
    assert printable(text) == shown


@given(st.text(st.one_of(st.sampled_from("\x1b\x9b[]PX^_0;mH\x07\\\r\n\u202e"), st.characters(codec=None))))
def test_nothing_dangerous_survives(text):
    shown = printable(text)
    assert not DANGEROUS.search(shown)
    shown.encode()
    assert printable(shown) == shown


def test_one_line_is_one_short_line():
    assert one_line("  a\n\n\tb \x1b[31mc ") == "a b c"
    assert one_line("x" * 300) == "x" * 199 + "…"
    assert len(one_line("x" * 200)) == 200


def fed(*parts: bytes) -> list[str]:
    stream = PrintableStream()
    return [*map(stream.feed, parts), stream.flush()]


def test_a_stream_is_shown_as_it_comes():
    assert fed(b"one\ntw", b"o\nthr", b"ee") == ["one\ntw", "o\nthr", "ee", ""]


@pytest.mark.parametrize("parts", [(b"x\x1b", b"[31my"), (b"x\x1b[3", b"1my"), (b"x\x1b]0;ti", b"tle\x07y")])
def test_the_beginning_of_a_sequence_waits_for_its_rest(parts):
    assert fed(*parts) == ["x", "y", ""]


DATA = "ä\x1b[31m🎉\x1b]0;t\x07x\r\n\x1b]8;;http://e/\x1b\\link\rö\x9b0m\x1bPq\x1b\\.".encode()


@pytest.mark.parametrize("at", range(len(DATA) + 1))
def test_a_stream_cut_anywhere_shows_the_same(at):
    assert "".join(fed(DATA[:at], DATA[at:])) == printable(DATA.decode()) == "ä🎉x\nlink\nö."


def test_a_stream_that_comes_byte_by_byte_shows_the_same():
    assert "".join(fed(*[bytes([byte]) for byte in DATA])) == "ä🎉x\nlink\nö."


def test_a_sequence_that_never_ends_does_not_hold_the_rest_for_ever():
    stream = PrintableStream()
    stream.feed(b"\x1b]0;" + b"x" * 10_000)
    assert "visible" in stream.feed(b"\x07visible\n")


def test_odd_bytes_are_shown_as_replacements():
    assert fed(b"\xff\n") == ["\ufffd\n", ""]
