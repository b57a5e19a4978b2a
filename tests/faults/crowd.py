"""A crowd: fifty ticks, twenty runs by hand and ten people who pause, resume, hint and edit, all at the same instant."""

from __future__ import annotations

import json
import re
from collections import Counter
from random import Random

from tests.faults.kill import AWHILE, Trial, prepared
from tests.faults.kinds import kind
from tests.helpers import Workspace, start_together

TICKS, BY_HAND = 50, 20


@kind("50 ticks, 20 runs by hand, 10 changes at once", seeds=1)
def crowd(random: Random, workspace: Workspace) -> None:
    with prepared(random, workspace) as trial:
        changes = add_more(trial)
        by_hand = [workspace.argv("run", trial.random.choice(BY_HAND_TASKS)) for _ in range(BY_HAND)]
        commands = [workspace.argv("tick")] * TICKS + by_hand + changes
        random.shuffle(commands)
        for done in start_together(commands, env=workspace.environment, cwd=workspace.root):
            check_answer(done.args[6:], done.returncode, done.stdout, done.stderr)
        check_log(workspace)
        trial.settle()
        trial.check()
        check_by_hand(workspace)


# Not one that a chain follows: that would be another start for it.
BY_HAND_TASKS = ("by-hand", "by-hand-slow", "quick-2", "quick-3", "slow-2", "told")


def add_more(trial: Trial) -> list[list[str]]:
    """Tasks that are changed while they are due, and the changes. Where a change decides whether an occurrence comes, all that
    can be said is that it does not come twice."""
    workspace = trial.workspace
    for task_id in ("by-hand", "by-hand-slow"):
        trial.add(task_id, AWHILE if "slow" in task_id else ":", "manual")
        trial.due[task_id] = 0
    for task_id in ("paused", "held", "hinted", "asked-for"):
        trial.add(task_id)
    for task_id in ("paused", "held", "hinted"):
        del trial.due[task_id]
    said = [
        ("pause", "paused"), ("resume", "paused"), ("pause", "held", "--for", "1h"), ("resume", "held"),
        ("hint", "hinted", "--every", "30m", "--for", "1h"), ("hint", "hinted", "--clear"),
        ("hint", "asked-for", "--at", "in 2 hours"),
    ]  # fmt: skip
    edited = [workspace.root / "tasks" / f"{task_id}.md" for task_id in ("all", "fails", "slow-1")]
    return [workspace.argv(*words) for words in said] + [
        ["sed", "-i", "s/^timeout: 60$/timeout: 61/", str(path)] for path in edited
    ]


def check_answer(words: list[str], code: int, out: str, err: str) -> None:
    """Everybody gets a plain answer; who can't be served is told why."""
    told = f"{words} ended with {code}\n{out}\n{err}"
    assert not re.search("locked|Traceback|a bug", out + err), told
    match words:
        case ["tick", *_]:
            assert code == 0 and not err, told
        case ["run", *_]:
            assert code == 0 or (code == 5 and "already runs" in err), told
        case ["pause" | "resume", "paused", *_]:  # both edit the same file
            assert code == 0 or (code == 1 and err), told
        case _:  # `sed` too
            assert code == 0 and not err, told


def check_log(workspace: Workspace) -> None:
    events = [json.loads(line) for line in workspace.scheduler_log().splitlines()]
    wrong = [event for event in events if event["level"] == "error" or "locked" in json.dumps(event)]
    assert not wrong, wrong


def check_by_hand(workspace: Workspace) -> None:
    """Each run by hand that was not refused is on record, as one of its own."""
    keys = Counter(key for (key,) in workspace.sql("SELECT key FROM task_runs WHERE source = 'manual'"))
    assert keys and max(keys.values()) == 1, keys
