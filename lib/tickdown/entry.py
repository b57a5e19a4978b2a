"""Where every command starts. Kept short: almost every tick ends in the first lines of `main`."""

import os
import sys

from tickdown.tick.idle import look_around


def main(argv: list[str] | None = None, default_workspace: str | None = None) -> int:
    """`default_workspace` is where scheduler.py is; the installed command has none and takes the current folder."""
    is_idle, look = look_around(sys.argv[1:] if argv is None else argv, default_workspace or ".")
    if is_idle:
        return 0
    from tickdown.ui import cli

    return cli.main(argv, look, default_workspace)


def start(default_workspace: str | None = None) -> None:
    """As a program: ends the process."""
    code = main(None, default_workspace)
    if "tickdown.ui.cli" not in sys.modules:
        # The database is not closed: whoever closes it last merges and syncs its log, which is not worth it for two rows.
        os._exit(code)
    sys.exit(code)
