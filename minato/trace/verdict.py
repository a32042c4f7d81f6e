"""What bounds a run, in words, with the numbers behind it. A pure function of measured facts.

the consumer hardly waits                                  accelerator-bound
it makes samples itself, and works more than that          accelerator-bound
it waits, and ... one worker is much slower than others    straggler-bound
              ... few samples are slow, and workers idle   straggler-bound; storage-bound, if loading stalls in them
              ... few samples are much of the work         likewise
              ... workers wait for data, off the CPU       storage-bound
              ... or for their own threads, who knows      unknown, with what would tell
              ... otherwise                                preprocessing-bound, by the dearest operation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .facts import Facts, OpFact

PREPROCESSING, ACCELERATOR, STORAGE, STRAGGLER, UNKNOWN = (
    "preprocessing-bound",
    "accelerator-bound",
    "storage-bound",
    "straggler-bound",
    "unknown",
)

LITTLE_WAITING = 0.05  # share of the consumer's time; below it, faster loading would gain less than that
SLOW_WORKER = 1.5  # times the median of the others, in the median of its samples: noise of a busy machine is less
SLOW_WORKER_OF_LANES = 2.0  # the same where workers make several samples at once, which wait for each other
FEWEST_SAMPLES = 8  # of a worker, to say that it is slow
HEAVY_TAIL = 5.0  # P99 over median of what samples take
FEW_SAMPLES = 0.1  # share of samples that may be exceptions: beyond P90 the scheduler has none either
MUCH_WORK = 0.33  # share of all work, or of the waiting, that they may explain and be no more than that
A_TURN_S = 0.02  # a sample may lose the CPU to others for as long: below it, being off the CPU means nothing
MOST_INSIDE = 0.5  # share of an operation that one of the user's spans must have to be named in its place
IDLE_WORKERS = 0.75  # busy share below which workers were waiting for something else than their own work
CROWDED = 0.85  # cores that a worker with several lanes uses, from which on they wait for each other, not for data
OFF_CPU = 0.5  # share of work spent off the CPU that is waiting for data, where stages cannot be told apart
OFF_CPU_BEYOND = 0.25  # the same of loading, beyond what a busy machine keeps everything from the CPU
STARVED = 0.5  # share of work without a core, from which on there are twice as many at work as cores
LITTLE_CPU = 0.7  # share of work on the CPU, below which a word is said about it
LOADING_SHARE = 0.3  # of the work, that loading must have to be what bounds it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds the run."""

    bound: str
    culprit: str
    """The operation, worker or part to look at; empty if there is no single one."""
    text: str
    """In words, with numbers."""
    advice: str
    numbers: Mapping[str, float] = field(default_factory=dict)


def judge(facts: Facts) -> Verdict:
    """Name what bounds the run."""
    numbers = _numbers(facts)
    if facts.batches == 0 or facts.waited_s + facts.stepped_s <= 0:
        return Verdict(UNKNOWN, "", "No batch was consumed: there is nothing to judge.", "Trace some batches.", numbers)
    waiting = (
        f"The consumer waited {facts.waited_s:.2f} s for batches and worked {facts.stepped_s:.2f} s: "
        f"{facts.wait_share:.0%} of its time was waiting."
    )
    if facts.wait_share < LITTLE_WAITING:
        text = f"{waiting} Batches lay ready for {_time(facts.mean_delay_s)} on average before they were used."
        advice = "The loader keeps up; what follows it is the limit. Fewer workers may do."
        return Verdict(ACCELERATOR, "consumer", text, advice, numbers)
    if facts.is_inline and facts.stepped_s > facts.waited_s:
        text = f"{waiting} It makes the samples itself, in turn with its own work, which takes more."
        advice = (
            "Use workers (num_workers): they make samples meanwhile. Beyond that, what follows the loader is the limit."
        )
        return Verdict(ACCELERATOR, "consumer", text, advice, numbers)
    found = _straggler(facts) or _storage(facts) or _preprocessing(facts)
    return Verdict(found.bound, found.culprit, f"{waiting} {found.text}", found.advice, {**numbers, **found.numbers})


def _numbers(facts: Facts) -> dict[str, float]:
    known = {} if facts.starved is None else {"starved": facts.starved}
    return {
        **known,
        "batches": facts.batches,
        "waited_s": facts.waited_s,
        "stepped_s": facts.stepped_s,
        "startup_s": facts.startup_s,
        "wait_share": facts.wait_share,
        "mean_delay_s": facts.mean_delay_s,
        "busy_share": facts.busy_share,
        "work_s": facts.work_s,
        "work_cpu_s": facts.work_cpu_s,
        "sample_median_s": facts.samples.median,
        "sample_p99_s": facts.samples.p99,
        "slow_samples": facts.samples.slow_share,
        "slow_samples_work": facts.samples.slow_work,
    }


def _straggler(facts: Facts) -> Verdict | None:
    """A slow worker, or slow samples: if there are both, what takes more of the work beyond what is usual."""
    worker, samples = _slow_worker(facts), _slow_samples(facts)
    if worker is None or samples is None:
        return worker or samples
    times = facts.samples
    usual = times.median / times.slow_median if times.slow_median else 0.0
    return samples if times.slow_work * (1 - usual) > worker.numbers["slow_worker_work"] else worker


def _slow_worker(facts: Facts) -> Verdict | None:
    judged = [worker for worker in facts.workers if worker.samples >= FEWEST_SAMPLES]
    if len(judged) < 2:
        return None
    slowest = max(judged, key=lambda worker: worker.sample_median_s)
    others = [worker for worker in judged if worker is not slowest]
    usual = _middle([worker.sample_median_s for worker in others])
    times = SLOW_WORKER_OF_LANES if facts.crowded_cpu else SLOW_WORKER
    lacks_core = slowest.with_a_core_s < times * _middle([worker.with_a_core_s for worker in others])
    if lacks_core:
        times *= SLOW_WORKER  # others have its core now and then: any worker meets that on a busy machine
    if usual <= 0 or slowest.sample_median_s < times * usual:
        return None
    quick = [worker.sample_p25_s for worker in others if worker.sample_p25_s]
    if quick and slowest.sample_p25_s is not None and slowest.sample_p25_s < times * _middle(quick):
        return None
    ratio = slowest.sample_median_s / usual
    text = (
        f"{slowest.name} is the straggler: its samples take {_time(slowest.sample_median_s)} (median), those of the "
        f"other workers {_time(usual)}: {ratio:.1f} times as long."
    )
    if lacks_core and slowest.starved is not None:
        text += f" For {slowest.starved:.0%} of its work it wanted a core that others had."
    advice = "Look at what else runs on its core, or what its worker_init_fn does. in_order=False keeps others going."
    more_s = slowest.samples * (slowest.sample_median_s - usual)
    numbers = {"slow_worker_ratio": ratio, "slow_worker_work": more_s / facts.work_s if facts.work_s else 0.0}
    return Verdict(STRAGGLER, slowest.name, text, advice, numbers)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _slow_samples(facts: Facts) -> Verdict | None:
    """Few samples are much slower than the others, and hold batches up or are much of the work."""
    times, is_crowded = facts.samples, facts.crowded_cpu >= CROWDED
    made = sum(worker.samples for worker in facts.workers)
    beyond_s = made * times.slow_share * (times.slow_median - times.median)  # could hold batches up no longer than that
    idle = times.tail >= HEAVY_TAIL and facts.busy_share < IDLE_WORKERS and not is_crowded
    idle = idle and beyond_s >= MUCH_WORK * facts.waited_s
    heavy = 0 < times.slow_share <= FEW_SAMPLES and times.slow_work >= MUCH_WORK
    kept_off = times.slow_on_cpu < 1 - OFF_CPU and times.slow_median < A_TURN_S  # a busy machine does that to any
    if not (idle or (heavy and not kept_off)):
        return None
    of, each = ("CPU time", "each of it") if is_crowded else ("work", "each")
    what = (
        f"{_few(times.slow_share)} of the samples take {times.slow_work:.0%} of the {of}: {_time(times.slow_median)} "
        f"{each}, against a median of {_time(times.median)}."
    )
    numbers = {"tail_ratio": times.tail, "slow_on_cpu": times.slow_on_cpu, "slow_loading": times.slow_loading}
    stalls = times.slow_loading >= _needed_alone(facts)
    if stalls and (times.stages_seen or not kept_off):
        return _stalls(facts, what, numbers)
    where = f" Most of that is in {times.slow_part}." if times.slow_part else ""
    text = f"Few slow samples hold batches up: {what}{where} Workers were busy {facts.busy_share:.0%} of the time."
    advice = "Look at what makes these samples slow: the report lists the slowest. "
    if idle:
        advice += "Let samples overtake (in_order=False), or raise prefetch_factor."
    else:
        advice += "Workers have no time left for them: cache, add workers, or make them cheaper."
    return Verdict(STRAGGLER, "slow samples", text, advice, numbers)


def _stalls(facts: Facts, what: str, numbers: Mapping[str, float]) -> Verdict:
    """Slow samples are slow by waiting while they are loaded."""
    times = facts.samples
    which = "loading off" if times.stages_seen else "off"
    what += f" {times.slow_loading:.0%} of their time is {which} the CPU"
    advice = "fetch more at once, let samples overtake (in_order=False), or cache."
    part = times.slow_part
    if part in {op.name for op in facts.inner}:
        text = f"{what}, most of it in {part}: it stalls."
        advice = f"Look at what {part} waits for in these samples: a disk, a network, a lock. If data, {advice}"
        return Verdict(STORAGE, part, text, advice, numbers)
    text, advice = f"{what}: some reads stall.", f"Look at what these reads go through; {advice}"
    return Verdict(STORAGE, "loading", text, advice, numbers)


def _few(share: float) -> str:
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def _storage(facts: Facts) -> Verdict | None:
    if facts.crowded_cpu >= CROWDED:
        return None
    loading = [op for op in facts.ops if op.is_loading]
    rest = [op for op in facts.ops if not op.is_loading]
    loading_s, off_cpu = _spent(loading), _off_cpu(loading)
    all_s = loading_s + _spent(rest)
    off_all = _off(facts.work_s, facts.work_cpu_s)
    beyond_seen = off_all - _off_cpu(facts.ops) - (facts.starved or 0.0)
    unseen_waits = bool(all_s) and not facts.crowded_cpu and beyond_seen >= OFF_CPU_BEYOND
    if all_s and not unseen_waits:
        share, kept_off = loading_s / all_s, _kept_off(facts, rest)
        needed = OFF_CPU_BEYOND + kept_off if rest else _needed_alone(facts)
        rest_waits_s = (_off_cpu(rest) - kept_off) * _spent(rest)  # for a lock, a device: not for a core
        if share < LOADING_SHARE or off_cpu < needed or (off_cpu - kept_off) * loading_s < rest_waits_s:
            return None
        if off_cpu - facts.crowded_cpu < OFF_CPU_BEYOND:
            return _untold(facts, off_cpu)
        what = (
            f"Loading takes {share:.0%} of the work, and is off the CPU for {off_cpu:.0%} of that: it waits for data."
        )
    else:
        off_cpu, share = off_all, 1.0
        if not facts.work_s or (off_cpu < _needed_alone(facts) and not unseen_waits):
            return None
        what = f"Workers are off the CPU for {off_cpu:.0%} of their work: they wait for data."
        if unseen_waits:
            what += f" Of the samples that were looked at it was {_off_cpu(facts.ops):.0%}: others wait."
    waiting = max(facts.inner, key=lambda op: op.total_s - op.cpu_s, default=None)
    culprit = "loading"
    if waiting is not None and waiting.total_s - waiting.cpu_s >= MOST_INSIDE * (loading_s or facts.work_s) * off_cpu:
        culprit = waiting.name
        what += f" Most of that is in {waiting.name}, {_time(waiting.mean_s)} per call."
    advice = "Fetch more at once (more workers, fetcher='threaded' or 'asyncio'), read larger pieces, or cache."
    if culprit != "loading":
        advice = f"Look at what {culprit} waits for: a disk, a network, a lock. {advice}"
    return Verdict(STORAGE, culprit, what, advice, {"loading_share": share, "loading_off_cpu": off_cpu})


def _untold(facts: Facts, off_cpu: float) -> Verdict:
    """A sample that is loaded was off the CPU no more than others of its process may have kept it off."""
    text = (
        f"Loading is off the CPU for {off_cpu:.0%} of its time, and each worker computed for {facts.crowded_cpu:.0%} "
        "of its own, in one of its threads at a time: whether samples wait for data or for those cannot be told."
    )
    dearest = max(facts.ops, key=lambda op: op.cpu_s)
    text += f" The most CPU time, {dearest.cpu_s:.2f} s, is that of {dearest.name}."
    advice = "Trace some batches with fewer samples at once in a worker (num_fetch_workers): that tells."
    return Verdict(UNKNOWN, "", text, advice, {"loading_off_cpu": off_cpu})


def _needed_alone(facts: Facts) -> float:
    """Share of the time off the CPU that is waiting for data, where there is nothing else to compare it with."""
    return max(OFF_CPU, OFF_CPU_BEYOND + (facts.starved or 0.0))


def _kept_off(facts: Facts, rest: Sequence[OpFact]) -> float:
    """Share of the time that a busy machine kept operations from the CPU: what they say who hardly wait for data, and
    no more than what was waited for a core, where that is known."""
    off_cpu = _off_cpu(rest)
    return off_cpu if facts.starved is None else min(off_cpu, facts.starved)


def _preprocessing(facts: Facts) -> Verdict:
    busy = f"Workers were busy {facts.busy_share:.0%} of the time, on the CPU for {_share_on(facts):.0%} of that."
    if facts.crowded_cpu >= CROWDED:
        busy = (
            f"Each worker kept {facts.crowded_cpu:.1f} cores busy with several samples at once: one at a time in a "
            f"process computes in Python, the others wait for it."
        )
    elif facts.work_s and _share_on(facts) < LITTLE_CPU:
        busy += " For the rest they waited: for a core that others had, a lock, or data."
        if facts.starved is not None:
            busy += f" For a core it was {facts.starved:.0%}."
    advice = "Add workers, or make it cheaper."
    if facts.is_inline:
        advice = "Use workers (num_workers): samples are made in the loop's own process, one at a time."
    elif facts.starved is not None and facts.starved > STARVED:
        advice = "More workers would not help: those there are have no core. Make it cheaper, or use more cores."
    elif facts.crowded_cpu >= CROWDED:
        advice = "Use more workers with fewer samples at once in each, or make it cheaper."
    ops = facts.ops or facts.inner
    computed_s = sum(op.cpu_s for op in ops)
    if facts.crowded_cpu >= CROWDED and computed_s:  # what an operation takes is mostly waiting for the others
        dearest: OpFact | None = max(ops, key=lambda op: op.cpu_s)
        share, of = dearest.cpu_s / computed_s if dearest else 0.0, "the CPU time"
    else:
        dearest = max(ops, key=lambda op: op.total_s, default=None)
        whole = max(_spent(facts.ops), facts.work_s)  # less is known of it where only the collation was timed
        share, of = dearest.total_s / whole if dearest and whole else 0.0, "the work"
    if dearest is None or not share:
        return Verdict(PREPROCESSING, "", busy, advice)
    text = f"{busy} The dearest operation is {dearest.name}: {share:.0%} of {of}, {_time(dearest.mean_s)} per call."
    inside = max(facts.inner, key=lambda op: op.total_s, default=dearest)
    culprit = dearest.name
    if dearest.is_loading and inside is not dearest and inside.total_s >= MOST_INSIDE * dearest.total_s:
        culprit = inside.name
        text += f" Most of that is {inside.name}, {_time(inside.mean_s)} per call."
    return Verdict(PREPROCESSING, culprit, text, advice, {"dearest_share": share})


def _spent(ops: Sequence[OpFact]) -> float:
    return sum(op.total_s for op in ops)


def _off_cpu(ops: Sequence[OpFact]) -> float:
    return _off(_spent(ops), sum(op.cpu_s for op in ops))


def _off(spent_s: float, cpu_s: float) -> float:
    return max(0.0, 1 - cpu_s / spent_s) if spent_s else 0.0


def _share_on(facts: Facts) -> float:
    return min(1.0, facts.work_cpu_s / facts.work_s) if facts.work_s else 0.0


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
