"""From a task to the command that runs it: arguments, folder, environment; and how agents are kept apart from the
interactive sessions of whoever set them up."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from tickdown.agents.calls import (
    CONFIG_DIR,
    SESSION_PREFIXES,
    SESSION_VARIABLES,
    Agent,
    Format,
    Purpose,
    belongs_to_a_session,
    call,
)
from tickdown.attempt.http_call import REQUEST_VARIABLE
from tickdown.base.errors import explained, remedy
from tickdown.base.model import Modification
from tickdown.base.program import EXECUTABLE
from tickdown.base.records import record
from tickdown.config import Settings
from tickdown.processes.process import Child
from tickdown.tasks.task import Request, Task
from tickdown.workspace.folders import PRIVATE_DIR, Workspace, fill, make_private_dir, replace_file

INTERPRETERS = {".py": sys.executable, ".sh": "bash", ".js": "node"}


class CannotRun(Exception):
    """The command can't even be started; the exit code is what a shell would have returned."""

    def __init__(self, message: str, exit_code: int = 1, *, lacking: bool = False) -> None:
        """`lacking`: the machine lacks something for a while, and the task can't help it."""
        super().__init__(message)
        self.exit_code, self.lacking = exit_code, lacking


@record(frozen=True)
class Command:
    argv: list[str]
    cwd: Path
    environment: dict[str, str]
    stdin: bytes | None = None
    format: Format | None = None  # of an agent's result


@record(frozen=True)
class Place:
    """Where commands run and what they may refer to."""

    workspace: Workspace
    settings: Settings

    @property
    def environment(self) -> Mapping[str, str]:
        return self.settings.environment


def prepare(
    task: Task,
    place: Place,
    run: Mapping[str, str],
    change: Modification | None = None,
    budget_usd: float | None = None,
) -> Command:
    """`run` holds the TICKDOWN_… variables of this run; they and the task's own `env` win over what is inherited."""
    own = _own_environment(task, place.environment)
    own.update(change.env if change is not None else {})
    cwd = working_folder(task, place.workspace, place.settings.config.cwd_policies)
    if task.agent is not None:
        agent = place.settings.config.agents[task.agent]
        words = task.prompt if change is None or not change.prompt else f"{task.prompt}\n\n{change.prompt}"
        return agent_command(agent, Purpose.WORK, words, place, {**own, **run}, cwd, budget_usd)
    # As under cron: without it bash searches the system's users for whose it is, in every task.
    filled = {"SHELL": _shell(), **place.environment, **own, **run}
    if task.request is not None:
        filled[REQUEST_VARIABLE] = json.dumps(_filled_request(task.request, filled))
        return Command([sys.executable, "-P", str(Path(__file__).with_name("http_call.py"))], cwd, filled)
    _guard_claude(filled, own, place)
    argv = _by_shell(task.command) if task.run_as == "shell" else _script(task.command, cwd)
    return Command(argv, cwd, filled)


def _own_environment(task: Task, environment: Mapping[str, str]) -> dict[str, str]:
    own = {}
    for name, text in task.env.items():
        own[name], missing = fill(text, environment)
        if missing:
            raise CannotRun(f"env: {name}: ${{{missing[0]}}} is set neither in the environment nor in .env")
    return own


# --- agents ----------------------------------------------------------------------------------------------------


def agent_command(
    agent: Agent,
    purpose: Purpose,
    prompt: str,
    place: Place,
    own: Mapping[str, str],
    cwd: Path,
    budget_usd: float | None = None,
    folders: Sequence[str] = (),
) -> Command:
    """A call of an agent, out of reach of any session that is going on. `own` are the variables meant for it."""
    program = find_agent(agent, place, own.get("PATH"))
    if program is None:
        raise CannotRun(f"{agent.argv[0]}: command not found", 127)
    token = place.settings.config.notify.token
    kept = {
        name: value
        for name, value in place.environment.items()
        if not belongs_to_a_session(name) and not (token and token == value)
    }
    environment = {**kept, **own}
    _guard_claude(environment, own, place)
    if agent.config_dir and CONFIG_DIR not in own:
        environment[CONFIG_DIR] = _expanded(agent.config_dir, place)
    argv = [program, *call(agent, purpose, budget_usd, folders)[1:]]
    return Command(argv, cwd, environment, prompt.encode("utf-8", "replace"), agent.format)


def find_agent(agent: Agent, place: Place, path: str | None = None) -> str | None:
    """The program of an agent; never our own stand-in, which leads to it."""
    shims = str(place.workspace.shims)
    searched = path or place.environment.get("PATH") or os.defpath
    program = os.path.expanduser(agent.argv[0])
    if "/" in program:
        program = str(place.workspace.root / program)
    return _which(program, os.pathsep.join(part for part in searched.split(os.pathsep) if part != shims))


@cache
def _which(program: str, path: str) -> str | None:
    """Once per process: every task asks. Like `shutil.which`, but that is slow to import."""
    folders = [""] if "/" in program else path.split(os.pathsep)
    places = (os.path.join(folder, program) for folder in folders)
    return next((place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), None)


def _guard_claude(environment: dict[str, str], own: Mapping[str, str], place: Place) -> None:
    """Whatever the command starts, `sh -c` and scripts included: a `claude` in it is one without the interactive set-up."""
    settings = place.settings
    configured = _expanded(settings.config.agents["claude"].config_dir, place) or settings.env_file.get(CONFIG_DIR, "")
    if CONFIG_DIR not in own:
        environment.pop(CONFIG_DIR, None)
        if configured:
            environment[CONFIG_DIR] = configured
    shims = place.workspace.shims
    _write_shim(shims, configured)
    environment["PATH"] = f"{shims}{os.pathsep}{environment.get('PATH') or os.defpath}"


def _expanded(folder: str, place: Place) -> str:
    """Relative to the workspace; `~` is the home of the environment that agents get."""
    if not folder:
        return ""
    home = place.environment.get("HOME")
    if home and (folder == "~" or folder.startswith("~/")):
        folder = home + folder[1:]
    return str(place.workspace.root / os.path.expanduser(folder))


@cache
def _write_shim(folder: Path, config_dir: str) -> None:
    text = _SHIM.format(
        names=" ".join(SESSION_VARIABLES),
        prefixes="|".join(SESSION_PREFIXES),
        config_dir=shlex.quote(config_dir),
        variable=CONFIG_DIR,
    )
    path = folder / "claude"
    try:
        if path.read_text(encoding="utf-8") == text and os.access(path, os.X_OK):
            return
    except (OSError, ValueError):
        pass  # not there yet, or spoilt
    try:
        make_private_dir(folder)
        replace_file(path, text.encode(), PRIVATE_DIR)
    except OSError as error:
        raise CannotRun(f"{path}: can't be written: {explained(error)}", lacking=remedy(error) is not None) from None


# `PATH` is searched for the next `claude` behind this one. Options come first: they are accepted before a subcommand too.
_SHIM = """\
#!/bin/sh
# Written by Tickdown, first on the PATH of tasks: a `claude` that a task calls has nothing of an interactive session.
unset {names}
for name in $(env | sed -nE 's/^(({prefixes})[A-Za-z0-9_]*)=.*/\\1/p'); do unset "$name"; done
if [ -z "${{{variable}+set}}" ] && [ -n {config_dir} ]; then export {variable}={config_dir}; fi
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P)
left=$PATH:
while [ -n "$left" ]; do
    folder=${{left%%:*}}
    left=${{left#*:}}
    case $folder in */state/shims) continue ;; esac
    [ -f "${{folder:-.}}/claude" ] && [ -x "${{folder:-.}}/claude" ] || continue
    [ "$(CDPATH= cd -- "${{folder:-.}}" 2>/dev/null && pwd -P)" = "$here" ] && continue
    for word in "$@"; do
        [ "$word" = --strict-mcp-config ] && exec "${{folder:-.}}/claude" "$@"
    done
    exec "${{folder:-.}}/claude" --strict-mcp-config "$@"
done
echo "claude: command not found" >&2
exit 127
"""


def _filled_request(request: Request, environment: Mapping[str, str]) -> dict[str, object]:
    def filled(field: str, text: str) -> str:
        value, missing = fill(text, environment)
        if missing:
            raise CannotRun(f"{field}: ${{{missing[0]}}} is set neither in the environment nor in .env")
        return value

    return {
        "method": request.method,
        "url": filled("url", request.url),
        "headers": {name: filled("headers", value) for name, value in request.headers.items()},
        "body": filled("body", request.body),
        "expect_status": request.expect_status,
    }


def run_variables(
    task: Task, place: Place, run_id: str, attempt: int, trace_id: str, scheduled_for: datetime
) -> dict[str, str]:
    """What a command may want to know of its run."""
    return {
        "TICKDOWN_TASK_ID": task.id,
        "TICKDOWN_RUN_ID": run_id,
        "TICKDOWN_ATTEMPT": str(attempt),
        "TICKDOWN_TRACE_ID": trace_id,
        "TICKDOWN_SCHEDULED_FOR": scheduled_for.astimezone(task.zone).isoformat(timespec="seconds"),
        "TICKDOWN_NOTIFY_DEST": task.notify_to or place.settings.config.notify.default or "",
        "TICKDOWN_WORKSPACE": str(place.workspace.root),
        # So that a task can call `"$TICKDOWN_SCHEDULER" hint …` and means the same workspace.
        "TICKDOWN_HOME": str(place.workspace.root),
        "TICKDOWN_SCHEDULER": str(EXECUTABLE),
        "TRACEPARENT": f"00-{trace_id}-{os.urandom(8).hex()}-01",
    }


def own_variables(task: Task, environment: Mapping[str, str]) -> dict[str, str]:
    """The task's `env`, filled; what is not set stays empty."""
    return {name: fill(text, environment)[0] for name, text in task.env.items()}


def working_folder(task: Task, workspace: Workspace, cwd_policies: Mapping[str, str]) -> Path:
    """The folder to run in; CannotRun if the one that the task names is none."""
    text = cwd_policies[task.cwd_policy] if task.cwd_policy else task.cwd
    if not text:
        return workspace.root
    folder = workspace.root / os.path.expanduser(text)
    if not os.path.isdir(folder):
        raise CannotRun(f"cwd: {folder} is not a folder")
    return folder


def _shell() -> str:
    return _which("bash", os.environ.get("PATH", os.defpath)) or "/bin/sh"


def _by_shell(command: str) -> list[str]:
    shell = _shell()
    return [shell, "-c", command] if shell == "/bin/sh" else [shell, "--noprofile", "--norc", "-c", command]


def _script(command: str, cwd: Path) -> list[str]:
    words = shlex.split(command)
    program = Path(os.path.expanduser(words[0]))
    interpreter = INTERPRETERS.get(program.suffix)
    if interpreter and os.path.isfile(cwd / program):
        return [interpreter, str(cwd / program), *words[1:]]
    if "/" in words[0] and not program.is_absolute():
        return [str(cwd / program), *words[1:]]
    return [str(program), *words[1:]] if words[0].startswith("~") else words


def launch(command: Command) -> Child:
    try:
        return Child(command.argv, command.cwd, command.environment, command.stdin, apart=command.format is not None)
    except OSError as error:
        raise _why_not_started(error, command.argv) from None
    except ValueError as error:  # a NUL in an argument or a variable
        raise CannotRun(f"can't be started: {error}") from None


def _why_not_started(error: OSError, argv: list[str]) -> CannotRun:
    if error.filename is not None and os.fspath(error.filename) != argv[0]:  # the folder could not be entered
        return CannotRun(f"cwd: {error.filename}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return CannotRun(f"{argv[0]}: command not found", 127)
    if isinstance(error, PermissionError):
        return CannotRun(f"{argv[0]}: not executable", 126)
    return CannotRun(f"{argv[0]}: {explained(error)}", lacking=remedy(error) is not None)
