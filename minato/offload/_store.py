"""What was learned about a pipeline, kept from one run to the next: a small JSON file in the user's cache directory.

pipeline, model, this machine            →  Gthp, Lthp, Pcycle
the same and the nodes of the cluster    →  Rthp and Ocycle of each placement
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .._protocols import Seat
from ._deciding import LocalMetrics, RemoteMetrics

FILE = "offload.json"
_VERSION = 1
_MOST_ENTRIES = 200
_MOST_REPR = 2000  # characters of a transform's repr that count


def default_directory() -> Path:
    """The user's cache directory for minato."""
    try:
        from platformdirs import user_cache_dir
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minato"
    return Path(user_cache_dir("minato"))


def pipeline_key(seat: Seat, model_key: str) -> str:
    """The same for runs that do the same work here: dataset, transforms, batch, collate, workers, model, machine."""
    plan, dataset = seat.plan, seat.dataset
    parts = (
        *(_VERSION, platform.node(), seat.cores, torch.__version__, model_key),
        *(_name(type(dataset)), _transforms(dataset), plan.batch_size, plan.collate.value, _name(plan.collate_fn)),
        *(plan.num_workers, plan.order.value),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _transforms(dataset: Any) -> str:
    """What the transforms say of themselves, without addresses."""
    found = [getattr(dataset, name, None) for name in ("transform", "transforms", "target_transform")]
    text = "; ".join(repr(one) for one in found if one is not None)[:_MOST_REPR]
    return " ".join(word for word in text.split() if not word.startswith("0x"))


class MetricStore:
    """Reads and writes the file. One that is damaged, or cannot be written, is no reason to stop."""

    def __init__(self, directory: Path | None) -> None:
        """None: nothing is kept."""
        self._file = None if directory is None else directory / FILE

    def local(self, key: str) -> LocalMetrics | None:
        found = self._read().get(key, {}).get("local")
        return None if found is None else _made(LocalMetrics, found)

    def remotes(self, key: str, nodes: tuple[str, ...]) -> dict[str, RemoteMetrics]:
        found = self._read().get(key, {}).get("remote", {}).get(" ".join(nodes), {})
        made = {name: _made(RemoteMetrics, one) for name, one in found.items()}
        return {name: one for name, one in made.items() if one is not None}

    def save(self, key: str, local: LocalMetrics, nodes: tuple[str, ...], remotes: dict[str, RemoteMetrics]) -> None:
        if self._file is None:
            return
        entries = self._read()
        remote = entries.pop(key, {}).get("remote", {})
        remote[" ".join(nodes)] = {name: asdict(one) for name, one in remotes.items()}
        entries[key] = {"local": asdict(local), "remote": remote}
        while len(entries) > _MOST_ENTRIES:
            del entries[next(iter(entries))]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._file.parent, delete=False) as file:
                json.dump(entries, file)
            os.replace(file.name, self._file)
        except OSError:
            pass  # no room, or not ours to write: it will be measured again

    def _read(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        try:
            entries = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}


def _made(kind: Any, fields: Any) -> Any:
    try:
        return kind(**fields)
    except TypeError:
        return None
