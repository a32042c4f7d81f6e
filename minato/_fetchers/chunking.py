"""How many samples a worker takes at once.

Taking work costs about ten microseconds (a lock, a few words, a commit), so cheap samples are taken many at a time.
Dear samples are taken one by one: everything behind a slow sample in the same run waits for it.
"""

from __future__ import annotations

TARGET_S = 10e-3  # seconds of work per run; less wastes time on the board, more makes batches wait for one worker
COLLATED_TARGET_S = 10e-3  # seconds, where a worker that has a whole batch is spared pickling its samples for another
MOST_BYTES = 8 << 20  # of samples waiting to be written: a bound on what a worker holds beyond its slot
_FIRST_RUNS = 6  # in which a run grows to what it should be; later ones are short for other reasons
GROWTH = 4  # a run is at most so many times the last one: the estimate may be wrong
_SLACK = 4  # a run may be longer by one in so many: batches are cut into even runs, which are shorter than wished for
_MEMORY = 0.9  # weight of the past in the running mean, per run
_SHARE_OF_SLOWEST = 0.05  # a slow sample seen lately makes runs short, for the sake of those behind the next one
_LONG_MEMORY = 0.995  # weight of the past of the slowest sample, per run: one in a hundred samples is not forgotten
_SHARE_WHERE_RARE = 0.015  # of that one, likewise: with two of them in a run, those behind would wait twice as long
_SHARE_HELD = 4  # a quarter of a batch may wait behind a slow sample, if no batch does: an eighth of the window
_AGAIN_WITHIN = 50  # runs: a slow sample that stays alone for longer was more likely a busy system
_SLOW_S = 30e-3  # seconds beyond the usual; less may be a busy system, and holds nobody up
MOST_IN_LANE = 2  # dear samples that a lane takes at once
_LONGEST_IN_LANE_S = 0.25  # seconds for a sample, beyond which what it costs to take one is nothing
_STANDS_OUT = 8  # times the mean: a sample that takes as long must have nobody behind it


class ChunkSizer:
    """Follows one worker's sample times and says how many samples its next run should have."""

    def __init__(self, target_s: float = TARGET_S, most: int = 1 << 30, in_lane: bool = False) -> None:
        """`most`: samples in a run, whatever they cost. `in_lane`: this worker is one of many of its process, and its
        samples may overtake each other. The time they take is waiting mostly, and the process has one interpreter for
        all: what counts is not what taking work costs beside a sample, but what it costs all lanes together. So even
        dear samples are taken in pairs there, unless some take far longer than others."""
        self._target_s = target_s
        self._most = most
        self._in_lane = in_lane
        self._mean_s: float | None = None
        self._slow_s = 0.0
        self._slowest_s = 0.0
        self._since_slow = _AGAIN_WITHIN
        """Runs since the last one with a slow sample."""
        self._last = 1
        """Samples of the last run, or of a longer one before it that nothing speaks against."""
        self._runs = 0
        self._sample_bytes = 0
        self._most_behind = 1
        """Samples of a run in which some may be slow, whatever those take."""

    def allow_waiting(self, batch_size: int) -> None:
        """Samples behind a slow one may wait for it: they have no rows yet, so that no batch waits for them. They only
        take up a part of what may be in flight."""
        self._most_behind = max(1, batch_size // _SHARE_HELD)

    def observe(self, count: int, seconds: float) -> None:
        """A run of `count` samples took `seconds`."""
        each, is_first = seconds / max(1, count), self._mean_s is None
        # Fewer than were wished for: a batch had no more, which says nothing against longer runs.
        self._last = max(count, min(self._last, self.size()))
        self._mean_s = self._updated(each)
        # One slow sample of a run hides in the run's mean; what it cost is what the run took beyond the usual.
        beyond = seconds - (count - 1) * self._mean_s
        slow_s = beyond if beyond > _SLOW_S else 0.0
        self._slow_s = max(_MEMORY * self._slow_s, slow_s)
        self._slowest_s *= _LONG_MEMORY
        self._since_slow += 1
        if slow_s and not is_first:
            if self._since_slow <= _AGAIN_WITHIN:
                self._slowest_s = max(self._slowest_s, slow_s)
            self._since_slow = 0
        self._runs += 1

    def _updated(self, each: float) -> float:
        """The running mean. It falls faster than it rises: first samples are dear, since nothing is warm yet."""
        if self._mean_s is None:
            return each
        memory = _MEMORY if each > self._mean_s else 0.5
        return memory * self._mean_s + (1 - memory) * each

    def observe_bytes(self, sample_bytes: int) -> None:
        """A sample takes that many bytes."""
        self._sample_bytes = sample_bytes

    @property
    def is_measured(self) -> bool:
        """Whether a run was observed: before, runs are short whatever samples cost."""
        return self._mean_s is not None

    @property
    def is_finding_out(self) -> bool:
        """Whether it is too early to say what a single sample costs: this was the first run, in which nothing is warm,
        or one of the next, and runs are still to be far longer."""
        return self._runs <= 1 or (self._runs <= _FIRST_RUNS and self.size() > 2 * self._last)

    @property
    def is_even(self) -> bool:
        """Whether no sample has stood out for long: the next run will take what it usually takes, and not long."""
        return self._slowest_s <= _SLOW_S and not self._pairs_up

    def size(self, in_parts: bool = False) -> int:
        """Samples the next run should have at most: one until a sample's cost is known. `in_parts`: they are written
        while others of the run are still to be made, so that their size is no matter."""
        if self._mean_s is None:
            return 1
        by_bytes = 1 << 30 if in_parts or not self._sample_bytes else MOST_BYTES // self._sample_bytes
        usual = int(self._target_s / max(self._mean_s, 1e-9))
        usual = MOST_IN_LANE if self._pairs_up else min(usual + usual // _SLACK, self._by_slow)
        return max(1, min(usual, GROWTH * self._last, by_bytes, self._most))

    @property
    def _by_slow(self) -> int:
        """Most samples of a run, for the sake of those behind a slow one."""
        cost = max(_SHARE_OF_SLOWEST * self._slow_s, _SHARE_WHERE_RARE * self._slowest_s, 1e-9)
        return max(self._most_behind, int(self._target_s / cost))

    @property
    def _pairs_up(self) -> bool:
        """Whether samples are dear, and taken more than one at a time all the same."""
        mean_s = self._mean_s
        if not self._in_lane or mean_s is None or not self._target_s < MOST_IN_LANE * mean_s:
            return False
        return mean_s <= _LONGEST_IN_LANE_S and self._slow_s <= _STANDS_OUT * mean_s
