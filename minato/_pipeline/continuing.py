"""A sample entered in the middle: what is left of its making, from what was known when a stage had ended.

A sample on its way (`SampleRun`) stands before a call in the innermost of some functions: a dataset's `__getitem__`,
perhaps a `Compose.__call__` inside it. `suspend` notes, for each function, where it stands and the local variables that
the rest of it still reads. `Rest` makes the same sample of that, in another epoch or another process: the rest of each
function, cut out of its source, is compiled once and run with those variables.

Cut are plain statements, those in `if`, and those in a loop `for t in self.transforms`, whose rest is a loop over the
transforms that are left. Inside other loops, `try` and `with`, and in decorated functions, nothing can be cut, and
`suspend` says so by None.
"""

from __future__ import annotations

import ast
import bisect
import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from .._workers import splitting, stages
from .._workers.stages import SampleRun

_OWN = stages.__file__
_SAVED, _TURN, _INNER = "_minato_saved", "_minato_turn", "_minato_inner"
Position = tuple[int | None, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one function stands."""

    site: Position
    """The call it stands before, by its place in the source."""
    turn: int
    """Which transform of its loop it has come to; -1: it is in no such loop."""
    variables: dict[str, Any]
    """What the rest of it reads."""


def suspend(run: SampleRun) -> tuple[Standing, ...] | None:
    """What has to be known to finish the sample elsewhere; None: that cannot be done."""
    standings = []
    frames = [_innermost(frame) for frame in run.frames]
    for number, frame in enumerate(frames):
        # A function inside was called by this one: what it calls is an object with `transforms`, or a method.
        called = run.call[0] if number == len(frames) - 1 and run.call is not None else None
        standing = (
            _own_standing(frame) if frame.gi_code.co_filename == _OWN else _standing(frame, called, frames, number)
        )
        if standing is None:
            return None
        standings.append(standing)
    return tuple(standings)


def finish(dataset: Any, index: Any, standings: tuple[Standing, ...]) -> Any:
    """The sample that was suspended. Raises what the user's code raises."""
    base = _base_of(dataset, index)
    return _finish(type(base).__getitem__, base, standings)


def _finish(function: Any, owner: Any, standings: tuple[Standing, ...]) -> Any:
    standing, inside = standings[0], standings[1:]

    def call_inside(called: Any) -> Any:
        if isinstance(called, MethodType):
            return _finish(called.__func__, called.__self__, inside)
        return _finish(stages._function_of(called), called, inside)

    if standing.site == _STAGED:
        return _finish_staged(owner, standing, call_inside if inside else None)
    if standing.site == _ONE_BY_ONE:
        return owner(standing.variables["sample"], start=standing.turn)
    rest = _rest_of(function, standing.site, bool(inside))
    if rest is None:
        raise LookupError(f"{function!r} has changed since the sample was suspended")
    return rest.function(owner, standing.variables, standing.turn, call_inside)


# ---- minato's own functions ------------------------------------------------------------------------------------------

_STAGED: Position = (-1, None, None, None)
_ONE_BY_ONE: Position = (-2, None, None, None)


def _own_standing(frame: Any) -> Standing | None:
    variables = frame.gi_frame.f_locals
    name = frame.gi_code.co_name
    if name == "_staged_steps":
        return Standing(_STAGED, variables["_number"], {"sample": variables["sample"]})
    if name == "_one_at_a_time":
        return Standing(_ONE_BY_ONE, variables["number"], {"sample": variables["sample"]})
    return None


def _finish_staged(dataset: Any, standing: Standing, inside: Callable[[Any], Any] | None) -> Any:
    sample = standing.variables["sample"]
    for number, transform in enumerate(dataset.transforms[standing.turn :]):
        sample = transform(sample) if number or inside is None else inside(transform)
    return sample


def _innermost(frame: Any) -> Any:
    """The generator that a generator has given way to."""
    while frame.gi_yieldfrom is not None:
        frame = frame.gi_yieldfrom
    return frame


def _base_of(dataset: Any, index: Any) -> Any:
    """The dataset below subsets and concatenations that makes the sample."""
    while True:
        if type(dataset) is Subset:
            dataset, index = dataset.dataset, dataset.indices[index]
        elif type(dataset) is ConcatDataset:
            number = bisect.bisect_right(dataset.cumulative_sizes, index)
            index -= dataset.cumulative_sizes[number - 1] if number else 0
            dataset = dataset.datasets[number]
        else:
            return dataset


# ---- the user's functions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rest:
    function: Callable[..., Any]
    reads: frozenset[str]
    loops: bool


def _standing(frame: Any, called: Any, frames: list[Any], number: int) -> Standing | None:
    variables = frame.gi_frame.f_locals
    site = list(frame.gi_code.co_positions())[frame.gi_frame.f_lasti // 2]
    owner = variables.get(frame.gi_code.co_varnames[0])
    function = _function_running(frame.gi_code, owner)
    rest = _rest_of(function, site, called is None)
    if rest is None:
        return None
    turn = -1
    if rest.loops:
        called = called if called is not None else _owner_of(frames[number + 1])
        places = [place for place, transform in enumerate(owner.transforms) if transform is called]
        if len(places) != 1:  # an object that is there twice: which of the two is not known
            return None
        turn = places[0]
    return Standing(site, turn, {name: variables[name] for name in rest.reads if name in variables})


def _owner_of(frame: Any) -> Any:
    variables = frame.gi_frame.f_locals
    return variables.get(frame.gi_code.co_varnames[0])


def _function_running(code: CodeType, owner: Any) -> Any:
    """The user's function that a generator was made from: the method of that name of its first argument."""
    for kind in type(owner).__mro__:
        function = vars(kind).get(code.co_name)
        if isinstance(function, FunctionType) and function.__code__.co_firstlineno == code.co_firstlineno:
            return function
    return None


@functools.lru_cache(maxsize=512)
def _rest_of(function: Any, site: Position, calls_inside: bool) -> _Rest | None:
    """The function from the statement with the call at `site` on. `calls_inside`: that call is done by others, to whom
    what is to be called is handed; otherwise it is made."""
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    module = splitting._module_of(function)
    definition = None if module is None else splitting._definition_of(code, module)
    if module is None or definition is None:
        return None
    compiled = splitting._compile(module, code)
    parameters = definition.args.posonlyargs + definition.args.args
    if compiled is None or not splitting._is_same(compiled, code) or not parameters:
        return None
    cut = _cut(definition.body, site, parameters[0].arg)
    if cut is None:
        return None
    body, target = cut
    if calls_inside:
        body = [_HandOver(site).visit(statement) for statement in body]
    locals_ = {*code.co_varnames, *code.co_cellvars}
    reads = _names_read(body) & locals_ - {parameters[0].arg, target}
    definition.args = _arguments(parameters[0].arg)
    definition.body = [*_restored(sorted(reads)), *body]
    rest = splitting._compile(ast.fix_missing_locations(module), code)
    return None if rest is None else _Rest(_made(rest, function), frozenset(reads), target is not None)


def _made(code: CodeType, original: FunctionType) -> Callable[..., Any]:
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    return FunctionType(code, original.__globals__, original.__name__, None, closure)


def _cut(block: list[ast.stmt], site: Position, first: str) -> tuple[list[ast.stmt], str | None] | None:
    """The statements from the one with the call on, and the variable of the loop it is in, if it is in one."""
    for number, statement in enumerate(block):
        if not any(_is_at(node, site) for node in ast.walk(statement)):
            continue
        after = block[number + 1 :]
        if isinstance(statement, ast.If):
            for inner in (statement.body, statement.orelse):
                cut = _cut(inner, site, first)
                if cut is not None:
                    return [*cut[0], *after], cut[1]
            return None
        if isinstance(statement, ast.For):
            return _cut_loop(statement, after, site, first)
        simple = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr))
        return ([statement, *after], None) if simple else None
    return None


def _cut_loop(
    loop: ast.For, after: list[ast.stmt], site: Position, first: str
) -> tuple[list[ast.stmt], str | None] | None:
    """The rest of a turn of `for t in self.transforms`, the turns that are left, and what comes after."""
    over = loop.iter
    plain = isinstance(over, ast.Attribute) and over.attr == "transforms" and isinstance(over.value, ast.Name)
    if not plain or not isinstance(loop.target, ast.Name) or loop.orelse or _jumps(loop):
        return None
    assert isinstance(over, ast.Attribute)
    if not isinstance(over.value, ast.Name) or over.value.id != first:
        return None
    cut = _cut(loop.body, site, first)
    if cut is None or cut[1] is not None:
        return None
    name = loop.target.id
    begin = ast.parse(f"{name} = {first}.transforms[{_TURN}]").body
    left = ast.parse(f"for {name} in {first}.transforms[{_TURN} + 1:]: pass").body[0]
    assert isinstance(left, ast.For)
    left.body = copy.deepcopy(loop.body)
    return [*begin, *cut[0], left, *after], name


def _jumps(loop: ast.For) -> bool:
    return any(isinstance(node, (ast.Break, ast.Continue)) for statement in loop.body for node in ast.walk(statement))


def _is_at(node: ast.AST, site: Position) -> bool:
    return isinstance(node, ast.Call) and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == site


class _HandOver(ast.NodeTransformer):
    """Hands what is called to those who finish it, once: copies of the statement in a loop keep their calls."""

    def __init__(self, site: Position) -> None:
        self._site = site
        self._done = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._done or not _is_at(node, self._site):
            return self.generic_visit(node)
        self._done = True
        return ast.copy_location(ast.Call(ast.Name(_INNER, ast.Load()), [node.func], []), node)


def _names_read(body: list[ast.stmt]) -> set[str]:
    nodes = [node for statement in body for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _arguments(first: str) -> ast.arguments:
    names = (first, _SAVED, _TURN, _INNER)
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def _restored(names: list[str]) -> list[ast.stmt]:
    return ast.parse("\n".join(f"if {name!r} in {_SAVED}: {name} = {_SAVED}[{name!r}]" for name in names)).body
