"""How the dataset and the user's functions reach a worker.

fork: inherited. spawn and forkserver: pickled once into the arena; every worker unpickles from there, with large arrays
and tensors left where they are (one copy for all workers, copy-on-write). Objects that only travel to a child that is
just being started (multiprocessing's locks and queues, tensors in shared memory) cannot be pickled in advance: then
each worker gets its own pickle with its start, as torch does it.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .._errors import unpicklable_path
from .._queues import codec, messages
from .._queues.arena import Arena, Stretch
from .watch import SampleWatch


@dataclass(frozen=True, slots=True)
class Program:
    """The user's objects that a worker runs."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], Any] | None
    layer: Any = None
    """What stands between the worker and the dataset: has `wrap(dataset)`, which gives what to fetch from, and may have
    `watch`, a `SampleWatch`. None: nothing does."""

    def source(self) -> Any:
        """What to fetch from."""
        return self.dataset if self.layer is None else self.layer.wrap(self.dataset)

    def watch(self) -> SampleWatch | None:
        """Who looks at samples, if anybody does."""
        found: SampleWatch | None = getattr(self.layer, "watch", None)
        return found


class _OnlyWithStart(Exception):
    """Raised while pickling: something shared by inheritance is in the program."""


class _ProgramPickler(codec.TensorPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and _is_shared(obj):
            raise _OnlyWithStart
        return super().reducer_override(obj)


def _is_shared(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.is_shared()  # type: ignore[no-untyped-call]


def store(program: Program, arena: Arena) -> bool:
    """Pickle the program into the arena. False: it has to go along with each worker's start."""
    try:
        packed = codec.pack(program, _ProgramPickler)
    except _OnlyWithStart:
        return False
    except Exception as error:
        if isinstance(error, RuntimeError) and "inheritance" in str(error):
            return False
        _explain(error, program)
        if isinstance(error, (TypeError, AttributeError, pickle.PicklingError)):
            # torch's words for it; the error itself, and its note, say more.
            warnings.warn("Got pickle error when attempting to start a worker Process.", stacklevel=2)
        raise
    messages.put(arena, Stretch.PROGRAM, 0, packed)
    return True


def load(arena: Arena) -> Program:
    """The program as stored by the main process."""
    program: Program = messages.get(arena, Stretch.PROGRAM, 0)
    return program


def check_picklable(program: Program) -> None:
    """Raise what starting a worker would raise, without keeping any bytes."""
    try:
        _ProgramPickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(program)
    except _OnlyWithStart:
        return
    except Exception as error:
        if not (isinstance(error, RuntimeError) and "inheritance" in str(error)):
            _explain(error, program)
            raise


def _explain(error: Exception, program: Program) -> None:
    """Name the part that cannot be pickled, and what to do about it."""
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        part = getattr(program, name)
        try:
            pickle.dumps(part)
        except Exception:
            error.add_note(
                f"minato pickles the dataset and its functions for workers started by spawn or forkserver, and "
                f"{unpicklable_path(part, name)} cannot be pickled. Make it picklable, create it lazily in the worker, "
                f"or use multiprocessing_context='fork'."
            )
            return
