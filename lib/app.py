"""What every command starts from: the workspace, its settings, its tasks and its database."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from lib.catalog import Catalog, TaskFile, catalog_of, past_dates, scan_tasks, unknown_id, without_past_dates
from lib.config import Settings, load_settings, remember
from lib.context import Context
from lib.errors import Exit, TickdownError, explained
from lib.governor import next_run, state_of
from lib.idle import Look, fingerprint, read_shortcut, shortcut_path
from lib.lock import is_held
from lib.log import Log
from lib.model import Alert, ErrorClass, Facts, Run, RunStatus
from lib.process import boot_id, this_process
from lib.records import record, replace
from lib.redact import Redactor, secrets_in
from lib.store import files, outbox, runs, tasks, ticks
from lib.store.database import Database, UnusableDatabase, has_content
from lib.task import Task
from lib.terminal import one_line
from lib.views import TaskView
from lib.workspace import PRIVATE_FILE, Workspace, make_private_dir, replace_file

LOOK_AGAIN = 3  # at most, where files disappear while they are read


@record(frozen=True)
class App:
    workspace: Workspace
    settings: Settings
    redactor: Redactor
    log: Log
    on_screen: Redactor  # knows the secrets in the task files too, as soon as they are read

    def catalog(self, db: Database | None = None) -> Catalog:
        """The files as they are; those that the store knows are not read again. See `reject_past_dates` for what only the
        store can tell of them."""
        catalog = load(self.workspace, self.settings, db)
        self.on_screen.learn(catalog.literal_secrets())
        return catalog

    def open(self, now: datetime) -> tuple[Catalog, Database]:
        db = self.database()
        return reject_past_dates(self.catalog(db), db, now), db

    def database_path(self) -> Path:
        return self.workspace.root / os.path.expanduser(self.settings.config.database)

    def database(self) -> Database:
        try:
            make_private_dir(self.workspace.state)
        except OSError as error:
            raise UnusableDatabase(f"the folder {self.workspace.state} can't be used: {explained(error)}") from None
        return Database(self.database_path(), None if self._has_database else self._database_before())

    def database_to_look_at(self) -> Database:
        """Where there is none yet, none is made."""
        return self.database() if self._has_database else Database(None, self._database_before())

    @property
    def _has_database(self) -> bool:
        try:
            return has_content(self.database_path())
        except OSError:
            return True  # whoever opens it says what is wrong

    def _database_before(self) -> str | None:
        """What was there before a database that is new: the path of another one that is still there, nothing if it is gone,
        None if there was none. Told by what ticks and runs leave beside it."""
        try:
            used = read_shortcut(str(self.workspace.root))[0]
        except (OSError, ValueError, IndexError):
            used = ""
        if used and used != str(self.database_path()) and os.path.exists(used):
            return used
        return "" if used or _is_in_use(self.workspace.logs / "runs") else None

    def context(self, db: Database) -> Context:
        return Context(self.workspace, self.settings, db, self.redactor, self.log, this_process())


def _is_in_use(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def make_app(workspace: Workspace) -> App:
    return app_with(workspace, load_settings(workspace, os.environ))


def app_with(workspace: Workspace, settings: Settings) -> App:
    config = settings.config
    secrets = secrets_in(settings.env_file, settings.environment, [config.notify.token])
    redactor = Redactor(secrets)
    return App(workspace, settings, redactor, Log(workspace.logs, redactor), Redactor(secrets))


def load(workspace: Workspace, settings: Settings, db: Database | None, look: Look | None = None) -> Catalog:
    now, remembered, kept = datetime.now(UTC), "", {}
    if db is not None:
        with db.one_moment():
            remembered, kept = ticks.remembered_catalogue(db), files.all_files(db)
    # What is kept must not be newer than what is found: a file that another tick has met in between would be taken for gone.
    if look is not None and look.still_holds(str(workspace.root), remembered):
        now, found = look.at, look.found
    else:
        found = scan_tasks(workspace)
    trusted = bool(settings.basis) and remembered.startswith(settings.basis)
    catalog = catalog_of(found, workspace, settings.config.surroundings(), kept, now, trusted=trusted)
    for _ in range(LOOK_AGAIN):
        if not catalog.vanished:
            break
        now, found = datetime.now(UTC), scan_tasks(workspace)  # it may have another name by now
        catalog = catalog_of(found, workspace, settings.config.surroundings(), kept, now, trusted=trusted)
    made_from = None if catalog.may_read_otherwise else fingerprint(settings.basis, found)
    return replace(catalog, made_from=made_from or settings.basis, remembered=remembered)


def refresh(context: Context, now: datetime, look: Look | None = None) -> Catalog:
    """Bring the catalogue and the store up to date with the files, and see to what was found broken. For ticks."""
    catalog = reject_past_dates(load(context.workspace, context.settings, context.db, look), context.db, now)
    # Before the files are remembered as known: a tick that dies in between must leave the next one something to report.
    _report_broken_files(context.db, catalog, now)
    sync_catalog(context.db, catalog, now, seen_to=True)
    return catalog


def _report_broken_files(db: Database, catalog: Catalog, now: datetime) -> None:
    from lib import messages

    broken = [(file.path, file.digest, messages.broken_file_alert(file.path, file.errors)) for file in catalog.rejected]
    outbox.report_broken_files(db, broken, now)


def leave_shortcut(context: Context) -> None:
    """What the next tick must know before it has read the configuration. Where every tick has to tell a watcher, none is
    idle."""
    root, settings = context.workspace.root, context.settings
    path = Path(shortcut_path(str(root)))
    try:
        remember(context.workspace, settings)
        if settings.config.ping_url:
            path.unlink(missing_ok=True)
            return
        lines = [str(context.db.path), *settings.variables]
        if not path.exists() or read_shortcut(str(root)) != lines:
            replace_file(path, "".join(f"{line}\n" for line in lines).encode(), PRIVATE_FILE)
    except (OSError, UnicodeError) as error:
        context.log.warning("shortcut_not_left", error=str(error))


def reject_past_dates(catalog: Catalog, db: Database, now: datetime) -> Catalog:
    """`on DATE` is an error if it had passed before anybody saw it."""
    if not past_dates(catalog, now):
        return catalog
    met = {key: (known.schedule, known.timezone) for key, known in tasks.remembered(db).items() if known.enabled}
    return without_past_dates(catalog, met, now)


def sync_catalog(
    db: Database, catalog: Catalog, now: datetime, *, rebuilt: bool = False, seen_to: bool = False
) -> None:
    """Let the store know the task files as they are; with duplicates nobody knows which is meant. Unless somebody sees to
    what is broken in them (`seen_to`), the next tick is not to take them for known. The first time after another database was
    lost, that is told; unless whoever calls does it himself (`rebuilt`)."""
    if catalog.duplicates or (catalog.made_from == catalog.remembered and not (catalog.read or catalog.removed)):
        return
    with db.transaction() as connection:
        files.write(connection, catalog.read, catalog.removed)
        before = ticks.replaces(db)
        if before is not None and before[1] is None:
            ticks.known_from_now_on(connection, now)
            if not rebuilt:
                outbox.add_alert(connection, _about_the_one_before(str(db.path), before[0]), now)
            rebuilt = True
        tasks.sync(connection, catalog, now, boot_id(), rebuilt=rebuilt)
        # If somebody has written another one meanwhile, theirs may be the newer: then neither is taken for complete.
        complete = seen_to and ticks.remembered_catalogue(db) == catalog.remembered
        ticks.remember_catalogue(connection, catalog.made_from if complete else catalog.made_from.partition(" ")[0])


def _about_the_one_before(path: str, before: str) -> Alert:
    from lib import messages

    return messages.other_database_alert(path, before) if before else messages.lost_alert(path)


def facts_as_synced(db: Database, catalog: Catalog, now: datetime) -> dict[str, Facts]:
    """What a tick would know of the tasks now, files edited since the last one included; nothing is changed. By
    lower-case id."""
    if not (catalog.read or catalog.removed):
        return tasks.all_facts(db)
    with db.rehearsal():
        sync_catalog(db, catalog, now)
        return tasks.all_facts(db)


def held_now(facts: Facts, locks: Path) -> Facts:
    """Without a lock that a tick has found held, if it is free by now."""
    if facts.held is None or (not facts.running and is_held(locks, facts.task_id)):
        return facts
    return replace(facts, held=None)


def task_view(
    task: Task, facts: Facts | None, last: Run | None, now: datetime, cut_off: Mapping[str, Run] | None = None
) -> TaskView:
    """`cut_off` is what the function of this name has found, where that is to be told."""
    state = state_of(now, task, facts)
    dead = cut_off.get(task.id.lower()) if cut_off else None
    held = facts.held if facts is not None else None
    return TaskView(task, state, next_run(now, task, facts, boot_id()), last, dead, held)


def cut_off(db: Database) -> dict[str, Run]:
    """Runs that say they are going on but have lost their supervisor, by lower-case id of the task."""
    if not runs.running_runs(db):
        return {}
    from lib.recover import dead_runs  # with all that runs need, which is much for `list`

    return {run.task_id.lower(): run for run in dead_runs(db)}


def task_views(db: Database, catalog: Catalog, now: datetime, locks: Path) -> list[TaskView]:
    facts = {key: held_now(fact, locks) for key, fact in facts_as_synced(db, catalog, now).items()}
    last, dead = runs.last_runs(db), cut_off(db)
    return [task_view(task, facts.get(task.id.lower()), last.get(task.id.lower()), now, dead) for task in catalog.tasks]


def rejected_files(db: Database, catalog: Catalog) -> list[tuple[TaskFile, str | None, Run | None]]:
    """Each with the id that it has, or had when it was last whole, and the last run under that."""
    if not catalog.rejected:
        return []
    names = {known.path: known.task_id for known in tasks.remembered(db).values()}
    found = [(file, file.task_id or names.get(file.path)) for file in catalog.rejected]
    return [(file, task_id, runs.last_run_of(db, task_id) if task_id else None) for file, task_id in found]


def transient_since(db: Database, last: Run | None) -> datetime | None:
    """When a row of failures began that pass by themselves, if the last run is one of them. Not farther back than matters
    to a person."""
    if last is None or not _passes(last):
        return None
    started = last.started_at
    for run in runs.list_runs(db, last.task_id, limit=100):
        if run.status in (RunStatus.SKIPPED, RunStatus.MISSED):
            continue
        if not _passes(run):
            break
        started = run.started_at
    return started


def _passes(run: Run) -> bool:
    return run.status is RunStatus.FAILED and run.error_class == ErrorClass.TRANSIENT


def find_run(db: Database, catalog: Catalog, name: str) -> Run:
    """By run id (or the beginning of one), else the last real run of a task."""
    exact = runs.get_run(db, name)
    if exact is not None:
        return exact
    by_task = runs.last_run_of(db, name)
    if by_task is not None:
        return by_task
    by_prefix = runs.runs_starting_with(db, name) if len(name) >= 8 else []
    if len(by_prefix) == 1:
        return by_prefix[0]
    if re.fullmatch(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}", name):
        raise TickdownError(f"no run {name}; it may have been pruned (keep_runs)", Exit.UNKNOWN_ID)
    task = catalog.find(name)  # says so if there is no such task
    raise TickdownError(f"{task.id} has not run yet")


def known_ids(catalog: Catalog) -> list[str]:
    return [file.task_id for file in catalog.files if file.task_id]


def check_known(db: Database, catalog: Catalog, task_id: str) -> None:
    """A task that is gone still has its history."""
    if task_id.lower() not in {known.lower() for known in known_ids(catalog)} and not runs.list_runs(
        db, task_id, limit=1
    ):
        raise unknown_id(task_id, known_ids(catalog), catalog.nameless)


def find_task(db: Database, catalog: Catalog, task_id: str) -> Task:
    """The task of this id; for one that was there before, the error says what became of its file."""
    try:
        return catalog.find(task_id)
    except TickdownError as error:
        if error.code is not Exit.UNKNOWN_ID:
            raise
        before = tasks.remembered(db).get(task_id.lower())
        if before is not None and catalog.rejects(before.path):
            advice = f"its file {before.path} is rejected: scheduler.py validate {before.path}"
        elif runs.list_runs(db, task_id, limit=1):
            advice = f"its file is gone; `scheduler.py history {task_id}` tells what it did"
        else:
            raise
        raise TickdownError(f"no task {task_id!r}: {one_line(advice, 500)}", Exit.UNKNOWN_ID) from None
