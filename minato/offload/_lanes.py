"""The agent's hands: worker records of an engine's control block, each with one piece of work under way elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .._errors import CapturedError, InternalError
from .._plan import Order, Source, WorkerPlan
from .._queues import messages
from .._queues.arena import Arena, Stretch
from .._queues.control import ControlBlock
from .._queues.fields import Batch, Header
from .._queues.layout_book import LayoutBook
from .._queues.remote import RemoteBoard
from .._records import Run
from .._workers.generators import mix
from .._workers.lanes import Guard, Untraced
from .._workers.map_loop import MapLoop
from .._workers.randomness import COLLATE_SALT, Randomness, sample_seed
from .._workers.writer import BatchWriter
from ._making import Cargo, make_probe_maker
from ._wire import Attach, Job, Parcel, as_packed


@dataclass(frozen=True)
class _Context(Untraced):
    """What a MapLoop wants to know of its worker. The loop only hands in what actors made."""

    plan: WorkerPlan
    board: RemoteBoard
    worker: int
    dataset: Any
    guard: Guard | None = None
    caught: type[BaseException] = Exception
    stopped: bool = True
    """The loop is not to be run."""

    def sleep(self) -> None:
        raise InternalError("the loop of a lane was run")

    def sync_dataset(self) -> None:
        """The desk does it, for all lanes at once."""

    def randomness(self) -> Randomness:
        return Randomness()


@dataclass(slots=True)
class Lane:
    """A worker record."""

    number: int
    board: RemoteBoard
    writer: BatchWriter
    loop: MapLoop
    run: Run | None = None
    """The tickets in hand."""


class Desk:
    """An engine's shared memory, and the lanes in it. Closing it ends all use of the engine's memory."""

    def __init__(self, attach: Attach, control: int, arena: int, wake: int, ready: int, cargo: Cargo) -> None:
        self.attach = attach
        self.order, self.collate, self.mends = attach.order, attach.collate, attach.mends
        self.together = attach.together
        self.program = program = cargo.program
        self._maker = make_probe_maker(cargo, _captured)
        self._control = ControlBlock(control, attach.batches, attach.workers)
        self._control.map()
        self._arena = Arena(arena, is_worker=True)
        self.wake, self._ready = wake, ready
        self._update = 0
        plan = WorkerPlan(
            source=Source.MAP,
            order=attach.order,
            collate=attach.collate,
            collate_fn=program.collate_fn,
            num_workers=attach.num_workers,
            worker_init_fn=None,
            batch_size=None,
            drop_last=False,
            short_batch_last=False,
            mends=attach.mends,
        )
        book = LayoutBook(self._control, self._arena)
        self.lanes = [self._lane(number, plan, book) for number in range(attach.first_lane, attach.workers)]

    def _lane(self, number: int, plan: WorkerPlan, book: LayoutBook) -> Lane:
        board = RemoteBoard(self._control, self._arena, number, announce=self._announce)
        writer = BatchWriter(number, board, book, plan.collate, plan.collate_fn, Randomness())
        return Lane(number, board, writer, MapLoop(_Context(plan, board, number, self.program.dataset), writer))

    def _announce(self) -> None:
        os.eventfd_write(self._ready, 1)

    def changes(self) -> Any:
        """Attribute changes of the dataset that are new; None: there are none."""
        words = self._control.words
        if words[Header.UPDATE] == self._update:
            return None
        with self._control.lock:
            self._update = words[Header.UPDATE]
            return messages.get(self._arena, Stretch.UPDATE, 0)

    def seeds(self, run: Run) -> list[int]:
        """Of the samples of a run."""
        return [sample_seed(run.seed, run.origin(number), key) for number, key in enumerate(run.keys)]

    def job(self, lane: Lane, run: Run, whole: bool) -> Job:
        """What an actor is told about a run. `whole`: it is to make the batch, if the run is all of it."""
        field = lane.board.field
        whole = whole and len(run.keys) == field(run.batch, Batch.ROWS) and self.order is not Order.SAMPLES_OVERTAKE
        position = field(run.batch, Batch.POSITION) + field(run.batch, Batch.SHIFT)
        return Job(
            keys=run.keys,
            seeds=self.seeds(run),
            mends=self.mends,
            together=self.together,
            collate=self.collate if whole else None,
            collate_seed=mix(run.seed, position, COLLATE_SALT),
        )

    def make(self, key: Any, seed: int) -> Any:
        """A sample as an actor is asked for it alone, made here. Raises TypeError if the dataset gives something else
        than a list of samples where it is asked for several."""
        made = self._maker.make(Job([key], [seed], self.mends, self.together, None, 0))
        if type(made) is not list or len(made) != 1:
            raise TypeError(f"__getitems__ gives {type(made).__name__} in place of a list of the samples asked for")
        return made[0]

    def hand_in(self, lane: Lane, samples: list[Any]) -> None:
        """The lane's samples are there."""
        assert lane.run is not None
        lane.loop.hand_in(lane.run, samples)
        lane.run = None

    def hand_in_batch(self, lane: Lane, parcel: Parcel) -> None:
        """The lane's batch is there, made elsewhere."""
        run = lane.run
        assert run is not None
        positions = range(run.position, run.position + len(run.keys))
        lane.writer.finish_packed(run.batch, as_packed(parcel), positions)
        lane.run = None

    def give_back(self, lane: Lane) -> int:
        """The lane's tickets go to others; returns how many."""
        assert lane.run is not None
        count = len(lane.run.keys)
        lane.board.give_back()
        lane.run = None
        return count

    def close(self) -> None:
        self._maker.close()
        self.lanes.clear()
        self._control.close()
        self._arena.close()
        for fd in (self.wake, self._ready):
            os.close(fd)


def _captured(error: BaseException, key: object) -> CapturedError:
    return CapturedError.capture(error, f"in minato's agent, fetching sample index {key!r}")
