"""What is older than the configuration keeps goes, the logs with their rows: once a day, or when somebody asks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tickdown.actions.record import log_action, record_action
from tickdown.base.model import ActionName, Asker
from tickdown.base.records import record
from tickdown.context.app import Opened
from tickdown.context.context import Context
from tickdown.heal.guard import remove_folder
from tickdown.store import heals, ticks
from tickdown.store.runs import get_run
from tickdown.workspace.folders import UNFINISHED

_UNFINISHED = re.compile(rf"\..+{re.escape(UNFINISHED)}[a-z0-9_]{{8}}")


@record(frozen=True)
class Pruned:
    before: str
    runs: int
    logs: int


def prune(opened: Opened, asker: Asker) -> Pruned:
    pruned = remove_old(opened.context, opened.now)
    detail = f"{pruned.runs} runs and {pruned.logs} logs from before {pruned.before}"
    with opened.db.transaction() as connection:
        record_action(connection, opened, asker, ActionName.PRUNE, detail=detail)
    log_action(opened.app.log, "prune_asked", asker)
    return pruned


def remove_old(context: Context, now: datetime) -> Pruned:
    config = context.settings.config
    before = now - config.keep_runs
    removed = logs = 0
    for lot in ticks.remove_old_runs(context.db, before):
        removed += len(lot)
        logs += sum(_remove(context.workspace.root / log) for log in lot if log)
    ticks.remove_old_bookkeeping(context.db, config.keep_runs, now)
    logs += _remove_strays(context, before)
    _remove_snapshots(context)
    _remove_unfinished(context, now)
    pruned = Pruned(before.isoformat(timespec="seconds"), removed, logs)
    context.log.info("pruned", runs=pruned.runs, logs=pruned.logs, before=pruned.before)
    return pruned


def _remove(path: Path) -> int:
    try:
        path.unlink()
    except OSError:
        return 0  # gone already, or not ours to remove
    try:
        path.parent.rmdir()
    except OSError:
        pass  # other logs are in it
    return 1


def _remove_strays(context: Context, before: datetime) -> int:
    """Logs that no row knows of (their database was set aside, or a prune was cut off)."""
    folder = context.workspace.logs / "runs"
    if not folder.is_dir():
        return 0
    old = (path for path in folder.glob("*/*.log") if _older(path, before))
    return sum(_remove(path) for path in old if get_run(context.db, path.stem) is None)


def _remove_snapshots(context: Context) -> None:
    """Of heals whose runs are gone: nobody can ask for their diff any more, nor for their undoing."""
    folder = context.workspace.heals
    if not folder.is_dir():
        return
    known = heals.runs_on_record(context.db)
    for path in folder.iterdir():
        if path.name.rpartition("-")[0] not in known:
            remove_folder(path)


def _remove_unfinished(context: Context, now: datetime) -> None:
    """What a writer that was killed has left beside the files it was to replace."""
    for top in (context.workspace.tasks, context.workspace.state):
        for path in _unfinished_below(top):
            if _older(path, now - ticks.A_DAY):
                _remove(path)


def _unfinished_below(top: Path) -> Iterator[Path]:
    """Without recursion: folders can be nested deeper than Python goes. What can't be read is passed over."""
    folders = [str(top)]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from (
            Path(entry.path) for entry in entries if _UNFINISHED.fullmatch(entry.name) and not entry.is_symlink()
        )


def _older(path: Path, before: datetime) -> bool:
    try:
        return path.is_file() and path.stat().st_mtime < before.timestamp()
    except OSError:
        return False
