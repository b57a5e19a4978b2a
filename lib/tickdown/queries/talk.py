"""What people and the program say to each other: comments and tickets."""

from __future__ import annotations

from tickdown.base.model import Comment, TaskState
from tickdown.base.records import record
from tickdown.context.app import Opened, facts_as_synced
from tickdown.governor.governor import state_of
from tickdown.queries.find import check_known
from tickdown.store.comments import list_comments
from tickdown.store.tickets import TicketRow, list_tickets

__all__ = ["TicketRow", "TicketView", "comments", "tickets"]


@record(frozen=True)
class TicketView:
    row: TicketRow
    state: TaskState | None  # of its task as it is now; None if there is none


def comments(opened: Opened, task_id: str | None, limit: int) -> list[Comment]:
    """The newest, oldest first."""
    if task_id is not None:
        check_known(opened.db, opened.catalog, task_id)
    return list_comments(opened.db, task_id, limit)


def tickets(opened: Opened, task_id: str | None, *, closed_too: bool = False) -> list[TicketView]:
    """Oldest first."""
    if task_id is not None:
        check_known(opened.db, opened.catalog, task_id)
    found = list_tickets(opened.db, task_id, closed_too=closed_too)
    facts = facts_as_synced(opened.db, opened.catalog, opened.now) if found else {}

    def view(row: TicketRow) -> TicketView:
        task = opened.catalog.get(row.ticket.task_id or "")
        return TicketView(row, state_of(opened.now, task, facts.get(task.id.lower())) if task is not None else None)

    return [view(row) for row in found]
