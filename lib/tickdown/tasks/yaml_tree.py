"""YAML as a tree that remembers where everything stood, and a reader that turns it into typed values.

Built from the parser's events and not by `yaml.load`: events carry line numbers, aliases show up before anything is
expanded, and the depth can be limited (libyaml's own composer overflows the C stack on `[[[[…`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from tickdown.base.records import field, record
from tickdown.base.suggestions import suggestion
from tickdown.base.terminal import one_line
from tickdown.time.durations import DURATION_FORMS, SIZE_FORMS, checked_duration, parse_duration, parse_size

MAX_DEPTH = 16
LONGEST_PROBLEM = 1000  # characters that a problem takes where it is told: it may quote whatever stood in the file
REASON = 400  # of them at the end, behind what is quoted, where it says why
MOST_PROBLEMS = 50  # told of one file
_TEXT = "tag:yaml.org,2002:str"
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


@record(frozen=True)
class Problem:
    """One thing wrong with one place of one file."""

    line: int
    field: str
    message: str
    warning: bool = False

    def at(self, path: str) -> str:
        kind = "warning: " if self.warning else ""
        name = f"{self.field}: " if self.field else ""
        place = one_line(f"{path}:{self.line}:", LONGEST_PROBLEM, keep_end=REASON)
        most = max(LONGEST_PROBLEM - len(place) - 1, 2 * REASON)
        return f"{place} {one_line(f'{kind}{name}{self.message}', most, keep_end=REASON)}"


class YamlError(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(line, "", message)


@record(slots=True)
class Node:
    """A scalar (`value`, `text`), a list (`items`) or a mapping (`entries`), with its place in the text."""

    kind: str
    line: int
    start: int
    end: int = 0
    value: Any = None
    text: str = ""
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Node] = field(default_factory=dict)
    flow: bool = False

    def describe(self) -> str:
        if self.kind == "scalar":
            return "nothing" if self.value is None else repr(self.text[:60])
        return "a list" if self.kind == "list" else "a mapping"


def parse_yaml(text: str) -> Node:
    """The tree of one YAML document."""
    import yaml

    loader_class: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _build(loader_class(text))
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes, not characters; but what is never allowed is found at its first place.
        character = chr(error.character) if isinstance(error.character, int) else str(error.character)
        line = 1 + text[: max(0, text.find(character))].count("\n")
        raise YamlError(line, f"the character U+{ord(character):04X} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # Counted here: what is missing at the end is said to be missing in a line that is not there.
        line = 1 + (text.count("\n", 0, mark.index) if mark else 0)
        detail = error.problem or str(error)
        hint = ""
        if mark is not None and text[mark.index : mark.index + 1] == "\t":
            detail, hint = "found a tab", "; YAML wants spaces"
        elif "cannot start any token" in detail or "alphabetic or numeric character" in detail:
            hint = "; put values that begin with @, `, % or * in quotes"
        elif "mapping values are not allowed" in detail:
            hint = "; put values that contain ': ' in quotes"
        elif "did not find expected key" in detail or "could not find expected ':'" in detail:
            hint = "; look for a quote inside quotes or a missing space after ':' here or in the line before"
        raise YamlError(line, f"bad YAML: {detail}{hint}") from None


def _build(loader: Any) -> Node:
    """One pass over the events with an explicit stack: no recursion, so no input can exhaust it."""
    import yaml

    scalar, end_of_list, end_of_map = yaml.ScalarEvent, yaml.SequenceEndEvent, yaml.MappingEndEvent
    root: Node | None = None
    stack: list[tuple[Node, Node | None]] = []  # an open collection, and the key that waits for its value
    while True:
        event: Any = loader.get_event()
        if event is None:
            return root or Node("scalar", 1, 0)
        kind = type(event)
        mark: Any = event.start_mark
        if kind is scalar:
            node = Node("scalar", mark.line + 1, mark.index, event.end_mark.index, text=event.value)
            node.value = _scalar_value(event)
        elif kind is end_of_list or kind is end_of_map:
            node, _ = stack.pop()
            node.end = event.end_mark.index
        elif kind is yaml.SequenceStartEvent or kind is yaml.MappingStartEvent:
            if len(stack) >= MAX_DEPTH:
                raise YamlError(mark.line + 1, f"nested deeper than {MAX_DEPTH} levels")
            name = "list" if kind is yaml.SequenceStartEvent else "map"
            node = Node(name, mark.line + 1, mark.index, flow=bool(event.flow_style))
            stack.append((node, None))
            continue
        elif kind is yaml.AliasEvent:
            raise YamlError(
                mark.line + 1,
                f"YAML aliases (*{event.anchor}) are not accepted; put a value that begins with * in quotes",
            )
        elif kind is yaml.DocumentStartEvent and root is not None:
            raise YamlError(mark.line + 1, "a second YAML document; only one is accepted")
        else:
            continue
        if not stack:
            root = node
            continue
        parent, key = stack[-1]
        if parent.kind == "list":
            parent.items.append(node)
        elif key is None:
            if node.kind != "scalar":
                raise YamlError(node.line, "a key must be plain text")
            if node.text in parent.entries:
                raise YamlError(node.line, f"{node.text}: given twice (first on line {parent.keys[node.text].line})")
            stack[-1] = (parent, node)
        else:
            parent.entries[key.text] = node
            parent.keys[key.text] = key
            stack[-1] = (parent, None)


def tree_to_text(root: Node) -> str:
    """For whoever will want the tree again, and the parser not."""
    import json

    return json.dumps(_plain(root))


def tree_from_text(text: str) -> Node:
    """ValueError or TypeError if it is not such a tree."""
    import json

    return _from_plain(json.loads(text))


def _plain(node: Node) -> list[Any]:
    entries = [[_plain(node.keys[name]), _plain(value)] for name, value in node.entries.items()]
    items = [_plain(item) for item in node.items]
    return [node.kind, node.line, node.start, node.end, node.value, node.text, node.flow, items, entries]


def _from_plain(values: list[Any]) -> Node:
    kind, line, start, end, value, text, flow, items, entries = values
    keys = [_from_plain(key) for key, _ in entries]
    named = {key.text: _from_plain(node) for key, (_, node) in zip(keys, entries, strict=True)}
    by_name = {key.text: key for key in keys}
    return Node(kind, line, start, end, value, text, list(map(_from_plain, items)), named, by_name, flow)


@cache
def _resolve() -> Callable[[str, tuple[bool, bool]], str]:
    import yaml

    resolver: Any = yaml.resolver.Resolver()
    scalar = yaml.ScalarNode
    return lambda text, implicit: str(resolver.resolve(scalar, text, implicit))


def _scalar_value(event: Any) -> Any:
    """None, bool, int, float or str, by YAML's own rules; dates and the like stay text."""
    text: str = event.value
    tag: str = event.tag or _resolve()(text, event.implicit)
    if tag == _TEXT:
        return text
    try:
        match tag.rpartition(":")[2]:
            case "null":
                return None
            case "bool":
                word = text.lower()  # `!!bool banana` is no boolean
                return word in ("yes", "true", "on") if word in ("yes", "no", "true", "false", "on", "off") else text
            case "int":
                # Only what looks like a whole number to a person: YAML 1.1 also reads 12:30 and 017 as numbers.
                plain = text.replace("_", "")
                return int(plain) if len(plain) < 20 and plain.lstrip("+-").isdecimal() and plain.isascii() else text
            case "float":
                return float(text.replace("_", ""))
            case _:
                return text
    except ValueError:
        return text


class Fields:
    """Typed access to one mapping. What is wrong is collected, not raised, so that all of it is reported at once."""

    def __init__(self, node: Node, known: Collection[str], problems: list[Problem], prefix: str = "") -> None:
        self.node, self.problems, self.prefix = node, problems, prefix
        self.unknown = [name for name in node.entries if name not in known]

    def refuse(self, name: str, message: str, line: int | None = None) -> None:
        self.problems.append(Problem(line or self.line(name), self.prefix + name, message))

    def line(self, name: str) -> int:
        key = self.node.keys.get(name)
        return key.line if key else self.node.line

    def given(self, name: str) -> Node | None:
        """The value, unless it is absent or null: both mean the default."""
        node = self.node.entries.get(name)
        return None if node is None or (node.kind == "scalar" and node.value is None) else node

    def read(self, name: str, default: T, convert: Callable[[Node], T]) -> T:
        node = self.node.entries.get(name)
        if node is None or (node.value is None and node.kind == "scalar"):  # most of them, most of the time
            return default
        try:
            return convert(node)
        except ValueError as error:
            self.refuse(name, str(error), node.line)
            return default

    def text(self, name: str, default: str = "") -> str:
        return self.read(name, default, as_text)

    def flag(self, name: str, default: bool) -> bool:
        return self.read(name, default, as_flag)

    def whole(self, name: str, default: int, least: int, most: int = 1_000_000) -> int:
        return self.read(name, default, lambda node: as_whole(node, least, most))

    def choice(self, name: str, default: E, options: type[E]) -> E:
        def convert(node: Node) -> E:
            names = [option.value for option in options]
            if node.kind != "scalar" or node.text not in names:
                raise ValueError(f"{node.describe()} is not accepted; one of {', '.join(names)}")
            return options(node.text)

        return self.read(name, default, convert)

    def duration(self, name: str, default: timedelta | None, *, allow_zero: bool = False) -> timedelta | None:
        return self.read(name, default, lambda node: as_duration(node, allow_zero=allow_zero))

    def seconds(self, name: str, default: timedelta, *, allow_zero: bool = False) -> timedelta:
        """A duration, where a bare number means seconds."""

        def convert(node: Node) -> timedelta:
            if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
                if node.value != node.value:
                    raise ValueError(f"{node.describe()} is not a number of seconds")
                return checked_duration(float(node.value), node.text, allow_zero=allow_zero)
            try:
                return as_duration(node, allow_zero=allow_zero)
            except ValueError as error:
                raise ValueError(f"{error}; or a number of seconds") from None

        return self.read(name, default, convert)

    def size(self, name: str, default: int, least: int) -> int:
        def convert(node: Node) -> int:
            if node.kind != "scalar":
                raise ValueError(f"{node.describe()} is not a size; write {SIZE_FORMS}")
            size = parse_size(node.text)
            if size < least:
                raise ValueError(f"{node.text!r} is too small; at least {least} bytes")
            return size

        return self.read(name, default, convert)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; a single text is a list of one."""

        def convert(node: Node) -> tuple[str, ...]:
            if node.kind == "scalar":
                return (as_text(node),)
            if node.kind != "list":
                raise ValueError(f"{node.describe()} is not accepted; a list of texts")
            return tuple(as_text(item) for item in node.items)

        return self.read(name, (), convert)

    def mapping(self, name: str) -> Iterator[tuple[str, Node]]:
        node = self.given(name)
        if node is None:
            return
        if node.kind != "map":
            self.refuse(name, f"{node.describe()} is not accepted; a mapping of names to values", node.line)
            return
        yield from node.entries.items()

    def variables(self, name: str) -> dict[str, str]:
        """Environment variables: numbers and booleans keep the spelling of the file."""
        result = {}
        for key, node in self.mapping(name):
            if not key.isascii() or not key.replace("_", "a").isalnum() or key[0].isdigit():
                self.refuse(name, f"{key!r} is not a variable name (letters, digits, _)", node.line)
            elif node.kind != "scalar":
                self.refuse(name, f"{key}: {node.describe()} is not accepted; a text", node.line)
            elif "\0" in node.text:
                self.refuse(name, f"{key}: contains a NUL character", node.line)
            else:
                result[key] = node.text if node.value is not None else ""
        return result

    def unknown_as(self, *, warning: bool, known: Collection[str], see: str = "") -> None:
        """Report the keys nobody knows, each with the nearest name there is, and where all of them are to be seen."""
        for number, name in enumerate(self.unknown):
            near = suggestion(name, known) if number < MOST_PROBLEMS else ""  # which takes its time
            words = f"unknown{near}" + (f"; {see}" if see else "")
            self.problems.append(Problem(self.line(name), self.prefix + name, words, warning=warning))


def first_few(problems: list[Problem]) -> list[Problem]:
    """In the order of their lines, the errors before the warnings if there are too many to tell all of them."""
    if len(problems) > MOST_PROBLEMS:
        told = sorted(problems, key=lambda problem: problem.warning)[:MOST_PROBLEMS]
        left, last = len(problems) - MOST_PROBLEMS, max(told, key=lambda problem: problem.line)
        problems = [*told, Problem(last.line, "", f"and {left} more problems", warning=last.warning)]
    return sorted(problems, key=lambda problem: problem.line)


def as_text(node: Node) -> str:
    if node.kind == "scalar" and isinstance(node.value, str):
        if "\0" in node.value:
            raise ValueError("contains a NUL character")
        return node.value
    hint = "; put it in quotes" if node.kind == "scalar" and node.value is not None else ""
    raise ValueError(f"{node.describe()} is not a text{hint}")


def as_flag(node: Node) -> bool:
    if isinstance(node.value, bool):
        return node.value
    raise ValueError(f"{node.describe()} is not accepted; true or false")


def as_whole(node: Node, least: int, most: int) -> int:
    if isinstance(node.value, int) and not isinstance(node.value, bool) and least <= node.value <= most:
        return node.value
    raise ValueError(f"{node.describe()} is not accepted; a whole number from {least} to {most}")


def as_duration(node: Node, *, allow_zero: bool = False) -> timedelta:
    if node.kind != "scalar":
        raise ValueError(f"{node.describe()} is not a duration; write {DURATION_FORMS}")
    return parse_duration(node.text, allow_zero=allow_zero)
