"""The nearest known names to a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    import difflib

    by_folded = {name.casefold(): name for name in known}
    return [by_folded[near] for near in difflib.get_close_matches(word.casefold(), by_folded, n=most, cutoff=0.6)]


def suggestion(word: str, known: Iterable[str]) -> str:
    near = nearest(word, known, most=1)
    return f"; did you mean {near[0]!r}?" if near else ""
