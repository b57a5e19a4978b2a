"""The installation as a person makes it: the real crontab.example under a real Debian cron.

Everything that cron reads or writes is covered by folders of our own in a private mount namespace, so the crontabs
of the machine are neither seen nor touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PROJECT, alive, wait_for

# $1: the crontab of root; $2: an empty file in the place of /etc/crontab. The shell becomes cron itself.
UNDER_COVER = """
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /etc/cron.d
mount -t tmpfs tmpfs /var/spool/cron
mount --bind "$2" /etc/crontab
mkdir -m 1730 /var/spool/cron/crontabs
install -m 600 "$1" /var/spool/cron/crontabs/root
exec cron -f
"""


def find_cron() -> str:
    """The cron program, or a reason to skip."""
    cron = shutil.which("cron", path="/usr/sbin:/sbin:/usr/bin")
    if cron is None:
        pytest.skip("no cron daemon is installed")
    if os.geteuid() != 0:
        pytest.skip("only root can start a cron daemon")
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("private mounts (unshare --mount) are refused here")
    return cron


def install_copy(home: Path, command: str) -> None:
    """A copy of the project with one task that is due at once."""
    shutil.copytree(PROJECT / "lib", home / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "scheduler.py", home)
    (home / "tasks").mkdir()
    (home / "tasks" / "fired.md").write_text(f"---\nid: fired\nschedule: 1h\ncommand: {command}\n---\n")


def processes_with(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and text.encode() in (entry / "cmdline").read_bytes() and alive(int(entry.name)):
                found.append(int(entry.name))
        except OSError:
            continue  # it ended while we looked
    return found


def test_a_real_cron_fires_a_task_through_the_line_of_crontab_example(tmp_path: Path) -> None:
    cron = find_cron()
    home = tmp_path / "a home with spaces"
    install_copy(home, "'echo \"$PATH\" > marker'")
    text = (PROJECT / "crontab.example").read_text()
    text = text.replace("/opt/tickdown/.venv/bin/python", sys.executable).replace("/opt/tickdown", str(home))
    crontab, empty = tmp_path / "crontab", tmp_path / "empty"
    crontab.write_text(text)
    empty.touch(mode=0o644)
    daemon = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", UNDER_COVER, "sh", crontab, empty],
        env={"PATH": f"{Path(cron).parent}:/usr/sbin:/usr/bin:/sbin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        # Up to a minute until cron looks, then the tick itself.
        for _ in range(3):
            try:
                wait_for(lambda: (home / "marker").exists() and (home / "marker").read_text(), "a tick started by cron")
                break
            except AssertionError:
                assert daemon.poll() is None, daemon.communicate()[0]
        assert str(home) in (home / "marker").read_text()
        wait_for(lambda: not processes_with(f"{home}/scheduler.py"), "the end of the tick")
    finally:
        daemon.terminate()
        daemon.communicate()
    told = subprocess.run(
        [sys.executable, home / "scheduler.py", "history", "--json"], capture_output=True, text=True, check=True
    )
    assert '"status": "success"' in told.stdout and told.stdout.count('"run_id"') == 1
