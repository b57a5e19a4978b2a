"""What a task file means: the text of a file becomes a Task once, here, or a list of problems."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta, tzinfo
from functools import cache
from typing import Any

from tickdown.agents.calls import PRESETS
from tickdown.base.model import CatchUp, ChainOn, DisabledReason, NotifyOn
from tickdown.base.records import defaults, field, record, replace
from tickdown.base.suggestions import suggestion
from tickdown.schedule.blackout import Blackout, parse_blackout
from tickdown.schedule.schedule import SHORTEST, Manual, Schedule, parse_schedule
from tickdown.tasks.yaml_tree import (
    Fields,
    Node,
    Problem,
    YamlError,
    as_duration,
    as_flag,
    as_text,
    as_whole,
    first_few,
    parse_yaml,
)
from tickdown.time.zones import UnknownZone, get_zone

ID_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
RUNNERS = ("shell", "script", "http")
HTTP_FIELDS = ("url", "method", "headers", "body", "expect_status")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
LARGEST_BODY = 64 * 1024
NOT_YET = "not available in this version"

# Every field of the contract. Those in _LATER are checked, and refused unless they say nothing.
FIELDS = (
    "id", "schedule", "title", "enabled", "disabled_reason", "run_as", "command", "prompt", "timeout", "retry",
    "retry_delay", "rerun_interrupted", "self_heal", "heal_paths", "suspend_after", "notify_on", "notify_to", "cwd",
    "cwd_policy", "env", "timezone", "catch_up", "grace", "jitter", "min_interval", "max_interval", "after", "group",
    "priority", "max_log", "budget_usd", "budget_usd_per_day", "blackout", "tags", "url", "method", "headers", "body",
    "expect_status", "work_source", "allow_schedule",
)  # fmt: skip
_NO_SCHEDULE: Schedule = Manual()


@record(frozen=True)
class Request:
    """What `run_as: http` asks for; `${NAME}` in it is filled when it runs."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    expect_status: tuple[int, ...] = ()  # none: any 2xx


@record(frozen=True, slots=True)
class Task:
    id: str
    schedule: Schedule
    zone: tzinfo
    path: str
    timezone: str = "local"
    title: str = ""
    enabled: bool = True
    disabled_reason: DisabledReason | None = None
    run_as: str = "shell"
    command: str = ""
    prompt: str = ""  # what an agent is told; from `prompt`, `command` or the body
    request: Request | None = None
    timeout: timedelta = timedelta(seconds=600)
    retries: int = 0
    retry_delay: timedelta = timedelta(0)
    rerun_interrupted: bool = True
    self_heal: bool = True
    heal_paths: tuple[str, ...] = ()
    budget_usd: float | None = None
    budget_usd_per_day: float | None = None
    suspend_after: int = 10
    notify_on: NotifyOn = NotifyOn.FAILURE
    notify_to: str | None = None
    cwd: str | None = None
    cwd_policy: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    catch_up: CatchUp = CatchUp.ONCE
    grace: timedelta | None = None
    jitter: timedelta | None = None
    min_interval: timedelta | None = None
    max_interval: timedelta | None = None
    after: Mapping[str, ChainOn] = field(default_factory=dict)
    group: str | None = None
    priority: int = 0
    blackout: tuple[Blackout, ...] = ()  # the configured ones too
    max_log: int = 10 * 1024 * 1024
    tags: tuple[str, ...] = ()
    body: str = ""
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)  # where each field stands in the file

    @property
    def what(self) -> str:
        """What it runs, in one text."""
        if self.request:
            return f"{self.request.method} {self.request.url}"
        return self.prompt if self.agent else self.command

    @property
    def agent(self) -> str | None:
        """The agent that does it, if one does."""
        return None if self.run_as in RUNNERS else self.run_as


@record(frozen=True)
class Surroundings:
    """What a task file may refer to, from the configuration."""

    timezone: str = "local"
    destinations: Collection[str] = ()
    cwd_policies: Collection[str] = ()
    groups: Collection[str] = ()
    blackout: tuple[Blackout, ...] = ()
    agents: Collection[str] = tuple(PRESETS)


def valid_id(text: str) -> bool:
    return ID_PATTERN.fullmatch(text) is not None


def parse_task(text: str, path: str, known: Surroundings) -> tuple[Task | None, list[Problem], str | None]:
    """The task (None if it must be rejected), every problem found, and the id even of a rejected one."""
    try:
        fields_text, body = split_frontmatter(text)
        root = parse_yaml(fields_text)
    except YamlError as error:
        return None, [error.problem], None
    if root.kind != "map":
        return (
            None,
            [Problem(1, "", f"the frontmatter is {root.describe()}; it must be `field: value` lines")],
            None,
        )
    problems: list[Problem] = []
    fields = Fields(root, FIELDS, problems)
    fields.unknown_as(warning=True, known=FIELDS)
    task = _read(fields, path, body.strip(), known)
    rejected = any(not problem.warning for problem in problems)
    return (None if rejected else task), first_few(problems), task.id or None


def split_frontmatter(text: str) -> tuple[str, str]:
    """The YAML (with its lines numbered as in the file) and the body."""
    handler = _handler()
    if not handler.detect(text):
        raise YamlError(1, "no frontmatter: the first line must be `---`")
    try:
        fields, body = handler.split(text)
        return fields, body
    except ValueError:
        raise YamlError(1, "the frontmatter is not closed: a second `---` line is missing") from None


@cache
def _handler() -> Any:
    from frontmatter.default_handlers import YAMLHandler

    # Its own pattern would take empty lines along with the `---`, and the count of lines would be wrong.
    return YAMLHandler(fm_boundary=re.compile(r"^-{3,}[^\S\n]*$", re.MULTILINE))


def _read(fields: Fields, path: str, body: str, known: Surroundings) -> Task:
    task_id = _read_id(fields)
    timezone = _read_timezone(fields, known)
    zone = get_zone(timezone)
    given = fields.node.entries  # few of the many that there are, and nothing is to be done for the others
    values: dict[str, Any] = {}
    for name, read in _OPTIONAL.items():
        if name in given:
            attribute = "retries" if name == "retry" else name
            values[attribute] = read(fields, name, _DEFAULTS[attribute])
    for name, (listed, where) in _CONFIGURED.items():
        if name in given:
            values[name] = _read_name(fields, name, getattr(known, listed), where)
    task = Task(
        id=task_id,
        schedule=_read_schedule(fields, task_id, zone),
        zone=zone,
        path=path,
        timezone=timezone,
        title=_one_line(fields, "title") or task_id,
        run_as=_read_run_as(fields, known),
        request=_read_request(fields),
        after=_read_after(fields, task_id),
        blackout=known.blackout + read_blackouts(fields),
        body=body,
        lines={name: key.line for name, key in fields.node.keys.items()},
        **values,
    )
    _read_later_fields(fields)
    if task.cwd and task.cwd_policy:
        fields.refuse("cwd_policy", "given together with cwd; keep one of the two")
    if task.min_interval and task.max_interval and task.min_interval > task.max_interval:
        fields.refuse("min_interval", "is longer than max_interval")
    if task.agent is not None:
        return _agent_task(fields, task) if task.agent in known.agents else task
    for name in ("prompt", "budget_usd", "budget_usd_per_day"):
        if (node := fields.given(name)) is not None and node.value != "":
            fields.refuse(name, "is only for tasks of an agent (run_as: claude, …)")
    if task.run_as == "http":
        if task.command.strip():
            fields.refuse("command", "is not for run_as: http; say url, method, headers and body")
    elif task.run_as in RUNNERS and not task.command.strip():
        if fields.given("command") is None or isinstance(fields.node.entries["command"].value, str):
            fields.refuse("command", f"required for run_as: {task.run_as}")
    elif task.run_as == "script":
        _check_words(fields, task.command)
    return task


def _agent_task(fields: Fields, task: Task) -> Task:
    prompt = next((text for text in (task.prompt, task.command, task.body) if text.strip()), "")
    if not prompt:
        fields.refuse(
            "prompt", f"required for run_as: {task.run_as}; or the text below the frontmatter says what to do"
        )
    return replace(task, prompt=prompt)


def _read_heal_paths(fields: Fields, name: str, default: object) -> tuple[str, ...]:
    paths = fields.texts(name)
    if any(not path.strip() or set(path) & set("*?\n") for path in paths):
        fields.refuse(name, "are names of files, one each; no patterns")
    return paths


def _read_id(fields: Fields) -> str:
    if fields.given("id") is None:
        fields.refuse("id", "required; letters, digits, '.', '_' and '-', at most 64")
        return ""

    def convert(node: Node) -> str:
        if not valid_id(as_text(node)):
            raise ValueError(
                f"{node.text[:80]!r} is not accepted; letters, digits, '.', '_' and '-', at most 64, first a letter, digit or '_'"
            )
        return node.text

    return fields.read("id", "", convert)


def _read_schedule(fields: Fields, task_id: str, zone: tzinfo) -> Schedule:
    if fields.given("schedule") is None:
        fields.refuse(
            "schedule", "required; a cron line, an interval such as 10m, a phrase such as every day at 09:00, or manual"
        )
        return _NO_SCHEDULE

    def convert(node: Node) -> Schedule:
        if node.kind == "scalar" and isinstance(node.value, (int, float)):
            return parse_schedule(node.text, task_id, zone)  # `5` gets the message about units
        return parse_schedule(as_text(node), task_id, zone)

    return fields.read("schedule", _NO_SCHEDULE, convert)


def _read_timezone(fields: Fields, known: Surroundings) -> str:
    def convert(node: Node) -> str:
        try:
            get_zone(as_text(node))
        except UnknownZone as error:
            raise ValueError(str(error)) from None
        return node.text

    return fields.read("timezone", known.timezone, convert)


def _read_run_as(fields: Fields, known: Surroundings) -> str:
    run_as = fields.text("run_as", "shell")
    accepted = [*RUNNERS, *known.agents]
    if run_as not in accepted:
        listed = f"{', '.join(accepted[:-1])} or {accepted[-1]}"
        fields.refuse("run_as", f"{run_as[:80]!r} is not known{suggestion(run_as, accepted)}; {listed}")
    return run_as


def _read_request(fields: Fields) -> Request | None:
    if fields.text("run_as", "shell") != "http":
        for name in HTTP_FIELDS:
            node = fields.node.entries.get(name)
            if node is not None and (node.value not in ("", None) or node.items or node.entries):
                fields.refuse(name, "is only for run_as: http")
        return None
    url = fields.text("url")
    if not re.match(r"https?://[^\s/]|\$\{", url):
        fields.refuse(
            "url", f"{url[:80]!r} is not an http:// or https:// address" if url else "required for run_as: http"
        )
    method = fields.text("method", "GET").upper() or "GET"
    if method not in METHODS:
        fields.refuse("method", f"{method!r} is not accepted; one of {', '.join(METHODS)}")
    body = fields.text("body")
    if len(body.encode("utf-8", "replace")) > LARGEST_BODY:
        fields.refuse("body", f"is larger than {LARGEST_BODY // 1024} KiB")
    return Request(url, method, _read_headers(fields), body, fields.read("expect_status", (), _statuses))


def _read_headers(fields: Fields) -> dict[str, str]:
    headers = {}
    for name, node in fields.mapping("headers"):
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            fields.refuse("headers", f"{name[:80]!r} is not the name of a header", node.line)
        elif node.kind != "scalar" or node.value is None or re.search(r"[\r\n\0]", node.text):
            fields.refuse("headers", f"{name}: {node.describe()} is not accepted; a text of one line", node.line)
        else:
            headers[name] = node.text
    return headers


def _read_retries(fields: Fields, name: str, default: int) -> int:
    def convert(node: Node) -> int:
        if isinstance(node.value, bool):
            return int(node.value)
        if isinstance(node.value, int) and 0 <= node.value <= 100:
            return node.value
        raise ValueError(f"{node.describe()} is not accepted; true, false or a whole number from 0 to 100")

    return fields.read(name, default, convert)


def _read_name(fields: Fields, name: str, known: Collection[str], where: str) -> str | None:
    """A name that the configuration must know."""
    value = fields.text(name) or None
    if value is not None and value not in known:
        listed = f"known are {', '.join(sorted(known))}" if known else "there are none yet"
        fields.refuse(
            name, f"{value[:80]!r} is not in the configuration under {where}{suggestion(value, known)} ({listed})"
        )
    return value


def _at_least_a_second(node: Node) -> timedelta | None:
    duration = as_duration(node)
    if duration < SHORTEST:
        raise ValueError(f"{node.text!r} is shorter than a second")
    return duration


def _read_after(fields: Fields, task_id: str) -> dict[str, ChainOn]:
    """`after: backup`, `after: [a, b]`, `after: {backup: failure}`."""

    def convert(node: Node) -> dict[str, ChainOn]:
        if node.kind == "map":
            return {name: _chain_on(name, wanted) for name, wanted in node.entries.items()}
        return {as_text(item): ChainOn.SUCCESS for item in ([node] if node.kind == "scalar" else node.items)}

    nobody: dict[str, ChainOn] = {}
    after = fields.read("after", nobody, convert)
    if not after:
        return after
    for name in after:
        if not valid_id(name):
            fields.refuse(
                "after", f"{name[:80]!r} is not the id of a task; `after: backup`, [a, b] or {{backup: failure}}"
            )
        elif name.lower() == task_id.lower():
            fields.refuse("after", f"{name!r} is this task itself")
    if len({name.lower() for name in after}) < len(after):
        fields.refuse("after", "names a task twice")
    return after


def _chain_on(name: str, node: Node) -> ChainOn:
    try:
        return ChainOn(node.text if node.kind == "scalar" else "")
    except ValueError:
        accepted = ", ".join(ChainOn)
        raise ValueError(f"{name}: {node.describe()} is not accepted; one of {accepted}") from None


def read_blackouts(fields: Fields) -> tuple[Blackout, ...]:
    def convert(node: Node) -> tuple[Blackout, ...]:
        items = [node] if node.kind == "scalar" else node.items
        if node.kind == "map":
            raise ValueError("a mapping is not accepted; a list of times")
        return tuple(parse_blackout(as_text(item)) for item in items if item.value != "")

    return fields.read("blackout", (), convert)


def _one_line(fields: Fields, name: str) -> str:
    return " ".join(fields.text(name).split())


def _read_tags(fields: Fields, name: str, default: object) -> tuple[str, ...]:
    """A list, or one text with commas."""
    tags = [tag.strip() for text in fields.texts(name) for tag in text.split(",")]
    return tuple(tag for tag in tags if tag)


def _check_words(fields: Fields, command: str) -> None:
    try:
        shlex.split(command)
    except ValueError as error:
        fields.refuse("command", f"can't be split into words: {str(error).lower()}")


def _read_later_fields(fields: Fields) -> None:
    """Fields whose behaviour a later version brings are checked like the others, and then refused: never silently
    ignored. Saying the default is fine."""
    for name, check in _LATER.items():
        node = fields.given(name) if name in fields.node.entries else None
        if node is None:
            continue
        try:
            check(node)
        except ValueError as error:
            fields.refuse(name, str(error), node.line)
            continue
        nothing = node.value in (0, False, "") if node.kind == "scalar" else not (node.items or node.entries)
        if not nothing:
            fields.refuse(name, NOT_YET)


def as_amount(node: Node) -> float | None:
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or not 0 < node.value < 1e9:
        raise ValueError(f"{node.describe()} is not accepted; an amount in US dollars such as 0.50")
    return float(node.value)


def _mapping(node: Node) -> None:
    if node.kind != "map":
        raise ValueError(f"{node.describe()} is not accepted; a mapping of names to values")


def _statuses(node: Node) -> tuple[int, ...]:
    if node.kind == "map":
        raise ValueError("a mapping is not accepted; a status such as 204, or a list of them")
    return tuple(as_whole(item, 100, 599) for item in ([node] if node.kind == "scalar" else node.items))


_LATER: dict[str, Callable[[Node], object]] = {
    "work_source": lambda node: _mapping(node) if node.kind == "map" else as_text(node),
    "allow_schedule": as_flag,
}
# How each of them is read if it is given, with the default, which stands for a wrong value until that is refused.
_OPTIONAL: dict[str, Callable[[Fields, str, Any], object]] = {
    "enabled": Fields.flag,
    "disabled_reason": lambda fields, name, _: (
        fields.choice(name, DisabledReason.BY_CHOICE, DisabledReason) if fields.given(name) else None
    ),
    "command": Fields.text,
    "prompt": Fields.text,
    "timeout": Fields.seconds,
    "retry": _read_retries,
    "retry_delay": lambda fields, name, default: fields.seconds(name, default, allow_zero=True),
    "rerun_interrupted": Fields.flag,
    "self_heal": Fields.flag,
    "heal_paths": _read_heal_paths,
    "budget_usd": lambda fields, name, default: fields.read(name, default, as_amount),
    "budget_usd_per_day": lambda fields, name, default: fields.read(name, default, as_amount),
    "suspend_after": lambda fields, name, default: fields.whole(name, default, least=1),
    "notify_on": lambda fields, name, default: fields.choice(name, default, NotifyOn),
    "cwd": lambda fields, name, _: fields.text(name) or None,
    "env": lambda fields, name, _: fields.variables(name),
    "catch_up": lambda fields, name, default: fields.choice(name, default, CatchUp),
    "grace": Fields.duration,
    "jitter": lambda fields, name, default: fields.duration(name, default, allow_zero=True),
    "min_interval": lambda fields, name, default: fields.read(name, default, _at_least_a_second),
    "max_interval": lambda fields, name, default: fields.read(name, default, _at_least_a_second),
    "priority": lambda fields, name, default: fields.whole(name, default, least=-1000, most=1000),
    "max_log": lambda fields, name, default: fields.size(name, default, least=1024),
    "tags": _read_tags,
}
# Names that the configuration must know: where they are among the surroundings, and in the configuration.
_CONFIGURED = {
    "notify_to": ("destinations", "notify.destinations"),
    "cwd_policy": ("cwd_policies", "cwd_policies"),
    "group": ("groups", "groups"),
}
_DEFAULTS = defaults(Task)
