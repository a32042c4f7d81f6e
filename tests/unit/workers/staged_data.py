"""Datasets and transforms by shape: those of torchvision, MONAI, albumentations, and some that only look like it."""

from __future__ import annotations

import random
import threading
from typing import Any

import torch
from torch.utils.data import Dataset

SCALE = 3


class Plus:
    """Not idempotent, and says when it ran."""

    def __init__(self, number: int, log: list[str] | None = None) -> None:
        self.number, self.log = number, log

    def __call__(self, x: Any) -> Any:
        if self.log is not None:
            self.log.append(f"plus {self.number}")
        return x * 2 + self.number


class Noise:
    def __call__(self, x: Any) -> Any:
        return x + random.random()


class Fail:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, x: Any) -> Any:
        raise self.error


class Compose:
    """torchvision's, and that of most projects."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img


class ModuleCompose(torch.nn.Module):
    """torchvision's second version: a module, several inputs."""

    def __init__(self, transforms: Any) -> None:
        super().__init__()
        self.transforms = transforms

    def forward(self, *inputs: Any) -> Any:
        needs_unpacking = len(inputs) > 1
        for transform in self.transforms:
            outputs = transform(*inputs)
            inputs = outputs if needs_unpacking else (outputs,)
        return outputs


class Both:
    """Of an image and a label."""

    def __call__(self, x: Any, y: Any) -> Any:
        return x + 1, y * 2


class Wrapper(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Any) -> Any:
        return x + self.number


class Sometimes(Compose):
    """torchvision's RandomApply."""

    def __call__(self, img):
        if random.random() < 0.5:
            return img
        for t in self.transforms:
            img = t(img)
        return img


class OneOf(Compose):
    """Has `transforms`, and applies one of them."""

    def __call__(self, img):
        return random.choice(self.transforms)(img)


class AnyOrder(Compose):
    def __call__(self, img):
        order = list(range(len(self.transforms)))
        random.shuffle(order)
        for i in order:
            img = self.transforms[i](img)
        return img


class Backwards(Compose):
    def __call__(self, img):
        for t in reversed(self.transforms):
            img = t(img)
        return img


class Guarded(Compose):
    """Holds a lock while it works."""

    lock = threading.Lock()

    def __call__(self, img):
        with self.lock:
            for t in self.transforms:
                img = t(img)
        return img


class Keyword:
    """One of albumentations' transforms: everything by keyword, and by keyword back."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, force_apply: bool = False, **data: Any) -> dict[str, Any]:
        return {**data, "image": data["image"] * 2 + self.number}


class KeywordCompose:
    def __init__(self, transforms: Any, p: float = 1.0) -> None:
        self.transforms, self.p = transforms, p

    def __call__(self, *args: Any, force_apply: bool = False, **data: Any) -> dict[str, Any]:
        if args:
            raise KeyError("You have to pass data to augmentations as named arguments")
        if not (force_apply or random.random() < self.p):
            return data
        data["image"] = data["image"] + 0.5
        for t in self.transforms:
            data = t(**data)
            data["checked"] = data.get("checked", 0) + 1
        data["image"] = data["image"] - 0.5
        return data


def run_all(data: Any, transforms: Any, start: int, end: int | None, map_items: bool) -> Any:
    for t in transforms[start:end]:
        data = [t(item) for item in data] if map_items and isinstance(data, list) else t(data)
    return data


class ManyCrops:
    """One sample becomes a list of them."""

    def __call__(self, x: Any) -> Any:
        return [x, x + 100]


def monai_compose(transforms: Any, lazy: Any = False) -> Any:
    """MONAI's: the loop is elsewhere, but it can be asked for a part."""

    class Compose:
        def __init__(self) -> None:
            self.transforms, self.lazy, self.asked = tuple(transforms), lazy, []

        def __call__(self, input_: Any, start: int = 0, end: int | None = None, lazy: Any = None) -> Any:
            self.asked.append((start, end))
            return run_all(input_, self.transforms, start, end, map_items=True)

    Compose.__call__.__qualname__ = "Compose.__call__"
    return Compose()


class Numbers(Dataset[Any]):
    """Torchvision's way: a transform of the image, and one of the target."""

    def __init__(self, transform: Any = None, target_transform: Any = None, length: int = 8) -> None:
        self.transform, self.target_transform, self.length = transform, target_transform, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index >= self.length:
            raise IndexError(index)
        image, target = float(index), index * SCALE
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target


class LooksAtTheResult(Numbers):
    """Goes on with what the transform gave; private names; super()."""

    __factor = 10

    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        image = self.transform(image) * self.__factor
        if isinstance(image, float):
            image = -image
        return {"image": image, "target": target, "again": self.transform(1.0)}


class Catches(Numbers):
    """Has a plan for errors."""

    def __getitem__(self, index: int) -> Any:
        try:
            return self.transform(float(index))
        except ValueError as error:
            return f"caught {error}"
        finally:
            self.last = index


class ByKeyword(Numbers):
    def __getitem__(self, index: int) -> Any:
        found = self.transform(image=float(index), label=index)
        return found["image"], found


class Pairs(Numbers):
    def __getitem__(self, index: int) -> Any:
        x, y = self.transform(float(index), index)
        return x, y


class InALoop(Numbers):
    def __getitem__(self, index: int) -> Any:
        return [self.transform(float(index + i)) for i in range(2)] + [self.transform(float(index))]


class Elsewhere(Numbers):
    """The transform is called by another method."""

    def __getitem__(self, index: int) -> Any:
        return self.prepare(float(index))

    def prepare(self, x: Any) -> Any:
        return self.transform(x)


class Remembers(Numbers):
    """Keeps the sample at hand on itself."""

    def __getitem__(self, index: int) -> Any:
        self.current = index
        image = self.transform(float(index))
        return image, self.current


class RemembersInMethods(Numbers):
    """The same, by way of methods and a property."""

    def __getitem__(self, index: int) -> Any:
        self.note(index)
        image = self.transform(float(index))
        return image, self.noted

    def note(self, index: int) -> None:
        self.current = index

    @property
    def noted(self) -> int:
        return self.current


class RemembersInALoop(Numbers):
    """What is stored after one transform is read before the next."""

    def __getitem__(self, index: int) -> Any:
        found = []
        for step in range(2):
            found.append(index if step == 0 else self.last)
            found.append(self.transform(float(index)))
            self.last = index
        return found


class RemembersUnderAnyName(Numbers):
    def __getitem__(self, index: int) -> Any:
        setattr(self, "cur" + "rent", index)
        image = self.transform(float(index))
        return image, self.length


class OpensLate(Numbers):
    """What it keeps on itself is not about one sample, or not read after the transform."""

    opened: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.opened is None:
            self.opened = [float(i) for i in range(self.length)]
        image = self.transform(self.opened[index])
        self.count = index
        return image, self.label(index)

    def label(self, index: int) -> int:
        return index * SCALE + self.length


class RemembersCompose(Compose):
    """albumentations' way: prepares, applies, undoes."""

    def __call__(self, img):
        self.begin(img)
        for t in self.transforms:
            img = t(img)
        return self.end(img)

    def begin(self, img):
        self.was_float = isinstance(img, float)

    def end(self, img):
        return float(img) if self.was_float else img


class RecursesForEver(Numbers):
    def __getitem__(self, index: int) -> Any:
        return self.once(index)

    def once(self, index: int) -> Any:
        return self.again(index) if index < 0 else self.transform(float(index))

    def again(self, index: int) -> Any:
        return self.once(-index) if index < 0 else self.transform(float(index))


class WithoutGradients(Numbers):
    def __getitem__(self, index: int) -> Any:
        with torch.no_grad():
            return self.transform(float(index))


class Decorated(Numbers):
    @torch.no_grad()
    def __getitem__(self, index: int) -> Any:
        return self.transform(float(index))


class TypedIn(Numbers):
    """Its source is nowhere to be found."""


exec("def getitem(self, index):\n    return self.transform(float(index))\nTypedIn.__getitem__ = getitem")
