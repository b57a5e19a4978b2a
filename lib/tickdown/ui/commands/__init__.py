"""The commands, by what they are for: `tick` is what cron calls; `act`, `steer` and `add` change something; `look`, `why` and
`ahead` show something; `doctor` finds what is wrong, `heal` is about repairs, `talk` about comments and tickets. They parse,
call an action or a query, and print. Each module is imported when it is first used: a tick must not pay for the others."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tickdown.ui.commands import act, add, ahead, doctor, heal, look, steer, talk, tick, why

__all__ = ["act", "add", "ahead", "doctor", "heal", "look", "steer", "talk", "tick", "why"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(name)
