"""The process that `test_hostile_cost.py` starts: every reader with the longest inputs it can get, made of what patterns and
parsers find hardest. Its limits of time and memory are set by whoever starts it; what it prints last was too much."""

from __future__ import annotations

import json

from tests.faults.readers import READERS
from tickdown.agents.calls import Format, read_answer
from tickdown.base.redact import Redactor
from tickdown.base.terminal import PrintableStream, printable
from tickdown.queries.checks import _unguarded

FILE = 255 * 1024  # nearly the most that a file may have
LONGEST = {  # what the others ever get, with something to spare
    "messages": 15_000, "schedules": 1000, "times": 10_000, "outputs": 70_000, "redaction": 30_000, "screens": 50_000, "agents": 65_536,
    "wishes": 65_536, "verdicts": 65_536,
}  # fmt: skip
ANSWER = 8 * 1024 * 1024  # the most that is kept of what an agent prints

PIECES = (
    "a", "1", " ", "\n", "\t", "-", "_", "{", "[", '"', "'", "\\", ":", "/", "*", "#", ",", "=", "\x1b", "\x1b]", "\x1b[;", "\x9b(",
    "a: ", "a:\n", "- ", "? ", "&a ", "*a,", "!!int ", "1:", "1_", "1.", "{a: ", "{\n", '{"a":', '{"a":\n', '{"a":"', "try again in 1 ",
    "99999 days ", "try again in 99999 days ", "retry-after:\n", "retry-after: 1", "resets 3pm (a", "a/", "could n", "sudo ", "ssh ",
    "hit your a ", "0x", "\u202e", "🎉", "<b>", "&", "${A", "/pause until ", "every ", "at 09:00 ", "1,", "*/1,", "sat-sun ",
)  # fmt: skip


def repeated(piece: str, size: int) -> str:
    return piece * (size // len(piece))


def main() -> None:
    for reader in READERS:
        for piece in PIECES:
            print(f"{reader.__name__} {piece!r}", flush=True)
            reader((repeated(piece, LONGEST.get(reader.__name__, FILE)) + "x").encode())
    for key in ("title", "tags", "timeout", "blackout", "env", "after", "command", "schedule", "group", "priority"):
        for piece in ("a", "1", "a, ", "[a", "a: 1, ", '"\\e["'):
            print(f"{key}: {piece!r}", flush=True)
            READERS[0](f"---\nid: a\nschedule: 1d\ncommand: x\n{key}: {repeated(piece, FILE - 100)}\n---\n".encode())
    print("unknown fields", flush=True)
    READERS[1]("\n".join(f"schedul{number}: 1" for number in range(3000)).encode())
    READERS[2]("\n".join(f"timezon{number}: 1" for number in range(3000)).encode())
    for piece in ("{\n", '{"type":', '{"a":"', " \t", '{"type":"result"}\n', "9"):
        for format_ in (Format.CLAUDE, Format.GEMINI):
            print(f"{format_} {piece!r}", flush=True)
            read_answer(format_, repeated(piece, ANSWER), "", 0)
            read_answer(format_, f'{{"type":"result","result":{repeated(piece, ANSWER)}', "", 0)
    print("begun again and again", flush=True)
    read_answer(Format.CLAUDE, repeated('{"a":\n', 3000) + '"' + "x" * ANSWER, "", 0)
    print("commands", flush=True)
    for piece in ("sudo ", "ssh ", "/", "a/", "claude", "~{"):
        _unguarded(repeated(piece, FILE))
    print("many secrets", flush=True)
    for secrets in (
        [f"{number:08}secret" for number in range(2000)],
        ["A" * length + "B" for length in range(500, 8, -1)],
        ["A" * 200_000],
        ["A" * 100 + "B" * 100_000],
    ):
        stream = Redactor(secrets).stream()
        for data in (b"A" * 65536, b"0" * 65536, json.dumps(secrets).encode()[:65536]):
            stream.feed(data)
        stream.flush()
    print("endless sequences", flush=True)
    for piece in ("\x1b]", "\x1b[;", "\x9b(", "\x1b", "\r"):
        printable(repeated(piece, ANSWER // 8))
        shown = PrintableStream()
        for _ in range(10_000):
            shown.feed(piece.encode())
        shown.flush()


if __name__ == "__main__":
    main()
