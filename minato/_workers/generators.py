"""The three global random generators, with cheap ways to look at them and to seed them for a sample.

Asking `random` or `numpy.random` for its state takes 10 to 50 µs: too much around cheap samples. All three are MT19937
with a plain state block in memory, which is copied in a tenth of a microsecond. The addresses are checked against
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


def _memory(address: int, size: int) -> memoryview:
    """The bytes at an address. Their owner has to be kept alive."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class PythonGenerator:
    """`random`'s global instance."""

    def __init__(self) -> None:
        self._instance: Any = random._inst
        address = id(self._instance) + object.__basicsize__
        *state, index = random.getstate()[1]
        block = _memory(address, _PYTHON_BYTES)
        self._block = block if block == np.array([index, *state], np.uint32).tobytes() else None

    def glance(self) -> object:
        if self._block is None:
            return random.getstate()
        return self._block.tobytes(), self._instance.gauss_next

    def rewind(self, glance: Any) -> None:
        if self._block is not None:
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
        self._block = self._find()

    def _find(self) -> memoryview | None:
        """The state, if it lies where numpy says."""
        state = self._owner.state
        if state["bit_generator"] != "MT19937":
            return None
        block = _memory(int(self._owner.ctypes.state_address), _NUMPY_BYTES)
        expected = state["state"]["key"].tobytes() + np.int32(state["state"]["pos"]).tobytes()
        return block if block == expected else None

    def glance(self) -> object:
        if self._block is None:
            return pickle.dumps(self._owner.state)
        return self._block.tobytes()

    def rewind(self, glance: Any) -> None:
        if self._block is None:
            self._owner.state = pickle.loads(glance)
        else:
            self._block[:] = glance

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
        self._block = self._find()

    def _find(self) -> memoryview | None:
        """The engine's counters and state, if they can be found in the generator object."""
        start: int | None = getattr(self._generator, "_cdata", None)
        if start is None:
            return None
        words = self._generator.get_state().numpy()[_TORCH_STATE_AT:].view(np.uint64)[:_STATE_WORDS]
        searched = ctypes.string_at(start, _TORCH_SEARCHED)
        found = searched.find(words.astype(np.uint32).tobytes()[: _TORCH_SEARCHED // 2])
        if found < _TORCH_COUNTERS:
            return None
        return _memory(start + found - _TORCH_COUNTERS, _TORCH_COUNTERS + 4 * _STATE_WORDS)

    def glance(self) -> object:
        if self._block is None:
            return self._generator.get_state().numpy().tobytes()
        return self._block.tobytes()

    def rewind(self, glance: Any) -> None:
        if self._block is None:
            self._generator.set_state(torch.frombuffer(bytearray(glance), dtype=torch.uint8))
        else:
            self._block[:] = glance

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
