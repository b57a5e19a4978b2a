"""One HTTP request, as a process of its own: what `run_as: http` starts.

It is a task like any other then: a timeout ends it, its output is the run's log, and its exit code is the verdict. The
request comes in the environment, where other users can't read its headers.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

REQUEST_VARIABLE = "TICKDOWN_HTTP_REQUEST"
MOST_OF_BODY = 100 * 1024
CONNECT_WITHIN = 30.0
HEADERS_OF_INTEREST = (
    "Content-Type",
    "Content-Length",
    "Date",
    "Server",
    "Location",
    "Retry-After",
    "ETag",
    "Last-Modified",
)


def call(request: dict[str, Any]) -> int:
    import requests

    body = request["body"].encode("utf-8") or None
    # Who expects a redirect wants to see it, not where it leads.
    follow = not any(300 <= status < 400 for status in request["expect_status"])
    try:
        with requests.request(
            request["method"], request["url"], headers=request["headers"], data=body, stream=True,
            timeout=(CONNECT_WITHIN, None),  # how long the whole may take is the task's timeout
            allow_redirects=follow, hooks={"response": leave_redirect_unread} if follow else None,
        ) as answer:  # fmt: skip
            return _report(answer, request["expect_status"])
    except Exception as error:  # not only what `requests` knows: what a broken server can provoke has no end
        print(_in_words(error, request["url"]))
        return 1


def leave_redirect_unread(answer: Any, **more: Any) -> None:
    """`requests` takes all that a redirect says into memory before it follows it, however much that is."""
    if answer.is_redirect:
        answer.raw.close()


def _in_words(error: Exception, url: str) -> str:
    """What the system said, instead of the pile of libraries it came through."""
    from urllib.parse import urlsplit

    said: list[str] = []
    cause: object = error
    while isinstance(cause, BaseException):
        if isinstance(cause, OSError) and cause.strerror:
            said.append(cause.strerror)
        reason = getattr(cause.args[0], "reason", None) if cause.args else None
        cause = cause.__cause__ or cause.__context__ or reason
    return f"{urlsplit(url).netloc}: {said[-1] if said else f'{type(error).__name__}: {error}'}"


def _report(answer: Any, expected: list[int]) -> int:
    """What came, and as the last line the verdict: that is what an alert quotes."""
    verdict = f"HTTP {answer.status_code} {answer.reason or ''}".rstrip()
    print(verdict)
    for name in HEADERS_OF_INTEREST:
        if name in answer.headers:
            print(f"{name}: {answer.headers[name]}")
    print(flush=True)
    kept = 0
    for piece in answer.iter_content(16 * 1024):
        sys.stdout.buffer.write(piece[: MOST_OF_BODY - kept])
        kept += len(piece)
        if kept >= MOST_OF_BODY:
            sys.stdout.buffer.write(f"\n… only the first {MOST_OF_BODY // 1024} KiB are kept".encode())
            break
    sys.stdout.buffer.write(b"\n" if kept else b"")
    sys.stdout.buffer.flush()
    well = answer.status_code in expected if expected else 200 <= answer.status_code < 300
    if not well:
        if kept and "Retry-After" in answer.headers:
            print(f"Retry-After: {answer.headers['Retry-After']}")  # where it is found: near the end
        print(f"{verdict}; expected {', '.join(map(str, expected)) or 'a status from 200 to 299'}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # cron's locale may know no more than ASCII
    sys.exit(call(json.loads(os.environ[REQUEST_VARIABLE])))
