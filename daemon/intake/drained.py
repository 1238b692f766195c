"""When a shard of a daemon that stops has nothing left to do. Pure: shared words in, yes or no."""

from __future__ import annotations

from shards import layout as at
from shards.leases import LeaseTable
from shards.ring import RingReader
from shards.segment import Segment


def is_drained(segment: Segment, leases: LeaseTable, shard: int, unanswered: int) -> bool:
    """Whether ``shard`` may end; ``unanswered`` is how many of its requests wait for an answer.

    Any shard may upload for any other, so all wait until everything that was accepted is
    committed. A commit that is larger than its slot of the log is read from the ledger first:
    its requests are committed, and still have nobody else who answers them. Requests that were
    taken back are nothing: a shard that dies now has no successor that would pass them over.
    """
    words, layout = segment.words, segment.layout
    for other in range(layout.shards):
        base = layout.shard(other)
        head, committed = int(words[base + at.S_HEAD]), int(words[base + at.S_COMMITTED])
        if head != committed and RingReader(segment, other).void_end(committed, head) != head:
            return False
    return not unanswered and shard not in leases.holders()
