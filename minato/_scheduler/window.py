"""How many batches to keep in flight within the memory budget."""

from __future__ import annotations

_MEMORY = 0.9  # weight of the past in the running size of a batch


class Window:
    """Batches in flight: the plan's number, or fewer when batches turn out too large for the budget.

    Never below one: a single batch beyond the budget is still delivered, only nothing is fetched ahead of it.
    """

    def __init__(self, most: int, budget_bytes: int) -> None:
        self._most = most
        self._budget = budget_bytes
        self._batch_bytes = 0.0

    def observe(self, batch_bytes: int) -> None:
        """A batch of that size was delivered. Growth counts at once, shrinking slowly."""
        self._batch_bytes = max(batch_bytes, _MEMORY * self._batch_bytes + (1 - _MEMORY) * batch_bytes)

    @property
    def size(self) -> int:
        """Batches that may be in flight."""
        if self._batch_bytes == 0:
            return self._most
        return max(1, min(self._most, int(self._budget / self._batch_bytes)))
