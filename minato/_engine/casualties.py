"""Workers that died: their work goes to others, a new worker takes their place, and what cannot be mended is raised."""

from __future__ import annotations

import signal
import warnings
from collections import Counter
from collections.abc import Sequence

from .._errors import CapturedError, WorkerDied
from .._plan import LoaderPlan
from .._queues import messages
from .._queues.arena import Stretch
from .._queues.control import Phase
from .._queues.leases import Slots
from .._queues.posting import PostingBoard
from .._queues.recovery import recover
from .._records import Hand
from .._workers.pool import WorkerPool
from .feeds import Feed, StreamFeed
from .totals import Totals


class Casualties:
    """Treats deaths on behalf of one engine."""

    def __init__(self, board: PostingBoard, pool: WorkerPool, slots: Slots, plan: LoaderPlan, totals: Totals) -> None:
        self._board = board
        self._pool = pool
        self._slots = slots
        self._plan = plan
        self._suspects: Counter[tuple[int, int]] = Counter()
        """Deaths by (batch, place) of the only ticket the worker had in hand."""
        self._totals = totals
        self._restarts = 0

    def forget(self) -> None:
        """A new epoch begins."""
        self._suspects.clear()

    def treat(self, dead: Sequence[int], feed: Feed, ahead: Feed | None, void: Sequence[int]) -> None:
        """Recover from the deaths of workers. Raises a worker's own error if its start failed, WorkerDied if its work
        cannot be done by another."""
        for worker in dead:
            phase = self._board.phase(worker)
            hand = self._board.hand(worker)
            pid, code = self._pool.bury(worker)
            how = f"DataLoader worker (pid {pid}) {_manner(code)}"
            if not isinstance(feed, StreamFeed) and phase != Phase.FAILED:
                self._check_limits(how, hand)  # before its samples are offered to others, who might die of them too
            epochs = [feed.open_epoch()] if ahead is None else [feed.open_epoch(), ahead.open_epoch()]
            recover(self._board, self._pool.alive, epochs, void, self._slots.out)
            if phase == Phase.FAILED:
                captured: CapturedError = messages.get(self._board.arena, Stretch.WORKER, worker)
                raise captured.rebuild()
            if isinstance(feed, StreamFeed):
                if feed.unfinished(worker):
                    raise WorkerDied(f"{how}: worker {worker}'s stream cannot be replayed by another")
                if not self._plan.persistent:
                    continue  # it had nothing left to do
                self._check_limits(how, hand)
            self._replace(worker)
            warnings.warn(f"{how}{_doing(hand)}; its samples go to other workers", RuntimeWarning, stacklevel=5)

    def _replace(self, worker: int) -> None:
        self._restarts += 1
        self._totals.worker_restarts += 1
        self._pool.restart(worker)
        self._pool.wake(self._board.wake_sleepers(self._board.control.workers))

    def _check_limits(self, how: str, hand: Hand) -> None:
        if hand.count == 1:
            self._suspects[hand.batch, hand.first] += 1
            # One death may have come from outside (the out-of-memory killer); a second on the same sample did not.
            if self._suspects[hand.batch, hand.first] > self._plan.sample_retries + 1:
                raise WorkerDied(f"{how}{_doing(hand)}, as did the workers that tried this sample before")
        if self._restarts >= self._plan.max_worker_restarts:
            raise WorkerDied(f"{how}{_doing(hand)}, after max_worker_restarts={self._restarts} restarts")


def _manner(code: int | None) -> str:
    if code is not None and code < 0:
        return f"is killed by signal: {signal.strsignal(-code)}"
    return f"exited unexpectedly with exit code {code}"


def _doing(hand: Hand) -> str:
    if hand.count == 0:
        return ""
    keys = ", ".join(repr(key) for key in hand.keys[:3])
    return f" while fetching sample index {keys}" + (f" and {hand.count - 3} more" if hand.count > 3 else "")
