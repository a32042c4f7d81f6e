"""Stages of datasets made with MONAI and albumentations themselves, and with torchvision's Compose by its shape."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from minato import DataLoader, StagedDataset
from minato._pipeline.looking import look
from minato._workers.stages import find_stages

LENGTH = 24
DEAR_S = 0.006  # seconds; samples that take longer are taken one by one
ANY_S = 1e-6  # a threshold that every sample is past


class Images(Dataset):
    """An image dataset of the usual kind; `keywords` as albumentations wants it."""

    def __init__(self, transform, keywords=False, length=LENGTH, boxes=None):
        self.transform, self.keywords, self.length, self.boxes = transform, keywords, length, boxes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(DEAR_S)
        image = np.full((6, 4, 3), index, np.uint8)
        image[0] = np.arange(12).reshape(4, 3)
        if not self.keywords:
            return self.transform(image)
        if self.boxes is None:
            return self.transform(image=image)["image"]
        found = self.transform(image=image, bboxes=[[0, 0, 2, 2]], labels=[self.boxes[index % len(self.boxes)]])
        return found["image"], found["labels"][0]


class VisionCompose:
    """torchvision's."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img


class VisionComposeV2(torch.nn.Module):
    """torchvision's second version."""

    def __init__(self, transforms):
        super().__init__()
        self.transforms = transforms

    def forward(self, *inputs):
        needs_unpacking = len(inputs) > 1
        for transform in self.transforms:
            outputs = transform(*inputs)
            inputs = outputs if needs_unpacking else (outputs,)
        return outputs


def plus(x):
    return x + 1


def double(x):
    return x * 2


def as_tensor(x):
    return torch.as_tensor(np.ascontiguousarray(x)).float()


# The libraries are imported where they are used: with them in memory every fork of every test takes twice the time.


def monai_compose():
    import monai.transforms

    return monai.transforms.Compose(
        [monai.transforms.Lambda(plus), monai.transforms.Flip(0), monai.transforms.Lambda(double), as_tensor]
    )


def albumentations_compose(**arguments):
    import albumentations

    flip, transpose = albumentations.HorizontalFlip(p=1), albumentations.Transpose(p=1)
    inner = albumentations.Compose([albumentations.InvertImg(p=1)])
    return albumentations.Compose([flip, inner, transpose], **arguments)


def monai_dataset():
    import monai.data
    import monai.transforms

    class Slow(monai.transforms.Transform):
        def __call__(self, data):
            time.sleep(DEAR_S)
            return torch.full((2, 3), float(data))

    transforms = [Slow(), monai.transforms.Lambda(plus), monai.transforms.Lambda(double)]
    return monai.data.Dataset(list(range(LENGTH)), monai.transforms.Compose(transforms))


ALBUMENTATIONS = ["load", "HorizontalFlip", "InvertImg", "Transpose"]
MONAI = ["load", "Lambda", "Flip", "Lambda", "as_tensor"]
VISION = ["load", "plus", "double", "as_tensor"]
FOUND = {
    "MONAI's Compose": (lambda: Images(monai_compose()), MONAI),
    "MONAI's Dataset": (monai_dataset, ["load", "Slow", "Lambda", "Lambda"]),
    "albumentations": (lambda: Images(albumentations_compose(), keywords=True), ALBUMENTATIONS),
    "torchvision's Compose": (lambda: Images(VisionCompose([plus, double, as_tensor])), VISION),
    "torchvision's second": (lambda: Images(VisionComposeV2([plus, double, as_tensor])), VISION),
}
CONTAINERS = {
    "alone": lambda dataset: dataset,
    "subset": lambda dataset: Subset(dataset, list(range(LENGTH))),
    "concatenation": lambda dataset: ConcatDataset([Subset(dataset, range(5)), Subset(dataset, range(5, LENGTH))]),
}


def made_in_stages(dataset, index):
    """A sample, and the stages it was made in."""
    begin = find_stages(dataset)
    assert begin is not None, "opaque"
    sample, found = begin(index), []
    while not sample.done:
        found.append(sample.stage)
        sample.advance()
    return sample.result, found


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("case", FOUND)
def test_stages_are_found_and_give_the_sample(case, container):
    make, names = FOUND[case]
    dataset = CONTAINERS[container](make())
    sample, found = made_in_stages(dataset, 7)
    assert found == names
    assert torch.equal(torch.as_tensor(sample), torch.as_tensor(dataset[7]))


@pytest.mark.parametrize("case", FOUND)
def test_samples_put_aside_in_the_middle_of_a_library_are_torchs(case):
    make, _ = FOUND[case]
    loader = DataLoader(Subset(make(), range(LENGTH)), 4, num_workers=1, in_order=False, slow_timeout=ANY_S)
    expected = list(torch.utils.data.DataLoader(make(), batch_size=None))
    got = [row for batch in loader for row in batch]
    assert len(got) == LENGTH
    for sample in expected:
        assert sum(torch.equal(torch.as_tensor(sample), row) for row in got) == 1
    assert loader.stats().samples_parked > 0


def test_a_compose_that_keeps_a_sample_s_boxes_on_itself_is_one_stage():
    import albumentations

    names = ["cat", "dog", "fox", "hen", "owl"]
    boxes = albumentations.BboxParams(format="pascal_voc", label_fields=["labels"])
    dataset = Images(albumentations_compose(bbox_params=boxes), keywords=True, boxes=names)
    assert made_in_stages(dataset, 1)[1] == ["load", "Compose"]
    loader = DataLoader(dataset, 4, num_workers=1, in_order=False, slow_timeout=ANY_S)
    labels = [label for _, batch in loader for label in batch]
    assert sorted(labels) == sorted(names[index % len(names)] for index in range(LENGTH))


def test_lists_of_images_which_albumentations_keeps_in_mind_are_one_stage():
    compose = albumentations_compose()

    class Clips(Images):
        def __getitem__(self, index):
            frames = [np.full((4, 4, 3), index, np.uint8)] * 2
            return self.transform(images=frames)["images"]

    assert made_in_stages(Clips(compose), 1)[1] == ["load", "Compose"]


def test_a_lazy_compose_which_joins_transforms_is_one_stage():
    import monai.transforms

    lazy = monai.transforms.Compose([monai.transforms.Lambda(plus), as_tensor], lazy=True)
    assert made_in_stages(Images(lazy), 1)[1] == ["load", "Compose"]


def test_why_what_is_before_albumentations_is_not_cached_is_said():
    """Its Compose draws before the first transform; in a `StagedDataset` what is loaded can be kept."""
    transform = albumentations_compose()
    random = look(Images(transform, keywords=True, length=4), [0, 1], 5.0)
    assert random.deterministic == 0
    assert "Compose draws before its first transform" in random.stages[0].reason
    assert "minato.StagedDataset(load, [transform])" in random.stages[0].reason
    staged = look(StagedDataset(blank, [lambda image: transform(image=image)["image"]], 4), [0, 1], 5.0)
    assert staged.deterministic == 1


def blank(index):
    return np.full((6, 4, 3), index, np.uint8)
