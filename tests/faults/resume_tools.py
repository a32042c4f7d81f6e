"""Ways to load, and the check that an epoch of theirs can be resumed. At module level, so that datasets pickle."""

from __future__ import annotations

import json
import random

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from minato import DataLoader

LENGTH, SIZE = 14, 3


def draws():
    return [random.random(), float(np.random.rand()), float(torch.rand((), dtype=torch.float64))]


class Drawing(Dataset):
    """Sample i: i, and a number from each of the random generators."""

    def __init__(self, length=LENGTH):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([index, *draws()], dtype=torch.float64)


class DrawingTogether(Drawing):
    """The same, fetched in whole batches."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Numbers(IterableDataset):
    """Worker w of n gives w, w + n, w + 2n...; the first workers give more. Each with random numbers."""

    def __init__(self, length=LENGTH):
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield torch.tensor([number, *draws()], dtype=torch.float64)


class StatefulNumbers(Numbers):
    """The same, and can save how far it has come. `epoch` counts the epochs its process has begun."""

    def __init__(self, length=LENGTH):
        super().__init__(length)
        self.given, self.epoch = 0, 0

    def __iter__(self):
        if self.given == 0:
            self.epoch += 1
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first + step * self.given, self.length, step):
            self.given += 1
            yield torch.tensor([number + 1000 * self.epoch, *draws()], dtype=torch.float64)
        self.given = 0

    def state_dict(self):
        return {"given": self.given, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.given, self.epoch = state["given"], state["epoch"]


class StatefulIterator(IterableDataset):
    """Its iterator can save how far it has come, as a tensor."""

    def __iter__(self):
        return _Place()


class _Place:
    def __init__(self):
        info = get_worker_info()
        self.next, self.step = (0, 1) if info is None else (info.id, info.num_workers)

    def __iter__(self):
        return self

    def __next__(self):
        if self.next >= LENGTH:
            raise StopIteration
        number, self.next = self.next, self.next + self.step
        return torch.tensor([number, *draws()], dtype=torch.float64)

    def state_dict(self):
        return {"next": torch.tensor(self.next)}

    def load_state_dict(self, state):
        self.next = int(state["next"])


class Shuffled(Sampler):
    """A sampler of the user's, without state: draws all along from Python's generator."""

    def __init__(self, length=LENGTH):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        pool = list(range(self.length))
        while pool:
            yield pool.pop(random.randrange(len(pool)))


class EagerlyShuffled(Shuffled):
    """Draws when `iter()` is called, from numpy's generator."""

    def __iter__(self):
        return iter(np.random.permutation(self.length).tolist())


class OwnGenerator(Shuffled):
    """Draws from a generator of its own."""

    def __init__(self, length=LENGTH):
        super().__init__(length)
        self.rng = np.random.default_rng(4)

    def __iter__(self):
        return iter(self.rng.permutation(self.length).tolist())


class Stateful(Shuffled):
    """Every epoch in another order, by a count that only its state tells."""

    def __init__(self, length=LENGTH):
        super().__init__(length)
        self.count = 0

    def __iter__(self):
        self.count += 1
        yield from random.Random(self.count).sample(range(self.length), self.length)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Uneven(Sampler):
    """Batches of one to four indices, one of them empty."""

    def __len__(self):
        return 7

    def __iter__(self):
        order = torch.randperm(14).tolist()
        sizes = [1, 4, 2, 0, 3, 1, 3]
        for size in sizes:
            yield order[:size]
            order = order[size:]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Kind:
    """A way to load: how to make a loader, and whether its batches come in a fixed order."""

    def __init__(self, dataset=Drawing, ordered=True, **options):
        self.dataset, self.ordered, self.options = dataset, ordered, {"batch_size": SIZE, **options}

    def loader(self, workers, **changed):
        made = {name: value() if callable(value) else value for name, value in self.options.items()}
        options = {"num_workers": workers, **made, **changed}
        if workers:
            options.setdefault("multiprocessing_context", "fork")
        return DataLoader(self.dataset(), **options)


def stack(samples):
    return torch.stack(samples) if samples else torch.zeros(0, 4)


KINDS = {
    "sequential": Kind(),
    "shuffled": Kind(shuffle=True, in_order=True),
    "re-ordered": Kind(shuffle=True, ordered=False),
    "re-ordered, generator": Kind(ordered=False, shuffle=True, generator=lambda: seeded(3)),
    "re-ordered, drop_last": Kind(shuffle=True, ordered=False, drop_last=True),
    "drawing batches": Kind(collate_fn=lambda: collate_drawing, shuffle=True, in_order=True),
    "getitems": Kind(DrawingTogether, shuffle=True, ordered=False),
    "replacement": Kind(
        sampler=lambda: RandomSampler(range(LENGTH), replacement=True, generator=seeded(8)), ordered=False
    ),
    "subset": Kind(sampler=lambda: SubsetRandomSampler(range(3, LENGTH)), ordered=False),
    "weighted": Kind(sampler=lambda: WeightedRandomSampler([0.1, 0.7, 0.4], LENGTH), ordered=False),
    "own sampler": Kind(sampler=Shuffled),
    "eager sampler": Kind(sampler=EagerlyShuffled),
    "own generator": Kind(sampler=OwnGenerator),
    "stateful sampler": Kind(sampler=Stateful),
    "batch_sampler": Kind(batch_size=1, batch_sampler=Uneven, collate_fn=lambda: stack),
    "batch_sampler overtaking": Kind(
        batch_size=1, batch_sampler=Uneven, collate_fn=lambda: stack, in_order=False, ordered=False
    ),
    "torch's batch_sampler": Kind(
        batch_size=1, batch_sampler=lambda: BatchSampler(RandomSampler(range(LENGTH)), SIZE, False)
    ),
    "unbatched": Kind(lambda: Drawing(7), batch_size=None, shuffle=True),
    "stream": Kind(Numbers),
    "stream, drop_last": Kind(Numbers, drop_last=True),
    "stream, unbatched": Kind(lambda: Numbers(8), batch_size=None),
    "stream overtaking": Kind(Numbers, in_order=False, ordered=False),
    "stateful stream": Kind(StatefulNumbers),
    "stateful stream, drop_last": Kind(StatefulNumbers, drop_last=True),
    "stateful stream, unbatched": Kind(lambda: StatefulNumbers(8), batch_size=None),
    "stateful iterator": Kind(StatefulIterator),
}
STREAMS = [name for name in KINDS if "stream" in name or "iterator" in name]


def collate_drawing(samples):
    """Every sample gets a number that the collation has drawn."""
    return torch.stack([torch.cat([sample, torch.tensor(draws()[:2])]) for sample in samples])


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rows(batches):
    """Batches as lists of rows."""
    return [batch.reshape(-1, batch.shape[-1]).tolist() for batch in batches]


def comparable(batches, ordered):
    """Batches in order, or all rows in no order."""
    return batches if ordered else sorted(row for batch in batches for row in batch)


def interrupted_at(loader, point):
    """The first batches of an epoch, and the state after them."""
    iterator = iter(loader)
    head = rows(next(iterator) for _ in range(point))
    return head, through_json(loader.state_dict())


def through_json(state):
    return json.loads(json.dumps(state))


def assert_resumes(kind, points, workers, other_workers=None, **changed):
    """From each of some points of an epoch, the rest and the following epochs are as they would have been."""
    ordered = kind.ordered and "in_order" not in changed
    seed_all(1)
    whole = kind.loader(workers)
    expected = [rows(whole), rows(whole)]
    whole.close()
    for point in points if points is not None else range(len(expected[0]) + 1):
        seed_all(1)
        before = kind.loader(workers)
        head, state = interrupted_at(before, min(point, len(expected[0])))
        before.close()
        seed_all(99)
        after = kind.loader(workers if other_workers is None else other_workers, **changed)
        after.load_state_dict(state)
        rest = rows(after)
        assert len(rest) == len(expected[0]) - len(head), point
        assert comparable(head + rest, ordered) == comparable(expected[0], ordered), point
        if points is not None or point % 2:  # starting workers is what takes time here
            assert comparable(rows(after), ordered) == comparable(expected[1], ordered), point
        after.close()
