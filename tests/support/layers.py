"""Reads the imports of a package without importing it, and holds them to the table of who may import whom.

Every import counts, wherever it stands: inside a function, in a `try`, under `if TYPE_CHECKING`, or as a constant given
to `import_module`. There are three exceptions, all for `if TYPE_CHECKING`: layer 0 may name third-party types, the
package's `__init__` may name what it loads later, and what is imported only for types makes no cycle.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = "minato"

MAX_MODULE_LINES = 450
MAX_FUNCTION_LINES = 70

L0 = frozenset({"_records", "_plan", "_protocols", "_errors", "_instrument", "_recording", "_trace_sessions"})
SIDE = frozenset({"trace", "diagnose", "offload", "storage", "testing", "cli", "bench", "integrations", "compat"})

# A part is a direct child of the package, module or subpackage. What a part may import from the others:
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(L0, L0),
    "errors": frozenset({"_errors"}),
    "_queues": L0,
    "_fetchers": L0,
    "_scheduler": L0,
    "_staged": L0,
    "_sample_random": L0,
    "_workers": L0 | {"_queues", "_fetchers", "_staged", "_sample_random"},
    "_device": L0,
    "_pipeline": L0 | {"_queues", "_workers", "_staged"},
    "_engine": L0 | {"_scheduler", "_queues", "_workers", "_device", "_fetchers", "_pipeline", "_sample_random"},
    "_arguments": L0,
    "_planning": L0 | {"_arguments"},
    "_dataloader": L0 | {"_arguments", "_planning", "_engine", "_pipeline"},
    "_patching": L0 | {"_dataloader"},
    "_echo": L0,
    "__main__": frozenset({"cli"}),
    # The scheduler, to give policies their public names.
    "__init__": L0 | {"_dataloader", "_echo", "_patching", "_sample_random", "_scheduler", "_staged", "errors"},
}
PARTS = frozenset(MAY_IMPORT) | SIDE
# Public names of these are looked up when first used; type checkers have to be told of them.
NAMED_LATER = frozenset({"diagnose", "storage", "_pipeline"})

# Third-party packages that a part may import; a part that is not named may import any.
MAY_IMPORT_OUTSIDE: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(L0, frozenset[str]()),
    "errors": frozenset(),
    "_arguments": frozenset({"torch"}),
    "_planning": frozenset({"torch"}),
}
# The scheduler is pure, so that event lists and a fake clock can test it.
NEVER_IMPORTS: Mapping[str, frozenset[str]] = {
    "_scheduler": frozenset({"torch", "threading", "multiprocessing", "numpy"}),
}


@dataclass(frozen=True)
class Module:
    """One source file; `name` is dotted, and that of a package's `__init__.py` is the package's own."""

    name: str
    source: str
    is_package: bool = False

    @property
    def part(self) -> str:
        return part_of(self.name)

    def parse(self) -> ast.Module:
        return ast.parse(self.source, filename=self.name)


@dataclass(frozen=True)
class Import:
    """`target` is a module of the package where it can be told from a mere name in one, else what is written."""

    target: str
    line: int
    for_types: bool


def part_of(name: str) -> str:
    return [*name.split("."), "__init__"][1]


def is_inside(name: str) -> bool:
    return name.split(".")[0] == PACKAGE


def read_package(root: Path) -> list[Module]:
    """All modules of the package in the directory `root`."""
    modules = []
    for path in sorted(root.rglob("*.py")):
        names = [root.name, *path.relative_to(root).with_suffix("").parts]
        is_package = names[-1] == "__init__"
        name = ".".join(names[:-1] if is_package else names)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return modules


def imports_of(module: Module, known: frozenset[str]) -> Iterator[Import]:
    """Each import of `module`; `known` are the names of all modules, to tell them from names inside modules."""
    for node, for_types in _walk(module.parse(), for_types=False):
        for target in _targets(node, module, known):
            yield Import(target, getattr(node, "lineno", 0), for_types)


def _walk(node: ast.AST, *, for_types: bool) -> Iterator[tuple[ast.AST, bool]]:
    yield node, for_types
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        for statement in node.body:
            yield from _walk(statement, for_types=True)
        for statement in node.orelse:
            yield from _walk(statement, for_types=for_types)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, for_types=for_types)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _targets(node: ast.AST, module: Module, known: frozenset[str]) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            base = _base_of(node, module)
            return [_module_or_name(base, alias.name, known) for alias in node.names]
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            return [name]
    return []


def _base_of(node: ast.ImportFrom, module: Module) -> str:
    if node.level == 0:
        return node.module or ""
    # One dot is the package that the module stands in; a package's __init__ stands in itself.
    ups = node.level - module.is_package
    base = module.name.split(".")[: -ups or None]
    return ".".join([*base, *([node.module] if node.module else [])])


def _module_or_name(base: str, name: str, known: frozenset[str]) -> str:
    candidate = f"{base}.{name}"
    # Parts that do not exist yet count too: the table is about what may be written, not about what works.
    return candidate if candidate in known or (base == PACKAGE and name in PARTS) else base


def layer_violations(modules: list[Module]) -> list[str]:
    """Imports that the table does not allow, and modules that it does not know."""
    known = frozenset(module.name for module in modules)
    found = []
    for module in modules:
        if module.part not in PARTS:
            found.append(f"{module.name}: not in the table of layers; give it a place in {Path(__file__).name}")
        elif module.part not in SIDE:
            for item in imports_of(module, known):
                if fault := _fault(module.part, item):
                    found.append(f"{module.name}:{item.line}: {fault}")
    return found


def _fault(part: str, item: Import) -> str | None:
    if is_inside(item.target):
        target = part_of(item.target)
        if target == part or target in MAY_IMPORT[part]:
            return None
        if part == "__init__" and item.for_types and target in NAMED_LATER:
            return None
        return f"{part} must not import {target} ({item.target})"
    top = item.target.split(".")[0]
    if top in NEVER_IMPORTS.get(part, ()):
        return f"{part} must not import {top}"
    if top in sys.stdlib_module_names or part not in MAY_IMPORT_OUTSIDE or top in MAY_IMPORT_OUTSIDE[part]:
        return None
    if item.for_types and part in L0:
        return None
    return f"{part} must not import {top}, which is not in the standard library"


def import_cycle(modules: list[Module]) -> list[str] | None:
    """One cycle of modules, first and last the same, or None. Imports made only for types do not count."""
    known = frozenset(module.name for module in modules)
    graph = {
        module.name: {i.target for i in imports_of(module, known) if i.target in known and not i.for_types}
        for module in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return None


def oversized(modules: list[Module]) -> list[str]:
    """Modules and functions that have grown too long to read at one go."""
    found = []
    for module in modules:
        lines = len(module.source.splitlines())
        if lines > MAX_MODULE_LINES:
            found.append(f"{module.name}: {lines} lines, at most {MAX_MODULE_LINES}")
        for node in ast.walk(module.parse()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    where = f"{module.name}:{node.lineno}"
                    found.append(f"{where}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}")
    return found
