"""When to post, and whom to wake: without haste where there is none.

Both are done in `next()`, so the consumer pays for them: waking a worker takes a system call that may put the caller
aside, and costs more than all else that is done for a small batch. While half of the window is ready nobody is in a
hurry: what is posted will be found by the workers that are at work, and several batches are posted at once. As soon as
less is ready, and before the consumer waits for a batch, everybody is woken who finds something to do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from .._queues.fields import Batch, Header, Phase, State
from .._queues.posting import PostingBoard
from .._scheduler.window import Window
from .._workers.pool import WorkerPool


class Pace:
    """Of one engine."""

    def __init__(self, board: PostingBoard, pool: WorkerPool, window: Window, are_owned: bool = False) -> None:
        """`are_owned`: each batch is for one worker, so that others cannot take it: there is always haste."""
        self._are_owned = are_owned
        self._board = board
        self._most = board.control.records
        self._pool = pool
        self._window = window

    def may_post_later(self, out: Sequence[int]) -> bool:
        """Whether there is time before more has to be posted: seven eighths of the window are, and half of it is ready.
        `out`: batches posted and not delivered, oldest first."""
        return 8 * len(out) >= 7 * self._window.size and self._is_ahead(out)

    def wake_for_posted(self, takers: int, out: Sequence[int]) -> None:
        """Wake workers for what was posted, which gives so many of them something to do. To be called after the last
        batch was posted, too: somebody may have to be woken for earlier ones."""
        if self._is_ahead(out):
            takers = 0 if self._is_anybody_at_work() else 1  # who is at work goes on until nothing is left
        else:
            takers = max(takers, self._open_tickets())  # of earlier batches as well, for which nobody was woken
        if takers:
            self._pool.wake(self._board.wake_sleepers(min(takers, self._most)))

    def begin_to_wait(self) -> float:
        """The consumer is about to wait: wake all workers, if there is something that nobody has taken. Returns the
        time, of the monotonic clock."""
        words = self._board.control.words
        if min(words[Header.PULL], words[Header.EARLY]) < words[Header.PUBLISHED]:
            self._pool.wake(self._board.wake_sleepers(self._most))
        return time.monotonic()

    def _is_ahead(self, out: Sequence[int]) -> bool:
        """Whether half of the window is ready. Batches become ready nearly in their order: two are looked at."""
        middle = self._window.size // 2
        if middle == 0 or len(out) <= middle or self._are_owned:
            return False
        return self._board.control.states((out[0], out[middle])) == [State.READY, State.READY]

    def _is_anybody_at_work(self) -> bool:
        return Phase.FETCHING in self._board.control.phases(self._board.control.records_here)

    def _open_tickets(self) -> int:
        """Tickets that nobody has taken, as far as there are workers for them."""
        words, board, found = self._board.control.words, self._board, 0
        for batch in range(words[Header.PULL], words[Header.PUBLISHED]):
            found += board.field(batch, Batch.TICKETS) - board.field(batch, Batch.PULLED)
            if found >= self._most:
                break
        return found
