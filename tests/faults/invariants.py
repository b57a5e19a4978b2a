"""What must hold once ticks have gone on until quiet, whatever happened before.

Tasks that take part write what they do into a journal of their own, apart from everything Tickdown writes: one line when an
attempt begins and one when it ends by itself (`journalled`). The journal is what really happened; history must agree with it.
"""

from __future__ import annotations

import html
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.helpers import Telegram, Workspace, wait_for

QUIET_WITHIN = 20  # ticks
CANT_WORK = "the scheduler can't work: nothing runs"


def journalled(workspace: Workspace, command: str = ":") -> str:
    """A command that keeps a journal. Each line is one short write to a file opened for appending, so none is torn."""
    journal = workspace.root / "journal"
    line = 'echo "$TICKDOWN_RUN_ID $TICKDOWN_ATTEMPT'
    return f'{line} began" >> {journal}; ({command}); code=$?; {line} ended $code" >> {journal}; exit $code'


@dataclass(frozen=True, slots=True)
class Journal:
    began: Counter[tuple[str, int]]  # by run and attempt
    ended: Counter[tuple[str, int]]
    codes: dict[tuple[str, int], int]  # with which it ended
    events: list[tuple[str, int, bool]]  # (run, attempt, whether it begins), in their order

    @classmethod
    def of(cls, workspace: Workspace) -> Journal:
        journal = cls(Counter(), Counter(), {}, [])
        path = workspace.root / "journal"
        for line in path.read_text().splitlines() if path.exists() else ():
            run_id, attempt, word, *code = line.split()
            key = run_id, int(attempt)
            begins = word == "began"
            (journal.began if begins else journal.ended)[key] += 1
            if code:
                journal.codes[key] = int(code[0])
            journal.events.append((*key, begins))
        return journal


def tick_until_quiet(workspace: Workspace, code: int | None = None) -> None:
    """Ticks go on until one finds nothing to do; the tasks of the trial must not fall due again meanwhile. `code` is the exit
    code that each must have (None: any)."""
    for _ in range(QUIET_WITHIN):
        before = _moves(workspace)
        workspace.tick(code=code)
        if _moves(workspace) == before and not workspace.sql("SELECT 1 FROM task_runs WHERE status = 'running'"):
            return
    raise AssertionError(f"not quiet after {QUIET_WITHIN} ticks:\n{workspace.scheduler_log()[-5000:]}")


def _moves(workspace: Workspace) -> object:
    try:
        return workspace.sql("SELECT COUNT(*), TOTAL(attempts), TOTAL(count) FROM task_runs")
    except sqlite3.OperationalError:  # no tick has made the tables yet
        return None


def check(
    workspace: Workspace,
    telegram: Telegram | None = None,
    maybe_twice: Collection[int] = (),
    *,
    no_database: bool = False,
) -> None:
    """The invariants that need no knowledge of what was tried. `maybe_twice`, `no_database`: see `check_alerts`."""
    assert workspace.sql("PRAGMA integrity_check") == [("ok",)]
    assert workspace.sql("PRAGMA foreign_key_check") == []
    stuck = workspace.sql("SELECT run_id, task_id FROM task_runs WHERE status = 'running'")
    assert not stuck, f"runs that stay running: {stuck}"
    assert not workspace.sql("SELECT * FROM attempts WHERE status = 'running'")
    wait_for(lambda: not workspace.processes(), "the end of all processes of the workspace")
    _check_attempts(workspace)
    _check_journal(workspace)
    check_closings(workspace)
    if telegram is not None:
        check_alerts(workspace, telegram, maybe_twice, no_database=no_database)


# --- nothing twice -------------------------------------------------------------------------------------------------


def _check_attempts(workspace: Workspace) -> None:
    """Every attempt of a run but the first has a reason in the one before it."""
    keys = workspace.sql("SELECT key FROM task_runs GROUP BY key HAVING COUNT(*) > 1")
    assert not keys, f"occurrences with two runs: {keys}"
    attempts = _attempts(workspace)
    for run_id, stated in workspace.sql(
        "SELECT run_id, attempts FROM task_runs WHERE status NOT IN ('skipped', 'missed')"
    ):
        numbers = [number for other, number in attempts if other == run_id]
        assert numbers == list(range(1, stated + 1)), f"{run_id} has {stated} attempts, on record are {numbers}"
    healed = {run_id for (run_id, _), (_, rung, _) in attempts.items() if rung in ("heal", "comments")}
    for (run_id, number), (_, rung, _) in attempts.items():
        if number > 1 and rung in ("rerun", "retry") and run_id not in healed:
            before = attempts[run_id, number - 1][0]
            wanted = "orphaned" if rung == "rerun" else "failed"
            assert before == wanted, f"{run_id}: attempt {number} is a {rung} after one that was {before}"


def _attempts(workspace: Workspace) -> dict[tuple[str, int], tuple[str, str, int | None]]:
    rows = workspace.sql("SELECT run_id, number, status, rung, exit_code FROM attempts ORDER BY run_id, number")
    return {(run_id, number): (status, rung, code) for run_id, number, status, rung, code in rows}


def _check_journal(workspace: Workspace) -> None:
    """What ran is on record, what is on record as done was done, and nothing ran twice unless it was cut off."""
    journal = Journal.of(workspace)
    twice = [key for key, count in (journal.began + journal.ended).items() if count > 2 or journal.began[key] != 1]
    assert not twice, f"attempts that began or ended twice, or ended without having begun: {twice}"
    attempts = _attempts(workspace)
    unrecorded = [key for key in journal.began if key not in attempts]
    assert not unrecorded, f"attempts that ran without a row: {unrecorded}"
    runs = {run_id for run_id, _ in journal.began}
    for key, (status, rung, code) in attempts.items():
        if key[0] not in runs or rung in ("heal", "comments"):
            continue
        if status == "success":
            assert journal.codes.get(key) == 0, f"{key} is recorded as a success, but it never ended well"
        if status == "failed" and code is not None and key in journal.began:
            assert journal.codes.get(key) == code, f"{key} is recorded with exit code {code}, but it never ended so"
    for run_id in runs:
        well = [key for key, code in journal.codes.items() if key[0] == run_id and code == 0]
        counted = [key for key in well if attempts[key][0] not in ("orphaned", "killed", "timeout", "cancelled")]
        assert len(counted) <= 1, f"{run_id} succeeded more than once: {counted}"
    _check_overlaps(workspace, journal)


def _check_overlaps(workspace: Workspace, journal: Journal) -> None:
    """Attempts of one task never ran beside each other: whichever ends is the one that began last."""
    task_of = dict(workspace.sql("SELECT run_id, task_id FROM task_runs"))
    last: dict[str, tuple[str, int]] = {}
    for run_id, attempt, begins in journal.events:
        if begins:
            last[task_of[run_id]] = run_id, attempt
        else:
            assert last[task_of[run_id]] == (run_id, attempt), f"{(run_id, attempt)} ran beside {last[task_of[run_id]]}"


# --- nothing lost --------------------------------------------------------------------------------------------------


def check_none_lost(workspace: Workspace, due: Mapping[str, int | Collection[datetime]]) -> None:
    """Every due occurrence of every task has its row, and only one: `due` says how many there were, or when. Runs by hand and
    retries that follow a run are no occurrences; a row that says that one waits settles nothing."""
    for task_id, expected in due.items():
        runs = workspace.sql(
            "SELECT scheduled_for FROM task_runs WHERE task_id = ? AND status NOT IN ('skipped', 'missed') AND source NOT IN"
            " ('manual', 'retry')",
            task_id,
        )
        unrun = workspace.sql(
            "SELECT scheduled_for, COALESCE(last_scheduled_for, scheduled_for), count FROM task_runs WHERE task_id = ? AND"
            " (status = 'missed' OR (status = 'skipped' AND key NOT LIKE '%+' || reason))",
            task_id,
        )
        told = f"{task_id}: {workspace.rows(task_id)}"
        found = len(runs) + sum(count for *_, count in unrun)
        number = expected if isinstance(expected, int) else len(expected)
        assert found == number, f"{number} occurrences, {found} on record: {told}"
        if isinstance(expected, int):
            continue
        started = [_moment(at) for (at,) in runs]
        assert len(set(started)) == len(started), f"an occurrence has two runs: {told}"
        written_off = [(_moment(first), _moment(last)) for first, last, _ in unrun]
        for at in expected:
            times = started.count(at) + sum(first <= at <= last for first, last in written_off)
            assert times == 1, f"the occurrence of {at} is {times} times on record: {told}"


def _moment(stored: str) -> datetime:
    return datetime.fromisoformat(stored).astimezone(UTC)


def check_closings(workspace: Workspace) -> None:
    """What the end of a run means for its task has reached the file: nothing is left to be written."""
    left = workspace.sql("SELECT id, closing FROM tasks WHERE closing IS NOT NULL AND NOT gone")
    assert not left, f"ends that no file tells of: {left}"


# --- alerts --------------------------------------------------------------------------------------------------------


def leased_alerts(workspace: Workspace) -> set[int]:
    """Alerts that somebody is about to send, or has sent and not stamped: ask when a tick has just been killed."""
    try:
        rows = workspace.sql("SELECT id FROM alerts WHERE status = 'pending' AND lease_until IS NOT NULL")
    except sqlite3.OperationalError:  # no tick has made the tables yet
        return set()
    return {alert_id for (alert_id,) in rows}


def end_leases(workspace: Workspace) -> None:
    """As if the time had passed for which a dead tick keeps others from sending its alerts."""
    workspace.sql("UPDATE alerts SET lease_until = '2000-01-01T00:00:00.000Z' WHERE lease_until IS NOT NULL")


def check_alerts(
    workspace: Workspace, telegram: Telegram, maybe_twice: Collection[int] = (), *, no_database: bool = False
) -> None:
    """Each alert was delivered exactly once, or waits. Those of `maybe_twice` (ids) were cut off between the sending and the
    stamp, as far as anybody can tell: they may have come once more than is on record, and only they. Where there was
    `no_database` for a while, one alert that says so may have come without a row."""
    again = workspace.sql("SELECT run_id FROM alerts WHERE run_id IS NOT NULL GROUP BY run_id HAVING COUNT(*) > 1")
    assert not again, f"runs that gave more than one alert: {again}"
    by_title: dict[str, list[tuple[int, str]]] = {}
    for alert_id, title, status in workspace.sql("SELECT id, title, status FROM alerts"):
        assert status in ("sent", "pending"), f"alert {alert_id} ({title}) is {status}"
        by_title.setdefault(title, []).append((alert_id, status))
    received = received_titles(telegram)
    unrecorded = {CANT_WORK: 1} if no_database else {}
    unknown = [title for title, times in received.items() if title not in by_title and times > unrecorded.get(title, 0)]
    assert not unknown, f"messages that stem from no alert: {unknown}"
    cut = any("\n… and " in text for text in telegram.texts)  # a digest that could not name all
    for title, alerts in by_title.items():
        sent = sum(status == "sent" for _, status in alerts)
        least = 0 if cut else sent
        most = sent + sum(alert_id in maybe_twice for alert_id, _ in alerts) + unrecorded.get(title, 0)
        assert least <= received[title] <= most, f"{title!r} came {received[title]} times, not {least} to {most}"


def received_titles(telegram: Telegram) -> Counter[str]:
    """The titles of all alerts that arrived, one by one or in digests."""
    found: Counter[str] = Counter()
    for text in telegram.texts:
        head, *lines = text.split("\n")
        items = [line for line in lines if line.startswith("• <b>")]
        bold = [line.removeprefix("• ") for line in items] if " alerts on " in head else [head]
        found.update(html.unescape(line.removeprefix("<b>").partition("</b>")[0]) for line in bold)
    return found
