"""The real Claude Code, end to end, with a model on loopback that says what the test wants. Only where the environment
variable TICKDOWN_TEST_CLAUDE names the program: `TICKDOWN_TEST_CLAUDE=claude .venv/bin/python -m pytest tests/agents`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, Workspace, half_past, wait_for

PROGRAM = os.environ.get("TICKDOWN_TEST_CLAUDE", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="TICKDOWN_TEST_CLAUDE does not name the program")

Block = dict[str, Any]
Request = dict[str, Any]
# From the number of answers in the conversation so far, and the request, to the next answer or an HTTP status.
Script = Callable[[int, Request], "list[Block] | int"]

TOKENS = {"input_tokens": 1000, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 30, "output_tokens": 40}
ERRORS = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
HEALERS_TOOLS = {"Read", "Glob", "Grep", "Edit", "Write"}


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def use(tool: str, **arguments: object) -> Block:
    return {"type": "tool_use", "name": tool, "input": arguments}


def tools_of(request: Request) -> set[str]:
    return {tool["name"] for tool in request.get("tools", [])}


class Anthropic:
    """A loopback server that speaks the Messages API. Everything else is sent to it as a proxy, and refused."""

    def __init__(self) -> None:
        self.script: Script = lambda turn, request: [text("Yes.")]
        self.prompt = ""  # words of the conversation that the script is for
        self.requests: list[Request] = []  # of that conversation
        self.strays: list[str] = []
        self._lock, self._blocks = threading.Lock(), 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:  # a look whether anybody is there
                self.send(200, "application/json", b"")

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                match self.path.partition("?")[0]:
                    case "/v1/messages":
                        self.send(*outer.answer(request))
                    case "/v1/messages/count_tokens":
                        self.send(200, "application/json", b'{"input_tokens": 1000}')
                    case _:
                        self.refuse()

            def refuse(self) -> None:
                outer.strays.append(f"{self.command} {self.path}")
                self.send(403, "application/json", b"{}")

            do_CONNECT = do_GET = do_PUT = refuse

            def send(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def answer(self, request: Request) -> tuple[int, str, bytes]:
        with self._lock:
            planned = self._planned(request)
            if isinstance(planned, int):
                error = {"type": ERRORS[planned], "message": "not today"}
                return planned, "application/json", json.dumps({"type": "error", "error": error}).encode()
            self._blocks += 1
            blocks = [
                block | ({"id": f"toolu_{self._blocks}_{number}"} if block["type"] == "tool_use" else {})
                for number, block in enumerate(planned)
            ]
        reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
        message = {
            "id": f"msg_{self._blocks}", "type": "message", "role": "assistant", "model": request["model"],
            "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": TOKENS,
        }  # fmt: skip
        if not request.get("stream"):
            return 200, "application/json", json.dumps(message).encode()
        events = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in as_events(message))
        return 200, "text/event-stream", events.encode()

    def _planned(self, request: Request) -> list[Block] | int:
        """What the program asks besides (titles, quotas: a small model, or one token) is not for the script."""
        besides = "haiku" in request["model"] or request["max_tokens"] == 1
        if besides or not self.prompt or self.prompt not in json.dumps(request["messages"]):
            return [text("Yes.")]
        self.requests.append(request)
        return self.script(sum(message["role"] == "assistant" for message in request["messages"]), request)


def as_events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": message["usage"]["output_tokens"]}}
    yield {"type": "message_stop"}


@pytest.fixture
def model(workspace: Workspace, tmp_path: Path) -> Iterator[Anthropic]:
    """The workspace has the real program first on its PATH, which finds this model and nothing else."""
    found = shutil.which(PROGRAM)
    assert found, f"TICKDOWN_TEST_CLAUDE: {PROGRAM} is no program"
    server = Anthropic()
    for name in ("bin", "home", "apart", "interactive"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "claude").symlink_to(Path(found).resolve())
    workspace.environment |= {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "CLAUDE_CONFIG_DIR": str(tmp_path / "interactive"),  # not the configured one: nothing may use it
        "ANTHROPIC_API_KEY": "sk-ant-dummy",
        "ANTHROPIC_BASE_URL": server.url,
        "HTTPS_PROXY": server.url,
        "HTTP_PROXY": server.url,
        "NO_PROXY": "127.0.0.1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }
    workspace.config(CONFIG)
    yield server
    server.server.shutdown()
    server.server.server_close()
    assert not server.strays, "it talked to somebody else"
    assert sessions(tmp_path / "apart"), "it did not use the configured folder"
    assert not sessions(tmp_path / "interactive"), "it used the folder of interactive sessions"


CONFIG = "agents: {claude: {config_dir: ../apart}}\nhealer: claude\nheals_per_day: 20\n"


def sessions(config_dir: Path) -> list[Path]:
    return list(config_dir.glob("projects/*/*.jsonl"))


def agent_task(workspace: Workspace, task_id: str, prompt: str, schedule: str = "manual") -> None:
    workspace.write_task(task_id, f'---\nid: {task_id}\nschedule: "{schedule}"\nrun_as: claude\n---\n{prompt}\n')


def make_due(workspace: Workspace, task_id: str) -> None:
    workspace.tick()
    workspace.move_back(task_id, "-1 hour")


# --- tasks of an agent -----------------------------------------------------------------------------------------


def test_a_task_of_the_real_agent_succeeds_and_what_it_used_is_stored(workspace: Workspace, model: Anthropic) -> None:
    model.prompt = "Count the swallows."
    model.script = lambda turn, request: [text("There are 7.")]
    agent_task(workspace, "count", model.prompt)
    assert workspace.json("run", "count")["status"] == "success"
    run = workspace.json("show", "count")["runs"][0]
    assert (run["status"], run["result"]) == ("success", "There are 7.")
    assert (run["input_tokens"], run["output_tokens"]) == (1230, 40)
    assert 0 < run["cost_usd"] < 1
    assert [path.stem for path in sessions(workspace.root.parent / "apart")] == [run["session_id"]]
    assert len(model.requests) == 1
    assert {"Bash", "Edit", "Read", "Write"} <= tools_of(model.requests[0])


@pytest.mark.parametrize(("status", "error_class"), [(429, "transient"), (529, "transient"), (401, "auth")])
def test_an_error_of_the_service_is_not_taken_for_one_of_the_task(
    workspace: Workspace, model: Anthropic, status: int, error_class: str
) -> None:
    model.prompt = "Count the swallows."
    model.script = lambda turn, request: status
    agent_task(workspace, "count", model.prompt)
    run = workspace.json("run", "count", code=None)
    assert (run["status"], run["error_class"], run["attempts"]) == ("failed", error_class, 1)
    assert "not today" in run["error"] and str(status) in run["error"]
    assert model.requests


def test_what_the_agent_was_not_permitted_to_do_is_no_success(workspace: Workspace, model: Anthropic) -> None:
    model.prompt = "Make the file."
    model.script = lambda turn, request: (
        [text("I could not make it: permission was denied.")] if turn else [use("Bash", command="touch made")]
    )
    agent_task(workspace, "make", model.prompt)
    run = workspace.json("run", "make", code=None)
    assert (run["status"], run["error_class"]) == ("failed", "auth"), run
    assert "Bash" in run["error"]
    assert not (workspace.root / "made").exists()


def test_an_agent_that_has_spent_its_budget_is_stopped(workspace: Workspace, model: Anthropic) -> None:
    model.prompt = "Read on and on."
    again = use("Read", file_path=str(workspace.root / "config.yaml"))
    model.script = lambda turn, request: [again] if turn < 9 else [text("That was dear.")]
    workspace.task("read", model.prompt, run_as="claude", budget_usd=0.02)
    run = workspace.json("run", "read", code=None)
    assert (run["status"], run["error_class"]) == ("failed", "budget"), run
    assert run["cost_usd"] >= 0.02


# --- healing ---------------------------------------------------------------------------------------------------

BROKEN, REPAIRED = "#!/bin/sh\nset -e\ncat missing.txt\n", "#!/bin/sh\nset -e\ncat data.txt\n"


def broken_task(workspace: Workspace) -> Path:
    (workspace.root / "data.txt").write_text("the data\n")
    script = workspace.root / "scripts" / "job.sh"
    script.parent.mkdir()
    script.write_text(BROKEN)
    workspace.task("job", "sh scripts/job.sh", schedule=half_past())
    make_due(workspace, "job")
    return script


def read_and_edit(path: Path, old: str, new: str) -> list[list[Block]]:
    name = str(path)
    return [[use("Read", file_path=name)], [use("Edit", file_path=name, old_string=old, new_string=new)]]


def verdict(*files: str) -> list[Block]:
    return [text(json.dumps({"verdict": "fixed", "cause": "A wrong file name.", "files": files}))]


def audited(workspace: Workspace) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (workspace.root / "logs" / "self-heal-audit.log").read_text().splitlines()]


def test_a_broken_script_is_repaired_and_run_within_one_tick(workspace: Workspace, model: Anthropic) -> None:
    script = broken_task(workspace)
    answers = [*read_and_edit(script, "missing.txt", "data.txt"), verdict("scripts/job.sh")]
    model.prompt = "You repair one scheduled task"
    model.script = lambda turn, request: answers[turn]
    workspace.tick()

    assert script.read_text() == REPAIRED
    run = workspace.json("show", "job")["runs"][0]
    steps = [(attempt["rung"], attempt["status"]) for attempt in run["attempt_details"]]
    assert (run["status"], steps) == ("success", [("run", "failed"), ("heal", "success"), ("verify", "success")])
    assert "the data" in workspace.log_text(run)
    assert [tools_of(request) for request in model.requests] == [HEALERS_TOOLS] * 3
    assert "missing.txt: No such file" in json.dumps(model.requests[0]["messages"])

    (line,) = audited(workspace)
    assert (line["verdict"], line["rerun_result"], line["status"]) == ("fixed", "success", "kept")
    assert line["files"] == ["scripts/job.sh"]
    assert "-cat missing.txt\n+cat data.txt\n" in line["diff"]
    cost = run["attempt_details"][1]["cost_usd"]
    assert 0 < cost == line["cost"] == run["cost_usd"]
    assert workspace.json("costs")["total_usd"] == pytest.approx(cost)


def test_a_healer_can_run_nothing_and_a_forbidden_edit_takes_all_back(workspace: Workspace, model: Anthropic) -> None:
    script, config = broken_task(workspace), workspace.root / "config.yaml"
    answers = [
        [use("Bash", command=f"touch {workspace.root}/made")],
        *read_and_edit(script, "missing.txt", "data.txt"),
        *read_and_edit(config, "heals_per_day: 20", "heals_per_day: 999"),
        verdict("scripts/job.sh"),
    ]
    seen: list[str] = []  # of config.yaml, when the model is done

    def script_of_the_model(turn: int, request: Request) -> list[Block]:
        if turn == len(answers) - 1:
            seen.append(config.read_text())
        return answers[turn]

    model.prompt, model.script = "You repair one scheduled task", script_of_the_model
    workspace.tick()

    assert all(tools_of(request) == HEALERS_TOOLS for request in model.requests)
    assert "No such tool available: Bash" in json.dumps(model.requests[1]["messages"])
    assert not (workspace.root / "made").exists()
    assert seen == [CONFIG.replace("20", "999")] * 2, "the edits were really made, and the second heal met none of them"
    assert config.read_text() == CONFIG
    assert script.read_text() == BROKEN
    assert workspace.last_run("job")["status"] == "failed"
    assert [(line["status"], line["rerun_result"]) for line in audited(workspace)] == [("restored", "not run")] * 2
    assert all("config.yaml, which it may not" in line["problem"] for line in audited(workspace))
    assert workspace.json("list")[0]["state"] == "suspended"


# --- a claude that a task calls --------------------------------------------------------------------------------


def test_a_claude_that_a_shell_task_calls_has_nothing_of_the_interactive_set_up(
    workspace: Workspace, model: Anthropic
) -> None:
    apart, trap = workspace.root.parent / "apart", workspace.root.parent / "trap"
    (apart / "settings.json").write_text('{"enableAllProjectMcpServers": true}')
    for path, name in ((apart / ".claude.json", "of-user"), (workspace.root / ".mcp.json", "of-project")):
        server = {"command": "touch", "args": [f"{trap}-{name}"]}
        path.write_text(json.dumps({"mcpServers": {name: server}}))
    traps = [trap.with_name("trap-of-user"), trap.with_name("trap-of-project")]
    command = 'claude -p --output-format json "hello"'
    model.prompt, model.script = "hello", lambda turn, request: [text("Good morning.")]
    workspace.task("greet", f"sh -c '{command}'")
    run = workspace.json("run", "greet")
    assert (run["status"], run["exit_code"]) == ("success", 0)
    assert '"result":"Good morning."' in workspace.log_text(run)
    assert len(sessions(apart)) == len(model.requests) == 1
    assert not any(path.exists() for path in traps), "it started a server of the interactive set-up"

    # Without what Tickdown does about it, they would have been started.
    environment = workspace.environment | {"CLAUDE_CONFIG_DIR": str(apart)}
    subprocess.run(
        ["sh", "-c", command], cwd=workspace.root, env=environment, check=True, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=PATIENCE,
    )  # fmt: skip
    wait_for(lambda: all(path.exists() for path in traps), "the servers of the interactive set-up")


# --- comments --------------------------------------------------------------------------------------------------


def test_a_comment_in_free_words_is_read_by_the_agent_which_gets_no_tools(
    workspace: Workspace, model: Anthropic
) -> None:
    model.prompt = "not today please"
    model.script = lambda turn, request: [text('{"action": "skip", "reason": "Somebody asked for it."}')]
    agent_task(workspace, "count", "Count the swallows.", schedule=half_past())
    make_due(workspace, "count")
    workspace.cli("comment", "count", "not today please")
    workspace.tick()
    assert workspace.rows("count") == [("skipped", "comment", 1)]
    (comment,) = workspace.json("comments", "count")
    assert comment["read_at"] and comment["answer"] == "skip: Somebody asked for it."
    assert [tools_of(request) for request in model.requests] == [set()]
    assert "Count the swallows." in json.dumps(model.requests[0]["messages"])
