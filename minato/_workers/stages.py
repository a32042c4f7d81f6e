"""Samples in stages: loading, then one transform after the other, with a chance to stop after each.

`find_stages` looks whether a dataset's samples can be made that way with exactly the result of `dataset[index]`:

    StagedDataset                             its load function and its transforms
    `self.transform(...)` in `__getitem__`,   up to the call; then the transform, in its own stages if it is
    or in a method that it calls              Compose-like; then the rest (splitting.py)
    Subset, ConcatDataset                     through to the dataset below

Compose-like is whatever has `transforms` and a loop `for t in self.transforms` that calls `t`: torchvision's, of both
versions, albumentations' with its keywords, and others. MONAI's Compose hands its loop to a function, but can be asked
for one transform at a time. What cannot be split is one stage. A dataset of which nothing can be split is opaque.
"""

from __future__ import annotations

import ast
import bisect
import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset

from .._staged import StagedDataset
from .splitting import Call, Steps, split

ATTRIBUTES = ("transform", "transforms")
"""Attributes of a dataset that are looked for."""


class SampleRun:
    """One sample on its way. `advance` does one stage; in between the sample can wait for as long as it likes."""

    __slots__ = ("_begun", "_frames", "_next", "_result", "done")

    def __init__(self, steps: Steps) -> None:
        self._frames = [steps]
        """Functions under way, each called by the one before."""
        self._next: Call | None = None
        self._begun = False
        self.done = False
        self._result: Any = None

    @property
    def stage(self) -> str:
        """What `advance` will do."""
        if not self._begun:
            return "load"
        return "done" if self._next is None else _name_of(self._next[0])

    @property
    def call(self) -> Call | None:
        """What `advance` will call, and with what; None before the first stage and after the last."""
        return self._next

    @property
    def frames(self) -> tuple[Steps, ...]:
        """The functions under way, outermost first. To be looked at only."""
        return tuple(self._frames)

    @property
    def result(self) -> Any:
        """The sample, once it is done."""
        assert self.done
        return self._result

    def advance(self) -> bool:
        """Do the next stage; True if that was the last. Raises what the sample raises."""
        assert not self.done
        self._begun = True
        call, self._next = self._next, None
        value, error = None, None
        if call is not None:
            function, args, keywords = call
            try:
                value = function(*args, **keywords)
            except BaseException as raised:
                error = raised  # goes to the place of the call, which may catch it
        try:
            self._go_on(value, error)
        finally:
            del error  # no cycle with this frame
        return self.done

    def _go_on(self, value: Any, error: BaseException | None) -> None:
        """Give a result, or an error, to the innermost function; go on to the next call that is a stage."""
        while True:
            frame = self._frames[-1]
            try:
                call = frame.send(value) if error is None else frame.throw(error)
            except StopIteration as end:
                value, error = end.value, None
            except BaseException as raised:
                value, error = None, _as_raised(raised)
            else:
                steps = _steps_of(call)
                if steps is None:
                    self._next = call
                    return
                self._frames.append(steps)
                value = error = None
                continue
            self._frames.pop()
            if not self._frames:
                self.done, self._result = True, value
                if error is not None:
                    try:
                        raise error
                    finally:
                        del error  # no cycle with this frame
                return

    def close(self) -> None:
        """Give the sample up."""
        for frame in reversed(self._frames):
            frame.close()


def _as_raised(error: BaseException) -> BaseException:
    """The error as a plain function would have raised it: out of a generator, StopIteration comes in disguise."""
    hidden = error.__cause__
    disguised = type(error) is RuntimeError and error.args == ("generator raised StopIteration",)
    return hidden if disguised and isinstance(hidden, StopIteration) else error


Begin = Callable[[Any], SampleRun]


def find_stages(dataset: Any, run: Callable[[Steps], SampleRun] = SampleRun) -> Begin | None:
    """How to begin a sample of this dataset in stages, by its index; None if it is opaque. `run`: what is to see it
    through its stages.

    Holds as long as the dataset's class and its methods are what they are now; its attributes may change.
    """
    steps = _steps_of_dataset(dataset)
    return None if steps is None else lambda index: run(steps(index))


def _steps_of_dataset(dataset: Any) -> Callable[[Any], Steps] | None:
    kind: Any = type(dataset)
    if kind is Subset:
        return _steps_of_subset(dataset)
    if kind is ConcatDataset:
        return _steps_of_concatenation(dataset)
    if kind.__getitem__ is StagedDataset.__getitem__:
        return functools.partial(_staged_steps, dataset)
    if not any(callable(getattr(dataset, name, None)) for name in ATTRIBUTES):
        return None
    steps = _split_method(kind, kind.__getitem__)
    return None if steps is None else functools.partial(steps, dataset)


def _staged_steps(dataset: StagedDataset, index: int) -> Steps:
    sample = dataset.load(dataset.index(index))
    for _number, transform in enumerate(dataset.transforms):  # the number is for those who look at the frame
        sample = yield transform, (sample,), {}
    return sample


def _steps_of_subset(dataset: Any) -> Callable[[Any], Steps] | None:
    inner = dataset.dataset
    below = _steps_of_dataset(inner)
    if below is None:
        return None

    def steps(index: Any) -> Steps:
        if isinstance(index, list) or dataset.dataset is not inner:
            return (yield dataset.__getitem__, (index,), {})
        return (yield from below(dataset.indices[index]))

    return steps


def _steps_of_concatenation(dataset: Any) -> Callable[[Any], Steps] | None:
    inner = list(dataset.datasets)
    parts = [_steps_of_dataset(part) for part in inner]
    if not any(parts):
        return None

    def steps(index: Any) -> Steps:
        sizes = dataset.cumulative_sizes
        if not isinstance(index, int) or not 0 <= index < sizes[-1]:
            return (yield dataset.__getitem__, (index,), {})  # counts from the end, or has an error of its own
        number = bisect.bisect_right(sizes, index)
        part = parts[number]
        if part is None or dataset.datasets[number] is not inner[number]:
            return (yield dataset.__getitem__, (index,), {})
        return (yield from part(index if number == 0 else index - sizes[number - 1]))

    return steps


@functools.lru_cache(maxsize=256)
def _split_method(kind: type, function: Any, callers: frozenset[Any] = frozenset()) -> Callable[..., Steps] | None:
    """A dataset's method with the calls of its transform given out, and those of its methods that call the transform.
    `callers`: on whose behalf it is looked at."""

    def is_wanted(call: ast.Call, first: str, _loops: frozenset[str]) -> bool:
        called = call.func
        if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == first):
            return False
        return called.attr in ATTRIBUTES or _calls_transform(kind, called.attr, callers | {function})

    return split(function, is_wanted, kind)


def _calls_transform(kind: type, name: str, callers: frozenset[Any]) -> bool:
    method = inspect.getattr_static(kind, name, None)
    if not isinstance(method, FunctionType) or method in callers or not _mentions_transform(method):
        return False
    return _split_method(kind, method, callers) is not None


def _mentions_transform(function: Any) -> bool:
    """A quick look, before the source is read."""
    return isinstance(function, FunctionType) and not set(ATTRIBUTES).isdisjoint(function.__code__.co_names)


# ---- transforms ----------------------------------------------------------------------------------------------------


def _steps_of(call: Call) -> Steps | None:
    """The stages of a call, if it is one of something Compose-like, or of a dataset's method that calls its
    transform."""
    transform, args, keywords = call
    kind: Any = type(transform)
    if isinstance(transform, MethodType):
        function, kind = transform.__func__, type(transform.__self__)
        steps = _split_method(kind, function) if _mentions_transform(function) else None
        return None if steps is None else steps(transform.__self__, *args, **keywords)
    if not isinstance(getattr(transform, "transforms", None), (list, tuple, torch.nn.ModuleList)):
        return None
    if _takes_one_at_a_time(transform) and len(args) == 1 and not keywords:
        return _one_at_a_time(transform, args[0])
    steps = _split_compose(kind, _function_of(transform), _keeps_nothing(transform, keywords))
    return None if steps is None else steps(transform, *args, **keywords)


def _keeps_nothing(transform: Any, keywords: Mapping[str, Any]) -> bool:
    """albumentations' Compose keeps on itself what it has to undo at the end: of boxes and key points (its processors),
    and of lists of images. Without these, or inside another Compose, which does it, it makes no use of that."""
    if not type(transform).__module__.startswith("albumentations."):
        return False
    inner = getattr(transform, "main_compose", True) is False
    return inner or not (getattr(transform, "processors", True) or {"images", "masks"} & keywords.keys())


def _function_of(transform: Any) -> FunctionType | None:
    """The Python function that a call of the object runs, and nothing besides; None if that is not certain."""
    if isinstance(transform, torch.nn.Module):
        if type(transform).__call__ is not torch.nn.Module.__call__ or not _is_plain(transform):
            return None
        function = type(transform).forward
    else:
        function = type(transform).__call__
    return function if isinstance(function, FunctionType) else None


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether calling the module only calls its `forward`: no hooks, not compiled, not replaced."""
    everywhere = torch.nn.modules.module
    hooks = [
        *(module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks),
        *(everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks),
        *(everywhere._global_backward_hooks, everywhere._global_backward_pre_hooks),
    ]
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return not any(hooks) and not compiled and "forward" not in vars(module)


@functools.lru_cache(maxsize=256)
def _split_compose(kind: type, function: FunctionType | None, keeps_nothing: bool) -> Callable[..., Steps] | None:
    return None if function is None else split(function, _is_call_of_loop_variable, None if keeps_nothing else kind)


def _is_call_of_loop_variable(call: ast.Call, _first: str, loops: frozenset[str]) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in loops


def _takes_one_at_a_time(transform: Any) -> bool:
    """MONAI's Compose: `compose(x, start=2, end=3)` applies the third transform. Not when it is lazy, which joins
    transforms, and not its subclasses that choose among transforms and have a `__call__` of their own."""
    function = type(transform).__call__
    if getattr(function, "__qualname__", "") != "Compose.__call__" or getattr(transform, "lazy", None) is not False:
        return False
    return _has_start_and_end(function)


@functools.lru_cache(maxsize=256)
def _has_start_and_end(function: Any) -> bool:
    return {"start", "end"} <= inspect.signature(function).parameters.keys()


def _one_at_a_time(transform: Any, sample: Any) -> Steps:
    number = 0
    while number < len(transform.transforms):
        sample = yield PartOfCompose(transform, number), (sample,), {}
        number += 1
    return sample


class PartOfCompose:
    """One transform of a Compose that is asked for it by number."""

    def __init__(self, compose: Any, number: int) -> None:
        self._compose = compose
        self._number = number

    @property
    def behind(self) -> Any:
        """The transform itself."""
        return self._compose.transforms[self._number]

    @property
    def stage_name(self) -> str:
        return _name_of(self.behind)

    def __call__(self, sample: Any) -> Any:
        return self._compose(sample, start=self._number, end=self._number + 1)


def _name_of(function: Any) -> str:
    if isinstance(function, PartOfCompose):
        return function.stage_name
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__
