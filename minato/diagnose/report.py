"""What was found, in words, as a table, as JSON, as a graph and as HTML."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._pipeline.cache import MEMORY_SHARE
from .._pipeline.planning import NoCache, choose, points
from .advising import WORTH_SAYING
from .bound import CONSUMER, STORAGE, Bound
from .measuring import Seen
from .mistakes import INNER_THREADS
from .model import RATE, WAIT, StageModel, bottleneck, computing_s, model, score, waiting_s
from .predicting import WAITING, Setting, machine_bound, over_epochs, predict, stage_shares, undisturbed
from .pricing import Purchase, cheapest
from .records import Advice
from .wording import in_bytes, in_seconds, limit_in_words

_COLUMNS = ("stage", "time", "CPU", "wall", "rate/core", "cores used", "size", "read", "")
_ALL_OF_IT = 1 << 62  # bytes: memory is what is being bought
UNEXPLAINED = 0.6  # of the upper limit: a rate below it has another reason than what the model knows
_SURE = {"high": "sure", "medium": "fairly sure", "low": "not sure: the measurement was unsteady"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `minato.diagnose` returns. `str()` of it is the whole report; its first line is the verdict."""

    seen: Seen
    stages: tuple[StageModel, ...]
    now: Bound
    """With the loader's own number of workers."""
    best: Bound
    """Of this machine, with as many workers as it takes."""
    bottleneck: str
    """The stage that is worst by `rank`; "consumer": the loop itself."""
    sureness: str
    """"high", "medium" or "low"."""
    advice: tuple[Advice, ...]
    no_cache: str = ""
    """Why no cache is proposed; empty: one is, or there is one."""
    rank: str = RATE
    """How stages were ranked: "rate", "busy" or "wait"."""

    @property
    def rate(self) -> float | None:
        """Batches per second that were measured."""
        return self.seen.measurement.rate

    @property
    def share_of_bound(self) -> float | None:
        """Measured rate as a share of the upper limit."""
        return None if self.rate is None else self.rate / self.now.rate

    @property
    def verdict(self) -> str:
        """What the bottleneck is, how sure that is, what to do: one line."""
        return f"{self._what()} ({_SURE[self.sureness]}). {self._do()}"

    def _what(self) -> str:
        if self._tried is not None and self.rank == RATE:
            return self._better_inline()
        step = self.seen.measurement.step_s
        if self.bottleneck == CONSUMER and step is not None:
            return (
                f"The bottleneck is your own loop: it takes {in_seconds(step)} per batch, and the loader can give one "
                f"every {in_seconds(1 / self._loader_rate())}{self._unevenly()}"
            )
        shares = stage_shares(self.stages)
        stage = next(stage for stage in self.stages if stage.name == self.bottleneck)
        if self.rank != RATE:
            return f"{self._ranked(stage)}; {self._held()}"
        demand = stage.demand
        waits = demand.wall_s - demand.cpu_s > 0.5 * demand.wall_s
        threads = self.seen.inner_threads > INNER_THREADS
        does = "computing in several threads" if threads else "waiting, not computing" if waits else "computing"
        if demand.is_sequential:
            return (
                f"The bottleneck is handing batches over to your loop ({stage.name!r}), which takes the main process "
                f"{in_seconds(demand.wall_s)} for each; {self._held()}"
            )
        return (
            f"The bottleneck is the stage {stage.name!r}: {shares[stage.name]:.0%} of a sample's time is spent there, "
            f"{does}; {self._held()}"
        )

    def _better_inline(self) -> str:
        measurement = self.seen.measurement
        workers = f"{measurement.workers} worker{'s' * (measurement.workers != 1)}"
        each = 1 / (measurement.inline_rate or self.now.rate) / measurement.batch_size
        return (
            f"The bottleneck is handing samples over: they are so cheap ({in_seconds(each)} each) that it takes longer "
            f"to have them from {workers} than to make them in your loop's own process"
        )

    def _ranked(self, stage: StageModel) -> str:
        """The worst stage by what was asked for."""
        if self.rank == WAIT:
            waits, wall = waiting_s(stage), max(stage.demand.wall_s, 1e-12)
            which = (
                "The stage that waits most is" if waits > WAITING * wall else "No stage waits for long; the most does"
            )
            return f"{which} {stage.name!r}: {in_seconds(waits)} per batch off the CPU, {waits / wall:.0%} of its time"
        measurement = self.seen.measurement
        is_main = stage.demand.is_sequential or measurement.workers == 0
        share = (self.rate or self.now.rate) * computing_s(stage, 1 if is_main else measurement.slots)
        whose = "the main process's" if is_main else "the workers'"
        return f"The busiest stage is {stage.name!r}: computing in it takes {min(1.0, share):.0%} of {whose} time"

    def _held(self) -> str:
        """What holds the rate, as far as it is known."""
        limit = limit_in_words(self.now, self.seen)
        if self.rate is not None and self.rate < UNEXPLAINED * self.now.rate:
            return (
                f"but that allows {self.now.rate:,.1f} batches/s (the limit is {limit}), and {self.rate:,.1f} were "
                f"measured: the rest is lost outside the stages (starting workers, handing over, other programs)"
            )
        return f"what holds the rate at {self.rate or self.now.rate:,.1f} batches/s is {limit}"

    def _unevenly(self) -> str:
        """That the loop waits although batches are made fast enough, if something is proposed against it."""
        if not any("prefetch_factor" in one.changes for one in self.advice):
            return ""
        return f"; it still waits {self.seen.measurement.wait_share or 0:.0%} of its time, as they come unevenly"

    @property
    def _tried(self) -> Advice | None:
        """What was run, and found to be better than the loader as it is."""
        return next((one for one in self.advice if one.was_tried), None)

    def _loader_rate(self) -> float:
        measurement = self.seen.measurement
        return predict(measurement, Setting(measurement.workers, measurement.concurrency), with_consumer=False).rate

    def _do(self) -> str:
        worth = [one for one in self.advice if one.rate is not None]
        if worth:
            last = worth[-1]
            urgent_first = sorted(self.advice, key=lambda one: not one.is_urgent)
            steps = ", and ".join(one.in_full for one in urgent_first if one.is_urgent or one.rate is not None)
            if last is self._tried and self.rate:
                times = (last.rate or 0.0) / self.rate
                return f"Do this: {steps}: {last.rate:,.1f} batches/s when it was tried, {times:.1f} times as many."
            others = " with the cores to itself" if self.seen.measurement.others_cores else ""
            times = (last.rate or 0) / self._rate_alone()
            starts = ", starts of workers counted" if "persistent_workers" in last.changes else ""
            gain = f", {times:.1f} times as many{starts}" if times >= WORTH_SAYING else ""
            return f"Do this: {steps}: {last.rate:,.1f} batches/s predicted{others}{gain}."
        steps = ", and ".join(one.in_full for one in self.advice)
        do = f"Do this: {steps}. " if steps else ""
        if any(one.is_urgent for one in self.advice):
            return do.rstrip()
        if self.bottleneck == CONSUMER:
            return do or "Nothing about the loader needs to change."
        right = "" if steps else "the loader's arguments are right for this machine; "
        rest = f"{right}to go faster, {self._faster()}."
        return f"{do}{rest[0].upper()}{rest[1:]}"

    def _faster(self) -> str:
        """What would help where no argument of the loader does."""
        more = "storage bandwidth" if self.best.limit == STORAGE else "cores"
        if any(stage.name == self.bottleneck and stage.demand.is_sequential for stage in self.stages):
            return f"hand over more samples at a time (a larger batch_size), or use more {more}"
        better = "wait less" if self.rank == WAIT else "cheaper"
        return f"make {self.bottleneck!r} {better}, or use more {more}"

    def _rate_alone(self) -> float:
        """The rate now, or what it would be if nobody else used the cores: predictions count on all of them. They count
        the starts of workers too."""
        measurement = self.seen.measurement
        setting, rate = Setting(measurement.workers, measurement.concurrency), self.rate
        if rate is None or measurement.others_cores:
            rate = max(rate or 0.0, predict(undisturbed(measurement), setting).rate)
        return over_epochs(measurement, setting, rate)

    def table(self) -> str:
        """The stages, one per line, in plain text."""
        rows = [_COLUMNS, *(self._row(stage) for stage in self.stages)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(_COLUMNS))]
        return "\n".join(
            "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _row(self, stage: StageModel) -> tuple[str, ...]:
        shares = stage_shares(self.stages)
        visits = max(stage.visits, 1e-12)
        measured = next(one for one in self.seen.measurement.stages if one.name == stage.name)
        return (
            stage.name,
            f"{shares[stage.name]:.0%}",
            in_seconds(stage.demand.cpu_s / visits),
            in_seconds(stage.demand.wall_s / visits),
            "-" if stage.rate_per_core is None else f"{stage.rate_per_core:,.1f}/s",
            f"{stage.cores_used:.2f}",
            in_bytes(stage.bytes_per_sample),
            in_bytes(stage.demand.bytes_read / visits),
            measured.randomness if measured.kind in ("load", "transform") else "",
        )

    def __str__(self) -> str:
        lines = [self.verdict, "", self.table(), "", *self._limits()]
        for number, one in enumerate(self.advice, 1):
            lines += ["", f"{number}. {one.in_full[0].upper()}{one.in_full[1:]}."]
            lines.append(f"   Because {one.reason}. {one.rate_in_words}".rstrip())
        return "\n".join(lines)

    def _limits(self) -> list[str]:
        measured = "" if self.rate is None else f"; measured: {self.rate:,.1f}, {self.share_of_bound:.0%} of it"
        cache = [f"no cache is proposed: {self.no_cache}"] if self.no_cache else []
        return [
            f"upper limit as configured: {self.now.rate:,.1f} batches/s{measured}",
            f"upper limit of this machine: {self.best.rate:,.1f} batches/s, held by "
            f"{limit_in_words(self.best, self.seen, as_configured=False)}",
            *cache,
        ]

    def plan(self, min_rate: float, prices: Mapping[str, float]) -> Purchase:
        """The cheapest cores, memory and storage bandwidth for `min_rate` batches per second, by the model.

        Args:
            min_rate: batches per second that your loop wants.
            prices: of "core", "memory_gb" and "storage_mb_s" (bandwidth), per hour or whatever you pay by. What has no
                price is not counted.
        """
        samples = self.seen.measurement.dataset_samples or 0
        where = points(self.seen.look, samples, _ALL_OF_IT) if samples else []
        return cheapest(self.seen.measurement, where, min_rate, prices)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain values for JSON."""
        sizes = {
            stage.name: {
                "size_bytes": stage.size.total_bytes,
                "size_error_bytes": stage.size.error_bytes,
                "randomness": stage.randomness.value,
                "reason": stage.reason,
            }
            for stage in self.seen.look.stages
        }
        return {
            "verdict": self.verdict,
            "bottleneck": self.bottleneck,
            "rank": self.rank,
            "sureness": self.sureness,
            "rate": self.rate,
            "bound": asdict(self.now),
            "machine_bound": asdict(self.best),
            "stages": [{**asdict(stage), **sizes.get(stage.name, {})} for stage in self.stages],
            "advice": [asdict(one) for one in self.advice],
            "no_cache": self.no_cache,
            "measurement": asdict(self.seen.measurement),
            "storage": None if self.seen.storage is None else asdict(self.seen.storage),
        }

    def json(self) -> str:
        """The same as text."""
        return json.dumps(self.as_dict(), indent=1, default=str)

    def dot(self) -> str:
        """The pipeline as a graph for Graphviz, its bottleneck in red."""
        shares = stage_shares(self.stages)
        lines = ["digraph pipeline {", "  rankdir=LR; node [shape=box, fontname=sans];"]
        names = [stage.name for stage in self.stages] + ["consumer"]
        for number, name in enumerate(names):
            label = name if name == "consumer" else f"{name}\\n{shares[name]:.0%} of the time"
            colour = ', color=red, penwidth=3, fontcolor="#b00000"' if name == self.bottleneck else ""
            lines.append(f'  s{number} [label="{_escaped(label)}"{colour}];')
        lines += [f"  s{number} -> s{number + 1};" for number in range(len(names) - 1)]
        return "\n".join([*lines, "}"])

    def html(self) -> str:
        """A section for a report: verdict, bars, table, advice. No scripts, no files."""
        shares = stage_shares(self.stages)
        head = "".join(f"<th>{html.escape(column)}</th>" for column in _COLUMNS)
        rows = []
        for stage in self.stages:
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in self._row(stage))
            colour = "#d9534f" if stage.name == self.bottleneck else "#6c96cb"
            bar = f'<div style="background:{colour};height:.8em;width:{200 * shares[stage.name]:.0f}px"></div>'
            rows.append(f'<tr>{cells}<td style="min-width:210px">{bar}</td></tr>')
        advice = "".join(
            f"<li><b>{html.escape(one.in_full)}</b>: {html.escape(f'{one.reason}. {one.rate_in_words}'.rstrip())}</li>"
            for one in self.advice
        )
        return (
            f'<section class="minato-diagnosis"><h2>Diagnosis</h2><p><b>{html.escape(self.verdict)}</b></p>'
            f'<div class="table"><table><thead><tr>{head}<th></th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>"
            f"<p>{'<br>'.join(map(html.escape, self._limits()))}</p><ol>{advice}</ol></section>"
        )

    def _repr_html_(self) -> str:
        return self.html()


def conclude(loader: Any, seen: Seen, advice: tuple[Advice, ...], rank: str = RATE) -> Diagnosis:
    """The diagnosis of what was seen, with stages ranked that way."""
    measurement = seen.measurement
    stages = model(measurement)
    now = predict(measurement, Setting(measurement.workers, measurement.concurrency))
    slots = 1 if loader.num_workers == 0 else measurement.slots
    worst = bottleneck(stages, slots, measurement.cores, rank)
    tried = [one.rate for one in advice if one.was_tried]
    name = CONSUMER if now.limit == CONSUMER and not tried else worst.name
    # What a stage takes of a sample's time is how far it is ahead; by another rank, what that is about.
    costs = [stage.demand.wall_s if rank == RATE else score(stage, slots, measurement.cores, rank) for stage in stages]
    sureness = _loop_sureness(seen) if name == CONSUMER else _sureness(seen, costs, stages.index(worst), now)
    if rank == RATE and tried and tried[0] and measurement.rate:
        sureness = _how_sure(tried[0] / measurement.rate, measurement.rate_change)
    best, why_not = machine_bound(measurement), _no_cache(loader, seen)
    return Diagnosis(seen, stages, now, best, name, sureness, advice, why_not, rank)


def _no_cache(loader: Any, seen: Seen) -> str:
    """Why no result can be kept; empty: it can, or it is kept already."""
    measurement = seen.measurement
    if getattr(loader, "cache", None) is not None or not measurement.dataset_samples:
        return ""
    limit = int(MEMORY_SHARE * (measurement.memory_bytes or 0))
    choice = choose(seen.look, "auto", measurement.dataset_samples, limit)
    return choice.reason if isinstance(choice, NoCache) else ""


def _sureness(seen: Seen, costs: Sequence[float], worst: int, now: Bound) -> str:
    """By how far the worst stage is ahead of the next, how steady the measurement was, and whether it is explained."""
    others = [cost for number, cost in enumerate(costs) if number != worst]
    found = _how_sure(costs[worst] / max([*others, 1e-12]), seen.measurement.rate_change)
    is_explained = seen.measurement.rate is None or seen.measurement.rate >= UNEXPLAINED * now.rate
    return found if is_explained or found == "low" else "medium"


def _loop_sureness(seen: Seen) -> str:
    """By how much longer a step of the loop takes than the loader needs for a batch."""
    measurement = seen.measurement
    alone = predict(measurement, Setting(measurement.workers, measurement.concurrency), with_consumer=False).rate
    return _how_sure((measurement.step_s or 0.0) * alone, measurement.rate_change)


def _how_sure(ahead: float, change: float) -> str:
    if ahead > 1.5 and change < 0.05:
        return "high"
    return "medium" if ahead > 1.1 and change < 0.25 else "low"


def _escaped(text: str) -> str:
    return text.replace('"', '\\"')
