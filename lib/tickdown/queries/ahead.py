"""What is to come: the next runs, and a look at a stretch of time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from tickdown.base.errors import Exit, TickdownError
from tickdown.base.model import Facts
from tickdown.base.records import record
from tickdown.context.app import Opened, facts_as_synced
from tickdown.governor.governor import forecast
from tickdown.governor.simulation import Effort, Replay, Simulation, Start, Subject, TooMuch, simulate, with_upstreams
from tickdown.processes.process import boot_id
from tickdown.queries.tasks import TaskView, task_view
from tickdown.store import runs, tasks
from tickdown.store.database import Database
from tickdown.tasks.catalogue import Catalog
from tickdown.tasks.task import Task
from tickdown.time.zones import get_zone

MOST_COMING = 1000
MOST_STEPS_FOR_NEXT = 10_000  # seconds of work, for a task that waits for others which end again and again
FARTHEST = timedelta(days=100 * 366)  # the calendar of `next`; 29 February on a Monday comes every 28 years


@record(frozen=True)
class Coming:
    """A run to come, and the task whose it is."""

    start: Start
    subject: Subject


@record(frozen=True)
class NothingToCome:
    """Of a task that was asked for."""

    view: TaskView
    because: str


def next_runs(opened: Opened, task_id: str | None, count: int) -> list[Coming] | NothingToCome:
    """In their order; of one task, or of all."""
    if count > MOST_COMING:
        raise TickdownError(f"--count: at most {MOST_COMING}", Exit.USAGE)
    now = opened.now
    wanted = opened.catalog.find(task_id).id if task_id is not None else None
    subjects = _subjects(opened.db, opened.catalog, now)
    by_id = {subject.task.id: subject for subject in subjects}
    found = [Coming(start, by_id[start.task_id]) for start in _first(subjects, wanted, count, now)]
    if found or wanted is None:
        return found
    task, facts = by_id[wanted].task, by_id[wanted].facts
    return NothingToCome(task_view(task, facts, None, now), forecast(now, task, facts, boot_id()).because)


def simulation(opened: Opened, begin: datetime, end: datetime) -> Simulation:
    zone = get_zone(opened.app.settings.config.timezone)
    try:
        return simulate(_subjects(opened.db, opened.catalog, opened.now), begin, end, opened.now, boot_id(), zone)
    except TooMuch:
        raise TickdownError(
            f"simulate: too many runs from {begin:%Y-%m-%d} to {end:%Y-%m-%d}; choose a shorter time", Exit.USAGE
        ) from None


def _subjects(db: Database, catalog: Catalog, now: datetime) -> list[Subject]:
    facts, links, lasts = facts_as_synced(db, catalog, now), tasks.all_links(db), runs.typical_durations(db)
    began = {run.task_id.lower(): run.started_at or now for run in runs.running_runs(db)}

    def subject(task: Task) -> Subject:
        key = task.id.lower()
        usual = lasts.get(key, timedelta(0))
        return Subject(
            task=task,
            facts=facts.get(key) or Facts(task.id, armed_at=now, boot_id=boot_id()),
            lasts=usual,
            busy_until=max(now, began[key] + usual) if key in began else None,
            ended={link.upstream: link.ended_at for link in links.get(key, ()) if link.ended_at is not None},
        )

    return [subject(task) for task in catalog.tasks]


def _first(subjects: Sequence[Subject], wanted: str | None, count: int, now: datetime) -> list[Start]:
    if wanted is not None:
        subjects = with_upstreams(subjects, wanted)
    found: list[Start] = []
    try:
        for start in Replay(subjects, now, boot_id(), Effort(MOST_STEPS_FOR_NEXT + len(subjects))).starts():
            if start.at - now > FARTHEST:
                break
            if wanted is None or start.task_id == wanted:
                found.append(start)
            if len(found) == count:
                break
    except TooMuch:
        pass  # what was found by then is all that can be told
    return found
