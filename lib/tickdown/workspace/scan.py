"""Which task files there are, with a stamp of each that changes whenever the file does.

On the way of every tick, so it imports next to nothing and touches each file once, by `stat`.
"""

import os
import time
from collections.abc import Iterator

# A file that was changed within one step of the file system's clock may be changed again without a new time: it is not
# trusted yet. Clocks that show whole seconds only are given away by their zeros.
_FINE_STEP = 20_000_000
_COARSE_STEP = 2_000_000_000
UNTRUSTED = ""
_UNUSABLE = "unusable"


def is_task_file(name: str) -> bool:
    return name.endswith(".md") and name != "README.md" and not name.startswith((".", "_"))


def scan(folder: str) -> Iterator[tuple[str, str]]:
    """(path, stamp) of every `*.md` below a folder, except README.md and names that begin with `.` or `_`. OSError if the
    folder itself can't be read.

    Linked folders are not entered: they could lead out of the workspace, or in a circle. A subfolder that can't be read
    comes as itself, to be rejected; what disappears meanwhile is not there.
    """
    now = time.time_ns()
    folders = [folder]
    while folders:
        current = folders.pop()
        try:
            entries = os.scandir(current)
        except FileNotFoundError:
            if current == folder:
                raise
            continue
        except OSError:
            if current == folder:
                raise
            yield current, _unusable(current)
            continue
        with entries:
            for entry in entries:
                name = entry.name
                if name[0] in "._":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif is_task_file(name):
                    yield entry.path, _stamp(entry, now)


def _stamp(entry: os.DirEntry[str], now: int) -> str:
    """Inode, size and both times: the time of the inode can't be set by anybody, and tells of changed modes and owners."""
    try:
        info = entry.stat()
    except OSError:
        return _unusable(entry.path)
    changed = info.st_ctime_ns
    if -_COARSE_STEP < now - changed < (_FINE_STEP if changed % 1_000_000_000 else _COARSE_STEP):
        return UNTRUSTED
    stamp = f"{info.st_ino} {info.st_size} {info.st_mtime_ns} {changed}"
    # Where a link leads can change without the link or its goal being touched.
    return f"{stamp} {os.path.realpath(entry.path)}" if entry.is_symlink() else stamp


def _unusable(path: str) -> str:
    """Of a link that leads nowhere, or a folder that can't be read: until that itself is changed."""
    try:
        info = os.lstat(path)
    except OSError:
        return UNTRUSTED
    return f"{_UNUSABLE} {info.st_ino} {info.st_ctime_ns}"


def is_unusable(stamp: str) -> bool:
    return stamp.startswith(_UNUSABLE)
