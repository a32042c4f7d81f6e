"""Datasets of MONAI and albumentations need no change; the transforms inside their Compose objects are seen.

Needs `pip install monai albumentations`. python examples/10_monai_and_albumentations.py
"""
# ruff: noqa: T201  (an example prints)

import tempfile
import warnings
from typing import Any

import albumentations
import monai.data
import monai.transforms
import numpy as np
import torch
from torch.utils.data import Dataset

import minato
from minato.trace.summary import summarize


class Photos(Dataset[Any]):
    """A dataset as albumentations shows it in its guide; the photos are noise."""

    transform = albumentations.Compose([albumentations.RandomCrop(64, 64), albumentations.HorizontalFlip(p=0.5)])

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        photo = np.random.default_rng(index).integers(0, 255, (80, 80, 3), dtype=np.uint8)
        return torch.from_numpy(self.transform(image=photo)["image"]), index


def volumes() -> Any:
    data = [{"image": np.full((24, 24, 24), number, np.float32)} for number in range(60)]
    steps = [
        monai.transforms.EnsureChannelFirstd("image", channel_dim="no_channel"),
        monai.transforms.RandSpatialCropd("image", roi_size=(16, 16, 16), random_size=False),
        monai.transforms.RandFlipd("image", prob=0.5, spatial_axis=0),
        monai.transforms.EnsureTyped("image", track_meta=False),
    ]
    return monai.data.Dataset(data, monai.transforms.Compose(steps))


def read(name: str, dataset: Any, **arguments: Any) -> None:
    with tempfile.TemporaryDirectory() as run:
        with minato.DataLoader(dataset, 8, shuffle=True, num_workers=2, trace=run, **arguments) as loader:
            samples = sum(len(batch["image"] if isinstance(batch, dict) else batch[0]) for batch in loader)
        print(f"{name}: {samples} samples through {', '.join(operation.name for operation in summarize(run).ops)}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    read("albumentations", Photos())
    # MONAI's transforms keep generators of their own, which each worker has to seed: as with MONAI's own loader.
    read("MONAI", volumes(), worker_init_fn=monai.data.utils.worker_init_fn)
