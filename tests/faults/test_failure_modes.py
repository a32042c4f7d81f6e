"""The 25 ways in which data loaders fail their users: what torch's loader does, and what minato does.

`MODES` says where each is shown; those shown here run the same body on both loaders, in a forked copy of this process
where torch's may hang or leave something behind. docs/reliability.md has the table in words.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import resource
import threading
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.utils.data
from torch.utils.data import IterableDataset, get_worker_info

import minato
from minato.errors import ForkHazardWarning, RepeatedStreamWarning

from .copies import in_a_copy
from .data import Big, Rows, die
from .tools import ROOT

LOADERS = {"torch": torch.utils.data.DataLoader, "minato": minato.DataLoader}
HANG_S = 2.0  # a body that should hang is given this long not to

HERE = "tests/faults/test_failure_modes.py"
MODES: dict[int, tuple[str, ...]] = {
    1: (
        f"{HERE}::test_01_large_containers_are_warned_about",
        "tests/unit/workers/test_copies.py::test_a_large_container_of_objects_is_named_with_its_size",
    ),
    2: (
        f"{HERE}::test_02_kept_batches_cost_no_descriptors",
        "tests/faults/test_scarcity.py::test_a_thousand_batches_may_be_kept_with_few_descriptors",
        "tests/faults/test_scarcity.py::test_running_out_of_descriptors_is_an_error_that_leaves_nothing_behind",
    ),
    3: (
        f"{HERE}::test_03_batches_do_not_go_through_dev_shm",
        "tests/faults/test_scarcity.py::test_batches_may_be_larger_than_dev_shm",
    ),
    4: (
        f"{HERE}::test_04_a_killed_worker_costs_no_sample",
        "tests/faults/test_deaths.py::test_death_while_fetching_loses_nothing",
        "tests/faults/test_deaths.py::test_a_sample_that_always_kills_is_named",
        "tests/faults/test_deaths.py::test_random_kills_lose_nothing",
    ),
    5: (
        "tests/compat/test_workers.py::test_timeout_raises_in_the_main_process",
        "tests/compat/test_workers.py::test_after_a_timeout_one_may_go_on_waiting",
    ),
    6: (
        "tests/faults/test_ends.py::test_an_abandoned_iterator_does_not_wait_for_a_long_sample",
        "tests/faults/test_process_ends.py::test_an_interpreter_with_a_live_iterator_ends_quietly",
    ),
    7: (
        "tests/faults/test_process_ends.py::test_ctrl_c_gives_one_traceback",
        "tests/faults/test_process_ends.py::test_one_may_go_on_after_ctrl_c",
    ),
    8: (
        "tests/faults/test_process_ends.py::test_workers_are_gone_soon_after_their_parent_was_killed",
        "tests/faults/test_process_ends.py::test_all_workers_in_a_long_call_are_gone_soon_after_their_parent_was_killed",
    ),
    9: (
        f"{HERE}::test_09_a_lock_held_at_the_fork_is_named",
        "tests/unit/workers/test_hazards.py::test_a_thread_in_the_middle_of_an_import_is_named",
        "tests/compat/test_workers.py::test_every_start_method_gives_the_same_batches",
    ),
    10: (
        f"{HERE}::test_10_no_thread_pins_memory",
        "tests/unit/device/test_pinning.py::test_slots_are_covered_before_they_are_lent",
    ),
    11: (f"{HERE}::test_11_a_sample_that_cannot_be_pickled_is_an_error",),
    12: (
        f"{HERE}::test_12_an_exception_arrives_as_its_own_type",
        "tests/compat/test_errors.py::test_an_exception_of_any_class_arrives_as_itself",
    ),
    13: (
        f"{HERE}::test_13_random_numbers_do_not_depend_on_the_workers",
        "tests/compat/test_random.py::test_the_same_seed_gives_the_same_samples_for_any_number_of_workers",
    ),
    14: (
        f"{HERE}::test_14_streams_that_all_workers_repeat_are_warned_about",
        "tests/compat/test_datasets.py::test_each_worker_has_the_whole_stream_unless_the_dataset_shards_it",
        "tests/compat/test_arguments.py::test_a_stream_that_every_worker_repeats_is_warned_about_with_advice",
    ),
    15: (
        "tests/compat/test_datasets.py::test_drop_last_drops_the_short_batch_of_every_worker",
        "tests/compat/test_reordering.py::test_drop_last_drops_what_does_not_fill_a_batch",
    ),
    16: (
        "tests/faults/test_start.py::test_a_dataset_that_cannot_be_pickled_is_refused_by_name",
        "tests/faults/test_start.py::test_a_dataset_that_became_unpicklable_is_refused_by_iter_and_leaves_nothing_behind",
    ),
    17: (
        "tests/faults/test_start.py::test_the_dataset_is_pickled_once_for_all_workers",
        "tests/faults/test_start.py::test_the_first_batch_is_spread_over_all_workers",
    ),
    18: (
        f"{HERE}::test_18_set_epoch_reaches_persistent_workers",
        "tests/faults/test_persistent.py::test_set_epoch_reaches_workers_that_live_on",
    ),
    19: (
        f"{HERE}::test_19_a_dataset_may_start_processes",
        "tests/faults/test_ends.py::test_a_dataset_in_a_worker_may_have_a_loader_with_workers",
    ),
    20: (
        "tests/faults/test_ends.py::test_an_abandoned_iterator_stops_its_workers",
        "tests/faults/test_ends.py::test_a_persistent_loader_as_garbage_stops_its_workers",
    ),
    21: (
        f"{HERE}::test_21_an_open_file_is_named",
        "tests/unit/workers/test_hazards.py::test_what_is_open_is_named_with_its_path",
    ),
    22: (f"{HERE}::test_03_batches_do_not_go_through_dev_shm",),
    23: ("tests/faults/test_resume.py::test_every_batch_of_an_epoch_is_a_point_to_resume_from",),
    24: (
        f"{HERE}::test_24_the_sampler_is_started_once",
        "tests/compat/test_iteration.py::test_every_kind_of_sampler_is_started_once_per_epoch",
    ),
    25: (f"{HERE}::test_25_workers_use_one_thread_and_the_cores_of_their_parent",),
}
"""Where each failure mode is shown, by its number."""


def test_every_failure_mode_is_shown_by_tests_that_exist():
    assert list(MODES) == list(range(1, 26))
    cited = {test for tests in MODES.values() for test in tests}
    missing = [test for test in cited if test.partition("::")[2] not in names_in(test.partition("::")[0])]
    assert not missing


def test_every_test_here_belongs_to_a_mode():
    cited = {test for tests in MODES.values() for test in tests}
    mine = {f"{HERE}::{name}" for name in names_in(HERE) if name[5:7].isdecimal()}
    assert mine <= cited


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")}


def on_both(body, within_s=30.0):
    """The outcomes of `body(loader_class)` on torch's loader and on minato's."""
    return tuple(in_a_copy(partial(body, loader), within_s) for loader in LOADERS.values())


# ------------------------------------------------------------------------------------------------------------ memory


def told_by(body):
    """Names of the warning classes of a body."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        body()
    return sorted({warning.category.__name__ for warning in caught})


class Listing(Rows):
    """Holds many Python objects."""

    def __init__(self, length):
        super().__init__(4)
        self.paths = [f"images/{k:09d}" for k in range(length)]


def test_01_large_containers_are_warned_about(monkeypatch):
    """Both grow by the size of the list in every worker (figures in docs/errors.md); only minato says so."""
    monkeypatch.setattr("minato._workers.copies.warn_of_copies.__defaults__", (1000,))
    theirs, ours = on_both(lambda loader: told_by(lambda: list(loader(Listing(5000), num_workers=2))))
    assert theirs.value == []
    assert ours.value == ["CopyOnWriteWarning"]


def keep_with_few_descriptors(loader_class):
    few = len(os.listdir("/proc/self/fd")) + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
    kept = list(loader_class(Big(128, kib=4), 1, num_workers=2))
    return [int(batch[0, 0]) for batch in kept]


def test_02_kept_batches_cost_no_descriptors():
    """torch's loader needs a descriptor for every batch that is kept, and fails in one of several ways."""
    theirs, ours = on_both(keep_with_few_descriptors, within_s=10.0)
    assert theirs.how != "returned"
    assert ours.value == list(range(128))


def mapped_names(loader_class):
    """Whether files in /dev/shm, and memfds, have come behind this process's memory with a batch in hand."""

    def mapped():
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line for line in lines if "/dev/shm/torch_" in line}, {line for line in lines if "memfd:" in line}

    before = mapped()
    batch = next(iter(loader_class(Big(8, kib=64), 2, num_workers=2)))
    assert len(batch) == 2
    return tuple(bool(now - then) for then, now in zip(before, mapped(), strict=True))


def test_03_batches_do_not_go_through_dev_shm():
    """A small or full /dev/shm, and whoever removes files from it, are torch's problem only."""
    theirs, ours = on_both(mapped_names)
    assert theirs.value == (True, False)
    assert ours.value == (False, True)


# ---------------------------------------------------------------------------------------------------- deaths and hangs


class OnceDeadly(Rows):
    """The first process to fetch sample 5 is killed by it."""

    def __init__(self, length, marks):
        super().__init__(length)
        self.marks = marks

    def __getitem__(self, index):
        if index == 5 and self.marks.once("death"):
            die("SIGKILL")
        return super().__getitem__(index)


def test_04_a_killed_worker_costs_no_sample(marks):
    def body(loader_class):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = [batch[:, 0].tolist() for batch in loader_class(OnceDeadly(12, marks), 4, num_workers=2)]
        return batches, [str(warning.message) for warning in caught if "killed" in str(warning.message)]

    theirs = in_a_copy(lambda: body(torch.utils.data.DataLoader))
    assert (theirs.how, theirs.error) == ("raised", "RuntimeError")
    assert theirs.value.startswith("DataLoader worker (pid")
    assert "index" not in theirs.value  # it does not say which sample
    (marks.folder / "death").unlink()
    ours = in_a_copy(lambda: body(minato.DataLoader))
    batches, told = ours.value
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(told) == 1
    assert "sample index" in told[0]


class Locking(Rows):
    """Needs its lock for every sample."""

    def __init__(self):
        super().__init__(4)
        self.lock = threading.Lock()

    def __getitem__(self, index):
        with self.lock:
            return index


def iterate_while_a_thread_holds_the_lock(loader_class):
    warnings.simplefilter("error", ForkHazardWarning)
    dataset, held = Locking(), threading.Event()

    def hold():
        with dataset.lock:
            held.set()
            threading.Event().wait(60)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    return len(list(loader_class(dataset, num_workers=1)))


def test_09_a_lock_held_at_the_fork_is_named():
    body = iterate_while_a_thread_holds_the_lock
    assert in_a_copy(lambda: body(torch.utils.data.DataLoader), HANG_S).how == "hangs"
    ours = in_a_copy(lambda: body(minato.DataLoader))
    assert ours.error == "ForkHazardWarning"
    assert "dataset.lock (_thread.lock) is held" in ours.value


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
def test_10_no_thread_pins_memory():
    """torch's loader has a thread for it, whose death or delay holds up everything; here the consumer does it."""
    before = threading.active_count()
    iterator = iter(minato.DataLoader(Rows(8), 2, num_workers=1, pin_memory=True))
    assert len(next(iterator)) == 2
    assert threading.active_count() == before


# --------------------------------------------------------------------------------------------------------- errors


class Lambdas(Rows):
    """Samples are functions without a name."""

    def __getitem__(self, index):
        return lambda: index


def test_11_a_sample_that_cannot_be_pickled_is_an_error():
    def body(loader_class):
        return len(list(loader_class(Lambdas(2), batch_size=None, num_workers=1)))

    assert in_a_copy(lambda: body(torch.utils.data.DataLoader), HANG_S).how == "hangs"
    ours = in_a_copy(lambda: body(minato.DataLoader))
    assert ours.how == "raised"
    assert "lambda" in ours.value


class OddError(Exception):
    """Cannot be made from a message alone."""

    def __init__(self, code, *, path):
        super().__init__(code)
        self.path = path


class Failing(Rows):
    def __getitem__(self, index):
        raise OddError(7, path="/data")


def test_12_an_exception_arrives_as_its_own_type():
    def body(loader_class):
        try:
            return list(loader_class(Failing(2), num_workers=1))
        except OddError as error:
            return error.args, error.path

    theirs, ours = on_both(body)
    assert (theirs.how, theirs.error) == ("raised", "RuntimeError")
    assert ours.value == ((7,), "/data")


class Drawing(Rows):
    """Every sample is a random number."""

    def __getitem__(self, index):
        return int(torch.randint(1 << 40, ()))


def test_13_random_numbers_do_not_depend_on_the_workers():
    def body(loader_class):
        return [
            torch.cat(
                list(loader_class(Drawing(8), 2, num_workers=n, generator=torch.Generator().manual_seed(1)))
            ).tolist()
            for n in (1, 2, 3)
        ]

    warnings.filterwarnings("ignore", message="This DataLoader will create")
    theirs, ours = on_both(body)
    assert theirs.value[0] != theirs.value[1]
    assert ours.value[0] == ours.value[1] == ours.value[2]
    assert len(set(ours.value[0])) == 8


# --------------------------------------------------------------------------------------------------- starts and epochs


class Epochal(Rows):
    """Samples tell the epoch."""

    epoch = 0

    def __getitem__(self, index):
        return self.epoch


def test_18_set_epoch_reaches_persistent_workers():
    def body(loader_class):
        dataset, seen = Epochal(4), []
        loader = loader_class(dataset, 4, num_workers=1, persistent_workers=True)
        for dataset.epoch in range(3):
            seen += [batch.tolist() for batch in loader]
        return seen

    theirs, ours = on_both(body)
    assert theirs.value == [[0] * 4] * 3
    assert ours.value == [[epoch] * 4 for epoch in range(3)]


class Delegating(Rows):
    """A child process makes each sample."""

    def __getitem__(self, index):
        # Not a queue: its semaphores' files stay behind where torch's loader, which fails, ends the worker meanwhile.
        receiving, sending = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=sending.send, args=(index,))
        child.start()
        child.join()
        return receiving.recv()


def test_19_a_dataset_may_start_processes():
    theirs, ours = on_both(lambda loader: [int(batch) for batch in loader(Delegating(2), num_workers=1)])
    assert theirs.error == "AssertionError"
    assert "daemonic processes are not allowed to have children" in theirs.value
    assert ours.value == [0, 1]


def test_21_an_open_file_is_named(tmp_path):
    """Whether workers that share a file position read wrong bytes is a matter of luck; that they share it is not."""
    (tmp_path / "records").write_bytes(bytes(range(8)))

    def body(loader_class):
        dataset = Rows(8)
        with open(tmp_path / "records", "rb") as dataset.records:
            return told_by(lambda: list(loader_class(dataset, num_workers=2)))

    theirs, ours = on_both(body)
    assert theirs.value == []
    assert ours.value == ["ForkHazardWarning"]


class Numbers(IterableDataset):
    """Every worker yields all numbers, or only its own."""

    def __init__(self, divided):
        self.divided = divided

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if self.divided else (0, 1)
        return iter(range(first, 12, step))


@pytest.mark.parametrize("size", [None, 2], ids=["samples", "batches"])
def test_14_streams_that_all_workers_repeat_are_warned_about(size):
    """torch's loader says so only where `len` was asked and is too small."""

    def body(divided, loader_class):
        loader = loader_class(Numbers(divided), size, num_workers=2, collate_fn=list if size else None)
        return told_by(lambda: list(loader))

    assert [outcome.value for outcome in on_both(partial(body, False))] == [[], ["RepeatedStreamWarning"]]
    assert [outcome.value for outcome in on_both(partial(body, True))] == [[], []]


class CountsStarts:
    """A batch sampler that knows how often it was started."""

    starts = 0

    def __iter__(self):
        self.starts += 1
        return iter([[0, 1], [2, 3]])

    def __len__(self):
        return 2


def test_24_the_sampler_is_started_once():
    def body(loader_class):
        sampler = CountsStarts()
        assert len(list(loader_class(Rows(4), batch_sampler=sampler, num_workers=1))) == 2
        return sampler.starts

    theirs, ours = on_both(body)
    assert (theirs.value, ours.value) == (2, 1)


class Threads(Rows):
    """Samples tell how many threads their worker may use, and which cores."""

    def __getitem__(self, index):
        return torch.tensor([torch.get_num_threads(), *sorted(os.sched_getaffinity(0))])


def test_25_workers_use_one_thread_and_the_cores_of_their_parent():
    """A process pinned to one core is told that it has too many workers for it; torch's loader does that as well."""
    core = min(os.sched_getaffinity(0))

    def body(loader_class):
        os.sched_setaffinity(0, {core})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = [batch.tolist() for batch in loader_class(Threads(2), 2, num_workers=2)]
        return batches, {str(warning.message).partition(", which")[0] for warning in caught}

    for outcome in on_both(body):
        batches, told = outcome.value
        assert batches == [[[1, core], [1, core]]]
        assert len(told) == 1
        assert "Our suggested max number of worker in current system is 1" in told.pop()


class WholeForEach(IterableDataset):
    """A stream that is not divided among the workers."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


@pytest.mark.filterwarnings("error::minato.errors.RepeatedStreamWarning")
@pytest.mark.parametrize("length", [24, 400], ids=["short", "long"])
def test_a_warning_of_repeated_streams_that_is_made_an_error_costs_no_batch(length):
    loader = minato.DataLoader(WholeForEach(length), batch_size=4, num_workers=2)
    iterator, batches = iter(loader), []
    with pytest.raises(RepeatedStreamWarning):
        while True:
            batches.append(next(iterator))
    assert len(batches) < 2 * length / 4 or length == 24  # a long stream is told of long before its end
    batches += list(iterator)
    assert sorted(torch.cat(batches).tolist()) == sorted([*range(length)] * 2)


class SameHeader(IterableDataset):
    """Streams that are divided, and begin with the same samples all the same."""

    def __iter__(self):
        yield from range(8)
        yield from range(get_worker_info().id, 100, get_worker_info().num_workers)


@pytest.mark.filterwarnings("error::minato.errors.RepeatedStreamWarning")
def test_streams_that_only_begin_alike_are_not_taken_for_repeated_ones():
    assert len(list(minato.DataLoader(SameHeader(), batch_size=4, num_workers=2))) == 30


class SameImages(IterableDataset):
    """Streams that are divided; all images are alike, and only what belongs to them differs."""

    def __iter__(self):
        for number in range(get_worker_info().id, 100, get_worker_info().num_workers):
            yield torch.zeros(64, 1024), number


@pytest.mark.filterwarnings("error::minato.errors.RepeatedStreamWarning")
def test_streams_of_large_images_that_are_alike_are_not_taken_for_repeated_ones():
    loader = minato.DataLoader(SameImages(), batch_size=4, num_workers=2)
    assert sorted(torch.cat([numbers for _, numbers in loader]).tolist()) == list(range(100))
