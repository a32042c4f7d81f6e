"""Datasets of four real kinds, made on the spot, each with a model that trains on them.

    segmentation  MONAI: dictionaries of 3D volumes, random crops and flips, a small 3D U-Net, Dice loss
    detection     JPEG decoding by Pillow, albumentations with boxes, lists of targets by a `collate_fn`
    audio         waves of varying length, filter and spectrogram by scipy, padded by a `collate_fn`
    text          a tokenizer of Hugging Face's `tokenizers`, trained on the spot; padded by a `collate_fn`

Every batch carries the indices of its samples, so that delivery can be checked. Libraries are imported where they are
used: a pipeline whose library is absent is told, the others run.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


@dataclass(frozen=True)
class Pipeline:
    """`make_dataset` takes a length; `loss_of` a model and a batch; `indices_of` a batch."""

    name: str
    make_dataset: Callable[[int], Any]
    make_model: Callable[[], nn.Module]
    loss_of: Callable[[nn.Module, Any], Tensor]
    indices_of: Callable[[Any], Tensor]
    batch_size: int
    collate_fn: Callable[[list[Any]], Any] | None = None


# ---- 3D segmentation -------------------------------------------------------------------------------------------------


class Volumes(Dataset[dict[str, Any]]):
    """A bright ball in noise and its mask; MONAI's dictionary transforms do the rest."""

    def __init__(self, length: int, side: int = 40, crop: int = 32) -> None:
        from monai import transforms

        self.length, self.side = length, side
        both = ["image", "mask"]
        self.transform = transforms.Compose(
            [
                transforms.EnsureChannelFirstd(keys=both, channel_dim="no_channel"),
                transforms.ScaleIntensityd(keys="image"),
                transforms.RandSpatialCropd(keys=both, roi_size=(crop, crop, crop), random_size=False),
                transforms.RandFlipd(keys=both, prob=0.5, spatial_axis=0),
                transforms.RandGaussianNoised(keys="image", prob=0.5, std=0.05),
                transforms.EnsureTyped(keys=both, track_meta=False),
            ]
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = np.random.default_rng(index)
        centre = random.uniform(0.35, 0.65, size=3) * self.side
        grid = np.indices((self.side,) * 3, dtype=np.float32)
        distance = np.sqrt(sum((grid[axis] - centre[axis]) ** 2 for axis in range(3)))
        mask = (distance < self.side / 4).astype(np.float32)
        image = mask + random.standard_normal(mask.shape, dtype=np.float32) * 0.3
        made = self.transform({"image": image, "mask": mask})
        return {"image": made["image"], "mask": made["mask"], "index": index}


def make_unet() -> nn.Module:
    from monai.networks.nets import UNet

    model: nn.Module = UNet(3, 1, 1, channels=(4, 8, 16), strides=(2, 2))
    return model


def dice_loss(model: nn.Module, batch: Any) -> Tensor:
    from monai.losses import DiceLoss

    loss: Tensor = DiceLoss(sigmoid=True)(model(batch["image"]), batch["mask"])
    return loss


# ---- detection -------------------------------------------------------------------------------------------------------


class Boxes(Dataset[tuple[Tensor, dict[str, Any]]]):
    """JPEG files in memory with one to three boxes each, augmented by albumentations."""

    def __init__(self, length: int, stored: int = 16, side: int = 128) -> None:
        import albumentations

        self.length, self.side = length, side
        self.files = [self._make(seed) for seed in range(stored)]
        self.transform = albumentations.Compose(
            [
                albumentations.HorizontalFlip(p=0.5),
                albumentations.RandomBrightnessContrast(p=0.5),
                albumentations.Resize(96, 96),
                albumentations.Normalize(),
            ],
            bbox_params=albumentations.BboxParams(format="pascal_voc", label_fields=["labels"]),
        )

    def _make(self, seed: int) -> tuple[bytes, list[tuple[int, int, int, int]]]:
        from PIL import Image, ImageDraw

        random = np.random.default_rng(seed)
        image = Image.fromarray(random.integers(0, 90, size=(self.side, self.side, 3), dtype=np.uint8))
        boxes = []
        for _ in range(1 + seed % 3):
            x, y = (int(each) for each in random.integers(0, self.side - 50, size=2))
            boxes.append((x, y, x + 40, y + 40))
            ImageDraw.Draw(image).rectangle(boxes[-1], fill=(250, 250, 250))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        return file.getvalue(), boxes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        from PIL import Image

        data, boxes = self.files[index % len(self.files)]
        with Image.open(io.BytesIO(data)) as file:
            image = np.asarray(file.convert("RGB"))
        made = self.transform(image=image, bboxes=np.array(boxes, dtype=np.float32), labels=[1] * len(boxes))
        target = {"boxes": torch.as_tensor(np.array(made["bboxes"], dtype=np.float32)), "index": index}
        return torch.from_numpy(made["image"]).permute(2, 0, 1).contiguous(), target


def keep_targets(samples: list[tuple[Tensor, dict[str, Any]]]) -> tuple[Tensor, list[dict[str, Any]]]:
    """Images become one tensor, targets stay a list: the usual `collate_fn` of detectors."""
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


def box_map_loss(model: nn.Module, batch: Any) -> Tensor:
    """Which cells of a 12×12 grid lie in a box."""
    images, targets = batch
    wanted = torch.zeros(len(targets), 12, 12)
    for row, target in enumerate(targets):
        for x0, y0, x1, y1 in (target["boxes"] / 8).round().int().tolist():
            wanted[row, y0:y1, x0:x1] = 1.0
    return nn.functional.binary_cross_entropy_with_logits(model(images)[:, 0], wanted)


def make_detector() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, 1, 1))


# ---- audio -----------------------------------------------------------------------------------------------------------


class Waves(Dataset[tuple[Tensor, int, int]]):
    """Tones of 0.3 to 1 s in noise; band-passed, turned into a log spectrogram."""

    RATE = 8_000
    TONES = (300, 600, 1_200, 2_400)

    def __init__(self, length: int) -> None:
        from scipy import signal

        self.length = length
        self.filter = signal.butter(4, [100, 3_500], "bandpass", fs=self.RATE, output="sos")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        from scipy import signal

        random = np.random.default_rng(index)
        time = np.arange(int(self.RATE * random.uniform(0.3, 1.0))) / self.RATE
        label = index % len(self.TONES)
        wave = np.sin(2 * np.pi * self.TONES[label] * time) + 0.5 * random.standard_normal(len(time))
        _, _, power = signal.stft(signal.sosfilt(self.filter, wave), fs=self.RATE, nperseg=256, noverlap=128)
        return torch.from_numpy(np.log1p(np.abs(power)).astype(np.float32)), label, index


def pad_spectra(samples: list[tuple[Tensor, int, int]]) -> tuple[Tensor, Tensor, Tensor]:
    longest = max(spectrum.shape[1] for spectrum, _, _ in samples)
    padded = [nn.functional.pad(spectrum, (0, longest - spectrum.shape[1])) for spectrum, _, _ in samples]
    labels, indices = ([sample[which] for sample in samples] for which in (1, 2))
    return torch.stack(padded), torch.tensor(labels), torch.tensor(indices)


def make_listener() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(129, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4)
    )


def tone_loss(model: nn.Module, batch: Any) -> Tensor:
    spectra, labels, _ = batch
    return nn.functional.cross_entropy(model(spectra), labels)


# ---- text ------------------------------------------------------------------------------------------------------------


class Sentences(Dataset[tuple[list[int], int]]):
    """Generated sentences, turned into token ids by a byte-pair tokenizer at each access."""

    WORDS = ("the", "harbour", "light", "ship", "wave", "sails", "slowly", "past", "a", "quiet", "stone", "pier")

    def __init__(self, length: int) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        self.length = length
        self.tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=64, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
        self.tokenizer.train_from_iterator((self.text(index) for index in range(64)), trainer)

    def text(self, index: int) -> str:
        random = np.random.default_rng(index)
        return " ".join(self.WORDS[i] for i in random.integers(0, len(self.WORDS), size=random.integers(8, 64)))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        return self.tokenizer.encode(self.text(index)).ids, index


def pad_ids(samples: list[tuple[list[int], int]]) -> dict[str, Tensor]:
    sequences = [torch.tensor(ids) for ids, _ in samples]
    padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    return {"ids": padded, "mask": padded != 0, "index": torch.tensor([index for _, index in samples])}


class NextToken(nn.Module):
    """Guesses each token from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.layers(ids)
        return scores


def token_loss(model: nn.Module, batch: Any) -> Tensor:
    scores = model(batch["ids"][:, :-1])
    return nn.functional.cross_entropy(scores.transpose(1, 2), batch["ids"][:, 1:], ignore_index=0)


PIPELINES: tuple[Pipeline, ...] = (
    Pipeline("segmentation", Volumes, make_unet, dice_loss, lambda batch: batch["index"], 4),
    Pipeline(
        "detection",
        Boxes,
        make_detector,
        box_map_loss,
        lambda batch: torch.tensor([target["index"] for target in batch[1]]),
        8,
        keep_targets,
    ),
    Pipeline("audio", Waves, make_listener, tone_loss, lambda batch: batch[2], 8, pad_spectra),
    Pipeline("text", Sentences, NextToken, token_loss, lambda batch: batch["index"], 16, pad_ids),
)
