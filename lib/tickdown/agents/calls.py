"""AI agents as programs: what words start one, and what its output says about how it went. No disk, no process.

Each prints its result in a format of its own; all become one Answer. Facts about the programs were read off Claude Code
2.1, Codex 0.166 and Gemini CLI 0.61.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from tickdown.base.model import NO_USAGE, ErrorClass, Usage
from tickdown.base.records import record

LONGEST_TEXT = 64 * 1024  # of the last words that are kept
MOST_OBJECTS = 20_000  # JSON objects looked at in one output
MOST_BEGUN = 100  # that turn out to be none; each may be looked at to its very end


class Format(StrEnum):
    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    TEXT = "text"  # what it prints is what it says


@record(frozen=True)
class Agent:
    name: str
    argv: tuple[str, ...]
    format: Format = Format.TEXT
    config_dir: str = ""


# Codex and Gemini refuse to work in a folder that nobody has declared trusted, which nobody can do under cron; and the
# real `gemini -p` wants a value (what it is given is added to the prompt from stdin).
PRESETS: Mapping[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent("claude", ("claude", "-p", "--output-format", "json"), Format.CLAUDE),
        Agent("codex", ("codex", "exec", "--json", "--skip-git-repo-check"), Format.CODEX),
        Agent("gemini", ("gemini", "-p", "", "--output-format", "json", "--skip-trust"), Format.GEMINI),
    )
}


class Purpose(StrEnum):
    WORK = "work"  # the task itself: what it may do is for its owner to say
    HEAL = "heal"  # reads and edits files, runs nothing
    READ = "read"  # only answers


# What is added for a purpose, unless the argv already has one of the words that speak about the same thing.
_CLAUDE_RIGHTS = ("--permission-mode", "--dangerously-skip-permissions", "--tools", "--allowedTools", "--allowed-tools")
_ADDED: Mapping[tuple[Format, Purpose], tuple[tuple[str, ...], tuple[str, ...]]] = {
    (Format.CLAUDE, Purpose.HEAL): (
        ("--permission-mode", "acceptEdits", "--tools", "Read,Glob,Grep,Edit,Write"),
        _CLAUDE_RIGHTS,
    ),
    (Format.CLAUDE, Purpose.READ): (("--tools", ""), _CLAUDE_RIGHTS),
    (Format.CODEX, Purpose.HEAL): (
        ("--sandbox", "workspace-write"),
        ("--sandbox", "-s", "--approve-for-me", "--dangerously-bypass-approvals-and-sandbox"),
    ),
    (Format.CODEX, Purpose.READ): (("--sandbox", "read-only"), ("--sandbox", "-s")),
    (Format.GEMINI, Purpose.HEAL): (("--approval-mode", "auto_edit"), ("--approval-mode", "-y", "--yolo")),
    (Format.GEMINI, Purpose.READ): (("--approval-mode", "plan"), ("--approval-mode", "-y", "--yolo")),
}


def call(agent: Agent, purpose: Purpose, budget_usd: float | None = None, folders: Sequence[str] = ()) -> list[str]:
    """The words of one call. `folders` outside the working one may be edited too."""
    argv = list(agent.argv)
    given = {word.partition("=")[0] for word in argv}
    added, unless = _ADDED.get((agent.format, purpose), ((), ()))
    if not given.intersection(unless):
        argv += added
    if agent.format is Format.CLAUDE:
        if "--strict-mcp-config" not in given:
            argv.append("--strict-mcp-config")  # no messaging servers of the interactive sessions
        if budget_usd is not None and "--max-budget-usd" not in given:
            argv += ["--max-budget-usd", f"{budget_usd:.4f}"]
    option = {Format.CLAUDE: "--add-dir", Format.CODEX: "--add-dir", Format.GEMINI: "--include-directories"}
    if agent.format in option:
        argv += [word for folder in folders for word in (option[agent.format], folder)]
    return argv


# --- surroundings ----------------------------------------------------------------------------------------------

CONFIG_DIR = "CLAUDE_CONFIG_DIR"
# Set by an agent's session for what it starts: an agent that finds them takes itself for a part of that session.
SESSION_VARIABLES = (
    "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_EXECPATH",
    "CLAUDE_CODE_AGENT", "CLAUDE_CODE_TASK_LIST_ID", "CLAUDE_CODE_RESUME_INTERRUPTED_TURN", "CLAUDE_SESSION_ID",
    "CLAUDE_PROJECT_DIR", "CLAUDE_ENV_FILE", "CLAUDE_JOB_DIR", "CLAUDE_PLUGIN_ROOT", "CLAUDE_PLUGIN_DATA",
    "CODEX_THREAD_ID", "CODEX_SANDBOX", "GEMINI_CLI",
)  # fmt: skip
SESSION_PREFIXES = ("TELEGRAM_", "CLAUDE_CODE_SESSION_", "CLAUDE_CODE_REMOTE", "CLAUDE_BG_", "CLAUDE_BRIDGE_")


def belongs_to_a_session(name: str) -> bool:
    return name in SESSION_VARIABLES or name.startswith(SESSION_PREFIXES)


# --- answers ---------------------------------------------------------------------------------------------------


@record(frozen=True)
class Answer:
    """What an agent says about its own call. `error` is None if it says that all went well."""

    usage: Usage = NO_USAGE
    error: str | None = None
    error_class: ErrorClass | None = None  # where the format itself tells
    http_status: int | None = None

    @property
    def text(self) -> str:
        return self.usage.text or ""


def read_answer(format_: Format, stdout: str, stderr: str, exit_code: int | None) -> Answer:
    """Also of a call that failed: the object is on stdout then all the same."""
    return _READERS[format_](stdout, stderr, exit_code)


NOTHING_SAID = "its output has no result in the expected format"


def _read_claude(stdout: str, stderr: str, exit_code: int | None) -> Answer:
    found = [item for item in _objects(stdout) if item.get("type") == "result"]
    if not found:
        return Answer(error=NOTHING_SAID if exit_code == 0 else None)
    result = found[-1]
    used = _mapping(result.get("usage"))
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    read, written = [_count(used.get(name)) for name in names], [_count(used.get("output_tokens"))]
    if models := [_mapping(model) for model in _mapping(result.get("modelUsage")).values()]:
        # `usage` lacks the turn in which a budget ran out; this has all of them.
        names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
        read = [_count(model.get(name)) for model in models for name in names]
        written = [_count(model.get("outputTokens")) for model in models]
    usage = Usage(
        input_tokens=_sum(read),
        output_tokens=_sum(written),
        cost_usd=_amount(result.get("total_cost_usd")),
        session_id=_text(result.get("session_id"), 200),
        text=_text(result.get("result")),
    )
    status = _count(result.get("api_error_status"))
    subtype = _text(result.get("subtype"), 100) or ""
    said = usage.text or _first_text(result.get("errors")) or ""
    if subtype == "error_max_budget_usd":
        return Answer(usage, said or "the budget of this call is used up", ErrorClass.BUDGET, status)
    if subtype.startswith("error") or result.get("is_error") is True:
        name = subtype if subtype not in ("", "success") else "error"
        return Answer(usage, f"{name}: {said}" if said else name, None, status)
    refused = _refused_tools(result.get("permission_denials"))
    if refused and (not said.strip() or re.search(REFUSAL, said, re.IGNORECASE)):
        return Answer(usage, f"it was not permitted to use {', '.join(refused)}", ErrorClass.AUTH, status)
    return Answer(usage)


# The words of an agent that could not do what it was asked because it was not permitted to.
REFUSAL = (
    r"permission|permitted|not allowed|have access|was denied|were denied|access denied|got denied|blocked|approv|authoriz"
    r"|unable to|could ?n[o'’]t|could not|can ?n[o'’]t|cannot|n['’]t (?:be )?able to|not able to|refused|need you to"
)


def _refused_tools(denials: Any) -> list[str]:
    if not isinstance(denials, list):
        return []
    names = [_text(_mapping(denial).get("tool_name"), 60) or "a tool" for denial in denials]
    return list(dict.fromkeys(names))


def _read_codex(stdout: str, stderr: str, exit_code: int | None) -> Answer:
    tokens: dict[str, list[int | None]] = {"input_tokens": [], "output_tokens": []}
    session, text, error, done = None, None, None, False
    for event in _objects(stdout):
        match event.get("type"):
            case "thread.started":
                session = _text(event.get("thread_id"), 200)
            case "item.completed":
                item = _mapping(event.get("item"))
                if item.get("type") == "agent_message":
                    text = _text(item.get("text"))
            case "turn.completed":
                done, error = True, None
                for name, counts in tokens.items():
                    counts.append(_count(_mapping(event.get("usage")).get(name)))
            case "turn.failed":
                error = _text(_mapping(event.get("error")).get("message")) or "turn.failed"
            case "error" if not done:
                error = _text(event.get("message")) or "error"
    usage = Usage(_sum(tokens["input_tokens"]), _sum(tokens["output_tokens"]), None, session, text)
    if error is None and not done and exit_code == 0:
        error = NOTHING_SAID
    return Answer(usage, error)


# Exit codes of the Gemini CLI that mean something of their own.
_GEMINI_EXITS: Mapping[int, tuple[ErrorClass, str]] = {
    41: (ErrorClass.AUTH, "not logged in"),
    42: (ErrorClass.ERROR, "bad input"),
    53: (ErrorClass.ERROR, "the limit of turns is reached"),
    55: (ErrorClass.ERROR, "the folder is not trusted"),
}


def _read_gemini(stdout: str, stderr: str, exit_code: int | None) -> Answer:
    # Its errors come as the same kind of object, but on stderr.
    found = [item for text in (stderr, stdout) for item in _objects(text) if {"response", "error"} & item.keys()]
    known, meaning = _GEMINI_EXITS.get(exit_code or 0, (None, ""))
    if not found:
        return Answer(error=NOTHING_SAID if exit_code == 0 else meaning or None, error_class=known)
    result = found[-1]
    read: list[int | None] = []
    written: list[int | None] = []
    for model in _mapping(_mapping(result.get("stats")).get("models")).values():
        counts = _mapping(_mapping(model).get("tokens"))
        read.append(_count(counts.get("prompt")))
        written += [_count(counts.get("candidates")), _count(counts.get("thoughts"))]
    usage = Usage(_sum(read), _sum(written), None, _text(result.get("session_id"), 200), _text(result.get("response")))
    trouble = result.get("error")
    if trouble:
        message = _text(_mapping(trouble).get("message")) or _text(trouble) or meaning or "error"
        return Answer(usage, message, known, _http_status(_mapping(trouble).get("code")))
    return Answer(usage, meaning or None, known)


def _read_text(stdout: str, stderr: str, exit_code: int | None) -> Answer:
    return Answer(Usage(text=stdout.strip()[-LONGEST_TEXT:]))


_READERS: Mapping[Format, Callable[[str, str, int | None], Answer]] = {
    Format.CLAUDE: _read_claude,
    Format.CODEX: _read_codex,
    Format.GEMINI: _read_gemini,
    Format.TEXT: _read_text,
}


def last_object_with(text: str, key: str) -> dict[str, Any] | None:
    """The last JSON object in a text that has this key: agents like to wrap what they were asked for in words."""
    found = [item for item in _objects(text, anywhere=True) if key in item]
    return found[-1] if found else None


def _objects(text: str, *, anywhere: bool = False) -> Iterator[dict[str, Any]]:
    """The JSON objects of an output, one behind the other; only those that begin a line, or all. What is no JSON is
    passed over."""
    decoder, at, begun = json.JSONDecoder(), 0, 0
    beginning = re.compile((r"\{" if anywhere else r"^[ \t]*\{") + r'(?=\s*["}])', re.MULTILINE)
    for _ in range(MOST_OBJECTS):
        match = beginning.search(text, at)
        if match is None:
            return
        start = match.end() - 1
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            at, begun = start + 1, begun + 1
            if begun > MOST_BEGUN:
                return
            continue
        if isinstance(value, dict):
            yield value


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any, most: int = LONGEST_TEXT) -> str | None:
    return value.encode("utf-8", "replace").decode()[-most:] if isinstance(value, str) and value else None


def _first_text(value: Any) -> str | None:
    return next((text for item in value if (text := _text(item))), None) if isinstance(value, list) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _amount(value: Any) -> float | None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value < 1e9 else None


def _http_status(value: Any) -> int | None:
    return value if isinstance(value, int) and 100 <= value <= 599 else None


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
