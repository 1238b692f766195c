"""Whether a shard of a stopping daemon has nothing left to do. A pure function of shared words."""

from __future__ import annotations

from shards import layout as at
from shards.leases import LeaseTable
from shards.ring import RingReader
from shards.segment import Segment


def is_drained(segment: Segment, leases: LeaseTable, shard: int, unanswered: int) -> bool:
    """Whether ``shard`` may end; ``unanswered`` of its requests wait for an answer.

    Any shard may upload for any other, so all of them wait until everything that was accepted is
    committed, and until each has answered its own requests: a commit that is larger than its slot
    of the log is read from the ledger first. Requests that were taken back do not count.
    """
    words, layout = segment.words, segment.layout
    for other in range(layout.shards):
        base = layout.shard(other)
        head, committed = int(words[base + at.S_HEAD]), int(words[base + at.S_COMMITTED])
        if head != committed and RingReader(segment, other).void_end(committed, head) != head:
            return False
    return not unanswered and shard not in leases.holders()
