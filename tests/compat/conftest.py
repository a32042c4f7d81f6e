"""Fixtures of the compatibility suite.

A test that takes ``loader_class`` runs twice: on torch's loader, where it proves that the test itself tells the truth,
and on minato's. A test that takes ``minato_class`` is about a promise that only minato makes.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch.utils.data

HERE = Path(__file__).parent
TOO_MANY_WORKERS = "ignore:This DataLoader will create:UserWarning"


def pytest_collection_modifyitems(items):
    """Three workers on two cores are fine here (the warning has its own test); what torch leaks is not our affair."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(TOO_MANY_WORKERS))
            if hasattr(item, "callspec") and item.callspec.params.get("loader_class") == "torch":
                item.add_marker(pytest.mark.leaks_ok("only minato's loader is on trial"))


@pytest.fixture(params=["torch", "minato"])
def loader_class(request):
    """The loader under test."""
    if request.param == "torch":
        return torch.utils.data.DataLoader
    return request.getfixturevalue("minato_class")


@pytest.fixture
def minato_class():
    """minato's loader alone; imported late, so that the torch half runs without it."""
    from minato import DataLoader

    return DataLoader


@pytest.fixture(params=[0, 2], ids=["in-process", "2-workers"])
def num_workers(request):
    """In this process, and with company."""
    return request.param


@pytest.fixture(autouse=True)
def tidy():
    """Leave no iterator behind in a reference cycle: torch's would be inherited by the next test's workers."""
    yield
    gc.collect()


@pytest.fixture
def gate(tmp_path):
    """A gate that is shut until the test opens it."""
    from .gates import Gate

    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()
