"""Containers of Python objects that forked workers copy are weighed by a sample and named beyond a bound."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from minato import DataLoader
from minato._workers.copies import warn_of_copies
from minato._workers.program import Program
from minato.errors import CopyOnWriteWarning

from .test_hazards import Plain

KIB = 1 << 10
ROOM = 1 << 40


def told(dataset: Any, workers: int = 4, room: int = ROOM, bound: int = 500 * KIB) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_copies(Program(dataset, None, None), workers, room, 1, bound)
    assert len(caught) <= 1
    assert all(warning.category is CopyOnWriteWarning for warning in caught)
    return str(caught[0].message) if caught else ""


def paths(count: int) -> list[str]:
    return [f"images/of/the/training/set/{k:09d}.jpeg" for k in range(count)]


LARGE = {
    "strings": lambda n: paths(n),
    "numbers": lambda n: [1000 + k for k in range(5 * n)],
    "pairs": lambda n: [(path, k % 10) for k, path in enumerate(paths(n))],
    "records": lambda n: [{"path": path, "label": k % 10} for k, path in enumerate(paths(n))],
    "dict": lambda n: dict.fromkeys(paths(n)),
    "set": lambda n: set(paths(n)),
    "small arrays": lambda n: [np.zeros(2) for _ in range(n)],
    "objects": lambda n: [Plain(path=path) for path in paths(n)],
    "groups": lambda n: [paths(100) for _ in range(n // 90)],
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_container_of_objects_is_named_with_its_size(kind):
    text = told(Plain(items=LARGE[kind](10_000)))
    assert "  - dataset.items: " in text
    assert " MiB in each worker" in text
    assert told(Plain(items=LARGE[kind](10_000)), bound=20 << 20) == ""


@pytest.mark.parametrize(
    "items",
    [
        [k % 10 for k in range(100_000)],
        [("cat", "dog")[k % 2] for k in range(100_000)],
        [True] * 100_000,
        range(10_000_000),
        np.arange(1_000_000),
        torch.arange(1_000_000),
        np.array(paths(50_000)),
        "x" * 10_000_000,
        [b"x" * 100_000] * 2000,
        [np.zeros(500_000) for _ in range(5)],
    ],
    ids=["labels", "names", "flags", "range", "array", "tensor", "packed strings", "text", "shared", "large arrays"],
)
def test_what_is_shared_anyway_is_not_named(items):
    assert told(Plain(items=items)) == ""


def test_wrapped_datasets_are_looked_through():
    assert "  - dataset.dataset.items: 10,000 items" in told(Subset(Plain(items=paths(10_000)), range(3)))


def test_containers_that_are_heavy_only_together_are_named():
    dataset = Plain(classes={name: paths(1500) for name in "abcdefgh"}, few=paths(70))
    text = told(dataset)
    assert all(f"  - dataset.classes['{name}']: 1,500 items" in text for name in "abcdefgh")
    assert "few" not in text


def test_a_bound_on_all_workers_together_counts_too():
    dataset = Plain(items=paths(10_000))
    assert told(dataset, bound=ROOM) == ""
    assert "in 8\n" in told(dataset, workers=8, bound=ROOM, room=3 << 20)


def test_a_single_worker_is_not_warned_about():
    assert told(Plain(items=paths(10_000)), workers=1) == ""


def test_a_loader_warns_once(monkeypatch):
    monkeypatch.setattr(warn_of_copies, "__defaults__", (1,))
    loader = DataLoader(Plain(items=paths(5000)), num_workers=2)
    with pytest.warns(CopyOnWriteWarning, match=r"dataset\.items: 5,000 items") as caught:
        assert len(list(loader)) == 4
    assert [warning.filename for warning in caught] == [__file__]
    assert len(list(loader)) == 4


def test_tensors_that_do_not_know_their_size_are_weighed_too():
    sparse = torch.eye(3).to_sparse()
    assert "dataset.items: 1,000 items" in told(Plain(items=[sparse.clone() for _ in range(1000)]))
