"""The guard rails around a healer: which files it may edit, what everything was before, what it changed, and back again.

The agent runs with the rights of its user, so nothing here can stop it from writing. What can be done is to know every
byte from before, to find every change afterwards, and to undo what was not allowed.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from tickdown.base.program import ENVIRONMENT, EXECUTABLE, IS_CLONE, PACKAGE, ROOT
from tickdown.base.records import field, record, replace
from tickdown.tasks.task import Task
from tickdown.workspace.folders import Workspace, make_dir, make_private_dir, private_opener
from tickdown.workspace.scan import is_task_file, scan

LARGEST_KEPT = 4 * 1024 * 1024  # of one file; larger ones are only noticed when they change
MOST_KEPT = 64 * 1024 * 1024  # of all together
MOST_WATCHED = 50_000  # files and folders; what is deeper in large folders of data is not looked at
CACHE = "__pycache__"  # where Python keeps what it has compiled
MOST_STEPS = 40  # from link to link, as the kernel has it
MOST_OF_COMMAND = 64 * 1024  # characters of a command that are searched for names of scripts

OWN = "belongs to Tickdown itself"
CONFIGURATION = "is Tickdown's configuration"
ANOTHER_TASK = "is another task"

_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var",
)
_SETTINGS_FOLDERS = {".claude", ".codex", ".gemini", ".ssh", ".git", ".gnupg", ".config"}
_SETTINGS_FILES = {"CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", "GEMINI.md", ".mcp.json", ".claude.json"}
# Outside the workspace, what an agent has no business with but could be talked into changing.
_WATCHED_AT_HOME = (
    ".ssh", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".gitconfig", ".claude/settings.json", ".claude/settings.local.json",
    ".claude/CLAUDE.md", ".codex/config.toml", ".codex/AGENTS.md", ".gemini/settings.json", ".gemini/GEMINI.md",
)  # fmt: skip
# What agents write for themselves all the time, where the home folder is the workspace.
_AGENTS_AT_HOME = (".claude", ".claude.json", ".claude.json.backup", ".codex", ".gemini", ".cache", ".npm", ".local")
_BULKY = {".venv", "node_modules", CACHE}  # only noticed when it changes
_IN_CLONE = (
    "lib", "prompts", "docs", "tests", "bench", ".ci", ".venv", "scheduler.py", "Makefile",
    "pyproject.toml", "requirements.txt", "requirements-dev.txt", "crontab.example", "config.example.yaml",
)  # fmt: skip
# By name, since a workspace may be around it, or be the same folder.
_IN_ENVIRONMENT = ("bin", "include", "lib", "lib64", "share", "pyvenv.cfg")
_OF_PROGRAM = tuple(ROOT / name for name in _IN_CLONE) if IS_CLONE else (PACKAGE, EXECUTABLE)
_OF_ENVIRONMENT = () if IS_CLONE or ENVIRONMENT is None else tuple(ENVIRONMENT / name for name in _IN_ENVIRONMENT)


# --- what may be edited ----------------------------------------------------------------------------------------


@record(frozen=True)
class Surrounds:
    """Places with rules of their own: the home folder, the database, and where agents keep what they need themselves."""

    home: Path | None
    database: Path
    of_agents: tuple[Path, ...] = ()
    copies: tuple[Path, ...] = ()  # of what heals on probation have changed
    behind_links: Mapping[Path, str] = field(default_factory=dict)  # what names of Tickdown's own lead to; the reason


def behind_links(workspace: Workspace) -> Iterator[tuple[Path, str]]:
    """What is read by way of links as Tickdown's own: it is as much out of bounds as the name that leads to it."""
    settings = [workspace.config_file, *sorted(workspace.root.glob(".env*"))]
    prompts = [workspace.root / "prompts", *sorted((workspace.root / "prompts").glob("*"))]
    try:
        files = [Path(path) for path, _ in scan(str(workspace.tasks))]
    except OSError:
        files = []
    for paths, reason in ((settings, CONFIGURATION), (prompts, OWN), (files, ANOTHER_TASK)):
        for path in paths:
            yield from ((step, reason) for step in _led_to(path))


def _led_to(path: Path) -> list[Path]:
    """Every step on the way of a link, and its end; nothing if there is no link."""
    real = Path(os.path.realpath(path))
    if real == path:
        return []
    steps, current = [real], path
    for _ in range(MOST_STEPS):
        current = Path(os.path.realpath(current.parent), current.name)
        if current not in (path, real):
            steps.append(current)
        if not current.is_symlink():
            break
        current = current.parent / os.readlink(current)
    return steps


@record(frozen=True)
class Scope:
    """`editable` by real path; `refused` are files that are named but never edited, with the reason."""

    workspace: Workspace
    task_file: Path
    editable: tuple[Path, ...]
    refused: tuple[tuple[str, str], ...] = ()

    def shown(self, path: Path) -> str:
        """For people and for the database: a name that is no text is escaped."""
        return self.workspace.relative(path).encode("utf-8", "backslashreplace").decode()

    @property
    def folders_outside(self) -> list[str]:
        root = self.workspace.root
        return sorted({str(path.parent) for path in self.editable if not path.is_relative_to(root)})


def scope_of(task: Task, workspace: Workspace, cwd: Path | None, around: Surrounds) -> Scope:
    """The task's own file, the scripts of the workspace that its command names, its `heal_paths`."""
    task_file = (workspace.root / task.path).resolve()
    editable, refused = [task_file], []
    wanted = [(word, path, False) for word, path in _scripts(task, workspace, cwd)]
    wanted += [(name, workspace.root / os.path.expanduser(name), True) for name in task.heal_paths]
    for name, path, may_be_outside in wanted:
        try:
            real = path.resolve()
            reason = never_edited(real, workspace, task_file, around) or _no_plain_file(real)
        except (OSError, RuntimeError, ValueError) as error:
            refused.append((name, f"can't be used: {error}"))
            continue
        if reason is None and not may_be_outside and not real.is_relative_to(workspace.root):
            continue  # a tool of the system, or somebody else's
        if reason is not None:
            refused.append((name, reason))
        elif real not in editable:
            editable.append(real)
    return Scope(workspace, task_file, tuple(editable), tuple(refused))


def _no_plain_file(path: Path) -> str | None:
    if not path.exists():
        return None
    if not path.is_file():
        return "is not a file"
    return f"is over {LARGEST_KEPT // 1024**2} MiB" if path.stat().st_size > LARGEST_KEPT else None


_SCRIPT_ENDINGS = {
    ".sh",
    ".bash",
    ".py",
    ".js",
    ".mjs",
    ".ts",
    ".rb",
    ".pl",
    ".php",
    ".awk",
    ".sed",
    ".sql",
    ".lua",
    ".r",
    ".R",
}


def _scripts(task: Task, workspace: Workspace, cwd: Path | None) -> Iterator[tuple[str, Path]]:
    """Words of the command that are scripts; relative to where it runs, or to the workspace. Not data that it reads or
    writes: what a task has written is not the healer's to undo."""
    text = task.command[:MOST_OF_COMMAND]
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # an open quote or the like: take it apart by hand
        words = re.split(r"[\s;|&<>()'\"]+", text)
    for word in dict.fromkeys(words):
        word = re.sub(r"\$\{?TICKDOWN_(?:WORKSPACE|HOME)\}?", lambda _: str(workspace.root), word)
        word = word.rpartition("=")[2]
        if not word or word.startswith("-") or "\0" in word or len(word) > 1000:
            continue
        for base in (cwd, workspace.root):
            path = base / os.path.expanduser(word) if base is not None else None
            try:
                if path is not None and path.is_file() and _is_script(path):
                    yield word, path
                    break
            except OSError:
                continue


def _is_script(path: Path) -> bool:
    if path.suffix in _SCRIPT_ENDINGS or os.access(path, os.X_OK):
        return True
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def never_edited(path: Path, workspace: Workspace, task_file: Path, around: Surrounds) -> str | None:
    """Why this file is out of bounds, whatever the configuration says. Real paths."""
    if path == task_file:
        return None
    for place in (path, *path.parents) if around.behind_links else ():
        if place in around.behind_links:
            return around.behind_links[place]
    if path.name.startswith(around.database.name) and path.parent == around.database.parent:
        return "is what Tickdown remembers"
    if any(path.is_relative_to(folder) for folder in around.of_agents):
        return "is a setting of agents"
    if path.is_relative_to(ROOT) and not workspace.root.is_relative_to(ROOT):
        return OWN
    if path.is_relative_to(workspace.root / "prompts") or _lies_in(path, (*_OF_PROGRAM, *_OF_ENVIRONMENT)):
        return OWN
    inside = path.is_relative_to(workspace.root)
    if inside:
        parts = path.relative_to(workspace.root).parts
        if parts[:1] in (("state",), ("logs",)):
            return "is what Tickdown remembers"
        if parts == ("config.yaml",) or (len(parts) == 1 and parts[0].startswith(".env")):
            return CONFIGURATION
        if parts[:1] == ("tasks",) and is_task_file(path.name) and not any(part[0] in "._" for part in parts[:-1]):
            return ANOTHER_TASK
    elif str(path).startswith(tuple(f"{folder}/" for folder in _SYSTEM)):
        return "is in a folder of the system"
    if path.name in _SETTINGS_FILES or path.name.startswith(".git"):
        return "is a setting of agents or git"
    places = path.relative_to(workspace.root).parts[:-1] if inside else path.parts[:-1]
    if _SETTINGS_FOLDERS.intersection(places):
        return "is a setting of agents, ssh or git"
    return None


def _lies_in(path: Path, places: Collection[Path]) -> bool:
    return not {path, *path.parents}.isdisjoint(places)


# --- before ----------------------------------------------------------------------------------------------------


@record(frozen=True)
class Entry:
    """One file, link or folder as it was. `content` is None where it was too large to keep."""

    kind: str
    mode: int
    owner: tuple[int, int]
    mtime_ns: int
    stamp: tuple[int, ...] = ()  # what the kernel changes with every write; nobody can set it
    content: bytes | None = None
    is_lost: bool = False  # the copy that was kept of it is gone, or is not what was kept

    def same_as(self, other: Entry) -> bool:
        if (self.kind, self.mode, self.owner) != (other.kind, other.mode, other.owner):
            return False
        if self.content is not None and other.content is not None:
            return self.content == other.content
        return self.kind == "folder" or self.stamp == other.stamp


@record()
class Snapshot:
    entries: dict[Path, Entry]
    taken_at: float
    tops: set[Path] = field(default_factory=set)  # what was looked at by name
    listed: set[Path] = field(default_factory=set)  # folders of which everything is known
    unwatched: list[str] = field(default_factory=list)

    def was_absent(self, path: Path) -> bool:
        """Known not to have been there, as opposed to not known. Nothing else is ever taken away."""
        for place in (path, *path.parents):
            if place in self.entries:
                return False
            if place in self.tops or place.parent in self.listed:
                return True
        return False


class TooMuch(OSError):
    """What no healer may change can't all be watched, so none is started."""


def take(scope: Scope, around: Surrounds, again: Snapshot | None = None) -> Snapshot:
    """Everything in the workspace and around it that is not written by other runs all the time; when it is looked at
    `again`, at least what was looked at the first time. What is never to be edited comes first: there are limits, and
    nobody's data may use them up before. TooMuch if they don't even suffice for that."""
    watch = _Watch(scope, around, again)
    for path in scope.editable:
        watch.look_at(path, always_keep=True)
    for root in _out_of_bounds(scope, around):
        watch.look_at(root)

    def is_out_of_bounds(path: Path) -> bool:
        return never_edited(path, scope.workspace, scope.task_file, around) is not None

    left_out = [scope.shown(path) for path in watch.keep(is_out_of_bounds) if is_out_of_bounds(path)]
    if again is None and (watch.unwatched or left_out):
        names = ", ".join([*watch.unwatched, *left_out][:5])
        raise TooMuch(f"there is too much to watch, of what no healer may change: {names}")
    for root in _other_roots(scope, around):
        watch.look_at(root)
    watch.keep()
    return Snapshot(watch.entries, time.time(), watch.tops, watch.listed, watch.unwatched)


def _out_of_bounds(scope: Scope, around: Surrounds) -> Iterator[Path]:
    """Where everything is Tickdown's own, as far as it is never large."""
    workspace = scope.workspace
    yield from (path for path in around.behind_links if path != scope.task_file)
    yield from (workspace.config_file, *sorted(workspace.root.glob(".env*")))
    yield from (workspace.tasks, workspace.root / "prompts")
    yield from (path for path in _OF_PROGRAM if path.name != ".venv")


def _other_roots(scope: Scope, around: Surrounds) -> Iterator[Path]:
    yield from around.copies
    yield scope.workspace.audit_log
    for folder in around.of_agents:
        yield from (folder / name for name in ("settings.json", "settings.local.json", "CLAUDE.md", "config.toml"))
    yield from (ROOT / ".git" / name for name in ("config", "hooks"))
    if around.home is not None:
        yield from (around.home / name for name in _WATCHED_AT_HOME)
    yield scope.workspace.root
    yield from _OF_ENVIRONMENT  # last: it may be large


class _Watch:
    """One walk. Folders of data with too much in them are passed over."""

    def __init__(self, scope: Scope, around: Surrounds, again: Snapshot | None) -> None:
        self.entries: dict[Path, Entry] = {}
        self.tops: set[Path] = set()
        self.listed: set[Path] = set()
        self.unwatched: list[str] = []
        self._scope, self._again = scope, again
        self._kept, self._found = 0, 0  # bytes, files and folders
        self._unread: list[Path] = []
        self._database = around.database
        state = scope.workspace.state
        of_database = (f"{around.database}{end}" for end in ("", "-wal", "-shm", "-journal"))
        at_home = (around.home / name for name in _AGENTS_AT_HOME) if around.home is not None else ()
        self._passed_over = {*map(Path, of_database), *at_home, *around.of_agents} | {
            scope.workspace.logs, scope.workspace.heals, scope.workspace.locks, state / "heal.lock", state / "metrics.prom",
            scope.workspace.root / ".git" / "objects",
        }  # fmt: skip

    def look_at(self, top: Path, *, always_keep: bool = False) -> None:
        self.tops.add(top)
        queue = [top]
        for path in queue:
            if (path in self._passed_over or self._is_set_aside(path)) and path != top:
                continue
            if path in self.entries:
                continue
            entry = read_entry(path, LARGEST_KEPT if always_keep else -1)
            if entry is None:
                continue
            self.entries[path] = entry
            if entry.kind == "folder":
                queue += self._inside(path)
            elif entry.kind == "file" and not always_keep:
                self._unread.append(path)

    def keep(self, comes_first: Callable[[Path], bool] = lambda _: False) -> list[Path]:
        """Read what was found, the smallest first; for which files there was no room."""
        unread, self._unread = self._unread, []
        unread.sort(key=lambda path: (not comes_first(path), self.entries[path].stamp[1]))
        return [path for path in unread if not _is_bulky(path) and not self._keep(path)]

    def _keep(self, path: Path) -> bool:
        known = self._again.entries.get(path) if self._again is not None else None
        room = LARGEST_KEPT if known is not None and known.content is not None else min(LARGEST_KEPT, self._room)
        if self.entries[path].stamp[1] > room:
            return False
        entry = read_entry(path, room)
        if entry is None:  # it has just gone
            del self.entries[path]
            return True
        self.entries[path] = entry
        self._kept += len(entry.content or b"")
        return True

    @property
    def _room(self) -> int:
        return MOST_KEPT - self._kept

    def _is_set_aside(self, path: Path) -> bool:
        """A damaged database that was moved out of the way."""
        return path.parent == self._database.parent and path.name.startswith(f"{self._database.name}.damaged-")

    def _inside(self, folder: Path) -> list[Path]:
        is_new = self._again is not None and self._again.was_absent(folder)
        if is_new and not leads_to(folder, self._scope.editable):
            return []  # as a whole, with whatever is in it
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return []
        is_known = is_new or (self._again is not None and folder in self._again.listed)
        if self._found + len(names) > MOST_WATCHED and not is_known:
            self.unwatched.append(self._scope.shown(folder))
            return []
        self._found += len(names)
        self.listed.add(folder)
        return [folder / name for name in names]


def _is_bulky(path: Path) -> bool:
    """Not what is installed of Tickdown itself, wherever its environment lies."""
    if not IS_CLONE and _lies_in(path, _OF_PROGRAM):
        return CACHE in path.parts
    return bool(_BULKY.intersection(path.parts)) or _lies_in(path, _OF_ENVIRONMENT)


def read_entry(path: Path, largest: int = LARGEST_KEPT) -> Entry | None:
    """None if nothing is there."""
    try:
        info = path.lstat()
    except OSError:
        return None
    mode, owner = stat.S_IMODE(info.st_mode), (info.st_uid, info.st_gid)
    stamp = (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    if stat.S_ISDIR(info.st_mode):
        return Entry("folder", mode, owner, info.st_mtime_ns)
    if stat.S_ISLNK(info.st_mode):
        return Entry("link", 0o777, owner, info.st_mtime_ns, stamp, os.fsencode(os.readlink(path)))
    if not stat.S_ISREG(info.st_mode):
        return Entry("other", mode, owner, 0, stamp[:1])
    content = None
    if info.st_size <= largest:
        try:
            content = path.read_bytes()
        except OSError:
            pass  # not ours to read, so not the agent's either
    return Entry("file", mode, owner, info.st_mtime_ns, stamp, content)


# --- after -----------------------------------------------------------------------------------------------------


@record(frozen=True)
class Change:
    path: Path
    before: Entry | None
    after: Entry | None
    is_way: bool = False  # a folder that was made for a file in it, and goes when nothing is in it any more

    @property
    def word(self) -> str:
        return "made" if self.before is None else "removed" if self.after is None else "changed"


@record()
class Findings:
    edits: list[Change] = field(default_factory=list)  # of what may be edited
    ways: list[Change] = field(default_factory=list)  # folders that were made on the way to it
    forbidden: list[Change] = field(default_factory=list)
    others: list[Change] = field(default_factory=list)  # written by somebody else, as far as anybody can tell
    caches: list[Change] = field(default_factory=list)  # compiled Python: made anew when it is gone


def compare(
    scope: Scope,
    before: Snapshot,
    around: Surrounds,
    own_edits: Collection[tuple[str, str]],
    others_at_work: bool,
) -> Findings:
    """`own_edits` are (path, digest) of files as this program has written them meanwhile; without a digest it removed them."""
    after = take(scope, around, before)
    findings = Findings()
    is_open = _OpenFiles()
    for path in sorted(before.entries.keys() | after.entries.keys()):
        old, new = before.entries.get(path), after.entries.get(path)
        if new is None and _is_plain(path.parent):
            new = read_entry(path)  # this walk may have ended before it came there
        if (old is None and not before.was_absent(path)) or (old is not None and new is not None and old.same_as(new)):
            continue
        change = Change(path, old, new)
        if path in scope.editable:
            findings.edits.append(change)
        elif old is None and new is not None and new.kind == "folder" and leads_to(path, scope.editable):
            findings.ways.append(replace(change, is_way=True))
        elif _is_cache(change):
            findings.caches.append(change)
        elif _is_own(change, scope, own_edits) or _is_by_others(change, scope, around, others_at_work, is_open):
            findings.others.append(change)
        else:
            findings.forbidden.append(change)
    return findings


def leads_to(folder: Path, files: Iterable[Path]) -> bool:
    return any(folder in path.parents for path in files)


def _is_cache(change: Change) -> bool:
    """Python believes what it has compiled if that names the time and size of its source, both of which can be forged."""
    kinds = {entry.kind for entry in (change.before, change.after) if entry is not None}
    if change.path.name == CACHE:
        return kinds == {"folder"}
    return change.path.parent.name == CACHE and ".pyc" in change.path.name and kinds == {"file"}


def drop_caches(changes: Iterable[Change]) -> list[str]:
    """Nothing is lost with them; the names of those that could not be removed."""
    failed = []
    for change in changes:
        try:
            if not _is_plain(change.path.parent):
                continue  # what is there now is something else
            if change.path.name != CACHE:
                change.path.unlink(missing_ok=True)
            elif change.before is None:
                remove_folder(change.path)
        except OSError as error:
            failed.append(f"{_escaped(change.path)}: {error.strerror}")
    return failed


def _drop_compiled(source: Path) -> None:
    """What a run has compiled from a source that was put back since: it may look as if it were that of the original."""
    for path in (source.parent / CACHE).glob(f"{glob.escape(source.stem)}.*"):
        path.unlink(missing_ok=True)


def _is_plain(folder: Path) -> bool:
    """No part of its name is a link: what lies behind one is somewhere else."""
    return os.path.realpath(folder) == str(folder)


def _is_own(change: Change, scope: Scope, own_edits: Collection[tuple[str, str]]) -> bool:
    new = change.after
    digest = hashlib.sha256(new.content).hexdigest() if new is not None and new.content is not None else ""
    return (scope.shown(change.path), digest) in own_edits


def _is_by_others(
    change: Change, scope: Scope, around: Surrounds, others_at_work: bool, is_open: Callable[[Path], bool]
) -> bool:
    """A file that is no business of this program may be what another task works on, or a daemon: one that lives while
    nobody of the healer does any more."""
    inside = change.path.is_relative_to(scope.workspace.root)
    if not inside or never_edited(change.path, scope.workspace, scope.task_file, around) is not None:
        return False
    return others_at_work or (change.after is not None and change.after.kind == "file" and is_open(change.path))


class _OpenFiles:
    """The files that processes have open, looked up once and only if somebody asks."""

    def __init__(self) -> None:
        self._names: set[str] | None = None

    def __call__(self, path: Path) -> bool:
        if self._names is None:
            self._names = set()
            for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):
                try:
                    self._names.add(os.readlink(descriptor))
                except OSError:
                    continue  # it has just ended, or is not ours to look into
        return str(path) in self._names


def restore(changes: Iterable[Change], aside: Path) -> list[str]:
    """Put back what was; the names of what could not be. What is there now is not lost: it is moved to `aside`, where
    `LIST` tells what is what."""
    failed = []
    ordered = sorted(changes, key=lambda change: change.path.parts)
    moved: dict[
        tuple[int, ...], Path
    ] = {}  # by what a file is, whatever its name: something may only have been renamed
    # What is too much goes first, from the bottom up; then what is missing comes back, from the top down.
    gone = [change for change in ordered if change.before is None]
    for change in [*reversed(gone), *(change for change in ordered if change.before is not None)]:
        try:
            target = _restore(change, aside, moved)
            if change.path.suffix == ".py":
                _drop_compiled(change.path)
            if target is not None:
                moved.update(_large_files(target))
        except (OSError, ValueError) as error:
            failed.append(f"{_escaped(change.path)}: {getattr(error, 'strerror', None) or error}")
    return failed


def _large_files(top: Path) -> dict[tuple[int, ...], Path]:
    """Of which no copy is kept, so that they must be found again if they were only moved."""
    files = (
        [top] if not top.is_dir() or top.is_symlink() else [path for path, is_folder in _all_in(top) if not is_folder]
    )
    found: dict[tuple[int, ...], Path] = {}
    for path in files:
        info = path.lstat()
        if stat.S_ISREG(info.st_mode) and info.st_size > LARGEST_KEPT:
            found[(info.st_ino, info.st_size, info.st_mtime_ns)] = path
    return found


def _all_in(top: Path) -> list[tuple[Path, bool]]:
    """Everything below a folder, parents first, and whether it is a folder. Without recursion: nobody knows how deep it is."""
    found: list[tuple[Path, bool]] = []
    pending = [top]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                found.append((Path(entry.path), is_folder))
                if is_folder:
                    pending.append(Path(entry.path))
    return found


def _escaped(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode()


def _restore(change: Change, aside: Path, moved: Mapping[tuple[int, ...], Path]) -> Path | None:
    """Where what was found is now, if it was in the way."""
    path, old, target = change.path, change.before, None
    if change.is_way:
        _remove_if_empty(path)
        return None
    if not _is_plain(path.parent) and os.path.lexists(path):
        raise OSError(0, "lies behind a link by now; it stays as it is")
    lost = old is not None and old.kind == "file" and old.content is None and old.stamp[:3] not in moved
    if old is not None and old.is_lost:
        raise OSError(0, "the copy of it is damaged; it stays as it is")
    if lost:
        raise OSError(0, "was too large to keep a copy of; it stays as it is")
    if old is not None and old.kind == "other":
        raise OSError(0, "was not a file; it stays as it is")
    is_folder = old is not None and old.kind == "folder" and path.is_dir() and not path.is_symlink()
    if not is_folder and os.path.lexists(path):
        target = _move_aside(path, aside)
    if old is None:
        return target
    make_dir(path.parent)
    if old.kind == "folder":
        make_dir(path)
        path.chmod(old.mode)
    elif old.kind == "link":
        path.symlink_to(os.fsdecode(old.content or b""))
    elif old.content is None:
        os.rename(moved[old.stamp[:3]], path)
    else:
        _write_anew(path, old)
    return target


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass  # somebody else has put something there since, or it is gone


def _write_anew(path: Path, old: Entry) -> None:
    """In its own place: nothing is there any more, and beside a very long name there is no room for a temporary one."""
    with open(path, "xb", opener=private_opener) as file:
        file.write(old.content or b"")
        if old.owner != (os.geteuid(), os.getegid()):
            os.fchown(file.fileno(), *old.owner)
        os.fchmod(file.fileno(), old.mode)
        file.flush()
        os.fsync(file.fileno())
    os.utime(path, ns=(old.mtime_ns, old.mtime_ns))


def _move_aside(path: Path, aside: Path) -> Path:
    import shutil

    make_private_dir(aside.parent)
    make_private_dir(aside)
    number = len(os.listdir(aside))
    target = aside / f"{number:05d}"
    with open(aside / "LIST", "ab", opener=private_opener) as file:
        file.write(f"{target.name} {_escaped(path)}\n".encode())
    try:
        os.rename(path, target)
    except OSError:  # on another file system
        shutil.move(path, target)
    return target


# --- on disk ---------------------------------------------------------------------------------------------------


def save(folder: Path, snapshot: Snapshot) -> None:
    """So that a heal whose supervisor dies can be undone by the next, and a person can undo it later. The list comes last:
    without it there is no snapshot."""
    make_private_dir(folder.parent)
    make_private_dir(folder)
    entries, written = {}, set()
    for path, entry in snapshot.entries.items():
        blob = hashlib.sha256(entry.content).hexdigest() if entry.content is not None else None
        if entry.content is not None and blob not in written:
            written.add(blob)
            _write_private(folder / str(blob), entry.content)
        entries[str(path)] = [entry.kind, entry.mode, *entry.owner, entry.mtime_ns, list(entry.stamp), blob]
    manifest = {
        "taken_at": snapshot.taken_at,
        "tops": sorted(map(str, snapshot.tops)),
        "listed": sorted(map(str, snapshot.listed)),
        "entries": entries,
    }
    _write_private(folder / "manifest.json", json.dumps(manifest).encode())


def load(folder: Path) -> Snapshot:
    """What `save` wrote; OSError or ValueError if it can't be read. A copy that is not what it was is none."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    entries = {}
    for name, (kind, mode, uid, gid, mtime_ns, stamp, blob) in manifest["entries"].items():
        content = _copy(folder, blob) if blob is not None else None
        is_lost = blob is not None and content is None
        entries[Path(name)] = Entry(kind, mode, (uid, gid), mtime_ns, tuple(stamp), content, is_lost)
    return Snapshot(entries, manifest["taken_at"], set(map(Path, manifest["tops"])), set(map(Path, manifest["listed"])))


def _copy(folder: Path, digest: str) -> bytes | None:
    """Whoever runs as this user could have written to it since, a later healer too: its name tells what it must be."""
    try:
        content = (folder / digest).read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


def _write_private(path: Path, content: bytes) -> None:
    with open(path, "wb", opener=private_opener) as file:
        file.write(content)


def remove_folder(folder: Path) -> None:
    """A folder of snapshots, with all that is in it."""
    try:
        for path, is_folder in reversed(_all_in(folder)):
            path.rmdir() if is_folder else path.unlink()
        folder.rmdir()
    except OSError:
        pass  # gone already, or not ours to remove
