"""Pull tickets, fetch, hand in: the loop of a worker on a map-style dataset. This is the hot path of minato."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._errors import CapturedError
from .._fetchers.chunking import COLLATED_TARGET_S, TARGET_S, ChunkSizer
from .._fetchers.sequential import Word, fetch_each, fetch_onto, fetch_together
from .._plan import Collate, Fetcher, Order
from .._queues.fields import Batch
from .._records import CollateTask, Place, Run
from .._sample_random import SampleSource, announce
from .costs import CostNotes
from .in_stages import InStages
from .randomness import Fetch, Reseed, sample_seed
from .writer import BatchWriter

if TYPE_CHECKING:
    from .lanes import LoopContext

_ALL = 1 << 62
_PART_BYTES = 4 << 20  # of samples fetched before they are written: a write costs as much as copying half a megabyte
WHOLE_FROM = 4  # a collating worker that could do a quarter of a batch in one run does all of it


class MapLoop:
    """One worker's loop. A run of tickets goes from `pull` to `commit` before the next is taken."""

    def __init__(self, context: LoopContext, writer: BatchWriter) -> None:
        plan = context.plan
        self._context = context
        self._board = context.board
        self._worker = context.worker
        self._writer = writer
        if plan.fetcher is not Fetcher.ASYNCIO:  # where samples are awaited, and whoever collates cannot
            writer.make_again = self._make_again
        self._late_rows = plan.order is Order.SAMPLES_OVERTAKE
        self._by_function = plan.collate is not Collate.ROWS
        # Batched reads see the same index lists as with torch: whole batches.
        self._together = plan.together
        self._whole_from = WHOLE_FROM if self._by_function or self._together else 0
        self._in_rows = not self._whole_from
        self._mends = plan.mends
        self._caught = context.caught
        self._board.tells_late = plan.fetcher is Fetcher.SEQUENTIAL  # a lane may have to wait before it may pull
        in_lane = plan.fetcher is not Fetcher.SEQUENTIAL and self._late_rows
        target_s = COLLATED_TARGET_S if self._by_function else TARGET_S
        self._sizer = ChunkSizer(target_s, plan.most_in_run, in_lane)
        self._randomness = context.randomness()
        self._costs = CostNotes(context.board)
        self._late = False
        """Whether the samples in hand took longer than the threshold."""
        self._stages = InStages(context, self._hand_in_one, self._capture)
        self._parks = plan.parks and not self._together
        if not plan.parks and plan.fetcher is Fetcher.SEQUENTIAL:
            self._take_longer_runs()

    def run(self) -> None:
        """Work until the pool stops, or this worker is dismissed; then what it has put aside is finished first."""
        context, stages = self._context, self._stages
        while not context.stopped:
            if self._parks and stages.is_due:
                self._board.tell()
                stages.resume()
            else:
                self._work()
        while stages.has_parked and not context.board.stopped:
            self._board.tell()
            stages.resume()
        self._board.tell()

    def _work(self) -> None:
        """Take tickets, and make their samples; sleep if there are none."""
        context = self._context
        unsent = self._board.are_unsent
        # Rows that are claimed before a run with a slow sample in it would keep their batch waiting for that one.
        with_rows = self._late_rows and (unsent or (self._in_rows and self._sizer.is_even))
        want = _ALL if self._together or unsent else self._sizer.size(in_parts=with_rows)
        taken = self._board.pull(want, WHOLE_FROM if unsent else self._whole_from, with_rows=with_rows)
        if taken is None:
            if self._stages.has_parked:
                self._stages.resume()
            else:
                context.sleep()
        elif isinstance(taken, CollateTask):
            self._writer.collate_rows(taken.batch)
        else:
            context.sync_dataset()
            place = self._known_rows(taken)
            if want == 1 and self._parks and self._wants_stages():
                self._stages.make(taken)
            elif place is None:
                self.hand_in(taken, self._fetch(taken))
            elif unsent:
                self._fill(place, self._fetch(taken), range(taken.position, taken.position + place.count))
            else:
                self._fetch_into(place, taken)

    def _wants_stages(self) -> bool:
        """Whether a sample that was taken alone is to be made in stages."""
        wanted = self._stages.is_wanted(self._sizer.is_measured)
        if self._stages.is_opaque:
            self._parks = False
            self._take_longer_runs()
        return wanted

    def _take_longer_runs(self) -> None:
        """Slow samples are not to be parked, so others need not be taken one by one for their sake, where those behind
        a slow one have no rows yet."""
        if self._late_rows and self._in_rows:
            self._sizer.allow_waiting(self._context.plan.batch_size or 1)

    def _known_rows(self, run: Run) -> Place | None:
        """The rows of the run's samples, if they can be written there as they come."""
        if not self._in_rows or self._late_rows:
            return run.place
        return Place(run.batch, run.first, len(run.keys))

    def _fetch_into(self, place: Place, run: Run) -> None:
        """Fetch the run's samples and write them into their rows, a part of the run at a time, or, if they are large,
        each by itself."""
        keys, writer, dataset = run.keys, self._writer, self._context.dataset_for(len(run.keys))
        current, singly = self._costs.watch(run), writer.goes_singly
        part = max(1, _PART_BYTES // writer.row_bytes) if writer.row_bytes else len(keys)

        def fetch(reseed: Reseed | None) -> list[Any]:
            done = 0
            while done < len(keys):
                sheet = writer.sheet(place, done) if singly else None
                if sheet is not None:
                    fetch_onto(sheet.put, dataset, keys[done:], reseed, self._capture, done, current, self._caught)
                    break
                end = 1 if singly and not done else done + part  # the first may give its batch rows for the others
                samples = fetch_each(dataset, keys[done:end], reseed, self._capture, done, current, self._caught)
                writer.write(Place(place.batch, place.row + done, len(samples)), samples)
                done = end
                del samples  # the next ones use their memory
            return []

        self._measured(run, fetch)
        self._commit(place, range(run.position, run.position + len(keys)))

    def _fetch(self, run: Run) -> Any:
        """The run's samples, each under its own random seed; errors in place of samples that failed. Or what
        `__getitems__` gave in place of a list of them."""
        return self._measured(run, self._fetcher(run, self._costs.watch(run)))

    def _fetcher(self, run: Run, current: Word) -> Fetch:
        """Fetches the samples of a run; `current` is told which it is at."""
        keys, dataset = run.keys, self._context.dataset_for(len(run.keys))

        def fetch(reseed: Reseed | None) -> Any:
            if not self._together:
                return fetch_each(dataset, keys, reseed, self._capture, 0, current, self._caught)
            if reseed is not None:
                reseed(0)
            return fetch_together(dataset, keys, self._capture, self._mends, current, self._caught)

        return fetch

    def _make_again(self, epoch: int, position: int) -> Any:
        """A sample that the worker that made it could not send here, with the random numbers that it had there."""
        run, current = self._board.run_at(epoch, position), [0]
        made = self._seeded(run, self._fetcher(run, current), current)
        if type(made) is list and len(made) == 1:
            return made[0]
        return self._capture(_no_part_of_batch(made, 1), run.keys[0])

    def _measured(self, run: Run, fetch: Fetch) -> list[Any]:
        """Call `fetch` under the seeds of the run's samples, and note how long that took."""
        started = time.perf_counter()
        samples = self._seeded(run, fetch, self._board.current)
        seconds = time.perf_counter() - started
        self._note_time(run, seconds)
        # What stands out among cheap samples while a worker starts is the start, or the system, not the sample.
        if run.is_early or not self._sizer.is_finding_out:
            self._costs.note(run, seconds)
        return samples

    def _seeded(self, run: Run, fetch: Fetch, current: Sequence[int]) -> list[Any]:
        """Call `fetch` under the seeds of the run's samples. `current` tells which of them is being made."""
        source = SampleSource(
            lambda n: sample_seed(run.seed, run.origin(n), run.keys[n]), lambda: current[0], self._context.guard
        )

        def announced(reseed: Reseed | None) -> list[Any]:
            announce(source)
            return fetch(reseed)

        return self._randomness.fetch(announced, source.seed_of)

    def _note_time(self, run: Run, seconds: float) -> None:
        if not run.is_early:  # known to be slow, and taken alone: it says nothing about the next run
            self._sizer.observe(len(run.keys), seconds)
        self._late = self._board.note_time(len(run.keys), seconds)

    def _hand_in_one(self, run: Run, sample: Any, seconds: float) -> None:
        """Give a sample that was made in stages its row."""
        self._note_time(run, seconds)
        self._costs.note(run, seconds)
        self.hand_in(run, [sample])

    def hand_in(self, run: Run, samples: Any) -> None:
        """Give each sample its row, in the run's own batch or, when samples may overtake, in the open one."""
        if type(samples) is not list or len(samples) != len(run.keys):  # __getitems__ has its own idea of the batch
            if len(run.keys) == self._board.field(run.batch, Batch.TICKETS):
                self._collate_here(run.batch, samples, range(run.position, run.position + len(run.keys)))
                return
            samples = [self._capture(_no_part_of_batch(samples, len(run.keys)), run.keys)] * len(run.keys)
        done = 0
        while done < len(samples):
            if self._late_rows:
                place = self._board.claim(run.epoch, len(samples) - done)
            else:
                place = Place(run.batch, run.first, len(samples))
            if place is None:  # nobody waits for this epoch any more
                self._board.drop()
                return
            if done:  # the batch before may be complete, and the rest takes a while to write
                self._board.tell()
            first, done = done, done + place.count
            self._fill(place, samples[first:done], range(run.position + first, run.position + done))

    def _fill(self, place: Place, samples: Sequence[Any], positions: range) -> None:
        """Write samples into the rows of `place`, or collate them on the spot if they are the whole batch."""
        by_function = self._by_function or self._board.are_unsent
        if by_function and place.count == self._board.field(place.batch, Batch.ROWS):
            self._collate_here(place.batch, samples, positions)
            return
        self._writer.write(place, samples)
        self._sizer.observe_bytes(self._writer.row_bytes)
        self._commit(place, positions)

    def _commit(self, place: Place, positions: range) -> None:
        """Declare rows done; if they were the last of a batch that has to be collated, do so."""
        if self._late:
            self._board.mark_late(place)
        if self._board.commit(place, positions):
            self._writer.collate_rows(place.batch)

    def _collate_here(self, batch: int, samples: Any, positions: range) -> None:
        """Hand in a whole batch: its collation, or the first error among its samples; all of them, if samples may be
        fetched again or left out."""
        error = next((s for s in samples if type(s) is CapturedError), None) if type(samples) is list else None
        if error is None:
            self._writer.collate(batch, samples, positions)
        elif self._mends:
            self._writer.write(Place(batch, 0, len(samples)), samples)
            self._commit(Place(batch, 0, len(samples)), positions)
        else:
            self._writer.fail(batch, error, positions)

    def _capture(self, error: BaseException, key: object) -> CapturedError:
        where = f"in DataLoader worker process {self._worker}, fetching sample index {key!r}"
        return CapturedError.capture(error, where, self._worker)


def _no_part_of_batch(given: object, asked: int) -> TypeError:
    """A worker died with tickets of a batch in hand, and what others were given for them cannot be put together."""
    return TypeError(
        f"after the death of a worker __getitems__ was asked for {asked} sample(s) of a batch, and gave "
        f"{type(given).__name__} in place of a list of as many; let it return a list of samples, or prevent the death"
    )
