"""The database: its migrations, modes and constraints, and what is removed from it in time."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import pytest

from tests.helpers import PROJECT, Workspace, start_together, wait_for
from tickdown.base.errors import TickdownError
from tickdown.base.model import Alert, AlertKind, AlertStatus, AskedBy, ErrorClass, RunStatus, Source
from tickdown.store import database as module
from tickdown.store import outbox
from tickdown.store.database import Database
from tickdown.store.errors import RuleBroken, StoreError
from tickdown.store.schema import MIGRATIONS
from tickdown.time.instants import to_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tickdown.db"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    opened = Database(path)
    yield opened
    opened.close()


def tables(database: Database) -> set[str]:
    return {row["name"] for row in database.all("SELECT name FROM sqlite_master WHERE type = 'table'")}


# --- migrations ----------------------------------------------------------------------------------------------------


def test_a_new_database_has_every_migration(db: Database) -> None:
    assert db.one("PRAGMA user_version")["user_version"] == len(MIGRATIONS)  # type: ignore[index]
    assert {"tasks", "task_runs", "attempts", "alerts", "tickets", "heartbeats", "snapshots"} <= tables(db)


def test_migrations_are_applied_in_order_and_only_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIGRATIONS", ("CREATE TABLE one (a);",))
    Database(path).close()
    more = ("CREATE TABLE one (a);", "ALTER TABLE one ADD COLUMN b;", "CREATE TABLE two AS SELECT b FROM one;")
    monkeypatch.setattr(module, "MIGRATIONS", more)
    Database(path).close()
    again = Database(path)
    assert tables(again) == {"one", "two"}
    again.close()


def test_a_migration_that_fails_leaves_the_one_before_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "CREATE TABLE two (a);\nINSERT INTO one VALUES (1);\nCREATE TABLE one (again);"
    monkeypatch.setattr(module, "MIGRATIONS", ("CREATE TABLE one (a);", broken))
    with pytest.raises(StoreError):
        Database(path)
    monkeypatch.setattr(module, "MIGRATIONS", ("CREATE TABLE one (a);",))
    left = Database(path)
    assert tables(left) == {"one"} and left.all("SELECT * FROM one") == []
    left.close()


def test_a_database_from_a_newer_version_is_refused_and_not_changed(path: Path) -> None:
    opened = Database(path)
    opened.connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    opened.close()
    before = path.read_bytes()
    with pytest.raises(TickdownError, match="newer version"):
        Database(path)
    assert path.read_bytes() == before


def test_an_open_ticket_of_a_refused_alert_learns_its_destination(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIGRATIONS", MIGRATIONS[:3])
    old = Database(path)
    for kind, title in (("alert_failed", "alerts to home can't be delivered"), ("crash", "the scheduler crashed")):
        old.connection.execute(
            "INSERT INTO tickets (kind, title, body, opened_at, updated_at) VALUES (?, ?, '', '', '')", (kind, title)
        )
    old.close()
    monkeypatch.setattr(module, "MIGRATIONS", MIGRATIONS)
    new = Database(path)
    assert [tuple(row) for row in new.all("SELECT kind, destination FROM tickets ORDER BY id")] == [
        ("alert_failed", "home"), ("crash", ""),
    ]  # fmt: skip
    new.close()


def test_several_processes_may_open_a_new_database_at_once(path: Path) -> None:
    code = (
        f"from pathlib import Path; from tickdown.store.database import Database; Database(Path({str(path)!r})).close()"
    )
    done = start_together([[sys.executable, "-W", "error", "-c", code]] * 8, cwd=PROJECT / "lib")
    assert [(process.returncode, process.stderr) for process in done] == [(0, "")] * 8
    opened = Database(path)
    assert opened.problems() == []
    opened.close()


# --- modes ---------------------------------------------------------------------------------------------------------


def test_it_writes_ahead_checks_references_and_syncs_every_end(db: Database) -> None:
    modes = [db.one(f"PRAGMA {name}")[0] for name in ("journal_mode", "foreign_keys", "synchronous")]  # type: ignore[index]
    assert modes == ["wal", 1, 2]


def test_a_failed_transaction_changes_nothing(db: Database) -> None:
    with pytest.raises(RuntimeError), db.transaction():
        db.connection.execute("INSERT INTO meta VALUES ('a', '1')")
        raise RuntimeError
    assert db.one("SELECT 1 FROM meta WHERE name = 'a'") is None


def test_everything_that_is_written_is_private_whatever_the_umask(workspace: Workspace) -> None:
    workspace.task("a", "touch started; until [ -e go ]; do sleep 0.02; done; exit 1", schedule="1h")
    tick = workspace.start("tick", umask=0)
    wait_for((workspace.root / "started").exists)
    loose = [
        f"{found.relative_to(workspace.root)} {found.stat().st_mode & 0o777:o}"
        for top in ("state", "logs")
        for found in (workspace.root / top, *(workspace.root / top).rglob("*"))
        if found.stat().st_mode & 0o777 != (0o700 if found.is_dir() or found.parent.name == "shims" else 0o600)
    ]
    assert loose == []
    assert (workspace.root / "state" / "tickdown.db-wal").exists()  # it was among them
    (workspace.root / "go").touch()
    tick.communicate()


# --- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("task_runs", "status", RunStatus),
        ("task_runs", "source", Source),
        ("task_runs", "error_class", ErrorClass),
        ("alerts", "status", AlertStatus),
        ("actions", "asked_by", AskedBy),
    ],
)
def test_the_words_of_the_code_and_of_the_schema_are_the_same(
    db: Database, table: str, column: str, words: type[StrEnum]
) -> None:
    sql = db.one("SELECT sql FROM sqlite_master WHERE name = ?", table)["sql"]  # type: ignore[index]
    listed = re.search(rf"CHECK \({column} IN \(([^)]*)\)\)", sql)
    assert listed is not None
    assert re.findall(r"'([^']*)'", listed[1]) == [str(word) for word in words]


def test_an_attempt_is_never_skipped_or_missed(db: Database) -> None:
    sql = db.one("SELECT sql FROM sqlite_master WHERE name = 'attempts'")["sql"]  # type: ignore[index]
    listed = re.search(r"CHECK \(status IN \(([^)]*)\)\)", sql)
    assert listed is not None
    assert set(re.findall(r"'([^']*)'", listed[1])) == set(RunStatus) - {RunStatus.SKIPPED, RunStatus.MISSED}


def insert_run(db: Database, run_id: str, status: str, source: str = "manual", **more: object) -> None:
    finished = None if status == "running" else "2026-01-01T00:00:00.000Z"
    values = {
        "run_id": run_id, "task_id": "a", "key": run_id, "status": status, "source": source, "host": "h",
        "recorded_at": "2026-01-01T00:00:00.000Z", "finished_at": finished, "owner_pid": 1,
    } | more  # fmt: skip
    marks = ", ".join("?" * len(values))
    db.connection.execute(f"INSERT INTO task_runs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def test_every_status_and_source_can_be_stored_and_no_other(db: Database) -> None:
    for status in RunStatus:
        insert_run(db, status, status)
    for source in Source:
        insert_run(db, source, "success", source)
    for wrong in ({"status": "done"}, {"status": "success", "source": "magic"}):
        with pytest.raises(RuleBroken):
            insert_run(db, "wrong", **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "running", "finished_at": "2026-01-01T00:00:00.000Z"},
        {"status": "success", "finished_at": None},
        {"status": "running", "owner_pid": None},
        {"status": "success", "key": "taken"},
        {"status": "skipped", "count": 0},
    ],
)
def test_an_impossible_row_is_refused(db: Database, wrong: dict[str, str]) -> None:
    insert_run(db, "taken", "success")
    with pytest.raises(RuleBroken):
        insert_run(db, "wrong", **wrong)


def test_an_attempt_belongs_to_a_run(db: Database) -> None:
    insert = "INSERT INTO attempts (run_id, number, rung, status, started_at) VALUES (?, 1, 'run', 'running', 'now')"
    with pytest.raises(RuleBroken):
        db.connection.execute(insert, ("no such run",))


# --- retention -----------------------------------------------------------------------------------------------------


def days_ago(days: float) -> str:
    return to_store(datetime.now(UTC) - timedelta(days=days))


def make_older(workspace: Workspace, run: dict[str, str], days: float) -> Path:
    """Pretend that a run and its log are this many days old; the log."""
    workspace.sql("UPDATE task_runs SET recorded_at = ? WHERE run_id = ?", days_ago(days), run["run_id"])
    log = workspace.root / run["log"]
    moment = log.stat().st_mtime - days * 86400
    os.utime(log, (moment, moment))
    return log


def three_runs(workspace: Workspace) -> list[dict[str, str]]:
    workspace.task("a", "echo hello")
    return [workspace.json("run", "a") for _ in range(3)]


def test_old_runs_go_with_their_attempts_and_logs(workspace: Workspace) -> None:
    old, kept, last = three_runs(workspace)
    logs = [make_older(workspace, run, days) for run, days in ((old, 91), (kept, 89), (last, 1))]
    pruned = workspace.json("prune")
    assert (pruned["runs"], pruned["logs"]) == (1, 1)
    assert [run["run_id"] for run in workspace.runs("a")] == [kept["run_id"], last["run_id"]]
    assert workspace.sql("SELECT COUNT(*) FROM attempts") == [(2,)]
    assert [log.exists() for log in logs] == [False, True, True]


def test_keep_runs_says_how_long_runs_are_kept(workspace: Workspace) -> None:
    first, second, last = three_runs(workspace)
    workspace.config("keep_runs: 2d\n")
    for run, days in ((first, 3), (second, 1), (last, 0)):
        make_older(workspace, run, days)
    workspace.cli("prune")
    assert [run["run_id"] for run in workspace.runs("a")] == [second["run_id"], last["run_id"]]


def test_the_last_run_of_a_task_is_kept_with_its_log(workspace: Workspace) -> None:
    *_, last = three_runs(workspace)
    for run in workspace.runs("a"):
        make_older(workspace, run, 400)
    log = make_older(workspace, last, 399)
    workspace.cli("prune")
    assert [run["run_id"] for run in workspace.runs("a")] == [last["run_id"]] and log.exists()


def test_a_log_that_no_run_knows_goes_when_it_is_old(workspace: Workspace) -> None:
    three_runs(workspace)
    folder = workspace.root / "logs" / "runs" / "gone"
    folder.mkdir()
    for name, age in (("old.log", 91), ("young.log", 1)):
        (folder / name).touch()
        moment = (datetime.now(UTC) - timedelta(days=age)).timestamp()
        os.utime(folder / name, (moment, moment))
    workspace.cli("prune")
    assert [file.name for file in folder.iterdir()] == ["young.log"]


def test_heartbeats_are_kept_for_7_days_and_snapshots_for_30(workspace: Workspace) -> None:
    workspace.tick()
    workspace.sql("DELETE FROM heartbeats")
    workspace.sql("DELETE FROM snapshots")
    for days in (6.9, 7.1, 29.9, 30.1):
        workspace.sql("INSERT INTO heartbeats VALUES (?, 'h', 1)", days_ago(days))
        workspace.sql("INSERT INTO snapshots (at, host, running, due) VALUES (?, 'h', 0, 0)", days_ago(days))
    workspace.cli("prune")
    assert workspace.sql("SELECT COUNT(*) FROM heartbeats") == [(1,)]
    assert workspace.sql("SELECT COUNT(*) FROM snapshots") == [(3,)]


def test_a_tick_removes_what_is_old_once_a_day(workspace: Workspace) -> None:
    old, *_ = three_runs(workspace)
    workspace.tick()
    make_older(workspace, old, 91)
    workspace.tick()
    assert len(workspace.runs("a")) == 3  # today it was done already
    workspace.sql("UPDATE meta SET value = ? WHERE name = 'last_prune'", days_ago(1.01))
    workspace.tick()
    assert len(workspace.runs("a")) == 2


def test_a_run_that_still_goes_on_is_never_removed(workspace: Workspace) -> None:
    workspace.task("a", "touch started; until [ -e go ]; do sleep 0.02; done", schedule="1h")
    tick = workspace.start("tick")
    wait_for((workspace.root / "started").exists)
    make_older(workspace, workspace.last_run("a"), 91)
    workspace.sql(
        "INSERT INTO task_runs (run_id, task_id, key, status, source, host, recorded_at, finished_at)"
        " VALUES ('newer', 'a', 'newer', 'skipped', 'manual', 'h', ?, ?)", days_ago(0), days_ago(0),
    )  # fmt: skip
    workspace.cli("prune")
    going_on = workspace.last_run("a")
    assert going_on["status"] == "running" and (workspace.root / going_on["log"]).exists()
    (workspace.root / "go").touch()
    tick.communicate()


def test_an_alert_whose_lease_ran_out_is_not_sent_by_its_first_holder(tmp_path: Path) -> None:
    db = Database(tmp_path / "t.db")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with db.transaction() as connection:
        outbox.add_alert(connection, Alert(AlertKind.FAILED, "title"), now)
    slow = outbox.lease_due(db, None, now)
    assert outbox.lease_due(db, None, now) == []
    quick = outbox.lease_due(db, None, now + 2 * outbox.LEASE)
    assert not outbox.keep_lease(db, slow, now + 2 * outbox.LEASE)
    assert outbox.keep_lease(db, quick, now + 2 * outbox.LEASE)


@pytest.mark.parametrize("command", [["tick"], ["run", "a"], ["list"], ["why", "a"], ["comment", "a", "hello"]])
def test_the_last_command_leaves_one_file_without_a_log_beside_it(workspace: Workspace, command: list[str]) -> None:
    workspace.task("a", schedule="1h")
    workspace.cli(*command)
    assert [path.name for path in (workspace.root / "state").glob("tickdown.db*")] == ["tickdown.db"]
