"""Where everything lives: the folders of a workspace, and its `.env`."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path

from tickdown.base.errors import Exit, TickdownError, explained
from tickdown.base.records import record

PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600
MAX_BYTES = 256 * 1024


@record(frozen=True)
class Workspace:
    root: Path

    @cached_property
    def tasks(self) -> Path:
        return self.root / "tasks"

    @cached_property
    def logs(self) -> Path:
        return self.root / "logs"

    @cached_property
    def state(self) -> Path:
        return self.root / "state"

    @cached_property
    def locks(self) -> Path:
        return self.state / "locks"

    @cached_property
    def shims(self) -> Path:
        return self.state / "shims"

    @cached_property
    def heals(self) -> Path:
        return self.state / "heals"

    @cached_property
    def audit_log(self) -> Path:
        return self.logs / "self-heal-audit.log"

    @cached_property
    def config_file(self) -> Path:
        return self.root / "config.yaml"

    @cached_property
    def config_tree(self) -> Path:
        return self.state / "config"

    @cached_property
    def env_file(self) -> Path:
        return self.root / ".env"

    @staticmethod
    def run_log(task_id: str, run_id: str) -> str:
        """Below the root."""
        return f"logs/runs/{task_id}/{run_id}.log"

    def relative(self, path: Path) -> str:
        try:
            return str(path.relative_to(self.root))
        except ValueError:
            return str(path)


def find_workspace(option: str | None, environment: Mapping[str, str], default: Path | None) -> Workspace:
    """`--workspace`, else TICKDOWN_HOME, else the folder of scheduler.py. The installed command has no such default: it takes
    the current folder if that is a workspace."""
    chosen = option or environment.get("TICKDOWN_HOME")
    if chosen:
        root = Path(os.path.expanduser(chosen)).resolve()
    elif default is not None:
        root = default.resolve()
    else:
        return _workspace_around_us()
    if not root.is_dir():
        raise TickdownError(f"workspace {root}: no such folder", Exit.USAGE)
    if not (root / "tasks").is_dir():
        raise TickdownError(f"workspace {root}: has no tasks/ folder; create it to make this a workspace", Exit.USAGE)
    return Workspace(root)


def _workspace_around_us() -> Workspace:
    root = current_folder()
    if root is None:
        raise TickdownError("the current folder is gone; name the workspace with --workspace DIR", Exit.USAGE)
    if not (root / "tasks").is_dir():
        raise TickdownError(
            f"{root} is no workspace: it has no tasks/ folder. Go to a folder that has one, name it with --workspace DIR "
            "or TICKDOWN_HOME, or make this a workspace: mkdir tasks",
            Exit.USAGE,
        )
    return Workspace(root)


def current_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def make_dir(path: Path) -> None:
    """Made so that only its owner may enter; one that is there already keeps its modes."""
    if not os.path.isdir(path):
        make_dir(path.parent)  # `parents=True` would make them as the umask says
        path.mkdir(mode=PRIVATE_DIR, exist_ok=True)


def make_private_dir(path: Path) -> None:
    """For what is the program's alone: looser modes are put right."""
    make_dir(path)
    if path.stat().st_mode & 0o077:
        path.chmod(PRIVATE_DIR)


def keep_others_out(path: Path) -> None:
    """Who may read the logs is their owner's choice; who can put links in their place could have anything written to."""
    mode = os.stat(path).st_mode
    if mode & 0o022:
        try:
            os.chmod(path, stat.S_IMODE(mode) & ~0o022)
        except PermissionError:
            pass  # not ours to change; links are not followed in any case


def private_opener(path: str, flags: int) -> int:
    """For open(..., opener=private_opener): new files are 0600 and a symbolic link is never followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)


# In the name of a file that is being written. One whose writer was killed stays, and `prune` must know it for ours.
UNFINISHED = ".tickdown-"


def replace_file(
    path: Path,
    content: bytes,
    mode: int,
    owner: tuple[int, int] | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Whole or not at all: written beside it, synced, renamed over whatever is there. `check` has the last word."""
    import tempfile

    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}{UNFINISHED}", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        if check is not None:
            check()
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class UnsafeFile(Exception):
    """A file that is not read; the message says why and what to do, `line` where. Trouble that may pass is not of the file's
    own making."""

    def __init__(self, message: str, *, line: int = 1, may_pass: bool = False) -> None:
        super().__init__(message)
        self.line, self.may_pass = line, may_pass


class IsALink(Exception):
    """A symbolic link, where none is followed."""


def read_checked(path: Path | str, owners: set[int], home: Path | str, *, follow: bool = True) -> bytes:
    """The bytes of a file that only these users, or the group of the workspace, can have written. Opened once and judged by
    its descriptor; without O_NONBLOCK a named pipe would wait for a writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        try:
            info = os.fstat(descriptor)
            _check(info, owners, home)
            content = os.read(descriptor, info.st_size + 1)
            if len(content) > info.st_size:  # it grows this very moment
                content += os.read(descriptor, MAX_BYTES)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise IsALink from None
        raise UnsafeFile(f"can't be read: {explained(error)}", may_pass=may_pass(error)) from None
    if len(content) > MAX_BYTES:
        raise UnsafeFile(f"is over {MAX_BYTES} bytes (256 KiB)")
    if (at := content.find(0)) >= 0:
        raise UnsafeFile("contains a NUL byte", line=line_of(content, at))
    return content


def line_of(content: bytes, place: int) -> int:
    return content.count(b"\n", 0, place) + 1


def may_pass(error: OSError) -> bool:
    """Whether a file that could not be read can be, a moment later, though nobody has touched it."""
    return error.errno not in (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO)


def _check(info: os.stat_result, owners: set[int], home: Path | str) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise UnsafeFile("is not a regular file")
    if info.st_mode & stat.S_IWOTH:
        raise UnsafeFile("is writable by everyone; run chmod o-w on it")
    if info.st_mode & stat.S_IWGRP and info.st_gid not in _groups_of(home):
        raise UnsafeFile(f"is writable by another group (gid {info.st_gid}); run chmod g-w on it")
    if info.st_uid not in owners:
        raise UnsafeFile(f"belongs to another user (uid {info.st_uid}); it is code, chown it to the workspace's owner")
    if info.st_size > MAX_BYTES:
        raise UnsafeFile(f"is {info.st_size} bytes; at most {MAX_BYTES} (256 KiB) are accepted")


@cache
def _groups_of(home: Path | str) -> set[int]:
    """Groups that may write: many systems give every user one of his own and let it write by default, and people who share
    a workspace give that to theirs."""
    import pwd

    info = os.stat(home)
    try:
        own = pwd.getpwuid(info.st_uid).pw_gid
    except KeyError:
        own = info.st_gid
    return {0, os.getegid(), info.st_gid, own}


_ENV_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)", re.DOTALL)


def read_settings_file(path: Path) -> str:
    """config.yaml or .env as text; empty if there is none. UnsafeFile if it must not be used."""
    try:
        content = read_checked(path, {0, os.geteuid(), path.parent.stat().st_uid}, path.parent)
    except FileNotFoundError:
        return ""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnsafeFile(f"not valid UTF-8 (byte {error.start})", line=line_of(error.object, error.start)) from None


def parse_env(text: str) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """`NAME=value` lines, and the lines that are none: quotes are taken off, `export` and `# comments` are understood."""
    values, problems = {}, []
    # As editors count lines: `splitlines` would end one at a form feed or at U+2028, too.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _ENV_LINE.fullmatch(line)
        value = _unquoted(match[2].strip()) if match else None
        if match is None:
            problems.append((number, "not a NAME=value line"))
        elif value is None:
            problems.append((number, f"{match[1]}: the quote is not closed"))
        else:
            values[match[1]] = value
    return values, problems


def _unquoted(value: str) -> str | None:
    if value[:1] in ("'", '"'):
        end = value.find(value[0], 1)
        rest = value[end + 1 :].strip()
        return None if end < 0 or (rest and not rest.startswith("#")) else value[1:end]
    return re.split(r"\s#", value, maxsplit=1)[0].rstrip()


_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Replace `${NAME}`; also the names that are not set."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            missing.append(match[1])
        return environment.get(match[1], "")

    return _REFERENCE.sub(value, text), missing


def variables_in(text: str) -> tuple[str, ...]:
    return tuple(sorted(set(_REFERENCE.findall(text))))


def user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
