"""Leaves are changed in any structure, and everything else is kept."""

from __future__ import annotations

import types
from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from minato._device.structure import change_leaves


class Leaf:
    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and other.number == self.number

    def __hash__(self) -> int:
        return self.number


Pair = namedtuple("Pair", "left right")


class Tagged(dict):
    tag = "none"


class Items(tuple):
    pass


@dataclass
class Plain:
    image: Any
    name: str
    derived: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.derived = (self.image, "made once")


@dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    more: list[Any]


def change(value: Any) -> Any:
    return change_leaves(value, lambda v: isinstance(v, Leaf), lambda leaf: Leaf(leaf.number + 10))


tagged = Tagged(x=Leaf(1))
tagged.tag = "kept"

CASES = [
    (Leaf(1), Leaf(11)),
    ([Leaf(1), [Leaf(2), "s"]], [Leaf(11), [Leaf(12), "s"]]),
    ((Leaf(1), None), (Leaf(11), None)),
    ({"a": Leaf(1), "b": {"c": (Leaf(2),)}}, {"a": Leaf(11), "b": {"c": (Leaf(12),)}}),
    (Pair(Leaf(1), 3.5), Pair(Leaf(11), 3.5)),
    (Items((Leaf(1),)), Items((Leaf(11),))),
    (OrderedDict(z=Leaf(1), a=Leaf(2)), OrderedDict(z=Leaf(11), a=Leaf(12))),
    (UserDict(x=Leaf(1)), UserDict(x=Leaf(11))),
    (UserList([Leaf(1), 2]), UserList([Leaf(11), 2])),
    (types.MappingProxyType({"x": Leaf(1)}), types.MappingProxyType({"x": Leaf(11)})),
    (Frozen(Leaf(1), [Leaf(2)]), Frozen(Leaf(11), [Leaf(12)])),
]


@pytest.mark.parametrize(("before", "after"), CASES, ids=lambda case: type(case).__name__)
def test_leaves_change_and_types_stay(before: Any, after: Any) -> None:
    changed = change(before)
    assert type(changed) is type(after)
    assert changed == after


@pytest.mark.parametrize("before", [case for case, _ in CASES[1:]], ids=lambda case: type(case).__name__)
def test_what_is_given_is_not_written_to(before: Any) -> None:
    text = repr(before)
    change(before)
    assert repr(before) == text


def test_subclasses_keep_what_they_have_besides_their_items() -> None:
    counted: defaultdict[str, Any] = defaultdict(list, x=Leaf(1))
    assert change(counted).default_factory is list
    assert change(tagged).tag == "kept"
    assert change(tagged) == {"x": Leaf(11)}


def test_fields_of_a_dataclass_that_its_constructor_makes_are_changed_too() -> None:
    changed = change(Plain(Leaf(1), "n"))
    assert (changed.image, changed.name, changed.derived) == (Leaf(11), "n", (Leaf(11), "made once"))


@pytest.mark.parametrize(
    "value", ["text", b"bytes", 1, None, {1, 2}, [1, "a"], {"a": (1, 2)}, Pair(1, 2), Frozen(1, [2]), Frozen, object()]
)
def test_without_leaves_the_same_object_comes_back(value: Any) -> None:
    assert change(value) is value


def test_a_mapping_that_cannot_be_made_again_becomes_a_dict() -> None:
    class View(Mapping[str, Any]):
        def __init__(self, one: Any, *, two: int) -> None:
            self.one = one

        def __getitem__(self, key: str) -> Any:
            return self.one

        def __iter__(self) -> Iterator[str]:
            return iter(["one"])

        def __len__(self) -> int:
            return 1

    assert change(View(Leaf(1), two=2)) == {"one": Leaf(11)}
