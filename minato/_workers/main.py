"""A worker's whole life, in named steps."""

from __future__ import annotations

import gc
import os
import random
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from .._errors import CapturedError
from .._plan import Fetcher, Source, WorkerPlan
from .._queues import codec, messages
from .._queues.arena import Arena, Stretch
from .._queues.control import ControlBlock
from .._queues.fields import Header, Phase
from .._queues.layout import stack_in_private_memory
from .._queues.layout_book import LayoutBook
from .._queues.taking import TakingBoard
from .._queues.threads_lock import ThreadsLock
from . import program as programs
from .async_loop import AsyncLoop
from .guard import die_with_parent, reset_signals
from .heap import Heap
from .lanes import RunsUnderSeeds
from .map_loop import MapLoop
from .placing import take_place
from .program import Program
from .randomness import Randomness
from .splitting import Steps
from .stacks import tell_stack_into
from .stages import SampleRun
from .stream_loop import StreamLoop
from .sync import apply_patch
from .threaded_loop import ThreadedLoop
from .tracing import LineTrace, open_trace
from .watch import SampleWatch, choose_dataset, choose_run
from .writer import BatchWriter, ColumnsByPlace


class Handle:
    """A file descriptor that survives the way to a worker, inherited by fork or passed on by spawn and forkserver."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> Any:
        return DupFd(self.fd)

    def __setstate__(self, duplicate: Any) -> None:
        self.fd = duplicate.detach()


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All a worker is told at its start."""

    worker: int
    plan: WorkerPlan
    base_seed: int
    control: Handle
    batches: int
    """Batch records of the control block."""
    workers: int
    """Worker processes there may be, and records of each: both of the control block."""
    lanes: int
    remote: int
    arena: Handle
    wake: Handle
    """eventfd: the main process writes it when there is work for a sleeping worker."""
    ready: Handle
    """eventfd: workers write it when a batch is ready or a start has failed."""
    parent: Handle
    """Read end of the pipe that breaks when the parent dies."""
    program: Program | None
    """None: stored in the arena."""
    stack: Handle | None = None
    """memfd that the worker writes its stack to when asked; None: it will not be asked."""


class WorkerContext:
    """What the loops of a worker share: the board, the writer, and the waiting."""

    guard = None
    caught = Exception

    def __init__(self, spec: WorkerSpec, lifeline: int) -> None:
        self.worker = spec.worker
        self.plan = spec.plan
        self.control = ControlBlock(spec.control.fd, spec.batches, spec.workers, spec.lanes, spec.remote)
        self.control.map()
        if spec.plan.fetcher is Fetcher.THREADED:
            self.control.lock = ThreadsLock(spec.control.fd)  # before a board is made
        self.arena = Arena(spec.arena.fd, is_worker=True)
        self.trace = open_trace(spec.plan.trace, spec.worker)
        # Threads and tasks have boards of their own, and are traced by those.
        is_traced = self.trace is not None and spec.plan.fetcher is Fetcher.SEQUENTIAL
        make_board = self.trace.board if self.trace is not None and is_traced else TakingBoard
        self.announce: Callable[[], object] = lambda: os.eventfd_write(spec.ready.fd, 1)
        self.board = make_board(self.control, self.arena, spec.worker * spec.lanes, self.announce)
        self.dataset: Any = None
        """What samples are fetched from."""
        self.watch: SampleWatch | None = None
        self._original: Any = None
        """The user's dataset."""
        self.wake_fd = spec.wake.fd
        self.lifeline_fd = lifeline
        self._poll = select.poll()
        self._poll.register(self.wake_fd, select.POLLIN)
        self._poll.register(lifeline, 0)  # a broken pipe reports by itself
        self._update = 0
        self.heap = Heap(spec.plan.spare_bytes)
        self._columns: ColumnsByPlace = {}
        """Of all writers of this process: each lane would else make views of every slot, and map its rows, anew."""

    @property
    def stopped(self) -> bool:
        return self.board.dismissed

    def sleep(self) -> None:
        """Wait until the main process has work, stops the pool, or dies."""
        for fd, _ in self._poll.poll():
            if fd != self.wake_fd:
                os._exit(1)
            os.eventfd_read(fd)

    @property
    def sample_run(self) -> Callable[[Steps], SampleRun]:
        """What sees a sample through its stages."""
        return choose_run(self.trace, self.watch)

    def dataset_for(self, samples: int) -> Any:
        """What to fetch a run of samples from: the dataset, or a view of it that is traced or watched."""
        return choose_dataset(self.dataset, samples, self.trace, self.watch)

    def wake_self(self) -> None:
        """Make the thread that is in `sleep` return."""
        os.eventfd_write(self.wake_fd, 1)

    def bar_others(self) -> None:
        """Keep all other threads of this process from the board: it is about to report an error, and to end."""
        lock = self.control.lock
        assert isinstance(lock, ThreadsLock)
        self.control.lock = lock.keep()
        self.board = TakingBoard(self.control, self.arena, self.worker * self.control.lanes, self.announce)

    def sync_dataset(self, copies: Sequence[Any] = ()) -> None:
        """Apply attribute changes that the main process has published since the last sample, to the dataset, or to its
        copies."""
        version = self.control.words[Header.UPDATE]
        if version != self._update:
            with self.control.lock:
                version = self.control.words[Header.UPDATE]
                patch = messages.get(self.arena, Stretch.UPDATE, 0)
            for dataset in copies or (self._original,):
                apply_patch(dataset, patch)
            self._update = version  # at the end: another thread must not go on with what it was before

    def adopt(self, program: Program) -> None:
        """Take the dataset, as it is now in the main process."""
        self._original = program.dataset
        self.sync_dataset()

    def randomness(self) -> Randomness:
        return Randomness()

    def layout_book(self) -> LayoutBook:
        return LayoutBook(self.control, self.arena)

    def writer(
        self,
        program: Program,
        board: TakingBoard,
        book: LayoutBook,
        randomness: RunsUnderSeeds | None,
        trace: LineTrace | None,
    ) -> BatchWriter:
        collate = program.collate_fn if trace is None else trace.collate(program.collate_fn)
        return BatchWriter(self.worker, board, book, self.plan.collate, collate, randomness, self._columns, self.heap)


def worker_main(spec: WorkerSpec) -> None:
    """Entry point of a worker process."""
    gc.freeze()  # what was inherited by fork is not looked at again: looking would copy its pages
    lifeline = die_with_parent(spec.parent.fd)
    reset_signals()
    if spec.stack is not None:
        tell_stack_into(spec.stack.fd)
    context = WorkerContext(spec, lifeline)
    context.board.enter(Phase.STARTING)
    stage = "starting"
    try:
        loop = _prepare(spec, context)
        context.board.enter(Phase.IDLE)
        stage = "in minato's own code"
        loop.run()
    except Exception as error:
        _report(spec, context, error, stage)
    if context.trace is not None:
        context.trace.stop()


def _prepare(spec: WorkerSpec, context: WorkerContext) -> MapLoop | StreamLoop | ThreadedLoop | AsyncLoop:
    """Set the process up the way torch sets up its workers, then run the user's worker_init_fn."""
    torch.set_num_threads(1)
    context.heap.keep_freed()
    take_place(spec.worker, spec.plan)
    seed = spec.base_seed + spec.worker
    random.seed(seed)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same for the only device there is, and 5 ms sooner
        torch.default_generator.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(spec.base_seed, spec.worker))  # type: ignore[no-untyped-call]
    program = programs.load(context.arena) if spec.program is None else spec.program
    context.adopt(program)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=spec.worker, num_workers=spec.plan.num_workers, seed=seed, dataset=program.dataset
    )
    stack_in_private_memory()
    if program.worker_init_fn is not None:
        program.worker_init_fn(spec.worker)
    context.dataset, context.watch = program.source(), program.watch()
    return _loop(context, program)


def _loop(context: WorkerContext, program: Program) -> MapLoop | StreamLoop | ThreadedLoop | AsyncLoop:
    if context.plan.fetcher is Fetcher.THREADED:
        return ThreadedLoop(context, program)
    if context.plan.fetcher is Fetcher.ASYNCIO:
        return AsyncLoop(context, program)
    is_map = context.plan.source is Source.MAP
    randomness = Randomness() if is_map else None
    writer = context.writer(program, context.board, context.layout_book(), randomness, context.trace)
    return MapLoop(context, writer) if is_map else StreamLoop(context, writer)


def _report(spec: WorkerSpec, context: WorkerContext, error: Exception, stage: str) -> None:
    """Leave word of what ended this worker; errors of samples and batches do not come here."""
    captured = CapturedError.capture(error, f"in DataLoader worker process {spec.worker}, {stage}")
    messages.put(context.arena, Stretch.WORKER, spec.worker, codec.pack(captured))
    context.board.enter(Phase.FAILED)
    os.eventfd_write(spec.ready.fd, 1)
