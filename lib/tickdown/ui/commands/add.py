"""`add`: a task file from one sentence."""

from __future__ import annotations

from datetime import UTC, datetime

from tickdown.actions import add as action
from tickdown.base.errors import Exit
from tickdown.base.terminal import one_line
from tickdown.context.app import App
from tickdown.schedule.wording import reading
from tickdown.ui.asker import who_asks
from tickdown.ui.views import Screen, done, next_text, task_json


def add(
    app: App,
    screen: Screen,
    sentence: str,
    command: str | None,
    agent: str | None,
    url: str | None,
    task_id: str | None,
) -> Exit:
    now = datetime.now(UTC)
    opened = app.opened(now)
    asker = who_asks(opened.catalog)
    view = action.add(opened, asker, sentence, command=command, agent=agent, url=url, task_id=task_id)
    task = view.task
    lines = [
        task.path,
        f"schedule  {one_line(task.schedule.text)}: {reading(task.schedule)}",
        f"next run  {next_text(view, now)}",
        *([f"done by   {task.agent}, who is told: {one_line(task.prompt, 200)}"] if task.agent is not None else []),
    ]
    return done(screen, "\n".join(lines), {**task_json(view), "reading": reading(task.schedule)})
