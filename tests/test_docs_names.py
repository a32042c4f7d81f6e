"""Documents must not outlive the code: files, modules, classes and functions they cite in backticks have to exist."""

import ast
import builtins
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.utils.data

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "minato"
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS = [*sorted((ROOT / "docs").glob("**/*.md")), *OUTSIDE]
LINKING = [*DOCUMENTS, ROOT / "benchmarks" / "README.md"]  # which cites classes of the benchmarks

# Functions the documents cite that are torch's, or not there yet.
FOREIGN = {"clone", "is_shared", "share_memory_", "sharding_filter", "state_dict"}


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def bound_names(node: ast.AST) -> Iterator[str]:
    """Names a class gives its instances: methods, fields, class attributes, and what methods set on self."""
    for child in ast.walk(node):
        match child:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


class Source:
    """What the package defines, read and not imported."""

    def __init__(self) -> None:
        self.members: dict[str, set[str]] = {}
        self.functions: set[str] = set()
        self.constants: set[str] = set()
        bases: dict[str, list[str]] = {}
        for _, tree in parsed():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.members.setdefault(node.name, set()).update(bound_names(node))
                    bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                elif isinstance(node, ast.FunctionDef):
                    self.functions.add(node.name)
            for node in tree.body:
                self.constants.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id.isupper())
        for _ in range(3):  # as deep as inheritance goes here
            for name, parents in bases.items():
                for parent in parents:
                    self.members[name] |= self.members.get(parent, set())

    def missing(self, cited: str) -> str | None:
        """What is wrong with a name in backticks; None if it exists, or is not a name of ours to check."""
        cited = cited.rstrip(".")
        if re.fullmatch(r"[\w/.]+/[\w.]+\.(py|md)", cited) or re.fullmatch(r"_\w+\.py", cited):
            return None if any((at / cited).exists() for at in (PACKAGE, ROOT, ROOT / "docs")) else "no such file"
        if re.fullmatch(r"minato(\.\w+)+", cited):
            return None if importable(cited) else "no such name in minato"
        if found := re.fullmatch(r"([A-Z]\w*[a-z]\w*)\.(\w+)(\(\))?", cited):
            owner, member = found[1], found[2]
            return None if member in self.members.get(owner, ()) else f"minato has no {owner} with {member}"
        if found := re.fullmatch(r"([A-Z][a-z]+\w*)", cited):
            known = cited in self.members or hasattr(builtins, cited) or hasattr(torch.utils.data, cited)
            return None if known or cited in ("DistributedSampler", "IterDataPipe") else "no such class"
        if found := re.fullmatch(r"(\w+)\(\)", cited):
            known = found[1] in self.functions or hasattr(builtins, found[1]) or found[1] in FOREIGN
            return None if known else "no such function"
        if re.fullmatch(r"[A-Z][A-Z_]+", cited):
            return None if cited in self.constants else "no such constant"
        return None


def importable(dotted: str) -> bool:
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def cited_names(markdown: str) -> list[str]:
    """What stands in backticks, blocks of code aside."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(name.split()) for name in re.findall(r"`([^`]+)`", prose)]


def diagram_names(markdown: str) -> list[str]:
    """`Class.member` in blocks of code that are drawings, not programs."""
    drawings = re.findall(r"^```\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL)
    return [name for drawing in drawings for name in re.findall(r"\b[A-Z]\w*[a-z]\w*\.\w+", drawing)]


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


def dead_links(document: Path) -> list[str]:
    """Links to files that are not there; mkdocs looks after those of the site, here are the rest too."""
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8"))
    return [link for link in found if "://" not in link and not (document.parent / link).exists()]


@pytest.mark.parametrize("document", LINKING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    assert dead_links(document) == []


def test_dead_links_are_found_out(tmp_path: Path) -> None:
    (tmp_path / "here.md").write_text("[a](here.md#part) [b](gone.md) ![c](gone.svg) [d](https://example.org/x)")
    assert dead_links(tmp_path / "here.md") == ["gone.md", "gone.svg"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_cited_names_exist(document: Path, source: Source) -> None:
    markdown = document.read_text(encoding="utf-8")
    names = [*cited_names(markdown), *diagram_names(markdown)]
    wrong = {name: problem for name in names if (problem := source.missing(name))}
    assert not wrong, f"{document.relative_to(ROOT)} cites what is not there: {wrong}"


@pytest.mark.parametrize(
    "name",
    [
        "_engine/gone.py",
        "minato.gone",
        "minato.errors.Gone",
        "Engine.gone",
        "Gone.next_batch",
        "NoSuchClass",
        "no_such_function()",
        "NO_SUCH_CONSTANT",
    ],
)
def test_names_that_do_not_exist_are_found_out(name: str, source: Source) -> None:
    assert source.missing(name)


def test_journey_cites_functions_that_exist(source: Source) -> None:
    """There, a bare lower-case word in backticks is a function, an argument, or a name of torch's or Python's."""
    words = set(cited_names((ROOT / "docs" / "journey-of-a-sample.md").read_text(encoding="utf-8")))
    bare = {word for word in words if re.fullmatch(r"[a-z]\w*_\w+|build|learn|read|recover|complete", word)}
    arguments = {"collate_fn", "worker_init_fn", "max_deferral", "default_collate", "on_error", "sample_retries"}
    assert bare - arguments <= source.functions
