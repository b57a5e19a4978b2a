"""Frozen dataclasses that are made quickly.

Every start of the program makes about ninety of them, and `dataclass(frozen=True)` compiles six methods for each: more than
a tenth of a second in all. Here only `__init__` is compiled; comparing, hashing and showing are the same few lines for
every class. That nobody assigns to a field is the type checker's to see, which takes this for the real thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass, fields
    from operator import attrgetter

    def record(*, frozen, slots):
        assert frozen
        return _make(dataclass(slots=slots, repr=False, eq=False))

    def _make(plain):
        def decorate(cls):
            cls.__doc__ = cls.__doc__ or ""  # else the signature is worked out for it
            made = plain(cls)
            names = tuple(field.name for field in fields(made) if field.compare)
            values = attrgetter(*names) if names else lambda self: ()

            def equal(self, other):
                return values(self) == values(other) if other.__class__ is made else NotImplemented

            made.__eq__ = equal
            made.__hash__ = lambda self: hash(values(self))
            made.__repr__ = _show
            return made

        return decorate

    def _show(self):
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self))})"
