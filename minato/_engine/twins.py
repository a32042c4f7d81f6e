"""Streams that give the same: every worker of an iterable dataset that is not divided among them repeats all of it.

Looked at once, in the first epoch of a loader's first workers: the first batches of each stream, or all batches of
shorter ones. The bytes of the batches are compared, not their values. One batch would not be enough: streams may well
begin alike.
"""

from __future__ import annotations

import warnings
import zlib

from .._errors import RepeatedStreamWarning
from .._queues.mapping import Bytes

MOST_BYTES = 1 << 17  # at either end of a batch that are looked at: images may be alike, with labels behind them
BATCHES = 16  # of each stream


class Twins:
    """The first batches of one engine's streams."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._digests: dict[int, list[int]] = {}
        """Of each stream's first batches."""
        self.is_over = streams < 2
        """Whether there is nothing more to look at."""
        self.found = False
        """Whether all streams are alike, and nobody was told."""

    def look(self, worker: int, full: bool, payload: Bytes) -> None:
        """A worker's stream has given a batch: whether it is a full one, and its bytes."""
        mine = self._digests.setdefault(worker, [])
        if not full or len(mine) == BATCHES:  # what is behind the last row of a short one is of another batch
            return
        place = len(mine)
        mine.append(zlib.crc32(payload[-MOST_BYTES:].data, zlib.crc32(payload[:MOST_BYTES].data)))
        if any(len(other) > place and other[place] != mine[place] for other in self._digests.values()):
            self.is_over = True
        elif len(self._digests) == self._streams and all(len(each) == BATCHES for each in self._digests.values()):
            self.is_over = self.found = True

    def end(self) -> None:
        """The epoch is over."""
        if not self.is_over:
            lengths = {len(each) for each in self._digests.values()}
            self.found = len(self._digests) == self._streams and len(lengths) == 1 and 0 not in lengths
            self.is_over = True

    def tell(self) -> None:
        """Warn of what was found, if anything was. Between two batches: where warnings are errors, none may be lost."""
        if not self.found:
            return
        self.found = False
        warnings.warn(
            f"all {self._streams} workers gave the same batches: each seems to iterate the whole dataset, so that "
            "every sample comes once per worker. Divide the stream by torch.utils.data.get_worker_info() in "
            "__iter__ or worker_init_fn, or use num_workers=1. If that is meant, ignore "
            "minato.errors.RepeatedStreamWarning.",
            RepeatedStreamWarning,
            stacklevel=6,
        )
