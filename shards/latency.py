"""How long records took from their commit to a watcher, counted per shard in shared memory.

A histogram of a shard has fixed buckets: bucket 0 counts what took less than 1 us, bucket b what
took from 2^(b-1) us to less than 2^b us, the last one all that took longer. Only that shard adds to
it, and it outlives the shard's restarts. Any process may read it while it changes: a reader may see
one count more or less, never a torn one.
"""

from __future__ import annotations

from collections.abc import Sequence

from shards.layout import LATENCY_BUCKETS
from shards.segment import Segment

LAST = LATENCY_BUCKETS - 1  # from 1,074 s on


class LatencyHistogram:
    """The histogram of one shard, for its loop."""

    def __init__(self, segment: Segment, shard: int) -> None:
        self._words = segment.words
        self._start = segment.layout.latency(shard)

    def observe(self, after_ns: int) -> None:
        """Counts a delivery; a negative time counts as none."""
        bucket = (after_ns // 1_000).bit_length() if after_ns > 0 else 0
        self._words[self._start + (min(LAST, bucket))] += 1


def counts(segment: Segment, shard: int) -> list[int]:
    """How many deliveries of a shard each bucket counts."""
    start = segment.layout.latency(shard)
    return list(segment.words[start : start + LATENCY_BUCKETS])


def quantile_us(counted: Sequence[int], share: float) -> float | None:
    """A time that ``share`` of what was counted stayed below, to a factor of two: the upper bound
    of its bucket. None if nothing was counted."""
    total = sum(counted)
    if not total:
        return None
    passed = 0
    for bucket, count in enumerate(counted):
        passed += count
        if passed >= share * total:
            return float(1 << bucket)
    raise AssertionError("unreachable: all buckets together have all counts")
