"""What alerts and tickets say. Plain text here; escaping and length limits belong to whoever sends it."""

from __future__ import annotations

from datetime import datetime

from lib.ladder import Outcome, Verdict
from lib.model import Alert, AlertKind, DisabledReason, RunStatus, Ticket, TicketKind
from lib.task import Task
from lib.times import duration_text
from lib.zones import zone_name

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
    AlertKind.SUSPENDED: "{id} is suspended after {n} failures",
    AlertKind.RECOVERED: "{id} recovered",
    AlertKind.SUCCESS: "{id} succeeded",
    AlertKind.INTERRUPTED: "{id} was interrupted and is not run again",
}


def run_alert(
    task: Task,
    verdict: Verdict,
    outcome: Outcome,
    run_id: str,
    summary: str,
    since: datetime | None,
) -> Alert:
    assert verdict.alert is not None
    lines = [] if task.title == task.id else [task.title]
    if outcome.status is RunStatus.SUCCESS:
        if verdict.alert is AlertKind.RECOVERED and since is not None:
            lines.append(f"It had been failing since {clock_text(since, task)}.")
    else:
        lines.append(f"{outcome.status}: {outcome.error}")
        if verdict.failures and since is not None:
            often = f", {verdict.failures} runs in a row" if verdict.failures > 1 else ""
            lines.append(f"Failing since {clock_text(since, task)}{often}.")
        if verdict.alert is AlertKind.SUSPENDED:
            lines.append(f"It does not run any more. Go on with: scheduler.py resume {task.id}")
        elif verdict.closing is DisabledReason.FAILED:
            lines.append(f"It was to run once. Run it again with: scheduler.py retry {task.id}")
    lines.append(f"More: scheduler.py logs {run_id}")
    return Alert(
        kind=verdict.alert,
        title=_TITLES[verdict.alert].format(id=task.id, n=verdict.failures),
        body="\n".join(lines),
        output=_output(outcome, summary),
        forced=verdict.forced,
        destination=task.notify_to,
        task_id=task.id,
        run_id=run_id,
    )


def _output(outcome: Outcome, summary: str) -> str:
    """The last lines, unless there is only one and the error has it already."""
    lines = tail(summary)
    told = "\n" not in lines and lines.strip() in (outcome.error or "")
    return "" if told or outcome.status is RunStatus.SUCCESS else lines


def run_tickets(task: Task, verdict: Verdict, outcome: Outcome, run_id: str) -> list[Ticket]:
    go_on = "retry" if verdict.closing is DisabledReason.FAILED else "resume"
    body = (
        f"{outcome.status}: {outcome.error}\nRun {run_id}; {verdict.failures} failed runs in a row.\n"
        f"See: scheduler.py logs {run_id}\nGo on with: scheduler.py {go_on} {task.id}"
    )
    titles = {
        TicketKind.TIMEOUT: f"{task.id} did not end within {duration_text(task.timeout)}",
        TicketKind.FAILING: f"{task.id} keeps failing",
        TicketKind.SUSPENDED: f"{task.id} is suspended",
    }
    return [Ticket(kind, titles[kind], body, task.id, run_id) for kind in verdict.tickets]


def broken_file_alert(path: str, problems: list[str]) -> Alert:
    more = f"\n… and {len(problems) - 5} more" if len(problems) > 5 else ""
    return Alert(
        kind=AlertKind.REJECTED,
        title=f"{path} is rejected",
        body="\n".join(problems[:5])
        + more
        + "\nThis task does not run until its file is put right. See: scheduler.py validate",
    )


def duplicates_alert(listing: list[str]) -> Alert:
    return Alert(
        kind=AlertKind.DUPLICATES,
        title="duplicate task ids: nothing runs",
        body="\n".join(listing) + "\nGive one of each pair another id, or remove it. See: scheduler.py validate",
        forced=True,
    )


def outage_alert(since: str, until: str) -> Alert:
    return Alert(
        kind=AlertKind.OUTAGE,
        title=f"down from {since} to {until}",
        body="No tick came in that time. What was due then is treated as missed. See: scheduler.py history --status missed",
    )


def crash_alert(error: str) -> tuple[Alert, Ticket]:
    body = f"{error}\nAll tasks are paused while this lasts. The traceback is in logs/scheduler.log."
    title = "the scheduler crashed: all tasks paused"
    return Alert(kind=AlertKind.CRASH, title=title, body=body, forced=True), Ticket(TicketKind.CRASH, title, body)


def stopped_alert(error: str) -> Alert:
    return Alert(
        kind=AlertKind.STOPPED,
        title="the scheduler can't work: nothing runs",
        body=f"{error}\nAll tasks are paused until this is put right. See: scheduler.py doctor",
        forced=True,
    )


def damaged_alert(path: str, aside: str) -> Alert:
    return Alert(
        kind=AlertKind.DAMAGED,
        title="the database is damaged",
        body=f"{path} could not be read and was set aside as {aside}. History starts anew; this tick stopped at that. "
        "Every task waits for its next occurrence.",
        forced=True,
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
        "Let one go on now with: scheduler.py resume ID",
        forced=True,
    )
