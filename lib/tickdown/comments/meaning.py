"""What people want when they comment on a task: plain commands, or what an agent makes of their words. No clock, no disk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from enum import StrEnum
from functools import cache
from typing import Any

from tickdown.agents.calls import last_object_with
from tickdown.base.model import Comment, Modification
from tickdown.base.records import record
from tickdown.base.terminal import one_line, printable
from tickdown.schedule.phrases import read_moment
from tickdown.time.durations import LONGEST

COMMANDS = "/skip, /pause, /pause until TIME, /resume, /run"
LONGEST_COMMENT = 4000
MOST_VARIABLES = 20
MOST_REFUSED_NAMED = 5
# What decides which program runs, which code it loads, how a shell reads, whom it talks to, or what Tickdown itself says to
# a run. Whole names; with `*`, all that begin or end so. Compared without case: `http_proxy` and `npm_config_…` mean the
# same in small letters.
_NOT_BY_COMMENT = """
    TICKDOWN_* TRACEPARENT TRACESTATE TELEGRAM_* CLAUDE* ANTHROPIC_* CODEX_* OPENAI_* GEMINI_*
    PATH CDPATH FPATH MANPATH NLSPATH LOCPATH CLASSPATH GOPATH LIBRARY_PATH PKG_CONFIG* LD_* DYLD_* GLIBC_* GCONV_* MALLOC_*
    HOME *_HOME USER LOGNAME TMPDIR XDG_* SHELL SHELLOPTS BASH* ENV IFS PS? PROMPT_COMMAND GLOBIGNORE ZDOTDIR POSIXLY_CORRECT
    INPUTRC TERMINFO* TERMCAP *EDITOR VISUAL *PAGER BROWSER LESS LESSOPEN LESSCLOSE *_ASKPASS
    PYTHON* PERL* RUBY* GEM_* BUNDLE_* NODE_OPTIONS NODE_PATH NODE_REPL_* NPM_CONFIG_* YARN_* DENO_* BUN_* PHPRC PHP_* LUA_*
    TCLLIBPATH R_PROFILE* R_ENVIRON* R_LIBS* JAVA_* JDK_* _JAVA_* MAVEN_* GRADLE_* DOTNET_* CORECLR_* PIP_* UV_* POETRY_*
    CONDA_* VIRTUAL_ENV CARGO_* RUSTC* RUSTFLAGS GOFLAGS GOROOT GOENV GOPROXY MAKEFLAGS MAKEFILES MFLAGS CC CXX LD AR
    GIT_* SSH_* SVN_* RSYNC_* SUDO_* DOCKER_* KUBECONFIG ANSIBLE_* AWS_CONFIG_FILE AWS_PROFILE AWS_ENDPOINT_* *_CREDENTIALS*
    OPENSSL_* SSL_* *_CA_BUNDLE *_CERTS *_PROXY CURL_* WGETRC NETRC HOSTALIASES RES_OPTIONS LOCALDOMAIN
"""


class Action(StrEnum):
    RUN = "run"
    SKIP = "skip"
    PAUSE = "pause"
    RESUME = "resume"
    MODIFY = "modify"
    ASK = "ask"


@record(frozen=True)
class Wish:
    action: Action
    reason: str = ""
    until: datetime | None = None  # of a pause; None: until somebody resumes it
    change: Modification | None = None
    question: str = ""
    refused: tuple[str, ...] = ()  # variables that were asked for, and are not set

    @property
    def starts(self) -> bool:
        return self.action in (Action.RUN, Action.RESUME, Action.MODIFY)


def plain_wish(comment: Comment, zone: tzinfo) -> Wish | None:
    """A command that needs no agent. ValueError if it is one but its time is none."""
    text = " ".join(comment.text.split())
    match = re.fullmatch(r"/(skip|pause|resume|run)(?: until (.+))?", text, re.IGNORECASE)
    if match is None:
        return None
    action, until = Action(match[1].lower()), match[2]
    if until is None:
        return Wish(action, text)
    if action is not Action.PAUSE:
        return None
    moment = read_moment(until, zone, comment.at)
    if not comment.at < moment <= comment.at + LONGEST:
        raise ValueError(f"{until!r} is not a time to come")
    return Wish(action, text, until=moment)


def understood(comments: Sequence[Comment], zone: tzinfo, now: datetime) -> list[tuple[Comment, Wish]]:
    """The plain commands among comments, oldest first. Other words, unread as they may stay, keep none of them waiting."""
    found = []
    for comment in comments:
        try:
            wish = plain_wish(comment, zone)
        except ValueError:
            wish = None
        if wish is not None:
            over = wish.until is not None and wish.until <= now
            found.append((comment, Wish(Action.RUN, "the pause is over already") if over else wish))
    return found


def outcomes(read: Sequence[Comment], wish: Wish, zone: tzinfo, now: datetime) -> dict[int, str]:
    """What came of comments that were read together, by their numbers. The last plain command counts: an earlier one got
    what it asked for only if that was to skip the run, and it did not run. Other words had one answer together."""
    found = dict.fromkeys((comment.id for comment in read), answer_of(wish))
    for comment, asked in understood(read[:-1], zone, now):
        same = asked.action is wish.action and wish.action is not Action.PAUSE
        if same or (asked.action is Action.SKIP and not wish.starts):
            found[comment.id] = answer_of(asked)
        else:
            found[comment.id] = f"{asked.action}: no effect, comment {read[-1].id} came after it"
    return found


def answer_of(wish: Wish) -> str:
    """What people are told came of their words."""
    words = f"{wish.action}: {wish.reason}" if wish.reason and not wish.reason.startswith("/") else wish.action.value
    if not wish.refused:
        return words
    names = [one_line(name, 40) or "''" for name in wish.refused[:MOST_REFUSED_NAMED]]
    more = f" and {len(wish.refused) - len(names)} more" if len(wish.refused) > len(names) else ""
    return f"{words}; refused, since no comment may set it: {', '.join(names)}{more}"


def looks_like_a_command(text: str) -> bool:
    return text.lstrip().startswith("/")


def wish_from(text: str, now: datetime, *, is_agent_task: bool) -> Wish | None:
    """From the answer of an agent; None if it is not one that can be acted on."""
    found = last_object_with(text, "action")
    if found is None:
        return None
    try:
        action = Action(str(found.get("action")))
    except ValueError:
        return None
    reason = one_line(str(found.get("reason") or ""), 300)
    match action:
        case Action.RUN | Action.SKIP:
            return Wish(action, reason)
        case Action.PAUSE:
            return _pause(found.get("until"), reason, now)
        case Action.MODIFY:
            asked = _modification(found, is_agent_task)
            return _modify(reason, asked) if asked is not None else None
        case Action.ASK:
            question = printable(str(found.get("question") or "")).strip()[:LONGEST_COMMENT]
            return Wish(action, reason, question=question) if question else None
    return None


def _pause(until: Any, reason: str, now: datetime) -> Wish | None:
    if until in (None, ""):
        return Wish(Action.PAUSE, reason)
    try:
        moment = datetime.fromisoformat(str(until))
    except ValueError:
        return None
    if moment.tzinfo is None or not now < moment <= now + LONGEST:
        return None
    return Wish(Action.PAUSE, reason, until=moment)


def _modification(found: Mapping[str, Any], is_agent_task: bool) -> Modification | None:
    """As it was asked for, with values that may be of any kind."""
    env, prompt = found.get("env") or {}, found.get("prompt") or ""
    if not isinstance(env, dict) or not isinstance(prompt, str) or len(env) > MOST_VARIABLES:
        return None
    if (prompt and not is_agent_task) or not (env or prompt):
        return None
    return Modification(env, _encodable(prompt[:LONGEST_COMMENT].replace("\0", "")))


def _modify(reason: str, asked: Modification) -> Wish:
    """The run goes on without what is refused, though nothing else may be left."""
    change, refused = permitted(asked)
    return Wish(Action.MODIFY, reason, change=change if change.env or change.prompt else None, refused=refused)


def permitted(change: Modification) -> tuple[Modification, tuple[str, ...]]:
    """What a comment may change of it, and the names of the variables that it may not set."""
    kept = {name: value for name, value in change.env.items() if may_be_set(name, value)}
    env = {name: _encodable(str(value)) for name, value in kept.items()}
    return Modification(env, change.prompt), tuple(name for name in change.env if name not in kept)


def may_be_set(name: str, value: object) -> bool:
    """Whether a comment may give a variable this value for one run: by an agent, which may misread it, or be misled."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name) or _not_by_comment().fullmatch(name.upper()):
        return False
    text = str(value) if isinstance(value, (str, int, float)) else "\0"
    return "\0" not in text and len(text) <= LONGEST_COMMENT


@cache
def _not_by_comment() -> re.Pattern[str]:
    """Made when it is first needed: most ticks read no comments."""
    return re.compile("|".join(name.replace("*", ".*").replace("?", ".") for name in _NOT_BY_COMMENT.split()))


def _encodable(text: str) -> str:
    """JSON can say half a surrogate pair, which no environment and no file takes."""
    return text.encode("utf-8", "replace").decode()
