"""What the documents say is checked against the program, so that neither can change alone."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tests.faults.kinds import SUBJECTS
from tests.helpers import PROJECT, Workspace
from tickdown import config
from tickdown.base.errors import Exit
from tickdown.base.model import (
    CatchUp,
    DisabledReason,
    ErrorClass,
    HealStatus,
    HealVerdict,
    MissReason,
    RunStatus,
    SkipReason,
    Source,
    TaskState,
)
from tickdown.config import Config, parse_config
from tickdown.tasks import task
from tickdown.ui.arguments import build_parser

README = (PROJECT / "README.md").read_text()
# What people read to use it.
MANUAL = {path: path.read_text() for path in (PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md")))}
EVERYTHING = "\n".join(MANUAL.values())
PROSE = re.sub(r"```.*?```", "", EVERYTHING, flags=re.DOTALL)
CODE_WORDS = set(re.findall(r"[\w./-]+", " ".join(re.findall(r"`([^`]+)`", PROSE))))
# What people read at all.
DOCUMENTS = {**MANUAL, **{PROJECT / name: (PROJECT / name).read_text() for name in ("ARCHITECTURE.md", "CHANGELOG.md")}}


def subcommands() -> dict[str, argparse.ArgumentParser]:
    parser = build_parser()
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", EVERYTHING, re.DOTALL)


def test_every_command_is_in_the_table_of_the_readme() -> None:
    assert [name for name in subcommands() if f"| `{name}" not in README] == []


def test_every_flag_is_documented() -> None:
    flags = {
        option for parser in subcommands().values() for action in parser._actions for option in action.option_strings
    }
    assert flags - {"-h", "--help"} - CODE_WORDS == set()


def test_every_field_is_documented() -> None:
    fields = MANUAL[PROJECT / "docs/fields.md"]
    assert [field for field in task.FIELDS if f"`{field}`" not in fields] == []


def test_every_configuration_key_is_documented() -> None:
    keys = [*config.KEYS, *config.NOTIFY_KEYS, *config.TELEGRAM_KEYS, *config.DESTINATION_KEYS, *config.AGENT_KEYS]
    page = MANUAL[PROJECT / "docs/configuration.md"]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_every_status_state_source_and_reason_is_documented() -> None:
    words = [*RunStatus, *TaskState, *Source, *CatchUp, *DisabledReason, *ErrorClass, *HealVerdict]
    assert [word for word in words if word not in EVERYTHING] == []
    leave_a_row = [reason for reason in SkipReason if reason not in ("disabled", "not_due", "manual_only")]
    commands = MANUAL[PROJECT / "docs/commands.md"]
    assert [word for word in (*leave_a_row, *MissReason, *RunStatus, *Source) if f"`{word}`" not in commands] == []


def test_every_exit_code_is_documented() -> None:
    table = MANUAL[PROJECT / "docs/commands.md"].partition("## Exit codes")[2]
    codes = {int(number) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for number in row.split(",")}
    assert codes == {int(code) for code in Exit}


def test_the_example_configuration_shows_every_key_with_its_default() -> None:
    text = (PROJECT / "config.example.yaml").read_text()
    assert parse_config(text, {}) == parse_config("", {}) == (Config(), [])
    for key in config.KEYS:
        assert re.search(rf"^{key}:.*#|^{key}:$", text, re.MULTILINE), f"{key}, with an explanation"
    for key in (*config.NOTIFY_KEYS, *config.TELEGRAM_KEYS):
        assert re.search(rf"^ +{key}:", text, re.MULTILINE), key


def test_the_two_set_up_commands_of_the_readme_exist() -> None:
    for target in ("run", "test"):
        assert f"make {target}" in README
        subprocess.run(["make", "-n", target], cwd=PROJECT, check=True, capture_output=True)


def test_the_install_line_of_the_readme_is_the_one_in_crontab_example() -> None:
    line = next(line for line in README.splitlines() if line.startswith("$ (crontab -l"))
    assert f"#   {line.removeprefix('$ ')}\n" in (PROJECT / "crontab.example").read_text()


def test_the_install_line_puts_this_folder_into_the_entry_and_the_removal_line_takes_it_out(tmp_path: Path) -> None:
    """Run as a person would, with a stand-in for `crontab` that keeps what it is given."""
    line = next(line for line in README.splitlines() if line.startswith("$ (crontab -l")).removeprefix("$ ")
    stand_in = 'crontab() { if [ "$1" = -l ]; then cat "$KEPT" 2>/dev/null; else cat > "$KEPT.new" && mv "$KEPT.new" "$KEPT"; fi; }'
    kept = tmp_path / "crontab"
    kept.write_text("5 5 * * * my-own-job\n")

    def run(*lines: str) -> None:
        script, environment = "\n".join((stand_in, *lines)), {"PATH": "/usr/bin:/bin", "KEPT": str(kept)}
        subprocess.run(["bash", "-c", script], cwd=PROJECT, check=True, env=environment)

    run(line, line)
    installed = kept.read_text()
    assert installed.count("scheduler.py") == 1 + installed.count("# Install"), (
        "a second installation replaces the first"
    )
    assert f'* * * * * "{PROJECT}/.venv/bin/python" "{PROJECT}/scheduler.py" tick' in installed
    assert installed.startswith("5 5 * * * my-own-job\n")
    removal = next(line for line in README.splitlines() if line.startswith("$ crontab -l")).removeprefix("$ ")
    run(removal)
    assert kept.read_text() == "5 5 * * * my-own-job\n"
    assert f"#   {removal.partition('    #')[0]}\n" in (PROJECT / "crontab.example").read_text()


def test_the_task_file_of_the_readme_is_accepted(workspace: Workspace) -> None:
    example = next(text for text in blocks("markdown") if "id: nightly-report" in text)
    assert example in README
    workspace.write_task("nightly-report", example)
    assert workspace.cli("validate").stdout.endswith("1 file, no problems\n")


def test_the_line_of_a_crontab_and_its_task_file_in_the_readme_mean_the_same(workspace: Workspace) -> None:
    line = next(line for line in README.splitlines() if line.startswith("15 2 * * 1-5"))
    text = next(text for text in blocks("markdown") if "id: export" in text)
    shop = workspace.root / "shop"
    shop.mkdir()
    for name in ("export.sh", "upload.sh"):
        (shop / name).write_text(f"#!/bin/sh\necho {name}; echo {name} >> order\n")
        (shop / name).chmod(0o755)
    workspace.write_task("export", text.replace("/srv/shop", str(shop)))
    assert workspace.cli("validate").stdout.endswith("1 file, no problems\n")
    workspace.cli("run", "export")

    def written() -> dict[str, str]:  # whatever day it is
        return {path.name.partition("-2")[0]: path.read_text() for path in shop.iterdir()}

    ours = written()
    (shop / "order").unlink()
    as_cron = line.partition("  ")[2].replace("\\%", "%").replace("/srv/shop", str(shop))
    subprocess.run(["/bin/sh", "-c", as_cron], check=True, capture_output=True)
    assert written() == ours
    assert ours["out"] == "export.sh\n" and ours["order"] == "export.sh\nupload.sh\n"
    assert workspace.json("show", "export")["schedule"] == " ".join(line.split()[:5])


def test_the_output_of_validate_in_the_readme_is_true(workspace: Workspace) -> None:
    workspace.write_task(
        "broken",
        '---\nid: broken\nshedule: "0 6 * * *"\nschedule: "0 25 * * *"\ntimeout: 10x\nrun_as: shel\ncommand: date\n---\n',
    )
    for line in workspace.cli("validate", code=1).stdout.splitlines():
        assert line in README


def test_the_shipped_tasks_are_valid_and_one_is_due_at_once() -> None:
    done = subprocess.run(
        [sys.executable, str(PROJECT / "scheduler.py"), "validate", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"ok": true' in done.stdout


def test_every_other_task_and_every_configuration_of_the_documents_is_accepted(workspace: Workspace) -> None:
    """An agent, a request; the agents and the destinations of alerts."""
    for text in blocks("markdown"):
        workspace.write_task(re.search(r"^id: (.*)$", text, re.MULTILINE)[1], text)  # type: ignore[index]
    (workspace.root / ".env").write_text("REPORT_API_KEY=0123456789\nTELEGRAM_BOT_TOKEN=123456:0123456789\n")
    (workspace.root / ".env").chmod(0o600)
    workspace.config("".join(blocks("yaml")))
    assert workspace.cli("validate").stdout.endswith(f"{len(blocks('markdown'))} files, no problems\n")


def test_the_demonstration_heals_with_an_honest_healer_and_restores_every_byte_after_a_malicious_one() -> None:
    shown = subprocess.run(
        [str(PROJECT / "tests/demo/heal.sh")],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    honest, malicious = shown.split("=== a malicious healer")
    assert "healed: orders.csv is in data/ now (scripts/count.sh)" in honest
    diff = re.search(r"--- a/scripts/count.sh\n.*", honest, re.DOTALL)
    assert diff and diff[0].strip() in EVERYTHING
    assert "orders is suspended after 2 heals" in malicious and "every byte is restored" in malicious
    assert malicious.rstrip().endswith("enabled: false\ndisabled_reason: auto_suspended")


def test_every_subject_of_the_faults_is_in_reliability() -> None:
    page = MANUAL[PROJECT / "docs/reliability.md"]
    assert [subject for subject in SUBJECTS if f"`{subject}`" not in page] == []


# --- the documents themselves ------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The headings of a document, as links name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_points_to_a_file_and_a_heading_that_exist() -> None:
    broken = []
    for path, text in DOCUMENTS.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if target.startswith(("http://", "https://")):
                continue
            name, _, heading = target.partition("#")
            goal = (path.parent / name).resolve() if name else path
            if not goal.exists() or (heading and heading not in anchors(goal.read_text())):
                broken.append(f"{path.name}: {target}")
    assert broken == []


def test_every_file_of_the_project_that_is_named_exists() -> None:
    named = {
        name.rstrip("/")
        for path, text in DOCUMENTS.items()
        if path.name != "CHANGELOG.md"  # which tells of what was, too
        for name in re.findall(r"`((?:tests|lib|prompts|bench|docs)/[\w./-]*)`", text)
    }
    assert len(named) > 5
    assert [name for name in sorted(named) if not (PROJECT / name).exists()] == []


def test_every_page_of_docs_is_in_the_contents_of_the_readme() -> None:
    contents = README.partition("## Contents")[2].partition("\n## ")[0]
    assert [path.name for path in MANUAL if path.parent.name == "docs" and f"(docs/{path.name})" not in contents] == []


def test_no_line_is_too_long_to_read() -> None:
    """But for tables, and for what is shown of a terminal."""
    long = []
    for path, text in DOCUMENTS.items():
        block = None  # the language of the block of code that the line is in
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("```"):
                block = line.removeprefix("```") if block is None else None
            elif len(line) > 140 and not line.startswith("|") and block not in ("", "console"):
                long.append(f"{path.name}:{number}: {len(line)} characters")
    assert long == []


def test_the_readme_is_what_a_newcomer_needs_and_no_more() -> None:
    assert len(README.splitlines()) <= 250


def test_messages_name_documents_that_exist() -> None:
    named = {
        name
        for path in (PROJECT / "lib").rglob("*.py")
        for name in re.findall(r"\b(docs/[\w-]+\.md|ARCHITECTURE\.md)\b", path.read_text())
    }
    assert "docs/operating.md" in named
    assert [name for name in named if not (PROJECT / name).exists()] == []


def test_architecture_draws_every_status() -> None:
    drawing = (PROJECT / "ARCHITECTURE.md").read_text()
    for status in (*RunStatus, *HealStatus):
        assert re.search(rf"\b{status}\b", drawing), status


def test_architecture_fits_on_two_screens_and_names_only_what_exists() -> None:
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 110
    package = PROJECT / "lib" / "tickdown"
    modules = re.findall(r"`(?!tests/)([a-z_]+/[a-z_]+)(?:\.[a-z_]+)?`", text)  # with a function of it, perhaps
    assert len(modules) > 10
    assert [name for name in modules if not (package / f"{name}.py").exists()] == []
