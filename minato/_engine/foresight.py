"""Slow samples that are known: learned from the workers' notes, hinted at by the user, begun before their turn.

The workers' other notes, of what the stages of samples took, are read here as well, and go to the profile."""

from __future__ import annotations

import warnings
from typing import Any

from .._fetchers.sequential import has_getitems
from .._plan import Collate, LoaderPlan, Source
from .._queues.early import read_costs
from .._queues.keys import Indices, Keys, bare
from .._queues.posting import PostingBoard
from .._queues.stage_notes import StageReader
from .._records import EarlyStart
from .._scheduler.early import EarlyStarts, HintFunction
from .._scheduler.profile import Profile
from .._scheduler.window import Window


class Foresight:
    """Of one engine. What it learns belongs to the loader's profile, and outlives the engine."""

    def __init__(self, board: PostingBoard, profile: Profile, window: Window) -> None:
        self._board = board
        self._profile = profile
        self._window = window
        self._starts = EarlyStarts(profile.costs, lambda: profile.made.mean_cost, profile.hint)
        self._read = [0] * board.control.records_here
        self._stages = StageReader(board.control)
        self._delivered = 0

    @property
    def asks_user(self) -> bool:
        """Whether a function of the user's is asked about every sample."""
        return isinstance(self._starts.hint, HintFunction)

    def look(self) -> None:
        """Read what workers have noted since the last time."""
        notes, self._read = read_costs(self._board.control, self._read)
        for key, seconds in notes:
            self._profile.costs.learn(key, seconds, self._profile.made.threshold)
        for name, seconds in self._stages.new_notes():
            self._profile.made.note_stage(name, seconds)
        if self._window.delivered != self._delivered:
            self._delivered = self._window.delivered
            self._profile.made.note_bytes(self._window.sample_bytes)

    def early(self, keys: Keys) -> EarlyStart | None:
        """Tickets of a batch that is about to be posted which are to be begun before their turn."""
        if not self._starts.may_choose(len(keys), self._board.active):
            return None
        plain = keys.tolist() if isinstance(keys, Indices) else bare(list(keys))
        try:
            return self._starts.choose(plain, self._board.active, self._window.size)
        except Exception as error:  # the user's function; a hint that fails must not cost a batch that is drawn already
            self._starts.hint = None
            warnings.warn(
                f"slow_hint raised {type(error).__name__}: {error}; it is not asked any more",
                RuntimeWarning,
                stacklevel=2,
            )
            return None


def make_foresight(
    plan: LoaderPlan, dataset: Any, board: PostingBoard, profile: Profile, window: Window
) -> Foresight | None:
    """None where samples cannot be begun one by one: streams, and datasets that make whole batches at once."""
    whole = plan.worker.collate is not Collate.NONE and has_getitems(dataset)
    if plan.worker.source is Source.ITERABLE or whole:
        return None
    return Foresight(board, profile, window)
