"""What becomes of a sample that failed: tried again, left out, or raised."""

from __future__ import annotations

import enum
from collections.abc import Callable

from .._errors import SampleError

FIRST_BACKOFF_S = 0.05  # seconds before the second try; doubles with every further one
LONGEST_BACKOFF_S = 2.0
_ANSWERS = ("raise", "skip", "retry")


class Verdict(enum.Enum):
    """What to do about a failure; the values are what `on_error` functions return."""

    RAISE = "raise"
    SKIP = "skip"
    RETRY = "retry"


class ErrorPolicy:
    """`on_error` and `sample_retries`."""

    def __init__(self, on_error: str | Callable[[SampleError], str], sample_retries: int) -> None:
        self._on_error = on_error
        self._retries = sample_retries

    @property
    def always_raises(self) -> bool:
        """Whether what is not tried again is raised, whatever it is."""
        return self._on_error == "raise"

    def decide(self, failure: SampleError) -> Verdict:
        """Try again while `sample_retries` allows it, then as `on_error` says. Raises what the user's function raises,
        and ValueError if it returns something else than it should."""
        if failure.tries <= self._retries:
            return Verdict.RETRY
        return self.final(failure)

    def final(self, failure: SampleError) -> Verdict:
        """What `on_error` says."""
        answer = self._on_error if isinstance(self._on_error, str) else self._on_error(failure)
        if answer not in _ANSWERS:
            raise ValueError(f"on_error must return 'raise', 'skip' or 'retry', got {answer!r}")
        return Verdict(answer)


def backoff_s(tries: int) -> float:
    """Seconds to wait before the next try of what failed `tries` times."""
    return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(tries - 1, 60))
