"""`comment`, `comments`, `tickets`: what people and the program say to each other about a task."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from tickdown.attempt.command import own_variables
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import Comment, TaskState
from tickdown.base.terminal import one_line
from tickdown.comments.meaning import COMMANDS, LONGEST_COMMENT, Action, looks_like_a_command, plain_wish
from tickdown.comments.reading import reader_of
from tickdown.context.app import App, facts_as_synced, sync_catalog
from tickdown.governor.governor import paused, state_of
from tickdown.queries.find import check_known, find_task
from tickdown.store import comments, tasks
from tickdown.store.tickets import TicketRow, close_ticket, list_tickets
from tickdown.time.durations import iso
from tickdown.time.moments import when
from tickdown.time.zones import get_zone
from tickdown.ui.views import Screen, closes_ticket, comment_json, done, off_words, text_block, ticket_json
from tickdown.workspace.folders import who_am_i


def comment(app: App, screen: Screen, task_id: str, text: str) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = find_task(db, catalog, task_id)
    redactor = app.redactor.knowing(own_variables(task, app.settings.environment))
    text = redactor.text(text.encode("utf-8", "replace").decode()).strip()
    if not text or len(text) > LONGEST_COMMENT:
        raise TickdownError(f"comment: 1 to {LONGEST_COMMENT} characters", Exit.USAGE)
    try:
        wish = plain_wish(Comment(0, task.id, "", text, now), task.zone)
    except ValueError as error:
        raise TickdownError(f"comment: {error}; {COMMANDS}", Exit.USAGE) from None
    if wish is None and looks_like_a_command(text):
        raise TickdownError(f"comment: {one_line(text, 60)!r} is no command; {COMMANDS}", Exit.USAGE)
    sync_catalog(db, catalog, now)
    with db.transaction() as connection:
        # What a task writes is a note for people; only people steer.
        by_a_person = "TICKDOWN_TASK_ID" not in os.environ
        number = comments.add_comment(connection, task.id, who_am_i(), text, now, by_a_person=by_a_person)
    app.log.info("comment", task_id=task.id, comment=number)
    message = f"comment {number} on {task.id}; it is read before the next run"
    if not by_a_person:
        message = f"comment {number} on {task.id}, for people to read"
    elif wish is not None:
        message = f"comment {number} on {task.id}: {wish.action} is obeyed by the next tick that it concerns"
        facts = tasks.facts(db, task.id)
        off = off_words(task, facts)
        if off is not None and wish.action is not Action.RESUME:
            effect = "waits for its next run" if wish.action is Action.SKIP else "has no effect"
            message = f"comment {number} on {task.id}: {wish.action} {effect}: {off}"
        elif facts is not None and paused(now, facts) and wish.action is Action.RUN:
            ends = when(facts.paused_until, now, task.zone)
            message = f"comment {number} on {task.id}: run waits for the end of its pause, {ends}"
    elif reader_of(app.context(db), task) is None:
        message += f"\nno agent is there to make sense of it: it stays unread; understood without one are {COMMANDS}"
    return done(screen, message, {"id": number, "task_id": task.id, "action": wish.action if wish else None})


def list_comments(app: App, screen: Screen, task_id: str | None, limit: int) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    if task_id is not None:
        check_known(db, catalog, task_id)
    found = comments.list_comments(db, task_id, limit)
    zone = get_zone(app.settings.config.timezone)
    if screen.as_json:
        screen.json([comment_json(each, zone) for each in found])
    elif found:
        rows = [
            [str(each.id), each.task_id, each.author, when(each.at, now, zone), _state(each), each.text]
            for each in found
        ]
        screen.table(("NR", "TASK", "FROM", "WHEN", "STATE", "TEXT"), rows)
    else:
        screen.line("no comments")
    return Exit.OK


def _state(each: Comment) -> str:
    if not each.by_a_person:
        return "to you"
    return each.answer or "read" if each.read_at is not None else "unread"


def tickets(
    app: App, screen: Screen, task_id: str | None, closed_too: bool, close: int | None, note: str | None
) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    if close is not None:
        if task_id is not None or closed_too:
            raise TickdownError("tickets: --close N goes with no ID and no --all", Exit.USAGE)
        return _close(app, screen, close, note, now)
    if note is not None:
        raise TickdownError("tickets: --note goes with --close N", Exit.USAGE)
    if task_id is not None:
        check_known(db, catalog, task_id)
    found = list_tickets(db, task_id, closed_too=closed_too)
    zone = get_zone(app.settings.config.timezone)
    if screen.as_json:
        screen.json([ticket_json(row, zone) for row in found])
        return Exit.OK
    facts = facts_as_synced(db, catalog, now) if found else {}
    for row in found:
        state = (
            f"closed {when(row.closed_at, now, zone)}" if row.closed_at else f"opened {when(row.opened_at, now, zone)}"
        )
        screen.line(f"ticket {row.id}  {one_line(row.ticket.title)} ({row.ticket.kind}), {state}")
        task = catalog.get(row.ticket.task_id or "")
        body = f"{row.ticket.body}\n{_way_on(row, state_of(now, task, facts.get(task.id.lower())) if task else None)}"
        screen.line(text_block(body))
        for at, text in row.notes:
            screen.line(f"  {when(at, now, zone)}: {one_line(text)}")
    if not found:
        screen.line("no tickets" if closed_too else "no open tickets")
    return Exit.OK


def _way_on(row: TicketRow, state: TaskState | None) -> str:
    """For tickets of tasks that had not stopped: what is to be done, if anything."""
    ticket = row.ticket
    if ticket.command or ticket.task_id is None or row.closed_at is not None:
        return ""
    if state in (TaskState.ACTIVE, TaskState.RUNNING):
        return f"It goes on by itself; close with: {closes_ticket(row)}"
    if state in (TaskState.SUSPENDED, TaskState.PAUSED):
        return f"It is {state} now. Go on with: {command_line('resume', ticket.task_id)}"
    return f"Close with: {closes_ticket(row)}"


def _close(app: App, screen: Screen, number: int, note: str | None, now: datetime) -> Exit:
    db = app.database()
    closed = close_ticket(db, number, app.redactor.text(one_line(note or f"closed by {who_am_i()}", 500)), now)
    if closed is None:
        raise TickdownError(f"no ticket {number}; `{command_line('tickets', '--all')}` lists them", Exit.UNKNOWN_ID)
    if not closed:
        raise TickdownError(f"ticket {number} is closed already")
    app.log.info("ticket_closed", ticket=number)
    zone = get_zone(app.settings.config.timezone)
    return done(screen, f"ticket {number} is closed", {"id": number, "closed_at": iso(now, zone)})
