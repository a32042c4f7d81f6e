"""Which recorder writes for whom: one for each directory in the main process, one in each worker process."""

from __future__ import annotations

import os
import secrets
import sys
import time
from dataclasses import replace
from multiprocessing.util import Finalize

from ._instrument import TraceOptions, TraceSpec, activate
from ._recording import Recorder

_recorders: dict[str, Recorder] = {}
_pools: dict[str, int] = {}
_owner: int | None = None


def open_pool(options: TraceOptions, rank: int) -> tuple[Recorder, TraceSpec]:
    """The main process's recorder for a directory, held, and what a new pool of workers is told."""
    global _owner
    if _owner != os.getpid():  # a forked copy has files of its own
        _recorders.clear()
        _pools.clear()
        _owner = os.getpid()
        Finalize(None, _flush_all, exitpriority=50)  # after the engines were closed
    directory = os.path.abspath(os.fspath(options.directory))
    if directory not in _recorders:
        _recorders[directory] = Recorder(_new_session(options, directory, rank), "main")
    recorder = _recorders[directory]
    pool = _pools[directory] = _pools.get(directory, -1) + 1
    recorder.hold()
    activate(recorder)
    spec = replace(recorder.spec, pool=pool, granularity=options.granularity)
    return recorder, replace(spec, segment_bytes=options.segment_bytes, max_bytes=options.max_bytes)


def open_worker(spec: TraceSpec, worker: int) -> Recorder:
    """The recorder of a worker process, which holds its file until it ends."""
    recorder = Recorder(spec, "worker", worker)
    recorder.pending = []
    recorder.hold()
    activate(recorder)
    return recorder


def _new_session(options: TraceOptions, directory: str, rank: int) -> TraceSpec:
    wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    began = time.strftime("%Y%m%dT%H%M%S", time.gmtime(wall_ns / 1e9))
    session = f"{began}.{wall_ns // 1_000_000 % 1000:03d}-{os.getpid()}-{secrets.token_hex(2)}"
    return TraceSpec(
        directory=directory,
        session=session,
        rank=rank,
        wall_offset_ns=wall_ns - monotonic_ns,
        granularity=options.granularity,
        segment_bytes=options.segment_bytes,
        max_bytes=options.max_bytes,
    )


def _flush_all() -> None:
    if _owner == os.getpid() and not sys.is_finalizing():
        for recorder in _recorders.values():
            recorder.flush()
