"""Public names of what minato raises and warns of, and the record of a failed sample; see `minato._errors`."""

from ._errors import (
    CopyOnWriteWarning,
    DatasetStopIteration,
    ForkHazardWarning,
    InternalError,
    LoaderClosed,
    MinatoError,
    RepeatedStreamWarning,
    SampleError,
    SampleTimeout,
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
    "RepeatedStreamWarning",
    "SampleError",
    "SampleTimeout",
    "WorkerDied",
    "WorkerTraceback",
]

for _name in __all__:
    globals()[_name].__module__ = "minato.errors"
del _name
