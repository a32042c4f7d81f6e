"""How much is under way to and from other machines: samples per call, bytes in flight, bytes per second."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from .._fetchers.chunking import ChunkSizer
from ._wire import Parcel, weigh

TARGET_S = 40e-3  # seconds of work per call, and a quarter more (`ChunkSizer`): a call costs a millisecond on each side
FIRST_BYTES = 1 << 20  # guessed for a call until one has come back
_MEMORY = 0.8  # weight of the past in running means, per call
_BURST_S = 0.05  # seconds' worth of bytes that may come at once: what is lost by being woken late. More, and a short
# measurement takes what was saved up before it for the network's rate.


class Flow:
    """Pure but for its clock."""

    def __init__(self, most_bytes: int, bytes_per_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most_bytes
        self._rate = bytes_per_s
        self._clock = clock
        self._sizers: defaultdict[int, ChunkSizer] = defaultdict(lambda: ChunkSizer(TARGET_S))
        """By actor: with one size for all, slow machines would have their calls for so long that others wait."""
        self._sample_bytes: float | None = None
        self.least = 1
        """Samples per call, where an actor makes several at once."""
        self.in_flight = 0
        """Bytes that are expected."""
        self.call_s = 0.0
        """Seconds from a call to its result, lately."""
        self._debt = 0.0
        """Bytes beyond what the rate allows; negative: allowed at once."""
        self._since = clock()

    def chunk(self, actor: int) -> int:
        """Samples for an actor's next call: not more than may be under way at all, as far as samples can be told
        apart."""
        size = max(self.least, self._sizers[actor].size())
        return size if not self._sample_bytes else max(1, min(size, int(self._most / self._sample_bytes)))

    def may_send(self, calls: int, actor: int) -> bool:
        """Whether another call may be made, beside so many. One may always be under way, however large."""
        if self.ready_in_s() > 0:
            return False
        return calls == 0 or self.in_flight + self._expected(self.chunk(actor)) <= self._most

    def ready_in_s(self) -> float:
        """Seconds until the rate allows another call."""
        if self._rate is None:
            return 0.0
        now = self._clock()
        self._debt = max(-self._rate * _BURST_S, self._debt - self._rate * (now - self._since))
        self._since = now
        return max(0.0, self._debt / self._rate)

    def send(self, samples: int) -> int:
        """A call is made. Returns the bytes it counts for until it has come back."""
        expected = self._expected(samples)
        self.in_flight += expected
        if self._rate is not None:
            self._debt += expected
        return expected

    def answered(self, call_s: float) -> None:
        """A call has come back, perhaps when its work was done by others already."""
        self.call_s = call_s if not self.call_s else _mixed(self.call_s, call_s)

    def arrived(self, actor: int, expected: int, samples: int, parcel: Parcel, work_s: float, sent: int = 0) -> int:
        """The results of an actor's call are taken in. Returns their bytes, or those `sent` with it if these are more:
        a network carries both ways at once."""
        nbytes = max(sent, weigh(parcel))
        self.in_flight -= expected
        if self._rate is not None:
            self._debt += nbytes - expected
        each = nbytes / max(1, samples)
        self._sample_bytes = each if self._sample_bytes is None else _mixed(self._sample_bytes, each)
        self._sizers[actor].observe(samples, work_s)
        self._sizers[actor].observe_bytes(int(each))
        return nbytes

    def lost(self, expected: int) -> None:
        """A call will not come back."""
        self.in_flight -= expected

    def shrink(self) -> None:
        """There was no room for what was under way."""
        self._most = max(1, self._most // 2)

    def _expected(self, samples: int) -> int:
        return FIRST_BYTES if self._sample_bytes is None else int(self._sample_bytes * samples)


def _mixed(before: float, now: float) -> float:
    return _MEMORY * before + (1 - _MEMORY) * now
