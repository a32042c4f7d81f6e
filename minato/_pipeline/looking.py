"""A look at a pipeline: its stages by name, whether they are random, and what keeping their results would take.

Runs some samples, so it is done aside (`aside.py`), or where samples are fetched anyway. Leaves the process's random
streams as they were.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from .._queues import codec
from .._staged import StagedDataset
from .._workers.generators import all_generators, mix
from .._workers.stages import ATTRIBUTES, Begin, PartOfCompose, find_stages
from .continuing import finish, suspend
from .judging import Randomness, Verdict, is_same, judge, streams_kept
from .sizes import SizeEstimate, better, bytes_of, estimate, estimate_by_ratio, file_sizes, files_of

JUDGED_SAMPLES = 2  # of which each stage is run again
READINGS = 3  # of an entry, to have its time
LOAD = "load"
_SKIPPED = frozenset((*ATTRIBUTES, "target_transform"))


def fetches_batches(dataset: Any) -> bool:
    """Whether a dataset fetches several samples at once by a way of its own; a `Subset` only passes that on."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


def stages_of(dataset: Any) -> Begin | None:
    """How to begin a sample in stages; None: it is one stage. Samples that come in batches cannot be told apart."""
    return None if fetches_batches(dataset) else find_stages(dataset)


@dataclass(frozen=True, slots=True)
class StageLook:
    """What was seen of one stage."""

    name: str
    randomness: Randomness
    reason: str
    size: SizeEstimate
    """Of what the stage makes, for the whole dataset."""
    kept: SizeEstimate | None
    """Of what a cache after this stage would hold; None: it cannot be kept there."""
    why_not_kept: str
    wall_s: float
    """Seconds per sample."""
    get_s: float
    """Seconds to have its result from a cache instead, with all before it."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a pipeline."""

    stages: tuple[StageLook, ...]
    names: frozenset[str]
    """Names that the code of the deterministic beginning uses."""
    samples: int
    is_staged: bool
    """Whether its stages could be told apart."""
    code: str
    """A digest of the code of the deterministic beginning."""

    @property
    def deterministic(self) -> int:
        """How many stages from the first on are deterministic."""
        for number, stage in enumerate(self.stages):
            if stage.randomness is not Randomness.DETERMINISTIC:
                return number
        return len(self.stages)


def choose_indices(dataset: Any, count: int, seed: int = 0) -> list[int]:
    """Indices to look at: at random, and one of each dataset in a concatenation."""
    length = len(dataset)
    drawn = np.random.default_rng(seed).choice(length, min(count, length), replace=False).tolist()
    if type(dataset) is ConcatDataset:
        firsts = [0, *dataset.cumulative_sizes[:-1]]
        drawn = [*[first for first in firsts if first < length], *drawn]
    return list(dict.fromkeys(drawn))


@dataclass(slots=True)
class _Seen:
    """One sample's way."""

    index: int
    names: list[str]
    calls: list[Any]
    walls: list[float]
    sizes: list[int]
    kept: list[int | None]


def look(dataset: Any, indices: Sequence[int], max_seconds: float) -> Look:
    """Look at the samples with these indices, or at as many as the time is enough for, and at least at one."""
    begin = stages_of(dataset)
    deadline = time.monotonic() + max_seconds
    with streams_kept():
        seen: list[_Seen] = []
        for index in indices:
            if seen and time.monotonic() > deadline:
                break
            seen.append(_see(dataset, begin, index))
        common = [one for one in seen if one.names == seen[0].names]
        verdicts, names, code = _judge_all(dataset, begin, common[:JUDGED_SAMPLES])
        stages = _stage_looks(dataset, common, verdicts)
        return Look(tuple(_checked(dataset, begin, common, stages)), names, len(seen), begin is not None, code)


def _see(dataset: Any, begin: Begin | None, index: int) -> _Seen:
    seen = _Seen(index, [], [], [], [], [])
    if begin is None:
        began = time.perf_counter()
        sample = dataset[index]
        _note(seen, LOAD, None, time.perf_counter() - began, sample, (0, sample))
        return seen
    run = begin(index)
    while not run.done:
        name, call = run.stage, run.call
        began = time.perf_counter()
        done = run.advance()
        seconds = time.perf_counter() - began
        if done:
            _note(seen, name, call, seconds, run.result, (0, run.result))
        else:
            assert run.call is not None
            standings = suspend(run)
            _note(seen, name, call, seconds, run.call[1:], None if standings is None else (1, standings))
    counts = Counter[str]()
    for number, name in enumerate(seen.names):
        counts[name] += 1
        if counts[name] > 1:
            seen.names[number] = f"{name}#{counts[name]}"
    return seen


def _note(seen: _Seen, name: str, call: Any, seconds: float, made: Any, entry: Any) -> None:
    seen.names.append(name)
    seen.calls.append(call)
    seen.walls.append(seconds)
    seen.sizes.append(bytes_of(made))
    seen.kept.append(_packed_bytes(entry))


def _packed_bytes(entry: Any) -> int | None:
    if entry is None:
        return None
    try:
        return codec.pack(entry).nbytes
    except Exception:  # cannot be pickled, in one of many ways
        return None


# ---- randomness ------------------------------------------------------------------------------------------------------


def _judge_all(dataset: Any, begin: Begin | None, seen: list[_Seen]) -> tuple[list[Verdict], frozenset[str], str]:
    """A verdict for each stage; names used by the deterministic ones from the first on, and a digest of their code."""
    verdicts, names = [], set[str]()
    digest = hashlib.blake2b(digest_size=12)
    certain = True
    for number in range(len(seen[0].names)):
        if number == 0:
            # Where loading is all there is, the transforms are in it, whatever they are called.
            skip = _SKIPPED if all(len(one.names) > 1 for one in seen) else frozenset()
            verdict, reading = _judge_load(dataset, begin, [one.index for one in seen], skip)
        else:
            verdict, reading = _judge_transform([one.calls[number] for one in seen])
        certain = certain and verdict.may_be_cached
        if certain:
            names |= reading.names
            for code in reading.codes:
                constants = sorted(repr(one) for one in code.co_consts if not isinstance(one, (CodeType, frozenset)))
                digest.update(repr((code.co_qualname, code.co_code, code.co_names, constants)).encode())
        verdicts.append(verdict)
    return verdicts, frozenset(names), digest.hexdigest()


def _judge_load(dataset: Any, begin: Begin | None, indices: list[int], skip: frozenset[str]) -> Any:
    if begin is None:
        return judge(dataset, dataset.__getitem__, indices)

    def first_stage(index: int) -> Any:
        run = begin(index)
        run.advance()
        made = run.result if run.done else run.call[1:] if run.call is not None else None
        run.close()
        return made

    staged = isinstance(dataset, StagedDataset)
    verdict, reading = judge(dataset.load if staged else dataset, first_stage, indices, frozenset() if staged else skip)
    if verdict.randomness is Randomness.RANDOM and not staged and _draws_first(dataset):
        verdict = replace(verdict, reason=f"{verdict.reason}; {_DRAWS_FIRST}")
    return verdict, reading


_DRAWS_FIRST = (
    "albumentations' Compose draws before its first transform, so what is before it cannot be kept without changing "
    "what comes after. In a minato.StagedDataset(load, [transform]), with what reads and decodes as load, it can"
)


def _draws_first(dataset: Any) -> bool:
    """Whether a dataset's transform takes random numbers before anything else."""
    transforms = (getattr(dataset, name, None) for name in ATTRIBUTES)
    return any(type(one).__module__.startswith("albumentations.") and hasattr(one, "transforms") for one in transforms)


def _judge_transform(calls: list[Any]) -> Any:
    worst: Any = None
    for function, args, keywords in calls:

        def step(given: Any, function: Any = function) -> Any:
            return function(*given[0], **given[1])

        judged = judge(stage_behind(function), step, [(args, keywords)])
        if worst is None or (worst[0].may_be_cached and not judged[0].may_be_cached):
            worst = judged
    return worst


def stage_behind(function: Any) -> Any:
    """The user's object, where a stage is a part of a Compose that is asked for it by number."""
    return function.behind if isinstance(function, PartOfCompose) else function


# ---- sizes, and whether keeping works --------------------------------------------------------------------------------


def _stage_looks(dataset: Any, seen: list[_Seen], verdicts: list[Verdict]) -> list[StageLook]:
    length = len(dataset)
    paths = files_of(dataset, length)
    weights = None if paths is None else file_sizes(paths)

    def sized(values: list[int]) -> SizeEstimate:
        plain = estimate(values, length)
        if weights is None:
            return plain
        return better(plain, estimate_by_ratio(values, [weights[one.index] for one in seen], float(sum(weights))))

    looks = []
    for number, verdict in enumerate(verdicts):
        kept = [one.kept[number] for one in seen]
        whole = [size for size in kept if size is not None]
        looks.append(
            StageLook(
                name=seen[0].names[number],
                randomness=verdict.randomness,
                reason=verdict.reason,
                size=sized([one.sizes[number] for one in seen]),
                kept=sized(whole) if len(whole) == len(kept) else None,
                why_not_kept="" if len(whole) == len(kept) else _WHY_NOT,
                wall_s=float(np.median([one.walls[number] for one in seen])),
                get_s=0.0,
            )
        )
    return looks


_WHY_NOT = "what is known at that place cannot be pickled, or the code after it cannot be entered there"


def _checked(dataset: Any, begin: Begin | None, seen: list[_Seen], stages: list[StageLook]) -> list[StageLook]:
    """Try whether a sample that is kept after a stage comes out as it would have, bit by bit."""
    certain = True
    for number, stage in enumerate(stages):
        certain = certain and stage.randomness is Randomness.DETERMINISTIC
        if not certain or stage.kept is None:
            stages[number] = replace(stage, kept=None)
            continue
        tried = [_try_keeping(dataset, begin, one.index, number + 1) for one in seen[:JUDGED_SAMPLES]]
        got = [get_s for get_s in tried if get_s is not None]
        if len(got) < len(tried):
            stages[number] = replace(stage, kept=None, why_not_kept="samples entered there came out different")
        elif got:
            stages[number] = replace(stage, get_s=fmean(got))
    return stages


def _try_keeping(dataset: Any, begin: Begin | None, index: int, stages: int) -> float | None:
    """Seconds to have the entry from a cache; None: the sample is another one then."""
    if begin is None:
        sample = dataset[index]
        entry, get_s = _stored((0, sample))
        return get_s if is_same(entry[1], sample) else None
    run = begin(index)
    for _ in range(stages):
        run.advance()
    standings = None if run.done else suspend(run)
    entry, get_s = _stored((0, run.result) if standings is None else (1, standings))
    _seed_all()
    while not run.done:
        run.advance()
    _seed_all()
    again = entry[1] if entry[0] == 0 else finish(dataset, index, entry[1])
    return get_s if is_same(again, run.result) else None


def _stored(entry: Any) -> tuple[Any, float]:
    """The entry as it comes out of a cache, and the seconds that takes."""
    packed = codec.pack(entry)
    memory = np.empty(packed.nbytes, np.uint8)
    codec.write(packed, memory, 0)
    took = []
    for _ in range(READINGS):
        began = time.perf_counter()
        value = codec.read(memory.copy(), 0, lambda _: True)
        took.append(time.perf_counter() - began)
    return value, median(took)  # as of the stages: on a busy machine one alone may have waited for a core


def _seed_all() -> None:
    for salt, generator in enumerate(all_generators()):
        generator.seed(mix(salt, 11))


def fingerprint(dataset: Any) -> bytes | None:
    """The dataset as bytes, to tell whether it is the same one; None: it cannot be told."""
    try:
        return pickle.dumps((type(dataset).__module__, type(dataset).__qualname__, torch.__version__, dataset))
    except Exception:  # cannot be pickled, in one of many ways
        return None
