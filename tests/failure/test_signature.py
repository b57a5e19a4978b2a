"""When two failures are the same trouble, on error lines as real tools print them."""

from __future__ import annotations

import time

import pytest

from tests.helpers import Telegram, Workspace
from tickdown.base.model import ErrorClass, RunStatus
from tickdown.base.records import replace
from tickdown.failure.outcomes import Outcome
from tickdown.failure.signature import LONGEST, earlier_signature, error_signature, what_counts

FAILED = Outcome(RunStatus.FAILED, 1, None, ErrorClass.ERROR, "oops")


def signature(error: str | None, **fields: object) -> str:
    return error_signature(replace(FAILED, error=error, **fields))


SAME = [
    # curl, wget
    ("curl: (28) Connection timed out after 10001 milliseconds", "curl: (28) Connection timed out after 10004 milliseconds"),
    ("curl: (7) Failed to connect to api.example.com port 443 after 12 ms: Couldn't connect to server",
     "curl: (7) Failed to connect to api.example.com port 443 after 3071 ms: Couldn't connect to server"),
    ("curl: (18) transfer closed with 1423874 bytes remaining to read", "curl: (18) transfer closed with 88123 bytes remaining to read"),
    ("curl: (92) HTTP/2 stream 1 was reset after 4096 bytes", "curl: (92) HTTP/2 stream 15 was reset after 12 bytes"),
    ("2026-06-01 03:00:12 ERROR 503: Service Unavailable.", "2026-06-02 03:00:09 ERROR 503: Service Unavailable."),
    ("Connecting to example.org (example.org)|93.184.216.34|:443... failed: Connection timed out.",
     "Connecting to example.org (example.org)|93.184.216.35|:443... failed: Connection timed out."),
    # ssh, git, rsync
    ("kex_exchange_identification: read: Connection reset by peer; Connection reset by 203.0.113.9 port 51234",
     "kex_exchange_identification: read: Connection reset by peer; Connection reset by 203.0.113.9 port 40022"),
    ("error: RPC failed; curl 92 HTTP/2 stream 5 was not closed cleanly: CANCEL (err 8)",
     "error: RPC failed; curl 92 HTTP/2 stream 7 was not closed cleanly: CANCEL (err 8)"),
    ("fatal: bad object 1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d", "fatal: bad object 9f8e7d6c5b4a39281706f5e4d3c2b1a098765432"),
    ("error: could not apply 1f2e3d4... Update prices", "error: could not apply 8a7b6c5... Update prices"),
    ("fatal: unable to write file .git/objects/pack/tmp_pack_Xy12Zq: No space left on device",
     "fatal: unable to write file .git/objects/pack/tmp_pack_aB93kL: No space left on device"),
    ("rsync error: error in rsync protocol data stream (code 12) at io.c(228) [sender=3.2.7]",
     "rsync error: error in rsync protocol data stream (code 12) at io.c(231) [sender=3.2.7]"),
    ('rsync: [receiver] mkstemp "/data/.report.csv.kPq3Xz" failed: No space left on device (28)',
     'rsync: [receiver] mkstemp "/data/.report.csv.Zt90aB" failed: No space left on device (28)'),
    ("rsync: [sender] write error: Broken pipe (32) after 123456 bytes", "rsync: [sender] write error: Broken pipe (32) after 9 bytes"),
    # databases
    ('psql: error: connection to server at "db.example.com" (10.0.0.5), port 5432 failed: Connection refused',
     'psql: error: connection to server at "db.example.com" (10.0.0.9), port 5432 failed: Connection refused'),
    ("ERROR:  deadlock detected; Process 12345 waits for ShareLock on transaction 998877; blocked by process 12399.",
     "ERROR:  deadlock detected; Process 431 waits for ShareLock on transaction 1000012; blocked by process 440."),
    ('ERROR:  duplicate key value violates unique constraint "orders_pkey" Key (id)=(48213) already exists.',
     'ERROR:  duplicate key value violates unique constraint "orders_pkey" Key (id)=(7) already exists.'),
    ('pg_dump: error: query failed: ERROR:  canceling statement due to lock timeout at 2026-06-01 02:00:31.123 UTC',
     'pg_dump: error: query failed: ERROR:  canceling statement due to lock timeout at 2026-06-09 02:01:07.009 UTC'),
    ("mysqldump: Error 2013: Lost connection to MySQL server during query when dumping table `orders` at row: 48213",
     "mysqldump: Error 2013: Lost connection to MySQL server during query when dumping table `orders` at row: 1001"),
    ("Error: near line 17: database is locked (5)", "Error: near line 912: database is locked (5)"),
    # Python, node, Java, Go
    ("TypeError: <__main__.Job object at 0x7f12ab34cd10> is not iterable",
     "TypeError: <__main__.Job object at 0x7fe099aa0040> is not iterable"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/tmpk3v9x_2a/in.csv'",
     "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/tmpq81zz0bd/in.csv'"),
    ("requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.example.com', port=443): Read timed out. (read timeout=10.0)",
     "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.example.com', port=443): Read timed out. (read timeout=9.5)"),
    ("json.decoder.JSONDecodeError: Expecting value: line 1 column 5 (char 4)",
     "json.decoder.JSONDecodeError: Expecting value: line 3 column 1 (char 88)"),
    ("/srv/app/run.sh: line 17: orders: unbound variable", "/srv/app/run.sh: line 21: orders: unbound variable"),
    ("    at Object.<anonymous> (/srv/app/index.test.js:10:15)", "    at Object.<anonymous> (/srv/app/index.test.js:112:3)"),
    ("Error: read ECONNRESET 10.0.0.5:49152", "Error: read ECONNRESET 10.0.0.5:50311"),
    ("<--- Last few GCs ---> [4711:0x5f3a1c0] 38291 ms: FATAL ERROR: Reached heap limit",
     "<--- Last few GCs ---> [99:0x6000010] 41 ms: FATAL ERROR: Reached heap limit"),
    ('Exception in thread "pool-1-thread-12" java.lang.OutOfMemoryError: Java heap space',
     'Exception in thread "pool-1-thread-3" java.lang.OutOfMemoryError: Java heap space'),
    ("\tat com.example.Loader.load(Loader.java:123)", "\tat com.example.Loader.load(Loader.java:131)"),
    ("read tcp 10.0.0.7:49152->10.0.0.5:443: i/o timeout", "read tcp 10.0.0.7:33871->10.0.0.5:443: i/o timeout"),
    ("panic: runtime error: index out of range [5] with length 3", "panic: runtime error: index out of range [17] with length 12"),
    ("2026/06/01 12:00:00 main.go:42: cannot open config", "2026/06/02 13:37:59 main.go:42: cannot open config"),
    # containers and clouds
    ("Error response from daemon: No such container: 3f4e5d6c7b8a", "Error response from daemon: No such container: 0a1b2c3d4e5f"),
    ("Error response from daemon: driver failed programming external connectivity on endpoint web (9c1f0e4d7a6b5c3d2e1f9c1f0e4d7a6b)",
     "Error response from daemon: driver failed programming external connectivity on endpoint web (1d2c3b4a5f6e7d8c9b0a1d2c3b4a5f6e)"),
    ('Error from server (NotFound): pods "api-7d4b9c6f5d-x2k9p" not found',
     'Error from server (NotFound): pods "api-6c8f7b5d9c-b7zq4" not found'),
    ('pod "backup-28391234-kx9wz" terminated (Error)', 'pod "backup-28392674-p2vbn" terminated (Error)'),
    ("E0601 12:34:56.789012   12345 memcache.go:265] couldn't get current server API group list",
     "E0711 01:02:03.000004     987 memcache.go:265] couldn't get current server API group list"),
    ("An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): request id: TX234S0F24A06C8K",
     "An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): request id: 8FZQ6Y2N3QW5RTY1"),
    ("api error AccessDenied: StatusCode: 403, RequestID: 3b1f6a70-9c6e-4f0e-8f0b-3d2f1f3c9b1a",
     "api error AccessDenied: StatusCode: 403, RequestID: 77d0b5ee-0000-4a4a-9d9d-b1c2d3e4f506"),
    ("Error: creating EC2 Instance: RequestLimitExceeded, Encoded authorization failure message: Zx9+ab12CDef34GHij56KLmn78OPqr90STuv==",
     "Error: creating EC2 Instance: RequestLimitExceeded, Encoded authorization failure message: Qq0+zz98YXwv76UTsr54QPon32MLkj10IHgf=="),
    ('Error: Error acquiring the state lock: ID: 3b1f6a70-9c6e-4f0e-8f0b-3d2f1f3c9b1a',
     'Error: Error acquiring the state lock: ID: 77d0b5ee-0000-4a4a-9d9d-b1c2d3e4f506'),
    # backups
    ("Fatal: unable to create lock in backend: repository is already locked by PID 4711 on web-01 by root (UID 0, GID 0)",
     "Fatal: unable to create lock in backend: repository is already locked by PID 93 on web-01 by root (UID 0, GID 0)"),
    ("restic: pack 1f3a9b7c5d2e4f60718293a4b5c6d7e8f9: hash mismatch after 3.201 GiB",
     "restic: pack 9e8d7c6b5a4f3e2d1c0b9a8f7e6d5c4b3a: hash mismatch after 812.5 MiB"),
    ("Failed to create/acquire the lock /srv/borg/lock.exclusive (timeout) after 1.003s",
     "Failed to create/acquire the lock /srv/borg/lock.exclusive (timeout) after 1.1s"),
    ("borg: Archive nightly-2026-06-01T03:00:01 already exists", "borg: Archive nightly-2026-06-02T03:00:02 already exists"),
    ("tar: /srv/backup-2026-06-01.tar.gz: Cannot write: No space left on device",
     "tar: /srv/backup-2026-06-02.tar.gz: Cannot write: No space left on device"),
    ("tar: Skipping to next header; 1843 bytes read", "tar: Skipping to next header; 20 bytes read"),
    # the rest
    ("npm ERR! A complete log of this run can be found in: /root/.npm/_logs/2026-06-01T03_00_12_345Z-debug-0.log",
     "npm ERR! A complete log of this run can be found in: /root/.npm/_logs/2026-07-09T11_45_59_001Z-debug-0.log"),
    ("make: *** [Makefile:12: all] Error 2", "make: *** [Makefile:19: all] Error 2"),
    ("/tmp/ccQk3aXz.s:104: Error: invalid instruction suffix for `push'",
     "/tmp/cc8Bv0Lp.s:98: Error: invalid instruction suffix for `push'"),
    ("main.c:12:5: error: 'x' undeclared (first use in this function)", "main.c:14:9: error: 'x' undeclared (first use in this function)"),
    ("systemd[1]: backup.service: Main process exited, code=exited, status=203/EXEC",
     "systemd[2211]: backup.service: Main process exited, code=exited, status=203/EXEC"),
    ("Jun  1 03:00:12 web-01 cron[412]: can't lock /var/run/crond.pid",
     "Jun 12 03:00:09 web-01 cron[98123]: can't lock /var/run/crond.pid"),
    ("mount.nfs: Connection timed out for nas:/export after 120s", "mount.nfs: Connection timed out for nas:/export after 2m5s"),
    ("An unexpected error occurred: There were too many requests: retry after 2026-06-01 12:00:00 UTC: see https://letsencrypt.org/docs/rate-limits",
     "An unexpected error occurred: There were too many requests: retry after 2026-06-08 02:30:11 UTC: see https://letsencrypt.org/docs/rate-limits"),
    ("fatal: [web-01]: UNREACHABLE! => Failed to create temporary directory /root/.ansible/tmp/ansible-tmp-1717200000.123-4711-99887766",
     "fatal: [web-01]: UNREACHABLE! => Failed to create temporary directory /root/.ansible/tmp/ansible-tmp-1717286400.9-52-1234567"),
    ('API Error: 529 {"type":"error","error":{"type":"overloaded_error"},"request_id":"req_011CQ4abcDEFghiJKLmno123"}',
     'API Error: 529 {"type":"error","error":{"type":"overloaded_error"},"request_id":"req_018ZZ9xyzABCdefGHIjkl456"}'),
    ("see run 20260601T120000-75d2b51f", "see run 20261231T235959-12345678"),
    ("Mon Jun  1 12:00:00 UTC 2026: no answer", "Tue Dec 22 01:30:00 UTC 2026: no answer"),
    ("error at Mon, 01 Jun 2026 12:00:00 GMT", "error at Tue, 22 Dec 2026 01:30:59 GMT"),
    ('10.0.0.1 - - [01/Jun/2026:12:00:00 +0000] "GET /" refused', '10.0.0.1 - - [22/Dec/2026:01:30:00 +0000] "GET /" refused'),
]  # fmt: skip

DIFFERENT = [
    # another host, address, or service
    ("ssh: Could not resolve hostname db1.example.com: Name or service not known",
     "ssh: Could not resolve hostname db2.example.com: Name or service not known"),
    ("ssh: connect to host web-01 port 22: Connection refused", "ssh: connect to host web-02 port 22: Connection refused"),
    ("ssh: connect to host web-01 port 22: Connection refused", "ssh: connect to host web-01 port 2222: Connection refused"),
    ("connect ECONNREFUSED 10.0.0.5:5432", "connect ECONNREFUSED 10.0.0.6:5432"),
    ("connect ECONNREFUSED 127.0.0.1:5432", "connect ECONNREFUSED 127.0.0.1:6379"),
    ("dial tcp db:5432: connect: connection refused", "dial tcp db:6379: connect: connection refused"),
    ("connect to [2001:db8::1]:443: timed out", "connect to [2001:db8::2]:443: timed out"),
    ("Could not connect to redis://cache:6379", "Could not connect to redis://cache:6380"),
    ("error: dial tcp 10.0.0.7:49152->10.0.0.5:443: i/o timeout", "error: dial tcp 10.0.0.7:49152->10.0.0.5:80: i/o timeout"),
    # another status or code
    ("HTTP 404 Not Found; expected a status from 200 to 299", "HTTP 500 Internal Server Error; expected a status from 200 to 299"),
    ("curl: (22) The requested URL returned error: 404", "curl: (22) The requested URL returned error: 500"),
    ("curl: (6) failed", "curl: (7) failed"),
    ("urllib.error.HTTPError: HTTP Error 403: Forbidden", "urllib.error.HTTPError: HTTP Error 404: Forbidden"),
    ("Request failed with status code 401", "Request failed with status code 502"),
    ("requests.exceptions.HTTPError: 404 Client Error: for url: https://x.example/a",
     "requests.exceptions.HTTPError: 410 Client Error: for url: https://x.example/a"),
    ("rsync error: some files (code 23) at main.c(1338)", "rsync error: some files (code 24) at main.c(1338)"),
    ("subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.",
     "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 2."),
    ("container exited with code 137", "container exited with code 1"),
    ("x.service: Main process exited, code=exited, status=203/EXEC", "x.service: Main process exited, code=exited, status=200/CHDIR"),
    ("OSError: [Errno 28] write failed", "OSError: [Errno 5] write failed"),
    ("ERROR 1045 (28000) at line 1", "ERROR 1049 (42000) at line 1"),
    ("ORA-00942: failed", "ORA-01017: failed"),
    ("src/a.ts: error TS2304: wrong", "src/a.ts: error TS2322: wrong"),
    ("make: *** [Makefile:12: all] Error 2", "make: *** [Makefile:12: all] Error 127"),
    ("npm error code E404", "npm error code E401"),
    ("Error code 0x80070005", "Error code 0x80070002"),
    ("child ended by signal 9", "child ended by signal 11"),
    # another file, module, table, branch, unit
    ("ModuleNotFoundError: No module named 'yaml'", "ModuleNotFoundError: No module named 'requests'"),
    ("Error: Cannot find module 'left-pad'", "Error: Cannot find module 'right-pad'"),
    ("No module named 'lib1'", "No module named 'lib2'"),
    ("cat: /srv/in/part1.csv: No such file or directory", "cat: /srv/in/part2.csv: No such file or directory"),
    ("cat: /tmp/orders.csv: No such file or directory", "cat: /tmp/users.csv: No such file or directory"),
    ("cat: /tmp/tmpk3v9x_2a/orders.csv: No such file", "cat: /tmp/tmpq81zz0bd/users.csv: No such file"),
    ('ERROR:  relation "orders" does not exist', 'ERROR:  relation "customers" does not exist'),
    ('ERROR:  relation "orders_2024" does not exist', 'ERROR:  relation "orders_2025" does not exist'),
    ("sqlite3.OperationalError: no such table: tmp_orders", "sqlite3.OperationalError: no such table: tmp_customers"),
    ("sqlite3.OperationalError: no such column: totl", "sqlite3.OperationalError: no such column: pric"),
    ("Table 'shop.orders1' doesn't exist", "Table 'shop.orders2' doesn't exist"),
    ("error: pathspec 'main' did not match any file(s) known to git", "error: pathspec 'devel' did not match any file(s) known to git"),
    ("Unit backup.service not found.", "Unit restore.service not found."),
    ("mount: /mnt/a: special device /dev/sdb1 does not exist.", "mount: /mnt/a: special device /dev/sdc1 does not exist."),
    ('pods "api-7d4b9c6f5d-x2k9p" not found', 'pods "web-7d4b9c6f5d-x2k9p" not found'),
    ("manifest for app:1.2.3 not found", "manifest for app:1.2.4 not found"),
    ("No matching distribution found for foo==1.4", "No matching distribution found for foo==2.0"),
    ("java.lang.NullPointerException", "java.lang.IllegalStateException"),
    ("java.lang.NoClassDefFoundError: com/example/Http2ServerConnectionHandler",
     "java.lang.NoClassDefFoundError: com/example/Http1ServerConnectionHandler"),
    ("KeyError: 'price'", "KeyError: 'name'"),
    ("main.c:12:5: error: 'x' undeclared", "util.c:12:5: error: 'x' undeclared"),
    ("certbot: Challenge failed for domain a.example.org", "certbot: Challenge failed for domain b.example.org"),
    ("fatal: [web-01]: UNREACHABLE!", "fatal: [web-02]: UNREACHABLE!"),
    ("API Error: 529 overloaded", "API Error: 401 overloaded"),
    ("An error occurred (AccessDenied) when calling the PutObject operation",
     "An error occurred (NoSuchBucket) when calling the PutObject operation"),
]  # fmt: skip


def test_the_table_is_worth_its_name() -> None:
    assert len(SAME) >= 60 <= len(SAME) + len(DIFFERENT) and len(DIFFERENT) >= 50


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_varies_from_run_to_run_does_not_make_another_trouble(one: str, other: str) -> None:
    assert what_counts(f"exit code 1: {one}") == what_counts(f"exit code 1: {other}")
    assert signature(one) == signature(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_names_the_trouble_counts(one: str, other: str) -> None:
    assert signature(one) != signature(other), what_counts(one)


def test_another_code_signal_or_class_is_another_trouble() -> None:
    others = [
        signature("oops"), signature("other"), signature("oops", exit_code=4), signature("oops", exit_code=None, signal=9),
        signature("oops", status=RunStatus.TIMEOUT), signature("oops", error_class=ErrorClass.MISSING_TOOL), signature(None),
    ]  # fmt: skip
    assert len(set(others)) == len(others)


def test_an_error_that_is_no_proper_text_has_a_signature() -> None:
    assert signature("\udcff broken")


def test_a_line_that_was_cut_within_a_word_that_varies_is_the_same() -> None:
    start = "word " * 58
    one, other = (f"{start}{uuid}"[:300] for uuid in ("3b1f6a70-9c6e-4f0e", "77d0b5ee-0000-4a4a"))
    assert signature(f"exit code 1: {one}") == signature(f"exit code 1: {other}")


@pytest.mark.parametrize(
    "piece",
    ["1", "a1", "1.", "1:", "a.", "a-", "f:", "/tmp/", "1/", "=", "A1+/", "0x", "Mon ", "Jun 1 ", "id id=", "\0", "é", "error ", "1ms"],
)  # fmt: skip
def test_a_hostile_line_costs_no_more_than_a_long_one(piece: str) -> None:
    """As much time as its first characters take, whatever follows: measured against those alone, not against the clock."""
    line = piece * (1024 * 1024 // len(piece))

    def seconds(text: str) -> float:
        began = time.process_time()
        what_counts(text)
        return time.process_time() - began

    what_counts("once, so that all is compiled")
    assert what_counts(line) == what_counts(line[: LONGEST * 2]) and len(what_counts(line)) <= 2 * LONGEST
    assert min(seconds(line) for _ in range(3)) < 2, "catastrophic backtracking takes minutes"


# --- in real runs ----------------------------------------------------------------------------------------------


def fail_again(workspace: Workspace, said: str) -> None:
    (workspace.root / "said").write_text(f"{said}\n")
    workspace.move_back("job", "-2 hours")
    workspace.tick()


@pytest.fixture
def failing(workspace: Workspace, telegram: Telegram) -> Workspace:
    telegram.configure(workspace)
    workspace.task("job", "cat said; exit 1", schedule="1h")
    (workspace.root / "said").write_text("cannot read object 3b1f6a70-9c6e-4f0e-8f0b-3d2f1f3c9b1a\n")
    workspace.tick()
    return workspace


def test_one_trouble_is_one_alert_whatever_ids_it_comes_with(failing: Workspace, telegram: Telegram) -> None:
    assert len(telegram.texts) == 1
    fail_again(failing, "cannot read object 77d0b5ee-0000-4a4a-9d9d-b1c2d3e4f506")
    assert len(failing.runs("job")) == 2 and len(telegram.texts) == 1


@pytest.mark.parametrize(("said", "alerts"), [("cannot read object", 1), ("disk full", 2)])
def test_an_incident_that_an_earlier_version_opened_is_not_told_again(
    failing: Workspace, telegram: Telegram, said: str, alerts: int
) -> None:
    error = failing.last_run("job")["error"]
    failing.sql("UPDATE tasks SET incident = ?", earlier_signature(replace(FAILED, error=error)))
    fail_again(failing, f"{said} 3b1f6a70-9c6e-4f0e-8f0b-3d2f1f3c9b1a")
    assert len(failing.runs("job")) == 2 and len(telegram.texts) == alerts
