"""How long each stage of a request takes, counted per shard in shared memory.

    received -> ADMITTED -> PUBLISHED -> PULLED -> PUT -> COMMITTED -> ANSWERED
                                                              \\-> DISPATCHED -> DELIVERED

ADMITTED is of requests that had to wait. PUBLISHED and PULLED begin when the request has arrived;
PUT, COMMITTED and ANSWERED each where the one before ends; DISPATCHED and DELIVERED with the
commit. ACKNOWLEDGED is the whole way of a request, from its arrival to its answer.

A histogram has fixed buckets: bucket 0 counts what took less than 1 us, bucket b what took from
2^(b-1) us to less than 2^b us, the last one all that took longer. The sum of all times follows.

Requests are samples: one of SAMPLED; of a pull, the first one too; of those that are published, the
first in each millisecond, since to write one takes as long as any other. Waits, leases, commits and
deliveries are all counted. Each stage of a shard has one writer: the shard's loop, or one thread at
a time under a mutex of its uploads (UPLOADER_STAGES). Histograms outlive the shard's restarts. Any
process may read one while it changes: it may see one count more or less, never a torn one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, unique
from typing import NamedTuple

from shards import rows
from shards.layout import H_SUM_NS, LATENCY_BUCKETS, LATENCY_STAGES_MAX, LATENCY_WORDS
from shards.segment import Segment

LAST = LATENCY_BUCKETS - 1  # from 537 s on
SAMPLED = 16  # two looks at the clock and eight stores for each request would take 3 % of its CPU


@unique
class Stage(IntEnum):
    """The stages. A number is a row's place, not a contract; the names are (``latency``)."""

    ADMITTED = 0
    PUBLISHED = 1
    PULLED = 2
    PUT = 3
    COMMITTED = 4
    ANSWERED = 5
    ACKNOWLEDGED = 6
    DISPATCHED = 7
    DELIVERED = 8


assert len(Stage) <= LATENCY_STAGES_MAX

UPLOADER_STAGES = frozenset((Stage.PUT, Stage.COMMITTED))

# What each stage is, for the table of metrics and the pages.
MEANINGS: dict[Stage, str] = {
    Stage.ADMITTED: "of requests that waited before they were published: for ring space, for their"
    " topic or cursor, or for earlier ones of their connection (each)",
    Stage.PUBLISHED: "from the arrival of the whole body until it is in the ring (sampled)",
    Stage.PULLED: "from the arrival until the request is pulled: the commit window (sampled)",
    Stage.PUT: "from the pull until the store has the object, with every attempt (each lease)",
    Stage.COMMITTED: "from the PUT until the commit: earlier uploads, ledger (each lease)",
    Stage.ANSWERED: "from the commit until a shard has answered its requests in it (each commit)",
    Stage.ACKNOWLEDGED: "from the arrival of the whole body until the answer (sampled)",
    Stage.DISPATCHED: "from the commit until its topic has its turn, without deliberate delays"
    " (sampled)",
    Stage.DELIVERED: "from the commit until a stream is written to (each write)",
}


class Counted(NamedTuple):
    """A histogram over all shards: counts by bucket, and the sum of all times."""

    buckets: Sequence[int]
    sum_ns: int

    @property
    def total(self) -> int:
        """How many times were counted."""
        return sum(self.buckets)


class LatencyHistogram:
    """A stage's histogram of one shard, for the stage's writer."""

    def __init__(self, segment: Segment, shard: int, stage: Stage) -> None:
        start = segment.layout.latency(shard, stage)
        self._row = segment.words[start : start + LATENCY_WORDS]
        self._counts = list(self._row)  # with the sum; nobody else changes the row

    def observe(self, after_ns: int) -> None:
        """Counts a time; a negative one counts as none."""
        row, counts = self._row, self._counts
        if after_ns <= 0:
            row[0] = counts[0] = counts[0] + 1
            return
        bucket = (after_ns // 1_000).bit_length()
        if bucket > LAST:
            bucket = LAST
        row[bucket] = counts[bucket] = counts[bucket] + 1
        row[H_SUM_NS] = counts[H_SUM_NS] = counts[H_SUM_NS] + after_ns


def counted(segment: Segment, stage: Stage) -> Counted:
    """A stage's histogram over all shards."""
    layout = segment.layout
    first, stop = layout.latency(0, stage), layout.latency(layout.shards, 0)
    starts = range(first, stop, LATENCY_STAGES_MAX * LATENCY_WORDS)
    *buckets, sum_ns = rows.sum_of(segment, starts, LATENCY_WORDS)
    return Counted(buckets, sum_ns)


def bounds_s() -> list[float]:
    """The upper bound of each bucket but the last, in seconds."""
    return [(1 << bucket) / 1e6 for bucket in range(LAST)]


def quantile_us(buckets: Sequence[int], share: float) -> float | None:
    """A time that ``share`` of what was counted stayed below, to a factor of two: the upper bound
    of its bucket. None if nothing was counted."""
    total = sum(buckets)
    if not total:
        return None
    passed = 0
    for bucket, count in enumerate(buckets):
        passed += count
        if passed >= share * total:
            return float(1 << bucket)
    raise AssertionError("unreachable: all buckets together have all counts")
