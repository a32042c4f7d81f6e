"""Tiny datasets and samplers. All live at module level, so that they can be pickled."""

from __future__ import annotations

import os
import random

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

# --------------------------------------------------------------------------------------------------- map-style datasets


class Samples(Dataset):
    """Whatever it was given, in that order."""

    def __init__(self, items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Indices(Dataset):
    """Sample i is the number i."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


class Rows(Indices):
    """Sample i is a small float tensor full of i: the kind that travels through shared memory."""

    def __getitem__(self, index):
        return torch.full((2, 3), float(index))


class Endless(Dataset):
    """Has every index, and therefore no length."""

    def __getitem__(self, index):
        return index * index


class ByKey(Dataset):
    """Answers any key with the key's type and text: shows what arrived in the worker."""

    def __len__(self):
        return 0

    def __getitem__(self, key):
        return f"{type(key).__name__}:{key}"


class ManyAtOnce(Indices):
    """Fetches lists of indices. Each sample tells how it was asked for: (index, type of the request, its length)."""

    def __getitem__(self, index):
        return index, "one", 1

    def __getitems__(self, indices):
        return [(index, type(indices).__name__, len(indices)) for index in indices]


class ManyAtOnceRefused(Indices):
    """Says in so many words that it cannot fetch lists."""

    __getitems__ = None


class Raising(Dataset):
    """Numbers, except where it was told to raise."""

    def __init__(self, length, errors):
        self.length, self.errors = length, errors

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.errors:
            raise self.errors[index]
        return index


class RaisingOnTheSpot(Dataset):
    """Sample 3 raises what `make` makes; the exception never existed in the main process."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            raise self.make()
        return index


class LoaderInside(Dataset):
    """Each sample is the sum over a loader of its own."""

    def __init__(self, loader_class):
        self.loader_class = loader_class

    def __len__(self):
        return 4

    def __getitem__(self, index):
        inner = self.loader_class(Indices(index + 2), batch_size=2, shuffle=True)
        return sum(int(batch.sum()) for batch in inner)


class Witness(Indices):
    """Sample i tells about the process it was made in."""

    def __getitem__(self, index):
        info = get_worker_info()
        return {
            "index": index,
            "pid": os.getpid(),
            "worker": -1 if info is None else info.id,
            "workers": 0 if info is None else info.num_workers,
            "seed": -1 if info is None else info.seed,
            "initial_seed": torch.initial_seed(),
            "threads": torch.get_num_threads(),
            "own_dataset": info is not None and info.dataset is self,
        }


class Draws(Indices):
    """Sample i draws from all three generators: (i, random, numpy, torch)."""

    def __getitem__(self, index):
        return np.array([index, random.random(), np.random.random(), torch.rand((), dtype=torch.float64).item()])


class DrawsNow(Draws):
    """Draws for every `period`-th index only; the others give zeros."""

    def __init__(self, length, period):
        super().__init__(length)
        self.period = period

    def __getitem__(self, index):
        return np.array([index, 0.0, 0.0, 0.0]) if index % self.period else super().__getitem__(index)


# ---------------------------------------------------------------------------------------------------- iterable datasets


class Stream(IterableDataset):
    """0, 1, 2, ... in every worker alike."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


class SizedStream(Stream):
    """A stream that promises a length; `claims` need not be true."""

    def __init__(self, length, claims=None):
        super().__init__(length)
        self.claims = length if claims is None else claims

    def __len__(self):
        return self.claims


class ShardedStream(Stream):
    """0, 1, 2, ... with each worker taking every n-th."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.length, step))


class UnevenStream(IterableDataset):
    """Worker w gives lengths[w] samples: 100 w, 100 w + 1, ..."""

    def __init__(self, *lengths):
        self.lengths = lengths

    def __iter__(self):
        worker = get_worker_info().id
        return iter(range(100 * worker, 100 * worker + self.lengths[worker]))


class BrokenStream(IterableDataset):
    """A generator that raises where sample 3 should be: and that was its end, as with every generator."""

    def __iter__(self):
        yield from range(3)
        raise ValueError("the stream broke at 3")


class StumblingStream(IterableDataset):
    """An iterator that raises once, where sample 3 should be, and can go on."""

    def __iter__(self):
        self.position = -1
        return self

    def __next__(self):
        self.position += 1
        if self.position == 3:
            raise ValueError("stumbled at 3")
        if self.position == 8:
            raise StopIteration
        return self.position


# ------------------------------------------------------------------------------------------------------------- samplers


class Counted:
    """An iterable of keys that counts how often it was started and how far it was read."""

    def __init__(self, keys):
        self.keys, self.starts, self.drawn = keys, 0, 0

    def __iter__(self):
        self.starts += 1
        for key in self.keys:
            self.drawn += 1
            yield key

    def __len__(self):
        return len(self.keys)


class Ragged:
    """A batch sampler with batches of 1, 2, 3, ... members, backwards."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        left = list(range(self.length))[::-1]
        size = 1
        while left:
            yield left[:size]
            left, size = left[size:], size + 1


class RandomPairs:
    """A batch sampler that pairs neighbours and shuffles the pairs with torch's default generator."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        for pair in torch.randperm(self.length // 2).tolist():
            yield [2 * pair, 2 * pair + 1]

    def __len__(self):
        return self.length // 2
