"""Bending the schedule of a task for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from tickdown.actions.record import log_action, record_action
from tickdown.attempt.command import own_variables
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.model import ActionName, Asker, Facts, Hint, HintKind
from tickdown.base.records import record
from tickdown.base.terminal import one_line
from tickdown.context.app import Opened
from tickdown.governor.governor import Forecast, forecast
from tickdown.processes.process import boot_id
from tickdown.store import hints, tasks
from tickdown.tasks.task import Task
from tickdown.time.durations import duration_text
from tickdown.time.instants import to_milliseconds

LONGEST_REASON = 500


@record(frozen=True)
class Hinted:
    """What was given or cleared, and what comes of it."""

    given: Sequence[Hint]
    cleared: int
    facts: Facts | None
    ahead: Forecast


def check_reason(reason: str) -> None:
    if len(reason) > LONGEST_REASON:
        raise TickdownError(f"--reason: more than {LONGEST_REASON} characters", Exit.USAGE)


def give_hints(
    opened: Opened, asker: Asker, task: Task, every: timedelta | None, at: datetime | None, until: datetime | None,
    reason: str,
) -> Hinted:  # fmt: skip
    """An interval, one moment, or both, until a time or until cleared or used."""
    check_reason(reason)
    now = to_milliseconds(opened.now)
    # Twice: a secret may lie open only once it is on one line.
    redactor = opened.app.redactor.knowing(own_variables(task, opened.app.settings.environment))
    reason = redactor.text(one_line(redactor.text(reason), LONGEST_REASON))
    author, given = one_line(asker.words, 80), []
    if every is not None:
        given.append(Hint(HintKind.INTERVAL, now, every=every, until=until, reason=reason, author=author))
    if at is not None:
        given.append(Hint(HintKind.ONE_SHOT, now, at=at, until=until, reason=reason, author=author))
    opened.sync()
    with opened.db.transaction() as connection:
        hints.put_hints(connection, task.id, given)
        detail = "; ".join(_words(hint, task) for hint in given) + (f": {reason}" if reason else "")
        record_action(connection, opened, asker, ActionName.HINT, task.id, detail=detail)
    log_action(
        opened.app.log, "hint", asker, task_id=task.id, every=duration_text(every) if every else None, at=at, until=until,
        reason=reason, clear=False,
    )  # fmt: skip
    return _hinted(opened, task, given, 0)


def clear_hints(opened: Opened, asker: Asker, task: Task) -> Hinted:
    opened.sync()
    with opened.db.transaction() as connection:
        cleared = hints.clear_hints(opened.db, task, to_milliseconds(opened.now))
        record_action(connection, opened, asker, ActionName.CLEAR_HINTS, task.id, detail=f"{cleared} cleared")
    log_action(opened.app.log, "hint", asker, task_id=task.id, clear=True)
    return _hinted(opened, task, [], cleared)


def _words(hint: Hint, task: Task) -> str:
    at = hint.at or hint.given_at
    return f"every {duration_text(hint.every)}" if hint.every else f"at {at.astimezone(task.zone):%Y-%m-%d %H:%M %Z}"


def _hinted(opened: Opened, task: Task, given: Sequence[Hint], cleared: int) -> Hinted:
    facts = tasks.facts(opened.db, task.id)
    return Hinted(given, cleared, facts, forecast(to_milliseconds(opened.now), task, facts, boot_id()))
