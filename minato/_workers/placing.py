"""Which core a worker runs on, and how much it may press for it. Linux."""

from __future__ import annotations

import os
from collections.abc import Collection

from .._plan import WorkerPlan


def take_place(worker: int, plan: WorkerPlan) -> None:
    """Keep this process on one core and lower its priority, where the plan says so. Threads that it starts follow."""
    if plan.spread:
        rank = os.environ.get("LOCAL_RANK", "0")
        first = plan.num_workers * int(rank) if rank.isdecimal() else 0
        os.sched_setaffinity(0, {core_of(first + worker, os.sched_getaffinity(0))})
    if plan.nice:
        os.nice(plan.nice)


def core_of(place: int, allowed: Collection[int]) -> int:
    """The core of the worker that is number `place` among all on the node: one after the other, in turns."""
    return sorted(allowed)[place % len(allowed)]
