"""The package keeps to its layers; and the checker that says so would notice if it did not."""

from pathlib import Path

import pytest

from tests.support.layers import (
    MAX_FUNCTION_LINES,
    MAX_MODULE_LINES,
    PACKAGE,
    Module,
    import_cycle,
    layer_violations,
    oversized,
    read_package,
)

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def package() -> list[Module]:
    modules = read_package(ROOT / PACKAGE)
    names = {module.name for module in modules}
    # Without this an empty or moved package would pass everything below.
    missing = {f"{PACKAGE}{part}" for part in ("", "._dataloader", "._engine", "._scheduler", "._queues")} - names
    assert not missing, f"{sorted(missing)} not found in {PACKAGE}/: nothing to check"
    return modules


def test_imports_follow_the_layers(package: list[Module]) -> None:
    """Nobody imports what the table in tests/support/layers.py does not allow."""
    assert layer_violations(package) == []


def test_no_import_cycles(package: list[Module]) -> None:
    """Modules can be read, and imported, in some order."""
    assert import_cycle(package) is None


def test_sizes(package: list[Module]) -> None:
    """Modules and functions stay short enough to be read at one go."""
    assert oversized(package) == []


# From here on: the checker itself.


def module(name: str, source: str) -> Module:
    """A planted module; a package if the name ends with a dot."""
    return Module(f"{PACKAGE}.{name}".rstrip("."), source, is_package=name.endswith(".") or not name)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("_records", "import os, collections.abc"),
        ("_records", "from ._errors import WorkerFailed"),
        ("_protocols", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("_plan", "import typing\nif typing.TYPE_CHECKING:\n    from torch import Tensor"),
        ("", "if TYPE_CHECKING:\n    from .diagnose import run\n    from .storage import S3Dataset"),
        ("errors", "from ._errors import X"),
        ("_queues.", "from .ring import Ring\nfrom .._records import Ticket\nimport numpy, torch, threading"),
        ("_queues.ring", "from . import lanes\nfrom .lanes import Lane\nfrom .. import _records"),
        ("_queues.arena.pool", "from ..ring import Ring\nfrom ..._records import Ticket"),
        ("_scheduler.state", f"import heapq\nfrom {PACKAGE} import _records\nimport {PACKAGE}._scheduler.warmup"),
        ("_workers.loop", "from .._queues import ring\nfrom .._fetchers.threaded import Threaded"),
        ("_engine", "from . import _scheduler, _queues, _workers, _device, _fetchers, _plan"),
        ("_engine.", "from .._workers.pool import Pool"),
        ("_arguments", "import torch.utils.data\nfrom ._plan import LoaderPlan"),
        ("_dataloader", "import torch\nfrom ._arguments import plan\nfrom ._engine import Engine"),
        ("", "from . import errors\nfrom ._dataloader import DataLoader\nfrom ._records import LoaderStats"),
        ("trace.chrome", f"import ray\nimport {PACKAGE}\nfrom .._engine import x\nfrom ..diagnose import y"),
    ],
)
def test_checker_accepts(name: str, source: str) -> None:
    """What the table allows, in each way of writing an import."""
    assert layer_violations([module(name, source)]) == []


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("_records", "import torch", "torch, which is not in the standard library"),
        ("_records", "import numpy.typing as npt", "numpy, which is not"),
        ("_plan", "def f():\n    import psutil", "psutil"),
        ("_plan", "if TYPE_CHECKING:\n    pass\nelse:\n    import torch", "torch"),
        ("_protocols", "if TYPE_CHECKING:\n    from ._queues import Ring", "_queues"),
        ("_errors", "from ._engine import Engine", "_engine"),
        ("errors", "from ._records import X", "_records"),
        ("_queues.ring", "from .. import _fetchers", "_fetchers"),
        ("_queues.", "from .._fetchers import threaded", "_fetchers"),
        ("_queues.arena.pool", "from ..._scheduler.state import State", "_scheduler"),
        ("_fetchers.s3", f"import {PACKAGE}._queues.ring", "_queues"),
        ("_fetchers.s3", f"from {PACKAGE} import _scheduler", "_scheduler"),
        ("_fetchers.s3", f"from {PACKAGE} import DataLoader", "__init__"),
        ("_fetchers.s3", f"import {PACKAGE}", "__init__"),
        ("_scheduler.state", "import threading", "threading"),
        ("_scheduler.state", "from multiprocessing.connection import wait", "multiprocessing"),
        ("_scheduler.state", "try:\n    import numpy as np\nexcept ImportError:\n    pass", "numpy"),
        ("_scheduler.state", "if TYPE_CHECKING:\n    from torch import Tensor", "torch"),
        ("_scheduler.state", "from .._queues.lanes import Lanes", "_queues"),
        ("_workers.loop", "from .._scheduler import state", "_scheduler"),
        ("_device.pin", "from .._queues import ring", "_queues"),
        ("_engine", "from ._dataloader import DataLoader", "_dataloader"),
        ("_engine.", "from ..trace import spans", "trace"),
        ("_engine.", "import importlib\nimportlib.import_module('minato.offload.ray_pool')", "offload"),
        ("_arguments", "import numpy", "numpy"),
        ("_arguments", "from ._engine import Engine", "_engine"),
        ("_dataloader", "from ._workers import pool", "_workers"),
        ("_dataloader", "from . import errors", "errors"),
        ("", "from . import _engine", "_engine"),
        ("", "def __getattr__(name):\n    from . import diagnose", "diagnose"),
        ("_utils", "", "not in the table of layers"),
    ],
)
def test_checker_rejects(name: str, source: str, fault: str) -> None:
    """What the table forbids, in each way of writing or hiding an import."""
    (violation,) = layer_violations([module(name, source)])
    assert fault in violation


def test_checker_finds_cycle() -> None:
    """Cycles are found across parts, and inside a part where the table has nothing to say."""
    a = module("_queues.a", "from .b import x")
    b = module("_queues.b", "def f():\n    from . import c")
    assert import_cycle([a, b, module("_queues.c", "")]) is None
    cycle = import_cycle([a, b, module("_queues.c", f"import {PACKAGE}._queues.a")])
    assert cycle is not None
    assert set(cycle) == {f"{PACKAGE}._queues.{name}" for name in "abc"}


def test_checker_excuses_cycle_of_types() -> None:
    """What is imported for annotations only is not there when the program runs."""
    a = module("_queues.a", "from .b import x")
    assert import_cycle([a, module("_queues.b", "if TYPE_CHECKING:\n    from .a import y")]) is None


def test_checker_finds_oversized() -> None:
    """One line too many, in a module and in a method."""
    lines = MAX_MODULE_LINES
    assert oversized([module("_plan", "\n" * lines)]) == []
    (found,) = oversized([module("_plan", "\n" * (lines + 1))])
    assert found.startswith(f"{PACKAGE}._plan: ")

    body = "        pass\n" * (MAX_FUNCTION_LINES - 1)
    assert oversized([module("_plan", f"class A:\n    async def long(self):\n{body}")]) == []
    (found,) = oversized([module("_plan", f"class A:\n    async def long(self):\n{body}        pass\n")])
    assert "long has" in found


def test_checker_reads_files(tmp_path: Path) -> None:
    """Names of modules and packages are told from the tree."""
    (tmp_path / PACKAGE / "_queues").mkdir(parents=True)
    for path in ("__init__.py", "_plan.py", "_queues/__init__.py", "_queues/ring.py"):
        (tmp_path / PACKAGE / path).touch()
    modules = read_package(tmp_path / PACKAGE)
    assert {(m.name, m.is_package) for m in modules} == {
        (PACKAGE, True),
        (f"{PACKAGE}._plan", False),
        (f"{PACKAGE}._queues", True),
        (f"{PACKAGE}._queues.ring", False),
    }
