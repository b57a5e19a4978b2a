"""Run a command of the scheduler and write down what it imports, opens, lists and asks the database: probe.py OUT ARGUMENT…"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(PROJECT))
out, arguments = sys.argv[1], sys.argv[2:]
opened: list[str] = []
listed: list[str] = []
statements: list[str] = []


def listen(event: str, values: tuple[object, ...]) -> None:
    if event == "open":
        opened.append(os.fsdecode(values[0]) if isinstance(values[0], (str, bytes, os.PathLike)) else str(values[0]))
    elif event == "os.scandir":
        listed.append(str(values[0]))


def traced(*values: Any, **named: Any) -> Any:
    connection = connect(*values, **named)
    connection.set_trace_callback(statements.append)
    return connection


before = set(sys.modules)

import scheduler  # noqa: E402

sqlite3 = sys.modules["sqlite3"]
connect = sqlite3.connect
sqlite3.connect = traced  # type: ignore[attr-defined]
sys.addaudithook(listen)
code = scheduler.main(arguments)
modules = sorted(set(sys.modules) - before)
with open(out, "w", encoding="utf-8") as file:
    told = {"code": code, "modules": modules, "opened": opened, "listed": listed, "statements": statements}
    json.dump(told, file)
