"""When two failures are the same trouble: what varies from run to run in an error does not count, what names the trouble does.

What counts: hosts, service ports, files, modules, tables, HTTP statuses, exit and error codes, names with a small number (`db2`).
What does not: times, durations, sizes and other plain numbers, UUIDs, hashes, random words, memory addresses, ids of requests
and processes, the random names of temporary files, and ports from 32768 on, where the kernel takes those of the calling side.
In doubt they are the same: one alert too few is followed by a reminder, one too many comes with every failure.
"""

from __future__ import annotations

import re
from functools import cache

from tickdown.failure.outcomes import Outcome

LONGEST = 2000  # characters of an error that are looked at
WHOLE = 300  # a line may have been cut there, within a word that varies
FIRST_EPHEMERAL_PORT = 32768

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? )?"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[A-Z]{2,3}T|[+-][0-9]{2}:?[0-9]{2})(?![A-Za-z0-9]))?"
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?: ?[AaPp][Mm](?![A-Za-z]))?" + _ZONE
_IP = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9.]*[0-9])"
_IPV6 = r"\[?(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}\]?"
_UNIT = r"(?:ms|µs|us|ns|s|secs?|m|mins?|h|hrs?|d|%|[kKMGTP]i?[Bb]?|[Bb]|(?:millisecond|second|minute|hour|day|byte)s?)"
_REASON = (
    r"(?:OK|Moved|Found|See Other|Bad |Unauthori|Payment|Forbidden|Not |Method|Proxy|Request|Conflict|Gone|Too |Unprocess"
    r"|Client Error|Server Error|Internal|Service|Gateway)"
)
# Pod names end in these letters: no vowels, so that no word comes of it.
_SAFE = r"[bcdfghjklmnpqrstvwxz2456789]"

# In what surrounds a name in a line of text it does not go on.
_NAME = r"[^/\s\"'`:;,)\]}]{1,200}"
_SOURCE = (
    r"(?:[A-Za-z0-9_.-]{1,100}\.(?:c|h|cc|cpp|hpp|go|py|m?js|cjs|tsx?|jsx|java|kt|rb|rs|php|pl|pm|sh|bash|sql|ya?ml|json|xml|toml"
    r"|tf|ini|conf|cfg|md|txt|html|css|scala|cs|swift|lua|mk|log|csv|service)|[A-Z][a-z]{1,20}file)"
)
_LABEL = r"[A-Za-z0-9][A-Za-z0-9-]{0,62}"

# At each place of the text the first row that fits says what is left of it: all of it, nothing, or what `_what_is_left` makes of
# it. The row for words comes last and takes a whole one, so that no other begins in the middle of it.
_ROWS: tuple[tuple[str, str], ...] = (
    # The ids of one request, one run, one process: whatever form they have.
    (
        "named_id",
        r"(?i:(?:request|trace|span|correlation|session|run|execution|invocation|transaction|operation|message|event|host"
        r"|container|thread|process|ray|build|job)[-_ ]?id)[\"']?(?: ?[:=] ?| )[\"']?[^\s\"',;)\]}]{1,200}",
    ),
    ("last_number", r"(?i:pid|tid|ppid|thread|worker)[-_ ]?[:=#]? ?[0-9]+(?![A-Za-z0-9])"),
    # Codes: the number is the trouble, unless it counts something (`error: 5 files failed`).
    ("nothing", r"[IWEF][0-9]{4} (?=[0-9]{2}:)"),  # no code, but how Kubernetes begins a line: month and day
    (
        "kept",
        r"(?i:(?:(?:exit|status|error|return|result|response|http)[_-]?)?(?:code|status)|HTTP(?:/[0-9.]{1,3})?|error|errno|exit"
        r"|exited with|signal|sqlstate|rc|returned|response)[ =:(\[\"']{0,3}-?[0-9]{1,5}"
        r"(?![A-Za-z0-9%]|[.:][0-9]| of | [a-z]{3,20}s\b)",
    ),
    ("kept", r"(?i:error|code|status|result)[ =:(]{0,3}0x[0-9A-Fa-f]{1,16}(?![A-Za-z0-9])"),
    ("kept", r"curl: \([0-9]{1,3}\)"),
    ("kept", rf"[1-5][0-9]{{2}}(?=:? {_REASON})"),
    ("kept", r"(?!P?ID|TID|RUN|JOB)[A-Z]{1,6}-?[0-9]{2,5}[A-Z]?(?![A-Za-z0-9_]|[.:-][A-Za-z0-9])"),  # ORA-00942, TS2304
    # Moments.
    ("nothing", r"[0-9]{8}[T_-]?[0-9]{6}Z?(?:-[0-9a-f]{8})?(?![A-Za-z0-9])"),
    ("nothing", rf"[0-9]{{4}}[-/.][0-9]{{2}}[-/.][0-9]{{2}}(?:[T _:]{_CLOCK}|T[0-9_]{{8,20}}Z?|(?![0-9]))"),
    ("nothing", rf"{_DAY}[0-9]{{1,2}}[ /-]{_MONTH}[ /-][0-9]{{2,4}}(?:[: ]{_CLOCK})?"),
    ("nothing", rf"{_DAY}{_MONTH} [0-9]{{1,2}}(?![0-9])(?:,? [0-9]{{4}}(?![0-9:]))?(?:,? {_CLOCK}(?: [0-9]{{4}})?)?"),
    # Addresses. The one behind a name is one of several that the name may have.
    ("nothing", rf"(?<=[\w\"'] )\({_IP}\)|\|{_IP}\|"),
    ("caller", rf"(?:{_IP}|{_IPV6}):[0-9]{{1,5}}(?=->)"),
    ("address", rf"{_IP}(?::[0-9]{{1,5}})?(?![A-Za-z0-9])"),
    ("nothing", rf"{_CLOCK}(?![A-Za-z0-9:])"),
    ("ipv6", rf"{_IPV6}(?::[0-9]{{1,5}})?(?![A-Za-z0-9:])"),
    ("line", rf"{_SOURCE}(?::[0-9]+){{1,2}}(?![A-Za-z0-9])"),
    ("address", rf"(?:localhost|{_LABEL}(?:\.{_LABEL}){{1,8}}):[0-9]{{1,5}}(?![A-Za-z0-9])"),
    (
        "address",
        r"(?:(?:tcp|udp|dial|to|host|server|connect|connecting|E[A-Z]{5,16}) |://|@)[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
        r":[0-9]{1,5}(?![A-Za-z0-9])",
    ),
    ("address", r"(?i:port)[ =:]{1,2}[0-9]{1,5}(?![A-Za-z0-9])"),
    # Names that a program made up.
    ("nothing", r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}(?![A-Za-z0-9])"),
    ("nothing", r"0[xX][0-9A-Fa-f]+"),
    ("temporary", rf"(?<![A-Za-z0-9_.-])(?:(?:/private)?(?:/var)?/tmp|/dev/shm)/{_NAME}"),
    ("nothing", rf"/var/folders/{_NAME}/{_NAME}/T/{_NAME}"),
    ("suffix", r"\.[A-Za-z0-9]{6}(?=[\"'](?: |$))|(?<=tmp)[.-][A-Za-z0-9]{6,12}(?![A-Za-z0-9])"),
    ("suffix", r"tmp_(?:pack|obj|idx)_[A-Za-z0-9]{6}(?![A-Za-z0-9])"),
    ("nothing", rf"-(?:{_SAFE}{{8,10}}|[0-9]{{8}})-{_SAFE}{{5}}(?![A-Za-z0-9])"),
    ("base64", r"(?=[A-Za-z0-9/]{0,400}[+=])[A-Za-z0-9+/]{24,400}={0,2}(?![A-Za-z0-9])"),
    # Quantities, versions, and numbers that belong to a name (web-01).
    ("nothing", rf"(?:[0-9]{{1,20}}(?:\.[0-9]{{1,20}})? ?{_UNIT}){{1,4}}(?![A-Za-z0-9])"),
    (
        "kept",
        r"(?:(?<===)|(?<=@))v?[0-9]{1,5}(?:\.[0-9]{1,5}){1,4}(?![0-9])|v?[0-9]{1,4}(?:\.[0-9]{1,5}){2,4}(?![0-9.]*[0-9])",
    ),
    ("kept", r"(?<=[A-Za-z][-.])[0-9]{1,4}(?![A-Za-z0-9])"),
    ("nothing", r"[0-9]+(?:[.,][0-9]+)*(?![A-Za-z0-9_])"),
    ("word", r"[A-Za-z0-9_]+"),
)


def error_signature(outcome: Outcome) -> str:
    """Equal for the same trouble on different days."""
    return _digest(outcome, what_counts(outcome.error or ""))


def earlier_signature(outcome: Outcome) -> str:
    """As versions before this made it: what has been open since then is not told anew after an upgrade."""
    return _digest(outcome, re.sub(r"0x[0-9a-fA-F]+|[0-9]+", "#", outcome.error or ""))


def _digest(outcome: Outcome, text: str) -> str:
    import hashlib

    code = outcome.exit_code if outcome.exit_code is not None else f"signal {outcome.signal}"
    words = f"{outcome.status}|{outcome.error_class}|{code}|{text}"
    return hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:16]


def what_counts(error: str) -> str:
    """The error without what varies. Bounded: every row looks at most some hundred characters ahead."""
    text = _pattern().sub(_what_is_left, " ".join(error[:LONGEST].split()))
    return text if len(error) <= WHOLE else text.rpartition(" ")[0] or text


@cache
def _pattern() -> re.Pattern[str]:
    """Compiled when a task has failed, not by every tick."""
    return re.compile("|".join(f"(?P<{name}_{at}>{row})" for at, (name, row) in enumerate(_ROWS)))


def _what_is_left(match: re.Match[str]) -> str:
    text, row = match[0], match.lastgroup or ""
    match row.rpartition("_")[0]:
        case "kept":
            return text
        case "named_id":
            return re.split("[:= ]", text, maxsplit=1)[0] + "=#"
        case "last_number":
            return re.sub("[0-9]+$", "#", text)
        case "line":
            name, _, _ = text.partition(":")
            return f"{_pattern().sub(_what_is_left, name)}:#"
        case "caller":
            return text.rpartition(":")[0]
        case "address":
            return _without_ephemeral_port(text)
        case "ipv6":
            return _without_ephemeral_port(text) if "::" in text or text.count(":") >= 7 else "#"
        case "temporary":
            folder, _, name = text.rpartition("/")
            return text if _is_chosen(name) else f"{folder}/#"
        case "suffix":
            return "#" if re.search("[A-Z0-9]", re.split("[._-]", text)[-1]) else text
        case "base64":
            return "#" if _is_random(text) else text
        case "word":
            return "_".join(_without_ids(piece) for piece in text.split("_"))
    return "#"


def _without_ephemeral_port(address: str) -> str:
    port = re.search("(?<=[ :=])[0-9]+$", address)
    return f"{address[: port.start()]}#" if port and int(port[0]) >= FIRST_EPHEMERAL_PORT else address


def _is_chosen(name: str) -> bool:
    """Of a temporary file: whether somebody gave it that name (`backup.lock`), and not a program at random."""
    return re.fullmatch(r"(?!te?mp)[a-z]+(?:[-_.][a-z]+)*", name) is not None


def _without_ids(word: str) -> str:
    return "#" if _is_random(word) else re.sub("[0-9]{6,}", "#", word)


def _is_random(word: str) -> bool:
    """A hash, a key, an id: hexadecimal, or letters and digits mixed as in no name."""
    digits = len(re.findall("[0-9]+", word))
    if re.fullmatch("[0-9A-Fa-f]{7,}", word) and (len(word) >= 16 or (digits and not word.isdigit())):
        return True
    changes = len(re.findall("[a-z]+|[A-Z]+|[0-9]+|[^a-zA-Z0-9]+", word))
    mixed = changes >= 0.4 * len(word)
    return len(word) >= 16 and (digits >= 3 or (mixed and (digits > 0 or len(word) >= 40)))
