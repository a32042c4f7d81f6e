"""Samples in two halves: read here, transformed elsewhere.

A dataset whose `__getitem__` calls `self.transform` runs here up to that call; what the transform is called with goes
to an actor, which has the same transform, and the rest of `__getitem__` runs here with the result. Of a StagedDataset
the load function runs here, all transforms there. Through Subset and ConcatDataset to the dataset below.
"""

from __future__ import annotations

import ast
import bisect
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from .._planning import reads_together
from .._sample_random import SampleRng, SampleSource, announce
from .._staged import StagedDataset
from .._workers.generators import all_generators
from .._workers.splitting import Steps, split
from .._workers.stages import ATTRIBUTES

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Half:
    """A sample that was read, on its way to an actor."""

    path: Path
    """From the dataset to the one that the sample is of."""
    name: str
    """Attribute that is called; "": all transforms of a StagedDataset."""
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    seed: int
    states: tuple[Any, ...] | None
    """Of the random generators, if reading has drawn from them."""


@dataclass(slots=True)
class Reading:
    """A sample whose transform is done elsewhere."""

    half: Half
    rest: Steps | None


def can_transform(dataset: Any) -> bool:
    """Whether samples of a dataset can be read here and transformed elsewhere."""
    return is_splittable(dataset) and not reads_together(dataset)


def is_splittable(dataset: Any) -> bool:
    """Whether all samples of a dataset come in two halves."""
    if type(dataset) is Subset:
        return is_splittable(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(is_splittable, dataset.datasets))
    if _is_staged(dataset):
        return bool(dataset.transforms)
    has_transform = any(callable(getattr(dataset, name, None)) for name in ATTRIBUTES)
    kind: type = type(dataset)
    return has_transform and _split(kind) is not None


def read(dataset: Any, key: Any, seed: int) -> Reading | None:
    """Read a sample under its seed, raising what that raises. None: it calls no transform, or one that is not known, or
    has asked for generators of its own, which go on with the transform."""
    path, leaf, key = _resolve(dataset, key)
    source = begin_sample(seed)
    before = [generator.glance() for generator in all_generators()]
    rest: Steps | None = None
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    if _is_staged(leaf):
        name, args, keywords = "", (leaf.load(leaf.index(key)),), {}
    else:
        kind: type = type(leaf)
        steps = _split(kind)
        assert steps is not None
        rest = steps(leaf, key)
        try:
            function, args, keywords = next(rest)
        except StopIteration:
            return None
        found = [one for one in ATTRIBUTES if getattr(leaf, one, None) is function]
        if not found:
            rest.close()
            return None
        name = found[0]
    if source.asked:
        if rest is not None:
            rest.close()
        return None
    drawn = [generator.glance() for generator in all_generators()] != before
    states = tuple(generator.save() for generator in all_generators()) if drawn else None
    return Reading(Half(path, name, args, keywords, seed, states), rest)


def finish(reading: Reading, value: Any) -> tuple[bool, Any]:
    """The sample, given its transform's result. False: it has to be made again as a whole: what is left of it draws
    random numbers or calls another transform."""
    if reading.rest is None:
        return True, value
    before, source = [generator.glance() for generator in all_generators()], _Source(reading.half.seed)
    announce(source)
    try:
        reading.rest.send(value)
    except StopIteration as end:
        drawn = [generator.glance() for generator in all_generators()] != before
        return not (drawn or source.asked), end.value
    except Exception:
        return False, None
    reading.rest.close()
    return False, None


def transform(dataset: Any, half: Half) -> Any:
    """The actor's half."""
    leaf = dataset
    for step in half.path:
        leaf = leaf[step] if isinstance(step, int) else getattr(leaf, step)
    begin_sample(half.seed)
    if half.states is not None:
        for generator, state in zip(all_generators(), half.states, strict=True):
            generator.restore(state)
    if half.name:
        return getattr(leaf, half.name)(*half.args, **half.keywords)
    (value,) = half.args
    for function in leaf.transforms:
        value = function(value)
    return value


class _Source(SampleSource):
    """One sample; knows whether it was asked for generators."""

    __slots__ = ("asked",)

    def __init__(self, seed: int) -> None:
        super().__init__(lambda _: seed, lambda: 0)
        self.asked = False

    def rng(self) -> SampleRng:
        self.asked = True
        return super().rng()


def begin_sample(seed: int) -> _Source:
    """Seed the generators as `Randomness` does for a sample, and have `minato.get_sample_rng` give the sample's."""
    for salt, generator in enumerate(all_generators()):
        generator.seed(seed ^ salt)
    source = _Source(seed)
    announce(source)
    return source


@functools.lru_cache(maxsize=256)
def _split(kind: type) -> Callable[..., Steps] | None:
    """A dataset's `__getitem__` with the calls of its transform given out; None if that cannot be done."""
    return split(getattr(kind, "__getitem__", None), _is_call_of_transform, kind)


def _is_call_of_transform(call: ast.Call, first: str, _loops: frozenset[str]) -> bool:
    called = call.func
    if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)):
        return False
    return called.value.id == first and called.attr in ATTRIBUTES


def _is_staged(dataset: Any) -> bool:
    return getattr(type(dataset), "__getitem__", None) is StagedDataset.__getitem__


def _resolve(dataset: Any, key: Any) -> tuple[Path, Any, Any]:
    path: Path = ()
    while True:
        if type(dataset) is Subset:
            path, key, dataset = (*path, "dataset"), dataset.indices[key], dataset.dataset
        elif type(dataset) is ConcatDataset:
            sizes = dataset.cumulative_sizes
            key = key + sizes[-1] if key < 0 else key
            number = bisect.bisect_right(sizes, key)
            key -= sizes[number - 1] if number else 0
            path, dataset = (*path, "datasets", number), dataset.datasets[number]
        else:
            return path, dataset, key
