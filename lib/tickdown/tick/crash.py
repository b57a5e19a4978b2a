"""The last line of defence: a bug or a broken configuration must not end in silence."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from tickdown.alerts import messages
from tickdown.alerts.delivery import complain, deliver, send_unrecorded
from tickdown.alerts.ping import Pinger
from tickdown.base.errors import Exit, Lacking, TickdownError
from tickdown.base.invocation import program_name
from tickdown.base.model import Alert, MissReason, Ticket
from tickdown.base.terminal import printable
from tickdown.config import SettingsError
from tickdown.context.app import App, app_with, make_app, sync_catalog
from tickdown.processes.process import this_process
from tickdown.store import outbox, ticks
from tickdown.store.database import DamagedDatabase, Database, UnusableDatabase, replace_damaged
from tickdown.store.errors import Damaged, StoreError, Unusable, with_remedy
from tickdown.store.tickets import open_ticket
from tickdown.tick.stop_mark import leave_mark
from tickdown.workspace.folders import Workspace, make_dir, private_opener

TELL_WITHIN = 5.0  # seconds for a database that somebody holds locked, before it is told without
# Cron comes every minute: what was written this long ago was written by the tick before, or the one before that.
_JUST_NOW = timedelta(minutes=2)
_ROOM = 10 * 1024 * 1024


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
    stopped = _not_a_bug(app, error)
    if stopped is not None:
        if is_tick:
            report_stopped(arguments, stopped, MissReason.DATABASE if isinstance(error, Unusable) else None)
        else:
            print(printable(f"{program_name()}: {stopped}"), file=sys.stderr)
        return Exit.FAILED
    if _is_damaged(app, error):
        if is_tick:
            return replace_and_report(app, f"the database {app.database_path()} is damaged: {error}")
        print(f"{program_name()}: the database is damaged: {error}; the next tick sets it aside", file=sys.stderr)
        return Exit.FAILED
    words = app.redactor.text(f"{program_name()}: a bug: {summary}; the traceback is in {app.log.path}")
    is_news = is_tick and _tell(app, MissReason.CRASH, *messages.crash_alert(app.redactor.text(summary)))
    complain(printable(words), aloud=is_news or not is_tick or _wants_json(arguments))
    return Exit.BUG


def _not_a_bug(app: App, error: Exception) -> TickdownError | None:
    """What the machine lacks, and what to do about it; None if the error is of another kind."""
    if isinstance(error, Unusable):
        return TickdownError(f"the database {app.database_path()} can't be used: {with_remedy(error)}")
    return Lacking.by(error)


def _is_damaged(app: App, error: Exception) -> bool:
    """Also where something else failed over what was read from it: a row that no version of this program has written."""
    if isinstance(error, Damaged):
        return True
    try:
        return app.database_path().exists() and bool(app.database().problems())
    except DamagedDatabase:
        return True
    except (TickdownError, StoreError, OSError):
        return False


def reason_of(error: TickdownError) -> MissReason | None:
    """Of what keeps a tick from working at all: why what it misses is missed. None where that is up to the machine."""
    if isinstance(error, Lacking):
        return None
    return MissReason.DATABASE if isinstance(error, UnusableDatabase) else MissReason.CONFIGURATION


def report_stopped(arguments: SimpleNamespace, error: TickdownError, reason: MissReason | None) -> None:
    """A tick that could not even begin (configuration, .env), or do all of its work (database), says so in the log, to the
    watcher and, where that is still possible, as an alert; and it prints it. What it misses is missed for this reason."""
    workspace: Workspace | None = getattr(arguments, "found_workspace", None)
    words = printable(f"{program_name()}: {error}")
    if workspace is None:
        print(words, file=sys.stderr)
        return
    app = _any_app(workspace)
    app.log.error("tick_stopped", error=str(error))
    try:
        from tickdown.heal.healer import take_back_orphaned

        take_back_orphaned(app.context(app.database()), datetime.now(UTC))
    except (TickdownError, StoreError, OSError) as trouble:
        app.log.error("heal_not_taken_back", error=str(trouble))
    text = app.redactor.text(str(error))
    passed = messages.passed_alert(text) if reason is MissReason.DATABASE else None
    is_news = _tell(app, reason, messages.stopped_alert(text), None, passed)
    complain(words, aloud=is_news or _wants_json(arguments))


def _wants_json(arguments: SimpleNamespace) -> bool:
    """Then there is nothing but that on stdout."""
    return bool(getattr(arguments, "json", False))


def replace_and_report(app: App, error: str) -> Exit:
    """A damaged database: set aside, said aloud, and nothing runs on a guess."""
    now, path = datetime.now(UTC), app.database_path()
    pinger = _watcher_told(app)
    try:
        return _replace(app, path, error, now)
    finally:
        pinger.finish()


def _replace(app: App, path: Path, error: str, now: datetime) -> Exit:
    aside = replace_damaged(path, now)
    if aside is None:
        print(f"{program_name()}: {error}; another tick has replaced it, the next one goes on", file=sys.stderr)
        return Exit.FAILED
    db = Database(path)
    sync_catalog(db, app.catalog(db), now, rebuilt=True)
    with db.transaction() as connection:
        outbox.add_alert(connection, messages.damaged_alert(str(path), aside.name), now)
    app.log.error("database_damaged", error=error, set_aside=str(aside))
    deliver(db, app.settings.config, app.redactor, app.log, now)
    print(f"{program_name()}: {error}; it was set aside as {aside.name}", file=sys.stderr)
    return Exit.FAILED


def _watcher_told(app: App) -> Pinger:
    """That this process has failed, in the background."""
    pinger = Pinger(app.settings.config.ping_url, this_process(), app.log)
    pinger.send("/fail")
    return pinger


def _any_app(workspace: Workspace) -> App:
    """With what could be read of the settings."""
    try:
        return make_app(workspace)
    except SettingsError as error:
        return app_with(workspace, error.partial)


def _tell(
    app: App, reason: MissReason | None, alert: Alert, ticket: Ticket | None, passed: Alert | None = None
) -> bool:
    """Through the outbox if the database can still be used; otherwise to stderr, and without any record to Telegram. If that
    was the trouble, it is over with the record, and `passed` says so. True if it is news that stderr does not have yet."""
    now = datetime.now(UTC)
    pinger = _watcher_told(app)
    try:
        db = app.database()
        db.wait_no_longer_than(TELL_WITHIN)
        if reason is not None:
            ticks.stopped(db, reason, now)
        told = passed if passed is not None and _has_room(app) else alert
        is_news = outbox.add_alert_once_per(db, outbox.HOUR, told, now)
        is_news &= app.settings.config.notify.destination(None) is not None
        if ticket is not None:
            with db.transaction() as connection:
                open_ticket(connection, ticket, now)
        deliver(db, app.settings.config, app.redactor, app.log, now)
    except (TickdownError, StoreError, OSError) as error:
        app.log.error("alert_not_recorded", error=str(error), alert=alert.title)
        if reason is not None:
            leave_mark(app.workspace, reason, now)
        if not _told_lately(app, now):
            send_unrecorded(app.settings.config, alert, app.redactor, app.log, now)
        is_news = False
    pinger.finish()
    return is_news


def _has_room(app: App) -> bool:
    """More than for the few bytes of an alert: a disk that is full may still have those."""
    return shutil.disk_usage(app.database_path().parent).free > _ROOM


def _told_lately(app: App, now: datetime) -> bool:
    """Within the hour, by the time of an empty file: there is no database to remember it. Among the logs if not in state,
    which may be what can't be written."""
    places = (app.workspace.state, app.workspace.logs)
    for folder in places:
        try:
            marked = datetime.fromtimestamp((folder / "told").stat().st_mtime, UTC)
        except OSError:
            continue
        if timedelta(0) <= now - marked < outbox.HOUR:
            return True
    for folder in places:
        try:
            make_dir(folder)
            descriptor = private_opener(str(folder / "told"), os.O_WRONLY | os.O_CREAT)
            os.utime(descriptor)
            os.close(descriptor)
            return False
        except OSError:
            continue
    # Nothing can be remembered: it is told when it begins, which is soon after the last good tick, and every full hour.
    return now.minute != 0 and now - _last_written(app) > _JUST_NOW


def _last_written(app: App) -> datetime:
    found = datetime.min.replace(tzinfo=UTC)
    for suffix in ("", "-wal"):
        try:
            changed = datetime.fromtimestamp(os.stat(f"{app.database_path()}{suffix}").st_mtime, UTC)
        except OSError:
            continue
        found = max(found, changed)
    return found
