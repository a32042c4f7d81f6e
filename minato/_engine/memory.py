"""The shared memory of a loader, kept from one epoch to the next.

Fresh pages are what makes shared memory dear: the system has to find, clear and map each of them. An epoch that begins
with the slots of the one before pays for mapping only. So when an engine ends, its arena goes back to its loader and
waits for the next engine; it is given up with the loader, or when it has grown larger than is fair to keep idle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .._device.pinning import SlotPinner, make_slot_pinner
from .._queues.arena import Arena, Stretch
from .._queues.leases import Slots
from .._queues.posting import PostingBoard

MOST_LENT = 4  # slots under batches the user holds: the current one, the previous, and a trainer's prefetch
MOST_KEPT_BYTES = 1 << 30  # of an idle loader; more is given back to the system


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """An arena and the account of its slots. In use by one engine at a time."""

    arena: Arena
    slots: Slots
    pinner: SlotPinner | None

    @classmethod
    def create(cls, pinned: bool) -> BatchMemory:
        arena, pinner = Arena.create(), make_slot_pinner(pinned)
        slots = Slots(arena, MOST_LENT) if pinner is None else Slots(arena, MOST_LENT, pinner.cover)
        return cls(arena, slots, pinner)

    def close(self) -> None:
        """Give the memory up; what the user still holds of it stays."""
        if self.pinner is not None:
            self.pinner.release()
        self.arena.close()

    @property
    def resident_bytes(self) -> int:
        """Memory the arena takes."""
        return os.fstat(self.arena.fd).st_blocks * 512


class MemoryKeeper:
    """Keeps the memory of a loader's last engine for the next one."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._idle: BatchMemory | None = None
        self._pid = os.getpid()

    def take(self) -> BatchMemory:
        """Memory for an engine: what was kept, or new."""
        if self._pid != os.getpid():  # a forked copy of the loader: what is kept belongs to the parent
            self._pid, self._idle = os.getpid(), None
        idle, self._idle = self._idle, None
        return BatchMemory.create(self._pinned) if idle is None else idle

    def give_back(self, memory: BatchMemory) -> None:
        """An engine has ended, and its workers with it."""
        memory.slots.reset()
        memory.arena.discard(Stretch.PROGRAM, 0)
        if self._idle is None and memory.resident_bytes <= MOST_KEPT_BYTES:
            self._idle = memory
        else:
            memory.close()

    def close(self) -> None:
        """Give up what is kept."""
        if self._idle is not None:
            self._idle.close()
            self._idle = None


def reuse_warm_slot(slots: Slots, board: PostingBoard) -> None:
    """A slot that came back after the last batch was posted would lie idle, while the next batches go into slots
    without memory: pages of which take longer to be made than to be filled."""
    warm = slots.take_warm() if not slots.all_warm and board.lacks_warm_slots else None
    if warm is not None:
        slots.put_back_unused(board.exchange_free_slot(warm))


def reclaim(void: list[int], slots: Slots, board: PostingBoard) -> None:
    """Take the slots of abandoned batches back that no worker has in hand any more."""
    if void:
        held = board.held()
        for batch in [b for b in void if b not in held]:
            void.remove(batch)
            slots.put_back(board.take_slot(batch))
