"""stderr: where cron picks an alert up and mails it."""

from __future__ import annotations

import os
import sys

from tickdown.alerts.message import Message, SendError, plain_text
from tickdown.base.redact import Redactor


def send(message: Message, redactor: Redactor) -> None:
    if sys.stderr.name == os.devnull:  # it was closed when we were started, and nobody would ever read this
        raise SendError("stderr is closed")
    try:
        # Past the buffer: what could not be written would be tried again, and fail, when Python ends.
        os.write(sys.stderr.fileno(), f"{plain_text(message, redactor)}\n\n".encode())
    except OSError as error:
        raise SendError(f"stderr can't be written: {error.strerror}") from None
