"""Batches on an accelerator before they are asked for.

    loader's batches ─► copy begins on a side stream ─► lane of the device ─► next(): the user's stream waits for the
                        host batch is kept                                    copy, the host does not

A copy is begun as soon as a batch is ready and there is room for it. When the batch is asked for, the stream the user
works on is told to wait for the copy, and the device's memory is marked as used by that stream. The host batch, and
with it the loader's memory that the copy reads, is held until the copy is done: that may be after the user has it.

There is no thread: copies are begun inside `next()`, which takes batches that are ready and waits for one only if it
has none to return. Written against torch's public runtime (`runtime.py`), tested with a fake one; it has not been run
on an accelerator.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .._errors import LoaderClosed
from .runtime import DeviceRuntime, Event, Stream
from .structure import change_leaves


@dataclass(frozen=True, slots=True)
class _Copy:
    """Host memory that a copy may still be reading."""

    event: Event
    host: list[Any]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch on its way."""

    batch: Any
    event: Event
    parts: list[Any]
    """Everything in it that lies in the device's memory."""
    unfinished: bool
    """Whether some parts have yet to be copied, when the batch is handed out."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error in place of a batch."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Later:
    """Part of a batch that is copied when the batch is handed out."""

    value: Any


class Lane:
    """One device: its side stream, its queue of batches, and the host memory its copies are reading."""

    def __init__(self, device: torch.device, runtime: DeviceRuntime) -> None:
        self._runtime = runtime
        self._device = runtime.resolve(device)
        self._stream: Stream = runtime.new_stream(self._device)
        self._copies: deque[_Copy] = deque()
        self._pid = os.getpid()
        self.queue: deque[_Sent | _Failed] = deque()

    def send(self, batch: Any) -> _Sent:
        """Begin to copy a batch."""
        runtime, device = self._runtime, self._device
        host: list[Any] = []
        copied: dict[int, Any] = {}
        later = False

        def begin(value: Any) -> Any:
            nonlocal later
            if not _can_go_ahead(value):
                later = True
                return _Later(value)
            if id(value) not in copied:  # a tensor that is there twice stays one tensor
                source = runtime.pin(value) if isinstance(value, torch.Tensor) else value
                host.extend((value, source))
                copied[id(value)] = runtime.copy(source, device)
            return copied[id(value)]

        try:
            with runtime.working_on(self._stream, device):
                sent = change_leaves(batch, _is_movable, begin)
        finally:
            # Also after an error: what was begun before it is under way, and reads the host's memory.
            event = self._stream.record_event()
            self._copies.append(_Copy(event, host))
        return _Sent(sent, event, list(copied.values()), later)

    def hand_out(self, sent: _Sent) -> Any:
        """The batch, for work on the stream that is current now."""
        stream = self._runtime.current_stream(self._device)
        stream.wait_event(sent.event)
        for part in sent.parts:
            self._runtime.mark_used(part, stream)
        if not sent.unfinished:
            return sent.batch
        return change_leaves(
            sent.batch, lambda value: isinstance(value, _Later), lambda later: later.value.to(self._device)
        )

    def let_go_of_copied(self) -> None:
        """Drop host memory that was read."""
        while self._copies and self._copies[0].event.query():
            self._copies.popleft()

    def release(self) -> None:
        """Drop all batches and, once the copies are done, the host memory they read."""
        self.queue.clear()
        if os.getpid() != self._pid:  # a forked copy: devices cannot be talked to, and the copies are the parent's
            return
        while self._copies:
            self._copies[0].event.synchronize()
            self._copies.popleft()


class Watch(Protocol):
    """Whoever wants to know what happens to batches, in the order in which they were fetched."""

    def sent(self, start_ns: int) -> None:
        """The copy of the batch last fetched has begun; `start_ns` of the monotonic clock: when that was set about."""

    def consumed(self) -> None:
        """The oldest batch, or the error in its place, is handed out."""

    def dropped(self) -> None:
        """What was not handed out will not be."""


class DevicePrefetcher:
    """Batches of `fetch`, copied ahead; dealt to the devices in turn. Called by one thread at a time."""

    def __init__(
        self,
        fetch: Callable[[], Any],
        is_ready: Callable[[], bool],
        devices: Sequence[torch.device],
        depth: int,
        runtime: DeviceRuntime,
        watch: Watch | None = None,
    ) -> None:
        """`fetch` gives the next batch, or raises StopIteration at the end, or the error in place of a batch. While
        `is_ready`, it does so without waiting. `depth`: batches to copy ahead for each device. `watch`: is told what
        happens to batches."""
        self._fetch = fetch
        self._watch = watch
        self._is_ready = is_ready
        self._depth = depth
        self._lanes = [Lane(device, runtime) for device in devices]
        self._ended = False
        self._in_hand: list[Any] = []
        """The batch whose copy is being begun: still there after Ctrl-C, for those who go on."""
        self._dealt = 0
        self._handed_out = 0
        # As garbage: host memory must outlive the copies that read it.
        self._finalizer = weakref.finalize(self, _release, self._lanes)
        self._finalizer.atexit = False  # the process's memory goes with it

    def next_batch(self) -> Any:
        """The next batch, on its device; or StopIteration; or the error in its place, after the batches before it."""
        self._copy_ahead()
        if self.waiting == 0:
            raise StopIteration
        lane = self._lanes[self._handed_out % len(self._lanes)]
        self._handed_out += 1
        if self._watch is not None:
            self._watch.consumed()
        try:
            entry = lane.queue.popleft()
        except IndexError:  # another thread has just closed the loader
            raise LoaderClosed("the loader was closed while this iterator was asked for a batch") from None
        if isinstance(entry, _Failed):
            error = entry.error
            try:
                raise error
            finally:
                # Its traceback refers to this frame: with a cycle, everything here would wait for the collector.
                del error, entry
        return lane.hand_out(entry)

    @property
    def waiting(self) -> int:
        """Batches taken from the loader and not handed out."""
        return self._dealt - self._handed_out

    @property
    def queues(self) -> tuple[int, ...]:
        """Batches that were copied ahead and not handed out, for each device."""
        return tuple(len(lane.queue) for lane in self._lanes)

    def _copy_ahead(self) -> None:
        """Make sure that there is something to return, and begin to copy what is ready besides."""
        most = 1 + self._depth * len(self._lanes)  # one is about to be handed out
        self._let_go_of_copied()
        while not self._ended and self.waiting < most and not self._has_failed():
            if not self._take_one():
                return
            self._let_go_of_copied()  # the loader may need that memory for the next batch

    def _let_go_of_copied(self) -> None:
        for lane in self._lanes:
            lane.let_go_of_copied()

    def _take_one(self) -> bool:
        """Put the next batch, or the error in its place, into the queue of the device whose turn it is. False at the
        end, or if there is none yet and no need to wait for one."""
        lane = self._lanes[self._dealt % len(self._lanes)]
        try:
            if not self._in_hand:
                if self.waiting and not self._is_ready():
                    return False
                self._in_hand.append(self._fetch())
            began_ns = time.monotonic_ns()
            sent = lane.send(self._in_hand[0])
            if self._watch is not None:
                self._watch.sent(began_ns)
            self._in_hand.clear()
            lane.queue.append(sent)
        except StopIteration:
            self._ended = True
            return False
        except LoaderClosed:  # not for a batch to come: nothing is handed out any more
            self.release()
            raise
        except Exception as error:  # not BaseException: Ctrl-C and exit are for now
            self._in_hand.clear()
            lane.queue.append(_Failed(error))
        self._dealt += 1
        return True

    def _has_failed(self) -> bool:
        """Whether the newest batch is an error: the user may not want any after it."""
        if self.waiting == 0:
            return False
        return isinstance(self._lanes[(self._dealt - 1) % len(self._lanes)].queue[-1], _Failed)

    def restart(self) -> None:
        """Another epoch: what is left of the one before is dropped."""
        self.release()
        self._ended = False
        self._dealt = self._handed_out = 0  # every epoch begins with the first device

    def release(self) -> None:
        """Drop everything that was not handed out. Idempotent."""
        if self._watch is not None:
            self._watch.dropped()
        _release(self._lanes)
        self._in_hand.clear()
        self._handed_out = self._dealt


def _release(lanes: list[Lane]) -> None:
    for lane in lanes:
        lane.release()


def _is_movable(value: Any) -> bool:
    """Tensors, and objects that know how to go to a device: packed sequences, tokenizers' batches, graphs."""
    return isinstance(value, torch.Tensor) or (not isinstance(value, type) and callable(getattr(value, "to", None)))


def _can_go_ahead(value: Any) -> bool:
    """Whether a value may be copied on another stream than the user's.

    Only if the device's memory can be marked as used by the user's stream, and if no work on some stream may still be
    writing to the value: so not for what lies on a device already, sparse and nested tensors, most objects with `to`.
    """
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.layout is torch.strided and not value.is_nested
    return callable(getattr(value, "record_stream", None))
