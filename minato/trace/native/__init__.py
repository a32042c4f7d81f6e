"""From Python operations to native functions, and from a profile of native functions back to operations.

ops.py         operations, given or found on a dataset
runs.py        how many runs a sampling profiler needs
isolate.py     runs operations alone, with `perf` (perf.py) collecting only then
samples.py     samples with their functions; stripped libraries by their exports (elf.py)
mapping.py     counts per operation, function and library, with the machine (machine.py) they belong to
mapper.py      map_ops: all of the above
profiles.py    profiles of whole runs: perf.data, CSV of VTune and uProf
matching.py    finds the mapped function that a profiler means
attribution.py splits the metrics of a profile over operations
"""

from .attribution import Attribution, OpTime, attribute
from .errors import ForeignMapping, PerfFailed, PerfMissing
from .mapper import map_ops
from .mapping import NativeMapping, OpCounts
from .ops import Op, ops_of
from .profiles import Profile, ProfileRow, read_profile
from .runs import capture_probability, runs_needed
from .samples import Function

__all__ = [
    "Attribution",
    "ForeignMapping",
    "Function",
    "NativeMapping",
    "Op",
    "OpCounts",
    "OpTime",
    "PerfFailed",
    "PerfMissing",
    "Profile",
    "ProfileRow",
    "attribute",
    "capture_probability",
    "map_ops",
    "ops_of",
    "read_profile",
    "runs_needed",
]
