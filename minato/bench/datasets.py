"""Datasets that benchmarks load, made on the spot, and how a batch of each is read and checked.

Every sample carries its own index, and at least one value of the payload is computed from that index. So a reader can
say which samples a batch holds, and whether rows and labels still belong together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

MIN_TOKENS, MAX_TOKENS = 16, 512


class WrongBatchError(Exception):
    """A sample was lost, served twice, or its payload does not belong to its index."""


# A reader touches one element of every tensor of a batch and returns a copy of the indices in it.
Reader = Callable[[Any], Tensor]


def expect(name: str, found: float, wanted: float) -> None:
    """Raise `WrongBatchError` unless a value of the payload is the one that belongs to its index."""
    if abs(found - wanted) > 1e-6:
        raise WrongBatchError(f"{name}: payload says {found}, the index beside it says {wanted}")


def check_exactly_once(delivered: list[Tensor], length: int) -> None:
    """Raise `WrongBatchError` unless the indices delivered are 0 .. length - 1, each once, in any order."""
    counts = torch.bincount(torch.cat(delivered), minlength=length) if delivered else torch.zeros(length)
    lost, repeated = int((counts[:length] == 0).sum()), int((counts > 1).sum())
    unknown = int(counts[length:].sum())
    if lost or repeated or unknown:
        raise WrongBatchError(f"of {length} samples {lost} were lost, {repeated} repeated, {unknown} unknown")


class CheapImages(Dataset[tuple[Tensor, int]]):
    """3x32x32 uint8 images in memory, turned to float32 by each access: a few microseconds per sample."""

    def __init__(self, length: int, stored: int = 50_000) -> None:
        """`length` samples over `stored` images of 3 kB; the epoch may be longer than the memory it needs."""
        self.length = length
        self.stored = stored  # `len()` of a tensor takes a call of Python's, a twentieth of what making a sample takes
        self.images = torch.zeros(stored, 3, 32, 32, dtype=torch.uint8)
        self.images[:, 0, 0, 0] = torch.arange(stored) % 251

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index % self.stored].float().div(255), index

    def read(self, batch: Any) -> Tensor:
        """Indices of a batch of (images, indices)."""
        images, indices = batch
        wanted = int(indices[-1]) % self.stored % 251
        expect("image", round(float(images[-1, 0, 0, 0]) * 255), wanted)
        return torch.clone(indices)

    def read_sample(self, sample: Any) -> Tensor:
        """The index of a single (image, index): what `batch_size=None` gives."""
        image, index = sample
        expect("image", round(float(image[0, 0, 0]) * 255), index % self.stored % 251)
        return torch.tensor([index])


class BigImages(Dataset[tuple[Tensor, int]]):
    """3x224x224 float32 images, 602 kB each, made by one addition: moving them costs more than making them."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.base = torch.rand(3, 224, 224)
        self.base[0, 0, 0] = 0.0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.base + float(index), index

    def read(self, batch: Any) -> Tensor:
        """Indices of a batch of (images, indices)."""
        images, indices = batch
        expect("image", float(images[-1, 0, 0, 0]), int(indices[-1]))
        return torch.clone(indices)


class Tokens(Dataset[tuple[Tensor, int]]):
    """Sequences of 16 to 512 token ids out of one flat array; the first token is the index."""

    def __init__(self, length: int) -> None:
        random = np.random.default_rng(0)
        lengths = random.integers(MIN_TOKENS, MAX_TOKENS + 1, size=length)
        self.ends: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self.flat: npt.NDArray[np.int32] = random.integers(0, 50_000, size=int(self.ends[-1]), dtype=np.int32)
        self.flat[self.ends[:-1]] = np.arange(length)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.flat[self.ends[index] : self.ends[index + 1]].astype(np.int64)), index

    def read(self, batch: Any) -> Tensor:
        """Indices of a batch of (padded tokens, lengths, indices)."""
        tokens, lengths, indices = batch
        last = int(indices[-1])
        expect("first token", float(tokens[-1, 0]), last)
        expect("length", float(lengths[-1]), float(self.ends[last + 1] - self.ends[last]))
        return torch.clone(indices)


def pad_tokens(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """A user's own `collate_fn`: pad to the longest of the batch, keep lengths and indices."""
    sequences = [tokens for tokens, _ in samples]
    padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    lengths = torch.tensor([len(tokens) for tokens in sequences])
    return padded, lengths, torch.tensor([index for _, index in samples])


class SlowSamples(Dataset[tuple[Tensor, int]]):
    """Samples that take `seconds` of waiting each, no CPU: a remote read."""

    def __init__(self, length: int, seconds: float = 0.020) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.seconds)
        return torch.full((16,), float(index)), index

    def read(self, batch: Any) -> Tensor:
        """Indices of a batch of (values, indices)."""
        values, indices = batch
        expect("value", float(values[-1, 0]), int(indices[-1]))
        return torch.clone(indices)
