"""The task files of a workspace: found, checked as hostile input, parsed, and compared for duplicates."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lib.errors import Exit, TickdownError
from lib.near import nearest
from lib.task import Surroundings, Task, parse_task
from lib.workspace import Workspace
from lib.yamltree import Problem

MAX_BYTES = 256 * 1024


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

    @property
    def tasks(self) -> list[Task]:
        return [file.task for file in self.files if file.task is not None]

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
    files = [load_file(path, workspace, known) for path in find_files(workspace.tasks)]
    return Catalog(tuple(sorted(files, key=lambda file: file.path)))


def find_files(folder: Path) -> Iterator[Path]:
    """Every `*.md` below a folder, except README.md and names that begin with `.` or `_`. Linked folders are not
    entered: they could lead out of the workspace, or in a circle."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise TickdownError(f"{folder}: can't be read: {error.strerror}") from None
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from find_files(Path(entry.path))
        elif entry.name.endswith(".md") and entry.name != "README.md":
            yield Path(entry.path)


def load_file(path: Path, workspace: Workspace, known: Surroundings) -> TaskFile:
    shown = workspace.relative(path)
    content, message = read_hostile(path, workspace.root)
    if message:
        return TaskFile(shown, None, (Problem(1, "", message),), digest=_digest(message.encode()))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return TaskFile(
            shown, None, (Problem(line, "", f"not valid UTF-8 (byte {error.start})"),), digest=_digest(content)
        )
    task, problems, task_id = parse_task(text, shown, known)
    return TaskFile(shown, task, tuple(problems), task_id, _digest(content))


def read_hostile(path: Path, root: Path) -> tuple[bytes, str]:
    """The bytes of a file, or the reason why it is not even read."""
    try:
        real = path.resolve(strict=True)
        if path.is_symlink() and not real.is_relative_to(root):
            return b"", "is a link that leaves the workspace; put the file itself here"
        # Opened once and judged by its descriptor; without O_NONBLOCK a named pipe would wait for a writer.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                return b"", "is not a regular file"
            if info.st_mode & stat.S_IWOTH:
                return b"", "is writable by everyone; run chmod o-w on it"
            if info.st_uid not in (0, os.geteuid(), root.stat().st_uid):
                return (
                    b"",
                    f"belongs to another user (uid {info.st_uid}); task files are code, chown it to the workspace's owner",
                )
            if info.st_size > MAX_BYTES:
                return b"", f"is {info.st_size} bytes; at most {MAX_BYTES} (256 KiB) are accepted"
            content = file.read(MAX_BYTES + 1)
    except (OSError, RuntimeError) as error:
        return b"", f"can't be read: {getattr(error, 'strerror', None) or error}"
    if len(content) > MAX_BYTES:
        return b"", f"is over {MAX_BYTES} bytes (256 KiB)"
    if b"\0" in content:
        return b"", "contains a NUL byte"
    return content, ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
