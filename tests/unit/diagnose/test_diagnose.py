"""Planted bottlenecks are found, told in words, and removed; what the user has is left alone."""

from __future__ import annotations

import json
import random
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import minato
from minato.cli import main
from minato.diagnose import Advice
from minato.diagnose.decisions import key_of
from minato.diagnose.rates import Rate, measure_rate
from minato.diagnose.rebuilding import rebuilt

SECONDS = 2.0
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # as many workers as waiting justifies
    pytest.mark.filterwarnings("ignore:minato.optimize left"),  # by what was measured; a test of its own is about it
]


class Step:
    """Sleeps, which is told from computing by the thread's clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, x: Any) -> Any:
        time.sleep(self.seconds)
        return x


class First(Step):
    pass


class Second(Step):
    pass


def load(index: int) -> torch.Tensor:
    return torch.full((16,), float(index))


def make_loader(slow: int = 2, **options: Any) -> Any:
    """A loader with a planted bottleneck: 0 the load, 1 and 2 the transforms."""
    costs = [0.02 if number == slow else 0.0005 for number in range(3)]
    source = minato.StagedDataset(Loaded(costs[0]), [First(costs[1]), Second(costs[2])], 200)
    return minato.DataLoader(source, batch_size=4, **options)


class Loaded(Step):
    def __call__(self, index: Any) -> Any:
        return load(super().__call__(index))


@pytest.mark.parametrize(("slow", "name"), [(0, "load"), (1, "First"), (2, "Second")])
def test_planted_bottleneck_is_named_first(slow: int, name: str) -> None:
    """In the first line, with what to do."""
    found = minato.diagnose(make_loader(slow), max_seconds=SECONDS)
    assert found.bottleneck == name
    first = str(found).splitlines()[0]
    assert first.startswith(f"The bottleneck is the stage '{name}'")
    assert "waiting, not computing" in first
    assert "Do this: " in first  # more workers, or more fetches at once in each
    assert found.now.rate <= found.best.rate


def test_slow_loop_is_not_blamed_on_the_loader() -> None:
    """When the step takes longer than a batch."""
    loader = make_loader(slow=9, num_workers=2)
    found = minato.diagnose(loader, max_seconds=SECONDS, step=lambda batch: time.sleep(0.05))
    assert found.bottleneck == "consumer"
    assert found.verdict.startswith("The bottleneck is your own loop")
    assert not [advice for advice in found.advice if "num_workers" in advice.changes]


def test_what_is_run_to_measure_leaves_nothing_in_the_users_trace(tmp_path: Path) -> None:
    loader = minato.DataLoader(minato.StagedDataset(float, [], 64), batch_size=8, num_workers=1, trace=tmp_path)
    assert measure_rate(loader, range(64), 0.1).batches_s > 0
    assert not list(tmp_path.iterdir())


def test_reports_in_every_form(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """JSON that can be read, a graph with the bottleneck in red, HTML without markup from names."""
    code = main(["diagnose", f"{__name__}:make_loader", "--json", "--max-seconds", "2", "--dot", str(tmp_path / "dot"),
                 "--html", str(tmp_path / "html")])  # fmt: skip
    assert code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bottleneck"] == "Second"
    assert report["stages"][0]["randomness"] in ("deterministic", "random", "unknown")
    assert report["bound"]["rate"] > 0
    graph = (tmp_path / "dot").read_text()
    assert [line for line in graph.splitlines() if "red" in line and "Second" in line]
    assert "<b>The bottleneck is the stage &#x27;Second&#x27;" in (tmp_path / "html").read_text()


def test_mistakes_of_the_caller_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a traceback."""
    assert main(["diagnose", "nowhere"]) == 2
    assert main(["diagnose", "nowhere:at_all"]) == 2
    assert main(["diagnose", f"{__name__}:make_nothing"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(ValueError, match="IterableDataset"):
        minato.diagnose(minato.DataLoader(_Stream()))
    with pytest.raises(ValueError, match="max_seconds"):
        minato.diagnose(make_loader(), max_seconds=0)


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize("workers", [0, 2])
def test_watching_loses_and_repeats_nothing(workers: int) -> None:
    """The samples of a run that is watched are those of one that is not; the slow stage and the loop are measured."""
    loader = make_loader(slow=2, num_workers=workers)
    with loader, minato.diagnose.watch(loader) as watched:
        seen = []
        for batch in loader:
            seen += batch[:, 0].tolist()
            if len(seen) == 60:
                break
    assert seen == [float(index) for index in range(60)]
    measurement = watched.measurement()
    assert [stage.name for stage in measurement.stages] == ["load", "First", "Second"]
    slow = measurement.stages[2]
    assert slow.wall_s / slow.completions >= 0.02
    assert slow.cpu_s < 0.5 * slow.wall_s
    assert watched.diagnosis().bottleneck == "Second"


def stack_slowly(samples: list[Any]) -> Any:
    time.sleep(0.03)
    return torch.stack(samples)


def test_a_collate_function_is_watched_like_a_stage() -> None:
    loader = make_loader(slow=3, num_workers=2, collate_fn=stack_slowly)
    with loader, minato.diagnose.watch(loader) as watched:
        assert sum(len(batch) for batch in loader) == 200
    assert loader.collate_fn is stack_slowly
    load, *_, collate = watched.measurement().stages
    assert collate.name == "collate"
    assert collate.completions == max(1, round(load.completions / 4))  # as many as the samples that were timed make
    assert collate.wall_s / collate.completions > 0.02  # of the 0.03 s it sleeps, less what timing it is taken to cost
    assert watched.diagnosis().bottleneck == "collate"


class Augmented(Dataset[Any]):
    """A slow deterministic beginning, then something random."""

    def __len__(self) -> int:
        return 40

    def __init__(self) -> None:
        self.transform = Composed()

    def __getitem__(self, index: int) -> Any:
        image = load(index)
        return self.transform(image), index


class Composed:
    def __init__(self) -> None:
        self.transforms = [Decode(), Jitter()]

    def __call__(self, image: Any) -> Any:
        for t in self.transforms:
            image = t(image)
        return image


class Decode:
    def __call__(self, x: Any) -> Any:
        for _ in range(1500):
            x = x + 1
        return x


class Jitter:
    def __call__(self, x: Any) -> Any:
        return x * random.random()


@pytest.fixture
def decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINATO_CACHE_DIR", str(tmp_path / "decisions"))
    return tmp_path / "decisions"


def test_optimised_loader_has_the_same_content(decisions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was decided stored, and used again without measuring. What is decided goes by given rates."""
    advice = Advice("", "", 2.0, "high", {"cache": "after:Decode"})
    monkeypatch.setattr("minato.diagnose.optimising.advise", lambda *_: (advice,))
    monkeypatch.setattr(
        "minato.diagnose.optimising._steady",
        lambda _loader, _indices, _seconds, changes, _seen: Rate(2.0 if "cache" in changes else 1.0, 0.0, 0.0, None),
    )

    def make() -> Any:
        generator = torch.Generator().manual_seed(9)
        return minato.DataLoader(Augmented(), batch_size=8, shuffle=True, generator=generator, in_order=True)

    plain = make()
    expected = [[x.tolist(), y.tolist()] for _ in range(2) for x, y in plain]
    with minato.optimize(make(), max_seconds=SECONDS) as better:
        assert [[x.tolist(), y.tolist()] for _ in range(2) for x, y in better] == expected
    (file,) = decisions.iterdir()
    assert json.loads(file.read_text())["changes"] == {"cache": "after:Decode"}

    def fail(*_: Any) -> Any:
        raise AssertionError("it was measured again")

    monkeypatch.setattr("minato.diagnose.optimising._decide", fail)
    with minato.optimize(make()) as again:
        assert again.cache == "after:Decode"
        assert [[x.tolist(), y.tolist()] for _ in range(2) for x, y in again] == expected


def test_a_loader_with_a_cache_is_judged_with_the_cache_filled() -> None:
    without = minato.diagnose(minato.DataLoader(Augmented(), batch_size=8), max_seconds=SECONDS)
    assert without.bottleneck == "Decode"
    cached = minato.diagnose(minato.DataLoader(Augmented(), batch_size=8, cache="after:Decode"), max_seconds=SECONDS)
    assert cached.bottleneck != "Decode"
    assert cached.now.rate > without.now.rate
    assert "(cache)" in cached.table()


def test_values_that_were_set_stay(decisions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless `allow` names them; and nothing changes where optimising is switched off."""
    monkeypatch.setenv("MINATO_NO_CACHE", "1")  # or there would be nothing left for workers to do
    tried: list[dict[str, Any]] = []

    def note(_loader: Any, _indices: Any, _seconds: float, changes: dict[str, Any], _seen: Any) -> Any:
        tried.append(changes)
        return Rate(1.0 + len(tried), 0.0, 0.0, None)

    monkeypatch.setattr("minato.diagnose.optimising._steady", note)
    minato.optimize(make_loader(num_workers=1, prefetch_factor=3), max_seconds=SECONDS).close()
    assert not [changes for changes in tried if "num_workers" in changes or "prefetch_factor" in changes]
    tried.clear()
    minato.optimize(make_loader(num_workers=1), allow=["num_workers"], max_seconds=SECONDS).close()
    assert [changes for changes in tried if changes.get("num_workers", 0) > 1]
    monkeypatch.setenv("MINATO_OPTIMIZE", "0")
    loader = make_loader()
    assert minato.optimize(loader) is loader
    with pytest.raises(ValueError, match="allow may name"):
        minato.optimize(loader, allow=["dataset"])


def test_what_was_left_alone_and_would_be_far_faster_is_told(decisions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to say to have it; not where it is allowed, nor where it would bring little."""
    advice = [Advice("", "", 30.0, "high", {"num_workers": 2, "cache": "source"})]
    monkeypatch.setattr("minato.diagnose.optimising._steady", lambda *_: Rate(10.0, 0.0, 0.0, None))
    monkeypatch.setattr("minato.diagnose.optimising.advise", lambda *_: tuple(advice))
    told = r"left num_workers=1 alone.* 30.0 batches/s instead of 10.0 .*allow=\['num_workers'\]"
    with pytest.warns(UserWarning, match=told):
        minato.optimize(make_loader(num_workers=1), max_seconds=0.2).close()
    monkeypatch.setenv("MINATO_FORGET", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minato.optimize(make_loader(num_workers=1), allow=["num_workers"], max_seconds=0.2).close()
        minato.optimize(make_loader(), max_seconds=0.2).close()
        advice[0] = replace(advice[0], rate=11.0)
        minato.optimize(make_loader(num_workers=1), max_seconds=0.2).close()


def test_what_would_change_the_content_is_left_alone(decisions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads where a stage is random, and workers that are kept; what else was proposed is tried."""
    tried: list[dict[str, Any]] = []

    def note(_loader: Any, _indices: Any, _seconds: float, changes: dict[str, Any], _seen: Any) -> Any:
        tried.append(changes)
        return Rate(1.0 + len(tried), 0.0, 0.0, None)

    threads = {"num_workers": 2, "fetcher": "threaded", "num_fetch_workers": 8, "persistent_workers": True}
    monkeypatch.setattr("minato.diagnose.optimising._steady", note)
    monkeypatch.setattr(
        "minato.diagnose.optimising.advise", lambda *_: (Advice("", "", 2.0, "high", {**threads, "cache": "source"}),)
    )
    minato.optimize(minato.DataLoader(Augmented(), batch_size=8), max_seconds=1.0).close()
    assert {"num_workers": 16, "cache": "source"} in tried
    assert not [one for one in tried if one.keys() & {"fetcher", "num_fetch_workers", "persistent_workers"}]
    tried.clear()
    allow = ["fetcher", "num_fetch_workers", "persistent_workers"]
    monkeypatch.setattr("minato.diagnose.optimising.advise", lambda *_: (Advice("", "", 2.0, "high", threads),))
    minato.optimize(minato.DataLoader(Augmented(), batch_size=8), allow=allow, max_seconds=1.0).close()
    assert threads in tried


def test_where_no_cache_is_wanted_something_else_is_proposed(decisions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not nothing, because a cache would have been enough."""
    tried: list[dict[str, Any]] = []

    def note(_loader: Any, _indices: Any, _seconds: float, changes: dict[str, Any], _seen: Any) -> Any:
        tried.append(changes)
        return Rate(1.0 + len(tried), 0.0, 0.0, None)

    monkeypatch.setattr("minato.diagnose.optimising._steady", note)
    monkeypatch.setenv("MINATO_NO_CACHE", "1")
    dataset = minato.StagedDataset(minato.deterministic(slow_and_marked), [Jitter()], 64)
    minato.optimize(minato.DataLoader(dataset, batch_size=8), max_seconds=SECONDS).close()
    assert not [changes for changes in tried if "cache" in changes]
    assert [changes for changes in tried if changes.get("num_workers", 0) > 1]


def slow_and_marked(index: int) -> torch.Tensor:
    time.sleep(0.002)
    return load(index)


def test_a_loader_of_threads_over_what_could_be_cached_is_diagnosed() -> None:
    """A cache is made one sample at a time: what is proposed can be done, all of it together."""
    dataset = minato.StagedDataset(minato.deterministic(slow_and_marked), [Jitter()], 64)
    options = {"num_workers": 1, "fetcher": "threaded", "num_fetch_workers": 2, "thread_copies": True}
    loader = minato.DataLoader(dataset, batch_size=8, **options)
    found = minato.diagnose(loader, max_seconds=SECONDS)
    assert found.seen.measurement.cached is not None  # it was tried
    changes = {name: value for one in found.advice for name, value in one.changes.items()}
    rebuilt(loader, **changes).close()
    rebuilt(loader, cache="after:load", fetcher="sequential").close()


def test_rates_of_short_epochs_count_their_start() -> None:
    rate = Rate(100.0, 0.0, 0.0, None, first_s=0.5)
    assert rate.over(1 << 30) == pytest.approx(100.0)
    assert rate.over(51) == pytest.approx(51.0)


def test_a_decision_is_not_used_again_for_other_code() -> None:
    """A constant may be all that makes a stage slow, in a function or in what it holds."""

    def key(load: Any) -> str:
        return key_of(minato.DataLoader(minato.StagedDataset(load, [], 8)), {})

    def held(turns: int) -> Any:
        return lambda index: index * turns

    loads = [lambda index: index * 2, lambda index: index * 3, held(4), held(5), partial(pow, 2), partial(pow, 3)]
    assert len({key(load) for load in loads}) == len(loads)
    assert key(held(4)) == key(held(4))


def test_decorated_function_picks_the_fastest_variant(decisions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among variants with equal batches; others are refused."""
    monkeypatch.setenv("MINATO_NO_CACHE", "1")  # with it they are equally fast

    @minato.optimize(pick_best={"cost": [0.03, 0.001]}, max_seconds=2 * SECONDS, when=lambda given: given["train"])
    def make(train: bool, cost: float = 0.03, length: int = 16) -> Any:
        dataset = minato.StagedDataset(lambda i: torch.zeros(length), [Step(cost)], 40)
        return minato.DataLoader(dataset, batch_size=4, cache=None)

    with make(True) as chosen:
        assert chosen.dataset.transforms[0].seconds == 0.001
    assert make(train=False).dataset.transforms[0].seconds == 0.03


def test_decorated_function_may_return_a_dataset_and_arguments(
    decisions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the arguments are what is changed; anything else is refused in words."""
    monkeypatch.setattr("minato.diagnose.optimising._decide", lambda *_: ({"num_workers": 1}, 3.0))
    dataset = minato.StagedDataset(float, [], 8)

    @minato.optimize
    def make() -> Any:
        return dataset, {"batch_size": 4}

    assert make() == (dataset, {"batch_size": 4, "num_workers": 1})

    @minato.optimize
    def make_nothing() -> Any:
        return None

    with pytest.raises(TypeError, match=r"make_nothing should return a DataLoader.*got None"):
        make_nothing()


def test_no_setting_is_tried_after_the_time(decisions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what there is, and what was proposed."""
    monkeypatch.setenv("MINATO_NO_CACHE", "1")
    tried: list[dict[str, Any]] = []

    def note(_loader: Any, _indices: Any, seconds: float, changes: dict[str, Any], _seen: Any) -> Any:
        tried.append(changes)
        time.sleep(0.3)
        return Rate(1.0 + len(tried), 0.0, 0.0, None)

    monkeypatch.setattr("minato.diagnose.optimising._steady", note)
    minato.optimize(make_loader(), max_seconds=0.2).close()
    assert len(tried) == 2
    assert tried[0] == {}
    assert tried[1]["num_workers"] > 0


def test_limits_of_a_loader() -> None:
    """Batches of the right shape without the work; loading without the transforms. The generator is not drawn from."""
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    loader = make_loader(slow=2, shuffle=True, generator=generator)
    fakes = list(loader.fake())
    assert len(fakes) == len(loader)
    assert fakes[0].shape == (4, 16)
    zeros = list(loader.source_only())
    assert len(zeros) == len(loader)
    assert not any(batch.any() for batch in zeros)
    assert torch.equal(generator.get_state(), before)
