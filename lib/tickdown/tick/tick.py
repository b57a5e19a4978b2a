"""One tick, in a straight line: files, duplicates, what died, decisions, claims, runs, alerts, housekeeping."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from tickdown.alerts import messages
from tickdown.alerts.delivery import deliver
from tickdown.alerts.ping import Pinger
from tickdown.alerts.sender import Sender
from tickdown.base.errors import Exit, TickdownError
from tickdown.base.machine import machine_load
from tickdown.base.model import (
    Alert,
    CatchUp,
    DisabledReason,
    Facts,
    MissReason,
    RunStatus,
    SkipReason,
    Source,
    TicketKind,
)
from tickdown.base.records import field, record, replace
from tickdown.base.terminal import one_line
from tickdown.comments.meaning import Action, understood
from tickdown.context.app import facts_as_synced, leave_shortcut, refresh
from tickdown.context.context import Context
from tickdown.context.task_file import disable_in_file
from tickdown.governor.governor import (
    NOTHING,
    Plan,
    baseline_due,
    chain_due,
    is_by_chain,
    look_again,
    put_off,
    rejected_plan,
)
from tickdown.processes.process import boot_id
from tickdown.run.decision import Decision, by_its_lock, decide, decide_again
from tickdown.run.execution import Execution
from tickdown.run.helper import Helper, HelpReport, Part, share
from tickdown.run.recovery import HungRun, dead_runs, recover
from tickdown.run.slots import Slots
from tickdown.run.supervisor import Job, Supervisor
from tickdown.schedule.cron import Cron
from tickdown.schedule.schedule import Interval, Reboot, parse_schedule
from tickdown.store import comments, hints, outbox, runs, tasks, ticks
from tickdown.store.errors import StoreError
from tickdown.store.heartbeat import OUTAGE_AFTER
from tickdown.store.tasks import Remembered
from tickdown.store.tickets import close_tickets_of_kind
from tickdown.tasks.catalogue import Catalog, TaskFile
from tickdown.tasks.task import Task
from tickdown.tick.stop_mark import take_marks
from tickdown.time.durations import in_words
from tickdown.time.zones import get_zone
from tickdown.workspace.shortcut import Look

NOTE_WAITING_AFTER = 20.0  # seconds; before the next tick comes
GARBAGE_AFTER = 50_000  # objects more than before
CLOCK_AHEAD = timedelta(hours=2)  # more than any change to winter time


@record(frozen=True)
class NotBefore:
    """There is nothing to decide about a task before this moment; None: at no time."""

    moment: datetime | None


@record()
class Report:
    """What a tick did, for whoever started it."""

    started_at: datetime
    finished_at: datetime | None = None
    due: int = 0
    run_ids: dict[str, None] = field(default_factory=dict)  # in their order, and each once
    decisions: list[Decision] = field(default_factory=list)
    rejected: list[TaskFile] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    deferred: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)  # tasks whose runs are to be taken over, in a dry run
    free_slots: int = 0
    exit_code: Exit = Exit.OK


def dry_run(context: Context, catalog: Catalog, now: datetime) -> Report:
    """The decisions, and nothing else."""
    report = Report(now, now, rejected=catalog.rejected, duplicates=catalog.duplicate_lines())
    if report.duplicates:
        report.exit_code = Exit.DUPLICATE_IDS
        return report
    facts, dead = facts_as_synced(context.db, catalog, now), dead_runs(context.db)
    report.dead = [run.task_id for run in dead]
    held_by_dead = sum(run.heartbeat_at is not None for run in dead)
    report.free_slots = context.settings.config.max_concurrent - runs.slots_held(context.db) + held_by_dead
    for task in catalog.tasks:
        known = facts.get(task.id.lower()) or Facts(task.id, armed_at=now, boot_id=boot_id())
        decision = decide(context, task, known, now)
        if known.held is not None or decision.plan.starts:
            decision = decide(context, task, by_its_lock(context, known, now), now)
        report.decisions.append(decision)
    report.due = sum(1 for decision in report.decisions if decision.plan.starts)
    return report


class Tick:
    def __init__(
        self, context: Context, every: timedelta | None, tell: Callable[[str], None], look: Look | None = None
    ) -> None:
        self.context, self.every, self.tell = context, every, tell
        self.catalog = Catalog(())
        self._look = look
        self.supervisor = Supervisor(context)
        self.slots = Slots(context, self.supervisor, context.settings.config.max_concurrent)
        self.report = Report(look.at if look is not None else datetime.now(UTC), run_ids=self.slots.run_ids)
        self.sender: Sender | None = Sender(context.workspace, context.db, context.settings.config, context.redactor)
        self._lost_helper: int | None = None
        self._news: list[str] = []  # for whoever reads what this prints
        self._unobeyed: set[str] = set()  # tasks with a comment that could not be obeyed; the next tick tries again
        self._recover_again = False
        self._began = time.monotonic()
        self._passes_done = 0
        self._noted_waiting = False

    def run(self) -> Report:
        pinger = Pinger(self.context.settings.config.ping_url, self.context.owner, self.context.log)
        pinger.send("/start")
        try:
            self._run()
            pinger.send("" if self.report.exit_code is Exit.OK else "/fail")
        finally:
            pinger.finish()  # also in a crash: the `/fail` that is sent for it must not overtake the `/start`
        return self.report

    def _run(self) -> None:
        context = self.context
        if context.healer is not None:
            import tickdown.heal.rung  # noqa: F401  # now: in an hour there may be another version of the program
        with self.supervisor:  # to the very end: a signal must not cut off the sending of an alert
            owner, now = context.owner, self.report.started_at
            if ticks.beat(context.db, owner.host, owner.pid, now, self._outage):
                tasks.clock_set_back(context.db, now)
                outbox.clock_set_back(context.db, now)
                ticks.forget_catalogue(context.db)  # a date that had passed may be yet to come
            for mark in take_marks(context.workspace):
                ticks.stopped(context.db, mark.reason, mark.until, mark.since)
            gc.freeze()  # what is there by now stays to the end; nobody needs to look for cycles in it
            gc.set_threshold(GARBAGE_AFTER)  # what a run leaves has hardly any
            try:
                self._pass()
                self._work()
            finally:
                nothing_is_being_sent = self.sender is None or self.sender.finish()
            if self.supervisor.trouble is not None and not self.supervisor.stopping:
                # What ran is on record by now; the rest is for a tick without trouble.
                raise self.supervisor.trouble
            if self.supervisor.trouble is None:
                self._give_up_waiting()
            self.report.finished_at = datetime.now(UTC)
            if self.supervisor.trouble is None:
                self._leave_behind(self.report.finished_at, may_deliver=nothing_is_being_sent)
        if self._lost_helper is not None:
            raise RuntimeError(f"the process {self._lost_helper}, which had a part of the queue, crashed")
        self._settle_exit_code()

    def _leave_behind(self, now: datetime, *, may_deliver: bool) -> None:
        """What every tick does at its end: the snapshot, the alerts, once a day the cleaning."""
        context = self.context
        load, memory = machine_load()
        ticks.snapshot(context.db, context.owner.host, self.report.due, load, memory, now)
        if not self.report.duplicates:
            close_tickets_of_kind(context.db, TicketKind.CRASH, now)
        if may_deliver:
            deliver(context.db, context.settings.config, context.redactor, context.log, now)
        if self.supervisor.stopping:
            return
        if ticks.claim_daily(context.db, "last_prune", now):
            self._daily(now)
        if not self.report.duplicates:
            self._settle(now)
        context.log.rotate()

    def _daily(self, now: datetime) -> None:
        """Once a day: remove what is old, read every file and look at every task again, whatever is remembered. At the end of
        a tick, when nobody waits for it any more."""
        from tickdown.actions.prune import remove_old

        try:
            remove_old(self.context, now)
        except OSError as error:
            self.context.log.error("prune_failed", error=str(error))
        if len(self.catalog.read) == len(self.catalog.files):
            return
        ticks.forget_catalogue(self.context.db)
        try:
            self.catalog = refresh(self.context, now)
            self.report.rejected = self.catalog.rejected
        except TickdownError as error:
            self.context.log.error("catalog", error=str(error))

    def _settle_exit_code(self) -> None:
        if self.supervisor.received is not None:
            self.report.exit_code = Exit.INTERRUPTED if self.supervisor.received is signal.SIGINT else Exit.TERMINATED
        elif self.report.duplicates:
            self.report.exit_code = Exit.DUPLICATE_IDS

    def _outage(self, last: datetime) -> Alert | None:
        now = self.report.started_at
        if now - last <= OUTAGE_AFTER:
            return None
        zone = get_zone(self.context.settings.config.timezone)
        since, until = (f"{moment.astimezone(zone):%Y-%m-%d %H:%M}" for moment in (last, now))
        return messages.outage_alert(since, until)

    # --- deciding ----------------------------------------------------------------------------------------------

    def _pass(self) -> None:
        """Bring everything up to date and queue what is due. `--every` does this again within the minute."""
        context, now = self.context, datetime.now(UTC)
        look, self._look = self._look, None  # good for one
        try:
            self.catalog = refresh(context, now, look)
        except TickdownError as error:
            if not self._passes_done:
                raise
            context.log.error("catalog", error=str(error))  # what runs must still be looked after
        self._passes_done += 1
        self._noted_waiting = False
        self.report.rejected = self.catalog.rejected
        self.report.duplicates = self.catalog.duplicate_lines()
        if self.report.duplicates:
            self._refuse_duplicates(now)
            return
        leave_shortcut(context)
        if self._heed_comments(now):
            self.catalog = refresh(context, now)
        hints.clear_expired_hints(context.db, self.catalog.get, context.owner.host, now)
        self._recover(now)
        self._tell_of_a_clock_ahead(now)
        self._decide(now)

    def _decide(self, now: datetime) -> None:
        """Only about tasks whose time to be looked at has come; most have nothing to do before a known moment. If there are
        many, helpers take a part of them."""
        facts = tasks.facts_to_look_at(self.context.db, now)
        if not self.supervisor.jobs and self.slots.is_empty and not self.supervisor.stopping:
            facts = share(self.context, self.supervisor, facts, lambda part: self._help(part, now))
        self._decide_about(facts, now)

    def _decide_about(self, facts: dict[str, Facts], now: datetime) -> None:
        decisions: list[Decision] = []
        later: list[tuple[Facts, datetime | None]] = []
        for fact in facts.values():
            task = self.catalog.get(fact.task_id)
            if task is None:
                continue
            if fact.closing:
                disable_in_file(self.context, task, now)
            match self._decided(task, fact, now):
                case Decision() as decision:
                    decisions.append(decision)
                case NotBefore(moment):
                    later.append((fact, moment))
        self._look_later(later)
        self._write_off_rejected(now, facts)
        decisions = [self._alone(decision, now) for decision in decisions]
        for decision in decisions:
            self._write_off(decision, now)
        self._enqueue(decisions, now)

    def _enqueue(self, decisions: Iterable[Decision], now: datetime) -> None:
        self.report.due += self.slots.add((self._alone(decision, now) for decision in decisions), now)

    def _alone(self, decision: Decision, now: datetime) -> Decision:
        """A plan can hold what the cron line has named beside another start. That is recorded first; then the task is
        decided again from what is on record."""
        if decision.plan.beside is None:
            return decision
        self._write_off(replace(decision, plan=decision.plan.beside), now)
        return decide_again(self.context, decision.task, now) or replace(decision, plan=NOTHING)

    def _decided(self, task: Task, facts: Facts, now: datetime) -> Decision | NotBefore | None:
        try:
            facts = self._as_locked(task, facts, now) if facts.held is not None else facts
            decision = decide(self.context, task, facts, now)
            if task.agent is not None and task.enabled:
                self._note_agent(task, task.agent, facts, decision.hindered, now)
            if not decision.plan.starts:
                moment = look_again(now, task, facts, boot_id())
                if moment is None or moment > now:
                    return NotBefore(moment)
            return decision
        except Exception as error:  # a bug that one schedule brings to light; the others go on
            from traceback import format_exc

            self.context.log.error("not_decided", task_id=task.id, traceback=format_exc())
            alert = messages.not_decided_alert(task, f"{type(error).__name__}: {error}")
            outbox.add_alert_once_per(self.context.db, outbox.HOUR, alert, now)
            return None

    def _look_later(self, later: list[tuple[Facts, datetime | None]]) -> None:
        """Remember when each of these tasks is to be looked at next. Only if the files are still those that this tick has
        read: tasks that another tick has read since must be looked at soon. This is checked after the facts were read; a fact
        that changes later is noticed by its revision."""
        if self.catalog.is_settled and ticks.remembered_catalogue(self.context.db) == self.catalog.made_from:
            tasks.look_later(self.context.db, [one for one in later if one[0].task_id.lower() not in self._unobeyed])

    def _settle(self, now: datetime) -> None:
        """At the end of a tick: when are the tasks that it has touched to be looked at again?"""
        known = tasks.remembered(self.context.db) if self.catalog.rejected else {}
        later: list[tuple[Facts, datetime | None]] = []
        for key, facts in tasks.facts_to_look_at(self.context.db, now).items():
            task = self.catalog.get(key) or self._rejected_task(known.get(key))
            try:
                later.append((facts, look_again(now, task, facts, boot_id()) if task is not None else None))
            except Exception:  # a bug that was told of when it was decided
                continue
        self._look_later(later)

    def _note_agent(self, task: Task, agent: str, facts: Facts, hindered: SkipReason | None, now: datetime) -> None:
        """A task whose agent can't be found is paused until it can, and somebody is told once."""
        if hindered is not SkipReason.MISSING_AGENT:
            if facts.missing_agent is not None:
                tasks.agent_found(self.context.db, task.id)
        elif facts.missing_agent != agent:
            program = self.context.settings.config.agents[agent].argv[0]
            alert = messages.missing_agent_alert(task, agent, program)
            tasks.agent_missing(self.context.db, task.id, agent, alert, now)

    def _as_locked(self, task: Task, facts: Facts, now: datetime) -> Facts:
        """Put on record who holds the lock of this task though no run of it is on record, or that nobody does any more. If
        somebody holds it for longer than a run may take, an alert says so, once."""
        db, held = self.context.db, by_its_lock(self.context, facts, now).held
        if held is None and facts.held is not None:
            tasks.lock_free(db, task.id)
            self.context.log.info("lock_free", task_id=task.id)
        elif held is not None and held != facts.held:
            tasks.lock_held(db, task.id, held.by, now)
            self.context.log.warning("lock_held", task_id=task.id, holder=held.by)
        if held is not None and not held.told and now - held.since > task.timeout:
            tasks.lock_held_long(db, task.id, messages.locked_alert(task, held), now)
        return tasks.facts(db, task.id) or facts

    def _decide_about_locked(self) -> None:
        """Tasks that could not start because their lock is held are decided again, knowing who holds it. If it is free by
        now, or one of our own runs is about to take it, the task stays due."""
        while self.slots.locked:
            task, now = self.slots.locked.pop(), datetime.now(UTC)
            known = tasks.facts(self.context.db, task.id)
            facts = self._as_locked(task, known, now) if known is not None else None
            if facts is not None and facts.held is not None:
                self._decide_about({task.id.lower(): facts}, now)

    def _heed_comments(self, now: datetime) -> bool:
        """Plain commands that need not wait for the next run: /pause, /resume, /run. True if a file may have changed."""
        obeyed = False
        for key, unread in comments.unread(self.context.db).items():
            task = self.catalog.get(key)
            if task is None:
                continue
            for comment, wish in understood(unread, task.zone, now):
                if wish.action is Action.SKIP:
                    break  # what comes behind it is about the time after that
                from tickdown.actions.comments import obey_comment  # most ticks have none to obey

                try:
                    obey_comment(self.context, task, comment, wish, now)
                    obeyed = True
                except TickdownError as error:
                    self.context.log.error("comment_not_obeyed", task_id=task.id, error=str(error))
                    self._unobeyed.add(key)
                    break
        return obeyed

    def _write_off(self, decision: Decision, now: datetime) -> None:
        """Write the row of what will not run, or has to wait. If something starts as well, the claim writes it."""
        task, facts, what = decision.task, decision.facts, decision.plan
        if what.starts or not what.does_something:
            return
        note = _note(facts, what.reason)
        if what.waiting and what.settles is None:
            runs.defer(self.context.db, facts, what, self.context.owner.host, now, note)
            self._tell_of_waiting(facts, what, now, note)
            return
        over = what.source is Source.ONE_SHOT
        recorded = runs.write_off(
            self.context.db, facts, what, self.context.owner.host, now,
            is_interval=isinstance(task.schedule, Interval), closing=DisabledReason.FAILED if over else None,
            next_boot_id=boot_id() if isinstance(task.schedule, Reboot) else None, note=note,
        )  # fmt: skip
        if not recorded:
            return
        if over:
            disable_in_file(self.context, task, now)
        self._tell_of_waiting(facts, what, now, note)
        held = f"; {note}" if note else ""
        for unrun in what.unrun:
            self.context.log.info(
                unrun.status, task_id=facts.task_id, reason=unrun.reason, count=unrun.count, note=note
            )
            self.tell(f"{unrun.status:<9} {facts.task_id}  {unrun.reason or 'too late to run'} ({unrun.count}){held}")

    def _tell_of_waiting(self, facts: Facts, what: Plan, now: datetime, note: str | None) -> None:
        is_news = what.waiting != facts.waiting or what.reason is SkipReason.AT_CAPACITY
        if what.waiting and is_news:
            self.context.log.info("deferred", task_id=facts.task_id, reason=what.reason, note=note)
            held = f"; {note}" if note else ""
            due = in_words(what.waiting[-1].at, now)
            self.tell(f"{'deferred':<9} {facts.task_id}  {what.reason}; due {due}{held}")

    def _write_off_rejected(self, now: datetime, facts: dict[str, Facts]) -> None:
        """A task whose file can't be used is still due: its occurrences get rows that say why they did not run."""
        if not self.catalog.rejected or not facts:
            return
        for key, known in tasks.remembered(self.context.db).items():
            task = self._rejected_task(known) if key in facts and not facts[key].closing else None
            if task is not None:
                self._write_off_one_rejected(task, facts[key], now)

    def _rejected_task(self, known: Remembered | None) -> Task | None:
        """What is known of a task whose file can't be used now; None if it has another reason not to be there."""
        if known is None or not known.enabled or known.task_id in self.catalog or not self.catalog.rejects(known.path):
            return None
        zone = get_zone(known.timezone)
        try:
            return Task(known.task_id, parse_schedule(known.schedule, known.task_id, zone), zone, known.path)
        except ValueError:
            return None

    def _write_off_one_rejected(self, task: Task, facts: Facts, now: datetime) -> None:
        pending = baseline_due(now, task, facts, boot_id()) or chain_due(task, facts)
        if pending is not None and pending.all.last <= now:
            self._write_off(Decision(task, facts, rejected_plan(facts, pending)), now)

    def _refuse_duplicates(self, now: datetime) -> None:
        ticks.stopped(self.context.db, MissReason.DUPLICATE_IDS, now)
        alert = messages.duplicates_alert(self.report.duplicates)
        outbox.add_alert_once_per(self.context.db, outbox.HOUR, alert, now)
        self.context.log.error("duplicate_ids", duplicates=self.report.duplicates)
        self.slots.waiting.clear()

    def _tell_of_a_clock_ahead(self, now: datetime) -> None:
        """After a clock was wrong, occurrences that are yet to come may count as taken up. None is run twice, so their tasks
        are silent until then, and somebody must know."""
        taken = tasks.taken_up_ahead(self.context.db, now + CLOCK_AHEAD)
        found = {task_id: self.catalog.get(task_id) for task_id in taken}
        ahead = {task.id: taken[key] for key, task in found.items() if task and isinstance(task.schedule, Cron)}
        if ahead:
            until = f"{max(ahead.values()).astimezone(get_zone(self.context.settings.config.timezone)):%Y-%m-%d %H:%M}"
            alert = messages.clock_alert(sorted(ahead), until)
            outbox.add_alert_once_per(self.context.db, outbox.DAY, alert, now)

    def _recover(self, now: datetime) -> None:
        for job in recover(self.context, self.catalog.get, now, time.monotonic()):
            self.supervisor.add(job)

    # --- running -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Start what is queued as slots come free, until nothing of ours is left to wait for."""
        try:
            self._work_off()
        finally:
            self._tell_news()

    def _work_off(self) -> None:
        """The loop: claim and start what is ready; wait until something happens; record what has ended; decide what follows
        from that, which may be ready in the next turn."""
        while not self._is_over:
            until: float | None = None
            ended: list[Job] = []
            try:
                if self.supervisor.may_start:
                    next_pass = self._next_pass_at()
                    if next_pass is not None and time.monotonic() >= next_pass:
                        self._pass()
                    if self._recover_again:
                        self._recover_again = False
                        self._recover(datetime.now(UTC))
                    moments = self.slots.start_ready(), self._next_pass_at(), self._note_waiting()
                    if self.slots.locked:
                        self._decide_about_locked()
                        continue
                    until = min((moment for moment in moments if moment is not None), default=None)
                    if not self.supervisor.jobs and until is None:
                        return
                    if self.sender is not None:
                        look_at = self.sender.look()
                        until = look_at if until is None else min(until, look_at)
                elif not self.supervisor.stopping:
                    until = self.slots.go_on_in_trouble()
                    if not self.supervisor.jobs:
                        continue
                ended = self.slots.turn(until)
            except StoreError as error:
                self.supervisor.put_up_with(error)
            for job in ended:
                try:
                    self._job_done(job)
                except StoreError as error:  # what follows this one is for a later tick
                    self.supervisor.put_up_with(error)
            self._tell_news()
            if self.supervisor.stopping:
                self.slots.cancel_claimed()

    @property
    def _is_over(self) -> bool:
        """Nothing may be started any more, and nothing of ours runs."""
        return not (self.supervisor.may_start or self.supervisor.jobs or self.slots.claimed)

    def _tell_news(self) -> None:
        """One write for all that ended together, so that whoever reads it is woken once."""
        if self._news:
            self.tell("\n".join(self._news))
            self._news.clear()

    def _next_pass_at(self) -> float | None:
        """The next beat of `--every`, while it still lies inside the minute that this tick began."""
        if self.every is None:
            return None
        after = self._passes_done * self.every.total_seconds()
        return self._began + after if after < 60 else None

    def _job_done(self, job: Job) -> None:
        if isinstance(job, Helper):
            self._helper_done(job)
            return
        if isinstance(job, HungRun):
            self._recover_again = self._recover_again or job.killed_owner
            if job.successor is not None and not self.supervisor.stopping:
                self.supervisor.add(job.successor)
            return
        assert isinstance(job, Execution)
        task = job.run.task
        self.slots.full_groups.discard(task.group)
        if job.outcome is not None:
            error = f"  {one_line(job.outcome.error)}" if job.outcome.error else ""
            self._news.append(f"{job.outcome.status:<9} {task.id}{error}")
            self._count_run(job.run.run_id, job.outcome.status)
        if self.supervisor.stopping or self.report.duplicates:
            return
        now = datetime.now(UTC)
        if followers := self.catalog.followers(task.id):
            self._enqueue_anew(followers, now)
        if task.catch_up is CatchUp.ALL or task.after:
            self._enqueue_again(task, now)

    def _count_run(self, run_id: str, status: RunStatus) -> None:
        """The run may have been taken over, so that it was not claimed here; or a comment has cancelled it before it
        began."""
        if status is RunStatus.SKIPPED:
            self.report.run_ids.pop(run_id, None)
        else:
            self.report.run_ids[run_id] = None

    def _enqueue_anew(self, found: Iterable[Task], now: datetime) -> None:
        decided = (decide_again(self.context, task, now) for task in found)
        self._enqueue((decision for decision in decided if decision is not None), now)

    def _enqueue_again(self, task: Task, now: datetime) -> None:
        again = decide_again(self.context, task, now)
        if again is not None and again.plan.starts and _waited_for_the_end(again):
            self._enqueue([again], now)

    def _help(self, part: Part, now: datetime) -> HelpReport:
        """The work of a helper: decide about a part of the tasks and run them. Everything else stays with the first
        process."""
        self.context, self.every = part.context, None
        self.sender = None  # the first process sends for all
        received = self.supervisor.received  # between the fork and now
        with Supervisor(self.context, told_twice=True) as self.supervisor:
            self.supervisor.received = received or self.supervisor.received
            self.slots = Slots(self.context, self.supervisor, part.slots)
            self.report = Report(self.report.started_at, run_ids=self.slots.run_ids)
            try:
                self._decide_about(part.facts, now)
            except StoreError as error:
                self.supervisor.put_up_with(error)  # nothing is started; who gave us the part hears that it is left
            self._work()
        left = [queued.occurrence.task_id for queued in self.slots.waiting]
        return HelpReport(self.report.due - len(left), list(self.report.run_ids), left, self.supervisor.trouble)

    def _helper_done(self, helper: Helper) -> None:
        self.slots.full_groups.clear()  # the runs that filled them may have been its own
        did = helper.did
        if did is None:
            self._lost_helper = helper.pid
            return
        self.report.due += did.due
        self.report.run_ids |= dict.fromkeys(did.run_ids)
        if did.trouble is not None:
            self.supervisor.put_up_with(did.trouble)  # it is the same database: nothing more is started here either
        if self.supervisor.may_start:
            left = (self.catalog.get(task_id) for task_id in did.left)
            self._enqueue_anew((task for task in left if task is not None), datetime.now(UTC))

    def _note_waiting(self) -> float | None:
        """A task that has waited long for a slot gets its row while this tick still goes on: the next tick would wonder why
        it has none. When to look again?"""
        if not self.slots.waiting or self._noted_waiting:
            return None
        at = self._began + NOTE_WAITING_AFTER
        if time.monotonic() < at:
            return at
        self._noted_waiting, now = True, datetime.now(UTC)
        with self.context.db.transaction():
            for queued in self.slots.waiting:
                decision = queued.decision
                if decision.plan.settles is not None and queued.ready_at <= time.monotonic():
                    self._write_off(replace(decision, plan=put_off(decision.plan, SkipReason.AT_CAPACITY)), now)
                    # To be decided anew, from what is on record now.
                    queued.decided_at = datetime.min.replace(tzinfo=UTC)
        return None

    def _give_up_waiting(self) -> None:
        """This tick ends while others hold the slots: what still waits stays due, and a row says that it waited."""
        now = datetime.now(UTC)
        for queued in self.slots.waiting:
            decision = queued.decision
            if self.supervisor.stopping and decision.plan.settles is None:
                continue  # not because of the slots, and the next tick starts it
            self._write_off(replace(decision, plan=put_off(decision.plan, SkipReason.AT_CAPACITY)), now)
            self.report.deferred.append(decision.task.id)


def _note(facts: Facts, reason: SkipReason | None) -> str | None:
    """Who keeps a task from starting, if that is not a run on record."""
    if facts.held is None or facts.running or reason is not SkipReason.ALREADY_RUNNING:
        return None
    return messages.held_words(facts.held)


def _waited_for_the_end(again: Decision) -> bool:
    """A task has just ended. Does it start again in this tick? Only for the end of others that came meanwhile, which happens
    once for each, or for the next missed occurrence. Anything else that is due again waits for the next tick, or a task that
    ends quickly would keep this one busy for ever."""
    start = again.plan.starts[0]
    if is_by_chain(start, again.facts):
        return True
    return again.task.catch_up is CatchUp.ALL and start.source in (Source.CATCH_UP, Source.BASELINE_CRON)
