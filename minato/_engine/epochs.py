"""Which epochs are under way, and how many of their batches are posted: the feeding half of the engine.

There is the epoch being delivered, the one after it where that could be begun ahead, and what workers still have in
hand of abandoned ones. Called by the consuming thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._plan import LoaderPlan
from .._queues.leases import Slots
from .._queues.posting import PostingBoard
from .._scheduler.window import Window
from .._workers.generators import mix
from .ahead import Forecast
from .away import Nobody
from .feeds import Epoch, Feed, StreamFeed, make_feed
from .foresight import Foresight
from .memory import reclaim, reuse_warm_slot
from .pace import Pace


class Epochs:
    """Posts the batches of one engine's epochs."""

    def __init__(
        self,
        plan: LoaderPlan,
        base_seed: int,
        board: PostingBoard,
        slots: Slots,
        away: Nobody,
        window: Window,
        foresight: Foresight | None,
        pace: Pace,
        span: int,
        first_epoch: int,
    ) -> None:
        """`span`: batches from the oldest with an undelivered sample to the newest. `first_epoch`: the number of the
        epoch to begin with."""
        self._plan = plan
        self._base_seed = base_seed
        self._board = board
        self._slots = slots
        board.is_warm = slots.is_warm
        self._away = away
        self._window = window
        self._foresight = foresight
        self._pace = pace
        self._span = span
        self.number = first_epoch - 1
        """Of the epoch being delivered, among those of the base seed."""
        self.current: Feed
        """The epoch being delivered, from `begin` on."""
        self.ahead: Feed | None = None
        """The epoch after the current one, already under way."""
        self.forecast: Forecast | None = None
        """Of the epochs to come, if the workers are to live on."""
        self.is_behind = False
        """Whether batches were delivered aside, and the consumer has yet to post others in their place."""
        self.void: list[int] = []
        """Batches of abandoned epochs whose slots some worker may still write to."""

    @property
    def following(self) -> int:
        """Number of the next epoch, if it is not the one that is under way ahead."""
        return (self.number if self.ahead is None else max(self.number, self.ahead.epoch)) + 1

    # ---- from epoch to epoch ----------------------------------------------------------------------------------------

    def begin(self, sampler: Epoch, seed: int | None, before: Feed | None = None) -> None:
        """Begin an epoch, the first or one after `before`; `top_up` posts its first batches. `seed`: if it is not to be
        derived from the base seed."""
        self.number += 1
        self.current = self._make_feed(self.number, sampler, seed)
        if isinstance(before, StreamFeed) and isinstance(self.current, StreamFeed):
            self.current.follow(before)

    def begin_next(self, sampler: Iterable[Any], seed: int | None, unchanged: bool) -> bool:
        """Begin another epoch, the one that is under way ahead if it is the same; what was left of the one before is
        abandoned. `unchanged`: the dataset is as it was. True: it was under way."""
        ahead, self.ahead = self.ahead, None
        if ahead is None or not self._may_adopt(sampler, unchanged):
            self._abandon(self.current, ahead)
            self.begin(sampler, seed, before=self.current)
            self.top_up()
            return False
        self.current, self.number = ahead, ahead.epoch
        self.top_up()
        return True

    def _make_feed(self, epoch: int, sampler: Epoch, seed: int | None = None) -> Feed:
        seed = mix(self._base_seed, epoch) if seed is None else seed
        return make_feed(epoch, seed, self._plan.worker, sampler, self._foresight)

    def _may_adopt(self, sampler: Iterable[Any], unchanged: bool) -> bool:
        """Whether the epoch that is under way ahead is the one that begins now."""
        assert self.forecast is not None
        if unchanged and not self.current.out:
            return self.forecast.came_true(sampler)
        self.forecast.give_up()
        return False

    def _abandon(self, *feeds: Feed | None) -> None:
        """Nobody waits for these epochs any more."""
        for feed in feeds:
            if feed is not None:
                self.void += feed.out
                self.number = max(self.number, feed.epoch)
        self._board.abandon_epochs_before(self.number + 1)

    # ---- batches ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether every batch of this epoch was delivered."""
        return self.current.exhausted and not self.current.out

    @property
    def in_flight(self) -> int:
        """Batches posted and not delivered."""
        return len(self.current.out) + (0 if self.ahead is None else len(self.ahead.out))

    def top_up(self, aside: bool = False) -> None:
        """Post batches until the window is full: of this epoch, and when it has no more, of the next, but not `aside`:
        drawing its order is for the consumer's thread."""
        reclaim(self.void, self._slots, self._board)
        posted = self._post_from(self.current)
        if self.current.exhausted and self.forecast is not None and not aside and self._may_look_ahead():
            if self.ahead is None:
                foreseen = self.forecast.make()
                if foreseen is not None:
                    self.ahead = self._make_feed(self.number + 1, foreseen)
            if self.ahead is not None:
                posted += self._post_from(self.ahead)
        if self.current.exhausted:
            reuse_warm_slot(self._slots, self._board)
        if posted or self.current.exhausted:
            self._pace.wake_for_posted(posted, self.current.out)
            self._away.wake()

    def top_up_in_time(self, aside: bool = False) -> None:
        """The same after a batch was delivered, several batches at once where nobody is in a hurry. `aside`, what is
        for the consumer's thread is left to `catch_up`."""
        # What is made ready aside takes memory until the consumer comes for it: where the budget is what bounds the
        # window, nothing is posted in its place before.
        if aside and (self._window.is_narrowed or not self._may_be_posted_aside):
            self.is_behind = True
        elif self.ahead is not None or not self._pace.may_post_later(self.current.out):
            self.top_up(aside)

    def begin_to_wait(self) -> float:
        """The consumer is about to wait. Returns the time, of the monotonic clock."""
        # Interrupted half-way, a slot without memory is forgotten until the workers end: nothing is lost with it.
        reuse_warm_slot(self._slots, self._board)
        return self._pace.begin_to_wait()

    def drop_ended(self, batch: int, packed: bytes | None) -> None:
        """A batch turned out to have nothing in it: its stream has ended. `packed`: the stream's last state."""
        feed = self.current
        feed.out.remove(batch)
        feed.ledger.deliver_batch(batch)
        feed.ended(batch, packed)
        self._slots.put_back(self._board.take_slot(batch))
        self.top_up()

    def catch_up(self) -> None:
        """Post what was not posted aside."""
        if self.is_behind:
            self.is_behind = False
            self.top_up_in_time()

    @property
    def _may_be_posted_aside(self) -> bool:
        """Whether any thread may post now: no sampler or function of the user's is asked, no generator drawn from."""
        looks_ahead = self.ahead is not None or (self.forecast is not None and self.current.exhausted)
        return self.current.may_be_posted_aside and not looks_ahead

    def _may_look_ahead(self) -> bool:
        """Whether nothing more will be posted of this epoch: batches of two epochs must not be mixed."""
        return not self._plan.worker.skips or self.ahead is not None or self.current.is_settled(self._board)

    def _post_from(self, feed: Feed) -> int:
        """How many workers may find something to do in what was posted."""
        posted = 0
        while not feed.exhausted and self.in_flight < self._window.size and self._has_room():
            slot = self._slots.take()
            try:
                done = feed.post(self._board, slot)
            except BaseException:
                self._slots.put_back_unused(slot)
                raise
            if not done:
                self._slots.put_back_unused(slot)
                break
            posted += self._board.takers_of_newest
        if feed.exhausted:
            self._board.note_all_posted(feed.epoch)
        return posted

    def _has_room(self) -> bool:
        """Whether the next batch's record is free, and no sample would fall behind too far: a straggler keeps the
        record of its own batch in use, and so does an abandoned batch that is still in some worker's hand."""
        number, oldest = self._board.next_number, self.current.oldest
        if self.ahead is not None and oldest is None:
            oldest = self.ahead.oldest  # its batches are newer than all of the current epoch's
        straggler = number if oldest is None else oldest
        abandoned = min(self.void, default=number)
        return number - straggler < self._span and number - abandoned < self._board.control.batches
