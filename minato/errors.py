"""Public names of the exceptions minato raises; see `minato._errors` for the tree."""

from ._errors import (
    DatasetStopIteration,
    InternalError,
    LoaderClosed,
    MinatoError,
    WorkerDied,
    WorkerTraceback,
)

__all__ = [
    "DatasetStopIteration",
    "InternalError",
    "LoaderClosed",
    "MinatoError",
    "WorkerDied",
    "WorkerTraceback",
]

for _name in __all__:
    globals()[_name].__module__ = "minato.errors"
del _name
