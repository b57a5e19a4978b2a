"""What is wrong, and what to do about it: with the task files, and with the installation."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from tickdown.agents.calls import Agent, Format
from tickdown.alerts.messages import locked_words
from tickdown.attempt.command import CannotRun, Place, find_agent, working_folder
from tickdown.base.errors import TickdownError
from tickdown.base.invocation import command_line
from tickdown.base.model import FAILURES, RunStatus, TicketKind
from tickdown.base.money import usd
from tickdown.base.records import record
from tickdown.context.app import App, reject_past_dates
from tickdown.context.context import Context
from tickdown.heal.guard import Surrounds, scope_of
from tickdown.heal.healer import surrounds_of
from tickdown.queries.tasks import held_now
from tickdown.run.recovery import dead_runs
from tickdown.schedule.cron import Cron, notes_between
from tickdown.schedule.schedule import OneShot
from tickdown.store import costs, outbox, runs, tasks, ticks
from tickdown.store.database import Database
from tickdown.store.errors import Unusable, with_remedy
from tickdown.store.heartbeat import OUTAGE_AFTER
from tickdown.store.tickets import list_tickets
from tickdown.tasks.catalogue import Catalog, TaskFile, find_files, load_file
from tickdown.tasks.task import Task
from tickdown.tasks.yaml_tree import Problem
from tickdown.time.durations import in_words
from tickdown.time.zones import get_zone, zone_name
from tickdown.workspace.folders import Workspace, fill, user_name

CLOCK_NOTES_AHEAD = timedelta(days=366)
TELL_OF_LOSS = timedelta(days=7)
LITTLE_SPACE = 200 * 1024 * 1024
_UNWELL = FAILURES | {RunStatus.ORPHANED}
_NOT_ENTERED = Problem(1, "", "is a linked folder, which is not looked into; put the folder itself here", warning=True)


# --- validate --------------------------------------------------------------------------------------------------


@record(frozen=True)
class Validation:
    """Every problem of every file, by path and line. Warnings too, but only errors count."""

    files: int
    settings: Sequence[str]  # what is wrong with the configuration, line by line
    problems: Sequence[tuple[str, Problem]]

    @property
    def errors(self) -> int:
        return len(self.settings) + sum(not problem.warning for _, problem in self.problems)


def validation(app: App, paths: Sequence[str], settings_problems: Sequence[str], now: datetime) -> Validation:
    """Of the files and folders of these names; without any, of all tasks."""
    files, missing = _chosen_files(app, paths, now)
    catalog = Catalog(tuple(files))
    problems = [(file.path, problem) for file in files for problem in file.problems]
    problems += [(task.path, problem) for task in catalog.tasks for problem in _surroundings_warnings(app, task)]
    problems += [(task.path, problem) for task in catalog.tasks for problem in _clock_warnings(task, now)]
    around = surrounds_of(app.workspace, app.settings, app.database_path())
    problems += [(task.path, problem) for task in catalog.tasks for problem in _agent_warnings(app, task, around)]
    problems += list(_duplicates(catalog))
    problems += [(path, Problem(1, "", "no such file or folder")) for path in missing]
    problems += [(path, _NOT_ENTERED) for path in ([] if paths else _linked_folders(app.workspace))]
    problems.sort(key=lambda pair: (pair[0], pair[1].line))
    return Validation(len(files), settings_problems, problems)


def _duplicates(catalog: Catalog) -> Iterator[tuple[str, Problem]]:
    lines = {task.path: task.lines.get("id", 1) for task in catalog.tasks}
    for task_id, claimants in sorted(catalog.duplicates.items()):
        for path in claimants:
            others = " and ".join(other for other in claimants if other != path)
            message = f"{task_id!r} is also the id of {others}; ids are unique, compared without case"
            yield path, Problem(lines.get(path, 1), "id", message)


def _linked_folders(workspace: Workspace) -> list[str]:
    """What people might take for a place of tasks."""
    found = (Path(top, name) for top, folders, _ in os.walk(workspace.tasks) for name in folders if name[0] not in "._")
    return [workspace.relative(path) for path in found if path.is_symlink()]


def _chosen_files(app: App, paths: Sequence[str], now: datetime) -> tuple[list[TaskFile], list[str]]:
    """The files to look at, and the names that are none. Those of the workspace are seen beside the others there, since
    `after` names other tasks."""
    known = app.settings.config.surroundings()
    together = {file.path: file for file in _whole_catalog(app, now).files}
    files: list[TaskFile] = []
    missing = []

    def look_at(path: Path) -> TaskFile:
        return together.get(app.workspace.relative(path)) or load_file(path, app.workspace, known)

    for path in [_named(path, app.workspace) for path in paths] or [app.workspace.tasks]:
        if path.is_dir():
            files += [look_at(found) for found in find_files(path)]
        elif os.path.lexists(path):
            files.append(look_at(path))
        else:
            missing.append(app.workspace.relative(path))
    return files, missing


def _named(path: str, workspace: Workspace) -> Path:
    """As seen from the current folder; if nothing is there, from the workspace, since that is how messages name files."""
    here, there = (Path(os.path.abspath(os.path.join(base, path))) for base in (os.curdir, workspace.root))
    return there if os.path.lexists(there) and not os.path.lexists(here) else here


def _whole_catalog(app: App, now: datetime) -> Catalog:
    """Also where the database can't be used: then nobody knows whether a date that has passed was seen in time."""
    try:
        catalog = app.catalog()  # every file is read: this is about what stands in them
    except TickdownError:
        return Catalog(())
    try:
        return reject_past_dates(catalog, app.database_to_look_at(), now)
    except TickdownError:
        return catalog


def _clock_warnings(task: Task, now: datetime) -> Iterator[Problem]:
    """Occurrences of the coming year that a change of the clock moves."""
    notes: Iterable[str] = ()
    if isinstance(task.schedule, Cron):
        notes = notes_between(task.schedule, now, now + CLOCK_NOTES_AHEAD)
    elif isinstance(task.schedule, OneShot) and (note := task.schedule.once.clock_note(now, task.zone)):
        notes = [note]
    for note in notes:
        yield Problem(task.lines.get("schedule", 1), "schedule", f"{note} ({zone_name(task.zone)})", warning=True)


def _surroundings_warnings(app: App, task: Task) -> Iterator[Problem]:
    """What may be in order where the task will run, but is not here."""
    for name, text in task.env.items():
        _, missing = fill(text, app.settings.environment)
        if missing:
            yield Problem(
                task.lines.get("env", 1),
                "env",
                f"{name}: ${{{missing[0]}}} is set neither in the environment nor in .env",
                warning=True,
            )
    try:
        working_folder(task, app.workspace, app.settings.config.cwd_policies)
    except CannotRun as error:
        field = "cwd_policy" if task.cwd_policy else "cwd"
        yield Problem(task.lines.get(field, 1), field, str(error).removeprefix("cwd: "), warning=True)


# Where no stand-in on the PATH of the task can see to it that the agent has nothing of an interactive session.
# A separator of commands, the word before `claude`, what that means. One after the other, since one pattern for all of it
# would look at "sudo sudo sudo …" from every word to the end.
_UNGUARDED = (
    (r"[;|&\n]", r"\bsudo\b", "sudo claude: sudo has a PATH and a home of its own"),
    (r"[;|\n]", r"\bssh\b", "ssh … claude: it runs on another machine"),
)
_BY_PATH = "claude by its path: it is not looked for on the PATH"


def _agent_warnings(app: App, task: Task, around: Surrounds) -> Iterator[Problem]:
    """Agents that nothing here can keep apart from interactive sessions, and files that no healer will edit."""
    line = task.lines.get("command", 1)
    if task.agent is None and (words := _unguarded(task.command)) is not None:
        yield Problem(line, "command", f"{words}, so Tickdown can't guard it (docs/agents.md)", warning=True)
    for name, reason in scope_of(task, app.workspace, None, around).refused if task.heal_paths else ():
        if name in task.heal_paths:
            yield Problem(
                task.lines.get("heal_paths", 1), "heal_paths", f"{name!r} {reason}: never edited", warning=True
            )
    if task.agent is not None and app.settings.config.agents[task.agent].format is not Format.CLAUDE:
        for name in ("budget_usd", "budget_usd_per_day"):
            if name in task.lines:
                words = f"{task.agent} does not say what it costs, so this limits nothing"
                yield Problem(task.lines[name], name, words, warning=True)


def _unguarded(command: str) -> str | None:
    for separator, before, words in _UNGUARDED:
        for part in re.split(separator, command):
            found = re.search(before, part)
            if found is not None and re.search(r"\bclaude\b", part[found.end() :]):
                return words
    return _BY_PATH if re.search(r"(?<=/)claude(?![\w./-])", command) else None


# --- doctor ----------------------------------------------------------------------------------------------------


@record(frozen=True)
class Finding:
    name: str
    ok: bool
    message: str
    note: bool = False  # worth knowing, but no problem of the installation


def findings(app: App, now: datetime) -> Iterator[Finding]:
    """What is wrong with this installation, what is well, and what is worth knowing."""
    yield Finding("python", sys.version_info >= (3, 11), f"Python {platform.python_version()}" + _older())
    yield _workspace(app.workspace)
    zone = get_zone(app.settings.config.timezone)
    yield Finding("timezone", True, f"{zone_name(zone)}, now {now.astimezone(zone):%Y-%m-%d %H:%M %z}")
    yield _shell()
    yield _disk_space(app.workspace)
    yield _open_folders(app.workspace)
    yield from _logs(app.workspace)
    yield from _secrets(app)
    catalog = app.catalog()
    db, trouble = _database(app)
    if trouble is None:
        catalog = reject_past_dates(catalog, db, now)
    yield _task_files(catalog)
    if (closed := _not_writable(app.workspace.tasks, app.workspace)) is not None:
        yield Finding("tasks", True, f"{closed}; until then no file says that its task is suspended", note=True)
    warnings = sum(len(file.warnings) for file in catalog.files)
    if warnings:
        words = f"{warnings} warning{'s' * (warnings != 1)} in task files: {command_line('validate')}"
        yield Finding("tasks", True, words, note=True)
    yield Finding("database", trouble is None, trouble or f"{app.database_path()} is sound")
    context = app.context(db)
    if trouble is None:
        yield from _database_before(db, now, zone)
        yield _last_tick(context, now)
        yield from _runs(context, catalog, now)
    yield _telegram(app, db)
    if app.settings.config.ping_url:
        yield Finding("ping", True, "every tick calls ping_url")
    yield from _agents(context, catalog)
    limit = app.settings.config.budget_usd_per_day
    if trouble is None and limit is not None and app.settings.config.healer is not None:
        yield Finding("budget", True, f"{usd(costs.spent(db, context.midnight(now)))} of {usd(limit)} spent today")


def _database(app: App) -> tuple[Database, str | None]:
    """It, or with what is wrong with it an empty one: there is more to be checked."""
    path, workspace = app.database_path(), app.workspace
    written = (workspace.state, workspace.locks, path.parent, path, *(Path(f"{path}{end}") for end in ("-wal", "-shm")))
    trouble = next((words for words in (_not_writable(one, workspace) for one in written) if words), None)
    if trouble is not None:
        return Database(None), trouble
    try:
        db = app.database()
        damage = db.problems()
    except TickdownError as error:
        return Database(None), str(error)
    except Unusable as error:
        return Database(None), f"{path} can't be used: {with_remedy(error)}"
    if damage:
        advice = "the next tick sets it aside and begins anew; to go on from a copy, see docs/operating.md"
        return Database(None), f"{path} is damaged: {'; '.join(damage)}; {advice}"
    return db, None


def _database_before(db: Database, now: datetime, zone: tzinfo) -> Iterator[Finding]:
    """For a while after the database before this one was lost."""
    found = ticks.replaces(db)
    if found is None or (found[1] is not None and now - found[1] > TELL_OF_LOSS):
        return
    before, since = found
    when = f"{since.astimezone(zone):%Y-%m-%d %H:%M}" if since is not None else "the next tick"
    words = f"what was known before is still in {before}" if before else "the database from before is gone"
    yield Finding("database", True, f"history begins with {when}: {words}", note=True)


def _not_writable(path: Path, workspace: Workspace) -> str | None:
    """Why this user can't write what is there, and what to do about it."""
    is_folder = os.path.isdir(path)
    wanted = os.R_OK | os.W_OK | (os.X_OK if is_folder else 0)
    if not os.path.exists(path) or os.access(path, wanted):  # also where nobody can tell: then its folder is closed
        return None
    name = workspace.relative(path) + "/" * is_folder
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"{name} is on a disk that is mounted read-only: mount it writable"
    info = path.stat()
    words = f"{name} is not writable for {user_name()} (mode {stat.S_IMODE(info.st_mode):04o})"
    if info.st_uid != os.geteuid():
        return f"{words}, but belongs to uid {info.st_uid}: chown it"
    missing = "".join(
        letter
        for letter, bit in (("r", os.R_OK), ("w", os.W_OK), ("x", os.X_OK))
        if wanted & bit & ~(info.st_mode >> 6)
    )
    return f"{words}: chmod u+{missing} {path}" if missing else words


def _agents(context: Context, catalog: Catalog) -> Iterator[Finding]:
    config, place = context.settings.config, context.place
    used = sorted({task.agent for task in catalog.tasks if task.agent and task.enabled})
    for name in used:
        program = find_agent(config.agents[name], place)
        missing = f"{_why_not_found(config.agents[name], place)}: its tasks wait"
        yield Finding("agent", program is not None, f"{name}: {program or missing}")
    if config.healer is None:
        yield Finding(
            "healing",
            True,
            "self-healing is off; `healer: claude` in config.yaml switches it on (docs/failure-and-healing.md)",
        )
        return
    program = find_agent(config.agents[config.healer], place)
    if program is None:
        missing = _why_not_found(config.agents[config.healer], place)
        yield Finding("healing", False, f"healer: {config.healer}: {missing}, so nothing is healed")
    else:
        yield Finding("healing", True, f"{config.healer} ({program}) repairs failing tasks")


def _why_not_found(agent: Agent, place: Place) -> str:
    """Of a program that `find_agent` did not find."""
    name = agent.argv[0]
    if "/" not in name:
        return f"{name} is not on the PATH"
    path = place.workspace.root / os.path.expanduser(name)
    return f"{path} is not executable: chmod +x {path}" if path.is_file() else f"there is no {path}"


def _workspace(workspace: Workspace) -> Finding:
    owner, me = workspace.root.stat().st_uid, os.geteuid()
    if owner != me:
        advice = "what this user writes there may be unreadable for its owner, and tasks run with this user's rights"
        return Finding("workspace", False, f"{workspace.root} belongs to uid {owner}, you are uid {me}: {advice}")
    try:
        foreign = [path for path in _written(workspace) if _owner(path) not in (owner, None)]
    except OSError as error:
        return Finding("workspace", False, f"{error.filename}: {error.strerror}")
    if foreign:
        return Finding("workspace", False, f"{foreign[0]} belongs to another user: chown it")
    return Finding("workspace", os.access(workspace.root, os.W_OK), str(workspace.root))


def _written(workspace: Workspace) -> Iterator[Path]:
    for folder in (workspace.state, workspace.locks, workspace.logs, workspace.logs / "runs"):
        if folder.is_dir():
            yield folder
            yield from folder.iterdir()


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None  # gone between the listing and the look


def _older() -> str:
    return "" if sys.version_info >= (3, 11) else "; 3.11 or newer is needed"


def _shell() -> Finding:
    bash = shutil.which("bash")
    return Finding("shell", True, bash or "no bash: shell tasks run with /bin/sh")


def _open_folders(workspace: Workspace) -> Finding:
    """Where others may write they can take tasks away, and the settings that all of them run with."""
    folders = [workspace.root, *(Path(top) for top, _, _ in os.walk(workspace.tasks))]
    loose = [str(path) for path in folders if path.exists() and path.stat().st_mode & stat.S_IWOTH]
    text = f"writable by everyone: chmod o-w {' '.join(loose[:5])}" if loose else "only their owner and group may write"
    return Finding("folders", not loose, text)


def _logs(workspace: Workspace) -> Iterator[Finding]:
    """Runs do without them, so nobody would notice."""
    folder = workspace.logs / "runs"
    try:
        places = [workspace.logs, workspace.logs / "scheduler.log", folder, *sorted(folder.iterdir())]
    except OSError:
        places = [workspace.logs, folder]
    closed = [words for words in (_not_writable(place, workspace) for place in places) if words]
    if closed:
        more = f"; and {len(closed) - 1} more like it" if len(closed) > 1 else ""
        yield Finding("logs", False, f"logs are lost: {closed[0]}{more}")


def _disk_space(workspace: Workspace) -> Finding:
    free = shutil.disk_usage(workspace.root).free
    return Finding("disk", free > LITTLE_SPACE, f"{free // 1024**2} MiB free")


def _secrets(app: App) -> Iterator[Finding]:
    path = app.workspace.env_file
    if path.exists():
        private = not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        yield Finding(".env", private, "private" if private else f"{path} can be read by others: chmod 600 {path}")


def _task_files(catalog: Catalog) -> Finding:
    if catalog.duplicates:
        return Finding("tasks", False, f"{'; '.join(catalog.duplicate_lines())}: nothing runs")
    if catalog.rejected:
        names = ", ".join(file.path for file in catalog.rejected)
        return Finding("tasks", False, f"{len(catalog.rejected)} rejected ({names}): {command_line('validate')}")
    count = len(catalog.tasks)
    return Finding("tasks", True, f"{count} file{'s' if count != 1 else ''}, all accepted")


def _last_tick(context: Context, now: datetime) -> Finding:
    last = ticks.last_heartbeat(context.db, now)
    if last is None:
        return Finding("tick", False, "no tick has ever run here: install the line of crontab.example")
    fresh = now - last <= OUTAGE_AFTER
    advice = "" if fresh else "; is cron running, and is the line of crontab.example installed?"
    return Finding("tick", fresh, f"the last one was {in_words(last, now)}{advice}")


def _runs(context: Context, catalog: Catalog, now: datetime) -> Iterator[Finding]:
    dead = [run.task_id for run in dead_runs(context.db)]
    if dead:
        yield Finding("runs", False, f"supervisor died: {', '.join(dead)}; the next tick takes them over")
    for facts in tasks.all_facts(context.db).values():
        if (held := held_now(facts, context.workspace.locks).held) is not None:
            words = locked_words(held, now, get_zone(context.settings.config.timezone))
            yield Finding("lock", not held.told, f"{facts.task_id}: {words}", note=True)
    last = runs.last_runs(context.db)
    failing = [task.id for task in catalog.tasks if (run := last.get(task.id.lower())) and run.status in _UNWELL]
    if failing:
        yield Finding("failing", True, f"{', '.join(failing)}: {command_line('show', 'ID')}", note=True)
    for row in list_tickets(context.db):
        ticket, opened = row.ticket, row.opened_at
        # A task's ticket is that task's trouble; a crash or an alert that can't be sent is the installation's.
        of_a_task = ticket.kind not in (TicketKind.CRASH, TicketKind.ALERT_FAILED)
        yield Finding("ticket", of_a_task, f"{ticket.title}, opened {in_words(opened, now)}", note=True)
    yield Finding("history", True, _failed_lately(context.db, now))


def _failed_lately(db: Database, now: datetime) -> str:
    count = {status: len(runs.list_runs(db, None, status, now - timedelta(days=1), 1000)) for status in _UNWELL}
    total = sum(count.values())
    named = {RunStatus.TIMEOUT: "timed out", RunStatus.KILLED: "killed", RunStatus.ORPHANED: "interrupted"}
    of_them = ", ".join(f"{count[status]} {words}" for status, words in named.items() if count[status])
    return f"{total} failed run{'s' * (total != 1)} in the last 24 h" + (f" ({of_them})" if of_them else "")


def _telegram(app: App, db: Database) -> Finding:
    notify = app.settings.config.notify
    waiting, trouble = outbox.outbox_state(db)
    waits = "1 alert waits" if waiting == 1 else f"{waiting} alerts wait"
    queue = f"; {waits} to be sent" if waiting else ""
    if notify.destinations and not notify.token:
        missing = "destinations are configured, but TELEGRAM_BOT_TOKEN is not set: put it into .env"
        return Finding("alerts", False, missing + queue)
    if not notify.destinations:
        half = "a token is set, but no notify.destinations" if notify.token else "Telegram is not configured"
        return Finding("alerts", True, f"{half}: alerts go to stderr, which cron mails{queue}", note=bool(notify.token))
    problem = f", so far in vain: {trouble}" if trouble else ""
    return Finding("alerts", not trouble, f"Telegram, to {', '.join(notify.destinations)}{queue}{problem}")
