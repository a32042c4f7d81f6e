"""Transforms of libraries, by what the libraries say of them. Look-alikes: importing the real ones is slow."""

import random
from typing import Any

import pytest

import minato
from minato._pipeline.judging import judge_code
from minato._pipeline.looking import look


def of(package: str, kind: type) -> type:
    kind.__module__ = package
    return kind


class Randomizable:
    pass


class RandFlip(Randomizable):
    def __call__(self, x: Any) -> Any:
        return x


class Lambda:
    def __init__(self, func: Any) -> None:
        self.func = func

    def __call__(self, x: Any) -> Any:
        return self.func(x)


class Compose:
    def __init__(self, transforms: list[Any], p: float = 1.0) -> None:
        self.transforms, self.p = transforms, p

    def __call__(self, x: Any) -> Any:
        return x


class BasicTransform:
    def __init__(self, p: float) -> None:
        self.p = p
        self.py_random = random.Random(3)  # held by all of them, used by some

    def get_params(self) -> dict[str, Any]:
        return {}

    def __call__(self, x: Any) -> Any:
        return x


class Resize(BasicTransform):
    pass


class Brightness(BasicTransform):
    def get_params(self) -> dict[str, Any]:
        return {"by": self.py_random.uniform(0, 1)}


class CustomLambda(BasicTransform):
    """Functions of the user's by what they are applied to."""

    def __init__(self, function: Any) -> None:
        super().__init__(1.0)
        self.custom_apply_fns = {"image": function}


class BaseCompose(Compose):
    pass


class OneOf(BaseCompose):
    pass


class RandomCrop:
    def __call__(self, x: Any) -> Any:
        return x


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Randomizable, RandFlip, Lambda):
        monkeypatch.setattr(kind, "__module__", "monai.transforms")
    for kind in (BasicTransform, Resize, Brightness, CustomLambda, BaseCompose, OneOf):
        monkeypatch.setattr(kind, "__module__", "albumentations.core")
    monkeypatch.setattr(RandomCrop, "__module__", "torchvision.transforms")


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandFlip(),
        lambda: Compose([RandFlip()]),
        lambda: Lambda(lambda x: x + random.random()),
        lambda: Resize(p=0.5),
        lambda: Brightness(p=1.0),
        lambda: OneOf([Resize(p=1.0)]),
        lambda: Compose([Resize(p=1.0), Brightness(p=1.0)]),
        lambda: RandomCrop(),
        lambda: CustomLambda(lambda x: x if x < 1e9 else x + random.random()),
    ],
)
def test_random_by_class(make: Any) -> None:
    """In a Compose too; and a function given to a transform is looked at."""
    assert not judge_code(make())[0].may_be_cached


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lambda(lambda x: x + 1),
        lambda: Resize(p=1.0),
        lambda: Compose([Resize(p=1.0)]),
        lambda: CustomLambda(lambda x: x + 1),
    ],
)
def test_deterministic_by_class(make: Any) -> None:
    """A generator that a transform holds and does not use is no reason."""
    found = judge_code(make())[0]
    assert found.may_be_cached, found.reason


class Obliging:
    """Has any attribute that is asked for."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 3

    def __call__(self, x: Any) -> Any:
        return x


def test_a_transform_with_any_attribute_is_no_part_of_a_compose() -> None:
    found = look(minato.StagedDataset(float, [Obliging()], 8), [1, 2], 1.0)
    assert [stage.name for stage in found.stages] == ["load", "Obliging"]
