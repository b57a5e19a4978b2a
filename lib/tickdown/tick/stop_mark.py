"""A mark that ticks came and could not work, for when the database could not be told so.

It is an empty file: there may be no room for a single byte. Its name says why and since when, its time until when.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tickdown.base.model import MissReason
from tickdown.governor.miss_reasons import Stoppage
from tickdown.workspace.folders import Workspace, make_dir, private_opener

_PREFIX = "stopped-"
_SINCE = "%Y%m%dT%H%M%S"
# Cron comes every minute: what was marked longer ago was another trouble.
_SAME_TROUBLE = timedelta(minutes=5)


def leave_mark(workspace: Workspace, reason: MissReason, now: datetime) -> None:
    """In `state/`; among the logs if that is what can't be written. If nothing can, it will be told as an outage."""
    for folder in _places(workspace):
        try:
            make_dir(folder)
            same = [
                path for path, mark in _marks(folder) if mark.reason is reason and now - mark.until <= _SAME_TROUBLE
            ]
            path = same[0] if same else folder / f"{_PREFIX}{reason}-{now.astimezone(UTC):{_SINCE}}"
            os.close(private_opener(str(path), os.O_WRONLY | os.O_CREAT))
            os.utime(path, (now.timestamp(), now.timestamp()))
            return
        except OSError:
            continue


def take_marks(workspace: Workspace) -> Iterator[Stoppage]:
    """What was marked; each mark goes when the caller asks for the next one."""
    for folder in _places(workspace):
        for path, mark in _marks(folder):
            yield mark
            try:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # a folder of that name, or nothing can be removed here: then it is told again


def _places(workspace: Workspace) -> tuple[Path, Path]:
    return workspace.state, workspace.logs


def _marks(folder: Path) -> list[tuple[Path, Stoppage]]:
    found = []
    try:
        for entry in os.scandir(folder):
            if entry.name.startswith(_PREFIX):
                name, _, since = entry.name.removeprefix(_PREFIX).rpartition("-")
                until = datetime.fromtimestamp(entry.stat().st_mtime, UTC)
                began = datetime.strptime(since, _SINCE).replace(tzinfo=UTC)
                found.append((folder / entry.name, Stoppage(MissReason(name), began, until)))
    except (OSError, ValueError, OverflowError):
        pass  # what is not ours
    return found
