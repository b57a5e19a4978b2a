"""The command line: one dispatch, the error boundary."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tickdown.base.errors import Exit, Lacking, TickdownError, explained
from tickdown.base.invocation import program_name, set_name, set_workspace

if TYPE_CHECKING:
    from tickdown.context.app import App
    from tickdown.workspace.folders import Workspace
    from tickdown.workspace.shortcut import Look


# What is installed by `make run`; see requirements.txt.
PACKAGES = ("croniter", "filelock", "frontmatter", "pytz", "requests", "rich", "yaml")
# What changes nothing.
LOOKING = ("list", "history", "show", "why", "next", "simulate", "logs", "validate", "doctor", "costs", "comments")
# What may write alerts and tickets, which are read who knows where.
TOLD_ELSEWHERE = ("tick", "run", "retry")
# The database with its companions, the log, a module to be loaded, a connection with what resolves its name.
LAST_WORDS = 12
AT_LEAST = LAST_WORDS + 12  # to read the files and to look after a run


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


def _with_our_own_python(error: ModuleNotFoundError, folder: Path | None) -> int:
    """Started with a Python that lacks the packages, as `./scheduler.py` in a task is: go on with the one in .venv."""
    if folder is None:
        print(f"{program_name()}: {error}; install tickdown again, with its dependencies", file=sys.stderr)
        return int(Exit.FAILED)
    python = folder / ".venv" / "bin" / "python"
    if python.exists() and Path(sys.prefix).resolve() != (folder / ".venv").resolve():
        os.execv(python, [str(python), *sys.argv])
    print(f"{program_name()}: {error}; `make run` in {folder} installs what is needed", file=sys.stderr)
    return int(Exit.FAILED)


def main(argv: list[str] | None, look: Look | None, default_workspace: str | None) -> int:
    if argv is None:
        set_name(sys.argv[0])
    # Commands are short and make many objects that stay: looking for cycles among them again and again finds nothing.
    gc.set_threshold(100_000, 50, 50)
    try:
        return _main(argv, look, default_workspace)
    except (OSError, ImportError) as error:
        lacking = Lacking.by(error)
        if lacking is None:
            raise
        # It could not even be told in the usual way. This needs nothing that is not there already.
        try:
            print(f"{program_name()}: {lacking}", file=sys.stderr, flush=True)
        except OSError:
            pass
        return int(lacking.code)


def _main(argv: list[str] | None, look: Look | None, default_workspace: str | None) -> int:
    _see_to_the_streams()
    _keep_to_ourselves()
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    arguments.default_workspace = Path(default_workspace) if default_workspace else None
    try:
        if PathFinder.find_spec("yaml") is None:  # asked before anything is done: what is begun must not be begun again
            raise ModuleNotFoundError("No module named 'yaml'", name="yaml")
        return _all_said(int(dispatch(arguments, look)))
    except TickdownError as error:
        if arguments.command == "tick" and not arguments.dry_run:
            from tickdown.tick.crash import reason_of, report_stopped

            report_stopped(arguments, error, reason_of(error))
        else:
            _complain(error)
        return _all_said(int(error.code))
    except UnicodeEncodeError:
        if "".join(sys.argv).encode("utf-8", "replace").decode() == "".join(sys.argv):
            raise
        print(f"{program_name()}: an argument is not valid UTF-8", file=sys.stderr)
        return int(Exit.USAGE)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        return _with_our_own_python(error, arguments.default_workspace)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        from tickdown.processes.process import stop_writing_to

        stop_writing_to(sys.stdout)  # of `logs`, which has nothing else to do than to be read
        return int(Exit.OK)
    except Exception as error:
        from tickdown.tick.crash import report_crash

        return int(report_crash(arguments, error))


def _complain(error: Exception | str) -> None:
    from tickdown.base.terminal import printable  # names of files and fields may be quoted in it

    try:
        print(f"{program_name()}: {printable(str(error))}", file=sys.stderr)
    except BrokenPipeError:
        from tickdown.processes.process import stop_writing_to

        stop_writing_to(sys.stderr)


def _all_said(code: int) -> int:
    """The exit code is the same if the reader of our output has left (`… | head`)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        from tickdown.processes.process import stop_writing_to

        stop_writing_to(sys.stdout)
    return code


def _arguments(argv: list[str]) -> SimpleNamespace:
    """A plain tick is what cron calls all the time, and told from anything else at a glance: the parser, which takes longer
    to load than to use, is for the others."""
    words, where = list(argv), {}
    if "--workspace" in words[:-1]:
        at = words.index("--workspace")
        _, where["workspace"] = words.pop(at), words.pop(at)
    if words == ["tick"] and not where.get("workspace", "").startswith("-"):
        return SimpleNamespace(command="tick", dry_run=False, every=None, detach=False, **where)
    from tickdown.ui.arguments import parsed

    return parsed(argv)


def dispatch(arguments: SimpleNamespace, look: Look | None) -> Exit:
    from tickdown.workspace.folders import current_folder, find_workspace

    default = arguments.default_workspace
    workspace = find_workspace(getattr(arguments, "workspace", None), os.environ, default)
    arguments.found_workspace = workspace
    if default is None and arguments.command not in TOLD_ELSEWHERE:
        default = current_folder()  # where whoever asked will type the next command
    set_workspace(workspace.root, default, os.environ)
    with _kept_for_last_words():
        return _carry_out(arguments, workspace, look)


@contextmanager
def _kept_for_last_words() -> Iterator[None]:
    """Descriptors that are free again by the time somebody has to be told what went wrong, even if there are no others.
    Where there are too few to get anywhere, nothing is begun."""
    kept: list[int] = []
    try:
        try:
            while len(kept) < AT_LEAST:
                kept.append(os.open("/", os.O_PATH))
        except OSError as error:
            raise Lacking(f"fewer than {AT_LEAST} files can be opened: {explained(error)}") from None
        while len(kept) > LAST_WORDS:
            os.close(kept.pop())
        yield
    finally:
        for descriptor in kept:
            os.close(descriptor)


def _carry_out(arguments: SimpleNamespace, workspace: Workspace, look: Look | None) -> Exit:
    from tickdown.processes.process import descends_from_one_with
    from tickdown.ui import commands as do
    from tickdown.ui.views import Screen

    if arguments.command not in LOOKING and descends_from_one_with("TICKDOWN_HEALING"):
        raise TickdownError(f"{arguments.command} is not for a healer; edit the files you were given", Exit.USAGE)
    app, problems = _settled(workspace, arguments.command)
    screen = Screen(app.on_screen, getattr(arguments, "json", False))
    match arguments.command:
        case "tick":
            return do.tick.tick(app, screen, arguments.dry_run, arguments.every, arguments.detach, look)
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
            return do.doctor.validate(app, screen, arguments.paths, problems)
        case "doctor":
            return do.doctor.doctor(app, screen, problems)
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
    from tickdown.config import SettingsError
    from tickdown.context.app import app_with, make_app

    try:
        return make_app(workspace), []
    except SettingsError as error:
        if command not in (*LOOKING, "stop"):
            raise
        if command not in ("validate", "doctor"):
            _complain(f"{error}\nnothing runs until this is put right")
        return app_with(workspace, error.partial), str(error).splitlines()
