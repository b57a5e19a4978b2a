"""What every run works with."""

from __future__ import annotations

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

    def midnight(self, now: datetime) -> datetime:
        """When today began, by the configured zone."""
        zone = get_zone(self.settings.config.timezone)
        return datetime.combine(now.astimezone(zone).date(), time(), zone)
