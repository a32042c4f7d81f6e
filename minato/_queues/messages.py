"""Single objects at a known place of the arena: layouts, the program, errors at a worker's start, dataset updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import codec
from .arena import Arena
from .rows import ALIGNMENT


def put(arena: Arena, stretch: int, number: int, packed: codec.Packed) -> None:
    """Write a packed object as message `number` of a stretch, replacing what was there."""
    view = arena.view(stretch, number, ALIGNMENT + packed.nbytes)
    codec.write(packed, view, ALIGNMENT)
    view[:8].view(np.int64)[0] = packed.nbytes


def get(arena: Arena, stretch: int, number: int) -> Any:
    """Message `number` of a stretch. Large buffers of it stay in the arena."""
    nbytes = int(arena.view(stretch, number, ALIGNMENT)[:8].view(np.int64)[0])
    return codec.read(arena.view(stretch, number, ALIGNMENT + nbytes), ALIGNMENT, keep=codec.keep_large)
