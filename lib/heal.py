"""One heal: what the healer is told, what it did, and whether that stays.

Before the agent starts, everything it could touch is saved, in memory and on disk (`state/heals/RUN-ATTEMPT/`). After it:
forbidden changes and what fails a check take everything back; otherwise the edits stay until the task has run with them.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time
from pathlib import Path

from lib import guard
from lib.agents import Agent, Answer, Purpose, last_object_with
from lib.catalog import load_file
from lib.context import Context
from lib.errors import TickdownError
from lib.guard import Change, Entry, Findings, Scope, Snapshot, Surrounds
from lib.ladder import NoHeal, error_signature
from lib.model import HealRow, HealStatus, HealVerdict, RunStatus, TicketKind
from lib.outcomes import Outcome
from lib.process import host_name, is_alive
from lib.prompts import SELF_HEAL, mark, prompt
from lib.redact import Redactor
from lib.runners import CannotRun, Command, Place, agent_command, find_agent, working_folder
from lib.store import costs, heals, runs
from lib.store.tickets import is_open
from lib.task import Task
from lib.taskfile import EditRefused, healed
from lib.terminal import one_line, printable
from lib.workspace import Workspace, make_private_dir, private_opener, replace_file
from lib.yamltree import YamlError, parse_yaml
from lib.zones import get_zone

LOG_LINES = 200
LONGEST_LINE = 2000
CHECK_WITHIN = 10.0
LARGEST_DATABASE = 256 * 1024 * 1024  # that is copied before a heal
LONGEST_DIFF = 256 * 1024


# --- whether ---------------------------------------------------------------------------------------------------


def midnight(context: Context, now: datetime) -> datetime:
    """When today began, by the configured zone."""
    zone = get_zone(context.settings.config.timezone)
    return datetime.combine(now.astimezone(zone).date(), time(), zone)


def healer_of(context: Context) -> Agent | None:
    config = context.settings.config
    return config.agents[config.healer] if config.healer else None


def place_of(context: Context) -> Place:
    return Place(context.workspace, context.settings)


def why_no_heal(context: Context, task: Task, now: datetime, *, allowed: bool = True) -> NoHeal | None:
    """None if the healer may be asked about this task now."""
    healer = healer_of(context)
    if healer is None:
        return NoHeal.OFF
    if not task.self_heal:
        return NoHeal.BY_TASK
    if task.request is not None:
        return NoHeal.NOTHING_TO_EDIT
    if find_agent(healer, place_of(context)) is None:
        return NoHeal.NOT_INSTALLED
    if not allowed:
        return NoHeal.BY_HAND
    if is_open(context.db, task.id, TicketKind.NEEDS_HUMAN):
        return NoHeal.ASKED_A_HUMAN
    today, config = midnight(context, now), context.settings.config
    if config.budget_usd_per_day is not None and costs.spent(context.db, today) >= config.budget_usd_per_day:
        return NoHeal.NO_BUDGET
    return heals.no_heal_left(context.db, task.id, today, config.heals_per_day)


def remaining_budget(context: Context, now: datetime) -> float | None:
    limit = context.settings.config.budget_usd_per_day
    return None if limit is None else max(0.01, limit - costs.spent(context.db, midnight(context, now)))


# --- what the healer is told -----------------------------------------------------------------------------------


def scope_for(context: Context, task: Task) -> Scope:
    return guard.scope_of(task, context.workspace, _folder(context, task))


def _folder(context: Context, task: Task) -> Path | None:
    try:
        return working_folder(task, context.workspace, context.settings.config.cwd_policies)
    except CannotRun:
        return None


def heal_prompt(
    context: Context, task: Task, scope: Scope, error: str, log: str, earlier: Sequence[HealRow], redactor: Redactor
) -> str:
    files = [f"- {scope.shown(path)}" for path in scope.editable]
    values = {
        "task_id": task.id,
        "title": task.title,
        "task_file": task.path,
        "run_as": task.run_as,
        "cwd": str(_folder(context, task) or "(which does not exist)"),
        "command": task.command or task.prompt,
        "body": task.body or "(nothing)",
        "error": error,
        "history": "".join(_earlier(row) for row in earlier),
        "files": "\n".join(files),
        "log": last_lines(log),
        "mark": mark(),
    }
    clean = {name: printable(redactor.text(text)) for name, text in values.items()}
    return prompt(context.workspace, SELF_HEAL, clean)


def _earlier(row: HealRow) -> str:
    said = f"it said {row.verdict}" if row.verdict else "it gave no verdict"
    cause = f", cause: {row.cause}" if row.cause else ""
    files = f"; it changed {', '.join(row.files)}" if row.files else "; it changed nothing"
    trouble = f" ({row.problem})" if row.problem else ""
    return f"A repair was tried before: {said}{cause}{files}{trouble}. That did not help and was undone.\n"


def last_lines(text: str) -> str:
    return "\n".join(line[:LONGEST_LINE] for line in text.splitlines()[-LOG_LINES:])


def log_tail(path: Path, span: tuple[int, int] | None = None) -> str:
    """The end of a run's log, or of one part of it."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start, end = span if span is not None else (0, size)
            file.seek(max(min(start, size), end - LOG_LINES * 500))
            return last_lines(file.read(max(0, end - file.tell())).decode("utf-8", "replace"))
    except OSError:
        return ""


# --- one heal --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """The healer's own answer."""

    verdict: HealVerdict | None = None
    cause: str = ""

    @classmethod
    def of(cls, text: str) -> Said:
        found = last_object_with(text, "verdict") or {}
        try:
            verdict = HealVerdict(str(found.get("verdict")))
        except ValueError:
            verdict = None
        return cls(verdict, one_line(str(found.get("cause") or ""), 500))


@dataclass(frozen=True, slots=True)
class Result:
    row: HealRow
    edited: bool  # the edits are in place and wait for their proof
    diff: str
    notes: tuple[str, ...] = ()  # for the log of the run


class Heal:
    """From the snapshot to the verdict. `row` is written already: it counts, however this ends."""

    def __init__(self, context: Context, task: Task, row: HealRow, redactor: Redactor) -> None:
        self.context, self.task, self.row, self.redactor = context, task, row, redactor
        self.folder = context.workspace.heals / f"{row.run_id}-{row.attempt}"
        self.scope = scope_for(context, task)
        self.around = surrounds(context)
        self.before: Snapshot | None = None  # nothing is compared, and so nothing restored, before it is complete
        self.diff = ""
        self._database: tuple[int, int] | None = None  # its inode, and a copy to read from

    def begin(
        self, error: str, log: str, earlier: Sequence[HealRow], variables: Mapping[str, str], now: datetime
    ) -> Command:
        """Save everything, then the command that starts the healer. OSError if it can't be saved."""
        healer = healer_of(self.context)
        assert healer is not None
        before = guard.take(self.scope, self.around)
        _write(self.folder / "scope.json", json.dumps([str(path) for path in self.scope.editable]))
        guard.save(self.folder / "all", before)
        self.before = before
        self._keep_database()
        text = heal_prompt(self.context, self.task, self.scope, error, log, earlier, self.redactor)
        _write(self.folder / "prompt.txt", text)
        root, budget = self.context.workspace.root, remaining_budget(self.context, now)
        folders = self.scope.folders_outside
        own = {**variables, "GIT_OPTIONAL_LOCKS": "0"}  # or looking with `git status` would change .git
        return agent_command(healer, Purpose.HEAL, text, place_of(self.context), own, root, budget, folders)

    def finish(self, answer: Answer | None, outcome: Outcome, now: datetime) -> Result:
        """The agent and all it started are gone. Look at what it did."""
        if self.before is None:
            self.row = replace(self.row, status=HealStatus.RESTORED, problem=self.redactor.text(outcome.error or ""))
            return Result(self.row, edited=False, diff="")
        said = Said.of(answer.text) if answer is not None else Said()
        problems = self._see_to_the_database(now)
        findings = self._compare(self.before)
        problems += self._judge(findings, outcome)
        edits = [change for change in findings.edits if not _same(change)]
        self.diff = self.redactor.text(diff_of(edits, self.scope))
        self._save_edits(self.before, edits)
        if problems or said.verdict in (HealVerdict.NEEDS_HUMAN, HealVerdict.GAVE_UP):
            problems += [f"not put back: {name}" for name in self._put_back([*findings.edits, *findings.forbidden])]
            status = HealStatus.RESTORED
        else:
            status = HealStatus.UNPROVEN
        row = replace(
            self.row,
            status=status,
            verdict=said.verdict,
            cause=self.redactor.text(said.cause) or None,
            problem=self.redactor.text("; ".join(problems)) or None,
            files=tuple(self.scope.shown(change.path) for change in edits),
            cost_usd=outcome.usage.cost_usd,
        )
        self.row = row
        notes = [
            f"left alone, somebody else writes it: {self.scope.shown(change.path)}" for change in findings.others[:10]
        ]
        notes += [f"not watched, too much in it: {name}" for name in self.before.unwatched[:5]]
        return Result(row, status is HealStatus.UNPROVEN, self.diff, tuple(notes))

    def recorded(self) -> None:
        """What came of it is in the database: the rest of the snapshot has served."""
        guard.remove_folder(self.folder / "all")

    def undo(self) -> list[str]:
        """The edits go; the names of files that could not be restored."""
        if self.before is None:
            return []
        return self._put_back(_edits(self.before.entries, self.scope.editable))

    # --- looking ---

    def _compare(self, before: Snapshot) -> Findings:
        db, since = self.context.db, self.row.started_at
        own, others = heals.own_edits(db, since), heals.others_at_work(db, self.row.run_id, since)
        return guard.compare(self.scope, before, self.around, own, others)

    def _judge(self, findings: Findings, outcome: Outcome) -> list[str]:
        """What speaks against the heal. Brings allowed edits into order on the way: modes, the task's frontmatter."""
        problems = []
        if outcome.status is not RunStatus.SUCCESS:
            problems.append(f"the healer failed: {outcome.error}")
        problems += [
            f"{change.word} {self.scope.shown(change.path)}, which it may not" for change in findings.forbidden[:30]
        ]
        for index, change in enumerate(findings.edits):
            try:
                findings.edits[index] = self._in_order(change)
            except (EditRefused, OSError) as error:
                problems.append(f"{self.scope.shown(change.path)}: {error}")
        if not problems:
            problems += [problem for change in findings.edits if (problem := self._check(change)) is not None]
        return problems

    def _in_order(self, change: Change) -> Change:
        old, new = change.before, change.after
        if new is None:
            raise EditRefused("was removed")
        if new.kind != "file" or (old is not None and old.kind != "file"):
            raise EditRefused("is not a plain file any more")
        if new.content is None:
            raise EditRefused(f"is over {guard.LARGEST_KEPT // 1024**2} MiB")
        if old is None:
            return change
        content = new.content
        if change.path == self.scope.task_file:
            assert old.content is not None
            try:
                content = healed(old.content.decode("utf-8"), content.decode("utf-8")).encode("utf-8")
            except UnicodeDecodeError as error:
                raise EditRefused(f"is not valid UTF-8: {error}") from None
        if (content, new.mode, new.owner) != (new.content, old.mode, old.owner):
            # Tools that write a new file in the place of the old one lose its mode; and frontmatter is not theirs.
            replace_file(change.path, content, old.mode, old.owner)
        after = guard.read_entry(change.path)
        return Change(change.path, old, after)

    def _check(self, change: Change) -> str | None:
        shown = self.scope.shown(change.path)
        if change.path == self.scope.task_file:
            loaded = load_file(self.context.workspace.root / self.task.path, self.context.workspace,
                               self.context.settings.config.surroundings())  # fmt: skip
            if loaded.task is None:
                return "; ".join(loaded.errors)
            if loaded.task.run_as == "shell" and (problem := _bash_says(["-c", loaded.task.command])):
                return f"{shown}: command: {problem}"
            return None
        content = change.after.content if change.after is not None else None
        problem = syntax_problem(change.path, content or b"")
        return f"{shown}: {problem}" if problem else None

    # --- going back ---

    def _put_back(self, changes: Sequence[Change]) -> list[str]:
        """What is overwritten is not lost: it may have been somebody else after all."""
        kept = {
            change.path: change.after
            for change in changes
            if change.after is not None and change.path not in self.scope.editable
        }
        if kept:
            try:
                guard.save(self.folder / "found", Snapshot(kept, self.row.started_at.timestamp()))
            except OSError as error:
                self.context.log.error("heal_not_kept", run_id=self.row.run_id, error=str(error))
        return guard.restore(changes)

    def _save_edits(self, before: Snapshot, edits: Sequence[Change]) -> None:
        """Only what was changed is kept from here on, for `heal --diff` and `--undo`."""
        wanted = {change.path: change.before for change in edits if change.before is not None}
        made = {change.path: change.after for change in edits if change.after is not None}
        tops = {change.path for change in edits}
        try:
            guard.save(self.folder / "before", Snapshot(wanted, before.taken_at, tops=tops))
            guard.save(self.folder / "after", Snapshot(made, before.taken_at, tops=tops))
            _write(self.folder / "scope.json", json.dumps([str(path) for path in self.scope.editable]))
            _write(self.folder / "diff", self.diff)
        except OSError as error:
            self.context.log.error("heal_not_saved", run_id=self.row.run_id, error=str(error))

    # --- the database ---

    def _keep_database(self) -> None:
        path, copy = self.context.db.path, self.folder / "tickdown.db"
        if path.stat().st_size > LARGEST_DATABASE:
            return
        self.context.db.copy_to(copy)
        # Read from its descriptor later, whatever happens to the name.
        self._database = (path.stat().st_ino, os.open(copy, os.O_RDONLY | os.O_CLOEXEC))

    def _see_to_the_database(self, now: datetime) -> list[str]:
        """It must still be the same file, and sound; otherwise the copy takes its place."""
        if self._database is None:
            return []
        inode, descriptor = self._database
        self._database = None
        db = self.context.db
        try:
            make_private_dir(self.context.workspace.state)
            make_private_dir(self.folder)
            if _is_sound(db.path, inode):
                return []
            copy = self.folder / "tickdown.db.again"
            with open(descriptor, "rb", closefd=False) as file:
                replace_file(copy, file.read(), 0o600)
            db.put_in_place(copy, now)
            return ["damaged the database of Tickdown, which it may not"]
        finally:
            os.close(descriptor)
            for name in ("tickdown.db", "tickdown.db-journal"):
                (self.folder / name).unlink(missing_ok=True)


def _is_sound(path: Path, inode: int) -> bool:
    try:
        with open(path, "rb") as file:
            same = os.fstat(file.fileno()).st_ino == inode and file.read(16) == b"SQLite format 3\0"
        if not same:  # even if SQLite itself would not notice, as long as all pages are in its write-ahead log
            return False
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        finally:
            connection.close()
    except (OSError, sqlite3.Error):
        return False


def _equal(old: Entry | None, new: Entry | None) -> bool:
    return old is new or (old is not None and new is not None and old.same_as(new))


def _same(change: Change) -> bool:
    return _equal(change.before, change.after)


def _write(path: Path, text: str) -> None:
    make_private_dir(path.parent)
    with open(path, "wb", opener=private_opener) as file:
        file.truncate()
        file.write(text.encode("utf-8", "surrogateescape"))


def surrounds(context: Context) -> Surrounds:
    home, config = context.settings.environment.get("HOME"), context.settings.config
    folders = [os.path.expanduser(agent.config_dir) for agent in config.agents.values() if agent.config_dir]
    return Surrounds(
        Path(home) if home and os.path.isabs(home) else None,
        context.db.path,
        tuple(context.workspace.root / folder for folder in folders),
    )


# --- checks of what was edited ---------------------------------------------------------------------------------


def syntax_problem(path: Path, content: bytes) -> str | None:
    """What the reader of such a file would say at once."""
    first = content[:100].split(b"\n")[0] if content.startswith(b"#!") else b""
    if path.suffix == ".py" or b"python" in first:
        return _python_says(path, content)
    if path.suffix in (".sh", ".bash") or first.endswith((b"/sh", b"bash", b" sh")):
        return _bash_says([str(path)])
    try:
        if path.suffix == ".json":
            json.loads(content)
        elif path.suffix in (".yaml", ".yml"):
            parse_yaml(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return f"not valid: {one_line(str(error), 300)}"
    except YamlError as error:
        return f"line {error.problem.line}: {error.problem.message}"
    return None


def _python_says(path: Path, content: bytes) -> str | None:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"can't be compiled: {error}"
    return None


def _bash_says(arguments: list[str]) -> str | None:
    try:
        done = subprocess.run(
            ["bash", "--norc", "--noprofile", "-n", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=CHECK_WITHIN, env={"PATH": os.environ.get("PATH", os.defpath)}, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None  # no bash: the run will tell
    return one_line(done.stderr.decode("utf-8", "replace"), 300) if done.returncode else None


def diff_of(edits: Sequence[Change], scope: Scope) -> str:
    """Unified, as `diff -u` writes it."""
    parts = []
    for change in edits:
        name = scope.shown(change.path)
        old, new = _text_of(change.before), _text_of(change.after)
        if old is None or new is None:
            parts.append(f"Binary file {name} {change.word}\n")
            continue
        lines = difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)[:LONGEST_DIFF]


def _text_of(entry: Entry | None) -> str | None:
    if entry is None:
        return ""
    try:
        return entry.content.decode("utf-8") if entry.content is not None and b"\0" not in entry.content else None
    except UnicodeDecodeError:
        return None


# --- the audit log ---------------------------------------------------------------------------------------------


def audit(context: Context, row: HealRow, diff: str, rerun: str, redactor: Redactor, now: datetime) -> None:
    """One line for every heal, once it is known how it ended. `rerun` is the status of the run after it, or why there was
    none."""
    zone = get_zone(context.settings.config.timezone)
    record = {
        "time": now.astimezone(zone).isoformat(timespec="seconds"),
        "task": row.task_id,
        "run": row.run_id,
        "attempt": row.attempt,
        "error_signature": row.signature,
        "files": list(row.files),
        "diff": diff,
        "verdict": row.verdict,
        "cause": row.cause,
        "problem": row.problem,
        "cost": row.cost_usd,
        "rerun_result": rerun,
        "status": row.status,
    }
    line = json.dumps(redactor.tree(record), ensure_ascii=False) + "\n"
    try:
        with open(context.workspace.audit_log, "ab", buffering=0, opener=private_opener) as file:
            file.write(line.encode("utf-8", "replace"))
            os.fsync(file.fileno())
    except OSError as error:
        context.log.error("audit_not_written", task_id=row.task_id, run_id=row.run_id, error=str(error), line=line)


# --- heals of the past -----------------------------------------------------------------------------------------


def new_row(run_id: str, attempt: int, task_id: str, failed: Outcome, now: datetime) -> HealRow:
    return HealRow(run_id, attempt, task_id, now, HealStatus.RUNNING, error_signature(failed))


def take_back_interrupted(context: Context, run_id: str, now: datetime) -> None:
    """The supervisor of a heal died: nobody knows how far it got, so nothing of it stays."""
    for row in heals.of_run(context.db, run_id):
        if row.status not in (HealStatus.RUNNING, HealStatus.UNPROVEN):
            continue
        folder = context.workspace.heals / f"{row.run_id}-{row.attempt}"
        problems, diff = _take_back(context, row, folder)
        row = replace(row, status=HealStatus.RESTORED, problem="; ".join(["its supervisor died", *problems]))
        with context.db.transaction() as connection:
            heals.record(connection, row)
        guard.remove_folder(folder / "all")
        audit(context, row, diff, "interrupted", context.redactor, now)


def _take_back(context: Context, row: HealRow, folder: Path) -> tuple[list[str], str]:
    try:
        unproven = row.status is HealStatus.UNPROVEN
        before, editable = guard.load(folder / ("before" if unproven else "all")), _saved_scope(folder)
    except (OSError, ValueError):
        return [], ""  # it had not begun: the snapshot comes first
    scope = Scope(context.workspace, editable[0], editable)
    if unproven:
        findings = Findings(edits=_edits(before.entries, sorted(before.tops)))
    else:
        own = heals.own_edits(context.db, row.started_at)
        others = heals.others_at_work(context.db, row.run_id, row.started_at)
        findings = guard.compare(scope, before, surrounds(context), own, others)
    diff = context.redactor.text(diff_of(findings.edits, scope))
    return [f"not put back: {name}" for name in guard.restore([*findings.edits, *findings.forbidden])], diff


def _edits(before: Mapping[Path, Entry], paths: Sequence[Path]) -> list[Change]:
    changes = [Change(path, before.get(path), guard.read_entry(path)) for path in paths]
    return [change for change in changes if not _same(change)]


def _saved_scope(folder: Path) -> tuple[Path, ...]:
    return tuple(
        Path(name) for name in json.loads((folder / "scope.json").read_text(encoding="utf-8", errors="surrogateescape"))
    )


def take_back_orphaned(context: Context, now: datetime) -> None:
    """Of every run whose supervisor is dead; for a tick that can do nothing else, perhaps because of such a heal."""
    for run in runs.running_runs(context.db):
        if run.owner is None or run.host != host_name() or is_alive(run.owner):
            continue
        take_back_interrupted(context, run.run_id, now)


class NotUndone(TickdownError):
    pass


def undo(context: Context, run_id: str, now: datetime) -> list[str]:
    """Put back what the heals of a run changed, unless somebody has edited it since: the files."""
    changes, edited = [], []
    for row in heals.of_run(context.db, run_id):
        if row.status is not HealStatus.KEPT:
            continue
        folder = context.workspace.heals / f"{row.run_id}-{row.attempt}"
        try:
            before, after = guard.load(folder / "before"), guard.load(folder / "after")
        except (OSError, ValueError) as error:
            raise NotUndone(f"the snapshot {folder} can't be read: {error}") from None
        for path in sorted(before.tops):
            current = guard.read_entry(path)
            if not _equal_content(current, after.entries.get(path)):
                edited.append(context.workspace.relative(path))
            changes.append(Change(path, before.entries.get(path), current))
    if edited:
        raise NotUndone(f"edited since the heal: {', '.join(sorted(edited))}")
    failed = guard.restore(changes)
    if failed:
        raise NotUndone("could not be put back: " + "; ".join(failed))
    for change in changes:
        note_own_edit(context, change.path, now)
    return sorted(context.workspace.relative(change.path) for change in changes)


def end_probation(context: Context, run_id: str, now: datetime) -> str:
    """The task failed while its heal was on probation: the heal goes. In words, what became of it."""
    try:
        files = undo(context, run_id, now)
    except NotUndone as error:
        return f"The heal of run {run_id} was on probation, but is still there: {error}."
    return f"The heal of run {run_id} was on probation and is undone: {', '.join(files) or 'it had changed nothing'}."


def note_own_edit(context: Context, path: Path, now: datetime) -> None:
    """So that a heal that is going on is not blamed for what this program wrote itself."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return
    heals.note_own_edit(context.db, context.workspace.relative(path), digest, now)


def _equal_content(one: Entry | None, other: Entry | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.kind, one.content) == (other.kind, other.content)


def saved_diff(workspace: Workspace, row: HealRow) -> str:
    try:
        return (workspace.heals / f"{row.run_id}-{row.attempt}" / "diff").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
