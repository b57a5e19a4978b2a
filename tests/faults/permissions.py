"""Secrets: wherever a task lets one slip, it is written down by nobody."""

from __future__ import annotations

import html
import json
import re
import shlex
from random import Random

from tests.faults.injection import telegram_of
from tests.faults.kinds import kind
from tests.helpers import Workspace

# No quote: a value of .env stands in one kind of them.
ODD = ' "\\$`/+=&<>:#%{}[]é'
LEAKS = {
    "echo": "printf '%s\\n' \"$NAME\"",
    "env": "env",
    "shell": "export -p",
    "json": "python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'",
    "python": "python3 -c 'import os; print(os.environ)'",
    "address": 'python3 -c \'import os, urllib.parse as u; print(u.quote(os.environ["NAME"], safe=""))\'',
    "halves": 'n=$((${#NAME} / 2)); printf %s "${NAME:0:n}"; sleep 0.05; printf "%s\\n" "${NAME:n}"',
    "both streams": 'printf %s "$NAME" >&2; printf %s "$NAME"',
    "command": '"$NAME"',
    "long": 'head -c $((RANDOM % 5000)) /dev/zero | tr "\\0" x; printf %s "$NAME"; head -c 3000 /dev/zero | tr "\\0" y',
}
SHOWING = ["history --json", "list --json", "show t0", "show t1 --json", "logs t0", "logs t1 --raw", "why t1",
           "tickets --json", "tickets", "comments --json", "heal t1 --diff"]  # fmt: skip


def secret(random: Random) -> str:
    alphabet = "abcXYZ0189_-" + (ODD * 2 if random.random() < 0.6 else "")
    inside = "".join(random.choice(alphabet) for _ in range(random.randint(6, 40)))
    return f"q{inside}z"


@kind("secrets in whatever is printed", seeds=1)
def secrets_printed(random: Random, workspace: Workspace) -> None:
    secrets = {name: secret(random) for name in ("FROM_FILE", "ANY_API_TOKEN", "OWN_PASSWORD")}
    workspace.environment["ANY_API_TOKEN"] = secrets["ANY_API_TOKEN"]
    agent = workspace.root / "agent.sh"
    agent.write_text("#!/bin/sh\ncat > prompt.$$\nenv\nprintf '%s' \"$FROM_FILE: I give up\"\nexit 1\n")
    agent.chmod(0o755)
    more = f"agents: {{fake: {{argv: [{agent}], format: text}}}}\nhealer: fake\nmax_concurrent: 9\n"
    with telegram_of(workspace, more) as telegram:
        with (workspace.root / ".env").open("a") as file:
            file.write(f"FROM_FILE='{secrets['FROM_FILE']}'\nPASS='{secrets['OWN_PASSWORD']}'\n")
        for number, leak in enumerate(random.sample(sorted(LEAKS), 4)):
            command = LEAKS[leak].replace("NAME", random.choice(sorted(secrets)))
            end = random.choice(["", "; exit 3", "; exit 0"])
            workspace.task(
                f"t{number}", command + end, schedule="1h", notify_on="always", env={"OWN_PASSWORD": "${PASS}"}
            )
        workspace.task("said", "cat; env", schedule="1h", run_as="fake", self_heal=False, prompt="Say ${PASS}")
        workspace.tick(code=None)
        workspace.cli("comment", "t0", f"is it {secrets['FROM_FILE']}?", code=None)
        shown = {"run": workspace.cli("run", "t0", code=None)}
        for words in random.sample(SHOWING, 4):
            shown[words] = workspace.cli(*words.split(), code=None)
        texts = {name: done.stdout + done.stderr for name, done in shown.items()}
        texts |= {f"telegram {number}": html.unescape(text) for number, text in enumerate(telegram.texts)}
        assert telegram.texts and list(workspace.root.glob("prompt.*"))
        texts |= {
            str(path.relative_to(workspace.root)): path.read_bytes().decode("utf-8", "replace")
            for path in workspace.root.rglob("*")
            if path.is_file() and path.name != ".env"
        }
        for name, value in secrets.items():
            forms = {value, json.dumps(value)[1:-1], re.sub(r'([\\"$`])', r"\\\1", value), shlex.quote(value)}
            found = [place for place, text in texts.items() for form in forms if form in text]
            assert not found, f"{name} ({value!r}) is in {sorted(set(found))}"
