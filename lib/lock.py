"""One lock per task, held by the operating system, with its owner's identity inside.

The kernel lets go of it when the owner dies, so a crash never leaves a task locked; the text in the file is for
those who wait: who holds it, which processes are at work, and until when that is still in order.
"""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime
from functools import cache
from pathlib import Path

from lib.errors import Lacking, TickdownError, explained
from lib.instants import from_store, to_store
from lib.model import Owner
from lib.process import boot_id
from lib.records import record
from lib.workspace import PRIVATE_FILE, make_private_dir


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

    def acquire(self) -> bool:
        """Try once. The lock is never inherited by a child, so it can't outlive this process."""
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
        text = f'{self._head}, "pgid": {pgid}, "pgid_started": {started}}}\n'.encode()
        os.pwrite(self._descriptor, text, 0)
        if len(text) < self._written:
            os.ftruncate(self._descriptor, len(text))
        self._written = len(text)

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
        descriptor = os.open(folder / f"{task_id}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            record = json.loads(file.read(10_000))
        pgid = record["pgid"]
        return Holder(
            owner=Owner(str(record["host"]), int(record["pid"]), int(record["pid_started"]), str(record["boot_id"])),
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
