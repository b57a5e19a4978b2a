"""From a task to the command that runs it: arguments, folder, environment."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lib.http_call import REQUEST_VARIABLE
from lib.task import Request, Task
from lib.workspace import Workspace, fill

INTERPRETERS = {".py": sys.executable, ".sh": "bash", ".js": "node"}


class CannotRun(Exception):
    """The command can't even be started; the exit code is what a shell would have returned."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Command:
    argv: list[str]
    cwd: Path
    environment: dict[str, str]


def prepare(
    task: Task,
    workspace: Workspace,
    cwd_policies: Mapping[str, str],
    environment: Mapping[str, str],
    run: Mapping[str, str],
) -> Command:
    """`run` holds the TICKDOWN_… variables of this run; they and the task's own `env` win over what is inherited."""
    filled = {**environment}
    for name, text in task.env.items():
        value, missing = fill(text, environment)
        if missing:
            raise CannotRun(f"env: {name}: ${{{missing[0]}}} is set neither in the environment nor in .env")
        filled[name] = value
    filled.update(run)
    cwd = working_folder(task, workspace, cwd_policies)
    if task.request is not None:
        filled[REQUEST_VARIABLE] = json.dumps(_filled_request(task.request, filled))
        return Command([sys.executable, "-P", str(Path(__file__).with_name("http_call.py"))], cwd, filled)
    argv = _shell(task.command) if task.run_as == "shell" else _script(task.command, cwd)
    return Command(argv, cwd, filled)


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


def own_variables(task: Task, environment: Mapping[str, str]) -> dict[str, str]:
    """The task's `env`, filled; what is not set stays empty."""
    return {name: fill(text, environment)[0] for name, text in task.env.items()}


def working_folder(task: Task, workspace: Workspace, cwd_policies: Mapping[str, str]) -> Path:
    """The folder to run in; CannotRun if there is no such folder."""
    text = cwd_policies[task.cwd_policy] if task.cwd_policy else task.cwd or "."
    folder = workspace.root / os.path.expanduser(text)
    if not os.path.isdir(folder):
        raise CannotRun(f"cwd: {folder} is not a folder")
    return folder


def _shell(command: str) -> list[str]:
    bash = shutil.which("bash")
    return [bash, "--noprofile", "--norc", "-c", command] if bash else ["/bin/sh", "-c", command]


def _script(command: str, cwd: Path) -> list[str]:
    words = shlex.split(command)
    program = Path(os.path.expanduser(words[0]))
    interpreter = INTERPRETERS.get(program.suffix)
    if interpreter and os.path.isfile(cwd / program):
        return [interpreter, str(cwd / program), *words[1:]]
    if "/" in words[0] and not program.is_absolute():
        return [str(cwd / program), *words[1:]]
    return [str(program), *words[1:]] if words[0].startswith("~") else words


def why_not_started(error: OSError, argv: list[str]) -> CannotRun:
    if error.filename is not None and os.fspath(error.filename) != argv[0]:  # the folder could not be entered
        return CannotRun(f"cwd: {error.filename}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return CannotRun(f"{argv[0]}: command not found", 127)
    if isinstance(error, PermissionError):
        return CannotRun(f"{argv[0]}: not executable", 126)
    return CannotRun(f"{argv[0]}: {error.strerror or error}")
