"""What every command starts from: the workspace, its settings, its tasks and its database."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from tickdown.base.errors import explained
from tickdown.base.model import Alert, Facts
from tickdown.base.records import record, replace
from tickdown.base.redact import Redactor, secrets_in
from tickdown.config import Settings, load_settings, remember
from tickdown.context.context import Context
from tickdown.processes.process import boot_id, this_process
from tickdown.store import files, outbox, tasks, ticks
from tickdown.store.database import Database, UnusableDatabase, has_content
from tickdown.tasks.catalogue import (
    Catalog,
    catalog_of,
    past_dates,
    scan_tasks,
    without_past_dates,
)
from tickdown.workspace.folders import PRIVATE_FILE, Workspace, make_private_dir, replace_file
from tickdown.workspace.scheduler_log import Log
from tickdown.workspace.shortcut import Look, fingerprint, read_shortcut, shortcut_path

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

    def opened(self, now: datetime) -> Opened:
        catalog, db = self.open(now)
        return Opened(self, catalog, db, now)

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


@record(frozen=True)
class Opened:
    """A workspace as it is at one moment: what actions and queries work with, whoever asks for them."""

    app: App
    catalog: Catalog
    db: Database
    now: datetime

    @property
    def context(self) -> Context:
        return self.app.context(self.db)

    def sync(self) -> None:
        """Before anything is written about a task: the store must know it as its file is."""
        sync_catalog(self.db, self.catalog, self.now)


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
    from tickdown.alerts import messages

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
    from tickdown.alerts import messages

    return messages.other_database_alert(path, before) if before else messages.lost_alert(path)


def facts_as_synced(db: Database, catalog: Catalog, now: datetime) -> dict[str, Facts]:
    """What a tick would know of the tasks now, files edited since the last one included; nothing is changed. By
    lower-case id."""
    if not (catalog.read or catalog.removed):
        return tasks.all_facts(db)
    with db.rehearsal():
        sync_catalog(db, catalog, now)
        return tasks.all_facts(db)
