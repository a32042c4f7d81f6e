"""How often an operation has to run until a sampling profiler has seen its short functions.

A function that runs for `span` seconds is hit by a sampler with `interval` seconds between samples with probability
span / interval; after n independent runs it was seen at least once with probability 1 - (1 - span / interval)^n.
"""

from __future__ import annotations

import math


def capture_probability(span_s: float, interval_s: float, runs: int) -> float:
    """Probability that a function of `span_s` seconds is sampled at least once in `runs` runs."""
    _check_times(span_s, interval_s)
    if runs < 0:
        raise ValueError(f"runs must not be negative, got {runs}")
    miss = max(0.0, 1.0 - span_s / interval_s)
    return 1.0 - miss**runs


def runs_needed(span_s: float, interval_s: float, confidence: float) -> int:
    """The fewest runs after which a function of `span_s` seconds was sampled with probability `confidence` or more.

    660 µs under a sampling interval of 10 ms need 21 runs for 75 %: twenty give 74.5 %.
    """
    _check_times(span_s, interval_s)
    if not 0.0 <= confidence < 1.0:
        raise ValueError(f"confidence must be a probability below 1, got {confidence}")
    miss = 1.0 - span_s / interval_s
    if miss <= 0.0 or confidence == 0.0:
        return 1
    runs = max(1, math.ceil(math.log1p(-confidence) / math.log(miss)))
    # The logarithms may be off by one where the quotient is nearly whole.
    while runs > 1 and capture_probability(span_s, interval_s, runs - 1) >= confidence:
        runs -= 1
    while capture_probability(span_s, interval_s, runs) < confidence:
        runs += 1
    return runs


def _check_times(span_s: float, interval_s: float) -> None:
    if not span_s > 0.0:
        raise ValueError(f"span_s must be positive, got {span_s}")
    if not interval_s > 0.0:
        raise ValueError(f"interval_s must be positive, got {interval_s}")
