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


def faster_otherwise(results: Sequence[ArmResult]) -> list[str]:
    """A sentence for each workload in which torch's loader was faster in some other setting than minato's with workers:
    the ratio at equal workers alone would mislead there. Data as cheap as that is best loaded without workers."""
    told = []
    for workload in dict.fromkeys(result.workload for result in results):
        arms = [result for result in results if result.workload == workload]
        theirs = max((a for a in arms if not is_minato(a.arm)), key=_rate, default=None)
        ours = max((a for a in arms if is_minato(a.arm)), key=_rate, default=None)
        plain = next((a for a in arms if is_default(a.arm)), None)
        if theirs is None or ours is None or plain is None:
            continue
        if theirs.samples_per_s > plain.samples_per_s * (1 + EVEN_SHARE):
            told.append(
                f"{workload}: other settings are faster: '{theirs.arm}' with {theirs.samples_per_s:,.0f} samples/s, "
                f"'{ours.arm}' with {ours.samples_per_s:,.0f}"
            )
    return told


def is_minato(arm: str) -> bool:
    """Whether an arm is one of minato's."""
    return arm.startswith("minato")


def is_default(arm: str) -> bool:
    """Whether an arm of minato has workers and is otherwise as people make it."""
    return is_minato(arm) and arm.endswith(("worker", "workers")) and "no worker" not in arm


def _rate(result: ArmResult) -> float:
    return result.samples_per_s


def checked_in_words(results: Sequence[ArmResult]) -> str:
    """That every sample came once, and in how many epochs that was looked at. Had one not, nothing would be shown."""
    epochs = sum(result.epochs for result in results)
    return f"In each of {epochs:,} epochs of {len(results)} loaders every sample came exactly once."


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
