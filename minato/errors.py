"""Public names of what minato raises, and the record of a failed sample; see `minato._errors` for the tree."""

from ._errors import (
    DatasetStopIteration,
    InternalError,
    LoaderClosed,
    MinatoError,
    SampleError,
    SampleTimeout,
    WorkerDied,
    WorkerTraceback,
)

__all__ = [
    "DatasetStopIteration",
    "InternalError",
    "LoaderClosed",
    "MinatoError",
    "SampleError",
    "SampleTimeout",
    "WorkerDied",
    "WorkerTraceback",
]

for _name in __all__:
    globals()[_name].__module__ = "minato.errors"
del _name
