"""A task that was kept as text is the task that was parsed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import PROJECT
from tickdown.config import parse_config
from tickdown.tasks.remembered import problems_from_text, problems_to_text, task_from_text, task_to_text
from tickdown.tasks.task import FIELDS, Task, parse_task

CONFIG, _ = parse_config(
    """
groups: {gpu: 1}
cwd_policies: {site: /srv}
blackout: ["22:00-06:00"]
notify: {destinations: {home: {chat: "1"}}}
""",
    {},
)
KNOWN = CONFIG.surroundings()
# Each field of the contract with a value that is not its default.
SAID = {
    "id": "a.b_c-1", "schedule": "0 6 * * 1-5", "title": "Ein Titel – 日本語", "enabled": False, "disabled_reason": "retired",
    "run_as": "shell", "command": "echo 'x: y' | cat\n\ttrue", "timeout": "90m", "retry": 3, "retry_delay": "1.5s",
    "rerun_interrupted": False, "self_heal": False, "heal_paths": ["a.py", "b.sh"], "suspend_after": 4,
    "notify_on": "always", "notify_to": "home", "cwd": "/tmp", "env": {"A": "1", "B": "${HOME}"},
    "timezone": "Europe/Berlin", "catch_up": "all", "grace": "2h", "jitter": "30s", "min_interval": "1m",
    "max_interval": "1d", "after": {"other": "failure", "third": "always"}, "group": "gpu", "priority": -7,
    "max_log": "500 KiB", "blackout": ["sat-sun", "2026-12-24/2026-12-26"], "tags": ["x", "y z"],
}  # fmt: skip


def parsed(fields: dict[str, object], body: str = "What it does.") -> Task:
    text = "---\n" + "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items()) + f"---\n{body}\n"
    task, problems, _ = parse_task(text, "tasks/a.md", KNOWN)
    assert task is not None, problems
    return task


def kept(task: Task) -> Task:
    return task_from_text(task_to_text(task))


def test_every_field_comes_back() -> None:
    task = parsed(SAID)
    assert kept(task) == task
    assert kept(task).lines == task.lines and kept(task).zone is task.zone


@pytest.mark.parametrize(
    "fields",
    [
        {"run_as": "http", "url": "https://example.org/${X}", "method": "POST", "headers": {"A": "b"}, "body": "{}",
         "expect_status": [204, 301]},
        {"run_as": "claude", "prompt": "Do it", "budget_usd": 0.25, "budget_usd_per_day": 3},
        {"run_as": "script", "command": "a.py --x", "cwd_policy": "site"},
    ],
)  # fmt: skip
def test_so_do_requests_and_agents(fields: dict[str, object]) -> None:
    task = parsed({"id": "a", "schedule": "manual", **fields})
    assert kept(task) == task


def test_no_field_is_left_out_of_these_tests() -> None:
    others = {
        "prompt",
        "url",
        "method",
        "headers",
        "body",
        "expect_status",
        "budget_usd",
        "budget_usd_per_day",
        "cwd_policy",
    }
    later = {"work_source", "allow_schedule"}
    assert {*SAID, *others, *later} == set(FIELDS)


@pytest.mark.parametrize(
    "schedule",
    ["*/5 8-18 * * mon-fri", "0 0 L * *", "0 9 * * mon#1", "0 0 1 * 5", "H H * * *", "@hourly", "@reboot", "1.5h", "30s",
     "every weekday at 18:30", "in 30 minutes", "at 17:00", "tomorrow at 09:00", "on 2099-06-01 at 12:00", "manual"],
)  # fmt: skip
def test_every_kind_of_schedule_comes_back(schedule: str) -> None:
    task = parsed({"id": "a", "schedule": schedule, "command": "true"})
    assert kept(task) == task


@pytest.mark.parametrize("path", sorted(PROJECT.glob("tasks/**/*.md")), ids=lambda path: path.stem)
def test_so_do_the_examples(path) -> None:  # type: ignore[no-untyped-def]
    task, problems, _ = parse_task(path.read_text(), "tasks/x.md", KNOWN)
    assert task is not None, problems
    assert kept(task) == task


@given(st.text(max_size=60).filter(lambda text: text.strip()))
def test_whatever_a_command_and_a_body_say_comes_back(text: str) -> None:
    usable = text.encode("utf-8", "replace").decode().replace("\0", "?")
    fields = f"---\nid: a\nschedule: manual\ncommand: {json.dumps(usable)}\n---\n{usable}\n"
    task, _, _ = parse_task(fields, "tasks/a.md", KNOWN)
    if task is not None:
        assert kept(task) == task


def test_problems_come_back_with_their_places() -> None:
    _, problems, _ = parse_task("---\nid: a\nschedule: nope\nshedule: x\n---\n", "tasks/a.md", KNOWN)
    assert len(problems) > 1
    assert problems_from_text(problems_to_text(tuple(problems))) == tuple(problems)
    assert problems_to_text(()) == ""
