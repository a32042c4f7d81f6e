"""How many batches to keep in flight within the memory budget."""

from __future__ import annotations

import math

_MEMORY = 0.9  # weight of the past in the running size of a batch


class Window:
    """Batches in flight: the plan's number, or fewer when batches turn out too large for the budget.

    Never below one: a single batch beyond the budget is still delivered, only nothing is fetched ahead of it. Until the
    first batch is delivered nobody knows how large they are: `first` of them are enough to keep every worker busy.
    """

    def __init__(self, most: int, budget_bytes: int, first: int, depth: float = 0.0) -> None:
        """`depth`: samples that workers fetch at once, for each batch of `most`: where that is more than a batch has,
        there are as many more in flight as it takes."""
        self._most = most
        self._extra = 0
        self._depth = depth
        self._rows = 1
        self._first = first
        self._budget = budget_bytes
        self._batch_bytes: float | None = None
        self.delivered = 0
        """Batches so far."""
        self.sample_bytes = 0.0
        """Of the last of them."""
        self.is_narrowed = False
        """Whether it is the budget that bounds the number of batches."""
        self.size = self._fitting()
        """Batches that may be in flight: asked for several times a batch, worked out when something changes."""

    def observe(self, batch_bytes: int, rows: int = 1) -> None:
        """A batch of that size and so many samples was delivered. Growth counts at once, shrinking slowly."""
        self.delivered += 1
        if batch_bytes == self._batch_bytes and rows == self._rows:
            return  # as nearly always: the same as before
        self._rows = max(1, rows)
        self.sample_bytes = batch_bytes / self._rows
        before = batch_bytes if self._batch_bytes is None else self._batch_bytes
        self._batch_bytes = max(batch_bytes, batch_bytes + _MEMORY * (before - batch_bytes))
        self.size = self._fitting()

    def resize(self, most: int) -> None:
        """The plan's number has changed."""
        self._most = max(1, most)
        self.size = self._fitting()

    def widen(self, extra: int) -> None:
        """So many batches more than the plan's number: for work that is under way elsewhere."""
        self._extra = max(0, extra)
        self.size = self._fitting()

    def _fitting(self) -> int:
        if self._batch_bytes is None:
            return min(self._first, self._most) if not self._depth else self._first
        most = self._most + math.ceil(self._most * self._depth / self._rows) + self._extra
        affordable = int(self._budget / max(1.0, self._batch_bytes))
        self.is_narrowed = affordable < most
        return max(1, min(most, affordable))
