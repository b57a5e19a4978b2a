"""Time: a clock that is set back and forward, stands still, sleeps with the machine and changes with the seasons.

What the processes of a workspace see as the time comes from faketime; `Clock` is the hand that sets it. The monotonic clock
stays the real one: nobody can set it, and on Linux it stands still while the machine is suspended, so that to a process
a suspend is nothing but a leap of the time of day. The times of files stay real too, as if all had been written long ago.
"""

from __future__ import annotations

import atexit
import os
import subprocess
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

from tests.cron_by_hand import by_hand
from tests.faults.invariants import check, journalled
from tests.faults.kinds import CannotTry, kind
from tests.helpers import PATIENCE, Gate, Workspace, start_together
from tests.schedule.test_schedule_oracle import clock_time_near, find_changes, random_line, time_word

# Later than any file, as far as anybody can tell: what was written after the time shown would be looked at again and again.
BEGIN = datetime(2036, 1, 1, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SLACK = 5 * SECOND  # a clock set back by less is taken for ticks that began together
AHEAD = 2 * HOUR  # of a clock that was ahead by more, people are told
# Some change in the middle of the night, some at midnight, one by half an hour, five at the same instant in five zones.
ZONES = (
    "Europe/Berlin", "Europe/Lisbon", "Atlantic/Azores", "Europe/Helsinki", "America/Nuuk", "America/New_York",
    "America/St_Johns", "America/Havana", "America/Santiago", "Asia/Beirut", "Africa/Cairo", "Australia/Lord_Howe",
    "Pacific/Chatham", "Antarctica/Troll",
)  # fmt: skip


class Clock:
    """The time of day as all processes of a workspace see it, those that run as well."""

    def __init__(self, workspace: Workspace) -> None:
        self._file = workspace.root.parent / "clock"
        library = _library()
        workspace.environment |= {
            "LD_PRELOAD": str(library),
            "FAKETIME_SHARED": _shared_memory(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def stand_at(self, moment: datetime) -> None:
        self._write(f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}")

    def go_on_from(self, moment: datetime) -> None:
        self._write(f"{(moment - datetime.now(UTC)).total_seconds():+.6f}")

    def _write(self, text: str) -> None:
        new = self._file.with_suffix(".new")  # somebody may be reading it
        new.write_text(text + "\n")
        new.rename(self._file)


def _library() -> Path:
    found = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if found is None:
        raise CannotTry("faketime is not installed")
    return found


def _shared_memory(library: Path) -> str:
    """What the processes of faketime share, by name. Else each makes its own, and who leaves by `_exit`, as an idle tick does,
    leaves it behind for ever. It is made by a process that can't take it away again; we do, at our own end."""
    script = 'echo "$FAKETIME_SHARED"; kill -KILL $$'
    environment = {"LD_PRELOAD": str(library), "FAKETIME": "+0", "PATH": os.environ["PATH"]}
    for _ in range(10):  # what a dead process of the same number has left is in its way; the next has another
        made = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
        names = made.stdout.split()
        if len(names) == 2:
            break
    else:
        raise CannotTry(f"faketime can't be used here: {made.stderr}")
    semaphore, memory = names
    for path in (f"/dev/shm/sem.{semaphore.lstrip('/')}", f"/dev/shm/{memory.lstrip('/')}"):
        atexit.register(Path(path).unlink, missing_ok=True)
    return " ".join(names)


def cron_task(workspace: Workspace, task_id: str, line: str, **fields: object) -> None:
    # The commands need no other clock, and start sooner without.
    workspace.task(task_id, journalled(workspace), line, env={"LD_PRELOAD": ""}, **fields)


# --- the judge -------------------------------------------------------------------------------------------------


def assert_each_has_one_row(
    workspace: Workspace, task_id: str, line: str, zone: str, until: datetime, ends: Collection[str] = ("success",)
) -> int:
    """Every occurrence since the task was armed was run once or is counted once among those that were not, and nothing
    else is on record. Returns how many there were."""
    ((armed_at,),) = workspace.sql("SELECT armed_at FROM tasks WHERE id = ?", task_id)
    wanted = by_hand(line, ZoneInfo(zone), datetime.fromisoformat(armed_at), until)
    ran: list[datetime] = []
    others: list[tuple[datetime, datetime, int]] = []
    for status, first, last, count in workspace.sql(
        "SELECT status, scheduled_for, COALESCE(last_scheduled_for, scheduled_for), count FROM task_runs WHERE task_id = ?"
        " AND source <> 'retry'",
        task_id,
    ):
        first, last = datetime.fromisoformat(first), datetime.fromisoformat(last)
        if status in ("missed", "skipped"):
            others.append((first, last, count))
        else:
            assert status in ends, (task_id, status, first)
            ran.append(first)
    story = f"{task_id}: {line!r} in {zone}, armed {armed_at}, until {until}"
    assert len(set(ran)) == len(ran), f"{story}: an occurrence ran twice: {sorted(ran)}"
    assert set(ran) <= set(wanted), f"{story}: ran at {sorted(set(ran) - set(wanted))}"
    left = sorted(set(wanted) - set(ran))
    counted = sum(count for *_, count in others)
    assert counted == len(left), f"{story}: did not run: {[str(at) for at in left]}; on record: {others}"
    for first, last, count in others:
        between = [at for at in left if first <= at <= last]
        assert first in between and last in between and count <= len(between), f"{story}: {first} to {last}: {count}"
    return len(wanted)


def assert_told_of_clock_ahead(workspace: Workspace, now: datetime) -> None:
    ahead = workspace.sql(
        "SELECT id FROM tasks WHERE last_occurrence > ? AND id LIKE 'cron%'",
        (now + AHEAD).isoformat(timespec="milliseconds")[:-6] + "Z",
    )
    told = workspace.sql("SELECT 1 FROM alerts WHERE title LIKE '%the clock was ahead%'")
    assert told or not ahead, f"nobody was told that {ahead} wait for the clock"


class IntervalModel:
    """When a task with an interval must run, while the clock stands still during each tick."""

    def __init__(self, every: timedelta) -> None:
        self.every, self.occurrences = every, set[datetime]()
        self._last_end: datetime | None = None
        self._beats: list[datetime] = []

    def tick(self, now: datetime) -> None:
        if self._beats and max(self._beats) > now + SLACK:
            self._beats = [beat for beat in self._beats if beat <= now + SLACK]
            self._last_end = min(self._last_end or now, now)
        self._beats.append(now)
        at = now if self._last_end is None else self._last_end + self.every
        if at in self.occurrences and at <= now:  # it has been here before the clock was set back
            self._last_end = at
        elif at <= now:
            self.occurrences.add(at)
            self._last_end = now


# --- a walk ----------------------------------------------------------------------------------------------------


def walk(random: Random, begin: datetime, steps: int) -> Iterable[datetime]:
    """Where the clock stands at each tick: mostly a minute later, often not. Never before the begin."""
    been = [begin]
    for _ in range(steps):
        now = been[-1]
        match random.choices(
            ["minute", "odd", "second", "late", "outage", "back", "far back", "there again", "stands"],
            [30, 20, 6, 8, 3, 6, 3, 4, 4],
        )[0]:
            case "minute":
                now += MINUTE
            case "odd":
                now += random.randint(2, 119) * SECOND
            case "second":
                now += SECOND
            case "late":
                now += random.randint(2, 90) * MINUTE
            case "outage":
                now += DAY + random.randint(0, 2 * 86400) * SECOND
            case "back":
                now -= random.randint(1, 7200) * SECOND
            case "far back":
                now -= random.randint(2, 30) * HOUR
            case "there again":
                now = random.choice(been)
        been.append(max(now, begin))
        yield been[-1]


@kind("the clock wanders", seeds=1)
def _(random: Random, workspace: Workspace) -> None:
    clock, begin = Clock(workspace), BEGIN + random.randint(0, 365 * 1440) * MINUTE + random.randint(0, 59) * SECOND
    workspace.config("max_concurrent: 20\n")
    zone = random.choice(ZONES)
    # No more than three may come late at once: the starts of more are spread over half a minute.
    late = [{"catch_up": "once"}, {"catch_up": "all"}, {"catch_up": "all", "grace": "40m"}]
    lines = {f"cron{number}": _line(random, begin) for number in range(5)}
    for number, (task_id, line) in enumerate(lines.items()):
        fields = late[number] if number < len(late) else {"catch_up": "skip"}
        cron_task(workspace, task_id, line, timezone=zone, **fields)
    every = random.randint(1, 40) * MINUTE
    cron_task(workspace, "interval", f"{every.seconds // 60}m")
    cron_task(workspace, "once", f"in {random.randint(1, 200)} minutes", catch_up="skip")
    stands = random.random() < 0.6
    model, highest = IntervalModel(every), begin
    for now in [begin, *walk(random, begin, random.randint(20, 45))]:
        (clock.stand_at if stands else clock.go_on_from)(now)
        if now > begin and random.random() < 0.05:
            done = start_together([workspace.argv("tick")] * 10, env=workspace.environment, cwd=workspace.root)
            assert {one.returncode for one in done} == {0}, [one.stderr for one in done]
        else:
            workspace.tick()
        model.tick(now)
        assert_told_of_clock_ahead(workspace, now)
        highest = max(highest, now)
    end = highest + 200 * MINUTE + MINUTE  # past all that has come up, and past the one-shot
    clock.stand_at(end)
    workspace.tick()
    model.tick(end)
    check(workspace)
    for task_id, line in lines.items():
        assert_each_has_one_row(workspace, task_id, line, zone, end)
    assert workspace.sql("SELECT COUNT(*) FROM task_runs WHERE task_id = 'once'") == [(1,)]
    ran = workspace.sql("SELECT scheduled_for FROM task_runs WHERE task_id = 'interval'")
    if stands:
        assert {datetime.fromisoformat(at) for (at,) in ran} == model.occurrences, f"an interval of {every}"
    assert ran


def _line(random: Random, near: datetime) -> str:
    """Most are for every day, many for every hour: what never comes up proves nothing."""
    near += random.randint(0, 300) * MINUTE
    if random.random() < 0.4:
        return f"*/{random.randint(1, 20)} * * * *"
    if random.random() < 0.2:
        line = random_line(random, near)
        if by_hand(line, UTC, near - HOUR, near + 40 * DAY):  # some dates never come
            return line
    return f"{time_word(random, near.minute, 59)} {time_word(random, near.hour, 23)} * * *"


# --- nights with a change of the clock -------------------------------------------------------------------------


@kind("a night in which the clock changes", seeds=1)
def _(random: Random, workspace: Workspace) -> None:
    zone = random.choice(ZONES)
    change = random.choice(find_changes(ZoneInfo(zone), BEGIN, BEGIN + 730 * DAY))
    clock, begin = Clock(workspace), change.at - random.randint(10, 50) * MINUTE - random.randint(0, 59) * SECOND
    end = change.end + random.randint(5, 20) * MINUTE
    lines = {}
    for number in range(8):
        near = clock_time_near(random, change)
        lines[f"cron{number}"] = f"{time_word(random, near.minute, 59)} {time_word(random, near.hour, 23)} * * *"
    for number, (task_id, line) in enumerate(lines.items()):
        cron_task(workspace, task_id, line, timezone=zone, catch_up=["once", "all", "once", *["skip"] * 5][number])
    regular, now = random.random() < 0.5, begin
    while now < end:
        (clock.stand_at if random.random() < 0.5 else clock.go_on_from)(now)
        workspace.tick()
        now += (
            MINUTE
            if regular
            else random.choices([random.randint(2, 119), random.randint(120, 900)], [3, 1])[0] * SECOND
        )
    clock.stand_at(end)
    workspace.tick()
    check(workspace)
    found = sum(assert_each_has_one_row(workspace, task_id, line, zone, end) for task_id, line in lines.items())
    late = workspace.sql("SELECT task_id, scheduled_for FROM task_runs WHERE status = 'missed'")
    assert not (regular and late), f"a tick came every minute, and of {found} occurrences these were missed: {late}"


# --- a clock that is set under a tick's feet -------------------------------------------------------------------


@kind("the clock is set while tasks run", seeds=1)
def _(random: Random, workspace: Workspace) -> None:
    """Limits and waits are on the monotonic clock: nothing ends early or late because somebody has set the other one, or
    because the machine was asleep."""
    clock, gate = Clock(workspace), Gate(workspace)
    now = BEGIN + random.randint(0, 365 * 1440) * MINUTE
    own = {"env": {"LD_PRELOAD": ""}, "schedule": "on 2037-12-31 at 12:00"}
    workspace.task("long", journalled(workspace, gate.command), timeout="10m", **own)
    workspace.task("slow", journalled(workspace, "exec sleep 300"), timeout="2s", **own)
    flaky = journalled(workspace, f"test -e {workspace.root}/been || {{ touch {workspace.root}/been; false; }}")
    workspace.task("flaky", flaky, retry=True, retry_delay="2s", **own)
    clock.stand_at(now)
    workspace.tick()
    clock.go_on_from(datetime(2037, 12, 31, 12, tzinfo=UTC))
    tick = workspace.start("tick")
    gate.wait()
    for _ in range(random.randint(1, 3)):
        now = datetime(2037, 12, 31, 12, tzinfo=UTC) + random.choice([-DAY, -HOUR, -MINUTE, HOUR, DAY, 30 * DAY])
        now += random.randint(-3600, 3600) * SECOND
        (clock.stand_at if random.random() < 0.4 else clock.go_on_from)(now)
        workspace.tick()
    gate.open()
    _, errors = tick.communicate(timeout=PATIENCE)
    assert tick.returncode == 0, errors
    workspace.tick()
    check(workspace)
    ran = workspace.sql("SELECT task_id, status, attempts FROM task_runs ORDER BY task_id")
    assert ran == [("flaky", "success", 2), ("long", "success", 1), ("slow", "timeout", 1)]
    assert all(run["duration_ms"] >= 0 for run in workspace.history())


# --- a clock that was wrong when everything began --------------------------------------------------------------


@kind("first seen by a clock that was ahead", seeds=1)
def _(random: Random, workspace: Workspace) -> None:
    """A machine without a clock of its own begins with a wrong time. What has not run by then does not wait for it."""
    clock, right = Clock(workspace), BEGIN + random.randint(0, 365 * 1440) * MINUTE
    lines = {"hourly": f"{random.randint(0, 59)} * * * *", "often": "*/7 * * * *"}
    for task_id, line in lines.items():
        cron_task(workspace, task_id, line, catch_up="all")
    cron_task(workspace, "interval", "10m")
    clock.stand_at(right + random.randint(1, 40) * DAY + random.randint(0, 59) * SECOND)
    workspace.tick()
    end = right + 2 * HOUR
    now = right
    while now < end:
        clock.stand_at(now)
        workspace.tick()
        now += random.randint(5, 20) * MINUTE
    clock.stand_at(end)
    workspace.tick()
    check(workspace)
    for task_id, line in lines.items():
        ((armed_at,),) = workspace.sql("SELECT armed_at FROM tasks WHERE id = ?", task_id)
        assert datetime.fromisoformat(armed_at) <= right, f"{task_id} waits for {armed_at}"
        assert assert_each_has_one_row(workspace, task_id, line, "UTC", end) >= 2
    ((ran,),) = workspace.sql("SELECT COUNT(*) FROM task_runs WHERE task_id = 'interval'")
    assert ran >= 6, "an interval counts from now"
