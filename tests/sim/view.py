"""Shared memory as one simulated process maps it: at each store the process may end."""

from __future__ import annotations

from typing import cast

from shards import layout as at
from shards.segment import Segment
from tests.sim.schedule import Process, Words


class View(Segment):
    """The segment as one process maps it."""

    def __init__(self, segment: Segment, process: Process) -> None:
        self.fd = segment.fd
        self.layout = segment.layout
        self._map = segment._map
        self.data = segment.data
        layout = segment.layout
        heads = frozenset(layout.shard(shard) + at.S_HEAD for shard in range(layout.shards))
        self.words = cast(memoryview, Words(segment.words, process, heads))
