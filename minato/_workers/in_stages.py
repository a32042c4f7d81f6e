"""Dear samples one stage at a time: what the loop of a worker needs of stages and of the temp queue.

Used for tickets that are taken one by one, on datasets whose stages can be seen: once there is a threshold, and before
for the first dear samples, so that the profile knows what the stages take. Everything else is fetched as a whole. A
worker with something in its temp queue never sleeps, and never leaves before it is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._fetchers.sequential import Capture
from .._plan import Order
from .._queues.fields import Current
from .._records import Run
from .._sample_random import announce
from .parking import Begun, Outcome, Parking
from .parking_rules import ParkingRule
from .randomness import sample_seed
from .stages import find_stages

if TYPE_CHECKING:
    from .lanes import LoopContext

PROFILED = 64  # samples of a worker that are made in stages without a threshold

HandIn = Callable[[Run, Any, float], None]
"""Told the ticket, the sample (or what took its place), and the seconds of work it took."""


class InStages:
    """Makes one worker's single samples in stages."""

    def __init__(self, context: LoopContext, hand_in: HandIn, capture: Capture) -> None:
        self._context = context
        self._board = context.board
        self._hand_in = hand_in
        self._capture = capture
        self._parking: Parking | None = None
        self._is_opaque = False
        self._left = PROFILED

    def is_wanted(self, are_dear: bool) -> bool:
        """Whether a single sample is to be made in stages now. `are_dear`: samples are known to be taken one by one for
        what they cost."""
        if self._is_opaque or (self._board.threshold_s is None and not (are_dear and self._left > 0)):
            return False
        return self._parking is not None or self._look()

    @property
    def is_opaque(self) -> bool:
        """Whether the dataset was looked at, and has no stages that can be seen."""
        return self._is_opaque

    def _look(self) -> bool:
        """Look for stages: once, and only when they are of use, since the source of the dataset is read for it."""
        begin = find_stages(self._context.dataset, self._context.sample_run)
        self._is_opaque = begin is None
        if begin is not None:
            plan = self._context.plan
            rule = ParkingRule(plan.order is Order.IN_ORDER, plan.max_deferral)
            self._parking = Parking(self._board, begin, rule, plan.queue_size)
        return begin is not None

    def make(self, run: Run) -> None:
        """Make the run's only sample and hand it in, or put it aside."""
        assert self._parking is not None
        self._left -= 1
        seed = sample_seed(run.seed, run.origin(0), run.keys[0])
        self._go_on(self._parking, self._parking.begin(run, seed))

    @property
    def is_due(self) -> bool:
        """Whether a sample that was put aside comes before all that could be taken."""
        return self._parking is not None and self._parking.is_due()

    @property
    def has_parked(self) -> bool:
        """Whether something was put aside."""
        return self._parking is not None and self._parking.parked > 0

    def resume(self) -> None:
        """Go on with the sample that was put aside first, to its end."""
        assert self._parking is not None
        begun = self._parking.resume()
        if begun is not None:
            self._go_on(self._parking, begun)

    def _go_on(self, parking: Parking, begun: Begun) -> None:
        current, key = self._board.current, begun.run.keys[0]
        announce(begun.source, anew=False)
        current[0] = 0
        sample: Any
        try:
            while (outcome := parking.advance(begun)) is Outcome.GOES_ON:
                pass
            sample = begun.sample.result if outcome is Outcome.DONE else None
        except Exception as error:
            outcome, sample = Outcome.DONE, self._capture(error, key)
        current[0] = Current.NOTHING
        if outcome is Outcome.DONE:
            self._hand_in(begun.run, sample, begun.seconds)
