"""One attempt: its process, what that prints, how it ended, and the end of whatever it left behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo

from tickdown.agents.calls import Answer, read_answer
from tickdown.attempt.command import Command, launch
from tickdown.attempt.transcript import Transcript
from tickdown.base.model import RunStatus
from tickdown.base.records import replace
from tickdown.failure.outcomes import Outcome, classify
from tickdown.processes.process import Child
from tickdown.processes.termination import Termination


class Attempt:
    """Never waits. `child` is None before the start, after `close`, and of an attempt that another process had started."""

    child: Child | None = None
    termination: Termination | None = None  # once its processes are being ended
    _command: Command | None = None
    _background_output: Sequence[int] = ()

    def __init__(self, run_id: str, transcript: Transcript) -> None:
        self.run_id, self.transcript = run_id, transcript

    def start(self, command: Command) -> None:
        """Raises CannotRun."""
        self._command = command
        self.child = launch(command)

    @property
    def leader(self) -> tuple[int, int] | None:
        """(pid, start) of the command itself."""
        return (self.child.pid, self.child.started) if self.child is not None else None

    @property
    def has_exited(self) -> bool:
        return self.child is not None and self.child.exited

    def read(self) -> None:
        """The output that has come."""
        assert self.child is not None
        self.transcript.read(self.child)

    def exited(self) -> None:
        """The command has ended; its last words are read."""
        assert self.child is not None
        self.child.exited = True
        self.read()

    def end_by_itself(self, now: datetime, zone: tzinfo, *, is_request: bool) -> Outcome:
        """How the command that has exited ended. What children in its background write from here on is not this attempt's."""
        assert self.child is not None
        self._background_output, self.child.open_outputs = [*self._background_output, *self.child.open_outputs], []
        self.transcript.end()  # nothing can complete what is held back
        exit_code, signal = self.child.exit_status()
        output, answer = self.transcript.summary(), self.answer(exit_code)
        outcome = classify(
            exit_code, signal, output=output, is_request=is_request, answer=answer, now=now, zone=zone
        )  # fmt: skip
        if outcome.error is not None and (answer is None or answer.error is None):
            outcome = replace(outcome, error=self.transcript.with_last_line(outcome.error))
        return outcome

    def answer(self, exit_code: int | None) -> Answer | None:
        """What an agent said at its end."""
        if self.child is None or self._command is None or self._command.format is None:
            return None
        said, besides = self.transcript.said(self.child.stdout), self.transcript.said(self.child.output)
        return read_answer(self._command.format, said, besides, exit_code)

    def end_processes(self, leader: tuple[int, int] | None, grace: float, monotonic: float) -> None:
        """All that belong to it, in the background too: SIGTERM, and SIGKILL after the grace. `termination` takes the steps."""
        self._background_output = ()
        self.termination = Termination(self.run_id, leader, grace, monotonic)

    def ended_as(self, why: Outcome) -> Outcome:
        """Of one whose processes were ended: with its exit code, and what an agent that was cut off had spent."""
        if self.child is None:
            return why
        self.read()
        self.transcript.end()
        exit_code, signal = self.child.exit_status()
        why = replace(why, exit_code=exit_code, signal=signal)
        answer = self.answer(exit_code) if why.status is not RunStatus.SUCCESS else None
        return replace(why, usage=answer.usage) if answer is not None else why

    def close(self) -> None:
        """Children in the background keep somebody who reads what they print."""
        if self.child is not None:
            self.child.leave_alone(self._background_output)
            self._background_output = ()
            self.child.close()
            self.child = None
