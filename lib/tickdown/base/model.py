"""The words of the program: every state, status and reason by name, and the small records that travel.

Statuses appear three times and must agree: here, in the CHECK constraints of `store/schema.py`, and in the
drawing in ARCHITECTURE.md. A test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from tickdown.base.records import field, record


class RunStatus(StrEnum):
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    TIMEOUT = "timeout"
    KILLED = "killed"
    ORPHANED = "orphaned"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    MISSED = "missed"


# The ends that count against a task.
FAILURES = frozenset({RunStatus.FAILED, RunStatus.TIMEOUT, RunStatus.KILLED})


class TaskState(StrEnum):
    ACTIVE = "active"
    RUNNING = "running"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    DISABLED = "disabled"
    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"


class DisabledReason(StrEnum):
    AUTO_SUSPENDED = "auto_suspended"
    RETIRED = "retired"
    PAUSED = "paused"
    BY_CHOICE = "by_choice"
    COMPLETED = "completed"
    FAILED = "failed"


class Source(StrEnum):
    """Why a run starts when it does."""

    BASELINE_CRON = "baseline-cron"
    BASELINE_INTERVAL = "baseline-interval"
    ONE_SHOT = "one-shot"
    AI_INTERVAL = "ai-interval"
    AI_ONESHOT = "ai-oneshot"
    CLAMPED_MIN = "clamped-min"
    CLAMPED_MAX = "clamped-max"
    PAUSED = "paused"
    CATCH_UP = "catch-up"
    REBOOT = "reboot"
    AFTER = "after"
    RETRY = "retry"
    MANUAL = "manual"


class SkipReason(StrEnum):
    """Why a due occurrence did not start."""

    DISABLED = "disabled"
    PAUSED = "paused"
    ALREADY_RUNNING = "already_running"
    AT_CAPACITY = "at_capacity"
    NOT_DUE = "not_due"
    MANUAL_ONLY = "manual_only"
    BLACKOUT = "blackout"
    BUDGET_EXCEEDED = "budget_exceeded"
    COMMENT = "comment"
    MISSING_AGENT = "missing_agent"
    REJECTED = "rejected"


class MissReason(StrEnum):
    """Why nobody looked when an occurrence came up, or looked too late."""

    OUTAGE = "outage"  # no tick came
    CLOCK = "clock"  # it was set forward
    DUPLICATE_IDS = "duplicate_ids"
    CONFIGURATION = "configuration"
    DATABASE = "database"
    CRASH = "crash"
    # Of these a later one stands for it:
    MIN_INTERVAL = "min_interval"  # its last run had ended too shortly before
    JITTER = "jitter"  # which let a later one come up first


class ErrorClass(StrEnum):
    ERROR = "error"
    TIMEOUT = "timeout"
    MISSING_TOOL = "missing_tool"
    AUTH = "auth"
    TRANSIENT = "transient"
    BUDGET = "budget"


class Rung(StrEnum):
    """The step of the ladder that an attempt stands on."""

    RUN = "run"
    RERUN = "rerun"
    RETRY = "retry"
    HEAL = "heal"
    VERIFY = "verify"  # the task once more, to see whether the heal was one
    COMMENTS = "comments"  # an agent reads what people wrote, before the task itself


class HealStatus(StrEnum):
    RUNNING = "running"
    UNPROVEN = "unproven"  # the edits are in place, the task has not succeeded with them yet
    KEPT = "kept"
    RESTORED = "restored"
    UNDONE = "undone"  # by a person, later


class HealVerdict(StrEnum):
    """What the healer says of its own work; only the next run proves it."""

    FIXED = "fixed"
    NEEDS_HUMAN = "needs_human"
    GAVE_UP = "gave_up"


class CatchUp(StrEnum):
    ONCE = "once"
    SKIP = "skip"
    ALL = "all"


class ChainOn(StrEnum):
    """Which end of another task starts this one."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


class HintKind(StrEnum):
    INTERVAL = "interval"
    ONE_SHOT = "one-shot"


class NotifyOn(StrEnum):
    FAILURE = "failure"
    SUCCESS = "success"
    ALWAYS = "always"
    NEVER = "never"


class TicketKind(StrEnum):
    FAILING = "failing"
    SUSPENDED = "suspended"
    TIMEOUT = "timeout"
    CRASH = "crash"
    ALERT_FAILED = "alert_failed"
    NEEDS_HUMAN = "needs_human"


class AlertKind(StrEnum):
    # of a task
    FAILED = "failed"
    STILL_FAILING = "still failing"
    REMINDER = "reminder"
    SUSPENDED = "suspended"
    RECOVERED = "recovered"
    SUCCESS = "success"
    INTERRUPTED = "interrupted"
    REJECTED = "rejected"
    NOT_EDITED = "not edited"
    NOT_RECOVERED = "not recovered"
    HEALED = "healed"
    NEEDS_HUMAN = "needs a human"
    MISSING_AGENT = "missing agent"
    LOCKED = "locked"
    QUESTION = "question"
    OVER_BUDGET = "over budget"
    # of the whole
    DUPLICATES = "duplicates"
    OUTAGE = "outage"
    CLOCK = "clock"
    CRASH = "crash"
    STOPPED = "stopped"
    DAMAGED = "damaged"
    LOST = "lost"


class AlertStatus(StrEnum):
    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"


class AskedBy(StrEnum):
    """What kind of somebody asks for something to be done."""

    PERSON = "person"
    TASK = "task"  # from inside the run of a task
    AGENT = "agent"  # the same, where an agent is what the task runs
    TOKEN = "token"  # a program that has been given access


@record(frozen=True)
class Asker:
    """Who asks: a user's name, the id of a task, the name of a token."""

    kind: AskedBy
    name: str

    @property
    def words(self) -> str:
        """As an author is called: a person by name, the others with what they are."""
        of_a_task = self.kind in (AskedBy.TASK, AskedBy.AGENT)
        return f"task {self.name}" if of_a_task else f"token {self.name}" if self.kind is AskedBy.TOKEN else self.name


class ActionName(StrEnum):
    """What can be asked for."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    HINT = "hint"
    CLEAR_HINTS = "clear_hints"
    COMMENT = "comment"
    ADD = "add"
    RUN = "run"
    RETRY = "retry"
    STOP = "stop"
    UNDO_HEAL = "undo_heal"
    CLOSE_TICKET = "close_ticket"
    PRUNE = "prune"


@record(frozen=True)
class ActionTaken:
    """Who has asked for what, and when. `run_id` is the run that it was about, or that came of it."""

    at: datetime
    action: ActionName
    asker: Asker
    task_id: str | None = None
    run_id: str | None = None
    detail: str = ""


@record(frozen=True)
class Alert:
    """A message for people, before it has been recorded."""

    kind: AlertKind
    title: str
    body: str = ""
    output: str = ""
    forced: bool = False
    destination: str | None = None
    task_id: str | None = None
    run_id: str | None = None


@record(frozen=True)
class Ticket:
    kind: TicketKind
    title: str
    body: str
    task_id: str | None = None
    run_id: str | None = None
    error: str | None = None
    tried: str = ""
    command: str = ""  # what lets it go on
    destination: str = ""  # where alerts can't be delivered


@record(frozen=True)
class Usage:
    """What an agent says about one call."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    session_id: str | None = None
    text: str | None = None  # its last words


NO_USAGE = Usage()


@record(frozen=True)
class Probation:
    """A task that was healed is watched until so many runs were clean, or until a time."""

    run_id: str  # in which it was healed
    left: int
    until: datetime


@record(frozen=True)
class HealRow:
    """One heal: an attempt of a run in which an agent edited something."""

    run_id: str
    attempt: int
    task_id: str
    started_at: datetime
    status: HealStatus
    signature: str  # of the error that it was to cure
    verdict: HealVerdict | None = None
    cause: str | None = None
    problem: str | None = None
    files: tuple[str, ...] = ()
    cost_usd: float | None = None


@record(frozen=True)
class Modification:
    """What a comment changes for one run."""

    env: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""


@record(frozen=True)
class Comment:
    id: int
    task_id: str
    author: str
    text: str
    at: datetime
    by_a_person: bool = True
    read_at: datetime | None = None
    answer: str | None = None  # what came of it


@record(frozen=True)
class Occurrence:
    """One due moment of one task. `key` is what makes its run unique."""

    task_id: str
    at: datetime
    source: Source
    key: str
    start_at: datetime
    follows: str | None = None
    apart: bool = False  # not one of the schedule's: taking it up settles none of those


@record(frozen=True)
class Owner:
    """A process, named so that a later process with the same pid can't be taken for it."""

    host: str
    pid: int
    started: int
    boot_id: str


@record(frozen=True)
class Lease:
    """The right to write to a run. Who takes the run over raises the number, and whatever the owner before that still writes
    hits no row."""

    run_id: str
    number: int = 1


@record(frozen=True)
class Hint:
    """Advice that bends the schedule for a while: an interval (`every`) or one moment (`at`)."""

    kind: HintKind
    given_at: datetime
    every: timedelta | None = None
    at: datetime | None = None
    until: datetime | None = None
    reason: str = ""
    author: str = ""

    def live(self, now: datetime) -> bool:
        return self.until is None or self.until > now


@record(frozen=True)
class Chained:
    """Every task that this one comes after has ended as asked; the last of those ends."""

    at: datetime
    run_id: str


@record(frozen=True)
class Waiting:
    """An occurrence that can't start yet and stays due; `source` is what its run will have."""

    at: datetime
    source: Source


@record(frozen=True)
class Held:
    """The lock of a task is held by somebody though no run of it is on record."""

    by: str  # in words
    since: datetime  # when that was noticed
    told: bool = False


@record(frozen=True)
class Facts:
    """What the store remembers of one task: the input of every decision about it."""

    task_id: str
    armed_at: datetime
    anchored_at: datetime | None = None  # what `in 30 minutes` counts from; armed_at where it is not given
    last_occurrence: datetime | None = None
    last_end: datetime | None = None
    boot_id: str = ""
    paused_until: datetime | None = None
    closing: DisabledReason | None = None  # ended for good; the file does not say so yet
    failures: int = 0
    incident: str | None = None  # the signatures of every error told in this row of failures
    incident_since: datetime | None = None
    incident_alerted_at: datetime | None = None
    deferred: datetime | None = None  # due and has its row, but can't start yet; not of a cron line
    waiting: tuple[Waiting, ...] = ()  # of a cron line: due and have their rows, but can't start yet
    retry_at: datetime | None = None
    retry_follows: str | None = None
    retries_used: int = 0  # by the chain of follow-ups that goes on
    transient_retries_used: int = 0
    running: bool = False
    missing_agent: str | None = None  # it waits until this agent can be found
    held: Held | None = None
    probation: Probation | None = None
    hints: tuple[Hint, ...] = ()
    chained: Chained | None = None
    revision: int = field(default=0, compare=False)  # another one whenever any of this is written


@record(frozen=True)
class Attempt:
    """A row of `attempts`."""

    number: int
    rung: Rung
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None
    exit_code: int | None
    signal: int | None
    error_class: ErrorClass | None
    error: str | None
    note: str | None
    log_start: int | None
    log_end: int | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    session_id: str | None


@record(frozen=True)
class Run:
    """A row of `task_runs`."""

    run_id: str
    task_id: str
    key: str
    status: RunStatus
    source: Source
    scheduled_for: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    signal: int | None
    attempts: int
    reason: str | None
    count: int
    last_scheduled_for: datetime | None
    host: str
    trace_id: str | None
    error: str | None
    error_class: str | None
    log: str | None
    summary: str | None
    follows: str | None
    interruptions: int
    end_as: RunStatus | None
    heartbeat_at: datetime | None = None
    owner: Owner | None = field(default=None)
    usage: Usage = NO_USAGE
    modification: Modification | None = None
    note: str | None = None  # what else is worth telling
    over_budget: bool = False  # it has cost more than its task's `budget_usd`
    lease_number: int = 1

    @property
    def lease(self) -> Lease:
        return Lease(self.run_id, self.lease_number)
