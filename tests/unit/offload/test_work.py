"""One engine's remote side, without an agent: what it tells the controller of the batches that the consumer got."""

from types import SimpleNamespace
from typing import Any

from minato._plan import Collate
from minato.offload._phases import Stage, Wish
from minato.offload._work import IDLE_LOOK_S, LOOK_EVERY_S, Work


class Heard:
    """A controller that only listens."""

    def __init__(self) -> None:
        self.stage = Stage.LOCAL
        self.wish = Wish()
        self.is_open = False
        self.heard: list[Any] = []

    def epoch_began(self) -> None:
        self.heard.append("epoch")

    def delivered(self, samples: int, busy_s: float, wait_s: float, cpu_s: float) -> None:
        self.heard.append((samples, round(busy_s, 6), wait_s, cpu_s))


class Desert:
    """A session without an agent."""

    agent = None
    has_agent = False

    def __init__(self) -> None:
        self.tended = 0

    def tend(self, wish: Wish, now: float) -> None:
        self.tended += 1


class Bench:
    """A Work, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.controller, self.session = Heard(), Desert()
        plan = SimpleNamespace(collate=Collate.ROWS, together=False, trace=None)
        seat: Any = SimpleNamespace(plan=plan, worker_pids=list)
        self.work = Work(self.session, seat, self.controller, lambda: self.now)  # type: ignore[arg-type]

    def batch(self, after_s: float, waited_s: float = 0.0) -> None:
        """The consumer asks after a step, and gets a batch."""
        self.now += after_s
        self.work.asked()
        self.now += waited_s
        self.work.returned(4, waited_s)

    def look(self) -> None:
        self.now = max(self.now, self.work.due)
        self.work.look()


def test_batches_are_told_of_at_the_next_look_each_with_its_own_times() -> None:
    bench = Bench()
    bench.look()
    for after_s, waited_s in ((0.01, 0.5), (0.02, 0.0), (0.03, 0.25)):
        bench.batch(after_s, waited_s)
    assert bench.controller.heard == ["epoch"]
    bench.look()
    assert bench.controller.heard == ["epoch", (4, 0.02, 0.0, 0.0), (4, 0.03, 0.25, 0.0)]


def test_the_pause_between_two_epochs_is_nobodys_step() -> None:
    bench = Bench()
    for _ in range(2):
        bench.batch(0.01)
    bench.now += 0.01
    bench.work.asked()  # there is no batch any more
    bench.now += 60.0
    for _ in range(2):
        bench.batch(0.01)
    bench.look()
    assert bench.controller.heard == ["epoch", (4, 0.01, 0.0, 0.0), "epoch", (4, 0.01, 0.0, 0.0)]


def test_while_nobody_waits_it_looks_less_often_and_never_between() -> None:
    bench = Bench()
    bench.work.look()
    assert bench.work.due == bench.now + IDLE_LOOK_S
    bench.work.look()
    assert bench.session.tended == 1
    bench.controller.stage = Stage.MEASURING_LOCAL
    bench.look()
    assert bench.work.due == bench.now + LOOK_EVERY_S
