"""Text from outside made safe to show: no escape sequence of a task reaches a terminal or a message."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Callable

_REST = r"[\[\]()#;?]*[0-9;:<=>?]*[ -/]*[@-~]?"  # of colours, cursor movement
_AFTER_ESCAPE = (
    r"(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands: titles, links, the clipboard
    r"|[PX^_][^\x1b]*(?:\x1b\\)?"  # device control and other strings
    r"|[0-?]"  # private ones of two characters, such as the keypad modes
    rf"|{_REST})"
)
_SEQUENCES = re.compile(rf"\x1b{_AFTER_ESCAPE}|\x9b{_REST}")
# A sequence whose end has not come yet.
_BEGUN = re.compile(r"\x1b|[\x1b\x9b][\[()#;?]*[0-9;:<=>?]*[ -/]*|\x1b\][^\x07\x1b]*|\x1b[PX^_][^\x1b]*", re.DOTALL)
# Control characters except newline and tab; marks that turn the direction of the text around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# All of these in UTF-8; a carriage return is among them, though it is shown as a line's end. One set of bytes comes
# first, because then those that begin nothing are passed over ten times as fast.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f\xc2\xd8\xe2](?:"
    rf"(?<=\x1b){_AFTER_ESCAPE}|(?<=\xc2)(?:\x9b{_REST}|[\x80-\x9f])"
    r"|(?<=\xd8)\x9c|(?<=\xe2)(?:\x80[\x8e\x8f\xaa-\xae]|\x81[\xa6-\xa9])"
    r"|(?<![\x1b\xc2\xd8\xe2])[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]*)".encode()
)
_HIDDEN_BEGUN = re.compile(
    rb"(?:\x1b|\xc2\x9b)[\[()#;?]*[0-9;:<=>?]*[ -/]*|\x1b\][^\x07\x1b]*|\x1b[PX^_][^\x1b]*"
    rb"|\xc2|\xd8|\xe2[\x80\x81]?"
)
_CONTROL_BYTES = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
LONGEST_SEQUENCE = 4096


def printable(text: str) -> str:
    return (
        _CONTROL.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
        .encode("utf-8", "replace")
        .decode("utf-8")
    )


def escaped(document: str) -> str:
    """JSON escapes the control characters of ASCII itself; of the others it lets through what a terminal acts on."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def has_hidden(text: str) -> bool:
    """Whether there is anything that is not shown."""
    return not text.isprintable() and _CONTROL.search(text) is not None


def has_hidden_bytes(data: bytes) -> bool:
    return len(data.translate(None, _CONTROL_BYTES)) < len(data) or (
        not data.isascii() and _HIDDEN.search(data) is not None
    )


def seen(data: bytes) -> bytes:
    """Without what is not shown."""
    return _HIDDEN.sub(b"", data)


def places_of_seen(data: bytes) -> Callable[[int], int]:
    """For a place in what is seen, the same in the data."""
    starts, shifts, hidden = [0], [0], 0
    for found in _HIDDEN.finditer(data):
        hidden += len(found[0])
        starts.append(found.end() - hidden)
        shifts.append(hidden)
    return lambda place: place + shifts[bisect_right(starts, place) - 1]


def begun_at(data: bytes) -> int:
    """Where something hidden begins whose end has not come yet; the end of the data if nothing does. What never ends is
    not waited for."""
    earliest = max(0, len(data) - LONGEST_SEQUENCE)
    starts = (data.rfind(lead, earliest) for lead in (b"\x1b", b"\xc2", b"\xd8", b"\xe2"))
    return min((start for start in starts if start >= 0 and _HIDDEN_BEGUN.fullmatch(data, start)), default=len(data))


def one_line(text: str, most: int = 200, *, keep_end: int = 0) -> str:
    """Cut if it is longer; `keep_end` characters of its end stay."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= most else f"{flat[: most - 1 - keep_end]}…{flat[len(flat) - keep_end :]}"


def cells(text: str) -> int:
    """How wide a terminal shows it: some characters take two places, others none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    shown = (char for char in text if category(char) not in ("Mn", "Me", "Cf"))
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in shown)


class PrintableStream:
    """The same for bytes that come in pieces, shown as they come: only what may be the beginning of a sequence, of a
    character or of a line end waits for its rest."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes) -> str:
        text = self._held + self._decoder.decode(data)
        ready = len(text) - (1 if text.endswith("\r") else 0)
        start = max(text.rfind("\x1b"), text.rfind("\x9b"), len(text) - LONGEST_SEQUENCE)
        if start >= 0 and _BEGUN.fullmatch(text, start):
            ready = min(ready, start)
        self._held = text[ready:]
        return printable(text[:ready])

    def flush(self) -> str:
        held, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return printable(held)
