"""Text from outside made safe to show: no escape sequence of a task reaches a terminal or a message."""

from __future__ import annotations

import codecs
import re

_SEQUENCES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands: titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # device control and other strings
    r"|\x1b[0-?]"  # private ones of two characters, such as the keypad modes
    r"|[\x1b\x9b][\[\]()#;?]*[0-9;:<=>?]*[ -/]*[@-~]?"  # colours, cursor movement
)
# A sequence whose end has not come yet.
_BEGUN = re.compile(r"\x1b|[\x1b\x9b][\[()#;?]*[0-9;:<=>?]*[ -/]*|\x1b\][^\x07\x1b]*|\x1b[PX^_][^\x1b]*", re.DOTALL)
# Control characters except newline and tab; marks that turn the direction of the text around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    return (
        _CONTROL.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
        .encode("utf-8", "replace")
        .decode("utf-8")
    )


def escaped(document: str) -> str:
    """JSON escapes the control characters of ASCII itself; of the others it lets through what a terminal acts on."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def one_line(text: str, most: int = 200) -> str:
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


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

    LONGEST_SEQUENCE = 4096

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes) -> str:
        text = self._held + self._decoder.decode(data)
        ready = len(text) - (1 if text.endswith("\r") else 0)
        start = max(text.rfind("\x1b"), text.rfind("\x9b"), len(text) - self.LONGEST_SEQUENCE)
        if start >= 0 and _BEGUN.fullmatch(text, start):
            ready = min(ready, start)
        self._held = text[ready:]
        return printable(text[:ready])

    def flush(self) -> str:
        held, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return printable(held)
