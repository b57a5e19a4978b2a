"""`add`: a task file from one sentence. It is accepted as it stands, or nothing is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import main
from tests.helpers import PATIENCE, Workspace
from tickdown.actions.add import LONGEST_SLUG, file_text, slug, split_sentence
from tickdown.base.errors import TickdownError
from tickdown.tasks.task import Surroundings, parse_task, valid_id

# What a command line can hand over, with what YAML could trip over made likely.
TRICKY = ["---", "#", ": ", "'", '"', "\\", "\n", "\r\n", "\t", "\x85", "\u2028", "\u2029", "\ufeff", "\x7f", "\x9b", "\x1b[31m",
          "\u202e", "%", "*a", "&a", "!!bool", "|", ">", "{", "}", "[", "@", "`", "\ufffe", "😀", "null", "~", "é"]  # fmt: skip
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXTS = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(CHARACTERS, max_size=8)), max_size=8).map("".join)
SCHEDULES = ["every monday at 09:00", "in 30 minutes", "0 9 * * mon#1", "@daily", "90s", "manual", "Tomorrow At 9:00"]


def written(workspace: Workspace) -> list[str]:
    return sorted(path.name for path in (workspace.root / "tasks").iterdir())


# --- the text of the file --------------------------------------------------------------------------------------


@given(message=TEXTS, command=TEXTS.filter(str.strip), schedule=st.sampled_from(SCHEDULES))
def test_what_is_written_is_read_back_as_it_was_given(message: str, command: str, schedule: str) -> None:
    when, what = split_sentence(f" {schedule}:  {message}")
    assert when == schedule
    text = file_text("job", when, what, {"command": command})
    task, problems, _ = parse_task(text, "tasks/job.md", Surroundings())
    assert task is not None and problems == []
    assert (task.id, task.schedule.text, task.command) == ("job", schedule, command)
    assert task.title.split() == (what or "job").split()


@given(st.text(CHARACTERS, max_size=200))
def test_an_id_made_of_a_message_is_one(message: str) -> None:
    made = slug(message)
    assert made == "" or (valid_id(made) and len(made) <= LONGEST_SLUG and made == slug(made))


@given(TEXTS)
def test_a_sentence_is_split_or_refused_but_never_crashes(sentence: str) -> None:
    try:
        schedule, _ = split_sentence(sentence)
    except TickdownError as error:
        assert error.code == 2
    else:
        assert schedule.strip()


@pytest.mark.parametrize(
    ("sentence", "parts"),
    [
        ("every monday at 09:00: summarise: all", ("every monday at 09:00", "summarise: all")),
        ("  Every  Weekday\tat 18:30:\nlock up ", ("Every Weekday at 18:30", "lock up")),
        ("in 30 minutes: stretch", ("in 30 minutes", "stretch")),
        ("0 6 * * 1-5: report", ("0 6 * * 1-5", "report")),
        ("at 17:00:", ("at 17:00", "")),
        ("daily", ("daily", "")),
    ],
)
def test_the_first_colon_with_a_gap_ends_the_schedule(sentence: str, parts: tuple[str, str]) -> None:
    assert split_sentence(sentence) == parts


# --- the command -----------------------------------------------------------------------------------------------


def test_add_writes_the_file_and_says_where_when_and_what(workspace: Workspace) -> None:
    done = workspace.cli("add", "Every  monday at 9:00: Summarise last week's merged PRs!", "--command", "echo $X")
    path = workspace.root / "tasks" / "summarise-last-week-s-merged-prs.md"
    first, schedule, coming = done.stdout.splitlines()
    assert first == str(path.relative_to(workspace.root)) and path.stat().st_mode & 0o022 == 0
    assert schedule.startswith("schedule  Every monday at 9:00: ") and "Monday" in schedule and "09:00" in schedule
    document = json.loads(workspace.cli("show", "summarise-last-week-s-merged-prs", "--json").stdout)
    at = datetime.fromisoformat(document["next_run_at"])
    assert (at.weekday(), at.hour, at.minute) == (0, 9, 0) and coming.startswith("next run  ")
    assert document["title"] == "Summarise last week's merged PRs!" and document["command"] == "echo $X"
    assert "no problems" in workspace.cli("validate").stdout


def test_what_is_added_counts_from_now_and_runs(workspace: Workspace) -> None:
    before = datetime.now(UTC)
    document = workspace.json("add", "in 30 minutes: stretch", "--command", "echo >> ran", "--id", "Stretch")
    after = datetime.now(UTC)
    at = datetime.fromisoformat(document["next_run_at"]) - timedelta(minutes=30)
    assert before - timedelta(milliseconds=1) <= at <= after
    assert (document["id"], document["source"], document["path"]) == ("Stretch", "one-shot", "tasks/Stretch.md")
    assert document["reading"] and document["state"] == "active" and document["schedule"] == "in 30 minutes"
    workspace.tick()
    for column in ("anchored_at", "armed_at"):
        workspace.sql(f"UPDATE tasks SET {column} = strftime('%Y-%m-%dT%H:%M:%fZ', {column}, '-30 minutes')")
    workspace.tick()
    assert workspace.rows("stretch") == [("success", None, 1)]
    # The same sentence again, before any tick has noticed that the file was taken away.
    (workspace.root / "tasks" / "Stretch.md").unlink()
    again = workspace.json("add", "in 30 minutes: stretch", "--command", "echo >> ran")
    assert datetime.fromisoformat(again["next_run_at"]) - timedelta(minutes=30) >= after
    workspace.tick()
    assert workspace.sql("SELECT id FROM tasks") == [("stretch",)] and len(workspace.rows("stretch")) == 1


def test_an_id_that_is_taken_is_refused_with_3_and_nothing_is_written(workspace: Workspace) -> None:
    workspace.write_task("elsewhere/Backup", "---\nid: Backup\nschedule: 1h\ncommand: 'true'\n---\n")
    workspace.write_task("broken", "---\nid: report\nschedule: nonsense\n---\n")
    workspace.write_task("unreadable", "---\nid: [\n")
    workspace.write_task("other-name", "---\nid: something-else\nschedule: 1h\ncommand: 'true'\n---\n")
    before = {path: path.read_bytes() for path in (workspace.root / "tasks").rglob("*.md")}
    for message in ("backup", "Report", "unreadable", "other name"):
        done = workspace.cli("add", f"every hour: {message}", "--command", "true", code=3)
        assert "--id" in done.stderr and done.stdout == ""
    assert {path: path.read_bytes() for path in (workspace.root / "tasks").rglob("*.md")} == before
    workspace.cli("add", "every hour: backup", "--command", "true", "--id", "backup-2")
    assert "backup-2.md" in written(workspace)


WRONG = {
    ("on 2020-06-01 at 12:00: too late",): "is in the past",
    ("every monky at 09:00: x",): "did you mean 'monday'",
    ("in 30 minutes:stretch",): "every monday at 09:00: run the report",
    ("run the report",): 'write "every monday at 09:00: run the report"',
    ("",): "every monday at 09:00: run the report",
    ("every hour: отчёт",): "give one with --id",
    ("every hour: x", "--id", "../x"): "can't be the id of a task",
    ("every hour: x", "--id", "_x"): "would not be read as a task",
    ("every hour: x", "--id", "README"): "would not be read as a task",
}


def test_what_can_not_be_a_task_is_refused_with_2_and_nothing_is_written(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in WRONG.items():
        assert main(["add", *arguments, "--command", "true", "--workspace", str(workspace.root)]) == 2, arguments
        told = capsys.readouterr()
        assert message in told.err and told.out == "", arguments
    for more, message in {
        ("--command", " "): "command", ("--as", "cluade"): "did you mean 'claude'",
        ("--command", "true", "--as", "claude"): "not allowed with",
    }.items():  # fmt: skip
        assert message in workspace.cli("add", "every hour: x", *more, code=2).stderr
    assert "or give --command or --url" in workspace.cli("add", "every hour:", code=2).stderr
    assert written(workspace) == []


def test_a_message_alone_is_for_an_agent(workspace: Workspace) -> None:
    said = workspace.cli("add", "every monday at 09:00: Summarise last week's merged PRs").stdout
    assert "done by   claude, who is told: Summarise last week's merged PRs\n" in said
    text = (workspace.root / "tasks" / "summarise-last-week-s-merged-prs.md").read_text()
    assert 'run_as: "claude"\n' in text and 'prompt: "Summarise last week\'s merged PRs"\n' in text


def test_a_command_that_no_file_could_hold_is_refused(workspace: Workspace) -> None:
    quarter = "\x01" * 60_000  # six characters each in the file
    done = workspace.cli("add", "every hour: x", "--command", f"echo {quarter}", code=2)
    assert "too much for a task file" in done.stderr
    not_text = b"echo \xff".decode("utf-8", "surrogateescape")
    assert "not valid UTF-8" in workspace.cli("add", "every hour: x", "--command", not_text, code=2).stderr
    assert written(workspace) == []


def test_odd_words_reach_the_task_as_they_were_given(workspace: Workspace) -> None:
    command = "printf '%s|' 'a\"b' '---' '# no' '\u202eשלום 😀' > out\n# the end\n"
    message = "--- #1: 'sagt' \"שלום\" \x1b[31m" + "very long " * 2000
    workspace.cli("add", f"manual: {message}", "--command", command, "--id", "odd")
    workspace.cli("run", "odd")
    assert (workspace.root / "out").read_text() == 'a"b|---|# no|\u202eשלום 😀|'
    assert "\x1b" not in (workspace.root / "tasks" / "odd.md").read_text()


def test_a_wide_umask_does_not_make_a_file_that_is_then_rejected(workspace: Workspace) -> None:
    process = workspace.start("add", "every hour: call", "--url", "http://127.0.0.1:9/", umask=0)
    assert "tasks/call.md" in process.communicate(timeout=PATIENCE)[0]
    assert "no problems" in workspace.cli("validate").stdout
