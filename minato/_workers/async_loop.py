"""`fetcher="asyncio"`: a worker process with one event loop, and a task for each lane.

Everything but waiting for samples happens in the loop's thread, one lane at a time: the board, the rows, collating.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from .._fetchers.asynchronous import async_getter
from .._fetchers.sequential import Word
from .._queues.fields import Header
from .._records import CollateTask, Run
from .._sample_random import SampleSource, announce
from .async_randomness import AsyncRandomness
from .lane_tracing import LaneTrace, TracedLaneBoard, open_lanes
from .lanes import Datasets, LaneBoard, MaybeTraced, Turns, called_lanes
from .map_loop import MapLoop
from .randomness import Randomness, sample_seed

if TYPE_CHECKING:
    from .async_randomness import Started
    from .main import WorkerContext
    from .program import Program
    from .writer import BatchWriter


class AsyncLoop:
    """A worker's life, in an event loop."""

    def __init__(self, context: WorkerContext, program: Program) -> None:
        self._context = context
        self._turns = Turns(context.board)
        datasets, samples, collation = Datasets(context, per_lane=False), AsyncRandomness(), Randomness()
        book = context.layout_book()
        traces = open_lanes(context.trace, context.control.lanes, in_one_thread=True)
        self._lanes: list[_Lane] = []
        for number in range(context.control.lanes):
            trace = None if traces is None else traces.lane(number)
            lane = _Lane(context, number, datasets, trace)
            lane.loop = _AsyncMapLoop(lane, context.writer(program, lane.board, book, collation, trace), samples)
            self._lanes.append(lane)
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, when lanes that wait for their turn should look again."""

    def run(self) -> None:
        """Work until the pool stops. Raises what a lane met that is no sample's error."""
        asyncio.run(self._main())

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._work(lane)) for lane in self._lanes]
        loop.add_reader(self._context.lifeline_fd, os._exit, 1)  # a broken pipe is readable
        loop.add_reader(self._context.wake_fd, self._wake_lanes, tasks)
        done, unfinished = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in unfinished:
            task.cancel()
        for task in done:
            if not task.cancelled():
                task.result()

    def _wake_lanes(self, tasks: list[asyncio.Task[None]]) -> None:
        context = self._context
        os.eventfd_read(context.wake_fd)
        for number in range(len(self._lanes)) if context.stopped else called_lanes(context):
            self._lanes[number].called.set()
        self._pulse()
        if context.control.words[Header.STOP]:  # nobody waits for what is in hand
            for lane, task in zip(self._lanes, tasks, strict=True):
                lane.loop.is_stopping = True
                task.cancel()

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _work(self, lane: _Lane) -> None:
        turns, number = self._turns, lane.number
        if lane.trace is not None:
            lane.trace.enter()
        while not lane.stopped:
            while not turns.may_begin(number) and not lane.stopped:
                await self._changed.wait()
            turns.begin(number)
            taken = lane.loop.pull()
            if taken is None:
                self._end_turn(number)
                if not lane.stopped:
                    await lane.called.wait()
                    lane.called.clear()
                continue
            if isinstance(taken, Run) and taken.alone:
                turns.isolate(number)
                while not turns.is_alone(number):
                    await self._changed.wait()
            await lane.loop.process(taken)
            self._end_turn(number)

    def _end_turn(self, lane: int) -> None:
        if self._turns.end(lane):
            self._pulse()


class _TracedBoard(LaneBoard, TracedLaneBoard):
    """The board of a lane, recorded."""


class _Lane(MaybeTraced):
    """What a task's loop works in."""

    caught = BaseException  # of which CancelledError is one
    guard = None
    loop: _AsyncMapLoop

    def __init__(self, context: WorkerContext, number: int, datasets: Datasets, trace: LaneTrace | None) -> None:
        self.number = number
        self.worker = context.worker
        self.plan = context.plan
        self.trace = trace
        self.watch = context.watch
        record = context.worker * context.control.lanes + number
        where = (context.control, context.arena, record, context.announce)
        self.board: LaneBoard = LaneBoard(*where) if trace is None else _TracedBoard(*trace.board_arguments, *where)
        self.board.share_tables(context.board)
        self.dataset = datasets.of(number)
        self.called = asyncio.Event()
        """Set when the main process has work for this lane, or stops the pool."""
        self._datasets = datasets

    @property
    def stopped(self) -> bool:
        return self.board.dismissed

    def sleep(self) -> None:
        raise NotImplementedError("a task awaits")

    def sync_dataset(self) -> None:
        self._datasets.sync()

    def randomness(self) -> Randomness:
        return Randomness()


class _AsyncMapLoop(MapLoop):
    """The steps of MapLoop, with fetching awaited."""

    def __init__(self, context: _Lane, writer: BatchWriter, randomness: AsyncRandomness) -> None:
        super().__init__(context, writer)
        self._trace, self._watch = context.trace, context.watch
        self._dataset = context.dataset
        self._under_seeds = randomness
        self.is_stopping = False
        """The task is being cancelled because the pool stops."""

    def pull(self) -> Run | CollateTask | None:
        """Take work from the board."""
        with_rows = self._late_rows and self._in_rows and self._sizer.is_even
        return self._board.pull(self._sizer.size(), self._whole_from, with_rows)

    async def process(self, taken: Run | CollateTask) -> None:
        """Do what was taken."""
        if isinstance(taken, CollateTask):
            self._writer.collate_rows(taken.batch)
            return
        self._context.sync_dataset()
        samples = await self._fetch_awaited(taken)
        place = self._known_rows(taken)
        if place is None:
            self.hand_in(taken, samples)
        else:
            self._writer.write(place, samples)
            self._commit(place, range(taken.position, taken.position + len(samples)))

    async def _fetch_awaited(self, run: Run) -> list[Any]:
        samples: list[Any] = []
        getter = async_getter(self._dataset)
        assert getter is not None, "checked when the loader was made"
        if self._trace is not None:
            getter = self._trace.getter(getter, len(run.keys))
        if self._watch is not None:
            getter = self._watch.getter(getter, len(run.keys))
        started, current = time.perf_counter(), self._costs.watch(run)
        waiting: Started | None = None
        if len(run.keys) > 1:  # they may be cheap, and not wait at all
            samples, waiting = self._fetch_at_once(run, getter, current)
        for number, key in enumerate(run.keys[len(samples) :], len(samples)):
            current[0] = number
            seed = sample_seed(run.seed, run.origin(number), key)
            try:
                begin = partial(_begin, getter, key, seed)
                samples.append(await self._under_seeds.fetch(begin, seed, waiting))
            except self._caught as error:
                if self.is_stopping:
                    raise
                samples.append(self._capture(error, key))
            waiting = None
        current[0] = -1
        seconds = time.perf_counter() - started
        self._note_time(run, seconds)
        self._costs.note(run, seconds)
        return samples

    def _fetch_at_once(self, run: Run, getter: Any, current: Word) -> tuple[list[Any], Started | None]:
        """Samples from the first on that come without waiting, and the one that waits. `current` is told which."""
        number = self._board.current
        announce(SampleSource(lambda n: sample_seed(run.seed, run.origin(n), run.keys[n]), lambda: number[0]))
        return self._under_seeds.fetch_at_once(getter, run.keys, self._capture, current)


def _begin(getter: Any, key: Any, seed: int) -> Any:
    announce(SampleSource(lambda _: seed, lambda: 0))
    return getter(key)
