"""Datasets, collate functions and start functions that kill their process. At module level, so that they pickle."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


def kill_by(number):
    """Die of a signal, at once and without a core dump or a word from faulthandler."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(60)


WAYS = {
    "SIGKILL": (lambda: kill_by(signal.SIGKILL), "is killed by signal: Killed"),
    "SIGSEGV": (lambda: kill_by(signal.SIGSEGV), "is killed by signal: Segmentation fault"),
    "os._exit": (lambda: os._exit(3), "exited unexpectedly with exit code 3"),
    "sys.exit": (lambda: sys.exit(4), "exited unexpectedly with exit code 4"),
}
"""Ways to die, and how they are told."""


def die(way):
    WAYS[way][0]()


def row(index):
    return torch.full((5,), index, dtype=torch.int64)


class Rows(Dataset):
    """Sample i is a small tensor full of i."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return row(index)


class DiesOnce(Rows):
    """Each of the samples `deadly` kills its worker the first time it is asked for."""

    def __init__(self, length, deadly, marks, way="SIGKILL"):
        super().__init__(length)
        self.deadly, self.marks, self.way = deadly, marks, way

    def __getitem__(self, index):
        if index in self.deadly and self.marks.once(f"death-{index}", os.getpid()):
            die(self.way)
        return row(index)


class DiesAlways(Rows):
    """Sample `deadly` kills every worker that touches it."""

    def __init__(self, length, deadly, marks, way="SIGKILL"):
        super().__init__(length)
        self.deadly, self.marks, self.way = deadly, marks, way

    def __getitem__(self, index):
        if index == self.deadly:
            self.marks.sign("death")
            die(self.way)
        return row(index)


class Sleepy(Rows):
    """Every sample takes about `seconds`, give or take."""

    def __init__(self, length, seconds):
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds * (0.5 + index % 3 / 2))
        return row(index)


class AfterMarks(Rows):
    """Makes no sample before `count` processes have left their mark `prefix`."""

    def __init__(self, length, marks, prefix, count):
        super().__init__(length)
        self.marks, self.prefix, self.count = marks, prefix, count

    def __getitem__(self, index):
        self.marks.wait_for(self.prefix, self.count)
        return row(index)


class DiesCollating:
    """Stacks samples; the batch with sample `deadly` in it kills its worker, the first time or always."""

    def __init__(self, deadly, marks, way="SIGKILL", always=False):
        self.deadly, self.marks, self.way, self.always = deadly, marks, way, always

    def __call__(self, samples):
        rows = torch.stack(list(samples)) if isinstance(samples, (list, tuple)) else samples
        first = (rows == self.deadly).any() and self.marks.once(f"death-{self.deadly}", os.getpid())
        if first or (self.always and (rows == self.deadly).any()):
            die(self.way)
        return rows


class DiesStarting:
    """As worker_init_fn: worker 0 dies the first time it starts (or always); all others sign."""

    def __init__(self, marks, way="SIGKILL", always=False):
        self.marks, self.way, self.always = marks, way, always

    def __call__(self, worker_id):
        if worker_id == 0 and (self.marks.once("death-start", os.getpid()) or self.always):
            die(self.way)
        self.marks.sign("started")


class DiesStartingOften:
    """As worker_init_fn: worker 0 dies in its start, `times` times."""

    def __init__(self, marks, times):
        self.marks, self.times = marks, times

    def __call__(self, worker_id):
        if worker_id == 0 and any(self.marks.once(f"death-{number}") for number in range(self.times)):
            die("SIGKILL")
        self.marks.sign("started")


class Signs:
    """As worker_init_fn: every worker signs."""

    def __init__(self, marks):
        self.marks = marks

    def __call__(self, worker_id):
        self.marks.sign("started")


class Counting(IterableDataset):
    """Worker w gives lengths[w] numbers: 1000 w, 1000 w + 1, ... Number `deadly` kills its worker."""

    def __init__(self, lengths, deadly=None):
        self.lengths, self.deadly = lengths, deadly

    def __iter__(self):
        worker = get_worker_info().id
        for number in range(1000 * worker, 1000 * worker + self.lengths[worker]):
            if number == self.deadly:
                die("SIGKILL")
            yield number


class Big(Rows):
    """Sample i: 256 KiB that can be told from every other sample's and every other epoch's."""

    def __init__(self, length, kib=256):
        super().__init__(length)
        self.words = kib * 512
        self.epoch = 0

    def __getitem__(self, index):
        return torch.full((self.words,), self.epoch * 1000 + index, dtype=torch.int16)


def big_parcel(samples):
    """A custom batch: a large tensor, a large array, a small array and a number."""
    stacked = torch.stack(samples)
    return {"tensor": stacked, "array": stacked.numpy() + 1, "small": np.arange(3), "first": int(stacked[0, 0])}
