"""The control block: a small shared file of 64-bit words, and the lock that protects it.

    header | batch records | worker records | orphan ring | spare-row ring | free slots | early tickets | costs |
    ring of what is set aside | times of stages

Written by the main process and by workers, always under `ControlBlock.lock`, except for a worker's own sleep flag and
the stop word, which are single words that are read again after every wake-up. The lock is a POSIX record lock
(`fcntl.lockf`), which the kernel releases when its holder dies; a `multiprocessing.Lock` would stay held for ever.

What a killed process leaves half-written here is repaired by `recovery.recover`, which trusts only two things: the
owner word of each row (one aligned 8-byte store: done by whom) and the hands of workers that are still alive.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

from .fields import Batch, Header, Parked, Worker
from .mapping import map_file

_HEADER_WORDS = 64
BATCH_WORDS = 24
_WORKER_WORDS = 16
TIMES_PER_WORKER = 64  # newest runs whose time is kept until the main process has read them
_TIME_WORDS = 2
PARKED_PER_WORKER = 8  # unfinished samples that a worker may have put aside
_PARKED_WORDS = 2
_ORPHANS_PER_WORKER = 4 + PARKED_PER_WORKER  # a worker leaves at most a run, a claim, a collation and these behind
_ORPHAN_WORDS = 3
MOST_EARLY = 16  # tickets of a batch that may be taken before their turn
_EARLY_WORDS = 3 + MOST_EARLY
COSTS_PER_WORKER = 64  # newest slow samples whose cost is kept until the main process has read it
_COSTS_WORDS = 1 + 2 * COSTS_PER_WORKER
MOST_STAGES = 32  # names of stages that a worker tells; a pipeline with more is one whose names change
STAGE_NAME_WORDS = 8
STAGE_NOTES = 64  # newest times of stages that are kept until the main process has read them
_STAGE_WORDS = 2 + MOST_STAGES * STAGE_NAME_WORDS + 2 * STAGE_NOTES
MOST_REOPENED = 2048  # tickets fetched again at a time, each of them possibly an orphan with a spare row of its own
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
_SPINS = 8  # tries before sleeping: the lock is held for microseconds, and being woken takes a hundred


class PoolLock:
    """The lock over all processes of a pool. A record lock does not exclude threads of its own process: in the main
    process the engine lets one thread in at a time, and a worker has one thread, or a `ThreadsLock`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        try:
            for _ in range(_SPINS):
                try:
                    fcntl.lockf(self._fd, _TRY, 1)
                except OSError:
                    continue
                return
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
        except BaseException:  # Ctrl-C right after it was taken
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
            raise

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)


class ControlBlock:
    """Words shared by all processes of a pool. The caller adds a field to the index of a record's first word.

    Never open or close a second descriptor of this file: the kernel would drop the process's locks with it.
    """

    def __init__(self, fd: int, batches: int, workers: int, lanes: int = 1, remote: int = 0) -> None:
        self.fd = fd
        self.batches = batches
        """Batch records; a batch's record is its number modulo this."""
        self.workers = workers
        """The most worker processes there can be at once."""
        self.lanes = lanes
        """Records of each worker process. Below, "worker" is the number of a record: process times lanes plus lane."""
        self.remote = remote
        """Records of the remote side, behind those of the workers here."""
        self.records = records = workers * lanes + remote
        """Worker records."""
        self._batch_base = _HEADER_WORDS
        self._worker_base = self._batch_base + batches * BATCH_WORDS
        self.orphans = batches + records * _ORPHANS_PER_WORKER + 2 * MOST_REOPENED  # every batch may be an empty one
        """Entries of the orphan ring and of the spare-row ring."""
        self._parked_base = self._worker_base + records * _WORKER_WORDS
        self._times_base = self._parked_base + records * PARKED_PER_WORKER * _PARKED_WORDS
        self._orphan_base = self._times_base + records * TIMES_PER_WORKER * _TIME_WORDS
        self._spare_base = self._orphan_base + self.orphans * _ORPHAN_WORDS
        self.free_base = self._spare_base + self.orphans * _ORPHAN_WORDS
        self._early_base = self.free_base + batches
        self._costs_base = self._early_base + batches * _EARLY_WORDS
        self._away_base = self._costs_base + records * _COSTS_WORDS
        self._stages_base = self._away_base + batches * _ORPHAN_WORDS
        words = self._stages_base + records * _STAGE_WORDS
        self.nbytes = -(-words * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
        self.lock = PoolLock(fd)
        self.words = memoryview(b"")

    @classmethod
    def create(cls, batches: int, workers: int, lanes: int = 1, remote: int = 0) -> ControlBlock:
        block = cls(os.memfd_create("minato-control", os.MFD_CLOEXEC), batches, workers, lanes, remote)
        try:
            os.ftruncate(block.fd, block.nbytes)
            block.map()
            block.words[Header.ACTIVE] = block.records_here
            block.words[Header.FETCHES] = lanes
        except BaseException:
            block.close()
            raise
        return block

    def map(self) -> None:
        """Map the file into this process. Once per process: see the class's note."""
        self.words = map_file(self.fd, self.nbytes, 0).data.cast("q")

    @property
    def records_here(self) -> int:
        """Records of the workers here, which come first."""
        return self.records - self.remote

    def lanes_of(self, process: int) -> range:
        """The records of a worker process; those of the remote side, if `process` is the number after the last."""
        if process == self.workers:
            return range(self.records_here, self.records)
        return range(process * self.lanes, (process + 1) * self.lanes)

    def batch(self, number: int) -> int:
        """Index of the first word of a batch's record."""
        return self._batch_base + number % self.batches * BATCH_WORDS

    def states(self, batches: Sequence[int]) -> list[int]:
        """The states of batches: asked for several times a batch, so in one look."""
        words, first, count = self.words, self._batch_base + Batch.STATE, self.batches
        return [words[first + number % count * BATCH_WORDS] for number in batches]

    def worker(self, worker: int) -> int:
        """Index of the first word of a worker's record."""
        return self._worker_base + worker * _WORKER_WORDS

    def of_workers(self, field: int, workers: int) -> list[int]:
        """One word of the records of each of the first `workers` workers."""
        first = self._worker_base + field
        return self.words[first : first + workers * _WORKER_WORDS : _WORKER_WORDS].tolist()

    def phases(self, workers: int) -> list[int]:
        """What each of the first `workers` workers said it was doing."""
        return self.of_workers(Worker.PHASE, workers)

    def parked(self, worker: int, entry: int) -> int:
        """Index of the first word of an entry of a worker's temp queue."""
        return self._parked_base + (worker * PARKED_PER_WORKER + entry) * _PARKED_WORDS

    def count_parked(self) -> int:
        """Entries in all temp queues."""
        batches = self.words[self._parked_base + Parked.BATCH : self._times_base : _PARKED_WORDS].tolist()
        return len(batches) - batches.count(0)

    def times(self, worker: int, count: int) -> int:
        """Index of the two words about a worker's run number `count`: samples in it, and nanoseconds it took.
        Samples that came from a cache are counted below zero."""
        return self._times_base + (worker * TIMES_PER_WORKER + count % TIMES_PER_WORKER) * _TIME_WORDS

    def early(self, number: int) -> int:
        """Index of the first word about a batch's early tickets."""
        return self._early_base + number % self.batches * _EARLY_WORDS

    def costs(self, worker: int) -> int:
        """Index of the first word about what a worker's slow samples cost."""
        return self._costs_base + worker * _COSTS_WORDS

    def cost_counts(self, workers: int) -> list[int]:
        """The first of these words, of each of the first `workers` workers."""
        return self.words[self._costs_base : self.costs(workers) : _COSTS_WORDS].tolist()

    def stage_notes(self, worker: int) -> int:
        """Index of the first word about what the stages of a worker's samples took; see `stage_notes`."""
        return self._stages_base + worker * _STAGE_WORDS

    def stage_counts(self, field: int, workers: int) -> list[int]:
        """One of these words, of each of the first `workers` workers."""
        return self.words[self._stages_base + field : self.stage_notes(workers) : _STAGE_WORDS].tolist()

    def orphan(self, count: int) -> int:
        """Index of the first word of the orphan ring's entry `count`."""
        return self._orphan_base + count % self.orphans * _ORPHAN_WORDS

    def spare(self, count: int) -> int:
        """Index of the first word of the spare-row ring's entry `count`."""
        return self._spare_base + count % self.orphans * _ORPHAN_WORDS

    def away(self, count: int) -> int:
        """Index of the first word of entry `count` of the ring of what is set aside: at most one for each batch."""
        return self._away_base + count % self.batches * _ORPHAN_WORDS

    def close(self) -> None:
        self.words = memoryview(b"")
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
