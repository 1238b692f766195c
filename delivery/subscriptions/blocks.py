"""Decoded records of the partitions that a shard's subscriptions read, in blocks of 256 offsets.

A subscription reads a record twice: once for its key, and once to send it. Mostly the second time
comes soon after the first, so what was decoded is kept for a while, for all subscriptions of the
shard. A block has the records of consecutive offsets; it grows at its end while its partition does.

A record that cannot be read any more (retention, a gap) is GONE. Blocks are filled from the rings
without waiting, or by ``load`` from wherever the records are.

Bounds: BLOCKS_BYTES a shard, counted with what an object costs; one block more than that may be
kept, and a load reads LOAD_BYTES at most. The block that was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from delivery.followed import Key
from delivery.lake_reader import Item
from delivery.partition_reader import QUARANTINED, PartitionReader, bytes_of
from delivery.schemas import Tombstone

BLOCK = 256
BLOCKS_BYTES = 8 << 20
RECORD_BYTES = 400  # of a decoded record without its texts: the Struct, its strings' heads, a tuple
LOAD_BYTES = 1 << 20
LOAD_RECORDS = 4_096
BLOCK_BYTES = 2_500  # of a block without records
GONE = None


class Loaded(NamedTuple):
    """What a load found out: the first offset that can be read, and what is missing, if a reader is
    to be told of it."""

    earliest_seq: int
    tombstone: Tombstone | None


class RecordBlock:
    """The records from offset ``low`` on."""

    __slots__ = ("bytes", "items", "low")

    def __init__(self, low: int) -> None:
        self.low = low
        self.items: list[Item | None] = []
        self.bytes = BLOCK_BYTES


class Blocks:
    """The blocks of one shard."""

    def __init__(self, reader: PartitionReader, limit_bytes: int = BLOCKS_BYTES) -> None:
        self._reader = reader
        self._limit_bytes = limit_bytes
        self._blocks: OrderedDict[tuple[Key, int], RecordBlock] = OrderedDict()
        self.bytes = 0

    def known(self, key: Key, offset: int, count: int) -> Sequence[Item | None]:
        """The records from ``offset`` on that are here or in the rings, ``count`` at most and not
        beyond the block; empty: the first one must be loaded."""
        found = self._here(key, offset)
        if found is None:
            # Readers go on from where they are, or come back to a record of long ago.
            page = self._reader.from_rings(
                key, offset - 1, min(count, BLOCK - offset % BLOCK), LOAD_BYTES
            )
            if page is None:
                return ()
            self._add(key, offset, page.items, page.reached)
            found = self._here(key, offset)
            if found is None:
                return ()
        block, at = found
        return block.items[at : at + count]

    async def load(self, key: Key, offset: int, head: int) -> Loaded:
        """Reads the record at ``offset`` and some of those after it. Nothing is taken in if the
        first ones are in quarantine, from which they may come back.

        Raises StoreError, LedgerError, L0Error, LakeFileDamaged, RecordsError."""
        page = await self._reader.page(
            key, offset - 1, head, limit=LOAD_RECORDS, bytes_max=LOAD_BYTES, passes=lambda _: True
        )
        if page.tombstone is None or page.tombstone.reason != QUARANTINED:
            self._add(key, offset, page.items, max(page.reached, page.earliest_seq - 1))
        return Loaded(page.earliest_seq, page.tombstone)

    def _here(self, key: Key, offset: int) -> tuple[RecordBlock, int] | None:
        place = (key, offset // BLOCK)
        block = self._blocks.get(place)
        if block is None or not 0 <= (at := offset - block.low) < len(block.items):
            return None
        self._blocks.move_to_end(place)
        return block, at

    def _add(self, key: Key, offset: int, items: Sequence[Item], reached: int) -> None:
        """Takes the records from ``offset`` to ``reached``; those that ``items`` lacks are gone."""
        by_offset = {item[0]: item for item in items}
        first = (key, offset // BLOCK)
        # What is gone beyond the last record is found out again when it is asked for.
        last = max(by_offset, default=min(reached, offset + LOAD_RECORDS))
        while offset <= last:
            place = (key, offset // BLOCK)
            end = (offset // BLOCK + 1) * BLOCK
            block = self._blocks.get(place)
            if block is None or offset != block.low + len(block.items):
                if block is not None:
                    self.bytes -= block.bytes
                block = self._blocks[place] = RecordBlock(offset)
                self.bytes += block.bytes
            for at in range(offset, min(last + 1, end)):
                item = by_offset.get(at)
                block.items.append(item)
                if item is not None:
                    size = RECORD_BYTES + bytes_of(item[2])
                    block.bytes += size
                    self.bytes += size
            self._blocks.move_to_end(place)
            offset = end
        if first in self._blocks:
            self._blocks.move_to_end(first)  # what was asked for stays, if not all of it can
        while self.bytes > self._limit_bytes and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self.bytes -= oldest.bytes

    def check_invariants(self) -> None:
        """Raises AssertionError unless the bytes are counted and each block is one."""
        assert self.bytes == sum(block.bytes for block in self._blocks.values())
        for (_, number), block in self._blocks.items():
            assert block.items and block.low // BLOCK == number
            assert (block.low + len(block.items) - 1) // BLOCK == number
            for offset, item in enumerate(block.items, block.low):
                assert item is None or item[0] == offset
