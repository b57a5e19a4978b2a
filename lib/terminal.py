"""Text from outside made safe to show: no escape sequence of a task reaches a terminal or a message."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands: titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # device control and other strings
    r"|\x1b[0-?]"  # private ones of two characters, such as the keypad modes
    r"|[\x1b\x9b][\[\]()#;?]*[0-9;:<=>?]*[ -/]*[@-~]?"  # colours, cursor movement
)
# Control characters except newline and tab; marks that turn the direction of the text around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    return _CONTROL.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n"))).encode("utf-8", "replace").decode("utf-8")


def one_line(text: str, most: int = 200) -> str:
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


class PrintableStream:
    """The same for bytes that come in pieces: whole lines at a time, or what has piled up without one."""

    LONGEST_LINE = 8192

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> str:
        data = self._held + data
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) < self.LONGEST_LINE:
            self._held = data
            return ""
        self._held = data[end:] if end else b""
        return printable((data[:end] if end else data).decode("utf-8", "replace"))

    def flush(self) -> str:
        held, self._held = self._held, b""
        return printable(held.decode("utf-8", "replace"))
