"""What people want when they comment on a task: plain commands, or what an agent makes of their words. No clock, no disk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from enum import StrEnum
from typing import Any

from lib.agents import last_object_with
from lib.model import Comment, Modification
from lib.phrases import read_moment
from lib.records import record
from lib.terminal import one_line, printable
from lib.times import LONGEST

COMMANDS = "/skip, /pause, /pause until TIME, /resume, /run"
LONGEST_COMMENT = 4000
MOST_VARIABLES = 20
# What would make one run another program altogether is not for a comment.
_NOT_BY_COMMENT = (
    r"TICKDOWN_.*|LD_.*|PATH|HOME|SHELL|IFS|ENV|BASH_ENV|PYTHON.*|NODE_OPTIONS|CLAUDE_CONFIG_DIR|TRACEPARENT"
)


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
    found = dict.fromkeys((comment.id for comment in read), _answer(wish))
    for comment, asked in understood(read[:-1], zone, now):
        same = asked.action is wish.action and wish.action is not Action.PAUSE
        if same or (asked.action is Action.SKIP and not wish.starts):
            found[comment.id] = _answer(asked)
        else:
            found[comment.id] = f"{asked.action}: no effect, comment {read[-1].id} came after it"
    return found


def _answer(wish: Wish) -> str:
    return f"{wish.action}: {wish.reason}" if wish.reason and not wish.reason.startswith("/") else wish.action.value


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
            change = _modification(found, is_agent_task)
            return Wish(action, reason, change=change) if change is not None else None
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
    env, prompt = found.get("env") or {}, found.get("prompt") or ""
    if not isinstance(env, dict) or not isinstance(prompt, str) or len(env) > MOST_VARIABLES:
        return None
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name) or re.fullmatch(_NOT_BY_COMMENT, name.upper()):
            return None
        if not isinstance(value, (str, int, float)) or "\0" in str(value) or len(str(value)) > LONGEST_COMMENT:
            return None
    if prompt and not is_agent_task:
        return None
    if not env and not prompt:
        return None
    variables = {name: _encodable(str(value)) for name, value in env.items()}
    return Modification(variables, _encodable(prompt[:LONGEST_COMMENT].replace("\0", "")))


def _encodable(text: str) -> str:
    """JSON can say half a surrogate pair, which no environment and no file takes."""
    return text.encode("utf-8", "replace").decode()
