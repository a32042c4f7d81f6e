"""Workers are put on cores, and behind other processes, where that is asked for."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils.data import Dataset

from minato import DataLoader
from minato._workers.placing import core_of


class Places(Dataset):
    """Says where it is made: worker, cores it may use, the first of them, and its priority."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        cores = sorted(os.sched_getaffinity(0))
        return torch.tensor([torch.utils.data.get_worker_info().id, len(cores), cores[0], os.nice(0)])


def seen(**options):
    with DataLoader(Places(), 2, num_workers=2, **options) as loader:
        return {tuple(row.tolist()) for batch in loader for row in batch}


@pytest.mark.parametrize("options", [{}, {"multiprocessing_context": "spawn"}, {"fetcher": "threaded"}])
def test_workers_keep_to_one_core_each_with_less_priority(options):
    """The threads of a worker, too; the main process stays where it is."""
    before = os.sched_getaffinity(0), os.nice(0)
    cores = sorted(os.sched_getaffinity(0))
    for worker, count, core, nice in seen(worker_affinity="spread", worker_nice=3, **options):
        assert (count, core) == (1, cores[worker % len(cores)])
        assert nice == before[1] + 3
    assert (os.sched_getaffinity(0), os.nice(0)) == before


def test_by_default_nothing_is_changed():
    cores = sorted(os.sched_getaffinity(0))
    assert {row[1:] for row in seen()} == {(len(cores), cores[0], os.nice(0))}


def test_ranks_of_a_node_begin_at_different_cores(monkeypatch):
    """Workers of all ranks are counted on."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    cores = sorted(os.sched_getaffinity(0))
    assert all(core == cores[(2 + worker) % len(cores)] for worker, _, core, _ in seen(worker_affinity="spread"))
    assert [core_of(place, {3, 5, 9}) for place in range(5)] == [3, 5, 9, 3, 5]
