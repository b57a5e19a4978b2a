"""Comments on tasks, and tickets: what people and the program say to each other."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Gate, Telegram, Workspace, kill
from tests.test_agents import program, told
from tickdown.base.model import Comment
from tickdown.comments.meaning import Action, Wish, may_be_set, outcomes, plain_wish, understood, wish_from

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def said(text: str) -> Comment:
    return Comment(1, "job", "me", text, NOW)


# --- what is wanted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("/skip", Wish(Action.SKIP, "/skip")),
        ("  /SKIP ", Wish(Action.SKIP, "/SKIP")),
        ("/run", Wish(Action.RUN, "/run")),
        ("/resume", Wish(Action.RESUME, "/resume")),
        ("/pause", Wish(Action.PAUSE, "/pause")),
        ("/pause until 2026-06-02", Wish(Action.PAUSE, "/pause until 2026-06-02", until=datetime(2026, 6, 2, tzinfo=UTC))),
        ("/pause until tomorrow at 09:00", Wish(Action.PAUSE, "/pause until tomorrow at 09:00", until=datetime(2026, 6, 2, 9, tzinfo=UTC))),
        ("/skip please", None), ("skip", None), ("/skip until 09:00", None), ("/paus", None), ("please /skip", None), ("", None),
    ],
)  # fmt: skip
def test_a_plain_command_needs_no_agent(text: str, wish: Wish | None) -> None:
    assert plain_wish(said(text), UTC) == wish


@pytest.mark.parametrize("text", ["/pause until never", "/pause until 2020-01-01", "/pause until 9999-01-01"])
def test_a_pause_until_no_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        plain_wish(said(text), UTC)


def test_commands_do_not_wait_for_other_words_and_a_pause_may_be_over() -> None:
    comments = [said("/skip"), said("what about friday?"), said("/run")]
    assert [wish.action for _, wish in understood(comments, UTC, NOW)] == [Action.SKIP, Action.RUN]
    ((_, wish),) = understood([said("/pause until 2026-06-02")], UTC, NOW + timedelta(days=2))
    assert wish.action is Action.RUN


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ({"action": "run", "reason": "nothing asked"}, Action.RUN),
        ({"action": "skip"}, Action.SKIP),
        ({"action": "pause", "until": "2026-06-02T09:00:00+02:00"}, Action.PAUSE),
        ({"action": "pause"}, Action.PAUSE),
        ({"action": "modify", "env": {"LIMIT": 5}}, Action.MODIFY),
        ({"action": "ask", "question": "Which Friday?"}, Action.ASK),
        ({"action": "resume"}, None), ({"action": "dance"}, None), ({"action": None}, None), ({}, None),
        ({"action": "pause", "until": "soon"}, None), ({"action": "pause", "until": "2026-06-02T09:00:00"}, None),
        ({"action": "pause", "until": "2020-01-01T00:00:00Z"}, None), ({"action": "ask"}, None), ({"action": "modify"}, None),
        ({"action": "modify", "env": ["A"]}, None), ({"action": "modify", "prompt": "be brief"}, None),
    ],
)  # fmt: skip
def test_the_answer_of_an_agent_is_taken_only_if_it_can_be_acted_on(
    answer: dict[str, object], action: Action | None
) -> None:
    wish = wish_from(f"I think:\n```json\n{json.dumps(answer)}\n```", NOW, is_agent_task=False)
    assert (wish.action if wish else None) == action


REFUSED = """
    PATH path Path LD_PRELOAD LD_LIBRARY_PATH ld_audit DYLD_INSERT_LIBRARIES PYTHONPATH PYTHONSTARTUP PYTHONHOME PythonWarnings
    BASH_ENV ENV IFS SHELL TICKDOWN_HOME TICKDOWN_RUN_ID TICKDOWN_HTTP_REQUEST tickdown_home TRACEPARENT TELEGRAM_BOT_TOKEN
    BASH_FUNC_ls BASHOPTS SHELLOPTS PS4 PROMPT_COMMAND CDPATH GLOBIGNORE ZDOTDIR PERL5LIB PERL5OPT PERL5DB RUBYOPT RUBYLIB
    NODE_OPTIONS NODE_PATH npm_config_script_shell GIT_SSH GIT_SSH_COMMAND GIT_EXEC_PATH GIT_CONFIG_COUNT git_dir SSH_ASKPASS
    SUDO_ASKPASS CLAUDE_CONFIG_DIR CLAUDE_CODE_SESSION_ID ANTHROPIC_BASE_URL CODEX_HOME HOME XDG_CONFIG_HOME EDITOR VISUAL
    GIT_EDITOR SYSTEMD_EDITOR PAGER MANPAGER BROWSER LESSOPEN JAVA_TOOL_OPTIONS _JAVA_OPTIONS CLASSPATH LUA_INIT PHPRC
    GCONV_PATH GLIBC_TUNABLES HOSTALIASES http_proxy HTTPS_PROXY SSL_CERT_FILE REQUESTS_CA_BUNDLE OPENSSL_CONF MAKEFLAGS
    PIP_INDEX_URL CARGO_HOME DOCKER_HOST KUBECONFIG
"""
TAKEN = (
    "LIMIT DRY_RUN limit _x NODE_ENV PATHS OUTPUT_PATH GITHUB_BRANCH HOMEPAGE SHELLS LDAP_FILTER ENVIRONMENT TZ LANG"
)


@pytest.mark.parametrize(
    ("name", "value", "may_be"),
    [
        *((name, "x", False) for name in REFUSED.split()),
        *((name, "x", True) for name in TAKEN.split()),
        ("A", "", True), ("A", 5, True), ("A", 0.5, True), ("A", True, True), ("A", "x" * 4000, True), ("A" * 100, "x", True),
        ("A", "x" * 4001, False), ("A", "x\0y", False), ("A", ["x"], False), ("A", None, False), ("A", {"b": 1}, False),
        ("", "x", False), ("A B", "x", False), ("A=B", "x", False), ("A\0", "x", False), ("A\n", "x", False), ("1A", "x", False),
        ("A" * 101, "x", False), ("BASH_FUNC_ls%%", "() { :; }", False), ("É", "x", False), ("ſhell", "x", False),
    ],
)  # fmt: skip
def test_what_a_comment_may_set(name: str, value: object, may_be: bool) -> None:
    assert may_be_set(name, value) == may_be
    wish = wish_from(json.dumps({"action": "modify", "env": {name: value, "OTHER": "y"}}), NOW, is_agent_task=False)
    assert wish is not None and wish.change is not None and wish.change.env["OTHER"] == "y"
    assert (name in wish.change.env, wish.refused) == (may_be, () if may_be else (name,))


def test_where_everything_is_refused_the_run_goes_on_unchanged_and_the_answer_says_so() -> None:
    env = {"PATH": "/evil", "A\x1b[31m B": "x", **{f"LD_{number}": "x" for number in range(9)}}
    wish = wish_from(json.dumps({"action": "modify", "env": env, "reason": "as asked"}), NOW, is_agent_task=False)
    assert wish is not None and wish.starts and wish.change is None
    ((_, answer),) = outcomes([said("with another path")], wish, UTC, NOW).items()
    assert answer == "modify: as asked; refused, since no comment may set it: PATH, A B, LD_0, LD_1, LD_2 and 6 more"


def test_words_may_be_added_to_the_prompt_of_an_agent_only() -> None:
    text = json.dumps({"action": "modify", "prompt": "be brief"})
    wish = wish_from(text, NOW, is_agent_task=True)
    assert wish is not None and wish.change is not None and wish.change.prompt == "be brief"


@given(st.text(), st.booleans())
def test_no_answer_brings_the_reader_down(text: str, flag: bool) -> None:
    wish_from(text, NOW, is_agent_task=flag)
    wish_from('{"action": "modify", "env": ' + text + "}", NOW, is_agent_task=flag)


# --- plain commands --------------------------------------------------------------------------------------------------


def unread(workspace: Workspace) -> list[str]:
    return [text for (text,) in workspace.sql("SELECT text FROM comments WHERE read_at IS NULL ORDER BY id")]


def test_skip_keeps_the_next_occurrence_from_running_and_no_other(workspace: Workspace) -> None:
    workspace.task("job", "echo >> ran", schedule="1h")
    workspace.cli("comment", "job", "/skip")
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "comment", 1)] and not (workspace.root / "ran").exists()
    assert workspace.sql("SELECT attempts FROM task_runs") == [(0,)]
    assert workspace.sql("SELECT COUNT(*) FROM attempts") == [(0,)] and unread(workspace) == []
    workspace.move_back("job", "-2 hours")
    workspace.tick()
    assert workspace.last_run("job")["status"] == "success"


def test_a_tick_counts_what_ran_and_not_what_a_comment_skipped(workspace: Workspace) -> None:
    for task_id in ("one", "two", "three"):
        workspace.task(task_id, schedule="1h")
    workspace.cli("comment", "two", "/skip")
    told = workspace.tick().stdout.splitlines()
    assert sorted(told[:-1]) == ["skipped   two  /skip", "success   one", "success   three"]
    assert told[-1] == "tick: 2 runs"
    workspace.cli("comment", "three", "/skip")
    workspace.move_back("three", "-2 hours")
    assert workspace.tick().stdout == "skipped   three  /skip\n"
    workspace.cli("comment", "three", "/skip")
    workspace.move_back("three", "-2 hours")
    report = workspace.json("tick")
    assert (report["due"], report["runs"]) == (1, [])


def test_skip_of_a_one_shot_closes_it(workspace: Workspace) -> None:
    workspace.task("job", "echo >> ran", schedule="in 1 second")
    workspace.tick()
    workspace.cli("comment", "job", "/skip")
    workspace.sql("UPDATE tasks SET anchored_at = '2026-01-01T00:00:00.000Z', armed_at = '2026-01-01T00:00:00.000Z'")
    workspace.tick()
    assert ("skipped", "comment", 1) in workspace.rows("job") and workspace.listed()[0]["state"] == "completed"


def test_pause_without_an_end_is_written_into_the_file_and_resume_takes_it_back(workspace: Workspace) -> None:
    path = workspace.task("job", "true", schedule="1h")
    before = path.read_text()
    workspace.cli("comment", "job", "/pause")
    workspace.tick()
    assert "enabled: false\ndisabled_reason: paused\n" in path.read_text() and workspace.rows("job") == []
    workspace.cli("comment", "job", "/resume")
    workspace.tick()
    assert path.read_text().replace("enabled: true\n", "") == before
    workspace.tick()
    assert workspace.last_run("job")["status"] == "success" and unread(workspace) == []


def test_pause_until_a_time_is_kept_beside_the_schedule(workspace: Workspace) -> None:
    path = workspace.task("job", "true", schedule="1h")
    before = path.read_text()
    workspace.cli("comment", "job", "/pause until tomorrow at 09:00")
    workspace.tick()
    assert workspace.listed()[0]["state"] == "paused" and path.read_text() == before
    assert workspace.json("show", "job")["paused_until"] is not None


@pytest.mark.parametrize(
    ("texts", "answers", "status"),
    [
        (["/skip", "/pause until tomorrow at 09:00"], ["skip", "pause"], "skipped"),
        (["/skip", "/skip"], ["skip", "skip"], "skipped"),
        (["/skip", "/run"], ["skip: no effect, comment 2 came after it", "run"], "success"),
        (
            ["/skip", "/pause", "/pause until tomorrow at 09:00", "/resume"],
            ["skip: no effect, comment 4 came after it", "pause: no effect, comment 4 came after it",
             "pause: no effect, comment 4 came after it", "resume"],
            "success",
        ),
    ],
)  # fmt: skip
def test_each_of_several_comments_has_its_own_outcome(
    workspace: Workspace, texts: list[str], answers: list[str], status: str
) -> None:
    workspace.task("job", schedule="1h")
    for text in texts:
        workspace.cli("comment", "job", text)
    workspace.tick()
    assert [comment["answer"] for comment in workspace.json("comments")] == answers
    assert [row[0] for row in workspace.rows("job")] == [status]


def test_run_starts_it_with_the_next_tick(workspace: Workspace) -> None:
    workspace.task("job", "true", schedule="0 0 1 1 *")
    workspace.tick()
    workspace.cli("comment", "job", "/run")
    workspace.tick()
    assert workspace.last_run("job")["source"] == "ai-oneshot"
    workspace.tick()
    assert len(workspace.runs("job")) == 1


def test_commands_to_a_disabled_task_are_answered(workspace: Workspace) -> None:
    workspace.task("job", "true", schedule="1h", enabled=False)
    for text in ("/run", "/pause"):
        workspace.cli("comment", "job", text)
    workspace.tick()
    answers = [comment["answer"] for comment in workspace.json("comments")]
    assert answers == ["run: it is disabled, nothing was done", "pause: it is disabled, nothing was done"]


def test_a_run_by_hand_does_not_ask_the_comments(workspace: Workspace) -> None:
    workspace.task("job", "true")
    workspace.cli("comment", "job", "/skip")
    workspace.cli("run", "job")
    assert unread(workspace) == ["/skip"]


def test_words_that_nobody_can_read_change_nothing_and_stay_unread(workspace: Workspace) -> None:
    workspace.task("job", "true", schedule="1h")
    done = workspace.cli("comment", "job", "please not on fridays")
    assert "no agent is there to make sense of it" in done.stdout
    workspace.tick()
    assert workspace.last_run("job")["status"] == "success" and unread(workspace) == ["please not on fridays"]


def test_words_that_stay_unread_keep_no_command_waiting(workspace: Workspace) -> None:
    workspace.task("job", "echo >> ran", schedule="1h")
    workspace.cli("comment", "job", "please be careful today")
    workspace.cli("comment", "job", "/skip")
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "comment", 1)] and unread(workspace) == ["please be careful today"]
    workspace.cli("comment", "job", "/pause")
    workspace.tick()
    assert workspace.listed()[0]["state"] == "paused"


def test_what_a_task_writes_steers_nobody(workspace: Workspace) -> None:
    workspace.task("other", "true", schedule="1h")
    workspace.task("job", '"$TICKDOWN_SCHEDULER" comment other /skip')
    workspace.cli("run", "job")
    workspace.tick()
    assert workspace.last_run("other")["status"] == "success"
    (note,) = workspace.json("comments", "other")
    assert note["author"] == "task job" and not note["by_a_person"]


@pytest.mark.parametrize("text", ["", "   ", "x" * 4001, "/pause until never", "/bogus", "/pause until", "/skip it"])
def test_what_is_no_comment_is_refused(workspace: Workspace, text: str) -> None:
    workspace.task("job")
    workspace.cli("comment", "job", text, code=2)
    workspace.cli("comment", "jbo", "x", code=4)


# --- with an agent ---------------------------------------------------------------------------------------------------


def reader(workspace: Workspace, answer: object, script: str = "") -> None:
    program(workspace, "reader", f"{script}\ncat <<'END'\n{json.dumps(answer)}\nEND")
    workspace.config("agents: {reader: [reader]}\nhealer: reader\n")


def rungs(workspace: Workspace) -> list[tuple[str, str]]:
    return workspace.sql("SELECT rung, status FROM attempts ORDER BY started_at, number")


def test_an_agent_reads_other_words_before_the_run(workspace: Workspace) -> None:
    reader(workspace, {"action": "skip", "reason": "it is friday"})
    workspace.task("job", "echo >> ran", schedule="1h", title="Count the orders")
    workspace.cli("comment", "job", "not on fridays please \x1b[31m")
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "comment", 1)] and not (workspace.root / "ran").exists()
    (comment,) = workspace.json("comments")
    assert comment["answer"] == "skip: it is friday" and comment["read_at"] is not None
    prompt = told(workspace, "reader", "stdin")
    assert "not on fridays please" in prompt and "Count the orders" in prompt and "\x1b" not in prompt
    assert rungs(workspace) == [("comments", "success")]


def test_run_and_modify_start_it_once_with_what_was_asked_for(workspace: Workspace) -> None:
    reader(workspace, {"action": "modify", "env": {"LIMIT": "5"}, "reason": "only five"})
    workspace.task("job", 'echo "limit ${LIMIT-none}"; [ "$TICKDOWN_ATTEMPT" != 2 ]', schedule="1h", retry=1)
    workspace.cli("comment", "job", "only five this time")
    workspace.tick()
    run = workspace.last_run("job")
    assert rungs(workspace) == [("comments", "success"), ("run", "failed"), ("retry", "success")]
    assert workspace.log_text(run).count("limit 5\n") == 2 and unread(workspace) == []
    workspace.move_back("job", "-2 hours")
    workspace.tick()
    assert "limit none" in workspace.log_text(workspace.last_run("job"))


def test_variables_that_no_comment_may_set_are_left_out_of_the_run_and_named_in_the_answer(
    workspace: Workspace,
) -> None:
    asked = {"LIMIT": "5", "PATH": "/evil", "LD_PRELOAD": "/evil.so", "BASH_ENV": "/evil.sh"}
    reader(workspace, {"action": "modify", "env": asked, "reason": "only five"})
    workspace.task("job", "env", schedule="1h")
    workspace.cli("comment", "job", "only five, with my own tools")
    workspace.tick()
    run = workspace.last_run("job")
    assert run["status"] == "success" and unread(workspace) == []
    assert "LIMIT=5\n" in workspace.log_text(run) and "evil" not in workspace.log_text(run).partition("attempt 2")[2]
    refusal = "modify: only five; refused, since no comment may set it: PATH, LD_PRELOAD, BASH_ENV"
    assert (
        workspace.json("comments", "job")[0]["answer"] == refusal and refusal in workspace.cli("comments", "job").stdout
    )
    assert "variables_refused" in workspace.scheduler_log()


def test_what_was_asked_for_is_looked_at_again_when_an_interrupted_run_is_taken_over(workspace: Workspace) -> None:
    gate = Gate(workspace)
    reader(workspace, {"action": "modify", "env": {"LIMIT": "5"}})
    workspace.task("job", f"env; [ -e ran ] || {{ touch ran; {gate.command}; }}", schedule="1h")
    workspace.cli("comment", "job", "only five this time")
    tick = workspace.start("tick")
    gate.wait()
    kill(tick.pid)
    tick.communicate()
    stored = json.dumps({"env": {"LIMIT": "7", "PYTHONPATH": "/evil", "A B": "x"}, "prompt": ""})
    workspace.sql("UPDATE task_runs SET modification = ?", stored)  # by a version that knew other rules
    workspace.tick()
    run = workspace.last_run("job")
    assert (run["status"], rungs(workspace)[-1]) == ("success", ("rerun", "success"))
    assert "LIMIT=7\n" in workspace.log_text(run) and "evil" not in workspace.log_text(run)


def test_an_agent_task_gets_the_words_added_to_its_prompt(workspace: Workspace) -> None:
    program(
        workspace, "mine", f'grep -q "people have written" {workspace.root.parent}/bin/mine.stdin && '
        """echo '{"action": "modify", "prompt": "Be brief."}' || echo done"""
    )  # fmt: skip
    workspace.config("agents: {mine: [mine]}\n")
    workspace.task("job", schedule="1h", run_as="mine", prompt="Report.")
    workspace.cli("comment", "job", "shorter please")
    workspace.tick()
    assert told(workspace, "mine", "stdin") == "Report.\n\nBe brief."


def test_secrets_of_the_task_are_masked_in_what_the_agent_says(workspace: Workspace) -> None:
    reader(workspace, {"action": "ask", "question": "Is it my-own-secret-1?", "reason": "my-own-secret-1"})
    workspace.task("job", "true", schedule="1h", env={"MY_TOKEN": "my-own-secret-1"})
    workspace.cli("comment", "job", "which one?")
    workspace.tick()
    stored = json.dumps(
        [workspace.sql(f"SELECT * FROM {table}") for table in ("comments", "alerts", "task_runs", "attempts")]
    )
    assert "my-own-secret-1" not in stored and "Is it ***?" in stored


def test_a_one_shot_that_is_put_off_stays_due(workspace: Workspace) -> None:
    later = (datetime.now(UTC) + timedelta(hours=5)).isoformat()
    reader(workspace, {"action": "pause", "until": later})
    workspace.task("job", "true", schedule="in 1 second")
    workspace.tick()
    workspace.cli("comment", "job", "after lunch please")
    workspace.sql("UPDATE tasks SET anchored_at = '2026-01-01T00:00:00.000Z', armed_at = '2026-01-01T00:00:00.000Z'")
    workspace.tick()
    assert ("skipped", "comment", 1) in workspace.rows("job") and workspace.listed()[0]["state"] == "paused"
    workspace.sql("UPDATE tasks SET paused_until = '2026-01-01T00:00:00.000Z'")
    workspace.tick()
    assert workspace.last_run("job")["status"] == "success"


def test_a_question_is_posted_and_told_and_the_run_is_skipped(workspace: Workspace, telegram: Telegram) -> None:
    program(workspace, "reader", """echo '{"action": "ask", "question": "Which Friday?"}'""")
    telegram.configure(workspace, "agents: {reader: [reader]}\nhealer: reader\n")
    workspace.task("job", "true", schedule="1h")
    workspace.cli("comment", "job", "not this friday")
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "comment", 1)]
    mine, question = workspace.json("comments")
    assert question["text"] == "Which Friday?" and not question["by_a_person"] and mine["answer"] == "ask"
    (text,) = telegram.texts
    assert "Which Friday?" in text and "scheduler.py comment job" in text


@pytest.mark.parametrize("until", [None, "2099-01-01T00:00:00+00:00"])
def test_pause_by_words(workspace: Workspace, until: str | None) -> None:
    later = (datetime.now(UTC) + timedelta(days=3)).isoformat() if until else None
    reader(workspace, {"action": "pause", "until": later, "reason": "holidays"})
    path = workspace.task("job", "true", schedule="1h")
    workspace.cli("comment", "job", "we are on holiday")
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "comment", 1)] and workspace.listed()[0]["state"] == "paused"
    assert ("disabled_reason: paused" in path.read_text()) == (until is None)


@pytest.mark.parametrize("script", ["exit 3", "echo no json; exit 0", "kill -9 $$"])
def test_an_agent_that_fails_means_run_and_the_comment_stays_unread(workspace: Workspace, script: str) -> None:
    reader(workspace, {"action": "skip"}, script if "exit" in script or "kill" in script else "")
    workspace.task("job", "echo >> ran", schedule="1h")
    workspace.cli("comment", "job", "not today")
    workspace.tick()
    assert workspace.last_run("job")["status"] == "success" and unread(workspace) == ["not today"]
    assert [rung for rung, _ in rungs(workspace)] == ["comments", "run"]


def test_a_tick_that_dies_while_the_agent_reads_leaves_the_comment_to_the_next(workspace: Workspace) -> None:
    gate = Gate(workspace)
    reader(workspace, {"action": "skip"}, gate.command)
    workspace.task("job", "echo >> ran", schedule="1h")
    workspace.cli("comment", "job", "not today")
    tick = workspace.start("tick")
    gate.wait()
    kill(tick.pid)
    tick.communicate()
    assert unread(workspace) == ["not today"]
    reader(workspace, {"action": "skip"})
    workspace.tick()
    assert workspace.rows("job") == [("skipped", "comment", 1)] and not (workspace.root / "ran").exists()


# --- tickets ---------------------------------------------------------------------------------------------------------


def test_a_ticket_names_task_run_error_what_was_tried_and_how_to_go_on(workspace: Workspace) -> None:
    workspace.task("job", "echo broken; exit 3", schedule="1h", suspend_after=1, retry=1)
    workspace.tick()
    (ticket,) = workspace.json("tickets")
    run = workspace.last_run("job")
    assert (ticket["kind"], ticket["task_id"], ticket["run_id"]) == ("suspended", "job", run["run_id"])
    assert ticket["error"] == "failed: exit code 3: broken" and ticket["command"] == workspace.typed("resume job")
    assert ticket["tried"] == ["1. run: failed, exit code 3: broken", "2. retry: failed, exit code 3: broken"]
    text = workspace.cli("tickets").stdout
    assert "job is suspended (suspended)" in text and "Go on with: scheduler.py resume job" in text


def test_a_ticket_of_a_task_that_has_not_stopped_asks_nobody_to_resume_it(workspace: Workspace) -> None:
    workspace.task("job", "exit 3", schedule="1h", suspend_after=4)
    for _ in range(3):
        workspace.tick()
        workspace.move_back("job", "-20 days")
    (ticket,) = workspace.json("tickets")
    assert (ticket["kind"], ticket["command"]) == ("failing", workspace.typed(f"tickets --close {ticket['id']}"))
    text = workspace.cli("tickets").stdout
    assert (
        f"  | It goes on by itself; close with: {workspace.typed('tickets --close 1')}\n" in text
        and "resume" not in text
    )
    workspace.tick()
    first, second = workspace.cli("tickets").stdout.split("ticket 2")
    assert f"It is suspended now. Go on with: {workspace.typed('resume job')}\n" in first
    assert second.count(f"Go on with: {workspace.typed('resume job')}\n") == 1
    workspace.cli("tickets", "--close", "1")
    assert "--close" not in workspace.cli("tickets", "--all").stdout


def test_one_open_ticket_per_task_and_kind_that_a_recovery_only_adds_a_note_to(workspace: Workspace) -> None:
    workspace.task("job", "[ -e well ]", schedule="1h")
    for _ in range(4):
        workspace.tick()
        workspace.move_back("job", "-20 days")
    assert len(workspace.json("tickets")) == 1
    (workspace.root / "well").touch()
    workspace.tick()
    (ticket,) = workspace.json("tickets", "job")
    assert [note["text"] for note in ticket["notes"]] == ["It succeeded again."]
    workspace.cli("resume", "job")
    assert workspace.json("tickets") == [] and workspace.json("tickets", "--all")[0]["closed_at"] is not None


def test_tickets_are_closed_by_number_with_a_note(workspace: Workspace) -> None:
    workspace.task("job", "exit 3", schedule="1h", suspend_after=1)
    workspace.tick()
    (ticket,) = workspace.json("tickets")
    workspace.cli("tickets", "--close", str(ticket["id"]), "--note", "the disk was full")
    (closed,) = workspace.json("tickets", "--all")
    assert closed["notes"][0]["text"] == "the disk was full" and workspace.json("tickets") == []
    assert "closed already" in workspace.cli("tickets", "--close", str(ticket["id"]), code=1).stderr
    assert "no ticket 99" in workspace.cli("tickets", "--close", "99", code=4).stderr
    workspace.cli("tickets", "--note", "x", code=2)
    workspace.cli("tickets", "job", "--close", "1", code=2)
    workspace.cli("tickets", "nobody", code=4)


def test_old_comments_go_but_unread_ones_stay(workspace: Workspace) -> None:
    workspace.task("job", "true", schedule="1h")
    for text in ("/skip", "unread words"):
        workspace.cli("comment", "job", text)
    workspace.tick()
    workspace.sql("UPDATE comments SET at = '2020-01-01T00:00:00.000Z'")
    workspace.cli("prune")
    assert [comment["text"] for comment in workspace.json("comments", "job")] == ["unread words"]


def test_a_task_that_comments_is_told_that_people_read_it(workspace: Workspace) -> None:
    workspace.task("job", f'{sys.executable} "$TICKDOWN_SCHEDULER" comment job /pause')
    run = workspace.json("run", "job")
    assert "for people to read" in workspace.log_text(run) and unread(workspace) == []
    assert workspace.json("show", "job")["state"] == "active"
