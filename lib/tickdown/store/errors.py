"""What can go wrong with the store, in words of this program and not of an engine's."""

from __future__ import annotations

from typing import ClassVar

from tickdown.base.model import Lease


class LostLease(Exception):
    """Another process has taken the run over, or it is over: it is not for this one to write to any more."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(f"run {lease.run_id} is not ours any more: lease {lease.number} is over")
        self.lease = lease


class StoreError(Exception):
    """The database could not do what was asked. Without a name of its own it is a bug."""

    remedy: ClassVar[str] = ""  # what a person can do about it


class RuleBroken(StoreError):
    """A row that must not be: a key twice, a word that is none of a state's, an attempt without its run."""


class Damaged(StoreError):
    """What is in the file is no database any more."""


class Unusable(StoreError):
    """What the machine does to a database, as opposed to what a bug does: it may pass."""


class Busy(Unusable):
    remedy = "another process holds it locked; `fuser` tells which"


class Full(Unusable):
    remedy = "free some space on that disk"


class ReadOnly(Unusable):
    remedy = "it and its folder must be writable"


class NotOpened(Unusable):
    remedy = "its folder must be there and writable, and files to be opened left (ulimit -n)"


class DiskTrouble(Unusable):
    remedy = "look at the disk's space, quota and health"


class NoMemory(Unusable):
    pass


_BY_NAME = {
    kind.__name__: kind for kind in (Busy, Full, ReadOnly, NotOpened, DiskTrouble, NoMemory, Damaged, RuleBroken)
}


def error_named(name: str, words: str) -> StoreError:
    """One that another process has told of."""
    return _BY_NAME.get(name, StoreError)(words)


def with_remedy(error: Exception) -> str:
    """What the database says, and what to do about it."""
    return f"{error}; {error.remedy}" if isinstance(error, StoreError) and error.remedy else str(error)
