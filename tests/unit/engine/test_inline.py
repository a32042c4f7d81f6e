"""num_workers=0: the caller fetches, and its own random streams stay as they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from minato._engine.inline import InlineMap, InlineStream
from minato._engine.totals import Totals
from minato._plan import Collate

from .test_feeds import plan


@pytest.fixture(autouse=True)
def _streams_begin_fresh() -> None:
    """Without a spare normal deviate from an earlier test."""
    random.seed(11)
    np.random.seed(12)


class Plain:
    def __getitem__(self, key: Any) -> Any:
        return key


class Noisy:
    """Draws from all three generators, from key `start` on."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def __getitem__(self, key: int) -> Any:
        if key < self.start:
            return None
        return random.random(), np.random.rand(), torch.rand(()).item()


def inline(dataset: Any, batches: Any, collate: Collate = Collate.FUNCTION, function: Any = list, seed: int = 1) -> Any:
    return InlineMap(dataset, plan(collate=collate, collate_fn=function), batches, seed, Totals())


def all_of(made: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(made.next_batch())
        except StopIteration:
            return found


def streams() -> Any:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def runs(length: int, count: int) -> list[list[int]]:
    return [list(range(at, min(count, at + length))) for at in range(0, count, length)]


def test_batches_come_in_order_and_end() -> None:
    made = inline(Plain(), [[1, 2], [3]])
    assert all_of(made) == [[1, 2], [3]]
    with pytest.raises(StopIteration):
        made.next_batch()


def test_without_batching_samples_come_alone() -> None:
    assert all_of(inline(Plain(), ["a", (1, 2)], Collate.NONE, lambda x: [x])) == [["a"], [(1, 2)]]


def test_the_process_keeps_its_own_streams() -> None:
    before = streams()
    all_of(inline(Noisy(), runs(4, 12)))
    assert streams() == before


def test_the_process_keeps_its_own_streams_when_samples_begin_to_draw_late() -> None:
    before = streams()
    all_of(inline(Noisy(start=60), runs(4, 80)))
    assert streams() == before


def test_an_error_leaves_the_streams_alone_too() -> None:
    class Failing(Noisy):
        def __getitem__(self, key: int) -> Any:
            super().__getitem__(key)
            raise KeyError(key)

    before = streams()
    with pytest.raises(KeyError):
        inline(Failing(), [[0]]).next_batch()
    assert streams() == before


@pytest.mark.parametrize("start", [0, 10, 40, 60])
def test_what_samples_draw_does_not_depend_on_the_batch_size(start: int) -> None:
    results = []
    for length in (1, 4, 100):
        found = all_of(inline(Noisy(start), runs(length, 100)))
        results.append([sample for batch in found for sample in batch])
    assert results[0] == results[1] == results[2]


def test_another_seed_gives_other_numbers() -> None:
    assert all_of(inline(Noisy(), [[0]], seed=1)) == all_of(inline(Noisy(), [[0]], seed=1))
    assert all_of(inline(Noisy(), [[0]], seed=1)) != all_of(inline(Noisy(), [[0]], seed=2))


def test_a_collate_function_draws_under_a_seed_of_its_own() -> None:
    def noise(_samples: Any) -> float:
        return random.random()

    before = streams()
    first = all_of(inline(Plain(), runs(2, 100), function=noise))
    assert first == all_of(inline(Plain(), runs(2, 100), function=noise))
    assert len(set(first)) == 50
    assert streams() == before


def test_samples_fetched_together_come_together() -> None:
    class Together:
        def __getitems__(self, keys: list[int]) -> list[int]:
            return [key * 10 for key in keys]

    assert all_of(inline(Together(), [[1, 2], [3]])) == [[10, 20], [30]]


def test_deliveries_are_counted() -> None:
    totals = Totals()
    made = InlineMap(Plain(), plan(collate=Collate.FUNCTION), [[1, 2], [3]], 0, totals)
    all_of(made)
    assert (totals.batches_delivered, totals.samples_delivered) == (2, 3)


class Stream:
    def __iter__(self) -> Iterator[Any]:
        return iter([random.random() for _ in range(5)])


def test_a_stream_draws_from_the_process_and_ends() -> None:
    random.seed(4)
    expected = [random.random() for _ in range(5)]
    random.seed(4)
    totals = Totals()
    made = InlineStream(Stream(), plan(collate=Collate.FUNCTION), totals)
    assert all_of(made) == [expected[:2], expected[2:4], expected[4:]]
    assert (totals.batches_delivered, totals.samples_delivered) == (3, 5)
