"""Actors make samples as workers do: one by one, in threads, awaited; each with its own random numbers."""

import asyncio
import random
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

import minato
from minato._errors import CapturedError
from minato._plan import Fetcher
from minato._workers.program import Program
from minato.offload import Ray
from minato.offload._making import Cargo, Maker, make_maker
from minato.offload._splitting import can_transform, finish, read, transform
from minato.offload._wire import Job
from tests.integration.offload_data import Transformed


class Own(Dataset[Any]):
    """Draws from the generators of the sample; every seventh sample fails."""

    def __init__(self) -> None:
        self.meeting = threading.Barrier(4)

    def __getitem__(self, key: int) -> Any:
        if key % 7 == 6:
            raise ValueError(f"bad sample {key}")
        return key, minato.get_sample_rng().python.random()


class Meeting(Own):
    """Four samples have to be under way at once for any of them to be made."""

    def __getitem__(self, key: int) -> Any:
        self.meeting.wait(20)
        return super().__getitem__(key)


class OnlyAwaited:
    """No `__getitem__`; four samples have to be under way at once for any of them to be made."""

    def __init__(self) -> None:
        self.under_way = 0
        self.met: asyncio.Event | None = None

    async def __getitem_async__(self, key: int) -> Any:
        self.met = self.met or asyncio.Event()
        drawn = random.random()
        self.under_way += 1
        if self.under_way % 4 == 0:
            self.met.set()
        await asyncio.wait_for(self.met.wait(), 20)
        if key % 7 == 6:
            raise ValueError(f"bad sample {key}")
        return key, drawn, random.random(), minato.get_sample_rng().python.random()


def maker_of(dataset: Any, fetcher: Fetcher = Fetcher.SEQUENTIAL, lanes: int = 1) -> Maker:
    program = Program(dataset, lambda value: value, None)
    return make_maker(Cargo(program, fetcher, lanes), lambda error, key: CapturedError.capture(error, f"{key}"))


def job(keys: list[int]) -> Job:
    return Job(keys, [1000 + key for key in keys], False, False, None, 0)


def made(maker: Maker, keys: list[int]) -> list[Any]:
    try:
        samples = maker.make(job(keys))
    finally:
        maker.close()
    return ["failed" if isinstance(sample, CapturedError) else sample for sample in samples]


def test_a_samples_own_generators_are_seeded_by_the_sample_however_it_is_made() -> None:
    keys = [3, 4, 5, 6]
    expected = [(key, random.Random(1000 + key).random()) if key != 6 else "failed" for key in keys]
    assert made(maker_of(Own()), keys) == expected
    assert made(maker_of(Meeting(), Fetcher.THREADED, 4), keys) == expected, "in threads, all at once"


def test_awaited_samples_draw_their_own_numbers_while_others_are_under_way() -> None:
    found = made(maker_of(OnlyAwaited(), Fetcher.ASYNCIO, 4), [3, 4, 5, 6])
    assert [one if one == "failed" else one[0] for one in found] == [3, 4, 5, "failed"]
    alone = OnlyAwaited()
    alone.under_way = 3  # nobody to wait for
    assert made(maker_of(alone, Fetcher.ASYNCIO, 1), [3]) == found[:1]


def test_an_awaiting_maker_is_used_again_and_again_in_one_loop() -> None:
    maker = maker_of(OnlyAwaited(), Fetcher.ASYNCIO, 4)
    for _ in range(2):
        assert len(maker.make(job([0, 1, 2, 3]))) == 4
    maker.close()


class RngInTransform(Transformed):
    """Its transform asks for the sample's generators."""

    def __init__(self) -> None:
        self.transform = _Shift()  # type: ignore[assignment]


class RngAfter(RngInTransform):
    def __getitem__(self, index: int) -> Any:
        image = torch.zeros(2)
        image = self.transform(image)
        return image, minato.get_sample_rng().python.random()


class RngBefore(RngInTransform):
    def __getitem__(self, index: int) -> Any:
        image = torch.zeros(2) + minato.get_sample_rng().python.random()
        image = self.transform(image)
        return image, index


class _Shift:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image + minato.get_sample_rng().python.random()


def test_a_transform_made_elsewhere_has_the_samples_generators_and_halves_that_share_them_are_not_made() -> None:
    dataset = RngInTransform()
    reading = read(dataset, 5, 77)
    assert reading is not None
    done, (image, _) = finish(reading, transform(dataset, reading.half))
    assert done
    assert image[0, 0].item() == pytest.approx(5 + random.Random(77).random())
    assert read(RngBefore(), 5, 77) is None
    after = read(RngAfter(), 5, 77)
    assert after is not None
    assert finish(after, torch.zeros(2))[0] is False


def test_transforms_are_found_below_subsets_and_concatenations() -> None:
    dataset = Transformed(8)
    for whole in (Subset(dataset, [1, 5]), ConcatDataset([dataset, Subset(dataset, [3])])):
        assert can_transform(whole)
        reading = read(whole, 1, 7)
        assert reading is not None
        assert finish(reading, transform(whole, reading.half))[0]


def test_transforms_of_awaited_samples_are_refused_at_once() -> None:
    pytest.importorskip("ray")

    class Both(Transformed):
        async def __getitem_async__(self, index: int) -> Any:
            return self[index]

    with pytest.raises(ValueError, match="placement='sample'"):
        minato.DataLoader(Both(8), num_workers=1, fetcher="asyncio", offload=Ray(placement="transform"))
