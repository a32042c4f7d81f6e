"""Public names of the exceptions and warnings of minato; see `minato._errors` for the tree."""

from ._errors import (
    CopyOnWriteWarning,
    DatasetStopIteration,
    ForkHazardWarning,
    InternalError,
    LoaderClosed,
    MinatoError,
    WorkerDied,
    WorkerTraceback,
)

__all__ = [
    "CopyOnWriteWarning",
    "DatasetStopIteration",
    "ForkHazardWarning",
    "InternalError",
    "LoaderClosed",
    "MinatoError",
    "WorkerDied",
    "WorkerTraceback",
]

for _name in __all__:
    globals()[_name].__module__ = "minato.errors"
del _name
