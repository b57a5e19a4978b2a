"""Records behave as the classes of `dataclasses` that the type checker takes them for."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from tests.helpers import PROJECT
from tickdown.base.records import as_dict, defaults, field, names, record, replace
from tickdown.tasks.task import Task


@record(frozen=True)
class Point:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False)


@record()
class Counter:
    count: int = 0


@record(frozen=True)
class Nothing:
    pass


@record(frozen=True, slots=True)
class Slotted:
    x: int
    y: int = 2

    def total(self) -> int:
        return self.x + self.y


def test_fields_are_given_by_place_by_name_or_by_default() -> None:
    point = Point(1, tags=["a"])
    assert (point.x, point.y, point.tags, point.note) == (1, 2, ["a"], "")


def test_each_record_gets_a_default_of_its_own() -> None:
    assert Point(1).tags is not Point(1).tags


@pytest.mark.parametrize("call", [lambda: Point(), lambda: Point(1, z=3), lambda: Point(1, x=1), lambda: Nothing(1)])
def test_what_is_missing_unknown_or_given_twice_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    for _ in range(2):  # the first call is also the one that makes the constructor
        with pytest.raises(TypeError):
            call()


def test_records_are_equal_by_their_contents_and_kind() -> None:
    assert Point(1) == Point(1, 2, [], "a note does not count") != Point(2)
    assert Nothing() == Nothing() and Nothing() != Counter()
    assert Slotted(1) != Point(1)


def test_frozen_records_can_be_keys_and_others_can_not() -> None:
    assert {Slotted(1), Slotted(1, 2), Slotted(2)} == {Slotted(1), Slotted(2)}
    assert hash(Nothing()) == hash(Nothing())
    with pytest.raises(TypeError):
        hash(Counter())


def test_a_replaced_field_leaves_the_others_and_the_original() -> None:
    point = Point(1, 5, ["a"], "n")
    assert as_dict(replace(point, x=9)) == {"x": 9, "y": 5, "tags": ["a"], "note": "n"}
    assert point.x == 1
    with pytest.raises(TypeError):
        replace(point, z=1)  # type: ignore[call-arg]


def test_a_record_shows_its_fields() -> None:
    assert repr(Point(1, note="n")) == "Point(x=1, y=2, tags=[], note='n')"


def test_a_record_is_matched_by_its_fields() -> None:
    match Point(1, 7):
        case Point(x, y):
            assert (x, y) == (1, 7)
        case _:
            pytest.fail("not matched")


def test_slots_leave_no_room_for_anything_else() -> None:
    slotted = Slotted(1)
    assert slotted.total() == 3 and not hasattr(slotted, "__dict__")
    with pytest.raises(AttributeError):
        slotted.z = 1  # type: ignore[attr-defined]


def test_what_a_class_knows_of_its_fields() -> None:
    assert names(Point) == ("x", "y", "tags", "note")
    assert defaults(Point) == {"y": 2, "tags": [], "note": ""}


def test_every_record_class_of_the_program_could_be_a_dataclass() -> None:
    """The real thing is stricter about the order of fields and about what may be a default."""
    import tickdown.heal.healer
    import tickdown.tick.tick  # noqa: F401

    classes = {
        kind
        for name, module in list(sys.modules.items())
        if name.startswith("tickdown.")
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == name
    }
    found = {kind for kind in classes if hasattr(kind, "__record_fields__")}
    assert Task in found and len(found) > 60
    for kind in found:
        fields = [
            (name, "object", dataclasses.field(default_factory=it.factory) if it.factory else it.default)
            if it.may_be_left_out
            else (name, "object")
            for name, it in kind.__record_fields__.items()
        ]
        dataclasses.make_dataclass(kind.__name__, fields)


def test_no_module_of_the_program_imports_dataclasses() -> None:
    """A tick with work to do would pay for it at every start."""
    found = [path.name for path in (PROJECT / "lib").rglob("*.py") if "dataclasses import" in path.read_text()]
    assert found == ["records.py"]
