"""How much memory batches in flight may take when the user does not say."""

from __future__ import annotations

from .._pipeline.room import available_bytes

SHARE = 0.25  # of available memory; the model, the optimiser and other loaders want theirs


def default_memory_budget() -> int:
    """Bytes: a share of what this machine, and the cgroup this process is in, have left."""
    return max(1, int(SHARE * available_bytes()))
