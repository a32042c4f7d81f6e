"""Slots: free, in flight, or lent to the user under a batch's tensors.

Owned by the main process. A slot is taken when a batch is published and lent when the batch is delivered; it returns
when the last tensor over it is garbage, whichever thread drops it. A user who keeps batches must not starve the loader:
at most `most_lent` slots are lent at once, and a batch beyond that is copied out and its slot returns immediately.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from .arena import Arena, Stretch
from .mapping import Bytes


class _Lease(weakref.ref[Bytes]):
    """Of a slot's memory. Its end is noted by a callback that is not written in Python: an interrupt that came while
    such a one ran would be lost."""

    __slots__ = ("slot",)
    slot: int


class Slots:
    """Which slots exist and who has them. Called by the consuming thread only; returns may come from any thread."""

    def __init__(
        self, arena: Arena, most_lent: int, before_lending: Callable[[Bytes, int], None] = lambda *_: None
    ) -> None:
        """`before_lending` is called with a slot's memory and the bytes of it that are used."""
        self._arena = arena
        self._most_lent = most_lent
        self._before_lending = before_lending
        self._free: list[int] = []
        self.out: set[int] = set()
        """Slots posted for batches in flight."""
        self._count = 0
        self._warm: set[int] = set()
        """Slots that have memory: batches were in them."""
        self._lent: dict[int, _Lease] = {}
        # A lease ends in a garbage-collection callback, where taking a lock could deadlock: append is atomic.
        self._returned: deque[_Lease] = deque()

    @property
    def count(self) -> int:
        """Slots in existence."""
        return self._count

    @property
    def lent(self) -> int:
        """Slots under tensors that the user still holds."""
        self._collect()
        return len(self._lent)

    def take(self) -> int:
        """A slot for a new batch: the one most recently returned, since its memory is warm, or a new one."""
        self._collect()
        if not self._free:
            self._free.append(self._count)
            self._count += 1
        slot = self._free.pop()
        self.out.add(slot)
        return slot

    def may_lend(self) -> bool:
        """Whether another slot may be lent, or the batch has to be copied out."""
        self._collect()
        return len(self._lent) < self._most_lent

    def lend(self, slot: int, nbytes: int) -> Bytes:
        """The slot's memory, to put tensors over. When nothing refers to the array any more the slot is free again."""
        # A fresh array object whose life is the lease's life. Not a slice: numpy lets a view of a view refer to the
        # innermost array, past the one in between. A view of an array over a buffer refers to that array.
        memory = np.frombuffer(self._arena.view(Stretch.SLOT, slot, nbytes).data, np.uint8)
        self._before_lending(memory, nbytes)
        self.out.discard(slot)
        self._warm.add(slot)
        self._lent[slot] = lease = _Lease(memory, self._returned.append)
        lease.slot = slot
        return memory

    def put_back(self, slot: int) -> None:
        """A slot that was not lent is free again. It counts as warm: most often a batch was in it."""
        self.out.discard(slot)
        self._warm.add(slot)
        self._free.append(slot)

    def put_back_unused(self, slot: int) -> None:
        """A slot that was never written to since it was taken is free again: the next to be taken if it has memory, or
        else the last."""
        self.out.discard(slot)
        self._free.insert(len(self._free) if slot in self._warm else 0, slot)

    def is_warm(self, slot: int) -> bool:
        """Whether a slot has memory from an earlier batch."""
        return slot in self._warm

    @property
    def all_warm(self) -> bool:
        """Whether every slot has memory: as soon as the window has been filled once."""
        return len(self._warm) == self._count

    def take_warm(self) -> int | None:
        """A free slot that has memory, if there is one."""
        self._collect()
        for slot in reversed(self._free):
            if slot in self._warm:
                self._free.remove(slot)
                self.out.add(slot)
                return slot
        return None

    def reset(self) -> None:
        """All slots in flight are free again: nobody writes to them any more."""
        self._collect()
        self._free += self.out
        self._free.sort(key=self.is_warm)  # those that have no memory are taken last
        self.out.clear()

    def _collect(self) -> None:
        while self._returned:
            try:
                slot = self._returned.popleft().slot
            except IndexError:  # whoever asks how many are lent has been quicker, in a thread of its own
                return
            del self._lent[slot]
            self._free.append(slot)
