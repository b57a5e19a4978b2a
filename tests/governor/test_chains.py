"""`after`: tasks that start when others end, through real ticks."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from tests.helpers import PATIENCE, Gate, Workspace, half_past, kill, start_together, wait_for
from tickdown.governor.governor import start_time

RAN = ("success", None, 1)
SAY = "echo $TICKDOWN_TASK_ID >> order"


def order(workspace: Workspace) -> list[str]:
    path = workspace.root / "order"
    return path.read_text().split() if path.exists() else []


def sources(workspace: Workspace, task_id: str) -> list[str]:
    """Of the runs that really ran."""
    found = workspace.sql(
        "SELECT source FROM task_runs WHERE task_id = ? AND started_at IS NOT NULL ORDER BY recorded_at, rowid", task_id
    )
    return [source for (source,) in found]


def always_dark() -> str:
    """A blackout that no test outlives, whatever the time of day."""
    today = datetime.now(UTC).date()
    return f"{today - timedelta(days=1)}/{today + timedelta(days=1)}"


def waited(workspace: Workspace, by: str, task_id: str) -> None:
    """Pretend that the start by the chain has been waiting for that much longer."""
    earlier = "strftime('%Y-%m-%dT%H:%M:%fZ', {}, ?)"
    workspace.sql(f"UPDATE chains SET ended_at = {earlier.format('ended_at')} WHERE task_id = ?", by, task_id)
    workspace.sql(f"UPDATE tasks SET deferred = {earlier.format('deferred')} WHERE id = ?", by, task_id)


def ticks_together(workspace: Workspace, count: int) -> None:
    for done in start_together([workspace.argv("tick")] * count, env=workspace.environment, cwd=workspace.root):
        assert done.returncode == 0, done.stderr + workspace.scheduler_log()


# --- which end starts what -------------------------------------------------------------------------------------


def test_each_link_starts_at_the_end_it_asks_for_in_the_same_tick(workspace: Workspace) -> None:
    workspace.task("Good", SAY, schedule="1h")
    workspace.task("bad", "exit 1", schedule="1h")
    workspace.task("slow", "sleep 9", schedule="1h", timeout="0.1s")
    workspace.task("dark", SAY, schedule="1h", blackout=always_dark())
    starts = {
        "on-success": "good", "on-any-end": {"GOOD": "always"}, "on-failure": {"bad": "failure"},
        "on-timeout": {"slow": "failure"}, "on-all": ["good", "on-success"], "mixed": {"good": "success", "bad": "failure"},
        "third": "on-success",
    }  # fmt: skip
    stays = {
        "no-failure": {"good": "failure"}, "no-success": "bad", "half": ["good", "bad"], "of-a-skip": {"dark": "always"},
    }  # fmt: skip
    for task_id, after in (starts | stays).items():
        workspace.task(task_id, SAY, after=after)
    workspace.tick()
    assert {task_id: workspace.rows(task_id) for task_id in starts} == {task_id: [RAN] for task_id in starts}
    assert {task_id: workspace.rows(task_id) for task_id in stays} == {task_id: [] for task_id in stays}
    assert {source for task_id in starts for source in sources(workspace, task_id)} == {"after"}
    ran = order(workspace)
    assert ran.index("Good") < ran.index("on-success") < min(ran.index("third"), ran.index("on-all"))
    ((ended, scheduled_for),) = workspace.sql(
        "SELECT up.finished_at, down.scheduled_for FROM task_runs up, task_runs down WHERE up.task_id = 'good' AND"
        " down.task_id = 'on-success'"
    )
    assert ended == scheduled_for, "it is due when the one before it has ended"
    workspace.tick()
    assert order(workspace) == ran, "an end has its effect once"
    shown = {task["id"]: task for task in workspace.listed()}
    assert (shown["half"]["next_run_at"], shown["half"]["source"]) == (None, "after")
    lines = workspace.cli("list").stdout.splitlines()
    assert any(line.startswith("half ") and " after good, bad " in line for line in lines)


def test_a_list_waits_until_all_have_ended_since_it_last_ran(workspace: Workspace) -> None:
    """And a run by hand is an end like any other, which the next tick takes up."""
    for task_id in ("a", "b"):
        workspace.task(task_id)
    workspace.task("join", after=["a", "b"])

    def joined_after(*by_hand: str) -> int:
        for task_id in by_hand:
            workspace.cli("run", task_id)
        workspace.tick()
        return len(workspace.rows("join"))

    assert joined_after("a", "a") == 0
    assert joined_after("b") == 1
    assert joined_after("b") == 1
    assert joined_after("a") == 2
    assert sources(workspace, "join") == ["after", "after"]


def test_a_schedule_of_its_own_goes_on_beside_the_chain(workspace: Workspace) -> None:
    now = datetime.now(UTC)
    came = (now - timedelta(minutes=2)).replace(second=0, microsecond=0)
    jitter = timedelta(hours=12)
    shifted = next(
        name for name in map("shifted-{}".format, range(99)) if start_time(name, came, jitter) > now + jitter / 4
    )
    workspace.task("up")
    workspace.task("both", schedule=half_past(), after="up")
    workspace.task(shifted, schedule=f"{came.minute} {came.hour} * * *", after="up", jitter="12h")
    workspace.tick()
    workspace.move_back("both", "-1 hour")
    workspace.move_back(shifted, "-10 minutes")
    workspace.cli("run", "up")
    workspace.tick()
    workspace.tick()
    assert sorted(sources(workspace, "both")) == ["after", "catch-up"]
    assert sources(workspace, shifted) == ["after"]
    (task,) = [task for task in workspace.listed() if task["id"] == shifted]
    assert datetime.fromisoformat(task["next_run_at"]) - start_time(shifted, came, jitter) < timedelta(seconds=1), (
        "the occurrence that jitter has put off is still to come"
    )


@pytest.mark.parametrize("catch_up", ["once", "all"])
def test_an_end_that_comes_while_the_next_link_runs_starts_it_in_the_same_tick(
    workspace: Workspace, catch_up: str
) -> None:
    """The whole tick is not over yet: another task still runs."""
    own, other = Gate(workspace, "own"), Gate(workspace, "other")
    workspace.task("a", "read _ < a.gate", schedule="1h")
    os.mkfifo(workspace.root / "a.gate")
    workspace.task("b", f"{SAY}; [ -e chained ] || {{ touch chained; {own.command}; }}", schedule="1h", after="a",
                   catch_up=catch_up)  # fmt: skip
    workspace.task("c", other.command, schedule="1h")
    workspace.task("d", SAY, after="b")
    tick = workspace.start("tick")
    own.wait()
    other.wait()
    (workspace.root / "a.gate").write_text("go\n")
    wait_for(lambda: workspace.rows("a") == [RAN], "the end of a")
    assert order(workspace) == ["b"]
    own.open()
    wait_for(lambda: order(workspace).count("d") == 2, "both runs of what comes after b")
    assert sources(workspace, "b") == ["baseline-interval", "after"]
    other.open()
    told, _ = tick.communicate(timeout=PATIENCE)
    assert told.endswith("tick: 6 runs\n")
    workspace.tick()
    assert sorted(order(workspace)) == ["b", "b", "d", "d"], "each end has had its effect once"


def test_what_is_due_again_by_its_own_schedule_is_left_to_the_next_tick(workspace: Workspace) -> None:
    """However short the interval of a task with a chain is, a tick comes to its end."""
    workspace.task("a", schedule="1h")
    workspace.task("b", SAY, schedule="1s", after="a", jitter="1s")
    workspace.task("c", "sleep 3", schedule="1h")
    workspace.tick()
    assert len(order(workspace)) <= 2


def test_only_the_last_end_of_a_row_of_retries_counts(workspace: Workspace) -> None:
    fail_once = "test -e $TICKDOWN_TASK_ID.tried || { touch $TICKDOWN_TASK_ID.tried; exit 1; }"
    workspace.task("soon", fail_once, schedule="1h", retry=1)
    workspace.task("later", fail_once, schedule="1d", retry=1, retry_delay="10m")
    for upstream in ("soon", "later"):
        workspace.task(f"{upstream}-good", after=upstream)
        workspace.task(f"{upstream}-bad", after={upstream: "failure"})
        workspace.task(f"{upstream}-any", after={upstream: "always"})
    workspace.tick()
    assert workspace.rows("soon-good") == workspace.rows("soon-any") == [RAN] and workspace.rows("soon-bad") == []
    assert workspace.rows("later") == [("failed", None, 1)]
    assert [workspace.rows(f"later-{end}") for end in ("good", "bad", "any")] == [[], [], []]
    workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 second') WHERE id = 'later'")
    workspace.tick()
    assert sources(workspace, "later")[-1] == "retry"
    assert workspace.rows("later-good") == workspace.rows("later-any") == [RAN] and workspace.rows("later-bad") == []


def test_a_cancelled_run_is_an_end_but_neither_success_nor_failure(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("up", gate.command, schedule="1h")
    for wants in ("success", "failure", "always"):
        workspace.task(wants, after={"up": wants})
    tick = workspace.start("tick")
    gate.wait()
    workspace.cli("stop", "up")
    tick.communicate(timeout=PATIENCE)
    assert workspace.rows("up") == [("cancelled", None, 1)]
    assert workspace.rows("always") == [RAN] and workspace.rows("success") == workspace.rows("failure") == []


# --- exactly once ----------------------------------------------------------------------------------------------


def test_five_ticks_at_once_start_each_link_once(workspace: Workspace) -> None:
    workspace.task("up")
    middle = [f"middle-{number}" for number in range(4)]
    for task_id in middle:
        workspace.task(task_id, SAY, after="up")
    workspace.task("join", SAY, after=middle)
    workspace.cli("run", "up")
    ticks_together(workspace, 5)
    workspace.tick()  # whatever had no slot
    assert sorted(order(workspace)) == ["join", *middle]
    assert {workspace.sql("SELECT COUNT(*) FROM task_runs WHERE task_id = ? AND status <> 'skipped'", task_id)[0]
            for task_id in [*middle, "join"]} == {(1,)}  # fmt: skip


def test_a_tick_that_is_killed_between_the_two_breaks_no_chain(workspace: Workspace) -> None:
    workspace.config("groups: {gpu: 1}\n")
    gate = Gate(workspace)
    workspace.task("holder", gate.command, schedule="1h", group="gpu", rerun_interrupted=False)
    workspace.task("down", SAY, after="up", group="gpu")
    tick = workspace.start("tick")
    gate.wait()
    workspace.task("up", schedule="1h")
    second = workspace.start("tick", "--every", "1s")
    wait_for(lambda: workspace.rows("up") == [RAN], "the end of the first of the chain")
    for process in (second, tick):
        kill(process.pid)
        process.communicate()
    assert order(workspace) == []
    workspace.tick()
    workspace.tick()
    assert order(workspace) == ["down"] and sources(workspace, "down") == ["after"]


# --- when the task can't start just then -----------------------------------------------------------------------


def test_a_start_that_can_not_be_waits_and_leaves_one_row(workspace: Workspace) -> None:
    gate, schedule = Gate(workspace), half_past()
    workspace.task("up")
    workspace.task("paused", after="up", catch_up="skip")
    workspace.task("on-the-clock-too", schedule=schedule, after="up")
    workspace.task("dark", after="up", blackout=always_dark(), grace="1s")
    workspace.task("busy", f"test -e free || {{ {gate.command}; }}", after="up", catch_up="skip")
    workspace.task("disabled", after="up", enabled=False)
    workspace.cli("pause", "paused", "--for", "1h")
    workspace.cli("pause", "on-the-clock-too", "--for", "1h")
    by_hand = workspace.start("run", "busy")
    gate.wait()
    workspace.cli("run", "up")
    workspace.tick()
    workspace.tick()
    assert workspace.rows("paused") == workspace.rows("on-the-clock-too") == [("skipped", "paused", 1)]
    assert workspace.rows("dark") == [("skipped", "blackout", 1)]
    assert workspace.rows("busy") == [("running", None, 1), ("skipped", "already_running", 1)]
    assert workspace.rows("disabled") == []
    workspace.cli("run", "up")  # again: the newer end takes the place of the older, and is counted
    workspace.tick()
    assert workspace.rows("paused") == [("skipped", "paused", 2)]
    assert workspace.rows("dark") == [("skipped", "blackout", 2)]
    assert workspace.rows("on-the-clock-too") == [("skipped", "paused", 2)]
    waited(workspace, "-2 hours", "on-the-clock-too")
    workspace.move_back("on-the-clock-too", "-1 hour")
    workspace.tick()
    workspace.tick()
    assert workspace.rows("on-the-clock-too") == [("skipped", "paused", 2), ("skipped", "paused", 1)], (
        "what waits does not hide what the clock names"
    )

    # Much later, all that was in the way is gone.
    (workspace.root / "free").touch()
    gate.open()
    by_hand.communicate(timeout=PATIENCE)
    workspace.sql("UPDATE tasks SET paused_until = NULL")
    workspace.task("dark", after="up", grace="1s")
    workspace.task("disabled", after="up")
    for task_id in ("paused", "dark", "busy"):
        waited(workspace, "-50 minutes", task_id)
    workspace.tick()
    workspace.tick()
    assert (
        sources(workspace, "paused")
        == sources(workspace, "dark")
        == sources(workspace, "on-the-clock-too")
        == ["after"]
    )
    assert sources(workspace, "busy") == ["manual", "after"]
    assert sources(workspace, "disabled") == [], "what ended while it was disabled is nothing to it"
    workspace.cli("run", "up")
    workspace.tick()
    assert sources(workspace, "disabled") == ["after"]


def test_without_a_slot_it_waits_for_one(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 1\n")
    gate = Gate(workspace)
    workspace.task("holder", gate.command, schedule="1h")
    workspace.task("up")
    workspace.task("down", after="up")
    tick = workspace.start("tick")
    gate.wait()
    workspace.cli("run", "up")
    workspace.tick()
    assert workspace.rows("down") == [("skipped", "at_capacity", 1)]
    gate.open()
    tick.communicate(timeout=PATIENCE)
    workspace.tick()
    assert workspace.rows("down") == [("skipped", "at_capacity", 1), RAN] and sources(workspace, "down") == ["after"]


def test_over_an_outage_catch_up_and_grace_have_their_say_once(workspace: Workspace) -> None:
    workspace.task("up")
    workspace.task("once", after="up")
    workspace.task("skip", schedule="1d", after="up", catch_up="skip")
    workspace.task("short", schedule="on 2099-01-01 at 12:00", after="up", grace="1h")
    workspace.task("long", after="up", grace="5h")
    workspace.task("broken", after="up")
    workspace.tick()
    before = {task["id"]: task["next_run_at"] for task in workspace.listed()}
    workspace.cli("run", "up")
    workspace.sql("UPDATE chains SET ended_at = strftime('%Y-%m-%dT%H:%M:%fZ', ended_at, '-3 hours')")
    workspace.write_task("broken", "---\nid: broken\nschedule: manual\nafter: up\n---\n")
    workspace.tick()
    workspace.tick()
    assert sources(workspace, "once") == sources(workspace, "long") == ["catch-up"]
    assert workspace.rows("skip") == [RAN, ("missed", "outage", 1)] and workspace.rows("short") == [
        ("missed", "outage", 1)
    ]
    after = {task["id"]: task["next_run_at"] for task in workspace.listed()}
    assert (after["skip"], after["short"]) == (before["skip"], before["short"]), "their own schedule is as it was"
    assert workspace.rows("broken") == [("skipped", "rejected", 1)]
    workspace.task("broken", after="up")
    workspace.tick()
    assert workspace.rows("broken") == [("skipped", "rejected", 1), RAN], "it has waited for its file"


# --- what is in the files --------------------------------------------------------------------------------------


def test_circles_and_names_that_nobody_has_are_rejected_and_nobody_else_is(workspace: Workspace) -> None:
    circles = {"a": "b", "b": "A", "x": "z", "y": "x", "z": "y", "me": "me", "hub": ["rim", "b"], "rim": "hub"}
    for task_id, after in circles.items():
        workspace.task(task_id, after=after)
    workspace.task("below", after="a")
    workspace.task("Outside", schedule="1h")
    workspace.task("typo", after="outsid")
    workspace.task("fine", after="OUTSIDE")
    workspace.tick()
    assert workspace.rows("outside") == workspace.rows("fine") == [RAN]
    output = workspace.cli("validate", code=1).stdout
    problems = {line.partition(".md:")[0].removeprefix("tasks/"): line for line in output.splitlines()[:-1]}
    assert problems.keys() == {*circles, "typo"}
    assert "tasks/a.md:5: after: goes in a circle: a → b → a" in problems["a"] and "b → a → b" in problems["b"]
    assert "x → z → y → x" in problems["x"] and "y → x → z → y" in problems["y"] and "z → y → x → z" in problems["z"]
    assert "hub → rim → hub" in problems["hub"] and "rim → hub → rim" in problems["rim"]
    assert "this task itself" in problems["me"]
    assert "after: there is no task 'outsid'; did you mean 'Outside'?" in problems["typo"]
    assert workspace.cli("validate", "tasks/b.md", code=1).stdout.splitlines() == [problems["b"], "1 file, 1 problem"]
    assert "1 file, no problems" in workspace.cli("validate", "tasks/below.md").stdout
    assert {task["id"] for task in workspace.listed() if task["state"] == "rejected"} == problems.keys()

    workspace.task("b")  # the circle is opened
    workspace.write_task("unreadable", "---\nid: [\n---\n")  # and somebody may be called `outsid` after all
    output = workspace.cli("validate", code=1).stdout
    assert "tasks/a.md" not in output and "tasks/x.md" in output
    maybe = "after: no accepted task has the id 'outsid'; it may be in the rejected file"
    assert f"tasks/typo.md:5: warning: {maybe}\n" in output
    workspace.cli("run", "b")
    workspace.tick()
    assert workspace.rows("a") == workspace.rows("below") == [RAN]


def test_a_circle_does_not_hide_a_name_that_nobody_has(workspace: Workspace) -> None:
    workspace.task("c1", after="c2")
    workspace.task("c2", after=["c1", "nosuch"])
    assert workspace.cli("validate", code=1).stdout.splitlines() == [
        "tasks/c1.md:5: after: goes in a circle: c1 → c2 → c1 (each starts after the next)",
        "tasks/c2.md:5: after: goes in a circle: c2 → c1 → c2 (each starts after the next)",
        "tasks/c2.md:5: after: there is no task 'nosuch'",
        "2 files, 3 problems",
    ]
    for name in ("one", "two"):
        workspace.write_task(name, "---\nid: [\n---\n")
    output = workspace.cli("validate", code=1).stdout
    warning = "after: no accepted task has the id 'nosuch'; it may be in one of the 2 rejected files"
    assert "tasks/c2.md:5: after: goes in a circle" in output and f"tasks/c2.md:5: warning: {warning}\n" in output


def test_another_after_counts_from_when_it_was_seen(workspace: Workspace) -> None:
    for task_id in ("a", "b"):
        workspace.task(task_id)
    for task_id in ("fewer", "other", "none", "same"):
        workspace.task(task_id, after=["a", "b"])
    workspace.cli("run", "a")
    workspace.task("fewer", after="A")
    workspace.task("other", after={"a": "always", "b": "success"})
    workspace.tick()
    assert workspace.rows("fewer") == [], "what had ended before was no start for this"
    workspace.cli("run", "b")
    workspace.task("none")
    workspace.task("same", after=["B", "a"], title="not another after")
    workspace.tick()
    assert workspace.rows("same") == [RAN] and workspace.rows("none") == workspace.rows("other") == []
    workspace.cli("run", "a")
    workspace.tick()
    assert workspace.rows("fewer") == workspace.rows("other") == [RAN] and workspace.rows("none") == []
