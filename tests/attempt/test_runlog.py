"""The log of a run: bounded on the disk, honest about what it left out."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickdown.attempt.run_log import SUMMARY_BYTES, RunLog

LIMIT = 2048
NOTICE = re.compile(rb"\n=== ([0-9]+) bytes dropped \(over max_log\) ===\n")


def write(path, parts, limit=LIMIT) -> tuple[bytes, int]:
    """What is in the file at the end, and the most it ever held."""
    log, most = RunLog(str(path), limit), 0
    for part in parts:
        log.write(part)
        most = max(most, path.stat().st_size)
    log.close()
    return path.read_bytes(), max(most, path.stat().st_size)


def test_a_log_within_its_limit_is_kept_as_it_is(tmp_path):
    data = bytes(range(256)) * 8
    assert write(tmp_path / "x.log", [data[:100], data[100:]])[0] == data


@pytest.mark.parametrize("size", [LIMIT + 1, LIMIT + 500, 3 * LIMIT // 2, 3 * LIMIT // 2 + 1, 2 * LIMIT, 50_000])
@pytest.mark.parametrize("piece", [1, 7, 1000, 100_000])
def test_a_log_over_its_limit_keeps_both_halves_and_says_how_much_is_missing(tmp_path, size, piece):
    if piece == 1 and size > 5000:
        size = 5000
    data = b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]
    content, most = write(tmp_path / "x.log", [data[at : at + piece] for at in range(0, size, piece)])
    head, dropped, tail = NOTICE.split(content)
    assert head == data[: LIMIT // 2]
    assert tail == data[-LIMIT // 2 :]
    assert int(dropped) == size - LIMIT
    assert most <= 2 * LIMIT


@given(st.lists(st.integers(0, 3000), max_size=25))
@settings(max_examples=50)
def test_the_disk_never_holds_more_than_twice_the_limit(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("log") / "x.log"
    data = os.urandom(sum(sizes)).replace(b"=", b"-")
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    content, most = write(path, parts, limit=1024)
    assert most <= 2048
    if len(data) <= 1024:
        assert content == data
    else:
        head, dropped, tail = NOTICE.split(content)
        assert (head, tail, int(dropped)) == (data[:512], data[-512:], len(data) - 1024)


def test_each_attempt_has_its_header_on_a_line_of_its_own(tmp_path):
    log = RunLog(f"{tmp_path}/x.log", LIMIT)
    log.header("attempt 1")
    log.write(b"no newline at the end")
    log.header("attempt 2")
    log.write(b"done\n")
    log.header("attempt 3")
    log.close()
    assert (tmp_path / "x.log").read_text() == (
        "=== attempt 1 ===\nno newline at the end\n=== attempt 2 ===\ndone\n=== attempt 3 ===\n"
    )


def test_an_existing_log_is_continued(tmp_path):
    write(tmp_path / "x.log", [b"first\n"])
    assert write(tmp_path / "x.log", [b"second\n"])[0] == b"first\nsecond\n"


@pytest.mark.parametrize("piece", [1, 100, 5000, 20_000])
def test_the_summary_is_the_end_of_the_attempt(tmp_path, piece):
    data = b"".join(b"%07d\n" % number for number in range(1500))
    log = RunLog(f"{tmp_path}/x.log", 1024)
    log.write(b"attempt 1")
    log.header("attempt 2")
    assert log.summary() == ""
    for at in range(0, len(data), piece):
        log.write(data[at : at + piece])
    assert log.summary() == data[-SUMMARY_BYTES:].decode()
    log.close()


def test_a_summary_of_odd_bytes_is_still_a_text(tmp_path):
    log = RunLog(f"{tmp_path}/x.log", LIMIT)
    log.write(b"\xff\xc3")
    log.write(b"\xa4 ok")
    assert log.summary() == "\ufffdä ok"
    log.close()


def test_logs_are_private_and_no_link_is_followed(tmp_path):
    write(tmp_path / "runs" / "x.log", [b"a"])
    assert (tmp_path / "runs" / "x.log").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700
    (tmp_path / "runs" / "y.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        RunLog(f"{tmp_path}/runs/y.log", LIMIT)
    assert not (tmp_path / "elsewhere").exists()
