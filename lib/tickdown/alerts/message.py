"""One thing to send, and its text in plain words. Each channel says why it could not be sent by a SendError."""

from __future__ import annotations

from datetime import timedelta

from tickdown.base.model import Alert
from tickdown.base.records import record
from tickdown.base.redact import Redactor
from tickdown.base.terminal import printable
from tickdown.processes.process import host_name
from tickdown.store.outbox import Outgoing


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


def plain_text(message: Message, redactor: Redactor) -> str:
    alerts = [part.alert for part in message.parts]
    if len(alerts) == 1:
        alert = alerts[0]
        body = "\n".join(text for text in (alert.body, _indented(alert.output)) if text)
        text = f"tickdown on {host_name()}: {alert.title}\n{body}"
    else:
        lines = [f"- {alert.title}: {first_line(alert)}" for alert in alerts]
        text = "\n".join([f"tickdown on {host_name()}: {len(alerts)} alerts", *lines])
    return printable(redactor.text(text))


def first_line(alert: Alert) -> str:
    """Beside the title, which names the file of a problem already."""
    line = next((line for line in alert.body.splitlines() if line.strip()), "")
    path, rejected, _ = alert.title.partition(" is rejected")
    return f"line {line.removeprefix(f'{path}:')}" if rejected and line.startswith(f"{path}:") else line


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())
