"""Keep secrets out of whatever is written down or shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
SHORTEST = 8
_TELLING = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


def secrets_in(env_file: Mapping[str, str], environment: Mapping[str, str], more: Iterable[str] = ()) -> list[str]:
    """All of `.env`, and every variable whose name says that it is a secret; longest first, so that a secret that
    contains another is replaced whole."""
    return _ordered({*env_file.values(), *more, *telling_values(environment)})


def telling_values(variables: Mapping[str, str]) -> set[str]:
    return {value for name, value in variables.items() if any(word in name.upper() for word in _TELLING)}


def _ordered(values: Iterable[str]) -> list[str]:
    return sorted((value for value in values if len(value) >= SHORTEST), key=lambda value: (-len(value), value))


class Redactor:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets = list(secrets)
        self._bytes = [secret.encode("utf-8", "surrogateescape") for secret in self.secrets]

    def knowing(self, variables: Mapping[str, str]) -> Redactor:
        """The same, for a task that has secrets of its own among its variables."""
        more = telling_values(variables)
        return Redactor(_ordered({*self.secrets, *more})) if more else self

    def text(self, text: str) -> str:
        for secret in self.secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def tree(self, value: Any) -> Any:
        """The same for every text in a JSON-like value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.tree(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.tree(item) for item in value]
        return value

    def stream(self) -> RedactedStream:
        return RedactedStream(self._bytes)


class RedactedStream:
    """Redacts bytes that come in pieces: a secret cut in two by a read is still found."""

    def __init__(self, secrets: list[bytes]) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if not self._secrets:
            return data
        data = self._replace(self._held + data)
        keep = max((self._overlap(data, secret) for secret in self._secrets), default=0)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _replace(self, data: bytes) -> bytes:
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, MASK.encode())
        return data

    @staticmethod
    def _overlap(data: bytes, secret: bytes) -> int:
        """How much of the end of the data could be the beginning of the secret."""
        for size in range(min(len(secret) - 1, len(data)), 0, -1):
            if data.endswith(secret[:size]):
                return size
        return 0
