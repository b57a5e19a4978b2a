"""Secrets are replaced in whatever is written down, also where a read cuts them in two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.redact import Redactor, secrets_in


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
