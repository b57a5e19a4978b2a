"""`ping_url`: what a watcher hears of ticks, in which order, and what it can't do to them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from tests.helpers import PATIENCE, SCHEDULER, Telegram, Workspace, wait_for
from tickdown.alerts.ping import TIMEOUT

TICKS = 5


class Watcher:
    """Answers a `/start` only once another request has come, or `hold` seconds later: what overtakes it is seen."""

    def __init__(self, hold: float) -> None:
        self.events: list[tuple[str, str]] = []
        self.rids: list[str] = []
        self._other_came = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                outer.events.append(("arrived", asked.path))
                outer.rids += parse_qs(asked.query)["rid"]
                if asked.path.endswith("/start"):
                    outer._other_came.wait(hold)
                else:
                    outer._other_came.set()
                outer.events.append(("answered", asked.path))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/ping"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def heard(self) -> list[tuple[str, str]]:
        """Of the tick that has just ended."""
        events, self.events = self.events, []
        self._other_came.clear()
        return events

    def close(self) -> None:
        self._other_came.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    server = Watcher(hold=0.5)
    yield server
    server.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Connections are made by the kernel, and wait until somebody accepts them."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        listening.settimeout(PATIENCE)
        yield listening


def finish(tick: subprocess.Popen[str]) -> None:
    _, errors = tick.communicate(timeout=PATIENCE)
    assert tick.returncode == 0, errors


def one_after_the_other(*paths: str) -> list[tuple[str, str]]:
    return [(what, path) for path in paths for what in ("arrived", "answered")]


def address_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}/ping"


def next_request(listening: socket.socket) -> tuple[socket.socket, str]:
    connection, _ = listening.accept()
    connection.settimeout(PATIENCE)
    return connection, connection.makefile("r").readline().split()[1].partition("?")[0]


def test_the_end_never_overtakes_a_start_that_is_answered_late(workspace: Workspace, watcher: Watcher) -> None:
    workspace.config(f"ping_url: {watcher.url}\n")
    for _ in range(TICKS):
        workspace.tick()
        assert watcher.heard() == one_after_the_other("/ping/start", "/ping")


def test_the_order_is_kept_where_connections_are_accepted_slowly(workspace: Workspace, listener: socket.socket) -> None:
    workspace.config(f"ping_url: {address_of(listener)}\n")
    for _ in range(TICKS):
        tick = workspace.start("tick")
        heard = []
        for _ in range(2):
            time.sleep(0.2)  # that is the slowness
            connection, path = next_request(listener)
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            heard.append(path)
        finish(tick)
        assert heard == ["/ping/start", "/ping"]


def test_a_watcher_that_stalls_holds_up_no_task_and_still_gets_the_end(
    workspace: Workspace, listener: socket.socket
) -> None:
    workspace.config(f"ping_url: {address_of(listener)}\n")
    workspace.task("job", "touch ran", schedule="1h")
    began = time.monotonic()
    tick = workspace.start("tick")
    wait_for((workspace.root / "ran").exists, "the task to run")
    assert tick.poll() is None, "while the watcher is still waited for"
    finish(tick)
    assert time.monotonic() - began < 2 * sum(TIMEOUT) + PATIENCE / 2
    assert workspace.rows("job") == [("success", None, 1)]
    connections, paths = zip(*(next_request(listener) for _ in range(2)), strict=True)
    for connection in connections:
        connection.close()
    assert paths == ("/ping/start", "/ping") and workspace.scheduler_log().count("ping_failed") == 2


def test_an_answer_that_never_ends_costs_neither_the_end_nor_the_bound(
    workspace: Workspace, listener: socket.socket
) -> None:
    """Every byte in time, and yet never the whole: no timeout of a single read notices."""
    workspace.config(f"ping_url: {address_of(listener)}\n")
    tick = workspace.start("tick")
    start, path = next_request(listener)
    over = threading.Event()

    def drip() -> None:
        with suppress(OSError):  # the tick has ended
            while not over.wait(0.5):
                start.sendall(b"H")

    dripping = threading.Thread(target=drip)
    try:
        dripping.start()
        end, last_path = next_request(listener)
        assert (path, last_path) == ("/ping/start", "/ping")
        with end:
            end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        finish(tick)
    finally:
        over.set()
        dripping.join()
        start.close()


def test_the_failure_of_a_crash_comes_after_its_start_and_belongs_to_it(workspace: Workspace, watcher: Watcher) -> None:
    workspace.config(f"ping_url: {watcher.url}\n")
    workspace.tick()
    watcher.heard()
    watcher.rids.clear()
    workspace.sql("DROP TABLE heartbeats")
    workspace.tick(code=70)
    assert watcher.heard() == one_after_the_other("/ping/start", "/ping/fail")
    assert len(set(watcher.rids)) == 1


def test_a_damaged_database_is_a_failure_for_the_watcher_too(workspace: Workspace, telegram: Telegram) -> None:
    workspace.config(f"ping_url: {telegram.url}/ping\n")
    workspace.tick()
    telegram.paths.clear()
    (workspace.root / "state" / "tickdown.db").write_bytes(b"these are not the rows you are looking for " * 500)
    workspace.tick(code=1)
    assert [path.partition("?")[0] for path in telegram.paths][-1:] == ["/ping/fail"]


def test_each_tick_has_an_id_of_the_only_form_that_healthchecks_takes(workspace: Workspace, watcher: Watcher) -> None:
    workspace.config(f"ping_url: {watcher.url}\n")
    workspace.tick()
    workspace.tick()
    first, same, second, _ = watcher.rids
    assert first == same != second and [str(UUID(rid)) for rid in watcher.rids] == watcher.rids


def test_a_watcher_that_refuses_a_ping_is_in_the_log(workspace: Workspace, telegram: Telegram) -> None:
    telegram.script = lambda number: (400, b"invalid uuid format")
    workspace.config(f"ping_url: {telegram.url}/ping\n")
    workspace.tick()
    assert workspace.scheduler_log().count('"error": "HTTP 400"') == 2


def test_without_a_thread_nothing_waits_for_the_watcher_before_the_end(telegram: Telegram) -> None:
    program = (
        "import threading\n"
        "from types import SimpleNamespace\n"
        "from tickdown.alerts.ping import Pinger\n"
        "from tickdown.processes.process import this_process\n"
        "threading.stack_size(1 << 46)\n"
        f"pinger = Pinger('{telegram.url}/ping', this_process(), SimpleNamespace(warning=print))\n"
        "pinger.send('/start')\n"
        f"import requests; requests.get('{telegram.url}/work')\n"
        "pinger.send()\n"
        "pinger.finish()\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=SCHEDULER.parent / "lib", check=True, timeout=PATIENCE)
    assert [path.partition("?")[0] for path in telegram.paths] == ["/work", "/ping/start", "/ping"]
