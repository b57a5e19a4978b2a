"""What hostile people and broken programs say: texts, bytes and JSON, made from a given `Random`; and what of it must never
be seen on a screen."""

from __future__ import annotations

import json
import re
from random import Random

# Escape sequences that change a terminal, its title or its clipboard; control characters of eight bits; marks that turn the
# direction of a text around; what joins and what has no width; line ends that are none; Markdown and HTML.
SNIPPETS = (
    "\x1b[2J\x1b[1;1H", "\x1b]0;pwned\x07", "\x1b]52;c;cm0gLXJm\x07", "\x1b]8;;http://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "\x1b[38;5;208mloud", "\x1b[?1049h", "\x1bPq#0~\x1b\\", "\x1b_Gf=100;AAAA\x1b\\", "\x1bc", "\x1b[", "\x1b]0;half", "\x1b",
    "\x9b31m", "\x9d0;c1 title\x9c", "\x90q\x9c", "\x85", "\x07", "\x08\x08\x08", "\x7f", "\x00", "\r", "\n", "\r\n", "\t",
    "\x0b", "\x0c", "\x1c", "\u2028", "\u2029", "\u202egnp.exe", "\u2066isolated", "\u200f", "\u061c", "\u200b", "\u200d",
    "\ufeff", "\ufffe", "e\u0301\u0302\u0303", "👩\u200d👩\u200d👧", "🎉" * 30, "漢字" * 20, "\U000e0041", "ﷺ", "Ǆ",
    "<b>bold", "</pre>", "<a href='x'>", "&amp;", "&#27;[31m", "&lt", "*bold*", "_i_", "[x](http://y)", "```", "`", "| a | b |",
    "---", "...", "{{task_id}}", "${HOME}", "$(id)", "%s%n", "'", '"', "\\", "../../etc/passwd", "; rm -rf /", "\\u001b[31m",
    "0" * 5000, "a" * 3000, "&" * 2000, "=== attempt 1 ===", "tickdown: ", "HTTP 503", "  ",
)  # fmt: skip
# What a terminal would act on; newline and tab apart.
DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# The colours of our own tables (`ui/views.py`): the only sequences that a terminal may get from a command.
OUR_COLOURS = re.compile(r"\x1b\[(?:0|1|3[1-6])m")


def text(random: Random, most: int = 8) -> str:
    return "".join(random.choice(SNIPPETS) for _ in range(random.randint(1, most)))


def shown_safely(output: str, *, on_terminal: bool = False) -> None:
    """Fails if something of what a task says would reach a terminal as more than text."""
    plain = OUR_COLOURS.sub("", output.replace("\r\n", "\n")) if on_terminal else output
    found = DANGEROUS.search(plain)
    assert not found, f"{found[0]!r} is shown in {plain[max(0, found.start() - 60) : found.end() + 60]!r}"


def in_yaml(value: str) -> str:
    """In double quotes, with an escape for everything that YAML would not take as it is."""
    quoted = json.dumps(value, ensure_ascii=False)
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", quoted
    )


def scrambled(random: Random, data: bytes) -> bytes:
    """Good bytes, spoilt: cut, repeated, moved, replaced, with odd ones put in."""
    for _ in range(random.randint(1, 6)):
        at, to = sorted(random.randint(0, len(data)) for _ in range(2))
        part = data[at:to]
        data = random.choice((
            data[:at] + data[to:],
            data[:at] + part * random.randint(2, 40) + data[to:],
            data[:at] + random.randbytes(random.randint(1, 12)) + data[at:],
            data[:at] + text(random, 3).encode("utf-8", "replace") + data[at:],
            data[:at] + random.choice((b"&a *a", b"!!python/object:x", b"\xff\xfe", b"- " * 500, b"[" * 2000, b"{a: " * 500,
                                       b"? ", b"<<: ", b"9" * 5000, b"1" + b"_1" * 4000, b"!!int x", b"%YAML 9.9\n",
                                       b"\n---\n", b"\t", b"|\n", b">9\n", b"0x" + b"f" * 4000, b".inf", b"1:30:30",
                                       )) + data[at:],
            data[to:] + data[:at] + part,
        ))  # fmt: skip
    return data[:300_000]


# --- JSON ----------------------------------------------------------------------------------------------------------------

_KEYS = (
    "type", "result", "usage", "modelUsage", "input_tokens", "output_tokens", "total_cost_usd", "session_id", "is_error",
    "subtype", "errors", "permission_denials", "api_error_status", "thread_id", "item", "text", "message", "error", "response",
    "stats", "models", "tokens", "prompt", "candidates", "code", "verdict", "cause", "files", "action", "reason", "until",
    "question", "env", "ok", "description", "parameters", "retry_after", "",
)  # fmt: skip
_WORDS = (
    "result", "success", "error_max_turns", "error_max_budget_usd", "thread.started", "item.completed", "turn.completed",
    "turn.failed", "error", "agent_message", "fixed", "needs_human", "gave_up", "run", "skip", "pause", "modify", "ask",
    "2026-13-45", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+14:00", "limit reached|9999999999",
    "rate_limit_error, try again in " + "99999 days " * 60, "Too Many Requests\nretry-after: Mon, 99999999999 Jan 2025 GMT",
)  # fmt: skip
_LITERALS = (
    "NaN", "-Infinity", "1e999", "-1", "0", "9" * 400, "9" * 5000, "-0.0", "1e-400", "true", "null", '"\\ud800"', '"\\udcff\\u0000"',
    "[" * 300 + "]" * 300, "[" * 990 + "]" * 990, "[" * 5000, '{"a":' * 400 + "1" + "}" * 400, "01", "'x'", "", "[]", "{}",
)  # fmt: skip


def json_like(random: Random, depth: int = 0) -> str:
    """Something that looks like an agent's or a server's answer."""
    match random.randint(0, 5 if depth < 4 else 3):
        case 0:
            return random.choice(_LITERALS)
        case 1:
            return json.dumps(random.choice(_WORDS))
        case 2:
            return json.dumps(text(random, 4))
        case 3:
            return json.dumps(random.choice((-1, 0, 0.5, 2**63, 2**70, 401, 429, 503, True, None)))
        case 4:
            return f"[{', '.join(json_like(random, depth + 1) for _ in range(random.randint(0, 3)))}]"
    return json_object(random, depth)


def json_object(random: Random, depth: int = 0, **given: str) -> str:
    keys = random.sample(_KEYS, random.randint(1, 8))
    members = [f"{json.dumps(key)}: {json_like(random, depth + 1)}" for key in keys if key not in given]
    members += [f"{json.dumps(key)}: {value}" for key, value in given.items()]
    random.shuffle(members)
    return "{" + ", ".join(members) + "}"
