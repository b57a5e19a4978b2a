"""make torture: every kind of fault in turns, with fresh seeds, for as long as one likes."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from tests.faults.kinds import CannotTry, Kind, all_kinds, fresh_workspace


@dataclass(slots=True)
class Tally:
    trials: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)  # the seeds
    not_tried: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long (each kind is tried at least once)")
    parser.add_argument("--only", default="", help="kinds whose names contain this")
    parser.add_argument("--seed", help="one trial of each kind, with this seed: to see a violation again")
    options = parser.parse_args()
    chosen = [kind for kind in all_kinds() if options.only in kind.name]
    if not chosen:
        parser.error(f"no kind's name contains {options.only!r}; there are: {', '.join(k.name for k in all_kinds())}")
    tallies = {kind.name: Tally() for kind in chosen}
    for kind in chosen:
        if kind.seconds > options.seconds and kind.name != options.only:
            tallies[kind.name].not_tried = f"takes about {kind.seconds:.0f} s"
    deadline = time.monotonic() + options.seconds
    first_round = True
    while first_round or (time.monotonic() < deadline and not options.seed):
        for kind in chosen:
            if not tallies[kind.name].not_tried and (first_round or time.monotonic() < deadline):
                try_once(kind, options.seed or secrets.token_hex(4), tallies[kind.name])
        first_round = False
    show(chosen, tallies)
    return 1 if any(tally.violations for tally in tallies.values()) else 0


def try_once(kind: Kind, seed: str, tally: Tally) -> None:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tickdown-torture-"))
    folder.chmod(0o755)
    verdict = "held"
    try:
        with fresh_workspace(folder / "ws") as workspace:
            kind.trial(Random(f"{kind.name} {seed}"), workspace)
    except CannotTry as reason:
        tally.not_tried, verdict = str(reason), f"not tried: {reason}"
    except Exception:
        tally.violations.append(seed)
        verdict = f"VIOLATED, kept in {folder}"
        traceback.print_exc()
    if seed not in tally.violations:
        shutil.rmtree(folder, ignore_errors=True)
    took = time.monotonic() - began
    if not tally.not_tried:
        tally.trials += 1
        tally.seconds += took
    print(f"{took:6.1f} s  {kind.name}  seed {seed}: {verdict}", flush=True)


def show(kinds: list[Kind], tallies: dict[str, Tally]) -> None:
    table = Table("kind of fault", "trials", "seconds", "invariant violations", "note")
    for kind in kinds:
        tally = tallies[kind.name]
        seeds = f"seeds: {', '.join(tally.violations)}" if tally.violations else ""
        table.add_row(
            kind.name, str(tally.trials), f"{tally.seconds:.0f}", str(len(tally.violations)), tally.not_tried or seeds
        )
    total = sum(tally.trials for tally in tallies.values()), sum(len(tally.violations) for tally in tallies.values())
    table.add_row("all", str(total[0]), "", str(total[1]), "", style="bold")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    sys.exit(main())
