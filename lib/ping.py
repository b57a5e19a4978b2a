"""Telling a watcher in the Healthchecks style that a tick began, ended well, or failed."""

from __future__ import annotations

import threading

from lib.http_call import leave_redirect_unread
from lib.log import Log

TIMEOUT = (3, 5)


class Pinger:
    """Each ping goes out in the background: a watcher that stalls must not hold up a single task."""

    def __init__(self, url: str, tick_id: str, log: Log) -> None:
        self.url, self.tick_id, self.log = url, tick_id, log
        self._threads: list[threading.Thread] = []

    def send(self, suffix: str = "") -> None:
        if self.url:
            thread = threading.Thread(target=self._get, args=(self.url + suffix,), daemon=True)
            try:
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # no thread to be had: then it is waited for
                self._get(self.url + suffix)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(timeout=sum(TIMEOUT))

    def _get(self, url: str) -> None:
        unread = {"response": leave_redirect_unread}  # what it answers is not read either: it may have no end
        try:
            import requests

            # `rid` tells the watcher which start belongs to which end, since ticks overlap.
            requests.get(url, params={"rid": self.tick_id}, timeout=TIMEOUT, stream=True, hooks=unread).close()
        except Exception as error:  # what a broken server can provoke has no end
            self.log.warning("ping_failed", error=type(error).__name__)
