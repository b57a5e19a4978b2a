#!/usr/bin/env python3
"""Tickdown: a scheduler whose tasks are Markdown files. This is where every command starts.

Kept short: Python compiles this file anew each time, and almost every tick ends in the first line of `main`.
"""

from __future__ import annotations

import os
import sys

from lib.idle import look_around


def main(argv: list[str] | None = None) -> int:
    is_idle, look = look_around(sys.argv[1:] if argv is None else argv, os.path.dirname(os.path.realpath(__file__)))
    if is_idle:
        return 0
    from lib import cli

    return cli.main(argv, look)


if __name__ == "__main__":
    code = main()
    if "lib.cli" not in sys.modules:
        # The database is not closed: whoever closes it last merges and syncs its log, which is not worth it for two rows.
        os._exit(code)
    sys.exit(code)
