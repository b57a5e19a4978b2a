"""Alerts from the outside: who hears of what, when, how often, and what no message ever says."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import needs_faketime
from tests.helpers import PATIENCE, SCHEDULER, Gate, Telegram, Workspace, wait_for

OK = (200, {"ok": True, "result": {}})


def again(workspace: Workspace, task_id: str) -> None:
    """One more run of an hourly task, right now, however long it has backed off."""
    if workspace.root.joinpath("state").exists():
        workspace.move_back(task_id, "-2 days")
    workspace.tick()


def outbox(workspace: Workspace) -> list[tuple[str, str]]:
    return workspace.sql("SELECT kind, status FROM alerts ORDER BY id")


def quiet_now() -> str:
    """Quiet hours around the present moment, wherever in the day it is."""
    now = datetime.now(UTC)
    return f"  quiet_hours: '{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=1):%H:%M}'\n"


# --- where alerts go -------------------------------------------------------------------------------------------


def test_an_alert_goes_to_the_default_destination_or_the_one_the_task_names(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    workspace.task("here", "exit 1", schedule="1h")
    workspace.task("there", "exit 1", schedule="1h", notify_to="work")
    workspace.tick()
    by_chat = {message["chat_id"]: message for message in telegram.messages}
    assert "here failed" in by_chat["-1001"]["text"] and by_chat["-1001"]["message_thread_id"] == 7
    assert "there failed" in by_chat["-1002"]["text"] and "message_thread_id" not in by_chat["-1002"]
    assert set(telegram.paths) == {"/bot123456:a-secret-token/sendMessage"}


def test_the_task_knows_its_destination(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("here", "echo $TICKDOWN_NOTIFY_DEST > here", schedule="1h")
    workspace.task("there", "echo $TICKDOWN_NOTIFY_DEST > there", schedule="1h", notify_to="work")
    workspace.tick()
    assert (workspace.root / "here").read_text() == "home\n"
    assert (workspace.root / "there").read_text() == "work\n"


def test_with_nothing_configured_alerts_go_to_stderr_for_cron_to_mail(workspace: Workspace) -> None:
    workspace.task("bad", "echo what went wrong; exit 4", schedule="1h")
    told = workspace.tick().stderr
    assert "bad failed" in told and "exit code 4" in told and "what went wrong" in told
    assert "scheduler.py logs" in told
    assert workspace.tick().stderr == ""


@pytest.mark.parametrize(
    ("notify_on", "expected"),
    [
        ("failure", ["bad failed"]),
        ("success", ["good succeeded"]),
        ("always", ["bad failed", "good succeeded"]),
        ("never", []),
    ],
)
def test_notify_on_says_which_ends_are_told(
    workspace: Workspace, telegram: Telegram, notify_on: str, expected: list[str]
) -> None:
    telegram.configure(workspace)
    workspace.task("good", schedule="1h", notify_on=notify_on)
    workspace.task("bad", "exit 1", schedule="1h", notify_on=notify_on)
    workspace.tick()
    assert sorted(re.findall(r"<b>(.*?)</b>", "".join(telegram.texts))) == expected


# --- how often -------------------------------------------------------------------------------------------------


def test_the_first_and_the_third_failure_are_told_and_the_recovery_once(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    workspace.task("job", "cat answer; exit $(cat code)", schedule="1h")
    (workspace.root / "answer").write_text("no such luck\n")
    (workspace.root / "code").write_text("1")
    again(workspace, "job")
    assert len(telegram.texts) == 1
    for part in ("job failed", "exit code 1", "no such luck", "scheduler.py logs"):
        assert part in telegram.texts[0]
    again(workspace, "job")
    assert len(telegram.texts) == 1
    again(workspace, "job")
    assert len(telegram.texts) == 2 and "failed 3 times in a row" in telegram.texts[1]
    assert "Failing since" in telegram.texts[1]
    assert workspace.sql("SELECT task_id, kind FROM tickets") == [("job", "failing")]
    again(workspace, "job")
    assert len(telegram.texts) == 2
    (workspace.root / "code").write_text("0")
    again(workspace, "job")
    again(workspace, "job")
    assert len(telegram.texts) == 3 and "job recovered" in telegram.texts[2]
    assert workspace.sql("SELECT COUNT(*) FROM ticket_notes") == [(1,)]


def test_another_error_of_the_same_task_is_told_too(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("job", "cat said; exit 1", schedule="1h")
    (workspace.root / "said").write_text("disk full after 12 files\n")
    again(workspace, "job")
    (workspace.root / "said").write_text("no route to host\n")
    again(workspace, "job")
    assert len(telegram.texts) == 2 and "no route to host" in telegram.texts[1]


def test_the_same_trouble_is_reminded_of_after_a_day(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("job", "exit 1", schedule="1h")
    again(workspace, "job")
    workspace.sql("UPDATE tasks SET incident_alerted_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-25 hours')")
    again(workspace, "job")
    assert len(telegram.texts) == 2 and "still failing" in telegram.texts[1]


def test_after_suspend_after_failures_the_file_itself_says_suspended(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, quiet_now())
    path = workspace.write_task(
        "job", "---\n# why: because\nid: job   # mine\nschedule: 1h\nsuspend_after: 2\ncommand: exit 1\n---\nText.\n"
    )
    again(workspace, "job")
    again(workspace, "job")
    assert path.read_text() == (
        "---\n# why: because\nid: job   # mine\nschedule: 1h\nsuspend_after: 2\ncommand: exit 1\n"
        "enabled: false\ndisabled_reason: auto_suspended\n---\nText.\n"
    )
    assert len(telegram.texts) == 1, "forced: it passes the quiet hours that hold the first one"
    assert "suspended after 2 failures" in telegram.texts[0] and "scheduler.py resume job" in telegram.texts[0]
    again(workspace, "job")
    assert len(workspace.rows("job")) == 2
    assert workspace.listed()[0]["state"] == "suspended"
    assert workspace.sql("SELECT kind FROM tickets WHERE closed_at IS NULL") == [("suspended",)]


def test_the_commands_of_an_alert_can_be_typed_as_they_stand(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("job", "echo 'see: scheduler.py help'; exit 1", schedule="1h", suspend_after=1)
    workspace.tick()
    (text,) = telegram.texts
    assert f"Go on with: scheduler.py resume job --workspace {workspace.root}\n" in text
    command = re.search(r"More: scheduler\.py (.*)\n", text)
    assert command is not None
    at_home = subprocess.run(  # from anywhere, and with nothing set
        [sys.executable, str(SCHEDULER), *shlex.split(command[1])],
        env={"PATH": os.environ["PATH"]}, cwd="/", capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert at_home.returncode == 0 and "see: scheduler.py help\n" in at_home.stdout, (
        "the task's own words are left alone"
    )


def test_trouble_that_did_not_pass_says_how_often_it_was_tried(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("job", "echo 'curl: (7) Failed to connect'; exit 7", schedule="1d")
    for _ in range(4):
        workspace.tick()
        assert bool(telegram.texts) == (len(workspace.rows("job")) == 4), "nobody is told before the last of them"
        workspace.sql("UPDATE tasks SET retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE retry_at IS NOT NULL")
    (text,) = telegram.texts
    assert "It was tried again 3 times before this." in text


@pytest.mark.parametrize("command", ["run", "retry"])
def test_a_success_by_hand_of_a_suspended_task_is_no_recovery(
    workspace: Workspace, telegram: Telegram, command: str
) -> None:
    telegram.configure(workspace)
    path = workspace.task("job", "test -e fine", schedule="1h", suspend_after=1)
    workspace.tick()
    (workspace.root / "fine").touch()
    lines = workspace.cli(command, "job").stdout.splitlines()
    assert lines[-2].startswith("job: success in ")
    assert lines[-1] == f"it succeeded, but is still suspended; go on with: {workspace.typed('resume job')}"
    assert len(telegram.texts) == 2 and "recovered" not in telegram.texts[1]
    assert "job succeeded but is still suspended" in telegram.texts[1]
    assert "Go on with: scheduler.py resume job" in telegram.texts[1]
    document = workspace.json("run", "job")
    assert (document["state"], document["failures"]) == ("suspended", 0) and "auto_suspended" in path.read_text()
    workspace.cli("resume", "job")
    assert "suspended" not in workspace.cli("run", "job").stdout and len(telegram.texts) == 2


def test_a_success_by_hand_of_a_failing_task_is_a_recovery(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("job", "test -e fine", schedule="1h")
    workspace.tick()
    (workspace.root / "fine").touch()
    assert "suspended" not in workspace.cli("run", "job").stdout
    assert "job recovered" in telegram.texts[1] and "resume" not in telegram.texts[1]


def test_a_timeout_is_told_and_ticketed_without_a_retry(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("slow", "sleep 1000", schedule="1h", timeout=1, retry=3)
    workspace.tick()
    assert len(telegram.texts) == 1 and "did not end within 1s" in telegram.texts[0]
    assert workspace.rows("slow") == [("timeout", None, 1)]
    assert workspace.sql("SELECT kind FROM tickets") == [("timeout",)]
    assert workspace.sql("SELECT COUNT(*) FROM attempts") == [(1,)]


# --- quiet hours and digests -----------------------------------------------------------------------------------


def test_quiet_hours_hold_alerts_and_end_with_one_digest(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, quiet_now())
    for task_id in ("one", "two"):
        workspace.task(task_id, "exit 1", schedule="1h")
    workspace.tick()
    workspace.task("three", "exit 1", schedule="1h")
    workspace.tick()
    assert telegram.texts == []
    telegram.configure(workspace)
    workspace.tick()
    workspace.tick()
    assert len(telegram.texts) == 1
    for part in ("3 alerts", "one failed", "two failed", "three failed"):
        assert part in telegram.texts[0]


def test_a_forced_alert_passes_quiet_hours(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace, quiet_now())
    workspace.task("job", "exit 1", schedule="1h")
    for _ in range(3):
        again(workspace, "job")
    assert len(telegram.texts) == 1 and "failed 3 times in a row" in telegram.texts[0]


def test_more_than_five_alerts_become_one_digest(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    for number in range(6):
        workspace.task(f"task-{number}", "exit 1", schedule="1h")
    workspace.tick()
    assert len(telegram.texts) == 1 and "6 alerts" in telegram.texts[0]
    assert all(f"task-{number} failed" in telegram.texts[0] for number in range(6))


def test_five_alerts_are_still_five_messages(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    for number in range(5):
        workspace.task(f"task-{number}", "exit 1", schedule="1h")
    workspace.tick()
    assert len(telegram.texts) == 5


# --- when Telegram is in trouble -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [(500, b"oops"), (502, b"<html>bad gateway</html>"), (200, b"\xff\x00 not JSON"), (200, {"ok": False}), (200, [])],
    ids=["500", "html", "garbage", "not-ok", "list"],
)
def test_an_alert_survives_bad_answers_and_is_delivered_once(
    workspace: Workspace, telegram: Telegram, answer: object
) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: answer if number <= 2 else OK
    workspace.task("job", "exit 1", schedule="1h")
    for tries in (1, 2, 3, 3):
        workspace.tick()
        assert len(telegram.texts) == tries
    assert outbox(workspace) == [("failed", "sent")]
    assert workspace.sql("SELECT COUNT(*) FROM tickets") == [(0,)]


def test_an_alert_survives_a_server_that_is_away(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        config = workspace.root / "config.yaml"
        config.write_text(config.read_text().replace(telegram.url, f"http://127.0.0.1:{unused.getsockname()[1]}"))
        workspace.task("job", "exit 1", schedule="1h")
        workspace.tick()
        workspace.tick()
    assert outbox(workspace) == [("failed", "pending")]
    telegram.configure(workspace)
    workspace.tick()
    workspace.tick()
    assert len(telegram.texts) == 1 and "job failed" in telegram.texts[0]


def test_a_server_that_never_answers_does_not_keep_a_tick_for_ever(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: "stall" if number == 1 else OK
    for number in range(3):
        workspace.task(f"task-{number}", "exit 1", schedule="1h")
    workspace.tick()
    assert len(telegram.texts) == 1, "one stall, not one per alert"
    workspace.tick()
    assert len(telegram.texts) == 4
    assert outbox(workspace) == [("failed", "sent")] * 3


def test_the_wait_that_telegram_asks_for_is_kept_by_new_alerts_too(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    flood = (429, {"ok": False, "description": "Too Many Requests", "parameters": {"retry_after": 600}})
    telegram.script = lambda number: flood if number == 1 else OK
    workspace.task("first", "exit 1", schedule="1h")
    workspace.tick()
    workspace.task("second", "exit 1", schedule="1h")
    workspace.tick()
    assert len(telegram.texts) == 1
    ((until,),) = workspace.sql("SELECT not_before FROM alerts WHERE not_before IS NOT NULL")
    assert datetime.fromisoformat(until) > datetime.now(UTC) + timedelta(minutes=5)
    workspace.sql("UPDATE alerts SET not_before = strftime('%Y-%m-%dT%H:%M:%fZ', not_before, '-1 hour')")
    workspace.tick()
    assert len(telegram.texts) == 3 and "first" in telegram.texts[1] and "second" in telegram.texts[2]


def asks_to_wait(seconds: int) -> tuple[int, object]:
    return 429, {"ok": False, "description": "Too Many Requests", "parameters": {"retry_after": seconds}}


@needs_faketime
@pytest.mark.parametrize(
    ("asked", "too_early", "in_time"),
    [(7200, "+115m", "+125m"), (80_000, "+22h", "+23h"), (30 * 86_400, "+23h", "+25h")],
    ids=["two hours", "most of a day", "a month, of which a day is granted"],
)
def test_a_long_wait_is_kept_up_to_a_day(
    workspace: Workspace, telegram: Telegram, asked: int, too_early: str, in_time: str
) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: asks_to_wait(asked) if number == 1 else OK
    workspace.task("job", "exit 1", schedule="30d")
    workspace.tick()
    workspace.prefix = ["faketime", "-f", too_early]
    workspace.tick()
    assert len(telegram.texts) == 1
    workspace.prefix = ["faketime", "-f", in_time]
    workspace.tick()
    assert "job failed" in telegram.texts[1]


@needs_faketime
def test_a_wait_from_a_clock_that_was_ahead_is_not_kept(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: asks_to_wait(600) if number == 1 else OK
    workspace.task("job", "exit 1", schedule="30d")
    workspace.prefix = ["faketime", "-f", "+10h"]
    workspace.tick()
    workspace.tick()
    assert len(telegram.texts) == 1
    workspace.prefix = []
    workspace.tick()
    assert "job failed" in telegram.texts[1]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_final_and_becomes_a_ticket(workspace: Workspace, telegram: Telegram, status: int) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: (status, {"ok": False, "description": "bot was kicked"})
    workspace.task("job", "exit 1", schedule="1h")
    told = workspace.tick().stderr
    workspace.tick()
    assert len(telegram.texts) == 1 and outbox(workspace) == [("failed", "failed")]
    ((kind, body),) = workspace.sql("SELECT kind, body FROM tickets")
    assert kind == "alert_failed" and "bot was kicked" in body and "job failed" in body
    assert "job failed" in told, "cron's mail is the way that is left"


def test_each_destination_that_refuses_has_a_ticket_that_names_all_its_alerts(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    refusals = {"-1001": (403, {"ok": False, "description": "kicked"}), "-1002": (404, {"ok": False})}
    telegram.script = lambda number: refusals.get(telegram.messages[-1]["chat_id"], OK)
    for task_id, destination in {"h1": "home", "h2": "home", "w1": "work", "w2": "work"}.items():
        workspace.task(task_id, "exit 1", schedule="1h", notify_to=destination)
    workspace.tick()
    workspace.task("h3", "exit 1", schedule="1h")  # to home, by default
    workspace.tick()
    told = {ticket["title"].split()[2]: ticket for ticket in workspace.json("tickets")}
    assert list(told) == ["home", "work"]
    everything = {name: str(ticket) for name, ticket in told.items()}
    for task_id, name in {"h1": "home", "h2": "home", "h3": "home", "w1": "work", "w2": "work"}.items():
        assert [where for where, text in everything.items() if f"{task_id} failed" in text] == [name]
    assert "HTTP 403" in told["home"]["body"] and "HTTP 404" in told["work"]["body"]
    assert "not delivered either: h3 failed (Telegram refuses (HTTP 403): kicked)" in workspace.cli("tickets").stdout

    del refusals["-1002"]
    workspace.task("w3", "exit 1", schedule="1h", notify_to="work")
    workspace.tick()
    (left,) = workspace.json("tickets")
    assert left["title"] == "alerts to home can't be delivered" and "h1 failed" in left["body"]
    assert "alerts to home can't be delivered" in workspace.cli("doctor", code=1).stdout


def test_one_refused_destination_does_not_hold_up_another(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    workspace.task("a", "exit 1", schedule="1h")
    workspace.task("b", "exit 1", schedule="1h", notify_to="work")
    telegram.script = lambda number: (403, {"ok": False}) if telegram.messages[-1]["chat_id"] == "-1001" else OK
    workspace.tick()
    assert sorted(workspace.sql("SELECT task_id, status FROM alerts")) == [("a", "failed"), ("b", "sent")]


def test_ticks_at_the_same_time_deliver_each_alert_once(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: (503, b"") if number == 1 else OK
    workspace.task("job", "exit 1", schedule="1h")
    workspace.tick()
    ticks = [workspace.start("tick") for _ in range(4)]
    for process in ticks:
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert len(telegram.texts) == 2, "the one that failed, and one more"


# --- what is said ----------------------------------------------------------------------------------------------


def test_no_secret_appears_anywhere(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    with (workspace.root / ".env").open("a") as file:
        file.write("ORDINARY=squeamish-ossifrage\nSHORT=tiny\n")
    workspace.environment["DB_PASSWORD"] = "hunter2-hunter2"
    workspace.task(
        "leak", 'echo "$ORDINARY and $DB_PASSWORD and $TELEGRAM_BOT_TOKEN, $SHORT"; exit 1', schedule="1h",
        env={"COPY": "${ORDINARY}"},
    )  # fmt: skip
    telegram.script = lambda number: (500, b"123456:a-secret-token squeamish-ossifrage")
    tick = workspace.tick()
    telegram.script = lambda number: (403, {"ok": False, "description": "no 123456:a-secret-token here"})
    again_tick = workspace.tick()
    said = [tick.stdout, tick.stderr, again_tick.stdout, again_tick.stderr, *telegram.texts, workspace.scheduler_log()]
    for command in (["history", "--json"], ["history"], ["show", "leak"], ["show", "leak", "--json"], ["logs", "leak"],
                    ["logs", "leak", "--json"], ["logs", "leak", "--raw"], ["run", "leak"], ["run", "leak", "--dry-run"],
                    ["doctor"]):  # fmt: skip
        done = workspace.cli(*command, code=None)
        said += [done.stdout, done.stderr]
    said += [path.read_text() for path in (workspace.root / "logs").rglob("*.log")]
    said += [str(workspace.sql(f"SELECT * FROM {table}")) for table in ("task_runs", "attempts", "alerts", "tickets")]
    text = "\n".join(said)
    for secret in ("squeamish", "hunter2", "a-secret-token"):
        assert secret not in text
    assert "*** and *** and ***, tiny" in telegram.texts[0]


def test_an_error_about_the_connection_does_not_show_the_token(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    config = workspace.root / "config.yaml"
    config.write_text(config.read_text().replace(telegram.url, "http://127.0.0.1:1"))
    workspace.task("job", "exit 1", schedule="1h")
    tick = workspace.tick()
    assert "alert_not_sent" in workspace.scheduler_log()
    assert "a-secret-token" not in tick.stderr + workspace.scheduler_log() + str(workspace.sql("SELECT * FROM alerts"))


def test_a_secret_is_found_before_a_text_is_cut(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    with (workspace.root / ".env").open("a") as file:
        file.write("ORDINARY=squeamish-ossifrage\n")
    # So many of them that wherever the message is cut, it is cut inside one.
    workspace.write_task("long", f"---\nid: long\nschedule: {'squeamish-ossifrage' * 150}\ncommand: 'true'\n---\n")
    workspace.tick()
    assert len(telegram.texts) == 1 and "squea" not in telegram.texts[0]


def test_texts_are_escaped_and_short_enough_for_telegram(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    line = "<b>&amp; \\u001b[31mred " + "<&>" * 40
    workspace.task(
        "job", f"for i in $(seq 40); do printf '%b\\n' '{line}'; done; exit 1", schedule="1h", title="<i>&</i> " * 30
    )
    workspace.tick()
    (text,) = telegram.texts
    assert len(text) <= 4096 and telegram.messages[0]["parse_mode"] == "HTML"
    assert sorted(set(re.findall(r"<[^>]*>", text))) == ["</b>", "</i>", "</pre>", "<b>", "<i>", "<pre>"]
    assert all(text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1 for tag in ("b", "i", "pre"))
    assert not re.search(r"&(?!lt;|gt;|amp;)", text) and "\x1b" not in text


def test_a_digest_is_short_enough_for_telegram(workspace: Workspace, telegram: Telegram) -> None:
    telegram.configure(workspace)
    for number in range(60):
        workspace.write_task(f"broken-{number}", f"---\nid: b{number}\nschedule: '{'<&>' * 50}'\n---\n")
    workspace.tick()
    (text,) = telegram.texts
    assert len(text) <= 4096 and "60 alerts" in text and re.search(r"… and \d+ more", text)
    assert outbox(workspace) == [("rejected", "sent")] * 60


def fail_with_alerts_to(workspace: Workspace, server: socket.socket) -> None:
    """A task that will fail, and a Telegram that is this socket."""
    (workspace.root / ".env").write_text("TELEGRAM_BOT_TOKEN=12345678\n")
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    workspace.config(f"notify: {{telegram: {{base_url: '{address}'}}, destinations: {{a: {{chat: 1}}}}}}\n")
    workspace.task("job", "exit 1", schedule="1h")


def test_a_server_that_answers_in_drips_does_not_hold_a_tick_for_ever(workspace: Workspace) -> None:
    """A byte now and then begins the timeout of a read anew; the whole has a limit too."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not stop.wait(0.5):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        fail_with_alerts_to(workspace, server)
        try:
            workspace.tick()
        finally:
            stop.set()
            thread.join()
    assert workspace.sql("SELECT status, error FROM alerts") == [("pending", "Telegram did not answer within 20 s")]


def test_with_closed_stderr_an_alert_waits_for_somebody_who_reads_it(workspace: Workspace) -> None:
    workspace.task("job", "exit 1", schedule="1h")
    line = " ".join(shlex.quote(word) for word in workspace.argv("tick"))
    subprocess.run(["sh", "-c", f"{line} 2>&-"], env=workspace.environment, check=True, stdout=subprocess.DEVNULL)
    assert workspace.sql("SELECT status FROM alerts") == [("pending",)]
    subprocess.run(
        ["sh", "-c", f"{line} 2>/dev/full"], env=workspace.environment, check=True, stdout=subprocess.DEVNULL
    )
    assert workspace.sql("SELECT status FROM alerts") == [("pending",)]
    assert "job failed" in workspace.tick().stderr
    assert workspace.sql("SELECT status FROM alerts") == [("sent",)]


def test_a_wait_that_was_asked_for_counts_for_a_chat_under_both_its_names(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: (429, {"ok": False, "parameters": {"retry_after": 600}})
    workspace.task("named", "exit 1", schedule="1h", notify_to="home")
    workspace.tick()
    workspace.task("default", "exit 1", schedule="1h")
    workspace.tick()
    assert len(telegram.texts) == 1


def test_the_ticket_of_an_alert_that_was_refused_closes_with_the_next_delivery(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: (403, {"ok": False}) if number == 1 else OK
    workspace.task("one", "exit 1", schedule="1h")
    workspace.tick()
    assert workspace.sql("SELECT kind FROM tickets WHERE closed_at IS NULL") == [("alert_failed",)]
    workspace.task("two", "exit 1", schedule="1h")
    workspace.tick()
    assert workspace.sql("SELECT kind FROM tickets WHERE closed_at IS NULL") == []


def test_a_suspension_never_edits_the_file_of_another_task(workspace: Workspace) -> None:
    gate = Gate(workspace)
    path = workspace.task("first", f"touch started; {gate.command}; exit 1", schedule="1h", suspend_after=1)
    tick = workspace.start("tick")
    wait_for((workspace.root / "started").exists)
    path.write_text("---\nid: second\nschedule: manual\ncommand: 'true'\n---\n")
    before = path.read_text()
    gate.open()
    tick.communicate(timeout=PATIENCE)
    assert path.read_text() == before


def test_an_answer_in_several_chunks_is_understood(workspace: Workspace) -> None:
    answer = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{"ok":true,\r\nd\r\n"result":{} }\r\n0\r\n\r\n'
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                request = b""
                while b"failed" not in request:
                    request += connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        fail_with_alerts_to(workspace, server)
        workspace.tick()
        thread.join()
    assert workspace.sql("SELECT status FROM alerts") == [("sent",)]


def test_the_ticket_of_a_destination_that_refuses_stays_while_another_accepts(
    workspace: Workspace, telegram: Telegram
) -> None:
    telegram.configure(workspace)
    telegram.script = lambda number: (400, {"ok": False}) if telegram.messages[-1]["chat_id"] == "-1002" else OK
    workspace.task("bad", "exit 1", schedule="1h", notify_to="work")
    workspace.task("good", "exit 1", schedule="1h", notify_to="home")
    workspace.tick()
    assert workspace.sql("SELECT title FROM tickets WHERE closed_at IS NULL") == [
        ("alerts to work can't be delivered",)
    ]
