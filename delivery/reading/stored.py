"""A partition's records from the store: compacted ones from L1, the others from L0.

The ledger is asked to *locate* an offset: in extents of L0 objects, or in ranges of L1 files if it
is compacted. Extents whose bytes are in the cache are used in any case.

A reader can be overtaken: while it reads what it has located, a compaction switches readers to the
lake, rewrites files, or a collection deletes. The ledger forgets an object before it
is deleted. So a reader that misses one locates the same offset again (protocol 7) and continues
with what is there now. It is an error only if the ledger keeps naming what is missing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable

from msgspec import Struct

from compaction.parquet.merge import EVER_MS
from delivery.ledger_thread import LedgerReads
from delivery.reading.followed import Key
from delivery.reading.lake import Item, LakeReader
from delivery.reading.objects import L0Reader
from ledger import reads
from ledger.lake import lake_files
from ledger.lake.types import FileRange
from ledger.tx import ReadTx
from ledger.types import Extent
from shards.frame import CODEC_RECORDS
from uploader.l0 import kafka_batches, records_of
from uploader.stores.base import ObjectMissing
from uploader.stores.retry import OVERTAKEN, delay_s

EXTENTS_AT_ONCE = 16  # that are located together
RANGES_AT_ONCE = 64


class Overtaken(Exception):
    """The requested offset was evicted meanwhile."""


class Located(Struct, frozen=True):
    """Where an offset and those after it are stored, according to the ledger.

    ``extents`` hold the offset or later ones. ``ranges`` are complete up to ``ranges_last``, which
    is below the offset if that is not compacted.
    """

    earliest_seq: int
    compacted_seq: int
    extents: list[Extent]
    ranges: list[FileRange]
    ranges_last: int


def locate(tx: ReadTx, key: Key, offset: int) -> Located:
    """What one committed state of the ledger holds at ``offset`` and after it."""
    topic_id, partition = key
    extents = reads.extents_from(tx, topic_id, partition, offset, EXTENTS_AT_ONCE)
    state = reads.partition_state(tx, topic_id, partition)
    if state is None:
        return Located(1, 0, [], [], 0)
    if offset > state.compacted_seq:
        return Located(state.earliest_seq, state.compacted_seq, extents, [], 0)
    limit = RANGES_AT_ONCE
    while True:
        ranges = lake_files.ranges_from(tx, topic_id, partition, offset, limit)
        # Ranges beyond the limit begin at or after the last one that was returned.
        is_whole = len(ranges) < limit
        last = state.compacted_seq if is_whole else ranges[-1].range.first_offset - 1
        if last >= offset:
            return Located(state.earliest_seq, state.compacted_seq, extents, ranges, last)
        limit *= 4  # more files overlap here


class StoredReader:
    """Records by (topic id, partition, offset), from ledger and store."""

    def __init__(
        self, ledger: LedgerReads, l0: L0Reader, lake: LakeReader, rng: random.Random
    ) -> None:
        self._ledger = ledger
        self._l0 = l0
        self._lake = lake
        self._rng = rng

    async def kafka_batches(self, key: Key, offset: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Whole batches as Kafka's clients sent them, each with the offset of its first record: of
        one extent that is not compacted, from the one that holds ``offset`` on, as ``bytes_max``
        allows. None if there is another batch, or nothing to read: ``chunks`` knows what is there.

        Raises StoreError, L0Error."""
        found = await self._ledger.read(locate, key, offset)
        if not found.extents or not max(found.earliest_seq, found.compacted_seq + 1) <= offset:
            return []
        extent = found.extents[0]
        if extent.codec == CODEC_RECORDS or offset < extent.first_offset:
            return []
        try:
            data = await self._l0.bytes_of(extent)
        except ObjectMissing:
            return []
        return list(
            kafka_batches(
                data, extent.first_offset, extent.voids, offset, bytes_max, extent.locator
            )
        )

    async def chunks(
        self, key: Key, offset: int, since_ms: int = EVER_MS
    ) -> AsyncGenerator[Iterable[Item], None]:
        """The committed live records from ``offset`` on that are not before a time, in order. A
        chunk must be consumed before the next one is requested.

        Raises Overtaken, StoreError, L0Error, LakeFileDamaged, RecordsError.
        """
        misses = 0
        while True:
            found = await self._ledger.read(locate, key, offset)
            if found.earliest_seq > offset:
                raise Overtaken
            is_compacted = offset <= found.compacted_seq
            if not is_compacted and not found.extents:
                return
            try:
                for extent in found.extents:
                    if is_compacted and not (
                        extent.first_offset <= offset and self._l0.has(extent)
                    ):
                        break
                    if extent.last_timestamp_ms >= since_ms:
                        data = await self._l0.bytes_of(extent)
                        yield _since(since_ms, records_of(
                            data, extent.first_offset, extent.voids, offset, key=extent.locator
                        ))  # fmt: skip
                        misses = 0
                    offset = extent.last_offset + 1
                if is_compacted:
                    async for chunk in self._lake.chunks(
                        found.ranges, key[1], offset, found.ranges_last, since_ms
                    ):
                        yield _since(since_ms, chunk.records())
                        misses = 0
                        offset = chunk.last_offset + 1
                    offset = max(offset, found.ranges_last + 1)
            except ObjectMissing:
                misses += 1
                if OVERTAKEN.is_spent(misses):
                    raise
                await asyncio.sleep(delay_s(misses, self._rng, OVERTAKEN))


def _since(since_ms: int, items: Iterable[Item]) -> Iterable[Item]:
    return items if since_ms == EVER_MS else (item for item in items if item[1] >= since_ms)
