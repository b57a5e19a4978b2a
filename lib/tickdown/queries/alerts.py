"""What people were told."""

from __future__ import annotations

from datetime import datetime

from tickdown.base.model import AlertKind
from tickdown.store import outbox
from tickdown.store.database import Database


def told_since(db: Database, kind: AlertKind, since: datetime) -> bool:
    return outbox.told_since(db, kind, since)
