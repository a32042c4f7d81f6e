"""Whether a function may be left in the middle while another call of it, on the same object, runs to its end.

torch's loader makes one sample after the other, so a dataset or a transform may well keep something about the sample at
hand on itself, and find it there later in the same call. Another sample in between would put its own there. So: what
the function, or a method that it calls, stores on its object must not be read, by it or by a method that it calls,
after the place where it may be left. What cannot be looked into counts as a reader and a writer of everything.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType

Position = tuple[int, int]
_ANYTHING = "*"
_RUN_AGAIN = (ast.For, ast.While)


def keeps_state(owner: type, definition: ast.FunctionDef) -> bool:
    """Whether a function of `owner`, whose calls to be left at have become yields, finds on its object after such a
    call what it, or another sample, has stored there meanwhile."""
    whole = _collect(owner, definition, after=None)
    if not whole.stored:
        return False
    later = _collect(owner, definition, after=_first_exit(definition))
    return _ANYTHING in whole.stored or _ANYTHING in later.read or bool(whole.stored & later.read)


@dataclass(slots=True)
class _Uses:
    """Attributes of the object that are stored and read."""

    stored: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    seen: set[object] = field(default_factory=set)
    """Functions that were looked into."""

    def anything(self) -> None:
        self.stored.add(_ANYTHING)
        self.read.add(_ANYTHING)


def _first_exit(definition: ast.FunctionDef) -> Position:
    """Behind the first call that it can be left at: what is written there, and later, may run afterwards. So may all of
    a loop around such a call, and what its result is assigned to."""
    ends = [_end(node) for node in ast.walk(definition) if isinstance(node, ast.Yield)]
    around = [
        _position(node)
        for node in ast.walk(definition)
        if isinstance(node, _RUN_AGAIN) and any(isinstance(inside, ast.Yield) for inside in ast.walk(node))
    ]
    return min([*ends, *around])


def _end(node: ast.expr) -> Position:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _position(node: ast.expr | ast.stmt) -> Position:
    return node.lineno, node.col_offset


def _collect(owner: type, definition: ast.FunctionDef, after: Position | None) -> _Uses:
    uses = _Uses()
    _look_into(owner, definition, after, uses)
    return uses


def _look_into(owner: type, definition: ast.FunctionDef, after: Position | None, uses: _Uses) -> None:
    """Note what a function, from a position on, does to the attributes of its object."""
    parameters = definition.args.posonlyargs + definition.args.args
    if not parameters:
        return
    me = parameters[0].arg
    bases, targets = _bases_of_stores(definition), _targets_of_exits(definition)
    for node in ast.walk(definition):
        if not isinstance(node, ast.expr):
            continue
        if after is not None and _position(node) < after and node not in targets:
            continue
        if isinstance(node, ast.Call) and _is_call_on(node, me, ("setattr", "delattr", "vars")):
            uses.anything()
        if isinstance(node, ast.Attribute) and _is_super(node.value):
            _follow(owner, node.attr, uses)
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == me):
            continue
        if node.attr == "__dict__":
            uses.anything()
        elif not isinstance(node.ctx, ast.Load) or node in bases:
            uses.stored.add(node.attr)
        else:
            uses.read.add(node.attr)
            _follow(owner, node.attr, uses)


def _bases_of_stores(definition: ast.FunctionDef) -> set[ast.expr]:
    """The `self.x` of `self.x[i] = ...`."""
    return {
        node.value
        for node in ast.walk(definition)
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
    }


def _targets_of_exits(definition: ast.FunctionDef) -> set[ast.AST]:
    """What stands before a call that the function can be left at, and is evaluated after it: `self.x[self.i] = ...`."""
    return {
        inside
        for node in ast.walk(definition)
        if isinstance(node, ast.Assign) and any(isinstance(part, ast.Yield) for part in ast.walk(node.value))
        for target in node.targets
        for inside in ast.walk(target)
    }


def _is_call_on(call: ast.Call, me: str, functions: tuple[str, ...]) -> bool:
    named = isinstance(call.func, ast.Name) and call.func.id in functions
    return named and bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id == me


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _follow(owner: type, name: str, uses: _Uses) -> None:
    """Look into the methods and properties of that name, of the class and of those it is derived from."""
    for function in _functions(owner, name):
        if function in uses.seen:
            continue
        uses.seen.add(function)
        definition = _definition(function)
        if definition is None:
            uses.anything()
        else:
            _look_into(owner, definition, None, uses)


def _functions(owner: type, name: str) -> Iterator[FunctionType]:
    for kind in owner.__mro__:
        found = vars(kind).get(name)
        if isinstance(found, property):
            found = found.fget
        if isinstance(found, FunctionType):
            yield found


def _definition(function: FunctionType) -> ast.FunctionDef | None:
    code = function.__code__
    for node in ast.walk(_module(code.co_filename, tuple(linecache.getlines(code.co_filename, function.__globals__)))):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


@functools.lru_cache(maxsize=16)
def _module(_name: str, lines: tuple[str, ...]) -> ast.Module:
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # the file has become something else
        return ast.Module([], [])
