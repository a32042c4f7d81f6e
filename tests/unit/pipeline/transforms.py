"""Transforms that are random, some of them well hidden, and some that are not."""

from __future__ import annotations

import datetime
import functools
import io
import itertools
import operator
import os
import random
import random as chance
import secrets
import time
import uuid
import warnings
from collections.abc import Callable
from random import gauss as bell
from time import sleep as nap
from typing import Any

import numpy as np
import torch
from numpy.random import default_rng as make_generator
from PIL import Image

Transform = Callable[[Any], Any]
_generator = np.random.default_rng(3)
_draw = np.random.standard_normal
_library = {"noise": random.random}
_counter = itertools.count()
_state = {"calls": 0}


def helper(x: Any) -> Any:
    return deeper(x)


def deeper(x: Any) -> Any:
    return x + chance.random()


def in_helper(x: Any) -> Any:
    return helper(x)


def renamed(x: Any) -> Any:
    return x + bell(0, 1)


def captured_generator(x: Any) -> Any:
    return x + _generator.integers(5)


def builtin_method(x: Any) -> Any:
    return x + _draw()


def through_a_dict(x: Any) -> Any:
    return x + _library["noise"]()


def from_the_system(x: Any) -> Any:
    return x + os.urandom(1)[0]


def from_a_device(x: Any) -> Any:
    with open("/dev/urandom", "rb") as file:
        return x + file.read(1)[0]


def from_secrets(x: Any) -> Any:
    return x + secrets.randbelow(9)


def by_the_clock(x: Any) -> Any:
    return x + time.time_ns() % 7


def by_the_date(x: Any) -> Any:
    return x + datetime.datetime.now().microsecond % 7


def by_uuid(x: Any) -> Any:
    return x + uuid.uuid4().int % 7


def rarely(x: Any) -> Any:
    if float(x.sum()) == 12345.0:
        return x + torch.rand(())
    return x


def by_name(x: Any) -> Any:
    return x + getattr(random, "ran" + "dom")()


def counts(x: Any) -> Any:
    return x + next(_counter)


def changes_a_global(x: Any) -> Any:
    _state["calls"] += 1
    return x + _state["calls"] // 1000


def imports_inside(x: Any) -> Any:
    from numpy.random import normal

    return x + normal()


def makes_one(x: Any) -> Any:
    return x + make_generator().random()


def in_place(x: Any) -> Any:
    return x.clone().normal_()


def hashes(x: Any) -> Any:
    return x + hash(str(x)) % 3


class InAMethod:
    def __init__(self) -> None:
        self.inner = Inner()

    def __call__(self, x: Any) -> Any:
        return self.inner.change(x)


class Inner:
    def __init__(self) -> None:
        self.source = random.Random(3)

    def change(self, x: Any) -> Any:
        return x + self.source.betavariate(1, 2)


class KeepsState:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x if self.calls < 1000 else -x


def closure() -> Transform:
    source = np.random.RandomState(1)
    return lambda x: x + source.rand()


def decorated(function: Transform) -> Transform:
    @functools.wraps(function)
    def inner(x: Any) -> Any:
        return function(x) + torch.randint(5, ())

    return inner


@decorated
def plain_looking(x: Any) -> Any:
    return x


def partially(noise: Transform, x: Any) -> Any:
    return x + noise(x)


def scripted() -> Transform:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced: Transform = torch.jit.trace(lambda x: x + torch.rand_like(x), torch.ones(3), check_trace=False)
    return traced


def in_the_order_of_a_set(x: Any) -> Any:
    """Another one in each process, for strings."""
    return x * sum(n * ord(letter) for n, letter in enumerate({"a", "b", "c", "d"}))


def in_the_order_of_what_is_given(x: Any) -> Any:
    return x * sum(n * ord(letter) for n, letter in enumerate(set("abcd")))


def of_the_system(x: Any) -> Any:
    with open("/proc/loadavg") as file:
        return x * len(file.read())


def by_a_clock_beside_sleep(x: Any) -> Any:
    time.sleep(0)
    clock = time
    return x + clock.time_ns() % 7


def by_a_clock_called_sleep(x: Any) -> Any:
    from time import time_ns as sleep

    time.sleep(0)
    return x + sleep() % 7


def after_a_nap(x: Any) -> Any:
    for _ in range(2):
        time.sleep(0)
    return x * 2


def after_another(x: Any) -> Any:
    nap(0)
    return x * 2


RANDOM: dict[str, Transform] = {
    "order of a set": in_the_order_of_a_set,
    "order of a set, made by its name": in_the_order_of_what_is_given,
    "file of the system": of_the_system,
    "helper of a helper": in_helper,
    "renamed import": renamed,
    "generator in a global": captured_generator,
    "bound method of C": builtin_method,
    "function in a dict": through_a_dict,
    "os.urandom": from_the_system,
    "/dev/urandom": from_a_device,
    "secrets": from_secrets,
    "the clock": by_the_clock,
    "the clock, beside sleep": by_a_clock_beside_sleep,
    "the clock, called sleep": by_a_clock_called_sleep,
    "the date": by_the_date,
    "uuid": by_uuid,
    "a branch that was not taken": rarely,
    "name made up at run time": by_name,
    "iterator in a global": counts,
    "global that changes": changes_a_global,
    "import in the function": imports_inside,
    "generator made on the spot": makes_one,
    "in-place method of a tensor": in_place,
    "hash of a string": hashes,
    "object inside an object": InAMethod(),
    "keeps state": KeepsState(),
    "closure": closure(),
    "decorator": plain_looking,
    "partial": functools.partial(partially, lambda x: random.uniform(0, 1)),
    "lambda": lambda x: x * np.random.rand(),
    "native function behind operator": operator.methodcaller("normal_"),
    "torch script": scripted(),
    "ufunc of Python": np.frompyfunc(lambda x: x + random.random(), 1, 1),
    "dropout": torch.nn.Sequential(torch.nn.Identity(), torch.nn.Dropout(0.5)),
}


def decode(data: bytes) -> Any:
    return Image.open(io.BytesIO(data)).convert("RGB").resize((8, 8))


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.table = {"half": 0.5}

    def __call__(self, x: Any) -> Any:
        return self._by(x, self.factor * self.table["half"])

    def _by(self, x: Any, factor: float) -> Any:
        return np.clip(np.asarray(x, dtype=np.float32) * factor, 0.0, 1.0)


def to_tensor(x: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x)).permute(0).float().sub_(0.5)


def in_a_constant_set(x: Any) -> Any:
    return x * 2 if len(x) in {3, 4, 5} else x


DETERMINISTIC: dict[str, Transform] = {
    "membership": in_a_constant_set,
    "time.sleep": after_a_nap,
    "sleep by another name": after_another,
    "numpy in a class": Scale(2.0),
    "torch": to_tensor,
    "lambda": lambda x: x * 2,
    "partial": functools.partial(partially, lambda x: x),
    "module": torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU()),
}
