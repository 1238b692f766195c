"""What was measured of delivery after the commit, in the shape of the JSON that is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a time in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    count: int

    @classmethod
    def of_ns(cls, values_ns: Iterable[int]) -> Spread:
        """Of at least one value."""
        ordered = sorted(values_ns)

        def at(share: float) -> float:
            return ordered[math.ceil(share * len(ordered)) - 1] / 1e6

        return cls(at(0.5), at(0.99), ordered[-1] / 1e6, len(ordered))


class LatencyResult(msgspec.Struct, frozen=True):
    """One record at a time to all watchers of its topic.

    ``commit_to_socket`` begins at the commit's publication in the commit log; ``ack_to_socket`` at
    the arrival of the producer's answer, so it may be negative; both end when the record is in the
    watcher's socket. ``commit_to_read`` ends when our client has read it. ``daemon_p50_ms`` and
    ``daemon_p99_ms`` are of the daemon's own histogram, from the publication to the write, to a
    factor of two. ``load``: what the same shard did meanwhile, ``floor`` for the null fan-out
    instead of a daemon.
    """

    load: str
    watchers: int
    commit_to_socket: Spread
    ack_to_socket: Spread
    commit_to_read: Spread
    daemon_p50_ms: float | None = None
    daemon_p99_ms: float | None = None
    acked_per_s: float | None = None


class FloodResult(msgspec.Struct, frozen=True):
    """A saturated topic of 1 KiB records, and watchers of it that read as fast as they can.

    Deliveries are records times watchers, by the bytes that arrived. ``acked_alone_per_s`` is what
    the same producers got of the same daemon before there were watchers.
    """

    watchers: int
    seconds: float
    deliveries_per_s: float
    deliveries_per_cpu_s: float
    mib_per_s: float
    acked_per_s: float
    acked_alone_per_s: float


class FairnessResult(msgspec.Struct, frozen=True):
    """Bytes delivered while all bands had work, and records written to each band's topic
    meanwhile, from the top band to the lowest."""

    delivered_bytes: list[int]
    written_records: list[int]


class StreamMemoryResult(msgspec.Struct, frozen=True):
    """Memory of the daemon per idle stream: all its processes, shared pages counted once."""

    streams: int
    bytes_each: float


class RoutedResult(msgspec.Struct, frozen=True):
    """Records copied a second: by a router that follows saturated producers, and by one that
    copies what is there (back-fill)."""

    acked_records_per_s: float
    followed_records_per_s: float
    backfilled_records: int
    backfilled_records_per_s: float
    backfilled_per_cpu_s: float


class WakeupsResult(msgspec.Struct, frozen=True):
    """Appends at random phases, each to a topic with one watcher. ``late``: those that took more
    than 50 ms from the commit's publication to the socket."""

    appends: int
    late: int
    commit_to_socket: Spread


class DeliveryResults(msgspec.Struct):
    """All of them. ``others_share``: the most that other programs used of all CPUs meanwhile."""

    others_share: float = 0.0
    latencies: list[LatencyResult] = []
    acked_alone_per_s: list[float] = []
    floods: list[FloodResult] = []
    fairness: FairnessResult | None = None
    stream_memory: StreamMemoryResult | None = None
    routed: RoutedResult | None = None
    wakeups: WakeupsResult | None = None
