"""Where garbage comes from: files, agents, and a server that answers with it."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import TracebackType

from tests.faults import nasty
from tests.helpers import PROJECT
from tickdown.config import KEYS
from tickdown.tasks.task import FIELDS

# --- files -----------------------------------------------------------------------------------------------------------------

_TASK = b"""---
id: job
schedule: every weekday at 18:30
title: "A title"   # a remark
command: |
  echo one
  echo two
timeout: 10m
retry: 2
env: {NAME: value, TOKEN: "${HOME}"}
tags: [a, b]
after: {other: failure}
blackout: ["22:00-06:00", sat-sun]
catch_up: all
grace: 2h
---
What it does.
"""
_CONFIG = b"""timezone: Europe/Berlin
max_concurrent: 3
groups: {gpu: 1}
cwd_policies: {site: /tmp}
blackout: ["22:00-06:00"]
keep_runs: 30d
ping_url: ""
notify:
  destinations: {home: {chat: "-1001", thread: 7}}
  default: home
  quiet_hours: "22:00-07:00"
agents:
  mine: {argv: [mine, -p], format: text}
healer: null
heals_per_day: 3
budget_usd_per_day: 1.5
"""
_ENV = b"""# secrets
TELEGRAM_TOKEN='123:abc'
export OTHER_KEY="with # inside"   # a remark
PLAIN=value
"""
_VALUES = (
    "true", "null", "-1", "1e999", ".nan", ".inf", "9" * 30, "0x1F", "017", "12:30", "2026-01-01", "[]", "{}", "[a, [b]]", "~",
    "{a: {b: c}}", "''", "!!int x", "!!binary AAAA", "!!set {a}", "&a b", "*a", "|\n  x", ">\n  x", "0 0 30 2 *", "* * * * *",
    "every", "every 0 minutes", "at 99:99", "on 9999-99-99", "on 0001-01-01", "in 99999999999w", "5", "0m", "-5m", "5x", "H(9-1) * * * *",
    "61 * * * *", "*/0 * * * *", "0 0 * * mon#9", "@never", "{a: failure, A: always}", "[job]", "25:00-26:00", "sun-xyz",
    "2026-12-26/2026-12-24", "http://[::1", "http://\u0001", "${MISSING}", "1_000", "1.5.5", "10 MiB", "-3 KiB",
)  # fmt: skip


def _value(random: Random) -> str:
    return random.choice(_VALUES) if random.random() < 0.7 else nasty.in_yaml(nasty.text(random, 3))


def _fields(random: Random, names: tuple[str, ...]) -> str:
    chosen = random.sample(names, random.randint(1, 6)) + (["unknown\u200b"] if random.random() < 0.2 else [])
    return "".join(f"{name}: {_value(random)}\n" for name in chosen)


def task_file(random: Random) -> bytes:
    """Bytes, a good file spoilt, or good YAML that means nothing good."""
    match random.randint(0, 3):
        case 0:
            return random.randbytes(random.randint(0, 2000))
        case 1:
            return nasty.scrambled(random, _TASK)
        case 2:
            return b"---\n" + nasty.scrambled(random, _TASK[4:-5])[:200_000] + b"\n---\n"
    head = f"id: t{random.randrange(10**9)}\nschedule: 1d\ncommand: 'true'\n" if random.random() < 0.5 else ""
    return f"---\n{head}{_fields(random, FIELDS)}---\n{nasty.text(random)}".encode("utf-8", "replace")


def config_file(random: Random) -> bytes:
    match random.randint(0, 2):
        case 0:
            return random.randbytes(random.randint(0, 500))
        case 1:
            return nasty.scrambled(random, _CONFIG)
    return _fields(random, KEYS).encode("utf-8", "replace")


def env_file(random: Random) -> bytes:
    return nasty.scrambled(random, _ENV) if random.random() < 0.8 else random.randbytes(200)


# --- agents ----------------------------------------------------------------------------------------------------------------


def agent_output(random: Random) -> str:
    kinds = ('"result"', '"turn.completed"', '"item.completed"', '"turn.failed"', '"error"')
    made = [
        lambda: nasty.json_object(random, type=random.choice(kinds)),
        lambda: nasty.json_object(random, response=nasty.json_like(random), stats=nasty.json_like(random)),
        lambda: nasty.json_object(random, verdict=random.choice(('"fixed"', '"needs_human"', nasty.json_like(random)))),
        lambda: nasty.json_object(random, type='"result"', result=_in_a_string(_wish(random))),
        lambda: _wish(random),
        lambda: nasty.text(random, 12),
        lambda: '{"type":"result","result":"' + "x" * random.randint(0, 3_000_000),
        lambda: "{" * random.randint(1, 300_000),
        lambda: '{"a":\n' * 600 + '"' + "x" * 2_000_000,
        lambda: "rate_limit_error: try again in " + "99999 days " * random.randint(1, 3000),
        lambda: random.randbytes(300).decode("utf-8", "surrogateescape"),
    ]  # fmt: skip
    return "\n".join(random.choice(made)() for _ in range(random.randint(1, 4)))


def _wish(random: Random) -> str:
    """What a reader of comments might answer."""
    action = random.choice(('"run"', '"skip"', '"pause"', '"modify"', '"ask"', nasty.json_like(random)))
    text = random.choice(('"\\ud800"', '"a\\u0000b"', nasty.json_like(random)))
    env = random.choice((f'{{"MODE": {text}}}', '{"LD_PRELOAD": "x"}', '{"A B": 1}', nasty.json_like(random)))
    return nasty.json_object(random, action=action, question=text, reason=text, env=env, prompt=text)


def _in_a_string(document: str) -> str:
    return '"' + document.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


# --- a server --------------------------------------------------------------------------------------------------------------

Answer = Callable[[Random, str], Iterator[bytes]]
ANSWERS: dict[str, Answer] = {}
ENDLESS = ("drip", "continue-for-ever", "headers-for-ever-slowly")  # only the timeout of whoever asks ends them


def answer(function: Answer) -> Answer:
    ANSWERS[function.__name__.replace("_", "-")] = function
    return function


def _whole(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode("utf-8", "replace") + body


@answer
def bytes_of_any_kind(random: Random, url: str) -> Iterator[bytes]:
    yield random.randbytes(random.randint(1, 5000))


@answer
def nothing(random: Random, url: str) -> Iterator[bytes]:
    yield b""


@answer
def a_broken_status(random: Random, url: str) -> Iterator[bytes]:
    line = random.choice((b"HTTP/1.1 abc", b"HTTP/9.9 200 OK", b"HTTP/1.1 99999", b"HTTP/1.1", b"HTTP/1.1 -1 x"))
    yield line + b"\r\n\r\n"


@answer
def an_odd_status(random: Random, url: str) -> Iterator[bytes]:
    words = random.choice(
        ("101 Switching", "299 \x1b[2J", "418 " + "x" * 3000, "599 \u202e", "429 Too Many Requests", "503 x")
    )
    after = random.choice(("NaN", "-5", "99999999999999999999", "Mon, 99999999999 Jan 2025 GMT", "x" * 500, ""))
    yield _whole(nasty.text(random).encode("utf-8", "replace"), words, f"Retry-After: {after}\r\n")


@answer
def a_wrong_length(random: Random, url: str) -> Iterator[bytes]:
    length = random.choice(("-1", "99999999999999999999", "0", "5", "x", "5, 6", "9" * 5000))
    yield f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode() + b"y" * random.randint(0, 100)


@answer
def broken_chunks(random: Random, url: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield random.choice(
        (b"zz\r\nabc\r\n", b"-5\r\nabc\r\n", b"ffffffffffffffff\r\nabc", b"5\r\nabc", b"3\r\nabc\r\n", b"9" * 70_000)
    )


@answer
def a_body_without_end(random: Random, url: str) -> Iterator[bytes]:
    chunked = random.random() < 0.5
    yield b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n" if chunked else b"") + b"\r\n"
    while True:
        yield b"10000\r\n" + b"e" * 0x10000 + b"\r\n" if chunked else b"e" * 0x10000


@answer
def too_many_headers(random: Random, url: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(5000)) + b"\r\n"


@answer
def a_header_too_long(random: Random, url: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX: " + b"h" * 5_000_000 + b"\r\n\r\n"


@answer
def odd_headers(random: Random, url: str) -> Iterator[bytes]:
    header = nasty.text(random, 3).replace("\r", "").replace("\n", "")
    yield _whole(b"x", headers=f"Server: {header}\r\nContent-Type: {header}\r\n: none\r\nno colon\r\n")


@answer
def a_circle_of_redirects(random: Random, url: str) -> Iterator[bytes]:
    yield _whole(b"", "302 Found", f"Location: {url}/a-circle-of-redirects\r\n")


@answer
def a_redirect_to_nowhere(random: Random, url: str) -> Iterator[bytes]:
    places = ("http://[::1", "file:///etc/passwd", "http://", "//", "http://\x01\x02/", "http://x:99999/", "ftp://x", "http://.../",
              "http://" + "a" * 70 + ".x/", "http://a..b/", "javascript:alert(1)", "http://%zz/", "http://\u202e/", "http:///x", "?",
              "http://*/", "https://127.0.0.1:1/")  # fmt: skip
    yield _whole(b"", "301 Moved", f"Location: {random.choice(places)}\r\n")


@answer
def a_redirect_without_end(random: Random, url: str) -> Iterator[bytes]:
    """Whoever follows it need not read what stands in it."""
    yield f"HTTP/1.1 302 Found\r\nLocation: {url}/nothing\r\n\r\n".encode()
    while True:
        yield b"r" * 0x10000


@answer
def a_gzip_bomb(random: Random, url: str) -> Iterator[bytes]:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
    zeros = bytes(1 << 20)
    for _ in range(3000):  # three gigabytes once it is unpacked, three megabytes as it comes
        yield packer.compress(zeros)
    yield packer.flush()


@answer
def broken_gzip(random: Random, url: str) -> Iterator[bytes]:
    encoding = random.choice(("gzip", "deflate", "gzip, gzip, gzip", "br", "zstd", "none"))
    packed = gzip.compress(b"x" * 1000)
    yield _whole(
        random.choice((packed[:30], b"\x1f\x8b" + random.randbytes(50), b"")),
        headers=f"Content-Encoding: {encoding}\r\n",
    )


@answer
def json_of_a_kind(random: Random, url: str) -> Iterator[bytes]:
    """What Telegram might say."""
    status = random.choice(("200 OK", "400 x", "401 x", "429 x", "429 x", "500 x", "302 x"))
    asked = random.choice(
        ("NaN", "-1", "1e999", '"soon"', "9" * 5000, "null", "[]", '"' + "1" * 3000 + '"', nasty.json_like(random))
    )
    document = nasty.json_object(
        random, ok=random.choice(("true", "false", '"true"')), description=nasty.json_like(random),
        parameters=random.choice((f'{{"retry_after": {asked}}}', nasty.json_like(random))),
    )  # fmt: skip
    documents = (
        document,
        "[" * 9000,
        '{"ok":' * 2000,
        document * 50,
        "<html>" + nasty.text(random),
        "null",
        '"\\ud800"',
    )
    yield _whole(random.choice(documents).encode("utf-8", "replace"), status, f"Retry-After: {asked[:100]}\r\n")


@answer
def a_surrogate(random: Random, url: str) -> Iterator[bytes]:
    yield _whole(
        b'{"ok": false, "description": "half \\ud83d a pair \\u0000"}', random.choice(("400 x", "500 x", "429 x"))
    )


@answer
def drip(random: Random, url: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while True:
        time.sleep(0.05)
        yield b"d"


@answer
def continue_for_ever(random: Random, url: str) -> Iterator[bytes]:
    while True:
        time.sleep(0.01)
        yield b"HTTP/1.1 100 Continue\r\n\r\n"


@answer
def headers_for_ever_slowly(random: Random, url: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX: "
    while True:
        time.sleep(0.05)
        yield b"h"


class Server:
    """Answers a path that is the name of an answer with that, and any other with one by chance that has an end."""

    def __init__(self, random: Random) -> None:
        self._seed = random.random()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._asked = 0

    def __enter__(self) -> Server:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        for connection in list(self._open):
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            self._asked += 1
            self._open.add(connection)
            threading.Thread(target=self._answer, args=(connection, self._asked), daemon=True).start()

    def _answer(self, connection: socket.socket, number: int) -> None:
        try:
            request = b""
            while b"\r\n\r\n" not in request and (data := connection.recv(65536)):
                request += data
            path = request.partition(b" /")[2].partition(b" ")[0].decode("latin-1")
            random = Random(f"{self._seed} {path} {number}")
            name = path.partition("/")[0].partition("?")[0]  # a watcher is told more behind it
            name = name if name in ANSWERS else random.choice(sorted(ANSWERS.keys() - set(ENDLESS)))
            for piece in ANSWERS[name](random, self.url):
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # or the rest of what was asked would make a reset of the end
                pass
        except OSError:
            pass  # whoever asked has heard enough
        finally:
            self._open.discard(connection)
            connection.close()


# --- coverage-guided -------------------------------------------------------------------------------------------------------

GUIDED = Path(__file__).with_name("guided.py")


def python_with_atheris() -> str | None:
    """Its own environment, made by `make torture`, or else this one."""
    for python in (PROJECT / "tests" / "faults" / ".venv" / "bin" / "python", Path(sys.executable)):
        if python.exists() and subprocess.run([python, "-c", "import atheris"], capture_output=True).returncode == 0:
            return str(python)
    return None


def fuzz(python: str, random: Random, folder: Path, seconds: int) -> None:
    """A corpus of good texts to begin with; what breaks a reader is kept beside it and shown."""
    corpus = folder / "corpus"
    corpus.mkdir()
    makers = (task_file, config_file, env_file, lambda random: agent_output(random).encode("utf-8", "replace"))
    for reader in range(20):  # the first byte says which one
        for number, make in enumerate(makers):
            (corpus / f"{reader}-{number}").write_bytes(bytes([reader]) + make(random)[:4000])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC"}
    options = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-max_len=8192", f"-seed={random.randrange(1, 2**31)}",
               f"-artifact_prefix={folder}/", "-print_final_stats=1"]  # fmt: skip
    done = subprocess.run(
        [python, str(GUIDED), *options, str(corpus)], cwd=folder, env=environment, capture_output=True, text=True, errors="replace",
        timeout=seconds + 120,
    )  # fmt: skip
    assert done.returncode == 0, f"atheris found something:\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    shutil.rmtree(corpus)
