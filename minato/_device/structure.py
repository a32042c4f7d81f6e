"""Changing the leaves of a batch, whatever it is made of, and keeping everything else as it is."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from typing import Any

IsLeaf = Callable[[Any], bool]
Change = Callable[[Any], Any]

_ATOMS = (str, bytes, bytearray, int, float, complex, type(None), type)


def change_leaves(value: Any, is_leaf: IsLeaf, change: Change) -> Any:
    """`value` with `change` applied to its leaves: the same types, and the same object where nothing changed.

    Goes through mappings, lists, tuples, named tuples and dataclasses. What is none of these and no leaf (a number, a
    string, an array, a set, an object of the user's) stays as it is. `value` itself is not written to.
    """
    if is_leaf(value):
        return change(value)
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, Mapping):
        return _mapping(value, is_leaf, change)
    if isinstance(value, tuple):
        return _tuple(value, is_leaf, change)
    if isinstance(value, MutableSequence):
        return _sequence(value, is_leaf, change)
    if dataclasses.is_dataclass(value):
        return _dataclass(value, is_leaf, change)
    return value


def _mapping(value: Mapping[Any, Any], is_leaf: IsLeaf, change: Change) -> Any:
    items = {key: change_leaves(item, is_leaf, change) for key, item in value.items()}
    if all(items[key] is item for key, item in value.items()):
        return value
    if type(value) is dict:
        return items
    if isinstance(value, MutableMapping):
        clone = copy.copy(value)  # keeps what a subclass has besides its items: a default factory, attributes
        for key, item in items.items():
            clone[key] = item
        return clone
    try:
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:  # a read-only mapping made from something else: a plain dict, as torch does it
        return items


def _tuple(value: tuple[Any, ...], is_leaf: IsLeaf, change: Change) -> Any:
    items = [change_leaves(item, is_leaf, change) for item in value]
    if _same(items, value):
        return value
    make = getattr(type(value), "_make", type(value))  # named tuples take their fields one by one
    return make(items)


def _sequence(value: MutableSequence[Any], is_leaf: IsLeaf, change: Change) -> Any:
    items = [change_leaves(item, is_leaf, change) for item in value]
    if _same(items, value):
        return value
    if type(value) is list:
        return items
    clone = copy.copy(value)
    for place, item in enumerate(items):
        clone[place] = item
    return clone


def _dataclass(value: Any, is_leaf: IsLeaf, change: Change) -> Any:
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    before = [getattr(value, name) for name in names]
    after = [change_leaves(item, is_leaf, change) for item in before]
    if _same(after, before):
        return value
    clone = copy.copy(value)  # not `replace`: it would run `__post_init__` again, and cannot set `init=False` fields
    for name, item in zip(names, after, strict=True):
        object.__setattr__(clone, name, item)  # frozen ones too
    return clone


def _same(items: Any, others: Any) -> bool:
    return all(item is other for item, other in zip(items, others, strict=True))
