from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import Telegram, Workspace


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
