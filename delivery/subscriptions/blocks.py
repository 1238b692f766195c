"""Decoded records of the partitions that a shard's subscriptions read, in blocks of 256 offsets.

A subscription reads a record twice: once for its key, and once to send it. Mostly the second time
comes soon after the first, so what was decoded is kept for a while, for all subscriptions of the
shard. A block has the records of consecutive offsets; it grows at its end while its partition does.

A record that cannot be read any more (retention, a gap) is None. Blocks are filled from the rings
without waiting, or by ``load`` from wherever the records are.

Bounds: BLOCKS_BYTES a shard, counted with what an object costs; one block more than that may be
kept, and a load reads LOAD_BYTES at most. The block that was used least recently goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
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
RING_RECORDS = 1_024  # about a millisecond


class Missing(Enum):
    """A record is not at hand."""

    MISSING = "missing"


MISSING = Missing.MISSING


class Loaded(NamedTuple):
    """What a load found out: the first offset that can be read, and what is missing, if a reader is
    to be told of it."""

    earliest_seq: int
    tombstone: Tombstone | None


class RecordBlock:
    """The records from offset ``low`` on. ``used`` tells which block was used last."""

    __slots__ = ("bytes", "items", "low", "used")

    def __init__(self, low: int) -> None:
        self.low = low
        self.items: list[Item | None] = []
        self.bytes = BLOCK_BYTES
        self.used = 0


class Blocks:
    """The blocks of one shard."""

    def __init__(self, reader: PartitionReader, limit_bytes: int = BLOCKS_BYTES) -> None:
        self._reader = reader
        self._limit_bytes = limit_bytes
        self._blocks: dict[Key, dict[int, RecordBlock]] = {}
        self._uses = 0
        self.bytes = 0

    def find(self, key: Key, offset: int) -> Item | Missing | None:
        """The record at an offset that is here or in the rings; None if it is gone. MISSING: it
        must be loaded."""
        block = self._here(key, offset)
        if block is None:
            if not self._read(key, offset):
                return MISSING
            block = self._here(key, offset)
            if block is None:
                return MISSING
        return block.items[offset - block.low]

    def known(self, key: Key, offset: int, count: int) -> Sequence[Item | None]:
        """The records from ``offset`` on that are here or in the rings, ``count`` at most and not
        beyond the block; empty: the first one must be loaded."""
        if self.find(key, offset) is MISSING:
            return ()
        block = self._blocks[key][offset // BLOCK]
        at = offset - block.low
        if at + count > len(block.items) and (offset + count - 1) // BLOCK == offset // BLOCK:
            self._read(key, block.low + len(block.items))
            block = self._blocks[key][offset // BLOCK]
            at = offset - block.low
        return block.items[at : at + count]

    async def load(self, key: Key, offset: int, head: int) -> Loaded:
        """Reads the record at ``offset`` and some of those after it. Nothing is taken in if the
        first ones are in quarantine, from which they may come back.

        Raises StoreError, LedgerError, L0Error, LakeFileDamaged, RecordsError."""
        page = await self._reader.page(
            key, offset - 1, head, limit=LOAD_RECORDS, bytes_max=LOAD_BYTES, passes=lambda _: True
        )
        if page.tombstone is None or page.tombstone.reason != QUARANTINED:
            size = sum(bytes_of(item[2]) for item in page.items)
            self._add(key, offset, page.items, max(page.reached, page.earliest_seq - 1), size)
        return Loaded(page.earliest_seq, page.tombstone)

    def _here(self, key: Key, offset: int) -> RecordBlock | None:
        there = self._blocks.get(key)
        block = None if there is None else there.get(offset // BLOCK)
        if block is None or not 0 <= offset - block.low < len(block.items):
            return None
        self._uses += 1
        block.used = self._uses
        return block

    def _read(self, key: Key, offset: int) -> bool:
        """Reads on from the rings, from the beginning of the block if they hold it: who asks for
        one record of long ago may ask for others."""
        there = self._blocks.get(key)
        block = None if there is None else there.get(offset // BLOCK)
        starts = [offset]
        if block is None or offset != block.low + len(block.items):
            starts.insert(0, max(1, offset // BLOCK * BLOCK))
        for start in starts:
            page = self._reader.from_rings(key, start - 1, RING_RECORDS, LOAD_BYTES)
            if page is not None and page.reached >= offset:
                self._add(key, start, page.items, page.reached, page.read_bytes)
                return True
        return False

    def _add(
        self, key: Key, offset: int, items: Sequence[Item], reached: int, size_bytes: int
    ) -> None:
        """Takes the records from ``offset`` to ``reached``; those that ``items`` lacks are gone."""
        # What is gone beyond the last record is found out again when it is asked for.
        last = items[-1][0] if items else min(reached, offset + LOAD_RECORDS)
        found: Sequence[Item | None] = items
        if len(items) <= last - offset:
            by_offset = {item[0]: item for item in items}
            found = [by_offset.get(at) for at in range(offset, last + 1)]
        each_bytes = RECORD_BYTES + size_bytes // max(1, len(items))
        there = self._blocks.setdefault(key, {})
        first, at = offset, 0
        self._uses += 1
        while offset <= last:
            number = offset // BLOCK
            end = min((number + 1) * BLOCK, last + 1)
            block = there.get(number)
            if block is None or offset != block.low + len(block.items):
                if block is not None:
                    self.bytes -= block.bytes
                block = there[number] = RecordBlock(offset)
                self.bytes += block.bytes
            part = found[at : at + end - offset]
            block.items += part
            grown = each_bytes * len(part)
            block.bytes += grown
            self.bytes += grown
            block.used = self._uses
            at += end - offset
            offset = end
        # What was asked for stays, if not all of it can.
        self._uses += 1
        there[first // BLOCK].used = self._uses
        if self.bytes > self._limit_bytes:
            self._evict()

    def _evict(self) -> None:
        """Forgets the blocks that were used least recently, until a quarter is free."""
        by_use = sorted(
            (block.used, key, number)
            for key, there in self._blocks.items()
            for number, block in there.items()
        )
        by_use.pop()
        for _, key, number in by_use:
            self.bytes -= self._blocks[key].pop(number).bytes
            if not self._blocks[key]:
                del self._blocks[key]
            if self.bytes <= self._limit_bytes * 3 // 4:
                break

    def check_invariants(self) -> None:
        """Raises AssertionError unless the bytes are counted and each block is one."""
        kept = [(n, block) for there in self._blocks.values() for n, block in there.items()]
        assert self.bytes == sum(block.bytes for _, block in kept)
        for number, block in kept:
            assert block.items and block.low // BLOCK == number
            assert (block.low + len(block.items) - 1) // BLOCK == number
            for offset, item in enumerate(block.items, block.low):
                assert item is None or item[0] == offset
