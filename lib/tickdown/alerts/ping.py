"""Telling a watcher in the Healthchecks style that a tick began, ended well, or failed."""

from __future__ import annotations

import hashlib
import threading

from tickdown.attempt.http_call import leave_redirect_unread
from tickdown.base.model import Owner
from tickdown.workspace.scheduler_log import Log

TIMEOUT = (3, 5)  # to connect, and for every read
_PATIENCE = sum(TIMEOUT)  # with one ping as a whole: an answer may come byte by byte and never end


class Pinger:
    """Pings go out in the background, one after the other: a watcher that stalls must not hold up a single task, and one that
    hears of the end before the start believes that a tick is still at work."""

    def __init__(self, url: str, tick: Owner, log: Log) -> None:
        self.url, self.tick, self.log = url, tick, log
        self._last: threading.Thread | None = None
        self._unsent: list[str] = []

    def send(self, suffix: str = "") -> None:
        if not self.url:
            return
        self._unsent.append(self.url + suffix)
        thread = threading.Thread(target=self._get_all, args=(self._unsent, self._last), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread to be had: it goes out with the next one, or at the end
            return
        self._last, self._unsent = thread, []

    def finish(self) -> None:
        """Wait until all are out, but no longer than two may take: the last, and the one that it waits for."""
        if self._last is not None:
            self._last.join(timeout=2 * _PATIENCE)
        for url in self._unsent:
            self._get(url)

    def _get_all(self, urls: list[str], before: threading.Thread | None) -> None:
        if before is not None:
            before.join(timeout=_PATIENCE)  # then it has most likely arrived, and in any case this one must
        for url in urls:
            self._get(url)

    def _get(self, url: str) -> None:
        unread = {"response": leave_redirect_unread}  # what it answers is not read either: it may have no end
        try:
            import requests

            # `rid` tells the watcher which start belongs to which end, since ticks overlap.
            with requests.get(
                url, params={"rid": _rid(self.tick)}, timeout=TIMEOUT, stream=True, hooks=unread
            ) as answer:
                if not answer.ok:
                    self.log.warning("ping_failed", error=f"HTTP {answer.status_code}")
        except Exception as error:  # what a broken server can provoke has no end
            self.log.warning("ping_failed", error=type(error).__name__)


def _rid(tick: Owner) -> str:
    """The same from whoever speaks for that process, also when it has crashed. Healthchecks refuses what is no UUID."""
    from uuid import UUID

    name = f"{tick.host}|{tick.boot_id}|{tick.pid}|{tick.started}"
    return str(UUID(bytes=hashlib.sha256(name.encode("utf-8", "replace")).digest()[:16], version=4))
