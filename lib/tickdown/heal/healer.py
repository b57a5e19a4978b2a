"""One heal: what the healer is told, what it did, and whether that stays.

Before the agent starts, everything it could touch is saved, in memory and on disk (`state/heals/RUN-ATTEMPT/`). After it:
forbidden changes and what fails a check take everything back; otherwise the edits stay until the task has run with them.
"""

from __future__ import annotations

import difflib
import glob
import json
import os
import subprocess
import traceback
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from tickdown.agents.calls import Answer, Purpose, last_object_with
from tickdown.agents.prompts import SELF_HEAL, mark, prompt
from tickdown.alerts import messages
from tickdown.attempt.command import CannotRun, Command, agent_command, working_folder
from tickdown.base.errors import TickdownError
from tickdown.base.model import HealRow, HealStatus, HealVerdict, RunStatus
from tickdown.base.records import record, replace
from tickdown.base.redact import Redactor
from tickdown.base.terminal import one_line, printable
from tickdown.config import Settings
from tickdown.context.budget import left_today
from tickdown.context.context import Context
from tickdown.context.task_file import note_own_edit
from tickdown.failure.outcomes import Outcome
from tickdown.failure.signature import error_signature
from tickdown.heal import guard
from tickdown.heal.guard import Change, Entry, Findings, Scope, Snapshot, Surrounds
from tickdown.processes.process import host_name, is_alive, time_of_boot
from tickdown.store import heals, outbox, runs
from tickdown.store.database import can_be_read
from tickdown.store.errors import StoreError
from tickdown.tasks.catalogue import load_file
from tickdown.tasks.editing import EditRefused, healed, same_but_for_state, with_state_of
from tickdown.tasks.task import Task
from tickdown.tasks.yaml_tree import YamlError, parse_yaml
from tickdown.time.zones import get_zone
from tickdown.workspace.folders import MAX_BYTES, Workspace, make_dir, make_private_dir, private_opener, replace_file

HEALING = "TICKDOWN_HEALING"
LOG_LINES = 200
LONGEST_LINE = 2000
CHECK_WITHIN = 10.0
LARGEST_DATABASE = 256 * 1024 * 1024  # that is copied before a heal
LONGEST_DIFF = 256 * 1024
LARGEST_COMPARED = 200_000  # characters of a file before and after
MOST_LOOKS = 3
A_DAY = timedelta(days=1)


# --- what the healer is told -----------------------------------------------------------------------------------


def scope_for(context: Context, task: Task) -> Scope:
    return guard.scope_of(task, context.workspace, _folder(context, task), surrounds(context))


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


def log_tail(path: str, span: tuple[int, int] | None = None) -> str:
    """The end of a run's log, or of one part of it."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start, end = span if span is not None else (0, size)
            file.seek(max(min(start, size), end - LOG_LINES * 500))
            return last_lines(file.read(max(0, end - file.tell())).decode("utf-8", "replace"))
    except OSError:
        return ""


# --- one heal --------------------------------------------------------------------------------------------------


@record(frozen=True)
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


@record(frozen=True)
class Result:
    row: HealRow
    edited: bool  # the edits are in place and wait for their proof
    diff: str
    notes: tuple[str, ...] = ()  # for the log of the run
    whole: bool = True  # nothing is left that should have been put back


class Heal:
    """From the snapshot to the verdict. `row` is written already: it counts, however this ends."""

    def __init__(self, context: Context, task: Task, row: HealRow, redactor: Redactor) -> None:
        self.context, self.task, self.row, self.redactor = context, task, row, redactor
        self.folder = context.workspace.heals / f"{row.run_id}-{row.attempt}"
        self.scope = scope_for(context, task)
        self.around = surrounds(context)
        self.before: Snapshot | None = None  # nothing is compared, and so nothing restored, before it is complete
        self.diff = ""
        self._after: dict[Path, Entry | None] = {}  # what the healer made of the files it edited
        self._database: tuple[int, int] | None = None  # its inode, and a copy to read from
        self._counted: list[HealRow] = []  # the heals of the last day, this one too, as they were

    def begin(
        self, error: str, log: str, earlier: Sequence[HealRow], variables: Mapping[str, str], now: datetime
    ) -> Command:
        """Save everything, then the command that starts the healer. OSError if it can't be saved."""
        healer = self.context.healer
        assert healer is not None
        before = guard.take(self.scope, self.around)
        _write(self.folder / "scope.json", json.dumps([str(path) for path in self.scope.editable]))
        guard.save(self.folder / "all", before)
        self.before = before
        self._keep_database()
        self._counted = heals.counted_since(self.context.db, self.row.started_at - A_DAY)
        text = heal_prompt(self.context, self.task, self.scope, error, log, earlier, self.redactor)
        _write(self.folder / "prompt.txt", text)
        root, budget = self.context.workspace.root, left_today(self.context, now)
        folders = self.scope.folders_outside
        # Commands of this scheduler that change something refuse to work for a healer; and looking at the state of a
        # repository must not change it.
        own = {**variables, HEALING: "1", "GIT_OPTIONAL_LOCKS": "0"}
        for name in ("TICKDOWN_SCHEDULER", "TICKDOWN_HOME"):
            own.pop(name, None)
        return agent_command(healer, Purpose.HEAL, text, self.context.place, own, root, budget, folders)

    def finish(self, answer: Answer | None, outcome: Outcome, now: datetime) -> Result:
        """The agent and all it started are gone. Look at what it did. A bug in the looking must not leave its edits."""
        if self.before is None:
            self.row = replace(self.row, status=HealStatus.RESTORED, problem=self.redactor.text(outcome.error or ""))
            return Result(self.row, edited=False, diff="")
        try:
            return self._finish(self.before, answer, outcome, now)
        except StoreError:
            raise
        except Exception as error:
            self.context.log.error("heal_broken", run_id=self.row.run_id, traceback=traceback.format_exc())
            failed = self._put_back(_edits(self.before.entries, self.scope.editable), now)
            problems = [f"a bug: {type(error).__name__}: {error}", *_not_back(failed), "NOT compared: all other files"]
            self.row = replace(self.row, status=HealStatus.RESTORED, problem=self.redactor.text(_words(problems)))
            return Result(self.row, edited=False, diff="", whole=False)

    def _finish(self, before: Snapshot, answer: Answer | None, outcome: Outcome, now: datetime) -> Result:
        said = Said.of(answer.text) if answer is not None else Said()
        problems = self._see_to_the_database(now) + self._see_to_the_counters(now)
        findings = self._compare(before)
        problems += self._judge(findings, outcome)
        edits = [change for change in findings.edits if not _same(change)]
        problems += self._save_edits(before, [*edits, *findings.ways])
        problems += [f"can't be removed: {name}" for name in guard.drop_caches(findings.caches)]
        given_up = said.verdict in (HealVerdict.NEEDS_HUMAN, HealVerdict.GAVE_UP)
        idle = said.verdict is None and not edits  # it neither did nor said anything
        failed: list[str] = []
        if problems or given_up or idle:
            status = HealStatus.RESTORED
            failed = self._put_all_back(before, findings, now)
        else:
            status = HealStatus.UNPROVEN
        notes = [
            f"left alone, another task was running: {self.scope.shown(change.path)}" for change in findings.others[:10]
        ]
        notes += [f"not watched, too much in it: {name}" for name in before.unwatched[:5]]
        self.diff = self.redactor.text(diff_of(edits, self.scope))
        _write(self.folder / "diff", self.diff)
        if idle and not problems:
            problems.append("it changed nothing and gave no verdict")
        self.row = replace(
            self.row,
            status=status,
            verdict=said.verdict,
            cause=self.redactor.text(said.cause) or None,
            problem=self.redactor.text(_words([*problems, *_not_back(failed), *notes])) or None,
            files=tuple(self.scope.shown(change.path) for change in edits),
            cost_usd=outcome.usage.cost_usd,
        )
        return Result(self.row, status is HealStatus.UNPROVEN, self.diff, tuple(notes), whole=not failed)

    def _put_all_back(self, before: Snapshot, findings: Findings, now: datetime) -> list[str]:
        """And look again: what was behind a link, or in a folder that could not be read, shows only now."""
        failed = self._put_back([*findings.edits, *findings.ways, *findings.forbidden], now)
        for change in findings.forbidden:
            current = guard.read_entry(change.path) if change.before is not None else None
            if current is not None and change.before is not None and current.stamp[:3] == change.before.stamp[:3]:
                before.entries[change.path] = current  # the same file, moved back: only the time of that move is new
        for _ in range(MOST_LOOKS - 1):
            again = self._compare(before)
            guard.drop_caches(again.caches)
            changes = [change for change in [*again.edits, *again.ways, *again.forbidden] if not _same(change)]
            if not changes:
                return []
            failed = self._put_back(changes, now)
        return failed

    def recorded(self) -> None:
        """What came of it is in the database: the rest of the snapshot has served."""
        guard.remove_folder(self.folder / "all")

    def undo(self) -> tuple[list[str], list[str]]:
        """The run with the edits failed: they go, whoever has written to the same files since. That was the run itself, most
        likely; in case it was a person, what is found is kept. What could not be put back, and what was found."""
        if self.before is None:
            return [], []
        changes = _edits(self.before.entries, list(self._after))
        kept = self.scope.shown(self.folder / "found")
        written_since = [change for change in changes if not _equal_content(change.after, self._after[change.path])]
        found = [
            f"{self.scope.shown(c.path)}: was changed once more, what was there is in {kept}" for c in written_since
        ]
        return self._put_back(changes, datetime.now(UTC)), found

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
            if len(content) > MAX_BYTES or old.content is None:
                raise EditRefused(f"is over {MAX_BYTES // 1024} KiB")
            try:
                content = healed(old.content.decode("utf-8"), content.decode("utf-8")).encode("utf-8")
            except UnicodeDecodeError as error:
                raise EditRefused(f"is not valid UTF-8: {error}") from None
        if (content, new.mode, new.owner) != (new.content, old.mode, old.owner):
            # Tools that write a new file in the place of the old one lose its mode; and frontmatter is not theirs.
            replace_file(change.path, content, old.mode, old.owner)
            note_own_edit(self.context, change.path, datetime.now(UTC))
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

    def _put_back(self, changes: Sequence[Change], now: datetime) -> list[str]:
        return _restored(self.context, changes, self.folder, now)

    def _save_edits(self, before: Snapshot, edits: Sequence[Change]) -> list[str]:
        """Only what was changed is kept from here on, for `heal --diff` and `--undo`. What can't be kept can't stay."""
        wanted = {change.path: change.before for change in edits if change.before is not None}
        made = {change.path: change.after for change in edits if change.after is not None}
        self._after = {change.path: change.after for change in edits}
        try:
            guard.save(self.folder / "before", Snapshot(wanted, before.taken_at, tops=set(self._after)))
            guard.save(self.folder / "after", Snapshot(made, before.taken_at, tops=set(self._after)))
            _write(self.folder / "scope.json", json.dumps([str(path) for path in self.scope.editable]))
        except OSError as error:
            return [f"its edits could not be saved: {error.strerror or error}"]
        return []

    # --- the database ---

    def _keep_database(self) -> None:
        path, copy = self.context.db.path, self.folder / "tickdown.db"
        if path.stat().st_size > LARGEST_DATABASE:
            return
        try:
            self.context.db.copy_to(copy)
        except StoreError as error:
            raise OSError(f"the database could not be copied: {error}") from None
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

    def _see_to_the_counters(self, now: datetime) -> list[str]:
        """A healer that forgets its earlier heals for us would have more than it may."""
        wrong = heals.count_again(self.context.db, self._counted, now - A_DAY)
        return ["changed the counters of heals in the database, which it may not"] if wrong else []


def _is_sound(path: Path, inode: int) -> bool:
    try:
        if path.stat().st_ino != inode or _first_bytes(path, inode) != b"SQLite format 3\0":
            return False  # even if SQLite itself would not notice, as long as all pages are in its write-ahead log
        return can_be_read(path)
    except OSError:
        return False


@cache
def _kept_open(path: Path, inode: int) -> int:
    """A descriptor of the database that is never closed: closing any would let go of all locks that SQLite holds on the
    file in this process."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _first_bytes(path: Path, inode: int) -> bytes:
    return os.pread(_kept_open(path, inode), 16, 0)


def _words(parts: Sequence[str]) -> str:
    return "; ".join(parts)


def _not_back(failed: Sequence[str]) -> list[str]:
    return [f"NOT put back: {name}" for name in failed[:10]]


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
    copies = [
        folder / name
        for run_id in heals.on_probation(context.db)
        for folder in sorted(context.workspace.heals.glob(f"{glob.escape(run_id)}-*"))
        for name in ("before", "after", "scope.json")
    ]
    return surrounds_of(context.workspace, context.settings, context.db.path, copies)


def surrounds_of(workspace: Workspace, settings: Settings, database: Path, copies: Sequence[Path] = ()) -> Surrounds:
    home = settings.environment.get("HOME")
    folders = [os.path.expanduser(agent.config_dir) for agent in settings.config.agents.values() if agent.config_dir]
    return Surrounds(
        Path(home) if home and os.path.isabs(home) else None,
        database.resolve(),
        tuple((workspace.root / folder).resolve() for folder in folders),
        tuple(copies),
        dict(guard.behind_links(workspace)),
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
        if len(old) + len(new) > LARGEST_COMPARED:  # comparing lines takes time that grows with the square
            parts.append(f"File {name} {change.word}: {len(old)} to {len(new)} characters, too many to show\n")
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
        make_dir(context.workspace.logs)
        with open(context.workspace.audit_log, "ab", buffering=0, opener=private_opener) as file:
            file.write(line.encode("utf-8", "replace"))
            os.fsync(file.fileno())
        note_own_edit(context, context.workspace.audit_log, now)
    except OSError as error:
        context.log.error("audit_not_written", task_id=row.task_id, run_id=row.run_id, error=str(error), line=line)
        alert = messages.no_audit_alert(str(context.workspace.audit_log), error.strerror or str(error))
        outbox.add_alert_once_per(context.db, outbox.DAY, alert, now)


# --- heals of the past -----------------------------------------------------------------------------------------


def new_row(run_id: str, attempt: int, task_id: str, failed: Outcome, now: datetime) -> HealRow:
    return HealRow(run_id, attempt, task_id, now, HealStatus.RUNNING, error_signature(failed))


def take_back_interrupted(context: Context, run_id: str, now: datetime, redactor: Redactor | None = None) -> None:
    """The supervisor of a heal died: nobody knows how far it got, so nothing of it stays."""
    redactor = redactor or context.redactor
    for row in heals.of_run(context.db, run_id):
        if row.status not in (HealStatus.RUNNING, HealStatus.UNPROVEN):
            continue
        folder = context.workspace.heals / f"{row.run_id}-{row.attempt}"
        try:
            problems, edits, failed = _take_back(context, row, folder, now)
            scope = Scope(context.workspace, context.workspace.root, ())
            diff = redactor.text(diff_of(edits, scope))
            files = tuple(scope.shown(change.path) for change in edits)
        except (OSError, ValueError, RecursionError) as error:
            problems, diff, files, failed = [f"could not be taken back: {error}"], "", (), ["?"]
        problem = redactor.text(_words(["its supervisor died", *problems, *_not_back(failed)]))
        row = replace(row, status=HealStatus.RESTORED, problem=problem, files=files)
        with context.db.transaction() as connection:
            heals.record(connection, row)
        if not failed:
            guard.remove_folder(folder / "all")
        audit(context, row, diff, "interrupted", redactor, now)


def _take_back(
    context: Context, row: HealRow, folder: Path, now: datetime
) -> tuple[list[str], list[Change], list[str]]:
    """What there is to tell, the edits that were undone, and what could not be. Much may have happened since: only what
    the healer may edit, and what nobody but this program's owner should, is put back; other files are told of."""
    try:
        unproven = row.status is HealStatus.UNPROVEN
        before, editable = guard.load(folder / ("before" if unproven else "all")), _saved_scope(folder)
    except (OSError, ValueError):
        return [], [], []  # it had not begun: the snapshot comes first
    scope, around = Scope(context.workspace, editable[0], editable), surrounds(context)
    if unproven:
        edits = _edits(before.entries, sorted(before.tops))
        return [], edits, _restored(context, edits, folder, now)

    def is_ours(path: Path) -> bool:
        # What was looked at by name is, too: a link that led there may have been changed.
        by_name = path in before.tops and path != context.workspace.root
        return by_name or guard.never_edited(path, context.workspace, scope.task_file, around) is not None

    own = heals.own_edits(context.db, row.started_at)
    others = heals.others_at_work(context.db, row.run_id, row.started_at)
    findings = guard.compare(scope, before, around, own, others)
    since_boot = [change for change in findings.forbidden if _is_newer_than_boot(change, row)]
    nobodys = [change for change in findings.forbidden if change in since_boot or not is_ours(change.path)]
    taken = [change for change in findings.forbidden if change not in nobodys]
    told = [f"left alone, changed since: {scope.shown(change.path)}" for change in nobodys[:10]]
    told += [
        f"put back: {scope.shown(change.path)}, what was there is in {scope.shown(folder / 'found')}"
        for change in taken[:10]
    ]
    failed = _restored(context, [*findings.edits, *findings.ways, *taken], folder, now)
    return told, findings.edits, failed + guard.drop_caches(findings.caches)


def _restored(context: Context, changes: Sequence[Change], folder: Path, now: datetime) -> list[str]:
    """What could not be put back. What could is this program's own edit now; the rest stays to be found again."""
    failed = guard.restore(changes, folder / "found")
    for change in changes:
        if _equal_content(guard.read_entry(change.path), change.before):
            note_own_edit(context, change.path, now)
    return failed


def _is_newer_than_boot(change: Change, row: HealRow) -> bool:
    """Changed after a restart of the machine that the healer can't have survived."""
    booted = time_of_boot()
    if change.after is None or row.started_at.timestamp() >= booted:
        return False
    try:
        return change.path.lstat().st_ctime >= booted
    except OSError:
        return False


def _edits(before: Mapping[Path, Entry], paths: Sequence[Path]) -> list[Change]:
    changes = [_change(path, before.get(path), guard.read_entry(path), paths) for path in paths]
    return [change for change in changes if not _same(change)]


def _change(path: Path, before: Entry | None, current: Entry | None, paths: Collection[Path]) -> Change:
    """One of several; a folder is among them only as the way to another."""
    return Change(path, before, current, is_way=before is None and guard.leads_to(path, paths))


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
    task_file = _task_file(context, run_id)
    for row in heals.of_run(context.db, run_id):
        if row.status is not HealStatus.KEPT:
            continue
        folder = context.workspace.heals / f"{row.run_id}-{row.attempt}"
        try:
            before, after = guard.load(folder / "before"), guard.load(folder / "after")
        except (OSError, ValueError) as error:
            raise NotUndone(f"the snapshot {folder} can't be read: {error}") from None
        for path in sorted(before.tops):
            if any(
                entry is not None and entry.is_lost for entry in (before.entries.get(path), after.entries.get(path))
            ):
                raise NotUndone(f"the copy of {context.workspace.relative(path)} in {folder} is damaged")
            current, original = guard.read_entry(path), before.entries.get(path)
            if not _equal_content(current, after.entries.get(path)):
                # Whether a task runs is written into its file by this program; that stays, and is nobody's edit.
                original = _original_with_state(original, after.entries.get(path), current)
                if original is None or path != task_file:
                    edited.append(context.workspace.relative(path))
            changes.append(_change(path, original, current, before.tops))
    if edited:
        raise NotUndone(f"edited since the heal: {', '.join(sorted(edited))}")
    around = surrounds(context)
    for change in changes:  # a snapshot is only a file, too
        reason = guard.never_edited(change.path, context.workspace, task_file, around)
        if reason is not None:
            raise NotUndone(f"{context.workspace.relative(change.path)} {reason}")
    failed = _restored(context, changes, context.workspace.heals / f"{run_id}-undone", now)
    if failed:
        raise NotUndone("could not be put back: " + "; ".join(failed))
    return sorted(context.workspace.relative(change.path) for change in changes if not change.is_way)


def _original_with_state(original: Entry | None, healed: Entry | None, current: Entry | None) -> Entry | None:
    """A task file as it was before its heal, but enabled or not as it is now; None if more was changed since."""
    texts = [_text_of(entry) for entry in (original, healed, current)]
    if original is None or not all(texts) or not same_but_for_state(texts[1] or "", texts[2] or ""):
        return None
    try:
        return replace(original, content=with_state_of(texts[0] or "", texts[2] or "").encode())
    except (EditRefused, YamlError):
        return None


def _task_file(context: Context, run_id: str) -> Path:
    rows = heals.of_run(context.db, run_id)
    try:
        return _saved_scope(context.workspace.heals / f"{run_id}-{rows[0].attempt}")[0]
    except (OSError, ValueError, IndexError) as error:
        raise NotUndone(f"the snapshot of run {run_id} can't be read: {error}") from None


def end_probation(context: Context, run_id: str, now: datetime) -> tuple[bool, str]:
    """The task failed while its heal was on probation: the heal goes. Whether it could, and what became of it in words."""
    try:
        files = undo(context, run_id, now)
    except NotUndone as error:
        return False, f"The heal of run {run_id} was on probation, but is still there: {error}."
    what = ", ".join(files) or "it had changed nothing"
    return True, f"The heal of run {run_id} was on probation and is undone: {what}."


def _equal_content(one: Entry | None, other: Entry | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.kind, one.content) == (other.kind, other.content)


def saved_diff(workspace: Workspace, row: HealRow) -> str:
    try:
        return (workspace.heals / f"{row.run_id}-{row.attempt}" / "diff").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
