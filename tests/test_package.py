"""The package as it is shipped: wheel and sdist are whole, and the wheel works from outside the checkout."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import tomllib

import minato

ROOT = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".git", ".*_cache", ".hypothesis", "build", "dist")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that building writes nothing into it."""
    copy = tmp_path_factory.mktemp("package") / "source"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    return copy


def build(kind: str, source: Path) -> Path:
    """A wheel or an sdist, built without network."""
    out = source.parent / kind
    program = f"import setuptools.build_meta as backend, sys; backend.build_{kind}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(out)], cwd=source, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return build("wheel", source)


@pytest.fixture(scope="module")
def sdist(source: Path, wheel: Path) -> Path:
    return build("sdist", source)


def test_the_wheel_carries_every_module_and_the_typing_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("minato/")}
        metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        assert Parser().parsestr(archive.read(metadata).decode())["Version"] == minato.__version__
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "minato").rglob("*.py")} | {"minato/py.typed"}
    assert wanted <= shipped


def test_the_version_is_stated_in_one_place() -> None:
    stated = re.compile(rf"""(^|[^\d.]){re.escape(minato.__version__)}($|[^\d.])""")
    files = [ROOT / "pyproject.toml", *sorted((ROOT / "minato").rglob("*.py"))]
    found = [path.relative_to(ROOT).as_posix() for path in files if stated.search(path.read_text(encoding="utf-8"))]
    assert found == ["minato/__init__.py"]


def test_uses_of_the_public_api_are_read_by_the_type_checker() -> None:
    """`.ci/run` calls mypy with the options of pyproject.toml; strict ones find errors that were expected in vain."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert options["strict"] is True
    assert {"minato", "tests/typing"} <= set(options["files"])
    uses = (ROOT / "tests" / "typing" / "uses.py").read_text(encoding="utf-8")
    assert {f"minato.{name}" for name in ("DataLoader", "patch", "diagnose", "S3Dataset")} <= set(
        re.findall(r"minato\.\w+", uses)
    )


def test_the_sdist_carries_what_the_tests_and_documents_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    parts = ("benchmarks", "docs", "examples", "minato", "tests")
    files = [path for part in parts for path in (ROOT / part).rglob("*") if path.is_file()]
    wanted = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    wanted |= {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "constraints.txt", "mkdocs.yml", ".ci/run"}
    assert not wanted - shipped


def test_the_wheel_loads_data_from_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    program = (
        "import minato; assert 'installed' in minato.__file__; "
        "print(sum(int(b.sum()) for b in minato.DataLoader(range(10), batch_size=4, num_workers=1)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.stdout == "45\n", done.stderr
