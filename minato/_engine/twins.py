"""Streams that give the same: every worker of an iterable dataset that is not divided among them repeats all of it.

Looked at once, when the first batch of each stream of a loader's first workers has been delivered. The bytes of the
batches are compared, not their values: a false alarm would take streams that really begin alike, and nothing else.
"""

from __future__ import annotations

import warnings
import zlib

from .._errors import RepeatedStreamWarning
from .._queues.mapping import Bytes

MOST_BYTES = 1 << 20  # of a batch that are looked at


class Twins:
    """The first batches of one engine's streams."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._digests: dict[int, int] = {}
        self.is_over = streams < 2
        """Whether there is nothing more to look at."""
        self.found = False
        """Whether all streams began alike, and nobody was told."""

    def look(self, worker: int, full: bool, payload: Bytes) -> None:
        """A worker's stream has given a batch: whether it is a full one, and its bytes."""
        if worker in self._digests:
            return
        if not full:  # what is behind its last row is of another batch
            self.is_over = True
            return
        self._digests[worker] = zlib.crc32(payload[:MOST_BYTES].data)
        if len(set(self._digests.values())) > 1:
            self.is_over = True
        elif len(self._digests) == self._streams:
            self.is_over = self.found = True

    def tell(self) -> None:
        """Warn of what was found. Between two batches: where warnings are errors, none may be lost."""
        self.found = False
        warnings.warn(
            f"all {self._streams} workers began with the same batch: each seems to iterate the whole dataset, so that "
            "every sample comes once per worker. Divide the stream by torch.utils.data.get_worker_info() in "
            "__iter__ or worker_init_fn, or use num_workers=1. If that is meant, ignore "
            "minato.errors.RepeatedStreamWarning.",
            RepeatedStreamWarning,
            stacklevel=5,
        )
