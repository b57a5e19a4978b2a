"""`config.yaml`, read as strictly as a task file: one typed value, or every problem with its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time, timedelta
from pathlib import Path

from tickdown import VERSION
from tickdown.agents.calls import PRESETS, Agent, Format
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.program import IS_CLONE, SHIPPED
from tickdown.base.records import field, record, replace
from tickdown.base.suggestions import suggestion
from tickdown.schedule.blackout import Blackout
from tickdown.tasks.task import NOT_YET, RUNNERS, Surroundings, as_amount, read_blackouts, valid_id
from tickdown.tasks.yaml_tree import (
    Fields,
    Node,
    Problem,
    YamlError,
    as_text,
    as_whole,
    first_few,
    parse_yaml,
    tree_from_text,
    tree_to_text,
)
from tickdown.time.zones import UnknownZone, get_zone
from tickdown.workspace.folders import (
    PRIVATE_FILE,
    UnsafeFile,
    Workspace,
    fill,
    parse_env,
    read_settings_file,
    replace_file,
    variables_in,
)
from tickdown.workspace.shortcut import basis, outside

KEYS = (
    "timezone", "max_concurrent", "groups", "cwd_policies", "blackout", "database", "keep_runs", "ping_url", "notify",
    "agents", "healer", "heal_timeout", "heals_per_day", "budget_usd_per_day",
)  # fmt: skip
NOTIFY_KEYS = ("telegram", "destinations", "default", "quiet_hours")
TELEGRAM_KEYS = ("token", "base_url")
DESTINATION_KEYS = ("chat", "thread")
AGENT_KEYS = ("argv", "format", "config_dir")
_ALL_KEYS = f"{'config.example.yaml' if IS_CLONE else SHIPPED / 'config.example.yaml'} has all keys"
DEFAULT_DATABASE = "state/tickdown.db"


@record(frozen=True)
class Destination:
    chat: str
    thread: int | None = None


@record(frozen=True)
class Notify:
    token: str = ""
    base_url: str = "https://api.telegram.org"
    destinations: Mapping[str, Destination] = field(default_factory=dict)
    default: str | None = None
    quiet_hours: tuple[time, time] | None = None

    def destination(self, name: str | None) -> tuple[str, Destination] | None:
        """Where an alert goes; None means nothing is configured, so it goes to stderr."""
        key = name if name in self.destinations else self.default
        found = self.destinations.get(key) if key else None
        return (key, found) if key and found and self.token else None


@record(frozen=True)
class Config:
    timezone: str = "local"
    max_concurrent: int = 5
    groups: Mapping[str, int] = field(default_factory=dict)
    cwd_policies: Mapping[str, str] = field(default_factory=dict)
    blackout: tuple[Blackout, ...] = ()
    database: str = DEFAULT_DATABASE
    keep_runs: timedelta = timedelta(days=90)
    ping_url: str = ""
    notify: Notify = Notify()
    agents: Mapping[str, Agent] = field(default_factory=lambda: dict(PRESETS))
    healer: str | None = None
    heal_timeout: timedelta = timedelta(minutes=15)
    heals_per_day: int = 20
    budget_usd_per_day: float | None = None

    def surroundings(self) -> Surroundings:
        return Surroundings(
            self.timezone, tuple(self.notify.destinations), tuple(self.cwd_policies), tuple(self.groups), self.blackout,
            tuple(self.agents),
        )  # fmt: skip


@record(frozen=True)
class Settings:
    """The configuration with the environment that it and the tasks are filled from."""

    config: Config
    environment: Mapping[str, str]
    env_file: Mapping[str, str]
    variables: tuple[str, ...] = ()  # that config.yaml refers to
    basis: str = ""  # a digest of all this and of what else the task files depend on
    unremembered: str = ""  # the text of config.yaml, if no tick has left its tree yet


class SettingsError(TickdownError):
    """config.yaml or .env is wrong. `partial` holds what could be read of them, so that looking, stopping a task and
    telling somebody still work."""

    def __init__(self, lines: list[str], partial: Settings) -> None:
        super().__init__("\n".join(lines), Exit.USAGE)
        self.partial = partial


def load_settings(workspace: Workspace, process_environment: Mapping[str, str]) -> Settings:
    """Everything that is wrong with either file, at once."""
    lines: list[str] = []
    seen = outside(str(workspace.root))
    env_text = _text_of(workspace.env_file, lines)
    from_file, env_problems = parse_env(env_text)
    lines += [problem.at(".env") for problem in first_few([Problem(line, "", said) for line, said in env_problems])]
    environment = {**from_file, **process_environment}
    text = _text_of(workspace.config_file, lines)
    tree = _remembered(workspace, text) if text.strip() else None
    config, problems = parse_config(text, environment, tree)
    lines += [problem.at("config.yaml") for problem in problems]
    variables = variables_in(text)
    unremembered = text if tree is None else ""
    settings = Settings(config, environment, from_file, variables, basis(seen, variables), unremembered)
    if lines:
        raise SettingsError(lines, settings)
    return settings


def _text_of(path: Path, lines: list[str]) -> str:
    try:
        return read_settings_file(path)
    except UnsafeFile as error:
        lines.append(f"{path.name}:{error.line}: {error}")
        return ""


def remember(workspace: Workspace, settings: Settings) -> None:
    """Leave the tree of config.yaml for the next tick: loading the parser takes longer than most of what a tick does."""
    text = settings.unremembered
    if text.strip() and _remembered(workspace, text) is None:  # with `--every` a tick comes by here often
        tree = tree_to_text(parse_yaml(text))
        replace_file(workspace.config_tree, f"{_head_of(text)}{tree}".encode(), PRIVATE_FILE)


def _remembered(workspace: Workspace, text: str) -> Node | None:
    """The tree of this very text, by this version."""
    try:
        found = workspace.config_tree.read_bytes().decode()
        head = _head_of(text)
        return tree_from_text(found.removeprefix(head)) if found.startswith(head) else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None  # not there yet, or spoilt


def _head_of(text: str) -> str:
    return f"{VERSION} {len(text)}\n{text}\n"


def parse_config(text: str, environment: Mapping[str, str], tree: Node | None = None) -> tuple[Config, list[Problem]]:
    """The configuration, with the default for whatever is wrong, and what is wrong. `tree` is that of the text, where it is
    known already."""
    try:
        root = tree or (parse_yaml(text) if text.strip() else Node("map", 1, 0))
    except YamlError as error:
        return Config(), [error.problem]
    problems: list[Problem] = []
    if root.kind != "map":
        if root.kind == "list" or root.value is not None:
            return Config(), [Problem(root.line, "", f"{root.describe()} is not accepted; `key: value` lines")]
        root = Node("map", 1, 0)
    fields = Fields(root, KEYS, problems)
    fields.unknown_as(warning=False, known=KEYS, see=_ALL_KEYS)
    config = Config(
        timezone=fields.read("timezone", "local", _zone),
        max_concurrent=fields.whole("max_concurrent", 5, least=1, most=1000),
        groups=_groups(fields),
        cwd_policies=_texts(fields, "cwd_policies"),
        blackout=read_blackouts(fields),
        database=_database(fields),
        keep_runs=fields.duration("keep_runs", timedelta(days=90)) or timedelta(days=90),
        ping_url=_url(fields, "ping_url", "", environment),
        notify=_notify(fields, environment),
        agents=_agents(fields, environment),
        heal_timeout=fields.duration("heal_timeout", timedelta(minutes=15)) or timedelta(minutes=15),
        heals_per_day=fields.whole("heals_per_day", 20, least=0, most=1000),
        budget_usd_per_day=fields.read("budget_usd_per_day", None, as_amount),
    )
    config = replace(config, healer=_healer(fields, config.agents))
    return config, first_few(problems)


def _zone(node: Node) -> str:
    name = as_text(node)
    try:
        get_zone(name)
    except UnknownZone as error:
        raise ValueError(str(error)) from None
    return name


def _texts(fields: Fields, name: str) -> dict[str, str]:
    result = {}
    for key, node in fields.mapping(name):
        try:
            result[key] = as_text(node)
        except ValueError as error:
            fields.refuse(f"{name}.{key}", str(error), node.line)
    return result


def _groups(fields: Fields) -> dict[str, int]:
    result = {}
    for name, node in fields.mapping("groups"):
        try:
            result[name] = as_whole(node, 1, 1000)
        except ValueError as error:
            fields.refuse(f"groups.{name}", str(error), node.line)
    return result


def _database(fields: Fields) -> str:
    text = fields.text("database", DEFAULT_DATABASE)
    if "://" in text:
        fields.refuse("database", f"{text.partition('://')[0]}://… is {NOT_YET}; a path such as {DEFAULT_DATABASE}")
        return DEFAULT_DATABASE
    if not text.strip():
        fields.refuse("database", f"is empty; a path such as {DEFAULT_DATABASE}")
    return text


def _filled(fields: Fields, name: str, text: str, environment: Mapping[str, str]) -> str:
    value, missing = fill(text, environment)
    if missing:
        fields.refuse(name, f"${{{missing[0]}}} is set neither in the environment nor in .env")
    return value


def _url(fields: Fields, name: str, default: str, environment: Mapping[str, str]) -> str:
    text = fields.text(name, default)
    url = _filled(fields, name, text, environment)
    if url and not re.match(r"https?://[^\s/]+", url):
        # As it was written: what stands in for ${NAME} may be a secret.
        fields.refuse(name, f"{text!r} is not an http:// or https:// address")
        return default
    return url.rstrip("/")


def _section(fields: Fields, name: str, known: tuple[str, ...]) -> Fields:
    node = fields.given(name)
    if node is not None and node.kind != "map":
        fields.refuse(name, f"{node.describe()} is not accepted; a mapping with {', '.join(known)}", node.line)
        node = None
    section = Fields(node or Node("map", fields.line(name), 0), known, fields.problems, f"{fields.prefix}{name}.")
    section.unknown_as(warning=False, known=known, see=_ALL_KEYS)
    return section


def _notify(fields: Fields, environment: Mapping[str, str]) -> Notify:
    notify = _section(fields, "notify", NOTIFY_KEYS)
    telegram = _section(notify, "telegram", TELEGRAM_KEYS)
    token, _ = fill(telegram.text("token", "${TELEGRAM_BOT_TOKEN}"), environment)
    destinations = {}
    for name, node in notify.mapping("destinations"):
        if node.kind != "map":
            notify.refuse(
                f"destinations.{name}", f"{node.describe()} is not accepted; a mapping with chat and thread", node.line
            )
            continue
        one = Fields(node, DESTINATION_KEYS, fields.problems, f"notify.destinations.{name}.")
        one.unknown_as(warning=False, known=DESTINATION_KEYS, see=_ALL_KEYS)
        destinations[name] = _destination(one, environment)
    default = notify.text("default") or None
    if default is not None and default not in destinations:
        notify.refuse(
            "default", f"{default[:80]!r} is not one of notify.destinations ({', '.join(destinations) or 'none'})"
        )
        default = None
    return Notify(
        token=token.strip(),
        base_url=_url(telegram, "base_url", "https://api.telegram.org", environment),
        destinations=destinations,
        default=default or (next(iter(destinations)) if len(destinations) == 1 else None),
        quiet_hours=notify.read("quiet_hours", None, _quiet_hours),
    )


def _destination(fields: Fields, environment: Mapping[str, str]) -> Destination:
    def chat_id(node: Node) -> str:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return node.text
        return _filled(fields, "chat", as_text(node), environment)

    chat = fields.read("chat", "", chat_id)
    if not chat:
        fields.refuse("chat", "required; the number of the chat, or @name of a channel")
    thread = fields.read("thread", None, lambda node: as_whole(node, 1, 2**53))
    return Destination(chat, thread)


def _quiet_hours(node: Node) -> tuple[time, time] | None:
    text = as_text(node)
    if not text.strip():
        return None
    match = re.fullmatch(r"\s*([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})\s*", text)
    try:
        if match is None:
            raise ValueError
        start, end = time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))
    except ValueError:
        raise ValueError(f"{text!r} is not accepted; write 22:00-07:00") from None
    if start == end:
        raise ValueError(f"{text!r} begins and ends at the same time; write 22:00-07:00")
    return start, end


def _agents(fields: Fields, environment: Mapping[str, str]) -> dict[str, Agent]:
    """The built-in ones, changed and added to. Of a built-in one, what is not said stays."""
    agents = dict(PRESETS)
    for name, node in fields.mapping("agents"):
        if not valid_id(name) or name in RUNNERS:
            fields.refuse(f"agents.{name}", f"{name!r} can't be the name of an agent", node.line)
            continue
        base = PRESETS.get(name, Agent(name, ()))
        if node.kind == "list":
            node = Node("map", node.line, node.start, entries={"argv": node}, keys={"argv": node})
        if node.kind != "map":
            fields.refuse(
                f"agents.{name}",
                f"{node.describe()} is not accepted; a list of words, or a mapping with argv",
                node.line,
            )
            continue
        one = Fields(node, AGENT_KEYS, fields.problems, f"agents.{name}.")
        one.unknown_as(warning=False, known=AGENT_KEYS, see=_ALL_KEYS)
        found_before = len(fields.problems)
        argv = one.read("argv", base.argv, _words)
        if not argv:
            if len(fields.problems) > found_before:
                continue
            one.refuse("argv", f"required: the program and its arguments as a list, such as [{name}, run]")
            continue
        folder = _filled(one, "config_dir", one.text("config_dir", base.config_dir), environment)
        agents[name] = Agent(name, argv, one.choice("format", base.format, Format), folder)
    return agents


def _words(node: Node) -> tuple[str, ...]:
    if node.kind != "list":
        raise ValueError(f"{node.describe()} is not accepted; a list of words such as [claude, -p]")
    words = tuple(as_text(item) for item in node.items)
    if words and not words[0].strip():
        raise ValueError("its first word is empty; it must be the program")
    return words


def _healer(fields: Fields, agents: Mapping[str, Agent]) -> str | None:
    name = fields.text("healer") or None
    if name is not None and name not in agents:
        fields.refuse("healer", f"{name[:80]!r} is no agent{suggestion(name, agents)}; {', '.join(agents)}")
        return None
    return name
