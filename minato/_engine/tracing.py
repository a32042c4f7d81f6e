"""What the main process leaves in a trace: waits, batches consumed, queues, decisions, workers' ends.

`TracedEngine` is an engine that notes what it does. An engine that is not traced knows nothing of it.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

import torch

from .._instrument import Flag, Kind, TraceSpec
from .._plan import LoaderPlan
from .._queues.board import Fields, samples_in
from .._queues.fields import Batch
from .._recording import Recorder
from .._scheduler.policy import Decision
from .._trace_sessions import open_pool
from .._workers.op_tracing import OpStream, OpWatch
from .._workers.tracing import TimedCollate
from .ahead import Forecast
from .delivery import Delivered
from .engine import Engine
from .feeds import Epoch
from .hangs import Patience
from .inline import InlineMap, InlineStream
from .inline_ahead import ConcurrentMap
from .inline_tracing import FetchNote
from .interrupts import Uninterrupted
from .parts import Parts, assemble
from .totals import Totals
from .waiting import Waiting

QUEUES_PERIOD_NS = 50_000_000  # at most so often are queues looked at: it costs as much as all else for a batch
_READY = int(Flag.READY)
_WAIT, _CONSUMED = int(Kind.WAIT), int(Kind.CONSUMED)
_SPANS_AHEAD = 2  # of a sample that was fetched ahead
_now = time.monotonic_ns


def rank() -> int:
    """This process's number among those of a distributed training; 0 if it is alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    told = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    return int(told) if told.isdecimal() else 0


class PoolLog:
    """Records of the batches of one pool (or of one epoch without workers), in order of their delivery."""

    def __init__(self, recorder: Recorder, pool: int) -> None:
        self._recorder = recorder
        self.pool = pool & 0xFFFF
        self._lengths: dict[str, int] = {}
        self._delivered: deque[tuple[int, int, int]] = deque()
        """Batches that are on their way to the user: number, samples, bytes."""
        self.goes_to_device = False

    def event(self, kind: Kind, start_ns: int, duration_ns: int = 0, **fields: Any) -> None:
        """Leave an event of this pool."""
        self._recorder.record(kind, start_ns, duration_ns, pool=self.pool, **fields)

    def queue(self, name: str, length: int, changes_only: bool = False) -> None:
        """The length of a queue now."""
        if not changes_only or self._lengths.get(name) != length:
            self._lengths[name] = length
            self.event(Kind.QUEUE, _now(), name=name, count=length)

    def delivered(self, batch: int, samples: int, nbytes: int) -> None:
        """A batch, or the error in its place, goes to the user, perhaps over a device."""
        self._delivered.append((batch, samples, nbytes))

    @property
    def first_delivered(self) -> int | None:
        """The batch that the user gets next, if it is on its way."""
        return self._delivered[0][0] if self._delivered else None

    def consumed(self) -> None:
        """The user gets the batch that was delivered first."""
        if self._delivered:
            batch, samples, nbytes = self._delivered.popleft()
            self._recorder.put(_CONSUMED, _now(), 0, batch, samples, self.pool, nbytes=nbytes)
        self._recorder.flush()

    def sent(self, start_ns: int) -> None:
        """The copy of the batch last delivered has begun."""
        if self._delivered:
            self.event(Kind.TRANSFER, start_ns, _now() - start_ns, batch=self._delivered[-1][0])

    def dropped(self) -> None:
        """Batches that were on their way are not handed out any more."""
        self._delivered.clear()

    def decided(self, decision: Decision, before: int, text: str) -> None:
        """The number of workers changes."""
        self.queue("workers", before, changes_only=True)
        self.queue("workers", decision.target)
        fields = {"before": before, "target": decision.target, "reason": decision.reason, "text": text}
        inputs = asdict(decision.observation)
        self._recorder.note(Kind.DECISION, _now(), **{**fields, "inputs": inputs, "pool": self.pool})


class TracedWaiting(Waiting):
    """Patience in which workers that end are recorded."""

    def __init__(self, log: PoolLog, parts: Parts, uninterrupted: Uninterrupted) -> None:
        super().__init__(parts, uninterrupted)
        self._log = log

    def _wait(self, patience: Patience) -> None:
        before = self._pool.pids
        try:
            super()._wait(patience)
        finally:
            after = {} if self.broken else self._pool.pids
            for worker, pid in before.items():
                if after.get(worker) != pid:
                    self._log.event(Kind.WORKER, _now(), name="end", index=worker, nbytes=pid)


class TracedEngine(Engine):
    """An engine whose work is recorded."""

    def __init__(self, recorder: Recorder, pool: int, parts: Parts) -> None:
        self._recorder = recorder
        self.log = PoolLog(recorder, pool)
        self._put = recorder.put
        self._pool_number = self.log.pool
        self._look_ns = 0
        self._let_go = weakref.finalize(self, recorder.let_go)
        self._let_go.atexit = False
        super().__init__(parts)
        if self._parts.scaler is not None:
            self._parts.scaler.on_decision = self.log.decided

    def start(self, sampler: Epoch, forecast: Forecast | None, seed: int | None) -> None:
        super().start(sampler, forecast, seed)
        self._note_epoch()

    def start_epoch(self, sampler: Iterable[Any], seed: int | None) -> None:
        super().start_epoch(sampler, seed)
        self.log.dropped()
        self._note_epoch()

    def _note_epoch(self) -> None:
        self.log.event(Kind.EPOCH, _now(), index=self._epochs.number)
        self._recorder.flush()

    def _at_hand(self) -> int | None:
        start_ns = _now()
        batch = super()._at_hand()
        if batch is not None:
            self._note_wait(batch, start_ns, _READY)
        return batch

    def _take_prepared(self) -> Delivered | BaseException | None:
        start_ns, number = _now(), self.log.first_delivered
        prepared = super()._take_prepared()
        if prepared is not None and number is not None:
            self._note_wait(number, start_ns, _READY)
        return prepared

    def _await_batch(self) -> int | None:
        start_ns, waits = _now(), self._totals.waits
        batch = super()._await_batch()
        if batch is not None:
            self._note_wait(batch, start_ns, _READY if self._totals.waits == waits else 0)
        return batch

    def _note_wait(self, batch: int, start_ns: int, flags: int) -> None:
        now_ns = _now()
        self._put(_WAIT, start_ns, now_ns - start_ns, batch, 1, self._pool_number, flags=flags)
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + QUEUES_PERIOD_NS
            self._note_queues(batch)

    def _note_queues(self, batch: int) -> None:
        """What is left besides the batch that is about to be handed out."""
        counted = batch in self._epochs.current.out  # one that was made ready before is not
        self.log.queue("ready", self._board.count_ready(self._epochs.current.out) - counted)
        self.log.queue("in_flight", self._epochs.in_flight - counted)
        self.log.queue("workers", self._pool.active, changes_only=True)
        parked = sum(len(self._board.parked(worker)) for worker in self._pool.alive)
        self.log.queue("parked", parked, changes_only=True)

    def _deliver(self, batch: int, fields: Fields) -> Delivered:
        self.log.delivered(batch, samples_in(fields), fields[Batch.HEAP_TOP])
        return super()._deliver(batch, fields)

    def next_batch(self) -> Any:
        self._recorder.tell()
        try:
            return super().next_batch()
        finally:
            if not self.log.goes_to_device:
                self.log.consumed()

    def _make_waiting(self, parts: Parts) -> Waiting:
        return TracedWaiting(self.log, parts, self._uninterrupted)

    def _close(self) -> None:
        super()._close()
        self._let_go()


def make_engine(plan: LoaderPlan, *args: Any) -> Engine:
    """The engine of a plan."""
    if plan.trace is None:
        return Engine(assemble(plan, *args))
    recorder, spec = open_pool(plan.trace, rank())
    try:
        parts = assemble(replace(plan, worker=replace(plan.worker, trace=spec)), *args)
    except BaseException:
        recorder.let_go()
        raise
    return TracedEngine(recorder, spec.pool, parts)


class TracedInline:
    """Batches made in this process, recorded."""

    def __init__(
        self, inner: InlineMap | InlineStream, recorder: Recorder, spec: TraceSpec, totals: Totals, batch_size: int = 1
    ) -> None:
        self._inner = inner
        self._recorder = recorder
        self._totals = totals
        self._batch = 0
        self._ops = OpWatch(recorder, spec.granularity)
        self._dataset = inner.dataset if isinstance(inner, InlineMap) else None
        if isinstance(inner, InlineStream) and spec.granularity != "batch":
            inner.see(lambda samples: OpStream(recorder, self._ops, samples, batch_size))
        self._ahead = inner if isinstance(inner, ConcurrentMap) else None
        if self._ahead is not None:
            self._ahead.see(recorder)
        self._samples = 1
        self.log = PoolLog(recorder, spec.pool)
        self.log.event(Kind.EPOCH, _now(), index=0)
        recorder.tell_starved(self.log.pool)
        self._let_go = weakref.finalize(self, recorder.let_go)
        self._let_go.atexit = False

    def next_batch(self) -> Any:
        """The next batch; raises what its making raises."""
        recorder, inner, batch = self._recorder, self._inner, self._batch
        recorder.tell()
        if isinstance(inner, InlineMap) and self._ahead is None:
            inner.dataset = self._ops.choose(self._dataset, self._samples)
        made = self._totals.samples_delivered
        start_ns, cpu_ns = _now(), time.thread_time_ns()
        outer, recorder.pending = recorder.pending, []
        try:
            data = inner.next_batch()
        except StopIteration:
            recorder.tell_starved(self.log.pool)
            recorder.flush()
            self._let_go()
            raise
        finally:
            spans, recorder.pending = recorder.pending, outer
            samples = self._samples = self._totals.samples_delivered - made
            if samples or spans:
                self._note(batch, start_ns, time.thread_time_ns() - cpu_ns, samples)
                recorder.settle(spans or [], batch, self.log.pool)
                self._batch += 1  # also if it is an error that it comes to
        self.log.delivered(batch, samples, 0)
        if not self.log.goes_to_device:
            self.log.consumed()
        return data

    def _note(self, batch: int, start_ns: int, cpu_ns: int, samples: int) -> None:
        duration_ns = _now() - start_ns
        if self._ahead is not None:
            self._note_fetched(batch, self._ahead.take_fetched(), samples)
        else:
            self._ops.worked(duration_ns)
            self.log.event(Kind.RUN, start_ns, duration_ns, batch=batch, count=samples, cpu_ns=cpu_ns)
        self.log.event(Kind.WAIT, start_ns, duration_ns, batch=batch)
        self._recorder.tell_looks(batch, self.log.pool)

    def _note_fetched(self, batch: int, fetched: list[FetchNote], samples: int) -> None:
        """The samples of a batch were made before it was asked for, by several at once; each is all loading."""
        looks = self._ops.wants(samples, _SPANS_AHEAD)
        for note in fetched:
            self._ops.worked(note.duration_ns)
            count = 0 if note.failed else samples if len(fetched) == 1 else 1  # one, where all are fetched together
            fields: dict[str, Any] = {"batch": batch, "thread": note.thread, "cpu_ns": note.cpu_ns}
            self.log.event(Kind.RUN, note.start_ns, note.duration_ns, count=count, **fields)
            if looks:
                fields |= {"index": note.index, "flags": Flag.FAILED if note.failed else 0}
                self.log.event(Kind.LOADER, note.start_ns, note.duration_ns, name="Loader", **fields)
                self.log.event(Kind.SAMPLE, note.start_ns, note.duration_ns, name="Sample", **fields)
            self._recorder.settle(note.spans, batch, self.log.pool)


def trace_inline(
    plan: LoaderPlan, totals: Totals
) -> tuple[LoaderPlan, Callable[[InlineMap | InlineStream], InlineMap | InlineStream | TracedInline]]:
    """The plan of an epoch without workers with its collation timed, and what makes its batches recorded; both as they
    were if it is not traced."""
    if plan.trace is None:
        return plan, lambda batches: batches
    recorder, spec = open_pool(plan.trace, rank())
    worker = replace(plan.worker, collate_fn=TimedCollate(recorder, plan.worker.collate_fn))
    return replace(plan, worker=worker), lambda batches: TracedInline(
        batches, recorder, spec, totals, plan.worker.batch_size or 1
    )
