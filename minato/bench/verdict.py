"""Where minato is faster than torch's loader in the same setting, where even, where slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .measuring import ArmResult

EVEN_SHARE = 0.05
"""Ratios nearer to 1 than this are called even: two runs of one loader differ by as much."""

Word = Literal["faster", "even", "slower"]


@dataclass(frozen=True)
class Comparison:
    """An arm of minato beside torch's loader in the same setting. `ratio` is of samples per second."""

    workload: str
    arm: str
    against: str
    ratio: float
    word: Word


def compare(results: Sequence[ArmResult]) -> list[Comparison]:
    """Every arm of minato that has a counterpart."""
    by_name = {(result.workload, result.arm): result for result in results}
    found = []
    for result in results:
        other = by_name.get((result.workload, result.against or ""))
        if other is None or result.against is None:
            continue
        ratio = result.samples_per_s / other.samples_per_s
        found.append(Comparison(result.workload, result.arm, result.against, ratio, _word(ratio, result, other)))
    return found


def _word(ratio: float, ours: ArmResult, theirs: ArmResult) -> Word:
    """Even also where the epochs of the two arms overlap so much that neither is ahead."""
    overlap = ours.spread[1] >= theirs.samples_per_s and theirs.spread[1] >= ours.samples_per_s
    if abs(ratio - 1) <= EVEN_SHARE or (ratio < 1 and overlap and ratio > 1 - 2 * EVEN_SHARE):
        return "even"
    return "faster" if ratio > 1 else "slower"


def in_words(comparisons: Sequence[Comparison]) -> str:
    """One or two sentences."""
    counts = {word: [c for c in comparisons if c.word == word] for word in ("faster", "even", "slower")}
    text = (
        f"minato was faster than torch's loader in {len(counts['faster'])} of {len(comparisons)} settings, "
        f"even in {len(counts['even'])}, slower in {len(counts['slower'])}."
    )
    for each in counts["slower"]:
        text += f"\nslower: {each.workload}: {each.arm} at {each.ratio:.2f} x {each.against}"
    return text
