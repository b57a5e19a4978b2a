"""The one error type that people are meant to see, and the exit codes it carries."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    DUPLICATE_IDS = 3
    UNKNOWN_ID = 4
    ALREADY_RUNNING = 5
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143


class TickdownError(Exception):
    """Something a person can put right: printed as one message, without a traceback."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code
