"""Who asked for what: on record for every action, with the effect, and shown where an operator looks."""

from __future__ import annotations

import getpass
import json
import sys
from typing import Any

import pytest

from tests.agents.test_agents import agent_task, program
from tests.healing import FIX, Healing, says
from tests.helpers import SCHEDULER, Gate, Workspace

ME = getpass.getuser()
ANSWER = json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "Done."})


def recorded(workspace: Workspace) -> list[tuple[Any, ...]]:
    return workspace.sql("SELECT action, task_id, asked_by, asker FROM actions ORDER BY id")


def details(workspace: Workspace) -> list[str]:
    return [detail for (detail,) in workspace.sql("SELECT detail FROM actions ORDER BY id")]


def logged(workspace: Workspace) -> list[tuple[str, str | None, str, str]]:
    """(event, task, kind, name) of the lines that say who asked."""
    lines = map(json.loads, workspace.scheduler_log().splitlines())
    return [(line["event"], line["task_id"], line["asked_by"], line["asker"]) for line in lines if "asked_by" in line]


def call(*words: str) -> str:
    """How a task calls the program for its own workspace."""
    return f'"{sys.executable}" {SCHEDULER} {" ".join(words)} >> "$TICKDOWN_WORKSPACE/said" 2>&1'


# --- a person --------------------------------------------------------------------------------------------------


def test_what_a_person_asks_for_is_recorded_under_their_name(workspace: Workspace) -> None:
    workspace.task("job", "exit 3", schedule="1h", suspend_after=9)
    workspace.cli("pause", "JOB", "--for", "1h")
    workspace.cli("resume", "job")
    workspace.cli("hint", "job", "--every", "5m", "--reason", "a deploy")
    workspace.cli("hint", "job", "--clear")
    workspace.cli("run", "job", code=1)
    workspace.cli("retry", "job", code=1)
    workspace.cli("comment", "job", "/skip")
    workspace.cli("pause", "job")
    workspace.cli("cancel", "job")
    workspace.cli("prune")
    workspace.cli("add", "every monday at 09:00: tidy up", "--command", "true")
    names = ["pause", "resume", "hint", "clear_hints", "run", "retry", "comment", "pause", "cancel"]
    expected = [(name, "job", "person", ME) for name in names]
    assert recorded(workspace) == [*expected, ("prune", None, "person", ME), ("add", "tidy-up", "person", ME)]
    first, second = (run["run_id"] for run in workspace.runs("job"))
    assert workspace.sql("SELECT run_id FROM actions WHERE run_id IS NOT NULL ORDER BY id") == [(first,), (second,)]
    told = details(workspace)
    assert told[0].startswith("until 20") and told[2:5] == ["every 5m: a deploy", "1 cleared", ""]
    assert told[5:7] == [f"of run {first}", "comment 1"] and told[10] == "tasks/tidy-up.md"
    events = ["paused", "resumed", "hint", "hint", "run_asked", "retry_asked", "comment", "paused", "cancelled"]
    of_job = [(event, "job", "person", ME) for event in events]
    assert logged(workspace) == [*of_job, ("prune_asked", None, "person", ME), ("added", "tidy-up", "person", ME)]


def test_a_stop_and_a_closed_ticket_name_who_asked(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", gate.command)
    run = workspace.start("run", "slow")
    gate.wait()
    workspace.cli("stop", "slow")
    run.communicate()
    workspace.task("bad", "false", schedule="1h", suspend_after=1)
    workspace.tick()
    workspace.cli("tickets", "--close", "1", "--note", "seen to")
    assert recorded(workspace) == [
        (name, task_id, "person", ME) for name, task_id in (("run", "slow"), ("stop", "slow"), ("close_ticket", "bad"))
    ]
    assert details(workspace)[-1] == "ticket 1: seen to"
    stopped = workspace.sql("SELECT run_id FROM actions WHERE action = 'stop'")
    assert stopped == [(workspace.last_run("slow")["run_id"],)]
    workspace.cli("tickets", "--close", "1", code=1)
    assert len(recorded(workspace)) == 3


def test_who_took_back_a_heal_is_on_record_with_the_files(workspace: Workspace) -> None:
    healing = Healing(workspace, f"{FIX}\n{says()}")
    run = healing.tick()
    assert run["status"] == "success"
    workspace.cli("heal", "job", "--undo", run["run_id"])
    assert recorded(workspace) == [("undo_heal", "job", "person", ME)]
    assert workspace.sql("SELECT run_id, detail FROM actions") == [(run["run_id"], "scripts/job.sh")]
    assert logged(workspace) == [("heal_undone", "job", "person", ME)]
    workspace.cli("heal", "job", "--undo", run["run_id"], code=1)
    assert len(recorded(workspace)) == 1


def test_what_is_refused_leaves_no_row(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h", enabled=False)
    workspace.cli("pause", "job", code=1)
    workspace.cli("hint", "job", "--every", "never", code=2)
    workspace.cli("retry", "job", code=1)
    workspace.cli("stop", "job", code=1)
    assert recorded(workspace) == [] and logged(workspace) == []


def test_a_key_that_was_used_before_is_no_second_run_by_hand(workspace: Workspace) -> None:
    workspace.task("job")
    workspace.cli("run", "job", "--key", "monday")
    workspace.cli("run", "job", "--key", "monday")
    assert recorded(workspace) == [("run", "job", "person", ME)]


# --- a task, an agent ------------------------------------------------------------------------------------------


def test_what_a_task_asks_for_is_recorded_under_its_id(workspace: Workspace) -> None:
    workspace.task("other", schedule="1h")
    asks = [
        call("pause", "other", "--for", "1h"),
        call("comment", "other", "hello"),
        call("hint", "night", "--every", "1h"),
    ]
    workspace.task("night", "; ".join(asks), schedule="manual")
    workspace.cli("run", "night")
    assert recorded(workspace)[1:] == [
        ("pause", "other", "task", "night"),
        ("comment", "other", "task", "night"),
        ("hint", "night", "task", "night"),
    ]
    assert logged(workspace)[1:] == [
        ("paused", "other", "task", "night"),
        ("comment", "other", "task", "night"),
        ("hint", "night", "task", "night"),
    ]
    assert workspace.sql("SELECT author, by_a_person FROM comments") == [("task night", 0)]
    assert workspace.sql("SELECT author FROM hints") == [("task night",)]
    assert "; paused by task night " in workspace.cli("why", "other").stdout


def test_what_an_agent_asks_for_from_its_task_is_told_from_a_plain_task(workspace: Workspace) -> None:
    workspace.task("other", schedule="1h")
    program(workspace, "claude", f"{call('pause', 'other')}\n{call('cancel', 'helper')}\necho '{ANSWER}'")
    agent_task(workspace, "helper", schedule="manual")
    workspace.cli("run", "helper")
    assert recorded(workspace)[1:] == [("pause", "other", "agent", "helper"), ("cancel", "helper", "agent", "helper")]
    assert logged(workspace)[1:] == [("paused", "other", "agent", "helper"), ("cancelled", "helper", "agent", "helper")]
    assert (
        "disabled (paused): no tick starts it; paused by agent of task helper " in workspace.cli("why", "other").stdout
    )


def test_a_name_that_somebody_made_up_is_kept_short_and_clean(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.cli("pause", "job", "--for", "1h", env={"TICKDOWN_TASK_ID": "x\x1b[31m\udcff" + "y" * 500})
    [(_, _, kind, name)] = recorded(workspace)
    assert kind == "task" and len(name) <= 64
    assert "\x1b" not in workspace.cli("show", "job").stdout + workspace.cli("why", "job").stdout


# --- by comment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comment", ["/pause", "/pause until 2030-01-01"])
def test_a_pause_by_comment_is_the_word_of_whoever_wrote_it(workspace: Workspace, comment: str) -> None:
    workspace.task("job", schedule="1h")
    workspace.cli("comment", "job", comment)
    workspace.tick()
    assert recorded(workspace) == [("comment", "job", "person", ME), ("pause", "job", "person", ME)]
    assert f"; paused by {ME} " in workspace.cli("why", "job").stdout
    workspace.cli("comment", "job", "/resume")
    workspace.tick()
    assert recorded(workspace)[2:] == [("comment", "job", "person", ME), ("resume", "job", "person", ME)]
    assert [event for event, *_ in logged(workspace)] == ["comment", "paused", "comment", "resumed"]


# --- where it is shown -----------------------------------------------------------------------------------------


def test_show_tells_the_last_actions_the_newest_first(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    assert "asked" not in workspace.cli("show", "job").stdout and workspace.json("show", "job")["actions"] == []
    for _ in range(3):
        workspace.cli("pause", "job", "--for", "1h")
        workspace.cli("resume", "job")
    workspace.cli("hint", "job", "--every", "5m", "--reason", "a deploy")
    text = workspace.cli("show", "job").stdout
    assert f"asked      hint by {ME}, " in text and "(every 5m: a deploy)\n           resume by" in text
    shown = workspace.json("show", "job")["actions"]
    assert [each["action"] for each in shown] == ["hint", "resume", "pause", "resume", "pause"]
    assert (shown[0]["asked_by"], shown[0]["asker"], shown[0]["run_id"]) == ("person", ME, None)


def test_why_tells_who_paused_a_task_as_long_as_it_is_paused(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.cli("pause", "job", "--for", "2h")
    workspace.sql("UPDATE actions SET at = strftime('%Y-%m-%dT%H:%M:%fZ', at, '-3 hours')")
    assert f"; paused by {ME} 3 h ago" in workspace.cli("why", "job").stdout
    story = workspace.json("why", "job")
    assert (story["paused_by"]["asked_by"], story["paused_by"]["asker"]) == ("person", ME)
    workspace.sql("UPDATE tasks SET paused_until = '2020-01-01T00:00:00.000Z'")  # it has run out
    assert workspace.json("why", "job")["paused_by"] is None and "paused by" not in workspace.cli("why", "job").stdout


def test_a_suspended_task_is_not_told_to_be_paused_by_anybody(workspace: Workspace) -> None:
    workspace.task("job", "false", schedule="1h", suspend_after=1)
    workspace.cli("pause", "job", "--for", "1h")
    workspace.sql("UPDATE tasks SET paused_until = NULL")
    workspace.tick()
    assert workspace.json("why", "job")["paused_by"] is None


def test_old_rows_are_pruned_with_the_runs(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    workspace.cli("pause", "job", "--for", "1h")
    workspace.cli("resume", "job")
    workspace.sql("UPDATE actions SET at = '2020-01-01T00:00:00.000Z' WHERE action = 'pause'")
    workspace.cli("prune")
    assert [name for name, *_ in recorded(workspace)] == ["resume", "prune"]
