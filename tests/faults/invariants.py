"""What must hold once ticks have gone on until quiet, whatever happened before.

Tasks that take part write what they do into a journal of their own, apart from everything Tickdown writes: one line when an
attempt begins and one when it ends by itself (`journalled`). The journal is what really happened; history must agree with it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass

from tests.helpers import Telegram, Workspace, wait_for

QUIET_WITHIN = 20  # ticks


def journalled(workspace: Workspace, command: str = ":") -> str:
    """A command that keeps a journal. Each line is one short write to a file opened for appending, so none is torn."""
    journal = workspace.root / "journal"
    line = 'echo "$TICKDOWN_RUN_ID $TICKDOWN_ATTEMPT'
    return f'{line} began" >> {journal}; {command}; code=$?; {line} ended" >> {journal}; exit $code'


@dataclass(frozen=True, slots=True)
class Journal:
    began: Counter[tuple[str, int]]  # by run and attempt
    ended: Counter[tuple[str, int]]

    @classmethod
    def of(cls, workspace: Workspace) -> Journal:
        began: Counter[tuple[str, int]] = Counter()
        ended: Counter[tuple[str, int]] = Counter()
        path = workspace.root / "journal"
        for line in path.read_text().splitlines() if path.exists() else ():
            run_id, attempt, word = line.split()
            (began if word == "began" else ended)[run_id, int(attempt)] += 1
        return cls(began, ended)


def tick_until_quiet(workspace: Workspace) -> None:
    """Ticks go on until one finds nothing to do; the tasks of the trial must not fall due again meanwhile."""
    for _ in range(QUIET_WITHIN):
        before = _moves(workspace)
        workspace.tick(code=None)
        if _moves(workspace) == before and not workspace.sql("SELECT 1 FROM task_runs WHERE status = 'running'"):
            return
    raise AssertionError(f"not quiet after {QUIET_WITHIN} ticks:\n{workspace.scheduler_log()[-5000:]}")


def _moves(workspace: Workspace) -> object:
    try:
        return workspace.sql("SELECT COUNT(*), TOTAL(attempts), TOTAL(count) FROM task_runs")
    except sqlite3.OperationalError:  # no tick has made the tables yet
        return None


def check(workspace: Workspace, telegram: Telegram | None = None) -> None:
    """The invariants that need no knowledge of what was tried."""
    assert workspace.sql("PRAGMA integrity_check") == [("ok",)]
    assert workspace.sql("PRAGMA foreign_key_check") == []
    stuck = workspace.sql("SELECT run_id, task_id FROM task_runs WHERE status = 'running'")
    assert not stuck, f"runs that stay running: {stuck}"
    assert not workspace.sql("SELECT * FROM attempts WHERE status = 'running'")
    wait_for(lambda: not workspace.processes(), "the end of all processes of the workspace")
    _check_journal(workspace)
    if telegram is not None:
        check_alerts(workspace, telegram)


def _check_journal(workspace: Workspace) -> None:
    """What ran is on record, what is on record as done was done, and nothing ran twice unless it was cut off."""
    journal = Journal.of(workspace)
    twice = [key for key, count in journal.began.items() if count > 1]
    assert not twice, f"attempts that began twice: {twice}"
    attempts = {
        (run_id, number): (status, rung)
        for run_id, number, status, rung in workspace.sql("SELECT run_id, number, status, rung FROM attempts")
    }
    unrecorded = [key for key in journal.began if key not in attempts]
    assert not unrecorded, f"attempts that ran without a row: {unrecorded}"
    if not journal.began:
        return
    runs = {run_id for run_id, _ in journal.began}
    undone = [
        key
        for key, (status, _) in attempts.items()
        if status == "success" and key[0] in runs and not journal.ended[key]
    ]
    assert not undone, f"recorded as successes, but they never ended: {undone}"
    keys = workspace.sql("SELECT key FROM task_runs GROUP BY key HAVING COUNT(*) > 1")
    assert not keys, f"occurrences with two runs: {keys}"
    for (run_id, number), (_, rung) in attempts.items():
        if number > 1 and rung == "rerun":
            # What failed was over, and its supervisor died before the retry that was to follow.
            before = attempts[run_id, number - 1][0]
            assert before in ("orphaned", "failed"), f"{run_id} ran again after an attempt that was {before}"


def check_alerts(workspace: Workspace, telegram: Telegram) -> None:
    """Each alert was delivered exactly once, or waits; one whose answer was lost may have come twice, and only that."""
    for alert_id, title, status in workspace.sql("SELECT id, title, status FROM alerts"):
        assert status in ("sent", "pending"), f"alert {alert_id} ({title}) is {status}"
