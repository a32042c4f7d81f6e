"""The next epoch, before the user asks for it: no bubble between epochs with persistent workers.

When the sampler of an epoch is exhausted, workers would idle until the user's loop comes round. With torch's own
samplers the next epoch's order can be known early: it depends on nothing but the state of a random generator and the
length of the dataset. So it is drawn ahead of time, the generator is put back, and when the next epoch really begins
it is used only if nothing it depended on has changed: the generator, the sampler, the dataset. Otherwise what was begun
is dropped, and this loader does not try again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from .._workers.sync import DatasetWatch
from .courses import Course, begin_course

# Their order depends on a generator and a length only. Not DistributedSampler: set_epoch changes it between epochs.
_FORESEEABLE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

MOST_FORESEEN = 4_000_000  # positions drawn at once; more would hold up the last batches of the epoch before


class Forecast:
    """Foresees the order of the next epoch of one sampler."""

    def __init__(self, batch_sampler: Any) -> None:
        self._batch_sampler = batch_sampler
        self._sampler = batch_sampler.sampler if type(batch_sampler) is BatchSampler else batch_sampler
        self._per_batch: int = getattr(batch_sampler, "batch_size", 1)
        self._given_up = type(self._sampler) not in _FORESEEABLE
        self._made: _Made | None = None

    def make(self) -> Course | None:
        """The next epoch's batches, drawn without leaving a trace on the generator; None if they cannot be foreseen."""
        if self._given_up:
            return None
        if self._given() is not None and len(self._batch_sampler) * self._per_batch > MOST_FORESEEN:
            self.give_up()
            return None
        generator = self._generator()
        before = generator.get_state()
        course = begin_course(self._batch_sampler)
        # A given generator is drawn from while the sampler goes on, so all has to be drawn now. From the default one
        # samplers take only what they need at once, with their first element.
        drawn: list[Any] = []
        states: list[torch.Tensor] = []
        for batch in course.batches:
            drawn.append(batch)
            states.append(generator.get_state())
            if self._given() is None:
                break
        states.append(generator.get_state())
        generator.set_state(before)
        self._made = _Made(generator, before, states, len(self._batch_sampler), DatasetWatch(self._sampler))
        return course.retold(self._made.replay(drawn, course.batches))

    def came_true(self, batch_sampler: Any) -> bool:
        """Whether the epoch that begins now with `batch_sampler` is the one foreseen; then the generator moves on."""
        made, self._made = self._made, None
        if made is None:
            return False
        same = batch_sampler is self._batch_sampler and len(batch_sampler) == made.length
        if same and made.generator is self._generator() and made.adopt():
            return True
        self.give_up()
        return False

    def give_up(self) -> None:
        """Foresee nothing from now on: work that is thrown away is worse than a bubble."""
        self._made = None
        self._given_up = True

    def _given(self) -> torch.Generator | None:
        given: torch.Generator | None = getattr(self._sampler, "generator", None)
        return given

    def _generator(self) -> torch.Generator:
        given = self._given()
        return torch.default_generator if given is None else given


class _Made:
    """A forecast: the sampler it is for, as it was, and what the sampler did to the generator batch by batch."""

    def __init__(
        self,
        generator: torch.Generator,
        before: torch.Tensor,
        states: list[torch.Tensor],
        length: int,
        sampler: DatasetWatch,
    ) -> None:
        self.generator = generator
        self.length = length
        self._before = before
        self._states = states
        """The generator after each batch that was drawn, and last after the end of the sampler."""
        self._sampler = sampler
        self._reached = before
        self._adopted = False

    def replay(self, drawn: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
        """The batches. Once the epoch is under way for real, the generator moves along with them, as with torch."""
        for batch, state in zip(drawn, self._states, strict=False):
            self._move(state)
            yield batch
        yield from rest
        self._move(self._states[-1])

    def adopt(self) -> bool:
        """The epoch begins for real: False if generator or sampler are not as they were."""
        draws = _bytes(self._states[-1]) != _bytes(self._before)
        untouched = not draws or _bytes(self.generator.get_state()) == _bytes(self._before)
        if not untouched or self._sampler.changes() is not None:
            return False
        self._adopted = draws
        if draws:
            self.generator.set_state(self._reached)
        return True

    def _move(self, state: torch.Tensor) -> None:
        """The sampler has come to `state`. Where the program has drawn from the same generator since, its draws stay:
        put back, it would give the program the same numbers twice."""
        before, self._reached = self._reached, state
        if not self._adopted or _bytes(state) == _bytes(before):
            return
        if _bytes(self.generator.get_state()) == _bytes(before):
            self.generator.set_state(state)


def _bytes(state: torch.Tensor) -> bytes:
    return state.cpu().numpy().tobytes()
