"""Keep secrets out of whatever is written down or shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

MASK = "***"
SHORTEST = 8
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")
_TELLING = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


def secrets_in(env_file: Mapping[str, str], environment: Mapping[str, str], more: Iterable[str] = ()) -> list[str]:
    """All of `.env`, and every variable whose name says that it is a secret; longest first, so that a secret that
    contains another is replaced whole."""
    return _longest_first(_written({*env_file.values(), *more, *telling_values(environment)}))


def telling_values(variables: Mapping[str, str]) -> set[str]:
    return {value for name, value in variables.items() if any(word in name.upper() for word in _TELLING)}


def _longest_first(secrets: Iterable[str]) -> list[str]:
    return sorted(secrets, key=lambda secret: (-len(secret), secret))


def _written(values: Iterable[str]) -> set[str]:
    return {form for value in values if len(value) >= SHORTEST for form in _forms(value)}


def _forms(value: str) -> set[str]:
    """As it is, and as programs write it down: in JSON, for a shell (`export -p`), in Python, in an address."""
    if _PLAIN.fullmatch(value):
        return {value}
    in_json = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    in_shell = {re.sub(r'([\\"$`])', r"\\\1", value), value.replace("'", "'\\''"), value.replace("'", "'\"'\"'")}
    escaped_slashes = {form.replace("/", "\\/") for form in in_json}
    return {value, *in_json, *escaped_slashes, *in_shell, repr(value)[1:-1], *_in_address(value)}


def _in_address(value: str) -> set[str]:
    """Some leave `/` as it is, some write a space as `+`, some write small letters."""
    data = value.encode("utf-8", "surrogateescape")
    found = set()
    for kept in ("", "/"):
        text = "".join(
            chr(byte) if chr(byte) in kept or _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in data
        )
        found |= {text, text.replace("%20", "+"), re.sub("%..", lambda code: code[0].lower(), text)}
    return found


class Redactor:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets = list(secrets)
        self._bytes = [secret.encode("utf-8", "surrogateescape") for secret in self.secrets]
        self._in_json = [json.dumps(secret)[1:-1] for secret in self.secrets]

    def is_clean(self, document: str) -> bool:
        """Whether a text in JSON has no secret in it, however that is written there."""
        return not any(written in document for written in self._in_json)

    def knowing(self, variables: Mapping[str, str]) -> Redactor:
        """The same, for a task that has secrets of its own among its variables."""
        more = telling_values(variables)
        return Redactor(_longest_first({*self.secrets, *_written(more)})) if more else self

    def text(self, text: str) -> str:
        for secret in self.secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def tree(self, value: Any) -> Any:
        """The same for every text in a JSON-like value."""
        if not self.secrets:
            return value
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
    """Redacts bytes that come in pieces: a secret cut in two by a read is still found. Each secret is searched for by
    itself: one pattern for all would look for every one of them at every byte, and a task may bring thousands."""

    def __init__(self, secrets: list[bytes]) -> None:
        self._secrets = secrets  # the longest first
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if not self._secrets:
            return data
        data = self._held + data
        hold_from = self._hold_from(data, 0)
        ready, at = [], 0
        for start, end in self._matches(data):
            # One that lies in what is held back may yet turn out to be the beginning of a longer one.
            if start >= hold_from:
                break
            ready += [data[at:start], MASK.encode()]
            at = end
            if at > hold_from:
                hold_from = self._hold_from(data, at)
        self._held = data[hold_from:]
        return b"".join([*ready, data[at:hold_from]])

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        ready, at = [], 0
        for start, end in self._matches(held):
            ready += [held[at:start], MASK.encode()]
            at = end
        return b"".join([*ready, held[at:]])

    def _matches(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets lie, from left to right, none in another; of two that begin at the same place the longer."""
        found = [(start, rank) for rank, secret in enumerate(self._secrets) if (start := data.find(secret)) >= 0]
        heapify(found)
        at = 0
        while found:
            start, rank = heappop(found)
            secret = self._secrets[rank]
            if start >= at:
                at = start + len(secret)
                yield start, at
            if (following := data.find(secret, at)) >= 0:
                heappush(found, (following, rank))

    def _hold_from(self, data: bytes, at: int) -> int:
        return len(data) - max(self._overlap(data, at, secret) for secret in self._secrets)

    @staticmethod
    def _overlap(data: bytes, at: int, secret: bytes) -> int:
        """How much of the end of the data, behind `at`, could be the beginning of the secret."""
        first, start = secret[:1], max(at, len(data) - len(secret) + 1)
        while (start := data.find(first, start)) >= 0:
            if secret.startswith(data[start:]):
                return len(data) - start
            start += 1
        return 0
