"""Comments on a task, acted on before it runs: plain commands at once, other words with the help of an agent."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from lib import messages
from lib.agents import Agent, Purpose
from lib.comments import Action, Wish, outcomes, understood, wish_from
from lib.context import Context
from lib.model import Comment, DisabledReason, Source
from lib.prompts import CHECK_COMMENTS, mark, prompt
from lib.redact import Redactor
from lib.runners import CannotRun, Command, agent_command, find_agent
from lib.spending import left_today
from lib.store import comments, costs, outbox, tasks
from lib.task import Task
from lib.terminal import printable

ANSWER_WITHIN = timedelta(minutes=2)


def words_of(context: Context, task: Task, now: datetime) -> list[Comment]:
    """What is unread and no plain command."""
    unread = comments.unread_of(context.db, task.id)
    plain = {comment.id for comment, _ in understood(unread, task.zone, now)}
    return [comment for comment in unread if comment.id not in plain]


def reader_of(context: Context, task: Task) -> Agent | None:
    """Who reads what is not a plain command: the task's own agent, else the healer; None if there is none to be had."""
    config = context.settings.config
    agent = config.agents[task.agent] if task.agent else context.healer
    return agent if agent is not None and find_agent(agent, context.place) is not None else None


def need_an_agent(context: Context, task: Task, source: Source, now: datetime) -> bool:
    """Whether there are words that only an agent can make sense of, and one to do it."""
    if source is Source.MANUAL or not words_of(context, task, now):
        return False  # whoever runs it by hand knows what they want
    limit = context.settings.config.budget_usd_per_day
    if limit is not None and costs.spent(context.db, context.midnight(now)) >= limit:
        return False
    return reader_of(context, task) is not None


def plain_wish_for(context: Context, task: Task, now: datetime) -> tuple[list[Comment], Wish | None]:
    """The plain commands that wait, and what they come to: the last of them counts."""
    found = understood(comments.unread_of(context.db, task.id), task.zone, now)
    return [comment for comment, _ in found], found[-1][1] if found else None


def question(
    context: Context,
    task: Task,
    unread: Sequence[Comment],
    variables: Mapping[str, str],
    redactor: Redactor,
    now: datetime,
) -> Command:
    agent = reader_of(context, task)
    if agent is None:
        raise CannotRun("the agent that reads comments is not there any more", 127)
    lines = [
        f"[{comment.at.astimezone(task.zone):%Y-%m-%d %H:%M}, {comment.author}] {comment.text}" for comment in unread
    ]
    values = {
        "task_id": task.id,
        "title": task.title,
        "run_as": task.run_as,
        "command": task.what,
        "now": now.astimezone(task.zone).isoformat(timespec="seconds"),
        "comments": "\n".join(lines),
        "mark": mark(),
    }
    clean = {name: printable(redactor.text(text)) for name, text in values.items()}
    text = prompt(context.workspace, CHECK_COMMENTS, clean)
    root, budget = context.workspace.root, left_today(context, now)
    return agent_command(agent, Purpose.READ, text, context.place, variables, root, budget)


def wish_of(task: Task, text: str, now: datetime) -> Wish | None:
    return wish_from(text, now, is_agent_task=task.agent is not None)


def act_on(
    connection: sqlite3.Connection,
    task: Task,
    read: Sequence[Comment],
    wish: Wish,
    now: datetime,
    run_id: str | None = None,
) -> bool:
    """What was wished takes effect and the comments are read, in the caller's transaction. False if somebody else was
    faster with them."""
    if not comments.mark_read(connection, outcomes(read, wish, task.zone, now), now):
        return False
    if wish.action is Action.PAUSE:
        if wish.until is not None:
            tasks.set_pause(connection, task.id, wish.until)
        else:
            tasks.close(connection, task.id, DisabledReason.PAUSED)
    elif wish.action is Action.ASK:
        comments.add_comment(connection, task.id, "agent", wish.question, now, by_a_person=False)
        outbox.add_alert(connection, messages.question_alert(task, wish.question, run_id), now)
    return True
