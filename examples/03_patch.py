"""minato in a program that imports torch's loader, without editing it; `minato.compat` says what to know about it.

python examples/03_patch.py
"""
# ruff: noqa: T201  (an example prints)

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import minato
import minato.compat


def their_main() -> None:
    """Somebody else's program: knows nothing of minato."""
    data = TensorDataset(torch.arange(100.0))
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
    total = sum(float(batch.sum()) for (batch,) in loader)
    print(f"{type(loader).__module__}.{type(loader).__name__}: sum {total:.0f} in {len(loader)} batches")


if __name__ == "__main__":
    their_main()
    with minato.patch():
        their_main()
    with minato.patch(in_order=True):  # defaults for loaders made meanwhile, where their maker gives none
        their_main()

    data = TensorDataset(torch.arange(101.0))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    for note in minato.compat.notes(minato.DataLoader(data, batch_size=16, sampler=sampler, num_workers=2)):
        print("-", note)
