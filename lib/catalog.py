"""The task files of a workspace: found, checked as hostile input, parsed, and compared for duplicates."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from lib.chains import chain_problems
from lib.errors import Exit, TickdownError
from lib.near import nearest
from lib.schedule import OneShot
from lib.task import Surroundings, Task, parse_task
from lib.workspace import UnsafeFile, Workspace, read_checked
from lib.yamltree import Problem

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TaskFile:
    """One file: the task in it, or why it is rejected."""

    path: str
    task: Task | None
    problems: tuple[Problem, ...]
    task_id: str | None = None
    digest: str = ""

    @property
    def errors(self) -> list[str]:
        return [problem.at(self.path) for problem in self.problems if not problem.warning]

    @property
    def warnings(self) -> list[str]:
        return [problem.at(self.path) for problem in self.problems if problem.warning]


@dataclass(frozen=True, slots=True)
class Catalog:
    files: tuple[TaskFile, ...]
    loaded_at: datetime = LONG_AGO

    @property
    def tasks(self) -> list[Task]:
        return [file.task for file in self.files if file.task is not None]

    @property
    def by_id(self) -> dict[str, Task]:
        """By lower-case id."""
        return {task.id.lower(): task for task in self.tasks}

    def rejects(self, path: str) -> bool:
        """Whether a file is there but can't be used: broken itself, or in a folder that can't be read."""
        return any(path == file.path or path.startswith(f"{file.path}/") for file in self.rejected)

    @property
    def rejected(self) -> list[TaskFile]:
        return [file for file in self.files if file.task is None]

    @property
    def duplicates(self) -> dict[str, list[str]]:
        """Ids that more than one file claims, also a file that is rejected for something else."""
        paths: dict[str, list[str]] = {}
        for file in self.files:
            if file.task_id:
                paths.setdefault(file.task_id.lower(), []).append(file.path)
        return {task_id: found for task_id, found in paths.items() if len(found) > 1}

    def find(self, task_id: str) -> Task:
        """The task with this id; otherwise the error that a person should see."""
        wanted = task_id.lower()
        if wanted in self.duplicates:
            raise TickdownError("\n".join(self.duplicate_lines(only=wanted)), Exit.DUPLICATE_IDS)
        for file in self.files:
            if (file.task_id or "").lower() == wanted:
                if file.task is not None:
                    return file.task
                raise TickdownError("\n".join([f"{file.path} is rejected:", *file.errors]))
        for file in self.rejected:  # broken beyond its id: the file's name tells which one is meant
            if file.task_id is None and Path(file.path).stem.lower() == wanted:
                raise TickdownError("\n".join([f"{file.path} is rejected:", *file.errors]))
        raise unknown_id(task_id, [file.task_id for file in self.files if file.task_id])

    def duplicate_lines(self, only: str | None = None) -> list[str]:
        return [
            f"duplicate id {task_id!r}: {' and '.join(paths)}"
            for task_id, paths in sorted(self.duplicates.items())
            if only is None or only == task_id
        ]


def unknown_id(task_id: str, known: Iterable[str]) -> TickdownError:
    near = nearest(task_id, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `scheduler.py list` shows all"
    return TickdownError(f"no task {task_id!r}{hint}", Exit.UNKNOWN_ID)


def load_catalog(workspace: Workspace, known: Surroundings) -> Catalog:
    now = datetime.now(UTC)
    files = [load_file(path, workspace, known) for path in find_files(workspace.tasks)]
    return Catalog(tuple(sorted(_chained(files), key=lambda file: file.path)), now)


def _chained(files: list[TaskFile]) -> list[TaskFile]:
    """Reject those whose `after` leads nowhere or in a circle."""
    tasks = [file.task for file in files if file.task is not None]
    if not any(task.after for task in tasks):
        return files
    others = [file.task_id for file in files if file.task is None and file.task_id]
    problems = chain_problems(tasks, others, all_known=all(file.task_id for file in files))
    wrong = {task.path: problems[task.id.lower()] for task in tasks if task.id.lower() in problems}
    return [_rejected(file, "after", wrong[file.path]) if file.path in wrong else file for file in files]


def _rejected(file: TaskFile, field: str, message: str) -> TaskFile:
    assert file.task is not None
    problem = Problem(file.task.lines.get(field, 1), field, message)
    return replace(file, task=None, problems=(*file.problems, problem))


def past_dates(catalog: Catalog, now: datetime) -> bool:
    return any(_date_passed(task, now) for task in catalog.tasks)


def without_past_dates(catalog: Catalog, met: Mapping[str, tuple[str, str]], now: datetime) -> Catalog:
    """Reject `on DATE` that had passed when it was first seen. `met` are the schedules and zones seen enabled before, by
    lower-case id: their date was yet to come then, and what was missed is caught up as the task says."""
    files = []
    for file in catalog.files:
        task = file.task
        known = met.get(task.id.lower()) if task is not None else None
        if task is not None and _date_passed(task, now) and known != (task.schedule.text, task.timezone):
            message = f"{task.schedule.text!r} is in the past; give a date to come, or `enabled: false`"
            file = _rejected(file, "schedule", message)
        files.append(file)
    return replace(catalog, files=tuple(files))


def _date_passed(task: Task, now: datetime) -> bool:
    schedule = task.schedule
    dated = task.enabled and isinstance(schedule, OneShot) and schedule.once.day is not None
    return dated and isinstance(schedule, OneShot) and schedule.moment(now) <= now


def find_files(folder: Path, *, is_top: bool = True) -> Iterator[Path]:
    """Every `*.md` below a folder, except README.md and names that begin with `.` or `_`. Linked folders are not
    entered: they could lead out of the workspace, or in a circle. A subfolder that can't be read comes as itself, to be
    rejected; what disappears meanwhile is not there."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        if is_top:
            raise TickdownError(f"{folder}: no such folder") from None
        return
    except OSError as error:
        if is_top:
            raise TickdownError(f"{folder}: can't be read: {error.strerror}") from None
        yield folder
        return
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from find_files(Path(entry.path), is_top=False)
        elif is_task_file(entry.name):
            yield Path(entry.path)


def is_task_file(name: str) -> bool:
    return name.endswith(".md") and name != "README.md" and not name.startswith((".", "_"))


def load_file(path: Path, workspace: Workspace, known: Surroundings) -> TaskFile:
    shown = workspace.relative(path).encode("utf-8", "backslashreplace").decode()
    content, message = read_hostile(path, workspace.root)
    if not message and shown != workspace.relative(path):
        message = "its name is not valid UTF-8; rename it"
    if message:
        return TaskFile(shown, None, (Problem(1, "", message),), digest=_digest(message.encode()))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = Problem(line, "", f"not valid UTF-8 (byte {error.start})")
        return TaskFile(shown, None, (problem,), digest=_digest(content))
    task, problems, task_id = parse_task(text, shown, known)
    return TaskFile(shown, task, tuple(problems), task_id, _digest(content))


def read_hostile(path: Path, root: Path) -> tuple[bytes, str]:
    """The bytes of a task file, or the reason why it is not even read."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return b"", f"can't be read: {getattr(error, 'strerror', None) or error}"
    if path.is_relative_to(root) and not real.is_relative_to(root):
        return b"", "is, or lies behind, a link that leaves the workspace; put the file itself here"
    try:
        return read_checked(real, {0, os.geteuid(), root.stat().st_uid}), ""
    except UnsafeFile as error:
        return b"", str(error)
    except OSError as error:
        return b"", f"can't be read: {error.strerror}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
