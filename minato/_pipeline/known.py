"""What is known of names and libraries, when code is looked at for randomness."""

from __future__ import annotations

import sys
from typing import Any

from .._workers.walk import package_of

# fmt: off
RANDOM_NAMES = frozenset({
    # generators and what is drawn from them
    "random", "rand", "randn", "randint", "randrange", "randperm", "rand_like", "randn_like", "randint_like",
    "random_sample", "ranf", "random_integers", "standard_normal", "gauss", "normalvariate", "lognormvariate",
    "betavariate", "expovariate", "gammavariate", "triangular", "uniform", "vonmisesvariate", "paretovariate",
    "weibullvariate", "getrandbits", "randbytes", "choice", "choices", "shuffle", "permutation", "permuted",
    "default_rng", "RandomState", "Generator", "SystemRandom", "Random", "bernoulli", "multinomial", "poisson",
    "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_",
    "dropout", "dropout_", "alpha_dropout", "feature_dropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
    "rrelu", "gumbel_softmax", "fractional_max_pool2d", "rvs", "initial_seed", "manual_seed", "seed", "get_rng_state",
    "set_rng_state", "getstate", "setstate", "bit_generator", "rng", "random_state", "SeedSequence", "MT19937",
    "PCG64", "Philox", "SFC64", "randomize", "R", "py_random", "setRNGSeed", "randu",
    # the system's
    "urandom", "getrandom", "secrets", "token_bytes", "token_hex", "token_urlsafe", "randbelow", "uuid", "uuid1",
    "uuid4", "SSL_rand", "RAND_bytes",
    # the time, the process, the worker
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time",
    "now", "utcnow", "today", "clock_gettime", "getpid", "gettid", "get_ident", "get_native_id", "current_process",
    "get_worker_info", "worker_info", "getloadavg", "get_rank", "current_thread", "id", "hash",
})
"""A name of which one use is enough: what it stands for gives another value each time, or in each process."""

ELUSIVE_NAMES = frozenset({
    "eval", "exec", "compile", "__import__", "import_module", "getattr", "globals", "locals", "vars", "attrgetter",
    "methodcaller", "ctypes", "CDLL", "cffi", "dlopen", "subprocess", "Popen", "system", "socket", "urlopen", "input",
    "mp", "multiprocessing", "next", "send", "__getattribute__", "environ", "getenv", "loads", "__subclasses__",
})
"""A name through which anything may be reached, so that looking further tells nothing."""

RANDOM_WORDS = ("/dev/urandom", "/dev/random", "/dev/hwrng", "/proc/")

_STANDARD = frozenset(sys.stdlib_module_names)
_SHADY_STANDARD = frozenset({
    "random", "secrets", "uuid", "time", "ctypes", "subprocess", "socket", "multiprocessing", "threading", "asyncio",
    "importlib", "datetime", "select", "ssl", "tempfile", "_random", "queue", "_queue",
})
_TRUSTED = frozenset({
    "numpy", "torch", "PIL", "cv2", "scipy", "pandas", "pyarrow", "skimage", "imageio", "h5py", "zarr", "lmdb",
    "nibabel", "tifffile", "simplejpeg", "soundfile", "msgpack", "orjson", "lz4", "zstandard", "blosc2", "numcodecs",
    "builtins",
})
"""Libraries whose functions give the same result for the same input, but for those named above; not looked into."""
# fmt: on


def is_trusted(package: str) -> bool:
    """Whether functions of a package are deterministic unless their names say otherwise."""
    return package in _TRUSTED or (package in _STANDARD and package not in _SHADY_STANDARD)


def is_shady(package: str) -> bool:
    """Whether a module of the standard library is about chance, time, or others."""
    return package in _SHADY_STANDARD


def randomness_of_object(value: Any) -> str | None:
    """Why an object of a known library, or a generator, is random; None: nothing is known against it."""
    kind = type(value)
    for base in kind.__mro__:
        package, name = package_of(base), base.__name__
        if (package, name) in _GENERATORS:
            return f"it holds a generator of random numbers ({base.__module__}.{name})"
        if package == "monai" and name in ("Randomizable", "RandomizableTransform", "RandomizableTrait"):
            return "MONAI says that it is randomizable"
        if package == "torchvision" and (name.startswith("Random") or name in _TORCHVISION):
            return f"torchvision's {name} is random"
        if package == "albumentations" and name in ("BasicTransform", "BaseCompose"):
            return _albumentations(value)
        if package == "torch" and "Dropout" in name:
            return f"torch's {name} is random"
        if package == "kornia" and name.startswith("Random"):
            return f"kornia's {name} is random"
    return None


_GENERATORS = {
    ("random", "Random"),
    ("_random", "Random"),
    ("numpy", "Generator"),
    ("numpy", "RandomState"),
    ("numpy", "BitGenerator"),
    ("numpy", "SeedSequence"),
    ("torch", "Generator"),
}
_TORCHVISION = frozenset(
    {"AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix", "ColorJitter", "ElasticTransform"}
)


def _albumentations(value: Any) -> str | None:
    probability = getattr(value, "p", 1.0)
    if probability < 1:
        return f"albumentations applies it with probability {probability}"
    if hasattr(value, "transforms") and type(value).__name__ not in ("Compose", "ReplayCompose", "Sequential"):
        return f"albumentations' {type(value).__name__} chooses among its transforms"
    for kind in type(value).__mro__:
        for name in ("get_params", "get_params_dependent_on_data"):
            function = vars(kind).get(name)
            used = set(getattr(getattr(function, "__code__", None), "co_names", ()))
            if used & {"py_random", "random_generator"}:
                return f"albumentations draws its parameters ({kind.__name__}.{name})"
    return None
