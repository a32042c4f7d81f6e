"""From measurements to wishes: when to measure what, when to ask for the cluster, when to change one's mind.

    MEASURING_LOCAL ─ stall ─► STARTING ─ cluster there ─► MEASURING_REMOTE ─ one placement after the other ─► RUNNING
          │ no stall              ▲   │ metrics known ──────────────────────────────────────────────────────────▲ │
          ▼                       │                                                                               │
        LOCAL ── stall ───────────┘ ◄──────────── no stall any more, no gain, or slower than local ───────────────┘

Pure: no clock, no process, no Ray. All times come in as arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ._deciding import LOCAL, Decision, LocalMetrics, RemoteMetrics, decide, is_stalled
from ._phases import LEAST_S, Drift, Policy, Stage, Trial, Window, Wish
from ._wire import Report

MOST_KEPT = 100  # decisions
SKIP = 2  # batches at an epoch's start that are not measured: workers start, pages are new, a model compiles
STEP = 0.05  # of the ratio, when the consumer waits, or does not
WAITS = 0.05  # share of its time that a consumer may wait before it counts as waiting
SLOWER = 0.95  # of the local rate; below it, offloading is no help
_MISSED_S = 1.0  # seconds between two reports that count: some are lost while the consumer is away for long


class Controller:
    """For one loader; lives through its epochs."""

    def __init__(
        self,
        policy: Policy,
        cores: float,
        local: LocalMetrics | None = None,
        log: Callable[[str], None] = lambda _: None,
        gthp: float | None = None,
    ) -> None:
        """`local`: known from an earlier run. `gthp`: measured otherwise than by the time between two batches."""
        self._policy = policy
        self._cores = cores
        self._log = log
        self._gthp = gthp
        self.decisions: tuple[str, ...] = ()
        self.local = local
        self.remotes: dict[str, RemoteMetrics] = {}
        self.remote_nodes: tuple[str, ...] | None = None
        self.profile_steps = 0
        """Batches that were delivered while something was measured."""
        self._wish = Wish()
        self._skip = 0
        self._window = Window()
        self._open: list[str] = []
        """Placements that are still to be measured."""
        self._trial = Trial()
        self._last: Report | None = None
        self._follows = False
        """Whether nothing has come between the last report and the next."""
        self._before_pin: tuple[Policy, Wish] | None = None
        self._slow_windows = 0
        self._drift = Drift()
        self._hold = 1
        self._batch_size = 1
        self._room = 0
        self._is_without_room = False
        self.stage = Stage.MEASURING_LOCAL
        if not policy.placements or policy.ratio == 0:
            self._enter(Stage.LOCAL)
        elif policy.ratio is not None or policy.greedy:
            self._start("asked for")
        elif local is not None:
            self._judge_local("known")

    @property
    def wish(self) -> Wish:
        return self._wish

    # ---- events ----------------------------------------------------------------------------------------------------

    def epoch_began(self) -> None:
        """Another epoch begins."""
        self._skip = SKIP
        self._follows = False

    def delivered(self, samples: int, busy_s: float, wait_s: float, cpu_s: float) -> None:
        """A batch was delivered, `busy_s` after the last one was, plus `wait_s` of waiting; workers here used `cpu_s`
        meanwhile."""
        self._batch_size = max(1, samples, self._batch_size)
        if self.stage in (Stage.MEASURING_LOCAL, Stage.MEASURING_REMOTE):
            self.profile_steps += 1
        if self._skip:
            self._skip -= 1
            return
        window = self._window
        window.batches += 1
        window.busy_s += busy_s
        window.wait_s += wait_s
        window.cpu_s += cpu_s
        if not self._policy.placements or self._policy.ratio is not None or self._policy.greedy:
            return
        if window.elapsed_s < LEAST_S:
            return
        steps = {
            Stage.MEASURING_LOCAL: self._policy.profile_steps,
            Stage.LOCAL: self._policy.recheck_steps * self._hold,
            Stage.RUNNING: self._policy.recheck_steps,
        }
        if window.batches >= steps.get(self.stage, window.batches + 1):
            self._recheck() if self.stage is Stage.RUNNING else self._measure_local()

    def ready(self, nodes: tuple[str, ...], actors: int, known: dict[str, RemoteMetrics]) -> None:
        """The cluster is there. `known`: of these nodes, from an earlier run."""
        if self.stage is not Stage.STARTING:
            return
        self.remote_nodes = nodes
        self._room = min(actors, self._policy.most_actors)
        if self._room == 0:  # some may come
            if not self._is_without_room:
                self._decide_log("local: the cluster has no CPUs to use at present")
            self._is_without_room = True
            return
        self._is_without_room = False
        if self._policy.is_fixed:
            self._run(Decision(self._policy.placements[0], self._ratio_given, self._room, "as asked for"))
        else:
            self.remotes = {name: one for name, one in known.items() if name in self._policy.placements}
            self._open = [name for name in self._policy.placements if name not in self.remotes]
            self._measure_next()

    def resized(self, actors: int) -> None:
        """Nodes have come or gone."""
        before, self._room = self._room, min(actors, self._policy.most_actors)
        if self.stage is Stage.LOCAL and self._room > before and self._wants_remote:
            self._hold = 1
            self._start("nodes have come")
        if self.stage is Stage.RUNNING and self._wish.actors >= before:  # all there were: all there are now
            self._wish = replace(self._wish, actors=self._room)

    def reported(self, report: Report) -> None:
        """What the agent says of its work."""
        if report.phase != self._wish.phase or self._wish.placement == LOCAL:
            return
        before, self._last = self._last if self._follows else None, report
        if before is not None and report.time_s - before.time_s > _MISSED_S:
            before = None
        self._follows = True
        if self.stage is Stage.MEASURING_REMOTE:
            self._measure_remote(before, report)
        elif self.stage is Stage.RUNNING and report.refused and report.actors == 0:
            self._go_local(f"{self._wish.placement}: {report.refused}")

    def lost(self, why: str) -> None:
        """The cluster, or the way to it, is gone."""
        if self.stage in (Stage.LOCAL, Stage.MEASURING_LOCAL):
            return
        self._decide_log(f"local: {why}")
        self._enter(Stage.STARTING, Wish(self._wish.phase + 1, launch=True))

    @property
    def is_open(self) -> bool:
        """Whether there is somebody to set work aside for."""
        return self._last is not None and self._last.phase == self._wish.phase and self._last.actors > 0

    @property
    def open_actors(self) -> int:
        """Actors that work now."""
        return self._last.actors if self._last is not None and self.is_open else 0

    def pin(self, placement: str, ratio: float) -> None:
        """Keep to a placement and a ratio from now on, once the cluster is there; for comparisons."""
        if self._before_pin is None:
            self._before_pin = self._policy, self._wish
        self._policy = replace(self._policy, placements=(placement,), ratio=ratio)
        if ratio == 0:
            self._go_local("pinned")
        else:
            self._run(Decision(placement, ratio, self._room, "pinned"))

    def unpin(self) -> None:
        """Go back to what was done before the first `pin`."""
        if self._before_pin is None:
            return
        (self._policy, wish), self._before_pin = self._before_pin, None
        self._decide_log(f"{wish.placement}, ratio {wish.ratio:.2f}, {wish.actors} actors: as before")
        stage = Stage.LOCAL if wish.placement == LOCAL else Stage.RUNNING
        self._enter(stage, replace(wish, phase=self._wish.phase + 1))

    def give_up(self, why: str) -> None:
        """Nothing can be done elsewhere, now or later."""
        self._policy = replace(self._policy, placements=())
        self._go_local(why)

    # ---- measuring -------------------------------------------------------------------------------------------------

    def _measure_local(self) -> None:
        window = self._window
        gthp = window.gthp if self._gthp is None else self._gthp
        self.local = LocalMetrics(gthp, window.rate, window.cpu_s / window.batches, self._cores)
        self._judge_local("measured")

    def _judge_local(self, how: str) -> None:
        local = self.local
        assert local is not None
        text = f"{how}: consumer {local.gthp:.3g}/s, local {local.lthp:.3g}/s, {local.pcycle_s:.2g} CPU s per batch"
        if is_stalled(local.gthp, local.lthp, self._policy.min_speedup):
            self._start(text)
        else:
            if self.stage is not Stage.LOCAL:
                self._decide_log(f"local: no stall; {text}")
            self._enter(Stage.LOCAL)

    def _measure_next(self) -> None:
        if not self._open:
            self._decide()
            return
        self._trial = Trial()
        wish = Wish(self._wish.phase + 1, True, self._open[0], 1.0, self._room, shared=True, beyond=True)
        self._enter(Stage.MEASURING_REMOTE, wish)

    def _measure_remote(self, before: Report | None, report: Report) -> None:
        if not self._trial.is_over(before, report, self._wish.actors):
            return
        placement, window = self._wish.placement, self._trial.window
        batches = window.samples / self._batch_size
        if report.actors == 0:
            self._decide_log(f"not {placement}: {report.refused or 'no actor came up'}")
        elif batches > 0:
            rate, cost, alone = batches / window.seconds, window.cpu_s / batches, batches / window.busy_s
            self.remotes[placement] = RemoteMetrics(placement, rate, report.actors, cost, alone)
            self._decide_log(
                f"measured {placement}: {rate:.3g}/s from {report.actors} actors ({alone:.3g}/s if never idle), "
                f"{cost:.2g} CPU s per batch here, {window.nbytes / window.seconds:.3g} bytes/s"
            )
        self._open.pop(0)
        self._measure_next()

    # ---- deciding --------------------------------------------------------------------------------------------------

    @property
    def _ratio_given(self) -> float:
        return 1.0 if self._policy.greedy else self._policy.ratio or 0.0

    @property
    def _wants_remote(self) -> bool:
        """Whether the cluster would be of use, as far as is known."""
        if not self._policy.placements or self._policy.ratio == 0:
            return False
        if self._policy.ratio is not None or self._policy.greedy:
            return True
        return self.local is not None and is_stalled(self.local.gthp, self.local.lthp, self._policy.min_speedup)

    def _start(self, why: str) -> None:
        self._decide_log(f"start: {why}")
        self._enter(Stage.STARTING, Wish(self._wish.phase + 1, launch=True))

    def _decide(self) -> None:
        remotes = [self.remotes[name] for name in self._policy.placements if name in self.remotes]
        if self.local is None:  # the user has given the ratio, and wants it whatever comes
            best = max(remotes, key=lambda one: one.rthp, default=None)
            if best is None:
                self._go_local("no placement can be used")
                return
            self._run(Decision(best.placement, self._ratio_given, self._room, f"{best.rthp:.3g}/s remote"))
            return
        decision = decide(
            self.local,
            remotes,
            min_speedup=self._policy.min_speedup,
            prefer_local=self._policy.prefer_local,
            most_actors=self._room,
        )
        if self._policy.ratio is not None or self._policy.greedy:
            decision = replace(decision, ratio=self._ratio_given, actors=self._room)
        if decision.placement == LOCAL:
            self._go_local(decision.reason)
        else:
            self._run(decision)

    def _run(self, decision: Decision) -> None:
        given = self._policy.ratio is not None
        infeasible = decision.actors >= self._room and not given
        wish = Wish(
            phase=self._wish.phase + 1,
            launch=True,
            placement=decision.placement,
            ratio=decision.ratio,
            actors=decision.actors,
            shared=not given,
            beyond=self._policy.greedy or infeasible,
        )
        self._decide_log(
            f"{decision.placement}, ratio {decision.ratio:.2f}, {decision.actors} actors: {decision.reason}"
        )
        self._slow_windows = 0
        self._drift.forget()
        self._enter(Stage.RUNNING, wish)

    def _recheck(self) -> None:
        window, local = self._window, self.local
        self._window = Window()
        if local is None or not self.is_open:
            return
        share = window.wait_s / max(window.elapsed_s, 1e-9)
        if window.rate < SLOWER * min(local.lthp, window.gthp):
            self._slow_windows += 1
            if self._slow_windows >= 2:
                self.remotes.pop(self._wish.placement, None)
                self._go_local(f"slower than local: {window.rate:.3g}/s, {local.lthp:.3g}/s before")
            return
        self._slow_windows = 0
        if share > WAITS and self._has_drifted(window.rate):
            return
        if self._wish.beyond and share > WAITS:
            return  # both sides take all they can
        before = self._wish.ratio
        ratio = min(1.0, before + STEP) if share > WAITS else max(0.0, before - STEP) if share < WAITS / 5 else before
        if ratio == 0.0 and before == 0.0:
            self._go_local(f"the consumer does not wait any more: it takes {window.gthp:.3g}/s")
            self._hold = 1
            return
        if ratio != before:
            self._decide_log(f"ratio {before:.2f} to {ratio:.2f}: the consumer waits {share:.0%} of its time")
            self._wish = replace(self._wish, ratio=ratio, actors=self._room if ratio > before else self._wish.actors)

    def _has_drifted(self, rate: float) -> bool:
        """Measure the placements again if the rate has fallen, and not because actors are missing: the network, the
        disks or the CPUs there may be others' by now, and another placement the best."""
        usual = self._drift.usual
        if self.open_actors < self._wish.actors:
            self._drift.forget()
            return False
        if not self._drift.has_come(rate):
            return False
        self._decide_log(f"measured again: {rate:.3g}/s, {usual:.3g}/s before")
        self.remotes.clear()
        self._open = list(self._policy.placements)
        self._measure_next()
        return True

    def _go_local(self, why: str) -> None:
        self._hold = min(64, 2 * self._hold)  # what was no use will hardly be soon
        self._decide_log(f"local: {why}")
        self._enter(Stage.LOCAL, Wish(self._wish.phase + 1))

    def _enter(self, stage: Stage, wish: Wish | None = None) -> None:
        self.stage = stage
        self._window = Window()
        if wish is not None:
            self._wish = wish
            self._last = None
            self._follows = False

    def _decide_log(self, text: str) -> None:
        self.decisions = (*self.decisions, text)[-MOST_KEPT:]
        self._log(text)
