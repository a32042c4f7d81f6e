"""What to post next: tickets of the sampler's batches, or turns of the workers' streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._errors import InternalError
from .._plan import Collate, Order, Source, WorkerPlan
from .._queues.control import Flag
from .._queues.keys import Indices, Keys
from .._queues.ledger import Ledger
from .._queues.posting import PostingBoard
from .._queues.recovery import OpenEpoch
from .sampling import batches_of

_END: Any = object()


class Feed(ABC):
    """One epoch's work, posted batch by batch."""

    def __init__(self, epoch: int, seed: int, plan: WorkerPlan) -> None:
        self.epoch = epoch
        self.ledger = Ledger()
        self.exhausted = False
        self.out: list[int] = []
        """Batches posted and not delivered, oldest first."""
        self._seed = seed
        self._started = False
        self._late_rows = plan.order is Order.SAMPLES_OVERTAKE
        self._flags = 0 if plan.collate is Collate.ROWS else Flag.COLLATE

    @abstractmethod
    def post(self, board: PostingBoard, slot: int) -> bool:
        """Post one batch into `slot`. False: there is nothing left to post."""

    @abstractmethod
    def ended(self, batch: int) -> None:
        """A posted batch turned out to have nothing in it: its stream has ended."""

    def deliverable(self) -> Sequence[int]:
        """Batches that may be delivered next, if batches may overtake."""
        return self.out

    @property
    def oldest(self) -> int | None:
        """The oldest batch that is not delivered, or has a straggler among its tickets."""
        return min((n for n in (self.ledger.oldest, *self.out[:1]) if n is not None), default=None)

    def is_settled(self, board: PostingBoard) -> bool:
        """Whether all that is posted is complete, without errors that have to be seen to."""
        return all(board.is_sound(batch) for batch in self.out)

    def open_epoch(self) -> OpenEpoch:
        """What is not delivered, for recovery."""
        return OpenEpoch(self.ledger.open_batches, self.out, self.ledger if self._late_rows else None)

    def _post(self, board: PostingBoard, slot: int, keys: Keys, rows: int, worker: int = -1) -> int:
        number = board.publish(
            epoch=self.epoch,
            seed=self._seed,
            position=self.ledger.issued,
            keys=keys,
            rows=rows,
            slot=slot,
            flags=self._flags,
            first=not self._started,
            worker=worker,
        )
        self._started = True
        self.out.append(number)
        return number


class TicketFeed(Feed):
    """The sampler's batches of a map-style dataset."""

    def __init__(self, epoch: int, seed: int, plan: WorkerPlan, sampler: Iterator[Any]) -> None:
        super().__init__(epoch, seed, plan)
        self._sampler = sampler
        self._single = plan.collate is Collate.NONE
        self._full = 0
        self._drained = False
        """Whether the sampler has no more."""
        self._drop_last = plan.drop_last
        self.refills = plan.skips and plan.short_batch_last
        """Whether a sample that is left out is replaced by the next one of the sampler: torch's own batching."""
        self._reserve: list[object] = []
        """Keys that were taken from the sampler to replace others, and are not posted yet."""
        self._short_last = plan.short_batch_last
        self._short: int | None = None
        """A batch that has to wait until all others are delivered: every batch is full but the last."""

    def post(self, board: PostingBoard, slot: int) -> bool:
        keys = self._from_reserve(board) if self._reserve else self._from_sampler()
        if keys is _END:
            self._drained = True
            self.exhausted = not self._reserve
            return False
        keys = [keys] if self._single else keys if isinstance(keys, Indices) else list(keys)
        number = self._post(board, slot, keys, len(keys))
        self.ledger.issue(number, len(keys))
        self._full = self._full or len(keys)
        if len(keys) < self._full and self._short_last:
            self._short = number
        return True

    def spare_keys(self, most: int) -> list[object]:
        """Keys not given out yet, to take the places of others. Fewer than `most`: the sampler has no more."""
        while len(self._reserve) < most and self._refill():
            pass
        keys, self._reserve = self._reserve[:most], self._reserve[most:]
        return keys

    def give_back(self, batch: int, keys: Sequence[object]) -> None:
        """Keys of a batch that was taken back: they are given out again."""
        self._short = None if self._short == batch else self._short
        self._reserve += keys
        self.exhausted = self.exhausted and not self._reserve

    def has_shrunk(self, batch: int) -> None:
        """The last batch has lost samples: no other may come after it."""
        self._short = batch

    def last_of(self, batches: Sequence[int]) -> int:
        """Which of the batches is delivered last."""
        return self._short if self._short is not None and self._short in batches else max(batches)

    def _from_sampler(self) -> Any:
        return _END if self._drained else next(self._sampler, _END)

    def _refill(self) -> bool:
        keys = self._from_sampler()
        if keys is _END:
            self._drained = True
            return False
        self._reserve += keys.tolist() if isinstance(keys, Indices) else keys
        return True

    def _from_reserve(self, board: PostingBoard) -> Any:
        """The next batch's keys, those in reserve first. `_END`: what is left is to be dropped, or may still be needed
        to fill other batches."""
        while len(self._reserve) < self._full and self._refill():
            pass
        if len(self._reserve) < self._full:
            if self._drop_last:
                self._reserve.clear()
            if self._drop_last or not self.is_settled(board):
                return _END
        keys, self._reserve = self._reserve[: self._full], self._reserve[self._full :]
        return keys

    def deliverable(self) -> Sequence[int]:
        return self.out if self._short is None else [n for n in self.out if n != self._short] or self.out

    def ended(self, batch: int) -> None:
        raise InternalError(f"batch {batch} of a map-style dataset ended like a stream")


class StreamFeed(Feed):
    """Turns of the workers' streams of an iterable dataset: round and round, as torch does it."""

    def __init__(self, epoch: int, seed: int, plan: WorkerPlan) -> None:
        super().__init__(epoch, seed, plan)
        self._rows = plan.batch_size or 1
        self._active = list(range(plan.num_workers))
        self._next = 0
        self._fair = plan.order is Order.IN_ORDER
        self._turns: dict[int, int] = {}
        """Outstanding batches and their workers."""

    def post(self, board: PostingBoard, slot: int) -> bool:
        if not self._active:
            self.exhausted = True
            return False
        worker = self._whose_turn()
        number = self._post(board, slot, [0], self._rows, worker)
        self.ledger.issue(number, 1)
        self._turns[number] = worker
        return True

    def _whose_turn(self) -> int:
        if not self._fair:  # the stream with the fewest batches outstanding: it is the fastest
            load = Counter(self._turns.values())
            return min(self._active, key=lambda worker: load[worker])
        worker = next((w for w in self._active if w >= self._next), self._active[0])
        self._next = worker + 1
        return worker

    def ended(self, batch: int) -> None:
        worker = self._turns.pop(batch)
        if worker in self._active:
            self._active.remove(worker)

    def delivered(self, batch: int) -> None:
        """A stream's batch was delivered."""
        self._turns.pop(batch, None)

    def unfinished(self, worker: int) -> bool:
        """Whether a worker's stream has not ended."""
        return worker in self._active or worker in self._turns.values()


def make_feed(epoch: int, seed: int, plan: WorkerPlan, sampler: Iterable[Any]) -> Feed:
    """The feed of one epoch. Its first batch is drawn from the sampler when it is posted."""
    keys = batches_of(sampler)
    return TicketFeed(epoch, seed, plan, keys) if plan.source is Source.MAP else StreamFeed(epoch, seed, plan)
