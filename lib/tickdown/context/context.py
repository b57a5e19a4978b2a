"""What every run works with."""

from __future__ import annotations

import sys
from datetime import datetime, time

from tickdown.agents.calls import Agent
from tickdown.attempt.command import Place
from tickdown.base.invocation import program_name
from tickdown.base.model import Owner
from tickdown.base.records import record
from tickdown.base.redact import Redactor
from tickdown.config import Settings
from tickdown.store.database import Database
from tickdown.time.zones import get_zone
from tickdown.workspace.folders import Workspace
from tickdown.workspace.scheduler_log import Log


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
            print(f"{program_name()}: {text}; what runs goes on and is recorded as soon as that works", file=sys.stderr)
        except OSError:
            pass  # nobody reads it; the log has it

    def midnight(self, now: datetime) -> datetime:
        """When today began, by the configured zone."""
        zone = get_zone(self.settings.config.timezone)
        return datetime.combine(now.astimezone(zone).date(), time(), zone)
