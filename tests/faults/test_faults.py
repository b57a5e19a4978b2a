"""Every kind of fault, with fixed seeds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faults.kinds import CannotTry, Kind, all_kinds, fresh_workspace

TRIALS = [(kind, seed) for kind in all_kinds() for seed in range(1, kind.seeds + 1)]


@pytest.mark.parametrize(("kind", "seed"), TRIALS, ids=lambda value: value.name if isinstance(value, Kind) else value)
def test_nothing_is_lost(kind: Kind, seed: int, tmp_path: Path) -> None:
    try:
        with fresh_workspace(tmp_path / "ws") as workspace:
            kind.trial(Random(f"{kind.name} {seed}"), workspace)
    except CannotTry as reason:
        pytest.skip(str(reason))
