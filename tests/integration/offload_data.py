"""Datasets for offloading. Importable by Ray's workers, which get the test's sys.path."""

import asyncio
import random
import time
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import Dataset

import minato


class Drawing(Dataset[Any]):
    """Samples that draw from all three generators, and take a while."""

    def __init__(self, length: int, sample_s: float = 0.002) -> None:
        self.length = length
        self.sample_s = sample_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sample_s)
        return {
            "index": index,
            "image": torch.full((64, 64), float(index)) + torch.rand(64, 64),
            "drawn": (random.random(), np.random.rand(), minato.get_sample_rng().python.random()),
            "name": f"sample {index}",
        }


class Noise:
    """A transform with random numbers."""

    def __init__(self, sample_s: float) -> None:
        self.sample_s = sample_s

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sample_s)
        return image + torch.rand_like(image) * random.random() + minato.get_sample_rng().python.random()


class Transformed(Dataset[Any]):
    """Reading and a transform that can be told apart."""

    def __init__(self, length: int, sample_s: float = 0.002) -> None:
        self.length = length
        self.transform = Noise(sample_s)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        image = torch.full((32, 32), float(index))
        image = self.transform(image)
        return image, index


class OnlyHere(Transformed):
    """Its data is missing on other machines: in processes that a raylet has started."""

    def __getitem__(self, index: int) -> Any:
        if "raylet" in psutil.Process().parent().name():
            raise FileNotFoundError(f"no sample {index} on this machine")
        image = torch.full((32, 32), float(index))
        image = self.transform(image)
        return image, index


class Awaited(Dataset[Any]):
    """Samples that can only be awaited."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    async def __getitem_async__(self, index: int) -> Any:
        first = random.random()
        await asyncio.sleep(0.002)
        return {"index": index, "drawn": (first, random.random(), minato.get_sample_rng().python.random())}


class Failing(Drawing):
    """Every tenth sample fails."""

    def __init__(self, length: int, failing: int) -> None:
        super().__init__(length)
        self.failing = failing

    def __getitem__(self, index: int) -> Any:
        if index % 10 == self.failing:
            raise ValueError(f"bad sample {index}")
        return super().__getitem__(index)


def pad_together(samples: list[Any]) -> Any:
    """A collate function with random numbers of its own."""
    return [sample["index"] for sample in samples], torch.rand(3), torch.stack([s["image"] for s in samples])
