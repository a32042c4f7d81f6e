"""The next epoch's order, foreseen without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from minato._engine.ahead import Forecast


class Data:
    """A dataset whose length may change."""

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.fixture(autouse=True)
def _default_generator_is_left_alone() -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def own() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def batched(sampler: Any) -> BatchSampler:
    return BatchSampler(sampler, 3, drop_last=False)


SAMPLERS = {
    "sequential": lambda: SequentialSampler(Data()),
    "random": lambda: RandomSampler(Data()),
    "random, more than there are": lambda: RandomSampler(Data(), num_samples=50),
    "random, with replacement": lambda: RandomSampler(Data(), replacement=True, num_samples=70),
    "subset": lambda: SubsetRandomSampler(range(20)),
    "weighted": lambda: WeightedRandomSampler([1.0] * 20, 20),
    "random, generator": lambda: RandomSampler(Data(), generator=own()),
    "random, generator, more than there are": lambda: RandomSampler(Data(), num_samples=50, generator=own()),
    "random, generator, with replacement": lambda: RandomSampler(
        Data(), replacement=True, num_samples=70, generator=own()
    ),
    "subset, generator": lambda: SubsetRandomSampler(range(20), generator=own()),
    "weighted, generator": lambda: WeightedRandomSampler([1.0] * 20, 20, generator=own()),
}
EACH = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
UNBATCHED = pytest.mark.parametrize("wrap", [batched, lambda sampler: sampler], ids=["batches", "single"])


def plain(batches: Any) -> list[Any]:
    """Batches, or single indices, as torch's samplers give them."""
    return [batch if isinstance(batch, int) else list(map(int, batch)) for batch in batches]


def generator_of(sampler: Any) -> torch.Generator:
    given = getattr(sampler, "generator", None)
    return torch.default_generator if given is None else given


@EACH
@UNBATCHED
def test_the_foreseen_epochs_are_those_that_torch_would_give(make: Any, wrap: Any) -> None:
    """Three epochs, each foreseen and then begun; the generator ends where it would have ended."""
    torch.manual_seed(3)
    sampler = wrap(make())
    expected = [list(sampler) for _ in range(3)]
    end = generator_of(getattr(sampler, "sampler", sampler)).get_state()
    torch.manual_seed(3)
    sampler = wrap(make())
    forecast = Forecast(sampler)
    found = []
    for _ in range(3):
        batches = forecast.make()
        assert batches is not None
        assert forecast.came_true(sampler)
        found.append(plain(batches))
    assert found == expected
    assert torch.equal(generator_of(getattr(sampler, "sampler", sampler)).get_state(), end)


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_the_whole_epoch_may_be_drawn_before_it_begins(make: Any) -> None:
    """A short epoch is posted entirely ahead; that leaves no trace on the generator either."""
    torch.manual_seed(3)
    sampler = batched(make())
    expected = [list(sampler), list(sampler)]
    torch.manual_seed(3)
    sampler = batched(make())
    forecast = Forecast(sampler)
    before = generator_of(sampler.sampler).get_state()
    batches = forecast.make()
    assert batches is not None
    assert plain(batches) == expected[0]
    assert torch.equal(generator_of(sampler.sampler).get_state(), before)
    assert forecast.came_true(sampler)
    assert list(sampler) == expected[1]


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "sequential"])
def test_a_touched_generator_makes_the_forecast_void_for_good(name: str) -> None:
    sampler = batched(SAMPLERS[name]())
    forecast = Forecast(sampler)
    assert forecast.make() is not None
    torch.rand((), generator=generator_of(sampler.sampler))
    assert not forecast.came_true(sampler)
    assert forecast.make() is None


def test_a_touched_generator_does_not_matter_to_who_does_not_draw() -> None:
    sampler = batched(SequentialSampler(Data()))
    forecast = Forecast(sampler)
    forecast.make()
    torch.rand(())
    state = torch.get_rng_state()
    assert forecast.came_true(sampler)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_changed_length_makes_the_forecast_void() -> None:
    data = Data(20)
    sampler = batched(SequentialSampler(data))
    forecast = Forecast(sampler)
    forecast.make()
    data.length = 30
    assert not forecast.came_true(sampler)


def test_a_changed_sampler_makes_the_forecast_void() -> None:
    sampler = batched(SubsetRandomSampler([1, 2, 3]))
    forecast = Forecast(sampler)
    forecast.make()
    sampler.sampler.indices = [4, 5, 6]
    assert not forecast.came_true(sampler)


def test_another_sampler_makes_the_forecast_void() -> None:
    forecast = Forecast(batched(SequentialSampler(Data())))
    forecast.make()
    assert not forecast.came_true(batched(SequentialSampler(Data())))


def test_what_was_not_foreseen_does_not_come_true() -> None:
    sampler = batched(SequentialSampler(Data()))
    forecast = Forecast(sampler)
    assert not forecast.came_true(sampler)
    assert forecast.make() is not None
    forecast.give_up()
    assert not forecast.came_true(sampler)
    assert forecast.make() is None


class OwnSequential(SequentialSampler):
    pass


class OwnBatches(BatchSampler):
    pass


@pytest.mark.parametrize(
    "sampler",
    [
        batched([1, 2, 3]),
        batched(OwnSequential(Data())),
        OwnBatches(SequentialSampler(Data()), 2, False),
        batched(DistributedSampler(Data(), 2, 0)),
        [[1], [2]],
    ],
    ids=["list", "own sampler", "own batches", "distributed", "batches"],
)
def test_only_torchs_own_samplers_are_foreseen(sampler: Any) -> None:
    assert Forecast(sampler).make() is None


def test_an_empty_epoch_is_foreseen_as_empty() -> None:
    sampler = batched(SequentialSampler(Data(0)))
    forecast = Forecast(sampler)
    batches = forecast.make()
    assert batches is not None
    assert list(batches) == []
    assert forecast.came_true(sampler)
