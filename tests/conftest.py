from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import Telegram, Workspace

# A slow machine is no defect, and a suite says the same every time.
settings.register_profile(
    "tickdown", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tickdown")

needs_faketime = pytest.mark.skipif(shutil.which("faketime") is None, reason="needs faketime")


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """A workspace that leaves no process behind."""
    made = Workspace(tmp_path / "ws")
    yield made
    left = made.kill_everything()
    assert not left, f"processes left behind: {left}"


@pytest.fixture
def telegram() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()
