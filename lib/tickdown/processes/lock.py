"""One lock per task, held by the operating system, with its owner's identity inside.

The kernel lets go of it when the owner dies, so a crash never leaves a task locked; the text in the file is for
those who wait: who holds it, which processes are at work, and until when that is still in order.
"""

from __future__ import annotations

import errno
import json
import os
import time
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from tickdown.base.errors import Lacking, TickdownError, explained
from tickdown.base.model import Owner
from tickdown.base.records import record
from tickdown.base.terminal import one_line
from tickdown.processes.process import boot_id, host_name, is_alive, lock_holder, process_name
from tickdown.time.instants import from_store, to_store
from tickdown.workspace.folders import PRIVATE_FILE, make_private_dir

# Between getting a lock and having the claim on record: it may have to wait for the database.
CLAIM_TAKES = 90.0


@record(frozen=True)
class Holder:
    """What the lock file tells."""

    owner: Owner
    task_id: str
    run_id: str
    attempt: int
    child: tuple[int, int] | None
    # The same moment twice: for people, and on the clock that nobody can set (it counts from boot, for all processes).
    deadline: datetime
    deadline_monotonic: float
    ladder_deadline: datetime | None = None  # over all attempts and heals of the occurrence


@record(frozen=True)
class Seen:
    """Who holds a lock, as far as that can be told from outside."""

    words: str
    run_id: str | None = None  # if the lock file names one of this program's runs
    is_claiming: bool = False  # one of this program's processes, which is about to record what it takes up


@cache
def _see_to(folder: Path) -> None:
    """Once per process."""
    make_private_dir(folder)


@cache
def _owner_as_json(owner: Owner) -> str:
    """The same for all locks of a process; without the closing bracket."""
    named = {"host": owner.host, "pid": owner.pid, "pid_started": owner.started, "boot_id": owner.boot_id}
    return json.dumps(named)[:-1]


class TaskLock:
    def __init__(self, folder: Path, task_id: str) -> None:
        self.folder, self.path = folder, f"{folder}/{task_id}.lock"
        self._descriptor: int | None = None
        self._written = 0
        self._head = ""

    def acquire(self, claimant: Owner | None = None) -> bool:
        """Try once. The lock is never inherited by a child, so it can't outlive this process. Who is about to claim a run
        says so: until that is on record, others would take it for a stranger."""
        from filelock import lock_descriptor

        try:
            _see_to(self.folder)
            try:
                descriptor = self._open()
            except FileNotFoundError:  # somebody has removed the folder since
                make_private_dir(self.folder)
                descriptor = self._open()
        except OSError as error:
            # A link in its place is an attack or a mistake; anything else is about the disk, and passes.
            kind = TickdownError if error.errno == errno.ELOOP else Lacking
            raise kind(f"the lock {self.path} can't be opened: {explained(error)}") from None
        try:
            locked = lock_descriptor(descriptor, blocking=False)
        except BaseException:
            os.close(descriptor)
            raise
        if not locked:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._written = os.fstat(descriptor).st_size  # what a dead owner has left
        if claimant is not None:
            try:
                self._put(f'{_owner_as_json(claimant)}, "claims_since": {time.monotonic():.3f}}}\n')
            except OSError:
                pass  # a full disk; the lock itself holds
        return True

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)

    def write(self, holder: Holder) -> None:
        # Written by hand, since every attempt does it: ids and moments have nothing that JSON would write differently.
        ladder = f'"{to_store(holder.ladder_deadline)}"' if holder.ladder_deadline else "null"
        self._head = (
            f'{_owner_as_json(holder.owner)}, "task_id": "{holder.task_id}", "run_id": "{holder.run_id}", '
            f'"attempt": {holder.attempt}, "deadline": "{to_store(holder.deadline)}", '
            f'"deadline_monotonic": {holder.deadline_monotonic:.3f}, "ladder_deadline": {ladder}'
        )
        self.name_child(holder.child)

    def name_child(self, child: tuple[int, int] | None) -> None:
        """Nothing else has changed since the last `write`."""
        if self._descriptor is None:
            raise OSError("the lock is not held any more")
        pgid, started = child or ("null", "null")
        self._put(f'{self._head}, "pgid": {pgid}, "pgid_started": {started}}}\n')

    def _put(self, text: str) -> None:
        assert self._descriptor is not None
        data = text.encode()
        os.pwrite(self._descriptor, data, 0)
        if len(data) < self._written:
            os.ftruncate(self._descriptor, len(data))
        self._written = len(data)

    def renew(self) -> None:
        """Somebody may have removed or replaced the file: hold the one that others would find."""
        if self._descriptor is None:
            return
        try:
            same = os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            same = False
        if not same:
            lost, self._descriptor = self._descriptor, None
            os.close(lost)
            self.acquire()

    def release(self) -> None:
        if self._descriptor is not None:
            from filelock import unlock_descriptor

            # The file stays: removing a lock file lets two processes hold "the" lock. Its text goes with its owner.
            os.ftruncate(self._descriptor, 0)
            unlock_descriptor(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def read_holder(folder: Path, task_id: str) -> Holder | None:
    """The text of a lock file; None if there is none or it is being written this moment."""
    try:
        record = _text_of(folder, task_id)
        pgid = record["pgid"]
        return Holder(
            owner=_owner_of(record),
            task_id=str(record["task_id"]),
            run_id=str(record["run_id"]),
            attempt=int(record["attempt"]),
            # A pid from before a reboot names nobody, even if its start time happens to be the same.
            child=(int(pgid), int(record["pgid_started"])) if pgid and record["boot_id"] == boot_id() else None,
            deadline=from_store(record["deadline"]),
            deadline_monotonic=float(record["deadline_monotonic"]),
            ladder_deadline=from_store(record["ladder_deadline"]) if record.get("ladder_deadline") else None,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _text_of(folder: Path, task_id: str) -> dict[str, Any]:
    descriptor = os.open(folder / f"{task_id}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found: dict[str, Any] = json.loads(file.read(10_000))
    return found


def _owner_of(record: dict[str, Any]) -> Owner:
    return Owner(str(record["host"]), int(record["pid"]), int(record["pid_started"]), str(record["boot_id"]))


# --- looking at a lock ---------------------------------------------------------------------------------------------


def is_held(folder: Path, task_id: str) -> bool:
    """By asking for it for a moment, beside others who only ask; whoever wants it in that moment looks twice."""
    import fcntl

    try:
        descriptor = os.open(folder / f"{task_id}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def look_at(folder: Path, task_id: str) -> Seen | None:
    """Who holds the lock of a task; None if nobody does."""
    if not is_held(folder, task_id):
        return None
    by_text = _seen_by_text(folder, task_id)
    if by_text is not None:
        return by_text
    pid = lock_holder(f"{folder}/{task_id}.lock")
    name = one_line(process_name(pid), 40) if pid is not None else ""
    words = f"pid {pid}{f' ({name})' if name else ''}" if pid is not None else "an unknown process"
    # Read once more: one of ours who had just got the lock has written it by now.
    return _seen_by_text(folder, task_id) or Seen(words)


def _seen_by_text(folder: Path, task_id: str) -> Seen | None:
    """None if the text is of nobody who lives."""
    try:
        record = _text_of(folder, task_id)
        owner = _owner_of(record)
        if owner.host == host_name() and not is_alive(owner):
            return None
        words = f"pid {owner.pid} on {one_line(owner.host, 60)}"
        if "claims_since" in record:
            passed = time.monotonic() - float(record["claims_since"])  # rounded, so it may be a little ahead
            return Seen(words, is_claiming=abs(passed) < CLAIM_TAKES)
        run_id = one_line(str(record["run_id"]), 60)
        return Seen(f"run {run_id}, {words}", run_id)
    except (OSError, ValueError, KeyError, TypeError):
        return None
