"""`minato bench`: what it measures is right, what it says follows from it, and mistakes are told in one line."""

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minato.bench.arms import arms_of
from minato.bench.datasets import WrongBatchError, check_exactly_once
from minato.bench.measuring import ArmResult, summarise, visit
from minato.bench.own import failure, samples_of_epoch
from minato.bench.realistic import UnevenWaits, heavy_tailed_costs, lognormal_costs
from minato.bench.verdict import compare, faster_otherwise, in_words
from minato.bench.workloads import WORKLOADS, Workload, build
from minato.cli import main

TINY = Workload("tiny", "a test", lambda n: UnevenWaits(lognormal_costs(n, 0.0005)), 64, 8, waits=True, load=0.5)


@pytest.fixture(scope="module", autouse=True)
def _fonts_open() -> None:
    """matplotlib keeps the fonts open that it once used: before the first test, so that none is blamed for it."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set_title("÷ – 0")
    figure.savefig(io.StringIO(), format="svg")


def result(arm: str, rate: float, against: str | None = None, spread: float = 0.0) -> ArmResult:
    low, high = rate * (1 - spread), rate * (1 + spread)
    return ArmResult("w", arm, against, rate, (low, high), 1.0, None, 0.1, None, 1.0, 1, 1e6, 4)


def test_every_built_in_workload_gives_samples_that_its_reader_recognises() -> None:
    for workload in WORKLOADS:
        dataset = workload.make(workload.batch_size)
        samples = [dataset[index] for index in range(2)]
        collate = workload.arguments.get("collate_fn", torch.utils.data.default_collate)
        assert dataset.read(collate(samples)).tolist() == [0, 1], workload.name


def test_every_arm_is_measured_and_checked() -> None:
    built = replace(build(TINY, cores=2), workers=2)
    for arm in arms_of(TINY, 2):
        seen = visit(arm, built, seconds=0.0)
        summary = summarise(arm, built, [seen])
        assert len(seen.epochs) == 2
        assert summary.samples_per_s > 0
        assert summary.utilisation is not None and 0 < summary.utilisation <= 1
        assert summary.epoch_gap_s is not None


def test_a_lost_or_doubled_sample_is_an_error() -> None:
    with pytest.raises(WrongBatchError, match="1 were lost, 1 repeated"):
        check_exactly_once([torch.tensor([0, 1]), torch.tensor([1, 3])], 4)


def test_the_bound_is_the_lesser_of_workers_and_accelerator() -> None:
    built = build(replace(TINY, load=0.5), cores=2)
    assert built.bound == pytest.approx(0.5 * built.capacity / built.cost_s)
    assert build(replace(TINY, load=None), cores=2).bound == pytest.approx(built.capacity / built.cost_s)


def test_slower_arms_are_called_slower_and_named() -> None:
    comparisons = compare([result("torch", 100), result("minato", 80, "torch"), result("other", 300, "torch")])
    assert [c.word for c in comparisons] == ["slower", "faster"]
    assert "slower: w: minato at 0.80 x torch" in in_words(comparisons)


def test_a_ratio_at_equal_workers_is_not_left_alone_where_torch_is_faster_without() -> None:
    rates = {"torch, no worker": 118.0, "torch, 2 workers": 16.0, "minato, no worker": 122.0, "minato, 2 workers": 55.0}
    against = {"minato, no worker": "torch, no worker", "minato, 2 workers": "torch, 2 workers"}
    results = [result(arm, rate, against.get(arm)) for arm, rate in rates.items()]
    assert faster_otherwise(results) == [
        "w: other settings are faster: 'torch, no worker' with 118 samples/s, 'minato, no worker' with 122"
    ]
    assert faster_otherwise([each for each in results if "no worker" not in each.arm]) == []


def test_small_differences_are_called_even() -> None:
    assert compare([result("torch", 100), result("minato", 96, "torch")])[0].word == "even"
    assert compare([result("torch", 100, spread=0.2), result("minato", 91, "torch", spread=0.2)])[0].word == "even"
    assert compare([result("torch", 100), result("minato", 91, "torch")])[0].word == "slower"


def test_tail_costs_have_the_share_asked_for() -> None:
    costs = heavy_tailed_costs(1_000, 0.001)
    assert (costs > 0.01).sum() == 10


def test_the_command_writes_figures_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "minato_bench_mine.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "def make():\n    return TensorDataset(torch.arange(48.0))\n"
        "def make_stream():\n    return iter([])\n"
    )
    page = tmp_path / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        size = ["--batch-size", "8", "--workers", "1", "--rounds", "1", "--seconds", "0.01"]
        code = main(["bench", "--mine", "minato_bench_mine:make", *size, "--json", "--html", str(page)])
        output = capsys.readouterr()
        report = json.loads(output.out)
        assert output.err.startswith("measuring mine ...\n")
        assert report["exactly_once"]
        assert code in (0, 1)
        assert code == (report["slower"] > 0)
        assert {each["workload"] for each in report["results"]} == {"mine"}
        assert "<svg" in page.read_text()
        assert "epochs of 9 loaders every sample came exactly once" in page.read_text()
        assert main(["bench", "--mine", "minato_bench_mine:make_stream"]) == 2
        assert "map-style" in capsys.readouterr().err
        sys.modules.pop("minato_bench_mine")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nothing"], "no workload is called 'nothing'"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--mine", "no_such_module_here:make"], "module 'no_such_module_here' was not found from"),
        (["--mine", "nocolon"], "is needed as MODULE:NAME"),
        (["--workers", "4"], "--workers goes with --mine"),
        (["--batch-size", "0"], "--batch-size goes with --mine"),
        (["--mine", "train:make", "--only", "cheap"], "give one of them"),
        (["--only", "cheap", "--html", "nowhere/page.html"], "nowhere is not a directory to write page.html to"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


MISTAKES = """
import sys
import torch
from torch.utils.data import Dataset

class Late(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 999:  # neither in the first batch nor among those timed beforehand
            self.stumble()
        return torch.zeros(1)

class Raises(Late):
    def stumble(self):
        raise ValueError("this one\\nis broken")

class Ends(Late):
    def stumble(self):
        sys.exit(4)

class Local(Late):
    def __getitem__(self, index):
        return lambda: index

def as_they_are(samples):
    return samples

def leaves():
    sys.exit(3)
"""


@pytest.fixture
def mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "minato_bench_mistakes.py").write_text(MISTAKES)
    (tmp_path / "minato_bench_needs.py").write_text("import not_installed_here\n")
    (tmp_path / "minato_bench_syntax.py").write_text("\ndef make(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("mistakes", "needs", "syntax"):
        sys.modules.pop(f"minato_bench_{name}", None)


@pytest.mark.usefixtures("mistakes")
@pytest.mark.parametrize(
    ("mine", "words"),
    [
        ("minato_bench_mistakes:Raises", "sample 999 of the dataset raised ValueError: this one is broken ("),
        ("minato_bench_mistakes:Ends", "sample 999 of the dataset raised SystemExit: 4 ("),
        ("minato_bench_mistakes:leaves", "leaves() raised SystemExit: 3 ("),
        (
            "minato_bench_needs:make",
            "importing 'minato_bench_needs' raised ModuleNotFoundError: No module named",
        ),
        ("minato_bench_syntax:make", "minato_bench_syntax.py, line 2)"),
        ("minato_bench_mistakes.py:leaves", "give the module's name, 'minato_bench_mistakes'"),
    ],
)
def test_mistakes_in_the_users_dataset_are_told_in_one_line(
    mine: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from minato.bench import running

    all_arms = running.arms_of
    with_workers = lambda *given: tuple(arm for arm in all_arms(*given) if arm.arguments)  # noqa: E731
    monkeypatch.setattr(running, "arms_of", with_workers)
    assert main(["bench", "--mine", mine, "--workers", "1", "--rounds", "1", "--seconds", "0.01"]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line != "measuring mine ..."]
    assert len(told) == 1 and told[0].startswith("minato: --mine: ")
    assert words in told[0]


@pytest.mark.parametrize(("width", "columns"), [(80, 8), (58, 5)])
def test_no_name_is_cut_off_in_a_narrow_terminal(width: int, columns: int) -> None:
    from rich.console import Console

    from minato.bench.showing import summary

    results = [result("torch, 2 workers", 21_479.0), result("minato, 2 workers", 51_617.0, "torch, 2 workers")]
    renamed = [replace(each, workload="volumes") for each in results]
    table = summary(renamed, compare(renamed), {"volumes": "a test"}, width)
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert len(table.columns) == columns
    assert "volumes" in text and "51,617" in text and "2.40" in text and "faster" in text and "…" not in text


def test_dear_samples_make_short_epochs() -> None:
    assert samples_of_epoch(100_000, 32, 1e-5, 2) == 2_000
    assert samples_of_epoch(100_000, 32, 0.010, 2) == 400  # of 10 ms, two workers: 2 s
    assert samples_of_epoch(100_000, 32, 1.0, 2) == 96  # three batches at least
    assert samples_of_epoch(50, 32, 1.0, 2) == 50


def test_what_else_stops_a_measurement_is_told_in_one_line() -> None:
    died = RuntimeError("DataLoader worker (pid 7) exited\n  unexpectedly")
    assert (
        failure(died)
        == "the dataset could not be measured: RuntimeError: DataLoader worker (pid 7) exited unexpectedly"
    )


@pytest.mark.usefixtures("mistakes")
def test_batches_that_no_worker_could_send_are_told_in_place_of_waiting_for_ever(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine = ["--mine", "minato_bench_mistakes:Local", "--collate", "minato_bench_mistakes:as_they_are"]
    assert main(["bench", *mine]) == 2
    assert "a batch cannot be sent from a worker: AttributeError" in capsys.readouterr().err


def test_what_is_left_of_a_budget_goes_to_the_pairs_that_are_least_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    from minato.bench import running

    made: list[str] = []
    rates = {"clear": 3.0, "close": 1.02, "slow": 0.6}

    class Fake:
        """Every visit takes ten seconds."""

        def __init__(self, workload: Workload, cores: int) -> None:
            self.name = workload.name

        def round(self, number: int, seconds: float, tell: object) -> None:
            self.visit("torch", seconds, tell)
            self.visit("minato", seconds, tell)

        def visit(self, arm: str, seconds: float, tell: object) -> None:
            made.append(f"{self.name}: {arm}")
            clock[0] += 10.0

        def seconds_of(self, *arms: str) -> float:
            return 10.0 * len(arms)

        def results(self) -> list[ArmResult]:
            pair = (("torch", None, 1.0), ("minato", "torch", rates[self.name]))
            return [
                ArmResult(self.name, arm, against, rate, (rate, rate), 1, None, 1, None, 1, 1, 1, 1)
                for arm, against, rate in pair
            ]

    clock = [0.0]
    monkeypatch.setattr(running, "Race", Fake)
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    workloads = [replace(TINY, name=name) for name in rates]
    running.run(workloads, 1, 0.1, 2, print, budget_s=109.0)
    assert made[:6] == [f"{name}: {arm}" for name in rates for arm in ("torch", "minato")], "all of them once, whatever"
    assert made[6:] == ["slow: torch", "slow: minato", "close: torch", "close: minato"]
    made.clear()
    running.run(workloads, 2, 0.1, 2, print)
    assert len(made) == 12


def test_time_that_other_guests_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import namedtuple

    from minato.bench import running

    times = namedtuple("times", "user idle steal")
    clock = iter([times(10.0, 10.0, 0.0), times(12.0, 17.0, 1.0)])
    monkeypatch.setattr(running.psutil, "cpu_times", lambda: next(clock))
    stolen = running.StolenTime()
    assert stolen.share() == pytest.approx(0.1)
