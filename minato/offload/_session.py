"""A loader's side of offloading: measures, decides (`_controlling`), and has an agent carry it out."""

from __future__ import annotations

import hashlib
import logging
import os
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .._instrument import Kind, active
from .._plan import Collate, Fetcher, Order
from .._protocols import Seat
from .._workers.program import Program
from ._agent_process import AgentProcess
from ._controlling import Controller
from ._deciding import PLACEMENTS
from ._making import Cargo
from ._phases import Policy, Stage, Wish
from ._splitting import can_transform
from ._store import MetricStore, pipeline_key
from ._wire import Attach, Ready, Report, Returned, Setup, Span, Spans, Trouble
from ._work import DEPTH, Work

if TYPE_CHECKING:
    from ._ray import Ray

JOIN_S = 90.0  # seconds to join a cluster, or to start one
SILENCE_S = 30.0  # seconds without a word from an agent that should speak ten times a second
RETRY_S = 10.0  # seconds before another agent is started; doubles each time
MOST_RETRY_S = 300.0
_log = logging.getLogger("minato.offload")


class Session:
    """For one loader: one agent, one engine at a time."""

    def __init__(self, config: Ray) -> None:
        self._config = config
        self.lanes = DEPTH * config.most_remote
        self._agent: AgentProcess | None = None
        self._cluster: Ready | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._pid = os.getpid()
        self._heard = 0.0
        self._retry_at = 0.0
        self._retry_s = RETRY_S
        self._work: Work | None = None
        self.controller: Controller | None = None
        self._store = MetricStore(config.store_path())
        self._key = ""
        self._digest = ""
        self._warned = False
        self._remote_samples = 0
        self._samples_before = 0
        self._is_traced = False
        self._closed = False

    # ---- engines ---------------------------------------------------------------------------------------------------

    def attach(self, seat: Seat) -> Work | None:
        if self._closed or os.getpid() != self._pid:
            return None
        if self._work is not None:
            self.warn("an iterator of an earlier epoch is still held, and has the cluster; the new one does without")
            return None
        self._is_traced = seat.plan.trace is not None
        if self.controller is None:
            self.controller = self._make_controller(seat)
        self._work = Work(self, seat, self.controller)
        return self._work

    def _make_controller(self, seat: Seat) -> Controller:
        config = self._config
        policy = Policy(
            placements=_placements(config.placement, seat),
            ratio=config.ratio if isinstance(config.ratio, (int, float)) else None,
            greedy=config.ratio == "greedy",
            prefer_local=config.prefer == "local",
            min_speedup=config.min_speedup,
            most_actors=config.most_remote,
            profile_steps=config.profile_steps,
            recheck_steps=config.recheck_every,
        )
        self._key = pipeline_key(seat, config.model_key)
        return Controller(policy, seat.cores, self._store.local(self._key), self._note, config.consumer_rate)

    def _note(self, text: str) -> None:
        """A decision, for the log and the trace."""
        _log.info("%s", text)
        instrument = active()
        if instrument is not None and self._is_traced:
            instrument.note(Kind.DECISION, time.monotonic_ns(), of="offload", reason=text, text=f"offload: {text}")

    def let_go(self, work: Work) -> None:
        """An engine has ended."""
        if self._work is work:
            self._work = None

    # ---- the agent -------------------------------------------------------------------------------------------------

    @property
    def agent(self) -> AgentProcess | None:
        """The agent, once it is in the cluster."""
        return self._agent if self._agent is not None and self._agent.is_ready else None

    @property
    def has_agent(self) -> bool:
        """Whether there is one, in the cluster or on its way."""
        return self._agent is not None

    def tend(self, wish: Wish, now: float) -> None:
        """Start the agent if it is wanted; hear what it has to say."""
        if self._agent is None and wish.launch and now >= self._retry_at:
            self._launch(now)
        agent = self._agent
        while agent is not None and agent is self._agent:
            message = agent.receive()
            if message is None:
                break
            self._hear(message, now)
        if self._agent is not None and self._agent.has_ended:
            self.lose("the agent ended unexpectedly", now)
        if self._agent is not None and not self._agent.is_ready and now - self._heard > JOIN_S:
            self.lose(f"no Ray cluster: none was joined within {JOIN_S:.0f} s", now)
        if self.agent is not None and self._cluster is not None:
            self._tell_cluster(self._cluster)

    def _tell_cluster(self, cluster: Ready) -> None:
        controller = self.controller
        if controller is not None and controller.stage is Stage.STARTING:
            known = controller.remotes if controller.remote_nodes == cluster.nodes else {}
            stored = self._store.remotes(self._key, cluster.nodes)
            controller.ready(cluster.nodes, cluster.actors, {**stored, **known})

    def _launch(self, now: float) -> None:
        config = self._config
        found = config.find_cluster()
        self._agent = AgentProcess(
            Setup(
                address=found.address,
                or_local=found.or_local,
                most_actors=config.most_remote,
                most_bytes=config.max_inflight_bytes,
                bytes_per_s=config.max_bandwidth,
                call_timeout_s=config.call_timeout_s,
                ranks=_ranks(),
                use_this_node=config.use_this_node,
                local_cpus=config.local_cpus,
                namespace=config.namespace,
                runtime_env=config.runtime_env,
                resources=config.resources,
            )
        )
        self._finalizer = weakref.finalize(self, self._agent.close)
        self._heard, self._digest = now, ""

    def _hear(self, message: Any, now: float) -> None:
        self._heard = now
        controller = self.controller
        assert controller is not None
        match message:
            case Ready():
                if self._agent is not None:
                    self._agent.is_ready = True
                self._cluster = message
                controller.resized(message.actors)
            case Report():
                self._remote_samples = self._samples_before + message.total_samples
                self._retry_s = RETRY_S
                before = controller.stage
                controller.reported(message)
                if before is Stage.MEASURING_REMOTE and controller.stage is not before:
                    self._save(controller)
            case Spans(spans):
                self._trace(spans)
            case Returned():
                if self._work is not None:
                    self._work.wake = True
            case Trouble(text, fatal):
                self.warn(text)
                if fatal:
                    self.lose(text, now)

    def _trace(self, spans: tuple[Span, ...]) -> None:
        instrument, work = active(), self._work
        if instrument is None or work is None:
            return
        for one in spans:
            instrument.record(
                Kind.OFFLOADED,
                one.start_ns,
                one.duration_ns,
                name=f"actor {one.actor}",
                batch=one.batch,
                index=one.lane,
                count=one.samples,
                nbytes=one.nbytes,
                cpu_ns=one.work_ns,
                pool=work.pool,
            )

    def _save(self, controller: Controller) -> None:
        if controller.local is not None and controller.remote_nodes is not None:
            self._store.save(self._key, controller.local, controller.remote_nodes, controller.remotes)

    def warn(self, text: str) -> None:
        """Once in a loader's life; everything is logged."""
        _log.info("%s", text)
        text = next(iter(text.strip().splitlines()), "").rstrip(".")
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"offloading: {text}. Its samples are made on this machine instead; further trouble of this kind is "
                f"only logged (logger 'minato.offload').",
                RuntimeWarning,
                stacklevel=2,
            )

    def lose(self, why: str, now: float) -> None:
        """There is no agent any more; another may be started later."""
        self.warn(why)
        if self._finalizer is not None:
            if self._agent is not None:
                self._agent.kill()
            self._finalizer()
        self._agent, self._finalizer = None, None
        self._samples_before = self._remote_samples
        self._retry_at = now + self._retry_s
        self._retry_s = min(MOST_RETRY_S, 2 * self._retry_s)
        if self.controller is not None:
            self.controller.lost(why)

    def is_silent(self, now: float) -> bool:
        """Whether the agent has not been heard for too long, though it should."""
        return self.agent is not None and now - self._heard > SILENCE_S

    def send_seat(self, seat: Seat) -> bool:
        """Have the agent work for an engine. False: it cannot be told how."""
        assert self._agent is not None
        plan = seat.plan
        try:
            program = Program(seat.dataset, plan.collate_fn, plan.worker_init_fn)
            blob = _pickled(Cargo(program, plan.fetcher, plan.lanes, plan.thread_copies))
        except Exception as error:
            self.warn(f"the dataset or its functions cannot be pickled: {error!r}")
            return False
        digest = hashlib.blake2b(blob, digest_size=16).hexdigest()
        fds = [seat.control, seat.arena, seat.wake, seat.ready]
        memory = -1
        if digest != self._digest:
            memory = os.memfd_create("minato-cargo", os.MFD_CLOEXEC)
            with open(memory, "wb", closefd=False) as file:
                file.write(blob)
            fds.append(memory)
        message = Attach(
            order=plan.order,
            collate=plan.collate,
            mends=plan.mends,
            together=plan.together,
            fetches=1 if plan.together else plan.lanes,
            is_traced=plan.trace is not None,
            num_workers=plan.num_workers,
            base_seed=seat.base_seed,
            batches=seat.batches,
            workers=seat.workers,
            first_lane=seat.first_lane,
            cargo=digest,
            has_cargo=memory >= 0,
        )
        try:
            sent = self._agent.send(message, tuple(fds))
        finally:
            if memory >= 0:
                os.close(memory)
        self._digest, self._heard = digest, time.monotonic()
        return sent

    # ---- the loader ------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        controller = self.controller
        if controller is None:
            return {}
        wish = controller.wish
        return {
            "samples_remote": self._remote_samples,
            "remote_actors": controller.open_actors,
            "remote_placement": wish.placement,
            "remote_ratio": wish.ratio,
            "offload_decisions": controller.decisions,
        }

    def close(self) -> None:
        self._closed = True
        if os.getpid() != self._pid:
            return
        if self._finalizer is not None:
            self._finalizer()
        self._agent, self._finalizer = None, None


def _placements(wanted: str, seat: Seat) -> tuple[str, ...]:
    """Those to choose from."""
    if wanted == "local":
        return ()
    can_split = can_transform(seat.dataset) and seat.plan.fetcher is not Fetcher.ASYNCIO
    can_batch = seat.plan.collate is Collate.ROWS or seat.plan.order is not Order.SAMPLES_OVERTAKE
    possible = {"transform": can_split, "sample": True, "batch": can_batch}
    if wanted != "auto":
        return (wanted,)
    return tuple(name for name in PLACEMENTS if possible[name])


def _ranks() -> int:
    """Processes of this training, each with a loader of its own."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _pickled(cargo: Cargo) -> bytes:
    """By value where the class or function is of the main script: other processes do not have that."""
    from ray import cloudpickle

    dumps: Callable[..., bytes] = cloudpickle.dumps
    return dumps(cargo, protocol=5)
