"""The three global random generators, with cheap ways to look at them and to seed them for a sample.

Asking `random` or `numpy.random` for its state takes 10 to 50 µs: too much around cheap samples. All three are MT19937
with a plain state block in memory, which is read directly in about a microsecond. The addresses are checked against
the public functions once per process; where that check fails, the public functions are used.
"""

from __future__ import annotations

import ctypes
import functools
import pickle
import random
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

_STATE_WORDS = 624  # of MT19937
_PYTHON_BYTES = 4 + 4 * _STATE_WORDS  # index, then state: CPython's RandomObject after its object header
_NUMPY_BYTES = 4 * _STATE_WORDS + 4  # state, then position: numpy's mt19937_state
_TORCH_STATE_AT = 24  # bytes into get_state(): after seed, left, seeded, next; the state follows as 64-bit words
_TORCH_COUNTERS = 12  # bytes before the engine's state in memory: left, seeded, next
_TORCH_SEARCHED = 512  # bytes at the start of the generator object, far less than it has
_MASK = 0xFFFF_FFFF_FFFF_FFFF


class Generator(Protocol):
    """A global random generator."""

    def glance(self) -> object:
        """Something that is equal before and after exactly if nothing was drawn or seeded in between."""
        ...

    def rewind(self, glance: Any) -> None:
        """Undo draws since `glance`, but for a spare normal deviate that may have been used up."""
        ...

    def save(self) -> Any:
        """The whole state."""
        ...

    def restore(self, saved: Any) -> None:
        """Put back the whole state."""
        ...

    def seed(self, seed: int) -> None:
        """Start the stream that belongs to a 64-bit seed."""
        ...


class PythonGenerator:
    """`random`'s global instance."""

    def __init__(self) -> None:
        self._instance: Any = random._inst
        address = id(self._instance) + object.__basicsize__
        *state, index = random.getstate()[1]
        known = ctypes.string_at(address, _PYTHON_BYTES) == np.array([index, *state], np.uint32).tobytes()
        self._address = address if known else None

    def glance(self) -> object:
        if self._address is None:
            return random.getstate()
        return ctypes.string_at(self._address, _PYTHON_BYTES), self._instance.gauss_next

    def rewind(self, glance: Any) -> None:
        if self._address is not None:
            block, spare = glance
            index, *state = np.frombuffer(block, np.uint32).tolist()
            glance = (random.getstate()[0], (*state, index), spare)
        random.setstate(glance)

    def save(self) -> Any:
        return random.getstate()

    def restore(self, saved: Any) -> None:
        random.setstate(saved)

    def seed(self, seed: int) -> None:
        random.seed(seed)


class NumpyGenerator:
    """`numpy.random`'s global instance."""

    def __init__(self) -> None:
        self._owner: Any = np.random.mtrand.get_bit_generator()  # keeps the memory at the address alive
        self._address = self._find()

    def _find(self) -> int | None:
        """Where the state lies, if it lies where numpy says."""
        state = self._owner.state
        if state["bit_generator"] != "MT19937":
            return None
        address = int(self._owner.ctypes.state_address)
        expected = state["state"]["key"].tobytes() + np.int32(state["state"]["pos"]).tobytes()
        return address if ctypes.string_at(address, _NUMPY_BYTES) == expected else None

    def glance(self) -> object:
        if self._address is None:
            return pickle.dumps(self._owner.state)
        return ctypes.string_at(self._address, _NUMPY_BYTES)

    def rewind(self, glance: Any) -> None:
        if self._address is None:
            self._owner.state = pickle.loads(glance)
        else:
            ctypes.memmove(self._address, glance, _NUMPY_BYTES)

    def save(self) -> Any:
        return np.random.get_state()

    def restore(self, saved: Any) -> None:
        np.random.set_state(saved)

    def seed(self, seed: int) -> None:
        np.random.seed(seed >> 31)  # its legacy seeding takes 32 bits


class TorchGenerator:
    """torch's default CPU generator. `torch.initial_seed()` goes on reporting the worker's seed while a sample's own
    stream is in use: the reported seed is part of the state, and is kept when the state is replaced."""

    def __init__(self) -> None:
        self._generator = torch.default_generator
        self._scratch = torch.Generator()
        self._address = self._find()

    def _find(self) -> int | None:
        """Where the engine's counters and state lie in the generator object, if they can be found there."""
        start: int | None = getattr(self._generator, "_cdata", None)
        if start is None:
            return None
        words = self._generator.get_state().numpy()[_TORCH_STATE_AT:].view(np.uint64)[:_STATE_WORDS]
        block = ctypes.string_at(start, _TORCH_SEARCHED)
        found = block.find(words.astype(np.uint32).tobytes()[: _TORCH_SEARCHED // 2])
        return start + found - _TORCH_COUNTERS if found >= _TORCH_COUNTERS else None

    def glance(self) -> object:
        if self._address is None:
            return self._generator.get_state().numpy().tobytes()
        return ctypes.string_at(self._address, _TORCH_COUNTERS + 4 * _STATE_WORDS)

    def rewind(self, glance: Any) -> None:
        if self._address is None:
            self._generator.set_state(torch.frombuffer(bytearray(glance), dtype=torch.uint8))
        else:
            ctypes.memmove(self._address, glance, len(glance))

    def save(self) -> Any:
        return self._generator.get_state()

    def restore(self, saved: Any) -> None:
        self._generator.set_state(saved)

    def seed(self, seed: int) -> None:
        state = self._scratch.manual_seed(seed).get_state()
        state.numpy()[:8].view(np.uint64)[0] = self._generator.initial_seed() & _MASK
        self._generator.set_state(state)


@functools.cache
def all_generators() -> Sequence[Generator]:
    """The generators that a sample's code may draw from. Found once; a forked worker inherits what its parent found."""
    return PythonGenerator(), NumpyGenerator(), TorchGenerator()


def mix(*values: int) -> int:
    """A 63-bit hash of integers: equal inputs give equal seeds, any difference gives unrelated ones (splitmix64)."""
    state = 0
    for value in values:
        state = (state ^ value) + 0x9E37_79B9_7F4A_7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58_476D_1CE4_E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D0_49BB_1331_11EB & _MASK
        state ^= state >> 31
    return state >> 1  # seeds lie in signed 64-bit words
