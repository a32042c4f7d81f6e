"""Other machines' CPUs, on Ray: part of a loader's work goes to a cluster when this machine cannot feed the consumer.

In the main process                          In the agent, a process beside the workers

    _ray.py            arguments                 _agent.py      its loop: listens, keeps up, reports
    _session.py        a loader's side           _calling.py    gives work to actors, hands in what comes back
    _work.py           an engine's side          _lanes.py      its hands on the engine's shared memory
    _controlling.py    when to measure, change   _cluster.py    Ray: nodes, actors (alone in importing Ray)
    _phases.py         its stages and windows    _greeting.py   actors show that they make the same samples
    _deciding.py       placement, ratio, actors  _flow.py       bytes under way, samples per call
    _balancing.py      which samples go away     _purposes.py   what actors are asked for
    _store.py          what was learned          _splitting.py  samples read here and transformed there
    _agent_process.py  start and end the agent   _agent_main.py its entry: joins the cluster, works, leaves
    _finding.py        which cluster is meant

On the other machines: _actor.py, which makes samples by way of _making.py. What they all say to each other: _wire.py.
docs/offloading.md tells how to use it.
"""

from ._ray import Ray as Ray
from ._ray import measure_step as measure_step

__all__ = ["Ray", "measure_step"]

for _public in (Ray, measure_step):
    _public.__module__ = "minato.offload"
del _public
