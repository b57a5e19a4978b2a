"""What kind of trouble it was: read off what real tools print, the status of a request, and the results of agents."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import PATIENCE, Workspace
from tickdown.agents.calls import LONGEST_TEXT, Format, last_object_with, read_answer
from tickdown.base.model import ErrorClass, RunStatus
from tickdown.failure.outcomes import LONGEST_RESET, SIGNS, Outcome, class_of_output, classify, stated_reset
from tickdown.time.zones import get_zone

AUTH, BUDGET, ERROR = ErrorClass.AUTH, ErrorClass.BUDGET, ErrorClass.ERROR
MISSING, TRANSIENT = ErrorClass.MISSING_TOOL, ErrorClass.TRANSIENT

NOW = datetime(2026, 3, 11, 9, 30, tzinfo=UTC)  # 10:30 in Berlin
SUMMARY = 4096  # how much of the end of an output is looked at


# --- the other side ------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """The first part of the path says what comes: a status, `mute-STATUS` (without a phrase), `empty` or `cut`. The
    query may ask for a Retry-After (`after`) and a body (`size`)."""

    def answer(self) -> None:
        address = urlsplit(self.path)
        wanted, query = address.path.split("/")[1], parse_qs(address.query)
        if wanted == "empty":
            self.close_connection = True
            return
        body = b"x" * 79 + b"\n"
        body *= int(query.get("size", ["0"])[0]) // len(body)
        if wanted == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"ab")
            self.close_connection = True
            return
        mute, status = wanted.startswith("mute-"), int(wanted.removeprefix("mute-"))
        self.send_response(status, "" if mute else None)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="a test"')
        for value in query.get("after", []):
            self.send_header("Retry-After", value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *arguments: object) -> None: ...


@dataclass
class Tools:
    """Where real programs are run: a home of their own, and no settings of whoever runs the tests."""

    home: Path
    server: str
    nobody: str  # where nobody listens, and nobody else can

    def url(self, wanted: str) -> str:
        if wanted == "refused":
            return f"http://{self.nobody}"
        return "http://nonexistent.invalid" if wanted == "unknown" else f"{self.server}/{wanted}"

    def run(self, *argv: str, **environment: str) -> Outcome:
        if shutil.which(argv[0]) is None:
            pytest.skip(f"{argv[0]} is not installed")
        done = subprocess.run(
            argv, env=SURROUNDINGS | {"PATH": os.environ["PATH"], "HOME": str(self.home)} | environment, cwd=self.home,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE,
        )  # fmt: skip
        return self.judged(done.returncode, done.stdout)

    def run_python(self, imports: str, programs: list[str]) -> list[Outcome]:
        """Programs with the same imports, each forked from a process that has done them."""
        done = subprocess.run(
            [sys.executable, "-c", FORKING, imports, *programs], cwd=self.home, stdin=subprocess.DEVNULL,
            env=SURROUNDINGS | {"PATH": os.environ["PATH"], "HOME": str(self.home)}, stdout=subprocess.PIPE,
            timeout=PATIENCE * 3, check=True,
        )  # fmt: skip
        codes = [int(line) for line in done.stdout.split()]
        return [self.judged(code, (self.home / str(number)).read_bytes()) for number, code in enumerate(codes)]

    @staticmethod
    def judged(returncode: int, printed: bytes) -> Outcome:
        output = printed.decode("utf-8", "replace")
        print(output)  # for whoever looks at a test that fails
        code, signal = (returncode, None) if returncode >= 0 else (None, -returncode)
        return classify(code, signal, output=output[-SUMMARY:], now=NOW)


SURROUNDINGS = {
    "LANG": "C.UTF-8",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    """An address that is taken, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def tools(tmp_path: Path, server: str, nobody: str) -> Tools:
    return Tools(tmp_path, server, nobody)


# --- real tools ----------------------------------------------------------------------------------------------------

CLIENTS = {
    "curl": ("curl", "-fsS", "{}"),
    "curl with its meter": ("curl", "-f", "-o", "out", "{}"),
    "wget": ("wget", "--tries=1", "{}"),
    "wget -nv": ("wget", "-nv", "--tries=1", "{}"),
    "git": ("git", "ls-remote", "{}/x.git"),
    "git clone": ("git", "clone", "{}/x.git", "cloned"),
    "node's fetch": (
        "node", "-e",
        "fetch(process.argv[1]).then(r => { if (!r.ok) throw new Error(`${r.status} ${r.statusText}`) })", "{}",
    ),
    "node's http": ("node", "-e", "require('http').get(process.argv[1])", "{}"),
    "npm": ("npm", "view", "x", "--fetch-retries", "0", "--registry", "{}/"),
}  # fmt: skip
PIP = (
    "import sys; import pip._internal.commands.download; from pip._internal.cli.main import main",
    "sys.exit(main(['download', '--no-input', '--no-deps', '--timeout', '2', {}]))",
)
# Programs of Python: what they import, and what they do. Imported once: that takes them most of their time.
PYTHON_CLIENTS = {
    "urllib": ("import urllib.request as u", "u.urlopen({!r}).read()"),
    "requests": ("import requests as r", "r.get({!r}).raise_for_status()"),
    "pip with an address": (PIP[0], PIP[1].format("'--retries', '0', {!r} + '/x.tar.gz'")),
    # With no retries at all pip keeps to itself why an index gave nothing.
    "pip with an index": (PIP[0], PIP[1].format("'--retries', '1', '--index-url', {!r} + '/simple', 'x'")),
}
# Each in a process of its own all the same, that ends as Python ends: with a traceback, and a code.
FORKING = """
import os, sys
exec(sys.argv[1])
for number, program in enumerate(sys.argv[2:]):
    if not os.fork():
        output = os.open(str(number), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        exec(compile(program, "<string>", "exec"))
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
ALL_STATUSES = {
    "401": AUTH, "403": AUTH, "407": AUTH,
    "408": TRANSIENT, "429": TRANSIENT, "502": TRANSIENT, "503": TRANSIENT, "504": TRANSIENT,
    "404": ERROR, "410": ERROR, "500": ERROR,
}  # fmt: skip
MUTE = {"mute-403": AUTH, "mute-429": TRANSIENT, "mute-503": TRANSIENT, "mute-404": ERROR}
NO_ANSWER = {"refused": TRANSIENT, "unknown": TRANSIENT, "empty": TRANSIENT}
EXPECTED = {
    "curl": ALL_STATUSES | NO_ANSWER | {"cut": TRANSIENT},
    "curl with its meter": NO_ANSWER | {"401": AUTH, "503": TRANSIENT, "404": ERROR, "cut": TRANSIENT},
    "wget": ALL_STATUSES | MUTE | NO_ANSWER | {"cut": TRANSIENT},
    "wget -nv": NO_ANSWER | {"401": AUTH, "403": AUTH, "503": TRANSIENT, "404": ERROR},
    "git": ALL_STATUSES | NO_ANSWER | {"cut": TRANSIENT},
    "git clone": {"refused": TRANSIENT, "401": AUTH, "503": TRANSIENT, "404": ERROR},
    "urllib": ALL_STATUSES | MUTE | NO_ANSWER | {"cut": TRANSIENT},
    "requests": ALL_STATUSES | MUTE | NO_ANSWER | {"cut": TRANSIENT},
    "node's fetch": NO_ANSWER | {"401": AUTH, "403": AUTH, "429": TRANSIENT, "503": TRANSIENT, "404": ERROR},
    "node's http": NO_ANSWER,
    "npm": {
        "refused": TRANSIENT, "empty": TRANSIENT, "401": AUTH, "403": AUTH, "407": AUTH, "429": TRANSIENT,
        "503": TRANSIENT, "404": ERROR, "500": ERROR,
    },
    "pip with an address": {
        "refused": TRANSIENT, "401": AUTH, "403": AUTH, "429": TRANSIENT, "503": TRANSIENT, "404": ERROR,
    },
    "pip with an index": {"refused": TRANSIENT, "empty": TRANSIENT, "404": ERROR},
}  # fmt: skip


@pytest.mark.parametrize(
    ("client", "wanted", "kind"),
    [(client, wanted, kind) for client in CLIENTS for wanted, kind in EXPECTED[client].items()],
)
def test_what_a_client_prints_tells_what_kind_of_trouble_it_is(
    tools: Tools, client: str, wanted: str, kind: ErrorClass
) -> None:
    if wanted == "unknown":
        skip_if_every_name_is_known()
    outcome = tools.run(*(word.replace("{}", tools.url(wanted)) for word in CLIENTS[client]))
    assert (outcome.status, outcome.error_class) == (RunStatus.FAILED, kind)


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_what_a_client_in_python_prints_tells_what_kind_of_trouble_it_is(tools: Tools, client: str) -> None:
    if "pip" in client and importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed")
    expected = {wanted: kind for wanted, kind in EXPECTED[client].items() if wanted != "unknown" or no_name_is_known()}
    imports, program = PYTHON_CLIENTS[client]
    outcomes = tools.run_python(imports, [program.format(tools.url(wanted)) for wanted in expected])
    found = {wanted: (outcome.status, outcome.error_class) for wanted, outcome in zip(expected, outcomes, strict=True)}
    assert found == {wanted: (RunStatus.FAILED, kind) for wanted, kind in expected.items()}


def no_name_is_known() -> bool:
    try:
        socket.getaddrinfo("nonexistent.invalid", 80)
    except OSError:
        return True
    return False


def skip_if_every_name_is_known() -> None:
    if not no_name_is_known():
        pytest.skip("here every name has an address")


def test_credentials_that_git_is_refused_with_are_a_matter_of_auth(tools: Tools) -> None:
    address = tools.url("401").replace("://", "://somebody:wrong@")
    assert tools.run("git", "ls-remote", f"{address}/x.git").error_class is AUTH


SSH = ("-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")


@pytest.mark.parametrize("through", ["ssh", "git", "scp"])
@pytest.mark.parametrize("where", ["refused", "unknown", "no ssh"])
def test_an_ssh_that_does_not_get_through_is_transient(tools: Tools, through: str, where: str) -> None:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        pytest.skip("ssh refuses to work for a user without a name")
    if where == "unknown":
        skip_if_every_name_is_known()
    address = {"refused": tools.nobody, "unknown": "nonexistent.invalid:22", "no ssh": tools.server.split("/")[2]}
    host, port = address[where].split(":")
    match through:
        case "ssh":
            outcome = tools.run("ssh", *SSH, "-p", port, host, "true")
        case "scp":
            outcome = tools.run("scp", *SSH, "-P", port, f"{host}:file", ".")
        case _:
            command = " ".join(("ssh", *SSH))
            outcome = tools.run("git", "ls-remote", f"ssh://{host}:{port}/x", GIT_SSH_COMMAND=command)
    assert outcome.error_class is TRANSIENT


def test_other_clients_that_nobody_answers_are_transient(tools: Tools) -> None:
    host, port = tools.nobody.split(":")
    assert tools.run("bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}").error_class is TRANSIENT
    assert tools.run("git", "ls-remote", f"git://{tools.nobody}/x").error_class is TRANSIENT


def test_a_database_that_nobody_answers_for_is_transient(tools: Tools) -> None:
    host, port = tools.nobody.split(":")
    assert tools.run("psql", "-h", host, "-p", port, "-c", "select 1").error_class is TRANSIENT


def test_a_curl_that_gives_up_waiting_is_transient(tools: Tools) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        outcome = tools.run("curl", "-sS", "--max-time", "0.2", f"http://127.0.0.1:{silent.getsockname()[1]}/")
    assert (outcome.exit_code, outcome.error_class) == (28, TRANSIENT)


def test_when_curl_shows_the_headers_the_moment_they_state_is_known(tools: Tools) -> None:
    for command in (
        f"curl -fsS -i '{tools.url('429?after=120')}'",
        f"curl -s -i '{tools.url('429?after=120')}'; exit 1",
    ):
        outcome = tools.run("bash", "-c", command)
        assert (outcome.error_class, outcome.reset_at) == (TRANSIENT, NOW + timedelta(seconds=120))


@pytest.mark.parametrize(
    ("script", "code", "kind"),
    [
        ("no-such-command-here", 127, MISSING),
        ("set -e; no-such-command-here; true", 127, MISSING),
        (
            "PATH=/usr/bin:/bin env no-such-command-here",
            127,
            MISSING,
        ),  # a folder that is closed to us would make it 126
        ("./no/such/file", 127, MISSING),
        ("./plain", 126, MISSING),
        (".", 2, ERROR),
        ("exit 3", 3, ERROR),
        ("grep needle plain", 1, ERROR),
        ("cat no-such-file", 1, ERROR),
        ("./plain || exit 1", 1, ERROR),  # Permission denied, but by the file system
        ("git -C / ls-remote ./no-such-repository", 128, ERROR),
        ("git frobnicate", 1, ERROR),
        ("if", 2, ERROR),
    ],
)
def test_what_a_shell_says_of_the_script_itself(tools: Tools, script: str, code: int, kind: ErrorClass) -> None:
    (tools.home / "plain").write_text("text\n")
    outcome = tools.run("bash", "--noprofile", "--norc", "-c", script)
    assert (outcome.status, outcome.exit_code, outcome.error_class) == (RunStatus.FAILED, code, kind)
    assert str(code) in (outcome.error or "")


def test_a_process_ended_by_a_signal_is_an_error_of_the_task(tools: Tools) -> None:
    outcome = tools.run("bash", "-c", "echo 'Connection refused'; kill -KILL $$")
    assert (outcome.exit_code, outcome.signal, outcome.error_class) == (None, 9, ERROR)


def test_success_is_success_whatever_was_printed(tools: Tools) -> None:
    outcome = tools.run("bash", "-c", "echo 'curl: (7) Failed to connect; HTTP Error 401'")
    assert (outcome.status, outcome.error_class, outcome.error) == (RunStatus.SUCCESS, None, None)


@pytest.mark.parametrize(
    "program",
    [
        "{}['timeout']",
        "raise ValueError('timeout must be more than 0')",
        "raise SystemExit('429 rows read, 503 rejected, 401 left')",
        "raise SystemExit('error in line 403: unexpected end')",
        "raise TimeoutError('the job took longer than 503 s')",
        "assert 429 == 503, 'status'",
        "open('no-such-file')",
        "import no_such_module",
        "raise SystemExit('the file of limits was not found: rate limits are unknown')",
        "raise SystemExit('connection string is empty')",
        "raise SystemExit('host name is missing in settings')",
        "raise SystemExit('http://127.0.0.1:401/403?code=503 is not in the list')",
        "raise SystemExit('test_returns_429 FAILED: expected 503, got 500')",
        "raise SystemExit('Permission denied: ./secrets')",
    ],
)
def test_a_mistake_in_a_program_is_an_error_even_if_it_mentions_such_words(tools: Tools, program: str) -> None:
    assert tools.run(sys.executable, "-c", program).error_class is ERROR


def test_trouble_that_was_survived_does_not_count(tools: Tools) -> None:
    """The last line that shows a sign counts, and of a long output only the end is looked at."""
    refused, denied = "curl: (7) Failed to connect to 127.0.0.1", "curl: (22) The requested URL returned error: 401"
    for first, last, kind in [(refused, denied, AUTH), (denied, refused, TRANSIENT)]:
        assert tools.run("bash", "-c", f"echo '{first}'; echo '{last}' >&2; exit 1").error_class is kind
    assert tools.run("bash", "-c", f"echo '{refused}'; seq 50; exit 1").error_class is ERROR
    for last in ("ValueError: bad date", "java.lang.IllegalStateException", "run.sh: line 7: LAST: unbound variable"):
        assert tools.run("bash", "-c", f"echo '{refused}'; echo done; echo '{last}'; exit 1").error_class is ERROR


def test_one_endless_line_is_looked_at_from_its_end() -> None:
    assert class_of_output("x" * 5_000_000 + " Connection refused") is TRANSIENT
    assert class_of_output("Connection refused " + "x" * 5_000_000) is ERROR


# --- tools that can't be run here, in their own words --------------------------------------------------------------

EXAMPLES: list[tuple[ErrorClass, str]] = [
    (AUTH, "deploy@backup.example: Permission denied (publickey,password)."),
    (AUTH, "Received disconnect from 192.0.2.7 port 22:2: Too many authentication failures"),
    (AUTH, "Host key verification failed."),
    (AUTH, "fatal: Authentication failed for 'https://git.example/a/b.git/'"),
    (AUTH, "fatal: could not read Username for 'https://git.example': terminal prompts disabled"),
    (AUTH, "remote: HTTP Basic: Access denied"),
    (AUTH, "curl: (22) The requested URL returned error: 403"),
    (AUTH, "2026-03-11 09:30:00 ERROR 403: Forbidden."),
    (AUTH, "Username/Password Authentication Failed."),
    (AUTH, "urllib.error.HTTPError: HTTP Error 401: Unauthorized"),
    (AUTH, "  ERROR: HTTP error 403 while getting https://files.example/x.tar.gz"),
    (AUTH, "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://api.example/v1"),
    (AUTH, "Error response from daemon: Head https://images.example/v2/: unauthorized: authentication required"),
    (AUTH, "npm error 403 403 Forbidden - GET https://packages.example/x"),
    (AUTH, "npm error 407 Proxy Authentication Required - GET https://packages.example/x"),
    (AUTH, "npm error code E401"),
    (AUTH, "npm error Incorrect or missing password."),
    (AUTH, 'psql: error: FATAL:  password authentication failed for user "report"'),
    (AUTH, "ERROR 1045 (28000): Access denied for user 'report'@'localhost' (using password: YES)"),
    (AUTH, 'Unable to locate credentials. You can configure credentials by running "aws configure".'),
    (AUTH, "An error occurred (ExpiredToken) when calling the ListObjectsV2 operation: The token has expired."),
    (AUTH, "Invalid API key · Please run /login"),
    (AUTH, "OAuth token has expired. Please obtain a new token or refresh your existing token."),
    (AUTH, 'API Error: 401 {"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}'),
    (AUTH, "Error: not logged in"),
    (AUTH, "agent: authentication required"),
    (AUTH, "Please set an Auth method in your settings.json or specify GEMINI_API_KEY"),
    (AUTH, "API key not valid. Please pass a valid API key."),
    (AUTH, "unexpected status 401 Unauthorized: Incorrect API key provided: sk-none."),
    (AUTH, "Incorrect API key provided: sk-none."),
    (BUDGET, "Credit balance is too low"),
    (BUDGET, "Quota exceeded: insufficient_quota"),
    (BUDGET, "You exceeded your current quota, please check your plan and billing details."),
    (TRANSIENT, "Claude AI usage limit reached|1773226800"),
    (TRANSIENT, "Weekly limit reached · resets 10am (Asia/Seoul) · /upgrade to Max or turn on /extra-usage"),
    (TRANSIENT, "5-hour limit reached ∙ resets 3pm"),
    (TRANSIENT, "You've hit your limit · resets 11pm (America/Anchorage)"),
    (TRANSIENT, "You've hit your session limit · resets 3pm (Europe/Berlin)"),
    (TRANSIENT, "You've hit your usage limit. Upgrade to Pro or try again in 2 days 17 hours 14 minutes."),
    (TRANSIENT, 'API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
    (TRANSIENT, "API Error: 500 Internal server error"),
    (TRANSIENT, "API Error: Connection error."),
    (TRANSIENT, "Unable to connect to API due to poor internet connection"),
    (TRANSIENT, '[API Error: {"error":{"code":429,"message":"Resource exhausted","status":"RESOURCE_EXHAUSTED"}}]'),
    (
        TRANSIENT,
        '[API Error: {"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing '
        'details.","status":"RESOURCE_EXHAUSTED"}}]',
    ),
    (TRANSIENT, "TypeError: fetch failed"),
    (TRANSIENT, "stream disconnected before completion: error sending request for url"),
    (TRANSIENT, "exceeded retry limit, last status: 429 Too Many Requests"),
    (TRANSIENT, "exceeded retry limit, last status: 503"),
    (TRANSIENT, '{"message":"API rate limit exceeded for 192.0.2.7."}'),
    (TRANSIENT, "HTTP/1.1 429 Too Many Requests"),
    (TRANSIENT, "<h1>503 Service Temporarily Unavailable</h1>"),
    (TRANSIENT, "<center><h1>502 Bad Gateway</h1></center>"),
    (TRANSIENT, "curl: (22) The requested URL returned error: 503"),
    (TRANSIENT, "error: RPC failed; HTTP 502 curl 22 The requested URL returned error: 502"),
    (TRANSIENT, "error: RPC failed; curl 18 transfer closed with outstanding read data remaining"),
    (TRANSIENT, "fetch-pack: unexpected disconnect while reading sideband packet"),
    (TRANSIENT, "fatal: early EOF"),
    (TRANSIENT, "curl: (28) Operation timed out after 200 milliseconds with 0 bytes received"),
    (TRANSIENT, "curl: (92) HTTP/2 stream 1 was not closed cleanly: INTERNAL_ERROR (err 2)"),
    (TRANSIENT, "2026-03-11 09:30:00 ERROR 503: Service Unavailable."),
    (TRANSIENT, "wget: unable to resolve host address ‘mirror.example’"),
    (TRANSIENT, "No data received."),
    (TRANSIENT, "urllib.error.HTTPError: HTTP Error 503: "),
    (TRANSIENT, "requests.exceptions.HTTPError: 503 Server Error:  for url: https://api.example/v1"),
    (TRANSIENT, "requests.exceptions.HTTPError: 408 Client Error: Request Timeout for url: https://api.example/v1"),
    (TRANSIENT, "http.client.RemoteDisconnected: Remote end closed connection without response"),
    (TRANSIENT, "http.client.IncompleteRead: IncompleteRead(2 bytes read, 98 more expected)"),
    (TRANSIENT, "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.example', port=443): Read timed out."),
    (TRANSIENT, "requests.exceptions.ConnectionError: Max retries exceeded with url: /v1"),
    (TRANSIENT, "fatal: unable to access 'https://git.example/x.git/': Could not resolve host: git.example"),
    (TRANSIENT, "fatal: unable to access 'https://git.example/x.git/': Failed to connect to git.example port 443"),
    (TRANSIENT, "ssh: Could not resolve hostname backup.example: Name or service not known"),
    (TRANSIENT, "Err:1 http://packages.example stable InRelease: Temporary failure resolving 'packages.example'"),
    (TRANSIENT, "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
    (TRANSIENT, "getaddrinfo: Name does not resolve"),
    (TRANSIENT, "failed to lookup address information: Try again"),
    (TRANSIENT, "ssh: connect to host backup.example port 22: Connection timed out"),
    (TRANSIENT, "ssh: connect to host backup.example port 22: Network is unreachable"),
    (TRANSIENT, "ssh: connect to host backup.example port 22: No route to host"),
    (TRANSIENT, "Error: connect ECONNREFUSED 127.0.0.1:5432"),
    (TRANSIENT, "Error: getaddrinfo EAI_AGAIN api.example"),
    (TRANSIENT, "    [Symbol(undici.error.UND_ERR_SOCKET)]: true"),
    (TRANSIENT, "kex_exchange_identification: Connection closed by remote host"),
    (TRANSIENT, "Connection to backup.example closed by remote host."),
    (TRANSIENT, "client_loop: send disconnect: Broken pipe"),
    (TRANSIENT, "fatal: the remote end hung up unexpectedly"),
    (TRANSIENT, "fatal: unable to access 'https://git.example/x.git/': Empty reply from server"),
    (TRANSIENT, "Error response from daemon: Get https://images.example/v2/: net/http: TLS handshake timeout"),
    (TRANSIENT, "dial tcp 192.0.2.7:443: i/o timeout"),
    (ERROR, "curl: (22) The requested URL returned error: 404"),
    (ERROR, "curl: (3) URL using bad/illegal format or missing URL"),
    (ERROR, "npm error 404 Not Found - GET https://packages.example/x"),
    (ERROR, "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://api.example/v1"),
    (ERROR, "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: https://api.example/v1"),
    (ERROR, "! [rejected]        main -> main (fetch first)"),
    (ERROR, "bash: line 1: /etc/settings: Permission denied"),
    (ERROR, "KeyError: 'timeout'"),
    (ERROR, "FAILED tests/test_limits.py::test_429 - assert 503 == 429"),
    (ERROR, "the rate limit is 429 and the limit of connections 503"),
    (ERROR, "broken pipeline: step 401 of 503"),
]


@pytest.mark.parametrize(("kind", "line"), EXAMPLES, ids=[line[:60] for _, line in EXAMPLES])
def test_what_tools_say_is_recognised(kind: ErrorClass, line: str) -> None:
    assert classify(1, None, output=f"starting\n{line}\n").error_class is kind


@pytest.mark.parametrize(("kind", "source", "pattern"), SIGNS, ids=[pattern[:50] for _, _, pattern in SIGNS])
def test_every_sign_is_shown_by_an_example_of_its_kind(kind: ErrorClass, source: str, pattern: str) -> None:
    assert source
    assert any(re.search(pattern, line) for of_kind, line in EXAMPLES if of_kind is kind), "a row without an example"


# --- requests, through the command line ----------------------------------------------------------------------------


def requests_of(workspace: Workspace, tools: Tools, wanted: Iterable[str], more: str = "") -> dict[str, str]:
    """One tick that makes all of these requests; the task of each."""
    workspace.config("max_concurrent: 20\n")
    tasks = {what: f"call-{number}" for number, what in enumerate(wanted)}
    for what, task_id in tasks.items():
        workspace.write_task(
            task_id, f"---\nid: {task_id}\nschedule: 1h\nrun_as: http\nurl: {tools.url(what)}\n{more}---\n"
        )
    workspace.tick()
    return tasks


def test_the_status_of_a_request_tells_what_kind_of_trouble_it_is(workspace: Workspace, tools: Tools) -> None:
    kinds = {
        "401": AUTH, "403": AUTH, "402": BUDGET, "429?after=120": TRANSIENT, "503": TRANSIENT, "mute-503?size=20000": TRANSIENT,
        "404": ERROR, "500": ERROR, "refused": TRANSIENT, "empty": TRANSIENT, "cut": TRANSIENT,
    }  # fmt: skip
    tasks = requests_of(workspace, tools, kinds)
    found = {run["task_id"]: (run["status"], run["error_class"]) for run in workspace.history()}
    assert found == {tasks[wanted]: ("failed", kind) for wanted, kind in kinds.items()}
    assert workspace.json("run", tasks["500"], code=1)["status"] == "failed"


def test_a_status_that_was_not_expected_is_an_error_though_it_is_a_good_one(workspace: Workspace, tools: Tools) -> None:
    requests_of(workspace, tools, ["200"], more="expect_status: 404\n")
    assert workspace.last_run("call-0")["error_class"] == ERROR


def test_trouble_that_passes_is_looked_at_again_later_and_not_counted(workspace: Workspace, tools: Tools) -> None:
    delays = {
        "503": 300, "refused": 300, "429": 300, "429?after=120": 120,
        "503?after=900&size=20000": 900,  # the headers stand far before the end of the output
    }  # fmt: skip
    tasks = requests_of(workspace, tools, delays)
    listed = {task["id"]: task for task in workspace.listed()}
    for wanted, delay in delays.items():
        (run,), task = workspace.runs(tasks[wanted]), listed[tasks[wanted]]
        assert (run["status"], run["error_class"], run["source"]) == ("failed", TRANSIENT, "baseline-interval")
        assert (task["state"], task["source"]) == ("active", "retry")
        ahead = datetime.fromisoformat(task["next_run_at"]) - datetime.fromisoformat(run["finished_at"])
        assert abs(ahead - timedelta(seconds=delay)) < timedelta(seconds=30)
        assert workspace.sql("SELECT failures FROM tasks WHERE id = ?", tasks[wanted]) == [(0,)]
    assert workspace.json("show", "call-0")["failures"] == 0


def test_trouble_that_passes_is_told_as_long_as_it_lasts(workspace: Workspace, tools: Tools) -> None:
    requests_of(workspace, tools, ["503"])
    workspace.sql(
        "UPDATE task_runs SET started_at = '2026-01-02T03:04:05.000Z', recorded_at = '2026-01-02T03:04:05.000Z'"
    )
    workspace.cli("run", "call-0", code=1)
    for command in ("show", "why"):
        text = workspace.cli(command, "call-0").stdout
        assert re.search(
            r"^failing +transient \(.*503.*\) since 2026-01-02 03:04; tried again in [45] min \(.*\); not counted$",
            text,
            re.MULTILINE,
        ), text
        assert text.count("tried again") == 1
    requests_of(workspace, tools, ["200"])
    workspace.cli("run", "call-0")
    for command in ("show", "why"):
        assert "transient" not in workspace.cli(command, "call-0").stdout


def test_trouble_that_stays_is_counted_and_waits_for_its_schedule(workspace: Workspace, tools: Tools) -> None:
    tasks = requests_of(workspace, tools, ["401", "404"])
    for task in workspace.listed():
        assert (task["state"], task["source"]) == ("active", "baseline-interval")
    for task_id in tasks.values():
        assert workspace.json("show", task_id)["failures"] == 1


# --- agents --------------------------------------------------------------------------------------------------------


def judged(format_: Format, stdout: str, stderr: str = "", code: int = 0) -> Outcome:
    answer = read_answer(format_, stdout, stderr, code)
    return classify(code, None, output=f"{stdout}\n{stderr}"[-SUMMARY:], answer=answer, now=NOW)


def claude(**fields: Any) -> str:
    """The object that Claude Code prints at the end."""
    said: dict[str, Any] = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "duration_ms": 3126,
        "num_turns": 2,
        "result": "Done: the report is in report.md.",
        "session_id": "6f0a5d0e-7f7c-4a5e-9d43-0d8c2f4b7a11",
        "total_cost_usd": 0.0421,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 2000,
            "cache_read_input_tokens": 300,
            "output_tokens": 45,
        },
        "permission_denials": [],
    }
    return json.dumps({name: value for name, value in (said | fields).items() if value is not None}) + "\n"


DENIED = [{"tool_name": "Write", "tool_use_id": "toolu_1", "tool_input": {"file_path": "report.md"}}]


def test_a_result_of_claude_is_read_with_its_tokens_its_cost_and_its_words() -> None:
    outcome = judged(Format.CLAUDE, claude())
    assert (outcome.status, outcome.error) == (RunStatus.SUCCESS, None)
    usage = outcome.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (2310, 45, 0.0421)
    assert usage.session_id == "6f0a5d0e-7f7c-4a5e-9d43-0d8c2f4b7a11"
    assert usage.text == "Done: the report is in report.md."


@pytest.mark.parametrize(
    ("fields", "code", "kind"),
    [
        ({"is_error": True, "result": "Invalid API key · Please run /login"}, 1, AUTH),
        ({"is_error": True, "result": "Invalid API key · Please run /login"}, 0, AUTH),
        ({"is_error": True, "result": "Credit balance is too low"}, 1, BUDGET),
        ({"is_error": True, "result": "API Error: Rejected", "api_error_status": 401}, 1, AUTH),
        ({"is_error": True, "result": "API Error: Repeated 429", "api_error_status": 429}, 1, TRANSIENT),
        ({"is_error": True, "result": "API Error: Overloaded", "api_error_status": 529}, 1, TRANSIENT),
        ({"is_error": True, "result": "API Error: Unavailable", "api_error_status": 503}, 0, TRANSIENT),
        ({"is_error": True, "result": "API Error: 500 Internal server error", "api_error_status": 500}, 1, TRANSIENT),
        ({"is_error": True, "result": "API Error: Bad request", "api_error_status": 400}, 1, ERROR),
        ({"is_error": True, "result": None}, 0, ERROR),
        ({"subtype": "error_max_budget_usd", "is_error": True, "result": None}, 1, BUDGET),
        ({"subtype": "error_max_budget_usd", "is_error": False, "result": None}, 0, BUDGET),
        ({"subtype": "error_max_turns", "is_error": False, "result": None}, 1, ERROR),
        ({"subtype": "error_max_turns", "is_error": False, "result": None}, 0, ERROR),
        ({"subtype": "error_during_execution", "is_error": True, "result": None, "errors": ["it broke"]}, 1, ERROR),
        ({"is_error": True, "result": "Weekly limit reached · resets 10am (Asia/Seoul)"}, 1, TRANSIENT),
    ],
)
def test_a_result_of_claude_that_is_none_tells_why(fields: dict[str, Any], code: int, kind: ErrorClass) -> None:
    outcome = judged(Format.CLAUDE, claude(**fields), code=code)
    assert (outcome.status, outcome.error_class, outcome.exit_code) == (RunStatus.FAILED, kind, code)
    assert outcome.usage.cost_usd == 0.0421 and outcome.usage.session_id, "what it cost is known all the same"
    for said in (fields.get("result"), *fields.get("errors", [])):
        assert said is None or said in (outcome.error or "")


@pytest.mark.parametrize(
    ("said", "reset"),
    [
        ("Claude AI usage limit reached|1773226800", datetime(2026, 3, 11, 11, 0, tzinfo=UTC)),
        ("You've hit your session limit · resets 3pm (Europe/Berlin)", datetime(2026, 3, 11, 14, 0, tzinfo=UTC)),
        ("You've hit your limit · resets 10am (Europe/Berlin)", datetime(2026, 3, 12, 9, 0, tzinfo=UTC)),
        ("Claude usage limit reached. Your limit will reset at 12am.", datetime(2026, 3, 12, 0, 0, tzinfo=UTC)),
    ],
)
def test_a_limit_that_states_when_it_ends_is_waited_for(said: str, reset: datetime) -> None:
    outcome = judged(Format.CLAUDE, claude(is_error=True, result=said), code=1)
    assert (outcome.error_class, outcome.reset_at) == (TRANSIENT, reset)


@pytest.mark.parametrize(
    "said",
    [
        "I couldn't write report.md: permission to use Write was not granted.",
        "I wasn't able to create the file.",
        "I couldn’t create the file.",
        "I don't have access to the Write tool here. Please allow it and I will go on.",
        "I need your approval before I can write the file.",
        "",
    ],
)
def test_an_agent_that_was_refused_what_it_was_to_do_has_not_done_it(said: str) -> None:
    outcome = judged(Format.CLAUDE, claude(result=said, permission_denials=DENIED))
    assert (outcome.status, outcome.error_class, outcome.exit_code) == (RunStatus.FAILED, AUTH, 0)
    assert "Write" in (outcome.error or "")


@pytest.mark.parametrize("denials", [DENIED, [], None, "none", [None, 7]])
def test_an_agent_that_did_its_work_in_another_way_has_done_it(denials: Any) -> None:
    said = "The report is finished: 12 items, all of them in report.md."
    assert judged(Format.CLAUDE, claude(result=said, permission_denials=denials)).status is RunStatus.SUCCESS


@pytest.mark.parametrize("format_", [Format.CLAUDE, Format.CODEX, Format.GEMINI])
@pytest.mark.parametrize("stdout", ["", "Done.\n", "{}\n", "[1, 2]\n", '{"type": "resu'])
def test_an_agent_that_ends_well_without_a_result_has_failed(format_: Format, stdout: str) -> None:
    outcome = judged(format_, stdout)
    assert (outcome.status, outcome.error_class, outcome.exit_code) == (RunStatus.FAILED, ERROR, 0)
    assert "no result" in (outcome.error or "")


def test_an_agent_without_a_format_says_what_it_prints() -> None:
    outcome = judged(Format.TEXT, "  All is well.\n")
    assert (outcome.status, outcome.usage.text) == (RunStatus.SUCCESS, "All is well.")
    assert judged(Format.TEXT, "", "Error: connect ECONNREFUSED 127.0.0.1:1", code=1).error_class is TRANSIENT


@pytest.mark.parametrize("format_", [Format.CLAUDE, Format.CODEX, Format.GEMINI])
@pytest.mark.parametrize("code", [126, 127])
def test_an_agent_that_could_not_be_started_is_a_missing_tool(format_: Format, code: int) -> None:
    assert judged(format_, "", "bash: line 1: agent: command not found", code=code).error_class is MISSING


NOISE = 'Warning: no stdin data received in 3s\n{"level": "debug"}\n{broken\n(node:1) ExperimentalWarning: {}\n'


def test_noise_around_a_result_changes_nothing() -> None:
    limit = claude(is_error=True, result="Claude AI usage limit reached|1773226800")
    for result, code in [(claude(), 0), (limit, 1)]:
        plain = judged(Format.CLAUDE, result, code=code)
        for stdout, stderr in [(result, NOISE), (NOISE + result, ""), (result + NOISE, NOISE), (f"\n\n  {result}", "")]:
            assert judged(Format.CLAUDE, stdout, stderr, code) == plain


def test_a_result_over_several_lines_and_the_last_of_several_count() -> None:
    spread = json.dumps(json.loads(claude(result="The last words.")), indent=2)
    outcome = judged(Format.CLAUDE, claude(is_error=True) + spread)
    assert (outcome.status, outcome.usage.text) == (RunStatus.SUCCESS, "The last words.")


def test_what_an_agent_met_on_its_way_is_not_why_it_failed() -> None:
    """Its own result says that, not what the commands printed that it ran."""
    met = {"type": "command_execution", "aggregated_output": "curl: (7) Failed to connect: Connection refused"}
    failed = {"message": "The model is not supported when using Codex with this account."}
    stdout = lines(
        {"type": "item.completed", "item": met},
        {"type": "turn.failed", "error": failed},
    )
    assert judged(Format.CODEX, stdout, code=1).error_class is ERROR
    denied = [{"tool_name": "Bash", "tool_input": {"command": "grep 'Connection refused' log"}}]
    stdout = claude(subtype="error_max_turns", result=None, permission_denials=denied)
    assert judged(Format.CLAUDE, stdout, code=1).error_class is ERROR


def lines(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


STARTED = {"type": "thread.started", "thread_id": "0199a213-81c0-7800-8aa1-bbab2a035a53"}
BEGUN = {"type": "turn.started"}
THOUGHT = {"type": "item.completed", "item": {"id": "item_0", "type": "reasoning", "text": "Looking around"}}
SAID = {"type": "item.completed", "item": {"id": "item_3", "type": "agent_message", "text": "The report is written."}}
COMPLETED = {
    "type": "turn.completed",
    "usage": {"input_tokens": 24763, "cached_input_tokens": 24448, "output_tokens": 122},
}
HICCUP = {"type": "error", "message": "Reconnecting... 1/5 (stream disconnected before completion)"}


def test_the_events_of_codex_become_a_result_with_tokens_session_and_words() -> None:
    outcome = judged(Format.CODEX, lines(STARTED, BEGUN, THOUGHT, SAID, COMPLETED), "Reading prompt from stdin...\n")
    assert (outcome.status, outcome.usage.text) == (RunStatus.SUCCESS, "The report is written.")
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (24763, 122)
    assert (outcome.usage.session_id, outcome.usage.cost_usd) == (STARTED["thread_id"], None)


def test_errors_that_codex_got_over_are_none() -> None:
    assert judged(Format.CODEX, lines(STARTED, BEGUN, HICCUP, HICCUP, SAID, COMPLETED)).status is RunStatus.SUCCESS


@pytest.mark.parametrize(
    ("message", "kind", "reset"),
    [
        ("exceeded retry limit, last status: 429 Too Many Requests", TRANSIENT, None),
        ("unexpected status 401 Unauthorized: Missing bearer or basic authentication in header", AUTH, None),
        ("stream disconnected before completion: error sending request", TRANSIENT, None),
        ("Quota exceeded. Check your plan and billing details. (insufficient_quota)", BUDGET, None),
        ("The model is not supported when using Codex with this account.", ERROR, None),
        ("You've hit your usage limit. Try again in 2 hours.", TRANSIENT, timedelta(hours=2)),
        (
            "You've hit your usage limit. Upgrade to Pro or try again in 2 days 17 hours 14 minutes.",
            TRANSIENT,
            timedelta(days=2, hours=17, minutes=14),
        ),
        (
            "Rate limit reached for organization on tokens per min. Please try again in 667ms.",
            TRANSIENT,
            timedelta(milliseconds=667),
        ),
    ],
)
def test_a_turn_of_codex_that_failed_tells_why(message: str, kind: ErrorClass, reset: timedelta | None) -> None:
    stdout = lines(
        STARTED, BEGUN, {"type": "error", "message": message}, {"type": "turn.failed", "error": {"message": message}}
    )
    outcome = judged(Format.CODEX, stdout, code=1)
    assert (outcome.status, outcome.error_class) == (RunStatus.FAILED, kind)
    assert message in (outcome.error or "") and outcome.usage.session_id == STARTED["thread_id"]
    assert outcome.reset_at == (NOW + reset if reset is not None else None)


def test_codex_that_stops_in_the_middle_has_failed_even_with_0() -> None:
    assert judged(Format.CODEX, lines(STARTED, BEGUN, THOUGHT)).status is RunStatus.FAILED
    assert judged(Format.CODEX, lines(STARTED, BEGUN, HICCUP)).error_class is TRANSIENT


def gemini(**fields: Any) -> str:
    return json.dumps({"session_id": "b7d3c1f0-2f3b-4a77-9f8e-1c2d3e4f5a6b"} | fields, indent=2) + "\n"


GEMINI_STATS = {
    "models": {
        "gemini-pro": {"api": {"totalRequests": 2}, "tokens": {"prompt": 900, "candidates": 40, "thoughts": 60}},
        "gemini-flash": {"tokens": {"prompt": 100, "candidates": 5, "thoughts": 0, "total": 105}},
    }
}


def test_the_object_of_gemini_is_read_with_the_tokens_of_all_models() -> None:
    outcome = judged(Format.GEMINI, gemini(response="The report is written.", stats=GEMINI_STATS), "Loaded settings.\n")
    assert (outcome.status, outcome.usage.text) == (RunStatus.SUCCESS, "The report is written.")
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (1000, 105)
    assert outcome.usage.session_id == "b7d3c1f0-2f3b-4a77-9f8e-1c2d3e4f5a6b"


@pytest.mark.parametrize(
    ("code", "error", "kind"),
    [
        (41, {"type": "FatalAuthenticationError", "message": "Please set an Auth method", "code": 41}, AUTH),
        (41, None, AUTH),
        (42, {"type": "FatalInputError", "message": "No input provided via stdin", "code": 42}, ERROR),
        (42, None, ERROR),
        (53, {"type": "FatalTurnLimitedError", "message": "Reached max session turns", "code": 53}, ERROR),
        (53, None, ERROR),
        (55, None, ERROR),
        (1, {"type": "Error", "message": "You exceeded your current quota", "code": 429}, TRANSIENT),
        (1, {"type": "Error", "message": "The model is overloaded.", "code": 503}, TRANSIENT),
        (1, {"type": "Error", "message": "API key not valid. Please pass a valid API key.", "code": 400}, AUTH),
        (1, {"type": "Error", "message": "exception TypeError: fetch failed sending request"}, TRANSIENT),
        (1, {"type": "Error", "message": "Something else"}, ERROR),
        (0, {"type": "Error", "message": "Something else"}, ERROR),
    ],
)
def test_what_gemini_says_on_stderr_tells_why_it_failed(
    code: int, error: dict[str, Any] | None, kind: ErrorClass
) -> None:
    stderr = f"Loaded settings.\n{gemini(error=error)}" if error else "Loaded settings.\n"
    outcome = judged(Format.GEMINI, "", stderr, code)
    assert (outcome.status, outcome.error_class) == (RunStatus.FAILED, kind)
    assert error is None or error["message"] in (outcome.error or "")


# --- anything at all -----------------------------------------------------------------------------------------------

NAMES = (
    "type", "subtype", "is_error", "result", "errors", "usage", "input_tokens", "output_tokens", "total_cost_usd",
    "session_id", "api_error_status", "permission_denials", "tool_name", "thread_id", "item", "text", "error", "message",
    "response", "stats", "models", "tokens", "prompt", "candidates", "code", "verdict",
)  # fmt: skip
WORDS = (
    "result", "success", "error_max_budget_usd", "error", "turn.completed", "turn.failed", "item.completed",
    "thread.started", "agent_message", "usage limit reached|9999999999", "resets 99pm (No/Where)", "resets 3pm (Europe)",
    "try again in 99999 days", "Retry-After: 999999", "\ud800", "",
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from([401, 429, 503, 10**400]),
    st.sampled_from(WORDS), st.text(max_size=20),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8).map(json.dumps)
OUTPUTS = st.lists(
    st.one_of(OBJECTS, OBJECTS.map(lambda text: text[: len(text) // 2]), st.text(max_size=40), st.sampled_from(WORDS)),
    max_size=5,
).map("\n".join)


def check_an_outcome(format_: Format, stdout: str, stderr: str, code: int) -> None:
    outcome = judged(format_, stdout, stderr, code)
    assert outcome.status in (RunStatus.SUCCESS, RunStatus.FAILED)
    assert (outcome.status is RunStatus.FAILED) is (outcome.error_class is not None) is (outcome.error is not None)
    assert code == 0 or outcome.status is RunStatus.FAILED
    assert outcome.reset_at is None or NOW < outcome.reset_at <= NOW + LONGEST_RESET
    usage = outcome.usage
    assert usage.text is None or len(usage.text) <= LONGEST_TEXT
    for text in (usage.text, usage.session_id, outcome.error):
        (text or "").encode()  # what can't be stored would end the tick
    for count in (usage.input_tokens, usage.output_tokens):
        assert count is None or 0 <= count < 2**63
    assert usage.cost_usd is None or 0 <= usage.cost_usd < 1e9


@given(st.sampled_from(list(Format)), OUTPUTS, OUTPUTS, st.sampled_from([0, 1, 41, 127, 255]))
def test_whatever_an_agent_prints_is_judged(format_: Format, stdout: str, stderr: str, code: int) -> None:
    # What comes from a process was decoded, which leaves no half of a character; an escape in JSON may still be one.
    stdout, stderr = (text.encode("utf-8", "replace").decode() for text in (stdout, stderr))
    check_an_outcome(format_, stdout, stderr, code)
    last_object_with(stdout, "verdict")


@pytest.mark.parametrize("format_", list(Format))
@pytest.mark.parametrize(
    "text",
    [
        '{"type":' * 3_000,
        '{"type": "result", "result": ' + "[" * 200_000,
        '{"error": ' * 500 + "1" + "}" * 500,
        "{" * 200_000,
        '{"type": "result", "usage": {"input_tokens": ' + "9" * 5000 + "}}",
        '{"type": "result", "total_cost_usd": 1e999, "session_id": "' + "x" * 100_000 + '"}',
        '{"type": "result", "result": "' + "x" * 3_000_000 + '"}',
        '{"type": "result", "result": "' + "x" * 3_000_000,
        '{"response": "\\ud800", "error": "\\udfff"}',
        "\0" * 1000,
    ],
    ids=["nested", "nested arrays", "deep", "braces", "digits", "endless", "huge", "huge and cut", "half", "nothing"],
)
def test_what_is_huge_deep_or_cut_off_is_judged(format_: Format, text: str) -> None:
    for code in (0, 1):
        check_an_outcome(format_, text, text, code)
    last_object_with(text, "verdict")


# --- when it will be well again ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ahead"),
    [
        (f"usage limit reached|{int(NOW.timestamp()) + 3600}", timedelta(hours=1)),
        ("HTTP 429 Too Many Requests\nRetry-After: 120\n\nslow down\n", timedelta(minutes=2)),
        ("retry-after: 7\r\n", timedelta(seconds=7)),
        ("Retry-After: Wed, 11 Mar 2026 10:00:00 GMT", timedelta(minutes=30)),
        ("please try again in 5 minutes", timedelta(minutes=5)),
        ("Try again in about 2 hours.", timedelta(hours=2)),
        ("retry in 30s", timedelta(seconds=30)),
        ("Please retry in 34.5s.", timedelta(seconds=34.5)),
        ("Please try again in 6m0s.", timedelta(minutes=6)),
        ("limit resets in 3 days", timedelta(days=3)),
        ("try again in 1 day 2 hours", timedelta(days=1, hours=2)),
        ("try again in 250ms", timedelta(milliseconds=250)),
        ("resets 3pm (Europe/Berlin)", timedelta(hours=4, minutes=30)),
        ("resets 12:50am (America/Los_Angeles)", timedelta(hours=22, minutes=20)),
        ("resets 3pm (America/Port-au-Prince)", timedelta(hours=9, minutes=30)),
        ("resets at 15:00 (UTC)", timedelta(hours=5, minutes=30)),
        ("resets 3pm (No/Where)", timedelta(hours=20, minutes=30)),  # then the zone of the task: Tokyo, 18:30 now
        ("resets 7pm", timedelta(minutes=30)),
    ],
)
def test_the_moment_that_is_stated_is_understood(text: str, ahead: timedelta) -> None:
    assert stated_reset(text, NOW, get_zone("Asia/Tokyo")) == NOW + ahead


@pytest.mark.parametrize(
    "text",
    [
        "",
        "usage limit reached",
        f"usage limit reached|{int(NOW.timestamp()) - 1}",
        f"usage limit reached|{int((NOW + LONGEST_RESET).timestamp()) + 1}",
        "usage limit reached|9999999999",
        "Retry-After: 0",
        "Retry-After: 700000",
        "Retry-After: soon",
        "Retry-After: Wed, 11 Mar 2026 09:00:00 GMT",
        "try again in 9 days",
        "try again in 0 minutes",
        "try again later",
        "try again in a while",
        "resets 25:00",
        "resets 3:75pm",
        "resets 3",
        "the counter was reset 12 times",
    ],
)
def test_a_moment_that_is_not_stated_or_past_or_absurdly_far_is_none(text: str) -> None:
    assert stated_reset(text, NOW, UTC) is None


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=30), max_size=4).map(" ".join))
def test_a_stated_moment_always_lies_ahead_and_near(text: str) -> None:
    found = stated_reset(text, NOW, UTC)
    assert found is None or NOW < found <= NOW + LONGEST_RESET


def test_only_trouble_that_passes_has_a_moment_at_which_it_has_passed() -> None:
    assert classify(1, None, output="Invalid API key\nRetry-After: 60\n", now=NOW).reset_at is None
    assert classify(1, None, output="HTTP Error 503: \nRetry-After: 60\n").reset_at is None, "when is now?"
