"""The same jobs under other schedulers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import workspaces
from bench.burst import AT_ONCE, CONFIG, Stamps
from bench.measure import ENVIRONMENT, PROJECT, CannotMeasure, next_minute, sleep_until
from bench.processes import cpu_seconds, descendants, resident, resident_kib
from bench.report import Goal, Section, mib, ms, table
from bench.scale import Bench
from bench.workspaces import EVERY_MINUTE, Workspace, far_schedule

BIN = PROJECT / "bench/.venv/bin"
BASH = ["bash", "--noprofile", "--norc", "-c"]
START_UP = 25.0  # seconds that the slowest of them needs to read its jobs, and then some
PATIENCE = 50.0  # seconds of a minute that a burst may take

# $1: the crontab of root; $2: an empty file in the place of /etc/crontab. In a mount namespace of its own, so that the
# crontabs of the machine are neither seen nor touched. The shell becomes cron itself.
CRON_UNDER_COVER = """
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /etc/cron.d
mount -t tmpfs tmpfs /var/spool/cron
mount --bind "$2" /etc/crontab
mkdir -m 1730 /var/spool/cron/crontabs
install -m 600 "$1" /var/spool/cron/crontabs/root
exec cron -f
"""
# In the place of a systemd timer: calls its arguments at every full minute.
EVERY_MINUTE_LOOP = """
while :; do
    left=$((60000000 - ${EPOCHREALTIME/./} % 60000000))
    sleep "$((left / 1000000)).$(printf %06d $((left % 1000000)))"
    "$@" >/dev/null &
done
"""

Jobs = Sequence[tuple[str, str]]  # schedule, command


@dataclass(slots=True)
class Tool:
    name: str
    limit: str  # of what runs at once
    prepare: Callable[[Path, Jobs], list[str]]  # writes its configuration; the command that starts it
    idle: float | None = None  # seconds
    memory: float | None = None  # KiB
    delay: float | None = None  # seconds
    bursts: list[float] = field(default_factory=list)  # seconds
    why_not: dict[str, str] = field(default_factory=dict)  # what could not be measured

    @property
    def burst(self) -> float | None:
        return statistics.median(self.bursts) if self.bursts else None

    @property
    def row(self) -> list[str]:
        bursts = ", ".join(map(ms, self.bursts)) or None
        shown = {
            "idle": None if self.idle is None else ms(self.idle),
            "memory": None if self.memory is None else mib(self.memory),
            "delay": None if self.delay is None else ms(self.delay),
            "bursts": bursts,
        }
        cells = [text or f"not measured: {self.why_not.get(name, 'no number')}" for name, text in shown.items()]
        return [self.name, *cells, self.limit]


def measure_peers(bench: Bench) -> Section:
    count = bench.scale.jobs
    section = Section(
        "Beside other schedulers",
        f"Each with the same {count:,} jobs (bash, `echo $EPOCHREALTIME > FILE`). Idle: no job is due; processor time of one"
        " minute, from half to half, and resident memory between the minutes, of all tools side by side. Then one tool after"
        " the other: the delay from the full minute to the first instruction of the one job that is due, and, in the minutes"
        f" behind it, from the full minute to that of the last job, when all {count:,} are due;"
        f" {bench.scale.few_rounds} such minutes, of which the median counts.",
    )
    by_timer = Tool("Tickdown, started by a timer", str(AT_ONCE), _tickdown_by_timer)
    by_cron = Tool("Tickdown, started by cron", str(AT_ONCE), _tickdown_by_cron)
    cron = Tool("Debian's cron", "no limit", _cron)
    daemons = [
        Tool("cronstable", "no limit", lambda folder, jobs: _from_yaml("cronstable", folder, jobs)),
        Tool("cronstable, keeping a history", "no limit", _cronstable_with_state),
        Tool("yacron", "no limit", lambda folder, jobs: _from_yaml("yacron", folder, jobs)),
    ]
    apscheduler = Tool("APScheduler", str(AT_ONCE), _apscheduler)
    tools = [by_cron, cron, by_timer, *daemons, apscheduler]  # what is compared with each other, one after the other
    _measure_idle(bench, tools)
    for number, tool in enumerate(tools):
        _measure_starts(bench, tool, bench.folder / f"peer-{number}")
    head = ["", "idle minute, processor", "memory held", "delay", "burst", "at once"]
    section.tables.append(table(head, [tool.row for tool in tools]))
    pairs = [(by_cron, cron), *((by_timer, daemon) for daemon in daemons)]
    for ours, other in pairs:
        if ours.burst is not None and other.burst is not None:
            what = f"burst of {count:,}, {ours.name.removeprefix('Tickdown, ')}, over {other.name}"
            section.goals.append(Goal(what, ours.burst / other.burst, 1))
    section.tables.append(
        "Said plainly, each beside what starts like it:\n\n" + _plainly([*pairs, (by_timer, apscheduler)])
    )
    section.notes = [
        "Tickdown holds no memory between the minutes: what is shown is that of what starts it. An idle tick has a peak of"
        f" {_peak_of_a_tick(bench)}.",
        "Debian's cron wakes up one to two seconds after the minute. Where it starts Tickdown, that is part of Tickdown's delay"
        " and burst, as it is of its own; so each is compared with what starts like it: the tick that cron starts with cron, the"
        " one that starts with the minute, as under a systemd timer, with those that wait for the minute themselves.",
        "cronstable can limit what runs at once by resource pools on its state store; they are not used here.",
        "Tickdown and cronstable with a state store record every run for good; the others do not. APScheduler is a library, here"
        " in a program of a few lines that starts the jobs from threads; no goal is set against it.",
        f"Versions: {_versions()}.",
    ]
    return section


def _plainly(pairs: Sequence[tuple[Tool, Tool]]) -> str:
    """What is better and what is worse."""
    subjects: list[tuple[str, Callable[[Tool], float | None]]] = [
        ("Processor time of an idle minute", lambda tool: tool.idle),
        ("Memory held between the minutes", lambda tool: tool.memory),
        ("Delay of one job", lambda tool: tool.delay),
        ("Burst, until the last job", lambda tool: tool.burst),
    ]
    lines = []
    for subject, number_of in subjects:
        numbers = [(other.name, number_of(ours), number_of(other)) for ours, other in pairs]
        known = [(name, ours < other) for name, ours, other in numbers if ours is not None and other is not None]
        verdicts = [
            f"Tickdown is {word} than {', '.join(names)}"
            for word, is_less in (("better", True), ("worse", False))
            if (names := [name for name, less in known if less is is_less])
        ]
        lines.append(f"- {subject}: {'; '.join(verdicts) or 'not measured'}.")
    return "\n".join(lines)


def _peak_of_a_tick(bench: Bench) -> str:
    workspace = _workspace(bench.folder / "peak", _idle_jobs(bench))
    workspace.settle()
    return mib(workspace.tick().peak_kib)


def _versions() -> str:
    lines = (PROJECT / "bench/requirements.txt").read_text().splitlines()
    names = ("yacron=", "cronstable=", "apscheduler=")
    return ", ".join(line.replace("==", " ") for line in lines if line.lower().startswith(names))


# --- measuring ---------------------------------------------------------------------------------------------------


def _idle_jobs(bench: Bench) -> Jobs:
    return [(far_schedule(number), "true") for number in range(bench.scale.jobs)]


def _measure_idle(bench: Bench, tools: Sequence[Tool]) -> None:
    with contextlib.ExitStack() as stack:
        running: list[tuple[Tool, int]] = []
        for number, tool in enumerate(tools):
            folder = bench.folder / f"idle-peer-{number}"
            folder.mkdir()
            try:
                argv = tool.prepare(folder, _idle_jobs(bench))
            except CannotMeasure as error:
                tool.why_not |= {"idle": str(error), "memory": str(error)}
            else:
                running.append((tool, stack.enter_context(resident(argv, folder / "output"))))
        half = next_minute(START_UP) + 30  # what a minute brings is over by then
        sleep_until(half)
        before = [cpu_seconds(pid) for _, pid in running]
        sleep_until(half + 60)
        for (tool, pid), used_before in zip(running, before, strict=True):
            if memory := resident_kib(pid):
                tool.idle, tool.memory = cpu_seconds(pid) - used_before, memory
            else:
                tool.why_not |= dict.fromkeys(("idle", "memory"), "it ended by itself")


def _measure_starts(bench: Bench, tool: Tool, folder: Path) -> None:
    stamps = Stamps(folder / "stamps")
    stamps.make()
    first = next_minute(START_UP)
    minutes = [first + 60 * number for number in range(1, bench.scale.few_rounds + 1)]
    all_due = ",".join(str(time.gmtime(minute).tm_min) for minute in minutes)
    schedules = [EVERY_MINUTE] + [f"{all_due} * * * *"] * (bench.scale.jobs - 1)
    jobs = [(schedule, stamps.command(number)) for number, schedule in enumerate(schedules)]
    try:
        with resident(tool.prepare(folder, jobs), folder / "output") as pid:
            tool.delay = _wait_for_stamps(stamps, 1, first)
            for minute in minutes:
                tool.bursts.append(_wait_for_stamps(stamps, len(jobs), minute))
            while descendants(pid) and time.time() < minutes[-1] + PATIENCE:
                time.sleep(0.5)  # a tick that still writes its records is let end by itself
    except CannotMeasure as error:
        tool.bursts.clear()
        tool.why_not |= {"delay": str(error), "bursts": str(error)}


def _wait_for_stamps(stamps: Stamps, count: int, moment: float) -> float:
    sleep_until(moment)
    while len(stamps.since(moment)) < count and time.time() < moment + PATIENCE:
        time.sleep(0.5)
    return stamps.last_of(count, moment)


# --- the tools ---------------------------------------------------------------------------------------------------


def _workspace(root: Path, jobs: Jobs) -> Workspace:
    return workspaces.make(root, len(jobs), lambda number: workspaces.minimal(number, *jobs[number]), config=CONFIG)


def _tickdown_by_timer(folder: Path, jobs: Jobs) -> list[str]:
    return ["bash", "-c", EVERY_MINUTE_LOOP, "loop", *_settled(folder, jobs).command("tick")]


def _tickdown_by_cron(folder: Path, jobs: Jobs) -> list[str]:
    if (why := _why_no_cron()) is not None:
        raise CannotMeasure(why)
    tick = " ".join(_settled(folder, jobs).command("tick"))
    return _cron(folder, [(EVERY_MINUTE, f"{tick} >/dev/null")])


def _settled(folder: Path, jobs: Jobs) -> Workspace:
    workspace = _workspace(folder / "workspace", jobs)
    workspace.settle()
    return workspace


def _cron(folder: Path, jobs: Jobs) -> list[str]:
    if (why := _why_no_cron()) is not None:
        raise CannotMeasure(why)
    crontab, empty = folder / "crontab", folder / "empty"
    lines = "".join(f"{schedule} {command}\n" for schedule, command in jobs)
    crontab.write_text(f'SHELL=/bin/bash\nMAILTO=""\nPATH={ENVIRONMENT["PATH"]}\n{lines}')
    empty.touch(mode=0o644)
    return ["unshare", "--mount", "sh", "-c", CRON_UNDER_COVER, "sh", str(crontab), str(empty)]


def _why_no_cron() -> str | None:
    if shutil.which("cron", path=ENVIRONMENT["PATH"]) is None:
        return "no cron daemon is installed"
    if os.geteuid() != 0:
        return "only root can start a cron daemon"
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode != 0:
        return "private mounts (unshare --mount) are refused here"
    return None


def _cronstable_with_state(folder: Path, jobs: Jobs) -> list[str]:
    return _from_yaml("cronstable", folder, jobs, f"state:\n  path: {folder / 'state'}\n")


def _from_yaml(program: str, folder: Path, jobs: Jobs, more: str = "") -> list[str]:
    words = "".join(f"      - {word}\n" for word in BASH)
    entries = "".join(
        f"  - name: job-{number}\n    schedule: '{schedule}'\n    command:\n{words}      - {command}\n"
        for number, (schedule, command) in enumerate(jobs)
    )
    config = folder / "jobs.yaml"
    config.write_text(f"{more}jobs:\n{entries}")
    return [_installed(program), "-c", str(config)]


def _apscheduler(folder: Path, jobs: Jobs) -> list[str]:
    config = folder / "jobs.json"
    config.write_text(json.dumps([[schedule, [*BASH, command]] for schedule, command in jobs]))
    return [_installed("python"), str(PROJECT / "bench/apscheduler_jobs.py"), str(config), str(AT_ONCE)]


def _installed(program: str) -> str:
    if not (BIN.parent / "ready").exists():
        raise CannotMeasure("the packages of bench/requirements.txt are not installed")
    return str(BIN / program)
