"""Everything that makes sense of a text from outside, and what must hold whatever the text: nothing but the expected error,
and for every rejection a message with its place. For hypothesis and for atheris."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults import nasty
from tests.helpers import well_formed
from tickdown.actions.add import split_sentence
from tickdown.agents.calls import Format, read_answer
from tickdown.alerts.channels.telegram import html_text, judge_answer
from tickdown.alerts.message import Message, SendError, plain_text
from tickdown.base.errors import TickdownError
from tickdown.base.model import Alert, AlertKind, Comment, RunStatus
from tickdown.base.redact import Redactor
from tickdown.base.terminal import PrintableStream, escaped, one_line, printable
from tickdown.comments.meaning import plain_wish, wish_from
from tickdown.config import SettingsError, load_settings, parse_config
from tickdown.failure.outcomes import classify, stated_reset
from tickdown.failure.signature import error_signature
from tickdown.heal.healer import Said
from tickdown.schedule.blackout import first_free, parse_blackout
from tickdown.schedule.cron import ScheduleError
from tickdown.schedule.phrases import read_moment
from tickdown.schedule.schedule import next_after, parse_schedule
from tickdown.schedule.wording import reading
from tickdown.store.outbox import LONGEST_WAIT, Outgoing
from tickdown.tasks.catalogue import load_file
from tickdown.tasks.editing import edited
from tickdown.tasks.remembered import task_from_text, task_to_text
from tickdown.tasks.task import Surroundings, parse_task
from tickdown.tasks.yaml_tree import MOST_PROBLEMS, Problem, YamlError
from tickdown.time.durations import parse_duration, parse_size
from tickdown.time.instants import to_store
from tickdown.time.zones import get_zone
from tickdown.workspace.folders import Workspace, fill, parse_env

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
ZONES = tuple(map(get_zone, ("UTC", "America/New_York", "Australia/Lord_Howe")))
_KNOWN = Surroundings("UTC", ("home",), ("site",), ("gpu",))
_LINE_ENDS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # of YAML


def _text(data: bytes) -> str:
    """As what programs print is decoded."""
    return data.decode("utf-8", "replace")


def _well_placed(problems: list[Problem], text: str, path: str) -> None:
    last = len(_LINE_ENDS.findall(text)) + 1
    for problem in problems:
        assert 1 <= problem.line <= last, f"line {problem.line} of {last}: {problem}"
        told = problem.at(path)
        assert re.fullmatch(rf"{re.escape(path)}:{problem.line}: \S.*", told) and len(told) <= 1000, told
        _says_why(told.removeprefix(f"{path}:{problem.line}: "), text)
        nasty.shown_safely(told)


def _says_why(told: str, text: str) -> None:
    """It has words of its own, beside those that it quotes from the file."""
    own = [word for word in re.findall("[A-Za-z]{3,}", told) if word not in text]
    assert own or "unknown" in text, f"nothing is said: {told}"


def files(data: bytes) -> None:
    """The same bytes as config.yaml, as .env and as a task file: also those that are no text."""
    with TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        for path in (workspace.config_file, workspace.env_file, workspace.tasks / "x.md"):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o600)
        told: list[str] = []
        try:
            load_settings(workspace, {"HOME": "/root"})
        except SettingsError as error:
            told += str(error).split("\n")
        found = load_file(workspace.tasks / "x.md", workspace, _KNOWN)
        assert found.is_valid or found.errors
        told += found.errors
    lines, text = data.split(b"\n"), data.decode("utf-8", "replace")
    for one in told:
        place = re.fullmatch(r"(?:config\.yaml|\.env|tasks/x\.md):([1-9][0-9]*): (\S.*)", one)
        assert place, one
        _says_why(place[2], text)
        if place[2] == "contains a NUL byte":
            assert b"\0" in lines[int(place[1]) - 1], one
        if place[2].startswith("not valid UTF-8 (byte"):
            assert "\ufffd" in lines[int(place[1]) - 1].decode("utf-8", "replace"), one
    assert len(told) <= 3 * (MOST_PROBLEMS + 1)


def task_file(data: bytes) -> None:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return
    if "\0" in text:
        return
    task, problems, _ = parse_task(text, "tasks/x.md", _KNOWN)
    _well_placed(problems, text, "tasks/x.md")
    assert (task is None) == any(not problem.warning for problem in problems)
    if task is None:
        return
    assert task_from_text(task_to_text(task)) == task
    nasty.shown_safely(one_line(reading(task.schedule)))
    coming = next_after(task.schedule, NOW)
    if coming is not None:
        first_free(task.blackout, coming, task.zone)
    with suppress(TickdownError, YamlError):
        parse_task(edited(text, {"enabled": "false", "disabled_reason": "paused"}), "tasks/x.md", _KNOWN)


def frontmatter(data: bytes) -> None:
    """The same, past the hurdle of the first fields."""
    task_file(b"---\nid: a\nschedule: 1d\ncommand: x\n" + data + b"\n---\n")


def configuration(data: bytes) -> None:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return
    if "\0" not in text:
        _, problems = parse_config(text, {"HOME": "/root"})
        _well_placed(problems, text, "config.yaml")


def env_lines(data: bytes) -> None:
    text = _text(data)
    values, problems = parse_env(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, message in problems:
        assert lines[number - 1].strip() and message
    for name, value in values.items():
        assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)
        fill(value, values)


def schedules(data: bytes) -> None:
    text = _text(data)
    for zone in ZONES:
        try:
            schedule = parse_schedule(text, "a", zone)
        except ScheduleError as error:
            assert len(str(error)) < 2000
            return
        at = next_after(schedule, NOW)
        assert at is None or at > NOW
        assert at is None or next_after(schedule, at, first_seen=NOW) != at


def times(data: bytes) -> None:
    text = _text(data)
    for read in (parse_duration, parse_size, parse_blackout):
        with suppress(ValueError):
            read(text)
    for zone in ZONES:
        with suppress(ValueError):
            to_store(read_moment(text, zone, NOW))


def agents(data: bytes) -> None:
    text = _text(data)
    for format_ in Format:
        for code in (0, 1, 41):
            answer = read_answer(format_, text, text, code)
            outcome = classify(code, None, output=text[-4096:], answer=answer, now=NOW)
            assert outcome.status is RunStatus.SUCCESS or outcome.error
            said = (answer.text, outcome.error or "", outcome.usage.session_id or "")
            for each in said:
                each.encode()  # can be stored
            cost, tokens = outcome.usage.cost_usd, outcome.usage.input_tokens
            assert cost is None or 0 <= cost < 1e9
            assert tokens is None or 0 <= tokens < 2**63
            error_signature(outcome)


def outputs(data: bytes) -> None:
    text = _text(data)
    for zone in ZONES:
        reset = stated_reset(text, NOW, zone)
        assert reset is None or NOW < reset <= NOW + timedelta(days=8)
    classify(1, None, output=text, now=NOW)
    classify(1, None, output=f"{text}\nHTTP 429 Too Many", is_request=True, now=NOW)


def verdicts(data: bytes) -> None:
    said = Said.of(_text(data))
    nasty.shown_safely(said.cause)
    said.cause.encode()


def wishes(data: bytes) -> None:
    text = _text(data)
    wish = wish_from(text, NOW, is_agent_task=True)
    if wish is not None:
        for each in (wish.reason, wish.question):
            nasty.shown_safely(each)
            each.encode()
        if wish.change is not None:
            assert not any("\0" in value for value in wish.change.env.values())
            json.dumps(wish.change.env).encode()
            "".join([*wish.change.env.values(), wish.change.prompt]).encode()
    with suppress(ValueError):
        plain_wish(Comment(1, "a", "me", text, NOW), ZONES[1])
    with suppress(TickdownError):
        split_sentence(text)


def telegram(data: bytes) -> None:
    for status in (200, 400, 429, 500):
        try:
            judge_answer(status, _text(data)[:50], data)
        except SendError as error:
            str(error).encode()
            nasty.shown_safely(str(error))
            assert error.wait is None or timedelta(0) < error.wait <= LONGEST_WAIT


def messages(data: bytes) -> None:
    text = _text(data)
    third = len(text) // 3
    title, body, output = text[:third] or "x", text[third : 2 * third], text[2 * third :]
    alert = Alert(AlertKind.FAILED, title=title, body=body, output=output)
    for count in (1, 7):
        message = Message(tuple(Outgoing(number, NOW, alert, held=False) for number in range(count)))
        sent = html_text(message, Redactor())
        nasty.shown_safely(well_formed(sent))
        assert len(sent.encode("utf-16-le")) // 2 <= 4096
        nasty.shown_safely(plain_text(message, Redactor()))


def screens(data: bytes) -> None:
    text = _text(data)
    shown = printable(text)
    nasty.shown_safely(shown)
    nasty.shown_safely(escaped(json.dumps(text, ensure_ascii=False)))
    assert json.loads(escaped(json.dumps(text, ensure_ascii=False))) == text
    assert len(one_line(text).splitlines()) <= 1
    stream, half = PrintableStream(), len(data) // 2
    nasty.shown_safely(stream.feed(data[:half]) + stream.feed(data[half:]) + stream.flush())


def redaction(data: bytes) -> None:
    """The first quarter are secrets, the rest is said."""
    quarter = len(data) // 4
    secrets = sorted({secret for secret in data[:quarter].split(b"\n") if len(secret) >= 8}, key=lambda s: (-len(s), s))
    redactor = Redactor(secret.decode("utf-8", "surrogateescape") for secret in secrets)
    for size in (1, 7, 10_000) if len(data) < 10_000 else (10_000,):
        stream, said = redactor.stream(), b""
        for at in range(quarter, len(data), size):
            said += stream.feed(data[at : at + size])
        said += stream.flush()
        if not any(b"*" in secret for secret in secrets):  # what replaces them is made of those
            assert not any(secret in said for secret in secrets)
        if not secrets:
            assert said == data[quarter:]


READERS: tuple[Callable[[bytes], None], ...] = (
    files, task_file, frontmatter, configuration, env_lines, schedules, times, agents, outputs, verdicts, wishes, telegram, messages,
    screens, redaction,
)  # fmt: skip
