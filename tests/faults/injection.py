"""Faults from outside: limits of a running process, a small disk, a user whom modes hold, a lock on the database."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.kinds import CannotTry
from tests.helpers import PROJECT, Telegram, Workspace, wait_for

IMPATIENT = Path(__file__).with_name("impatient_scheduler.py")
NOBODY = 65534


class PlainWorkspace(Workspace):
    """One whose commands are run by an ordinary user, since root is held by neither modes nor limits."""

    def argv(self, *arguments: str) -> list[str]:
        return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *super().argv(*arguments)]


@contextmanager
def ordinary_user(workspace: Workspace) -> Iterator[Workspace]:
    """The workspace itself if we are no root; otherwise another one, of an ordinary user and where that one gets to."""
    if os.geteuid() != 0:
        yield workspace
        return
    if shutil.which("setpriv") is None:
        raise CannotTry("no setpriv to become an ordinary user with")
    folder = Path(tempfile.mkdtemp(prefix="tickdown-plain-"))
    folder.chmod(0o755)
    try:
        plain = PlainWorkspace(folder / "ws")
        for path in (plain.root, plain.root / "tasks"):
            os.chown(path, NOBODY, NOBODY)
        reaches = subprocess.run([*plain.argv("list")], env=plain.environment, capture_output=True, cwd=plain.root)
        if reaches.returncode != 0:
            raise CannotTry(f"an ordinary user can't read {PROJECT.name}")
        try:
            yield plain
        finally:
            plain.kill_everything()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_its_user(workspace: Workspace, path: Path) -> None:
    """A file of the test that the workspace's user must own."""
    if isinstance(workspace, PlainWorkspace):
        os.chown(path, NOBODY, NOBODY)


@contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """A limit of a process that runs; it gets its old one back. The hard limit stays, or nobody but root could."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        try:
            resource.prlimit(pid, what, before)
        except ProcessLookupError:
            pass  # it has ended meanwhile


@contextmanager
def small_disk(workspace: Workspace, kib: int) -> Iterator[None]:
    """A file system of its own for a workspace; what is in it goes with it."""
    folder = workspace.root
    if os.geteuid() != 0:
        raise CannotTry("only root may mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=0755", "tickdown-fault", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        raise CannotTry(f"no small disk can be mounted: {mounted.stderr.strip()}")
    try:
        yield
    except BaseException:
        workspace.kill_everything()  # nobody may keep it busy
        raise
    finally:
        gc.collect()  # a connection of this process that nobody uses any more would keep the disk busy
        wait_for(lambda: subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0, "the unmounting")


def fill(folder: Path, leave: int = 0) -> Path:
    """Use up the disk of a folder, but for about so many bytes."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        size = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize - leave
        block = b"x" * 4096
        try:
            for _ in range(max(0, size) // len(block)):
                file.write(block)
        except OSError:
            pass  # as full as it can be
    return filler


@contextmanager
def locked(workspace: Workspace) -> Iterator[None]:
    """Somebody else writes into the database, and does not come to an end."""
    connection = sqlite3.connect(workspace.root / "state" / "tickdown.db", timeout=60, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextmanager
def telegram_of(workspace: Workspace, more: str = "") -> Iterator[Telegram]:
    server = Telegram()
    try:
        server.configure(workspace, more)
        as_its_user(workspace, workspace.root / ".env")
        yield server
    finally:
        server.close()
