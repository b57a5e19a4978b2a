"""`why`: what was decided about a task, from which candidates, and what happens next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from tickdown.alerts.messages import locked_words
from tickdown.base.errors import Exit
from tickdown.base.invocation import command_line
from tickdown.base.model import CatchUp, Comment, DisabledReason, MissReason, Run, RunStatus, SkipReason, TaskState
from tickdown.base.terminal import one_line
from tickdown.comments.meaning import Action, Wish, understood
from tickdown.context.app import App
from tickdown.failure.ladder import on_probation
from tickdown.governor.governor import Candidate, Plan, back_off, is_over, is_spent, paused
from tickdown.queries.find import find_task
from tickdown.queries.why import SlotsTaken, Story, Upstream, story_of
from tickdown.schedule.blackout import Blackout, covering
from tickdown.schedule.chains import not_accepted
from tickdown.schedule.schedule import Interval
from tickdown.schedule.wording import reading
from tickdown.time.durations import iso, took
from tickdown.time.moments import exactly, when
from tickdown.time.zones import zone_name
from tickdown.ui.views import (
    Screen,
    action_json,
    action_word,
    asker_words,
    comment_json,
    cut_off_words,
    duration_ms,
    hint_json,
    hint_words,
    next_text,
    off_words,
    probation_words,
    run_json,
    say_duplicates,
    source_word,
    transient_words,
)


def why(app: App, screen: Screen, task_id: str) -> Exit:
    opened = app.opened(datetime.now(UTC))
    story = story_of(opened, find_task(opened.db, opened.catalog, task_id))
    if screen.as_json:
        screen.json(_story_json(story))
        return Exit.OK
    for line in _story_lines(story):
        screen.line(line)
    say_duplicates(screen, opened.catalog)
    return Exit.OK


def _story_json(story: Story) -> dict[str, Any]:
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
        "cut_off": story.view.cut_off is not None,
        "held_by": facts.held.by if facts.held is not None else None,
        "paused_until": iso(facts.paused_until, zone) if paused(story.now, facts) else None,
        "paused_by": action_json(story.pause, zone) if story.pause is not None and _is_paused(story) else None,
        "failures": facts.failures,
        "transient_since": iso(story.transient_since, zone),
        "back_off": back_off(facts) if isinstance(task.schedule, Interval) else 1,
        "hints": [hint_json(hint, zone) for hint in facts.hints if hint.live(story.now)],
        "after": [
            {"task_id": one.task_id, "wants": one.wants, "ended_at": iso(one.ended_at, zone),
             "awaited": _awaited_words(one, story.now) if one.ended_at is None else None} for one in story.upstreams
        ],
        "retry_at": iso(facts.retry_at, zone),
        "candidates": [
            {"source": each.source, "at": iso(each.at, zone), "note": each.note or None} for each in story.coming.candidates
        ],
        "next_run_at": iso(story.coming.next.at, zone) if not _waits_for_its_agent(story) else None,
        "source": story.coming.next.source,
        "because": _because(story),
        "comments": [comment_json(comment, zone) for comment in story.unread],
    }  # fmt: skip


def _story_lines(story: Story) -> Iterator[str]:
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
    if story.facts.probation is not None and on_probation(story.facts, story.now):
        yield from labelled("probation", [probation_words(story.facts.probation, story.now, task.zone)])
    yield from labelled(
        "hint", [hint_words(hint, task, story.now) for hint in story.facts.hints if hint.live(story.now)]
    )
    yield from labelled("comment", [_comment_words(comment, story) for comment in story.unread])
    yield from labelled("after", [_upstream_words(one, story) for one in story.upstreams])
    yield ""
    yield from labelled("could be", _candidate_lines(story))
    yield from labelled("next", [_next_words(story)])


_SKIP_WORDS = {
    SkipReason.ALREADY_RUNNING: "the run before was still going on",
    SkipReason.PAUSED: "the task was paused",
    SkipReason.AT_CAPACITY: "no slot was free, so it had to wait",
    SkipReason.BLACKOUT: "a blackout kept it from starting",
    SkipReason.REJECTED: "the task's file was broken",
    SkipReason.MISSING_AGENT: "its agent was not installed",
    SkipReason.BUDGET_EXCEEDED: "the budget for agents was used up",
    SkipReason.COMMENT: "a comment asked for it",
}


_MISS_WORDS = {
    MissReason.OUTAGE: "no tick came",
    MissReason.CLOCK: "the clock was set forward",
    MissReason.DUPLICATE_IDS: "two files had the same id, and nothing ran",
    MissReason.CONFIGURATION: "the configuration could not be read",
    MissReason.DATABASE: "the database could not be used",
    MissReason.CRASH: "the ticks crashed",
    MissReason.JITTER: "jitter let a later one come up first",
    MissReason.MIN_INTERVAL: "min_interval had not passed since the run before",
}


def _decision_words(run: Run, story: Story) -> str:
    zone, now = story.task.zone, story.now
    at = when(run.started_at or run.scheduled_for or run.finished_at, now, zone)
    times = f" ×{run.count}" if run.count > 1 else ""
    span = f", the last {when(run.last_scheduled_for, now, zone)}" if run.count > 1 else ""
    if run.status is RunStatus.SKIPPED:
        words = run.note or next((words for reason, words in _SKIP_WORDS.items() if reason == run.reason), "")
        return f"{at}: skipped{times}, {run.reason}{f': {words}' if words else ''}{span}"
    if run.status is RunStatus.MISSED:
        them = "it" if run.count == 1 else "them"
        why = f"a later run stands for {them}" if story.task.catch_up is CatchUp.ONCE else "too late to run"
        known = next((f"{words}; " for reason, words in _MISS_WORDS.items() if reason == run.reason), "")
        return f"{at}: missed{times}: {known}{why} (catch_up: {story.task.catch_up}){span}"
    if run.status is RunStatus.RUNNING:
        dead = story.view.cut_off is not None and story.view.cut_off.run_id == run.run_id
        return (
            f"{at}: cut off ({source_word(run.source)})"
            if dead
            else f"{at}: running since then ({source_word(run.source)})"
        )
    error = f": {one_line(run.error, 80)}" if run.error else ""
    tries = f", {run.attempts} tries" if run.attempts > 1 else ""
    return f"{at}: {run.status} in {took(duration_ms(run))} ({source_word(run.source)}{tries}){error}"


def _now_words(story: Story) -> str:
    task, facts, now, decided = story.task, story.facts, story.now, story.plan
    if story.view.cut_off is not None:
        return cut_off_words(story.view.cut_off)
    if not task.enabled or facts.closing is not None:
        reason = facts.closing or task.disabled_reason
        return f"disabled{f' ({reason})' if reason else ''}: no tick starts it{_by_whom(story)}"
    if is_over(task, facts) and not decided.starts:
        spent = is_spent(task, facts)
        return (
            "its one run is over"
            if spent
            else "its time passed while it was off: give it another schedule, or run it by hand"
        )
    if _lacks_agent(story):
        return f"paused: its agent {facts.missing_agent or task.agent} is not installed"
    held = f"; {_unrun_words(decided, task.catch_up)}" if decided.unrun or decided.waiting else ""
    if facts.running:
        return f"it is running{held}"
    if paused(now, facts):
        return f"paused, which ends {when(facts.paused_until, now, task.zone)}{held}{_by_whom(story)}"
    if facts.held is not None:
        return f"{locked_words(facts.held, now, task.zone)}{held}"
    blackout = covering(task.blackout, now, task.zone)
    dark = f", in the blackout {one_line(blackout.text)}" if blackout is not None else ""
    if decided.starts:
        start = decided.starts[0]
        last = story.decisions[-1].reason if story.decisions else None
        has_waited = facts.deferred == start.at or any(one.at == start.at for one in facts.waiting)
        waited_for_a_slot = has_waited and last == SkipReason.AT_CAPACITY
        if story.taken is not None or waited_for_a_slot:
            slot = _taken_words(story.taken) if story.taken is not None else "a free slot"
            return f"due since {when(start.at, now, task.zone)}, and waits for {slot}{held}"
        if story.wish is not None and not story.wish[1].starts:
            return f"due, but {_asked(story.wish)}{held}"
        return f"due: the next tick starts it ({source_word(start.source)}){held}"
    waits_since = facts.waiting[0].at if facts.waiting else facts.deferred
    if waits_since is not None:
        why_so = (
            f": {decided.reason}" if decided.reason in (SkipReason.BUDGET_EXCEEDED, SkipReason.MISSING_AGENT) else ""
        )
        return f"due since {when(waits_since, now, task.zone)}, and waits{dark}{why_so}"
    if held:
        return held.removeprefix("; ") + dark
    if decided.reason is SkipReason.MANUAL_ONLY and facts.retry_at is None:
        return "manual: nothing starts it by itself"
    return f"not due{dark}"


def _is_paused(story: Story) -> bool:
    """For a time, or for good by somebody's word, not because it failed or is over."""
    off = story.facts.closing or (story.task.disabled_reason if not story.task.enabled else None)
    return off == DisabledReason.PAUSED or (off is None and story.task.enabled and paused(story.now, story.facts))


def _by_whom(story: Story) -> str:
    pause = story.pause
    if pause is None or not _is_paused(story):
        return ""
    return f"; paused by {asker_words(pause.asker)} {when(pause.at, story.now, story.task.zone)}"


def _taken_words(taken: SlotsTaken) -> str:
    if taken.group is not None:
        return f"its group {taken.group}, which is full: {', '.join(taken.by[:5])}"
    return f"a free slot: {len(taken.by)} of {taken.limit} (max_concurrent) run"


def _unrun_words(decided: Plan, catch_up: CatchUp) -> str:
    words = [f"what is due waits: {decided.reason}"] if decided.waiting and decided.reason else []
    for unrun in decided.unrun:
        which = "1 occurrence" if unrun.count == 1 else f"{unrun.count} occurrences"
        them = "it" if unrun.count == 1 else "them"
        stands_for = decided.starts and catch_up is CatchUp.ONCE
        missed = f"the one that starts stands for {them}" if stands_for else "too late to run"
        why = unrun.reason if unrun.status is RunStatus.SKIPPED else missed
        words.append(f"the next tick writes off {which}: {why}")
    return "; ".join(words) or "the others wait for their turn"


def _failing_words(story: Story) -> Iterator[str]:
    facts, zone = story.facts, story.task.zone
    if facts.failures:
        grows = isinstance(story.task.schedule, Interval) and not _is_off(story)
        factor = back_off(facts) if grows else 1
        longer = f"; the interval is ×{factor} until it succeeds" if factor > 1 else ""
        yield f"{facts.failures} in a row, the first {when(facts.incident_since, story.now, zone)}{longer}"
    last, since, is_off = story.view.last_run, story.transient_since, _is_off(story)
    if last is not None and since is not None:
        yield transient_words(last, since, facts.retry_at, story.now, zone, ends_here=is_off)
    elif facts.retry_at is not None and not is_off:
        yield f"to be tried again {when(facts.retry_at, story.now, zone)}"


def _upstream_words(one: Upstream, story: Story) -> str:
    wanted = "" if one.wants == "success" else f" ({one.wants})"
    if one.ended_at is None:
        return f"{one.task_id}{wanted}: {_awaited_words(one, story.now)}"
    return f"{one.task_id}{wanted}: ended {when(one.ended_at, story.now, story.task.zone)}"


def _awaited_words(one: Upstream, now: datetime) -> str:
    """Whether the end of another task can be expected."""
    if one.task is None or one.state is None:
        if one.rejected is not None:
            return f"its file is rejected: {command_line('validate', one_line(one.rejected))}"
        return not_accepted(one.task_id, one.nameless) if one.nameless else "there is no such task"
    if one.state is TaskState.RUNNING:
        return "running, its end is awaited"
    if one.state is TaskState.ACTIVE:
        return "still awaited"
    if one.paused_until is not None:
        return f"paused until {exactly(one.paused_until, now, one.task.zone)}"
    return one.state.value


def _candidate_lines(story: Story) -> list[str]:
    chosen = _chosen(story)

    def line(each: Candidate) -> str:
        note = f" ({one_line(each.note)})" if each.note else ""
        return f"{when(each.at, story.now, story.task.zone)}: {source_word(each.source)}{note}{'  <- wins' if each is chosen else ''}"

    return [line(each) for each in story.coming.candidates]


def _chosen(story: Story) -> Candidate | None:
    """The candidate that the next run comes from; none where a pause or a limit has moved it, or it is due already."""
    coming = story.coming.next
    for each in story.coming.candidates:
        if each.source is coming.source and (each.at in (coming.at, story.now) or _darkened(each, story)):
            return each
    return None


def _darkened(candidate: Candidate, story: Story) -> Blackout | None:
    return covering(story.task.blackout, candidate.at, story.task.zone)


def _next_words(story: Story) -> str:
    words = next_text(story.view, story.now)
    if _is_off(story):
        return f"none: {_because(story)}"
    if story.coming.next.at is None:
        return f"none: {_because(story)}" if words == "-" else words
    if _waits_for_its_agent(story):
        words = "not known when"
    return f"{words}, {source_word(story.coming.next.source)}: {_because(story)}"


def _lacks_agent(story: Story) -> bool:
    """As far as is known: that it is there again is noticed when there is something to start."""
    known = story.facts.missing_agent is not None and not story.plan.starts
    return known or story.plan.reason is SkipReason.MISSING_AGENT


def _awaited_of_agent(story: Story) -> str | None:
    """What must be so before its agent can start, and is not."""
    if _lacks_agent(story):
        return f"its agent {story.facts.missing_agent or story.task.agent} is installed"
    return "agents may spend money again" if story.plan.reason is SkipReason.BUDGET_EXCEEDED else None


def _waits_for_its_agent(story: Story) -> bool:
    """It is due, and nobody knows when it can start."""
    at = story.coming.next.at
    return at is not None and at <= story.now and _awaited_of_agent(story) is not None


def _is_off(story: Story) -> bool:
    return off_words(story.task, story.facts) is not None


def _because(story: Story) -> str:
    if off := off_words(story.task, story.facts):
        return off
    because = story.coming.because
    if awaited := _awaited_of_agent(story):
        because = (
            f"it is due, but waits until {awaited}"
            if _waits_for_its_agent(story)
            else f"{because}, if {awaited} by then"
        )
    if story.wish is None:
        return because
    comment, wish = story.wish
    if wish.action is Action.RUN and story.is_wish_held:
        return f"{because}; a comment asks to run it then: {one_line(comment.text)}"
    return _asked(story.wish)


# --- comments ---------------------------------------------------------------------------------------------------

_ASKS = {
    Action.SKIP: "to skip it",
    Action.PAUSE: "to pause it",
    Action.RESUME: "to let it go on",
    Action.RUN: "to run it with the next tick",
}


def _asked(asked: tuple[Comment, Wish]) -> str:
    comment, wish = asked
    return f"a comment asks {_ASKS[wish.action]}: {one_line(comment.text)}"


def _comment_words(comment: Comment, story: Story) -> str:
    said = f"{one_line(comment.author)}, {when(comment.at, story.now, story.task.zone)}: {one_line(comment.text)}"
    if understood([comment], story.task.zone, story.now):
        return said
    if story.reader is None:
        return f"{said} (no agent is there to read it)"
    return f"{said} ({story.reader} reads it before the next run)"
