"""When to try again and when to give up: decisions as pure code, and the two shells that wait (one awaits)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .errors import EndpointUnreachable, RefusalCut, StorageError, TransientStorageError

T = TypeVar("T")
_TRIES_TO_REACH = 3  # of an endpoint that never answered: it is more likely mistyped than rebooting
_TRIES_OF_REFUSED = 4  # of what is refused without a reason: it is more likely gone than a server in trouble
_OWN_RANDOM = random.Random()  # pauses must not draw from the numbers that the user seeded
# Forked workers would else all pause for the same times, and come back together.
os.register_at_fork(after_in_child=_OWN_RANDOM.seed)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long one read is tried."""

    retries: int = 8
    """Most further tries after the first."""
    backoff_s: float = 0.1
    """Pause before the second try; it doubles with each further one, and a random share of up to half is taken off."""
    max_backoff_s: float = 5.0
    budget_s: float = 60.0
    """No try begins later than this after the first one began."""

    def __post_init__(self) -> None:
        for name in ("retries", "backoff_s", "max_backoff_s", "budget_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, found {getattr(self, name)!r}")

    def pause_s(
        self, error: StorageError, failures: int, elapsed_s: float, reached: bool, chance: float
    ) -> float | None:
        """Seconds to wait after the `failures`-th failure in a row, or None: give up.

        `reached`: whether the endpoint has ever answered this process. `chance`: a random number from 0 to 1.
        """
        if not isinstance(error, TransientStorageError) or failures > self.retries:
            return None
        if isinstance(error, EndpointUnreachable) and not reached and failures >= _TRIES_TO_REACH:
            return None
        if isinstance(error, RefusalCut) and failures >= _TRIES_OF_REFUSED:
            return None
        longest = min(self.max_backoff_s, self.backoff_s * 2 ** min(failures - 1, 30))
        pause_s = longest * (1 - chance / 2)
        return pause_s if elapsed_s + pause_s <= self.budget_s else None


class Tried(Protocol):
    """What is tried: a client."""

    reached: bool
    """Whether the endpoint has answered at all."""

    def given_up(self, error: StorageError) -> None:
        """That error is raised for good."""


class Tries:
    """The tries of one read. `after(error)` says how long to pause, or raises the error for good."""

    __slots__ = ("_began", "_client", "_failures", "_policy")

    def __init__(self, policy: RetryPolicy, client: Tried, began: float | None = None) -> None:
        """`began`: by the monotonic clock; None: now."""
        self._policy = policy
        self._client = client
        self._began = time.monotonic() if began is None else began
        self._failures = 0

    def after(self, error: StorageError) -> float:
        self._failures += 1
        elapsed_s = time.monotonic() - self._began
        pause_s = self._policy.pause_s(error, self._failures, elapsed_s, self._client.reached, _OWN_RANDOM.random())
        if pause_s is None:
            if self._failures > 1:
                error.add_note(f"given up after {self._failures} tries in {elapsed_s:.1f} s")
            self._client.given_up(error)
            raise error
        return pause_s


def retry(attempt: Callable[[], T], tries: Tries, failure: StorageError | None = None) -> T:
    """Call until it succeeds or may not be tried again. `failure`: of a try that was made before."""
    if failure is not None:
        time.sleep(tries.after(failure))
    while True:
        try:
            return attempt()
        except StorageError as error:
            pause_s = tries.after(error)
        time.sleep(pause_s)


async def retry_async(attempt: Callable[[], Awaitable[T]], tries: Tries) -> T:
    """As `retry`, awaiting."""
    while True:
        try:
            return await attempt()
        except StorageError as error:
            pause_s = tries.after(error)
        await asyncio.sleep(pause_s)
