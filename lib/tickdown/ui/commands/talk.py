"""`comment`, `comments`, `tickets`: what people and the program say to each other about a task."""

from __future__ import annotations

from datetime import UTC, datetime

from tickdown.actions import comments as actions
from tickdown.actions.tickets import close_ticket
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import Comment, TaskState
from tickdown.base.terminal import one_line
from tickdown.comments.meaning import COMMANDS, Action
from tickdown.context.app import App, Opened
from tickdown.governor.governor import paused
from tickdown.queries import talk as queries
from tickdown.queries.find import find_task
from tickdown.time.durations import iso
from tickdown.time.moments import when
from tickdown.time.zones import get_zone
from tickdown.ui.asker import who_asks
from tickdown.ui.views import Screen, closes_ticket, comment_json, done, off_words, text_block, ticket_json


def comment(app: App, screen: Screen, task_id: str, text: str) -> Exit:
    now = datetime.now(UTC)
    opened = app.opened(now)
    task = find_task(opened.db, opened.catalog, task_id)
    said = actions.comment(opened, who_asks(opened.catalog), task, text)
    wish = said.wish
    message = f"comment {said.id} on {task.id}; it is read before the next run"
    if not said.by_a_person:
        message = f"comment {said.id} on {task.id}, for people to read"
    elif wish is not None:
        message = f"comment {said.id} on {task.id}: {wish.action} is obeyed by the next tick that it concerns"
        facts = said.facts
        off = off_words(task, facts)
        if off is not None and wish.action is not Action.RESUME:
            effect = "waits for its next run" if wish.action is Action.SKIP else "has no effect"
            message = f"comment {said.id} on {task.id}: {wish.action} {effect}: {off}"
        elif facts is not None and paused(now, facts) and wish.action is Action.RUN:
            ends = when(facts.paused_until, now, task.zone)
            message = f"comment {said.id} on {task.id}: run waits for the end of its pause, {ends}"
    elif not said.is_understood:
        message += f"\nno agent is there to make sense of it: it stays unread; understood without one are {COMMANDS}"
    return done(screen, message, {"id": said.id, "task_id": task.id, "action": wish.action if wish else None})


def list_comments(app: App, screen: Screen, task_id: str | None, limit: int) -> Exit:
    now = datetime.now(UTC)
    found = queries.comments(app.opened(now), task_id, limit)
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
    opened = app.opened(now)
    if close is not None:
        if task_id is not None or closed_too:
            raise TickdownError("tickets: --close N goes with no ID and no --all", Exit.USAGE)
        return _close(opened, screen, close, note)
    if note is not None:
        raise TickdownError("tickets: --note goes with --close N", Exit.USAGE)
    found = queries.tickets(opened, task_id, closed_too=closed_too)
    zone = get_zone(app.settings.config.timezone)
    if screen.as_json:
        screen.json([ticket_json(ticket.row, zone) for ticket in found])
        return Exit.OK
    for ticket in found:
        row = ticket.row
        state = (
            f"closed {when(row.closed_at, now, zone)}" if row.closed_at else f"opened {when(row.opened_at, now, zone)}"
        )
        screen.line(f"ticket {row.id}  {one_line(row.ticket.title)} ({row.ticket.kind}), {state}")
        body = f"{row.ticket.body}\n{_way_on(row, ticket.state)}"
        screen.line(text_block(body))
        for at, text in row.notes:
            screen.line(f"  {when(at, now, zone)}: {one_line(text)}")
    if not found:
        screen.line("no tickets" if closed_too else "no open tickets")
    return Exit.OK


def _way_on(row: queries.TicketRow, state: TaskState | None) -> str:
    """For tickets of tasks that had not stopped: what is to be done, if anything."""
    ticket = row.ticket
    if ticket.command or ticket.task_id is None or row.closed_at is not None:
        return ""
    if state in (TaskState.ACTIVE, TaskState.RUNNING):
        return f"It goes on by itself; close with: {closes_ticket(row)}"
    if state in (TaskState.SUSPENDED, TaskState.PAUSED):
        return f"It is {state} now. Go on with: {command_line('resume', ticket.task_id)}"
    return f"Close with: {closes_ticket(row)}"


def _close(opened: Opened, screen: Screen, number: int, note: str | None) -> Exit:
    close_ticket(opened, who_asks(opened.catalog), number, note)
    zone = get_zone(opened.app.settings.config.timezone)
    return done(screen, f"ticket {number} is closed", {"id": number, "closed_at": iso(opened.now, zone)})
