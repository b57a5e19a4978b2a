"""Telegram's Bot API: one message as HTML, and what its answers mean."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from tickdown.alerts.message import Message, SendError, first_line
from tickdown.attempt.http_call import leave_redirect_unread
from tickdown.base.invocation import command_line
from tickdown.base.records import replace
from tickdown.base.redact import Redactor
from tickdown.base.terminal import one_line, printable
from tickdown.config import Destination, Notify
from tickdown.processes.process import host_name
from tickdown.store.outbox import LONGEST_WAIT

LIMIT = 4096  # that Telegram takes in one message, in UTF-16 code units: an emoji is two
TIMEOUT = (5, 15)
ANSWER_WITHIN = 20.0
MOST_ANSWER = 10_000
_PERMANENT = (400, 401, 403, 404)


def sender(notify: Notify, destination: Destination) -> Callable[[Message, Redactor], None]:
    def send(message: Message, redactor: Redactor) -> None:
        payload: dict[str, object] = {
            "chat_id": destination.chat,
            "text": html_text(message, redactor),
            "parse_mode": "HTML",
            "link_preview_options": {"is_disabled": True},
        }
        if destination.thread is not None:
            payload["message_thread_id"] = destination.thread
        judge_answer(
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


def judge_answer(status: int, retry_after: str | None, content: bytes) -> None:
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
            line = f"\n• <b>{escape(alert.title[:200])}</b>: {escape(first_line(alert)[:200])}"
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
