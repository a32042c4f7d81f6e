"""What a piece of code can do, from its instructions: the names it uses, what it sets, the objects it reaches.

Nothing is run. `reading.py` goes on to those objects.
"""

from __future__ import annotations

import builtins
import dis
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

from . import known

Names = dict[str, Any]
"""Values by the names that code has for them."""
_STORES = {
    "STORE_ATTR": "sets attributes",
    "STORE_GLOBAL": "sets global variables",
    "DELETE_ATTR": "deletes attributes",
}
_MAKE_SETS = frozenset({"BUILD_SET", "SET_ADD"})
"""Not what `in {1, 2}` is: that is a constant."""
_CHANGERS = frozenset({
    "append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "discard", "clear", "add",
    "update", "setdefault", "sort", "reverse", "rotate",
})  # fmt: skip
_BETWEEN = frozenset({"PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG"})
_MISSING = object()


@dataclass(slots=True)
class Reading:
    """What was found. The first reason of each kind is kept."""

    random: str | None = None
    unknown: str | None = None
    names: set[str] = field(default_factory=set)
    """Names that the code uses: what it may read of an object."""
    codes: list[CodeType] = field(default_factory=list)
    packages: set[str] = field(default_factory=set)
    captured: list[Any] = field(default_factory=list)
    """Containers that the code reaches and could change."""

    def note_random(self, reason: str) -> None:
        """It may draw random numbers."""
        self.random = self.random or reason

    def note_unknown(self, reason: str) -> None:
        """It may do what cannot be seen."""
        self.unknown = self.unknown or reason


def judge_code(code: CodeType, scope: Names, skip: frozenset[str], found: Reading, where: str) -> None:
    """Note what the code says of itself. `skip`: names that are somebody else's to look at."""
    found.codes.append(code)
    names = set(code.co_names) - skip
    found.names |= names
    _judge_names(names - ({"time"} if _only_sleeps(code, scope) else set()), code, found, where)
    _judge_stores(code, found, where)


def _judge_names(names: set[str], code: CodeType, found: Reading, where: str) -> None:
    for name in sorted(names & known.RANDOM_NAMES):
        found.note_random(f"{where} uses the name {name!r}")
    for name in sorted(names & known.ELUSIVE_NAMES):
        found.note_unknown(f"{where} uses {name!r}, through which anything may be reached")
    for constant in code.co_consts:
        if isinstance(constant, (str, bytes)):
            text = constant if isinstance(constant, str) else constant.decode("latin-1")
            if any(word in text for word in known.RANDOM_WORDS):
                found.note_random(f"{where} reads {text!r}")


def _judge_stores(code: CodeType, found: Reading, where: str) -> None:
    for instruction in dis.get_instructions(code):
        act = _STORES.get(instruction.opname)
        if act is not None and code.co_name not in ("__init__", "__new__", "__post_init__", "__setstate__"):
            found.note_unknown(f"{where} {act} ({instruction.argval!r}): it may keep state")
        if instruction.opname in _MAKE_SETS or (
            instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval in ("set", "frozenset")
        ):
            found.note_unknown(f"{where} makes a set, whose order may be another one in another process")
        if instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            found.note_unknown(f"{where} sets {instruction.argval!r} of the function around it: it may keep state")


def reached(code: CodeType, scope: Names, closure: Names, found: Reading, where: str) -> Iterator[Any]:
    """Objects that the code names, followed through modules."""
    current: Any = _MISSING
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            current = _named(name, code, scope, closure, found, where)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM") and isinstance(current, (ModuleType, type)):
            owner, current = current, getattr(current, name, _MISSING)
            if current is _MISSING and isinstance(owner, ModuleType):
                found.note_unknown(f"{where} uses {owner.__name__}.{name}, which is not there")
            if operation == "IMPORT_FROM":
                yield current
                current = owner
                continue
        elif operation == "IMPORT_NAME":
            current = _imported(name, found, where)
        elif operation in ("PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG", "COPY_FREE_VARS", "RESUME"):
            continue
        elif operation not in ("STORE_FAST", "POP_TOP") or not isinstance(current, ModuleType):
            current = _MISSING
        if current is not _MISSING and not isinstance(current, ModuleType):
            yield current


def _named(name: str, code: CodeType, scope: Names, closure: Names, found: Reading, where: str) -> Any:
    if name in closure:
        return closure[name]
    if name in code.co_freevars or name in code.co_cellvars:
        return _MISSING  # a local of the function around, whose code is looked at as well
    value = scope.get(name, getattr(builtins, name, _MISSING))
    if value is _MISSING and scope and name != "__class__":
        found.note_unknown(f"{where} uses {name!r}, which is not defined yet")
    return value


def _imported(name: str, found: Reading, where: str) -> Any:
    package = name.partition(".")[0]
    found.packages.add(package)
    module = sys.modules.get(name)
    if module is None and not known.is_trusted(package):
        found.note_unknown(f"{where} imports {name!r}, which is not loaded yet")
    return _MISSING if module is None else module


def may_change(code: CodeType) -> bool:
    """Whether it changes some container, though it cannot be told which."""
    if _CHANGERS & set(code.co_names):
        return True
    return any(instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for instruction in dis.get_instructions(code))


def _only_sleeps(code: CodeType, scope: Names) -> bool:
    """Whether all that it does with the module `time` is `time.sleep`: retries do, and data sets made up for tests."""
    if scope.get("time") is not time:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in _BETWEEN]
    uses = [number for number, step in enumerate(steps) if step.argval == "time"]
    return all(
        steps[number].opname in ("LOAD_GLOBAL", "LOAD_NAME")
        and steps[number + 1].opname in ("LOAD_ATTR", "LOAD_METHOD")
        and steps[number + 1].argval == "sleep"
        for number in uses
    )
