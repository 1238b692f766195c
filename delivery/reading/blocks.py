"""The records of the partitions that a shard's subscriptions read, in blocks.

A subscription reads a record twice: once for its key, and once to send it. Often the second time
comes soon after the first, so records are kept for a while, for all subscriptions of the shard.
They are kept as they were decoded, once, and are counted as what they take: one emoji makes a text
take four bytes for each character.

A block has consecutive offsets: records, BLOCK_BYTES_MAX of them or one that is larger; or none,
because they cannot be read any more (retention, a gap). So a gap is one block, however wide. A
block of records grows at its end while its partition does. Blocks are filled from the rings without
waiting, or by ``load`` from wherever the records are.

Bounds: BLOCKS_BYTES a shard as they are counted, or one block. The block that was used least
recently goes first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from sys import getsizeof
from typing import NamedTuple

from delivery.reading.followed import Key
from delivery.reading.lake import Item
from delivery.reading.partition import QUARANTINED, PartitionReader
from delivery.reading.tail import LARGE_RECORDS
from delivery.schemas import Tombstone
from uploader.l0.records import Record

BLOCKS_BYTES = 8 << 20
BLOCK_BYTES = 700  # of a block without records, as measured
BLOCK_BYTES_MAX = 64 << 10  # so what is evicted is little, and few blocks are kept in all
RECORD_BYTES = (
    136  # in addition to its texts: itself, its places in lists, its time, what is rounded up
)
LOAD_BYTES = 1 << 20
LOAD_RECORDS = 2_048
LOAD_RECORDS_MIN = 256
LOAD_HEADS_BYTES = 400 * LOAD_RECORDS  # of decoded records without their texts
RING_RECORDS = 1_024  # about a millisecond
RING_HEADS_BYTES = 400 * (RING_RECORDS + LARGE_RECORDS)
NEAR_RECORDS = 128  # of those around one that is read long after it was admitted


class Wanted(NamedTuple):
    """A record that must be loaded, with those after it, ``records`` at most."""

    key: Key
    offset: int
    records: int = NEAR_RECORDS


class Missing(Enum):
    """A record is not at hand."""

    MISSING = "missing"


MISSING = Missing.MISSING


class Known(NamedTuple):
    """What is at hand from an offset on: records, or else how many offsets are gone."""

    records: Sequence[Record]
    gone: int


class Loaded(NamedTuple):
    """What a load found out: the first offset that can be read, and what is missing, if a reader is
    to be told of it; and ``following``: what is before it, from the offset that was asked for on,
    is gone."""

    earliest_seq: int
    tombstone: Tombstone | None
    following: int


class RecordBlock:
    """The offsets from ``low`` to before ``end``: their records, or none."""

    __slots__ = ("bytes", "end", "low", "records", "times")

    def __init__(self, low: int, end: int) -> None:
        self.low = low
        self.end = end
        self.records: list[Record] = []
        self.times: list[int] = []
        self.bytes = BLOCK_BYTES

    def item(self, offset: int) -> Item | None:
        """A record; None if it is gone."""
        if not self.records:
            return None
        at = offset - self.low
        return offset, self.times[at], self.records[at]


def _low(block: RecordBlock) -> int:
    return block.low


def _bytes_of(record: Record) -> int:
    """What a record takes."""
    size = RECORD_BYTES + getsizeof(record.data) + getsizeof(record.key)
    if record.tag is not None or record.node is not None or record.meta is not None:
        size += getsizeof(record.tag) + getsizeof(record.node) + getsizeof(record.meta)
    return size


class Blocks:
    """The blocks of one shard."""

    def __init__(self, reader: PartitionReader, limit_bytes: int = BLOCKS_BYTES) -> None:
        self._reader = reader
        self._limit_bytes = limit_bytes
        self._blocks: dict[Key, list[RecordBlock]] = {}  # of each partition, in their order
        self._by_use: OrderedDict[RecordBlock, Key] = OrderedDict()  # the last used one is last
        self.bytes = 0

    def find(self, key: Key, offset: int) -> Item | Missing | None:
        """The record at an offset that is here or in the rings; None if it is gone. MISSING: it
        must be loaded."""
        block = self.block(key, offset)
        return MISSING if block is None else block.item(offset)

    def block(self, key: Key, offset: int) -> RecordBlock | None:
        """The block that has an offset, if it is here or in the rings; None: it must be loaded."""
        block = self._here(key, offset)
        if block is None:
            near = max(1, offset - offset % NEAR_RECORDS)
            for start in dict.fromkeys((near, offset)):  # who asks for one may ask for others
                if self._read(key, start, offset, NEAR_RECORDS):
                    break
            block = self._here(key, offset)
        return block

    def known(self, key: Key, offset: int, count: int, *, is_far: bool = False) -> Known:
        """What is here or in the rings from ``offset`` on, ``count`` at most; nothing: the first
        one must be loaded. ``is_far``: it will not be sent soon, and so is not kept in the place of
        what will be."""
        block = self._here(key, offset)
        if block is None:
            self._read(key, offset, offset, RING_RECORDS)
            block = self._here(key, offset)
        if block is None:
            return Known((), 0)
        if not block.records:
            return Known((), block.end - offset)
        end = min(block.end, offset + count)
        if is_far and end == block.end:
            self._by_use.move_to_end(block, last=False)
        return Known(block.records[offset - block.low : end - block.low], 0)

    async def load(self, key: Key, offset: int, count: int, head: int, sharers: int = 1) -> Loaded:
        """Reads the record at ``offset`` and some of those after it, up to ``count``; fewer, if as
        many loads as ``sharers`` are under way. Nothing is taken in if the first ones are in
        quarantine, from which they may come back.

        Raises StoreError, LedgerError, L0Error, LakeFileDamaged, RecordsError."""
        page = await self._reader.page(
            key, offset - 1, head, limit=min(count, max(LOAD_RECORDS_MIN, LOAD_RECORDS // sharers)),
            bytes_max=LOAD_BYTES // sharers, passes=lambda _: True,
        )  # fmt: skip
        following = offset
        if page.tombstone is None or page.tombstone.reason != QUARANTINED:
            following = self._add(key, offset, page.items, max(page.reached, page.earliest_seq - 1))
        return Loaded(page.earliest_seq, page.tombstone, following)

    def _here(self, key: Key, offset: int) -> RecordBlock | None:
        there = self._blocks.get(key)
        if there is None:
            return None
        at = bisect_right(there, offset, key=_low) - 1
        if at < 0 or offset >= there[at].end:
            return None
        self._by_use.move_to_end(there[at])
        return there[at]

    def _read(self, key: Key, start: int, offset: int, count: int) -> bool:
        """Reads from the rings, if they hold what is between the two offsets."""
        page = self._reader.from_rings(key, start - 1, count, LOAD_BYTES)
        if page is None or page.reached < offset:
            return False
        self._add(key, start, page.items, page.reached)
        return True

    def _add(self, key: Key, offset: int, items: Sequence[Item], reached: int) -> int:
        """Takes in what was found from ``offset`` to ``reached``; returns the first offset of it
        that is not gone."""
        end = reached + 1
        if end <= offset:
            return offset
        there = self._blocks.setdefault(key, [])
        at = bisect_right(there, offset, key=_low)
        while at and there[at - 1].end > offset:  # they are read again
            at -= 1
        while at < len(there) and there[at].low < end:
            self._forget(there.pop(at))
        place = at
        next_offset = offset
        block = there[at - 1] if at and there[at - 1].end == offset else None
        first: RecordBlock | None = None
        for item_offset, ts_ms, record in items:
            if item_offset > next_offset:
                there.insert(at, self._begin(key, next_offset, item_offset))
                at, block = at + 1, None
            size = _bytes_of(record)
            if block is None or not block.records or block.bytes + size > BLOCK_BYTES_MAX:
                block = self._begin(key, item_offset, item_offset)
                there.insert(at, block)
                at += 1
            first = first or block
            block.records.append(record)
            block.times.append(ts_ms)
            block.end = next_offset = item_offset + 1
            block.bytes += size
            self.bytes += size
        if next_offset < end:
            there.insert(at, self._begin(key, next_offset, end))
        # What was asked for stays, if not all of it can.
        self._by_use.move_to_end(first or there[place])
        self._evict()
        return items[0][0] if items else end

    def _begin(self, key: Key, low: int, end: int) -> RecordBlock:
        block = RecordBlock(low, end)
        self._by_use[block] = key
        self.bytes += block.bytes
        return block

    def _forget(self, block: RecordBlock) -> None:
        del self._by_use[block]
        self.bytes -= block.bytes

    def _evict(self) -> None:
        """Forgets the blocks that were used least recently, and keeps one."""
        while self.bytes > self._limit_bytes and len(self._by_use) > 1:
            block, key = next(iter(self._by_use.items()))
            self._forget(block)
            there = self._blocks[key]
            del there[bisect_right(there, block.low, key=_low) - 1]
            if not there:
                del self._blocks[key]

    def check_invariants(self) -> None:
        """Raises AssertionError unless the bytes are counted and blocks are apart."""
        assert self.bytes == sum(block.bytes for block in self._by_use)
        assert self.bytes <= self._limit_bytes or len(self._by_use) == 1
        for key, there in self._blocks.items():
            assert there and all(self._by_use[block] == key for block in there)
            end = 0
            for block in there:
                assert end <= block.low < block.end
                end = block.end
                assert len(block.records) == len(block.times)
                assert not block.records or len(block.records) == block.end - block.low
                assert block.bytes <= BLOCK_BYTES_MAX or len(block.records) == 1
        assert sum(map(len, self._blocks.values())) == len(self._by_use)
