"""Kill anywhere: a tick over twenty due tasks ends by SIGKILL, at a random moment or at a chosen point of its work, and those
that come to clear up after it do too. Then ticks go on until quiet, and everything must be as if somebody had only been slow."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from tests.faults import mortal
from tests.faults.invariants import (
    Journal,
    check,
    check_none_lost,
    end_leases,
    journalled,
    leased_alerts,
    tick_until_quiet,
)
from tests.faults.kinds import kind
from tests.helpers import PATIENCE, Telegram, Workspace, half_past, wait_for

AWHILE = "sleep 0.2"
MISSED = 3  # occurrences of each cron line


@dataclass(slots=True)
class Trial:
    """A workspace with twenty due tasks of all kinds, and what must come of them."""

    random: Random
    workspace: Workspace
    telegram: Telegram
    ends_as: dict[str, str] = field(default_factory=dict)  # how each run of a task ends if nobody interferes
    must_not_rerun: set[str] = field(default_factory=set)
    due: dict[str, int | list[datetime]] = field(default_factory=dict)
    maybe_twice: set[int] = field(default_factory=set)  # alerts that were cut off between sending and stamp
    kills: int = 0
    arming_took: float = 0.0

    # --- before ---

    def add(
        self, task_id: str, command: str = ":", schedule: str = "2h", ends_as: str = "success", **more: object
    ) -> None:
        fields = {"priority": self.random.randint(-2, 2), "timeout": 60, **more}
        self.workspace.task(task_id, journalled(self.workspace, command), schedule, **fields)
        self.ends_as[task_id] = ends_as
        self.due[task_id] = 1

    def prepare(self) -> None:
        """Some have been known for hours, others are new to the tick that is to be killed."""
        self.telegram.configure(self.workspace, "max_concurrent: 6\n")
        line = half_past()
        self.add("all", schedule=line, catch_up="all")
        self.add("once", schedule=line, catch_up="once")
        self.add("skip", schedule=line, catch_up="skip")
        self.add("one-shot", schedule="in 30 minutes")
        self.add("one-shot-fails", "exit 3", "in 30 minutes", "failed")
        began = time.monotonic()
        self.workspace.tick()
        self.arming_took = time.monotonic() - began
        for task_id in ("all", "once", "skip"):
            self.workspace.move_back(task_id, f"-{MISSED} hours")
            self.due[task_id] = last_occurrences(line, MISSED)
        for column in ("armed_at", "anchored_at"):
            self.workspace.sql(
                f"UPDATE tasks SET {column} = strftime('%Y-%m-%dT%H:%M:%fZ', {column}, '-30 minutes') WHERE id LIKE 'one-shot%'"
            )
        for number in range(1, 5):
            self.add(f"quick-{number}")
            self.add(f"slow-{number}", AWHILE)
        self.add("told", notify_on="always")
        self.add("fails", "exit 1", ends_as="failed")
        self.add("fails-slowly", f"{AWHILE}; exit 1", ends_as="failed")
        self.add("retried", "exit 1", ends_as="failed", retry=1)
        self.add("retried-twice", "exit 1", ends_as="failed", retry=2)
        self.add("first-only", "exit 1", ends_as="failed", rerun_interrupted=False)
        self.add("once-only", rerun_interrupted=False)
        self.add("once-only-slow", AWHILE, rerun_interrupted=False)
        self.must_not_rerun = {"first-only", "once-only", "once-only-slow"}
        self.add("then", schedule="manual", after="quick-1")
        self.add("then-again", AWHILE, "manual", after="then")
        self.add("if-it-fails", schedule="manual", after={"fails": "failure"})
        self.add("unwanted", ends_as="skipped")
        self.workspace.cli("comment", "unwanted", "/skip")
        self.workspace.write_task("broken", "---\nid: broken\nschedule: whenever\n---\n")
        self.workspace.sql("UPDATE heartbeats SET at = strftime('%Y-%m-%dT%H:%M:%fZ', at, '-1 hours')")  # nobody came

    # --- killing ---

    def after_kill(self) -> None:
        self.kills += 1
        self.maybe_twice |= leased_alerts(self.workspace)

    # --- after ---

    def settle(self) -> None:
        """Ticks go on; then as long as it takes until nobody waits for a dead sender any more."""
        if self.random.random() < 0.5:
            self.workspace.tick()  # beside a helper that has survived
        wait_for(lambda: not self._schedulers(), "the end of helpers")
        tick_until_quiet(self.workspace, code=0)
        end_leases(self.workspace)
        tick_until_quiet(self.workspace, code=0)

    def _schedulers(self) -> list[int]:
        return [pid for pid in self.workspace.processes() if b"scheduler.py" in _command_line(pid)]

    def check_usual(self) -> None:
        check(self.workspace, self.telegram, self.maybe_twice)
        waiting = self.workspace.sql("SELECT id, title, error FROM alerts WHERE status = 'pending'")
        assert not waiting, f"alerts that wait for nothing: {waiting}"

    def check(self) -> None:
        self.check_usual()
        workspace = self.workspace
        runs = workspace.sql(
            "SELECT run_id, task_id, status, interruptions FROM task_runs WHERE status NOT IN ('skipped', 'missed')"
        )
        ended = {task_id: status for _, task_id, status, _ in runs}
        self._check_chains(ended)
        check_none_lost(workspace, self.due)
        for run_id, task_id, status, interruptions in runs:
            self._check_run(run_id, task_id, status, interruptions)
        unwanted = [row for row in workspace.rows("unwanted") if row[1] != "at_capacity"]  # it may have waited first
        # Cut off twice before its comment was read, it is given up like any other.
        assert unwanted in ([("skipped", "comment", 1)], [("orphaned", None, 1)]), unwanted
        assert "unwanted" not in self._started(), "started against a comment"
        told = workspace.sql(
            "SELECT kind, COUNT(*) FROM alerts WHERE task_id IS NULL AND kind <> 'crash' GROUP BY kind"
        )
        assert told == [("outage", 1), ("rejected", 1)], told
        self._check_once_only()
        self._check_counters(runs)
        self._check_files(ended)

    def _check_chains(self, ended: dict[str, str]) -> None:
        """Who comes after an end that did not come as it wants has nothing to do."""
        for task_id, upstream, wanted in (
            ("then", "quick-1", "success"), ("then-again", "then", "success"), ("if-it-fails", "fails", "failed"),
        ):  # fmt: skip
            self.due[task_id] = 1 if ended.get(upstream) == wanted else 0

    def _check_run(self, run_id: str, task_id: str, status: str, interruptions: int) -> None:
        told = f"{task_id} ({run_id}) is {status} after {interruptions} interruptions and {self.kills} kills"
        attempts = self.workspace.sql("SELECT rung, status FROM attempts WHERE run_id = ? ORDER BY number", run_id)
        cut_off = sum(how == "orphaned" for _, how in attempts)
        assert interruptions == cut_off <= self.kills, f"{told}; attempts {attempts}"
        alerts = self.workspace.sql("SELECT kind FROM alerts WHERE run_id = ?", run_id)
        if status == "orphaned":
            allowed = 1 if task_id in self.must_not_rerun else 2
            assert cut_off == allowed, f"{told}; attempts {attempts}"
            assert alerts == [("interrupted",)], f"{told}; alerts {alerts}"
            return
        assert status == self.ends_as[task_id], told
        retries = sum(rung == "retry" for rung, _ in attempts)
        wanted = {"retried": 1, "retried-twice": 2}.get(task_id, 0)
        # A retry that is cut off is used up; what follows it is no retry.
        assert retries == wanted, f"{told}; attempts {attempts}"
        expected = [("failed",)] if status == "failed" else [("success",)] if task_id == "told" else []
        assert alerts == expected, f"{told}; alerts {alerts}"

    def _check_once_only(self) -> None:
        """What must not be started twice was not, whatever became of it."""
        began = self._started()
        twice = [task_id for task_id in self.must_not_rerun if began[task_id] > 1]
        assert not twice, f"started twice: {twice}"

    def _started(self) -> Counter[str]:
        """How often the command of each task really was."""
        task_of = dict(self.workspace.sql("SELECT run_id, task_id FROM task_runs"))
        return Counter(task_of[run_id] for run_id, _ in Journal.of(self.workspace).began)

    def _check_counters(self, runs: list[tuple[str, str, str, int]]) -> None:
        """An end counts once; one that was cut off does not count."""
        failed = Counter(task_id for _, task_id, status, _ in runs if status == "failed")
        for task_id, failures in self.workspace.sql("SELECT id, failures FROM tasks"):
            assert failures == failed[task_id], f"{task_id}: {failures} failures, not {failed[task_id]}"

    def _check_files(self, ended: dict[str, str]) -> None:
        """One-shots are over, and their files say so; nothing half-written lies beside them."""
        for task_id in ("one-shot", "one-shot-fails"):
            reason = "completed" if ended[task_id] == "success" else "failed"
            text = (self.workspace.root / "tasks" / f"{task_id}.md").read_text()
            assert "\nenabled: false\n" in text and f"\ndisabled_reason: {reason}\n" in text, text


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def last_occurrences(line: str, count: int) -> list[datetime]:
    """Of a line that `half_past` made."""
    at = datetime.now(UTC).replace(minute=int(line.split()[0]), second=0, microsecond=0)
    at -= timedelta(hours=at > datetime.now(UTC))
    return [at - timedelta(hours=back) for back in range(count)]


@contextmanager
def prepared(random: Random, workspace: Workspace) -> Iterator[Trial]:
    telegram = Telegram()
    telegram.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # whoever asked may be dead
    try:
        trial = Trial(random, workspace, telegram)
        trial.prepare()
        yield trial
    finally:
        telegram.close()


# --- at any moment -------------------------------------------------------------------------------------------------


@kind("tick killed at a random moment", seeds=1)
def random_moment(random: Random, workspace: Workspace) -> None:
    with prepared(random, workspace) as trial:
        for _ in range(random.randint(1, 3)):
            tick = workspace.start("tick", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # Over its whole length, on any machine: it takes some times as long as the one that only looked around.
            try:
                tick.wait(random.uniform(0.3, 5) * trial.arming_took)
            except subprocess.TimeoutExpired:
                tick.kill()
                tick.wait()
                if random.random() < 0.3:
                    workspace.kill_everything()  # as when the machine is switched off
                trial.after_kill()
        trial.settle()
        trial.check()


@kind("several ticks at once, some killed", seeds=1)
def some_of_several(random: Random, workspace: Workspace) -> None:
    with prepared(random, workspace) as trial:
        ticks = [workspace.start("tick", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(6)]
        doomed = random.sample(ticks, 4)
        for tick in doomed:
            try:
                tick.wait(random.uniform(0, 3) * trial.arming_took)
            except subprocess.TimeoutExpired:
                tick.kill()
                tick.wait()
                trial.after_kill()
        for tick in ticks:
            code = tick.wait(PATIENCE * 3)
            assert code == 0 or (code == -signal.SIGKILL and tick in doomed), code
        trial.settle()
        trial.check()


# --- at every point ------------------------------------------------------------------------------------------------

# Points that every first tick of a trial passes: how often at the least, however much shares one transaction.
SURE = {"begin": 40, "commit": 40, "spawn": 56, "rename": 4, "answer": 2, "fork": 3, "note": 100}


@kind("tick killed before or after a transaction", seeds=1)
def at_a_transaction(random: Random, workspace: Workspace) -> None:
    killed_at_points(random, workspace, random.choice(["begin", "commit"]))


@kind("tick killed before or after a start", seeds=1)
def at_a_start(random: Random, workspace: Workspace) -> None:
    killed_at_points(random, workspace, random.choice(["spawn", "spawn", "note"]))


@kind("tick killed while a file or an alert goes out", seeds=1)
def at_a_side_effect(random: Random, workspace: Workspace) -> None:
    killed_at_points(random, workspace, random.choice(["rename", "answer"]))


@kind("tick or helper of a shared queue killed", seeds=1)
def in_a_shared_queue(random: Random, workspace: Workspace) -> None:
    killed_at_points(random, workspace, random.choice(["fork", "begin", "commit", "spawn"]), share=8)


@kind("tick killed amid a long queue", seeds=1)
def amid_a_long_queue(random: Random, workspace: Workspace) -> None:
    """Of quick tasks, so that some are claimed ahead, by one process or two."""
    workspace.config(f"max_concurrent: {random.randint(2, 6)}\n")
    names = [f"t{number:02}" for number in range(60)]
    for name in names:
        workspace.task(name, journalled(workspace), schedule="1h")
    share = random.choice([0, 20])
    for _ in range(random.randint(1, 3)):
        label = random.choice(["begin", "commit", "spawn", "note"])
        run_mortal(workspace, label, random.randint(1, 60 if label == "spawn" else 20), share=share)
    tick_until_quiet(workspace)
    check(workspace)
    for name in names:
        ended = [status for status, _, _ in workspace.rows(name) if status != "skipped"]
        assert ended in (["success"], ["orphaned"]), f"{name}: {workspace.rows(name)}"


def killed_at_points(random: Random, workspace: Workspace, label: str, *, share: int = 0) -> None:
    """One death at such a point, and then some of those that clear up die too, wherever."""
    with prepared(random, workspace) as trial:
        assert killed_at(trial, label, random.randint(1, SURE[label]), share=share), f"nobody came to this {label}"
        for _ in range(random.choice([0, 1, 1, 2])):
            if random.random() < 0.3:
                workspace.kill_everything()
            killed_at(trial, "", random.randint(1, 250), share=share)
        trial.settle()
        trial.check()


def killed_at(trial: Trial, label: str, number: int, *, share: int = 0) -> bool:
    """Whether somebody died: not where fewer points were passed."""
    code, points = run_mortal(trial.workspace, label, number, share=share)
    died = sum(point.endswith(label) for point in points) >= number
    assert died == (code != 0), f"a tick ended with {code} after {len(points)} points; to die at {label} {number}"
    if died:
        trial.after_kill()
    return died


def run_mortal(
    workspace: Workspace, label: str = "", number: int = 0, *, share: int = 0, command: Sequence[str] = ("tick",)
) -> tuple[int, list[str]]:
    """A tick, or another command, that dies when it passes such a point for the so-manieth time (0: never); its exit code and
    the points that were passed by its own end."""
    taken = len(list(workspace.root.parent.glob("ledger-*.sql")))
    ledger = workspace.root.parent / f"ledger-{taken + 1}"  # of its own: a helper of an earlier one may still be alive
    python, *argv = workspace.argv(*command)
    done = subprocess.run(
        [python, mortal.__file__, str(ledger), label, str(number), str(share), *argv], env=workspace.environment,
        cwd=workspace.root, timeout=PATIENCE * 3, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, mortal.passed(ledger)
