"""Who has called this command."""

from __future__ import annotations

import os

from tickdown.base.model import AskedBy, Asker
from tickdown.tasks.catalogue import Catalog
from tickdown.workspace.folders import user_name


def who_asks(catalog: Catalog) -> Asker:
    """The task in whose run it was called, or the user."""
    inside = os.environ.get("TICKDOWN_TASK_ID")
    if inside is None:
        return Asker(AskedBy.PERSON, user_name())
    task = catalog.get(inside)
    kind = AskedBy.AGENT if task is not None and task.agent is not None else AskedBy.TASK
    return Asker(kind, inside[:64].encode("utf-8", "replace").decode())  # whatever bytes somebody put there
