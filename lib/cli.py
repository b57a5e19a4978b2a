"""The command line: arguments, one dispatch, the error boundary."""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lib
from lib import VERSION
from lib.errors import Exit, TickdownError
from lib.model import RunStatus, TaskState
from lib.times import parse_duration

if TYPE_CHECKING:
    from lib.app import App
    from lib.workspace import Workspace


class _Unasked:
    """Stands for the arguments of commands that nobody has asked for."""

    def add_argument(self, *names: object, **options: object) -> None: ...

    def add_mutually_exclusive_group(self, **options: object) -> _Unasked:
        return self


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """For all commands; or quicker, for one."""
    common = argparse.ArgumentParser(add_help=False)
    # SUPPRESS: a default of the subcommand would overwrite what was given before it.
    common.add_argument(
        "--workspace",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="the workspace (default: TICKDOWN_HOME, else this folder)",
    )
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document on stdout")
    parser = argparse.ArgumentParser(prog="scheduler.py", description=lib.__doc__, parents=[common])
    parser.add_argument("--version", action="version", version=f"tickdown {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> Any:
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
    what = add.add_mutually_exclusive_group(required=True)
    what.add_argument("--command", dest="shell_command", metavar="C", help="what to run")
    what.add_argument(
        "--as", dest="agent", metavar="AGENT", help="let an agent do it: claude, codex, gemini or your own"
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
    return parser


PROJECT = Path(os.path.abspath(__file__)).parent.parent
# What is installed by `make run`; see requirements.txt.
PACKAGES = ("croniter", "filelock", "frontmatter", "pytz", "requests", "rich", "yaml")
# What changes nothing.
LOOKING = ("list", "history", "show", "why", "next", "simulate", "logs", "validate", "doctor", "costs", "comments")
COMMANDS = (
    *LOOKING, "tick", "run", "pause", "resume", "retry", "cancel", "add", "hint", "stop", "heal", "comment", "tickets", "prune",
)  # fmt: skip
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


def _keep_to_ourselves() -> None:
    """Descriptors that we were started with (the lock of `flock`, say) are not for tasks, nor for what they leave running."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                pass  # the one that lists them


def _with_our_own_python(error: ModuleNotFoundError) -> int:
    """Started with a Python that lacks the packages, as `./scheduler.py` in a task is: go on with the one in .venv."""
    folder = PROJECT
    python = folder / ".venv" / "bin" / "python"
    if python.exists() and Path(sys.prefix).resolve() != (folder / ".venv").resolve():
        os.execv(python, [str(python), *sys.argv])
    print(f"scheduler.py: {error}; `make run` in {folder} installs what is needed", file=sys.stderr)
    return int(Exit.FAILED)


def main(argv: list[str] | None = None) -> int:
    # Commands are short and make many objects that stay: looking for cycles among them again and again finds nothing.
    gc.set_threshold(100_000, 50, 50)
    _see_to_the_streams()
    _keep_to_ourselves()
    arguments = _parsed(sys.argv[1:] if argv is None else argv)
    try:
        if find_spec("yaml") is None:  # asked before anything is done: what is begun must not be begun again
            raise ModuleNotFoundError("No module named 'yaml'", name="yaml")
        code = int(dispatch(arguments))
        sys.stdout.flush()
        return code
    except TickdownError as error:
        print(f"scheduler.py: {error}", file=sys.stderr)
        if arguments.command == "tick" and not arguments.dry_run:
            from lib.crash import report_stopped

            report_stopped(getattr(arguments, "found_workspace", None), error)
        return int(error.code)
    except UnicodeEncodeError:
        if "".join(sys.argv).encode("utf-8", "replace").decode() == "".join(sys.argv):
            raise
        print("scheduler.py: an argument is not valid UTF-8", file=sys.stderr)
        return int(Exit.USAGE)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        return _with_our_own_python(error)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left (`… | head`); don't let Python complain while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
    except Exception as error:
        from lib.crash import report_crash

        return int(report_crash(arguments, error))


def _parsed(argv: list[str]) -> argparse.Namespace:
    """Most of the time the command is plain to see, and the parsers of the others need not be made."""
    words = argv[2:] if argv[:1] == ["--workspace"] else argv
    if words and words[0] in COMMANDS and not {"-h", "--help"} & set(argv):
        return build_parser(words[0]).parse_args(argv)
    return build_parser().parse_args(argv)


def dispatch(arguments: argparse.Namespace) -> Exit:
    from lib import commands as do
    from lib.views import Screen
    from lib.workspace import find_workspace

    workspace = find_workspace(getattr(arguments, "workspace", None), os.environ, PROJECT)
    arguments.found_workspace = workspace
    if os.environ.get("TICKDOWN_HEALING") and arguments.command not in LOOKING:
        raise TickdownError(f"{arguments.command} is not for a healer; edit the files you were given", Exit.USAGE)
    app, problems = _settled(workspace, arguments.command)
    screen = Screen(app.redactor, getattr(arguments, "json", False))
    match arguments.command:
        case "tick":
            return do.act.tick(app, screen, arguments.dry_run, arguments.every, arguments.detach)
        case "run":
            return do.act.run(app, screen, arguments.id, arguments.heal, arguments.key, arguments.dry_run)
        case "list":
            return do.look.list_tasks(app, screen, arguments.tag, arguments.state)
        case "history":
            return do.look.history(app, screen, arguments.id, arguments.limit, arguments.status, arguments.since)
        case "show":
            return do.look.show(app, screen, arguments.id)
        case "why":
            return do.why.why(app, screen, arguments.id)
        case "next":
            return do.ahead.next_runs(app, screen, arguments.id, arguments.count)
        case "simulate":
            return do.ahead.simulation(app, screen, arguments.from_, arguments.to)
        case "logs":
            return do.look.logs(app, screen, arguments.name, arguments.follow, arguments.raw)
        case "validate":
            return do.check.validate(app, screen, arguments.paths, problems)
        case "doctor":
            return do.check.doctor(app, screen, problems)
        case "pause":
            return do.steer.pause(app, screen, arguments.id, arguments.for_, arguments.until)
        case "resume":
            return do.steer.resume(app, screen, arguments.id)
        case "cancel":
            return do.steer.cancel(app, screen, arguments.id)
        case "add":
            what = (arguments.shell_command, arguments.agent, arguments.url)
            return do.add.add(app, screen, arguments.sentence, *what, arguments.id)
        case "hint":
            when = (arguments.every, arguments.at, arguments.for_)
            return do.steer.hint(app, screen, arguments.id, *when, arguments.reason, arguments.clear)
        case "retry":
            return do.act.retry(app, screen, arguments.id)
        case "heal":
            return do.heal.heal(app, screen, arguments.id, arguments.dry_run, arguments.diff, arguments.undo)
        case "costs":
            return do.look.show_costs(app, screen, arguments.since)
        case "comment":
            return do.talk.comment(app, screen, arguments.id, arguments.text)
        case "comments":
            return do.talk.list_comments(app, screen, arguments.id, arguments.limit)
        case "tickets":
            closing = (arguments.close, arguments.note)
            return do.talk.tickets(app, screen, arguments.id, arguments.closed_too, *closing)
        case "stop":
            return do.act.stop(app, screen, arguments.id)
        case "prune":
            return do.act.prune(app, screen)
    raise AssertionError(arguments.command)


def _settled(workspace: Workspace, command: str) -> tuple[App, list[str]]:
    """With settings that are wrong nothing is run, but looking, checking and stopping must still work."""
    from lib.app import app_with, make_app
    from lib.config import SettingsError

    try:
        return make_app(workspace), []
    except SettingsError as error:
        if command not in (*LOOKING, "stop"):
            raise
        if command not in ("validate", "doctor"):
            print(f"scheduler.py: {error}", file=sys.stderr)
        return app_with(workspace, error.partial), str(error).splitlines()
