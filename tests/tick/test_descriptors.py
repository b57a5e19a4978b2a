"""Too few file descriptors: one clear message, and nothing is lost."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.helpers import PATIENCE, Telegram, Workspace

LIMITS = (4, 5, 6, 7, 8, 12, 17, 22, 26, 27, 29, 31)


def limited_to(most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def python_starts(most: int) -> bool:
    loads_much = [sys.executable, "-c", "import sqlite3, argparse"]
    return subprocess.run(loads_much, preexec_fn=limited_to(most), capture_output=True).returncode == 0


def under_limits(
    tmp_path: Path, *arguments: str, prepare: Callable[[Workspace], object]
) -> dict[int, tuple[Workspace, subprocess.CompletedProcess[str]]]:
    """The command in a workspace for each limit, all of them side by side."""
    started = {}
    for most in filter(python_starts, LIMITS):
        workspace = Workspace(tmp_path / "-".join([*arguments, str(most)]))
        workspace.task("a", "true", schedule="1h")
        workspace.task("b", "true", schedule="1h")
        prepare(workspace)
        started[most] = workspace, workspace.start(*arguments, preexec_fn=limited_to(most))
    found = {}
    for most, (workspace, process) in started.items():
        stdout, stderr = process.communicate(timeout=PATIENCE * 3)
        done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        assert "Traceback" not in stderr and "a bug" not in stderr + stdout, (most, done)
        assert done.returncode in (0, 1), (most, done)
        assert done.returncode == 0 or "raise the limit of open files (ulimit -n)" in stderr, (most, done)
        assert done.returncode == 0 or stderr.count("ulimit -n") == 1, (most, done)
        found[most] = workspace, done
    return found


def test_a_tick_says_that_it_has_too_few_and_loses_nothing(tmp_path: Path) -> None:
    telegram = Telegram()
    try:
        for prepare in (lambda new: None, telegram.configure):
            folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            for most, (workspace, done) in under_limits(folder, "tick", prepare=prepare).items():
                if done.returncode == 0 and workspace.sql("SELECT 1 FROM task_runs WHERE status = 'failed'"):
                    assert "ulimit -n" in "".join(telegram.texts) + done.stderr, (most, done)
                    workspace.sql("UPDATE tasks SET retry_at = '2020-01-01T00:00:00.000Z', look_at = ''")
                workspace.tick()
                for task_id in ("a", "b"):
                    ended = [status for status, _, _ in workspace.rows(task_id)]
                    assert ended in (["success"], ["failed", "success"]), (most, done, ended)
                assert '"crash"' not in workspace.scheduler_log()
        assert any("the scheduler can't work" in text and "ulimit -n" in text for text in telegram.texts)
    finally:
        telegram.close()


def test_an_idle_tick_that_lacks_them_says_so_too(tmp_path: Path) -> None:
    def settle(workspace: Workspace) -> None:
        workspace.tick()
        workspace.tick()

    done = [done for _, done in under_limits(tmp_path, "tick", prepare=settle).values()]
    assert {one.returncode for one in done} == {0, 1}


def test_other_commands_say_it_too(tmp_path: Path) -> None:
    for arguments in (("list",), ("run", "a")):
        found = under_limits(tmp_path, *arguments, prepare=lambda workspace: None)
        assert [done.returncode for _, done in found.values()] == sorted(
            (done.returncode for _, done in found.values()), reverse=True
        )
