"""Classes that are nothing but their fields, like those of `dataclasses`, but made quickly.

Every start of the program makes about a hundred of them, and a tick needs but some. `dataclasses` would compile half a dozen
methods for each, and is itself slow to import. Here only `__init__` is compiled, and only when a record is first made;
comparing, hashing and showing are the same few lines for every class. That nobody assigns to a field of a frozen one is the
type checker's to see, which takes these for the real thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["as_dict", "defaults", "field", "names", "record", "replace"]


def names(kind: type) -> tuple[str, ...]:
    """The names of all fields of a record class, in their order."""
    found: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
    return found


def defaults(kind: type) -> dict[str, Any]:
    """What a field is if nobody says so, for those that may go without."""
    return {name: field.value() for name, field in kind.__record_fields__.items() if field.may_be_left_out}  # type: ignore[attr-defined]


def as_dict(value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names(type(value))}


if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from dataclasses import field, replace
else:
    from operator import attrgetter

    _REQUIRED = object()

    class field:
        def __init__(self, *, default=_REQUIRED, default_factory=None, compare=True):
            self.default, self.factory, self.compare = default, default_factory, compare

        @property
        def may_be_left_out(self):
            return self.factory is not None or self.default is not _REQUIRED

        def value(self):
            return self.factory() if self.factory is not None else self.default

    def record(*, frozen=False, slots=False):
        def decorate(cls):
            given = {name: cls.__dict__.get(name, _REQUIRED) for name in cls.__annotations__}
            fields = {name: it if isinstance(it, field) else field(default=it) for name, it in given.items()}
            if slots:
                cls = _with_slots(cls, fields)
            cls.__record_fields__ = fields
            cls.__match_args__ = tuple(fields)

            def make_first(self, *values, **named):
                cls.__init__ = _compiled(fields)
                cls.__init__(self, *values, **named)

            cls.__init__ = make_first
            compared = [name for name, it in fields.items() if it.compare]
            contents = attrgetter(*compared) if compared else lambda self: ()
            cls.__eq__ = lambda a, b: contents(a) == contents(b) if b.__class__ is cls else NotImplemented
            cls.__hash__ = (lambda self: hash(contents(self))) if frozen else None
            cls.__repr__ = _show
            return cls

        return decorate

    def _with_slots(cls, fields):
        """Slots can't be added to a class, so it is made anew; for what has many fields, or of which there are many."""
        body = {name: it for name, it in cls.__dict__.items() if name not in fields}
        del body["__dict__"], body["__weakref__"]
        return type(cls)(cls.__name__, cls.__bases__, body | {"__slots__": tuple(fields)})

    def _compiled(fields):
        known, words, lines = {"_left_out": _REQUIRED}, ["self"], []
        for name, it in fields.items():
            if it.factory is not None:
                known[f"_make_{name}"] = it.factory
                words.append(f"{name}=_left_out")
                lines.append(f" self.{name} = _make_{name}() if {name} is _left_out else {name}")
                continue
            if it.may_be_left_out:
                known[f"_default_{name}"] = it.default
            words.append(f"{name}=_default_{name}" if it.may_be_left_out else name)
            lines.append(f" self.{name} = {name}")
        exec("\n".join([f"def __init__({', '.join(words)}):", *(lines or [" pass"])]), known)
        return known["__init__"]

    def replace(value, /, **changes):
        return type(value)(**(as_dict(value) | changes))

    def _show(self):
        return f"{type(self).__name__}({', '.join(f'{name}={it!r}' for name, it in as_dict(self).items())})"
