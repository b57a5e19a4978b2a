"""Emptying the outbox: each alert goes to Telegram, or to stderr where nothing is configured, and is then stamped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, tzinfo
from datetime import time as clock_time

from tickdown.alerts.channels import stderr, telegram
from tickdown.alerts.message import Message, SendError
from tickdown.base.invocation import command_line
from tickdown.base.model import Alert, Ticket, TicketKind
from tickdown.base.redact import Redactor
from tickdown.config import Config, Notify
from tickdown.processes.process import stop_writing_to
from tickdown.store import outbox
from tickdown.store.database import Database
from tickdown.store.outbox import LONGEST_WAIT, Outgoing
from tickdown.store.tickets import close_tickets_of_kind
from tickdown.time.zones import get_zone
from tickdown.workspace.scheduler_log import Log

DIGEST_ABOVE = 5


def deliver(db: Database, config: Config, redactor: Redactor, log: Log, now: datetime) -> None:
    """Send what is due. What can't be sent now stays for a later tick; an outage costs one try, not one per alert."""
    if not outbox.any_pending(db):
        return
    zone, notify, began = get_zone(config.timezone), config.notify, time.monotonic()
    due = outbox.lease_due(db, notify.default, now)
    for name, parts in _by_destination(due, notify).items():
        quiet = is_quiet(now, zone, notify.quiet_hours)
        kept = [part for part in parts if quiet and not part.alert.forced]
        if kept:
            outbox.hold(db, [part.id for part in kept])
        target = notify.destination(name)
        send = stderr.send if target is None else telegram.sender(notify, target[1])
        messages = bundle([part for part in parts if part not in kept])
        for index, message in enumerate(messages):
            moment = now + timedelta(seconds=time.monotonic() - began)
            if not outbox.keep_lease(db, message.parts, moment):
                continue  # so slow that another tick has taken it
            problem = _send(db, send, message, name if target else None, redactor, log, moment)
            if problem is not None and not problem.permanent:
                rest = [part_id for later in messages[index + 1 :] for part_id in later.ids]
                outbox.put_back(db, rest, "waiting behind another alert", _not_before(problem, moment))
                break


def send_unrecorded(config: Config, alert: Alert, redactor: Redactor, log: Log, now: datetime) -> None:
    """For the alert that the database can't be used. Once, to stderr and to where alerts go by default."""
    target, message = config.notify.destination(None), Message((Outgoing(0, now, alert, held=False),))
    for send in (stderr.send, telegram.sender(config.notify, target[1]) if target is not None else None):
        try:
            if send is not None:
                send(message, redactor)
        except (SendError, OSError) as error:  # there may be nothing left to send it with
            log.warning("alert_not_sent", error=redactor.text(str(error)))


def complain(text: str, *, aloud: bool) -> None:
    """What keeps a tick from working. Every tick finds it again, and cron mails what is on stderr: `aloud` it stands there,
    otherwise only where somebody is watching."""
    stream = sys.stderr if aloud or sys.stderr.isatty() else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError:
        stop_writing_to(stream)  # the exit code must not change


def _by_destination(parts: Iterable[Outgoing], notify: Notify) -> dict[str, list[Outgoing]]:
    groups: dict[str, list[Outgoing]] = {}
    for part in parts:
        groups.setdefault(part.alert.destination or notify.default or "", []).append(part)
    return groups


def is_quiet(now: datetime, zone: tzinfo, hours: tuple[clock_time, clock_time] | None) -> bool:
    if hours is None:
        return False
    start, end = hours
    clock = now.astimezone(zone).time()
    return start <= clock < end if start < end else clock >= start or clock < end


def bundle(parts: list[Outgoing]) -> list[Message]:
    """What was held through quiet hours leaves as one digest; so does everything when there is too much of it."""
    if len(parts) > DIGEST_ABOVE:
        return [Message(tuple(parts))]
    held = tuple(part for part in parts if part.held)
    single = [Message((part,)) for part in parts if not part.held]
    return ([Message(held)] if held else []) + single


def _send(
    db: Database,
    send: Callable[[Message, Redactor], None],
    message: Message,
    destination: str | None,
    redactor: Redactor,
    log: Log,
    now: datetime,
) -> SendError | None:
    try:
        send(message, redactor)
    except SendError as error:
        reason = redactor.text(str(error))
        log.warning("alert_not_sent", alerts=message.ids, error=reason, permanent=error.permanent)
        if error.permanent:
            titles = redactor.text("; ".join(part.alert.title for part in message.parts))
            ticket = _refusal(destination or "", reason, titles)
            outbox.refused(db, message.ids, reason, ticket, f"not delivered either: {titles} ({reason})", now)
            try:
                stderr.send(message, redactor)  # better there than nowhere
            except SendError:
                pass  # the ticket has it
        else:
            outbox.put_back(db, message.ids, reason, _not_before(error, now))
        return error
    outbox.sent(db, message.ids, now)
    if destination is not None:
        close_tickets_of_kind(db, TicketKind.ALERT_FAILED, now, destination)
    return None


def _refusal(destination: str, reason: str, titles: str) -> Ticket:
    title = f"alerts to {destination} can't be delivered"
    body = f"{reason}\nNot delivered: {titles}\nCheck notify in config.yaml: {command_line('doctor')}"
    return Ticket(TicketKind.ALERT_FAILED, title, body, destination=destination)


def _not_before(error: SendError, now: datetime) -> datetime | None:
    return None if error.wait is None else now + min(error.wait, LONGEST_WAIT)
