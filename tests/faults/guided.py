"""The process that atheris runs: the first byte of an input says which reader gets the rest."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["tickdown"]):
    from tests.faults.readers import READERS


def read_one(data: bytes) -> None:
    if data:
        READERS[data[0] % len(READERS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, read_one)
    atheris.Fuzz()
