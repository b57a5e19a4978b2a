"""Disks that are full, closed to us or without a folder; no descriptors and no processes left."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from random import Random

from tests.faults.injection import fill, limited, ordinary_user, small_disk, telegram_of
from tests.faults.invariants import check, journalled, tick_until_quiet
from tests.faults.kinds import kind
from tests.helpers import Gate, Telegram, Workspace, wait_for

ONCE = [("success", None, 1)]


def tasks_of(random: Random, workspace: Workspace) -> list[str]:
    """Some that succeed, some that print a lot, some that need a second attempt."""
    names = [f"t{number}" for number in range(random.randint(2, 4))]
    for name in names:
        noise = random.choice(["echo hello", "head -c 200000 /dev/zero | tr '\\0' x", "true"])
        if random.random() < 0.3:
            noise = f'{noise}; [ "$TICKDOWN_ATTEMPT" != 1 ]'
        workspace.task(name, journalled(workspace, noise), schedule="1h", retry=5)
    return names


def each_ran_once(workspace: Workspace, names: list[str], telegram: Telegram | None = None) -> None:
    check(workspace, telegram, no_database=True)
    for name in names:
        assert workspace.rows(name) == ONCE, f"{name}: {workspace.rows(name)}"
        (run,) = workspace.runs(name)
        orphans = workspace.sql("SELECT 1 FROM attempts WHERE run_id = ? AND status = 'orphaned'", run["run_id"])
        assert not orphans, f"{name} was cut off"


def without_traceback(done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stderr and "a bug" not in done.stderr, done.stderr
    assert done.returncode in (0, 1), done
    assert done.returncode == 0 or "scheduler.py: " in done.stdout + done.stderr, done


@kind("disk full before a tick", seeds=1)
def full_before(random: Random, workspace: Workspace) -> None:
    with small_disk(workspace, 2048):
        (workspace.root / "tasks").mkdir()
        with telegram_of(workspace) as telegram:
            names = tasks_of(random, workspace)
            if random.random() < 0.5:  # with a database that is there already, or with none
                workspace.task("old", schedule="1h")
                workspace.tick("--dry-run")
                workspace.cli("run", "old")
            filler = fill(workspace.root, leave=random.choice([0, 0, 4096, 20_000, 60_000]))
            done = workspace.tick(code=None)
            without_traceback(done)
            if done.returncode:
                assert "can't be" in done.stderr or "No space left" in done.stderr, done.stderr
                told = len(telegram.texts)
                assert told and "the scheduler can't work" in telegram.texts[-1], (done, telegram.texts)
                without_traceback(workspace.tick(code=None))
                assert len(telegram.texts) == told, "told again within the hour"
            filler.unlink()
            (workspace.root / "tasks" / "old.md").unlink(missing_ok=True)
            tick_until_quiet(workspace)
            each_ran_once(workspace, names, telegram)


@kind("disk full while tasks run", seeds=1)
def full_meanwhile(random: Random, workspace: Workspace) -> None:
    """The ends can't be recorded for a while: they wait for it, and no task is cut off or run again."""
    with small_disk(workspace, 2048):
        (workspace.root / "tasks").mkdir()
        with telegram_of(workspace) as telegram:
            gates = [Gate(workspace, f"gate{number}") for number in range(random.randint(1, 3))]
            names = [f"t{number}" for number in range(len(gates) + random.randint(0, 2))]
            workspace.config((workspace.root / "config.yaml").read_text() + f"max_concurrent: {len(gates)}\n")
            for name, gate in zip(names, [*gates, None, None], strict=False):
                command = (gate.command if gate else "true") + random.choice(["", "; head -c 3000000 /dev/zero"])
                if random.random() < 0.4:
                    command += '; [ "$TICKDOWN_ATTEMPT" != 1 ]'
                    gate_again = f'[ "$TICKDOWN_ATTEMPT" != 1 ] || {{ {command}; }}'
                    command = gate_again
                # Their logs alone must not fill it: then it would stay so, and their ends would wait for ever.
                more = {"retry": 1, "priority": 0 if gate else -1, "max_log": "50 KiB"}
                workspace.task(name, journalled(workspace, command), schedule="1h", **more)
            (workspace.root / "journal").write_bytes(b"")
            tick = workspace.start("tick")
            for gate in gates:
                gate.wait()
            filler = fill(workspace.root)
            for gate in gates:
                gate.open()
            written = wait_for(lambda: _said(workspace, tick, gates), "the trouble")
            filler.unlink()
            stdout, stderr = tick.communicate(timeout=120)
            assert tick.returncode in (0, 1), (tick.returncode, stdout, stderr)
            assert not tick.returncode or "can't be" in stderr, (written, stderr)
            tick_until_quiet(workspace)
            check(workspace, telegram, no_database=True)
            for name in names:
                assert workspace.rows(name) == ONCE, f"{name}: {workspace.rows(name)}\n{stderr}"


def _said(workspace: Workspace, tick: subprocess.Popen[str], gates: list[Gate]) -> bool:
    """All tasks of the tick have ended, so that it is about to record that, or has tried to."""
    mine = [pid for pid in workspace.processes() if pid != tick.pid]
    return not mine or tick.poll() is not None


@kind("writes refused while tasks run", seeds=1)
def refused_meanwhile(random: Random, workspace: Workspace) -> None:
    """Without any right: every write beyond the end of a file fails, as on a full disk."""
    gate = Gate(workspace)
    again = random.random() < 0.5
    fails_first = '[ "$TICKDOWN_ATTEMPT" != 1 ]' if again else "true"
    at_gate = f'[ "$TICKDOWN_ATTEMPT" != 1 ] || {{ {gate.command}; }}; {fails_first}'
    workspace.task("held", journalled(workspace, at_gate), schedule="1h", retry=1)
    workspace.task("after", journalled(workspace), schedule="manual", after="held")
    with telegram_of(workspace) as telegram:
        tick = workspace.start("tick")
        gate.wait()
        with limited(tick.pid, resource.RLIMIT_FSIZE, random.choice([0, 1, 4096])):
            gate.open()
            assert tick.stderr is not None
            said = tick.stderr.readline()
            assert "can't be written" in said and "what runs goes on" in said, said
            assert tick.poll() is None, "it did not wait until the end could be recorded"
        stderr = tick.communicate(timeout=120)[1]
        assert tick.returncode == 1 and "can't be used" in stderr, (tick.returncode, stderr)
        assert "the scheduler could not work for a while" in telegram.texts[-1]
        tick_until_quiet(workspace)
        each_ran_once(workspace, ["held", "after"], telegram)
    assert (
        len(workspace.sql("SELECT 1 FROM attempts JOIN task_runs USING (run_id) WHERE task_id = 'held'")) == 1 + again
    )


@kind("state is read-only", seeds=1)
def read_only(random: Random, workspace: Workspace) -> None:
    """Closed before a tick, or between the claim and the end of a run: what has begun is seen to its end."""
    with ordinary_user(workspace) as own, telegram_of(own) as telegram:
        gate = Gate(own)
        gate.path.chmod(0o666)
        own.task("known", journalled(own), schedule="1h")
        own.tick()
        own.task("held", journalled(own, gate.command), schedule="1h")
        own.task("late", journalled(own), schedule="1h", priority=-1)
        state = own.root / "state"
        closed = [state, *random.sample([state / "tickdown.db", state / "locks"], random.randint(0, 2))]
        meanwhile = random.random() < 0.5
        own.config((own.root / "config.yaml").read_text() + "max_concurrent: 1\n")
        tick = own.start("tick") if meanwhile else None
        if meanwhile:
            gate.wait()
        modes = {path: path.stat().st_mode for path in closed}
        for path in closed:
            path.chmod(modes[path] & 0o7555)
        if tick is None:
            gate_free = own.start("tick")
            stderr = gate_free.communicate(timeout=120)[1] if state / "tickdown.db" in closed else ""
        else:
            gate_free, stderr = tick, ""
            failed = own.tick(code=None)
            without_traceback(failed)
        if _at_gate(gate_free, gate):
            gate.open()
        if not stderr:
            stderr = gate_free.communicate(timeout=120)[1]
        assert gate_free.returncode in (0, 1) and "a bug" not in stderr, stderr
        assert not gate_free.returncode or "can't be" in stderr, stderr
        for path, mode in modes.items():
            path.chmod(mode)
        own.sql("UPDATE tasks SET retry_at = '2020-01-01T00:00:00.000Z', look_at = '' WHERE retry_at IS NOT NULL")
        while own.rows("held")[-1:] != ONCE:
            follow = own.start("tick")
            if _at_gate(follow, gate):
                gate.open()
            follow.communicate(timeout=120)
        tick_until_quiet(own)
        check(own, telegram, no_database=True)
        for name in ("known", "held", "late"):
            runs = own.runs(name)
            assert [run["status"] for run in runs if run["status"] != "failed"] == ["success"], (name, runs, stderr)


def _at_gate(tick: subprocess.Popen[str], gate: Gate) -> bool:
    """False if the tick ends without it."""
    arrived = gate.path.with_name(f"{gate.path.name}.arrived")
    wait_for(lambda: arrived.exists() or tick.poll() is not None, "a task at the gate, or the end of the tick")
    return arrived.exists()


@kind("logs are gone", seeds=1)
def no_logs(random: Random, workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("held", journalled(workspace, f"echo before; {gate.command}; echo after"), schedule="1h")
    if random.random() < 0.5:
        workspace.cli("run", "--dry-run", "held")
        shutil.rmtree(workspace.root / "logs", ignore_errors=True)
    tick = workspace.start("tick")
    gate.wait()
    shutil.rmtree(workspace.root / "logs")
    if random.random() < 0.3:
        (workspace.root / "logs").write_text("a file in its place")
    gate.open()
    stderr = tick.communicate(timeout=120)[1]
    assert tick.returncode == 0, stderr
    (workspace.root / "logs").unlink() if (workspace.root / "logs").is_file() else None
    workspace.task("next", journalled(workspace, "echo here"), schedule="1h")
    tick_until_quiet(workspace)
    each_ran_once(workspace, ["held", "next"])
    assert "here" in workspace.log_text(workspace.last_run("next"))
    assert '"run_finished"' in workspace.scheduler_log()


@kind("no file descriptors left", seeds=1)
def no_descriptors(random: Random, workspace: Workspace) -> None:
    names = tasks_of(random, workspace)
    if random.random() < 0.5:
        workspace.tick("--dry-run")
    most = random.randint(5, 40)
    line = f'ulimit -n {most}; exec "$@"'
    with telegram_of(workspace) as telegram:
        tick = subprocess.run(
            ["sh", "-c", line, "sh", *workspace.argv("tick")], env=workspace.environment, cwd=workspace.root,
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        without_traceback(tick)
        assert not tick.returncode or "open files" in tick.stderr or "unable to open" in tick.stderr, tick.stderr
        _all_run_in_the_end(workspace, names, telegram)


@kind("no processes can be started", seeds=1)
def no_processes(random: Random, workspace: Workspace) -> None:
    with ordinary_user(workspace) as own, telegram_of(own) as telegram:
        names = tasks_of(random, own)
        own.cli("list")
        tick = subprocess.run(
            own.argv("tick"), env=own.environment, cwd=own.root, capture_output=True, text=True, timeout=180,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)),
        )  # fmt: skip
        without_traceback(tick)
        said = [error for (error,) in own.sql("SELECT error FROM task_runs WHERE status = 'failed'")]
        assert len(said) == len(names) and all("limit of processes" in error for error in said), (said, tick.stderr)
        assert own.sql("SELECT COUNT(*) FROM alerts WHERE title = 'tasks can''t be started'") == [(1,)]
        _all_run_in_the_end(own, names, telegram)


def _all_run_in_the_end(workspace: Workspace, names: list[str], telegram: Telegram) -> None:
    """What could not be started waits a few minutes for its follow-up; here they are over at once."""
    for _ in range(3):
        tick_until_quiet(workspace)
        workspace.sql("UPDATE tasks SET retry_at = '2020-01-01T00:00:00.000Z', look_at = '' WHERE retry_at IS NOT NULL")
    tick_until_quiet(workspace)
    check(workspace, telegram, no_database=True)
    for name in names:
        done = [run["status"] for run in workspace.runs(name)]
        assert done.count("success") == 1 and set(done) <= {"success", "failed"}, (name, workspace.runs(name))
    assert os.path.exists(workspace.root / "journal")
