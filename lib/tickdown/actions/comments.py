"""Saying something about the next run of a task, and obeying what was said as a plain command."""

from __future__ import annotations

from datetime import datetime

from tickdown.actions.pause import let_run_again
from tickdown.actions.record import log_action, record_action
from tickdown.attempt.command import own_variables
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.model import ActionName, AskedBy, Asker, Comment, Facts, Hint, HintKind
from tickdown.base.records import record
from tickdown.base.terminal import one_line
from tickdown.comments.meaning import COMMANDS, LONGEST_COMMENT, Action, Wish, looks_like_a_command, plain_wish
from tickdown.comments.reading import act_on, author_of, reader_of
from tickdown.context.app import Opened
from tickdown.context.context import Context
from tickdown.context.task_file import disable_in_file
from tickdown.store import comments, hints, tasks
from tickdown.tasks.task import Task
from tickdown.time.instants import to_milliseconds


@record(frozen=True)
class Commented:
    id: int
    wish: Wish | None  # of a plain command
    by_a_person: bool
    facts: Facts | None
    is_understood: bool  # or there is an agent to make sense of it


def comment(opened: Opened, asker: Asker, task: Task, text: str) -> Commented:
    redactor = opened.app.redactor.knowing(own_variables(task, opened.app.settings.environment))
    text = redactor.text(text.encode("utf-8", "replace").decode()).strip()
    if not text or len(text) > LONGEST_COMMENT:
        raise TickdownError(f"comment: 1 to {LONGEST_COMMENT} characters", Exit.USAGE)
    try:
        wish = plain_wish(Comment(0, task.id, "", text, opened.now), task.zone)
    except ValueError as error:
        raise TickdownError(f"comment: {error}; {COMMANDS}", Exit.USAGE) from None
    if wish is None and looks_like_a_command(text):
        raise TickdownError(f"comment: {one_line(text, 60)!r} is no command; {COMMANDS}", Exit.USAGE)
    opened.sync()
    by_a_person = asker.kind is AskedBy.PERSON  # what a task writes is a note for people; only people steer
    with opened.db.transaction() as connection:
        number = comments.add_comment(connection, task.id, asker.words, text, opened.now, by_a_person=by_a_person)
        record_action(connection, opened, asker, ActionName.COMMENT, task.id, detail=f"comment {number}")
    log_action(opened.app.log, "comment", asker, task_id=task.id, comment=number)
    is_understood = not by_a_person or wish is not None or reader_of(opened.context, task) is not None
    return Commented(number, wish, by_a_person, tasks.facts(opened.db, task.id), is_understood)


def obey_comment(context: Context, task: Task, comment: Comment, wish: Wish, now: datetime) -> None:
    """A plain comment that does not have to wait for the next run."""
    match wish.action:
        case Action.RESUME:
            let_run_again(
                context,
                task,
                author_of(comment),
                now,
                lambda connection: act_on(connection, task, [comment], wish, now),
            )
        case Action.PAUSE | Action.RUN if not task.enabled:
            with context.db.transaction() as connection:
                comments.mark_read(connection, {comment.id: f"{wish.action}: it is disabled, nothing was done"}, now)
        case Action.RUN:
            moment = to_milliseconds(now)
            hint = Hint(HintKind.ONE_SHOT, moment, at=moment, reason="/run", author=comment.author)
            with context.db.transaction() as connection:
                if act_on(connection, task, [comment], wish, now):
                    hints.put_hints(connection, task.id, [hint])
        case Action.PAUSE:
            with context.db.transaction() as connection:
                act_on(connection, task, [comment], wish, now)
            log_action(context.log, "paused", author_of(comment), task_id=task.id, until=wish.until, comment=comment.id)
            disable_in_file(context, task, now)
