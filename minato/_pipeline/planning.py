"""Where to cache: the deterministic beginning of the pipeline nearest to the batch whose results fit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .judging import Randomness
from .looking import Look, StageLook
from .store import _data_at

LEAST_GAIN = 1.3  # times as fast as making it anew: an entry that is had for less is worth its memory
OVERHEAD_S = 20e-6  # seconds per sample that the cache itself takes, about


@dataclass(frozen=True, slots=True)
class CachePoint:
    """After which stage to keep results."""

    stages: tuple[str, ...]
    """Those that a cached sample does not go through again."""
    entry_bytes: float
    """Per sample, about."""
    total_bytes: float
    share: float
    """Of the samples that there is room for."""
    saved_s: float
    """Per sample that is in the cache."""
    is_whole: bool
    """No stage is left after these."""


@dataclass(frozen=True, slots=True)
class NoCache:
    """Why nothing is cached."""

    reason: str


def choose(look: Look, cache: str, samples: int, limit_bytes: int) -> CachePoint | NoCache:
    """What `cache` ("auto", "source" or "after:<stage>") comes to, for a dataset of so many samples."""
    if cache == "auto":
        return _choose_best(look, samples, limit_bytes)
    number = _wanted(look, cache)
    if isinstance(number, NoCache):
        return number
    for stage in look.stages[: number + 1]:
        if stage.randomness is not Randomness.DETERMINISTIC:
            return NoCache(
                f"the stage {stage.name!r} is {_word(stage)} ({stage.reason}); choose an earlier stage, or mark it "
                f"with minato.deterministic if it always gives the same result for the same input"
            )
    stage = look.stages[number]
    if stage.kept is None:
        return NoCache(f"results cannot be kept after {stage.name!r}: {stage.why_not_kept}")
    return _point(look, number, samples, limit_bytes)


def _word(stage: StageLook) -> str:
    return "random" if stage.randomness is Randomness.RANDOM else "not known to be deterministic"


def _wanted(look: Look, cache: str) -> int | NoCache:
    if cache == "source":
        return 0
    name = cache.removeprefix("after:")
    names = [stage.name for stage in look.stages]
    if name not in names:
        hint = "" if look.is_staged else "; this dataset's stages cannot be told apart"
        return NoCache(f"there is no stage {name!r}; there are {', '.join(map(repr, names))}{hint}")
    return names.index(name)


def _point(look: Look, number: int, samples: int, limit_bytes: int) -> CachePoint:
    kept = look.stages[number].kept
    assert kept is not None
    total = kept.total_bytes + 64 * samples  # entries begin at multiples of 64
    room = limit_bytes - _data_at(samples)
    saved = sum(stage.wall_s for stage in look.stages[: number + 1]) - look.stages[number].get_s - OVERHEAD_S
    return CachePoint(
        stages=tuple(stage.name for stage in look.stages[: number + 1]),
        entry_bytes=total / max(1, samples),
        total_bytes=total,
        share=min(1.0, max(0.0, room / total)) if total else 1.0,
        saved_s=saved,
        is_whole=number == len(look.stages) - 1,
    )


def points(look: Look, samples: int, limit_bytes: int) -> list[CachePoint]:
    """Wherever results are the same each time and can be kept, in the pipeline's order."""
    possible = [n for n in range(look.deterministic) if look.stages[n].kept is not None]
    return [_point(look, number, samples, limit_bytes) for number in possible]


def _choose_best(look: Look, samples: int, limit_bytes: int) -> CachePoint | NoCache:
    if not look.deterministic:
        first = look.stages[0]
        unknown = first.randomness is Randomness.UNKNOWN
        hint = "; mark it with minato.deterministic if it always gives the same for the same sample" if unknown else ""
        return NoCache(f"the first stage, {first.name!r}, is {_word(first)} ({first.reason}){hint}")
    possible = points(look, samples, limit_bytes)
    if not possible:
        return NoCache(f"results cannot be kept: {look.stages[0].why_not_kept}")
    worth = [point for point in possible if _is_worth_it(look, point)]
    if not worth:
        return NoCache("samples are made about as fast as they would be had from a cache")
    fitting = [point for point in worth if point.share >= 1]
    if fitting:
        return fitting[-1]
    best = max(worth, key=lambda point: point.share * point.saved_s)
    if best.share <= 0.01:
        return NoCache(f"there is room for {limit_bytes / 1e6:.0f} MB, and {best.total_bytes / 1e6:.0f} MB are needed")
    return best


def _is_worth_it(look: Look, point: CachePoint) -> bool:
    made = sum(stage.wall_s for stage in look.stages[: len(point.stages)])
    return made > LEAST_GAIN * (made - point.saved_s)
