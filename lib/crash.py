"""The last line of defence: a bug or a broken configuration must not end in silence."""

from __future__ import annotations

import sqlite3
import sys
import traceback
from datetime import UTC, datetime
from types import SimpleNamespace

from lib import messages
from lib.app import App, app_with, make_app, sync_catalog
from lib.config import SettingsError
from lib.deliver import deliver
from lib.errors import Exit, TickdownError
from lib.model import Alert, Ticket
from lib.ping import Pinger
from lib.store import outbox
from lib.store.database import is_damage, replace_damaged
from lib.store.tickets import open_ticket
from lib.terminal import printable
from lib.workspace import Workspace

# What the machine does to a database, as opposed to what a bug does.
_NOT_BUGS = {
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
}  # fmt: skip


def report_crash(arguments: SimpleNamespace, error: Exception) -> Exit:
    """Traceback into the log; from a tick also a ping, a forced alert and a ticket. Exit 70, or 1 if it is no bug."""
    summary = f"{type(error).__name__}: {error}"
    workspace: Workspace | None = getattr(arguments, "found_workspace", None)
    if workspace is None:
        traceback.print_exc()
        return Exit.BUG
    app = _any_app(workspace)
    app.log.error("crash", command=arguments.command, error=summary, traceback=traceback.format_exc())
    is_tick = arguments.command == "tick"
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_BUGS:
        stopped = TickdownError(f"the database {app.database_path()} can't be used: {error}")
        print(printable(f"scheduler.py: {stopped}"), file=sys.stderr)
        if is_tick:
            report_stopped(workspace, stopped)
        return Exit.FAILED
    if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
        if is_tick:
            return replace_and_report(app, summary)
        print(f"scheduler.py: the database is damaged: {error}; the next tick sets it aside", file=sys.stderr)
        return Exit.FAILED
    if is_tick:
        _tell(app, *messages.crash_alert(app.redactor.text(summary)))
    words = app.redactor.text(f"scheduler.py: a bug: {summary}; the traceback is in {app.log.path}")
    print(printable(words), file=sys.stderr)
    return Exit.BUG


def report_stopped(workspace: Workspace | None, error: TickdownError) -> None:
    """A tick that could not even begin (configuration, .env, database) says so in the log, to the watcher and, where
    that is still possible, as an alert."""
    if workspace is None:
        return
    app = _any_app(workspace)
    app.log.error("tick_stopped", error=str(error))
    try:
        from lib.heal import take_back_orphaned

        take_back_orphaned(app.context(app.database()), datetime.now(UTC))
    except (TickdownError, sqlite3.Error, OSError) as trouble:
        app.log.error("heal_not_taken_back", error=str(trouble))
    _tell(app, messages.stopped_alert(app.redactor.text(str(error))), None)


def replace_and_report(app: App, error: str) -> Exit:
    """A damaged database: set aside, said aloud, and nothing runs on a guess."""
    now, path = datetime.now(UTC), app.database_path()
    aside = replace_damaged(path, now)
    if aside is None:
        print(f"scheduler.py: {error}; another tick has replaced it, the next one goes on", file=sys.stderr)
        return Exit.FAILED
    db = app.database()
    sync_catalog(db, app.catalog(db), now, rebuilt=True)
    with db.transaction() as connection:
        outbox.add_alert(connection, messages.damaged_alert(str(path), aside.name), now)
    app.log.error("database_damaged", error=error, set_aside=str(aside))
    deliver(db, app.settings.config, app.redactor, app.log, now)
    print(f"scheduler.py: {error}; it was set aside as {aside.name}", file=sys.stderr)
    return Exit.FAILED


def _any_app(workspace: Workspace) -> App:
    """With what could be read of the settings."""
    try:
        return make_app(workspace)
    except SettingsError as error:
        return app_with(workspace, error.partial)


def _tell(app: App, alert: Alert, ticket: Ticket | None) -> None:
    """Through the outbox if the database can still be used; otherwise stderr is all that is left."""
    now = datetime.now(UTC)
    pinger = Pinger(app.settings.config.ping_url, "crash", app.log)
    pinger.send("/fail")
    try:
        db = app.database()
        outbox.add_alert_once_per(db, outbox.HOUR, alert, now)
        if ticket is not None:
            with db.transaction() as connection:
                open_ticket(connection, ticket, now)
        deliver(db, app.settings.config, app.redactor, app.log, now)
    except (TickdownError, sqlite3.Error, OSError) as error:
        app.log.error("alert_lost", error=str(error), alert=alert.title)
        print(printable(app.redactor.text(f"tickdown: {alert.title}\n{alert.body}")), file=sys.stderr)
    pinger.finish()
