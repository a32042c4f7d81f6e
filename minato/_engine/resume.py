"""`state_dict()` and `load_state_dict()`: how far a loader has come, as a small plain dict, and going on from there.

A state holds what was delivered of the epoch and how to have its order again (courses.py), the seeds its samples draw
from, and the random generators as they are now, from which following epochs draw. Batches in flight count as not
delivered. Nothing in it grows with the dataset.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from .._records import StreamState
from .._workers import plain
from .courses import Interrupted, Origin, begin_course, parts_of, resume_course, sources_of
from .feeds import Epoch
from .progress import MapProgress, StreamPlace, StreamProgress, Track
from .remainder import Delivered
from .sampling import is_cut

VERSION = 1

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the next `iter()` begins with."""

    begin: Callable[[], Epoch]
    """What is left of the epoch, or a new one. May move random generators."""
    settle: Callable[[], None]
    """Put the random generators where they were when the state was taken."""
    base_seed: int | None
    """None: a new epoch with nothing to go on from; its base seed is to be drawn."""
    number: int
    """Of the epoch, among those of the base seed."""
    pipe_seed: int | None
    is_new: bool
    """An epoch begins; False: one goes on."""
    workers: int | None
    """Workers that the rest of the epoch needs; None: any number."""
    batches: int
    """Delivered of the epoch by a stream."""


def next_of(track: Track, number: int, sampler: Any) -> Resumed:
    """The epoch after one of kept workers, for other workers: no seed is drawn for it, as there would be none."""
    return Resumed(
        begin=lambda: begin_course(sampler),
        settle=lambda: None,
        base_seed=track.base_seed,
        number=number,
        pipe_seed=None,
        is_new=True,
        workers=None,
        batches=0,
    )


# ---- taking a state -----------------------------------------------------------------------------------------------


def workers_for(resumed: Resumed | None, planned: int, stacklevel: int) -> int:
    """How many workers an epoch, or what is left of one, runs with, where `planned` are. Says so if it is another
    number."""
    if resumed is None or resumed.workers in (None, planned):
        return planned
    workers = resumed.workers or 0
    warnings.warn(
        f"this epoch of an iterable dataset was begun with num_workers={workers}, and its streams cannot be divided "
        f"anew: the rest of it runs with num_workers={workers}, following epochs with {planned}",
        stacklevel=stacklevel + 1,
    )
    return workers


def take_state(loader: Any, track: Track | None, keeps_workers: bool) -> State:
    """The state of a loader. `track`: the last epoch it began. `keeps_workers`: its workers live on to the next one."""
    state = {"version": VERSION, **_description(loader), "epoch": None, "next": None}
    sources = _each_once(_sources(loader))
    if track is not None and not track.finished:
        progress = track.progress()
        state["epoch"] = {
            "base_seed": track.base_seed,
            "number": track.epoch,
            "pipe_seed": track.pipe_seed,
            **(_of_map(progress) if isinstance(progress, MapProgress) else _of_streams(progress)),
        }
    elif track is not None and keeps_workers:
        progress = track.progress()
        state["next"] = {"base_seed": track.base_seed, "number": track.epoch + 1}
        if isinstance(progress, StreamProgress):
            state["next"] |= _of_streams(progress)
    state["generators"] = plain.states_to_plain(sources, plain.read_all(sources))
    return state


def _description(loader: Any) -> State:
    """What a loader must have in common with the one whose state it is given."""
    sampler = loader._index_sampler
    is_iterable = isinstance(loader.dataset, IterableDataset)
    batched_by = getattr(sampler, "batch_size", None)
    return {
        "kind": "iterable" if is_iterable else "map",
        "batch_size": loader.batch_size,
        "drop_last": bool(loader.drop_last),
        "length": len(loader.dataset) if not is_iterable and hasattr(loader.dataset, "__len__") else None,
        "sampler": None if is_iterable else [type(part).__name__ for part in parts_of(sampler).values()],
        "batch_sampler_size": batched_by if type(batched_by) is int and not is_iterable else None,
    }


def _sources(loader: Any) -> plain.Sources:
    """The random generators that following epochs draw from."""
    sources: dict[str, plain.Source] = {}
    if loader.generator is None:
        sources["torch"] = plain.process_sources()["torch"]
    else:
        sources["loader"] = plain.torch_source(loader.generator)
    if not isinstance(loader.dataset, IterableDataset):
        sources |= sources_of(loader._index_sampler)
    elif loader.num_workers == 0:
        sources |= plain.process_sources()
    return sources


def _each_once(sources: plain.Sources) -> plain.Sources:
    """Without further names of the same generator."""
    owners: dict[int, str] = {}
    for name, source in sources.items():
        owners.setdefault(id(source.owner), name)
    return {name: sources[name] for name in owners.values()}


def _of_map(progress: MapProgress) -> State:
    origin, delivered = progress.origin, progress.delivered
    return {
        "map": {
            "frontier": delivered.frontier,
            "missing": delivered.runs(),
            "seed": origin.seed.value,
            "replay": None if origin.pulls is None else _of_replay(origin),
        }
    }


def _of_replay(origin: Origin) -> State:
    assert origin.pulls is not None
    for state in origin.own_states.values():
        if isinstance(state, Exception):
            raise state
    return {
        "pulled": origin.pulls.count,
        "checksum": origin.pulls.checksum,
        "at_iter": None if origin.at_iter is None else plain.states_to_plain(origin.sources, origin.at_iter),
        "at_first": None if origin.at_first is None else plain.states_to_plain(origin.sources, origin.at_first),
        "epochs": dict(origin.epochs),
        "own_states": {name: plain.pack(state, name) for name, state in origin.own_states.items()},
    }


def _of_streams(progress: StreamProgress) -> State:
    streams = [_of_stream(place) for place in progress.streams]
    return {"streams": {"workers": progress.workers, "turn": progress.turn, "places": streams}}


def _of_stream(place: StreamPlace) -> State:
    saved = place.saved
    return {
        "batches": place.batches,
        "is_new": place.is_untouched,
        "ended": place.ended or (saved is not None and saved.ended and not place.is_untouched),
        "of": "" if saved is None else saved.of,
        "state": None if saved is None or not saved.of else plain.pack(saved.state, f"the {saved.of}"),
        "generators": None if saved is None else _generators_to_plain(saved.generators),
        "began": _generators_to_plain(place.began),
    }


def _generators_to_plain(states: Mapping[str, Any] | None) -> State | None:
    return None if states is None else plain.states_to_plain(plain.process_sources(), dict(states))


# ---- checking a state ---------------------------------------------------------------------------------------------

_ADVICE = {
    "kind": "the kind of dataset",
    "batch_size": "batch_size",
    "drop_last": "drop_last",
    "length": "the dataset: its length is another",
    "sampler": "the sampler",
    "batch_sampler_size": "the batch sampler's batch_size",
}


def checked(loader: Any, state: Any) -> State:
    """A copy of a state, once it is sure that the loader can go on from it. Raises TypeError or ValueError."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a dict, as state_dict() returns it, got {type(state).__name__}")
    version = state.get("version")
    if version != VERSION:
        raise ValueError(
            f"the state has version {version!r}, and this version of minato reads version {VERSION}; it was taken by "
            f"another release, or is not the state of a minato.DataLoader"
        )
    for name, mine in _description(loader).items():
        if state.get(name) != mine:
            raise ValueError(
                f"the state was taken from a loader with {name}={state.get(name)!r}, and this one has {mine!r}; "
                f"change {_ADVICE[name]}"
            )
    _check_generators(loader, state)
    kept = copy.deepcopy(dict(state))
    try:
        _read(loader, kept)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"the state is damaged, or not one that state_dict() returned: {error!r}") from error
    return kept


def _check_generators(loader: Any, state: Mapping[str, Any]) -> None:
    named = set(state.get("generators") or ())
    missing = named - set(_all_sources(loader))
    if missing or ("loader" in _sources(loader) and "loader" not in named):
        which = sorted(missing) or ["none for the loader"]
        raise ValueError(
            f"the state was taken with other random generators ({', '.join(which)}) than this loader has; give "
            f"generator= to the loader and its sampler exactly if they had it then"
        )


def _all_sources(loader: Any) -> plain.Sources:
    return {**plain.process_sources(), **_sources(loader)}


# ---- going on from a state ----------------------------------------------------------------------------------------


def resume(loader: Any, state: State) -> Resumed:
    """What the next `iter()` of a loader begins with, from a checked state."""
    return _read(loader, state)


def _read(loader: Any, state: State) -> Resumed:
    sources = _all_sources(loader)
    now = plain.states_from_plain(sources, state["generators"])

    def settle() -> None:
        plain.set_all(sources, now)

    epoch, following = state["epoch"], state["next"]
    if epoch is None:
        begin = _next_epoch(loader, following)
        if following is None or not loader.persistent_workers:
            return Resumed(begin, settle, None, 0, None, True, None, 0)
        return Resumed(begin, settle, int(following["base_seed"]), int(following["number"]), None, True, None, 0)
    base_seed, number, pipe_seed = int(epoch["base_seed"]), int(epoch["number"]), epoch["pipe_seed"]
    if state["kind"] == "map":
        interrupted = _interrupted(loader, epoch["map"], sources)
        return Resumed(_map_rest(loader, interrupted, sources), settle, base_seed, number, pipe_seed, False, None, 0)
    progress = _stream_progress(epoch["streams"])
    delivered = sum(place.batches for place in progress.streams)
    return Resumed(lambda: progress, settle, base_seed, number, pipe_seed, False, progress.workers, delivered)


def _next_epoch(loader: Any, following: State | None) -> Callable[[], Epoch]:
    """The epoch after the one that had ended; its workers begin it as that one left them, if there are as many."""
    if not isinstance(loader.dataset, IterableDataset):
        return lambda: begin_course(loader._index_sampler)
    if following is not None and following["streams"]["workers"] == loader.num_workers:
        places = _stream_progress(following["streams"]).streams
        progress = StreamProgress(len(places), 0, tuple(place.following() for place in places))
        return lambda: progress
    return lambda: iter(loader._index_sampler)


def _interrupted(loader: Any, saved: State, sources: plain.Sources) -> Interrupted:
    replay = saved["replay"]
    if is_cut(loader._index_sampler) != (replay is None):
        raise ValueError("the sampler has other arguments than the one whose state it is")
    delivered = Delivered.from_runs(saved["frontier"], saved["missing"])
    if replay is None:
        return Interrupted(delivered, saved["seed"], None, None, 0, 0, {}, {})
    at_iter, at_first = replay["at_iter"], replay["at_first"]
    parts = parts_of(loader._index_sampler)
    for name in replay["own_states"]:
        if not callable(getattr(parts[name], "load_state_dict", None)):
            raise ValueError(f"{type(parts[name]).__name__} had a state of its own, and has no load_state_dict() now")
    return Interrupted(
        delivered,
        None,
        None if at_iter is None else plain.states_from_plain(sources, at_iter),
        None if at_first is None else plain.states_from_plain(sources, at_first),
        int(replay["pulled"]),
        int(replay["checksum"]),
        dict(replay["epochs"]),
        {name: plain.unpack(state) for name, state in replay["own_states"].items()},
    )


def _map_rest(loader: Any, interrupted: Interrupted, sources: plain.Sources) -> Callable[[], Epoch]:
    def begin() -> Epoch:
        before = plain.read_all(sources)
        try:
            is_single = loader.batch_sampler is None
            return resume_course(loader._index_sampler, interrupted, loader.batch_size, loader.drop_last, is_single)
        except BaseException:
            plain.set_all(sources, before)
            raise

    return begin


def _stream_progress(saved: State) -> StreamProgress:
    places = tuple(_stream_place(place) for place in saved["places"])
    if len(places) != max(1, saved["workers"]):
        raise ValueError(f"{len(places)} streams of {saved['workers']} workers")
    return StreamProgress(int(saved["workers"]), int(saved["turn"]), places)


def _stream_place(saved: State) -> StreamPlace:
    sources = plain.process_sources()
    generators, began = (
        None if states is None else plain.states_from_plain(sources, states)
        for states in (saved["generators"], saved["began"])
    )
    packed = None
    if saved["of"] or generators is not None:
        state = plain.unpack(saved["state"]) if saved["of"] else None
        packed = pickle.dumps(StreamState(saved["of"], state, generators, ended=saved["ended"]))
    if saved["is_new"]:
        return StreamPlace(left=packed)
    return StreamPlace(int(saved["batches"]), bool(saved["ended"]), packed, generators=began)
