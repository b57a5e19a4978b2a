"""What the tests work with: a workspace in a temporary folder, the real command line, and a loopback Telegram."""

from __future__ import annotations

import html
import json
import os
import queue
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tickdown.config import load_settings
from tickdown.context.app import app_with
from tickdown.queries.tasks import rejected_files, task_views
from tickdown.store.runs import to_run
from tickdown.ui.views import rejected_json, run_json, task_json
from tickdown.workspace.folders import find_workspace

PROJECT = Path(__file__).resolve().parent.parent
SCHEDULER = PROJECT / "scheduler.py"
PATIENCE = 60.0  # how long a test waits for something that must happen, however slow the machine


def wait_for(condition: Callable[[], Any], what: str = "") -> Any:
    """The first true answer of the condition; what takes long is looked at less often."""
    pause, deadline = 0.01, time.monotonic() + PATIENCE
    while True:
        last_look = time.monotonic() >= deadline  # before looking: one look always comes after the deadline
        answer = condition()
        if answer:
            return answer
        if last_look:
            raise AssertionError(f"did not happen within {PATIENCE} s: {what or condition}")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def kill(pid: int) -> None:
    """SIGKILL, and until it has taken effect: a process goes on for a moment after it was sent."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), f"the end of {pid}")


def start_together(commands: list[list[str]], **more: Any) -> list[subprocess.CompletedProcess[str]]:
    """Start commands at the same instant and wait for all: each waits before a FIFO until all of them are there."""
    with tempfile.TemporaryDirectory() as folder:
        gate, ready = Path(folder, "gate"), Path(folder, "ready")
        os.mkfifo(gate)
        ready.touch()
        line = f'echo >> {ready}; : < {gate}; exec "$@"'
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        waiting = [subprocess.Popen(["sh", "-c", line, "sh", *command], **(options | more)) for command in commands]
        wait_for(lambda: ready.stat().st_size == len(commands), "all commands before the gate")
        writer = os.open(gate, os.O_RDWR)  # held open, so that one that comes a little later finds it open too
        results = []
        for process in waiting:
            out, err = process.communicate(timeout=PATIENCE * 3)
            results.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
        os.close(writer)
    return results


class Workspace:
    """A workspace of its own, used through the command line as a person would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scheduler = SCHEDULER
        self.prefix: list[str] = []
        (root / "tasks").mkdir(parents=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONWARNINGS": "error",
        }

    # --- files ---

    def write_task(self, name: str, text: str) -> Path:
        path = self.root / "tasks" / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
        return path

    def task(self, task_id: str, command: str = "true", schedule: str = "manual", **fields: object) -> Path:
        """A well-formed task file; values are written as JSON, which is YAML too."""
        lines = [f"id: {task_id}", f"schedule: {json.dumps(schedule)}", f"command: {json.dumps(command)}"]
        lines += [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
        return self.write_task(task_id, "---\n" + "\n".join(lines) + "\n---\nA task of a test.\n")

    def config(self, text: str) -> None:
        (self.root / "config.yaml").write_text(text)

    # --- the command line ---

    def argv(self, *arguments: str) -> list[str]:
        return [*self.prefix, sys.executable, str(self.scheduler), *arguments, "--workspace", str(self.root)]

    def typed(self, words: str) -> str:
        """A command for this workspace as messages name it."""
        return f"scheduler.py {words} --workspace {self.root}"

    def bind_by_modes(self) -> None:
        """From now on what `chmod` says holds for the commands, as it does for everybody but root."""
        if os.geteuid() == 0:
            self.prefix = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
            if (
                shutil.which("setpriv") is None
                or subprocess.run([*self.prefix, "true"], capture_output=True).returncode
            ):
                import pytest  # here: the fuzzer's environment has none

                pytest.skip("no setpriv to give up root's privileges with")

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        """Start a command and come back at once."""
        options: dict[str, Any] = {
            "env": self.environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": self.root,
        }  # fmt: skip
        return subprocess.Popen(self.argv(*arguments), **(options | more))

    def cli(
        self, *arguments: str, code: int | None = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `code` is the exit code that it must have (None: any)."""
        done = subprocess.run(
            self.argv(*arguments), env=self.environment | (env or {}), capture_output=True, text=True, cwd=self.root,
            timeout=PATIENCE * 3,
        )  # fmt: skip
        if code is not None and done.returncode != code:
            raise AssertionError(
                f"{arguments} ended with {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}\n{self.scheduler_log()}"
            )
        return done

    def json(self, *arguments: str, code: int | None = 0) -> Any:
        return json.loads(self.cli(*arguments, "--json", code=code).stdout)

    def tick(
        self, *arguments: str, code: int | None = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.cli("tick", *arguments, code=code, env=env)

    def history(self, *arguments: str) -> list[dict[str, Any]]:
        return self.json("history", "--limit", "1000", *arguments)

    def runs(self, task_id: str) -> list[dict[str, Any]]:
        """The runs of a task that really ran, oldest first; what `history --json` shows of them, without starting it."""
        connection = sqlite3.connect(self.root / "state" / "tickdown.db", timeout=30)
        connection.row_factory = sqlite3.Row
        try:
            rows = connection.execute(
                "SELECT * FROM task_runs WHERE task_id = ? AND status NOT IN ('skipped', 'missed') ORDER BY recorded_at, rowid",
                (task_id,),
            ).fetchall()
        finally:
            connection.close()
        return [run_json(to_run(row), UTC) for row in rows]

    def listed(self) -> list[dict[str, Any]]:
        """What `list --json` shows, without starting it."""
        found, now = find_workspace(str(self.root), {}, PROJECT), datetime.now(UTC)
        catalog, db = app_with(found, load_settings(found, self.environment)).open(now)
        try:
            views = [task_json(view) for view in task_views(db, catalog, now, found.locks)]
            rejected = [rejected_json(*each, UTC) for each in rejected_files(db, catalog)]
        finally:
            db.close()
        return json.loads(json.dumps(views + rejected))

    def last_run(self, task_id: str) -> dict[str, Any]:
        return self.runs(task_id)[-1]

    # --- behind the scenes ---

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.root / "state" / "tickdown.db", timeout=30) as connection:
            rows = connection.execute(statement, values).fetchall()
        connection.close()
        return rows

    def log_text(self, run: dict[str, Any]) -> str:
        return (self.root / run["log"]).read_text(errors="replace")

    def scheduler_log(self) -> str:
        path = self.root / "logs" / "scheduler.log"
        return path.read_text() if path.exists() else ""

    def move_back(self, task_id: str, by: str) -> None:
        """Pretend that a task was armed and last taken up earlier (`by` as SQLite says it: '-2 hours')."""
        for column in ("armed_at", "last_occurrence", "last_end"):
            self.sql(
                f"UPDATE tasks SET {column} = strftime('%Y-%m-%dT%H:%M:%fZ', {column}, ?) WHERE id = ?", by, task_id
            )

    def processes(self) -> list[int]:
        """Everything alive that was started for this workspace."""
        mark = str(self.root).encode()
        found = []
        for name in os.listdir("/proc"):
            if not name.isdecimal() or int(name) == os.getpid() or not alive(int(name)):
                continue
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes()
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if b"TICKDOWN_WORKSPACE=" + mark + b"\0" in environment or (b"scheduler.py" in command and mark in command):
                found.append(int(name))
        return found

    def rows(self, task_id: str) -> list[tuple[str, str | None, int]]:
        """(status, reason, count) of everything recorded about a task, oldest first; quicker than asking `history`."""
        return self.sql(
            "SELECT status, reason, count FROM task_runs WHERE task_id = ? ORDER BY recorded_at, rowid", task_id
        )

    def kill_everything(self) -> list[int]:
        left = self.processes()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return left


class Gate:
    """A named pipe at which a task waits, once or several times, until the test lets it through."""

    def __init__(self, workspace: Workspace, name: str = "gate") -> None:
        self.path, self._arrived = workspace.root / name, workspace.root / f"{name}.arrived"
        self.command = f"touch {self._arrived}; read _ < {self.path}"
        os.mkfifo(self.path)

    def wait(self) -> None:
        """Until the task stands at the gate."""
        wait_for(self._arrived.exists, f"a task at {self.path.name}")

    def open(self) -> None:
        wait_for(self._let_through, f"a task waiting at {self.path.name}")

    def _let_through(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False  # nobody stands there yet
        self._arrived.unlink(missing_ok=True)  # before it goes on: it may be back at once
        with open(descriptor, "w") as pipe:
            pipe.write("go\n")
        return True


def half_past(offset_minutes: int = 30) -> str:
    """An hourly cron line whose last occurrence was half an hour ago, so that no test depends on the minute it runs in."""
    return f"{(datetime.now(UTC) - timedelta(minutes=offset_minutes)).minute} * * * *"


class Telegram:
    """A loopback server in the place of Telegram. `script` decides each answer: (status, JSON or bytes), or 'stall'."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.script: Callable[[int], Any] = lambda number: (200, {"ok": True, "result": {"message_id": number}})
        self._release: queue.Queue[None] = queue.Queue()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                outer.paths.append(self.path)
                outer.messages.append(json.loads(body) if body else {})
                planned = outer.script(len(outer.paths))
                if planned == "stall":
                    outer._release.get()
                    return
                status, content = planned
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.messages if "text" in message]

    def configure(self, workspace: Workspace, more: str = "") -> None:
        """Make a workspace send its alerts here."""
        (workspace.root / ".env").write_text("TELEGRAM_BOT_TOKEN=123456:a-secret-token\n")
        (workspace.root / ".env").chmod(0o600)
        workspace.config(
            f"notify:\n  telegram: {{base_url: '{self.url}'}}\n"
            f"  destinations: {{home: {{chat: '-1001', thread: 7}}, work: {{chat: '-1002'}}}}\n  default: home\n{more}"
        )

    def hang_up(self) -> None:
        """On one that was stalled."""
        self._release.put(None)

    def close(self) -> None:
        for _ in range(50):
            self.hang_up()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def well_formed(text: str) -> str:
    """The text that Telegram would show; fails if a tag or an entity is cut or not closed."""
    open_tags: list[str] = []
    for tag in re.findall("<[^>]*>", text):
        assert re.fullmatch("</?(b|i|pre)>", tag), tag
        if tag.startswith("</"):
            assert open_tags.pop() == tag[2:]
        else:
            open_tags.append(tag[1:])
    assert not open_tags
    bare = re.sub("<[^>]*>", "", text)
    assert "<" not in bare and ">" not in bare
    assert not re.search("&(?!(amp|lt|gt);)", bare)
    return html.unescape(bare)
