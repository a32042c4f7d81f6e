"""Stages found on datasets: one by one they give exactly what `dataset[index]` gives, or nothing is found."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset

import minato
from minato._workers.stages import find_stages
from tests.unit.workers import staged_data as data
from tests.unit.workers.staged_data import Compose, Fail, Noise, Numbers, Plus


def in_stages(dataset: Any, index: Any) -> tuple[Any, list[str]]:
    """The sample, and what was done for it."""
    begin = find_stages(dataset)
    assert begin is not None, "opaque"
    run, stages = begin(index), []
    while not run.done:
        stages.append(run.stage)
        run.advance()
    assert run.stage == "done"
    return run.result, stages


def stages_and_sample_agree(dataset: Any, index: Any, seed: int = 5) -> list[str]:
    random.seed(seed)
    expected = dataset[index]
    state = random.getstate()
    random.seed(seed)
    found, stages = in_stages(dataset, index)
    assert found == expected
    assert random.getstate() == state  # as many random numbers, in the same order
    return stages


THREE = [Plus(1), Noise(), Plus(7)]
THREE_NAMES = ["load", "Plus", "Noise", "Plus"]

NESTED = Compose([Plus(1), Compose([Noise(), Compose([Plus(7)])])])
MODULES = data.ModuleCompose([data.Wrapper(1), data.Wrapper(2)])
KEYWORDS = data.KeywordCompose([data.Keyword(1), data.Keyword(2)])
CROPS = data.monai_compose([Plus(1), data.ManyCrops(), Plus(2)])
LAZY = data.monai_compose([Plus(1), Plus(2)], lazy=True)
STAGED = minato.StagedDataset(float, THREE, 8)
TWO_LEVELS = ConcatDataset([Subset(STAGED, [4, 2]), Subset(Numbers(Compose(THREE)), [0, 1, 2])])

FOUND: dict[str, tuple[Any, list[str] | None]] = {
    "compose": (Numbers(Compose(THREE)), THREE_NAMES),
    "a tuple of transforms": (Numbers(Compose(tuple(THREE))), THREE_NAMES),
    "no transforms in it": (Numbers(Compose([])), ["load"]),
    "compose in compose": (Numbers(NESTED), THREE_NAMES),
    "a single transform": (Numbers(Noise()), ["load", "Noise"]),
    "functions": (Numbers(Compose([abs, lambda x: x + 1])), ["load", "abs", "<lambda>"]),
    "with a target's transform": (Numbers(Compose([Noise()]), Compose([Noise(), Plus(2)])), ["load", "Noise"]),
    "goes on with the result": (data.LooksAtTheResult(Compose(THREE)), [*THREE_NAMES, *THREE_NAMES[1:]]),
    "module": (Numbers(data.ModuleCompose(THREE)), THREE_NAMES),
    "module of modules": (Numbers(MODULES), ["load", "Wrapper", "Wrapper"]),
    "several inputs": (data.Pairs(data.ModuleCompose([data.Both(), data.Both()])), ["load", "Both", "Both"]),
    "sometimes": (Numbers(data.Sometimes(THREE)), None),
    "one of": (Numbers(data.OneOf(THREE)), ["load", "OneOf"]),
    "any order": (Numbers(data.AnyOrder(THREE)), ["load", "AnyOrder"]),
    "backwards": (Numbers(data.Backwards(THREE)), ["load", "Backwards"]),
    "under a lock": (Numbers(data.Guarded(THREE)), ["load", "Guarded"]),
    "by keyword": (data.ByKeyword(KEYWORDS), ["load", "Keyword", "Keyword"]),
    "by keyword, perhaps": (data.ByKeyword(data.KeywordCompose([data.Keyword(1)], p=0.5)), None),
    "one at a time": (Numbers(CROPS), ["load", "Plus", "ManyCrops", "Plus"]),
    "joined by laziness": (Numbers(LAZY), ["load", "Compose"]),
    "partly in a comprehension": (data.InALoop(Compose(THREE)), THREE_NAMES),
    "called by another method": (data.Elsewhere(Compose(THREE)), THREE_NAMES),
    "methods that call each other": (data.RecursesForEver(Compose(THREE)), THREE_NAMES),
    "keeps what is not about a sample": (data.OpensLate(Compose(THREE)), THREE_NAMES),
    "a compose that remembers the sample": (Numbers(data.RemembersCompose(THREE)), ["load", "RemembersCompose"]),
    "staged": (STAGED, THREE_NAMES),
    "staged with compose": (minato.StagedDataset(float, [NESTED], 8), THREE_NAMES),
    "subset": (Subset(Numbers(Compose(THREE)), [7, 5, 3, 1, 0]), THREE_NAMES),
    "concatenation": (ConcatDataset([Numbers(Compose(THREE), length=2), Numbers(Compose(THREE))]), THREE_NAMES),
    "deep": (TWO_LEVELS, THREE_NAMES),
}


@pytest.mark.parametrize("case", FOUND)
@pytest.mark.parametrize("index", [0, 3])
def test_the_stages_give_the_sample(case: str, index: int) -> None:
    dataset, names = FOUND[case]
    for seed in range(4):
        stages = stages_and_sample_agree(dataset, index, seed)
        assert names is None or stages == names


OPAQUE = {
    "no transform": Numbers(None),
    "remembers the sample": data.Remembers(Compose(THREE)),
    "remembers it in methods": data.RemembersInMethods(Compose(THREE)),
    "remembers it in a loop": data.RemembersInALoop(Compose(THREE)),
    "remembers it under any name": data.RemembersUnderAnyName(Compose(THREE)),
    "inside with": data.WithoutGradients(Compose(THREE)),
    "decorated": data.Decorated(Compose(THREE)),
    "no source": data.TypedIn(Compose(THREE)),
    "a list": [1, 2, 3],
    "subset of an opaque one": Subset(data.Remembers(Compose(THREE)), [0]),
    "concatenation of opaque ones": ConcatDataset([data.Remembers(Compose(THREE))]),
}


@pytest.mark.parametrize("case", OPAQUE)
def test_what_cannot_be_split_with_certainty_is_opaque(case: str) -> None:
    assert find_stages(OPAQUE[case]) is None


def test_subclasses_with_a_way_of_their_own_are_not_mistaken_for_their_base() -> None:
    class Shifted(Subset):
        def __getitem__(self, index: Any) -> Any:
            return self.dataset[index + 1]

        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices]

    class Negated(minato.StagedDataset):
        def __getitem__(self, index: int) -> Any:
            return -super().__getitem__(index)

    assert find_stages(Shifted(Numbers(Compose(THREE)), [0, 1])) is None
    assert find_stages(Negated(float, THREE, 4)) is None


def test_a_method_changed_after_its_source_was_written_is_opaque() -> None:
    class Changed(Numbers):
        def __getitem__(self, index: int) -> Any:
            return self.transform(float(index))

    def other(self: Any, index: int) -> Any:
        return self.transform(float(index) + 1)

    Changed.__getitem__.__code__ = other.__code__.replace(co_firstlineno=Changed.__getitem__.__code__.co_firstlineno)
    assert find_stages(Changed(Compose(THREE))) is None


def test_no_transform_runs_twice_and_none_before_its_turn() -> None:
    log: list[str] = []
    begin = find_stages(Numbers(Compose([Plus(1, log), Plus(2, log), Plus(3, log)])))
    assert begin is not None
    run = begin(4)
    logs = []
    while not run.done:
        run.advance()
        logs.append(list(log))
    assert logs == [[], ["plus 1"], ["plus 1", "plus 2"], ["plus 1", "plus 2", "plus 3"]]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_samples_may_wait_while_others_go_on(indices: list[int], choice: random.Random) -> None:
    """Any interleaving of any samples gives each of them what it gets alone."""
    dataset = data.LooksAtTheResult(Compose([Plus(1), Compose([Plus(2)]), Plus(3)]))
    begin = find_stages(dataset)
    assert begin is not None
    runs = [begin(index) for index in indices]
    while unfinished := [run for run in runs if not run.done]:
        choice.choice(unfinished).advance()
    assert [run.result for run in runs] == [dataset[index] for index in indices]


@given(
    st.recursive(
        st.builds(Plus, st.integers(-5, 5)),
        lambda inner: st.builds(Compose, st.lists(inner, max_size=4)),
        max_leaves=12,
    ),
    st.integers(0, 7),
)
def test_any_nesting_gives_the_sample(transform: Any, index: int) -> None:
    stages_and_sample_agree(Numbers(transform), index)


@pytest.mark.parametrize(
    "error", [ValueError("bad"), KeyError(3), StopIteration("odd"), RuntimeError("odd"), SystemExit(3)]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_errors_are_those_of_the_sample(error: BaseException, place: int) -> None:
    transforms: list[Any] = [Plus(1), Plus(2)]
    transforms.insert(place, Fail(error))
    dataset = Numbers(Compose([Compose(transforms), Plus(9)]))
    with pytest.raises(type(error)) as caught:
        in_stages(dataset, 2)
    assert caught.value is error


def test_an_error_that_the_dataset_catches_is_caught_at_its_place() -> None:
    dataset = data.Catches(Compose([Plus(1), Fail(ValueError("bad"))]))
    assert in_stages(dataset, 3)[0] == "caught bad" == dataset[3]
    assert dataset.last == 3
    stages_and_sample_agree(data.Catches(Compose([Plus(1)])), 2)


def test_an_error_of_the_load_is_raised_and_ends_the_run() -> None:
    begin = find_stages(Numbers(Compose(THREE)))
    assert begin is not None
    run = begin(99)
    with pytest.raises(IndexError, match="99"):
        run.advance()
    assert run.done


def test_a_sample_that_is_given_up_runs_its_finally() -> None:
    dataset = data.Catches(Compose([Plus(1)]))
    begin = find_stages(dataset)
    assert begin is not None
    run = begin(5)
    run.advance()
    assert not hasattr(dataset, "last")
    run.close()
    assert dataset.last == 5


def test_modules_that_do_more_than_their_forward_are_one_stage() -> None:
    module = data.ModuleCompose([Plus(1), Plus(2)])
    handle = module.register_forward_hook(lambda _module, _args, out: out * 1000)
    assert stages_and_sample_agree(Numbers(module), 2) == ["load", "ModuleCompose"]
    handle.remove()
    assert stages_and_sample_agree(Numbers(module), 2) == ["load", "Plus", "Plus"]
    module.forward = lambda x: x  # type: ignore[method-assign]
    assert stages_and_sample_agree(Numbers(module), 2) == ["load", "ModuleCompose"]


def test_attributes_may_change_after_the_search() -> None:
    dataset = Numbers(Compose([Plus(1)]))
    begin = find_stages(dataset)
    assert begin is not None
    for transform in (Compose([Plus(5), Plus(6)]), None, abs):
        dataset.transform = transform
        run = begin(3)
        while not run.advance():
            pass
        assert run.result == dataset[3]


def test_parts_that_are_exchanged_after_the_search_are_used() -> None:
    subset = Subset(Numbers(Compose([Plus(1)])), [3, 2, 1])
    both = ConcatDataset([Numbers(Compose([Plus(1)]), length=2), Numbers(Compose([Plus(1)]))])
    for dataset in (subset, both):
        begin = find_stages(dataset)
        assert begin is not None
        if dataset is subset:
            subset.dataset = Numbers(Compose([Plus(100)]))
        else:
            both.datasets[0] = Numbers(Compose([Plus(100)]))
        run = begin(1)
        while not run.advance():
            pass
        assert run.result == dataset[1]


@pytest.mark.parametrize("index", [-1, 20, True])
def test_indices_that_are_odd_are_the_datasets_business(index: int) -> None:
    both = ConcatDataset([Numbers(Compose([Plus(1)]), length=3), Numbers(Compose([Plus(1)]), length=4)])
    try:
        expected = both[index]
    except Exception as error:
        with pytest.raises(type(error)):
            in_stages(both, index)
    else:
        assert in_stages(both, index)[0] == expected


# ---- StagedDataset -------------------------------------------------------------------------------------------------


def double(x: Any) -> Any:
    return x * 2


def as_tensor(index: int) -> torch.Tensor:
    return torch.full((3,), float(index))


@pytest.mark.parametrize("loader", [DataLoader, minato.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_staged_dataset_is_an_ordinary_dataset(loader: Any, workers: int) -> None:
    dataset = minato.StagedDataset(as_tensor, [double, Plus(1)], 10)
    batches = list(loader(dataset, batch_size=4, num_workers=workers))
    assert [batch[:, 0].tolist() for batch in batches] == [[1, 5, 9, 13], [17, 21, 25, 29], [33, 37]]


def test_a_staged_dataset_is_a_sequence_that_ends() -> None:
    dataset = minato.StagedDataset(as_tensor, [double], 3)
    assert len(dataset) == 3
    assert [float(sample[0]) for sample in dataset] == [0, 2, 4]
    assert float(dataset[-1][0]) == 4
    for index in (3, -4):
        with pytest.raises(IndexError, match="3 samples"):
            dataset[index]
    assert len(dataset + dataset) == 6


def test_copies_of_a_staged_dataset_are_as_good() -> None:
    dataset = minato.StagedDataset(as_tensor, [double], 3)
    for clone in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert float(clone[1][0]) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1, [], 2), TypeError, "load must be callable"),
        ((abs, [abs, 3], 2), TypeError, "3 as number 1"),
        ((abs, [], 2.0), TypeError, "length must be an integer"),
        ((abs, [], -1), ValueError, "length must not be negative"),
    ],
)
def test_a_staged_dataset_says_what_it_was_given_wrong(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        minato.StagedDataset(*arguments)
