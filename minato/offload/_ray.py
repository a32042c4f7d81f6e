"""`minato.offload.Ray`: the arguments of offloading, checked."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ._finding import Found, find_cluster
from ._session import Session
from ._splitting import can_transform
from ._store import default_directory

PLACEMENTS = ("auto", "transform", "sample", "batch", "local")
MOST_REMOTE = 32  # actors, unless the user says otherwise


@dataclass(frozen=True)
class Ray:
    """Other machines' CPUs for part of a loader's work, by way of a Ray cluster: `DataLoader(…, offload=Ray())`.

    Nothing is started before it is known that the consumer waits for batches (unless `ratio` is a number). If it does,
    a process of its own joins the cluster, actors are started, each placement is measured on real batches, and the
    best is used, as far as needed. Whatever fails remotely is made here.

    Args:
        address: "auto", "host:port" or "ray://host:port" of a running cluster. None (default): the one that this
            program is connected to, or that of RAY_ADDRESS, or of `ray start` on this machine; if there is none, one is
            started, which listens on 127.0.0.1 only and is ended with the loader. "local": always start one.
        placement: what is done elsewhere: "transform" (samples are read here), "sample" (read and transformed), "batch"
            (whole batches), "local" (nothing), or "auto" (default): measure, and take the best.
        ratio: share of the samples that goes to the cluster, 0 to 1; "auto" (default): as much as is needed; "greedy":
            both sides take what they can. A number is kept to exactly, and without looking for a stall.
        max_remote: most actors, each of which has a CPU; None: 32.
        prefer: with ratio="auto", "local" (default) uses the cluster no more than needed, "remote" as much as it gives.
        min_speedup: how many times faster the consumer must be than the loader for offloading to begin.
        max_inflight_bytes: bytes of samples under way from actors. max_bandwidth: bytes per second, in
            either direction; None: no limit.
        consumer_rate: batches per second that your loop could take, e.g. from `minato.offload.measure_step`; None: told
            from the time between two batches.
        profile_steps: batches per measurement. recheck_every: batches between two looks at whether it is still right.
        call_timeout_s: seconds after which an actor that does not answer is given up; more if calls take that long.
        model_key: a name for what the batches are used for. Metrics of an earlier run are taken if name and pipeline
            are the same.
        store: whether to keep metrics, in the user's cache directory or in a directory given here.
        runtime_env: of the actors, as Ray takes it.
        resources: of each actor, as Ray takes them.
        namespace: of the job.
        use_this_node: whether actors may run on this machine; None: only if the cluster has no other.
        local_cpus: CPUs of a cluster that is started here; None: all.
    """

    address: Any = None
    placement: str = "auto"
    ratio: Any = "auto"
    max_remote: int | None = None
    prefer: str = "local"
    min_speedup: float = 1.1
    max_inflight_bytes: int = 256 << 20
    max_bandwidth: float | None = None
    consumer_rate: float | None = None
    profile_steps: int = 20
    recheck_every: int = 50
    call_timeout_s: float = 60.0
    model_key: str = ""
    store: bool | str | Path = True
    runtime_env: dict[str, Any] | None = None
    resources: dict[str, float] | None = None
    namespace: str = "minato"
    use_this_node: bool | None = None
    local_cpus: int | None = None

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ImportError("minato.offload.Ray needs Ray: pip install 'minato[offload]'")
        if self.address is not None and not (isinstance(self.address, str) and self.address):
            raise TypeError(f"address must be None, 'auto', 'local', 'host:port' or 'ray://…', got {self.address!r}")
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement must be one of {', '.join(map(repr, PLACEMENTS))}, got {self.placement!r}")
        if self.prefer not in ("local", "remote"):
            raise ValueError(f"prefer must be 'local' or 'remote', got {self.prefer!r}")
        self._check_ratio()
        for name in ("max_inflight_bytes", "profile_steps", "recheck_every"):
            _check_count(name, getattr(self, name))
        for name in ("max_remote", "local_cpus"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        if not _is_number(self.min_speedup) or not 1 <= self.min_speedup < float("inf"):
            raise ValueError(f"min_speedup must be a number of at least 1, got {self.min_speedup!r}")
        for name in ("call_timeout_s", "max_bandwidth", "consumer_rate"):
            value = getattr(self, name)
            if value is None and name != "call_timeout_s":
                continue
            if not _is_number(value) or not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a number above 0, got {value!r}")
        for name in ("model_key", "namespace"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, got {getattr(self, name)!r}")
        for name in ("runtime_env", "resources"):
            if not isinstance(getattr(self, name), (dict, type(None))):
                raise TypeError(f"{name} must be a dictionary or None, got {getattr(self, name)!r}")

    def _check_ratio(self) -> None:
        ratio = self.ratio
        if isinstance(ratio, str):
            if ratio not in ("auto", "greedy"):
                raise ValueError(f"ratio must be a number from 0 to 1, 'auto' or 'greedy', got {ratio!r}")
        elif not _is_number(ratio) or not 0 <= ratio <= 1:
            raise ValueError(f"ratio must be a number from 0 to 1, 'auto' or 'greedy', got {ratio!r}")

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Ray:
        """From a YAML (or JSON) file with the arguments above, all of them optional."""
        import yaml  # type: ignore[import-untyped]  # comes with Ray

        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        given = {} if given is None else given
        if not isinstance(given, dict):
            raise TypeError(f"{path} must hold names and values, such as 'placement: batch', got {given!r}")
        known = [field.name for field in fields(cls)]
        unknown = [str(name) for name in given if name not in known]
        if unknown:
            raise ValueError(f"{path}: {', '.join(unknown)} not known; there are {', '.join(known)}")
        return cls(**given)

    # ---- for the loader --------------------------------------------------------------------------------------------

    @property
    def most_remote(self) -> int:
        """Actors there may be."""
        return MOST_REMOTE if self.max_remote is None else self.max_remote

    @property
    def keeps_batches(self) -> bool:
        """Whether only whole batches may overtake."""
        return self.placement == "batch"

    def check(self, dataset: Any, fetcher: str) -> None:
        """Raise ValueError if what is asked for cannot be done with a dataset and a way to fetch from it."""
        if self.placement == "transform" and fetcher == "asyncio":
            raise ValueError(
                "placement='transform' divides `__getitem__`, and fetcher='asyncio' awaits `__getitem_async__`; use "
                "placement='sample'"
            )
        if self.placement == "transform" and not can_transform(dataset):
            raise ValueError(
                f"placement='transform' needs a dataset whose transforms can be told from its reading (a `transform` "
                f"attribute that `__getitem__` calls, or minato.StagedDataset), got {type(dataset).__name__}; use "
                f"placement='sample'"
            )

    def open(self) -> Session:
        """For one loader."""
        return Session(self)

    def store_path(self) -> Path | None:
        """Where metrics are kept; None: nowhere."""
        if isinstance(self.store, bool):
            return default_directory() if self.store else None
        return Path(self.store)

    def find_cluster(self) -> Found:
        """Where the agent is to go."""
        ray = sys.modules.get("ray")
        is_connected = self.address is None and ray is not None and ray.is_initialized()
        connected = ray.get_runtime_context().gcs_address if is_connected and ray is not None else None
        return find_cluster(self.address, connected, os.environ)


def measure_step(step: Callable[[Any], Any], batch: Any, steps: int = 20, skip: int = 3) -> float:
    """Batches per second that a training step takes, by replaying one batch: for `Ray(consumer_rate=…)`.

    `step` is called with the batch, `skip` times before and `steps` times while the clock runs. What it trains is
    trained by that: give it a copy. On an accelerator it has to wait for its result.
    """
    for _ in range(skip):
        step(batch)
    began = time.perf_counter()
    for _ in range(steps):
        step(batch)
    return steps / max(time.perf_counter() - began, 1e-9)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
