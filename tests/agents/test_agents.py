"""Agents as runners: how they are called, what is kept of their answers, what they are kept apart from, what they may spend."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import Telegram, Workspace
from tickdown.agents.calls import PRESETS, Agent, Format, Purpose, call

RESULT = {
    "type": "result", "subtype": "success", "is_error": False, "result": "All is well.", "session_id": "s-1", "num_turns": 2,
    "total_cost_usd": 0.25, "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 7},
    "permission_denials": [],
}  # fmt: skip


def program(workspace: Workspace, name: str, script: str) -> Path:
    """A scripted program in the place of an agent, first on the PATH. It notes its arguments, stdin and environment."""
    folder = workspace.root.parent / "bin"
    folder.mkdir(exist_ok=True)
    path = folder / name
    note = f'printf "%s\\n" "$@" > {path}.argv; cat > {path}.stdin; env -0 > {path}.env; pwd > {path}.cwd'
    path.write_text(f"#!/bin/bash\n{note}\n{script}\n")
    path.chmod(0o755)
    if not workspace.environment["PATH"].startswith(f"{folder}:"):
        workspace.environment["PATH"] = f"{folder}:{workspace.environment['PATH']}"
    return path


def claude(workspace: Workspace, code: int = 0, **answer: Any) -> None:
    program(workspace, "claude", f"cat <<'END'\n{json.dumps(RESULT | answer)}\nEND\nexit {code}")


def told(workspace: Workspace, name: str, what: str) -> str:
    return (workspace.root.parent / "bin" / f"{name}.{what}").read_text()


def environment(workspace: Workspace, name: str = "claude") -> dict[str, str]:
    entries = told(workspace, name, "env").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if entry)


def agent_task(workspace: Workspace, task_id: str = "job", schedule: str = "1h", **fields: object) -> None:
    workspace.task(task_id, schedule=schedule, **({"run_as": "claude", "prompt": "Look around."} | fields))


# --- how they are called ---------------------------------------------------------------------------------------------


def test_the_prompt_goes_in_on_stdin_and_the_answer_is_kept_with_the_run(workspace: Workspace) -> None:
    claude(workspace)
    agent_task(workspace, prompt="Look\naround.", env={"MODE": "x"})
    run = workspace.json("run", "job")
    assert told(workspace, "claude", "argv").split() == ["-p", "--output-format", "json", "--strict-mcp-config"]
    assert told(workspace, "claude", "stdin") == "Look\naround."
    assert told(workspace, "claude", "cwd").strip() == str(workspace.root) and environment(workspace)["MODE"] == "x"
    assert (run["status"], run["cost_usd"], run["input_tokens"], run["output_tokens"]) == ("success", 0.25, 15, 7)
    assert run["session_id"] == "s-1"
    shown = workspace.json("show", "job")["runs"][0]
    assert (shown["result"], shown["summary"]) == ("All is well.", "All is well.")
    assert shown["attempt_details"][0]["cost_usd"] == 0.25
    assert "$0.25" in workspace.cli("history").stdout


@pytest.mark.parametrize(
    ("name", "argv", "answer", "text"),
    [
        ("codex", ["exec", "--json", "--skip-git-repo-check"],
         '{"type":"thread.started","thread_id":"t-1"}\n{"type":"item.completed","item":{"type":"agent_message","text":"Done."}}\n'
         '{"type":"turn.completed","usage":{"input_tokens":3,"output_tokens":4}}', "Done."),
        ("gemini", ["-p", "", "--output-format", "json", "--skip-trust"],
         '{"response":"Done.","stats":{"models":{"m":{"tokens":{"prompt":3,"candidates":4}}}}}', "Done."),
        ("mine", ["--go"], "Done.", "Done."),
    ],
)  # fmt: skip
def test_other_agents_are_called_and_read_in_their_own_way(
    workspace: Workspace, name: str, argv: list[str], answer: str, text: str
) -> None:
    program(workspace, name, f"cat <<'END'\n{answer}\nEND")
    workspace.config("agents: {mine: [mine, --go]}\n")
    agent_task(workspace, run_as=name)
    run = workspace.json("run", "job")
    assert run["status"] == "success" and told(workspace, name, "argv").split("\n")[:-1] == argv
    assert (run["input_tokens"], run["output_tokens"]) == ((None, None) if name == "mine" else (3, 4))
    assert workspace.json("show", "job")["runs"][0]["result"] == text


@pytest.mark.parametrize(
    ("code", "answer", "error_class", "error"),
    [
        (0, {"is_error": True, "result": "Something broke"}, "error", "error: Something broke"),
        (1, {"subtype": "error_max_turns", "is_error": True, "result": None}, "error", "exit code 1: error_max_turns"),
        (1, {"subtype": "error_max_budget_usd", "result": None}, "budget", "the budget of this call is used up"),
        (1, {"is_error": True, "api_error_status": 401, "result": "API Error: 401"}, "auth", "API Error: 401"),
        (0, {"result": "I could not write it.", "permission_denials": [{"tool_name": "Write"}]}, "auth", "not permitted to use Write"),
    ],
)  # fmt: skip
def test_what_an_agent_says_counts_more_than_its_exit_code(
    workspace: Workspace, code: int, answer: dict[str, Any], error_class: str, error: str
) -> None:
    claude(workspace, code, **answer)
    agent_task(workspace)
    run = workspace.json("run", "job", code=1)
    assert (run["status"], run["exit_code"], run["error_class"]) == ("failed", code, error_class)
    assert error in run["error"] and run["cost_usd"] == 0.25


def test_noise_on_stderr_does_not_get_into_the_answer(workspace: Workspace) -> None:
    noise = 'echo \'{"type":"result","is_error":true}\' >&2; echo warning >&2'
    program(workspace, "claude", f"{noise}\ncat <<'END'\n{json.dumps(RESULT)}\nEND\n{noise}")
    agent_task(workspace)
    run = workspace.json("run", "job")
    assert run["status"] == "success" and "warning" in workspace.log_text(run)


def test_no_result_is_no_success(workspace: Workspace) -> None:
    program(workspace, "claude", "echo hello")
    agent_task(workspace)
    assert "no result" in workspace.json("run", "job", code=1)["error"]


def test_secrets_are_in_no_prompt_and_in_no_answer(workspace: Workspace) -> None:
    (workspace.root / ".env").write_text("API_TOKEN=a-very-secret-thing\n")
    (workspace.root / ".env").chmod(0o600)
    claude(workspace, result="It is a-very-secret-thing.")
    agent_task(workspace, prompt="Use a-very-secret-thing.")
    run = workspace.json("run", "job")
    assert told(workspace, "claude", "stdin") == "Use ***."
    everything = json.dumps(workspace.json("show", "job")) + workspace.log_text(run)
    assert "a-very-secret-thing" not in everything and "It is ***." in everything


def test_a_timeout_ends_an_agent_and_what_it_started(workspace: Workspace) -> None:
    program(workspace, "claude", "sleep 1000")
    agent_task(workspace, timeout="1s")
    assert workspace.json("run", "job", code=1)["status"] == "timeout"


def test_a_dry_run_shows_the_call_and_starts_nothing(workspace: Workspace) -> None:
    claude(workspace)
    agent_task(workspace)
    shown = workspace.json("run", "job", "--dry-run")
    assert shown["argv"][0].endswith("/bin/claude") and shown["stdin"] == "Look around."
    assert not (workspace.root.parent / "bin/claude.argv").exists()


@pytest.mark.parametrize(
    ("agent", "purpose", "more", "argv"),
    [
        (PRESETS["claude"], Purpose.HEAL, {}, ["--permission-mode", "acceptEdits", "--tools", "Read,Glob,Grep,Edit,Write"]),
        (PRESETS["claude"], Purpose.READ, {}, ["--tools", ""]),
        (PRESETS["claude"], Purpose.WORK, {"budget_usd": 0.5}, ["--strict-mcp-config", "--max-budget-usd", "0.5000"]),
        (PRESETS["claude"], Purpose.HEAL, {"folders": ["/a"]}, ["--add-dir", "/a"]),
        (PRESETS["codex"], Purpose.HEAL, {"folders": ["/a"]}, ["--sandbox", "workspace-write", "--add-dir", "/a"]),
        (PRESETS["codex"], Purpose.READ, {}, ["--sandbox", "read-only"]),
        (PRESETS["gemini"], Purpose.HEAL, {"folders": ["/a"]}, ["--approval-mode", "auto_edit", "--include-directories", "/a"]),
        (PRESETS["gemini"], Purpose.READ, {}, ["--approval-mode", "plan"]),
        (Agent("x", ("x", "--tools", "Edit"), Format.CLAUDE), Purpose.HEAL, {}, ["--strict-mcp-config"]),
        (Agent("x", ("x",)), Purpose.HEAL, {"budget_usd": 1.0, "folders": ["/a"]}, []),
    ],
)  # fmt: skip
def test_a_purpose_adds_the_rights_it_needs_and_no_more(
    agent: Agent, purpose: Purpose, more: dict[str, Any], argv: list[str]
) -> None:
    added = call(agent, purpose, **more)[len(agent.argv) :]
    assert (
        [word for word in added if word in argv or word.startswith("--")] and set(argv) <= set(added)
        if argv
        else not added
    )
    if agent.argv[1:]:
        assert ("acceptEdits" in added) == (agent is PRESETS["claude"] and purpose is Purpose.HEAL)


# --- kept apart ------------------------------------------------------------------------------------------------------

SESSION = {
    "CLAUDECODE": "1", "CLAUDE_CODE_ENTRYPOINT": "cli", "CLAUDE_CODE_SSE_PORT": "1234", "CLAUDE_CODE_SESSION_ID": "abc",
    "TELEGRAM_BOT_TOKEN": "123456:secret-token", "TELEGRAM_CHAT": "5", "CLAUDE_CONFIG_DIR": "/interactive",
}  # fmt: skip
KEPT = {
    "ANTHROPIC_API_KEY": "sk-kept-for-work",
    "CLAUDE_CODE_USE_BEDROCK": "1",
    "CLAUDE_CODE_OAUTH_TOKEN": "kept-oauth-token",
}
WAYS = {
    "an agent task": {"run_as": "claude", "prompt": "x"},
    "a shell task": {"command": "claude -p --output-format json < /dev/null"},
    "sh -c": {"command": "sh -c 'claude -p </dev/null'"},
    "env -u": {"command": "env -u FOO sh -c 'exec claude -p </dev/null'"},
    "a script": {"command": "./call.sh"},
    "a script without a shell": {"command": "call.sh", "run_as": "script"},
    "nohup in the background": {"command": "nohup claude -p </dev/null & wait"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("configured", [True, False])
def test_no_claude_starts_with_the_set_up_of_an_interactive_session(
    workspace: Workspace, way: str, configured: bool
) -> None:
    claude(workspace)
    workspace.environment |= SESSION | KEPT
    workspace.config("agents: {claude: {config_dir: ~/agent}}\n" if configured else "")
    (workspace.root / "call.sh").write_text("#!/bin/sh\nclaude -p < /dev/null\n")
    (workspace.root / "call.sh").chmod(0o755)
    fields: dict[str, Any] = dict(WAYS[way])
    command = fields.pop("command", "")
    workspace.task("job", command, **fields)
    workspace.cli("run", "job")
    found = environment(workspace)
    assert not set(found) & (set(SESSION) - {"CLAUDE_CONFIG_DIR"})
    assert found.get("CLAUDE_CONFIG_DIR") == (f"{workspace.environment['HOME']}/agent" if configured else None)
    assert found.items() >= KEPT.items()
    assert told(workspace, "claude", "argv").split().count("--strict-mcp-config") == 1


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("claude -p </dev/null", {"CLAUDE_CONFIG_DIR": "/mine"}),
        ("CLAUDE_CONFIG_DIR=/mine claude -p </dev/null", {}),
        ("export CLAUDE_CONFIG_DIR=/mine; sh -c 'claude -p </dev/null'", {}),
    ],
)
def test_a_task_may_set_its_own_config_dir(workspace: Workspace, command: str, env: dict[str, str]) -> None:
    claude(workspace)
    workspace.config("agents: {claude: {config_dir: /configured}}\n")
    workspace.task("job", command, env=env)
    workspace.cli("run", "job")
    assert environment(workspace)["CLAUDE_CONFIG_DIR"] == "/mine"


def test_the_shim_applies_what_is_configured_even_to_an_empty_environment(workspace: Workspace) -> None:
    claude(workspace)
    workspace.config("agents: {claude: {config_dir: /configured}}\n")
    workspace.task("job", 'env -i PATH="$PATH" claude --strict-mcp-config -p </dev/null')
    workspace.cli("run", "job")
    assert environment(workspace)["CLAUDE_CONFIG_DIR"] == "/configured"
    assert told(workspace, "claude", "argv").split() == ["--strict-mcp-config", "-p"]


def test_a_shell_task_keeps_its_own_variables_and_the_exit_code_of_claude(workspace: Workspace) -> None:
    claude(workspace, code=7)
    workspace.environment["TELEGRAM_CHAT"] = "5"
    workspace.task("job", 'echo "chat $TELEGRAM_CHAT"; claude -p "two words" < /dev/null')
    run = workspace.json("run", "job", code=1)
    assert run["exit_code"] == 7 and "chat 5" in workspace.log_text(run)
    assert told(workspace, "claude", "argv").split("\n")[:-1] == ["--strict-mcp-config", "-p", "two words"]


def test_where_there_is_no_claude_the_shim_says_so(workspace: Workspace) -> None:
    workspace.environment["PATH"] = "/usr/bin:/bin"
    if any(os.access(f"{folder}/claude", os.X_OK) for folder in ("/usr/bin", "/bin")):
        pytest.skip("there is a claude among the programs of the system")
    workspace.task("job", "claude -p hello")
    run = workspace.json("run", "job", code=1)
    assert (run["exit_code"], run["error_class"]) == (127, "missing_tool")


@pytest.mark.parametrize(
    "command",
    ["sudo -u me claude -p x", "ssh host 'cd x && claude -p'", "/opt/claude/bin/claude -p x", "$HOME/bin/claude -p"],
)
def test_validate_warns_of_what_no_shim_can_guard(workspace: Workspace, command: str) -> None:
    workspace.task("job", command)
    done = workspace.cli("validate")
    assert "warning: command: " in done.stdout and "can't guard it" in done.stdout


@pytest.mark.parametrize(
    "command", ["claude -p x", "cat claude/notes.txt", "ssh host uptime", "sudo systemctl restart x"]
)
def test_validate_does_not_warn_of_others(workspace: Workspace, command: str) -> None:
    workspace.task("job", command)
    assert workspace.cli("validate").stdout == "1 file, no problems\n"


# --- an agent that is not there --------------------------------------------------------------------------------------


def test_an_agent_by_its_path_is_not_missed_on_the_path_variable(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, "agents: {ghost: [/no-such-agent]}\n")
    agent_task(workspace, run_as="ghost")
    workspace.tick()
    (text,) = telegram.texts
    assert "/no-such-agent is no file that can be run. The task is paused" in text


def test_a_task_whose_agent_is_not_installed_waits_with_one_alert_and_goes_on_by_itself(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace, "agents: {ghost: [no-such-agent]}\n")
    agent_task(workspace, run_as="ghost")
    for _ in range(3):
        workspace.tick()
    assert workspace.rows("job") == [("skipped", "missing_agent", 1)]
    (text,) = telegram.texts
    assert "job waits: its agent ghost is not installed" in text
    (task,) = workspace.listed()
    assert task["state"] == "paused"
    assert "its agent ghost is not installed" in workspace.cli("show", "job").stdout
    assert "its agent" in workspace.cli("why", "job").stdout
    assert "PROBLEM  agent" in workspace.cli("doctor", code=1).stdout
    program(workspace, "no-such-agent", "echo done")
    workspace.tick()
    assert workspace.last_run("job")["status"] == "success"
    assert workspace.listed()[0]["state"] == "active" and len(telegram.texts) == 1


def test_occurrences_of_a_cron_line_are_skipped_meanwhile_and_share_a_row(workspace: Workspace) -> None:
    workspace.config("agents: {ghost: [no-such-agent]}\n")
    agent_task(workspace, run_as="ghost", schedule="* * * * *")
    workspace.tick()
    for _ in range(2):
        workspace.move_back("job", "-1 minutes")
        workspace.tick()
    assert [(status, reason) for status, reason, _ in workspace.rows("job")] == [("skipped", "missing_agent")]


def test_an_agent_that_nobody_configured_is_an_error_in_the_file(workspace: Workspace) -> None:
    agent_task(workspace, run_as="nobody")
    assert "run_as: 'nobody' is not known" in workspace.cli("validate", code=1).stdout


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_the_budget_of_a_run_is_passed_on_and_shared_by_its_attempts(workspace: Workspace) -> None:
    claude(workspace, code=1, is_error=True, total_cost_usd=0.3)
    agent_task(workspace, budget_usd=0.5, retry=3)
    run = workspace.json("run", "job", code=1)
    assert run["attempts"] == 3 and run["cost_usd"] == pytest.approx(0.6)
    assert "--max-budget-usd\n0.2000" in told(workspace, "claude", "argv")
    assert run["error_class"] == "budget" and "the budget is used up" in run["error"]


@pytest.mark.parametrize("where", ["task", "all"])
def test_what_is_over_the_budget_of_the_day_is_skipped_with_its_reason(workspace: Workspace, where: str) -> None:
    claude(workspace, total_cost_usd=1.5)
    workspace.config("budget_usd_per_day: 2\n" if where == "all" else "")
    agent_task(workspace, "other", schedule="manual")
    agent_task(workspace, **({"budget_usd_per_day": 2} if where == "task" else {}))
    for _ in range(2):
        workspace.tick()
        workspace.move_back("job", "-2 hours")
    assert "--max-budget-usd\n0.5000" in told(workspace, "claude", "argv")
    workspace.tick()
    assert [row[:2] for row in workspace.rows("job")] == [
        ("success", None),
        ("success", None),
        ("skipped", "budget_exceeded"),
    ]
    assert "budget" in workspace.cli("why", "job").stdout
    assert "the budget is used up" in workspace.cli("run", "job", code=1).stderr
    workspace.cli("run", "other", code=1 if where == "all" else 0)


def test_a_run_over_its_budget_is_a_success_that_says_so_and_is_told_once_a_day(
    workspace: Workspace, telegram: Telegram
) -> None:
    claude(workspace, total_cost_usd=0.75)
    telegram.configure(workspace)
    agent_task(workspace, "dear", budget_usd=0.5)
    agent_task(workspace, "fair", budget_usd=0.75)
    agent_task(workspace, "quiet", budget_usd=0.5, notify_on="never")
    workspace.tick()
    workspace.move_back("dear", "-2 hours")
    workspace.tick()
    runs = workspace.runs("dear")
    assert [(run["status"], run["over_budget"], run["note"]) for run in runs] == [
        ("success", True, "over_budget: $0.7500 of $0.5000")
    ] * 2
    (fair,) = workspace.runs("fair")
    assert (fair["over_budget"], fair["note"]) == (False, None)
    assert workspace.last_run("quiet")["over_budget"] and workspace.json("show", "dear")["failures"] == 0
    (text,) = telegram.texts
    assert "dear has cost more than its budget" in text and "$0.7500" in text and "$0.5000" in text
    found = workspace.json("costs")
    assert found["over_budget"] == 3
    assert {cost["task_id"]: cost["over_budget"] for cost in found["costs"]} == {"dear": 2, "fair": 0, "quiet": 1}
    assert "over_budget: $0.7500 of $0.5000" in workspace.cli("history", "dear").stdout
    assert "3 runs over budget_usd" in workspace.cli("costs").stdout
    workspace.sql("UPDATE alerts SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', created_at, '-1 day')")
    workspace.move_back("dear", "-2 hours")
    workspace.tick()
    assert len(telegram.texts) == 2


def test_the_attempts_of_a_run_go_over_its_budget_together(workspace: Workspace, telegram: Telegram) -> None:
    first = f"[ ! -e again ] && touch again && cat <<'END' && exit 1\n{json.dumps(RESULT | {'is_error': True})}\nEND"
    program(workspace, "claude", f"{first}\ncat <<'END'\n{json.dumps(RESULT | {'total_cost_usd': 0.2})}\nEND")
    telegram.configure(workspace)
    agent_task(workspace, budget_usd=0.4, retry=1)
    workspace.tick()
    run = workspace.last_run("job")
    assert (run["status"], run["attempts"], run["note"]) == ("success", 2, "over_budget: $0.4500 of $0.4000")
    assert workspace.json("costs")["over_budget"] == 1 and len(telegram.texts) == 1


def test_a_run_that_fails_for_its_budget_is_counted_and_not_told_of_twice(
    workspace: Workspace, telegram: Telegram
) -> None:
    claude(workspace, code=1, subtype="error_max_budget_usd", result=None, total_cost_usd=0.75)
    telegram.configure(workspace)
    agent_task(workspace, budget_usd=0.5)
    workspace.tick()
    run = workspace.last_run("job")
    assert (run["status"], run["error_class"], run["over_budget"]) == ("failed", "budget", True)
    assert len(telegram.texts) == 1 and workspace.json("costs")["over_budget"] == 1


def test_a_retry_that_finds_nothing_left_does_not_hide_what_was_spent(workspace: Workspace) -> None:
    claude(workspace, code=1, is_error=True, total_cost_usd=0.75)
    agent_task(workspace, budget_usd=0.5, retry=1)
    run = workspace.json("run", "job", code=1)
    assert (run["attempts"], run["error_class"]) == (2, "budget") and run["note"] == "over_budget: $0.7500 of $0.5000"


def test_costs_are_summed_by_task_and_day(workspace: Workspace) -> None:
    claude(workspace)
    workspace.config("budget_usd_per_day: 9\n")
    for name in ("a", "b"):
        agent_task(workspace, name)
    workspace.tick()
    workspace.cli("run", "a")
    run_id = workspace.last_run("b")["run_id"]
    workspace.sql("UPDATE attempts SET started_at = '2026-01-05T10:00:00.000Z' WHERE run_id = ?", run_id)
    found = workspace.json("costs", "--since", "2026-01-01")
    assert found["total_usd"] == pytest.approx(0.75) and found["today_usd"] == pytest.approx(0.5)
    assert [(row["task_id"], row["calls"], row["cost_usd"]) for row in found["costs"]] == [
        ("a", 2, 0.5),
        ("b", 1, 0.25),
    ]
    assert found["costs"][1]["day"] == "2026-01-05"
    text = workspace.cli("costs").stdout
    assert "$0.50" in text and "of $9.00 today" in text and "b" not in text.split()


def test_add_writes_a_task_for_an_agent(workspace: Workspace) -> None:
    claude(workspace)
    workspace.cli("add", "every monday at 09:00: summarise last week's merged PRs", "--as", "claude", "--id", "week")
    task = workspace.json("show", "week")
    assert (task["run_as"], task["prompt"]) == ("claude", "summarise last week's merged PRs")
    workspace.cli("run", "week")
    assert told(workspace, "claude", "stdin") == "summarise last week's merged PRs"
    assert "is what claude is told" in workspace.cli("add", "every hour:", "--as", "claude", "--id", "x", code=2).stderr


@pytest.mark.parametrize(
    "answer",
    [
        {"result": "half a character: \ud800"},
        {"session_id": "\udfff"},
        {"usage": {"input_tokens": 10**30, "output_tokens": -(10**30)}},
        {"total_cost_usd": 10**400},
        {"total_cost_usd": float("inf")},
        {"result": "\u0000nul"},
    ],
    ids=["text", "session", "tokens", "cost", "infinite", "nul"],
)
def test_an_answer_that_no_database_takes_spoils_neither_its_run_nor_those_that_end_with_it(
    workspace: Workspace, answer: dict[str, Any]
) -> None:
    claude(workspace, **answer)
    agent_task(workspace)
    for number in range(4):
        workspace.task(f"beside-{number}", schedule="1h", command="true")
    workspace.tick()
    runs = {run["task_id"]: run["status"] for run in workspace.json("history")}
    assert runs == {"job": "success", **{f"beside-{number}": "success" for number in range(4)}}
    assert workspace.json("show", "job")["state"] == "active"
