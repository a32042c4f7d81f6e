"""Files by which the processes of a test wait for each other; they work across every start method, at any speed."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import torch
from torch.utils.data import get_worker_info

from .data import Indices, Witness

PATIENCE_S = 90.0


class Gate:
    """Shut until somebody opens it."""

    def __init__(self, path):
        self.path = Path(path)

    def open(self):
        self.path.touch()

    def wait(self):
        deadline = time.monotonic() + PATIENCE_S
        while not self.path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody opened {self.path}")
            time.sleep(0.005)


class Gated(Indices):
    """Sample `held` waits at the gate, the others do not."""

    def __init__(self, length, gate, held=0):
        super().__init__(length)
        self.gate, self.held = gate, held

    def __getitem__(self, index):
        if index == self.held:
            self.gate.wait()
        return index


class RollCall:
    """As worker_init_fn: every worker signs a list of its own, with what it knows at that moment."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __call__(self, worker_id):
        info = get_worker_info()
        words = [worker_id, info.id, info.num_workers, info.seed, torch.initial_seed(), random.random(), os.getpid()]
        words.append(type(info.dataset).__name__)
        draft = self.folder / f"draft-{os.getpid()}-{worker_id}"
        draft.write_text(" ".join(map(str, words)))
        draft.rename(self.folder / f"worker-{worker_id}-{os.getpid()}")

    def signed(self):
        """One list of words per worker process, by worker id."""
        files = sorted(self.folder.glob("worker-*"), key=lambda path: int(path.name.split("-")[1]))
        return [file.read_text().split() for file in files]

    def wait_for(self, count):
        deadline = time.monotonic() + PATIENCE_S
        while len(list(self.folder.glob("worker-*"))) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.signed()} of {count} workers came up")
            time.sleep(0.005)


class AfterRollCall(Witness):
    """Makes no sample before `count` worker processes have signed: no quick worker does all the work alone."""

    def __init__(self, length, roll_call, count):
        super().__init__(length)
        self.roll_call, self.count = roll_call, count

    def __getitem__(self, index):
        self.roll_call.wait_for(self.count)
        return super().__getitem__(index)
