"""Datasets that stand for real pipelines: image decoding, 3D volumes, remote objects, uneven costs."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .datasets import expect

Costs = npt.NDArray[np.float64]
Sample = tuple[Tensor, int]


class _Indexed(Dataset[Sample]):
    """Samples of (payload, index); the first value of the payload is the index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self, batch: Any) -> Tensor:
        """Indices of a batch of (payloads, indices)."""
        payloads, indices = batch
        expect("payload", float(payloads[-1].flatten()[0]), float(indices[-1]))
        return torch.clone(indices)


class UnevenWaits(_Indexed):
    """Sample k waits `costs[k]` seconds without using a core, as a remote read does."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(len(costs))
        self.costs = costs

    def __getitem__(self, index: int) -> Sample:
        time.sleep(float(self.costs[index]))
        return torch.full((256,), float(index)), index


class RemoteObjects(_Indexed):
    """Objects of 115 kB behind a store that takes `latency_s` to answer, one time in a hundred ten times that."""

    def __init__(self, length: int, latency_s: float = 0.020) -> None:
        super().__init__(length)
        self.latency_s = latency_s

    def __getitem__(self, index: int) -> Sample:
        time.sleep(self.latency_s * (10 if index % 100 == 99 else 1))
        return torch.full((28_750,), float(index)), index


class JpegImages(_Indexed):
    """JPEG files in memory, decoded, resized to 224x224 and normalised by each access: milliseconds of one core."""

    def __init__(self, length: int, stored: int = 64) -> None:
        super().__init__(length)
        self.files = [make_jpeg(number) for number in range(stored)]

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        with Image.open(io.BytesIO(self.files[index % len(self.files)])) as image:
            pixels = np.asarray(image.resize((224, 224)), dtype=np.float32)
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).div(255).contiguous()
        tensor[0, 0, 0] = float(index)
        return tensor, index


def make_jpeg(seed: int) -> bytes:
    """A picture of smooth noise whose size varies as photographs' do."""
    from PIL import Image

    random = np.random.default_rng(seed)
    width, height = (int(side) for side in random.integers(320, 640, size=2))
    coarse = random.integers(0, 256, size=(height // 16, width // 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height)).save(file, "JPEG", quality=85)
    return file.getvalue()


class Volumes(_Indexed):
    """3D volumes: a random crop of 96x96x96, flips, noise. One in five has to be resampled and takes far longer."""

    def __init__(self, length: int, side: int = 128) -> None:
        super().__init__(length)
        self.volume = np.random.default_rng(0).standard_normal((side, side, side), dtype=np.float32)

    def __getitem__(self, index: int) -> Sample:
        random = np.random.default_rng(index)
        volume = self.volume
        if index % 5 == 0:
            for axis in range(3):
                volume = (volume + np.roll(volume, 1, axis)) * np.float32(0.5)
        x, y, z = random.integers(0, volume.shape[0] - 96, size=3)
        crop = np.flip(volume[x : x + 96, y : y + 96, z : z + 96], axis=int(random.integers(3))).copy()
        crop += np.float32(0.1) * random.standard_normal(crop.shape, dtype=np.float32)
        crop[0, 0, 0] = index
        return torch.from_numpy(crop)[None], index


def lognormal_costs(length: int, mean_s: float, sigma: float = 0.8) -> Costs:
    """Waits in seconds with the given mean, spread as preprocessing times of real data sets are."""
    random = np.random.default_rng(1)
    costs = random.lognormal(0.0, sigma, length)
    return np.asarray(costs * (mean_s / costs.mean()))


def heavy_tailed_costs(length: int, usual_s: float, share: float = 0.01, factor: float = 100.0) -> Costs:
    """Waits in seconds: the usual ones, and a share of them `factor` times as long."""
    slow = np.random.default_rng(2).permutation(length) < max(1, round(length * share))
    return np.where(slow, usual_s * factor, usual_s)
