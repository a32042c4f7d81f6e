"""What was decided before: a small JSON file per pipeline, host and versions, under the user's cache directory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import CellType, CodeType
from typing import Any

import torch

from .._engine.cores import allowed_cores
from .rebuilding import typical_batch

FOLDER_VARIABLE = "MINATO_CACHE_DIR"


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where decisions are kept: MINATO_CACHE_DIR, or minato's folder in the user's cache directory."""
    given = environment.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    try:
        from platformdirs import user_cache_dir
    except ImportError:
        return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minato"
    return Path(user_cache_dir("minato"))


def key_of(loader: Any, options: Mapping[str, Any]) -> str:
    """The pipeline (classes, code, lengths, the loader's arguments), the host (cores, memory) and versions, as a
    hash."""
    from .. import __version__

    pipeline = [_described(loader.dataset), len(loader.dataset), typical_batch(loader), _described(loader.collate_fn)]
    arguments = [loader.num_workers, loader.prefetch_factor, getattr(loader, "cache", None), sorted(options.items())]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    host = [platform.node(), platform.machine(), allowed_cores().cores, memory]
    versions = [__version__, torch.__version__, platform.python_version()]
    text = repr((pipeline, arguments, host, versions))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _described(value: Any, depth: int = 4) -> Any:
    """An object by its class, its code, and what it is made of; no addresses, no data."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)[:200]
    code = getattr(value, "__code__", None)
    if code is not None:
        held = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()] if depth else []
        given = [_described(part, depth - 1) for part in (*held, *(value.__defaults__ or ()))] if depth else []
        return [value.__qualname__, _digest(code), given]
    if isinstance(value, functools.partial) and depth:
        return ["partial", *(_described(part, depth - 1) for part in (value.func, value.args, value.keywords))]
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if depth == 0 or isinstance(value, (torch.Tensor, type)) or kind.__module__ == "numpy":
        return name
    if isinstance(value, (list, tuple)):
        return [name, len(value), [_described(part, depth - 1) for part in value[:32]]]
    if isinstance(value, dict):
        return [name, len(value)]
    run = getattr(kind, "__getitem__", None) or inspect.getattr_static(kind, "__call__", None)
    getitem = getattr(run, "__code__", None)
    own = "" if getitem is None else _digest(getitem)
    attributes = getattr(value, "__dict__", {})
    return [name, own, [(key, _described(part, depth - 1)) for key, part in sorted(attributes.items())]]


def _digest(code: CodeType) -> str:
    """Of what the code does: a constant in it may be all that makes a stage slow."""
    constants = [_digest(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return hashlib.blake2b(repr((code.co_code, code.co_names, constants)).encode(), digest_size=8).hexdigest()


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)  # a set has no order


def load(key: str) -> dict[str, Any] | None:
    """What was decided; None: nothing, or it cannot be read."""
    try:
        found = json.loads((folder() / f"{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("changes"), dict) else None


def save(key: str, decision: Mapping[str, Any]) -> None:
    """Keep a decision. A folder that cannot be written costs a second measurement, nothing else."""
    with contextlib.suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder(), suffix=".new", delete=False, encoding="utf-8") as file:
            json.dump(decision, file, indent=1, default=str)
        os.replace(file.name, folder() / f"{key}.json")
