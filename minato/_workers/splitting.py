"""A function that can be left in the middle: its own source, with chosen calls turned into `yield`.

A dataset's `__getitem__` that says `image = self.transform(image)` cannot be stopped before or after that call. The
same function with `image = (yield self.transform, (image,), {})` in its place can: whoever drives it makes the call
when it suits, and sends the result back. Everything else is the user's own code, in its order, with its own globals,
closure, error handling and line numbers, so the outcome is the same by construction.

It is done only where it is certain: the source is found, compiles to exactly the code that runs, is no generator
itself, and keeps nothing about a sample on its object (keeping.py). Calls inside `with` are left alone, since whatever
the block holds (a lock, a mode) would be held meanwhile; so are those in comprehensions and inner functions, which
cannot be left.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Generator, Iterator
from types import CodeType, FunctionType
from typing import Any

from .keeping import keeps_state

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""What to call, with which arguments and keywords. A plain tuple: it is made by the user's function, once per call."""
Steps = Generator[Call, Any, Any]
"""A function under way: gives calls to make, is sent their results, ends with its own."""
IsWanted = Callable[[ast.Call, str, frozenset[str]], bool]
"""Asked with a call, the name of the function's first parameter, and the names that loops over `<first
parameter>.transforms` have bound at that place."""

_SAME = (
    "co_code",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_argcount",
    "co_kwonlyargcount",
    "co_posonlyargcount",
    "co_flags",
    "co_exceptiontable",
)


def split(function: Any, is_wanted: IsWanted, owner: type | None) -> Callable[..., Steps] | None:
    """A function of `owner` with the wanted calls given out; None if there are none, or if it cannot be done with
    certainty. Without `owner` it is known to keep nothing on its object."""
    if not isinstance(function, FunctionType) or inspect.isgeneratorfunction(function):
        return None
    code = function.__code__
    module = _module_of(function)
    definition = None if module is None else _definition_of(code, module)
    if module is None or definition is None:
        return None
    compiled = _compile(module, code)
    if compiled is None or not _is_same(compiled, code):
        return None
    parameters = definition.args.posonlyargs + definition.args.args
    if not parameters:
        return None
    rewriter = _Rewriter(parameters[0].arg, is_wanted)
    definition.body = [rewriter.visit(statement) for statement in definition.body]
    if not rewriter.found or (owner is not None and keeps_state(owner, ast.fix_missing_locations(definition))):
        return None
    rewritten = _compile(ast.fix_missing_locations(module), code)
    return None if rewritten is None else _function(rewritten, function)


def _module_of(function: FunctionType) -> ast.Module | None:
    """The source file a function stands in: the compiler looks at all of it, at imports and enclosing scopes."""
    lines = linecache.getlines(function.__code__.co_filename, function.__globals__)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):  # the file has become something else
        return None


def _definition_of(code: CodeType, module: ast.Module) -> ast.FunctionDef | None:
    """The definition that the code was made from, if it is a plain one: a decorator makes another function of it."""
    found = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and (node.name, node.lineno) == (code.co_name, code.co_firstlineno)
    ]
    return found[0] if len(found) == 1 and not found[0].decorator_list else None


def _compile(module: ast.Module, like: CodeType) -> CodeType | None:
    """The code at the place of `like`, of a module compiled anew."""
    try:
        whole = compile(module, like.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # a yield where there may be none
        return None
    return next(_codes(whole, like), None)


def _codes(code: CodeType, like: CodeType) -> Iterator[CodeType]:
    for inside in code.co_consts:
        if isinstance(inside, CodeType):
            if (inside.co_qualname, inside.co_firstlineno) == (like.co_qualname, like.co_firstlineno):
                yield inside
            yield from _codes(inside, like)


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Whether two pieces of code do the same, wherever their lines are."""
    if any(getattr(one, name) != getattr(other, name) for name in _SAME) or len(one.co_consts) != len(other.co_consts):
        return False
    for mine, theirs in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(mine, CodeType) and isinstance(theirs, CodeType):
            if not _is_same(mine, theirs):
                return False
        elif type(mine) is not type(theirs) or repr(mine) != repr(theirs):  # repr: 0.0 and -0.0 are equal
            return False
    return True


def _function(code: CodeType, original: FunctionType) -> Callable[..., Steps]:
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, original.__globals__, original.__name__, original.__defaults__, closure)
    made.__kwdefaults__ = original.__kwdefaults__
    return made


class _Rewriter(ast.NodeTransformer):
    """Turns wanted calls into yields."""

    def __init__(self, first: str, is_wanted: IsWanted) -> None:
        self._first = first
        self._is_wanted = is_wanted
        self._loops: frozenset[str] = frozenset()
        self.found = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        unpacked = sum(keyword.arg is None for keyword in node.keywords)
        clash = unpacked > 0 and len(node.keywords) > 1  # a name given twice is an error in a call, not in a dict
        if clash or not self._is_wanted(node, self._first, self._loops):
            return node
        self.found += 1
        arguments = ast.Tuple(node.args, ast.Load())
        names: list[ast.expr | None] = [None if k.arg is None else ast.Constant(k.arg) for k in node.keywords]
        keywords = ast.Dict(names, [keyword.value for keyword in node.keywords])
        return ast.copy_location(ast.Yield(ast.Tuple([node.func, arguments, keywords], ast.Load())), node)

    def visit_For(self, node: ast.For) -> ast.AST:
        outside = self._loops
        over = node.iter
        if (
            isinstance(node.target, ast.Name)
            and isinstance(over, ast.Attribute)
            and over.attr == "transforms"
            and isinstance(over.value, ast.Name)
            and over.value.id == self._first
        ):
            self._loops = outside | {node.target.id}
        self.generic_visit(node)
        self._loops = outside
        return node

    def _leave_alone(self, node: ast.AST) -> ast.AST:
        return node

    visit_With = visit_AsyncWith = visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _leave_alone
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ClassDef = _leave_alone
