"""What a loader can hardly pass: processes that make samples and stack them, and hand nothing over.

Not a strict bound: they leave malloc as it is, which may give the memory of a batch back to the system after each.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class NoLoader:
    """Every sample of a dataset of (tensor, index) once, made by `num_workers` processes in batches, and thrown away.

    What is yielded, once all are done, has the indices of each batch, and in every place the first number of its last
    tensor: enough for a reader to see that each sample was really made.
    """

    def __init__(self, dataset: Any, batch_size: int, num_workers: int, shuffle: bool = True) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._workers = num_workers
        self._shuffle = shuffle

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        length = len(self._dataset)
        order = torch.randperm(length) if self._shuffle else torch.arange(length)
        batches = order.split(self._batch_size)
        last = torch.zeros(len(batches)).share_memory_()
        fork = multiprocessing.get_context("fork")
        shares = [(batches[k :: self._workers], last[k :: self._workers]) for k in range(self._workers)]
        processes = [fork.Process(target=self._make, args=share) for share in shares]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                raise RuntimeError(f"a process that makes samples ended with {process.exitcode}")
        shape = self._dataset[0][0].shape
        for number, indices in enumerate(batches):
            yield last[number].expand(len(indices), *shape), indices

    def _make(self, batches: Sequence[Tensor], last: Tensor) -> None:
        torch.set_num_threads(1)
        room = torch.empty(0)
        for number, indices in enumerate(batches):
            samples = [self._dataset[index] for index in indices.tolist()]
            if len(room) != len(samples):
                room = torch.empty(len(samples), *samples[0][0].shape)
            torch.stack([tensor for tensor, _ in samples], 0, out=room)
            last[number] = room[-1].flatten()[0]
