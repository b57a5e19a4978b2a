"""Keep secrets out of whatever is written down or shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

from tickdown.base.terminal import begun_at, has_hidden, has_hidden_bytes, places_of_seen, seen

MASK = "***"
SHORTEST = 8
FEW = 100
MOST_HELD = 16_384
# What is not shown, as JSON writes it down; more than that does no harm.
_HIDDEN_IN_JSON = re.compile(r"\\(?:[bfr]|u00[0189]|u007f|u061c|u20[026])")
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
    forms = {form for value in values if len(value) >= SHORTEST for form in _forms(value)}
    return {form for form in forms if len(form) >= SHORTEST}


def _shown(value: str) -> str:
    return seen(value.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _forms(value: str) -> set[str]:
    """As it is, and as programs write it down: in JSON, for a shell (`export -p`), in Python, in an address; and what is
    left of it on a screen."""
    if _PLAIN.fullmatch(value):
        return {value}
    in_json = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    in_shell = {re.sub(r'([\\"$`])', r"\\\1", value), value.replace("'", "'\\''"), value.replace("'", "'\"'\"'")}
    escaped_slashes = {form.replace("/", "\\/") for form in in_json}
    return {value, *in_json, *escaped_slashes, *in_shell, repr(value)[1:-1], *_in_address(value), _shown(value)}


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
        self._know(secrets)

    def _know(self, secrets: Iterable[str]) -> None:
        self.secrets = list(secrets)
        self._bytes = [secret.encode("utf-8", "surrogateescape") for secret in self.secrets]
        self._in_json = [json.dumps(secret)[1:-1] for secret in self.secrets]
        self._by_head: dict[str, list[str]] = {}
        for secret in self.secrets if len(self.secrets) > FEW else ():
            self._by_head.setdefault(secret[:SHORTEST], []).append(secret)

    def is_clean(self, document: str) -> bool:
        """Whether a text in JSON has no secret in it, however that is written there."""
        return not any(written in document for written in self._in_json) and not (
            self.secrets and _HIDDEN_IN_JSON.search(document)
        )

    def knowing(self, variables: Mapping[str, str]) -> Redactor:
        """The same, for a task that has secrets of its own among its variables."""
        more = telling_values(variables)
        return Redactor(_longest_first({*self.secrets, *_written(more)})) if more else self

    def learn(self, values: Iterable[str]) -> None:
        """For what is found out only after others were given this one."""
        if more := _written(values) - set(self.secrets):
            self._know(_longest_first({*self.secrets, *more}))

    def text(self, text: str) -> str:
        """Without secrets, also those that lie open only once escape sequences and the like are taken out."""
        for secret in self.secrets if len(self.secrets) <= FEW else self._likely_in(text):
            if secret in text:
                text = text.replace(secret, MASK)
        return self._uninterrupted(text) if self.secrets and has_hidden(text) else text

    def _likely_in(self, text: str) -> list[str]:
        """Those of many that may be in a text, by their beginnings: each task file may bring one, and there are as many
        titles."""
        heads = {text[at : at + SHORTEST] for at in range(len(text) - SHORTEST + 1)}
        return _longest_first(secret for head in heads & self._by_head.keys() for secret in self._by_head[head])

    def _uninterrupted(self, text: str) -> str:
        stream = InterruptedStream([secret.encode("utf-8", "surrogatepass") for secret in self.secrets])
        data = stream.feed(text.encode("utf-8", "surrogatepass")) + stream.flush()
        return data.decode("utf-8", "surrogatepass")

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
    """Redacts bytes that come in pieces: a secret cut in two by a read is still found, and so is one that has escape
    sequences in it."""

    def __init__(self, secrets: list[bytes]) -> None:
        self._secrets = Secrets(secrets)
        self._interrupted = InterruptedStream(secrets)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if not self._secrets:
            return data
        data = self._held + data
        spans, hold_from = self._secrets.find(data)
        self._held = data[hold_from:]
        return self._interrupted.feed(_masked(data[:hold_from], spans))

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return self._interrupted.feed(_masked(held, self._secrets.matches(held))) + self._interrupted.flush()


class InterruptedStream:
    """The same for secrets with something in them that is not shown, such as a colour: taken out, as it is before a text is
    shown, it would leave them whole. It goes with the secret, and so does what stands right before: an unfinished
    sequence would swallow the mask."""

    def __init__(self, secrets: list[bytes]) -> None:
        self._secrets = Secrets([secret for secret in secrets if not has_hidden_bytes(secret)])
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if not self._held and begun_at(data) == len(data) and not has_hidden_bytes(data):
            return data  # what is whole is masked, and what may become whole is held back already
        return self._pass_on(self._held + data, final=False)

    def flush(self) -> bytes:
        return self._pass_on(self._held, final=True)

    def _pass_on(self, data: bytes, *, final: bool) -> bytes:
        end = len(data) if final else begun_at(data)
        text = seen(data[:end])
        spans, hold_from = (list(self._secrets.matches(text)), len(text)) if final else self._secrets.find(text)
        if spans or hold_from < len(text):
            place = places_of_seen(data[:end])
            spans = [(_behind(place, start), _behind(place, last)) for start, last in spans]
            end = _behind(place, hold_from) if hold_from < len(text) else end
        held = data[end:]
        # Much that is hidden behind the beginning of a secret: better without it than all of it in memory.
        self._held = held if len(held) <= MOST_HELD else seen(held)
        return _masked(data[:end], spans)


def _behind(place: Callable[[int], int], seen_before: int) -> int:
    """Right behind that many bytes that are seen, and before anything hidden that follows."""
    return place(seen_before - 1) + 1 if seen_before else 0


def _masked(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    ready, at = [], 0
    for start, end in spans:
        ready += [data[at:start], MASK.encode()]
        at = end
    return b"".join([*ready, data[at:]])


class Secrets:
    """Each is searched for by itself: one pattern for all would look for every one of them at every byte, and a task may
    bring thousands."""

    def __init__(self, secrets: list[bytes]) -> None:
        self._secrets = secrets  # the longest first

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def find(self, data: bytes) -> tuple[list[tuple[int, int]], int]:
        """Where they lie, and from where on the data must wait for more: it could be the beginning of one."""
        hold_from, spans = self._hold_from(data, 0), []
        for start, end in self.matches(data):
            # One that lies in what is held back may yet turn out to be the beginning of a longer one.
            if start >= hold_from:
                break
            spans.append((start, end))
            if end > hold_from:
                hold_from = self._hold_from(data, end)
        return spans, hold_from

    def matches(self, data: bytes) -> Iterator[tuple[int, int]]:
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
        return len(data) - max((self._overlap(data, at, secret) for secret in self._secrets), default=0)

    @staticmethod
    def _overlap(data: bytes, at: int, secret: bytes) -> int:
        """How much of the end of the data, behind `at`, could be the beginning of the secret."""
        first, start = secret[:1], max(at, len(data) - len(secret) + 1)
        while (start := data.find(first, start)) >= 0:
            if secret.startswith(data[start:]):
                return len(data) - start
            start += 1
        return 0
