"""Whether the consumer is away long enough between two batches to have the next one made ready meanwhile.

What `next()` itself takes, some hundred microseconds after a pause, is time in which an accelerator may have nothing to
do. Another thread can do that work while the consumer is at its step. That is worth it where the step is long enough to
hold it, and short enough for it to count; and as long as the other thread is done in time: where the step keeps the
interpreter busy it never is.
"""

from __future__ import annotations

LEAST_STEP_S = 1e-3  # seconds; between shorter steps there is hardly time to change threads
WORTH_SHARE = 0.004  # of the step: where `next()` takes less than that, nothing is gained
BEFORE = 8  # batches that are watched first
LATE_SHARE = 0.5  # of the batches that were there to be made ready, but were not when they were asked for
TRIAL = 32  # batches after which that share is judged
PAUSE = 1024  # batches until another try, after the other thread was late
_MEMORY = 0.9  # weight of the past in the running means


class Leisure:
    """Watches the loop of one consumer."""

    def __init__(self) -> None:
        self._step_s = 0.0
        self._cost_s = 0.0
        self._seen = 0
        self._pause = 0
        self._in_time = 0
        self._late = 0

    def stepped(self, seconds: float) -> None:
        """The consumer asks for a batch, so long after it got the last one."""
        self._step_s = _mean(self._step_s, seconds, self._seen)
        self._pause -= self._pause > 0

    def handed_over(self, seconds: float) -> None:
        """A batch was ready, and `next()` took so long to hand it over."""
        self._cost_s = _mean(self._cost_s, seconds, self._seen)
        self._seen += 1

    def was_in_time(self, in_time: bool) -> None:
        """A batch that the other thread was to make ready was asked for: it was, or was not yet."""
        self._in_time += in_time
        self._late += not in_time
        if self._in_time + self._late >= TRIAL:
            if self._late > LATE_SHARE * TRIAL:
                self._pause = PAUSE
            self._in_time = self._late = 0

    @property
    def is_enough(self) -> bool:
        """Whether the next batch should be made ready now."""
        if self._seen < BEFORE or self._pause:
            return False
        return self._step_s >= LEAST_STEP_S and self._cost_s >= WORTH_SHARE * self._step_s


def _mean(before: float, value: float, seen: int) -> float:
    return value if seen == 0 else _MEMORY * before + (1 - _MEMORY) * value
