"""Amounts of money, as people read them."""

from __future__ import annotations


def usd(amount: float) -> str:
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"
