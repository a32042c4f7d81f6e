"""Other machines' CPUs, on Ray: part of a loader's work goes to a cluster when this machine cannot feed the consumer.

In the main process                          In the agent, a process beside the workers

    _ray.py            arguments                 _agent.py      takes what is set aside, hands in what comes back
    _session.py        a loader's side           _lanes.py      its hands on the engine's shared memory
    _controlling.py    when to measure, change   _cluster.py    Ray: nodes, actors, calls (alone in importing Ray)
    _deciding.py       placement, ratio, actors  _greeting.py   actors show that they make the same samples
    _balancing.py      which samples go away     _flow.py       bytes under way, samples per call
    _store.py          what was learned          _purposes.py   what actors are asked for
    _agent_process.py  start and end the agent   _splitting.py  samples read here and transformed there

On the other machines: _actor.py. What they all say to each other: _wire.py. docs/offloading.md tells how to use it.
"""

from ._ray import Ray as Ray
from ._ray import measure_step as measure_step

__all__ = ["Ray", "measure_step"]

for _public in (Ray, measure_step):
    _public.__module__ = "minato.offload"
del _public
