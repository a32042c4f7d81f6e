"""What forked workers would share with this process to their harm, told in one warning before they are forked.

Only what puts a worker at risk is named: open files, archives, connections and the like that the dataset, the
`collate_fn` or the `worker_init_fn` refer to; locks that are held; threads that stand in the middle of an import or in
code that uses a lock; CUDA objects the dataset refers to; Ray. That other threads are alive, or CUDA is in use, is not
by itself a reason to warn: both are so in most training scripts, and forked workers that leave them alone come to no
harm. Threads that wait, such as those of progress bars and loggers, are of no interest.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from .._errors import ForkHazardWarning
from .handles import CLIENTS, RiskJudge, cuda_risk, is_held
from .program import Program
from .walk import Found, package_of, search, type_name

_MOST_NAMED = 8
_MOST_FRAMES = 64
_IMPORT = "<frozen importlib._bootstrap>"
_LIBRARIES = ("<frozen ", sysconfig.get_paths()["stdlib"] + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def warn_of_fork_hazards(program: Program, stacklevel: int) -> None:
    """One `ForkHazardWarning` that names everything found; none if there is nothing."""
    found = [*_in_program(program), *_in_threads(), *_ray()]
    if not found:
        return
    lines = found[:_MOST_NAMED] + ([f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else [])
    threads = [t.name for t in threading.enumerate() if t is not threading.current_thread()]
    also = f" Threads of this process that workers do not have: {', '.join(threads)}." if threads else ""
    warnings.warn(
        "workers are about to be forked from this process, and would share with it:\n"
        + "".join(f"  - {line}\n" for line in lines)
        + "Open or make such things in the worker, on first use or in worker_init_fn; or start workers from a clean "
        "process with multiprocessing_context='forkserver'. If forking is safe here, ignore "
        f"minato.errors.ForkHazardWarning.{also}",
        ForkHazardWarning,
        stacklevel=stacklevel + 1,
    )


def _in_program(program: Program) -> Iterator[str]:
    """Objects at risk that the user's objects refer to, each by its path."""
    risk_of = RiskJudge()
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    judge = (lambda value: risk_of(value) or cuda_risk(value)) if cuda else risk_of
    told: set[int] = set()
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        for found, risk in search(getattr(program, name), name, judge):
            owner = _client(found)
            if id(owner.value) not in told:
                told.add(id(owner.value))
                inside = "" if owner is found else f": its {type_name(found.value)}"
                yield f"{owner.path} ({type_name(owner.value)}){inside} {risk}"


def _client(found: Found) -> Found:
    """The client object that keeps this connection, if it is one that is known; else the object itself."""
    owner, above = found, found.via
    while above is not None:
        if package_of(type(above.value)) in CLIENTS:
            owner = above
        above = above.via
    return owner


def _in_threads() -> Iterator[str]:
    """Threads that a fork catches at a bad moment."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.ident is None:
            continue
        what = _bad_moment(frames.get(thread.ident))
        if what is not None:
            yield f"thread {thread.name!r} {what}"


def _bad_moment(frame: FrameType | None) -> str | None:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_filename == _IMPORT:
            return "is importing a module: a worker that imports the same one waits for ever"
        if _may_hold_lock(code) and not _is_library(code.co_filename):
            for name, value in _lock_candidates(frame):
                if is_held(value):
                    at = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}, {code.co_name}"
                    return f"({at}) uses {name}, which is held: a worker that needs this lock waits for ever"
        frame = frame.f_back
    return None


def _may_hold_lock(code: CodeType) -> bool:
    """Whether there is a `with`, a `try` or a call of `acquire` in it. Others are left alone: before Python 3.13,
    looking at a running function's variables keeps their values alive until it returns."""
    return bool(code.co_exceptiontable) or "acquire" in code.co_names


def _lock_candidates(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """What a function may have locked: its variables, the globals it names, and the attributes of its object."""
    variables = dict(frame.f_locals)
    yield from variables.items()
    for name in frame.f_code.co_names:
        if name in frame.f_globals:
            yield name, frame.f_globals[name]
    first = frame.f_code.co_varnames[:1]
    own = getattr(variables.get(first[0]), "__dict__", None) if first else None
    if not isinstance(own, dict):
        return
    for name in frame.f_code.co_names:
        if name in own:
            yield f"{first[0]}.{name}", own[name]


def _is_library(filename: str) -> bool:
    return filename.startswith(_LIBRARIES) or any(part in filename for part in _INSTALLED)


def _ray() -> Iterator[str]:
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    if callable(is_initialized) and is_initialized():
        yield "Ray is connected: its threads do not exist in workers, where calls to Ray hang"
