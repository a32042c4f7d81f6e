"""What a function or an object can do, from a look at its code: whether it may draw random numbers, keep state, or
reach what cannot be seen.

Starts at a callable and follows what its code names: globals, closures, defaults, attributes of objects, methods of
classes, modules' members. Nothing of the user's is run. Python code is looked into wherever it is, except in libraries
that are known (`known.py`). What cannot be followed is said, and counts as "unknown".
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .._workers.walk import ATOMS, package_of, parts, type_name
from . import known
from .bytecode import Names, Reading, judge_code, may_change, reached
from .marks import mark_of

MOST_NODES = 4000  # objects and pieces of code looked at; a bound on the time this may take
MOST_ITEMS = 64  # of a container that are looked at; a longer one may hold nothing but plain values
_LEAVES = (torch.Tensor, np.ndarray, np.generic, torch.dtype, torch.device, torch.Size, np.dtype)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_MUTABLE = (list, dict, set, deque, bytearray)
_CONVENTION = frozenset({"monai", "torchvision"})
"""Libraries whose random transforms are known by their classes: the others are not looked into."""
_SCRIPTED = frozenset({"ScriptFunction", "ScriptModule", "RecursiveScriptModule", "OpOverload", "OpOverloadPacket"})


def read(value: Any, skip: frozenset[str] = frozenset()) -> Reading:
    """Look at a callable. `skip`: attributes of it, and of datasets, that are somebody else's to look at."""
    return _Reader(skip).read(value)


class _Reader:
    def __init__(self, skip: frozenset[str]) -> None:
        self._skip = skip
        self._found = Reading()
        self._waiting: deque[tuple[Any, str]] = deque()
        self._seen: dict[int, Any] = {}
        """By id; the objects are kept, so that ids stay theirs."""
        self._classes: list[type] = []
        self._constructed: set[type] = set()
        """Classes that code may make objects of; of the others there are objects already."""
        self._root: Any = None

    def read(self, value: Any) -> Reading:
        self._root = value
        self._push(value, _title(value))
        while self._found.random is None:
            if self._waiting:
                self._visit(*self._waiting.popleft())
            elif not self._methods_named():
                break
            if len(self._seen) > MOST_NODES:
                self._found.note_unknown(f"{_title(value)} leads to more code than was looked at")
                break
        return self._found

    def _push(self, value: Any, where: str) -> None:
        if type(value) in ATOMS and not isinstance(value, type):
            return
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            self._waiting.append((value, where))

    # ---- objects ----------------------------------------------------------------------------------------------------

    def _visit(self, value: Any, where: str) -> None:
        mark = mark_of(value)
        if mark is not None:
            if mark:
                self._found.note_random(f"{where} is marked as stochastic")
            return
        reason = known.randomness_of_object(value)
        if reason is not None:
            self._found.note_random(f"{where}: {reason}")
        elif isinstance(value, CodeType):
            self._visit_code(value, {}, {}, where)
        elif isinstance(value, FunctionType):
            self._visit_function(value, where)
        elif isinstance(value, MethodType):
            self._push(value.__func__, where)
            self._push(value.__self__, where)
        elif isinstance(value, functools.partial):
            for piece in (value.func, *value.args, *value.keywords.values()):
                self._push(piece, where)
        elif isinstance(value, (property, functools.cached_property, staticmethod, classmethod)):
            self._push(_function_behind(value), where)
        elif isinstance(value, type):
            self._visit_class(value, where)
        elif isinstance(value, _CONTAINERS):
            self._visit_container(value, where)
        elif not isinstance(value, (ModuleType, *_LEAVES)):
            self._visit_object(value, where)

    def _visit_function(self, function: FunctionType, where: str) -> None:
        package = str(function.__module__ or "").partition(".")[0]
        if known.is_trusted(package) or package in _CONVENTION:
            self._judge_name(function.__name__, package, where)
        else:
            names = function.__code__.co_freevars
            cells = dict(zip(names, function.__closure__ or (), strict=True))
            closure = {name: _contents(cell) for name, cell in cells.items()}
            self._visit_code(function.__code__, function.__globals__, closure, _title(function))
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._push(default, f"a default of {_title(function)}")
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self._push(wrapped, where)

    def _visit_class(self, kind: type, where: str) -> None:
        package = package_of(kind)
        self._found.packages.add(package)
        if issubclass(kind, BaseException):
            return
        if known.is_trusted(package) or package in _CONVENTION:
            self._judge_name(kind.__name__, package, where)
        elif known.is_shady(package):
            self._found.note_unknown(f"{where} uses {kind.__module__}.{kind.__name__}")
        else:
            self._constructed.add(kind)
            self._add_class(kind)
            for base in kind.__mro__[1:]:
                self._push(base, where)

    def _add_class(self, kind: type) -> None:
        if kind not in self._classes:
            self._classes.append(kind)

    def _visit_container(self, value: Any, where: str) -> None:
        if isinstance(value, _MUTABLE):
            self._found.captured.append(value)
        items: Any = list(value.values()) if isinstance(value, dict) else value
        if len(value) > MOST_ITEMS:
            plain = all(type(item) in ATOMS or isinstance(item, (*_LEAVES, tuple, list, dict)) for item in items)
            if not plain:
                self._found.note_unknown(f"{where} holds {len(value)} objects, more than are looked at")
            return
        for item in items:
            self._push(item, where)

    def _visit_object(self, value: Any, where: str) -> None:
        kind = type(value)
        package = package_of(kind)
        self._found.packages.add(package)
        if kind.__name__ in _SCRIPTED and package in ("torch", "torch_ops"):
            self._found.note_unknown(f"{where} is scripted: its code cannot be seen")
        elif isinstance(value, np.ufunc):
            if getattr(np, value.__name__, None) is not value and package_of(kind) == "numpy":
                self._judge_foreign_ufunc(value, where)
        elif hasattr(value, "__next__"):
            self._found.note_unknown(
                f"{where} holds an iterator ({type_name(value)}), which gives another value each time"
            )
        elif _is_native(value):
            self._visit_native(value, where)
        elif package == "albumentations":
            # `known` has judged it: it holds generators whether it draws from them or not.
            self._push(getattr(value, "transforms", None), where)
            for (_, name), item in parts(value):
                for function in _functions_in(item):  # the user's own, in a Lambda
                    self._push(function, f"{where}.{name}")
        else:
            for base in kind.__mro__:
                if not known.is_trusted(package_of(base)) and package_of(base) not in _CONVENTION:
                    self._add_class(base)
            if known.is_shady(package):
                self._found.note_unknown(f"{where} holds a {type_name(value)}")
            skip = self._skip if value is self._root or isinstance(value, Dataset) else frozenset()
            for (_, name), item in parts(value):
                if name not in skip:
                    self._push(item, f"{where}.{name}")

    def _judge_foreign_ufunc(self, value: Any, where: str) -> None:
        special = sys.modules.get("scipy.special")
        if special is None or getattr(special, value.__name__, None) is not value:
            self._found.note_unknown(f"{where} is a ufunc whose code cannot be seen")

    def _visit_native(self, value: Any, where: str) -> None:
        """A function that is not Python's."""
        if value is time.sleep:  # takes time, and nothing depends on it
            return
        behind = getattr(value, "__wrapped__", None)  # functools.lru_cache
        if behind is not None:
            self._push(behind, where)
            return
        owner = getattr(value, "__self__", None)
        module = getattr(value, "__module__", None) or type(owner).__module__
        if isinstance(owner, ModuleType):
            module = owner.__name__
        elif isinstance(value, (MemberDescriptorType, GetSetDescriptorType)) or hasattr(value, "__objclass__"):
            module = getattr(value, "__objclass__", type).__module__
        elif owner is not None:
            self._push(owner, where)
        package = str(module).partition(".")[0].lstrip("_")
        name = str(getattr(value, "__name__", type(value).__name__))
        self._judge_name(name, package, where)
        if ".random" in f".{module}" or package == "random":
            self._found.note_random(f"{where} calls {module}.{name}")
        elif not known.is_trusted(package) and not known.is_trusted(str(module).partition(".")[0]):
            self._found.note_unknown(f"{where} calls {module}.{name}, whose code cannot be seen")

    def _judge_name(self, name: str, package: str, where: str) -> None:
        self._found.packages.add(package)
        if name in known.RANDOM_NAMES:
            self._found.note_random(f"{where} uses {package}'s {name}")
        elif name in known.ELUSIVE_NAMES:
            self._found.note_unknown(f"{where} uses {name}")

    def _methods_named(self) -> bool:
        """Push methods of the classes met, if their names have been met as well; whether there was a new one."""
        before = len(self._waiting)
        for kind in self._classes:
            for name, member in vars(kind).items():
                implicit = name.startswith("__") and name not in _NEVER_RUN
                if name in _CONSTRUCTION and kind not in self._constructed:
                    continue
                called = name in self._found.names or implicit
                plain = name in self._found.names and not name.startswith("__") and name not in self._skip
                if plain or (called and _is_code(member)):
                    self._push(member, f"{kind.__name__}.{name}")
        return len(self._waiting) > before

    # ---- code -------------------------------------------------------------------------------------------------------

    def _visit_code(self, code: CodeType, scope: Names, closure: Names, where: str) -> None:
        judge_code(code, scope, self._skip, self._found, where)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._visit_code(constant, scope, closure, where)
        changes = may_change(code)
        for value in reached(code, scope, closure, self._found, where):
            self._push(value, where)
            if changes and isinstance(value, _MUTABLE):
                self._found.note_unknown(f"{where} has a {type(value).__name__} that it may change: it may keep state")


_NEVER_RUN = frozenset(
    {"__repr__", "__str__", "__doc__", "__dict__", "__weakref__", "__reduce__", "__reduce_ex__", "__hash__"}
)
_CONSTRUCTION = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__setstate__", "__getstate__"})
_DESCRIBED = (FunctionType, property, functools.cached_property, staticmethod, classmethod)


def _is_code(member: Any) -> bool:
    return isinstance(member, _DESCRIBED)


def _functions_in(value: Any) -> Iterator[Any]:
    """Functions of somebody's, in a container or alone."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        if isinstance(item, (FunctionType, MethodType, functools.partial)):
            yield item


def _function_behind(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, functools.cached_property) else member.__func__


def _is_native(value: Any) -> bool:
    """Whether it is called without any Python code of its own."""
    return callable(value) and not isinstance(inspect.getattr_static(type(value), "__call__", None), FunctionType)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that was never set
        return None


def _title(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(name).replace("<locals>.", "")
