"""What an idle tick relies on: the fingerprint of everything that the catalogue was made from, and `state/shortcut`. On the
way of every tick, so it imports next to nothing."""

import os
import time
from collections.abc import Iterable
from datetime import datetime

from tickdown.base.machine import boot_id
from tickdown.workspace.scan import UNTRUSTED, scan

ROTATE_AT = 10 * 1024 * 1024  # bytes of scheduler.log
GOOD_FOR = 1.0  # seconds: who had to wait for the database looks at the files once more
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
# What decides how a file is read: with another version of it, nothing that is remembered holds. A folder changes when a file
# in it is replaced, as by an update.
PARSER = ("base", "time", "agents", "schedule", "tasks", "tasks/task.py", "schedule/cron.py", "tasks/remembered.py")


def shortcut_path(root: str) -> str:
    return os.path.join(root, "state", "shortcut")


def read_shortcut(root: str) -> list[str]:
    """The database, then the variables that the configuration refers to."""
    with open(shortcut_path(root), encoding="utf-8") as file:
        return file.read().splitlines()


def outside(root: str) -> list[str]:
    """What is outside the task files and decides what they mean and when they are due. To be taken down before the settings
    are read: what changes in between is then noticed by the next tick."""
    info = os.stat(root)
    whose = f"{info.st_uid} {info.st_gid} {os.geteuid()} {os.getegid()}"  # whose files are accepted
    settings = (os.path.join(root, name) for name in ("config.yaml", ".env"))
    program = (os.path.join(_PACKAGE, name) for name in ("", *PARSER))
    changes = map(_change, (*settings, "/etc/localtime", "/etc/timezone", *program))
    return [whose, boot_id(), os.path.realpath(os.path.join(root, "tasks")), *changes]


def basis(seen: Iterable[str], variables: Iterable[str]) -> str:
    """A digest of all that, and of the variables that the configuration refers to."""
    from _blake2 import blake2b  # not through hashlib, which loads all of OpenSSL

    parts = [*seen, *(f"{name}={os.environ.get(name)}" for name in (*variables, "TZ"))]
    return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _change(path: str) -> str:
    """Changes whenever the file does; of a folder, whenever something is put into it or taken out."""
    try:
        info = os.stat(path)
    except OSError:
        return "-"
    return f"{info.st_ino} {info.st_size} {info.st_mode} {info.st_uid} {info.st_mtime_ns} {info.st_ctime_ns}"


def fingerprint(of_basis: str, files: Iterable[tuple[str, str]]) -> str | None:
    """Of the basis and of every file with its stamp; None if one of them can't be trusted yet."""
    from _blake2 import blake2b

    digest = blake2b(digest_size=16)
    for path, stamp in files:
        if stamp == UNTRUSTED:
            return None
        digest.update(f"{path}\0{stamp}\n".encode("utf-8", "surrogateescape"))
    return f"{of_basis} {digest.hexdigest()}"


def is_complete(made_from: str) -> bool:
    """Whether it is such a fingerprint, and not a basis alone, which is remembered where a file could not be trusted."""
    return " " in made_from


class Look:
    """All files with their stamps, as a tick has found them. One that has something to do goes on from here: to look once
    more would cost as much again."""

    __slots__ = ("at", "found", "remembered", "root", "until")

    def __init__(self, root: str, at: datetime, remembered: str) -> None:
        self.root, self.at, self.remembered = root, at, remembered
        self.until = time.monotonic() + GOOD_FOR
        self.found = list(scan(os.path.join(root, "tasks")))

    def still_holds(self, root: str, remembered: str) -> bool:
        """Not if another tick has read the files since: what it has met must not be missed here. Nor after a wait."""
        return (root, remembered) == (self.root, self.remembered) and time.monotonic() < self.until
