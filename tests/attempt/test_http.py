"""`run_as: http`: one request to a loopback server, from a real run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.helpers import Telegram, Workspace

HEAD = "---\nid: call\nschedule: manual\nrun_as: http\n"


@pytest.fixture
def server(telegram: Telegram) -> Telegram:
    """Any HTTP server will do, and that one keeps what it was asked."""
    return telegram


def test_a_request_is_a_run_with_status_headers_and_body_in_its_log(workspace: Workspace, server: Telegram) -> None:
    (workspace.root / ".env").write_text("API_TOKEN=very-secret-value\n")
    (workspace.root / ".env").chmod(0o600)
    server.script = lambda number: (201, b"made with very-secret-value")
    workspace.write_task(
        "call", f"{HEAD}url: {server.url}/made\nmethod: POST\nheaders: {{Authorization: 'Bearer ${{API_TOKEN}}'}}\n"
        "body: '{\"a\": \"${API_TOKEN}\"}'\n---\n",
    )  # fmt: skip
    workspace.cli("run", "call")
    assert (server.paths, server.messages) == (["/made"], [{"a": "very-secret-value"}])
    text = workspace.log_text(workspace.last_run("call"))
    assert "HTTP 201 Created" in text and "Content-Length: 27" in text and "made with ***" in text
    assert "very-secret-value" not in text


@pytest.mark.parametrize(
    ("status", "expected", "verdict"),
    [(204, "", "success"), (404, "", "failed"), (404, "expect_status: 404\n", "success"), (200, "expect_status: [201, 404]\n", "failed")],
)  # fmt: skip
def test_success_is_2xx_or_what_was_expected(
    workspace: Workspace, server: Telegram, status: int, expected: str, verdict: str
) -> None:
    server.script = lambda number: (status, b"")
    workspace.write_task("call", f"{HEAD}url: {server.url}\n{expected}---\n")
    workspace.cli("run", "call", code=0 if verdict == "success" else 1)
    run = workspace.last_run("call")
    assert run["status"] == verdict
    assert (f"HTTP {status}" in (run["error"] or "")) is (verdict == "failed")


class Moved:
    """A server whose every path but `/there` sends elsewhere: `/moved` to `/there`, `/loop` to itself."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(f"{self.command} {self.path}")
                body = b"arrived" if self.path == "/there" else b"look elsewhere"
                self.send_response(200 if self.path == "/there" else 302)
                if self.path != "/there":
                    self.send_header("Location", "/there" if self.path == "/moved" else self.path)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_POST = do_GET

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def moved() -> Iterator[Moved]:
    server = Moved()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.mark.parametrize(
    ("head", "asked", "verdict", "said"),
    [
        ("", ["GET /moved", "GET /there"], "success", "HTTP 200 OK"),
        ("expect_status: 200\n", ["GET /moved", "GET /there"], "success", "arrived"),
        ("method: POST\n", ["POST /moved", "GET /there"], "success", "arrived"),
        ("expect_status: 302\n", ["GET /moved"], "success", "Location: /there"),
        ("expect_status: 302\n", ["GET /moved"], "success", "look elsewhere"),
        ("expect_status: [200, 302]\n", ["GET /moved"], "success", "HTTP 302 Found"),
        ("expect_status: 302\nmethod: HEAD\n", ["HEAD /moved"], "success", "HTTP 302 Found"),
        ("expect_status: 301\n", ["GET /moved"], "failed", "HTTP 302 Found; expected 301"),
    ],
)
def test_redirects_are_followed_unless_one_is_expected(
    workspace: Workspace, moved: Moved, head: str, asked: list[str], verdict: str, said: str
) -> None:
    workspace.write_task("call", f"{HEAD}url: {moved.url}/moved\n{head}---\n")
    workspace.cli("run", "call", code=0 if verdict == "success" else 1)
    assert moved.asked == asked
    run = workspace.last_run("call")
    assert run["status"] == verdict and said in workspace.log_text(run)


def test_redirects_without_end_fail_and_say_so(workspace: Workspace, moved: Moved) -> None:
    workspace.write_task("call", f"{HEAD}url: {moved.url}/loop\n---\n")
    workspace.cli("run", "call", code=1)
    assert "30 redirects" in workspace.last_run("call")["error"] and len(moved.asked) == 31


def test_a_large_body_is_cut(workspace: Workspace, server: Telegram) -> None:
    server.script = lambda number: (200, b"x" * 300_000)
    workspace.write_task("call", f"{HEAD}url: {server.url}\n---\n")
    workspace.cli("run", "call")
    text = workspace.log_text(workspace.last_run("call"))
    assert "only the first 100 KiB are kept" in text and 100 * 1024 <= text.count("x") < 101 * 1024


def test_a_server_that_is_not_there_fails_the_run_in_one_line(workspace: Workspace, server: Telegram) -> None:
    workspace.write_task("call", f"{HEAD}url: http://127.0.0.1:1/x\n---\n")
    workspace.cli("run", "call", code=1)
    assert workspace.last_run("call")["error"] == "exit code 1: 127.0.0.1:1: Connection refused"
    assert "Traceback" not in workspace.log_text(workspace.last_run("call"))


def test_a_variable_that_is_not_set_is_named_and_nothing_is_sent(workspace: Workspace, server: Telegram) -> None:
    workspace.write_task("call", f"{HEAD}url: {server.url}/${{NOT_THERE}}\n---\n")
    workspace.cli("run", "call", code=1)
    assert "url: ${NOT_THERE} is set neither" in workspace.last_run("call")["error"] and server.paths == []


def test_a_server_that_stalls_is_ended_by_the_timeout(workspace: Workspace, server: Telegram) -> None:
    server.script = lambda number: "stall"
    workspace.write_task("call", f"{HEAD}url: {server.url}\ntimeout: 1s\n---\n")
    workspace.cli("run", "call", code=1)
    assert workspace.last_run("call")["status"] == "timeout"


def test_add_writes_a_request(workspace: Workspace, server: Telegram) -> None:
    said = workspace.json("add", "every 15 minutes: is the site up?", "--url", f"{server.url}/health")
    assert (said["id"], said["path"]) == ("is-the-site-up", "tasks/is-the-site-up.md")
    workspace.tick()
    assert server.paths == ["/health"] and workspace.last_run("is-the-site-up")["status"] == "success"
    assert f"GET {server.url}/health" in workspace.cli("show", "is-the-site-up").stdout
    assert f"would run  GET {server.url}/health" in workspace.cli("run", "is-the-site-up", "--dry-run").stdout
    assert json.loads(workspace.cli("list", "--json").stdout)[0]["state"] == "active"
