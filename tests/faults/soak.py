"""Soak: many tasks with every form of schedule, broken, healed, mended and resumed at random, minute after minute.

A tick is a process of its own, so nothing can pile up in memory; what could is everything it reads and writes. So the
ticks of the last quarter must take no more than those of the first, the database no more than its rows explain, and what
the tables count must be what happened, found anew from history.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.clock import BEGIN, MINUTE, Clock, assert_each_has_one_row
from tests.faults.invariants import check
from tests.faults.kinds import kind
from tests.healing import copy_of_the_program, says
from tests.helpers import PATIENCE, Workspace

MEASURED = Path(__file__).with_name("measured.py")
FAILURES = ("failed", "timeout", "killed")
CRON = (
    "* * * * *", "*/2 * * * *", "1-59/3 * * * *", "*/7 * * * *", "3-59/11 * * * *", "*/10 8-18 * * mon-fri", "0 6 * * 1-5",
    "0 0 L * *", "0 9 * * mon#1", "5,35 * 1-20 * *", "*/20 */2 * * *",
)  # fmt: skip
OTHERS = (
    "H * * * *", "H/9 * * * *", "H H * * *", "@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually",
    "@reboot", "30s", "2m", "10m", "0.5h", "1.5h", "2d", "1w", "every 3 minutes", "every 15 minutes", "every hour", "hourly",
    "every day at 09:00", "daily", "every week on monday at 09:00", "weekly", "every monday at 09:00", "every weekday at 18:30",
    "in 30 minutes", "tomorrow at 09:00", "manual",
)  # fmt: skip
# What the healer does when it is called; `$SCRIPT` is what the task runs.
HEALERS = (
    *[f"sed -i '/exit/d' $SCRIPT; {says()}"] * 4,
    f"echo '# a try' >> $SCRIPT; {says()}",
    f"echo '# a try' >> config.yaml; sed -i '/exit/d' $SCRIPT; {says()}",
    says("gave_up"),
    says("needs_human"),
    "exit 1",
)
BREAKS = ("exit 3", "exit 3", "exit 4", "echo 'HTTP 503 Service Unavailable'; exit 1")
MOST_MORE_KIB = 8 * 1024  # the database's own cache (2 MiB) fills up, and a healer's work is larger than no work
PAGES_AT_LEAST = 60  # each table and index has one of its own
BYTES_PER_BYTE = 3  # what a row takes in its table and in all indexes, over what is in it


@kind("soak, 25 tasks, 20 minutes", seeds=1)
def _(random: Random, workspace: Workspace) -> None:
    Soak(random, workspace, tasks=25, ticks=20).run()


@kind("soak, 200 tasks, 4 hours", seeds=0, seconds=600)
def _(random: Random, workspace: Workspace) -> None:
    Soak(random, workspace, tasks=200, ticks=240).run()


@dataclass(slots=True)
class Usage:
    peak_kib: int
    descriptors: int
    rows: int  # bytes in all rows
    pages: int  # bytes of all pages that are in use


@dataclass
class Soak:
    random: Random
    workspace: Workspace
    tasks: int
    ticks: int
    lines: dict[str, str] = field(default_factory=dict)  # of the tasks with a plain cron line
    resumed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # after so many rows of history
    usage: list[Usage] = field(default_factory=list)

    def run(self) -> None:
        clock, now = Clock(self.workspace), BEGIN + self.random.randint(0, 365 * 1440) * MINUTE
        self.set_up(now)
        for number in range(self.ticks):
            clock.go_on_from(now)
            self.usage.append(self.measured_tick())
            now += MINUTE
            if number % 5 == 4:
                self.care()
            self.trouble()
        clock.stand_at(now)
        self.measured_tick()
        check(self.workspace)
        self.check_usage()
        self.check_counters()
        for task_id in self.lines.keys() - self.resumed.keys() - self.suspended().keys():
            line, ends = self.lines[task_id], ("success", *FAILURES)
            assert_each_has_one_row(self.workspace, task_id, line, "UTC", now, ends)

    # --- what goes on ------------------------------------------------------------------------------------------

    def set_up(self, now: datetime) -> None:
        root = self.workspace.root
        outside = root.parent / "outside"
        for folder in (root / "scripts", outside / "bin", outside / "home"):
            folder.mkdir(parents=True)
        self.workspace.scheduler = copy_of_the_program()
        self.workspace.environment["HOME"] = str(outside / "home")
        healer = outside / "bin" / "doctor"
        cases = "\n".join(
            f"{number}) {what} ;;" for number, what in enumerate(self.random.sample(HEALERS, len(HEALERS)))
        )
        healer.write_text(
            "#!/bin/bash\ncat > /dev/null\nSCRIPT=scripts/$TICKDOWN_TASK_ID.sh\n"
            f"echo >> {outside}/calls\ncase $(($(wc -l < {outside}/calls) % {len(HEALERS)})) in\n{cases}\nesac\n"
        )
        healer.chmod(0o755)
        self.workspace.config(
            f"agents:\n  doctor: [{healer}]\nhealer: doctor\nheal_timeout: 60s\nheals_per_day: 1000\nmax_concurrent: 8\n"
        )
        for number in range(self.tasks):
            self.make_task(number, now)

    def make_task(self, number: int, now: datetime) -> None:
        random, task_id = self.random, f"task-{number}"
        soon = now + random.randint(5, 25) * MINUTE
        schedule = random.choice(
            [random.choice(CRON), random.choice([*OTHERS, f"at {soon:%H:%M}", f"on {soon:%Y-%m-%d at %H:%M}"])]
        )
        if schedule in CRON:
            self.lines[task_id] = schedule
        fields: dict[str, Any] = {"env": {"LD_PRELOAD": ""}, "self_heal": random.random() < 0.6}
        fields |= random.choice([{}, {}, {"retry": True}, {"retry": 2, "retry_delay": "1s"}, {"suspend_after": 3}])
        if schedule == "manual" and number:
            fields["after"] = {f"task-{random.randrange(number)}": random.choice(["success", "failure", "always"])}
        self.write_script(task_id, ":")
        self.workspace.task(task_id, f"./scripts/{task_id}.sh", schedule, **fields)

    def write_script(self, task_id: str, line: str) -> None:
        word = 'echo "$TICKDOWN_RUN_ID $TICKDOWN_ATTEMPT'
        journal = self.workspace.root / "journal"
        path = self.workspace.root / "scripts" / f"{task_id}.sh"
        # The healer takes out each line with an `exit`.
        path.write_text(
            f'#!/bin/sh\n{word} began" >> {journal}\n({line})\ncode=$?\n{word} ended $code" >> {journal}\nexit $code\n'
        )
        path.chmod(0o755)

    def trouble(self) -> None:
        for number in self.random.sample(range(self.tasks), self.tasks // 8):
            self.write_script(f"task-{number}", self.random.choice([*BREAKS, ":", ":"]))

    def care(self) -> None:
        """What a person does about a few of those that are suspended."""
        known = sorted(self.suspended())
        for task_id in self.random.sample(known, min(len(known), 2)):
            self.write_script(task_id, ":")
            self.workspace.cli("resume", task_id)
            self.resumed[task_id].append(self.rows_of(task_id))

    def suspended(self) -> dict[str, str]:
        """Tasks whose files say that they are, with the text of those."""
        texts = {path.stem: path.read_text() for path in (self.workspace.root / "tasks").glob("*.md")}
        return {task_id: text for task_id, text in texts.items() if "auto_suspended" in text}

    def rows_of(self, task_id: str) -> int:
        ((count,),) = self.workspace.sql("SELECT COUNT(*) FROM task_runs WHERE task_id = ?", task_id)
        return int(count)

    # --- what it takes -----------------------------------------------------------------------------------------

    def measured_tick(self) -> Usage:
        out = self.workspace.root.parent / "measured"
        _, *command = self.workspace.argv("tick")
        done = subprocess.run(
            [sys.executable, str(MEASURED), str(out), *command], env=self.workspace.environment, capture_output=True,
            text=True, cwd=self.workspace.root, timeout=PATIENCE * 5,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.workspace.scheduler_log()[-3000:]}"
        peak, descriptors = map(int, out.read_text().splitlines()[-1].split())
        return Usage(peak, descriptors, self.bytes_in_rows(), self.bytes_in_pages())

    def bytes_in_rows(self) -> int:
        total = 0
        for (table,) in self.workspace.sql(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ):
            columns = [row[1] for row in self.workspace.sql(f"PRAGMA table_info({table})")]
            length = " + ".join(f"COALESCE(LENGTH(CAST({name} AS BLOB)), 0) + 1" for name in columns)
            total += self.workspace.sql(f"SELECT COALESCE(SUM({length}), 0) FROM {table}")[0][0]
        return total

    def bytes_in_pages(self) -> int:
        ((size,),) = self.workspace.sql(
            "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )
        return int(size)

    def check_usage(self) -> None:
        quarter = self.ticks // 4
        first, last = self.usage[1 : 1 + quarter], self.usage[-quarter:]  # the very first reads all files
        peaks = [max(one.peak_kib for one in part) for part in (first, last)]
        assert peaks[1] <= peaks[0] + MOST_MORE_KIB, (
            f"the memory of a tick grew: {[one.peak_kib for one in self.usage]}"
        )
        opened = [max(one.descriptors for one in part) for part in (first, last)]
        # A heal keeps the file of the database open on purpose: closing it would drop the locks of this process on it.
        assert opened[1] <= opened[0] + 1, f"descriptors were left open: {[one.descriptors for one in self.usage]}"
        least = PAGES_AT_LEAST * 4096
        for one in self.usage:
            assert one.pages <= least + BYTES_PER_BYTE * one.rows, f"{one.pages} bytes for {one.rows} in rows"
        log = self.workspace.root / "state" / "tickdown.db-wal"
        assert not log.exists() or log.stat().st_size < 8 << 20, "the log of the database is never merged"
        for table in ("heartbeats", "snapshots"):
            assert self.workspace.sql(f"SELECT COUNT(*) FROM {table}") == [(self.ticks + 1,)], (
                f"one of {table} per tick"
            )

    # --- what is counted ---------------------------------------------------------------------------------------

    def check_counters(self) -> None:
        sql = self.workspace.sql
        assert sql("SELECT DISTINCT status FROM alerts") in ([], [("sent",)])
        wrong = sql(
            "SELECT run_id, attempts, (SELECT COUNT(*) FROM attempts WHERE attempts.run_id = task_runs.run_id) AS rows FROM task_runs"
            " WHERE status NOT IN ('skipped', 'missed') AND attempts <> rows"
        )
        assert not wrong, f"runs and the number of their attempts: {wrong}"
        self.check_failures()
        self.check_heals()
        self.check_tickets()
        kinds = Counter(dict(sql("SELECT status, COUNT(*) FROM task_runs GROUP BY status")))
        assert kinds["success"] and kinds["failed"], f"nothing was tried: {kinds}"

    def check_failures(self) -> None:
        """Counted anew from history: one more for each failure that is the task's own, none after a success or a resume."""
        for task_id, counted in self.workspace.sql("SELECT id, failures FROM tasks"):
            rows = self.workspace.sql(
                "SELECT status, error_class FROM task_runs WHERE task_id = ? ORDER BY recorded_at, rowid", task_id
            )
            failures = 0
            for number, (status, error_class) in enumerate(rows):
                if number in self.resumed[task_id] or status == "success":
                    failures = 0
                if status in FAILURES and error_class != "transient":
                    failures += 1
            if len(rows) in self.resumed[task_id]:
                failures = 0
            assert counted == failures, f"{task_id} counts {counted} failures, not {failures}: {rows}"

    def check_heals(self) -> None:
        sql = self.workspace.sql
        heals = sql("SELECT run_id, attempt, task_id, status FROM heals ORDER BY run_id, attempt")
        assert {status for *_, status in heals} <= {"kept", "restored"}, "a heal that has not ended"
        attempts = sql("SELECT run_id, number, rung, status FROM attempts ORDER BY run_id, number")
        assert [key for *key, rung, _ in attempts if rung == "heal"] == [key for *key, _, _ in heals], (
            "heals and attempts"
        )
        per_run, per_task = (Counter(heal[index] for heal in heals) for index in (0, 2))
        days = 1 + self.ticks // 1440 + 1
        assert max(per_run.values(), default=0) <= 2 and max(per_task.values(), default=0) <= 3 * days
        ends = [(run_id, number, (rung, status)) for run_id, number, rung, status in attempts]
        proven = {(run_id, number - 1) for run_id, number, end in ends if end == ("verify", "success")}
        kept = {(run_id, number) for run_id, number, _, status in heals if status == "kept"}
        assert kept <= proven, f"kept without a proof: {kept - proven}"
        audit = self.workspace.root / "logs" / "self-heal-audit.log"
        lines = [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []
        told = Counter((line["run"], line["attempt"]) for line in lines)
        assert set(told) == {(run_id, number) for run_id, number, *_ in heals}, "the audit log tells of every heal"

    def check_tickets(self) -> None:
        still_open = set(self.workspace.sql("SELECT task_id, kind FROM tickets WHERE closed_at IS NULL"))
        suspended = set(self.suspended())
        assert suspended == {task_id for task_id, ticket in still_open if ticket == "suspended"}
        alerted = {run_id for (run_id,) in self.workspace.sql("SELECT run_id FROM alerts WHERE kind = 'suspended'")}
        behind = {run_id for (run_id,) in self.workspace.sql("SELECT run_id FROM tickets WHERE kind = 'suspended'")}
        assert alerted == behind, "each suspension is told and ticketed once"
        for (task_id,) in self.workspace.sql("SELECT id FROM tasks WHERE failures >= 3 AND enabled"):
            assert (task_id, "failing") in still_open, f"{task_id} keeps failing without a ticket"
