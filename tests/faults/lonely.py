"""A tick that has but one thing to do is killed, or a person's command is. With nothing else due, the next ticks would take the
short way: what was cut off must be enough to call them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from tests.faults.invariants import Journal, check_none_lost, tick_until_quiet
from tests.faults.kill import MISSED, Trial, killed_at, last_occurrences, run_mortal
from tests.faults.kinds import kind
from tests.healing import BROKEN, FIX, FIXED, Healing, says
from tests.helpers import Telegram, Workspace, half_past

Task = Iterator[None]  # what there is to do; and after all, whether it was done
FEW, MOST = 12, 80  # points that every tick has, and that one with little to do may have


@kind("tick with one thing to do killed", seeds=2)
def one_thing(random: Random, workspace: Workspace) -> None:
    with quiet_workspace(random, workspace) as trial:
        thing = random.choice(THINGS)(trial)
        next(thing)
        number = random.randint(1, random.choice([FEW, 2 * FEW, MOST]))
        assert killed_at(trial, "", number) or number > FEW
        if random.random() < 0.3:
            killed_at(trial, "", random.randint(1, 2 * FEW))
        trial.settle()
        trial.check_usual()
        next(thing, None)


@kind("very first tick killed", seeds=1)
def first_tick(random: Random, workspace: Workspace) -> None:
    """While the tables are being made, and the first tasks met."""
    telegram = Telegram()
    try:
        telegram.configure(workspace)
        trial = Trial(random, workspace, telegram)
        for task_id in ("a", "b"):
            trial.add(task_id)
        assert killed_at(trial, "", random.randint(1, 50)), "it had fewer points than the tables alone need"
        for _ in range(random.randint(0, 3)):
            killed_at(trial, "", random.randint(1, 80))
        trial.settle()
        trial.check_usual()
        check_none_lost(workspace, trial.due)
    finally:
        telegram.close()


class quiet_workspace:
    """One in which the next tick would have nothing to do."""

    def __init__(self, random: Random, workspace: Workspace) -> None:
        self.trial = Trial(random, workspace, Telegram())

    def __enter__(self) -> Trial:
        trial = self.trial
        trial.telegram.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        trial.telegram.configure(trial.workspace)
        trial.add("known")
        tick_until_quiet(trial.workspace, code=0)
        return trial

    def __exit__(self, *_: object) -> None:
        self.trial.telegram.close()


# --- things to do --------------------------------------------------------------------------------------------------


def broken_file(trial: Trial) -> Task:
    trial.workspace.write_task("broken", "---\nid: broken\nschedule: whenever\n---\n")
    yield
    assert trial.workspace.sql("SELECT COUNT(*) FROM alerts WHERE kind = 'rejected'") == [(1,)]


def new_task(trial: Trial) -> Task:
    trial.add("new")
    yield
    check_none_lost(trial.workspace, {"new": 1})


def failing_task(trial: Trial) -> Task:
    trial.add("fails", "exit 1", ends_as="failed")
    yield
    alerts = trial.workspace.sql("SELECT kind FROM alerts WHERE task_id = 'fails'")
    assert alerts == [("failed" if trial.workspace.rows("fails")[-1][0] == "failed" else "interrupted",)]


def missed_occurrences(trial: Trial) -> Task:
    line, catch_up = half_past(), trial.random.choice(["skip", "once", "all"])
    trial.add("late", schedule=line, catch_up=catch_up)
    trial.workspace.tick()
    trial.workspace.move_back("late", f"-{MISSED} hours")
    yield
    check_none_lost(trial.workspace, {"late": last_occurrences(line, MISSED)})
    assert len(trial.workspace.runs("late")) == {"skip": 0, "once": 1, "all": MISSED}[catch_up]


def one_shot(trial: Trial) -> Task:
    trial.add("one-shot", schedule="in 30 minutes")
    trial.workspace.tick()
    trial.workspace.sql(
        "UPDATE tasks SET armed_at = '2026-01-01T00:00:00.000Z', anchored_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now',"
        " '-30 minutes') WHERE id = 'one-shot'"
    )
    yield
    check_none_lost(trial.workspace, {"one-shot": 1})
    assert "\nenabled: false\n" in (trial.workspace.root / "tasks/one-shot.md").read_text()


def pause_by_comment(trial: Trial) -> Task:
    trial.workspace.cli("comment", "known", "/pause")
    yield
    assert "\ndisabled_reason: paused\n" in (trial.workspace.root / "tasks/known.md").read_text()
    assert trial.workspace.sql("SELECT COUNT(*) FROM comments WHERE read_at IS NULL") == [(0,)]


def run_by_comment(trial: Trial) -> Task:
    trial.workspace.cli("comment", "known", "/run")
    yield
    assert [run["source"] for run in trial.workspace.runs("known")] == ["baseline-interval", "ai-oneshot"]


def removed_file(trial: Trial) -> Task:
    (trial.workspace.root / "tasks/known.md").unlink()
    yield
    assert trial.workspace.sql("SELECT gone FROM tasks") == [(1,)]


def outage(trial: Trial) -> Task:
    trial.workspace.sql("UPDATE heartbeats SET at = strftime('%Y-%m-%dT%H:%M:%fZ', at, '-1 hours')")
    yield
    assert trial.workspace.sql("SELECT COUNT(*) FROM alerts WHERE kind = 'outage'") == [(1,)]


def other_schedule(trial: Trial) -> Task:
    """Counted from the edit; what the old one named is no longer due."""
    trial.add("known", schedule="3h")
    yield
    assert trial.workspace.sql("SELECT schedule FROM tasks") == [("3h",)]
    check_none_lost(trial.workspace, {"known": 1})


def heal(trial: Trial) -> Task:
    """A script is as its author left it, or as the healer proved it."""
    workspace = trial.workspace
    healing = Healing(workspace, f"{FIX}\n{says()}", telegram=trial.telegram)
    yield
    changed, script = healing.changed(), (workspace.root / "scripts/job.sh").read_text()
    ends = [status for status, *_ in workspace.rows("job")]
    kept = workspace.sql("SELECT COUNT(*) FROM heals WHERE status = 'kept'")[0][0]
    assert len(ends) == 1 and kept == (ends == ["success"]), (ends, kept)
    assert script == (FIXED if kept else BROKEN) and changed <= {"ws/scripts/job.sh", "ws/tasks/job.md", "ws/journal"}
    assert not workspace.sql("SELECT 1 FROM heals WHERE status NOT IN ('kept', 'restored')")
    assert len(healing.prompts) <= 3


THINGS: tuple[Callable[[Trial], Task], ...] = (
    broken_file, new_task, failing_task, missed_occurrences, one_shot, pause_by_comment, run_by_comment, removed_file, outage,
    other_schedule, heal,
)  # fmt: skip


# --- commands ------------------------------------------------------------------------------------------------------


@kind("command of a person killed", seeds=1)
def command(random: Random, workspace: Workspace) -> None:
    """Files change first, then the database: what is cut off in between is simply done again."""
    with quiet_workspace(random, workspace) as trial:
        thing = random.choice(COMMANDS)(trial)
        next(thing)
        trial.settle()
        trial.check_usual()
        next(thing, None)


def kill_command(trial: Trial, *words: str) -> None:
    code, points = run_mortal(trial.workspace, "", trial.random.randint(1, 30), command=words)
    assert code in (0, 1, -9) and points
    if code == -9:
        trial.after_kill()


def pause_and_resume(trial: Trial) -> Task:
    file = trial.workspace.root / "tasks/known.md"
    kill_command(trial, "pause", "known")
    trial.workspace.cli("pause", "known", code=None)  # refused if it is paused already
    assert "\ndisabled_reason: paused\n" in file.read_text()
    kill_command(trial, "resume", "known")
    trial.workspace.cli("resume", "known")
    yield
    assert "disabled_reason" not in file.read_text() and "enabled: false" not in file.read_text()
    assert trial.workspace.sql("SELECT enabled, closing FROM tasks") == [(1, None)]
    check_none_lost(trial.workspace, {"known": 1})  # nothing is fired


def cancel(trial: Trial) -> Task:
    kill_command(trial, "cancel", "known")
    trial.workspace.cli("cancel", "known")
    yield
    assert "\ndisabled_reason: retired\n" in (trial.workspace.root / "tasks/known.md").read_text()


def run(trial: Trial) -> Task:
    """Whoever comes after it does so once, if it ends well, whoever brings that about."""
    trial.add("up", schedule="manual")
    trial.add("down", schedule="manual", after="up")
    trial.workspace.tick()
    kill_command(trial, "run", "up")
    yield
    ran = [status for status, *_ in trial.workspace.rows("up")]
    assert ran in ([], ["success"]), ran
    check_none_lost(trial.workspace, {"up": 0, "down": len(ran)})


def retry(trial: Trial) -> Task:
    """A one-shot that failed gets another chance, and its file tells how that ended."""
    workspace = trial.workspace
    fixed = workspace.root / "fixed"
    trial.add("once", f"test -e {fixed}", schedule="in 1 second")
    file = workspace.root / "tasks/once.md"
    workspace.tick()
    workspace.sql(
        "UPDATE tasks SET anchored_at = strftime('%Y-%m-%dT%H:%M:%fZ', anchored_at, '-1 minutes') WHERE id = 'once'"
    )
    workspace.sql("UPDATE tasks SET armed_at = anchored_at WHERE id = 'once'")
    workspace.tick()
    assert "\ndisabled_reason: failed\n" in file.read_text()
    fixed.touch()
    kill_command(trial, "retry", "once")
    tick_until_quiet(workspace, code=0)
    if "completed" not in file.read_text():
        workspace.cli("retry", "once")
    yield
    assert "\nenabled: false\n" in file.read_text() and "\ndisabled_reason: completed\n" in file.read_text()
    well = sum(
        code == 0 for (run_id, _), code in Journal.of(workspace).codes.items() if run_id in runs_of(workspace, "once")
    )
    orphans = workspace.sql("SELECT COUNT(*) FROM attempts WHERE status = 'orphaned'")[0][0]
    assert 1 <= well <= 1 + orphans


def runs_of(workspace: Workspace, task_id: str) -> set[str]:
    return {run_id for (run_id,) in workspace.sql("SELECT run_id FROM task_runs WHERE task_id = ?", task_id)}


COMMANDS: tuple[Callable[[Trial], Task], ...] = (pause_and_resume, cancel, run, retry)
