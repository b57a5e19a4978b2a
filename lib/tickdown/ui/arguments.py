"""The arguments of every command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
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
_ID = "the id of a task, as `list` shows it"


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
        help="the folder with tasks/ in it (default: TICKDOWN_HOME, else the clone or, if installed, the current folder)",
    )
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document on stdout")
    parser = argparse.ArgumentParser(
        prog=program_name(),
        description=f"{tickdown.__doc__}\nCron calls `tick` once a minute; the other commands are for people.",
        epilog=_shown(["list", "run hello", "run --help"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument(
        "--version", action="version", version=f"tickdown {VERSION}", help="print the version and do nothing else"
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help="what to do; `COMMAND --help` tells more:"
    )

    def command(name: str, summary: str, description: str, *examples: str) -> Any:
        """`summary` is for the list of all commands, `description` and `examples` for its own help; an example is what
        follows the command's name."""
        known.append(name)
        if only is not None and only != name:
            return _Unasked()
        return commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=_shown(examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[common],
        )

    tick = command(
        "tick",
        "run what is due (cron calls this every minute)",
        "Run every task that is due, wait until all of them have ended, and record\n"
        "what happened. Cron calls this once a minute. Several ticks may be at work at\n"
        "the same time.",
        "",
        "--dry-run",
    )
    tick.add_argument("--dry-run", action="store_true", help="print the decisions and change nothing")
    tick.add_argument("--every", metavar="D", type=_period, help="repeat inside the minute, as in 10s")
    tick.add_argument("--detach", action="store_true", help="return at once and leave the work to a child process")

    run = command(
        "run",
        "run one task now, whatever its schedule",
        "Run one task now, whatever its schedule says and even if it is disabled, and\n"
        "show its output. The exit code is 0 if the task succeeds. Its next scheduled\n"
        "run stays where it was.",
        "nightly-report",
        "nightly-report --dry-run",
    )
    run.add_argument("id", metavar="ID", help=_ID)
    run.add_argument("--heal", action="store_true", help="let the healer repair it if it fails")
    run.add_argument("--key", metavar="K", help="run at most once for this key")
    run.add_argument("--dry-run", action="store_true", help="print the command and run nothing")

    listing = command(
        "list",
        "all tasks with state, last and next run",
        "Show every task with its state, its schedule, its last run and its next one.",
        "",
        "--state suspended",
    )
    listing.add_argument("--tag", metavar="T", help="only tasks with this tag")
    listing.add_argument("--state", metavar="S", choices=STATES, help=f"only tasks in this state: {', '.join(STATES)}")

    history = command(
        "history",
        "the last runs",
        "Show the last runs of all tasks or of one, the newest first: how each ended,\n"
        "when, and why it started then. Occurrences that did not run are in it too, as\n"
        "skipped or missed, with the reason.",
        "nightly-report --limit 5",
        "--status failed --since 2d",
    )
    history.add_argument("id", metavar="ID", nargs="?", help=f"{_ID} (default: all tasks)")
    history.add_argument("--limit", metavar="N", type=_how_many, default=20, help="how many (default 20)")
    history.add_argument("--status", metavar="S", choices=STATUSES, help=f"only runs that are {', '.join(STATUSES)}")
    history.add_argument("--since", metavar="D", help="only runs since then: a duration (2d) or a date (2026-06-01)")

    show = command(
        "show",
        "everything about one task",
        "Show everything about one task: what its file says, how the schedule was\n"
        "understood, its last runs, failures, hints and tickets.",
        "nightly-report",
    )
    show.add_argument("id", metavar="ID", help=_ID)

    why = command(
        "why",
        "what was decided about a task, and what comes next",
        "Explain one task: how its last run ended, what keeps it from running now,\n"
        "which moments it could run at next, and which of them wins.",
        "nightly-report",
    )
    why.add_argument("id", metavar="ID", help=_ID)

    coming = command(
        "next",
        "the coming runs",
        "Show which runs are coming, of all tasks or of one, the earliest first.",
        "",
        "nightly-report --count 5",
    )
    coming.add_argument("id", metavar="ID", nargs="?", help=f"{_ID} (default: all tasks)")
    coming.add_argument("--count", metavar="N", type=_how_many, default=10, help="how many (default 10)")

    simulate = command(
        "simulate",
        "the load of a time to come, without running anything",
        "Work out what would run in a time to come, if every run takes as long as usual\n"
        "and succeeds. Nothing is run. Shows the runs by hour, the busiest minutes, and\n"
        "whether so many may run at once.",
        "--to 7d",
        "--from 2026-12-24 --to 2026-12-27",
    )
    simulate.add_argument("--from", dest="from_", metavar="A", help="a date or time (default: now)")
    simulate.add_argument("--to", metavar="B", help="a date, a time or a duration, as in 7d (default: 24 hours later)")

    logs = command(
        "logs",
        "the output of a run",
        "Print what a run printed: the last run of a task, or one run by its id from\n`history`.",
        "nightly-report",
        "nightly-report -f",
    )
    logs.add_argument("name", metavar="ID|RUN", help="a task (its last run) or a run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.add_argument("--raw", action="store_true", help="as it was written, escape sequences included")

    validate = command(
        "validate",
        "every problem of every task file",
        "Check task files and the configuration, and name every problem with its file\n"
        "and line. Nothing is run. The exit code is 1 if there is a problem.",
        "",
        "tasks/nightly-report.md",
    )
    validate.add_argument("paths", metavar="PATH", nargs="*", help="files or folders (default: tasks/)")

    command(
        "doctor",
        "what is wrong with this installation",
        "Check whether Tickdown works here: do ticks come, can the database and the logs\n"
        "be written, does a task need a person? The exit code is 0 if all is well.",
        "",
    )

    pause = command(
        "pause",
        "keep a task from running",
        "Keep a task from running, until `resume` or for a time. A pause without end is\n"
        "written into the task's file. A run that is going on is not stopped.",
        "nightly-report --for 2h",
        "nightly-report --until 2026-06-01",
    )
    pause.add_argument("id", metavar="ID", help=_ID)
    end = pause.add_mutually_exclusive_group()
    end.add_argument("--for", dest="for_", metavar="D", help="for a time, as in 2h")
    end.add_argument("--until", metavar="T", help="until a time, as in 09:00 or 2026-06-01")

    resume = command(
        "resume",
        "let a task run again, counted from now",
        "Let a task run again that was paused, suspended or retired. Its failures are\n"
        "forgotten, and what it missed meanwhile is not caught up.",
        "nightly-report",
    )
    resume.add_argument("id", metavar="ID", help=_ID)

    retry = command(
        "retry",
        "run the last failed occurrence again, now",
        "Run the last failed occurrence of a task again, now, and show its output.",
        "nightly-report",
    )
    retry.add_argument("id", metavar="ID", help=_ID)

    cancel = command(
        "cancel",
        "retire a task: its file stays, it does not run any more",
        "Retire a task: its file and its history stay, but it does not run any more.\n`resume` takes it back.",
        "nightly-report",
    )
    cancel.add_argument("id", metavar="ID", help=_ID)

    add = command(
        "add",
        "write a task file from one sentence",
        "Write a new task file from one sentence: when, a colon, and what it is about.\n"
        "Say with --command or --url what is to be done. Without them an agent is told\n"
        "the words after the colon.",
        '"every weekday at 18:30: Mail the numbers" --command ./report.sh',
        '"every 5 minutes: Is the site up?" --url https://example.org/',
    )
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

    hint = command(
        "hint",
        "bend the schedule of a task for a while",
        "Bend the schedule of a task without touching its file: another interval for a\n"
        "while, or one run at another time.",
        "queue-check --every 1m --for 1h",
        'queue-check --at "tomorrow at 07:00" --reason "after the import"',
        "queue-check --clear",
    )
    hint.add_argument("id", metavar="ID", help=_ID)
    hint.add_argument("--every", metavar="D", help="run this often, as in 1m, in place of the schedule")
    hint.add_argument("--at", metavar="T", help="run once then: 09:00, a date, or a phrase such as 'in 30 minutes'")
    hint.add_argument(
        "--for", dest="for_", metavar="D", help="how long the hint holds (default: until cleared or used)"
    )
    hint.add_argument("--reason", metavar="TEXT", default="", help="why, for `why` and `show`")
    hint.add_argument("--clear", action="store_true", help="forget the hints of the task")

    stop = command(
        "stop",
        "end the run that is going on",
        "End the run of a task that is going on, with every process that it started. It\nis recorded as cancelled.",
        "nightly-report",
    )
    stop.add_argument("id", metavar="ID", help=_ID)

    heal = command(
        "heal",
        "what a healer may do, did, and taking it back",
        "Look at self-healing, where an agent repairs a failing task: what it would be\n"
        "told, what it changed, and take that back. This never starts a heal; `run ID\n"
        "--heal` does.",
        "nightly-report --dry-run",
        "nightly-report --diff 20261117T062434-b921c008",
    )
    heal.add_argument("id", metavar="ID", help=_ID)
    which = heal.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--dry-run", action="store_true", help="show the prompt and the files it could touch; start nothing"
    )
    which.add_argument("--diff", metavar="RUN", help="show what the heals of a run changed")
    which.add_argument("--undo", metavar="RUN", help="put back what the heals of a run changed")

    costs = command(
        "costs",
        "what agents have cost, by task and day",
        "Show what the runs of agents have cost, by day and task: money where the agent\ntells it, and tokens.",
        "--since 7d",
    )
    costs.add_argument("--since", metavar="D", help="a duration (7d) or a date (default: 30 days)")

    comment = command(
        "comment",
        "say something about the next run of a task",
        "Write a comment that is read before the next scheduled run of a task: a plain\n"
        "command such as /skip, or words that an agent reads.",
        "nightly-report /skip",
        'nightly-report "leave out the weekend"',
    )
    comment.add_argument("id", metavar="ID", help=_ID)
    comment.add_argument("text", metavar="TEXT", help="words, or /skip, /pause, /pause until TIME, /resume, /run")

    comments = command(
        "comments",
        "what people wrote, and what came of it",
        "Show the comments on all tasks or on one, and what came of each.",
        "nightly-report",
    )
    comments.add_argument("id", metavar="ID", nargs="?", help=f"{_ID} (default: all tasks)")
    comments.add_argument("--limit", metavar="N", type=_how_many, default=20, help="how many (default 20)")

    tickets = command(
        "tickets",
        "what waits for a person",
        "Show what waits for a person: suspended tasks, timeouts, repeated failures,\n"
        "alerts that can't be delivered. Close a ticket when it is dealt with.",
        "",
        '--close 3 --note "new disk"',
    )
    tickets.add_argument("id", metavar="ID", nargs="?", help=f"{_ID} (default: all tickets)")
    tickets.add_argument("--all", action="store_true", dest="closed_too", help="closed ones too")
    tickets.add_argument("--close", metavar="N", type=_how_many, help="close ticket N")
    tickets.add_argument("--note", metavar="TEXT", help="with --close: why")

    command(
        "prune",
        "remove old runs and logs now",
        "Remove runs and logs that are older than `keep_runs` in the configuration.\n"
        "Ticks do this once a day by themselves.",
        "",
    )
    return parser, known


def _shown(examples: Iterable[str]) -> str:
    """Examples below the help of a command; argparse puts in how it was called."""
    lines = [f"  %(prog)s {example}".rstrip() for example in examples]
    return "\n".join(["example:" if len(lines) == 1 else "examples:", *lines])


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
