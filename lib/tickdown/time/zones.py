"""Time zones by IANA name.

The machine's own zone files come first (the system keeps them current); where they are missing, as in small
containers, the copies inside pytz serve, so a schedule means the same everywhere.
"""

from __future__ import annotations

import os
from datetime import tzinfo
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tickdown.base.suggestions import nearest

LOCAL = "local"


class UnknownZone(ValueError):
    pass


@cache
def get_zone(name: str) -> tzinfo:
    return local_zone() if name == LOCAL else _named_zone(name)


def _named_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    import pytz

    if name in pytz.all_timezones_set:
        with pytz.open_resource(name) as file:  # type: ignore[attr-defined]
            return ZoneInfo.from_file(file, key=name)
    near = nearest(name, pytz.all_timezones)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownZone(f"unknown time zone {name!r}{hint} (an IANA name such as Europe/Berlin, or local)")


def local_zone() -> tzinfo:
    """The machine's zone: TZ, then /etc/localtime, then /etc/timezone, else UTC."""
    setting = os.environ.get("TZ", "").removeprefix(":")
    if setting.startswith("/"):
        return _zone_file(Path(setting)) or ZoneInfo("UTC")
    for name in (setting, _name_of_localtime(), _first_line("/etc/timezone")):
        if name:
            try:
                return _named_zone(name)
            except UnknownZone:
                continue
    return _zone_file(Path("/etc/localtime")) or ZoneInfo("UTC")


def zone_name(zone: tzinfo) -> str:
    return str(getattr(zone, "key", None) or "local time")


def _name_of_localtime() -> str:
    try:
        return os.readlink("/etc/localtime").partition("zoneinfo/")[2]
    except OSError:
        return ""


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _zone_file(path: Path) -> tzinfo | None:
    try:
        with path.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return None
