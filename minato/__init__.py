"""minato: a drop-in DataLoader for PyTorch that does not wait for slow samples.

Where things are, in the order a sample meets them:

    _dataloader.py   DataLoader: torch's signature; turns arguments into a plan and starts an engine
    _arguments.py    checks arguments; _planning.py decides the order mode and makes the frozen plan (_plan.py)
    _engine/         main process: posts the sampler's batches, awaits, delivers, recovers, closes
    _queues/         shared memory: arena, control block, board of tickets, layouts, leases, ledger
    _workers/        worker processes: pull tickets, fetch, write rows, collate
    _fetchers/       how samples come out of a dataset
    _scheduler/      decisions as pure code
    _device/         page-locked memory, copies to an accelerator
    _sample_random.py  random generators that belong to a sample
    _pipeline/       stages of a dataset: random or not, how large; the cache of their results
    _staged.py       StagedDataset: a dataset whose stages are visible
    _errors.py       the exception tree, and how exceptions travel
    _instrument.py   events of a trace, and who records them (_recording.py, _trace_sessions.py)
    trace/           reads traces: tables, timelines, verdict
    _patching.py     minato.patch(): minato in code that imports torch's loader
    _echo.py         minato.echo(): each batch several times
    bench/           what `minato bench` runs
    integrations/    statistics as scalars for TensorBoard and Lightning
    compat.py        what to know about a loader beside DistributedSampler and under torchrun
    diagnose/        what bounds a loader, and a better one: minato.diagnose, minato.optimize
    storage/         reading from S3: dataset, file, byte caches
    cli/             the command `minato`

docs/journey-of-a-sample.md follows one sample through all of it. Nothing runs on import.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from torch.utils.data import get_worker_info as get_worker_info

from . import errors as errors
from ._dataloader import DataLoader as DataLoader
from ._echo import echo as echo
from ._instrument import count_bytes as count_bytes
from ._instrument import mark as mark
from ._instrument import traced as traced
from ._patching import patch as patch
from ._records import LoaderStats as LoaderStats
from ._sample_random import SampleRng as SampleRng
from ._sample_random import get_sample_rng as get_sample_rng
from ._sample_random import seeded_sample as seeded_sample
from ._scheduler.policy import PaperPolicy as PaperPolicy
from ._staged import StagedDataset as StagedDataset

__version__ = "0.1.0"
__all__ = [
    "DataLoader",
    "LoaderStats",
    "PaperPolicy",
    "S3Dataset",
    "S3File",
    "SampleRng",
    "StagedDataset",
    "__version__",
    "cached_bytes",
    "count_bytes",
    "deterministic",
    "diagnose",
    "echo",
    "errors",
    "get_sample_rng",
    "get_worker_info",
    "mark",
    "optimize",
    "patch",
    "seeded_sample",
    "stochastic",
    "traced",
]

_PUBLIC = (
    *(DataLoader, LoaderStats, PaperPolicy, SampleRng, StagedDataset),
    *(count_bytes, echo, get_sample_rng, mark, patch, seeded_sample, traced),
)
for _public in _PUBLIC:
    _public.__module__ = "minato"
del _public

# Public names of packages that `import minato` does not load; a name is looked up there when it is first used.
_LATER: dict[str, str] = {
    "S3Dataset": ".storage",
    "S3File": ".storage",
    "cached_bytes": ".storage",
    "deterministic": "._pipeline.marks",
    "diagnose": ".diagnose",
    "optimize": ".diagnose.optimising",
    "stochastic": "._pipeline.marks",
}


_PACKAGES = frozenset({"compat", "integrations", "offload", "testing", "trace"})
"""Public packages that are loaded when they are first named."""

if TYPE_CHECKING:  # the same names for type checkers, which run no `__getattr__`
    from ._pipeline.marks import deterministic as deterministic
    from ._pipeline.marks import stochastic as stochastic
    from .diagnose import run as diagnose
    from .diagnose.optimising import optimize as optimize
    from .storage import S3Dataset as S3Dataset
    from .storage import S3File as S3File
    from .storage import cached_bytes as cached_bytes
else:

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return _import_module(f".{name}", __name__)
        if name not in _LATER:
            raise AttributeError(f"module 'minato' has no attribute {name!r}")
        value = getattr(_import_module(_LATER[name], __name__), name)
        globals()[name] = value
        return value


del TYPE_CHECKING


# Methods of a loader whose code is in packages that `import minato` does not load, and that inner modules do not know.
_METHODS: dict[str, str] = {"loader_html": ".trace.screen", "watch": ".trace.screen"}


def _method(name: str) -> _Any:
    return getattr(_import_module(_METHODS[name], __name__), name)
