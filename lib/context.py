"""What every run works with."""

from __future__ import annotations

import sys
from datetime import datetime, time

from lib.agents import Agent
from lib.config import Settings
from lib.log import Log
from lib.model import Owner
from lib.records import record
from lib.redact import Redactor
from lib.runners import Place
from lib.store.database import Database
from lib.workspace import Workspace
from lib.zones import get_zone


@record(frozen=True)
class Context:
    workspace: Workspace
    settings: Settings
    db: Database
    redactor: Redactor
    log: Log
    owner: Owner

    @property
    def place(self) -> Place:
        return Place(self.workspace, self.settings)

    @property
    def healer(self) -> Agent | None:
        config = self.settings.config
        return config.agents[config.healer] if config.healer else None

    def tell_of_trouble(self, error: Exception) -> None:
        """At once: what runs goes on, perhaps for hours, before whoever started it can report."""
        self.log.error("database_trouble", error=str(error))
        text = f"the database {self.db.path} can't be written: {error}"
        try:
            print(f"scheduler.py: {text}; what runs goes on and is recorded as soon as that works", file=sys.stderr)
        except OSError:
            pass  # nobody reads it; the log has it

    def midnight(self, now: datetime) -> datetime:
        """When today began, by the configured zone."""
        zone = get_zone(self.settings.config.timezone)
        return datetime.combine(now.astimezone(zone).date(), time(), zone)
