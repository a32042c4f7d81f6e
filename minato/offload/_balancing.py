"""Which samples go to the remote side: a counter for each side, so that the shares are right after every batch."""

from __future__ import annotations


class ShareCounter:
    """Splits batches by a ratio. Whatever the sizes, the remote count is never more than one off its share; with
    whole batches, one batch."""

    def __init__(self, ratio: float = 0.0, whole: bool = False) -> None:
        self.set(ratio, whole)

    def set(self, ratio: float, whole: bool) -> None:
        """Begin to count anew. `whole`: batches are not divided."""
        self.ratio = min(1.0, max(0.0, ratio))
        self.whole = whole
        self.total = 0
        self.remote = 0

    def take(self, tickets: int) -> int:
        """How many of the next `tickets` go to the remote side."""
        self.total += tickets
        owed = self.ratio * self.total - self.remote
        if self.whole:
            away = tickets if owed >= tickets / 2 else 0
        else:
            away = max(0, min(tickets, round(owed)))
        self.remote += away
        return away
