"""Samples, batches, collate functions and exceptions of a user's own making."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Mapping

import torch
from torch.utils.data import get_worker_info


def as_is(samples):
    return samples


def with_worker(samples):
    """The samples, and the worker that collated them (None: the main process)."""
    info = get_worker_info()
    return None if info is None else info.id, samples


def pad(samples):
    longest = max(len(sample) for sample in samples)
    return torch.stack([torch.nn.functional.pad(sample, (0, longest - len(sample))) for sample in samples])


Pair = namedtuple("Pair", "left right")


class Parcel:
    """A batch of the user's own making."""

    def __init__(self, samples):
        self.samples, self.total = samples, sum(samples)


class Reading:
    """A sample type that default_collate knows only if it is told."""

    def __init__(self, value):
        self.value = value


class Labelled(UserDict):
    """A mapping with an attribute of its own."""

    label = None


class Frozen(Mapping):
    """A mapping that cannot be changed, and that is built from another mapping."""

    def __init__(self, content):
        self.content = dict(content)

    def __getitem__(self, key):
        return self.content[key]

    def __iter__(self):
        return iter(self.content)

    def __len__(self):
        return len(self.content)


class Whimsical(torch.Tensor):
    """A tensor subclass."""


class Fussy(Exception):
    """An exception that cannot be built from one message."""

    def __init__(self, code, reason):
        super().__init__(f"code {code}: {reason}")
        self.code, self.reason = code, reason


def a_fussy_exception():
    return Fussy(7, "not today")


def a_local_exception():
    class Local(Exception):
        """No other process can import this."""

    return Local("only known here")


def a_key_error():
    return KeyError("first line\nsecond line")
