"""The task files of a workspace: found, checked as hostile input, parsed, and compared for duplicates."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from tickdown.base.errors import Exit, TickdownError, explained
from tickdown.base.invocation import command_line
from tickdown.base.records import record, replace
from tickdown.base.redact import telling_values
from tickdown.base.suggestions import nearest
from tickdown.base.terminal import one_line
from tickdown.processes.process import in_two_processes
from tickdown.schedule.chains import chain_problems
from tickdown.schedule.schedule import OneShot
from tickdown.tasks.remembered import problems_from_text, problems_to_text, task_from_text, task_to_text
from tickdown.tasks.task import Surroundings, Task, parse_task
from tickdown.tasks.yaml_tree import Problem
from tickdown.workspace.folders import IsALink, UnsafeFile, Workspace, line_of, may_pass, read_checked, variables_in
from tickdown.workspace.scan import UNTRUSTED, is_unusable, scan
from tickdown.workspace.shortcut import is_complete

_LEAVES = "is, or lies behind, a link that leaves the workspace; put the file itself here"
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@record(slots=True)
class TaskFile:
    """One file: the task in it, or why it is rejected. A task that the store has kept is read from there when it is asked
    for."""

    path: str
    stamp: str = UNTRUSTED
    digest: str = ""
    task_id: str | None = None
    problems: tuple[Problem, ...] = ()
    parsed: Task | None = None
    stored: str | None = None
    chained: bool = False  # it comes after others
    dated: bool = False  # it is to run on one given day

    @property
    def task(self) -> Task | None:
        if self.parsed is None and self.stored is not None:
            self.parsed = task_from_text(self.stored)
        return self.parsed

    @property
    def is_valid(self) -> bool:
        return self.parsed is not None or self.stored is not None

    def with_problems(self, field_name: str, messages: Iterable[tuple[str, bool]]) -> TaskFile:
        """The same, with what only the other files or the clock show: messages, and whether each is only a warning. Rejected
        unless all are."""
        assert self.task is not None
        line = self.task.lines.get(field_name, 1)
        found = [Problem(line, field_name, message, warning=warning) for message, warning in messages]
        both = (*self.problems, *found)
        if all(problem.warning for problem in found):
            return replace(self, problems=both)
        return replace(self, parsed=None, stored=None, problems=both)

    @property
    def errors(self) -> list[str]:
        return [problem.at(self.path) for problem in self.problems if not problem.warning]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.warning]


@record(frozen=True)
class Catalog:
    files: tuple[TaskFile, ...]
    loaded_at: datetime = LONG_AGO
    read: tuple[
        TaskFile, ...
    ] = ()  # those that the store had not known as they are, before they were compared with others
    removed: tuple[str, ...] = ()  # paths that the store still knows
    vanished: bool = False  # something that had been found was gone when it was to be read
    made_from: str = ""  # the fingerprint of all that it was made from
    remembered: str = ""  # the one that the store had when it was made

    @property
    def is_settled(self) -> bool:
        """Whether every file can be trusted to have another stamp once it is changed again."""
        return is_complete(self.made_from)

    @property
    def may_read_otherwise(self) -> bool:
        """Whether a file could be read otherwise the next moment, though nobody has touched it."""
        return self.vanished or any(file.stamp == UNTRUSTED for file in self.read)

    @property
    def tasks(self) -> list[Task]:
        return [file.task for file in self.files if file.task is not None]

    def literal_secrets(self) -> set[str]:
        """What stands in the `env` of tasks under a name that says that it is a secret; not what is taken from elsewhere:
        `${HOME}` is none because of one task's name for it. Those without an `env` are not read for it."""
        files = (file for file in self.files if file.parsed is not None or '"env"' in (file.stored or ""))
        values = {value for file in files if file.task is not None for value in telling_values(file.task.env)}
        return {value for value in values if not variables_in(value)}

    @cached_property
    def _by_id(self) -> dict[str, TaskFile]:
        return {file.task_id.lower(): file for file in self.files if file.task_id and file.is_valid}

    def get(self, task_id: str) -> Task | None:
        """The valid task of this id, in whatever case."""
        file = self._by_id.get(task_id.lower())
        return file.task if file is not None else None

    def __contains__(self, task_id: str) -> bool:
        return task_id.lower() in self._by_id

    def followers(self, task_id: str) -> list[Task]:
        """Those that come after a task."""
        wanted = task_id.lower()
        chained = (file.task for file in self._chained_files)
        return [task for task in chained if task is not None and wanted in map(str.lower, task.after)]

    @cached_property
    def _chained_files(self) -> list[TaskFile]:
        return [file for file in self.files if file.chained]

    def rejects(self, path: str) -> bool:
        """Whether a file is there but can't be used: broken itself, or in a folder that can't be read."""
        return any(path == file.path or path.startswith(f"{file.path}/") for file in self.rejected)

    @cached_property
    def rejected(self) -> list[TaskFile]:
        return [file for file in self.files if not file.is_valid]

    @property
    def nameless(self) -> int:
        """How many files are so broken that nobody can tell whose they are."""
        return sum(file.task_id is None for file in self.rejected)

    @cached_property
    def duplicates(self) -> dict[str, list[str]]:
        """Ids that more than one file claims, also a file that is rejected for something else."""
        ids = [file.task_id.lower() for file in self.files if file.task_id]
        if len(set(ids)) == len(ids):
            return {}
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
                raise TickdownError("\n".join([f"{one_line(file.path)} is rejected:", *file.errors]))
        for file in self.rejected:  # broken beyond its id: the file's name tells which one is meant
            if file.task_id is None and Path(file.path).stem.lower() == wanted:
                raise TickdownError("\n".join([f"{one_line(file.path)} is rejected:", *file.errors]))
        raise unknown_id(task_id, [file.task_id for file in self.files if file.task_id], self.nameless)

    def duplicate_lines(self, only: str | None = None) -> list[str]:
        return [
            f"duplicate id {task_id!r}: {' and '.join(map(one_line, paths))}"
            for task_id, paths in sorted(self.duplicates.items())
            if only is None or only == task_id
        ]


def unknown_id(task_id: str, known: Iterable[str], nameless: int = 0) -> TickdownError:
    """`nameless` is the number of files whose ids nobody can tell."""
    near = nearest(task_id, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; `{command_line('list')}` shows all"
    return TickdownError(f"no task {task_id!r}{hint}{_maybe_rejected(nameless)}", Exit.UNKNOWN_ID)


def _maybe_rejected(nameless: int) -> str:
    if not nameless:
        return ""
    files = (
        "1 file is rejected; it may be that one"
        if nameless == 1
        else f"{nameless} files are rejected; it may be in one of them"
    )
    return f"\n{files}: {command_line('validate')}"


def catalog_of(
    found: Iterable[tuple[str, str]],
    workspace: Workspace,
    known: Surroundings,
    kept: Mapping[str, TaskFile],
    now: datetime,
    *,
    trusted: bool = True,
) -> Catalog:
    """`kept` are the files as the store remembers them: if it can be trusted, what has the same stamp is not read again."""
    files: list[TaskFile] = []
    unknown: list[tuple[str, str]] = []
    prefix = f"{workspace.root}/"
    for path, stamp in found:
        file = kept.get(path.removeprefix(prefix))
        if file is None or not trusted or stamp == UNTRUSTED or file.stamp != stamp:
            unknown.append((path, stamp))
        else:
            files.append(file)
    tried = _read_all(unknown, FileReader(workspace, known))
    read = [file for (path, _), file in zip(unknown, tried, strict=True) if file.is_valid or os.path.lexists(path)]
    files += read
    files.sort(key=lambda file: file.path)
    removed = kept.keys() - {file.path for file in files} if len(files) - len(read) < len(kept) else ()
    return Catalog(tuple(_chained(files)), now, tuple(read), tuple(removed), vanished=len(read) < len(tried))


def _read_all(unknown: list[tuple[str, str]], reader: FileReader) -> list[TaskFile]:
    """Almost all of the work is parsing; what the store keeps of each is made on the way, where two share the work."""

    def read(found: tuple[str, str]) -> TaskFile:
        file = reader.read(*found)
        file.stored = task_to_text(file.parsed) if file.parsed is not None else None
        return file

    return in_two_processes(unknown, read, values_of, lambda values: file_from(*values))


def values_of(file: TaskFile) -> tuple[str, str, str, str | None, str | None, str, bool, bool]:
    """A file as the store keeps it, and as one process tells it to another."""
    text = file.stored
    problems = problems_to_text(file.problems)
    return file.path, file.stamp, file.digest, file.task_id, text, problems, file.chained, file.dated


def file_from(
    path: str, stamp: str, digest: str, task_id: str | None, task: str | None, problems: str, chained: int, dated: int
) -> TaskFile:
    found = problems_from_text(problems) if problems else ()
    # By position, which is quicker: every tick with something to do makes as many as there are files.
    return TaskFile(path, stamp, digest, task_id, found, None, task, bool(chained), bool(dated))


def _chained(files: list[TaskFile]) -> list[TaskFile]:
    """Reject those whose `after` leads nowhere or in a circle."""
    after = {task.id: task.after for file in files if file.chained and (task := file.task) is not None}
    if not after:
        return files
    ids = [file.task_id for file in files if file.task_id]
    usable = [file.task_id for file in files if file.task_id and file.is_valid]
    problems = chain_problems(after, usable, ids, len(files) - len(ids))
    return [
        file.with_problems("after", problems[file.task_id.lower()])
        if file.chained and file.task_id and file.is_valid and file.task_id.lower() in problems
        else file
        for file in files
    ]


def past_dates(catalog: Catalog, now: datetime) -> bool:
    return any(_date_passed(file, now) for file in catalog.files if file.dated)


def without_past_dates(catalog: Catalog, met: Mapping[str, tuple[str, str]], now: datetime) -> Catalog:
    """Reject `on DATE` that had passed when it was first seen. `met` are the schedules and zones seen enabled before, by
    lower-case id: their date was yet to come then, and what was missed is caught up as the task says."""
    files = []
    for file in catalog.files:
        task = file.task if _date_passed(file, now) else None
        if task is not None and met.get(task.id.lower()) != (task.schedule.text, task.timezone):
            message = f"{task.schedule.text!r} is in the past; give a date to come, or `enabled: false`"
            file = file.with_problems("schedule", [(message, False)])
        files.append(file)
    return replace(catalog, files=tuple(files))


def _date_passed(file: TaskFile, now: datetime) -> bool:
    if not file.dated or (task := file.task) is None:
        return False
    return isinstance(task.schedule, OneShot) and task.schedule.moment(now) <= now


def _is_dated(task: Task) -> bool:
    return task.enabled and isinstance(task.schedule, OneShot) and task.schedule.once.day is not None


def scan_tasks(workspace: Workspace) -> list[tuple[str, str]]:
    try:
        return list(scan(str(workspace.tasks)))
    except FileNotFoundError:
        raise TickdownError(f"{workspace.tasks}: no such folder") from None
    except OSError as error:
        raise TickdownError(f"{workspace.tasks}: can't be read: {explained(error)}") from None


def find_files(folder: Path) -> Iterator[Path]:
    """Every task file below a folder, in order."""
    try:
        found = sorted(path for path, _ in scan(str(folder)))
    except OSError as error:
        raise TickdownError(f"{folder}: can't be read: {explained(error)}") from None
    return map(Path, found)


def load_file(path: Path, workspace: Workspace, known: Surroundings) -> TaskFile:
    return FileReader(workspace, known).read(str(path))


def reread(task: Task, workspace: Workspace, known: Surroundings) -> Task | None:
    """The task as its file has it now; None if that is gone, broken or another's by now."""
    found = load_file(workspace.root / task.path, workspace, known).task
    return found if found is not None and found.id == task.id else None


class FileReader:
    """Reads task files of one workspace, one after another."""

    def __init__(self, workspace: Workspace, known: Surroundings) -> None:
        self._workspace, self._known = workspace, known
        self._root = str(workspace.root)
        self._real_folders: dict[str, str] = {}

    def read(self, path: str, stamp: str = UNTRUSTED) -> TaskFile:
        relative = path.removeprefix(f"{self._root}/")
        shown = relative.encode("utf-8", "backslashreplace").decode()
        if shown != relative:
            message = "its name is not valid UTF-8; rename it"
            return TaskFile(shown, stamp, _digest(message.encode()), problems=(Problem(1, "", message),))
        try:
            content = self._content(path)
        except UnsafeFile as error:
            kept = UNTRUSTED if error.may_pass and not is_unusable(stamp) else stamp
            return TaskFile(shown, kept, _digest(str(error).encode()), problems=(Problem(error.line, "", str(error)),))
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            problem = Problem(line_of(error.object, error.start), "", f"not valid UTF-8 (byte {error.start})")
            return TaskFile(shown, stamp, _digest(content), problems=(problem,))
        task, problems, task_id = parse_task(text, shown, self._known)
        return TaskFile(
            shown, stamp, _digest(content), task_id, tuple(problems), task,
            chained=task is not None and bool(task.after), dated=task is not None and _is_dated(task),
        )  # fmt: skip

    def _content(self, path: str) -> bytes:
        owners = {0, os.geteuid(), self._owner}
        inside = f"{self._root}/"
        folder, _, name = path.rpartition("/")
        try:
            if folder not in self._real_folders:
                self._real_folders[folder] = os.path.realpath(folder, strict=True)
            real = f"{self._real_folders[folder]}/{name}"
            try:
                if path.startswith(inside) and not real.startswith(inside):
                    raise UnsafeFile(_LEAVES)
                return read_checked(real, owners, self._root, follow=False)
            except IsALink:
                real = os.path.realpath(real, strict=True)
                if path.startswith(inside) and not real.startswith(inside):
                    raise UnsafeFile(_LEAVES) from None
                return read_checked(real, owners, self._root)
        except OSError as error:
            raise UnsafeFile(f"can't be read: {explained(error)}", may_pass=may_pass(error)) from None
        except RuntimeError as error:  # links in a circle
            raise UnsafeFile(f"can't be read: {error}") from None

    @cached_property
    def _owner(self) -> int:
        return os.stat(self._root).st_uid


def _digest(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()[:32]
