"""Transforms of libraries, by what the libraries say of them."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from minato._pipeline.judging import judge, judge_code

IMAGE = np.full((8, 8, 3), 100, np.uint8)


def test_monai() -> None:
    """What is Randomizable is random, in a Compose too; a function given to a transform is looked at."""
    monai = pytest.importorskip("monai.transforms")
    for transform in (
        monai.RandGaussianNoise(prob=1.0),
        monai.Compose([monai.ScaleIntensity(), monai.RandFlip(prob=0.5)]),
        monai.Lambda(lambda x: x + random.random()),
    ):
        assert not judge_code(transform)[0].may_be_cached
    scale = monai.ScaleIntensity()
    found = judge(scale, scale, [torch.arange(3.0)])[0]
    assert found.may_be_cached, found.reason


def test_albumentations() -> None:
    """What is applied by chance, or draws its parameters, is random; the rest is not."""
    albumentations: Any = pytest.importorskip("albumentations")
    for transform in (
        albumentations.HorizontalFlip(p=0.5),
        albumentations.RandomBrightnessContrast(p=1.0),
        albumentations.Compose([albumentations.RandomCrop(4, 4, p=1.0)]),
    ):
        assert not judge_code(transform)[0].may_be_cached
    resize = albumentations.Resize(4, 4, p=1.0)
    found = judge(resize, lambda image: resize(image=image), [IMAGE])[0]
    assert found.may_be_cached, found.reason
