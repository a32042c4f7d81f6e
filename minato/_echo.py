"""`minato.echo()`: each batch several times, where batches cannot be made as fast as they could be used."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any


class echo(Iterable[Any]):
    """The batches of `batches`, each `times` times in a row: data echoing.

        for batch in minato.echo(loader, 2):
            train(batch)

    For a loop that waits for its loader though nothing can make that faster: what the loader makes is used more than
    once. This changes the statistics of training, as if the dataset held each sample `times` times in a row, so it is
    never done unless it is asked for. Augmentation that is to differ from time to time belongs in the loop.

    What comes is a copy each time, the last time the batch itself: a loop that changes a batch in place finds the next
    one unchanged. Copies lie where the tensors lie, but not in page-locked memory; with `device=` they are made on the
    device. Any iterable of batches will do; `batches` and `times` are attributes.
    """

    def __init__(self, batches: Iterable[Any], times: int) -> None:
        """`times`: 1 gives the batches as they are."""
        if type(times) is not int:
            raise TypeError(f"echo needs times as a whole number, not {times!r}")
        if times < 1:
            raise ValueError(f"echo needs times of at least 1, not {times}: a batch cannot come less often than once")
        self.batches = batches
        self.times = times

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            for _ in range(self.times - 1):
                yield copy.deepcopy(batch)
            yield batch
            del batch  # the loader may use its memory again while the next one is waited for

    def __len__(self) -> int:
        return self.times * len(self.batches)  # type: ignore[arg-type]
