"""What to post next: tickets of the sampler's batches, or turns of the workers' streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .._errors import InternalError
from .._plan import Collate, Order, Source, WorkerPlan
from .._queues.fields import Flag
from .._queues.keys import Indices, Keys, Placed
from .._queues.ledger import Ledger
from .._queues.posting import PostingBoard
from .._queues.recovery import OpenEpoch
from .._records import StreamStart, keys_of
from .courses import Course, begin_course
from .foresight import Foresight
from .progress import Handover, MapProgress, StreamPlace, StreamProgress
from .remainder import Portion, Reserve

_END: Any = object()


class Feed(ABC):
    """One epoch's work, posted batch by batch."""

    def __init__(self, epoch: int, seed: int, plan: WorkerPlan, foresight: Foresight | None = None) -> None:
        self.epoch = epoch
        self._foresight = foresight
        self.ledger = Ledger()
        self.handover = Handover()
        """Of batches: number and tickets; of streams: worker, and its place before."""
        self.exhausted = False
        self.out: list[int] = []
        """Batches posted and not delivered, oldest first."""
        self._seed = seed
        self._started = False
        self._first_number = -1
        self._posted = 0
        self._late_rows = plan.order is Order.SAMPLES_OVERTAKE
        self._flags = 0 if plan.collate is Collate.ROWS else Flag.COLLATE

    @abstractmethod
    def post(self, board: PostingBoard, slot: int) -> bool:
        """Post one batch into `slot`. False: there is nothing left to post."""

    @abstractmethod
    def ended(self, batch: int, packed: bytes | None = None) -> None:
        """A posted batch turned out to have nothing in it: its stream has ended. `packed`: the stream's last state."""

    @abstractmethod
    def progress(self) -> MapProgress | StreamProgress:
        """What was delivered, and how to go on from there."""

    @property
    def may_be_posted_aside(self) -> bool:
        """Whether any thread may post its batches: nothing of the user's is asked for them."""
        return True

    def deliverable(self) -> Sequence[int]:
        """Batches that may be delivered next, if batches may overtake."""
        return self.out

    @property
    def oldest(self) -> int | None:
        """The oldest batch that is not delivered, or has a straggler among its tickets."""
        oldest = self.ledger.oldest
        if not self.out:
            return oldest
        return self.out[0] if oldest is None else min(oldest, self.out[0])

    def deferral(self, positions: Sequence[int], known: int) -> int:
        """How many batches a sample has fallen behind its own turn, at most: of those at these positions, which are
        about to be delivered as the next batch, and `known` of earlier ones."""
        delivered, oldest = self._posted - len(self.out) - 1 + self._first_number, self.ledger.oldest
        if oldest is None or delivered - oldest <= known or not positions:
            return known  # most often: nobody is further behind
        home, _ = self.ledger.home_of(min(positions))
        return max(known, delivered - home)

    def is_settled(self, board: PostingBoard) -> bool:
        """Whether all that is posted is complete, without errors that have to be seen to."""
        return all(board.is_sound(batch) for batch in self.out)

    def open_epoch(self) -> OpenEpoch:
        """What is not delivered, for recovery."""
        return OpenEpoch(self.ledger.open_batches, self.out, self.ledger if self._late_rows else None)

    def _post(self, board: PostingBoard, slot: int, keys: Keys, rows: int, worker: int = -1, shift: int = 0) -> int:
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
            shift=shift,
            early=None if self._foresight is None else self._foresight.early(keys),
        )
        if not self._started:
            self._first_number = number
        self._started = True
        self._posted += 1
        self.out.append(number)
        return number


class TicketFeed(Feed):
    """The sampler's batches of a map-style dataset."""

    def __init__(
        self, epoch: int, seed: int, plan: WorkerPlan, course: Course, foresight: Foresight | None = None
    ) -> None:
        super().__init__(epoch, seed, plan, foresight)
        self._course = course
        self._sampler = course.batches
        self._by_sample = plan.short_batch_last
        self._single = plan.collate is Collate.NONE
        self._together = plan.together
        self._full = 0
        self._drained = False
        """Whether the sampler has no more."""
        self._drop_last = plan.drop_last
        self.refills = plan.skips and plan.short_batch_last
        """Whether a sample that is left out is replaced by the next one of the sampler: torch's own batching."""
        self._reserve = Reserve(course.before)
        self._origins: list[int] = []
        """Where samples are replaced: the position in the epoch of the sample that each ticket stands for."""
        self._short_last = plan.short_batch_last
        self._short: int | None = None
        """A batch that has to wait until all others are delivered: every batch is full but the last."""

    @property
    def may_be_posted_aside(self) -> bool:
        return self._course.is_drawn and (self._foresight is None or not self._foresight.asks_user)

    def post(self, board: PostingBoard, slot: int) -> bool:
        keys = self._from_reserve(board) if self._reserve else self._from_sampler()
        if keys is _END:
            self._drained = True
            self.exhausted = not self._reserve
            return False
        if self.refills:
            own = keys if type(keys) is list and keys and type(keys[0]) is Placed else None
            self._origins += self._reserve.origins(keys) if own is None else [key.origin for key in own]
        if type(keys) is Portion:
            number = self._post_portion(board, slot, keys)
            keys = keys.keys
        else:
            if not isinstance(keys, Indices):
                keys = [keys] if self._single else keys_of(keys, self._together)
            number = self._post(board, slot, keys, len(keys))
        self.ledger.issue(number, len(keys))
        self._full = self._full or len(keys)
        if len(keys) < self._full and self._short_last:
            self._short = number
        return True

    def _post_portion(self, board: PostingBoard, slot: int, portion: Portion) -> int:
        """Post a batch of what is left of an interrupted epoch: its samples keep the seeds they would have had."""
        keys, origins = portion.keys, portion.origins
        if not portion.is_contiguous:
            keys = [Placed(key, origin) for key, origin in zip(keys, origins, strict=True)]
        shift = origins[0] - self.ledger.issued if len(origins) else 0
        return self._post(board, slot, keys, len(keys), shift=shift)

    def progress(self) -> MapProgress:
        on_the_way = self.handover.batches
        tickets = np.unique(np.concatenate([self.ledger.undelivered(), *(tickets for _, tickets in on_the_way)]))
        if self.refills:
            waiting_for = [self._origins[ticket] for ticket in tickets.astype(np.int64).tolist()]
            return MapProgress(self._course.origin, self._reserve.delivered(waiting_for))
        if self._by_sample:
            issued, waiting = self.ledger.issued, tickets.astype(np.int64)
        else:
            numbers = sorted({*self.out, *(number for number, _ in on_the_way)})
            waiting = np.array([number - self._first_number for number in numbers], np.int64)
            issued = self._posted
        return MapProgress(self._course.origin, self._course.before.after(issued, waiting))

    def replacements(self, tickets: Sequence[int]) -> list[Placed]:
        """Keys not given out yet, to take the places of those of tickets at these positions. Fewer than asked for: the
        sampler has no more."""
        while len(self._reserve) < len(tickets) and self._refill():
            pass
        keys = self._reserve.take(len(tickets))
        for ticket, key in zip(tickets, keys, strict=False):
            self._origins[ticket] = key.origin
        return keys

    def give_back(self, batch: int, tickets: Sequence[int], keys: Sequence[object]) -> None:
        """A batch was taken back: the keys of its tickets are given out again."""
        self._short = None if self._short == batch else self._short
        self._reserve.keys += [Placed(key, self._origins[ticket]) for ticket, key in zip(tickets, keys, strict=True)]
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
        self._reserve.add(keys)
        return True

    def _from_reserve(self, board: PostingBoard) -> Any:
        """The next batch's keys, those in reserve first. `_END`: what is left is to be dropped, or may still be needed
        to fill other batches."""
        while len(self._reserve) < self._full and self._refill():
            pass
        if len(self._reserve) < self._full:
            if self._drop_last:
                self._reserve.keys.clear()
            if self._drop_last or not self.is_settled(board):
                return _END
        return self._reserve.take(self._full)

    def deliverable(self) -> Sequence[int]:
        return self.out if self._short is None else [n for n in self.out if n != self._short] or self.out

    def ended(self, batch: int, packed: bytes | None = None) -> None:  # noqa: ARG002
        raise InternalError(f"batch {batch} of a map-style dataset ended like a stream")


class StreamFeed(Feed):
    """Turns of the workers' streams of an iterable dataset: round and round, as torch does it."""

    def __init__(self, epoch: int, seed: int, plan: WorkerPlan, before: StreamProgress | None = None) -> None:
        """`before`: how far the streams had come when the epoch was interrupted."""
        super().__init__(epoch, seed, plan)
        self._rows = plan.batch_size or 1
        self._active = list(range(plan.num_workers))
        self._next = 0
        self._streams = [StreamPlace()] * plan.num_workers
        self._starts: dict[int, StreamStart] = {}
        """What workers are told with the first batch asked of them."""
        if before is not None:
            self._next = before.turn
            self._streams = list(before.streams)
            self._starts = {worker: place.start() for worker, place in enumerate(before.streams)}
        self._fair = plan.order is Order.IN_ORDER
        self._turns: dict[int, int] = {}
        """Outstanding batches and their workers."""

    def post(self, board: PostingBoard, slot: int) -> bool:
        if not self._active:
            self.exhausted = True
            return False
        worker = self._whose_turn()
        number = self._post(board, slot, [self._starts.pop(worker, 0)], self._rows, worker)
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

    def ended(self, batch: int, packed: bytes | None = None) -> None:
        worker = self._turns.pop(batch)
        self._streams[worker] = self._streams[worker].over(packed)
        if worker in self._active:
            self._active.remove(worker)

    def delivered(self, batch: int, packed: bytes | None = None) -> None:
        """A stream's batch was delivered. `packed`: the stream's state after it, if it has one."""
        worker = self._turns[batch]
        self.handover.forget_lost()
        self.handover.add((worker, self._streams[worker]))
        self.vanished(batch, packed)

    def vanished(self, batch: int, packed: bytes | None = None) -> None:
        """Nothing is left to be delivered of a stream's batch."""
        worker = self._turns.pop(batch)
        self._streams[worker] = self._streams[worker].advanced(packed)

    def follow(self, epoch_before: StreamFeed) -> None:
        """The same workers have done the epoch before."""
        self._streams = [place.following() for place in epoch_before._streams]

    def progress(self) -> StreamProgress:
        on_the_way = self.handover.batches
        turn = self._turns[self.out[0]] if self.out and self._fair else self._next
        if on_the_way and self._fair:
            turn, _ = on_the_way[0]
        places = {**dict(enumerate(self._streams)), **dict(reversed(on_the_way))}
        return StreamProgress(len(places), turn, tuple(places[worker] for worker in range(len(places))))

    def worker_of(self, batch: int) -> int:
        """Whose stream an outstanding batch is of."""
        return self._turns[batch]

    def unfinished(self, worker: int) -> bool:
        """Whether a worker's stream has not ended."""
        return worker in self._active or worker in self._turns.values()


Epoch = Iterable[Any] | Course | StreamProgress
"""A sampler, or what is left of an interrupted epoch."""


def make_feed(epoch: int, seed: int, plan: WorkerPlan, sampler: Epoch, foresight: Foresight | None = None) -> Feed:
    """The feed of one epoch. Its first batch is drawn from the sampler when it is posted."""
    if plan.source is Source.ITERABLE:
        return StreamFeed(epoch, seed, plan, sampler if isinstance(sampler, StreamProgress) else None)
    assert not isinstance(sampler, StreamProgress)
    course = sampler if isinstance(sampler, Course) else begin_course(sampler)
    return TicketFeed(epoch, seed, plan, course, foresight)
