"""A database that is locked by somebody else, cut off or changed by a bad disk."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

from tests.faults.disk import ONCE, each_ran_once, tasks_of, without_traceback
from tests.faults.injection import IMPATIENT, locked, telegram_of
from tests.faults.invariants import Journal, check, journalled, tick_until_quiet
from tests.faults.kinds import kind
from tests.helpers import Gate, Workspace, start_together, wait_for


def set_aside(path: Path) -> list[Path]:
    """Damaged databases, without what SQLite keeps beside one; oldest first."""
    return sorted(
        found for found in path.parent.glob(f"{path.name}.damaged-*") if not found.name.endswith(("-wal", "-shm"))
    )


@kind("database locked for 30 s", seeds=1)
def locked_for_a_while(random: Random, workspace: Workspace) -> None:
    """Everybody waits, and nobody is told of it."""
    names = tasks_of(random, workspace)
    gate = Gate(workspace)
    workspace.task("held", journalled(workspace, gate.command), schedule="1h", priority=1)
    workspace.config("max_concurrent: 9\n")
    first = workspace.start("tick")
    gate.wait()
    with locked(workspace):
        gate.open()  # its end has to wait
        waiting = [workspace.start("tick"), workspace.start("comment", names[0], "hello"), workspace.start("list")]
        time.sleep(30)  # the fault itself: it has to last
    for process in (first, *waiting):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0 and "locked" not in stdout + stderr, (process.args, stderr)
    tick_until_quiet(workspace)
    each_ran_once(workspace, [*names, "held"])


@kind("database locked while runs end", seeds=1)
def locked_for_too_long(random: Random, workspace: Workspace) -> None:
    """Longer than anybody waits for it: the run's end waits with its supervisor, other ticks say what is wrong, once."""
    workspace.scheduler = IMPATIENT
    gates = [Gate(workspace, f"gate{number}") for number in range(random.randint(1, 3))]
    names = [f"t{number}" for number in range(len(gates))]
    for name, gate in zip(names, gates, strict=True):
        workspace.task(name, journalled(workspace, f"{gate.command}; echo done"), schedule="1h")
    with telegram_of(workspace) as telegram:
        tick = workspace.start("tick")
        for gate in gates:
            gate.wait()
        with locked(workspace):
            for gate in gates[: random.randint(1, len(gates))]:
                gate.open()
            assert tick.stderr is not None
            assert "database is locked; what runs goes on" in tick.stderr.readline()
            other = workspace.tick(code=1)
            assert "database is locked; another process holds it locked" in other.stderr, other.stderr
            without_traceback(other)
            assert len(telegram.texts) == 1 and "database is locked" in telegram.texts[0], telegram.texts
            assert tick.poll() is None
        for gate in gates:
            if gate.path.with_name(f"{gate.path.name}.arrived").exists():
                gate.open()
        assert "can't be used" in tick.communicate(timeout=120)[1] and tick.returncode == 1
        tick_until_quiet(workspace)
        each_ran_once(workspace, names, telegram)


@kind("database locked while others wait for a slot", seeds=1)
def locked_before_a_slot_is_free(random: Random, workspace: Workspace) -> None:
    """The tick that had the trouble starts nothing more, so it must claim nothing more: what it claims must not start twice."""
    workspace.scheduler = IMPATIENT
    gate = Gate(workspace)
    workspace.task("held", journalled(workspace, gate.command), schedule="1h", priority=1)
    waiting = [f"t{number}" for number in range(random.randint(1, 4))]
    for name in waiting:
        workspace.task(name, journalled(workspace), schedule="1h", rerun_interrupted=False)
    with telegram_of(workspace, "max_concurrent: 1\n") as telegram:
        tick = workspace.start("tick")
        gate.wait()
        with locked(workspace):
            gate.open()
            assert tick.stderr is not None
            assert "database is locked; what runs goes on" in tick.stderr.readline()
        assert "can't be used" in tick.communicate(timeout=120)[1] and tick.returncode == 1
        tick_until_quiet(workspace)
        each_ran_once(workspace, ["held", *waiting], telegram)


@kind("database locked amid a long queue", seeds=1)
def locked_amid_a_long_queue(random: Random, workspace: Workspace) -> None:
    """Of quick tasks, so that some are claimed ahead. What is on record then is started, the rest is for a tick without trouble;
    sometimes a signal comes, too."""
    workspace.scheduler = IMPATIENT
    names = [f"t{number:02}" for number in range(60)]
    for name in names:
        workspace.task(name, journalled(workspace), schedule="1h")
    gate = Gate(workspace)  # so that the tick is not over before the fault has come
    workspace.task("held", journalled(workspace, gate.command), schedule="1h", priority=1)
    names.append("held")
    with telegram_of(workspace, f"max_concurrent: {random.randint(2, 5)}\n") as telegram:
        tick = workspace.start("tick")
        begin_at = random.randint(1, 50)
        wait_for(lambda: len(Journal.of(workspace).began) >= begin_at, "some that run")
        with locked(workspace):
            gate.open()
            assert tick.stderr is not None
            assert "database is locked; what runs goes on" in tick.stderr.readline()
            if random.random() < 0.3:
                tick.send_signal(signal.SIGTERM)
        tick.communicate(timeout=120)
        assert tick.returncode in (1, 143), tick.returncode
        tick_until_quiet(workspace)
        check(workspace, telegram, no_database=True)
        ended = [status for name in names for status, _, _ in workspace.rows(name) if status != "skipped"]
        assert len(ended) == len(names) and set(ended) <= (
            {"success"} if tick.returncode == 1 else {"success", "cancelled"}
        )


@kind("SIGTERM while an end waits for the database", seeds=1)
def terminated_while_locked(random: Random, workspace: Workspace) -> None:
    """What had ended by itself is recorded so; what had not is cancelled; the exit code is the signal's."""
    workspace.scheduler = IMPATIENT
    gates = {name: Gate(workspace, name) for name in ("ended", "held")}
    code = random.choice([0, 3])
    workspace.task("ended", journalled(workspace, f"{gates['ended'].command}; exit {code}"), schedule="1h", retry=3)
    workspace.task("held", journalled(workspace, gates["held"].command), schedule="1h")
    with telegram_of(workspace):
        tick = workspace.start("tick")
        for gate in gates.values():
            gate.wait()
        with locked(workspace):
            gates["ended"].open()
            assert tick.stderr is not None
            assert "database is locked; what runs goes on" in tick.stderr.readline()
            tick.send_signal(signal.SIGTERM)
            wait_for(lambda: not held_is_alive(workspace), "the end of what was to be ended")
        stderr = tick.communicate(timeout=120)[1]
        assert tick.returncode == 143, (tick.returncode, stderr)
        assert workspace.rows("held") == [("cancelled", None, 1)]
        assert workspace.rows("ended") == [("success" if code == 0 else "cancelled", None, 1)]
        assert workspace.sql("SELECT attempts FROM task_runs WHERE task_id = 'ended'") == [(1,)]


def held_is_alive(workspace: Workspace) -> bool:
    return any(b"TICKDOWN_TASK_ID=held\0" in environment_of(pid) for pid in workspace.processes())


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""  # it has just ended


@kind("database truncated", seeds=1)
def truncated(random: Random, workspace: Workspace) -> None:
    names = tasks_of(random, workspace)
    path = workspace.root / "state" / "tickdown.db"
    with telegram_of(workspace) as telegram:
        workspace.tick()
        ran = Journal.of(workspace)
        content = path.read_bytes()
        kept = content[
            : random.choice([random.randint(1, 99), random.randint(100, 4096), random.randint(4097, len(content) - 1)])
        ]
        path.write_bytes(kept)
        done = workspace.tick(code=None)
        without_traceback(done)
        assert done.returncode == 1 and "damaged" in done.stderr, (len(kept), len(content), done)
        (aside,) = set_aside(path)
        assert aside.read_bytes() == kept and aside.name in done.stderr
        assert any(aside.name in text for text in telegram.texts), telegram.texts
        assert Journal.of(workspace) == ran, "something ran on a guess"
        tick_until_quiet(workspace)
        assert Journal.of(workspace) == ran, "something ran again"
        assert workspace.sql("PRAGMA integrity_check") == [("ok",)]
        workspace.task("new", journalled(workspace), schedule="1h")
        workspace.tick()
        assert workspace.rows("new") == [("success", None, 1)]
        assert len(names) <= len(ran.began)


@kind("database deleted or emptied", seeds=1)
def lost(random: Random, workspace: Workspace) -> None:
    """Alone or with its companions, before a tick or while one runs: told once, nothing runs again, ticks go on."""
    names = tasks_of(random, workspace)
    gate = Gate(workspace)
    meanwhile = random.random() < 0.5
    if meanwhile:
        workspace.task("held", journalled(workspace, gate.command), schedule="1h")
    path = workspace.root / "state" / "tickdown.db"
    with telegram_of(workspace) as telegram:
        tick = workspace.start("tick")
        gate.wait() if meanwhile else tick.communicate(timeout=120)
        wait_for(lambda: all(workspace.rows(name) == ONCE for name in names), "the other tasks")
        told = len(telegram.texts)
        if random.random() < 0.5:
            os.truncate(path, 0)
        else:
            for suffix in ("", *random.sample(["-wal", "-shm"], random.randint(0, 2))):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
        ran = Journal.of(workspace)
        for done in start_together([workspace.argv("tick")] * random.randint(0, 4), env=workspace.environment):
            without_traceback(done)
            assert done.returncode == 0, done
        if meanwhile:
            gate.open()
            stdout, stderr = tick.communicate(timeout=120)
            assert tick.returncode in (0, 1) and "Traceback" not in stderr, (stdout, stderr)
        tick_until_quiet(workspace)
        # One that was emptied under a tick which had all of it in its log is whole again when that ends.
        is_whole = all(workspace.rows(name) == ONCE for name in names)
        said = ["the database is gone" in text for text in telegram.texts[told:]]
        assert said == ([] if is_whole else [True]), telegram.texts
        assert Journal.of(workspace).began == ran.began, "something ran again"
        workspace.task("new", journalled(workspace), schedule="1h")
        workspace.tick()
        assert workspace.rows("new") == [("success", None, 1)]
        assert workspace.sql("PRAGMA integrity_check") == [("ok",)]


@kind("database with flipped bits", seeds=1)
def bits_flipped(random: Random, workspace: Workspace) -> None:
    """What is noticed is set aside with an alert; nothing crashes, and ticks go on."""
    tasks_of(random, workspace)
    path = workspace.root / "state" / "tickdown.db"
    with telegram_of(workspace) as telegram:
        workspace.tick()
        workspace.cli("comment", "t0", "looks good")
        content = bytearray(path.read_bytes())
        for _ in range(random.choice([1, 8, 64, 512])):
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        path.write_bytes(content)
        for _ in range(3):
            done = workspace.tick(code=None)
            # A value that was changed into another of the same form can't be told from a bug; it is said all the same.
            if done.returncode == 70:
                assert workspace.sql("PRAGMA quick_check") == [("ok",)] and telegram.texts, done
                return
            without_traceback(done)
            if done.returncode:
                assert "damaged" in done.stderr, done
                assert any(set_aside(path)[-1].name in text for text in telegram.texts), telegram.texts
        workspace.task("new", journalled(workspace), schedule="1h")
        workspace.tick(code=None)
        tick_until_quiet(workspace)
        assert ("success", None, 1) in workspace.rows("new"), workspace.rows("new")


@kind("database damaged while tasks run", seeds=1)
def damaged_meanwhile(random: Random, workspace: Workspace) -> None:
    """What runs is seen to its end, and only then the tick says that it could not be recorded."""
    gate = Gate(workspace)
    workspace.task("held", journalled(workspace, gate.command), schedule="1h")
    with telegram_of(workspace) as telegram:
        workspace.task("first", schedule="1h", priority=1)
        tick = workspace.start("tick")
        gate.wait()
        path = workspace.root / "state" / "tickdown.db"
        garbage = random.randbytes(random.randint(5000, 50_000))
        for name in (path, path.with_name("tickdown.db-wal")):
            with name.open("r+b") as file:
                file.write(garbage)
        other = workspace.tick(code=None) if random.random() < 0.5 else None
        gate.open()
        stderr = tick.communicate(timeout=120)[1]
        assert tick.returncode in (0, 1) and "Traceback" not in stderr, (tick.returncode, stderr)
        assert sum(Journal.of(workspace).ended.values()) == 1, "it was cut off"
        if tick.returncode or (other and other.returncode):
            assert any("damaged" in text for text in telegram.texts), (stderr, telegram.texts)
        tick_until_quiet(workspace)
        assert sum(Journal.of(workspace).began.values()) == 1, "it ran again"
        assert not workspace.processes()
        # What the tick had in memory it could go on with, and idle ticks read next to nothing; one that looks finds it.
        workspace.task("later", journalled(workspace))
        tick_until_quiet(workspace)
        assert workspace.sql("PRAGMA integrity_check") == [("ok",)]
        assert sum(Journal.of(workspace).began.values()) == 1, "it ran again"
