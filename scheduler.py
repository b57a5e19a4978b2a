#!/usr/bin/env python3
"""Tickdown: a scheduler whose tasks are Markdown files. The door to `lib/tickdown/`, with this folder as the default workspace.

Kept short: Python compiles this file anew each time.
"""

import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "lib"))

from tickdown import entry  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    return entry.main(argv, HERE)


if __name__ == "__main__":
    entry.start(HERE)
