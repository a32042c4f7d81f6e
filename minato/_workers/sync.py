"""Attribute changes of the dataset, for workers that live on from epoch to epoch.

`dataset.set_epoch(3)` in the main process changes an attribute there; a persistent worker has its own copy of the
dataset. Before each epoch the main process compares the dataset with what it was and sends what changed.

Seen: attributes that were rebound, and small values (up to `SMALL_ITEMS` items) and tensors that were changed in place
(by torch), in the dataset itself and in objects it refers to, `DEPTH` levels deep (so through `Subset`, `ConcatDataset`
and transforms). Not seen: changes inside large lists, dicts and arrays.
"""

from __future__ import annotations

import io
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import torch

SMALL_ITEMS = 1000  # of a list, tuple, dict or set; larger ones are compared by identity and length only
SMALL_BYTES = 64 * 1024  # pickled size up to which a container is compared by content
DEPTH = 4
_MOST_NODES = 5000  # objects looked at per epoch; a bound on the time this may take
_SCALARS = (int, float, complex, bool, str, bytes, type(None))

Path = tuple[str | int, ...]
"""Steps from the dataset: attribute names, and list positions."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A value as it was. Holds the value itself: its id stays unique that way."""

    value: Any
    content: Any
    tensors: tuple[torch.Tensor, ...] = ()
    """Those in the content, which has their ids."""

    def differs(self, other: _Seen) -> bool:
        return self.value is not other.value if self.content is None else self.content != other.content


class DatasetWatch:
    """Remembers a dataset's attributes and tells what changed since."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._seen = _look(dataset)
        self._patch: dict[Path, Any] = {}
        self._warned: set[Path] = set()

    def changes(self) -> dict[Path, Any] | None:
        """Everything that changed since the watch began, newest values; None if nothing changed since last asked."""
        now = _look(self._dataset)
        changed = [path for path, seen in now.items() if path not in self._seen or seen.differs(self._seen[path])]
        self._seen = now
        fresh = False
        for path in changed:
            if any(path[:n] in changed for n in range(1, len(path))):
                continue  # inside a value that is sent as a whole
            if self._is_sendable(path, now[path].value):
                for old in [p for p in self._patch if p[: len(path)] == path]:
                    del self._patch[old]  # a change inside what is replaced now
                self._patch[path] = now[path].value
                fresh = True
        return dict(self._patch) if fresh else None

    def _is_sendable(self, path: Path, value: Any) -> bool:
        try:
            pickle.dumps(value)
        except Exception as error:
            if path not in self._warned:
                self._warned.add(path)
                name = ".".join(map(str, path))
                warnings.warn(
                    f"attribute {name!r} of the dataset changed, but cannot be sent to persistent workers: {error}. "
                    f"They keep the old value; use persistent_workers=False to start workers anew each epoch.",
                    stacklevel=2,
                )
            return False
        return True


def apply_patch(dataset: Any, patch: dict[Path, Any]) -> None:
    """Set changed attributes on this process's copy of the dataset."""
    for path, value in patch.items():
        parent = dataset
        for step in path[:-1]:
            parent = parent[step] if isinstance(step, int) else vars(parent)[step]
        if isinstance(path[-1], int):
            parent[path[-1]] = value
        else:
            vars(parent)[path[-1]] = value


def _look(dataset: Any) -> dict[Path, _Seen]:
    seen: dict[Path, _Seen] = {}
    visited: set[int] = set()

    def visit(value: Any, path: Path) -> None:
        if len(seen) >= _MOST_NODES or id(value) in visited:
            return
        if path:
            seen[path] = _see(value)
        if isinstance(value, (*_SCALARS, torch.Tensor, type)) or len(path) >= DEPTH:
            return
        if isinstance(value, list) and _holds_objects(value):
            visited.add(id(value))
            for i, item in enumerate(value):
                visit(item, (*path, i))
        elif hasattr(value, "__dict__") and not callable(getattr(value, "__code__", None)):
            visited.add(id(value))
            for name, item in vars(value).items():
                visit(item, (*path, name))

    visit(dataset, ())
    return seen


def _holds_objects(value: list[Any]) -> bool:
    """Lists of datasets or transforms are looked into; lists of data are not."""
    return len(value) <= 64 and any(hasattr(item, "__dict__") for item in value)


def _see(value: Any) -> _Seen:
    """A value with what it holds, for comparison, if it is small; None if only its identity counts."""
    if isinstance(value, _SCALARS):
        return _Seen(value, (type(value), value))
    if isinstance(value, torch.Tensor):
        return _Seen(value, _tensor_content(value))
    if not isinstance(value, (list, tuple, dict, set, frozenset)):
        return _Seen(value, None)
    if len(value) <= SMALL_ITEMS and not (isinstance(value, list) and _holds_objects(value)):
        pickled = _pickled(value)
        if pickled is not None:
            return _Seen(value, *pickled)
    return _Seen(value, (id(value), len(value)))


def _pickled(value: Any) -> tuple[bytes, tuple[torch.Tensor, ...]] | None:
    """What a container holds, and the tensors in it; None: that is not small, or cannot be sent either."""
    file = io.BytesIO()
    pickler = _ContentPickler(file, pickle.HIGHEST_PROTOCOL)
    try:
        pickler.dump(value)
    except Exception:
        return None
    return (file.getvalue(), tuple(pickler.tensors)) if file.tell() <= SMALL_BYTES else None


class _ContentPickler(pickle.Pickler):
    """Pickles for comparison only. Of tensors it writes which they are and how often they were changed: their numbers
    would take fifty times as long, at the start of every epoch."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.tensors: list[torch.Tensor] = []

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor:
            return NotImplemented
        self.tensors.append(obj)
        return tuple, (_tensor_content(obj),)


def _tensor_content(tensor: torch.Tensor) -> tuple[int, int]:
    return id(tensor), 0 if tensor.is_inference() else tensor._version
