"""Instants as the store keeps them: UTC in a fixed width, so that text order is time order."""

from datetime import UTC, datetime
from functools import lru_cache


def to_store(moment: datetime) -> str:
    return _as_text(moment if moment.tzinfo is UTC else moment.astimezone(UTC))


@lru_cache(maxsize=64)  # one moment goes into several rows
def _as_text(utc: datetime) -> str:
    """Only of UTC: in other zones two moments can be equal that are an hour apart."""
    return utc.isoformat(timespec="milliseconds")[:-6] + "Z"


def from_store(text: str) -> datetime:
    return datetime.fromisoformat(text)


def maybe_from_store(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def to_milliseconds(moment: datetime) -> datetime:
    """Cut to what the store keeps, so that a moment equals itself after a round trip."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
