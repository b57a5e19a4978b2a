"""The last line of defence: a bug or a broken configuration must not end in silence."""

from __future__ import annotations

import argparse
import sqlite3
import sys
import traceback
from datetime import UTC, datetime, timedelta

from lib import alerts as texts
from lib.app import App, default_app, make_app
from lib.config import Config, ConfigError
from lib.deliver import deliver
from lib.errors import Exit, TickdownError
from lib.model import Alert, Ticket
from lib.ping import Pinger
from lib.store import alerts as outbox
from lib.store.database import is_damage
from lib.workspace import Workspace

REPEAT_AFTER = timedelta(hours=1)


def report_crash(arguments: argparse.Namespace, error: Exception) -> Exit:
    """Traceback into the log; from a tick also a ping, a forced alert and a ticket. Exit 70, or 1 for damage."""
    summary = f"{type(error).__name__}: {error}"
    workspace: Workspace | None = getattr(arguments, "found_workspace", None)
    if workspace is None:
        traceback.print_exc()
        return Exit.BUG
    app = _any_app(workspace)
    app.log.error("crash", command=arguments.command, error=summary, traceback=traceback.format_exc())
    if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
        if arguments.command == "tick":
            from lib.commands.act import replace_and_report

            return replace_and_report(app, summary)
        print(f"scheduler.py: the database is damaged: {error}; the next tick sets it aside", file=sys.stderr)
        return Exit.FAILED
    if arguments.command == "tick":
        _tell(app, *texts.crash_alert(app.redactor.text(summary)))
    print(app.redactor.text(f"scheduler.py: a bug: {summary}; the traceback is in {app.log.path}"), file=sys.stderr)
    return Exit.BUG


def report_stopped(workspace: Workspace | None, error: TickdownError) -> None:
    """A tick that could not even begin (configuration, .env, database) says so in the log, to the watcher and, where
    that is still possible, as an alert."""
    if workspace is None:
        return
    app = default_app(workspace, error.partial) if isinstance(error, ConfigError) else _any_app(workspace)
    app.log.error("tick_stopped", error=str(error))
    _tell(app, texts.stopped_alert(str(error)), None)


def _any_app(workspace: Workspace) -> App:
    try:
        return make_app(workspace)
    except TickdownError:
        return default_app(workspace, Config())


def _tell(app: App, alert: Alert, ticket: Ticket | None) -> None:
    """Through the outbox if the database can still be used; otherwise stderr is all that is left."""
    now = datetime.now(UTC)
    pinger = Pinger(app.settings.config.ping_url, "crash", app.log)
    pinger.send("/fail")
    try:
        db = app.database()
        outbox.add_alert_once_per(db, alert, REPEAT_AFTER, now)
        if ticket is not None:
            with db.transaction() as connection:
                outbox.open_ticket(connection, ticket, now)
        deliver(db, app.settings.config, app.redactor, app.log, now)
    except (TickdownError, sqlite3.Error, OSError) as error:
        app.log.error("alert_lost", error=str(error), alert=alert.title)
        print(app.redactor.text(f"tickdown: {alert.title}\n{alert.body}"), file=sys.stderr)
    pinger.finish()
