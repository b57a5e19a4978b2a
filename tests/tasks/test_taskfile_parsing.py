"""From the text of a task file to a Task, or to problems with their line; and what is not even read."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickdown.base.model import CatchUp, ChainOn, DisabledReason, NotifyOn
from tickdown.base.records import replace
from tickdown.schedule.blackout import parse_blackout
from tickdown.schedule.schedule import Interval, Manual
from tickdown.tasks.catalogue import Catalog, catalog_of, find_files, load_file, scan_tasks
from tickdown.tasks.task import FIELDS, Request, Surroundings, parse_task
from tickdown.workspace.folders import MAX_BYTES, Workspace

KNOWN = Surroundings("UTC", ("home", "work"), ("site",))
MINIMAL = "id: a\nschedule: manual\ncommand: 'true'\n"


def parse(fields: str, body: str = ""):
    return parse_task(f"---\n{fields}---\n{body}", "tasks/a.md", KNOWN)


def accepted(more: str):
    task, problems, _ = parse(MINIMAL + more)
    assert not problems
    return task


def refused(fields: str) -> list[str]:
    task, problems, _ = parse(fields)
    assert task is None
    return [problem.at("tasks/a.md") for problem in problems if not problem.warning]


# --- fields ----------------------------------------------------------------------------------------------------


def test_every_field_has_its_documented_default():
    task = accepted("")
    assert (task.id, task.title, task.enabled, task.disabled_reason) == ("a", "a", True, None)
    assert (task.run_as, task.command, task.timeout) == ("shell", "true", timedelta(seconds=600))
    assert (task.retries, task.retry_delay, task.rerun_interrupted) == (0, timedelta(0), True)
    assert (task.self_heal, task.suspend_after, task.notify_on, task.notify_to) == (True, 10, NotifyOn.FAILURE, None)
    assert (task.cwd, task.cwd_policy, task.env, task.timezone) == (None, None, {}, "UTC")
    assert (task.catch_up, task.grace, task.jitter) == (CatchUp.ONCE, None, None)
    assert (task.max_log, task.tags, task.body, task.schedule) == (10 * 1024**2, (), "", Manual())


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("title: ' Nightly\n\n  backup '", "title", "Nightly backup"),
        ("enabled: false", "enabled", False),
        ("enabled: no", "enabled", False),
        ("enabled:", "enabled", True),
        ("disabled_reason: auto_suspended", "disabled_reason", DisabledReason.AUTO_SUSPENDED),
        ("disabled_reason: by_choice", "disabled_reason", DisabledReason.BY_CHOICE),
        ("run_as: script", "run_as", "script"),
        ("timeout: 90", "timeout", timedelta(seconds=90)),
        ("timeout: 0.5", "timeout", timedelta(seconds=0.5)),
        ("timeout: 10m", "timeout", timedelta(minutes=10)),
        ("retry: true", "retries", 1),
        ("retry: false", "retries", 0),
        ("retry: 5", "retries", 5),
        ("retry_delay: 0", "retry_delay", timedelta(0)),
        ("retry_delay: 5m", "retry_delay", timedelta(minutes=5)),
        ("rerun_interrupted: false", "rerun_interrupted", False),
        ("self_heal: false", "self_heal", False),
        ("suspend_after: 1", "suspend_after", 1),
        ("notify_on: always", "notify_on", NotifyOn.ALWAYS),
        ("notify_to: work", "notify_to", "work"),
        ("cwd: /tmp", "cwd", "/tmp"),
        ("cwd_policy: site", "cwd_policy", "site"),
        ("env: {A: 1, B_2: yes, C: '${X}', D: 0017, E: }", "env",
         {"A": "1", "B_2": "yes", "C": "${X}", "D": "0017", "E": ""}),
        ("timezone: Europe/Berlin", "timezone", "Europe/Berlin"),
        ("catch_up: all", "catch_up", CatchUp.ALL),
        ("grace: 2h", "grace", timedelta(hours=2)),
        ("jitter: 30s", "jitter", timedelta(seconds=30)),
        ("jitter: 0s", "jitter", timedelta(0)),
        ("max_log: 2048", "max_log", 2048),
        ("max_log: 1 MiB", "max_log", 1024**2),
        ("tags: [x, y]", "tags", ("x", "y")),
        ("tags: x", "tags", ("x",)),
        ("tags: []", "tags", ()),
    ],
)  # fmt: skip
def test_a_good_value_is_taken(line, name, value):
    assert getattr(accepted(line + "\n"), name) == value


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("title: [a]", "title: a list is not a text"),
        ("title: 5", "title: '5' is not a text; put it in quotes"),
        ("enabled: maybe", "enabled: 'maybe' is not accepted; true or false"),
        ("enabled: 1", "enabled: '1' is not accepted; true or false"),
        ("enabled: !!bool banana", "enabled: 'banana' is not accepted; true or false"),
        ("disabled_reason: tired", "disabled_reason: 'tired' is not accepted; one of auto_suspended, retired, paused, "
         "by_choice, completed, failed"),
        ("run_as: ruby", "run_as: 'ruby' is not known; shell, script, http, claude, codex or gemini"),
        ("run_as: scripts", "did you mean 'script'?"),
        ("run_as: cluade", "run_as: 'cluade' is not known; did you mean 'claude'?"),
        ("prompt: do it", "prompt: is only for tasks of an agent"),
        ("budget_usd: 1", "budget_usd: is only for tasks of an agent"),
        ("budget_usd_per_day: 1", "budget_usd_per_day: is only for tasks of an agent"),
        ("heal_paths: [a, '*.sh']", "heal_paths: are names of files, one each; no patterns"),
        ("heal_paths: {a: b}", "heal_paths: a mapping is not accepted; a list of texts"),
        ("run_as: ''", "run_as: '' is not known"),
        ("timeout: 0", "timeout: '0' is zero"),
        ("timeout: -5", "timeout: '-5' is negative"),
        ("timeout: 5x", "timeout: '5x' has the unknown unit 'x'"),
        ("timeout: .inf", "timeout: '.inf' is not a duration"),
        ("timeout: true", "or a number of seconds"),
        ("timeout: [1]", "timeout: a list is not a duration"),
        ("timeout: 1e12", "timeout: "),
        ("retry: -1", "retry: '-1' is not accepted; true, false or a whole number from 0 to 100"),
        ("retry: 1.5", "retry: '1.5' is not accepted"),
        ("retry: often", "retry: 'often' is not accepted"),
        ("retry_delay: soon", "retry_delay: 'soon' is not a duration"),
        ("rerun_interrupted: 0", "rerun_interrupted: '0' is not accepted; true or false"),
        ("self_heal: x", "self_heal: 'x' is not accepted; true or false"),
        ("suspend_after: 0", "suspend_after: '0' is not accepted; a whole number from 1"),
        ("suspend_after: true", "suspend_after: 'true' is not accepted"),
        ("notify_on: sometimes", "notify_on: 'sometimes' is not accepted; one of failure, success, always, never"),
        ("notify_to: hom", "notify_to: 'hom' is not in the configuration under notify.destinations; did you mean 'home'? "
         "(known are home, work)"),
        ("cwd_policy: nowhere", "cwd_policy: 'nowhere' is not in the configuration under cwd_policies"),
        ("cwd: 5", "cwd: '5' is not a text"),
        ("env: [A]", "env: a list is not accepted; a mapping of names to values"),
        ("env: {1A: x}", "env: '1A' is not a variable name"),
        ("env: {A-B: x}", "env: 'A-B' is not a variable name"),
        ("env: {'': x}", "env: '' is not a variable name"),
        ("env: {A: [x]}", "env: A: a list is not accepted; a text"),
        ('env: {A: "x\\0y"}', "env: A: contains a NUL"),
        ("timezone: Europe/Berln", "timezone: unknown time zone 'Europe/Berln'; did you mean Europe/Berlin"),
        ("timezone: ../../etc/passwd", "timezone: unknown time zone"),
        ("timezone: ''", "timezone: unknown time zone"),
        ("timezone: 5", "timezone: '5' is not a text"),
        ("catch_up: twice", "catch_up: 'twice' is not accepted; one of once, skip, all"),
        ("grace: 0s", "grace: '0s' is zero"),
        ("grace: 5", "grace: '5' has no unit"),
        ("jitter: -1s", "jitter: '-1s' is negative"),
        ("max_log: 1000", "max_log: '1000' is too small; at least 1024 bytes"),
        ("max_log: lots", "max_log: 'lots' is not a size"),
        ("max_log: {a: b}", "max_log: a mapping is not a size"),
        ("tags: {a: b}", "tags: a mapping is not accepted; a list of texts"),
        ("tags: [a, 5]", "tags: '5' is not a text; put it in quotes"),
        ("tags: [[a]]", "tags: a list is not a text"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_its_line_and_what_is_accepted(line, says):
    [message] = refused(f"{MINIMAL}\n# a comment\n{line}\n")
    assert message.startswith("tasks/a.md:7: ")
    assert says in message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("schedule: manual\ncommand: x\n", ":2: id: required; letters, digits"),
        ("id:\nschedule: manual\ncommand: x\n", "id: required"),
        ("id: ''\nschedule: manual\ncommand: x\n", ":2: id: '' is not accepted"),
        ("id: 12\nschedule: manual\ncommand: x\n", ":2: id: '12' is not a text; put it in quotes"),
        ("id: a b\nschedule: manual\ncommand: x\n", "id: 'a b' is not accepted"),
        ("id: ../a\nschedule: manual\ncommand: x\n", "id: '../a' is not accepted"),
        ("id: .a\nschedule: manual\ncommand: x\n", "id: '.a' is not accepted"),
        ("id: ä\nschedule: manual\ncommand: x\n", "id: 'ä' is not accepted"),
        (f"id: {'a' * 65}\nschedule: manual\ncommand: x\n", "at most 64"),
        ("id: a\ncommand: x\n", "schedule: required; a cron line, an interval such as 10m, a phrase such as every day at 09:00, or manual"),
        ("id: a\nschedule: 5\ncommand: x\n", ":3: schedule: '5' has no unit"),
        ("id: a\nschedule: 1.5\ncommand: x\n", ":3: schedule: '1.5' has no unit"),
        ("id: a\nschedule: [1m]\ncommand: x\n", "schedule: a list is not a text"),
        ("id: a\nschedule: true\ncommand: x\n", "schedule: "),
        ("id: a\nschedule: 61 * * * *\ncommand: x\n", ":3: schedule: minute '61'"),
        ("id: a\nschedule: every 15 monutes\ncommand: x\n", ":3: schedule: "),
        ("id: a\nschedule: manual\n", "command: required for run_as: shell"),
        ("id: a\nschedule: manual\ncommand: ' '\n", "command: required"),
        ("id: a\nschedule: manual\nrun_as: script\ncommand: echo 'x\n", "command: can't be split into words"),
        ('id: a\nschedule: manual\ncommand: "a\\0b"\n', ":4: command: contains a NUL"),
        ("id: a\nschedule: manual\ncommand: x\ncwd: /\ncwd_policy: site\n", "cwd_policy: given together with cwd"),
    ],
)  # fmt: skip
def test_what_a_task_can_not_do_without(fields, says):
    assert any(says in message for message in refused(fields)), refused(fields)


def test_all_problems_are_reported_at_once_each_with_its_line():
    messages = refused("id: a b\nschedule: nope\ntimeout: 0\nretry: x\n")
    assert sorted(message.split(": ")[:2] for message in messages) == [
        ["tasks/a.md:2", "command"],
        ["tasks/a.md:2", "id"],
        ["tasks/a.md:3", "schedule"],
        ["tasks/a.md:4", "timeout"],
        ["tasks/a.md:5", "retry"],
    ]


@pytest.mark.parametrize("lead", ["", "\n", "\n\n\n", "# one\n\n# two\n", "  \n\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_numbers_are_those_of_the_file(lead, newline):
    text = f"---\n{lead}id: a\nschedule: nope\ncommand: x\n---\n".replace("\n", newline)
    line = 1 + text[: text.index("schedule")].count("\n")
    _, [problem], _ = parse_task(text, "a.md", KNOWN)
    assert problem.line == line


def test_the_id_of_a_rejected_file_is_known():
    task, _, task_id = parse("id: a\nschedule: nope\n")
    assert (task, task_id) == (None, "a")


def test_the_body_is_kept():
    task, _, _ = parse(MINIMAL, "\n# Title\n---\nmore\n")
    assert task.body == "# Title\n---\nmore"


def test_an_unknown_key_is_a_warning_with_the_nearest_name():
    task, problems, _ = parse(MINIMAL + "timeot: 5\nzzzzzz: 1\n<<: {a: b}\n")
    assert task is not None
    assert [problem.at("a.md") for problem in problems] == [
        "a.md:5: warning: timeot: unknown; did you mean 'timeout'?",
        "a.md:6: warning: zzzzzz: unknown",
        "a.md:7: warning: <<: unknown",
    ]


LATER = [("work_source", "items", "''"), ("allow_schedule", "true", "false")]


@pytest.mark.parametrize(("name", "something", "nothing"), LATER)
def test_a_field_of_a_later_version_is_refused_unless_it_says_its_default(name, something, nothing):
    assert refused(f"{MINIMAL}{name}: {something}\n") == [f"tasks/a.md:5: {name}: not available in this version"]
    accepted(f"{name}: {nothing}\n")
    accepted(f"{name}:\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [("allow_schedule: 5", "true or false")],
)
def test_a_field_of_a_later_version_is_checked_all_the_same(line, says):
    [message] = refused(f"{MINIMAL}{line}\n")
    assert message.startswith(f"tasks/a.md:5: {line.partition(':')[0]}: ") and says in message


def test_an_agent_is_told_the_prompt_else_the_command_else_the_body():
    head = "id: a\nschedule: 5m\nrun_as: claude\n"
    for more, prompt in (
        ("prompt: one\ncommand: two\n", "one"),
        ("command: two\n", "two"),
        ("", "Do it.\n\nWell."),
        ("prompt: ''\n", "Do it.\n\nWell."),
    ):
        task, problems, _ = parse(head + more, "\nDo it.\n\nWell.\n")
        assert problems == [] and (task.prompt, task.agent, task.what) == (prompt, "claude", prompt)
    task, [problem], _ = parse(head, "\n")
    assert task is None and problem.message.startswith("required for run_as: claude")


def test_budgets_and_heal_paths_are_read():
    head = "id: a\nschedule: 5m\nrun_as: codex\nprompt: x\nbudget_usd: 0.5\nbudget_usd_per_day: 3\nheal_paths: [a.sh, ~/b]\n"
    task, problems, _ = parse(head)
    assert problems == [] and (task.budget_usd, task.budget_usd_per_day) == (0.5, 3.0)
    assert task.heal_paths == ("a.sh", "~/b") and accepted("heal_paths: one.sh\n").heal_paths == ("one.sh",)
    for value in ("0", "-1", "free", "true", ".inf", "[1]"):
        _, [problem], _ = parse(f"id: a\nschedule: 5m\nrun_as: codex\nprompt: x\nbudget_usd: {value}\n")
        assert "an amount in US dollars" in problem.message


def test_the_fields_of_the_governor_are_read():
    task = accepted(
        "min_interval: 5m\nmax_interval: 1h\nafter: {Backup: failure, c: always}\npriority: -3\nblackout: ['22:00-06:00', Sat-Sun]\n"
    )
    assert (task.min_interval, task.max_interval) == (timedelta(minutes=5), timedelta(hours=1))
    assert (task.after, task.priority) == ({"Backup": ChainOn.FAILURE, "c": ChainOn.ALWAYS}, -3)
    assert [blackout.text for blackout in task.blackout] == ["22:00-06:00", "Sat-Sun"]
    assert accepted("after: backup\n").after == {"backup": ChainOn.SUCCESS}
    assert accepted("after: [a1, b2]\n").after == {"a1": ChainOn.SUCCESS, "b2": ChainOn.SUCCESS}
    nothing = accepted("min_interval:\nafter: []\ngroup: ''\nblackout: ''\n")
    assert (nothing.min_interval, nothing.after, nothing.group, nothing.blackout) == (None, {}, None, ())


def test_what_the_configuration_says_counts_for_every_task():
    known = replace(KNOWN, groups=("gpu",), blackout=(parse_blackout("sun"),))
    task, [], _ = parse_task(f"---\n{MINIMAL}group: gpu\nblackout: sat\n---\n", "tasks/a.md", known)
    assert task is not None and task.group == "gpu"
    assert [blackout.text for blackout in task.blackout] == ["sun", "sat"]


@pytest.mark.parametrize(
    ("line", "says"),
    [("priority: high", "a whole number"), ("priority: 1001", "-1000 to 1000"), ("min_interval: 5", "no unit"),
     ("max_interval: 0m", "zero"), ("min_interval: 2h\nmax_interval: 1h", "is longer than max_interval"),
     ("after: {backup: maybe}", "backup: 'maybe' is not accepted; one of success, failure, always"),
     ("after: {backup: [x]}", "one of success"), ("after: a", "this task itself"), ("after: [x, X]", "names a task twice"),
     ("after: [b c]", "'b c' is not the id of a task"), ("after: 5", "put it in quotes"), ("after: [[x]]", "not a text"),
     ("group: gpu", "'gpu' is not in the configuration under groups"),
     ("blackout: [someday]", "'22:00-06:00', 'sat-sun' or '2026-12-24/2026-12-26'"), ("blackout: 25:00-06:00", "25:00"),
     ("blackout: '06:00-06:00'", "same time"), ("blackout: 2026-12-26/2026-12-24", "ends before it begins"),
     ("blackout: 2026-02-30", "2026-02-30"), ("blackout: {a: b}", "a list of times"), ("blackout: sat-xyz", "sat-xyz")],
)  # fmt: skip
def test_a_wrong_field_of_the_governor_says_what_is_accepted(line, says):
    [message] = refused(f"{MINIMAL}{line}\n")
    assert message.startswith(f"tasks/a.md:5: {line.partition(':')[0]}: ") and says in message


HTTP = "id: a\nschedule: manual\nrun_as: http\n"


def test_an_http_task_is_read():
    task, [], _ = parse(
        f"{HTTP}url: https://x/y\nmethod: post\nheaders: {{A: b, N: 5}}\nbody: hi\nexpect_status: [200, 404]\n"
    )
    assert task.request == Request("https://x/y", "POST", {"A": "b", "N": "5"}, "hi", (200, 404))
    assert parse(f"{HTTP}url: ${{BASE}}/x\nexpect_status: 204\n")[0].request == Request(
        "${BASE}/x", expect_status=(204,)
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (HTTP, "url: required for run_as: http"),
        (f"{HTTP}url: ftp://x\n", "url: 'ftp://x' is not an http:// or https:// address"),
        (f"{HTTP}url: https://x\nmethod: FETCH\n", "method: 'FETCH' is not accepted; one of GET, HEAD"),
        (f"{HTTP}url: https://x\nheaders: x\n", "headers: 'x' is not accepted; a mapping"),
        (f"{HTTP}url: https://x\nheaders: {{'a b': c}}\n", "'a b' is not the name of a header"),
        (f'{HTTP}url: https://x\nheaders: {{A: "b\\nC: d"}}\n', "a text of one line"),
        (f"{HTTP}url: https://x\nexpect_status: 99\n", "from 100 to 599"),
        (f"{HTTP}url: https://x\nbody: {'x' * 70_000}\n", "body: is larger than 64 KiB"),
        (f"{HTTP}url: https://x\ncommand: echo\n", "command: is not for run_as: http"),
        (f"{MINIMAL}url: https://x\n", "url: is only for run_as: http"),
        (f"{MINIMAL}expect_status: 204\n", "expect_status: is only for run_as: http"),
    ],
)  # fmt: skip
def test_a_wrong_http_task_is_refused(lines, says):
    [message] = refused(lines)
    assert says in message


def test_every_field_of_the_contract_is_known():
    contract = (
        "id schedule title enabled disabled_reason run_as command prompt timeout retry retry_delay rerun_interrupted "
        "self_heal heal_paths suspend_after notify_on notify_to cwd cwd_policy env timezone catch_up grace jitter "
        "min_interval max_interval after group priority max_log budget_usd budget_usd_per_day blackout tags url method "
        "headers body expect_status work_source allow_schedule"
    )
    assert set(FIELDS) == set(contract.split())


# --- YAML ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a.md:1: no frontmatter: the first line must be `---`"),
        ("# A note\n", "no frontmatter"),
        ("\n---\nid: a\n---\n", "no frontmatter"),
        ("---\nid: a\n", "not closed: a second `---` line is missing"),
        ("---\n---\n", "the frontmatter is nothing"),
        ("---\n- a\n- b\n---\n", "the frontmatter is a list"),
        ("---\njust words\n---\n", "the frontmatter is 'just words'"),
        ("---\nid: a\nid: b\n---\n", "a.md:3: id: given twice (first on line 2)"),
        ("---\nid: a\nenv:\n  A: 1\n  A: 2\n---\n", "a.md:5: A: given twice (first on line 4)"),
        ("---\nid: &x a\ntitle: *x\n---\n", "a.md:3: YAML aliases (*x) are not accepted"),
        ("---\nid: a\n? [b]\n: c\n---\n", "a.md:3: a key must be plain text"),
        ("---\nid: a\nschedule: @daily\n---\n", "a.md:3: bad YAML"),
        ("---\nid: a: b\n---\n", "put values that contain ': ' in quotes"),
        ("---\nid: 'a\n---\n", "bad YAML"),
        ("---\nid: [a\n---\n", "bad YAML"),
        ("---\nid: a\n\tb: c\n---\n", "bad YAML"),
        ("---\nid: a\n...\n--- x\nid: b\n---\n", "a second YAML document"),
        ("---\nid: 🎉🎉🎉🎉 # 🎉🎉🎉🎉\nschedule: \x01\n\n\n\n\n---\n", "a.md:3: the character U+0001 is not allowed"),
        ("---\nid: a\ntitle: \ufffe\n---\n", "a.md:3: the character U+FFFE is not allowed"),
    ],
)  # fmt: skip
def test_broken_yaml_is_refused_with_its_line(text, says):
    task, [problem], _ = parse_task(text, "a.md", KNOWN)
    assert task is None
    assert says in problem.at("a.md")


@pytest.mark.parametrize("value", ["@daily", "*/5 * * * *", "* * * * *", "*/10 8-18 * * mon-fri", "`date`", "%x", "*x"])
def test_a_value_that_yaml_can_not_read_bare_brings_a_hint_to_quote_it(value):
    task, [problem], _ = parse(f"id: a\nschedule: {value}\ncommand: x\n")
    assert task is None
    assert problem.line == 3 and "in quotes" in problem.message


@pytest.mark.parametrize("value", ['"*/5 * * * *"', "'@daily'", "0 6 * * 1-5", "H H * * *", "10m", "1.5h"])
def test_schedules_as_people_write_them(value):
    task, problems, _ = parse(f"id: a\nschedule: {value}\ncommand: x\n")
    assert task is not None and not problems


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "{? ", "[{a: "])
def test_deep_nesting_is_refused_however_deep(opening):
    task, [problem], _ = parse(f"{MINIMAL}tags:\n  {opening * (200_000 // len(opening))}\n")
    assert task is None
    assert problem.line in (5, 6)


def test_sixteen_levels_are_read_and_no_more():
    assert parse(f"{MINIMAL}x: {'[' * 15}{']' * 15}\n")[0] is not None
    assert "nested deeper than 16" in refused(f"{MINIMAL}x: {'[' * 16}{']' * 16}\n")[0]


def test_a_tag_makes_no_object():
    assert accepted("title: !!python/object/apply:os.getcwd x\n").title == "x"


def test_intervals_and_numbers_keep_their_spelling():
    task, _, _ = parse("id: a\nschedule: 10m\ncommand: x\nenv: {T: 12:30, N: 1_000, F: 1.50, Y: 2026-01-01}\n")
    assert task.schedule == Interval("10m", timedelta(minutes=10))
    assert task.env == {"T": "12:30", "N": "1_000", "F": "1.50", "Y": "2026-01-01"}


@given(st.text())
def test_no_text_brings_the_parser_down(text):
    parse_task(text, "a.md", KNOWN)
    parse_task(f"---\n{text}\n---\n", "a.md", KNOWN)


WORDS = st.one_of(
    st.sampled_from(["true", "null", "0", "-1", "1e9", ".inf", ".nan", "[]", "{}", "[a, [b]]", "{a: {b: c}}", "'", '"',
                     "|", ">-", "&a", "*a", "!!int x", "!!null x", "2026-01-01", "12:30", "0x1F", "99999999999999999999",
                     "@daily", "* * * * *", "L L L L L", "H H H H H", "0 0 * * mon#1,fri", "10m", "a: b", "# c", "\t"]),
    st.text(max_size=12),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(FIELDS), WORDS), max_size=8))
@settings(max_examples=300)
def test_no_value_of_any_field_brings_the_parser_down(pairs):
    task, problems, _ = parse("".join(f"{name}: {value}\n" for name, value in pairs))
    assert task is not None or any(not problem.warning for problem in problems)
    assert all(problem.line >= 1 for problem in problems)


COMPLETE = (
    '---\nid: a\nschedule: "*/5 * * * *"\ncommand: |\n  echo hi\nenv: {A: "x"}\ntags: [a, b]\nretry: 2\n---\nBody\n'
)


@given(st.data())
@settings(max_examples=300)
def test_no_damage_to_a_good_file_brings_the_parser_down(data):
    text = COMPLETE
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 5))
        text = text[:at] + data.draw(st.text(alphabet="\"'[]{}:,*&!|>-#@%\n\t \r\0aé🎉", max_size=4)) + text[at + cut :]
    parse_task(text, "a.md", KNOWN)


# --- files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    (tmp_path / "ws" / "tasks").mkdir(parents=True)
    return Workspace((tmp_path / "ws").resolve())


def put(place: Workspace, content: bytes, name: str = "a.md", mode: int = 0o644) -> Path:
    path = place.tasks / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


GOOD = f"---\n{MINIMAL}---\nBody.\n".encode()


def catalog_in(place) -> Catalog:
    return catalog_of(scan_tasks(place), place, KNOWN, {}, datetime.now(UTC))


def test_a_plain_file_is_read(place):
    file = load_file(put(place, GOOD), place, KNOWN)
    assert file.is_valid and file.problems == ()


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf" + GOOD, GOOD.replace(b"\n", b"\r\n")], ids=["bom", "crlf"])
def test_a_byte_order_mark_and_windows_line_ends_are_fine(place, content):
    file = load_file(put(place, content), place, KNOWN)
    assert file.errors == [] and file.task is not None
    assert (file.task.id, file.task.command, file.task.body) == ("a", "true", "Body.")


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (GOOD + b"\0", 0o644, f"tasks/a.md:{GOOD.count(10) + 1}: contains a NUL byte"),
        (b"---\nid: a\ntitle: \xff\n---\n", 0o644, "tasks/a.md:3: not valid UTF-8 (byte 17)"),
        (GOOD + b"x" * MAX_BYTES, 0o644, "at most 262144 (256 KiB) are accepted"),
        (GOOD, 0o646, "is writable by everyone; run chmod o-w on it"),
        (GOOD, 0o777, "is writable by everyone"),
    ],
    ids=["nul", "utf8", "size", "writable", "all"],
)
def test_a_hostile_file_is_rejected_with_its_own_message(place, content, mode, says):
    file = load_file(put(place, content, mode=mode), place, KNOWN)
    assert file.task is None
    assert says in file.errors[0]


def test_a_file_of_exactly_the_limit_is_read(place):
    path = put(place, GOOD + b"x" * (MAX_BYTES - len(GOOD)))
    assert load_file(path, place, KNOWN).task is not None


def test_a_link_out_of_the_workspace_is_rejected(place, tmp_path):
    outside = tmp_path / "outside.md"
    outside.write_bytes(GOOD)
    (place.tasks / "a.md").symlink_to(outside)
    assert "a link that leaves the workspace" in load_file(place.tasks / "a.md", place, KNOWN).errors[0]


def test_a_link_to_a_neighbour_with_a_longer_name_leaves_the_workspace(place):
    neighbour = place.root.with_name(place.root.name + "-other")
    neighbour.mkdir()
    (neighbour / "a.md").write_bytes(GOOD)
    (place.tasks / "a.md").symlink_to(neighbour / "a.md")
    assert "leaves the workspace" in load_file(place.tasks / "a.md", place, KNOWN).errors[0]


def test_a_link_inside_the_workspace_is_read(place):
    real = place.root / "shared.md"
    real.write_bytes(GOOD)
    real.chmod(0o644)
    (place.tasks / "a.md").symlink_to("../shared.md")
    assert load_file(place.tasks / "a.md", place, KNOWN).task is not None


def test_links_that_lead_nowhere_or_in_a_circle_are_rejected(place):
    (place.tasks / "gone.md").symlink_to("nothing.md")
    (place.tasks / "circle.md").symlink_to("circle.md")
    for name in ("gone.md", "circle.md"):
        assert "can't be read" in load_file(place.tasks / name, place, KNOWN).errors[0]


def test_a_pipe_is_rejected_without_waiting_for_a_writer(place):
    os.mkfifo(place.tasks / "a.md", 0o644)
    assert load_file(place.tasks / "a.md", place, KNOWN).errors == ["tasks/a.md:1: is not a regular file"]


def test_a_folder_with_the_name_of_a_task_is_looked_into(place):
    put(place, GOOD, "sub.md/a.md")
    assert [path.name for path in find_files(place.tasks)] == ["a.md"]


def test_only_task_files_are_found(place):
    for name in (
        "a.md",
        "sub/b.md",
        "README.md",
        "sub/README.md",
        ".c.md",
        "_d.md",
        "_drafts/e.md",
        ".git/f.md",
        "g.txt",
    ):
        put(place, GOOD, name)
    (place.tasks / "loop").symlink_to(".")
    assert [str(path.relative_to(place.tasks)) for path in find_files(place.tasks)] == ["a.md", "sub/b.md"]


def test_one_broken_file_leaves_the_others_alone(place):
    put(place, GOOD, "a.md")
    put(place, b"---\nid: [\n---\n", "b.md")
    put(place, b"\xff", "c.md")
    catalog = catalog_in(place)
    assert [task.id for task in catalog.tasks] == ["a"]
    assert [file.path for file in catalog.rejected] == ["tasks/b.md", "tasks/c.md"]


def test_ids_are_compared_without_case_also_with_a_rejected_file(place):
    put(place, GOOD, "one.md")
    put(place, b"---\nid: A\nschedule: nope\n---\n", "two.md")
    assert catalog_in(place).duplicates == {"a": ["tasks/one.md", "tasks/two.md"]}


def test_a_broken_file_changes_its_digest_with_its_content(place):
    path = put(place, b"---\nid: [\n---\n")
    first = load_file(path, place, KNOWN).digest
    assert load_file(path, place, KNOWN).digest == first
    path.write_bytes(b"---\nid: {\n---\n")
    assert load_file(path, place, KNOWN).digest != first
