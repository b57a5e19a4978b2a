"""The texts in `prompts/`: found in the workspace, else among those that are shipped, and filled in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tickdown.base.errors import TickdownError
from tickdown.base.program import SHIPPED
from tickdown.workspace.folders import Workspace

SELF_HEAL, CHECK_COMMENTS = "self-heal.txt", "check-comments.txt"


def prompt(workspace: Workspace, name: str, values: Mapping[str, str]) -> str:
    """`{{name}}` is replaced; what is put in is never looked at for more."""
    text = _text(workspace, name)
    return re.sub(r"\{\{([a-z_]+)\}\}", lambda match: values.get(match[1], match[0]), text)


def _text(workspace: Workspace, name: str) -> str:
    own = workspace.root / "prompts" / name
    path = own if own.exists() else SHIPPED / "prompts" / name
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TickdownError(f"the prompt {path} can't be read: {error}") from None


def mark() -> str:
    """A line that what lies between two of them can't contain, since nobody knew it when that was written."""
    return f"----- {os.urandom(8).hex()} -----"
