"""`fetcher="threaded"`: a worker process with a thread for each lane.

Every thread runs the loop that a sequential worker runs. The process's first thread only waits for the main process,
and wakes the threads that the board says are to be woken.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .._queues.fields import Worker
from .._records import CollateTask, Run
from .lane_tracing import LaneTrace, TracedLaneBoard, open_lanes
from .lanes import Datasets, LaneBoard, MaybeTraced, Turns, called_lanes
from .map_loop import MapLoop
from .thread_randomness import SeedingGuard, Unmanaged

if TYPE_CHECKING:
    from .main import WorkerContext
    from .program import Program


class ThreadedLoop:
    """A worker's life, in threads."""

    def __init__(self, context: WorkerContext, program: Program) -> None:
        self._context = context
        self._changed = threading.Condition()
        guard, book = SeedingGuard(), context.layout_book()
        datasets = Datasets(context, context.plan.thread_copies)
        turns = Turns(context.board)
        traces = open_lanes(context.trace, context.control.lanes, in_one_thread=False)
        self._lanes: list[_Lane] = []
        self._loops: list[MapLoop] = []
        for number in range(context.control.lanes):
            trace = None if traces is None else traces.lane(number)
            board = _board(context, number, turns, self._changed, trace)
            lane = _Lane(context, number, datasets, guard, board, trace)
            self._lanes.append(lane)
            self._loops.append(MapLoop(lane, context.writer(program, board, book, guard, trace)))
        self._running = 0
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work until the pool stops. Raises what a lane met that is no sample's error."""
        self._running = len(self._lanes)
        for lane, loop in zip(self._lanes, self._loops, strict=True):
            name = f"minato-fetch-{lane.number}"
            # Daemons: a sample that sleeps for minutes must not keep a process that is to end.
            threading.Thread(target=self._work, args=(lane, loop), name=name, daemon=True).start()
        while self._running and self._error is None:
            self._context.sleep()
            self._wake_lanes()
        if self._error is not None:
            self._context.bar_others()
            raise self._error

    def _work(self, lane: _Lane, loop: MapLoop) -> None:
        lane.board.note_thread(threading.get_ident())
        if lane.trace is not None:
            lane.trace.enter()
        try:
            loop.run()
        except BaseException as error:  # minato's own: those of samples take the samples' places
            self._error = error
        lane.board.end_turn()  # another may wait for being alone
        with self._changed:
            self._running -= 1
        self._context.wake_self()

    def _wake_lanes(self) -> None:
        stopped = self._context.stopped
        for number in range(len(self._lanes)) if stopped else called_lanes(self._context):
            self._lanes[number].called.set()
        with self._changed:
            self._changed.notify_all()


class _LaneBoard(LaneBoard):
    """The board as one thread sees it: before it takes work, it waits until it may."""

    def __init__(self, lane: int, turns: Turns, changed: threading.Condition, *args: Any) -> None:
        super().__init__(*args)
        self._lane = lane
        self._turns = turns
        self._changed = changed

    def note_thread(self, ident: int) -> None:
        """Leave word which thread this is."""
        self._words[self._me + Worker.THREAD] = ident & 0x7FFF_FFFF_FFFF_FFFF

    def pull(self, want: int, whole_from: int = 0, with_rows: bool = False) -> Run | CollateTask | None:
        if not self._turns.may_go_on(self._lane) and not self._begin_turn():
            return None
        taken = super().pull(want, whole_from, with_rows)
        if taken is None:
            self.end_turn()
        elif isinstance(taken, Run) and taken.alone:
            self._await_solitude()
        return taken

    def _begin_turn(self) -> bool:
        """Wait for this lane's turn. False: there will be none."""
        with self._changed:
            self.end_turn()
            while not self._turns.may_begin(self._lane):
                if self.dismissed:
                    return False
                self._changed.wait()
            self._turns.begin(self._lane)
        return True

    def end_turn(self) -> None:
        """This lane has nothing in hand."""
        with self._changed:  # may be held by this thread
            if self._turns.end(self._lane):
                self._changed.notify_all()

    def _await_solitude(self) -> None:
        with self._changed:
            self._turns.isolate(self._lane)
            self._changed.notify_all()  # the first of those that are to be alone may have waited for this one, too
            while not self._turns.is_alone(self._lane):
                self._changed.wait()


class _TracedLaneBoard(_LaneBoard, TracedLaneBoard):
    """The same, recorded."""


def _board(
    context: WorkerContext, lane: int, turns: Turns, changed: threading.Condition, trace: LaneTrace | None
) -> _LaneBoard:
    record = context.worker * context.control.lanes + lane
    where = (context.control, context.arena, record, context.announce)
    if trace is None:
        board = _LaneBoard(lane, turns, changed, *where)
    else:
        board = _TracedLaneBoard(lane, turns, changed, *trace.board_arguments, *where)
    board.share_tables(context.board)
    return board


class _Lane(MaybeTraced):
    """What a thread's loop works in."""

    caught = BaseException  # a thread that ended would be missed by nobody

    def __init__(
        self,
        context: WorkerContext,
        number: int,
        datasets: Datasets,
        guard: SeedingGuard,
        board: _LaneBoard,
        trace: LaneTrace | None,
    ) -> None:
        self.number = number
        self.worker = context.worker
        self.plan = context.plan
        self.board = board
        self.trace = trace
        self.watch = context.watch
        self.dataset = datasets.of(number)
        self.guard = guard
        self.called = threading.Event()
        """Set when the main process has work for this lane, or stops the pool."""
        self._datasets = datasets

    @property
    def stopped(self) -> bool:
        return self.board.dismissed

    def sleep(self) -> None:
        """Wait until called."""
        if not self.stopped:
            self.called.wait()
            self.called.clear()

    def sync_dataset(self) -> None:
        self._datasets.sync()

    def randomness(self) -> Unmanaged:
        return Unmanaged()
