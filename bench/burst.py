"""Many tasks in the same minute."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import workspaces
from bench.measure import ENVIRONMENT, CannotMeasure, next_minute, sleep_until
from bench.report import Goal, Section, ms, table, times
from bench.scale import Bench
from bench.workspaces import EVERY_MINUTE, Workspace

AT_ONCE = 16
CONFIG = f"max_concurrent: {AT_ONCE}\ntimezone: Etc/UTC\n"

BUILTIN = "echo $EPOCHREALTIME > {file}"  # within bash: nothing but the shell is started
EXTERNAL = "/bin/date +%s.%N > {file}"


@dataclass(frozen=True, slots=True)
class Stamps:
    """Jobs that leave the time of their own start in a file each."""

    folder: Path

    def command(self, number: int, template: str = BUILTIN) -> str:
        return template.format(file=self.folder / str(number))

    def make(self) -> None:
        """Files of earlier jobs stay and are written over: a file system that has just lost many makes new ones slowly."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def since(self, moment: float) -> list[float]:
        """The times that are complete; a file whose job has only just begun is still empty."""
        texts = [path.read_text() for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return [float(text) for text in texts if text.endswith("\n") and float(text) >= moment]

    def last_of(self, count: int, moment: float) -> float:
        """Seconds from that moment to the last of so many jobs."""
        found = self.since(moment)
        if len(found) != count:
            raise CannotMeasure(f"{len(found)} of {count} jobs left a time stamp")
        return max(found) - moment


@dataclass(slots=True)
class Variant:
    name: str
    jobs: list[str]
    workspace: Workspace
    stamps: Stamps
    tickdown: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)  # when the tick was over, its last records written
    xargs: list[float] = field(default_factory=list)

    def look_at_files(self) -> None:
        """So that they are in memory: some machines give back within a minute what nobody has looked at, and whoever comes
        first would pay for it."""
        for folder in (self.stamps.folder, self.workspace.root):
            for path in folder.rglob("*"):
                path.stat()

    def run_tick(self, at: float) -> None:
        self.stamps.make()
        tick = self.workspace.tick(at)
        self.tickdown.append(self.stamps.last_of(len(self.jobs), at))
        self.ended.append(tick.wall)
        self.workspace.check_recorded(len(self.jobs), at)

    def run_xargs(self) -> None:
        self.stamps.make()
        bash = shutil.which("bash") or "bash"
        argv = ["xargs", "-d", "\\n", "-n", "1", "-P", str(AT_ONCE), bash, "--noprofile", "--norc", "-c"]
        began = time.time()
        subprocess.run(argv, input="\n".join(self.jobs), text=True, env=ENVIRONMENT, check=True)
        self.xargs.append(self.stamps.last_of(len(self.jobs), began))


def measure_burst(bench: Bench) -> Section:
    count, rounds = bench.scale.jobs, bench.scale.some_rounds
    section = Section(
        "Burst",
        f"{count:,} shell tasks are due in the same minute, at most {AT_ONCE} at once; `xargs -P{AT_ONCE}` runs the same"
        " commands the same way (`bash --noprofile --norc -c`). Counted until the last job's own time stamp, from the start of"
        " the tick or of xargs. Each minute one tick for each kind of job, by turns the one or the other with the minute itself;"
        f" xargs runs before and after each tick; medians of {rounds} ticks and {2 * rounds} runs of xargs. Before each minute a"
        " tick with one task and a look at all files, so that nobody pays for what the machine has dropped from memory.",
    )
    variants = [_make(bench, "builtin", BUILTIN), _make(bench, "external", EXTERNAL)]
    other = workspaces.make(bench.folder / "burst-other", 1, lambda number: workspaces.minimal(number, EVERY_MINUTE))
    next_minute(least_seconds=25)
    for workspace in (*(variant.workspace for variant in variants), other):
        workspace.settle()  # from the next minute on they are due
    for number in range(rounds):
        at = next_minute(least_seconds=10)
        sleep_until(at - 8)
        other.tick()
        for variant in variants:
            variant.look_at_files()
        for variant in variants[:: 1 if number % 2 else -1]:
            variant.run_xargs()
            variant.run_tick(max(at, time.time() + 0.2))
            variant.run_xargs()
    rows = []
    for variant in variants:
        xargs, tickdown = statistics.median(variant.xargs), statistics.median(variant.tickdown)
        ended = statistics.median(variant.ended)
        rows.append([variant.name, ms(xargs), ms(tickdown), times(tickdown / xargs), ms(ended)])
        section.goals.append(Goal(f"burst of {count:,} over xargs, {variant.name}", tickdown / xargs, 1.5))
    section.tables.append(table(["job", "xargs", "Tickdown", "ratio", "end of the tick"], rows))
    section.notes = [
        f"builtin: `{BUILTIN}`; external: `{EXTERNAL}`.".replace("{file}", "FILE"),
        "After each tick it is checked that every run has its row with the status success.",
        "Tickdown gives its tasks a `SHELL`, as cron does. Without it, as under xargs here, bash looks its user up in the"
        " system's list at every start, which is about a tenth of what such a job costs.",
    ]
    return section


def _make(bench: Bench, name: str, template: str) -> Variant:
    stamps = Stamps(bench.folder / f"stamps-{name}")
    jobs = [stamps.command(number, template) for number in range(bench.scale.jobs)]
    workspace = workspaces.make(
        bench.folder / f"burst-{name}",
        bench.scale.jobs,
        lambda number: workspaces.minimal(number, EVERY_MINUTE, jobs[number]),
        config=CONFIG,
    )
    return Variant(name, jobs, workspace, stamps)
