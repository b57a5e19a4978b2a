"""What can go wrong with a write, in words of this program."""

from __future__ import annotations

from tickdown.base.model import Lease


class LostLease(Exception):
    """Another process has taken the run over, or it is over: it is not for this one to write to any more."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(f"run {lease.run_id} is not ours any more: lease {lease.number} is over")
        self.lease = lease
