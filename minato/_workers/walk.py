"""A bounded look through what a dataset refers to: attributes, items, closures, bound methods.

Runs no code of the user's: attributes are read from `__dict__` and slots, never through properties, and long containers
are sampled. So it takes about as long for a list of a million paths as for a list of a hundred.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

MOST_NODES = 2000  # objects looked at; a bound on the time this may take
MOST_DEPTH = 14  # steps from the root; an HTTP session keeps its sockets eleven steps down
SAMPLED = 32  # items looked at of a longer list, tuple or dict

ATOMS = frozenset({int, float, complex, bool, str, bytes, bytearray, type(None), type, range, slice, type(Ellipsis)})
_CONTAINERS = (list, tuple, deque, dict)
_LEAVES = (torch.Tensor, np.ndarray, np.generic, ModuleType, type, threading.Thread)
_LEAF_PACKAGES = frozenset({"logging", "multiprocessing", "weakref", "pandas", "pyarrow", "polars"})
"""Their objects are made for several processes, or hold nothing but data."""

Step = tuple[str, Any]
"""How the step is written, and the attribute's name or the item's key."""
_ROOT, _ATTRIBUTE, _ITEM, _CLOSURE = "{}", ".{}", "[{}]", "<{}>"
_Judgement = TypeVar("_Judgement")


class Found:
    """An object, and how one gets to it from the dataset."""

    __slots__ = ("_step", "depth", "value", "via")

    def __init__(self, value: Any, via: Found | None, step: Step) -> None:
        self.value = value
        self.via = via
        """The object that refers to it; None for the root."""
        self.depth: int = 0 if via is None else via.depth + 1
        self._step = step

    @property
    def path(self) -> str:
        """As one would write it in Python, nearly."""
        kind, key = self._step
        last = kind.format(f"{key!r:.40}" if kind == _ITEM else key)
        return last if self.via is None else self.via.path + last


def search(root: Any, name: str, judge: Callable[[Any], _Judgement | None]) -> Iterator[tuple[Found, _Judgement]]:
    """Objects reachable from `root` that `judge` has something to say about, nearest first, with what it said.

    Does not go on into such objects, nor beyond the bounds. Plain values are not judged.
    """
    waiting = deque([Found(root, None, (_ROOT, name))])
    seen: set[int] = set()
    while waiting and len(seen) < MOST_NODES:
        found = waiting.popleft()
        if id(found.value) in seen:
            continue
        seen.add(id(found.value))
        judgement = judge(found.value)
        if judgement is not None:
            yield found, judgement
        elif found.depth < MOST_DEPTH:
            waiting.extend(Found(child, found, step) for step, child in parts(found.value) if type(child) not in ATOMS)


def parts(value: Any) -> Iterator[tuple[Step, Any]]:
    """What an object refers to directly, with the step that leads there."""
    kind = type(value)
    if issubclass(kind, _LEAVES) or package_of(kind) in _LEAF_PACKAGES:
        return
    if issubclass(kind, _CONTAINERS):
        yield from sample_items(value)
        if kind in _CONTAINERS:
            return
    elif kind is FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield (_CLOSURE, name), _contents(cell)
        return
    elif kind is MethodType:
        yield (_ATTRIBUTE, "__self__"), value.__self__
        return
    elif issubclass(kind, functools.partial):
        for name in ("func", "args", "keywords"):
            yield (_ATTRIBUTE, name), getattr(value, name)
    for name, attribute in _attributes(value).items():
        yield (_ATTRIBUTE, name), attribute


def sample_items(value: Any) -> Iterator[tuple[Step, Any]]:
    """Items of a container; of a long one a few from all over it (from its beginning, for a dict)."""
    if isinstance(value, dict):
        for key, item in itertools.islice(value.items(), SAMPLED):
            yield (_ITEM, key), item
        return
    length = len(value)
    positions = range(length) if length <= SAMPLED else (k * (length - 1) // (SAMPLED - 1) for k in range(SAMPLED))
    for position in positions:
        yield (_ITEM, position), value[position]


def package_of(kind: type) -> str:
    """The name of the top package that a class is from."""
    return str(kind.__module__).partition(".")[0]


def type_name(value: Any) -> str:
    """A class as users know it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _attributes(value: Any) -> dict[str, Any]:
    try:
        attributes = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        attributes = {}
    for kind in type(value).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(member, MemberDescriptorType):
                try:
                    attributes[name] = member.__get__(value, kind)
                except AttributeError:  # a slot that was never filled
                    continue
    return attributes


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that was never set
        return None
