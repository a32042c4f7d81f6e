"""The datasets that the benchmarks load, and how a batch of each is read and checked.

Every sample carries its own index, and at least one value of the payload is computed from that index. So a reader can
say which samples a batch holds, and whether rows and labels still belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from minato.bench.datasets import (
    BigImages,
    CheapImages,
    Reader,
    SlowSamples,
    Tokens,
    WrongBatchError,
    check_exactly_once,
    expect,
    pad_tokens,
)

__all__ = [  # beside what is defined here
    "BigImages",
    "CheapImages",
    "Reader",
    "SlowSamples",
    "Tokens",
    "WrongBatchError",
    "check_exactly_once",
    "pad_tokens",
]


class CheapStream(IterableDataset[tuple[Tensor, int]]):
    """The images of `CheapImages` as a stream; worker k of n yields every n-th sample from the k-th on."""

    def __init__(self, length: int, stored: int = 50_000) -> None:
        self.source = CheapImages(length, stored)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for index in range(first, len(self.source), step):
            yield self.source[index]

    def read(self, batch: Any) -> Tensor:
        """Indices of a batch of (images, indices)."""
        return self.source.read(batch)


class NestedRecords(Dataset[dict[str, Any]]):
    """Nested dicts of six small tensors, two ints and one string, as detection and multi-modal datasets give them."""

    def __init__(self, length: int, stored: int = 4096) -> None:
        self.length = length
        self.table = torch.rand(stored, 64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.table[index % len(self.table)]
        return {
            "features": {"dense": row[:32] * 2.0, "sparse": row[32:48] + 1.0, "context": row[48:].clone()},
            "boxes": {"xywh": row[:16].reshape(4, 4).clone(), "score": row[16:20].sigmoid()},
            "key": torch.tensor([index, index + 1]),
            "index": index,
            "label": index % 10,
            "name": f"sample-{index}",
        }

    def read(self, batch: Any) -> Tensor:
        """Indices of a collated batch."""
        indices = batch["index"]
        last = int(indices[-1])
        for tensor in (*batch["features"].values(), batch["boxes"]["score"]):
            float(tensor[-1, 0])
        float(batch["boxes"]["xywh"][-1, 0, 0])
        expect("key", float(batch["key"][-1, 1]), last + 1)
        expect("label", float(batch["label"][-1]), last % 10)
        if batch["name"][-1] != f"sample-{last}":
            raise WrongBatchError(f"name {batch['name'][-1]!r} came with index {last}")
        return torch.clone(indices)


@dataclass(frozen=True)
class Workload:
    """A dataset, the number of samples of one epoch of it, and how its batches are read."""

    make_dataset: Callable[[int], Any]
    samples: int
    quick_samples: int
    reader: str = "read"

    def build(self, quick: bool) -> Any:
        """The dataset, of the full or the quick length."""
        return self.make_dataset(self.length(quick))

    def length(self, quick: bool) -> int:
        """Samples in one epoch."""
        return self.quick_samples if quick else self.samples
