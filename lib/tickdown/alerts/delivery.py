"""Emptying the outbox: each alert goes to Telegram, or to stderr where nothing is configured, and is then stamped."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, tzinfo
from datetime import time as clock_time

from tickdown.attempt.http_call import leave_redirect_unread
from tickdown.base.invocation import command_line
from tickdown.base.model import Alert, Ticket, TicketKind
from tickdown.base.records import record, replace
from tickdown.base.redact import Redactor
from tickdown.base.terminal import one_line, printable
from tickdown.config import Config, Destination, Notify
from tickdown.processes.process import host_name, stop_writing_to
from tickdown.store import outbox
from tickdown.store.database import Database
from tickdown.store.outbox import LONGEST_WAIT, Outgoing
from tickdown.store.tickets import close_tickets_of_kind
from tickdown.time.zones import get_zone
from tickdown.workspace.scheduler_log import Log

DIGEST_ABOVE = 5
LIMIT = 4096  # that Telegram takes in one message, in UTF-16 code units: an emoji is two
TIMEOUT = (5, 15)
ANSWER_WITHIN = 20.0
MOST_ANSWER = 10_000
_PERMANENT = (400, 401, 403, 404)


@record(frozen=True)
class Message:
    """One thing to send: an alert, or several as a digest."""

    parts: tuple[Outgoing, ...]

    @property
    def ids(self) -> list[int]:
        return [part.id for part in self.parts]


class SendError(Exception):
    """`permanent`: it will never arrive. `wait`: the other side said how long to stay away."""

    def __init__(self, message: str, *, permanent: bool = False, wait: timedelta | None = None) -> None:
        super().__init__(message)
        self.permanent, self.wait = permanent, wait


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
        send = _to_stderr if target is None else _telegram(notify, target[1])
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
    for send in (_to_stderr, _telegram(config.notify, target[1]) if target is not None else None):
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
                _to_stderr(message, redactor)  # better there than nowhere
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


# --- texts -----------------------------------------------------------------------------------------------------


def plain_text(message: Message, redactor: Redactor) -> str:
    alerts = [part.alert for part in message.parts]
    if len(alerts) == 1:
        alert = alerts[0]
        body = "\n".join(text for text in (alert.body, _indented(alert.output)) if text)
        text = f"tickdown on {host_name()}: {alert.title}\n{body}"
    else:
        lines = [f"- {alert.title}: {_first_line(alert)}" for alert in alerts]
        text = "\n".join([f"tickdown on {host_name()}: {len(alerts)} alerts", *lines])
    return printable(redactor.text(text))


def html_text(message: Message, redactor: Redactor) -> str:
    """For Telegram: escaped, and cut before escaping so that no entity or tag is cut in two."""
    import html

    def clean(text: str) -> str:  # before anything is cut: half a secret would not be recognised
        return printable(redactor.text(text))

    def escape(text: str) -> str:
        return html.escape(text, quote=False)

    alerts = [
        replace(part.alert, title=clean(part.alert.title), body=clean(part.alert.body), output=clean(part.alert.output))
        for part in message.parts
    ]
    if len(alerts) > 1:
        text = f"<b>{escape(f'{len(alerts)} alerts on {host_name()}')}</b>"
        for index, alert in enumerate(alerts):
            line = f"\n• <b>{escape(alert.title[:200])}</b>: {escape(_first_line(alert)[:200])}"
            more = f"\n… and {len(alerts) - index} more: {command_line('history')}"
            if _units(text) + _units(line) + _units(more) > LIMIT:
                return text + more
            text += line
        return text
    alert = alerts[0]
    title, body, host = f"<b>{escape(alert.title[:300])}</b>", alert.body[:1500], f"<i>{escape(host_name())}</i>"
    while _units(head := f"{title}\n{escape(body)}\n{host}") > LIMIT:
        body = body[: len(body) * 7 // 8]
    output = alert.output
    while output:
        text = f"{head}\n<pre>{escape(output)}</pre>"
        if _units(text) <= LIMIT:
            return text
        output = output[len(output) // 8 + 1 :]
    return head


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _first_line(alert: Alert) -> str:
    """Beside the title, which names the file of a problem already."""
    line = next((line for line in alert.body.splitlines() if line.strip()), "")
    path, rejected, _ = alert.title.partition(" is rejected")
    return f"line {line.removeprefix(f'{path}:')}" if rejected and line.startswith(f"{path}:") else line


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())


# --- the ways out ----------------------------------------------------------------------------------------------


def _to_stderr(message: Message, redactor: Redactor) -> None:
    """Where cron picks it up and mails it."""
    if sys.stderr.name == os.devnull:  # it was closed when we were started, and nobody would ever read this
        raise SendError("stderr is closed")
    try:
        # Past the buffer: what could not be written would be tried again, and fail, when Python ends.
        os.write(sys.stderr.fileno(), f"{plain_text(message, redactor)}\n\n".encode())
    except OSError as error:
        raise SendError(f"stderr can't be written: {error.strerror}") from None


def _telegram(notify: Notify, destination: Destination) -> Callable[[Message, Redactor], None]:
    def send(message: Message, redactor: Redactor) -> None:
        payload: dict[str, object] = {
            "chat_id": destination.chat,
            "text": html_text(message, redactor),
            "parse_mode": "HTML",
            "link_preview_options": {"is_disabled": True},
        }
        if destination.thread is not None:
            payload["message_thread_id"] = destination.thread
        _judge_answer(
            *_within(ANSWER_WITHIN, lambda: _post(f"{notify.base_url}/bot{notify.token}/sendMessage", payload))
        )

    return send


def _post(url: str, payload: dict[str, object]) -> tuple[int, str | None, bytes]:
    """(status, Retry-After, the beginning of the body)."""
    import requests

    unread = {"response": leave_redirect_unread}  # which is read to its end even where it is not followed
    try:
        with requests.post(
            url, json=payload, timeout=TIMEOUT, allow_redirects=False, stream=True, hooks=unread
        ) as answer:
            content = b""
            for chunk in answer.iter_content(MOST_ANSWER):
                content += chunk
                if len(content) >= MOST_ANSWER:
                    break
            return answer.status_code, answer.headers.get("Retry-After"), content
    except requests.RequestException as error:
        # The text of the error has the address in it, and the address has the token in it.
        raise SendError(f"Telegram can't be reached: {type(error).__name__}") from None


def _within(seconds: float, call: Callable[[], tuple[int, str | None, bytes]]) -> tuple[int, str | None, bytes]:
    """The answer, if it comes in time as a whole: a timeout of `requests` begins anew with every byte."""
    answers: list[tuple[int, str | None, bytes]] = []
    errors: list[SendError] = []

    def work() -> None:
        try:
            answers.append(call())
        except SendError as error:
            errors.append(error)
        except Exception as error:  # what a broken server can provoke has no end
            errors.append(SendError(f"Telegram's answer is not understood: {type(error).__name__}"))

    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        thread.join(seconds)
    except RuntimeError:  # no thread to be had, and this alert may be about just that
        work()
    if answers:
        return answers[0]
    raise errors[0] if errors else SendError(f"Telegram did not answer within {seconds:g} s")


def _judge_answer(status: int, retry_after: str | None, content: bytes) -> None:
    import json

    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):  # no JSON, or brackets in brackets without end
        parsed = None
    body = parsed if isinstance(parsed, dict) else {}
    said = body.get("description")
    # Whoever answers may not be Telegram: half a surrogate pair, say, can't be stored.
    description = one_line(said, 300) if isinstance(said, str) and said else "no description"
    if status == 200 and body.get("ok") is True:
        return
    if status == 429:
        parameters = body.get("parameters")
        asked = parameters.get("retry_after") if isinstance(parameters, dict) else retry_after
        raise SendError(f"Telegram asks to wait: {description}", wait=_seconds(asked))
    if status in _PERMANENT:
        raise SendError(f"Telegram refuses (HTTP {status}): {description}", permanent=True)
    raise SendError(f"Telegram answered HTTP {status}: {description}")


def _seconds(asked: object) -> timedelta:
    try:
        return timedelta(seconds=min(max(1.0, float(str(asked))), LONGEST_WAIT.total_seconds()))
    except ValueError:
        return timedelta(seconds=30)
