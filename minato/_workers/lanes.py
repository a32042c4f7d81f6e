"""A worker process that fetches many samples at once: its lanes.

To the board, every lane is a worker of its own: it has a record, takes tickets, claims rows and commits them like any
other. So what is true of workers is true of lanes: a killed process leaves as many hands behind as it had lanes, and
each is replayed. A lane is a thread (threaded_loop.py) or a task of an event loop (async_loop.py).

    process 0: records 0 .. lanes - 1,  process 1: records lanes .. 2 * lanes - 1,  ...

`Header.FETCHES` says how many lanes of each process may take work; the others rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from .._fetchers.chunking import MOST_IN_LANE
from .._plan import WorkerPlan
from .._queues.fields import Header, Phase, Worker
from .._queues.taking import TakingBoard
from .._sample_random import SampleSource
from .randomness import Fetch
from .splitting import Steps
from .stages import SampleRun
from .watch import SampleWatch, choose_dataset, choose_run

if TYPE_CHECKING:
    from .lane_tracing import LaneTrace
    from .main import WorkerContext

Guard = Callable[[SampleSource], AbstractContextManager[None]]


class RunsUnderSeeds(Protocol):
    """Randomness, or what takes its place."""

    def fetch(self, fetch: Fetch, seeds: Callable[[int], int], /) -> list[Any]: ...


class LoopContext(Protocol):
    """What a loop over a map-style dataset works in: a worker process, or a lane of one."""

    @property
    def worker(self) -> int: ...
    @property
    def plan(self) -> WorkerPlan: ...
    @property
    def board(self) -> TakingBoard: ...
    @property
    def dataset(self) -> Any: ...
    @property
    def guard(self) -> Guard | None: ...
    @property
    def caught(self) -> type[BaseException]: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def sample_run(self) -> Callable[[Steps], SampleRun]: ...
    def sleep(self) -> None: ...
    def sync_dataset(self) -> None: ...
    def dataset_for(self, samples: int) -> Any: ...
    def randomness(self) -> RunsUnderSeeds: ...


class Untraced:
    """What lanes have in common whose samples leave no spans in a trace."""

    dataset: Any

    @property
    def sample_run(self) -> Callable[[Steps], SampleRun]:
        """What sees a sample through its stages."""
        return SampleRun

    def dataset_for(self, samples: int) -> Any:
        """What to fetch a run of samples from."""
        del samples
        return self.dataset


class MaybeTraced:
    """What the lanes of a worker process have in common."""

    dataset: Any
    trace: LaneTrace | None
    """None: nothing is traced."""
    watch: SampleWatch | None
    """None: nobody looks at samples."""

    @property
    def sample_run(self) -> Callable[[Steps], SampleRun]:
        """What sees a sample through its stages."""
        return choose_run(self.trace, self.watch)

    def dataset_for(self, samples: int) -> Any:
        """What to fetch a run of samples from: the dataset, or a view of it that is traced or watched."""
        return choose_dataset(self.dataset, samples, self.trace, self.watch)


class LaneBoard(TakingBoard):
    """The board as a lane of a worker process sees it."""

    def _share(self, tickets: int, posted: int) -> int:
        # There may be more lanes than a batch has tickets. Who wants several nevertheless (`ChunkSizer`) gets them as
        # long as there are as many for every lane.
        return max(super()._share(tickets, posted), min(MOST_IN_LANE, posted // max(1, self.active)))


def copies_of(dataset: Any, count: int) -> list[Any]:
    """The dataset, and deep copies of it. Raises what copying raises, with a word on what it was for."""
    try:
        return [dataset, *(copy.deepcopy(dataset) for _ in range(count - 1))]
    except Exception as error:
        error.add_note(
            "minato copies the dataset for every fetch thread with thread_copies=True, and copy.deepcopy failed. "
            "Create what cannot be copied lazily, in __getitem__, or make the dataset thread-safe and leave "
            "thread_copies=False"
        )
        raise


class Datasets:
    """The dataset of each lane: one for all, or copies. Applies attribute changes when a lane asks."""

    def __init__(self, context: WorkerContext, per_lane: bool) -> None:
        self._context = context
        self._copies = copies_of(context.dataset, context.control.lanes) if per_lane else [context.dataset]

    def of(self, lane: int) -> Any:
        """The dataset that a lane fetches from."""
        return self._copies[lane % len(self._copies)]

    def sync(self) -> None:
        """Apply what the main process has published. It does so between two epochs, when no sample that is still
        wanted is being fetched. To be called by one lane at a time."""
        self._context.sync_dataset(self._copies)


class Turns:
    """Who of a process's lanes may take work now. A ticket that was in flight when several workers died is fetched
    alone, so that the next death names it. Plain state: whoever uses it lets one lane in at a time, and has lanes that
    may not go on wait until something changed."""

    def __init__(self, board: TakingBoard) -> None:
        self._words = board.control.words
        self._working: set[int] = set()
        self._to_be_alone: list[int] = []
        """Lanes whose ticket is to be fetched alone, in the order in which they may."""

    def may_go_on(self, lane: int) -> bool:
        """Whether a lane that is working may take more work right away, which takes no exclusion: a lane that is to be
        alone waits for all that are working, and these look here, or ask for their turn, before they take more."""
        return lane in self._working and self.may_begin(lane)

    def may_begin(self, lane: int) -> bool:
        """Whether a lane may take work from the board."""
        return not self._to_be_alone and lane < self._words[Header.FETCHES]

    def begin(self, lane: int) -> None:
        """A lane is about to take work."""
        self._working.add(lane)

    def isolate(self, lane: int) -> None:
        """What a lane has taken is to be fetched alone."""
        self._to_be_alone.append(lane)

    def is_alone(self, lane: int) -> bool:
        """Whether no other lane is fetching, or may before this one."""
        return self._to_be_alone[0] == lane and self._working == set(self._to_be_alone)

    def end(self, lane: int) -> bool:
        """A lane has nothing in hand. True: others may be waiting for that."""
        self._working.discard(lane)
        others_wait = bool(self._to_be_alone)
        if lane in self._to_be_alone:
            self._to_be_alone.remove(lane)
        return others_wait


def called_lanes(context: WorkerContext) -> list[int]:
    """Lanes that are not asleep, as far as the main process knows."""
    control, words = context.control, context.control.words
    lanes = enumerate(control.lanes_of(context.worker))
    return [lane for lane, record in lanes if words[control.worker(record) + Worker.PHASE] != Phase.ASLEEP]
