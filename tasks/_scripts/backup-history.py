"""Copy Tickdown's database to state/backup/, one file per weekday. Works while ticks write to it."""

import os
import sqlite3
import sys
from datetime import date
from pathlib import Path

workspace = Path(os.environ.get("TICKDOWN_WORKSPACE", "."))
source = workspace / "state" / "tickdown.db"
folder = workspace / "state" / "backup"

if not source.exists():
    sys.exit(f"{source} does not exist yet")
folder.mkdir(mode=0o700, exist_ok=True)
target = folder / f"tickdown-{date.today():%a}.db".lower()
partial = target.with_suffix(".partial")
os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
with sqlite3.connect(source) as database, sqlite3.connect(partial) as copy:
    database.backup(copy)
copy.close()
partial.replace(target)
print(f"{target} ({target.stat().st_size // 1024} KiB)")
