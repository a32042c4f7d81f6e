"""The package as it is shipped: the wheel works from outside the checkout and carries what it needs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, without network."""
    import shutil

    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "minato", source / "minato", ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = "import setuptools.build_meta as backend, sys; print(backend.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(out)], cwd=source, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.glob("*.whl")
    return made


def test_the_wheel_carries_every_module_and_the_typing_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("minato/")}
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "minato").rglob("*.py")} | {"minato/py.typed"}
    assert wanted <= shipped


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
