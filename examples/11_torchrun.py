"""Several ranks, each with a loader of its own and torch's DistributedSampler, as with torch's loader.

torchrun --nproc-per-node 2 examples/11_torchrun.py    (or without torchrun: one rank)
"""
# ruff: noqa: T201  (an example prints)

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

import minato
import minato.compat

EPOCHS = 2


def main() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dataset = TensorDataset(torch.arange(1_001), torch.randn(1_001, 8))
    sampler: DistributedSampler[int] = DistributedSampler(dataset, shuffle=True)
    model = DistributedDataParallel(nn.Linear(8, 1))
    with minato.DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2, persistent_workers=True) as loader:
        if rank == 0:
            for note in minato.compat.notes(loader):
                print("-", note)
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)  # another order in every epoch
            seen = []
            for numbers, values in loader:
                model(values).sum().backward()  # ranks wait for each other here: all have equally many batches
                seen += numbers.tolist()
            everyone: list[list[int]] = [[]] * ranks
            dist.all_gather_object(everyone, seen)
            if rank == 0:
                together = {number for each in everyone for number in each}
                print(f"epoch {epoch + 1}: {[len(each) for each in everyone]} by rank, {len(together)} distinct")


if __name__ == "__main__":
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)  # torchrun has set them
    dist.init_process_group("gloo")
    try:
        main()
    finally:
        dist.destroy_process_group()
