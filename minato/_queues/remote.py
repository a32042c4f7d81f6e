"""The remote side of the board: what is set aside for other machines is taken here, and given back if need be.

A process that works for other machines has several worker records, one for each piece of work that is under way there:
*lanes*. A lane has tickets in hand as a worker has, and whatever happens to its process, they are found again as those
of a worker are.
"""

from __future__ import annotations

from .._records import Run
from .fields import Batch, Header, Worker
from .taking import TakingBoard, unpacked


class RemoteBoard(TakingBoard):
    """Takes work and hands it in, for one lane."""

    def pull_away(self, want: int, whole: bool, beyond: bool) -> Run | None:
        """Take up to `want` tickets (`whole`: all) of what is set aside for the remote side; if there is nothing and
        `beyond` says so, of any batch. None: there is nothing."""
        words = self._words
        with self._lock:
            taken = self._take_away(words[Header.AWAY_HEAD], 1 << 62 if whole else want)
            if taken is None and beyond:
                taken = self._pull_open(want, 1 if whole else 0, False)
        return unpacked(taken) if taken is not None and type(taken.keys[0]) is bytes else taken

    def give_back(self) -> None:
        """Offer the tickets in hand to others, ahead of all other work. The main process has to wake them."""
        words, me = self._words, self._me
        with self._lock:
            batch, first, count = words[me + Worker.BATCH : me + Worker.COUNT + 1]
            if count and words[self.control.batch(batch) + Batch.EPOCH] >= words[Header.LIVE_EPOCH]:
                self.post_orphan(batch, first, count)
            self._put_down(count)
        self._announce()
