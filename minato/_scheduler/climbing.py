"""The default policy for the number of workers: try, measure, keep what helped.

Every move is a trial: the throughput before it is the baseline, the throughput after it, measured when the new workers
are up, decides whether it stays. What the controller tries:

    the consumer waits, CPU to spare        more workers, beyond the cores too; the less CPU is used, the larger a step
    the consumer waits, CPU used up         not more than one worker per allowed core
    more workers did not help               fewer, if more never helped; half as many more, and so on
    nobody waits and the queue stays full   fewer workers, a few at a time

What did not help is taken back. When nothing helps any more the count rests; after a while, each time longer, a small
step is tried again. A drift of the throughput ends a rest at once, and everything learned is forgotten.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from .policy import Controller, Decision, Observation, WorkerLimits
from .trials import Aim, Measured, Trial


@dataclass(frozen=True, slots=True)
class ClimbingPolicy:
    """The constants of the default policy."""

    period_s: float = 0.2
    measure: int = 6
    """Observations that make a measurement, at least."""
    measure_samples: int = 40
    """Samples that make a measurement, at least, and three for each worker; unless that takes `longest_measure_s`."""
    longest_measure_s: float = 10.0
    glance: int = 2
    glance_samples: int = 10
    """The same two where the answer is beyond doubt: a consumer that mostly waits, a growth that pays."""
    mostly_waits_from: float = 0.3
    """Share of the time that the consumer waits, from which on it is beyond doubt that more workers may be tried."""
    remember: int = 24
    """Observations at one count that make the baseline of a trial, at most."""
    least_gain: float = 0.03
    """Growth of the throughput that makes a trial worth keeping, as a share."""
    starving_from: float = 0.03
    """Share of the time that the consumer waits, from which on more workers are wanted."""
    cpu_full: float = 0.9
    """Share of the allowed cores' time from which on CPU is what is missing."""
    largest_step: float = 8.0
    smallest_step: float = 1.25
    """Workers after a trial, as a multiple of those before: at most, and at least (but one worker)."""
    full_from: float = 0.9
    """Occupancy of the queue from which on workers are more than needed."""
    patience: int = 8
    """Measurements with a full queue before workers are taken away; four times as many each time that was wrong."""
    rest_s: float = 15.0
    """Seconds of rest after nothing helped; doubles each time, up to `longest_rest_s`."""
    longest_rest_s: float = 240.0
    drift: float = 0.3
    """Change of the throughput, as a share, that ends a rest."""

    def begin(self, limits: WorkerLimits) -> Controller:
        """A controller for one loader."""
        return _Climber(self, limits)


_HALF, _IN_FULL, _MOST = 0.5, 0.8, 1.25  # of what a growth could give; more is not to be had from workers alone
_DOUBTFUL = 0.1  # a loss up to which it may be chance, if the measurements say so
_START_S = 10.0  # seconds for workers to come up or to finish; then the count that is there is what we work with


class _Climber:
    def __init__(self, policy: ClimbingPolicy, limits: WorkerLimits) -> None:
        self._policy = policy
        self._limits = limits
        self._cores = max(1, math.floor(limits.cores))
        self._wanted: int | None = None
        """Workers asked for; None before the first observation."""
        self._asked_at = 0.0
        self._counted_from: float | None = None
        """When the workers asked for were there; None until then. What is measured right after is not used."""
        self._settling = True
        self._observations: list[Observation] = []
        self._remembered: deque[Observation] = deque(maxlen=policy.remember)
        """The last observations at the present count."""
        self._trial: Trial | None = None
        self._full = 0
        """Measurements in a row with a full queue."""
        self._patience = policy.patience
        self._rest_until: float | None = None
        self._rests = 0
        self._resting_at: Measured | None = None
        self._lost_at_cores = 0.0
        """What one worker per core gave less, as a share, although the CPU is used up, since the work waits as well. A
        loss that a drift of the machine would explain is forgotten with the next rest."""
        self._forget()

    def _forget(self) -> None:
        self._too_many: int | None = None
        """The smallest count known to be no better than a smaller one."""
        self._too_few: int | None = None
        """The largest count known to be worse than a larger one."""
        self._paid = 0.0
        """What the last growth gave, as a share of what so many more workers can give."""
        self._cautious = False
        """Only a small step is tried: the count has rested here."""

    def decide(self, observation: Observation) -> Decision:
        if self._wanted is None:
            return self._ask(observation.workers, "start", observation)
        if observation.workers != self._wanted and not self._settle_for(observation):
            return self._stay("workers are starting or finishing", observation)
        if observation.throughput <= 0 and observation.wait_share <= 0:
            self._start_measuring()  # whoever comes back from a pause finds a full queue
            return self._stay("nobody asks for batches", observation)
        if self._settling:
            self._settling = not self._has_settled(observation)
            return self._stay("settling", observation)
        self._observations.append(observation)
        self._remembered.append(observation)
        if not self._is_enough():
            return self._stay("measuring", observation)
        measured = Measured.of(self._observations)
        self._observations.clear()
        if self._trial is not None:
            return self._judge(self._trial, measured, observation)
        return self._consider(measured, observation)

    def _has_settled(self, observation: Observation) -> bool:
        """Whether what is measured from now on belongs to the present count: each worker has done a sample with it."""
        if self._counted_from is None:
            self._counted_from = observation.time
            return False
        elapsed = observation.time - self._counted_from
        one_sample_each = observation.workers / observation.throughput if observation.throughput > 0 else math.inf
        return elapsed >= min(self._policy.longest_measure_s, one_sample_each)

    def _is_enough(self) -> bool:
        """Whether the observations make a measurement."""
        policy, seen = self._policy, self._observations
        long = len(seen) * policy.period_s >= policy.longest_measure_s
        samples = sum(one.throughput for one in seen) * policy.period_s
        of_each = 3 * seen[-1].workers
        if len(seen) >= policy.measure and (samples >= max(policy.measure_samples, of_each) or long):
            return True
        glanced = len(seen) >= policy.glance and samples >= max(policy.glance_samples, of_each)
        return glanced and self._is_beyond_doubt(Measured.of(seen))

    def _is_beyond_doubt(self, measured: Measured) -> bool:
        """Whether a glance is enough. It is for the climb from a count that is far too small: nothing was tried in vain
        yet, and the consumer mostly waits, or the growth under way has given most of what it can."""
        if self._too_many is not None or self._cautious or measured.cpu_share >= self._policy.cpu_full:
            return False
        if self._trial is None:
            return measured.wait_share >= self._policy.mostly_waits_from
        return self._trial.aim is Aim.GROW and self._trial.gain(measured) >= _HALF * self._trial.possible_gain

    # ---- moves ----------------------------------------------------------------------------------------------------

    def _consider(self, measured: Measured, observation: Observation) -> Decision:
        """No trial is under way: is there reason for one?"""
        if measured.wait_share <= self._policy.starving_from:
            return self._consider_sparing(measured, observation)
        self._full = 0
        if self._is_resting(measured, observation):
            return self._stay("at rest: nothing tried here helped", observation)
        workers = measured.workers
        used_up = measured.cpu_share >= self._policy.cpu_full
        cores = self._limits.clamp(self._cores)
        if used_up and workers > cores and not self._lost_at_cores:
            return self._try(Aim.TO_CORES, cores, observation)
        more = self._more(measured, min(self._limits.most, self._cores) if used_up else self._limits.most)
        fewer = self._fewer(workers, used_up)
        downhill = fewer < workers and self._too_many is not None and self._paid < _HALF
        if more > workers and not downhill:
            return self._try(Aim.GROW, more, observation)
        if fewer < workers:
            return self._try(Aim.FEWER, fewer, observation)
        self._rest_from(measured, observation)
        return self._stay("at rest: nothing tried here helped", observation)

    def _more(self, measured: Measured, most: int) -> int:
        """A larger count to try: as far as the unused CPU suggests, at most half way to one known not to help."""
        workers, policy = measured.workers, self._policy
        factor = policy.smallest_step if self._cautious else policy.largest_step
        if measured.cpu_share > 0:
            factor = min(factor, max(policy.smallest_step, policy.cpu_full / measured.cpu_share))
        target = max(workers + 1, math.ceil(workers * factor))
        if self._too_many is not None and target >= self._too_many:
            target = workers + (self._too_many - workers) // 2
            if target - workers < max(1, workers // 10):
                return workers  # close enough
        return min(most, target)

    def _fewer(self, workers: int, used_up: bool) -> int:
        """A smaller count to try; `workers` itself if there is none, or no sign that fewer might be better."""
        target = self._limits.clamp(workers - max(1, workers // (8 if self._cautious else 3)))
        # Where more workers have just given what they can, fewer are not the better.
        growth_paid = self._paid >= (_HALF if self._too_many is None else _IN_FULL)
        busy_cores = used_up and workers <= self._cores
        known_worse = self._too_few is not None and target <= self._too_few
        return workers if growth_paid or busy_cores or known_worse else target

    def _consider_sparing(self, measured: Measured, observation: Observation) -> Decision:
        """Nobody waits. A queue that stays full says that there are more workers than needed."""
        self._full = self._full + 1 if measured.occupancy >= self._policy.full_from else 0
        fewer = self._limits.clamp(measured.workers - max(1, measured.workers // 8))
        if self._full < self._patience or fewer >= measured.workers:
            return self._stay("enough: the consumer does not wait", observation)
        return self._try(Aim.SPARE, fewer, observation)

    def _try(self, aim: Aim, target: int, observation: Observation) -> Decision:
        self._trial = Trial(aim, Measured.of(list(self._remembered)), target)
        return self._ask(target, f"trial: {aim.value}", observation)

    # ---- verdicts -------------------------------------------------------------------------------------------------

    def _judge(self, trial: Trial, measured: Measured, observation: Observation) -> Decision:
        """Keep the move and see what comes next, or take it back."""
        self._trial = None
        gain = trial.gain(measured)
        if self._is_kept(trial, measured, gain):
            self._learn_from_success(trial, gain)
            following = self._consider(measured, observation)
            return replace(following, reason=f"kept: {trial.aim.value}, throughput {gain:+.1%}; {following.reason}")
        self._learn_from_failure(trial, gain)
        return self._ask(trial.baseline.workers, f"taken back: {trial.aim.value}, throughput {gain:+.1%}", observation)

    def _is_kept(self, trial: Trial, measured: Measured, gain: float) -> bool:
        policy = self._policy
        starving = measured.wait_share > policy.starving_from
        no_worse = gain > -policy.least_gain
        if trial.aim is Aim.SPARE:
            return no_worse and not starving and measured.occupancy >= policy.full_from
        most = max(trial.baseline.throughput, measured.throughput, 1e-9)  # nothing at all may have been finished
        noise = math.hypot(trial.baseline.error, measured.error) / most
        if trial.aim is Aim.TO_CORES:  # workers beyond the cores have to be worth it without doubt
            return gain > -max(policy.least_gain, min(_DOUBTFUL, 2 * noise))
        if no_worse and not starving:
            return True
        if trial.aim is Aim.GROW:  # a small step cannot gain much: half of what it could
            return gain >= min(policy.least_gain, _HALF * trial.possible_gain)
        return gain >= max(policy.least_gain / 3, min(policy.least_gain, 2 * noise))

    def _learn_from_success(self, trial: Trial, gain: float) -> None:
        if trial.aim is Aim.GROW:
            self._too_few = trial.baseline.workers
            share = gain / trial.possible_gain
            self._paid = share if share <= _MOST else 0.0  # beyond that, something else has changed as well
            if trial.baseline.workers >= self._limits.clamp(self._cores):
                self._lost_at_cores = 1.0
            self._rests = 0
        elif trial.aim is not Aim.SPARE:
            self._too_many = trial.baseline.workers
            self._rests = 0

    def _learn_from_failure(self, trial: Trial, gain: float) -> None:
        if trial.aim is Aim.SPARE:
            self._patience *= 4
            self._full = 0
        elif trial.aim is Aim.GROW:
            self._too_many = trial.target
        else:
            self._too_few = trial.target
            if trial.aim is Aim.TO_CORES:
                self._lost_at_cores = -gain

    # ---- rest -----------------------------------------------------------------------------------------------------

    def _is_resting(self, measured: Measured, observation: Observation) -> bool:
        resting_at = self._resting_at
        if resting_at is None or self._rest_until is None:
            return False
        change = abs(measured.throughput - resting_at.throughput)
        drifted = change > self._policy.drift * max(resting_at.throughput, measured.throughput)
        if not drifted and observation.time < self._rest_until:
            return True
        self._rest_until = self._resting_at = None
        self._too_many, self._cautious = None, True
        if drifted or self._lost_at_cores < self._policy.drift:
            self._lost_at_cores = 0.0
        if drifted:
            self._forget()
            self._rests = 0
        return False

    def _rest_from(self, measured: Measured, observation: Observation) -> None:
        policy = self._policy
        self._rest_until = observation.time + min(policy.longest_rest_s, policy.rest_s * 2**self._rests)
        self._rests += 1
        self._resting_at = measured

    # ---- answers --------------------------------------------------------------------------------------------------

    def _settle_for(self, observation: Observation) -> bool:
        """Whether to stop waiting for the count that was asked for, and take the one that is there."""
        if observation.time - self._asked_at < _START_S:
            return False
        self._wanted, self._asked_at = self._limits.clamp(observation.workers), observation.time
        self._trial = None
        self._start_measuring()
        return self._wanted == observation.workers

    def _start_measuring(self) -> None:
        self._settling = True
        self._counted_from = None
        self._observations.clear()
        self._remembered.clear()

    def _ask(self, target: int, reason: str, observation: Observation) -> Decision:
        self._wanted = self._limits.clamp(target)
        self._asked_at = observation.time
        self._start_measuring()
        return Decision(self._wanted, reason, observation)

    def _stay(self, reason: str, observation: Observation) -> Decision:
        assert self._wanted is not None
        return Decision(self._wanted, reason, observation)
