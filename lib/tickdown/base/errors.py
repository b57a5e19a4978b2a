"""The one error type that people are meant to see, and the exit codes it carries."""

from __future__ import annotations

import errno
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


# What the machine lacks for a while, as opposed to what is wrong with a file or a command.
_LACKING = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of the user's quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EROFS: "mount it writable",
    errno.EIO: "see what the kernel says of that disk (dmesg)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close some of the machine's open files",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or end some",
    errno.ENOMEM: "free some memory",
}


def remedy(error: BaseException) -> str | None:
    """What to do about something that the machine lacks; None if the error is of another kind."""
    if isinstance(error, ImportError) and "Too many open files" in str(error):  # said in words only
        return _LACKING[errno.EMFILE]
    return _LACKING.get(error.errno or 0) if isinstance(error, OSError) else None


def explained(error: OSError) -> str:
    """What the system says, and what to do about it if the machine lacks something."""
    said, advice = error.strerror or str(error), remedy(error)
    return f"{said}; {advice}" if advice else said


class TickdownError(Exception):
    """Something a person can put right: printed as one message, without a traceback."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


class Lacking(TickdownError):
    """The machine lacks something that it will have again: room, descriptors, processes."""

    @classmethod
    def by(cls, error: BaseException) -> Lacking | None:
        """None if the error is of another kind."""
        advice = remedy(error)
        return cls(f"the machine lacks something: {error}; {advice}") if advice else None
