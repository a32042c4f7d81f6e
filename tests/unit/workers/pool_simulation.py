"""A pool in one process and in its own time: the real board, ledger and parking, with costs that are only counted.

Workers and the consumer are actors, each with a clock of its own; the one that is furthest behind takes the next step.
A step looks at the board first and lets its actor's time pass last, so that all that is decided is decided in the order
of time. Nothing here depends on how fast it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minato import StagedDataset
from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.fields import State
from minato._queues.ledger import Ledger
from minato._queues.posting import PostingBoard
from minato._queues.rows import Column
from minato._queues.taking import TakingBoard
from minato._records import Run
from minato._workers.parking import Begun, Outcome, Parking
from minato._workers.parking_rules import ParkingRule
from minato._workers.stages import find_stages

TICK_S = 1e-3  # how often an actor with nothing to do looks again


@dataclass(frozen=True)
class Case:
    """What is to be simulated. Seconds."""

    costs: Sequence[tuple[float, ...]]
    """Of each sample: of its load and of each transform."""
    workers: int
    batch: int
    window: int
    max_deferral: int
    threshold: float
    step: float = 0.0
    """The consumer's work on a batch."""
    queue_size: int = 100


@dataclass
class Report:
    """What came out."""

    batches: list[list[int]] = field(default_factory=list)
    """Samples of each batch, in order of delivery."""
    seconds: float = 0.0
    parks: int = 0
    most_parked: int = 0

    def deferrals(self, batch: int) -> list[int]:
        return [number - sample // batch for number, samples in enumerate(self.batches) for sample in samples]


class _Worker:
    def __init__(self, pool: Simulation, number: int) -> None:
        self.now = 0.0
        self.pool = pool
        self.board = TakingBoard(pool.control, pool.arena, number)
        self.board.now_ns = lambda: int(self.now * 1e9)
        case = pool.case
        stages = [lambda key, stage=stage: self._work(key, stage) for stage in range(len(case.costs[0]))]
        begin = find_stages(StagedDataset(stages[0], stages[1:], len(case.costs)))
        assert begin is not None
        rule = ParkingRule(in_order=False, max_deferral=case.max_deferral)
        self.parking = Parking(self.board, begin, rule, case.queue_size, lambda: self.now, generators=())
        self.begun: Begun | None = None
        self.outcome = Outcome.GOES_ON

    def _work(self, key: int, stage: int) -> int:
        self.now += self.pool.case.costs[key][stage]
        return key

    def step(self) -> None:
        if self.begun is None:
            self._take()
        elif self.outcome is Outcome.DONE:
            self._hand_in(self.begun.run)
            self.begun = None
        else:
            self.outcome = self.parking.advance(self.begun)
            if self.outcome is Outcome.PARKED:
                self.pool.report.parks += 1
                self.begun = None

    def _take(self) -> None:
        self.outcome = Outcome.GOES_ON
        if self.parking.is_due():
            self.begun = self.parking.resume()
        elif isinstance(run := self.board.pull(1), Run):
            self.begun = self.parking.begin(run, seed=0)
        elif self.parking.parked:
            self.begun = self.parking.resume()
        else:
            self.now += TICK_S

    def _hand_in(self, run: Run) -> None:
        place = self.board.claim(run.epoch, 1)
        assert place is not None
        self.board.bind_slot(place.batch)
        assert not self.board.commit(place, range(run.position, run.position + 1))


class _Consumer:
    """Posts and delivers as the engine does."""

    def __init__(self, pool: Simulation) -> None:
        self.now = 0.0
        self.pool = pool
        self.ledger = Ledger()
        self.out: list[int] = []
        self.free = list(range(pool.case.window + 1))
        self.posted = 0

    def top_up(self) -> None:
        case, board = self.pool.case, self.pool.posting
        while self.posted < len(case.costs) and len(self.out) < case.window:
            oldest = min([n for n in (self.ledger.oldest, *self.out[:1]) if n is not None], default=board.next_number)
            if board.next_number - oldest > case.max_deferral:
                return
            keys = list(range(self.posted, min(self.posted + case.batch, len(case.costs))))
            number = board.publish(
                epoch=0,
                seed=0,
                position=self.posted,
                keys=keys,
                rows=len(keys),
                slot=self.free.pop(),
                flags=0,
                first=not self.posted,
            )
            self.ledger.issue(number, len(keys))
            self.out.append(number)
            self.posted += len(keys)
        if self.posted == len(case.costs):
            board.note_all_posted(0)

    def step(self) -> None:
        board, report = self.pool.posting, self.pool.report
        report.most_parked = max(report.most_parked, self.pool.control.count_parked())
        ready = board.first_ready(self.out)
        if ready is None:
            self.now += TICK_S
            return
        assert board.state(ready) == State.READY
        slot = board.take_slot(ready)
        owners = (board.row_table(slot, board.filled(ready))[:, Column.OWNER] - 1).tolist()
        self.ledger.deliver(owners)  # raises if one was delivered before
        report.batches.append(owners)
        report.seconds = self.now
        self.out.remove(ready)
        self.free.append(slot)
        self.now += self.pool.case.step
        self.top_up()


class Simulation:
    """One epoch."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.report = Report()
        records = max(case.max_deferral + 1, case.window) + 2 * case.window
        self.control, self.arena = ControlBlock.create(records, case.workers), Arena.create()
        self.posting = PostingBoard(self.control, self.arena)
        self.posting.set_threshold(case.threshold)

    def run(self) -> Report:
        try:
            consumer = _Consumer(self)
            workers = [_Worker(self, number) for number in range(self.case.workers)]
            consumer.top_up()
            while consumer.ledger.delivered < len(self.case.costs):
                min([*workers, consumer], key=lambda actor: actor.now).step()
            assert not any(worker.parking.parked for worker in workers), "something remains at the end of the epoch"
            return self.report
        finally:
            self.control.close()
            self.arena.close()
