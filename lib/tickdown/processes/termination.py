"""Ending a run: finding every process that belongs to it, wherever it has gone, and seeing to it that none is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tickdown.base.errors import remedy
from tickdown.processes.process import STARTED_HERE, ProcessInfo, process_info, send_signal, ticks_since_boot

# How soon to look again while processes are ending: at once for the many that obey_comment, slower for the few that don't.
FIRST_LOOK, LONGEST_LOOK = 0.01, 0.5
# SIGKILL is final except for a process stuck inside the kernel, which nobody can wait for.
GIVE_UP_AFTER = 20.0


_spare: list[int] = []


def keep_spare() -> None:
    """One descriptor for the moment when there is no other: whatever is short, processes must be found and ended."""
    if not _spare:
        try:
            _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            pass  # there is none already


@contextmanager
def a_descriptor_free() -> Iterator[None]:
    if _spare:
        os.close(_spare.pop())
    try:
        yield
    finally:
        keep_spare()


def processes_of(run_id: str, leader: tuple[int, int] | None, last_attempt: int | None = None) -> dict[int, int]:
    """Every live process of a run, as pid to start time, parents before their children.

    Found in several ways, because each can be evaded alone: the run's id in the environment it was started with, the
    group or session of the leader (pid, start time; trusted only while that very process is there, if only as a zombie:
    its number would mean somebody else later), adoption by this process, and descent from any of these. What says that it
    is of a later attempt than `last_attempt` belongs to a successor on the same machine.
    """
    everyone = {info.pid: info for info in map(process_info, _pids()) if info is not None and not info.zombie}
    mark = f"TICKDOWN_RUN_ID={run_id}".encode()
    me = os.getpid()
    found = {pid for pid in everyone if pid != me and _is_of(mark, last_attempt, _environment(pid))}
    if leader is not None:
        holder = process_info(leader[0])
        if holder is not None and holder.started == leader[1]:
            found |= {info.pid for info in everyone.values() if leader[0] in (info.pid, info.group, info.session)}
        found |= {info.pid for info in everyone.values() if info.parent == me and _adopted_from(info) == leader[0]}
    children: dict[int, list[int]] = {}
    for info in everyone.values():
        children.setdefault(info.parent, []).append(info.pid)
    queue = list(found)
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found and pid != me:
                found.add(pid)
                queue.append(pid)
    return {pid: everyone[pid].started for pid in _parents_first(found, children)}


def _is_of(mark: bytes, last_attempt: int | None, environment: list[bytes]) -> bool:
    if mark not in environment:
        return False
    words = [entry.partition(b"=")[2] for entry in environment if entry.startswith(b"TICKDOWN_ATTEMPT=")]
    return last_attempt is None or all(not word.isdigit() or int(word) <= last_attempt for word in words)


def _parents_first(found: set[int], children: dict[int, list[int]]) -> list[int]:
    """A shell that saw its child end before it was told itself would go on with the next command of its line."""
    below = {pid for parent in found for pid in children.get(parent, ())}
    ordered = sorted(found - below)
    for parent in ordered:
        ordered.extend(pid for pid in children.get(parent, ()) if pid in found)
    return ordered


def _adopted_from(orphan: ProcessInfo) -> int | None:
    """The command that a child of ours must stem from which we did not start and which does not say itself: the only
    one that was there when it began. Where there were several nobody can tell, and it is left alone."""
    if orphan.pid in STARTED_HERE or any(entry.startswith(b"TICKDOWN_RUN_ID=") for entry in _environment(orphan.pid)):
        return None
    then = [
        pid
        for pid, life in STARTED_HERE.items()
        if life.started <= orphan.started and (life.ended is None or orphan.started <= life.ended)
    ]
    return then[0] if len(then) == 1 else None


def reap_adopted() -> None:
    """Adopted processes that have ended wait for somebody to take note."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as file:
            mine = [int(word) for word in file.read().split()]
    except OSError:
        return  # a kernel without this list; they go when this process does
    for pid in mine:
        info = process_info(pid)
        if info is not None and info.zombie and pid not in STARTED_HERE:
            os.waitpid(pid, os.WNOHANG)


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


class Termination:
    """Ends every process of a run: SIGTERM, time to clean up, SIGKILL. Never waits itself: call `step` until it is done."""

    def __init__(self, run_id: str, leader: tuple[int, int] | None, grace: float, now: float) -> None:
        self.run_id, self.leader = run_id, leader
        self.last_attempt: int | None = None  # those of later ones are somebody else's
        self.kill_at = now + grace
        self.look_every = FIRST_LOOK
        self.known: dict[int, int] = {}
        self.told: set[tuple[int, int]] = set()
        self.asked_at: int | None = None  # when SIGTERM was first sent, as the kernel counts the starts of processes
        self.survivors: list[int] = []

    def step(self, now: float) -> float | None:
        """Signal whoever is left; the time to look again, or None when nobody is."""
        try:
            with a_descriptor_free():
                self.known.update(processes_of(self.run_id, self.leader, self.last_attempt))
        except OSError as error:
            if remedy(error) is None or now >= self.kill_at + GIVE_UP_AFTER:
                raise
            return now + LONGEST_LOOK  # nothing left to look with: who is there is not known yet
        # Once seen, a process is followed by its identity, even when what tied it to the run is gone.
        self.known = {pid: started for pid, started in self.known.items() if _still(pid, started)}
        if not self.known:
            return None
        if now >= self.kill_at + GIVE_UP_AFTER:
            self.survivors = sorted(self.known)
            return None
        final = now >= self.kill_at
        asked_at, self.asked_at = self.asked_at, self.asked_at or ticks_since_boot()
        for pid, started in self.known.items():
            if final:
                send_signal(pid, started, signal.SIGKILL)
            elif (pid, started) not in self.told and (asked_at is None or started < asked_at):
                # Not what began since: it is cleaning up, as it was asked to, and has until SIGKILL.
                self.told.add((pid, started))
                send_signal(pid, started, signal.SIGTERM)
                send_signal(pid, started, signal.SIGCONT)  # a stopped process can't act on the first
        self.look_every = min(self.look_every * 2, LONGEST_LOOK)
        return now + self.look_every if final else min(now + self.look_every, max(self.kill_at, now + FIRST_LOOK))

    def hurry(self, now: float) -> None:
        self.kill_at = min(self.kill_at, now)


def _still(pid: int, started: int) -> bool:
    info = process_info(pid)
    return info is not None and info.started == started and not info.zombie
