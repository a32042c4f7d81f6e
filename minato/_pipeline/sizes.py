"""How many bytes values take, and what a sample of values says about all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .._workers.walk import search


def bytes_of(value: Any) -> int:
    """Bytes of the data in a sample: arrays, tensors, images, bytes, strings and numbers, in containers or not."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return sum(map(bytes_of, value))
    if isinstance(value, (bool, int, float)):
        return 8
    bands = getattr(value, "getbands", None)
    if callable(bands):  # a PIL image
        width, height = value.size
        return int(width * height * len(bands()) * (4 if value.mode in ("I", "F") else 1))
    return 0


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Of all samples together, from some of them."""

    total_bytes: float
    error_bytes: float
    """Standard error."""
    samples: int
    """Samples that were looked at."""


def estimate(sizes: Sequence[float], population: int) -> SizeEstimate:
    """From the sizes of samples drawn at random, without replacement."""
    count = len(sizes)
    if count == 0 or population == 0:
        return SizeEstimate(0.0, math.inf if population else 0.0, count)
    mean = math.fsum(sizes) / count
    left = max(0.0, 1 - count / population)
    variance = math.fsum((size - mean) ** 2 for size in sizes) / (count - 1) if count > 1 else mean**2
    return SizeEstimate(population * mean, population * math.sqrt(variance / count * left), count)


def estimate_by_ratio(sizes: Sequence[float], weights: Sequence[float], total_weight: float) -> SizeEstimate:
    """The same where something that goes with the size is known of all samples: the sizes of their files."""
    count, weight = len(sizes), math.fsum(weights)
    if count == 0 or weight <= 0:
        return SizeEstimate(0.0, math.inf, count)
    ratio = math.fsum(sizes) / weight
    rest = [size - ratio * one for size, one in zip(sizes, weights, strict=True)]
    population = total_weight / (weight / count)
    variance = math.fsum(part**2 for part in rest) / max(1, count - 1)
    left = max(0.0, 1 - count / population)
    return SizeEstimate(ratio * total_weight, population * math.sqrt(variance / count * left), count)


def better(one: SizeEstimate, other: SizeEstimate | None) -> SizeEstimate:
    """The one with the smaller error."""
    return one if other is None or one.error_bytes <= other.error_bytes else other


def files_of(dataset: Any, length: int) -> list[str] | None:
    """The dataset's files, one for each index, if it has a list of them: paths, or tuples that begin with a path."""

    def judge(value: Any) -> list[str] | None:
        if not isinstance(value, (list, tuple, np.ndarray)) or len(value) != length or length == 0:
            return None
        paths = [_path_in(value[0]), _path_in(value[length // 2]), _path_in(value[-1])]
        if not all(path is not None and os.path.isfile(path) for path in paths):
            return None
        found = [_path_in(item) for item in value]
        return None if None in found else [str(path) for path in found]

    return next((paths for _, paths in search(dataset, "dataset", judge)), None)


def _path_in(item: Any) -> str | None:
    for part in item if isinstance(item, (tuple, list)) else (item,):
        if isinstance(part, (str, os.PathLike)):
            return os.fspath(part)
    return None


def file_sizes(paths: Sequence[str]) -> list[int] | None:
    """Bytes of each file; None if one of them is not there."""
    try:
        return [os.stat(path).st_size for path in paths]
    except OSError:
        return None
