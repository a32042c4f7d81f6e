"""The life of each batch: preprocessed, waited for, consumed.

Several workers may make a batch together, and in re-ordered mode its samples come from anywhere: it counts as
preprocessed from the start of its first sample to the end of its last row (T1). Numbers are given here to all batches
of a run, over ranks, pools and epochs, in the order of rank, pool and number in the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._instrument import NONE, Flag, Kind
from .reading import ProcessTrace, Records, RunTrace

Numbers = npt.NDArray[np.int64]
MADE = (Kind.RUN, Kind.COLLATION)


@dataclass(frozen=True, slots=True)
class BatchLife:
    """One batch. Times in nanoseconds of the wall clock; None: the event is not in the trace."""

    id: int
    """Number among all batches of the run."""
    rank: int
    pool: int
    number: int
    """Number in its pool."""
    start_ns: int | None
    """Its first sample was begun."""
    done_ns: int | None
    """Its last row was written, or its collation ended."""
    busy_ns: int
    """Work on it, summed over workers."""
    workers: tuple[int, ...]
    """Process ids of those who made it."""
    finisher: int | None
    """Process id of the one who ended last."""
    samples: int
    nbytes: int
    wait_start_ns: int | None
    wait_ns: int | None
    """What the consumer waited for it."""
    was_ready: bool
    """It was there when it was asked for."""
    consumed_ns: int | None

    @property
    def preprocess_ns(self) -> int | None:
        """T1: from the first sample's start to the last row."""
        return None if self.start_ns is None or self.done_ns is None else self.done_ns - self.start_ns

    @property
    def delay_ns(self) -> int | None:
        """From being done to being consumed. Never below zero: the two are seen by different processes."""
        if self.consumed_ns is None or self.done_ns is None:
            return None
        return max(0, self.consumed_ns - self.done_ns)


def batches(run: RunTrace) -> list[BatchLife]:
    """All batches of a run, in order of their ids."""
    lives: list[BatchLife] = []
    for rank in run.ranks:
        lives += _of_rank(rank, run.of_rank(rank), len(lives))
    return lives


def _of_rank(rank: int, processes: list[ProcessTrace], first_id: int) -> list[BatchLife]:
    made, makers = _joined(processes, MADE)
    own_ns = np.concatenate([run_lengths(chosen) for chosen in _chosen(processes, MADE)])
    asked, _ = _joined(processes, (Kind.WAIT,))
    taken, _ = _joined(processes, (Kind.CONSUMED,))
    keys: Numbers = np.unique(np.concatenate([_key(made), _key(asked), _key(taken)]))
    work = _Work(keys, made, makers, own_ns)
    wait_at, consumed_at = _places(keys, asked), _places(keys, taken)
    lives = []
    for place, key in enumerate(keys.tolist()):
        wait = asked[wait_at[place]] if wait_at[place] >= 0 else None
        consumed = taken[consumed_at[place]] if consumed_at[place] >= 0 else None
        lives.append(
            BatchLife(
                id=first_id + place,
                rank=rank,
                pool=key >> 40,
                number=key & ((1 << 40) - 1),
                start_ns=work.start(place),
                done_ns=work.done(place),
                busy_ns=int(work.busy_ns[place]),
                workers=work.workers(place),
                finisher=work.finisher(place),
                samples=int(work.samples[place]) if consumed is None else int(consumed["count"]),
                nbytes=0 if consumed is None else int(consumed["nbytes"]),
                wait_start_ns=None if wait is None else int(wait["start_ns"]),
                wait_ns=None if wait is None else int(wait["duration_ns"]),
                was_ready=wait is not None and bool(wait["flags"] & Flag.READY),
                consumed_ns=None if consumed is None else int(consumed["start_ns"]),
            )
        )
    return lives


class _Work:
    """What RUN and COLLATION records say of each key."""

    def __init__(self, keys: Numbers, made: Records, makers: Numbers, own_ns: Numbers) -> None:
        at = np.searchsorted(keys, _key(made))
        ends = made["start_ns"] + made["duration_ns"]
        self._starts = np.full(len(keys), np.iinfo(np.int64).max)
        self._ends = np.full(len(keys), NONE, dtype=np.int64)
        np.minimum.at(self._starts, at, made["start_ns"])
        np.maximum.at(self._ends, at, ends)
        runs = made["kind"] == Kind.RUN
        self.samples = np.bincount(at[runs], made["count"][runs], len(keys)).astype(np.int64)
        self.busy_ns = np.bincount(at[runs], own_ns[runs], len(keys)).astype(np.int64)
        by_key = np.lexsort((ends, at))
        self._makers = makers[by_key]
        self._first = np.searchsorted(at[by_key], np.arange(len(keys) + 1))

    def start(self, place: int) -> int | None:
        return int(self._starts[place]) if self._ends[place] >= 0 else None

    def done(self, place: int) -> int | None:
        return int(self._ends[place]) if self._ends[place] >= 0 else None

    def workers(self, place: int) -> tuple[int, ...]:
        return tuple(sorted(set(self._of(place).tolist())))

    def finisher(self, place: int) -> int | None:
        makers = self._of(place)
        return int(makers[-1]) if len(makers) else None

    def _of(self, place: int) -> Numbers:
        return self._makers[self._first[place] : self._first[place + 1]]


def run_lengths(made: Records) -> Numbers:
    """How long each run of samples kept its worker, in nanoseconds; 0 for records of other kinds.

    Samples that were made together may go to two batches: both runs last until their rows were written, so the second
    lies over the end of the first. Time that both cover counts for the second.
    """
    lengths = np.zeros(len(made), dtype=np.int64)
    places = np.flatnonzero(made["kind"] == Kind.RUN)
    order = places[np.lexsort((made["start_ns"][places], made["thread"][places]))]
    starts, ends = made["start_ns"][order], made["start_ns"][order] + made["duration_ns"][order]
    followed = made["thread"][order][1:] == made["thread"][order][:-1]
    ends[:-1] = np.where(followed, np.minimum(ends[:-1], starts[1:]), ends[:-1])
    lengths[order] = ends - starts
    return lengths


def _chosen(processes: Iterable[ProcessTrace], kinds: tuple[Kind, ...]) -> list[Records]:
    """Of each process the records of some kinds that belong to a batch; copies."""
    found = [process.of(*kinds) for process in processes]
    return [records[records["batch"] != NONE] for records in found]


def _joined(processes: Sequence[ProcessTrace], kinds: tuple[Kind, ...]) -> tuple[Records, Numbers]:
    """Records that belong to a batch, on the wall clock, and the process id of each."""
    parts: list[Records] = []
    pids: list[Numbers] = []
    for process, chosen in zip(processes, _chosen(processes, kinds), strict=True):
        chosen["start_ns"] += process.header.wall_offset_ns
        parts.append(chosen)
        pids.append(np.full(len(chosen), process.header.pid, dtype=np.int64))
    return np.concatenate(parts), np.concatenate(pids)


def _key(records: Records) -> Numbers:
    """Pool and number of each record's batch in one word."""
    keys: Numbers = (records["pool"].astype(np.int64) << 40) | records["batch"]
    return keys


def _places(keys: Numbers, records: Records) -> Numbers:
    """For each key the number of its last record, -1 if there is none."""
    places = np.full(len(keys), NONE, dtype=np.int64)
    places[np.searchsorted(keys, _key(records))] = np.arange(len(records))
    return places
