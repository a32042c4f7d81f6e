"""Exceptions of minato, and the road an exception takes from a worker to the training loop.

    Exception
     ├── RuntimeError
     │    ├── MinatoError                 base of everything minato raises on its own account
     │    │    ├── WorkerDied             a worker process ended and its work could not be given to another
     │    │    ├── SampleTimeout          a sample took longer than `timeout`; a TimeoutError too
     │    │    ├── LoaderClosed           a closed loader or iterator was asked for a batch
     │    │    ├── DatasetStopIteration   the user's code raised StopIteration, which would end the loop silently
     │    │    └── InternalError          a broken invariant: a bug in minato, please report it
     ├── RuntimeWarning
     │    ├── ForkHazardWarning           something open that processes must not share, as workers are forked
     │    ├── RepeatedStreamWarning       every worker iterates the whole of an iterable dataset
     │    └── CopyOnWriteWarning          a large container of Python objects will be copied by every forked worker
     └── ...                              a worker's own exception arrives as its own type

An exception raised by the user's code in a worker is captured there as a `CapturedError` (plain, always picklable) and
raised again in the main process by `CapturedError.rebuild`: same type, same arguments and attributes, the worker's
traceback as `__cause__` (a `WorkerTraceback`), and a note naming stage, sample index and worker.
"""

from __future__ import annotations

import importlib
import io
import pickle
import traceback
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any


class MinatoError(RuntimeError):
    """Base of all errors that minato raises on its own account."""


class WorkerDied(MinatoError):
    """A worker process ended unexpectedly and its work could not be recovered."""


class SampleTimeout(MinatoError, TimeoutError):
    """A sample was not done within `timeout`; its worker was replaced. A note has the worker's stack."""


class LoaderClosed(MinatoError):
    """A batch was asked from a loader or iterator after `close()`."""


class DatasetStopIteration(MinatoError):
    """A dataset or collate function raised StopIteration; passed on as such it would end the loop without a word."""


class InternalError(MinatoError):
    """An invariant of minato does not hold. This is a bug in minato, not in the user's code."""


class ForkHazardWarning(RuntimeWarning):
    """Something that must not be shared by processes is open, held or connected while workers are forked."""


class RepeatedStreamWarning(RuntimeWarning):
    """All workers' streams of an iterable dataset gave the same batches."""


class CopyOnWriteWarning(RuntimeWarning):
    """The dataset holds so many Python objects that forked workers, by merely reading them, copy much memory each."""


class WorkerTraceback(Exception):
    """Cause of a re-raised exception: the text of the traceback as it was in the worker."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


@dataclass(frozen=True, slots=True)
class CapturedError:
    """An exception as plain data, so that it crosses processes whatever its constructor takes."""

    lineage: tuple[tuple[str, str], ...]
    """(module, qualified name) of the exception's classes, most derived first."""
    args: tuple[Any, ...]
    attributes: dict[str, Any]
    message: str
    """`str()` of the exception in the worker."""
    traceback: str
    where: str
    """Stage, sample index and worker, in words."""
    notes: tuple[str, ...] = field(default=())
    worker: int | None = None
    """The worker it was raised in, as far as that is known."""
    stage: str = "fetch"
    """As in `SampleError`."""
    final: bool = False
    """Nothing can follow: it is raised whatever `on_error` says."""

    @classmethod
    def capture(
        cls, error: BaseException, where: str, worker: int | None = None, stage: str = "fetch", final: bool = False
    ) -> CapturedError:
        """Turn `error` into plain data; parts of it that cannot be pickled are replaced by their `repr`."""
        lineage = tuple((c.__module__, c.__qualname__) for c in type(error).__mro__ if issubclass(c, BaseException))
        return cls(
            lineage=lineage,
            args=tuple(_picklable(a) for a in _arguments(error)),
            attributes={k: _picklable(v) for k, v in _attributes(error).items()},
            message=_text(error),
            traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
            where=where,
            notes=tuple(str(n) for n in getattr(error, "__notes__", ())),
            worker=worker,
            stage=stage,
            final=final,
        )

    def rebuild(self) -> BaseException:
        """The exception, ready to be raised in this process."""
        error = self._instance()
        for note in (*self.notes, f"raised {self.where}"):
            error.add_note(note)
        error.__cause__ = WorkerTraceback(f"Caught {self.lineage[0][1]} {self.where}.\nOriginal {self.traceback}")
        return error

    def _instance(self) -> BaseException:
        for module, name in self.lineage:
            error_type = _find_class(module, name)
            if error_type is None:
                continue  # defined where this process cannot see it: the nearest known base stands in
            if error_type is StopIteration:
                return DatasetStopIteration(f"StopIteration was raised {self.where}")
            exact = (module, name) == self.lineage[0]
            error = _make(error_type, self.args if exact else (f"{self.lineage[0][1]}: {self.message}",))
            if error is not None:
                for name, value in self.attributes.items():
                    setattr(error, name, value)
                return error
        return RuntimeError(f"{self.lineage[0][1]}: {self.message}")


@dataclass(frozen=True, slots=True)
class SampleError:
    """What an `on_error` function is told about a sample, or a batch, that failed."""

    index: Any
    """The sample's index (key); the list of all indices of a batch that could not be collated; None for a stream."""
    position: int | None
    """Position in the epoch of the sample, or of the batch's first sample; None for a stream."""
    epoch: int
    worker: int | None
    """Number of the worker; None with `num_workers=0`."""
    stage: str
    """"fetch": the dataset raised. "collate": the collate function raised. "timeout": the sample took longer than
    `timeout`. "death": the sample killed its workers."""
    tries: int
    """How often it failed so far, this time included."""
    error: BaseException
    traceback: str
    """The traceback as it was where the error was raised; for "timeout" the stack the worker was stuck in."""


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """What the builtin part of an error is made from; OSError keeps file names outside its `args`."""
    if isinstance(error, OSError) and error.filename is not None and len(error.args) == 2:
        second = () if error.filename2 is None else (None, error.filename2)
        return (*error.args, error.filename, *second)
    return error.args


def _attributes(error: BaseException) -> dict[str, Any]:
    """What an error holds besides its arguments; some builtin errors keep a few fields outside `__dict__`."""
    fields = {name: getattr(error, name) for name in ("name", "path") if isinstance(error, (ImportError, NameError))}
    if isinstance(error, AttributeError):
        fields = {"name": error.name}
    own = {name: value for name, value in vars(error).items() if name != "__notes__"}
    return {name: value for name, value in fields.items() if value is not None} | own


def _make(error_type: type[BaseException], args: tuple[Any, ...]) -> BaseException | None:
    """An instance made without `__init__`, whose signature may be anything."""
    error = _bare(error_type, args)
    if not isinstance(error, error_type):
        return None
    builtin = next(c for c in error_type.__mro__ if c.__module__ == "builtins")
    try:
        vars(builtin)["__init__"](error, *args)  # fills fields outside `__dict__`: OSError's, UnicodeError's
    except Exception:
        error.args = args
    return error


def _bare(error_type: type[BaseException], args: tuple[Any, ...]) -> object:
    """Made by the type's own `__new__`. With several builtin bases, Python finds that of the first one there, which
    may not be the one that fits: then the others are tried."""
    builtins = [c for c in error_type.__mro__ if c.__module__ == "builtins" and "__new__" in vars(c)]
    makers = builtins if error_type.__new__ is builtins[0].__new__ else [error_type]
    for maker in makers:
        try:
            return maker.__new__(error_type, *args)
        except Exception:  # a __new__ of its own with other arguments: a base class stands in
            continue
    return None


def _find_class(module: str, qualified_name: str) -> type[BaseException] | None:
    try:
        found: Any = importlib.import_module(module)
        for part in qualified_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _picklable(value: Any) -> Any:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # whatever __reduce__ or __setstate__ raise: the value stays behind, its text goes along
        return _text(value)
    return value


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} without text>"


def unpicklable_path(root: object, name: str, limit: int = 2000) -> str:
    """Name the attribute of `root` that cannot be pickled, e.g. ``dataset.transform.fn``.

    Follows `__dict__`, list, tuple and dict items from `root` to the deepest part that fails by itself. Looks at no
    more than `limit` objects, since it only serves an error message.
    """
    return name + (_Search(limit).below(root) or "")


class _Search:
    """Finds the way to a part that cannot be pickled although all of its own parts can."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._seen: set[int] = set()

    def below(self, node: object) -> str | None:
        """The way from `node`, empty if it is the culprit itself; None if it only refers back to where we came from."""
        self._seen.add(id(node))
        refers_back = False
        for label, child in _children(node):
            self._left -= 1
            if self._left < 0:
                break
            if _pickles(child):
                continue
            if id(child) in self._seen:
                refers_back = True
                continue
            way = self.below(child)
            if way is not None:
                return label + way
        return None if refers_back else ""


def _children(node: object) -> list[tuple[str, object]]:
    if isinstance(node, dict):
        return [(f"[{k!r}]", v) for k, v in node.items()]
    if isinstance(node, (list, tuple)):
        return [(f"[{i}]", v) for i, v in enumerate(node)]
    if isinstance(node, (type, FunctionType)) or not hasattr(node, "__dict__"):
        return []
    return [(f".{k}", v) for k, v in vars(node).items()]


def _pickles(value: object) -> bool:
    sink = pickle.Pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None)
    try:
        sink.dump(value)
    except Exception:
        return False
    return True
