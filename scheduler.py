#!/usr/bin/env python3
"""Tickdown: a scheduler whose tasks are Markdown files. This is its command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

from lib import VERSION
from lib.errors import Exit, TickdownError


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
    tick.add_argument("--every", metavar="D", help="repeat inside the minute, as in 10s")
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
    history.add_argument("--limit", metavar="N", type=_positive, default=20, help="how many (default 20)")
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


STATES = ("active", "running", "paused", "suspended", "disabled", "completed", "failed", "rejected")
STATUSES = ("running", "success", "failed", "timeout", "killed", "orphaned", "cancelled", "skipped", "missed")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # cron's locale may know no more than ASCII
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
    from lib.app import make_app
    from lib.commands import act, check, look
    from lib.redact import Redactor
    from lib.views import Screen
    from lib.workspace import find_workspace

    workspace = find_workspace(getattr(arguments, "workspace", None), os.environ, Path(__file__).parent)
    arguments.found_workspace = workspace
    as_json = getattr(arguments, "json", False)
    if arguments.command == "validate":
        broken = check.validate_config(workspace, Screen(Redactor(), as_json))
        if broken is not None:
            return broken
    app = make_app(workspace)
    screen = Screen(app.redactor, as_json)
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
            return check.validate(app, screen, arguments.paths)
        case "doctor":
            return check.doctor(app, screen)
        case "pause":
            return act.pause(app, screen, arguments.id, arguments.for_, arguments.until)
        case "resume":
            return act.resume(app, screen, arguments.id)
        case "stop":
            return act.stop(app, screen, arguments.id)
        case "prune":
            return act.prune(app, screen)
    raise AssertionError(arguments.command)


if __name__ == "__main__":
    sys.exit(main())
