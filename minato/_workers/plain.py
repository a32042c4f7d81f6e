"""States as plain values, which `torch.save` and JSON carry: str, int, float, bool, None, lists, dicts with str keys.

What others hand us (the state of a dataset or a sampler) is kept as it is where it is plain. Otherwise it goes through
`torch.save` into a text, and comes back through `torch.load(weights_only=True)`: a checkpoint never runs code.
"""

from __future__ import annotations

import base64
import io
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_SCALARS = (str, int, float, bool, type(None))


def is_plain(value: object) -> bool:
    """Whether JSON gives back exactly this value."""
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(map(is_plain, value.values()))
    return type(value) in _SCALARS


def pack(value: Any, whose: str) -> Any:
    """A plain value for `unpack`. Raises TypeError if `value`, the state of `whose`, cannot be made plain."""
    if is_plain(value):
        return {"plain": value}
    try:
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        raise TypeError(
            f"the state of {whose} cannot be saved: {error}. Its state_dict() should return numbers, strings, tensors, "
            f"and lists, tuples and dicts of these."
        ) from error
    return {"torch": _text(zlib.compress(file.getvalue()))}


def unpack(packed: Any) -> Any:
    """What `pack` was given."""
    if "plain" in packed:
        return packed["plain"]
    return torch.load(io.BytesIO(zlib.decompress(_data(packed["torch"]))), weights_only=True)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _data(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# ---- random generators --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """A random generator: how to read and set its state, and how to make a state plain and back."""

    owner: object
    """Generators of the same owner are the same."""
    read: Callable[[], Any]
    set: Callable[[Any], object]
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


def torch_source(generator: torch.Generator) -> Source:
    return Source(generator, generator.get_state, generator.set_state, _torch_to_plain, _torch_from_plain)


def _torch_to_plain(state: torch.Tensor) -> Any:
    """The CPU generator's state is an array of 64-bit words, few of which use their upper halves."""
    words = np.frombuffer(state.numpy().tobytes().ljust(-(-state.numel() // 8) * 8, b"\0"), np.uint32)
    upper = words[1::2]
    used = [[int(n), int(upper[n])] for n in np.flatnonzero(upper)]
    return {"lower": _text(words[::2].tobytes()), "upper": used, "bytes": state.numel()}


def _torch_from_plain(plain: Any) -> torch.Tensor:
    lower = np.frombuffer(_data(plain["lower"]), np.uint32)
    words = np.zeros(2 * len(lower), np.uint32)
    words[::2] = lower
    for number, value in plain["upper"]:
        words[2 * number + 1] = value
    return torch.frombuffer(bytearray(words.tobytes()[: plain["bytes"]]), dtype=torch.uint8)


def python_source(generator: Any = random) -> Source:
    """`random`, or an instance of `random.Random`."""
    return Source(generator, generator.getstate, generator.setstate, _python_to_plain, _python_from_plain)


def _python_to_plain(state: Any) -> Any:
    version, words, spare = state
    return [version, _text(np.array(words, np.uint32).tobytes()), spare]


def _python_from_plain(plain: Any) -> Any:
    version, words, spare = plain
    return version, tuple(np.frombuffer(_data(words), np.uint32).tolist()), spare


def numpy_source(generator: Any = np.random.mtrand._rand) -> Source:
    """`numpy.random`, or an instance of `RandomState`."""
    return Source(
        generator, lambda: generator.get_state(legacy=False), generator.set_state, _numpy_to_plain, _numpy_from_plain
    )


def numpy_generator_source(generator: np.random.Generator) -> Source:
    bits = generator.bit_generator
    return Source(
        bits, lambda: bits.state, lambda state: setattr(bits, "state", state), _numpy_to_plain, _numpy_from_plain
    )


def _numpy_to_plain(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: _numpy_to_plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"array": _text(state.tobytes()), "dtype": state.dtype.str}
    return state.item() if isinstance(state, np.generic) else state


def _numpy_from_plain(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    if "array" in plain:
        return np.frombuffer(_data(plain["array"]), np.dtype(plain["dtype"])).copy()
    return {name: _numpy_from_plain(value) for name, value in plain.items()}


def process_sources() -> dict[str, Source]:
    """The generators that any code may draw from."""
    return {"torch": torch_source(torch.default_generator), "python": python_source(), "numpy": numpy_source()}


def source_of(value: Any) -> Source | None:
    """How to handle a generator that was found as somebody's attribute; None: it is not one."""
    if isinstance(value, torch.Generator):
        return torch_source(value)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return python_source(value)
    if isinstance(value, np.random.RandomState):
        return numpy_source(value)
    return numpy_generator_source(value) if isinstance(value, np.random.Generator) else None


Sources = Mapping[str, Source]
States = dict[str, Any]
"""Raw states by the name of their generator."""


def read_all(sources: Sources) -> States:
    return {name: source.read() for name, source in sources.items()}


def set_all(sources: Sources, states: States) -> None:
    for name, state in states.items():
        sources[name].set(state)


def states_to_plain(sources: Sources, states: States) -> dict[str, Any]:
    return {name: sources[name].to_plain(state) for name, state in states.items()}


def states_from_plain(sources: Sources, plain: Mapping[str, Any]) -> States:
    return {name: sources[name].from_plain(state) for name, state in plain.items()}


def same_states(left: States, right: States) -> bool:
    return bool(repr_of(left) == repr_of(right))


def repr_of(states: Any) -> Any:
    """Something that is equal for equal states: tensors and arrays do not compare to one truth value."""
    if isinstance(states, Mapping):
        return {name: repr_of(state) for name, state in states.items()}
    if isinstance(states, torch.Tensor):
        return states.numpy().tobytes()
    return states.tobytes() if isinstance(states, np.ndarray) else states
