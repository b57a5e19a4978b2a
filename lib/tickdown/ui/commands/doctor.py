"""`validate` and `doctor`."""

from __future__ import annotations

from datetime import UTC, datetime

from tickdown.base.errors import Exit
from tickdown.base.records import as_dict
from tickdown.base.terminal import one_line
from tickdown.context.app import App
from tickdown.queries.checks import Finding, findings, validation
from tickdown.ui.views import Screen


def validate(app: App, screen: Screen, paths: list[str], settings_problems: list[str]) -> Exit:
    """Every problem of every file, one line each. Warnings are shown too, but only errors count."""
    found = validation(app, paths, settings_problems, datetime.now(UTC))
    errors = found.errors
    if screen.as_json:
        screen.json({
            "ok": errors == 0,
            "files": found.files,
            "settings": settings_problems,
            "problems": [{"path": path} | as_dict(problem) for path, problem in found.problems],
        })  # fmt: skip
    for line in settings_problems:
        screen.line(one_line(line, 1000))
    for path, problem in found.problems:
        screen.line(one_line(problem.at(path), 1000))
    count = f"{found.files} file" + ("s" if found.files != 1 else "")
    screen.line(f"{count}, no problems" if not errors else f"{count}, {errors} problem" + ("s" if errors != 1 else ""))
    return Exit.FAILED if errors else Exit.OK


def doctor(app: App, screen: Screen, settings_problems: list[str]) -> Exit:
    """What is wrong with this installation, and what to do about it. Exit 1 if anything is."""
    found = [Finding("settings", False, line) for line in settings_problems]
    found += findings(app, datetime.now(UTC))
    sick = [finding for finding in found if not finding.ok]
    if screen.as_json:
        checks = [{"name": finding.name, "ok": finding.ok, "message": finding.message} for finding in found]
        screen.json({"ok": not sick, "checks": checks})
    for finding in found:
        verdict = "PROBLEM" if not finding.ok else "note" if finding.note else "ok"
        screen.line(f"{verdict:<8} {finding.name:<12} {one_line(finding.message, 500)}")
    well = "all well" if not any(finding.note for finding in found) else "the installation is well; see the notes"
    screen.line(well if not sick else f"{len(sick)} problem" + ("s" if len(sick) != 1 else ""))
    return Exit.FAILED if sick else Exit.OK
