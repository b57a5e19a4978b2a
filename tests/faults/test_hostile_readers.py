"""No text brings a reader down: nothing but the expected error, and every rejection has its place."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults import garbage, nasty, readers
from tests.faults.readers import READERS
from tests.helpers import Workspace
from tickdown.alerts.channels.telegram import html_text
from tickdown.alerts.message import Message
from tickdown.base.model import Alert, AlertKind
from tickdown.base.redact import Redactor
from tickdown.base.terminal import cells
from tickdown.store.outbox import Outgoing
from tickdown.tasks.task import FIELDS, Surroundings, parse_task

snippets = st.lists(st.sampled_from(nasty.SNIPPETS), max_size=12).map("".join)
# Words that lead further into the readers than chance would.
words = st.sampled_from([
    *FIELDS, *nasty._WORDS, *nasty._LITERALS, *garbage._VALUES, "\n", ": ", "- ", "---\n", "every ", " at 09:00", "/pause until ",
    "verdict", "action", "retry-after: ", "try again in ", "99999 days ", "resets 3pm (Europe/Berlin)", "limit reached|1", "{", "}", '"',
])  # fmt: skip
seeds = st.integers(0, 2**32)
made = st.sampled_from([garbage.task_file, garbage.config_file, garbage.env_file])
contents = st.one_of(
    st.binary(max_size=400),
    snippets.map(lambda text: text.encode("utf-8", "replace")),
    st.lists(words, max_size=25).map(lambda parts: "".join(parts).encode("utf-8", "replace")),
    st.builds(lambda make, seed: make(Random(seed))[:5000], made, seeds),
    seeds.map(
        lambda seed: nasty.json_object(Random(seed), verdict='"fixed"', action='"ask"').encode("utf-8", "replace")
    ),
    seeds.map(lambda seed: garbage._wish(Random(seed)).encode("utf-8", "replace")),
)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@given(content=contents)
@settings(max_examples=50)
def test_no_text_brings_a_reader_down(reader: Callable[[bytes], None], content: bytes) -> None:
    reader(content)


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        (readers.telegram, b"[" * 9000),
        (readers.telegram, b'{"description": "half \\ud83d a pair"}'),
        (readers.telegram, b'{"description": "\\u001b[2J"}'),
        (readers.outputs, b"rate_limit_error: try again in " + b"99999 days " * 40),
        (readers.wishes, b'{"action": "ask", "question": "\\ud800"}'),
        (readers.wishes, b'{"action": "ask", "question": "\\u001b[2J?"}'),
        (readers.wishes, b'{"action": "modify", "env": {"MODE": "\\ud800"}}'),
        (readers.messages, "🎉".encode() * 6000),
        (readers.screens, "\x9b31m \u202e \x7f".encode()),
        (readers.configuration, b"[B,"),
        (readers.configuration, b'"\\e[2J\\n": 1'),
        (readers.frontmatter, b'"\\e]0;x\\a\\nfake.md:1: all well": 1'),
        (readers.frontmatter, b"timeout: " + b"9" * 100_000),
        (readers.configuration, b"healer: '" + b"&" * 2000 + b"'"),
        (readers.configuration, b"notify: {destinations: {%s: {chat: 1}}, default: %s}" % (b"a" * 900, b"b" * 3000)),
        (readers.configuration, b"'" + b"&" * 1000 + b"': 1"),
        (readers.frontmatter, b"run_as: '" + b"&" * 2000 + b"'"),
        (readers.frontmatter, b"blackout: '" + b"&" * 2000 + b"'"),
        (readers.files, b"timezone: UTC\n\nA=\0\n"),
        (readers.files, b"timezone: UTC\n\nA=\xff\n"),
        (readers.files, b"no line\n" * 1000),
        (readers.env_lines, b"A=1\x0cB C\nno line\n"),
    ],
)
def test_what_once_brought_one_down(reader: Callable[[bytes], None], content: bytes) -> None:
    reader(content)


def test_an_alert_keeps_what_fits_of_its_body_however_much_must_be_escaped() -> None:
    alert = Alert(AlertKind.FAILED, title="job failed", body="since noon: " + "<&>" * 500, output="the end")
    sent = html_text(Message((Outgoing(1, readers.NOW, alert, held=False),)), Redactor())
    assert "since noon: &lt;&amp;&gt;" in sent and len(sent) <= 4096


def test_a_file_with_thousands_of_problems_tells_the_first_few() -> None:
    fields = "\n".join(f"timeout{number}: 1" for number in range(3000))
    task, problems, _ = parse_task(f"---\nid: a\nschedule: 1d\n{fields}\npriority: x\n---\n", "a.md", Surroundings())
    told = [problem.at("a.md") for problem in problems]
    assert task is None and len(told) <= 60
    assert any("priority" in line for line in told) and any(
        "command: required" in line for line in told
    )  # the errors first
    assert any("more problems" in line for line in told) and "did you mean 'timeout'" in told[1]


def test_wide_characters_keep_the_columns_of_a_pipe_in_line(workspace: Workspace) -> None:
    workspace.task("job")
    for author, text in (("me", "one"), ("漢字", "two"), ("e\u0301\u200b", "three")):
        workspace.cli("comment", "job", text, env={"TICKDOWN_TASK_ID": author})
    lines = workspace.cli("comments").stdout.splitlines()
    columns = {
        cells(line[: line.index(word)]) for line, word in zip(lines, ("TEXT", "one", "two", "three"), strict=True)
    }
    assert len(columns) == 1
