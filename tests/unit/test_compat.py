"""`minato.compat.notes`: what to know about a loader in a distributed run."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data.distributed import DistributedSampler

import minato
from minato.compat import notes

DATA = range(10)
ALONE: dict[str, str] = {}
TWO_RANKS = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def distributed(ranks: int = 2, length: int = 10, **options: Any) -> DistributedSampler[int]:
    return DistributedSampler(range(length), num_replicas=ranks, rank=0, **options)


def test_a_program_of_one_process_gets_no_notes() -> None:
    assert notes(minato.DataLoader(DATA, shuffle=True, num_workers=2), ALONE) == ()


@pytest.mark.parametrize("cls", [minato.DataLoader, TorchLoader])
def test_ranks_without_a_distributed_sampler_are_told_that_all_get_everything(cls: Any) -> None:
    (note,) = notes(cls(DATA, shuffle=True), TWO_RANKS)
    assert "every rank gets all of them" in note


def test_ranks_over_a_stream_are_told_to_split_it() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(DATA)

    (note,) = notes(minato.DataLoader(Stream()), TWO_RANKS)
    assert "read the whole stream" in note


def test_shuffling_needs_set_epoch() -> None:
    assert notes(minato.DataLoader(DATA, sampler=distributed(shuffle=False)), TWO_RANKS) == ()
    (note,) = notes(minato.DataLoader(DATA, sampler=distributed()), TWO_RANKS)
    assert "set_epoch" in note


def test_a_sampler_for_another_number_of_ranks_is_told() -> None:
    (note,) = notes(minato.DataLoader(range(12), sampler=distributed(3, 12, shuffle=False)), TWO_RANKS)
    assert "splits over 3 ranks and 2 are running" in note


def test_samples_given_to_two_ranks_are_counted() -> None:
    loader = minato.DataLoader(range(11), sampler=distributed(4, 11, shuffle=False))
    (note,) = notes(loader, ALONE)
    assert "so that all have equally many: 1." in note


def test_leaving_samples_out_is_told_since_ranks_may_fall_out_of_step() -> None:
    loader = minato.DataLoader(DATA, sampler=distributed(shuffle=False), on_error="skip")
    (note,) = notes(loader, TWO_RANKS)
    assert "wait for each other for ever" in note


def test_the_sampler_below_a_batch_sampler_is_found() -> None:
    loader = minato.DataLoader(DATA, batch_sampler=BatchSampler(distributed(), 2, False))
    assert any("set_epoch" in note for note in notes(loader, TWO_RANKS))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_more_workers_than_a_ranks_share_of_the_cores_is_told() -> None:
    many = len(os.sched_getaffinity(0)) + 1
    loader = minato.DataLoader(DATA, sampler=distributed(shuffle=False), num_workers=many)
    assert any("more than its share of cores" in note for note in notes(loader, TWO_RANKS))


def test_a_world_size_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        notes(minato.DataLoader(DATA), {"WORLD_SIZE": "two"})
