"""minato beside its neighbours: what `loader.stats()` says, as scalars for TensorBoard, Lightning and plain loops.

Trainers need nothing from here to use the loader: it is torch's, with another class behind it.
"""

from .scalars import StatsLogger, scalars

__all__ = ["StatsLogger", "scalars"]
