"""A mark that ticks came and could not work, for when the database could not be told so.

It is an empty file: there may be no room for a single byte. Its two times say from when to when.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lib.absence import Stoppage
from lib.model import MissReason
from lib.workspace import Workspace, make_dir, private_opener

_PREFIX = "stopped-"
# Cron comes every minute: what was marked longer ago was another trouble.
_SAME_TROUBLE = timedelta(minutes=5)


def leave_mark(workspace: Workspace, reason: MissReason, now: datetime) -> None:
    """In `state/`; among the logs if that is what can't be written. If nothing can, it will be told as an outage."""
    for folder in _places(workspace):
        path = folder / f"{_PREFIX}{reason}"
        try:
            make_dir(folder)
            known = _times(path)
            since = known[0] if known is not None and now - known[1] <= _SAME_TROUBLE else now
            os.close(private_opener(str(path), os.O_WRONLY | os.O_CREAT))
            os.utime(path, (since.timestamp(), now.timestamp()))
            return
        except OSError:
            continue


def take_marks(workspace: Workspace) -> Iterator[Stoppage]:
    """What was marked; each mark goes when the caller asks for the next one."""
    for folder in _places(workspace):
        for reason in MissReason:
            path = folder / f"{_PREFIX}{reason}"
            times = _times(path)
            if times is not None:
                yield Stoppage(reason, *times)
                path.unlink(missing_ok=True)


def _places(workspace: Workspace) -> tuple[Path, Path]:
    return workspace.state, workspace.logs


def _times(path: Path) -> tuple[datetime, datetime] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return datetime.fromtimestamp(info.st_atime, UTC), datetime.fromtimestamp(info.st_mtime, UTC)
