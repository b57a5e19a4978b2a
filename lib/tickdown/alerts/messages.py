"""What alerts and tickets say. Plain text here; escaping and length limits belong to whoever sends it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo

from tickdown.base.invocation import command_line
from tickdown.base.model import (
    FAILURES,
    Alert,
    AlertKind,
    DisabledReason,
    ErrorClass,
    HealRow,
    HealStatus,
    Held,
    Rung,
    RunStatus,
    Ticket,
    TicketKind,
)
from tickdown.base.records import record
from tickdown.failure.ladder import NoHeal, Verdict
from tickdown.failure.outcomes import Outcome
from tickdown.tasks.task import Task
from tickdown.time.durations import duration_text
from tickdown.time.moments import when
from tickdown.time.zones import zone_name

TAIL_LINES = 15
TAIL_CHARACTERS = 1500


def clock_text(moment: datetime, task: Task) -> str:
    return f"{moment.astimezone(task.zone):%Y-%m-%d %H:%M} {zone_name(task.zone)}"


def tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])[-TAIL_CHARACTERS:]


_TITLES = {
    AlertKind.FAILED: "{id} failed",
    AlertKind.STILL_FAILING: "{id} has failed {n} times in a row",
    AlertKind.REMINDER: "{id} is still failing",
    AlertKind.SUSPENDED: "{id} is suspended after {n} failure{s}",
    AlertKind.RECOVERED: "{id} recovered",
    AlertKind.SUCCESS: "{id} succeeded",
    AlertKind.INTERRUPTED: "{id} was interrupted and is not run again",
    AlertKind.HEALED: "{id} failed and was repaired by the healer",
    AlertKind.NEEDS_HUMAN: "{id} needs a human",
}


@record(frozen=True)
class Tried:
    """What happened in a run before its end: (rung, status, what came of it) of its attempts but the last, and its heals."""

    attempts: Sequence[tuple[str, str, str]] = ()
    last_rung: Rung = Rung.RUN
    heals: Sequence[HealRow] = ()
    no_heal: NoHeal | None = None
    probation: str | None = None  # what became of an earlier heal that was on probation
    retries: int = 0  # over all runs that follow one another

    def lines(self, outcome: Outcome) -> list[str]:
        done = [f"{rung}: {status}" + (f", {result}" if result else "") for rung, status, result in self.attempts]
        if self.last_rung is not Rung.HEAL:
            done.append(f"{self.last_rung}: {outcome.status}" + (f", {outcome.error}" if outcome.error else ""))
        return [f"{number}. {line}" for number, line in enumerate(done, 1)]


NOTHING_ELSE = Tried()


def heal_note(row: HealRow) -> str:
    """One heal in one line."""
    said = row.verdict or "no verdict"
    cause = f": {row.cause}" if row.cause else ""
    files = f"; changed {', '.join(row.files)}" if row.files else ""
    if row.status is not HealStatus.RESTORED:
        return f"{said}{cause}{files or '; changed nothing'}" + (f" ({row.problem})" if row.problem else "")
    back = "; everything is put back" if "NOT put back" not in (row.problem or "") else ""
    why = f"; not accepted: {row.problem}" if row.problem else ""
    return f"{said}{cause}{files}{why}{back}"


def story(tried: Tried, outcome: Outcome) -> str | None:
    """What `history` tells of a run besides its error."""
    if not tried.heals:
        return None
    last = tried.heals[-1]
    if outcome.status is RunStatus.SUCCESS and last.status is HealStatus.KEPT:
        return f"healed: {last.cause or 'no cause given'} ({', '.join(last.files) or 'nothing changed'})"
    if outcome.status not in FAILURES:
        return None
    return f"{len(tried.heals)} heal{'s' * (len(tried.heals) > 1)} did not help"


def over_budget_note(budget_usd: float, cost_usd: float) -> str:
    return f"over_budget: ${cost_usd:.4f} of ${budget_usd:.4f}"


def over_budget_alert(task: Task, run_id: str, budget_usd: float, cost_usd: float) -> Alert:
    return Alert(
        kind=AlertKind.OVER_BUDGET,
        title=f"{task.id} has cost more than its budget",
        body=f"One run has cost ${cost_usd:.4f}; budget_usd is ${budget_usd:.4f}. The run counts as it ended. Further ones of today "
        f"are not told of: {command_line('costs')}\nMore: {command_line('logs', run_id)}",
        destination=task.notify_to,
        task_id=task.id,
        run_id=run_id,
    )


def run_alert(
    task: Task,
    verdict: Verdict,
    outcome: Outcome,
    run_id: str,
    summary: str,
    since: datetime | None,
    tried: Tried = NOTHING_ELSE,
) -> Alert | None:
    if verdict.alert is None:
        return None
    lines = [] if task.title == task.id else [task.title]
    if outcome.status is RunStatus.SUCCESS:
        lines += _good_news(task, verdict, run_id, since, tried)
        if verdict.suspended:
            lines.append(f"It is suspended, so no tick starts it. Go on with: {command_line('resume', task.id)}")
    else:
        lines += _bad_news(task, verdict, outcome, since, tried)
    lines.append(f"More: {command_line('logs', run_id)}")
    return Alert(
        kind=verdict.alert,
        title=_title(task, verdict, tried),
        body="\n".join(lines),
        output=_output(outcome, summary),
        forced=verdict.forced,
        destination=task.notify_to,
        task_id=task.id,
        run_id=run_id,
    )


def _title(task: Task, verdict: Verdict, tried: Tried) -> str:
    assert verdict.alert is not None
    if verdict.alert is AlertKind.SUSPENDED and (tried.heals or tried.probation):
        after = (
            "a heal that did not last" if tried.probation else f"{len(tried.heals)} heal" + "s" * (len(tried.heals) > 1)
        )
        return f"{task.id} is suspended after {after}"
    if verdict.alert is AlertKind.RECOVERED and verdict.suspended:
        return f"{task.id} succeeded but is still suspended"
    return _TITLES[verdict.alert].format(id=task.id, n=verdict.failures, s="s" * (verdict.failures != 1))


def _good_news(task: Task, verdict: Verdict, run_id: str, since: datetime | None, tried: Tried) -> list[str]:
    if verdict.alert is AlertKind.HEALED and tried.heals:
        *before, last = tried.heals
        return [
            *(f"Heal {number}: {heal_note(row)}" for number, row in enumerate(before, 1)),
            f"Cause: {last.cause or 'not said'}",
            f"Changed: {', '.join(last.files) or 'nothing'}. It is on probation now.",
            *([f"Also: {last.problem}"] if last.problem else []),
            f"See: {command_line('heal', task.id, '--diff', run_id)}",
            f"Take it back: {command_line('heal', task.id, '--undo', run_id)}",
        ]
    if verdict.alert is AlertKind.RECOVERED and since is not None:
        return [f"It had been failing since {clock_text(since, task)}."]
    return []


def _bad_news(task: Task, verdict: Verdict, outcome: Outcome, since: datetime | None, tried: Tried) -> list[str]:
    lines = [f"{outcome.status}: {outcome.error}"]
    if since is not None and (verdict.failures or verdict.alert is AlertKind.REMINDER):
        often = f", {verdict.failures} runs in a row" if verdict.failures > 1 else ""
        lines.append(f"Failing since {clock_text(since, task)}{often}.")
    if tried.retries and outcome.error_class is ErrorClass.TRANSIENT:
        lines.append(f"It was tried again {tried.retries} time{'s' * (tried.retries > 1)} before this.")
    lines += [f"Heal {number}: {heal_note(row)}" for number, row in enumerate(tried.heals, 1)]
    if tried.probation:
        lines.append(tried.probation)
    if verdict.alert is AlertKind.SUSPENDED:
        lines.append(f"It does not run any more. Go on with: {command_line('resume', task.id)}")
    elif verdict.alert is AlertKind.NEEDS_HUMAN:
        lines.append(f"It goes on by its schedule, without further heals until: {command_line('resume', task.id)}")
    elif verdict.closing is DisabledReason.FAILED:
        lines.append(f"It was to run once. Run it again with: {command_line('retry', task.id)}")
    elif _healing_could_help(task, verdict, outcome, tried):
        lines.append(
            "An agent could try to repair such failures: `healer: claude` in config.yaml (docs/failure-and-healing.md)."
        )
    return lines


def _healing_could_help(task: Task, verdict: Verdict, outcome: Outcome, tried: Tried) -> bool:
    first = verdict.alert is AlertKind.FAILED and verdict.failures == 1
    return first and task.self_heal and tried.no_heal is NoHeal.OFF and outcome.error_class is ErrorClass.ERROR


def _output(outcome: Outcome, summary: str) -> str:
    """The last lines, unless there is only one and the error has it already."""
    lines = tail(summary)
    told = "\n" not in lines and lines.strip() in (outcome.error or "")
    return "" if told or outcome.status is RunStatus.SUCCESS else lines


def run_tickets(
    task: Task, verdict: Verdict, outcome: Outcome, run_id: str, tried: Tried = NOTHING_ELSE
) -> list[Ticket]:
    if not verdict.tickets:
        return []
    go_on = command_line("retry" if verdict.closing is DisabledReason.FAILED else "resume", task.id)
    if verdict.closing is None and task.enabled and TicketKind.NEEDS_HUMAN not in verdict.tickets:
        go_on = ""  # it has not stopped; whoever shows the ticket knows its number, and whether that is still so
    done = "\n".join(tried.lines(outcome))
    error = f"{outcome.status}: {outcome.error}"
    cause = next((row.cause for row in reversed(tried.heals) if row.cause), None)
    body = "\n".join([
        error,
        f"Run {run_id}; {verdict.failures} failed run{'s' * (verdict.failures != 1)} in a row.",
        *([f"The healer says: {cause}"] if cause else []),
        *([tried.probation] if tried.probation else []),
        "Tried:",
        done,
        f"See: {command_line('logs', run_id)}",
        *([f"Go on with: {go_on}"] if go_on else []),
    ])  # fmt: skip
    titles = {
        TicketKind.TIMEOUT: f"{task.id} did not end within {duration_text(task.timeout)}",
        TicketKind.FAILING: f"{task.id} keeps failing",
        TicketKind.SUSPENDED: f"{task.id} is suspended",
        TicketKind.NEEDS_HUMAN: f"{task.id} needs a human",
    }
    return [Ticket(kind, titles[kind], body, task.id, run_id, error, done, go_on) for kind in verdict.tickets]


def no_audit_alert(path: str, error: str) -> Alert:
    return Alert(
        kind=AlertKind.NOT_EDITED,
        title="a heal could not be written into the audit log",
        body=f"{path}: {error}\nWhat it would have said is in logs/scheduler.log.",
        forced=True,
    )


def missing_agent_alert(task: Task, agent: str, program: str) -> Alert:
    where = "is no file that can be run" if "/" in program else "is not found on the PATH of this scheduler"
    return Alert(
        kind=AlertKind.MISSING_AGENT,
        title=f"{task.id} waits: its agent {agent} is not installed",
        body=f"{program} {where}. The task is paused until it is; nothing else is to be "
        f"done then. What was due meanwhile: {command_line('history', task.id)}",
        destination=task.notify_to,
        task_id=task.id,
    )


def held_words(held: Held) -> str:
    return f"its lock is held by {held.by}"


def locked_words(held: Held, now: datetime, zone: tzinfo) -> str:
    """Of a task that can't start though it does not run."""
    since = f", noticed {when(held.since, now, zone)}" if held.since < now else ""
    return f"{held_words(held)}{since}, though no run of it is on record; it can start once that is free"


def locked_alert(task: Task, held: Held) -> Alert:
    return Alert(
        kind=AlertKind.LOCKED,
        title=f"{task.id} can't start: its lock is held",
        body=f"No run of it is on record, but state/locks/{task.id}.lock is held by {held.by}, noticed {clock_text(held.since, task)}; "
        f"a run may take {duration_text(task.timeout)}. Once it is free, ticks start it again; nothing else is to be done "
        f"then. What was due meanwhile: {command_line('history', task.id)}",
        destination=task.notify_to,
        task_id=task.id,
    )


def question_alert(task: Task, question: str, run_id: str | None) -> Alert:
    return Alert(
        kind=AlertKind.QUESTION,
        title=f"{task.id}: a question about your comment",
        body=f"{question}\nThe run was skipped. Answer with: {command_line('comment', task.id, '…')}",
        destination=task.notify_to,
        task_id=task.id,
        run_id=run_id,
    )


def broken_file_alert(path: str, problems: list[str]) -> Alert:
    more = f"\n… and {len(problems) - 5} more" if len(problems) > 5 else ""
    return Alert(
        kind=AlertKind.REJECTED,
        title=f"{path} is rejected",
        body="\n".join(problems[:5])
        + more
        + f"\nThis task does not run until its file is put right. See: {command_line('validate')}",
    )


def duplicates_alert(listing: list[str]) -> Alert:
    return Alert(
        kind=AlertKind.DUPLICATES,
        title="duplicate task ids: nothing runs",
        body="\n".join(listing) + f"\nGive one of each pair another id, or remove it. See: {command_line('validate')}",
        forced=True,
    )


def outage_alert(since: str, until: str) -> Alert:
    return Alert(
        kind=AlertKind.OUTAGE,
        title=f"down from {since} to {until}",
        body="No tick came in that time. What was due then runs now or is missed, as the `catch_up` of each task says. "
        f"See: {command_line('history', '--since', '1d')}",
    )


def crash_alert(error: str) -> tuple[Alert, Ticket]:
    body = f"{error}\nAll tasks are paused while this lasts. The traceback is in logs/scheduler.log."
    title = "the scheduler crashed: all tasks paused"
    return Alert(kind=AlertKind.CRASH, title=title, body=body, forced=True), Ticket(TicketKind.CRASH, title, body)


def stopped_alert(error: str) -> Alert:
    then = (
        f"All tasks are paused while this lasts; once it is over, the next tick goes on. See: {command_line('doctor')}"
    )
    return _trouble("the scheduler can't work: nothing runs", error, then)


def passed_alert(error: str) -> Alert:
    then = f"The database can be written again, so the next tick goes on. See: {command_line('doctor')}"
    return _trouble("the scheduler could not work for a while", error, then)


def lacking_alert(error: str) -> Alert:
    then = f"They are tried again in a few minutes, or with their next occurrence. See: {command_line('history', '--status', 'failed')}"
    return _trouble("tasks can't be started", error, then)


def _trouble(title: str, error: str, then: str) -> Alert:
    return Alert(kind=AlertKind.STOPPED, title=title, body=f"{error}\n{then}", forced=True)


def damaged_alert(path: str, aside: str) -> Alert:
    return Alert(
        kind=AlertKind.DAMAGED,
        title="the database is damaged",
        body=f"{path} could not be read and was set aside as {aside}. History starts anew; this tick stopped at that. "
        "Every task waits for its next occurrence.",
        forced=True,
    )


_ANEW = "history, pauses, hints and counters begin anew. Every task waits for its next occurrence."


def lost_alert(path: str) -> Alert:
    return Alert(
        kind=AlertKind.LOST,
        title="the database is gone",
        body=f"{path} was deleted or emptied, and a new one was made in its place: {_ANEW} To go on from a copy, see "
        "docs/operating.md.",
        forced=True,
    )


def other_database_alert(path: str, before: str) -> Alert:
    return Alert(
        kind=AlertKind.LOST,
        title="another database is used",
        body=f"{path} is new: {_ANEW} What was known until now is still in {before}; `database:` in config.yaml says which "
        "one is used.",
    )


def not_edited_alert(task: Task, reason: DisabledReason, error: str) -> Alert:
    state = "suspended" if reason is DisabledReason.AUTO_SUSPENDED else reason.value
    return Alert(
        kind=AlertKind.NOT_EDITED,
        title=f"{task.path} could not be edited",
        body=f"{task.id} is {state} all the same, but its file does not say so: {error}",
        destination=task.notify_to,
        task_id=task.id,
    )


def not_recovered_alert(task: Task, error: str) -> Alert:
    return Alert(
        kind=AlertKind.NOT_RECOVERED,
        title=f"{task.id} died and could not be taken over",
        body=error,
        destination=task.notify_to,
        task_id=task.id,
    )


def not_decided_alert(task: Task, error: str) -> Alert:
    return Alert(
        kind=AlertKind.CRASH,
        title=f"a bug keeps {task.id} from running",
        body=f"{error}\nThe other tasks go on. The traceback is in logs/scheduler.log.",
        forced=True,
        destination=task.notify_to,
        task_id=task.id,
    )


def clock_alert(task_ids: list[str], until: str) -> Alert:
    return Alert(
        kind=AlertKind.CLOCK,
        title=f"the clock was ahead: tasks wait until {until} at the most",
        body=f"{', '.join(task_ids[:20])}\nTheir last occurrences lie in the future, and none is run twice. "
        f"Let one go on now with: {command_line('resume', 'ID')}",
        forced=True,
    )
