"""Alerts leave while runs go on, from a thread: a server that stalls must not hold up the loop that looks after the runs."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from tickdown.alerts.delivery import deliver
from tickdown.base.redact import Redactor
from tickdown.config import Config
from tickdown.store import outbox
from tickdown.store.database import Database
from tickdown.workspace.folders import Workspace
from tickdown.workspace.scheduler_log import Log

LOOK_EVERY = 2.0
# From the first alert on, so that those of tasks that fail together leave together, as one digest if there are many.
GATHER = 3.0
# Between two deliveries, for the same reason: what goes on failing is not told one by one.
PAUSE = 10.0
# For the thread at the end of a tick. No single message takes longer; and a lease that is over is another tick's.
FINISH_WITHIN = outbox.LEASE.total_seconds()


class Sender:
    """Delivers what is new in the outbox. What could not be sent is tried again at the end of the tick, not before."""

    def __init__(self, workspace: Workspace, db: Database, config: Config, redactor: Redactor) -> None:
        self.db, self.config, self.redactor = db, config, redactor
        # A log of its own, like the connection: no descriptor is shared with a thread.
        self._log = Log(workspace.logs, redactor)
        self._thread: threading.Thread | None = None
        self._seen = 0  # the newest alert that a delivery was begun for
        self._send_at: float | None = None  # when the gathering ends
        self._look_at, self._not_before = time.monotonic() + LOOK_EVERY, 0.0  # a tick that ends sooner asks nothing

    def look(self) -> float:
        """Begin a delivery if it is time for one. When to look again, on the monotonic clock."""
        monotonic = time.monotonic()
        if monotonic < self._look_at or (self._thread is not None and self._thread.is_alive()):
            return max(self._look_at, monotonic + GATHER)
        newest = outbox.newest_pending(self.db)
        if newest <= self._seen:
            self._send_at, self._look_at = None, monotonic + LOOK_EVERY
        elif self._send_at is None:
            self._send_at = self._look_at = max(monotonic + GATHER, self._not_before)
        else:
            self._seen, self._send_at = newest, None
            self._look_at, self._not_before = monotonic + LOOK_EVERY, monotonic + PAUSE
            self._start()
        return self._look_at

    def finish(self) -> bool:
        """Wait for a delivery that goes on. False if it does not come to its end: what is left is for the next tick."""
        if self._thread is None:
            return True
        self._thread.join(FINISH_WITHIN)
        return not self._thread.is_alive()

    def _start(self) -> None:
        thread = threading.Thread(target=self._deliver, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had: it is delivered at the end
            self._log.warning("alerts_wait", error=str(error))
            return
        self._thread = thread

    def _deliver(self) -> None:
        try:
            db = self.db.another_connection()
            try:
                deliver(db, self.config, self.redactor, self._log, datetime.now(UTC))
            finally:
                db.close()
        except Exception as error:  # it is tried again at the end, where the trouble is seen to
            self._log.warning("alerts_wait", error=self.redactor.text(f"{type(error).__name__}: {error}"))
