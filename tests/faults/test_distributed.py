"""Two ranks, each with a loader of its own, that have to take as many steps as each other."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from minato import DataLoader

RANKS, LENGTH, BATCH = 2, 46, 4


class Uneven(Dataset):
    """Samples of one rank's half of the indices take longer, and one in ten much longer."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        time.sleep(0.02 if index % 10 == 3 else 0.001 * (1 + index % 2))
        return index


def train(rank, meeting_place, in_order, results):
    """What a training script does: an epoch of steps, each of which meets the other rank."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=RANKS)
    dataset = Uneven()
    sampler = DistributedSampler(dataset, RANKS, rank, shuffle=True, seed=5)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=2, persistent_workers=True, in_order=in_order)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = []
        for batch in loader:
            steps = torch.ones(1)
            torch.distributed.all_reduce(steps)
            assert steps.item() == RANKS
            seen.append(batch.tolist())
        epochs.append(seen)
    results.put((rank, epochs))
    loader.close()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("in_order", [None, True], ids=["re-ordered", "in order"])
def test_ranks_take_equal_steps_and_share_the_samples(tmp_path: Path, in_order):
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    meeting_place = tmp_path / "meeting"
    ranks = [context.Process(target=train, args=(r, meeting_place, in_order, results)) for r in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(45)
        assert process.exitcode == 0
    epochs = dict(results.get() for _ in ranks)
    results.close()
    for epoch in range(2):
        of_ranks = [epochs[rank][epoch] for rank in range(RANKS)]
        assert [list(map(len, batches)) for batches in of_ranks] == [[4, 4, 4, 4, 4, 3]] * RANKS
        seen = sorted(index for batches in of_ranks for batch in batches for index in batch)
        assert seen == list(range(LENGTH))
    assert epochs[0][0] != epochs[0][1], "set_epoch did not change the order"
