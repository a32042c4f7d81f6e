"""num_workers=0 with `on_error` or `sample_retries`: what `mending` does for workers, in this process."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._errors import SampleError
from .._fetchers.sequential import ask_together
from .._plan import LoaderPlan
from .._queues.keys import Indices, Placed
from .._scheduler.error_policy import ErrorPolicy, Verdict, backoff_s
from .courses import Course
from .inline import Habits, InlineMap, InlineStream
from .progress import MapProgress, StreamPlace
from .remainder import Portion, Reserve
from .totals import Totals


@dataclass(frozen=True, slots=True)
class Failed:
    """In place of a sample."""

    error: Exception


class _LeftOut(Exception):
    """The policy says to go on without."""


class _Judge:
    """Asks the policy, and counts."""

    def __init__(self, plan: LoaderPlan, totals: Totals) -> None:
        self._policy = ErrorPolicy(plan.on_error, plan.sample_retries)
        self._totals = totals

    def insist(
        self,
        attempt: Callable[[], Any] | None,
        error: Exception,
        index: Any,
        position: int | None,
        stage: str,
        samples: int = 1,
    ) -> Any:
        """`attempt` failed with `error`. What a further attempt gives; raises the error, or _LeftOut. Without an
        `attempt` (a stream has nothing that could be asked for again) to go on is all one can do."""
        tries = 0
        while True:
            tries += 1
            failure = _told(error, index, position, stage, tries)
            verdict = self._policy.final(failure) if position is None else self._policy.decide(failure)
            if verdict is Verdict.RAISE:
                raise error
            if verdict is Verdict.SKIP:
                keys = () if position is None else index if stage == "collate" else (index,)
                self._totals.count_skipped(samples, keys, failure)
                raise _LeftOut
            self._totals.samples_retried += samples
            if attempt is None:
                raise _LeftOut
            time.sleep(backoff_s(tries))
            try:
                return attempt()
            except Exception as again:
                error = again


class MendingMap(InlineMap):
    """Batches of a map-style dataset; samples that fail are fetched again, left out, or raised."""

    def __init__(
        self,
        dataset: Any,
        plan: LoaderPlan,
        sampler: Iterable[Any] | Course,
        base_seed: int,
        totals: Totals,
        epoch: int,
        habits: Habits | None = None,
    ) -> None:
        super().__init__(dataset, plan.worker, sampler, base_seed, totals, epoch, habits)
        self._judge = _Judge(plan, totals)
        self._refills = plan.worker.short_batch_last
        self._drop_last = plan.worker.drop_last
        self._full = 0
        self._reserve = Reserve(self._course.before)

    def next_batch(self) -> Any:
        """The next batch; raises StopIteration at the end, or what the user's code raises and the policy lets pass."""
        while True:
            self._taken: list[int] = []
            self.handover.add((self._batches, self._taken))
            keys, samples = self._gather()
            if not keys and (self._full and self._refills):
                self.handover.take_back()
                raise StopIteration  # the sampler has no more
            if not keys:
                self.handover.take_back()
                continue  # nothing is left of this batch
            try:
                batch = self._collated([key.key for key in keys], samples, keys[0].origin)
            except _LeftOut:
                self.handover.take_back()
                continue
            self._totals.batches_delivered += 1
            self._totals.samples_delivered += len(keys)
            return batch

    def progress(self) -> MapProgress:
        """What was delivered or left out."""
        if not self._by_sample:
            return super().progress()
        waiting = [origin for _, taken in self.handover.batches for origin in taken]
        return MapProgress(self._course.origin, self._reserve.delivered(waiting))

    def _gather(self) -> tuple[list[Placed], Any]:
        """Keys of the next batch's good samples, and these, or what `__getitems__` gave in place of a list of them."""
        keys: list[Placed] = []
        samples: list[Any] = []
        wanted = self._take(self._full)
        self._batches += 1  # from here on they count as delivered, whatever the user's code raises
        self._full = self._full or len(wanted)
        while wanted:
            found = self._fetch([key.key for key in wanted], [key.origin for key in wanted])
            if type(found) is not list or len(found) != len(wanted):  # __getitems__ has its own idea of the batch
                return wanted, found
            for key, sample in zip(wanted, found, strict=True):
                try:
                    samples.append(self._insisted(key, sample))
                except _LeftOut:
                    continue
                keys.append(key)
            missing = self._full - len(keys) if self._refills else 0
            wanted = self._take(missing, stops=False) if missing else []
        if self._refills and self._drop_last and len(keys) < self._full:
            return [], []
        return keys, samples

    def _take(self, count: int, stops: bool = True) -> list[Placed]:
        """The next `count` keys where samples are replaced, otherwise the next batch's. At the end of the sampler what
        is left; with `stops`, StopIteration if that is nothing."""
        while not self._refills or not self._reserve or len(self._reserve) < count:
            try:
                keys = next(self._sampler)
            except StopIteration:
                if self._reserve or not stops:
                    break
                self.handover.take_back()
                raise
            if type(keys) is not Portion:
                keys = [keys] if self._single else keys if isinstance(keys, Indices) else list(keys)
            self._reserve.add(keys)
            if not self._refills or not count:
                break
        taken = self._reserve.take(count if self._refills and count else len(self._reserve))
        self._taken += [key.origin for key in taken]
        return taken

    def _insisted(self, key: Placed, sample: Any) -> Any:
        if type(sample) is not Failed:
            return sample

        def attempt() -> Any:
            (again,) = self._fetch([key.key], [key.origin])
            if type(again) is Failed:
                raise again.error
            return again

        return self._judge.insist(attempt, sample.error, key.key, key.origin, "fetch")

    def _collated(self, keys: list[Any], samples: Any, position: int) -> Any:
        def attempt() -> Any:
            if not self._own_function:
                return self._function(samples)
            return self._collate(samples[0] if self._single else samples, position)

        try:
            return attempt()
        except Exception as error:
            return self._judge.insist(attempt, error, keys, position, "collate", len(keys))

    # ---- fetching, with errors in place of samples ------------------------------------------------------------------

    def _fetch_plain(self, keys: Sequence[Any]) -> Any:
        if not self._together:
            self._left = left = iter(keys)
            return [self._one(key) for key in left]
        try:
            return ask_together(self.dataset, keys)
        except Exception as error:
            return [Failed(error)] if len(keys) == 1 else [self._fetch_plain([key])[0] for key in keys]

    def _one(self, key: Any) -> Any:
        try:
            return self.dataset[key]
        except Exception as error:
            return Failed(error)


class MendingStream(InlineStream):
    """Batches of an iterable dataset; what fails is left out, or raised."""

    def __init__(self, dataset: Any, plan: LoaderPlan, totals: Totals, before: StreamPlace | None = None) -> None:
        super().__init__(dataset, plan.worker, totals, before)
        self._judge = _Judge(plan, totals)

    def next_batch(self) -> Any:
        """The next batch; raises StopIteration at the end, or what the user's code raises and the policy lets pass."""
        self.handover.forget_lost()
        self.handover.add((0, self._place))
        while True:
            try:
                return self._delivered(self._samples())
            except _LeftOut:
                continue
            except StopIteration:
                self.handover.take_back()
                raise

    def _samples(self) -> list[Any]:
        try:
            return self._next_samples()
        except Exception as error:
            if self._stream.is_hopeless:
                raise
            return list(self._judge.insist(None, error, None, None, "fetch"))

    def _delivered(self, samples: list[Any]) -> Any:
        if not samples:
            raise StopIteration
        try:
            batch = self._function(samples[0] if self._single else samples)
        except Exception as error:
            return self._judge.insist(None, error, None, None, "collate", len(samples))
        self._totals.batches_delivered += 1
        self._totals.samples_delivered += len(samples)
        return batch


def _told(error: Exception, index: Any, position: int | None, stage: str, tries: int) -> SampleError:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return SampleError(index, position, 0, None, stage, tries, error, text)
