#!/usr/bin/env python3
"""Tickdown: a scheduler whose tasks are Markdown files. This is its command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lib import VERSION
from lib.errors import Exit, TickdownError
from lib.model import RunStatus, TaskState
from lib.times import parse_duration

if TYPE_CHECKING:
    from lib.app import App
    from lib.workspace import Workspace


def build_parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    # SUPPRESS: a default of the subcommand would overwrite what was given before it.
    common.add_argument(
        "--workspace",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="the workspace (default: TICKDOWN_HOME, else this folder)",
    )
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document on stdout")
    parser = argparse.ArgumentParser(prog="scheduler.py", description=__doc__, parents=[common])
    parser.add_argument("--version", action="version", version=f"tickdown {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> argparse.ArgumentParser:
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
    command("stop", "end the run that is going on").add_argument("id", metavar="ID")
    command("prune", "remove old runs and logs now")
    return parser


STATES = [state.value for state in TaskState]
STATUSES = [status.value for status in RunStatus]


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


def _see_to_the_streams() -> None:
    """Cron jobs may start with closed streams: what is opened first would become "stdout" and be printed into."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, "r" if number == 0 else "w", encoding="utf-8")
            if nowhere.fileno() != number:
                os.dup2(nowhere.fileno(), number)
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # cron's locale may know no more than ASCII


def main(argv: list[str] | None = None) -> int:
    _see_to_the_streams()
    arguments = build_parser().parse_args(argv)
    try:
        code = int(dispatch(arguments))
        sys.stdout.flush()
        return code
    except TickdownError as error:
        print(f"scheduler.py: {error}", file=sys.stderr)
        if arguments.command == "tick" and not arguments.dry_run:
            from lib.crash import report_stopped

            report_stopped(getattr(arguments, "found_workspace", None), error)
        return int(error.code)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left (`… | head`); don't let Python complain while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
    except Exception as error:
        from lib.crash import report_crash

        return int(report_crash(arguments, error))


def dispatch(arguments: argparse.Namespace) -> Exit:
    from lib.commands import act, check, look
    from lib.views import Screen
    from lib.workspace import find_workspace

    workspace = find_workspace(getattr(arguments, "workspace", None), os.environ, Path(__file__).parent)
    arguments.found_workspace = workspace
    app, problems = _settled(workspace, arguments.command)
    screen = Screen(app.redactor, getattr(arguments, "json", False))
    match arguments.command:
        case "tick":
            return act.tick(app, screen, arguments.dry_run, arguments.every, arguments.detach)
        case "run":
            return act.run(app, screen, arguments.id, arguments.heal, arguments.key, arguments.dry_run)
        case "list":
            return look.list_tasks(app, screen, arguments.tag, arguments.state)
        case "history":
            return look.history(app, screen, arguments.id, arguments.limit, arguments.status, arguments.since)
        case "show":
            return look.show(app, screen, arguments.id)
        case "logs":
            return look.logs(app, screen, arguments.name, arguments.follow, arguments.raw)
        case "validate":
            return check.validate(app, screen, arguments.paths, problems)
        case "doctor":
            return check.doctor(app, screen, problems)
        case "pause":
            return act.pause(app, screen, arguments.id, arguments.for_, arguments.until)
        case "resume":
            return act.resume(app, screen, arguments.id)
        case "stop":
            return act.stop(app, screen, arguments.id)
        case "prune":
            return act.prune(app, screen)
    raise AssertionError(arguments.command)


def _settled(workspace: Workspace, command: str) -> tuple[App, list[str]]:
    """With settings that are wrong nothing is run, but looking, checking and stopping must still work."""
    from lib.app import app_with, make_app
    from lib.config import SettingsError

    try:
        return make_app(workspace), []
    except SettingsError as error:
        if command not in ("list", "history", "show", "logs", "stop", "validate", "doctor"):
            raise
        if command not in ("validate", "doctor"):
            print(f"scheduler.py: {error}", file=sys.stderr)
        return app_with(workspace, error.partial), str(error).splitlines()


if __name__ == "__main__":
    sys.exit(main())
