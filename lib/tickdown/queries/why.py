"""What was decided about a task, from which candidates, and what happens next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from tickdown.base.model import ActionTaken, ChainOn, Comment, Facts, Hint, HintKind, Run, TaskState
from tickdown.base.records import record, replace
from tickdown.comments.meaning import Action, Wish, understood
from tickdown.comments.reading import reader_of
from tickdown.context.app import Opened, facts_as_synced
from tickdown.governor.governor import Forecast, Plan, forecast, paused, state_of
from tickdown.processes.process import boot_id
from tickdown.queries.tasks import TaskView, cut_off, task_view, transient_since
from tickdown.run.decision import by_its_lock, decide
from tickdown.store import actions, comments, runs, tasks
from tickdown.tasks.task import Task

DECISIONS_SHOWN = 8


@record(frozen=True)
class Upstream:
    """One of the tasks that a task comes after, and whether its end can be expected."""

    task_id: str
    wants: ChainOn
    ended_at: datetime | None  # the end that counts for the next start, if it has come
    task: Task | None  # None: no accepted file has this id
    state: TaskState | None = None
    paused_until: datetime | None = None
    rejected: str | None = None  # its file, if that is rejected
    nameless: int = 0  # rejected files that may be its own: nobody can tell their ids


@record(frozen=True)
class SlotsTaken:
    """Other tasks run in all the slots that there are for it: of its group, or of all."""

    by: Sequence[str]
    limit: int
    group: str | None


@record(frozen=True)
class Story:
    """Everything that `why` tells, from one look at the store."""

    now: datetime
    task: Task
    facts: Facts
    view: TaskView
    decisions: list[Run]  # oldest first
    upstreams: Sequence[Upstream]
    plan: Plan
    taken: SlotsTaken | None
    coming: Forecast
    unread: Sequence[Comment]
    wish: tuple[Comment, Wish] | None  # what the plain commands among them come to
    is_wish_held: bool  # it asks for a run that the next tick can't start
    reader: str | None  # the agent that reads the others
    transient_since: datetime | None  # since when it fails with what passes by itself
    pause: ActionTaken | None  # the last one that somebody asked for; whether it still holds is told by the rest


def story_of(opened: Opened, task: Task) -> Story:
    db, catalog, now, context = opened.db, opened.catalog, opened.now, opened.context
    all_facts = facts_as_synced(db, catalog, now)
    facts = all_facts.get(task.id.lower()) or Facts(task.id, armed_at=now, boot_id=boot_id())
    facts = by_its_lock(context, facts, now)
    unread = comments.unread_of(db, task.id)
    reader = reader_of(context, task) if unread else None
    last = runs.last_run_of(db, task.id)
    wishes = understood(unread, task.zone, now)
    obeyed = _as_obeyed(facts, wishes, now)
    coming = forecast(now, task, obeyed, boot_id())
    links = tasks.all_links(db).get(task.id.lower(), ())
    return Story(
        now=now,
        task=task,
        facts=facts,
        view=replace(task_view(task, facts, last, now, cut_off(db)), next_run=coming.next),
        decisions=runs.list_runs(db, task.id, limit=DECISIONS_SHOWN)[::-1],
        upstreams=[_upstream(opened, link, all_facts) for link in links],
        plan=decide(context, task, facts, now).plan,
        taken=_taken(opened, task),
        coming=coming,
        unread=unread,
        wish=_wish_of(wishes),
        is_wish_held=obeyed is facts or not decide(context, task, obeyed, now).plan.starts,
        reader=reader.name if reader is not None else None,
        transient_since=transient_since(db, last),
        pause=actions.last_pause(db, task.id),
    )


def _upstream(opened: Opened, link: tasks.Link, all_facts: Mapping[str, Facts]) -> Upstream:
    catalog, now, key = opened.catalog, opened.now, link.upstream.lower()
    task, known = catalog.get(link.upstream), all_facts.get(key)
    found = Upstream(link.upstream, link.wants, link.ended_at, task)
    if task is None:
        broken = next((file.path for file in catalog.rejected if (file.task_id or "").lower() == key), None)
        return replace(found, rejected=broken, nameless=catalog.nameless)
    until = known.paused_until if known is not None and paused(now, known) else None
    return replace(found, state=state_of(now, task, known), paused_until=until)


def _taken(opened: Opened, task: Task) -> SlotsTaken | None:
    config = opened.app.settings.config
    held = [run for run in runs.running_runs(opened.db) if run.heartbeat_at is not None]
    running = [run.task_id for run in held if run.task_id.lower() != task.id.lower()]
    limit = config.groups.get(task.group) if task.group else None
    beside = [one for one in running if (other := opened.catalog.get(one)) is not None and other.group == task.group]
    if limit is not None and len(beside) >= limit:
        return SlotsTaken(beside, limit, task.group)
    return SlotsTaken(running, config.max_concurrent, None) if len(running) >= config.max_concurrent else None


def _wish_of(wishes: Sequence[tuple[Comment, Wish]]) -> tuple[Comment, Wish] | None:
    """The last one counts; a pause that is over already asks for nothing."""
    return wishes[-1] if wishes and wishes[-1][1].reason.startswith("/") else None


def _as_obeyed(facts: Facts, wishes: Sequence[tuple[Comment, Wish]], now: datetime) -> Facts:
    """As the next tick makes them before it decides: what asks for a run is a hint then. Not while a run goes on, whose end
    comes first, and not behind a /skip: both wait for the next run then."""
    asked = _wish_of(wishes)
    if asked is None or asked[1].action is not Action.RUN or facts.running:
        return facts
    if any(wish.action is Action.SKIP for _, wish in wishes):
        return facts
    hint = Hint(HintKind.ONE_SHOT, now, at=now, reason=asked[1].reason, author=asked[0].author)
    return replace(facts, hints=(*(each for each in facts.hints if each.kind is not hint.kind), hint))
