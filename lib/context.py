"""What every run works with."""

from __future__ import annotations

from lib.config import Settings
from lib.log import Log
from lib.model import Owner
from lib.records import record
from lib.redact import Redactor
from lib.store.database import Database
from lib.workspace import Workspace


@record(frozen=True, slots=True)
class Context:
    workspace: Workspace
    settings: Settings
    db: Database
    redactor: Redactor
    log: Log
    owner: Owner
