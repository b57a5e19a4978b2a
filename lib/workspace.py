"""Where everything lives: the folders of a workspace, and its `.env`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lib.errors import Exit, TickdownError

PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600


@dataclass(frozen=True, slots=True)
class Workspace:
    root: Path

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def locks(self) -> Path:
        return self.state / "locks"

    @property
    def config_file(self) -> Path:
        return self.root / "config.yaml"

    @property
    def env_file(self) -> Path:
        return self.root / ".env"

    def run_log(self, task_id: str, run_id: str) -> Path:
        return self.logs / "runs" / task_id / f"{run_id}.log"

    def relative(self, path: Path) -> str:
        try:
            return str(path.relative_to(self.root))
        except ValueError:
            return str(path)


def find_workspace(option: str | None, environment: Mapping[str, str], default: Path) -> Workspace:
    """`--workspace`, else TICKDOWN_HOME, else the folder of scheduler.py."""
    chosen = option or environment.get("TICKDOWN_HOME")
    root = Path(chosen).expanduser().resolve() if chosen else default.resolve()
    if not root.is_dir():
        raise TickdownError(f"workspace {root}: no such folder", Exit.USAGE)
    if not (root / "tasks").is_dir():
        raise TickdownError(f"workspace {root}: has no tasks/ folder; create it to make this a workspace", Exit.USAGE)
    return Workspace(root)


def make_dir(path: Path) -> None:
    """Made so that only its owner may enter; one that is there already keeps its modes."""
    if not path.is_dir():
        make_dir(path.parent)  # `parents=True` would make them as the umask says
        path.mkdir(mode=PRIVATE_DIR, exist_ok=True)


def make_private_dir(path: Path) -> None:
    """For what is the program's alone: looser modes are put right."""
    make_dir(path)
    if path.stat().st_mode & 0o077:
        path.chmod(PRIVATE_DIR)


def private_opener(path: str, flags: int) -> int:
    """For open(..., opener=private_opener): new files are 0600 and a symbolic link is never followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)


_ENV_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)", re.DOTALL)


def read_env_file(path: Path) -> dict[str, str]:
    """`NAME=value` lines: quotes are taken off, `export` and `# comments` are understood."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise TickdownError(f"{path.name}: not valid UTF-8 at byte {error.start}", Exit.USAGE) from None
    except OSError as error:
        raise TickdownError(f"{path}: {error.strerror}", Exit.USAGE) from None
    values = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _ENV_LINE.fullmatch(line)
        if match is None or "\0" in line:
            raise TickdownError(f"{path.name}:{number}: not a NAME=value line", Exit.USAGE)
        values[match[1]] = _unquote(match[2].strip(), path.name, number)
    return values


def _unquote(value: str, name: str, number: int) -> str:
    if value[:1] in ("'", '"'):
        end = value.find(value[0], 1)
        rest = value[end + 1 :].strip()
        if end < 0 or (rest and not rest.startswith("#")):
            raise TickdownError(f"{name}:{number}: the quote {value[0]} is not closed", Exit.USAGE)
        return value[1:end]
    return re.split(r"\s#", value, maxsplit=1)[0].rstrip()


def fill(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Replace `${NAME}`; also the names that are not set."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            missing.append(match[1])
        return environment.get(match[1], "")

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", value, text), missing
