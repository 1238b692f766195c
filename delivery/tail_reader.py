"""Reading the tail from the rings: no request to the store while a reader keeps up.

A committed request stays in its ring until it is overwritten. Bytes are copied first, and the
``reserved`` word is checked afterwards (shards/ring.py); if they were overwritten, the caller reads
the object instead. One walk over the ring ranges of a commit finds its batches; walks are kept for
the next reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from delivery.followed import Key, TailExtent
from shards import frame
from shards.ring import BatchAt, RingReader
from shards.segment import Segment
from uploader.l0 import records
from uploader.l0.records import Record
from uploader.lru import LruCache

WALKS_MAX = 64  # a walk of 4 MiB of 1 KiB requests is 4,096 entries, about 1 MB

Walk = dict[Key, list[tuple[int, BatchAt]]]


class TailReader:
    """Copies records of recent commits out of the rings."""

    def __init__(self, segment: Segment) -> None:
        self._readers = [RingReader(segment, s) for s in range(segment.layout.shards)]
        self._walks: LruCache[tuple[int, int], Walk] = LruCache(WALKS_MAX)

    def batches(
        self, key: Key, extent: TailExtent, from_offset: int
    ) -> Iterator[tuple[int, int, list[Record]] | None]:
        """(first offset, arrival ms, records) of batches that hold ``from_offset`` or later ones.

        Yields None and ends if the ring has overwritten them.
        """
        for run in extent.runs:
            walk = self._walk(extent, run.shard)
            if walk is None:
                yield None
                return
            offset = run.first_offset
            for position, batch in walk.get(key, ()):
                if (run.shard, position) in extent.void_positions:
                    continue
                following = offset + batch.record_count
                if following > from_offset:
                    copied = self._readers[run.shard].copy_batch(position, batch)
                    if copied is None:
                        yield None
                        return
                    head = next(frame.batches(copied))
                    yield offset, head.arrival_ms, records.decode(frame.batch_payload(copied, head))
                offset = following

    def _walk(self, extent: TailExtent, shard: int) -> Walk | None:
        """Where the batches of a commit from one source lie; None if they were overwritten."""
        identity = (extent.commit_number, shard)
        source = extent.sources[shard]
        reader = self._readers[shard]
        walk = self._walks.get(identity)
        if walk is None:
            walk = {}
            for request in reader.requests(source.start, source.end):
                for batch in request.batches:
                    batch_key = (batch.topic_id, batch.partition)
                    walk.setdefault(batch_key, []).append((request.position, batch))
            if not reader.still_there(source.start):
                return None
            self._walks.keep(identity, walk)
        return walk
