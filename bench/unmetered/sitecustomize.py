"""Makes a daemon that measures nothing, to compare with (``governor/cost``).

Python imports a module of this name when it starts, if its folder is in PYTHONPATH. No sensor is
read, no sample of the governor is taken, no latency is counted, no count of a topic or a token is
stored. What remains is the comparison that finds out whether a request is a sample, and additions
to its topic's and its token's counts in the process's own memory.
"""

from __future__ import annotations

from daemon.governor.shard_sensors import ShardSensors
from daemon.governor.tick import GovernorTick
from shards.boards.namecounts import NameCounts
from shards.latency import LatencyHistogram


def nothing(*_: object) -> None:
    """Instead of a measurement."""


REPLACED = (
    (GovernorTick, "tick"),
    (ShardSensors, "store"),
    (LatencyHistogram, "observe"),
    (NameCounts, "store"),
)
for owner, name in REPLACED:
    getattr(owner, name)  # what was renamed must not be measured without being noticed
    setattr(owner, name, nothing)
