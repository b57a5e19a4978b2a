"""The promise above all others, as arithmetic: at every tick the rows add up to what an independent walk over the minutes says.

Random schedules, outages, blackouts, pauses, too few slots, runs that overlap, ticks that are stopped or killed: days of it in a
moment, with the real decisions and the real store, and a clock that is only an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from tests.faults.kinds import kind
from tests.helpers import Workspace
from tickdown.base.model import CatchUp, Facts, MissReason, Owner, RunStatus, SkipReason, Source
from tickdown.config import load_settings
from tickdown.context.app import app_with, sync_catalog
from tickdown.failure.outcomes import Outcome
from tickdown.governor.governor import Plan, look_again, plan, put_off
from tickdown.governor.miss_reasons import lacks_reasons, with_reasons
from tickdown.store import runs, tasks, ticks
from tickdown.store.database import Database
from tickdown.tasks.catalogue import Catalog
from tickdown.tasks.task import Task
from tickdown.workspace.folders import find_workspace

MINUTE = timedelta(minutes=1)
BOOT = "boot"
HISTORIES = 10  # of one trial
SCHEDULES = (
    "* * * * *",
    "*/7 * * * *",
    "5,6,50 * * * *",
    "30 * * * *",
    "15 3 * * *",
    "0 9-17 * * 1-5",
    "*/20 0-12 1-15 * *",
)
BLACKOUTS = ((), ("10:00-11:00",), ("22:00-06:00",), ("09:58-10:03", "10:05-10:06", "23:30-00:30"), ("sat-sun",))
DEAD = Owner("here", 1, 1, "dead")
ALIVE = Owner("here", 2, 2, BOOT)


@kind("rows add up at every tick", seeds=4)
def rows_add_up(random: Random, workspace: Workspace) -> None:
    for number in range(HISTORIES):
        folder = workspace.root / str(number)
        with_tasks(random, Workspace(folder))
        History(random, folder).play()


def with_tasks(random: Random, workspace: Workspace) -> None:
    for number in range(random.choice([1, 1, 2, 4])):
        fields: dict[str, object] = {"catch_up": random.choice(["once", "once", "skip", "all"])}
        if blackout := random.choice(BLACKOUTS):
            fields["blackout"] = blackout
        if random.random() < 0.3:
            fields["grace"] = random.choice(["3m", "40m", "5h"])
        workspace.task(f"task-{number}", schedule=random.choice(SCHEDULES), **fields)


@dataclass
class Live:
    """A tick that did its work, and what it found of each task."""

    at: datetime
    paused: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)


class History:
    def __init__(self, random: Random, root: Path) -> None:
        self.random = random
        workspace = find_workspace(str(root), {}, root)
        app = app_with(workspace, load_settings(workspace, {}))
        self.db: Database = app.database()
        self.now = self.armed = datetime(
            2026, 3, 6, random.randrange(24), random.randrange(60), random.randrange(60), tzinfo=UTC
        )
        self.catalog: Catalog = app.catalog(self.db)
        sync_catalog(self.db, self.catalog, self.now, seen_to=True)
        self.slots = random.choice([1, 2, 5])
        self.until_end: dict[str, datetime] = {}  # by run id
        self.dead: set[str] = set()  # runs whose tick was killed
        self.live: list[Live] = []
        self.looked: list[Live] = []  # those that were killed, too
        self.stops: list[tuple[datetime, MissReason]] = []
        self.told: list[str] = []

    def play(self) -> None:
        for _ in range(self.random.choice([10, 40])):
            self._let_time_pass()
            match self.random.choices(["tick", "killed", "stopped", "pause"], [20, 2, 2, 2])[0]:
                case "tick":
                    self._tick()
                    self._check()
                case "killed":
                    self._tick(killed=True)
                case "stopped":
                    reason = self.random.choice([MissReason.DUPLICATE_IDS, MissReason.CONFIGURATION])
                    self.told.append(f"{self.now:%d %H:%M:%S} stopped: {reason}")
                    ticks.stopped(self.db, reason, self.now)
                    self.stops.append((self.now, reason))
                case "pause":
                    task = self.random.choice(self.catalog.tasks)
                    until = self.now + self.random.choice([3, 20, 200]) * MINUTE
                    self.told.append(f"{self.now:%d %H:%M:%S} {task.id} paused until {until:%d %H:%M}")
                    tasks.pause(self.db, task.id, until)
        self.db.close()

    def _let_time_pass(self) -> None:
        """Mostly the beat of cron; sometimes an outage."""
        if self.random.random() < 0.15:
            after = timedelta(minutes=self.random.choice([2, 7, 40, 300, 1600]), seconds=self.random.randrange(60))
        else:
            after = MINUTE - timedelta(seconds=self.now.second) + timedelta(seconds=self.random.choice([1, 5, 5, 20]))
        until = self.now + after
        while ends := sorted(
            (at, run_id) for run_id, at in self.until_end.items() if at <= until and run_id not in self.dead
        ):
            self.now, run_id = ends[0]
            self._end(run_id, RunStatus.SUCCESS)
        self.now = until

    # --- what a tick does ------------------------------------------------------------------------------------------

    def _tick(self, *, killed: bool = False) -> None:
        self.told.append(f"{self.now:%d %H:%M:%S} tick{', killed' if killed else ''}")
        for run_id in sorted(self.dead):  # what a dead tick has left
            self._end(run_id, RunStatus.ORPHANED)
        ready: list[tuple[Facts, Task, Plan]] = []
        later: list[tuple[Facts, datetime | None]] = []
        found = Live(self.now)
        for fact in tasks.all_facts(self.db).values():
            found.paused |= {fact.task_id} if fact.paused_until and fact.paused_until > self.now else set()
            found.running |= {fact.task_id} if fact.running else set()
        for fact in tasks.facts_to_look_at(self.db, self.now).values():
            task = self.catalog.find(fact.task_id)
            decided = self._decided(task, fact)
            moment = look_again(self.now, task, fact, BOOT)
            if not decided.starts and (moment is None or moment > self.now):
                assert not decided.does_something, f"not to be looked at before {moment}: {decided}"
                later.append((fact, moment))
            ready.append((fact, task, decided))
        tasks.look_later(self.db, later)
        self.looked.append(found)
        given_up = self.random.randrange(len(ready) + 1) if killed else len(ready)
        waiting = [one for one in ready[:given_up] if not self._done(*one, killed=killed)]
        if killed:
            return
        for fact, _, decided in waiting:
            runs.write_off(self.db, fact, put_off(decided, SkipReason.AT_CAPACITY), "here", self.now)
        self.live.append(found)

    def _decided(self, task: Task, facts: Facts) -> Plan:
        decided = plan(self.now, task, facts, BOOT)
        if lacks_reasons(decided):
            decided = with_reasons(decided, task.schedule, ticks.stoppages(self.db, decided.unrun[0].first))
        return decided

    def _done(self, facts: Facts, task: Task, decided: Plan, *, killed: bool) -> bool:
        """False if there is no slot."""
        if not decided.starts:
            if decided.does_something:
                assert runs.write_off(self.db, facts, decided, "here", self.now)
            return True
        run_id, owner = runs.new_run_id(self.now), DEAD if killed else ALIVE
        new = runs.NewRun(run_id, decided.starts[0], owner, "trace", "log", facts, decided, limit=self.slots)
        claim = runs.claim(self.db, new, self.now)
        if claim is runs.Claim.AT_CAPACITY:
            return False
        assert claim is runs.Claim.WON, claim
        if killed:
            self.dead.add(run_id)
        self.until_end[run_id] = self.now + timedelta(seconds=self.random.choice([1, 1, 1, 30, 90, 400, 5000]))
        return True

    def _end(self, run_id: str, status: RunStatus) -> None:
        run = runs.get_run(self.db, run_id)
        assert run is not None
        outcome = Outcome(status, 0 if status is RunStatus.SUCCESS else None)
        ending = runs.Ending(run.lease, run.task_id, 1, outcome, None, "", run.source)
        with self.db.transaction() as connection:
            runs.finish_run(connection, ending, self.now)
        del self.until_end[run_id]
        self.dead.discard(run_id)
        task = self.catalog.find(run.task_id)
        if task.catch_up is CatchUp.ALL and status is RunStatus.SUCCESS:  # its supervisor goes on with the next one
            facts = tasks.facts(self.db, task.id)
            assert facts is not None
            decided = self._decided(task, facts)
            if decided.starts and decided.starts[0].source in (Source.CATCH_UP, Source.BASELINE_CRON):
                self._done(facts, task, decided, killed=False)

    # --- what must be so -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        for task in self.catalog.tasks:
            expected = set(minutes_of(task.schedule.text, self.armed, self.now))
            rows = self.db.all("SELECT * FROM task_runs WHERE task_id = ? ORDER BY scheduled_for", task.id)
            story = "\n".join([
                f"{task.schedule.text} {[one.text for one in task.blackout]} {task.catch_up} {task.grace} slots {self.slots}",
                *self.told[-12:],
                *(f"{r['scheduled_for']} {r['last_scheduled_for']} {r['status']} {r['reason']} x{r['count']}" for r in rows[-12:]),
            ])  # fmt: skip
            covered: set[datetime] = set()
            for row in rows:
                first = datetime.fromisoformat(row["scheduled_for"])
                last = datetime.fromisoformat(row["last_scheduled_for"] or row["scheduled_for"])
                here = {at for at in expected if first <= at <= last}
                assert len(here) == row["count"], (
                    f"{task.id}: {first} to {last} are {len(here)}, not {row['count']}\n{story}"
                )
                assert not here & covered, f"{task.id}: twice on record: {sorted(here & covered)}\n{story}"
                covered |= here
                for at in here:
                    self._check_reason(task, at, row["status"], row["reason"], story)
            assert covered == expected, f"{task.id}: without a row: {sorted(expected - covered)}\n{story}"

    def _check_reason(self, task: Task, at: datetime, status: str, reason: str | None, story: str) -> None:
        told = f"{task.id}: {at:%d %H:%M} is {status} {reason}\n{story}"
        seen = next(live for live in self.live if live.at >= at)
        after = [live for live in self.looked if live.at >= at]
        until_seen = [live for live in after if live.at <= seen.at]
        match status, reason:
            case "missed", _:
                assert seen.at - at >= MINUTE or task.grace, told
                stopped = {why for stop, why in self.stops if at <= stop < at + MINUTE and stop < seen.at}
                assert reason in stopped if stopped else reason is not None, told
                near = {why for stop, why in self.stops if abs(stop - at) <= 6 * MINUTE}
                assert reason == "outage" or reason in near, told
            case "skipped", "blackout":
                assert is_dark(task, at) or any(is_dark(task, live.at) for live in after), told
            case "skipped", "paused":
                assert any(task.id in live.paused for live in until_seen), told
            case "skipped", "already_running":
                assert task.catch_up is CatchUp.ALL or any(task.id in live.running for live in until_seen), told
            case "skipped", "at_capacity":
                pass
            case "skipped", _:
                raise AssertionError(told)
            case _:
                assert not is_dark(task, at), told


# --- a second opinion about cron lines and blackouts ----------------------------------------------------------------


def minutes_of(line: str, after: datetime, until: datetime) -> list[datetime]:
    minute, hour, day, month, weekday = (
        set(_values(text, *bounds)) for text, bounds in zip(line.split(), BOUNDS, strict=True)
    )
    found, at = [], after.replace(second=0, microsecond=0) + MINUTE
    while at <= until:
        if (
            at.minute in minute and at.hour in hour and at.day in day and at.month in month
            and at.isoweekday() % 7 in weekday
        ):  # fmt: skip
            found.append(at)
        at += MINUTE
    return found


BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def _values(text: str, low: int, high: int) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or first))
        found += range(begin, end + 1, int(step or 1))
    return found


def is_dark(task: Task, at: datetime) -> bool:
    for blackout in task.blackout:
        if blackout.text == "sat-sun":
            if at.isoweekday() >= 6:
                return True
            continue
        begin, end = blackout.text.split("-")
        time = f"{at:%H:%M}"
        if (begin <= time < end) if begin < end else (time >= begin or time < end):
            return True
    return False
