"""`next`, `simulate`: what is to come."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from tickdown.base.errors import Exit, TickdownError
from tickdown.base.model import ChainOn, HintKind, Source
from tickdown.base.terminal import one_line
from tickdown.config import Config
from tickdown.context.app import App
from tickdown.governor.governor import hint_note
from tickdown.governor.simulation import LONGEST_WINDOW, Simulation
from tickdown.queries import ahead
from tickdown.queries.ahead import Coming, NothingToCome
from tickdown.schedule.cron import Cron, clock_note
from tickdown.schedule.phrases import read_moment
from tickdown.schedule.schedule import OneShot
from tickdown.time.durations import LONGEST, iso, parse_duration, took
from tickdown.time.moments import coming
from tickdown.time.zones import get_zone, zone_name
from tickdown.ui.views import Screen, next_text, say_duplicates, source_word

NAMES_IN_LINE = 6
LINES_OF_SILENCE = 20
DAY = timedelta(days=1)


# --- next ------------------------------------------------------------------------------------------------------


def next_runs(app: App, screen: Screen, task_id: str | None, count: int) -> Exit:
    now = datetime.now(UTC)
    opened = app.opened(now)
    found = ahead.next_runs(opened, task_id, count)
    if isinstance(found, NothingToCome):
        if screen.as_json:
            screen.json([])
            return Exit.OK
        words = next_text(found.view, now)
        screen.line(f"nothing to come: {found.because if words == '-' else words}")
        say_duplicates(screen, opened.catalog)
        return Exit.OK
    rows = [(coming_run.start, coming_run.subject.task.zone, _note(coming_run)) for coming_run in found]
    if screen.as_json:
        screen.json([
            {"task_id": start.task_id, "at": iso(start.at, zone), "source": start.source, "note": note}
            for start, zone, note in rows
        ])  # fmt: skip
        return Exit.OK
    if rows:
        screen.table(
            ("TASK", "WHEN", "SOURCE", "NOTE"),
            [
                [start.task_id, coming(start.at, now, zone), source_word(start.source), note or ""]
                for start, zone, note in rows
            ],
        )
    else:
        screen.line("nothing to come")
    say_duplicates(screen, opened.catalog)
    return Exit.OK


_CHAIN_WORDS = {
    ChainOn.SUCCESS: "ended as usual and well",
    ChainOn.FAILURE: "failed",
    ChainOn.ALWAYS: "ended, well or not",
}


def _note(coming_run: Coming) -> str | None:
    """What a person should know of a start: that the clock moves it, or whose advice or end it hangs on."""
    start, subject = coming_run.start, coming_run.subject
    task = subject.task
    if start.source is Source.AFTER:
        return "when " + " and ".join(f"{name} has {_CHAIN_WORDS[wants]}" for name, wants in task.after.items())
    kind = {Source.AI_INTERVAL: HintKind.INTERVAL, Source.AI_ONESHOT: HintKind.ONE_SHOT}.get(start.source)
    if kind is not None:
        return next((hint_note(hint) for hint in subject.facts.hints if hint.kind is kind), None)
    occurrence = start.occurrence
    if isinstance(task.schedule, Cron) and occurrence is not None and occurrence.source is Source.BASELINE_CRON:
        return clock_note(task.schedule, occurrence.at)
    if isinstance(task.schedule, OneShot) and start.source is Source.ONE_SHOT:
        return task.schedule.once.clock_note(subject.facts.anchored_at or subject.facts.armed_at, task.zone)
    return None


# --- simulate --------------------------------------------------------------------------------------------------


def simulation(app: App, screen: Screen, from_: str | None, to: str | None) -> Exit:
    now, config = datetime.now(UTC), app.settings.config
    zone = get_zone(config.timezone)
    begin, end = _window(from_, to, zone, now)
    opened = app.opened(now)
    catalog, result = opened.catalog, ahead.simulation(opened, begin, end)
    broken = [(file.task_id or file.path, "its file is rejected") for file in catalog.rejected]
    if screen.as_json:
        screen.json(_simulation_json(result, broken, config, zone))
        return Exit.OK
    for line in _simulation_lines(result, broken, config, zone, _bar_width(screen), _block(screen)):
        screen.line(line)
    say_duplicates(screen, catalog)
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
        return read_moment(text, zone, now)
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
        yield _peak_line(f"at once in group {one_line(group)}", peak.runs, peak.at, config.groups.get(group), zone)
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
