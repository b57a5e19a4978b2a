"""Closing what waits for a person."""

from __future__ import annotations

from tickdown.actions.record import log_action, record_action
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import ActionName, Asker
from tickdown.base.terminal import one_line
from tickdown.context.app import Opened
from tickdown.store import tickets


def close_ticket(opened: Opened, asker: Asker, number: int, note: str | None) -> None:
    text = opened.app.redactor.text(one_line(note or f"closed by {asker.words}", 500))
    with opened.db.transaction() as connection:
        closed = tickets.close_ticket(opened.db, number, text, opened.now)
        if closed:
            of_task = tickets.task_of(connection, number)
            record_action(
                connection, opened, asker, ActionName.CLOSE_TICKET, of_task, detail=f"ticket {number}: {text}"
            )
    if closed is None:
        raise TickdownError(f"no ticket {number}; `{command_line('tickets', '--all')}` lists them", Exit.UNKNOWN_ID)
    if not closed:
        raise TickdownError(f"ticket {number} is closed already")
    log_action(opened.app.log, "ticket_closed", asker, task_id=of_task, ticket=number)
