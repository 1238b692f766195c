"""Makes a daemon that measures nothing, to compare with (``governor/cost``).

Python imports a module of this name when it starts, if its folder is in PYTHONPATH. No sample of
the governor is taken, no latency is counted, no count of a topic is stored. What remains for a
request: two additions to its topic's counts in the process's own memory, and the question whether
it is a sample.
"""

from __future__ import annotations

from daemon.governor.tick import GovernorTick
from shards.latency import LatencyHistogram
from shards.topiccounts import TopicCounts


def _nothing(*_: object) -> None:
    """Instead of a measurement."""


REPLACED = [
    (GovernorTick, "tick", _nothing),
    (LatencyHistogram, "observe", _nothing),
    (TopicCounts, "store", _nothing),
]
for owner, name, instead in REPLACED:
    getattr(owner, name)  # what is not there any more is not measured without being noticed
    setattr(owner, name, instead)
