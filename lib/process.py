"""Processes of the operating system: who is who, starting one, and ending all that it started.

Linux only: identity and descent are read from /proc. A pid alone names nobody, since the kernel gives it out again;
a pid with its start time (in clock ticks since boot) and the boot id does.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lib.model import Owner

PIPE_BYTES = 1 << 20
# How soon to look again while processes are ending: at once for the many that obey, slower for the few that don't.
FIRST_LOOK, LONGEST_LOOK = 0.01, 0.5
# SIGKILL is final except for a process stuck inside the kernel, which nobody can wait for.
GIVE_UP_AFTER = 20.0


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@cache
def host_name() -> str:
    return socket.gethostname()


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    pid: int
    parent: int
    group: int
    session: int
    started: int
    zombie: bool


def process_info(pid: int) -> ProcessInfo | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in brackets may itself contain brackets and spaces.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return ProcessInfo(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        zombie=fields[0] in (b"Z", b"X"),
    )


def start_time(pid: int) -> int:
    info = process_info(pid)
    return info.started if info else 0


def this_process() -> Owner:
    pid = os.getpid()
    return Owner(host_name(), pid, start_time(pid), boot_id())


def is_alive(owner: Owner) -> bool:
    """True only for the very process that was named. A zombie is dead: it holds no lock and supervises nothing."""
    if owner.boot_id != boot_id():
        return False
    info = process_info(owner.pid)
    return info is not None and info.started == owner.started and not info.zombie


def send_signal(pid: int, started: int, number: signal.Signals) -> bool:
    """Signal a process only if it is still the one meant: the descriptor pins it while its identity is checked."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        info = process_info(pid)
        if info is None or info.started != started:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


class Child:
    """A started command in a session of its own; its output comes through one pipe."""

    def __init__(self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        import fcntl

        reader, writer = os.pipe()
        try:
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # over the user's pipe quota: the default size works too
        try:
            self.popen = subprocess.Popen(
                argv,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                close_fds=True,
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self.output = reader
        self.output_open = True
        self.exited = False
        self.pid = self.popen.pid
        self.started = start_time(self.pid)
        try:
            self.exit_descriptor = os.pidfd_open(self.pid)
        except OSError:  # no descriptor left: what can't be watched must not run
            self.popen.kill()
            self.popen.wait()
            os.close(reader)
            raise

    def exit_status(self) -> tuple[int | None, int | None]:
        """(exit code, signal) of the ended process, which stays a zombie: until `close` its pid, and so the number of
        its group, can't be given to anybody else."""
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert result is not None
        return (result.si_status, None) if result.si_code == os.CLD_EXITED else (None, result.si_status)

    def leave_alone(self) -> None:
        """For children that the command left in the background with its output still open: somebody must go on reading
        it, or the first line they print would end them. It ends with the last of them."""
        os.set_blocking(self.output, True)
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        try:
            os.posix_spawnp(
                "cat", ["cat"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, self.output, 0), *quiet], setsid=True
            )
        except OSError:
            pass  # they are on their own

    def close(self) -> None:
        self.popen.poll()  # reaps it; one that even SIGKILL could not end must not be waited for
        for descriptor in (self.output, self.exit_descriptor):
            os.close(descriptor)


def processes_of(run_id: str, leader: tuple[int, int] | None) -> dict[int, int]:
    """Every live process of a run, as pid to start time.

    Found three ways, because each can be evaded alone: the run's id in the environment it was started with, the group
    or session of the leader (pid, start time; trusted only while that very process is there, if only as a zombie: its
    number would mean somebody else later), and descent from any of these.
    """
    everyone = {info.pid: info for info in map(process_info, _pids()) if info is not None and not info.zombie}
    mark = f"TICKDOWN_RUN_ID={run_id}".encode()
    me = os.getpid()
    found = {pid for pid in everyone if pid != me and _carries(pid, mark)}
    if leader is not None:
        holder = process_info(leader[0])
        if holder is not None and holder.started == leader[1]:
            found |= {info.pid for info in everyone.values() if leader[0] in (info.pid, info.group, info.session)}
    children: dict[int, list[int]] = {}
    for info in everyone.values():
        children.setdefault(info.parent, []).append(info.pid)
    queue = list(found)
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found and pid != me:
                found.add(pid)
                queue.append(pid)
    return {pid: everyone[pid].started for pid in found}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return False
    return mark in environment and mark in environment.split(b"\0")


class Termination:
    """Ends every process of a run: SIGTERM, time to clean up, SIGKILL. Never waits itself: call `step` until it is done."""

    def __init__(self, run_id: str, leader: tuple[int, int] | None, grace: float, now: float) -> None:
        self.run_id, self.leader = run_id, leader
        self.kill_at = now + grace
        self.look_every = FIRST_LOOK
        self.known: dict[int, int] = {}
        self.told: set[tuple[int, int]] = set()
        self.survivors: list[int] = []

    def step(self, now: float) -> float | None:
        """Signal whoever is left; the time to look again, or None when nobody is."""
        self.known.update(processes_of(self.run_id, self.leader))
        # Once seen, a process is followed by its identity, even when what tied it to the run is gone.
        self.known = {pid: started for pid, started in self.known.items() if _still(pid, started)}
        if not self.known:
            return None
        if now >= self.kill_at + GIVE_UP_AFTER:
            self.survivors = sorted(self.known)
            return None
        final = now >= self.kill_at
        for pid, started in self.known.items():
            if final:
                send_signal(pid, started, signal.SIGKILL)
            elif (pid, started) not in self.told:
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
