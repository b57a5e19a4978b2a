"""`config.yaml` and `.env`: every key good and bad, with its line."""

from __future__ import annotations

import os
import re
from datetime import time, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickdown import config as config_module
from tickdown.base.errors import Exit
from tickdown.config import Config, Destination, Settings, SettingsError, load_settings
from tickdown.workspace.folders import Workspace, fill


def parse_config(text: str, environment: dict[str, str]) -> Config:
    """Of a text without problems."""
    config, problems = config_module.parse_config(text, environment)
    assert problems == []
    return config


def refused(text: str, environment: dict[str, str] | None = None) -> list[str]:
    _, problems = config_module.parse_config(text, environment or {})
    assert problems
    return [problem.at("config.yaml") for problem in problems]


def settings_of(folder: Path, **files: bytes) -> Settings:
    for name, content in files.items():
        path = folder / {"env": ".env", "config": "config.yaml"}[name]
        path.write_bytes(content)
        path.chmod(0o600)
    return load_settings(Workspace(folder), {})


def refused_settings(folder: Path, **files: bytes) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings_of(folder, **files)
    assert caught.value.code == Exit.USAGE
    return str(caught.value).splitlines()


# --- config.yaml -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "{}\n", "null\n"])
def test_an_empty_configuration_is_the_default(text):
    assert parse_config(text, {}) == Config()


def test_the_defaults_are_the_documented_ones(tmp_path):
    config = settings_of(tmp_path).config
    assert (config.timezone, config.max_concurrent, config.cwd_policies) == ("local", 5, {})
    assert (config.database, config.keep_runs, config.ping_url) == ("state/tickdown.db", timedelta(days=90), "")
    assert config.notify.base_url == "https://api.telegram.org"
    assert (config.notify.destinations, config.notify.default, config.notify.quiet_hours) == ({}, None, None)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("timezone: Europe/Berlin", "timezone", "Europe/Berlin"),
        ("timezone: local", "timezone", "local"),
        ("max_concurrent: 1", "max_concurrent", 1),
        ("cwd_policies: {site: ~/code/site}", "cwd_policies", {"site": "~/code/site"}),
        ("database: /var/lib/tickdown.db", "database", "/var/lib/tickdown.db"),
        ("keep_runs: 2w", "keep_runs", timedelta(weeks=2)),
        ("ping_url: https://hc-ping.com/${ID}/", "ping_url", "https://hc-ping.com/abc"),
        ("ping_url: ''", "ping_url", ""),
    ],
)
def test_a_good_value_is_taken(text, name, value):
    assert getattr(parse_config(text + "\n", {"ID": "abc"}), name) == value


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("timezone: Mars/Base", "timezone: unknown time zone 'Mars/Base'"),
        ("timezone: 5", "timezone: '5' is not a text"),
        ("max_concurrent: 0", "max_concurrent: '0' is not accepted; a whole number from 1 to 1000"),
        ("max_concurrent: many", "max_concurrent: 'many' is not accepted"),
        ("max_concurrent: 2.5", "max_concurrent: '2.5' is not accepted"),
        ("cwd_policies: [a]", "cwd_policies: a list is not accepted; a mapping"),
        ("cwd_policies: {site: [a]}", "cwd_policies.site: a list is not a text"),
        ("database: postgresql://u:secret@host/db", "database: postgresql://… is not available in this version"),
        ("database: ''", "database: is empty"),
        ("database: [x]", "database: a list is not a text"),
        ("keep_runs: 90", "keep_runs: '90' has no unit"),
        ("keep_runs: 0d", "keep_runs: '0d' is zero"),
        ("ping_url: hc-ping.com/x", "ping_url: 'hc-ping.com/x' is not an http:// or https:// address"),
        ("ping_url: 5", "ping_url: '5' is not a text"),
        ("notify: telegram", "notify: 'telegram' is not accepted; a mapping with telegram, destinations, default"),
        ("notify: {telegram: [x]}", "notify.telegram: a list is not accepted; a mapping with token, base_url"),
        ("notify: {telegram: {token: 5}}", "notify.telegram.token: '5' is not a text"),
        ("notify: {telegram: {base_url: x}}", "notify.telegram.base_url: 'x' is not an http://"),
        ("notify: {telegram: {tokn: x}}", "notify.telegram.tokn: unknown; did you mean 'token'?"),
        ("notify: {destinations: home}", "destinations: 'home' is not accepted; a mapping"),
        ("notify: {destinations: {home: '-1'}}", "notify.destinations.home: '-1' is not accepted; a mapping with chat"),
        ("notify: {destinations: {home: {thread: 7}}}", "notify.destinations.home.chat: required"),
        ("notify: {destinations: {home: {chat: 1, thread: x}}}", "notify.destinations.home.thread: 'x' is not accepted"),
        ("notify: {destinations: {home: {chat: 1, thred: 5}}}", "notify.destinations.home.thred: unknown"),
        ("notify: {default: home}", "notify.default: 'home' is not one of notify.destinations (none)"),
        ("notify: {quiet_hours: 22-07}", "notify.quiet_hours: '22-07' is not accepted; write 22:00-07:00"),
        ("notify: {quiet_hours: '24:00-07:00'}", "is not accepted; write 22:00-07:00"),
        ("notify: {quiet_hours: '22:00-22:00'}", "begins and ends at the same time"),
        ("notify: {quiet_hour: x}", "notify.quiet_hour: unknown; did you mean 'quiet_hours'?"),
        ("max_concurent: 3", "max_concurent: unknown; did you mean 'max_concurrent'?"),
        ("zzz: 3", "zzz: unknown; config.example.yaml has all keys"),
        ("groups: {gpu: 0}", "groups.gpu: '0' is not accepted; a whole number from 1 to 1000"),
        ("groups: [gpu]", "groups: a list is not accepted; a mapping"),
        ("blackout: [someday]", "blackout: 'someday' is not accepted; '22:00-06:00', 'sat-sun'"),
        ("agents: [claude]", "agents: a list is not accepted; a mapping"),
        ("agents: {mine: claude}", "agents.mine: 'claude' is not accepted; a list of words, or a mapping with argv"),
        ("agents: {mine: {}}", "agents.mine.argv: required: the program and its arguments as a list, such as [mine, run]"),
        ("agents: {mine: {argv: mine -p}}", "agents.mine.argv: 'mine -p' is not accepted; a list of words"),
        ("agents: {mine: {argv: [mine, 5]}}", "agents.mine.argv: '5' is not a text"),
        ("agents: {mine: ['', x]}", "agents.mine.argv: its first word is empty"),
        ("agents: {claude: {format: json}}", "agents.claude.format: 'json' is not accepted; one of claude, codex, gemini, text"),
        ("agents: {claude: {config: x}}", "agents.claude.config: unknown; did you mean 'config_dir'?; config.example"),
        ("agents: {claude: {config_dir: '${NOWHERE}'}}", "agents.claude.config_dir: ${NOWHERE} is set neither"),
        ("agents: {shell: [x]}", "agents.shell: 'shell' can't be the name of an agent"),
        ("agents: {'a b': [x]}", "agents.a b: 'a b' can't be the name of an agent"),
        ("healer: cluade", "healer: 'cluade' is no agent; did you mean 'claude'?; claude, codex, gemini"),
        ("healer: [claude]", "healer: a list is not a text"),
        ("heal_timeout: 5", "heal_timeout: '5' has no unit"),
        ("heals_per_day: -1", "heals_per_day: '-1' is not accepted; a whole number from 0 to 1000"),
        ("budget_usd_per_day: free", "budget_usd_per_day: 'free' is not accepted; an amount in US dollars such as 0.50"),
        ("budget_usd_per_day: 0", "budget_usd_per_day: '0' is not accepted"),
    ],
)  # fmt: skip
def test_a_bad_value_names_the_key_the_value_and_the_line(line, says):
    [message] = refused(f"# first\n\n{line}\n")
    assert message.startswith("config.yaml:3: ")
    assert says in message


@pytest.mark.parametrize(
    "line",
    ["groups: {}", "blackout: []", "agents: {}", "healer: null", "healer:", "heal_timeout: 15m", "heals_per_day: 20",
     "budget_usd_per_day: null", "notify:", "notify: {telegram: }", "notify: {quiet_hours: ''}", "cwd_policies:"],
)  # fmt: skip
def test_a_key_may_say_its_default(line):
    assert parse_config(f"{line}\n", {}) == Config()


def test_the_agents_are_presets_that_can_be_changed_and_added_to():
    config = parse_config(
        "agents:\n  claude: {config_dir: ~/agent}\n  codex: {argv: [/opt/codex, exec, --json]}\n  mine: [./mine, --go]\n"
        "  other: {argv: [x], format: claude}\nhealer: mine\nheal_timeout: 5m\nheals_per_day: 0\nbudget_usd_per_day: 2.5\n",
        {},
    )
    agents = config.agents
    assert (agents["claude"].argv, agents["claude"].config_dir) == (
        ("claude", "-p", "--output-format", "json"),
        "~/agent",
    )
    assert (agents["codex"].argv, agents["codex"].format) == (("/opt/codex", "exec", "--json"), "codex")
    assert (agents["mine"].argv, agents["mine"].format) == (("./mine", "--go"), "text")
    assert (agents["other"].format, agents["gemini"].format) == ("claude", "gemini")
    assert (config.healer, config.heal_timeout, config.heals_per_day) == ("mine", timedelta(minutes=5), 0)
    assert config.budget_usd_per_day == 2.5


def test_all_problems_are_reported_at_once():
    messages = refused("timezone: X\nmax_concurrent: 0\nzzz: 1\nhealer: nobody\n")
    assert sorted(message.split(": ")[0] for message in messages) == [f"config.yaml:{line}" for line in (1, 2, 3, 4)]


def test_wrong_settings_still_tell_where_alerts_go(tmp_path):
    with pytest.raises(SettingsError) as caught:
        settings_of(
            tmp_path,
            env=b"TELEGRAM_BOT_TOKEN=12345678\nbad line\n",
            config=b"max_concurrent: 0\nnotify: {destinations: {home: {chat: 5}}}\n",
        )
    assert str(caught.value).splitlines()[0] == ".env:2: not a NAME=value line"
    assert str(caught.value).splitlines()[1].startswith("config.yaml:1: max_concurrent:")
    partial = caught.value.partial
    assert partial.config.notify.destination(None) == ("home", Destination("5"))
    assert partial.env_file == {"TELEGRAM_BOT_TOKEN": "12345678"}


@pytest.mark.parametrize(
    ("text", "says"),
    [("- a\n", "config.yaml:1: a list is not accepted; `key: value` lines"), ("words\n", "'words' is not accepted; `key: value` lines"),
     ("timezone: [\n", "config.yaml:2: bad YAML"), ("a: &x 1\nb: *x\n", "config.yaml:2: YAML aliases"),
     ("timezone: UTC\ntimezone: UTC\n", "config.yaml:2: timezone: given twice"), ("a: \x01\n", "U+0001")],
)  # fmt: skip
def test_broken_yaml_is_one_error_with_its_line(text, says):
    [message] = refused(text)
    assert says in message


@given(st.text())
def test_no_text_brings_the_reader_down(text):
    config_module.parse_config(text, {})


def test_a_file_that_must_not_be_used_is_an_error(tmp_path: Path):
    assert refused_settings(tmp_path, config=b"a: \xff\n") == ["config.yaml:1: not valid UTF-8 (byte 3)"]
    assert refused_settings(tmp_path, config=b"\n\na: \0\n") == ["config.yaml:3: contains a NUL byte"]
    assert refused_settings(tmp_path, config=b"\xef\xbb\xbf\n\n\xff") == ["config.yaml:3: not valid UTF-8 (byte 2)"]
    assert refused_settings(tmp_path, config=b"#" * 300_000) == [
        "config.yaml:1: is 300000 bytes; at most 262144 (256 KiB) are accepted"
    ]
    (tmp_path / "config.yaml").unlink()
    for make, remove in ((os.mkdir, os.rmdir), (os.mkfifo, os.unlink)):
        make(tmp_path / "config.yaml")
        assert refused_settings(tmp_path) == ["config.yaml:1: is not a regular file"]
        remove(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "config.yaml").chmod(0o666)
    assert refused_settings(tmp_path) == ["config.yaml:1: is writable by everyone; run chmod o-w on it"]


@pytest.mark.parametrize("line", ["ping_url: 'http://x/${NOPE}'", "notify: {destinations: {a: {chat: '${NOPE}'}}}"])
def test_a_variable_that_is_not_set_is_an_error(line):
    assert any("${NOPE} is set neither in the environment nor in .env" in message for message in refused(line + "\n"))


def test_a_byte_order_mark_is_fine(tmp_path: Path):
    assert settings_of(tmp_path, config=b"\xef\xbb\xbfmax_concurrent: 7\r\n").config.max_concurrent == 7


# --- notify ----------------------------------------------------------------------------------------------------


def test_destinations_have_a_chat_and_perhaps_a_thread():
    text = "notify:\n  destinations:\n    home: {chat: '-1001', thread: 7}\n    work: {chat: -1002}\n    news: {chat: '${NEWS}'}\n"
    assert parse_config(text, {"NEWS": "@news"}).notify.destinations == {
        "home": Destination("-1001", 7),
        "work": Destination("-1002"),
        "news": Destination("@news"),
    }


def test_the_only_destination_is_the_default_of_several_none_is():
    one = parse_config("notify: {destinations: {home: {chat: 1}}}\n", {})
    two = parse_config("notify: {destinations: {home: {chat: 1}, work: {chat: 2}}}\n", {})
    chosen = parse_config("notify: {default: work, destinations: {home: {chat: 1}, work: {chat: 2}}}\n", {})
    assert [config.notify.default for config in (one, two, chosen)] == ["home", None, "work"]


def test_the_token_comes_from_the_environment_unless_it_is_given():
    environment = {"TELEGRAM_BOT_TOKEN": "123:abc", "OTHER": "9:z"}
    assert parse_config("", environment).notify.token == "123:abc"
    assert parse_config("notify: {telegram: {token: '${OTHER}'}}\n", environment).notify.token == "9:z"
    assert parse_config("notify: {telegram: {token: '${MISSING}'}}\n", environment).notify.token == ""


def test_without_a_token_there_is_no_destination():
    text = "notify: {destinations: {home: {chat: 1}}}\n"
    assert parse_config(text, {}).notify.destination("home") is None
    assert parse_config(text, {"TELEGRAM_BOT_TOKEN": "t"}).notify.destination("home") == ("home", Destination("1"))


def test_an_alert_for_a_destination_that_is_gone_goes_to_the_default():
    notify = parse_config("notify: {destinations: {home: {chat: 1}}}\n", {"TELEGRAM_BOT_TOKEN": "t"}).notify
    assert notify.destination("gone") == notify.destination(None) == ("home", Destination("1"))
    assert parse_config("", {"TELEGRAM_BOT_TOKEN": "t"}).notify.destination("gone") is None


def test_a_bad_address_shows_no_secret_that_was_filled_in():
    [message] = refused("ping_url: '${PING}'\n", {"PING": "very-secret-value"})
    assert "very-secret-value" not in message


@pytest.mark.parametrize(
    ("text", "hours"),
    [("22:00-07:00", (time(22), time(7))), ("0:30 - 6:15", (time(0, 30), time(6, 15))), ("' '", None)],
)
def test_quiet_hours_are_read(text, hours):
    assert parse_config(f"notify: {{quiet_hours: {text}}}\n", {}).notify.quiet_hours == hours


# --- .env ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("A=b", {"A": "b"}),
        ("  export A = b ", {"A": "b"}),
        ("A=", {"A": ""}),
        ("A='b # c'", {"A": "b # c"}),
        ('A="b" # c', {"A": "b"}),
        ("A=b # c", {"A": "b"}),
        ("A=b#c", {"A": "b#c"}),
        ("A=b=c", {"A": "b=c"}),
        ("A=${B}", {"A": "${B}"}),
        ("# A=b", {}),
        ("", {}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("\ufeffA=1", {"A": "1"}),
        ("A=1\nA=2", {"A": "2"}),
    ],
)
def test_env_lines_are_read(tmp_path, line, values):
    assert settings_of(tmp_path, env=line.encode()).env_file == values


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"A=1\nwords\n", r"\.env:2: not a NAME=value line"),
        (b"1A=x\n", r"\.env:1: not a NAME=value line"),
        (b"A-B=x\n", r"\.env:1: not a NAME=value line"),
        (b"=x\n", r"\.env:1: not a NAME=value line"),
        (b"A=1\n\nB='x\n", r"\.env:3: B: the quote is not closed"),
        (b'A="x" y\n', r"\.env:1: A: the quote"),
        (b"A=x\0y\n", r"\.env:1: contains a NUL byte"),
        (b"A=\xff\n", r"\.env:1: not valid UTF-8"),
    ],
)
def test_a_bad_env_line_is_named_but_its_value_is_not_shown(tmp_path, content, says):
    [message] = refused_settings(tmp_path, env=content)
    assert re.match(says, message) and "x" not in message.partition(":")[2]


def test_no_env_file_means_no_variables(tmp_path):
    assert settings_of(tmp_path).env_file == {}


def test_the_environment_wins_over_the_env_file(tmp_path):
    (tmp_path / ".env").write_text("TELEGRAM_BOT_TOKEN=from-the-file\nB=2\n")
    settings = load_settings(Workspace(tmp_path), {"TELEGRAM_BOT_TOKEN": "from-outside"})
    assert settings.config.notify.token == "from-outside"
    assert settings.environment == {"TELEGRAM_BOT_TOKEN": "from-outside", "B": "2"}
    assert settings.env_file == {"TELEGRAM_BOT_TOKEN": "from-the-file", "B": "2"}


@pytest.mark.parametrize(
    ("text", "result", "missing"),
    [("${A}", "1", []), ("x${A}${B}y", "x12y", []), ("${C}", "", ["C"]), ("$A $$ ${ A } ${}", "$A $$ ${ A } ${}", []),
     ("${D}", "${A}", [])],
)  # fmt: skip
def test_names_in_braces_are_filled_in_once(text, result, missing):
    assert fill(text, {"A": "1", "B": "2", "D": "${A}"}) == (result, missing)
