"""Comments on a task, acted on before it runs: plain commands at once, other words with the help of an agent, which is a
rung of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from tickdown.agents.calls import Agent, Purpose
from tickdown.agents.prompts import CHECK_COMMENTS, mark, prompt
from tickdown.alerts import messages
from tickdown.attempt.command import CannotRun, Command, agent_command, find_agent
from tickdown.base.model import (
    ActionName,
    ActionTaken,
    AskedBy,
    Asker,
    Comment,
    DisabledReason,
    Lease,
    Rung,
    RunStatus,
    Source,
)
from tickdown.base.records import replace
from tickdown.base.redact import Redactor
from tickdown.base.terminal import printable
from tickdown.comments.meaning import Action, Wish, answer_of, outcomes, understood, wish_from
from tickdown.context.budget import left_today
from tickdown.context.context import Context
from tickdown.context.task_file import disable_in_file
from tickdown.failure.outcomes import Outcome, cleaned
from tickdown.governor.governor import is_spent
from tickdown.store import actions, comments, costs, outbox, runs, tasks
from tickdown.store.database import Connection
from tickdown.tasks.task import Task

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


def author_of(comment: Comment) -> Asker:
    """Who asks for what a comment says: only those of people are acted on."""
    return Asker(AskedBy.PERSON, comment.author)


def act_on(
    connection: Connection,
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
        taken = ActionTaken(now, ActionName.PAUSE, author_of(read[-1]), task.id, run_id, f"comment {read[-1].id}")
        actions.add(connection, taken)
    elif wish.action is Action.ASK:
        comments.add_comment(connection, task.id, "agent", wish.question, now, by_a_person=False)
        outbox.add_alert(connection, messages.question_alert(task, wish.question, run_id), now)
    return True


def skip_run(
    context: Context, task: Task, ending: runs.Ending, read: Sequence[Comment], wish: Wish, now: datetime
) -> None:
    """The run becomes a skipped one, in the transaction that also marks the comments as read."""
    with context.db.transaction() as connection:
        facts = tasks.facts(context.db, task.id)
        runs.finish_run(connection, ending, now)
        runs.forget_unstarted(connection, ending.lease)
        act_on(connection, task, read, wish, now, ending.run_id)
        if facts is not None and is_spent(task, facts):
            _skip_the_only_one(connection, task, ending.lease, wish)
    disable_in_file(context, task, now)
    context.log.info("run_skipped", task_id=task.id, run_id=ending.run_id, wish=wish.action)


def _skip_the_only_one(connection: Connection, task: Task, lease: Lease, wish: Wish) -> None:
    """A one-shot has no other occurrence: skipped, it is over; put off, it stays due."""
    if wish.action is Action.SKIP:
        tasks.close(connection, task.id, DisabledReason.COMPLETED)
        return
    runs.give_back(connection, lease, task.id)
    if wish.action is Action.ASK:  # until somebody has answered
        tasks.close(connection, task.id, DisabledReason.PAUSED)


class CommentReading:
    """The rung on which an agent says what the words come to."""

    def __init__(self, context: Context, task: Task, lease: Lease, redactor: Redactor) -> None:
        self.context, self.task, self.lease, self.redactor = context, task, lease, redactor
        self.words: Sequence[Comment] = ()

    def command(self, variables: Mapping[str, str], now: datetime) -> Command:
        context, task = self.context, self.task
        self.words = words_of(context, task, now)
        agent = reader_of(context, task)
        if agent is None:
            raise CannotRun("the agent that reads comments is not there any more", 127)
        lines = [f"[{word.at.astimezone(task.zone):%Y-%m-%d %H:%M}, {word.author}] {word.text}" for word in self.words]
        values = {
            "task_id": task.id,
            "title": task.title,
            "run_as": task.run_as,
            "command": task.what,
            "now": now.astimezone(task.zone).isoformat(timespec="seconds"),
            "comments": "\n".join(lines),
            "mark": mark(),
        }
        clean = {name: printable(self.redactor.text(text)) for name, text in values.items()}
        text = prompt(context.workspace, CHECK_COMMENTS, clean)
        root, budget = context.workspace.root, left_today(context, now)
        return agent_command(agent, Purpose.READ, text, context.place, variables, root, budget)

    def wish_in(self, outcome: Outcome, now: datetime) -> Wish | None:
        """What the agent made of them. A failed one changes nothing: the task runs, and they stay unread."""
        if outcome.status is not RunStatus.SUCCESS:
            return None
        wish = wish_from(outcome.usage.text or "", now, is_agent_task=self.task.agent is not None)
        if wish is None:
            return None
        clean = self.redactor.text
        refused = tuple(clean(name) for name in wish.refused)
        return replace(wish, reason=clean(wish.reason), question=clean(wish.question), refused=refused)

    def go_ahead(
        self, attempt: int, outcome: Outcome, span: tuple[int, int] | None, wish: Wish | None, now: datetime
    ) -> bool:
        """The attempt of the agent is over and that of the task begins, in the transaction in which the wish takes effect.
        False if somebody wants the run to end."""
        note = answer_of(wish) if wish is not None else "no answer that can be acted on"
        with self.context.db.transaction() as connection:
            runs.end_attempt(connection, self.lease, attempt, cleaned(outcome, self.redactor), span, now, note)
            started = runs.insert_attempt(connection, self.lease, attempt + 1, Rung.RUN, now)
            if started and wish is not None:
                act_on(connection, self.task, self.words, wish, now)
                if wish.change is not None:
                    runs.modify(connection, self.lease, wish.change)
        if wish is not None and wish.refused:
            names = list(map(printable, wish.refused))
            self.context.log.warning("variables_refused", task_id=self.task.id, run_id=self.lease.run_id, names=names)
        return started
