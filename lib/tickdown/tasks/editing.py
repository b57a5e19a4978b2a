"""Changing single fields of a task file in place: every other byte stays as its author wrote it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tickdown.base.errors import TickdownError, explained
from tickdown.tasks.task import split_frontmatter
from tickdown.tasks.yaml_tree import Node, YamlError, parse_yaml
from tickdown.workspace.folders import replace_file

BOM = "\ufeff"


class EditRefused(TickdownError):
    pass


class ChangedMeanwhile(EditRefused):
    """Somebody else wrote the file between our reading and our writing."""


def set_fields(path: Path, changes: Mapping[str, str | None], task_id: str, if_schedule: str | None = None) -> bool:
    """Set fields to plain words, or take them away (None). Written beside the file, synced, renamed over it. The file
    must still be that of the task. With another schedule than `if_schedule` it is left as it is: False."""
    target = path.resolve()
    try:
        before = target.stat()
        text = target.read_bytes().decode("utf-8")
        fields = _plain(_tree(text.removeprefix(BOM)))
        if fields.get("id") != task_id:
            raise EditRefused(f"{path}: is not the file of {task_id} any more; it was not changed")
        if if_schedule is not None and fields.get("schedule") != if_schedule:
            return False
        _replace(target, edited(text, changes).encode("utf-8"), before)
    except YamlError as error:
        raise EditRefused(f"{error.problem.at(str(path))}; the file was not changed") from None
    except OSError as error:  # without the name of the temporary file: the same trouble must read the same every time
        raise EditRefused(f"{path}: can't be edited: {explained(error)}") from None
    except UnicodeDecodeError as error:
        raise EditRefused(f"{path}: can't be edited: {error}") from None
    return True


def edited(text: str, changes: Mapping[str, str | None]) -> str:
    """The text with the changes made; EditRefused if they could not be made cleanly."""
    bom = BOM if text.startswith(BOM) else ""
    body = text[len(bom) :]
    wanted = _plain(_tree(body))
    for name, value in changes.items():
        body = _with_field(body, name, value)
        wanted = {**wanted, name: value} if value is not None else {k: v for k, v in wanted.items() if k != name}
    # Proof instead of trust: the new text must mean the old fields plus the changes, and nothing else.
    taken_away = [name for name, value in changes.items() if value is None]
    got = {n: value for n, value in _plain(_tree(body)).items() if n not in taken_away or value not in ("", "null")}
    if got != wanted:
        raise EditRefused("the fields could not be changed without touching others; the file was not changed")
    return bom + body


def _tree(text: str) -> Node:
    root = parse_yaml(split_frontmatter(text)[0])
    if root.kind != "map":
        raise EditRefused("the frontmatter is not a list of `field: value` lines; the file was not changed")
    return root


def _plain(node: Node) -> dict[str, object]:
    def value(child: Node) -> object:
        if child.kind == "map":
            return {name: value(entry) for name, entry in child.entries.items()}
        return [value(item) for item in child.items] if child.kind == "list" else child.text

    return {name: value(child) for name, child in node.entries.items()}


def _with_field(text: str, name: str, value: str | None) -> str:
    yaml_text, _ = split_frontmatter(text)
    # The parser counts from the YAML's beginning, which lies behind the opening `---`.
    offset = text.index(yaml_text, text.index("---"))
    root = parse_yaml(yaml_text)
    node = root.entries.get(name)
    if node is None:
        return text if value is None else _insert(text, offset, len(yaml_text), root, name, value)
    if value is None:
        return _remove(text, offset, root, name)
    return _with_value(text, offset, node, value)


def _with_value(text: str, offset: int, node: Node, value: str) -> str:
    start, end = offset + node.start, offset + node.end
    end -= len(text[start:end]) - len(text[start:end].rstrip("\r\n"))  # a block scalar ends at the next line
    return text[:start] + _spaced(text, start, value) + text[end:]


def _spaced(text: str, at: int, value: str) -> str:
    """An empty value (`enabled:`) ends right at the colon."""
    return value if text[at - 1 : at] in (" ", "\t", "\n", "") else f" {value}"


def _insert(text: str, offset: int, length: int, root: Node, name: str, value: str) -> str:
    if root.flow:
        at = text.index("{", offset + root.start) + 1  # the end may have a comma or a comment before it
        comma = "" if not root.entries else ", "
        return f"{text[:at]}{name}: {value}{comma}{text[at:]}"
    newline = "\r\n" if "\r\n" in text[: offset + length] else "\n"
    indent = text[text.rfind("\n", 0, offset + root.start) + 1 : offset + root.start]
    at = offset + length  # right before the closing `---`
    return f"{text[:at]}{indent}{name}: {value}{newline}{text[at:]}"


def _remove(text: str, offset: int, root: Node, name: str) -> str:
    """Take the whole line away, if the field is all that is on it; otherwise set it to nothing."""
    key, node = root.keys[name], root.entries[name]
    start = text.rfind("\n", 0, offset + key.start) + 1
    end = text.find("\n", offset + node.end)
    line = text[start : end + 1]
    if not root.flow and re.fullmatch(rf"['\"]?{re.escape(name)}['\"]?[ \t]*:[^#\n]*\r?\n", line):
        return text[:start] + text[end + 1 :]
    return _with_value(text, offset, node, "null")


def _replace(target: Path, content: bytes, before: os.stat_result) -> None:
    def unchanged() -> None:
        now = target.stat()
        if (now.st_mtime_ns, now.st_ino, now.st_size) != (before.st_mtime_ns, before.st_ino, before.st_size):
            raise ChangedMeanwhile(f"{target}: was changed by somebody else just now; nothing was written, try again")

    owner = (before.st_uid, before.st_gid)
    replace_file(target, content, before.st_mode & 0o7777, owner, check=unchanged)


# --- what this program writes into it itself -----------------------------------------------------------------------

STATE = ("enabled", "disabled_reason")


def same_but_for_state(one: str, other: str) -> bool:
    """Whether two versions of a file differ only in what `pause`, `resume`, a suspension or the end of a one-shot writes."""
    nothing = dict.fromkeys(STATE)
    try:
        return edited(one, nothing) == edited(other, nothing)
    except (EditRefused, YamlError, ValueError):
        return False


def with_state_of(text: str, current: str) -> str:
    """The text, but enabled or not as another version of it says. EditRefused or YamlError if that can't be done."""
    fields = _plain(_tree(current.removeprefix(BOM)))
    return edited(text, {name: str(fields[name]) if name in fields else None for name in STATE})


# --- what a healer may change ------------------------------------------------------------------------------------

HEALABLE = ("command", "timeout", "env")


def healed(original: str, edited_by_healer: str) -> str:
    """The original with the healer's body and its `command`, `timeout` and `env`; every other byte of the frontmatter is
    the original's. EditRefused if the two can't be brought together."""
    bom = BOM if original.startswith(BOM) else ""
    text, other = original.removeprefix(BOM), edited_by_healer.removeprefix(BOM)
    try:
        theirs = _tree(other)
        wanted = {**_plain(_tree(text)), **{name: value for name, value in _plain(theirs).items() if name in HEALABLE}}
        wanted = {name: value for name, value in wanted.items() if name not in HEALABLE or name in theirs.entries}
        for name in HEALABLE:
            text = _with_block_of(text, other, name)
        head, body = _head_length(text), _head_length(other)
        text = text[:head] + other[body:]
        if _plain(_tree(text)) != wanted:
            raise EditRefused("its fields could not be told apart from the others")
    except YamlError as error:
        raise EditRefused(f"line {error.problem.line}: {error.problem.message}") from None
    return bom + text


def _head_length(text: str) -> int:
    """Up to and with the `---` line that closes the frontmatter."""
    yaml_text, _ = split_frontmatter(text)
    at = text.index(yaml_text, text.index("---")) + len(yaml_text)
    end = text.find("\n", text.index("---", at))
    return len(text) if end < 0 else end + 1


def _with_block_of(text: str, other: str, name: str) -> str:
    """The text with one field, whole lines, as it stands in the other; without it, if it is not there."""
    ours, theirs = _block(text, name), _block(other, name)
    if ours is None and theirs is None:
        return text
    new = other[theirs[0] : theirs[1]] if theirs is not None else ""
    if ours is not None:
        same = theirs is not None and _plain(_tree(text)).get(name) == _plain(_tree(other)).get(name)
        return text if same else text[: ours[0]] + new + text[ours[1] :]
    yaml_text, _ = split_frontmatter(text)
    at = text.index(yaml_text, text.index("---")) + len(yaml_text)
    return text[:at] + new + text[at:]


def _block(text: str, name: str) -> tuple[int, int] | None:
    """Where the lines of a field begin and end."""
    yaml_text, _ = split_frontmatter(text)
    offset = text.index(yaml_text, text.index("---"))
    root = parse_yaml(yaml_text)
    if name not in root.entries:
        return None
    if root.flow:
        raise EditRefused("the frontmatter is one line in braces")
    start = text.rfind("\n", 0, offset + root.keys[name].start) + 1
    node = root.entries[name]
    end = offset + node.end
    if (
        node.kind != "scalar" and not node.flow
    ):  # it ends where the next thing begins: comments before that are not its own
        block = text[start:end]
        own = re.sub(r"(?:^[ \t]*(?:#[^\n]*)?\r?\n)+\Z", "", block, flags=re.MULTILINE)
        end = start + len(own)
    if text[end - 1 : end] != "\n":  # a block ends at the beginning of the next line, everything else inside its own
        end = text.find("\n", end) + 1
    return start, end
