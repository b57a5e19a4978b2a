"""The database is busy at the moment in which a task's file is to say that it does not run any more."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.helpers import Workspace
from tickdown.config import load_settings
from tickdown.context.app import app_with
from tickdown.context.task_file import disable_in_file
from tickdown.store import tasks
from tickdown.workspace.folders import find_workspace

FAILS_OFTEN = {"suspend_after": 1, "schedule": "1h"}


def test_the_file_is_left_to_a_later_tick(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickdown.store.database.BUSY_SECONDS", 0.1)
    workspace.task("job", "true", **FAILS_OFTEN)
    workspace.tick()
    found = find_workspace(str(workspace.root), os.environ, Path("/"))
    app = app_with(found, load_settings(found, {}))
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    with db.transaction() as connection:
        tasks.close(connection, "job", tasks.DisabledReason.PAUSED)
    other = sqlite3.connect(workspace.root / "state" / "tickdown.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    disable_in_file(app.context(db), catalog.find("job"), now)  # says nothing to whoever ends the run
    other.execute("ROLLBACK")
    other.close()
    assert "closing_put_off" in workspace.scheduler_log()
    facts = tasks.facts(db, "job")
    assert facts is not None and facts.closing is not None
    db.close()
    workspace.tick()
    assert "disabled_reason: paused" in (workspace.root / "tasks" / "job.md").read_text()
    assert workspace.sql("SELECT closing FROM tasks WHERE id = 'job'") == [(None,)]
