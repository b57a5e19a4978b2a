"""Secrets are replaced in whatever is written down, also where a read cuts them in two."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Telegram, Workspace
from tickdown.base.redact import FEW, MOST_HELD, Redactor, secrets_in
from tickdown.base.terminal import LONGEST_SEQUENCE, PrintableStream, printable


def test_everything_in_env_and_every_telling_name_is_a_secret():
    environment = {
        "API_TOKEN": "token-value", "my_secret": "secret-value", "DbPassword": "password-value", "SSH_KEY": "key-value-1",
        "AWS_CREDENTIALS": "credential-value", "HOME": "/home/somebody", "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    found = secrets_in({"HARMLESS": "from-env-file"}, environment, ["configured"])
    assert set(found) == {
        "token-value", "secret-value", "password-value", "key-value-1", "credential-value", "from-env-file", "configured",
    }  # fmt: skip


def test_short_values_are_no_secrets():
    assert secrets_in({"A": "1234567", "B": "12345678"}, {"TOKEN": "", "KEY": "x"}) == ["12345678"]


def test_a_secret_inside_another_is_replaced_with_it():
    secrets = secrets_in({"A": "abcdefgh", "B": "xx-abcdefgh-yy"}, {})
    assert Redactor(secrets).text("1 xx-abcdefgh-yy 2 abcdefgh 3") == "1 *** 2 *** 3"


def test_of_many_secrets_each_is_found():
    secrets = secrets_in({str(number): f"secret-{number:04d}" for number in range(FEW)} | dict(enumerate(SECRETS)), {})
    redactor = Redactor(secrets)
    assert len(secrets) > FEW and all(redactor.text(f"x{secret}y") == "x***y" for secret in secrets)
    assert redactor.text(TEXT) == CLEAN and redactor.text("short") == "short" and redactor.text("") == ""


def test_every_text_of_a_tree_is_redacted():
    redactor = Redactor(["topsecret"])
    tree = {"a": "x topsecret", "b": [1, None, True, {"c": ("topsecret", 2.5)}]}
    assert redactor.tree(tree) == {"a": "x ***", "b": [1, None, True, {"c": ["***", 2.5]}]}


def pieces(redactor: Redactor, *parts: bytes) -> bytes:
    stream = redactor.stream()
    return b"".join([*map(stream.feed, parts), stream.flush()])


SECRETS = ["abcabcabd", "pässwörd-🎉", "hunter22", "hunter22-and-more"]
TEXT = "x abcabcabcabd y pässwörd-🎉 hunter22hunter22 hunter22-and-mor hunter22-and-more. abcabcab"
CLEAN = "x abc*** y *** ****** ***-and-mor ***. abcabcab"


def test_text_and_stream_agree():
    redactor = Redactor(secrets_in(dict(enumerate(SECRETS)), {}))
    assert redactor.text(TEXT) == CLEAN
    assert pieces(redactor, TEXT.encode()) == CLEAN.encode()


@pytest.mark.parametrize("at", range(len(TEXT.encode()) + 1))
def test_a_secret_cut_at_any_place_is_found(at):
    redactor = Redactor(secrets_in(dict(enumerate(SECRETS)), {}))
    data = TEXT.encode()
    assert pieces(redactor, data[:at], data[at:]) == CLEAN.encode()


def test_a_secret_that_comes_byte_by_byte_is_found():
    redactor = Redactor(secrets_in(dict(enumerate(SECRETS)), {}))
    assert pieces(redactor, *[bytes([byte]) for byte in TEXT.encode()]) == CLEAN.encode()


def test_what_can_not_be_a_secret_is_passed_on_at_once():
    stream = Redactor(["hunter22"]).stream()
    assert stream.feed(b"hello\nhunt") == b"hello\n"
    assert stream.feed(b"ing\n") == b"hunting\n"
    assert stream.flush() == b""


def test_without_secrets_nothing_is_touched():
    assert pieces(Redactor(), b"abc", b"\xff\0") == b"abc\xff\0"


@given(
    st.lists(st.text("ab-", min_size=8, max_size=12), min_size=1, max_size=3), st.text("ab-", max_size=60), st.data()
)
def test_no_secret_survives_however_the_text_is_cut(secrets, text, data):
    redactor = Redactor(sorted(set(secrets), key=len, reverse=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b].encode() for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    out = pieces(redactor, *parts)
    assert not any(secret.encode() in out for secret in secrets)
    assert out == pieces(redactor, text.encode())


def test_a_secret_of_odd_bytes_is_found():
    secret = b"pass\xffword".decode("utf-8", "surrogateescape")
    assert pieces(Redactor([secret]), b"x pass\xff", b"word y") == b"x *** y"


# --- what is not shown, inside of a secret ---------------------------------------------------------------------

HIDDEN = st.one_of(
    st.sampled_from(
        [
            "\x1b[K", "\x1b[01;31m\x1b[K", "\x1b[m", "\x9b0m", "\x1b]0;title °\x07", "\x1b]8;;http://e/\x1b\\", "\x1bPq#0\x1b\\",
            "\x1b(B", "\x1b=", "\x1b", "\x1b[31", "\r", "\x08", "\x00", "\x7f", "\x85", "\u202e", "\u2066", "\u061c",
        ]
    ),
    st.text("\x1b\x9b[];0m\x07\\\r\x00", max_size=6),
)  # fmt: skip
SECRET = st.text(st.sampled_from("abab-é🎉\u2060°"), min_size=8, max_size=14)


@st.composite
def interrupted(draw, secret: str) -> str:
    """A secret with all kinds of things between its characters."""
    return "".join(char + draw(st.one_of(st.just(""), HIDDEN)) for char in secret)


def cut_anywhere(data: bytes, draw) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def as_shown(parts: list[bytes]) -> str:
    stream = PrintableStream()
    return "".join([*map(stream.feed, parts), stream.flush()])


@given(st.data())
def test_no_secret_comes_out_whole_once_escape_sequences_are_stripped(data):
    secrets = sorted(data.draw(st.lists(SECRET, min_size=1, max_size=3, unique=True)), key=len, reverse=True)
    pieces_of_text = st.one_of(SECRET, HIDDEN, *map(interrupted, secrets))
    text = "".join(data.draw(st.lists(pieces_of_text, max_size=5)))
    redactor = Redactor(secrets)
    parts = cut_anywhere(text.encode(), data.draw)
    stored = pieces(redactor, *parts)
    told = [printable(stored.decode()), as_shown([stored]), as_shown(cut_anywhere(stored, data.draw))]
    told += [stored.decode(), printable(redactor.text(text)), redactor.tree({"a": [text]})["a"][0]]
    assert not [secret for secret in secrets for shown in told if secret in shown]
    assert printable(stored.decode()) == printable(pieces(redactor, text.encode()).decode())


@given(
    st.text(st.one_of(st.sampled_from("\x1b\x9b[]PX^_0;mH\x07\\\r\n\u202eab"), st.characters(codec="utf-8"))), st.data()
)
def test_what_has_no_secret_in_it_stays_as_it_is(text, data):
    redactor = Redactor(["no-such-secret", "ab-no-such"])
    assert redactor.text(text) == text
    assert pieces(redactor, *cut_anywhere(text.encode(), data.draw)) == text.encode()


def test_a_colour_around_a_secret_is_kept():
    assert Redactor(["hunter22"]).text("\x1b[31mhunter22\x1b[0m!") == "\x1b[31m***\x1b[0m!"
    assert Redactor(["hunter22"]).text("a\x1b[1mb hun\x1b[31mter22\x1b[0m!") == "a\x1b[1mb ***\x1b[0m!"


def test_what_is_hidden_behind_the_beginning_of_a_secret_does_not_fill_the_memory():
    stream = Redactor(["hunter22"]).stream()
    out = stream.feed(b"hunt") + b"".join(stream.feed(b"\0" * 65536) for _ in range(3))
    assert stream.feed(b"er2") == out == b""
    assert stream.feed(b"2!") + stream.flush() == b"***!"


def test_a_sequence_that_never_ends_holds_up_nothing():
    stream = Redactor(["hunter22"]).stream()
    assert stream.feed(b"\x1b]0;title") == b""
    stream.feed(b"x" * max(LONGEST_SEQUENCE, MOST_HELD))
    assert stream.feed(b"more\n").endswith(b"more\n")


def test_a_secret_with_control_characters_is_known_without_them():
    redactor = Redactor(secrets_in({"A": "pass\x07word\x1b[1m-1"}, {}))
    assert [redactor.text(text) for text in ("pass\x07word\x1b[1m-1", "password-1", "pass\x1b[Kword-1")] == ["***"] * 3


INTERRUPTED = r"""echo "pass=$MYPASS own=$OWN_KEY" | grep --color=always -e horse -e river
printf 'cor\033[Krecthorsebattery or\033[1mdinaryriverstone\n'; sleep 0.05
printf 'correct\033'; sleep 0.05; printf '[0mhorse\r\b\000battery\n'
printf '\033]0;correcthorsebattery\007\n'
exit 3
"""


def test_no_output_has_a_secret_with_escape_sequences_in_it(workspace: Workspace, telegram: Telegram):
    telegram.configure(workspace)
    with (workspace.root / ".env").open("a") as file:
        file.write("MYPASS=correcthorsebattery\n")
    workspace.task("leaky", INTERRUPTED, env={"OWN_KEY": "ordinaryriverstone"}, retries=0)
    told = [workspace.cli("run", "leaky", code=1).stdout, *telegram.texts]
    assert len(told) == 2 and "***" in told[0] and "***" in told[1]
    outputs = (
        "history",
        "show leaky",
        "logs leaky",
        "logs leaky --raw",
        "heal leaky --dry-run",
        "list",
        "why leaky",
        "tickets",
    )
    for words in outputs:
        told += [workspace.cli(*words.split()).stdout]
        told += [json.dumps(workspace.json(*words.split()), ensure_ascii=False)]
    told += [row[0] for row in workspace.sql("SELECT summary FROM task_runs")]
    told += [path.read_text() for path in (workspace.root / "logs").rglob("*.*") if path.is_file()]
    assert len(told) > 20
    for text in told:
        bare = printable(text.replace("\\u001b", "\x1b").replace("\\u0000", "").replace("\\r", "").replace("\\b", ""))
        assert not [secret for secret in ("correcthorsebattery", "ordinaryriverstone") if secret in bare], bare


def test_a_log_from_before_its_secret_was_one_is_shown_without_it(workspace: Workspace):
    workspace.task("early", "echo 'pass=correct\033[Khorsebattery'; printf 'pass=correct\\033[Khorsebattery'")
    workspace.cli("run", "early")
    (workspace.root / ".env").write_text("MYPASS=correcthorsebattery\n")
    assert workspace.cli("logs", "early").stdout.endswith("pass=***")
    assert workspace.cli("logs", "early", "--raw").stdout.endswith("pass=***")


# --- secrets in task files -------------------------------------------------------------------------------------


def test_a_secret_in_a_task_file_is_masked_wherever_the_task_repeats_it(workspace: Workspace, telegram: Telegram):
    telegram.configure(workspace)
    repeats = {"title": "a taskliteral99 title", "tags": ["taskliteral99"], "env": {"API_KEY": "taskliteral99"}}
    workspace.task("own", "echo taskliteral99; exit 1", "every 1 hour", retries=0, **repeats)
    workspace.task("other", "echo taskliteral99", "every 1 hour", title="it knows taskliteral99")
    told = [workspace.cli("hint", "own", "--every", "2h", "--reason", "because of taskliteral99").stdout]
    told += [workspace.cli("comment", "own", "what about taskliteral99?").stdout]
    told += [workspace.cli("run", "own", code=1).stdout, *telegram.texts]
    outputs = (
        "list", "show own", "show other", "next", "next own", "why own", "comments", "history", "logs own", "tickets", "simulate",
        "validate", "doctor", "run own --dry-run", "heal own --dry-run", "tick --dry-run",
    )  # fmt: skip
    for words in outputs:
        told += [json.dumps(workspace.json(*words.split(), code=None), ensure_ascii=False)]
    workspace.tick()  # from now on tasks come from the store
    for words in outputs:
        told += [workspace.cli(*words.split(), code=None).stdout]
    told += [
        workspace.scheduler_log(),
        str(workspace.sql("SELECT text FROM comments")),
        str(workspace.sql("SELECT * FROM hints")),
    ]
    told += [*telegram.texts]
    assert sum("***" in text for text in told) > 15
    assert not [text for text in told if "taskliteral99" in text]


def test_what_a_task_only_takes_over_is_no_secret_because_of_its_name(workspace: Workspace):
    workspace.environment["PLACE"] = "/somewhere/nice"
    workspace.task("job", "ls /somewhere/nice", env={"KEY_FOLDER": "${PLACE}"})
    assert "ls /somewhere/nice" in workspace.cli("show", "job").stdout
