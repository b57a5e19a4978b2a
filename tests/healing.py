"""What the tests of healing work with: a workspace with a broken task, and a scripted program in the place of the agent."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.helpers import PROJECT, Telegram, Workspace

BROKEN = '#!/bin/sh\necho "starting"\ncat input.txt || exit 4\necho "all done"\n'
FIXED = '#!/bin/sh\necho "starting"\ncat data/input.txt || exit 4\necho "all done"\n'
TASK = """---
id: job
schedule: 1h   # every hour
command: ./scripts/job.sh
suspend_after: 5
# the owner's own remark
tags: [a, b]
---
Prints the input.
"""
FIX = "sed -i 's|cat input|cat data/input|' scripts/job.sh"


def says(verdict: str = "fixed", cause: str = "the path was wrong", **more: object) -> str:
    return "echo " + "'" + json.dumps({"verdict": verdict, "cause": cause, "files": [], **more}) + "'"


@cache
def copy_of_the_program() -> Path:
    """Healers are watched for changes of Tickdown itself, which are put back; here they must not be those of a person who
    is editing it. One copy per test process, removed at its end."""
    folder = tempfile.TemporaryDirectory(prefix="tickdown-program-")
    atexit.register(folder.cleanup)
    for name in ("lib", "prompts"):
        shutil.copytree(PROJECT / name, Path(folder.name) / name)
    return Path(shutil.copy(PROJECT / "scheduler.py", folder.name))


def program_with(folder: Path, **constants: int) -> Path:
    """A copy with other limits in `heal/guard.py`, which are too large to come up against in a test."""
    for name in ("lib", "prompts"):
        shutil.copytree(PROJECT / name, folder / name)
    guard = folder / "lib" / "tickdown" / "heal" / "guard.py"
    text = guard.read_text()
    for name, value in constants.items():
        text, found = re.subn(rf"^{name} = .*", f"{name} = {value}", text, flags=re.MULTILINE)
        assert found == 1
    guard.write_text(text)
    return Path(shutil.copy(PROJECT / "scheduler.py", folder))


class Healing:
    """`agent` is a shell script: what the healer does. It finds its number (1, 2, …) in `$CALL`."""

    def __init__(
        self, workspace: Workspace, agent: str, more_config: str = "", telegram: Telegram | None = None
    ) -> None:
        self.workspace, self.root = workspace, workspace.root
        workspace.scheduler = copy_of_the_program()
        self.outside = workspace.root.parent / "outside"
        for folder in ("bin", "calls", "home/.ssh"):
            (self.outside / folder).mkdir(parents=True)
        (self.outside / "home/.ssh/authorized_keys").write_text("ssh-ed25519 AAAA me\n")
        workspace.environment["HOME"] = str(self.outside / "home")
        for name, text in {
            "scripts/job.sh": BROKEN, "scripts/helper.sh": "echo helper\n", "scripts/link.sh": "echo link\n",
            "scripts/plain": "text\n", "data/input.txt": "42\n", "prompts/README.md": "none of our own\n",
            ".git/config": "[core]\n", ".git/hooks/pre-commit.sample": "#!/bin/sh\n",
        }.items():  # fmt: skip
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        (self.root / "scripts/job.sh").chmod(0o755)
        workspace.write_task("job", TASK)
        workspace.task("other", "true", schedule="manual")
        if telegram is None:
            workspace.config("")
            (self.root / ".env").write_text("SERVICE_PASSWORD=correct-horse-battery\n")
            (self.root / ".env").chmod(0o600)
        else:
            telegram.configure(workspace)
        self.script(agent)
        with open(self.root / "config.yaml", "a") as config:
            config.write(
                f"agents:\n  doctor: [{self.outside}/bin/doctor]\nhealer: doctor\nheal_timeout: 60s\n{more_config}"
            )
        self.before = self.tree()

    def script(self, agent: str) -> None:
        program = self.outside / "bin" / "doctor"
        program.write_text(
            f'#!/bin/bash\nCALL=$(ls {self.outside}/calls | wc -l); CALL=$((CALL + 1))\ncat > "{self.outside}/calls/$CALL"\n{agent}\n'
        )
        program.chmod(0o755)

    @property
    def prompts(self) -> list[str]:
        """What the healer was told, call by call."""
        return [
            path.read_text() for path in sorted((self.outside / "calls").iterdir(), key=lambda path: int(path.name))
        ]

    def tree(self) -> dict[str, tuple[bytes, int]]:
        """Every file around the task, byte for byte, with its mode; not what Tickdown writes itself."""
        tops = [path for path in self.root.iterdir() if path.name not in ("state", "logs")]
        tops.append(self.outside / "home")
        files = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file()]
        return {str(file.relative_to(self.root.parent)): (file.read_bytes(), file.stat().st_mode) for file in files}

    def changed(self) -> set[str]:
        """The files that are not as they were, by name."""
        now = self.tree()
        return {name for name in self.before.keys() | now.keys() if self.before.get(name) != now.get(name)}

    def due_again(self, task_id: str = "job") -> None:
        self.workspace.move_back(task_id, "-2 days")

    def tick(self) -> dict[str, Any]:
        """One tick in which the task is due; its run, as the database has it: quicker than asking `history`."""
        self.workspace.tick()
        names = ("run_id", "status", "attempts", "exit_code", "error_class")
        rows = self.workspace.sql(
            f"SELECT {', '.join(names)} FROM task_runs WHERE task_id = 'job' ORDER BY recorded_at DESC, rowid DESC LIMIT 1"
        )
        return dict(zip(names, rows[0], strict=True))

    def attempts(self) -> list[tuple[str, str]]:
        """(rung, status) of the last run's attempts."""
        return self.workspace.sql(
            "SELECT rung, status FROM attempts WHERE run_id = (SELECT run_id FROM task_runs WHERE task_id = 'job'"
            " ORDER BY recorded_at DESC, rowid DESC LIMIT 1) ORDER BY number"
        )

    def audit(self) -> list[dict[str, Any]]:
        path = self.root / "logs" / "self-heal-audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def alerts(self) -> list[tuple[str, bool]]:
        return [
            (kind, bool(forced)) for kind, forced in self.workspace.sql("SELECT kind, forced FROM alerts ORDER BY id")
        ]

    def tickets(self) -> list[dict[str, Any]]:
        return self.workspace.json("tickets")

    def state(self, task_id: str = "job") -> str:
        return next(task["state"] for task in self.workspace.listed() if task["id"] == task_id)

    def file(self, name: str) -> str:
        return (self.root / name).read_text()

    def snapshots_left(self) -> list[Path]:
        folder = self.root / "state" / "heals"
        return sorted(folder.glob("*/all"))
