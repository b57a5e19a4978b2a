"""The log of one run: what it prints, as it comes, within bounds.

A log over its limit keeps its first and its last half. The file never grows beyond twice the limit: when the part
behind the first half gets too long, its end is moved to the front and the rest cut off.
"""

from __future__ import annotations

import os
from pathlib import Path

from tickdown.workspace.folders import make_dir, private_opener

SUMMARY_BYTES = 4096


class RunLog:
    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.half = max(limit // 2, 1)
        # Not in append mode: moving the tail writes in the middle.
        try:
            self._fd = private_opener(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            make_dir(Path(os.path.dirname(path)))
            self._fd = private_opener(path, os.O_RDWR | os.O_CREAT)
        self.size = os.lseek(self._fd, 0, os.SEEK_END)
        self.dropped = 0
        self._tail_at = self.half  # where the part begins that may be cut
        self._recent = b""

    def write(self, data: bytes) -> None:
        """Output of the task."""
        self._recent = (self._recent + data)[-SUMMARY_BYTES:] if len(data) < SUMMARY_BYTES else data[-SUMMARY_BYTES:]
        self._append(data)

    def header(self, text: str) -> None:
        """A line of ours, beginning an attempt; the summary starts anew."""
        lead = b"" if self.size == 0 or self._ends_with_newline() else b"\n"
        self._append(lead + f"=== {text} ===\n".encode())
        self._recent = b""

    def summary(self) -> str:
        return self._recent.decode("utf-8", "replace")

    def close(self) -> None:
        if self.size > 2 * self.half:
            self._cut()
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view[: 4 * self.half - self.size], self.size)
            self.size += written
            view = view[written:]
            if self.size > 3 * self.half:
                self._cut()

    def _cut(self) -> None:
        """Keep the first half, a line that says what is missing, and the last half."""
        keep_from = self.size - self.half
        self.dropped += keep_from - self._tail_at
        notice = f"\n=== {self.dropped} bytes dropped (over max_log) ===\n".encode()
        tail = os.pread(self._fd, self.half, keep_from)
        os.pwrite(self._fd, notice + tail, self.half)
        self.size = self.half + len(notice) + len(tail)
        os.ftruncate(self._fd, self.size)
        self._tail_at = self.half + len(notice)

    def _ends_with_newline(self) -> bool:
        return os.pread(self._fd, 1, self.size - 1) == b"\n"
