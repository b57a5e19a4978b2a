"""`hint`: bending the schedule of a task for a while, from outside and from inside its own run."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest

from scheduler import main
from tests.helpers import PATIENCE, SCHEDULER, Gate, Workspace, half_past, start_together


def shift(workspace: Workspace, by: str, *columns: str) -> None:
    """Pretend that all hints were given, meant or limited earlier."""
    for column in columns:
        workspace.sql(f"UPDATE hints SET {column} = strftime('%Y-%m-%dT%H:%M:%fZ', {column}, ?)", by)


def sources(workspace: Workspace, task_id: str = "job") -> list[str]:
    rows = workspace.sql("SELECT source FROM task_runs WHERE task_id = ? ORDER BY recorded_at, rowid", task_id)
    return [source for (source,) in rows]


def kinds(workspace: Workspace) -> list[str]:
    return [kind for (kind,) in workspace.sql("SELECT kind FROM hints ORDER BY kind")]


# --- the four rules --------------------------------------------------------------------------------------------


def test_an_interval_hint_takes_the_place_of_the_schedule_until_it_is_cleared(workspace: Workspace) -> None:
    schedule = half_past()
    workspace.task("job", "echo >> ran", schedule=schedule)
    output = workspace.cli("hint", "JOB", "--every", "5m", "--for", "2h", "--reason", "a deploy is going on").stdout
    assert (
        "every 5m" in output
        and "a deploy is going on" in output
        and ", hint: " in output
        and "ai-interval" not in output
    )
    assert workspace.rows("job") == []
    shift(workspace, "-50 minutes", "given_at")
    workspace.move_back("job", "-1 hour")  # the schedule's own occurrence came after the hint and counts for nothing
    workspace.tick()
    workspace.tick()
    assert sources(workspace) == ["ai-interval"] and kinds(workspace) == ["interval"]
    document = workspace.json("show", "job")
    (hint,) = document["hints"]
    assert (hint["kind"], hint["every_s"], hint["reason"]) == ("interval", 300.0, "a deploy is going on")
    assert document["source"] == "ai-interval" and datetime.fromisoformat(hint["until"]).tzinfo is not None
    workspace.move_back("job", "-5 minutes")
    workspace.tick()
    assert sources(workspace) == ["ai-interval"] * 2
    document = workspace.json("hint", "job", "--clear")
    assert document["hints"] == [] and document["source"] == "baseline-cron"
    workspace.tick()
    assert sources(workspace) == ["ai-interval"] * 2  # and no `missed` row either
    assert "0 hints cleared" in workspace.cli("hint", "job", "--clear").stdout


def test_a_one_shot_hint_is_cleared_when_it_is_used_and_the_schedule_goes_on(workspace: Workspace) -> None:
    schedule = half_past()
    workspace.task("job", schedule=schedule)
    baseline = workspace.listed()[0]["next_run_at"]
    document = workspace.json("hint", "job", "--at", "in 10 minutes")
    assert document["source"] == "ai-oneshot" and document["next_run_at"] == document["hints"][0]["at"]
    later = workspace.json("hint", "job", "--at", "in 3 hours")  # in place of the first one
    assert len(later["hints"]) == 1 and later["next_run_at"] == baseline and later["source"] == "baseline-cron"
    shift(workspace, "-3 hours", "at")
    workspace.tick()
    workspace.tick()
    assert sources(workspace) == ["ai-oneshot"] and kinds(workspace) == []
    assert workspace.listed()[0]["next_run_at"] == baseline


def test_of_two_hints_the_earlier_counts_and_the_schedule_does_not(workspace: Workspace) -> None:
    workspace.task("job", schedule="1s")
    workspace.tick()
    document = workspace.json("hint", "job", "--every", "20m", "--at", "in 10 minutes")
    assert document["source"] == "ai-oneshot" and len(document["hints"]) == 2
    workspace.move_back("job", "-1 minute")
    workspace.tick()
    assert sources(workspace) == ["baseline-interval"]
    shift(workspace, "-10 minutes", "at")
    workspace.tick()
    assert sources(workspace) == ["baseline-interval", "ai-oneshot"] and kinds(workspace) == ["interval"]
    workspace.sql("UPDATE tasks SET last_end = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-20 minutes')")
    shift(workspace, "-20 minutes", "given_at")
    workspace.tick()
    assert sources(workspace)[2:] == ["ai-interval"]


def test_a_hint_that_has_run_out_is_cleared_and_leaves_nothing_missed(workspace: Workspace) -> None:
    workspace.task("cron", schedule=half_past())
    workspace.task("once", schedule="in 1 hour")
    for task_id in ("cron", "once"):
        workspace.cli("hint", task_id, "--every", "3h", "--for", "2h")
        workspace.move_back(task_id, "-2 hours")
    workspace.sql("UPDATE tasks SET anchored_at = strftime('%Y-%m-%dT%H:%M:%fZ', anchored_at, '-2 hours')")
    shift(workspace, "-2 hours", "until", "given_at")
    workspace.tick()
    assert kinds(workspace) == [] and workspace.rows("cron") == []  # what the hint had replaced is settled
    assert workspace.json("show", "cron")["source"] == "baseline-cron"
    # But the only moment of a one-shot is not lost: nobody else would ever say that it was not run.
    assert sources(workspace, "once") == ["catch-up"]
    workspace.move_back("cron", "-1 hour")
    workspace.tick()
    assert workspace.rows("cron") == [("success", None, 1)]


def test_clamps_hold_against_hints_and_a_pause_wins(workspace: Workspace) -> None:
    workspace.task("job", schedule="1h", min_interval="30m", max_interval="2h")
    workspace.tick()
    assert workspace.json("hint", "job", "--every", "1m")["source"] == "clamped-min"
    assert workspace.json("hint", "job", "--every", "1d")["source"] == "clamped-max"
    workspace.cli("hint", "job", "--every", "1m")
    shift(workspace, "-10 minutes", "given_at")
    workspace.move_back("job", "-10 minutes")
    workspace.tick()
    assert sources(workspace) == ["baseline-interval"]
    shift(workspace, "-20 minutes", "given_at")
    workspace.move_back("job", "-20 minutes")
    workspace.cli("pause", "job", "--for", "1h")
    workspace.tick()
    assert workspace.rows("job")[1:] == [("skipped", "paused", 1)]
    workspace.sql("UPDATE tasks SET paused_until = NULL")
    workspace.tick()
    assert sources(workspace)[-1] == "clamped-min" and workspace.rows("job")[-1] == ("success", None, 1)


def test_a_moment_that_passed_while_the_task_was_off_does_not_fire_when_it_is_resumed(workspace: Workspace) -> None:
    path = workspace.task("job", schedule=half_past())
    for way in ("resume", "by hand"):
        workspace.cli("hint", "job", "--at", "in 10 minutes")
        workspace.cli("pause", "job")
        if way == "by hand":
            workspace.tick()
        shift(workspace, "-20 minutes", "at")
        if way == "resume":
            workspace.cli("resume", "job")
        else:
            path.write_text(path.read_text().replace("enabled: false\ndisabled_reason: paused\n", ""))
        workspace.tick()
        assert workspace.rows("job") == [] and kinds(workspace) == []


# --- from inside -----------------------------------------------------------------------------------------------


def test_a_task_gives_itself_a_hint_that_counts_when_it_has_ended(workspace: Workspace) -> None:
    gate = Gate(workspace)
    call = f'"{sys.executable}" {SCHEDULER} hint "$TICKDOWN_TASK_ID" --every 1s --reason "again soon" >> said 2>&1'
    path = workspace.root / "said"
    workspace.task("job", f"cd {workspace.root}; [ -e said ] || {{ {call}; {gate.command}; }}", schedule="1h", cwd="/")
    tick = workspace.start("tick")
    gate.wait()
    assert "It is running; this counts once it has ended." in path.read_text()
    workspace.tick()
    assert workspace.rows("job") == [("running", None, 1)]
    gate.open()
    assert tick.communicate(timeout=PATIENCE) and tick.returncode == 0
    assert workspace.sql("SELECT author, every_s, reason FROM hints") == [("task job", 1.0, "again soon")]
    shift(workspace, "-1 minute", "given_at")
    workspace.move_back("job", "-1 minute")
    workspace.tick()
    assert sources(workspace) == ["baseline-interval", "ai-interval"]
    assert "by task job: again soon" in workspace.cli("show", "job").stdout


# --- who may be hinted at, and with what -----------------------------------------------------------------------


def test_a_manual_task_can_be_given_a_time_and_a_disabled_one_keeps_it(workspace: Workspace) -> None:
    workspace.task("hand", schedule="manual")
    workspace.task("idle", schedule="1h", enabled=False)
    assert workspace.json("hint", "hand", "--at", "in 10 minutes")["source"] == "ai-oneshot"
    assert "no next run: it is disabled" in workspace.cli("hint", "idle", "--every", "1m").stdout
    shift(workspace, "-10 minutes", "at", "given_at")
    workspace.tick()
    workspace.tick()
    assert sources(workspace, "hand") == ["ai-oneshot"] and sources(workspace, "idle") == []
    assert kinds(workspace) == ["interval"] and workspace.json("show", "idle")["hints"][0]["every_s"] == 60.0


def test_a_hint_for_now_starts_it_with_the_next_tick(workspace: Workspace) -> None:
    workspace.task("job", schedule="@yearly")
    workspace.tick()
    assert "next run now (" in workspace.cli("hint", "job", "--at", "now").stdout
    workspace.tick()
    assert sources(workspace) == ["ai-oneshot"]


def test_a_hint_or_a_comment_on_a_suspended_task_says_at_once_that_it_is(workspace: Workspace) -> None:
    workspace.task("job", "false", schedule="1h", suspend_after=1)
    workspace.tick()
    off = f"it is suspended; go on with: {workspace.typed('resume job')}\n"
    assert f"no next run: {off}" in workspace.cli("hint", "job", "--at", "in 10 minutes").stdout
    assert workspace.cli("comment", "job", "/run").stdout == f"comment 1 on job: run has no effect: {off}"
    assert workspace.cli("comment", "job", "/skip").stdout == f"comment 2 on job: skip waits for its next run: {off}"
    assert "resume is obeyed by the next tick" in workspace.cli("comment", "job", "/resume").stdout


WRONG = {
    ("--every", "0s"): "--every: '0s' is zero",
    ("--every", "5"): "--every: '5' has no unit",
    ("--every", "0.5s"): "shorter than a second",
    ("--at", "yesterday"): "--at: 'yesterday' is not a time",
    ("--at", "2020-01-01"): "--at: '2020-01-01' is in the past",
    ("--at", "every day at 09:00"): "is not one moment",
    ("--at", "9999-12-31"): "more than ten years away",
    ("--at", "in 2 hours", "--for", "1h"): "--for: the hint would run out before 'in 2 hours'",
    ("--for", "1h"): "give --every D or --at T",
    (): "give --every D or --at T",
    ("--clear", "--every", "1m"): "--clear alone",
    ("--every", "1m", "--at", "soon"): "--at: 'soon' is not a time",
    ("--every", "1m", "--reason", "x" * 10_000): "--reason: more than 500 characters",
}


def test_what_makes_no_sense_is_refused_with_2_and_nothing_is_stored(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.task("job", schedule="1h")
    for arguments, message in WRONG.items():
        assert main(["hint", "job", *arguments, "--workspace", str(workspace.root)]) == 2, arguments
        told = capsys.readouterr()
        assert message in told.err and told.out == "", arguments
    assert kinds(workspace) == []
    assert "did you mean job?" in workspace.cli("hint", "jobb", "--every", "1m", code=4).stderr


def test_a_reason_is_kept_on_one_line_without_escape_sequences_and_secrets(workspace: Workspace) -> None:
    (workspace.root / ".env").write_text("PIN=hunter2-hunter2\n")
    (workspace.root / ".env").chmod(0o600)
    workspace.task("job", schedule="1h")
    reason = "red\x1b[31m\nand hunter2-hunter2, hunter2-\x1b[0mhunter2 \u202eback " + "long " * 80
    output = workspace.cli("hint", "job", "--every", "1m", "--reason", reason).stdout
    ((kept,),) = workspace.sql("SELECT reason FROM hints")
    assert kept == "red and ***, *** back " + ("long " * 80).strip()
    log = (workspace.root / "logs" / "scheduler.log").read_text()
    shown = workspace.cli("show", "job", "--json").stdout
    for text in (output, log, shown, workspace.cli("show", "job").stdout):
        assert "hunter2-hunter2" not in text and "\x1b" not in text and "red" in text
    until = datetime.now(UTC) + timedelta(hours=1)
    assert workspace.json("hint", "job", "--at", until.isoformat())["hints"][1]["kind"] == "one-shot"


def test_a_moment_that_ran_out_before_any_tick_leaves_a_row(workspace: Workspace) -> None:
    workspace.task("job", schedule="0 0 1 1 *")
    workspace.cli("hint", "job", "--at", "in 10 minutes", "--for", "1h")
    workspace.sql(
        "UPDATE hints SET at = strftime('%Y-%m-%dT%H:%M:%fZ', at, '-1 day'), until = strftime('%Y-%m-%dT%H:%M:%fZ', until, '-1 day')"
    )
    ticks = start_together([workspace.argv("tick")] * 4, env=workspace.environment)
    assert [tick.returncode for tick in ticks] == [0] * 4
    assert workspace.sql("SELECT status, source, count FROM task_runs") == [("missed", "ai-oneshot", 1)]
    assert workspace.sql("SELECT * FROM hints") == []
