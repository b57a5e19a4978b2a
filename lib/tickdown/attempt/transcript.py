"""What the attempts of a run print: without secrets, into the run's log, to whoever watches, and what an agent says kept
apart to be read at its end."""

from __future__ import annotations

import os
from collections.abc import Callable

from tickdown.attempt.run_log import RunLog
from tickdown.base.errors import TickdownError
from tickdown.base.redact import RedactedStream, Redactor
from tickdown.processes.process import PIPE_BYTES, Child, widen

MOST_OF_ANSWER = 8 * 1024 * 1024
_ERROR_LENGTH = 300
_READ = 1 << 16


class Transcript:
    def __init__(
        self,
        path: str,
        limit: int,
        redactor: Redactor,
        echo: Callable[[bytes], None] | None,
        on_trouble: Callable[[Exception], None],
    ) -> None:
        self.path, self.limit, self.redactor, self.echo, self.on_trouble = path, limit, redactor, echo, on_trouble
        self._log: RunLog | None = None
        self._broken = False
        self._start = 0
        self._streams: dict[int, RedactedStream] = {}
        self._said: dict[int, bytearray] = {}

    def begin(self, header: str) -> None:
        """A new attempt. A full disk costs the log, not the run."""
        self._streams, self._said = {}, {}
        try:
            if self._log is None:
                self._log = RunLog(self.path, self.limit)
            self._log.header(header)
            self._start = self._log.size
        except (OSError, TickdownError) as error:
            self._give_up(error)

    def read(self, child: Child) -> None:
        """What is there, up to a pipe's worth: a task that never stops printing must not keep the others waiting."""
        for output in list(child.open_outputs):
            for _ in range(PIPE_BYTES // _READ):
                try:
                    data = os.read(output, _READ)
                except BlockingIOError:
                    break
                if not data:
                    child.open_outputs.remove(output)
                    break
                if len(data) == _READ:
                    widen(output)
                self._feed(output, data, keep=child.stdout is not None)

    def _feed(self, stream: int, data: bytes, *, keep: bool) -> None:
        """Output as it comes; `keep` what must be read as a whole later."""
        if keep:
            said = self._said.setdefault(stream, bytearray())
            said += data
            del said[:-MOST_OF_ANSWER]
        self._write(self._streams.setdefault(stream, self.redactor.stream()).feed(data))

    def end(self) -> None:
        """Nothing more comes, so nothing can complete what is held back."""
        for stream in self._streams.values():
            self._write(stream.flush())

    def note(self, text: str) -> None:
        """A line of ours."""
        self._write(f"tickdown: {self.redactor.text(text)}\n".encode("utf-8", "replace"))

    def said(self, stream: int | None) -> str:
        return self._said.get(stream, b"").decode("utf-8", "replace") if stream is not None else ""

    @property
    def span(self) -> tuple[int, int] | None:
        return (min(self._start, self._log.size), self._log.size) if self._log else None

    def summary(self) -> str:
        return self._log.summary() if self._log else ""

    def with_last_line(self, error: str) -> str:
        lines = self.summary().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{error}: {last[:_ERROR_LENGTH]}" if last else error

    def close(self) -> None:
        if self._log is not None:
            try:
                self._log.close()
            except OSError:
                pass  # a full disk; the run itself is recorded
            self._log = None

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self.echo is not None:
            self.echo(data)
        if self._log is not None and not self._broken:
            try:
                self._log.write(data)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        self.on_trouble(error)
