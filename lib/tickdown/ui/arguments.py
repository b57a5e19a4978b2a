"""The arguments of every command."""

from __future__ import annotations

import argparse
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import tickdown
from tickdown import VERSION
from tickdown.base.invocation import program_name
from tickdown.base.model import RunStatus, TaskState
from tickdown.time.durations import parse_duration

STATES = [state.value for state in TaskState]
STATUSES = [status.value for status in RunStatus]


def parsed(argv: list[str]) -> SimpleNamespace:
    """Most of the time the command is plain to see, and the parsers of the others need not be made."""
    words = argv[2:] if argv[:1] == ["--workspace"] else argv
    asked = words[0] if words and not words[0].startswith("-") and not {"-h", "--help"} & set(argv) else None
    parser, known = _build(asked)
    if asked is not None and asked not in known:
        parser, _ = _build(None)  # to say what there is
    return parser.parse_args(argv, SimpleNamespace())


def build_parser() -> argparse.ArgumentParser:
    return _build(None)[0]


class _Unasked:
    """Stands for the arguments of commands that nobody has asked for."""

    def add_argument(self, *names: object, **options: object) -> None: ...

    def add_mutually_exclusive_group(self, **options: object) -> _Unasked:
        return self


def _build(only: str | None) -> tuple[argparse.ArgumentParser, list[str]]:
    """For all commands, or quicker, for one; and the names of all."""
    known: list[str] = []
    common = argparse.ArgumentParser(add_help=False)
    # SUPPRESS: a default of the subcommand would overwrite what was given before it.
    common.add_argument(
        "--workspace",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="the workspace (default: TICKDOWN_HOME, else this folder)",
    )
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document on stdout")
    parser = argparse.ArgumentParser(prog=program_name(), description=tickdown.__doc__, parents=[common])
    parser.add_argument("--version", action="version", version=f"tickdown {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> Any:
        known.append(name)
        if only is not None and only != name:
            return _Unasked()
        return commands.add_parser(name, help=summary, description=summary, parents=[common])

    tick = command("tick", "run what is due (cron calls this every minute)")
    tick.add_argument("--dry-run", action="store_true", help="print the decisions and change nothing")
    tick.add_argument("--every", metavar="D", type=_period, help="repeat inside the minute, as in 10s")
    tick.add_argument("--detach", action="store_true", help="return at once and leave the work to a child process")

    run = command("run", "run one task now, whatever its schedule")
    run.add_argument("id", metavar="ID")
    run.add_argument("--heal", action="store_true", help="let the healer repair it if it fails")
    run.add_argument("--key", metavar="K", help="run at most once for this key")
    run.add_argument("--dry-run", action="store_true", help="print the command and run nothing")

    listing = command("list", "all tasks with state, last and next run")
    listing.add_argument("--tag", metavar="T")
    listing.add_argument("--state", metavar="S", choices=STATES, help=", ".join(STATES))

    history = command("history", "the last runs")
    history.add_argument("id", metavar="ID", nargs="?")
    history.add_argument("--limit", metavar="N", type=_how_many, default=20, help="how many (default 20)")
    history.add_argument("--status", metavar="S", choices=STATUSES, help=", ".join(STATUSES))
    history.add_argument("--since", metavar="D", help="a duration (2d) or a date")

    command("show", "everything about one task").add_argument("id", metavar="ID")

    command("why", "what was decided about a task, and what comes next").add_argument("id", metavar="ID")

    coming = command("next", "the coming runs")
    coming.add_argument("id", metavar="ID", nargs="?")
    coming.add_argument("--count", metavar="N", type=_how_many, default=10, help="how many (default 10)")

    simulate = command("simulate", "the load of a time to come, without running anything")
    simulate.add_argument("--from", dest="from_", metavar="A", help="a date or time (default: now)")
    simulate.add_argument("--to", metavar="B", help="a date, a time or a duration, as in 7d (default: 24 hours later)")

    logs = command("logs", "the output of a run")
    logs.add_argument("name", metavar="ID|RUN", help="a task (its last run) or a run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.add_argument("--raw", action="store_true", help="as it was written, escape sequences included")

    validate = command("validate", "every problem of every task file")
    validate.add_argument("paths", metavar="PATH", nargs="*", help="files or folders (default: tasks/)")

    command("doctor", "what is wrong with this installation")

    pause = command("pause", "keep a task from running")
    pause.add_argument("id", metavar="ID")
    end = pause.add_mutually_exclusive_group()
    end.add_argument("--for", dest="for_", metavar="D", help="for a time, as in 2h")
    end.add_argument("--until", metavar="T", help="until a time, as in 09:00 or 2026-06-01")

    command("resume", "let a task run again, counted from now").add_argument("id", metavar="ID")
    command("retry", "run the last failed occurrence again, now").add_argument("id", metavar="ID")
    command("cancel", "retire a task: its file stays, it does not run any more").add_argument("id", metavar="ID")

    add = command("add", "write a task file from one sentence")
    add.add_argument("sentence", metavar="SENTENCE", help="'every monday at 09:00: run the report'")
    what = add.add_mutually_exclusive_group()
    what.add_argument("--command", dest="shell_command", metavar="C", help="what to run")
    what.add_argument(
        "--as",
        dest="agent",
        metavar="AGENT",
        help="let this agent do it: claude (the default), codex, gemini or your own",
    )
    what.add_argument("--url", metavar="URL", help="call this address")
    add.add_argument("--id", metavar="ID", help="the task's id (default: from the message)")

    hint = command("hint", "bend the schedule of a task for a while")
    hint.add_argument("id", metavar="ID")
    hint.add_argument("--every", metavar="D", help="run this often, as in 1m, in place of the schedule")
    hint.add_argument("--at", metavar="T", help="run once then: 09:00, a date, or a phrase such as 'in 30 minutes'")
    hint.add_argument(
        "--for", dest="for_", metavar="D", help="how long the hint holds (default: until cleared or used)"
    )
    hint.add_argument("--reason", metavar="TEXT", default="", help="why, for `why` and `show`")
    hint.add_argument("--clear", action="store_true", help="forget the hints of the task")

    command("stop", "end the run that is going on").add_argument("id", metavar="ID")

    heal = command("heal", "what a healer may do, did, and taking it back")
    heal.add_argument("id", metavar="ID")
    which = heal.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--dry-run", action="store_true", help="show the prompt and the files it could touch; start nothing"
    )
    which.add_argument("--diff", metavar="RUN", help="show what the heals of a run changed")
    which.add_argument("--undo", metavar="RUN", help="put back what the heals of a run changed")

    costs = command("costs", "what agents have cost, by task and day")
    costs.add_argument("--since", metavar="D", help="a duration (7d) or a date (default: 30 days)")

    comment = command("comment", "say something about the next run of a task")
    comment.add_argument("id", metavar="ID")
    comment.add_argument("text", metavar="TEXT", help="words, or /skip, /pause, /pause until TIME, /resume, /run")

    comments = command("comments", "what people wrote, and what came of it")
    comments.add_argument("id", metavar="ID", nargs="?")
    comments.add_argument("--limit", metavar="N", type=_how_many, default=20, help="how many (default 20)")

    tickets = command("tickets", "what waits for a person")
    tickets.add_argument("id", metavar="ID", nargs="?")
    tickets.add_argument("--all", action="store_true", dest="closed_too", help="closed ones too")
    tickets.add_argument("--close", metavar="N", type=_how_many, help="close ticket N")
    tickets.add_argument("--note", metavar="TEXT", help="with --close: why")

    command("prune", "remove old runs and logs now")
    return parser, known


def _how_many(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 999999999")
    return int(text)


def _period(text: str) -> timedelta:
    try:
        every = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if every < timedelta(seconds=1):
        raise argparse.ArgumentTypeError(f"{text!r} is shorter than a second")
    return every
