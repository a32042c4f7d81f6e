"""Random numbers of a sample: a function of base seed, epoch, position and index, never of the worker that got it.

Seeding three generators takes about 12 µs, as much as a cheap sample. So a generator is seeded for every sample only
while samples are seen to draw from it:

- at first every generator is seeded for every sample, and looked at after it;
- one that `QUIET_SAMPLES` samples in a row left alone is only watched, once per run of samples (for a collate_fn,
  `QUIET_COLLATIONS` batches: in the main process a batch on trial costs far more than its seeds, for all generators are
  put back after it);
- when a watched generator turns out to have been used after all, the run is fetched again with seeding, and that
  generator is seeded for every sample from then on. This can happen once per generator and process.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .generators import Generator, all_generators, mix

QUIET_SAMPLES = 32
QUIET_COLLATIONS = 4
COLLATE_SALT = 0xC0  # tells a batch's collation from its first sample

Reseed = Callable[[int], None]
Fetch = Callable[[Reseed | None], list[Any]]


def sample_seed(epoch_seed: int, position: int, key: object) -> int:
    """The seed of one sample. The key tells ranks apart that share a base seed, the position repeated keys."""
    return mix(epoch_seed, position, _number(key))


def _number(key: object) -> int:
    try:
        return operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        return zlib.crc32(key.encode()) if isinstance(key, str) else 0


class Randomness:
    """Runs fetches under their samples' seeds."""

    def __init__(
        self,
        generators: Sequence[Generator] | None = None,
        known_quiet: set[Generator] | None = None,
        trial: int = QUIET_SAMPLES,
    ) -> None:
        """`known_quiet`: generators to be watched from the start; kept up to date with what is seen. `trial`: samples
        in a row that have to leave a generator alone."""
        everyone = list(all_generators() if generators is None else generators)
        self._known_quiet: set[Generator] = set() if known_quiet is None else known_quiet
        self._trial = trial
        self._watched = [generator for generator in everyone if generator in self._known_quiet]
        self._seeded = [generator for generator in everyone if generator not in self._known_quiet]
        self._salts = {generator: salt for salt, generator in enumerate(everyone)}
        self._quiet: dict[Generator, int] = dict.fromkeys(self._seeded, 0)
        """Generators on trial: samples in a row that left them alone."""
        self._before: list[object] = []
        """What the watched generators looked like before the run."""
        self._fresh: dict[Generator, object] = {}
        """Generators on trial: what they looked like right after seeding."""

    @property
    def seeds(self) -> bool:
        """Whether some generator is seeded for every sample at present."""
        return bool(self._seeded)

    def fetch(self, fetch: Fetch, seeds: Callable[[int], int]) -> list[Any]:
        """Call `fetch` with what it has to call before each sample (given the sample's number in the run), or None."""

        def reseed(number: int) -> None:
            self._judge()
            seed = seeds(number)
            for generator in self._seeded:
                generator.seed(seed ^ self._salts[generator])
            self._fresh = {generator: generator.glance() for generator in self._quiet}

        self._before = before = self.glances()
        samples = fetch(reseed if self._seeded else None)
        self._judge()
        while self.were_used(before):
            self._before = before = self.glances()
            with self.preserved():
                samples = fetch(reseed)
                self._judge()
                used = self.glances() != before
            if not used:
                break
        return samples

    def glances(self) -> list[object]:
        """What the watched generators look like now."""
        return [generator.glance() for generator in self._watched]

    def were_used(self, before: list[object]) -> bool:
        """Whether something was drawn since `before` from generators that were only watched. They are put back, and
        seeded for every sample from now on: what was fetched meanwhile has to be fetched again."""
        if self.glances()[: len(before)] == before:
            return False
        for generator, glance in zip(list(self._watched), before, strict=False):
            if generator.glance() != glance:
                generator.rewind(glance)
                self._watched.remove(generator)
                self._seeded.append(generator)
                self._known_quiet.discard(generator)
        return True

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Leave the process's own random streams as they were: for samples fetched in the main process."""
        saved = [(generator, generator.save()) for generator in self._seeded]
        try:
            yield
        finally:
            for generator, state in saved:
                generator.restore(state)

    def _judge(self) -> None:
        """Whether the sample that just ended drew from the generators on trial."""
        for generator, glance in self._fresh.items():
            if generator.glance() != glance:
                del self._quiet[generator]  # it is drawn from: seeded for good
                continue
            self._quiet[generator] += 1
            if self._quiet[generator] >= self._trial:
                del self._quiet[generator]
                self._known_quiet.add(generator)
                self._seeded.remove(generator)
                self._watched.append(generator)
                self._before.append(glance)  # watched for the rest of the run as well
        self._fresh = {}
