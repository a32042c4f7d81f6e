"""Fixtures of the fault suite, which is about promises of minato's own; comments say where torch's loader agrees."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.compat.gates import Gate

from .tools import Marks

HERE = Path(__file__).parent
TOO_MANY_WORKERS = "ignore:This DataLoader will create:UserWarning"


def pytest_collection_modifyitems(items):
    """A small machine may have fewer cores than a test has workers; that warning has its own test."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(TOO_MANY_WORKERS))


@pytest.fixture(autouse=True)
def tidy():
    """Leave no iterator behind in a reference cycle: the next test's workers would inherit its descriptors."""
    yield
    gc.collect()


@pytest.fixture
def gate(tmp_path):
    """A gate that is shut until the test opens it."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


@pytest.fixture
def marks(tmp_path):
    """Marks that the processes of a test leave for each other."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return Marks(folder)


@pytest.fixture(params=[True, False], ids=["in-order", "overtaking"])
def in_order(request):
    """Torch's exact order, and samples that may overtake each other."""
    return request.param
