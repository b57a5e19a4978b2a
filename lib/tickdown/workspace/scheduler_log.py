"""`logs/scheduler.log`: one JSON object per line, for people and for programs."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from tickdown.base.redact import Redactor
from tickdown.workspace.folders import PRIVATE_FILE, keep_others_out, make_dir, private_opener
from tickdown.workspace.shortcut import ROTATE_AT

KEEP = 5
_STAYS_OPEN = 1.0
_encode = json.JSONEncoder(default=str).encode


class Log:
    """Each event is one write to a file opened for appending, so lines of several ticks never mix."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self.path = folder / "scheduler.log"
        self.redactor = redactor
        self._descriptor: int | None = None
        self._open_until = 0.0

    def info(self, event: str, **details: object) -> None:
        self._write("info", event, details)

    def warning(self, event: str, **details: object) -> None:
        self._write("warning", event, details)

    def error(self, event: str, **details: object) -> None:
        self._write("error", event, details)

    def _write(self, level: str, event: str, details: dict[str, object]) -> None:
        record: dict[str, object] = {
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": level,
            "event": event,
            "task_id": None,  # these in every line, so that programs can rely on them
            "run_id": None,
            "trace_id": None,
        }
        record.update(details)
        line = _encode(record)
        if not self.redactor.is_clean(line):
            line = _encode(self.redactor.tree(record))
        try:
            os.write(self._current(), f"{line}\n".encode())
        except OSError:
            pass  # a log that can't be written must not stop the work it tells of

    def _current(self) -> int:
        """Opened anew now and then: another tick may have rotated it."""
        now = time.monotonic()
        if self._descriptor is None or now > self._open_until:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            make_dir(self.path.parent)
            keep_others_out(self.path.parent)
            self._descriptor = private_opener(str(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._open_until = now + _STAYS_OPEN
        return self._descriptor

    def rotate(self) -> None:
        """Called once per tick. The lock keeps two ticks from rotating one after the other."""
        try:
            if self.path.stat().st_size < ROTATE_AT:
                return
            from filelock import lock_descriptor

            guard = os.open(self.path.with_suffix(".rotate"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            try:
                if lock_descriptor(guard, blocking=False) and self.path.stat().st_size >= ROTATE_AT:
                    for number in range(KEEP - 1, 0, -1):
                        older = Path(f"{self.path}.{number}")
                        if older.exists():
                            older.rename(f"{self.path}.{number + 1}")
                    self.path.rename(f"{self.path}.1")
            finally:
                os.close(guard)
        except OSError:
            pass
