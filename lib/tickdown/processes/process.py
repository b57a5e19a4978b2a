"""Processes of the operating system: who is who, starting one, and ending all that it started.

Linux only: identity and descent are read from /proc. A pid alone names nobody, since the kernel gives it out again;
a pid with its start time (in clock ticks since boot) and the boot id does.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from tickdown.base import machine
from tickdown.base.errors import remedy
from tickdown.base.model import Owner
from tickdown.base.records import record

PIPE_BYTES = 1 << 20
WORTH_TWO = 1000  # so many small things to do are worth a second process
T = TypeVar("T")
R = TypeVar("R")
boot_id = cache(machine.boot_id)
host_name = cache(machine.host_name)


def stop_writing_to(stream: TextIO) -> None:
    """Its reader has left (`… | head`). What comes now, or was kept for later, goes nowhere, and Python does not complain of
    it at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def time_of_boot() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


@record(frozen=True)
class ProcessInfo:
    pid: int
    parent: int
    group: int
    session: int
    started: int
    zombie: bool


def process_info(pid: int) -> ProcessInfo | None:
    fields = _stat(pid)
    if fields is None:
        return None
    return ProcessInfo(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        zombie=fields[0] in (b"Z", b"X"),
    )


def _stat(pid: int) -> list[bytes] | None:
    """What the kernel tells of a process, behind its name; that may itself contain brackets and spaces."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
    except OSError as error:
        if remedy(error):
            raise  # who can't look has not seen that nobody is there
        return None
    return stat[stat.rindex(b")") + 2 :].split()


def start_time(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[19]) if fields is not None else 0


def this_process() -> Owner:
    pid = os.getpid()
    return Owner(host_name(), pid, start_time(pid), boot_id())


def is_alive(owner: Owner) -> bool:
    """True only for the very process that was named. A zombie is dead: it holds no lock and supervises nothing."""
    if owner.boot_id != boot_id():
        return False
    info = process_info(owner.pid)
    return info is not None and info.started == owner.started and not info.zombie


def descends_from_one_with(variable: str) -> bool:
    """Whether this process, or one that it descends from, was started with a variable: who takes it away from a child has
    still got it himself. As far as others' environments may be read."""
    if os.environ.get(variable):
        return True
    wanted, pid = os.fsencode(f"{variable}="), os.getppid()
    try:
        while pid > 1:
            if any(entry.startswith(wanted) for entry in _environment(pid).split(b"\0")):
                return True
            info = process_info(pid)
            pid = info.parent if info is not None else 0
    except OSError:
        pass  # no descriptors left: nothing can be told
    return False


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return b""  # another user's, or it has just ended


def lock_holder(path: str) -> int | None:
    """A process that holds a `flock` on a file, as far as that can be seen: who took it, or if he is gone the oldest of
    those that have inherited it."""
    try:
        info = os.stat(path)
        named = _named_by_kernel(info)
        if named is not None and _has_locked(named, info):
            return named
        found = [int(name) for name in os.listdir("/proc") if name.isdecimal() and _has_locked(int(name), info)]
        return min(found, key=start_time) if found else named
    except OSError:
        return None


def _has_locked(pid: int, info: os.stat_result) -> bool:
    """By its descriptors, which those of another user can't be asked for."""
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if os.path.samestat(os.stat(f"{folder}/{name}"), info):
                with open(f"/proc/{pid}/fdinfo/{name}", "rb") as file:
                    if b"FLOCK" in file.read():
                        return True
    except OSError:
        pass
    return False


def _named_by_kernel(info: os.stat_result) -> int | None:
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    with open("/proc/locks", encoding="ascii") as file:
        for words in map(str.split, file):
            if words[1] == "FLOCK" and words[5] == place:
                return int(words[4]) if process_info(int(words[4])) is not None else None
    return None


def process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


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


@record(frozen=True)
class Lifetime:
    """Of a command, in the kernel's clock ticks since boot, like the start time of a process."""

    started: int
    ended: int | None


# Every command that this process has started, by pid.
STARTED_HERE: dict[int, Lifetime] = {}


_NANOSECONDS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def ticks_since_boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NANOSECONDS_PER_TICK


@cache
def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process, not of init: so a task can't get out
    of sight by forking twice."""
    import ctypes

    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


class Child:
    """A started command in a session of its own; its output comes through one pipe, or with `apart` through two: what an
    agent prints on stdout is a document, and nothing else may get into it."""

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        stdin: bytes | None = None,
        *,
        apart: bool = False,
    ) -> None:
        adopt_orphans()
        pipes = [os.pipe() for _ in range(2 if apart else 1)]
        (self.output, stderr), (stdout_reader, stdout) = pipes[0], pipes[-1]
        self.stdout = stdout_reader if apart else None
        self._born = ticks_since_boot()
        try:
            self.pid = _spawn(argv, cwd, environment, stdin, stdout, stderr)
        except BaseException:
            self._close(reader for reader, _ in pipes)
            raise
        finally:
            self._close(writer for _, writer in pipes)
        self.open_outputs = [reader for reader, _ in pipes]
        self._descriptors = list(self.open_outputs)
        for reader in self.open_outputs:
            os.set_blocking(reader, False)
        self.exited = False
        STARTED_HERE[self.pid] = Lifetime(self._born, None)
        self._began_at_once = ticks_since_boot() == self._born
        try:
            self.exit_descriptor = os.pidfd_open(self.pid)
        except OSError:  # no descriptor left: what can't be watched must not run
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._close(self._descriptors)
            raise
        self._descriptors.append(self.exit_descriptor)

    @classmethod
    def of(cls, pid: int) -> Child:
        """A process that was forked, not started: only its exit is of interest."""
        child = cls.__new__(cls)
        child._began_at_once = False
        child.pid, child.exited, child.stdout, child.open_outputs = pid, False, None, []
        STARTED_HERE[pid] = Lifetime(ticks_since_boot(), 0)  # no command, so nothing stems from it
        child.exit_descriptor = os.pidfd_open(pid)
        child._descriptors = [child.exit_descriptor]
        return child

    @cached_property
    def started(self) -> int:
        """In the kernel's ticks. Where the clock showed the same before and after, there is nothing to ask for; otherwise it
        is asked for late, since the kernel makes whoever asks wait while a process is becoming its command."""
        return self._born if self._began_at_once else start_time(self.pid)

    def exit_status(self) -> tuple[int | None, int | None]:
        """(exit code, signal) of the ended process, which stays a zombie: until `close` its pid, and so the number of
        its group, can't be given to anybody else."""
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert result is not None
        return (result.si_status, None) if result.si_code == os.CLD_EXITED else (None, result.si_status)

    def leave_alone(self, outputs: Iterable[int]) -> None:
        """For children that the command left in the background with its output still open: somebody must go on reading
        it, or the first line they print would end them. It ends with the last of them."""
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        for output in outputs:
            os.set_blocking(output, True)
            try:
                reader = os.posix_spawnp(
                    "cat", ["cat"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, output, 0), *quiet], setsid=True
                )
            except OSError:
                return  # they are on their own
            STARTED_HERE[reader] = Lifetime(start_time(reader), 0)

    def close(self) -> None:
        os.waitpid(self.pid, os.WNOHANG)  # reaps it; one that even SIGKILL could not end must not be waited for
        STARTED_HERE[self.pid] = Lifetime(STARTED_HERE[self.pid].started, ticks_since_boot())
        self._close(self._descriptors)

    @staticmethod
    def _close(descriptors: Iterable[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)


def widen(pipe: int) -> None:
    """For somebody who prints faster than this process reads; most print a line, and the usual size will do."""
    import fcntl

    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass  # over the user's pipe quota


_ALL_SIGNALS = tuple(signal.valid_signals())


def _spawn(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str], stdin: bytes | None, stdout: int, stderr: int
) -> int:
    """The pid. OSError names the program that could not be started, or the folder that could not be entered.

    By `posix_spawn`, which costs the same however large this process is; every descriptor of ours closes itself in the
    child. It knows no folder, so this process, which has but one thread that starts anything, steps into it meanwhile.
    """
    _home()  # before it is left
    program = _program(argv[0], environment, cwd)
    source = _as_file(stdin) if stdin is not None else None
    actions: list[tuple[object, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0) if source is None else (os.POSIX_SPAWN_DUP2, source, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    try:
        os.chdir(cwd)
        return os.posix_spawn(
            program, list(argv), environment, file_actions=actions, setsid=True,
            setsigdef=_ALL_SIGNALS,  # Python ignores some, `nohup` others; tasks must not. Those left out cost more.
        )  # fmt: skip
    except OSError as error:
        if error.filename == program:  # whoever asked knows it by another name
            raise OSError(error.errno, error.strerror, argv[0]) from None
        raise
    finally:
        _go_home()
        if source is not None:
            os.close(source)


@cache
def _home() -> int | None:
    """The folder that this process was started in; None if that is gone, or closed to us."""
    try:
        return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _go_home() -> None:
    home = _home()
    try:
        os.chdir("/" if home is None else home)
    except OSError:
        os.chdir("/")  # closed to us since; nothing may keep us from looking after what was just started


def _program(name: str, environment: Mapping[str, str], cwd: Path) -> str:
    """Where a command without a slash is found, on the PATH that it will have itself."""
    if "/" in name:
        return name
    refused: OSError | None = None
    for folder in os.get_exec_path(environment):
        path = os.path.join(cwd, folder, name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _as_file(content: bytes) -> int:
    """Something to read from: the content, however long, without anybody who would have to feed it."""
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


# --- copies of this process ------------------------------------------------------------------------------------


def processors() -> int:
    return len(os.sched_getaffinity(0))


def may_fork() -> bool:
    """A copy of a process has only the thread that made it; what others were doing would stay undone in it."""
    return threading.active_count() == 1


class Forked:
    """Something that is worked out by a copy of this process, which ends with it."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._paper = os.memfd_create("answer", os.MFD_CLOEXEC)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self._paper)
            raise
        if self.pid == 0:
            self._work_and_end(work)

    def _work_and_end(self, work: Callable[[], bytes]) -> NoReturn:
        """Without the clearing up that only the first process has to do. In a session of its own, so that a signal from the
        terminal reaches the first, which passes it on as it sees fit."""
        code = 1
        try:
            os.setsid()
            answer = work()
            os.pwrite(self._paper, answer, 0)
            code = 0
        finally:
            try:
                sys.stdout.flush()
            finally:
                os._exit(code)

    def wait(self) -> bytes | None:
        """The answer; None if it died before it had one."""
        _, status = os.waitpid(self.pid, 0)
        return self.answer(os.waitstatus_to_exitcode(status))

    def answer(self, exit_code: int | None, signal: int | None = None) -> bytes | None:
        size = os.fstat(self._paper).st_size
        found = os.pread(self._paper, size, 0) if exit_code == 0 else None
        os.close(self._paper)
        return found


def in_two_processes(
    items: Sequence[T], work: Callable[[T], R], to_json: Callable[[R], Any], from_json: Callable[[Any], R]
) -> list[R]:
    """The work on each item, in their order. Where there are many, a copy of this process takes the second half; what it
    finds travels as JSON."""
    import json

    def alone(some: Sequence[T]) -> list[R]:
        return [work(item) for item in some]

    if len(items) < WORTH_TWO or processors() < 2 or not may_fork():
        return alone(items)
    middle = len(items) // 2
    first, second = items[:middle], items[middle:]
    try:
        other = Forked(lambda: json.dumps([to_json(result) for result in alone(second)]).encode())
    except OSError:  # no process to be had
        return alone(items)
    done, answer = alone(first), other.wait()
    return done + (alone(second) if answer is None else [from_json(value) for value in json.loads(answer)])
