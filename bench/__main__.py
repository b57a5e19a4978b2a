"""Measures everything and writes RESULTS.md; or some subjects, which are only shown: `--only idle,burst`."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from bench import report
from bench.burst import measure_burst
from bench.growth import measure_growth
from bench.history import measure_history
from bench.idle import measure_idle
from bench.load import measure_load
from bench.peers import measure_peers
from bench.processes import adopt_orphans, end_everything
from bench.scale import QUICK, Bench, Scale

SUBJECTS: dict[str, Callable[[Bench], report.Section]] = {
    "idle": measure_idle,
    "burst": measure_burst,
    "load": measure_load,
    "history": measure_history,
    "growth": measure_growth,
    "peers": measure_peers,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"some of {','.join(SUBJECTS)}; RESULTS.md stays as it is")
    parser.add_argument(
        "--quick", action="store_true", help="few and small, to see that it works; RESULTS.md stays as it is"
    )
    parser.add_argument("--keep", action="store_true", help="leave the temporary folder, and say where it is")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.only.split(",") if name] or list(SUBJECTS)
    if unknown := set(chosen) - set(SUBJECTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything below is tidied up
    adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="tickdown-bench-"))
    began = time.monotonic()
    failed: list[str] = []
    sections = []
    try:
        for name in chosen:
            sections.append(_measure(name, Bench(folder, QUICK if arguments.quick else Scale()), failed))
            print(sections[-1].markdown(), flush=True)
    finally:
        end_everything()
        if arguments.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if set(chosen) == set(SUBJECTS) and not arguments.quick:
        report.write_results(sections, (time.monotonic() - began) / 60)
    print("not measured: " + ", ".join(failed) if failed else "all measured")
    return 1 if failed else 0


def _measure(name: str, bench: Bench, failed: list[str]) -> report.Section:
    """A subject that can't be measured must not cost the others their numbers."""
    try:
        return SUBJECTS[name](bench)
    except Exception as error:
        traceback.print_exc()
        failed.append(name)
        return report.Section(name.capitalize(), f"Not measured: {error}")


if __name__ == "__main__":
    sys.exit(main())
