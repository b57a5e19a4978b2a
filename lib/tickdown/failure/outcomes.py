"""How an attempt ended, and what kind of trouble that is: recognised from exit codes, HTTP status, what an agent says, and
then from the last lines of the output."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache

from tickdown.agents.calls import NOTHING_SAID, Answer
from tickdown.base.model import NO_USAGE, ErrorClass, RunStatus, Usage
from tickdown.base.records import record, replace
from tickdown.base.redact import Redactor
from tickdown.time.zones import UnknownZone, get_zone

LINES_LOOKED_AT = 12  # what node prints after the line that says it
LONGEST_RESET = timedelta(days=8)  # weekly limits exist


@record(frozen=True)
class Outcome:
    """How one attempt ended."""

    status: RunStatus
    exit_code: int | None = None
    signal: int | None = None
    error_class: ErrorClass | None = None
    error: str | None = None
    reset_at: datetime | None = None  # when the other side says that it will be well again
    usage: Usage = NO_USAGE


# What tools print when the trouble is not in the task, and at the end what says that it is: one row a kind of message. The
# last line that shows one counts, since what came before it was survived; in that line the first row here.
SIGNS: tuple[tuple[ErrorClass, str, str], ...] = (
    (ErrorClass.AUTH, "ssh", r"Permission denied \((?:publickey|password|keyboard-interactive|gssapi)"),
    (ErrorClass.AUTH, "ssh", r"Too many authentication failures"),
    (ErrorClass.AUTH, "ssh, a host key that only a person can accept", r"Host key verification failed"),
    (ErrorClass.AUTH, "git", r"Authentication failed for|could not read (?:Username|Password) for"),
    (ErrorClass.AUTH, "git", r"HTTP Basic: Access denied"),
    (ErrorClass.AUTH, "curl, git", r"returned error: (?:401|403|407)\b"),
    (ErrorClass.AUTH, "wget", r"ERROR (?:401|403|407): |Username/Password Authentication Failed"),
    (ErrorClass.AUTH, "pip, urllib", r"HTTP [Ee]rror (?:401|403|407)\b"),
    (ErrorClass.AUTH, "requests", r"\b(?:401|403|407) Client Error"),
    (
        ErrorClass.AUTH,
        "codex, npm, docker",
        r"\b401 Unauthorized|\b403 Forbidden|\b407 Proxy Auth|unauthorized: authentication required",
    ),
    (ErrorClass.AUTH, "npm", r"npm (?:error|ERR!) (?:code E(?:401|403|407)\b|Incorrect or missing password)"),
    (ErrorClass.AUTH, "psql, mysql", r"password authentication failed|Access denied for user"),
    (ErrorClass.AUTH, "aws", r"Unable to locate credentials|ExpiredToken|InvalidClientTokenId"),
    (ErrorClass.AUTH, "claude", r"Please run /login|Invalid API key|OAuth token|authentication_error"),
    (
        ErrorClass.AUTH,
        "agents and their like",
        r"(?i:\bnot logged in\b|\bauthentication required\b|\blog ?in required\b)",
    ),
    (ErrorClass.AUTH, "gemini", r"Please set an Auth method|API key not valid"),
    (ErrorClass.AUTH, "codex", r"Incorrect API key|invalid_api_key"),
    (ErrorClass.TRANSIENT, "gemini", r"RESOURCE_EXHAUSTED"),  # it calls that a quota too
    (
        ErrorClass.BUDGET,
        "claude, codex",
        r"[Cc]redit balance is too low|insufficient_quota|exceeded your current quota",
    ),
    (ErrorClass.TRANSIENT, "claude", r"(?:[Uu]sage|[Ww]eekly|[Ss]ession|Opus|Sonnet|-hour) limit reached"),
    (ErrorClass.TRANSIENT, "claude, codex", r"hit your (?:\w+ ){0,2}limit|rate_limit_error"),
    (ErrorClass.TRANSIENT, "claude", r"overloaded_error|API Error: (?:429|5[0-9][0-9])\b"),
    (ErrorClass.TRANSIENT, "claude", r"Unable to connect to API|API Error: Connection"),
    (ErrorClass.TRANSIENT, "gemini", r"Quota exceeded|fetch failed"),
    (ErrorClass.TRANSIENT, "codex", r"stream disconnected|last status: (?:429|50[234])"),
    (ErrorClass.TRANSIENT, "APIs", r"[Tt]oo [Mm]any [Rr]equests|[Rr]ate limit (?:exceeded|reached)"),
    (ErrorClass.TRANSIENT, "web servers", r"Service (?:Temporarily )?Unavailable|Bad Gateway|Gateway Time-?out"),
    (
        ErrorClass.TRANSIENT,
        "curl, git",
        r"returned error: (?:408|429|50[234]|529)\b|RPC failed; (?:HTTP (?:429|50[234])|curl [0-9]+)\b",
    ),
    (ErrorClass.TRANSIENT, "curl", r"curl: \((?:5|6|7|16|18|28|52|55|56|92)\)|transfer closed with"),
    (ErrorClass.TRANSIENT, "wget", r"ERROR (?:408|429|50[234]): |unable to resolve host address"),
    (ErrorClass.TRANSIENT, "wget", r"No data received\.|Connection closed at byte"),
    (ErrorClass.TRANSIENT, "pip, urllib", r"HTTP [Ee]rror (?:408|429|50[234])\b"),
    (ErrorClass.TRANSIENT, "requests", r"\b(?:408|429) Client Error|\b50[234] Server Error"),
    (ErrorClass.TRANSIENT, "Python", r"Remote end closed connection|IncompleteRead\("),
    (ErrorClass.TRANSIENT, "requests, pip", r"Max retries exceeded|NewConnectionError|ConnectTimeout|Read timed out"),
    (ErrorClass.TRANSIENT, "curl, git", r"Could not resolve (?:host|proxy)|Failed to connect to|Couldn't connect to"),
    (ErrorClass.TRANSIENT, "ssh, apt", r"Could not resolve hostname|Temporary failure resolving"),
    (ErrorClass.TRANSIENT, "resolvers", r"Temporary failure in name resolution|Name or service not known"),
    (ErrorClass.TRANSIENT, "resolvers", r"Name does not resolve|failed to lookup address"),
    (ErrorClass.TRANSIENT, "the kernel", r"Connection (?:refused|reset|timed out)|Network is (?:unreachable|down)"),
    (ErrorClass.TRANSIENT, "the kernel", r"No route to host|Host is down"),
    (
        ErrorClass.TRANSIENT,
        "node",
        r"\b(?:ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|EAI_AGAIN|ENOTFOUND|UND_ERR_SOCKET)\b",
    ),
    (
        ErrorClass.TRANSIENT,
        "ssh, git",
        r"closed by remote host|send disconnect: |the remote end hung up|Empty reply from server",
    ),
    (ErrorClass.TRANSIENT, "git", r"unexpected disconnect while reading|fatal: early EOF"),
    (ErrorClass.TRANSIENT, "docker, go", r"TLS handshake timeout|i/o timeout"),
    (ErrorClass.ERROR, "Python, node, Java", r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)(?:$|: )"),
    (ErrorClass.ERROR, "bash", r"^\S+: line [0-9]+: "),
)


@cache
def _signs() -> tuple[tuple[ErrorClass, re.Pattern[str]], ...]:
    """Compiled when a task has failed, not by every tick."""
    return tuple((kind, re.compile(pattern)) for kind, _, pattern in SIGNS)


_HTTP_CLASSES = {
    ErrorClass.AUTH: (401, 403, 407),
    ErrorClass.BUDGET: (402,),
    ErrorClass.TRANSIENT: (408, 425, 429, 502, 503, 504, 529),
}


def classify(
    exit_code: int | None,
    signal: int | None,
    error: str | None = None,
    output: str = "",
    *,
    is_request: bool = False,
    answer: Answer | None = None,
    now: datetime | None = None,
    zone: tzinfo = UTC,
) -> Outcome:
    """The outcome of a process that ended by itself. `output` is the end of what it printed."""
    usage = answer.usage if answer is not None else NO_USAGE
    if exit_code == 0 and (answer is None or answer.error is None):
        return Outcome(RunStatus.SUCCESS, 0, usage=usage)
    if signal is not None:
        return Outcome(
            RunStatus.FAILED, None, signal, ErrorClass.ERROR, error or f"ended by signal {signal}", usage=usage
        )
    said = answer.error if answer is not None else None
    kind = _class_of(exit_code, is_request, answer, f"{output}\n{said or ''}")
    if said is not None:
        text = said if exit_code == 0 else f"exit code {exit_code}: {said}"
    elif exit_code in (126, 127):
        text = f"exit code {exit_code} ({'not executable' if exit_code == 126 else 'command not found'})"
    else:
        text = f"exit code {exit_code}"
    reset = None
    if kind is ErrorClass.TRANSIENT and now is not None:
        reset = stated_reset(f"{output}\n{said or ''}", now, zone)
    return Outcome(RunStatus.FAILED, exit_code, None, kind, error or text, reset, usage)


def _class_of(exit_code: int | None, is_request: bool, answer: Answer | None, output: str) -> ErrorClass:
    if exit_code in (126, 127) and (answer is None or answer.error is None):
        return ErrorClass.MISSING_TOOL
    status = _request_status(output) if is_request else None
    if answer is not None:
        if answer.error_class is not None:
            return answer.error_class
        if "redit balance is too low" in (answer.error or ""):
            return ErrorClass.BUDGET  # whatever status the server says that with
        status = answer.http_status
    if status is not None:
        found = next((kind for kind, statuses in _HTTP_CLASSES.items() if status in statuses), None)
        if found is not None or is_request:
            return found or ErrorClass.ERROR
    if answer is not None and answer.error not in (None, NOTHING_SAID):
        return class_of_output(answer.error or "")  # not what was printed by the commands that it ran
    return class_of_output(output)


def _request_status(output: str) -> int | None:
    """Of `run_as: http`, whose last line is the verdict."""
    lines = output.rstrip().splitlines()
    match = re.match(r"HTTP ([1-5][0-9]{2})\b", lines[-1]) if lines else None
    return int(match[1]) if match else None


def class_of_output(output: str) -> ErrorClass:
    # A traceback is about what broke last; what was printed before it was survived.
    last_words = output[-20_000:].rpartition("Traceback (most recent call last):")[2]
    lines = [line[-2000:] for line in last_words.splitlines() if line.strip()][-LINES_LOOKED_AT:]
    for line in reversed(lines):
        for kind, pattern in _signs():
            if pattern.search(line):
                return kind
    return ErrorClass.ERROR


# --- when it will be well again --------------------------------------------------------------------------------

_EPOCH = r"limit reached\|([0-9]{10})\b"
_RETRY_AFTER = r"(?im)^retry-after:\s*([0-9]{1,6})\s*$"
_RETRY_DATE = r"(?im)^retry-after:\s*(\w{3}, [\w: ]{20} GMT)\s*$"
_PART = r"([0-9]{1,5}(?:\.[0-9]{1,9})?)\s*(ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])"
_IN = rf"(?i)(?:try again|retry|resets?) in (?:about )?((?:{_PART},?\s*(?:and )?)+)"
_AT = (
    r"(?i)(?:resets?|try again)(?: at)? ([0-9]{1,2})(?::([0-9]{2}))? ?(am|pm)?"
    r"(?: ?\(([A-Za-z]+(?:/[A-Za-z0-9_+-]+)*)\))?"
)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def stated_reset(text: str, now: datetime, zone: tzinfo) -> datetime | None:
    """The moment that the other side names, if it lies ahead and not absurdly far."""
    try:
        found = _stated(text, now, zone)
    except OverflowError:  # so far that no calendar has it
        return None
    return found if found is not None and now < found <= now + LONGEST_RESET else None


def _stated(text: str, now: datetime, zone: tzinfo) -> datetime | None:
    if match := re.search(_EPOCH, text):
        return datetime.fromtimestamp(int(match[1]), UTC)
    if match := re.search(_RETRY_AFTER, text):
        return now + timedelta(seconds=int(match[1]))
    if match := re.search(_RETRY_DATE, text):
        from email.utils import parsedate_to_datetime

        try:
            return parsedate_to_datetime(match[1]).astimezone(UTC)
        except ValueError:
            return None
    if match := re.search(_IN, text):
        parts = ((unit.lower(), float(number)) for number, unit in re.findall(_PART, match[1], re.IGNORECASE))
        return now + sum((timedelta(**{_UNITS.get(u, _UNITS[u[0]]): n}) for u, n in parts), timedelta())
    if (match := re.search(_AT, text)) and (match[2] or match[3]):
        return _clock(match, now, zone)
    return None


def _clock(match: re.Match[str], now: datetime, zone: tzinfo) -> datetime | None:
    """`resets 3pm (Europe/Berlin)`: the next time that the clock there shows this."""
    hour, minute, half = int(match[1]), int(match[2] or 0), (match[3] or "").lower()
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    if hour > 23 or minute > 59:
        return None
    try:
        there = get_zone(match[4]) if match[4] else zone
    except UnknownZone:
        there = zone
    local = now.astimezone(there)
    at = local.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return (at if at > local else at + timedelta(days=1)).astimezone(UTC)


def cleaned(outcome: Outcome, redactor: Redactor) -> Outcome:
    """Without the secrets that its texts may hold."""
    text, usage = redactor.text, outcome.usage
    if not usage.text and not outcome.error:
        return outcome
    if usage.text:
        usage = replace(usage, text=text(usage.text))
    return replace(outcome, error=text(outcome.error) if outcome.error else None, usage=usage)
