"""Every `--help` is enough for somebody who has never seen the program: a sentence, an example, a word on each argument."""

from __future__ import annotations

import argparse
import shlex

import pytest

from tests.helpers import Workspace
from tickdown.ui.arguments import build_parser


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Of every command, and of the program itself under an empty name."""
    whole = build_parser()
    commands = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return {"": whole, **commands.choices}


PARSERS = parsers()


def examples(parser: argparse.ArgumentParser) -> list[str]:
    lines = parser.format_help().splitlines()
    start = next(number for number, line in enumerate(lines) if line in ("example:", "examples:"))
    return [line.strip() for line in lines[start + 1 :]]


def test_every_help_is_a_sentence() -> None:
    for name, parser in PARSERS.items():
        sentence = parser.description or ""
        assert sentence[:1].isupper() and sentence.endswith((".", "?")) and len(sentence.split()) >= 8, name


def test_every_argument_is_explained() -> None:
    silent = [
        (name, argument.dest)
        for name, parser in PARSERS.items()
        for argument in parser._actions
        if not argument.help or argument.help == argparse.SUPPRESS
    ]
    assert silent == []


def test_every_example_is_accepted_by_the_command_that_shows_it() -> None:
    for name, parser in PARSERS.items():
        assert examples(parser), name
        for example in examples(parser):
            words = shlex.split(example.removeprefix(PARSERS[""].prog))
            assert words[:1] == [name] or not name, example
            if "--help" not in words:
                assert PARSERS[""].parse_args(words).command == words[0]


def test_help_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the examples, which begin with whatever the program was called by."""
    monkeypatch.setenv("COLUMNS", "80")
    for parser in PARSERS.values():
        text = parser.format_help().partition("\nexample")[0]
        assert [line for line in text.splitlines() if len(line) > 80] == []


def test_help_is_printed_by_the_real_command(workspace: Workspace) -> None:
    shown = workspace.cli("pause", "--help").stdout
    assert "Keep a task from running" in shown and "pause nightly-report --for 2h" in shown
