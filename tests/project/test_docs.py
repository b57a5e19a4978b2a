"""What the documents say is checked against the program, so that neither can change alone."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.kinds import SUBJECTS
from tests.helpers import PROJECT, Workspace
from tickdown import config
from tickdown.base.model import (
    CatchUp,
    DisabledReason,
    ErrorClass,
    HealStatus,
    HealVerdict,
    RunStatus,
    SkipReason,
    Source,
    TaskState,
)
from tickdown.config import Config, parse_config
from tickdown.tasks import task
from tickdown.ui.arguments import build_parser

README = (PROJECT / "README.md").read_text()
PROSE = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
CODE_WORDS = set(re.findall(r"[\w./-]+", " ".join(re.findall(r"`([^`]+)`", PROSE))))


def subcommands() -> dict[str, argparse.ArgumentParser]:
    parser = build_parser()
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("name", subcommands())
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"| `{name}" in README


FLAGS = sorted(
    {option for parser in subcommands().values() for action in parser._actions for option in action.option_strings}
    - {"-h", "--help"}
)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_in_the_readme(flag: str) -> None:
    assert flag in CODE_WORDS


@pytest.mark.parametrize("field", task.FIELDS)
def test_every_field_is_in_the_readme(field: str) -> None:
    assert f"`{field}`" in README


@pytest.mark.parametrize(
    "key",
    [*config.KEYS, *config.NOTIFY_KEYS, *config.TELEGRAM_KEYS, *config.DESTINATION_KEYS, *config.AGENT_KEYS],
)
def test_every_configuration_key_is_in_the_readme(key: str) -> None:
    assert f"`{key}`" in README


@pytest.mark.parametrize(
    "word", [*RunStatus, *TaskState, *Source, *CatchUp, *DisabledReason, *ErrorClass, *HealVerdict]
)
def test_every_status_state_source_and_reason_is_in_the_readme(word: str) -> None:
    assert word in README


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


def test_the_install_line_puts_this_folder_into_the_entry(tmp_path: Path) -> None:
    """Run as a person would, with a stand-in for `crontab` that keeps what it is given."""
    line = next(line for line in README.splitlines() if line.startswith("$ (crontab -l")).removeprefix("$ ")
    script = (
        'crontab() { if [ "$1" = -l ]; then cat "$KEPT" 2>/dev/null; else cat > "$KEPT.new" && mv "$KEPT.new" "$KEPT"; fi; }\n'
        f"{line}\n{line}\n"
    )
    kept = tmp_path / "crontab"
    kept.write_text("5 5 * * * my-own-job\n")
    subprocess.run(["bash", "-c", script], cwd=PROJECT, check=True, env={"PATH": "/usr/bin:/bin", "KEPT": str(kept)})
    installed = kept.read_text()
    assert installed.count("scheduler.py") == 1 + installed.count("# Install"), (
        "a second installation replaces the first"
    )
    assert f'* * * * * "{PROJECT}/.venv/bin/python" "{PROJECT}/scheduler.py" tick' in installed
    assert installed.startswith("5 5 * * * my-own-job\n")


def test_the_task_file_of_the_readme_is_accepted(workspace: Workspace) -> None:
    example = re.search(r"```markdown\n(.*?)```", README, re.DOTALL)
    assert example
    workspace.write_task("nightly-report", example[1])
    assert workspace.cli("validate").stdout.endswith("1 file, no problems\n")


def test_the_line_of_a_crontab_and_its_task_file_in_the_readme_mean_the_same(workspace: Workspace) -> None:
    line = next(line for line in README.splitlines() if line.startswith("15 2 * * 1-5"))
    text = next(text for text in re.findall(r"```markdown\n(.*?)```", README, re.DOTALL) if "id: export" in text)
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


@pytest.mark.parametrize("reason", [each for each in SkipReason if each not in ("disabled", "not_due", "manual_only")])
def test_every_reason_that_leaves_a_row_is_in_the_readme(reason: str) -> None:
    assert f"`{reason}`" in README


def test_the_agent_task_and_the_agents_of_the_readme_are_accepted(workspace: Workspace) -> None:
    agent = next(text for text in re.findall(r"```markdown\n(.*?)```", README, re.DOTALL) if "run_as: claude" in text)
    workspace.write_task("week-in-review", agent)
    workspace.config(next(text for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "agents:" in text))
    assert workspace.cli("validate").stdout.endswith("1 file, no problems\n")


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
    assert diff and diff[0].strip() in README
    assert "orders is suspended after 2 heals" in malicious and "every byte is restored" in malicious
    assert malicious.rstrip().endswith("enabled: false\ndisabled_reason: auto_suspended")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_of_the_faults_is_in_reliability(subject: str) -> None:
    assert f"`{subject}`" in (PROJECT / "RELIABILITY.md").read_text()


def test_architecture_draws_every_status() -> None:
    drawing = (PROJECT / "ARCHITECTURE.md").read_text()
    for status in (*RunStatus, *HealStatus):
        assert re.search(rf"\b{status}\b", drawing), status


def test_architecture_fits_on_two_screens() -> None:
    assert len((PROJECT / "ARCHITECTURE.md").read_text().splitlines()) <= 110
