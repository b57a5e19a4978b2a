"""`next`, `why`, `simulate`: what is to come, and for what reason."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from lib.app import App, facts_as_synced, task_view
from lib.blackout import Blackout, covering
from lib.catalog import Catalog
from lib.config import Config
from lib.cron import Cron, clock_note
from lib.errors import Exit, TickdownError
from lib.governor import Candidate, Forecast, Plan, back_off, forecast, hint_note, is_over, is_spent, paused, plan
from lib.model import CatchUp, Facts, HintKind, Run, RunStatus, SkipReason, Source
from lib.process import boot_id
from lib.schedule import Interval, OneShot
from lib.simulation import LONGEST_WINDOW, Effort, Replay, Simulation, Start, Subject, TooMuch, simulate, with_upstreams
from lib.store import runs, tasks
from lib.store.database import Database
from lib.store.tasks import Link
from lib.task import Task
from lib.terminal import one_line
from lib.times import LONGEST, iso, parse_duration, parse_moment, took
from lib.views import Screen, TaskView, action_word, duration_ms, hint_json, hint_words, run_json, when
from lib.wording import reading
from lib.zones import get_zone, zone_name

MOST_COMING = 1000
MOST_STEPS_FOR_NEXT = 10_000  # seconds of work, for a task that waits for others which end again and again
DECISIONS_IN_WHY = 8
NAMES_IN_LINE = 6
LINES_OF_SILENCE = 20
FARTHEST = timedelta(days=100 * 366)  # the calendar of `next`; 29 February on a Monday comes every 28 years
DAY = timedelta(days=1)


def _subjects(db: Database, catalog: Catalog, now: datetime) -> list[Subject]:
    facts, links, lasts = facts_as_synced(db, catalog, now), tasks.all_links(db), runs.typical_durations(db)
    began = {run.task_id.lower(): run.started_at or now for run in runs.running_runs(db)}

    def subject(task: Task) -> Subject:
        key = task.id.lower()
        usual = lasts.get(key, timedelta(0))
        return Subject(
            task=task,
            facts=facts.get(key) or Facts(task.id, armed_at=now, boot_id=boot_id()),
            lasts=usual,
            busy_until=max(now, began[key] + usual) if key in began else None,
            ended={link.upstream: link.ended_at for link in links.get(key, ()) if link.ended_at is not None},
        )

    return [subject(task) for task in catalog.tasks]


def _say_duplicates(screen: Screen, catalog: Catalog) -> None:
    for line in catalog.duplicate_lines():
        screen.line(f"{line}: nothing runs until this is put right")


# --- next ------------------------------------------------------------------------------------------------------


def next_runs(app: App, screen: Screen, task_id: str | None, count: int) -> Exit:
    if count > MOST_COMING:
        raise TickdownError(f"--count: at most {MOST_COMING}", Exit.USAGE)
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    wanted = catalog.find(task_id).id if task_id is not None else None
    subjects = _subjects(db, catalog, now)
    by_id = {subject.task.id: subject for subject in subjects}
    found = _first(subjects, wanted, count, now)
    notes = [_note(start, by_id[start.task_id]) for start in found]
    if screen.as_json:
        screen.json([
            {"task_id": start.task_id, "at": iso(start.at, by_id[start.task_id].task.zone), "source": start.source, "note": note}
            for start, note in zip(found, notes, strict=True)
        ])  # fmt: skip
        return Exit.OK
    if found:
        rows = [
            [start.task_id, when(start.at, now, by_id[start.task_id].task.zone), start.source, note or ""]
            for start, note in zip(found, notes, strict=True)
        ]
        screen.table(("TASK", "WHEN", "SOURCE", "NOTE"), rows)
    elif wanted is not None:
        subject = by_id[wanted]
        view = task_view(subject.task, subject.facts, None, now)
        words, because = view.next_text(now), forecast(now, subject.task, subject.facts, boot_id()).because
        screen.line(f"nothing to come: {because if words == '-' else words}")
    else:
        screen.line("nothing to come")
    _say_duplicates(screen, catalog)
    return Exit.OK


def _first(subjects: Sequence[Subject], wanted: str | None, count: int, now: datetime) -> list[Start]:
    if wanted is not None:
        subjects = with_upstreams(subjects, wanted)
    found: list[Start] = []
    try:
        for start in Replay(subjects, now, boot_id(), Effort(MOST_STEPS_FOR_NEXT + len(subjects))).starts():
            if start.at - now > FARTHEST:
                break
            if wanted is None or start.task_id == wanted:
                found.append(start)
            if len(found) == count:
                break
    except TooMuch:
        pass  # what was found by then is all that can be told
    return found


def _note(start: Start, subject: Subject) -> str | None:
    """What a person should know of a start: that the clock moves it, or whose advice or end it hangs on."""
    task = subject.task
    if start.source is Source.AFTER:
        return f"when {' and '.join(task.after)} {'has' if len(task.after) == 1 else 'have'} ended, as usual and well"
    kind = {Source.AI_INTERVAL: HintKind.INTERVAL, Source.AI_ONESHOT: HintKind.ONE_SHOT}.get(start.source)
    if kind is not None:
        return next((hint_note(hint) for hint in subject.facts.hints if hint.kind is kind), None)
    occurrence = start.occurrence
    if isinstance(task.schedule, Cron) and occurrence is not None and occurrence.source is Source.BASELINE_CRON:
        return clock_note(task.schedule, occurrence.at)
    if isinstance(task.schedule, OneShot) and start.source is Source.ONE_SHOT:
        return task.schedule.once.clock_note(subject.facts.anchored_at or subject.facts.armed_at, task.zone)
    return None


# --- why -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Story:
    """Everything that `why` tells, from one look at the store."""

    now: datetime
    task: Task
    facts: Facts
    view: TaskView
    decisions: list[Run]  # oldest first
    links: Sequence[Link]
    plan: Plan
    coming: Forecast


def why(app: App, screen: Screen, task_id: str) -> Exit:
    now = datetime.now(UTC)
    catalog, db = app.open(now)
    task = catalog.find(task_id)
    known = facts_as_synced(db, catalog, now).get(task.id.lower())
    facts = known or Facts(task.id, armed_at=now, boot_id=boot_id())
    story = _Story(
        now=now,
        task=task,
        facts=facts,
        view=task_view(task, facts, runs.last_run_of(db, task.id), now),
        decisions=runs.list_runs(db, task.id, limit=DECISIONS_IN_WHY)[::-1],
        links=tasks.all_links(db).get(task.id.lower(), ()),
        plan=plan(now, task, facts, boot_id()),
        coming=forecast(now, task, facts, boot_id()),
    )
    if screen.as_json:
        screen.json(_story_json(story))
        return Exit.OK
    for line in _story_lines(story):
        screen.line(line)
    _say_duplicates(screen, catalog)
    return Exit.OK


def _story_json(story: _Story) -> dict[str, Any]:
    task, facts, zone = story.task, story.facts, story.task.zone
    return {
        "task_id": task.id,
        "state": story.view.state,
        "schedule": task.schedule.text,
        "reading": reading(task.schedule),
        "timezone": zone_name(zone),
        "decisions": [run_json(run, zone) for run in reversed(story.decisions)],
        "action": action_word(story.plan),
        "reason": story.plan.reason,
        "now": _now_words(story),
        "paused_until": iso(facts.paused_until, zone) if paused(story.now, facts) else None,
        "failures": facts.failures,
        "back_off": back_off(facts) if isinstance(task.schedule, Interval) else 1,
        "hints": [hint_json(hint, zone) for hint in facts.hints if hint.live(story.now)],
        "after": [
            {"task_id": link.upstream, "wants": link.wants, "ended_at": iso(link.ended_at, zone)} for link in story.links
        ],
        "retry_at": iso(facts.retry_at, zone),
        "candidates": [
            {"source": each.source, "at": iso(each.at, zone), "note": each.note or None} for each in story.coming.candidates
        ],
        "next_run_at": iso(story.coming.next.at, zone),
        "source": story.coming.next.source,
        "because": story.coming.because,
    }  # fmt: skip


def _story_lines(story: _Story) -> Iterator[str]:
    task = story.task

    def labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
        for number, line in enumerate(lines):
            yield f"{label if number == 0 else '':<10} {line}"

    yield from labelled("task", [f"{task.id}, {story.view.state}"])
    yield from labelled(
        "schedule", [f"{one_line(task.schedule.text)}: {reading(task.schedule)} ({zone_name(task.zone)})"]
    )
    yield ""
    yield from labelled("so far", [_decision_words(run, story) for run in story.decisions] or ["nothing yet"])
    yield ""
    yield from labelled("now", [_now_words(story)])
    yield from labelled("failing", _failing_words(story))
    yield from labelled(
        "hint", [hint_words(hint, task, story.now) for hint in story.facts.hints if hint.live(story.now)]
    )
    yield from labelled("after", [_link_words(link, story) for link in story.links])
    yield ""
    yield from labelled("could be", _candidate_lines(story))
    yield from labelled("next", [_next_words(story)])


_SKIP_WORDS = {
    SkipReason.ALREADY_RUNNING: "the run before was still going on",
    SkipReason.PAUSED: "the task was paused",
    SkipReason.AT_CAPACITY: "no slot was free, so it had to wait",
    SkipReason.BLACKOUT: "a blackout kept it from starting",
    SkipReason.REJECTED: "the task's file was broken",
}


def _decision_words(run: Run, story: _Story) -> str:
    zone, now = story.task.zone, story.now
    at = when(run.started_at or run.scheduled_for or run.finished_at, now, zone)
    times = f" ×{run.count}" if run.count > 1 else ""
    span = f", the last {when(run.last_scheduled_for, now, zone)}" if run.count > 1 else ""
    if run.status is RunStatus.SKIPPED:
        words = next((words for reason, words in _SKIP_WORDS.items() if reason == run.reason), "")
        return f"{at}: skipped{times}, {run.reason}{f': {words}' if words else ''}{span}"
    if run.status is RunStatus.MISSED:
        why = "a later run stands for it" if story.task.catch_up is CatchUp.ONCE else "too late to run"
        return f"{at}: missed{times}: {why} (catch_up: {story.task.catch_up}){span}"
    if run.status is RunStatus.RUNNING:
        return f"{at}: running since then ({run.source})"
    error = f": {one_line(run.error, 80)}" if run.error else ""
    tries = f", {run.attempts} tries" if run.attempts > 1 else ""
    return f"{at}: {run.status} in {took(duration_ms(run))} ({run.source}{tries}){error}"


def _now_words(story: _Story) -> str:
    task, facts, now, decided = story.task, story.facts, story.now, story.plan
    if not task.enabled or facts.closing is not None:
        reason = facts.closing or task.disabled_reason
        return f"disabled{f' ({reason})' if reason else ''}: no tick starts it"
    if is_over(task, facts) and not decided.starts:
        spent = is_spent(task, facts)
        return (
            "its one run is over"
            if spent
            else "its time passed while it was off: give it another schedule, or run it by hand"
        )
    held = f"; {_unrun_words(decided)}" if decided.skipped or decided.missed else ""
    if facts.running:
        return f"it is running{held}"
    if paused(now, facts):
        return f"paused, which ends {when(facts.paused_until, now, task.zone)}{held}"
    blackout = covering(task.blackout, now, task.zone)
    dark = f", in the blackout {one_line(blackout.text)}" if blackout is not None else ""
    if decided.starts:
        start = decided.starts[0]
        if facts.deferred == start.at:
            return f"due since {when(start.at, now, task.zone)}, and waits for a free slot{held}"
        return f"due: the next tick starts it ({start.source}){held}"
    if facts.deferred is not None:
        return f"due since {when(facts.deferred, now, task.zone)}, and waits{dark}"
    if held:
        return held.removeprefix("; ") + dark
    if decided.reason is SkipReason.MANUAL_ONLY and facts.retry_at is None:
        return "manual: nothing starts it by itself"
    return f"not due{dark}"


def _unrun_words(decided: Plan) -> str:
    unrun = decided.skipped or decided.missed
    assert unrun is not None
    which = "1 occurrence" if unrun.count == 1 else f"{unrun.count} occurrences"
    if decided.stays_due:
        return f"what is due waits: {decided.reason}"
    return f"the next tick writes off {which}: {decided.reason if decided.skipped else 'too late to run'}"


def _failing_words(story: _Story) -> Iterator[str]:
    facts, zone = story.facts, story.task.zone
    if facts.failures:
        factor = back_off(facts) if isinstance(story.task.schedule, Interval) else 1
        longer = f"; the interval is ×{factor} until it succeeds" if factor > 1 else ""
        yield f"{facts.failures} in a row, the first {when(facts.incident_since, story.now, zone)}{longer}"
    if facts.retry_at is not None:
        yield f"to be tried again {when(facts.retry_at, story.now, zone)}"


def _link_words(link: Link, story: _Story) -> str:
    wanted = "" if link.wants == "success" else f" ({link.wants})"
    if link.ended_at is None:
        return f"{link.upstream}{wanted}: still awaited"
    return f"{link.upstream}{wanted}: ended {when(link.ended_at, story.now, story.task.zone)}"


def _candidate_lines(story: _Story) -> list[str]:
    chosen = _chosen(story)

    def line(each: Candidate) -> str:
        note = f" ({one_line(each.note)})" if each.note else ""
        return (
            f"{when(each.at, story.now, story.task.zone)}: {each.source}{note}{'  <- wins' if each is chosen else ''}"
        )

    return [line(each) for each in story.coming.candidates]


def _chosen(story: _Story) -> Candidate | None:
    """The candidate that the next run comes from; none where a pause or a limit has moved it, or it is due already."""
    coming = story.coming.next
    for each in story.coming.candidates:
        if each.source is coming.source and (each.at in (coming.at, story.now) or _darkened(each, story)):
            return each
    return None


def _darkened(candidate: Candidate, story: _Story) -> Blackout | None:
    return covering(story.task.blackout, candidate.at, story.task.zone)


def _next_words(story: _Story) -> str:
    words = story.view.next_text(story.now)
    if story.coming.next.at is None:
        return f"none: {story.coming.because}" if words == "-" else words
    return f"{words}, {story.coming.next.source}: {story.coming.because}"


# --- simulate --------------------------------------------------------------------------------------------------


def simulation(app: App, screen: Screen, from_: str | None, to: str | None) -> Exit:
    now, config = datetime.now(UTC), app.settings.config
    zone = get_zone(config.timezone)
    begin, end = _window(from_, to, zone, now)
    catalog, db = app.open(now)
    try:
        result = simulate(_subjects(db, catalog, now), begin, end, now, boot_id(), zone)
    except TooMuch:
        raise TickdownError(
            f"simulate: too many runs from {begin:%Y-%m-%d} to {end:%Y-%m-%d}; choose a shorter time", Exit.USAGE
        ) from None
    broken = [(file.task_id or file.path, "its file is rejected") for file in catalog.rejected]
    if screen.as_json:
        screen.json(_simulation_json(result, broken, config, zone))
        return Exit.OK
    for line in _simulation_lines(result, broken, config, zone, _bar_width(screen), _block(screen)):
        screen.line(line)
    _say_duplicates(screen, catalog)
    return Exit.OK


def _window(from_: str | None, to: str | None, zone: tzinfo, now: datetime) -> tuple[datetime, datetime]:
    begin = now if from_ is None else _moment("--from", from_, zone, now)
    if abs(begin - now) > LONGEST:
        raise TickdownError(f"--from: {from_!r} is more than ten years away", Exit.USAGE)
    end = begin + DAY if to is None else _end(to, zone, begin)
    if end <= begin:
        raise TickdownError(f"--to: {to!r} is not after the begin, {begin.astimezone(zone):%Y-%m-%d %H:%M}", Exit.USAGE)
    if end - begin > LONGEST_WINDOW:
        raise TickdownError(f"--to: more than {LONGEST_WINDOW.days} days after the begin", Exit.USAGE)
    return begin, end


def _end(text: str, zone: tzinfo, begin: datetime) -> datetime:
    try:
        return begin + parse_duration(text)
    except ValueError:
        return _moment("--to", text, zone, begin)


def _moment(option: str, text: str, zone: tzinfo, now: datetime) -> datetime:
    try:
        return parse_moment(text, zone, now)
    except ValueError as error:
        or_duration = ", or a duration such as 7d" if option == "--to" else ""
        raise TickdownError(f"{option}: {error}{or_duration}", Exit.USAGE) from None


def _simulation_json(result: Simulation, broken: list[tuple[str, str]], config: Config, zone: tzinfo) -> dict[str, Any]:
    return {
        "from": iso(result.begin, zone),
        "to": iso(result.end, zone),
        "total": result.total,
        "by_hour": [{"hour": iso(hour, zone), "runs": count} for hour, count in result.by_hour],
        "worst_minutes": [
            {"at": iso(minute.at, zone), "runs": minute.runs, "tasks": list(minute.tasks)} for minute in result.worst_minutes
        ],
        "never": [{"task_id": task_id, "reason": reason} for task_id, reason in [*result.never, *broken]],
        "overlaps": [
            {"task_id": each.task_id, "runs": each.runs, "skipped": each.skipped, "usual_s": each.lasts.total_seconds()}
            for each in result.overlaps
        ],
        "peak_concurrency": result.peak.runs,
        "peak_at": iso(result.peak.at, zone),
        "max_concurrent": config.max_concurrent,
        "groups": [
            {"group": name, "peak_concurrency": peak.runs, "peak_at": iso(peak.at, zone), "limit": config.groups.get(name)}
            for name, peak in result.group_peaks.items()
        ],
    }  # fmt: skip


def _bar_width(screen: Screen) -> int:
    columns = shutil.get_terminal_size().columns if screen.on_terminal else 80
    return max(10, min(60, columns - 30))


def _block(screen: Screen) -> str:
    return "█" if screen.on_terminal and (sys.stdout.encoding or "").lower().startswith("utf") else "#"


def _simulation_lines(
    result: Simulation, broken: list[tuple[str, str]], config: Config, zone: tzinfo, width: int, block: str
) -> Iterator[str]:
    begin, end = (f"{moment.astimezone(zone):%Y-%m-%d %H:%M}" for moment in (result.begin, result.end))
    yield f"{_plural(result.total, 'run')} from {begin} to {end} ({zone_name(zone)}), if all goes as usual"
    for title, bars in _charts(result, zone):
        yield ""
        yield title
        yield from _bars(bars, width, block)
    yield from _worst_lines(result, zone)
    yield ""
    yield _peak_line("at once", result.peak.runs, result.peak.at, config.max_concurrent, zone)
    for group, peak in result.group_peaks.items():
        yield _peak_line(f"at once in group {group}", peak.runs, peak.at, config.groups.get(group), zone)
    if result.overlaps:
        yield ""
        yield "runs that are still going on when the next is due"
    for overlap in result.overlaps:
        usual = took(round(overlap.lasts.total_seconds() * 1000))
        yield f"  {overlap.task_id}: takes {usual}; {overlap.skipped} skipped (already_running), {_plural(overlap.runs, 'run')}"
    yield from _silence_lines([*result.never, *broken])


def _charts(result: Simulation, zone: tzinfo) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Hour by hour while that fits a screen or two; else by the hour of the day, and by day or month."""
    local = [(hour.astimezone(zone), count) for hour, count in result.by_hour]
    if result.end - result.begin <= 2 * DAY:
        yield "runs by hour", [(f"{hour:%a %m-%d %H:%M}", count) for hour, count in local]
        return
    of_day: Counter[str] = Counter()
    of_date: Counter[str] = Counter()
    is_long = result.end - result.begin > 31 * DAY
    for hour, count in local:
        of_day[f"{hour:%H}:00"] += count
        of_date[f"{hour:%Y-%m}" if is_long else f"{hour:%a %m-%d}"] += count
    yield "runs by hour of the day, all days together", sorted(of_day.items())
    yield "runs by month" if is_long else "runs by day", list(of_date.items())


def _bars(rows: Sequence[tuple[str, int]], width: int, block: str) -> Iterator[str]:
    most = max((count for _, count in rows), default=0)
    digits = len(str(most))
    for label, count in rows:
        length = -(-count * width // most) if most else 0  # whatever is not nothing can be seen
        yield f"  {label}  {count:>{digits}}  {block * length}".rstrip()


def _worst_lines(result: Simulation, zone: tzinfo) -> Iterator[str]:
    if not result.worst_minutes:
        return
    yield ""
    yield "worst minutes"
    for minute in result.worst_minutes:
        more = len(minute.tasks) - NAMES_IN_LINE
        names = ", ".join(minute.tasks[:NAMES_IN_LINE]) + (f" and {more} more" if more > 0 else "")
        yield f"  {minute.at.astimezone(zone):%a %m-%d %H:%M}  {_plural(minute.runs, 'start')}: {names}"
    unseen = result.as_bad - sum(1 for minute in result.worst_minutes if minute.runs == result.worst_minutes[0].runs)
    if unseen > 0:
        yield f"  and {_plural(unseen, 'other minute')} with as many"


def _peak_line(what: str, most: int, at: datetime | None, limit: int | None, zone: tzinfo) -> str:
    since = f", first {at.astimezone(zone):%a %m-%d %H:%M}" if at is not None else ""
    if limit is None:
        return f"{what}: up to {most}{since}"
    verdict = f"{most - limit} must wait" if most > limit else "enough"
    return f"{what}: up to {most}{since}; {limit} may run: {verdict}"


def _silence_lines(never: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not never:
        return
    yield ""
    yield "without any run"
    for task_id, reason in never[:LINES_OF_SILENCE]:
        yield f"  {one_line(task_id)}: {reason}"
    if len(never) > LINES_OF_SILENCE:
        yield f"  and {len(never) - LINES_OF_SILENCE} more (--json shows all)"


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
