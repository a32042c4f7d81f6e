"""`minato.optimize`: a loader with the same content, and the arguments that were found to be fastest.

    loader = minato.optimize(minato.DataLoader(dataset, batch_size=64))

    @minato.optimize
    def make_loader(train):
        return minato.DataLoader(...)

The model proposes some settings; each is tried for a moment at steady state (a cache is filled first), and the fastest
is kept if it is faster than what was there. What is decided is stored, and used again by the next start with the same
pipeline, host and versions. Arguments that the user set are not touched, unless `allow` names them.

Environment: MINATO_OPTIMIZE=0 leaves loaders as they are; MINATO_FORGET=1 measures anew; MINATO_NO_CACHE=1 proposes no
cache; MINATO_MAX_SECONDS is the default of `max_seconds`; MINATO_CACHE_DIR is where decisions are kept.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from .._dataloader import DataLoader
from .._engine.cores import allowed_cores
from .._pipeline.looking import Look, choose_indices
from .advising import WORTH_A_CHANGE, advise
from .decisions import key_of, load, save
from .measuring import Seen, measure
from .rates import Rate, measure_rate
from .rebuilding import rebuilt, typical_batch
from .records import Advice

MAX_SECONDS = 20.0
LEAST_TRIAL_S = 0.3  # of a setting
GAIN = 1.05  # times as fast as what was there; less is noise
TUNED = ("num_workers", "prefetch_factor", "cache", "fetcher", "num_fetch_workers", "pin_memory", "persistent_workers")
_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(DataLoader.__init__).parameters.items()}


def optimize(
    target: Any = None,
    *,
    allow: Iterable[str] = (),
    pick_best: Mapping[str, Iterable[Any]] | None = None,
    when: Callable[[dict[str, Any]], bool] | None = None,
    max_seconds: float | None = None,
) -> Any:
    """A faster loader with the same content; or a decorator for a function that returns a loader.

    Args:
        target: a loader, minato's or torch's, or a function that returns one, or that returns a dataset and a dict of a
            loader's arguments: then the arguments are what is changed.
        allow: arguments that may be changed although they were set: "num_workers", "prefetch_factor", "cache", ...
        pick_best: for functions: values of their arguments to choose from; each combination is optimised and measured,
            and the fastest is returned. Their batches have to be of the same structure.
        when: for functions: given the arguments of a call by name, whether to optimise.
        max_seconds: half of it is for measuring, as with `minato.diagnose`, the rest for trying settings. No other
            setting is tried after that time, but for the one that was proposed. It is no deadline: the setting at hand
            is still started, its cache filled, and run for 0.3 s at least; starts of processes come on top. None: 20,
            or MINATO_MAX_SECONDS.
    """
    allowed = frozenset(allow)
    if unknown := allowed - set(TUNED):
        raise ValueError(f"allow may name {', '.join(TUNED)}, got {', '.join(sorted(unknown))}")
    seconds = _seconds(max_seconds)
    if target is None:
        return functools.partial(optimize, allow=allowed, pick_best=pick_best, when=when, max_seconds=seconds)
    if isinstance(target, torch.utils.data.DataLoader):
        if pick_best is not None or when is not None:
            raise ValueError("pick_best and when are for functions that return a loader; got a loader")
        return _optimized(target, allowed, seconds)[0]
    if not callable(target):
        raise TypeError(f"a DataLoader is needed, or a function that returns one, got {target!r}")
    return _decorated(target, allowed, pick_best, when, seconds)


optimize.__module__ = "minato.diagnose.optimising"


def _decorated(
    function: Callable[..., Any],
    allowed: frozenset[str],
    pick_best: Mapping[str, Iterable[Any]] | None,
    when: Callable[[dict[str, Any]], bool] | None,
    seconds: float,
) -> Callable[..., Any]:
    variants = list(_combinations(pick_best or {}))

    @functools.wraps(function)
    def make(*args: Any, **keywords: Any) -> Any:
        if when is not None and not when(_given(function, args, keywords)):
            return function(*args, **keywords)
        if len(variants) == 1:
            made = function(*args, **keywords)
            loader, _, changes = _optimized(_loader_of(made, function), allowed, seconds)
            return _as_made(made, loader, changes)
        return _fastest([{**keywords, **variant} for variant in variants], function, args, allowed, seconds)

    return make


def _given(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults among them."""
    bound = inspect.signature(function).bind(*args, **keywords)
    bound.apply_defaults()
    return dict(bound.arguments)


def _combinations(values: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    for combination in itertools.product(*(list(options) for options in values.values())):
        yield dict(zip(values, combination, strict=True))


def _fastest(
    variants: list[dict[str, Any]],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    allowed: frozenset[str],
    seconds: float,
) -> Any:
    """Each variant optimised, and the fastest of them, by samples per second at steady state."""
    if not is_on():
        return function(*args, **variants[0])
    best: tuple[float, DataLoader[Any], Any] | None = None
    structure: Any = None
    for variant in variants:
        made = function(*args, **variant)
        loader, rate, changes = _optimized(_loader_of(made, function), allowed, seconds / len(variants))
        found = _structure(next(iter(loader.fake())))
        structure = found if structure is None else structure
        if found != structure:
            raise ValueError(
                f"pick_best chooses among loaders of the same batches; {variant} gives {found}, the first "
                f"gave {structure}"
            )
        samples_s = rate * typical_batch(loader)
        if best is None or samples_s > best[0]:
            if best is not None:
                best[1].close()
            best = samples_s, loader, _as_made(made, loader, changes)
        else:
            loader.close()
    assert best is not None
    return best[2]


def _loader_of(made: Any, function: Callable[..., Any]) -> Any:
    """The loader that a function has made, or that what it has made stands for."""
    if isinstance(made, torch.utils.data.DataLoader):
        return made
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        return DataLoader(made[0], **made[1])
    name = getattr(function, "__qualname__", repr(function))
    raise TypeError(f"{name} should return a DataLoader, or a dataset and a dict of a loader's arguments; got {made!r}")


def _as_made(made: Any, loader: DataLoader[Any], changes: dict[str, Any]) -> Any:
    """What to return in place of what a function has made: of the same kind."""
    if isinstance(made, torch.utils.data.DataLoader):
        return loader
    loader.close()
    return made[0], {**made[1], **changes}


def _structure(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape[1:])
    if isinstance(value, Mapping):
        return {key: _structure(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_structure(part) for part in value]
    return type(value).__name__


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether optimising is wanted."""
    return environment.get("MINATO_OPTIMIZE", "1") != "0"


def _seconds(given: float | None) -> float:
    text = os.environ.get("MINATO_MAX_SECONDS", "")
    try:
        seconds = given if given is not None else float(text) if text else MAX_SECONDS
    except ValueError:
        raise ValueError(f"the environment variable MINATO_MAX_SECONDS must be a number, got {text!r}") from None
    if not seconds > 0:
        raise ValueError(f"max_seconds must be positive, got {seconds}")
    return seconds


def _optimized(loader: Any, allowed: frozenset[str], seconds: float) -> tuple[DataLoader[Any], float, dict[str, Any]]:
    """The loader with what was decided, its rate in batches per second, and what was changed."""
    if isinstance(loader.dataset, IterableDataset) or not is_on():
        return _as_ours(loader), math.nan, {}
    options = {"allow": sorted(allowed), "no_cache": os.environ.get("MINATO_NO_CACHE", "0") == "1"}
    key = key_of(loader, options)
    stored = None if os.environ.get("MINATO_FORGET", "0") == "1" else load(key)
    if stored is None:
        changes, rate = _decide(loader, allowed, seconds)
        save(key, {"changes": changes, "rate": rate})
    else:
        changes, rate = stored["changes"], float(stored.get("rate") or math.nan)
    return (rebuilt(loader, **changes) if changes else _as_ours(loader)), rate, changes


def _as_ours(loader: Any) -> DataLoader[Any]:
    return loader if isinstance(loader, DataLoader) else rebuilt(loader)


def _decide(loader: Any, allowed: frozenset[str], seconds: float) -> tuple[dict[str, Any], float]:
    """The best of some settings, by trying them, as many as there is time for; the one that was proposed first."""
    deadline = time.monotonic() + seconds
    seen = measure(loader, seconds / 2)
    free = {name for name in TUNED if _is_free(loader, name, allowed, seen)}
    one_at_a_time = getattr(loader, "fetcher", "sequential") == "sequential" or "fetcher" in free
    may_cache = "cache" in free and one_at_a_time and os.environ.get("MINATO_NO_CACHE", "0") != "1"
    advised = advise(loader, seen, may_cache)
    proposed: dict[str, Any] = {}
    for advice in advised:
        proposed |= advice.changes
    if "fetcher" in proposed and "fetcher" not in free:  # as many processes instead
        proposed["num_workers"] *= proposed["num_fetch_workers"]
    proposed = {name: value for name, value in proposed.items() if name in free}
    candidates = [one for one in _candidates(loader, proposed) if set(one) <= free]
    indices = choose_indices(loader.dataset, _enough(loader, seen.measurement.rate or 1.0, seconds / 8))
    epoch = 1 << 30 if loader.persistent_workers else max(1, len(loader))
    best: dict[str, Any] = {}
    rate = now = 0.0
    for number, changes in enumerate([{}, *candidates]):
        left_s = deadline - time.monotonic()
        if left_s <= 0 and number > 1:
            break
        each_s = max(LEAST_TRIAL_S, left_s / (len(candidates) + 1 - number))
        found = _steady(loader, indices, each_s, changes, seen.look).over(epoch)
        if number == 0:
            rate = now = found
        elif found > max(rate, now * GAIN):
            best, rate = changes, found
    _tell_of_more(loader, [one for one in advised if one.rate is not None], free, rate)
    return best, rate


def _tell_of_more(loader: Any, advised: Sequence[Advice], free: Collection[str], rate: float) -> None:
    """A word of what would be faster by far, and was left alone because it was set, or would change the content."""
    left = [name for one in advised for name in one.changes if name not in free]
    predicted = (advised[-1].rate or 0.0) if advised else 0.0
    if not left or predicted < WORTH_A_CHANGE * rate:
        return
    values = ", ".join(f"{name}={getattr(loader, name, _DEFAULTS[name])!r}" for name in left)
    warnings.warn(
        f"minato.optimize left {values} alone, as set or as what the content depends on: {predicted:,.1f} batches/s "
        f"instead of {rate:,.1f} are predicted with minato.optimize(..., allow={left!r})",
        stacklevel=5,
    )


def _is_free(loader: Any, name: str, allowed: frozenset[str], seen: Seen) -> bool:
    """Whether an argument may be changed: `allow` names it, or it was not set and the content stays the same."""
    if name in allowed:
        return True
    if name == "persistent_workers":  # later epochs would have other random numbers, as with torch
        return False
    if name in ("fetcher", "num_fetch_workers") and seen.look.deterministic < len(seen.look.stages):
        return False  # threads share the global generators, and whatever else a stage keeps
    return not _is_set(loader, name)


def _is_set(loader: Any, name: str) -> bool:
    """Whether the user chose a value: one that is not the default."""
    value = getattr(loader, name, _DEFAULTS[name])
    if name == "prefetch_factor":  # torch makes 2 of None where there are workers
        return value not in (None, 2)
    return bool(value != _DEFAULTS[name])


def _candidates(loader: Any, proposed: dict[str, Any]) -> list[dict[str, Any]]:
    """What was proposed; parts of it; and the neighbours of its number of workers, which decide by a hair. Past the
    number of cores only where the proposal is, for samples that wait."""
    workers = proposed.get("num_workers", loader.num_workers)
    base = {name: value for name, value in proposed.items() if name != "num_workers"}
    found = [proposed, base]
    more = workers + 1 if workers + 1 <= allowed_cores().cores or workers > allowed_cores().cores else workers
    for number in dict.fromkeys((workers, 0, 1, workers - 1, more)):
        if number >= 0:
            found.append({**base, "num_workers": number} if number != loader.num_workers else dict(base))
    if "cache" in base:
        found.append({name: value for name, value in proposed.items() if name != "cache"})
    unique = {repr(sorted(changes.items())): changes for changes in found if changes}
    return list(unique.values())


def _enough(loader: Any, rate: float, seconds: float) -> int:
    """So many samples that a cache of them is filled in the time there is."""
    return max(typical_batch(loader), min(len(loader.dataset), int(rate * typical_batch(loader) * seconds)))


def _steady(loader: Any, indices: list[int], seconds: float, changes: dict[str, Any], seen: Look) -> Rate:
    """The rate once a cache is filled: the same few samples over and over."""
    options = {name: value for name, value in changes.items() if name != "persistent_workers"}
    return measure_rate(loader, indices, seconds, known=seen, **options)
