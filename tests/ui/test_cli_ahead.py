"""`next`, `why` and `simulate`, as a person and as a program see them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import needs_faketime
from tests.helpers import PATIENCE, Gate, Workspace, half_past


def moments(found: list[dict[str, Any]]) -> list[datetime]:
    return [datetime.fromisoformat(run["at"]) for run in found]


def skipping(workspace: Workspace, task_id: str, **fields: object) -> None:
    """A task whose three last occurrences were skipped because it was paused."""
    workspace.task(task_id, schedule=half_past(), **fields)
    workspace.cli("pause", task_id, "--for", "10h")
    workspace.move_back(task_id, "-160 minutes")
    workspace.tick()


# --- next ------------------------------------------------------------------------------------------------------


def test_next_lists_the_coming_runs_of_all_tasks_in_the_order_of_time(workspace: Workspace) -> None:
    workspace.task("often", schedule="10m")
    workspace.task("hourly", schedule=half_past())
    workspace.task("resting", schedule="10m", enabled=False)
    workspace.task("by-hand")
    workspace.tick()
    found = workspace.json("next")
    assert [set(run) for run in found] == [{"task_id", "at", "source", "note"}] * 10
    assert moments(found) == sorted(moments(found))
    assert {(run["task_id"], run["source"], run["note"]) for run in found} == {
        ("often", "baseline-interval", None), ("hourly", "baseline-cron", None),
    }  # fmt: skip
    assert workspace.json("next", "--count", "3") == found[:3]
    text = workspace.cli("next").stdout.splitlines()
    assert text[0].split() == ["TASK", "WHEN", "SOURCE", "NOTE"] and len(text) == 11
    assert text[1].startswith("often   in ") and text[1].endswith("baseline-interval")


def test_the_first_is_what_show_names_as_the_next_run(workspace: Workspace) -> None:
    workspace.task("hourly", schedule=half_past(), jitter="20m", timezone="Asia/Kolkata")
    workspace.task("paused", schedule="10m")
    workspace.cli("pause", "paused", "--until", "2030-01-01")
    for task_id in ("hourly", "paused"):
        shown = workspace.json("show", task_id)
        [first] = workspace.json("next", task_id, "--count", "1")
        assert (first["at"], first["source"]) == (shown["next_run_at"], shown["source"])


def test_next_of_one_task_goes_as_far_as_asked(workspace: Workspace) -> None:
    workspace.task("yearly", schedule="@yearly")
    workspace.task("leap", schedule="0 0 29 2 1,1")
    years = [at.year for at in moments(workspace.json("next", "YEARLY"))]
    assert years == list(range(years[0], years[0] + 10))
    assert len(workspace.json("next", "yearly", "--count", "1000")) >= 99
    assert workspace.json("next", "leap", "--count", "1000")


def tick_at(workspace: Workspace, now: str) -> None:
    workspace.prefix = ["faketime", now]
    workspace.tick()


@needs_faketime
@pytest.mark.parametrize(
    ("edited", "runs"),
    [("0 12 * * 1-5", 1), ("0  12 * * *", 1), ("30 11 * * *", 0), ("58 11 * * *", 0), ("*/2 * * * *", 1)],
)
def test_an_edit_in_the_minute_before_loses_no_occurrence(workspace: Workspace, edited: str, runs: int) -> None:
    workspace.task("noon", schedule="0 12 * * *")
    tick_at(workspace, "2026-03-02 11:59:01")
    workspace.task("noon", schedule=edited)
    tick_at(workspace, "2026-03-02 12:00:01")
    assert len(workspace.rows("noon")) == runs


@needs_faketime
def test_another_schedule_does_not_forget_a_retry_that_is_to_come(workspace: Workspace) -> None:
    workspace.task("job", "exit 1", schedule="0 12 * * *", retry=1, retry_delay="5m")
    tick_at(workspace, "2026-03-02 11:59:01")
    tick_at(workspace, "2026-03-02 12:00:01")
    workspace.task("job", "exit 1", schedule="0 13 * * *", retry=1, retry_delay="5m")
    tick_at(workspace, "2026-03-02 12:02:01")
    assert workspace.sql("SELECT failures FROM tasks") == [(0,)]
    tick_at(workspace, "2026-03-02 12:05:30")
    assert workspace.sql("SELECT failures FROM tasks") == [(1,)] and len(workspace.rows("job")) == 2


@needs_faketime
@pytest.mark.parametrize(
    ("schedule", "now", "expected", "note"),
    [
        ("30 2 * * *", "2026-03-06 12:00:00",
         ["03-07T02:30:00-05:00", "03-08T03:00:00-04:00", "03-09T02:30:00-04:00", "03-10T02:30:00-04:00", "03-11T02:30:00-04:00"],
         "02:30 does not exist on 2026-03-08: it runs at 03:00, when the clock has jumped"),
        ("30 1 * * *", "2026-10-30 12:00:00",
         ["10-31T01:30:00-04:00", "11-01T01:30:00-04:00", "11-02T01:30:00-05:00", "11-03T01:30:00-05:00", "11-04T01:30:00-05:00"],
         "01:30 comes twice on 2026-11-01: it runs the first time only"),
    ],
)  # fmt: skip
def test_next_is_right_over_a_change_of_the_clock_and_points_it_out(
    workspace: Workspace, schedule: str, now: str, expected: list[str], note: str
) -> None:
    workspace.task("nightly", schedule=schedule, timezone="America/New_York")

    def asked(*more: str) -> str:
        command = ["faketime", now, *workspace.argv("next", "nightly", "--count", "5", *more)]
        return subprocess.run(command, env=workspace.environment, capture_output=True, text=True, check=True).stdout

    found = json.loads(asked("--json"))
    assert [run["at"] for run in found] == [f"2026-{at}" for at in expected]
    assert [run["note"] for run in found] == [None, note, None, None, None]
    assert note in asked()


def test_next_tells_of_chains_and_hints(workspace: Workspace) -> None:
    workspace.task("first", schedule=half_past())
    workspace.task("second", after="first")
    workspace.task("hinted", schedule="@yearly")
    workspace.cli("hint", "hinted", "--every", "10m", "--reason", "watch it")
    [run] = workspace.json("next", "second", "--count", "1")
    assert (run["at"], run["source"]) == (workspace.json("next", "first")[0]["at"], "after")
    assert run["note"] == "when first has ended as usual and well"
    [run] = workspace.json("next", "hinted", "--count", "1")
    assert run["source"] == "ai-interval" and run["note"].endswith(": watch it")


def test_next_says_which_end_a_chain_waits_for_and_what_is_due_is_not_past(workspace: Workspace) -> None:
    workspace.task("first", "false")
    workspace.task("mourner", after={"first": "failure"})
    workspace.task("sweeper", after={"first": "always"})
    workspace.cli("run", "first", code=1)
    notes = {run["task_id"]: run["note"] for run in workspace.json("next")}
    assert notes == {"mourner": "when first has failed", "sweeper": "when first has ended, well or not"}
    assert re.search(r"^mourner +now \(", workspace.cli("next").stdout, re.MULTILINE)


@pytest.mark.parametrize("command", ["next", "why"])
def test_an_unknown_id_ends_with_4_and_a_rejected_file_says_why(workspace: Workspace, command: str) -> None:
    workspace.task("backup-photos")
    workspace.task("broken", schedule="5x")
    assert "backup-photos" in workspace.cli(command, "backup-photo", code=4).stderr
    assert "tasks/broken.md:3: schedule:" in workspace.cli(command, "broken", code=1).stderr


@pytest.mark.parametrize("count", ["0", "-1", "x", "1.5", "99999"])
def test_next_takes_a_sensible_count(workspace: Workspace, count: str) -> None:
    workspace.task("job", schedule="10m")
    assert "--count" in workspace.cli("next", "--count", count, code=2).stderr


def test_next_without_anything_to_come_says_so(workspace: Workspace) -> None:
    assert workspace.cli("next").stdout == "nothing to come\n" and workspace.json("next") == []
    workspace.task("resting", schedule="10m", enabled=False)
    assert workspace.cli("next", "resting").stdout == "nothing to come: it is disabled\n"
    assert workspace.json("next", "resting") == []


# --- why -------------------------------------------------------------------------------------------------------

WHY_KEYS = {
    "task_id", "state", "schedule", "reading", "decisions", "action", "reason", "candidates", "hints", "next_run_at",
    "source", "because",
}  # fmt: skip


def test_why_tells_the_story_of_a_task(workspace: Workspace) -> None:
    workspace.task("job", "exit 3", schedule="10m", timezone="Europe/Berlin")
    workspace.tick()
    story = workspace.json("why", "JOB")
    assert story.keys() >= WHY_KEYS
    assert (story["task_id"], story["state"], story["reading"]) == ("job", "active", "10 minutes after the last end")
    assert [run["status"] for run in story["decisions"]] == ["failed"]
    assert (story["action"], story["reason"], story["failures"], story["back_off"]) == ("wait", "not_due", 1, 2)
    [candidate] = story["candidates"]
    assert candidate["source"] == story["source"] == "baseline-interval" and candidate["at"] == story["next_run_at"]
    text = workspace.cli("why", "job").stdout
    for part in ("10 minutes after the last end (Europe/Berlin)", "failed in ", "(baseline-interval): exit code 3",
                 "now        not due", "1 in a row", "the interval is ×2 until it succeeds", "<- wins"):  # fmt: skip
        assert part in text, part
    assert len(text.splitlines()) <= 24


def test_why_explains_an_occurrence_that_was_skipped(workspace: Workspace) -> None:
    skipping(workspace, "job")
    [skipped] = workspace.json("why", "job")["decisions"]
    assert (skipped["status"], skipped["reason"], skipped["count"]) == ("skipped", "paused", 3)
    text = workspace.cli("why", "job").stdout
    assert "skipped ×3, paused: the task was paused, the last 3" in text
    assert "now        paused, which ends in 10 h (" in text and "it is paused, and a pause wins" in text


def test_why_explains_an_occurrence_that_came_while_the_task_ran(workspace: Workspace) -> None:
    gate = Gate(workspace)
    workspace.task("slow", gate.command, schedule=half_past())
    workspace.cli("list")
    workspace.tick()
    workspace.move_back("slow", "-70 minutes")
    tick = workspace.start("tick")
    gate.wait()
    workspace.move_back("slow", "-1 hour")
    assert (
        "it is running; the next tick writes off 1 occurrence: already_running" in workspace.cli("why", "slow").stdout
    )
    assert workspace.json("why", "slow")["action"] == "skip"
    workspace.tick()
    gate.open()
    tick.communicate(timeout=PATIENCE)
    text = workspace.cli("why", "slow").stdout
    assert "skipped, already_running: the run before was still going on" in text and "success in " in text


def test_why_tells_of_missed_occurrences(workspace: Workspace) -> None:
    workspace.task("job", schedule=half_past(), catch_up="skip")
    workspace.tick()
    workspace.move_back("job", "-160 minutes")
    assert "the next tick writes off 3 occurrences: too late to run" in workspace.cli("why", "job").stdout
    workspace.tick()
    assert "missed ×3: no tick came; too late to run (catch_up: skip), the last 3" in workspace.cli("why", "job").stdout


def test_why_tells_of_hints_with_reason_author_and_end(workspace: Workspace) -> None:
    workspace.task("job", schedule="@yearly")
    workspace.cli("hint", "job", "--every", "10m", "--for", "3h", "--reason", "watch [red]it\x1b[2J")
    story = workspace.json("why", "job")
    assert [hint["reason"] for hint in story["hints"]] == ["watch [red]it"] and story["source"] == "ai-interval"
    assert {candidate["source"] for candidate in story["candidates"]} == {"baseline-cron", "ai-interval"}
    text = workspace.cli("why", "job").stdout
    assert "hint       every 10m, ends in 3 h (" in text and "an interval hint takes the place of the schedule" in text


def test_why_tells_what_keeps_the_tasks_before_it_from_ending(workspace: Workspace) -> None:
    for task_id in ("resting", "idle", "broken", "fails"):
        workspace.task(task_id, "false" if task_id == "fails" else "true", suspend_after=1)
    workspace.write_task("unreadable", "---\nid: [\n---\n")
    workspace.task("last", after=["resting", "idle", "broken", "fails", "nosuch"])
    workspace.tick()
    workspace.cli("run", "fails", code=1)
    workspace.cli("pause", "resting", "--for", "3h")
    workspace.task("idle", enabled=False)
    workspace.task("broken", timeout="5x")
    text = workspace.cli("why", "last").stdout
    assert re.search(r"resting: paused until (\d{4}-\d\d-\d\d )?\d\d:\d\d(:00)?\b", text)
    for words in ("idle: disabled\n", "fails: suspended\n",
                  f"broken: its file is rejected: {workspace.typed('validate tasks/broken.md')}",
                  "nosuch: no accepted task has the id 'nosuch'; it may be in the rejected file\n"):  # fmt: skip
        assert words in text, text
    assert "still awaited" not in text
    awaited = {link["task_id"]: link["awaited"] for link in workspace.json("why", "last")["after"]}
    assert awaited["fails"] == "suspended"


def test_why_tells_what_a_comment_asks_for(workspace: Workspace) -> None:
    workspace.task("job", schedule="@yearly")
    workspace.task("due", schedule="1h")
    workspace.cli("comment", "due", "/skip")
    assert "now        due, but a comment asks to skip it: /skip\n" in workspace.cli("why", "due").stdout
    workspace.cli("comment", "job", "/skip")
    text = workspace.cli("why", "job").stdout
    assert re.search(r"^comment +\S+, (just now|[0-9]+ s ago) .*: /skip$", text, re.MULTILINE), text
    assert re.search(r"^next .*, baseline-cron: a comment asks to skip it: /skip$", text, re.MULTILINE), text
    workspace.cli("comment", "job", "/pause until tomorrow at 09:00")
    workspace.cli("comment", "job", "not on fridays, please")
    text = workspace.cli("why", "job").stdout
    assert "baseline-cron: a comment asks to pause it: /pause until tomorrow at 09:00\n" in text
    assert "not on fridays, please (no agent is there to read it)" in text
    story = workspace.json("why", "job")
    assert story["because"].startswith("a comment asks to pause it") and len(story["comments"]) == 3


def next_line(workspace: Workspace, task_id: str) -> str:
    *_, line = workspace.cli("why", task_id).stdout.splitlines()
    return line


def test_why_tells_when_a_run_that_a_comment_asks_for_comes(workspace: Workspace) -> None:
    for task_id in ("free", "resting", "skipped"):
        workspace.task(task_id, schedule="@yearly")
    workspace.task("dark", schedule="@yearly", blackout=["mon-sun"])
    workspace.cli("pause", "resting", "--for", "12h")
    workspace.cli("comment", "skipped", "/skip")
    for task_id in ("free", "skipped", "dark"):
        assert "is obeyed by the next tick" in workspace.cli("comment", task_id, "/run").stdout
    assert "run waits for the end of its pause, in 12 h (" in workspace.cli("comment", "resting", "/run").stdout
    assert next_line(workspace, "free").startswith(
        "next       due now, hint: a comment asks to run it with the next tick: /run"
    )
    paused = next_line(workspace, "resting")
    assert paused.startswith("next       in 12 h (") and "tick" not in paused
    assert paused.endswith(", paused: it is paused, and a pause wins; a comment asks to run it then: /run")
    assert next_line(workspace, "dark").endswith("in a blackout; a comment asks to run it then: /run")
    assert ", baseline-cron: only the schedule asks for a run; a comment" in next_line(workspace, "skipped")
    workspace.tick()
    assert [len(workspace.runs(task_id)) for task_id in ("free", "resting", "skipped", "dark")] == [1, 0, 0, 0]
    paused = next_line(workspace, "resting")
    assert paused.startswith("next       in 12 h (") and paused.endswith(", paused: it is paused, and a pause wins")


def test_why_of_a_task_without_its_agent_says_what_it_waits_for(workspace: Workspace) -> None:
    agent = workspace.root / "ghost"
    workspace.config(f"agents:\n  ghost: {{argv: [{agent}], format: text}}\n")
    workspace.task("due", schedule="1h", run_as="ghost")
    workspace.task("later", schedule="@yearly", run_as="ghost")
    waits = "not known when, baseline-interval: it is due, but waits until its agent ghost is installed"
    for ticks in range(2):
        assert next_line(workspace, "due") == f"next       {waits}", ticks
        workspace.tick()
    for task_id in ("due", "later"):
        text = workspace.cli("why", task_id).stdout
        assert "now        paused: its agent ghost is not installed\n" in text and "just now:" not in text
    assert next_line(workspace, "later").endswith(
        "baseline-cron: only the schedule asks for a run, if its agent ghost is installed by then"
    )
    story = workspace.json("why", "due")
    assert (story["next_run_at"], story["source"], story["reason"]) == (None, "baseline-interval", "missing_agent")
    workspace.cli("comment", "due", "/run")
    assert next_line(workspace, "due") == f"next       {waits}; a comment asks to run it then: /run"
    agent.write_text("#!/bin/sh\ncat\n")
    agent.chmod(0o755)
    assert "now        due: the next tick starts it (baseline-interval)\n" in workspace.cli("why", "due").stdout


def test_why_of_a_suspended_task_names_the_way_on_and_nothing_that_does_not_matter_now(workspace: Workspace) -> None:
    workspace.task("job", "false", schedule="1h", suspend_after=1)
    workspace.tick()
    text = workspace.cli("why", "job").stdout
    assert f"next       none: it is suspended; go on with: {workspace.typed('resume job')}\n" in text
    assert "1 in a row" in text and "the interval is" not in text
    workspace.cli("resume", "job")
    assert "resume" not in workspace.cli("why", "job").stdout


def test_why_tells_which_ends_are_still_awaited(workspace: Workspace) -> None:
    workspace.task("a")
    workspace.task("b")
    workspace.task("both", after={"a": "success", "b": "failure"})
    workspace.tick()
    workspace.cli("run", "a")
    text = workspace.cli("why", "both").stdout
    assert "a: ended " in text and "b (failure): still awaited" in text and "next       after a, b" in text
    links = workspace.json("why", "both")["after"]
    assert [(link["task_id"], link["wants"], bool(link["ended_at"])) for link in links] == [
        ("a", "success", True), ("b", "failure", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": "manual"}, "manual: nothing starts it by itself"),
        ({"schedule": "1h"}, "due: the next tick starts it (baseline-interval)"),
        ({"schedule": "1h", "enabled": False, "disabled_reason": "retired"}, "disabled (retired): no tick starts it"),
        ({"schedule": "1h", "blackout": ["mon-sun"]}, "what is due waits: blackout, in the blackout mon-sun"),
        ({"schedule": "@yearly", "blackout": ["mon-sun"]}, "not due, in the blackout mon-sun"),
    ],
)
def test_why_says_what_is_now(workspace: Workspace, fields: dict[str, Any], words: str) -> None:
    workspace.task("job", **fields)
    assert f"now        {words}\n" in workspace.cli("why", "job").stdout


def test_why_says_that_a_one_shot_is_over(workspace: Workspace) -> None:
    workspace.task("job", schedule="in 1 minute")
    workspace.tick()
    workspace.sql("UPDATE tasks SET armed_at = '2026-01-01T00:00:00.000Z', anchored_at = '2026-01-01T00:00:00.000Z'")
    workspace.tick()
    text = workspace.cli("why", "job").stdout
    assert "disabled (completed)" in text and "success in" in text and "next       none: it is disabled" in text


# --- simulate --------------------------------------------------------------------------------------------------


def test_simulate_shows_the_load_of_a_week_without_running_anything(workspace: Workspace) -> None:
    workspace.config("max_concurrent: 2\ngroups: {gpu: 1}\n")
    workspace.task("nightly", "touch ran", schedule="0 3 * * *", group="gpu")
    workspace.task("hourly", "touch ran", schedule="0 * * * *", group="gpu")
    workspace.task("quarter", "touch ran", schedule="*/15 * * * *")
    workspace.task("report", "touch ran", after="nightly")
    workspace.task("by-hand")
    workspace.task("broken", schedule="5x")
    result = workspace.json("simulate", "--from", "2030-06-03", "--to", "7d")
    assert (result["from"], result["to"]) == ("2030-06-03T00:00:00+00:00", "2030-06-10T00:00:00+00:00")
    assert result["total"] == sum(hour["runs"] for hour in result["by_hour"]) == 7 * (1 + 24 + 96 + 1)
    assert len(result["by_hour"]) == 168 and result["by_hour"][3] == {"hour": "2030-06-03T03:00:00+00:00", "runs": 7}
    worst = result["worst_minutes"][0]
    assert (worst["at"], worst["runs"]) == ("2030-06-03T03:00:00+00:00", 4)
    assert worst["tasks"] == ["hourly", "nightly", "quarter", "report"]
    assert {each["task_id"]: each["reason"] for each in result["never"]} == {
        "by-hand": "manual: only `run`, a hint or a chain starts it", "broken": "its file is rejected",
    }  # fmt: skip
    assert (result["peak_concurrency"], result["max_concurrent"]) == (4, 2)
    [group] = result["groups"]
    assert (group["group"], group["peak_concurrency"], group["limit"]) == ("gpu", 2, 1)
    text = workspace.cli("simulate", "--from", "2030-06-03", "--to", "2030-06-10").stdout
    for part in ("854 runs from 2030-06-03 00:00 to 2030-06-10 00:00 (UTC)", "  03:00  49  ####", "  Mon 06-03  122  ####",
                 "  Mon 06-03 03:00  4 starts: hourly, nightly, quarter, report", "and 2 other minutes with as many",
                 "at once: up to 4, first Mon 06-03 03:00; 2 may run: 2 must wait", "2 may run",
                 "at once in group gpu: up to 2", "by-hand: manual"):  # fmt: skip
        assert part in text, part
    assert text.isascii() and len(text.splitlines()) < 60
    assert not (workspace.root / "ran").exists() and workspace.history() == []


def test_simulate_takes_the_next_day_unless_told_otherwise(workspace: Workspace) -> None:
    workspace.task("hourly", schedule=half_past())
    workspace.task("overdue", schedule="10h")
    result = workspace.json("simulate")
    assert datetime.fromisoformat(result["to"]) - datetime.fromisoformat(result["from"]) == timedelta(days=1)
    assert result["total"] == 24 + 3 and len(result["by_hour"]) in (24, 25)
    assert "runs by hour\n" in workspace.cli("simulate").stdout


def test_simulate_finds_runs_that_take_longer_than_their_distance(workspace: Workspace) -> None:
    workspace.task("slow", schedule="*/5 * * * *")
    workspace.cli("pause", "slow", "--until", "2030-01-01")
    for number in range(3):
        workspace.sql(
            "INSERT INTO task_runs (run_id, task_id, key, status, source, recorded_at, started_at, finished_at, host) VALUES"
            " (?, 'slow', ?, 'success', 'manual', '2026-01-01T00:12:00.000Z', '2026-01-01T00:00:00.000Z',"
            " '2026-01-01T00:12:00.000Z', 'here')", f"r{number}", f"k{number}",
        )  # fmt: skip
    window = ("simulate", "--from", "2031-01-01", "--to", "1h")
    assert workspace.json(*window)["overlaps"] == [{"task_id": "slow", "runs": 4, "skipped": 8, "usual_s": 720.0}]
    assert "slow: takes 12 min; 8 skipped (already_running), 4 runs" in workspace.cli(*window).stdout


def test_a_window_in_the_past_can_be_replayed(workspace: Workspace) -> None:
    workspace.task("hourly", schedule="0 * * * *")
    assert workspace.json("simulate", "--from", "2025-06-01", "--to", "2025-06-03")["total"] == 48
    assert workspace.json("simulate", "--from", "on 2025-06-01 at 00:00", "--to", "2d")["total"] == 48, "in words too"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "nonsense"], "--from: 'nonsense' is not a time"),
        (["--to", "nonsense"], "or a duration such as 7d"),
        (["--from", "2030-01-02", "--to", "2030-01-01"], "--to: '2030-01-01' is not after the begin"),
        (["--from", "2030-01-02", "--to", "2030-01-02"], "is not after the begin"),
        (["--from", "2026-01-01", "--to", "2126-01-01"], "more than 366 days"),
        (["--to", "9y"], "is not a time"),
        (["--to", "500d"], "more than 366 days"),
        (["--from", "0001-01-01"], "more than ten years away"),
        (["--from", "9999-12-31"], "more than ten years away"),
        (["--to", "9999-12-31T23:59"], "more than 366 days"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(workspace: Workspace, arguments: list[str], message: str) -> None:
    workspace.task("job", schedule="10m")
    assert message in workspace.cli("simulate", *arguments, code=2).stderr


def test_more_runs_than_anybody_wants_to_count_are_refused(workspace: Workspace) -> None:
    workspace.task("job", schedule="1s")
    assert "choose a shorter time" in workspace.cli("simulate", "--to", "366d", code=2).stderr


def test_a_thousand_tasks_over_a_week(workspace: Workspace) -> None:
    for number in range(400):
        workspace.task(f"five-{number}", schedule="*/5 * * * *", blackout=["sat-sun"] if number % 2 else [])
        workspace.task(f"ten-{number}", schedule="10m")
    for number in range(200):
        workspace.task(f"day-{number}", schedule=f"{number % 60} {number % 23} * * *", jitter="5m")
    result = workspace.json("simulate", "--from", "2030-06-03", "--to", "7d")
    five = 200 * 12 * 24 * 7 + 200 * 12 * 24 * 5
    assert result["total"] == five + 400 * 6 * 24 * 7 + 200 * 7
    assert result["worst_minutes"][0]["runs"] >= 400


def test_simulate_on_a_terminal_draws_bars(workspace: Workspace) -> None:
    workspace.task("job", schedule="0 * * * *")
    ours, theirs = pty.openpty()
    process = workspace.start("simulate", stdout=theirs, env=workspace.environment | {"TERM": "xterm", "COLUMNS": "80"})
    os.close(theirs)
    written = b""
    while True:
        try:
            written += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert "████" in written.decode() and all(len(line) <= 80 for line in written.decode().splitlines())


def test_looking_ahead_works_with_broken_settings(workspace: Workspace) -> None:
    workspace.task("job", schedule="10m")
    workspace.config("max_concurrent: many\n")
    for command in (["next"], ["why", "job"], ["simulate"]):
        done = workspace.cli(*command)
        assert "config.yaml:1: max_concurrent" in done.stderr and done.stdout
        assert done.stderr.endswith("\nnothing runs until this is put right\n")


def test_looking_ahead_says_that_duplicates_stop_everything(workspace: Workspace) -> None:
    workspace.task("job", schedule="10m")
    workspace.write_task("copy", (workspace.root / "tasks" / "job.md").read_text())
    for command in (["next"], ["simulate"]):
        assert "nothing runs until this is put right" in workspace.cli(*command).stdout
    assert workspace.cli("next", "job", code=3).stdout == ""


def test_next_is_one_document_of_json_in_a_pipe(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h")
    done = subprocess.run(
        workspace.argv("next", "--json"),
        env=workspace.environment | {"FORCE_COLOR": "1"},
        capture_output=True,
        check=True,
    )
    assert isinstance(json.loads(done.stdout), list)
    assert datetime.fromisoformat(json.loads(done.stdout)[-1]["at"]) > datetime.now(UTC)
