"""Reads one partition in pages, whatever holds its records: rings, objects or files.

The tail comes from the rings while they hold it. The rest comes by range reads of L0 objects and,
once they are compacted, of L1 files. A reader cannot tell the difference: records and offsets are
the same. Void records have no offset and do not appear.

A reader learns once what it misses, by a tombstone (readable.py): a page ends before a gap, and the
next one names the gap and continues after it.

Waiting, answers and streams are not known here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

from msgspec import Struct

from compaction.parquet.merge import EVER_MS
from delivery.ledger_thread import LedgerReads
from delivery.reading.followed import FollowedPartitions, Key
from delivery.reading.lake import Item
from delivery.reading.readable import ReadableRange, ReadableRanges
from delivery.reading.stored import Overtaken, StoredReader
from delivery.reading.tail import TailReader
from delivery.schemas import Tombstone
from ledger import reads
from uploader.l0 import payloads
from uploader.l0.records import Record
from uploader.stores.base import StoreError

log = logging.getLogger("headgate.reads")

SCANNED_MAX = 20_000  # records that a filter may pass over in one page
TURN_RECORDS, TURN_BYTES = 128, 256 << 10  # that are compared before others have their turn
OVERTAKEN_MAX = 8  # evictions between finding records and reading them
QUARANTINED = "quarantined"


class RecordPage(Struct, frozen=True):
    """Records after a cursor. ``reached`` is the cursor for the next page. ``tombstone`` says what
    the reader misses before the first item."""

    items: list[Item]
    reached: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None


class RingPage(NamedTuple):
    """What the rings hold after a cursor: the records that pass, up to ``reached``."""

    items: list[Item]
    reached: int
    read_bytes: int


async def _as_told() -> None:
    """Heads are as late as this process is told of commits."""


class PartitionReader:
    """The reads of one shard. ``version`` of a topic id changes with each of its evictions and
    trims (readable.py). ``reach`` returns when ``followed`` knows of all commits until now."""

    def __init__(
        self,
        followed: FollowedPartitions,
        tail: TailReader,
        ledger: LedgerReads,
        stored: StoredReader,
        version: Callable[[int], int],
        reach: Callable[[], Awaitable[None]] = _as_told,
    ) -> None:
        self.followed = followed
        self.tail = tail
        self._ledger = ledger
        self._stored = stored
        self._ranges = ReadableRanges(ledger, version)
        self._reach = reach

    def follow(self, key: Key) -> None:
        """Begins to keep a partition's head and tail."""
        self.followed.follow(key)

    async def head(self, key: Key) -> int:
        """The last committed offset of a partition, at least the last acknowledged one."""
        await self._reach()
        head = self.followed.head(key)
        if head is None:
            self.follow(key)
            state = await self._ledger.read(reads.partition_state, *key)
            self.followed.head_loaded(key, 0 if state is None else state.head_seq)
            head = self.followed.head(key)
        return head or 0

    async def readable(self, key: Key) -> ReadableRange:
        """Which offsets of a partition can be read. Raises LedgerError."""
        return await self._ranges.of(key)

    async def ledger_head(self, key: Key) -> int:
        """The last committed offset as the ledger has it, which is never late."""
        state = await self._ledger.read(reads.partition_state, *key)
        return 0 if state is None else state.head_seq

    def from_rings(
        self,
        key: Key,
        cursor: int,
        limit: int,
        bytes_max: int,
        passes: Callable[[Record], bool] | None = None,
    ) -> RingPage | None:
        """The records after ``cursor``, as far as the rings hold them, ``limit`` and ``bytes_max``
        allow; None if they do not hold the first one. Waits for nothing. Bytes are those of a
        stored batch, shared equally by its records."""
        reached = cursor
        items: list[Item] = []
        read_bytes = 0
        for extent in self.followed.tail(key, cursor + 1):
            for batch in self.tail.raw_batches(key, extent, reached + 1):
                if batch is None:
                    self.followed.forget_tail(key)
                    break
                first, head, payload = batch
                if first > reached + 1:
                    break
                count = head.record_count
                skip = reached + 1 - first
                size = max(1, len(payload) // count)
                most = max(1, (bytes_max - read_bytes) // size)
                taken = min(count - skip, limit, most)
                read_bytes += taken * size
                limit -= taken
                reached += taken
                decoded = payloads.decode(head.codec, payload, count)[skip : skip + taken]
                arrival_ms = head.arrival_ms
                items += [
                    (offset, arrival_ms if record.ts is None else record.ts, record)
                    for offset, record in enumerate(decoded, first + skip)
                    if passes is None or passes(record)
                ]
                if not limit or read_bytes >= bytes_max or skip + taken < count:
                    break
            else:
                continue
            break
        return None if reached == cursor else RingPage(items, reached, read_bytes)

    async def kafka_batches(self, key: Key, cursor: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Whole batches as Kafka's clients sent them, each with the offset of its first record, as
        far as ``bytes_max`` allows, from the rings or else of one extent; none if the record after
        ``cursor`` is in no such batch, or in a larger one, or compacted. Raises what ``page``
        does."""
        found = self._kafka_batches_of_rings(key, cursor, bytes_max)
        if found is None:
            found = await self._stored.kafka_batches(key, cursor + 1, bytes_max)
        return found

    def _kafka_batches_of_rings(
        self, key: Key, cursor: int, bytes_max: int
    ) -> list[tuple[int, bytes]] | None:
        """None if they do not hold the record after ``cursor``."""
        found: list[tuple[int, bytes]] = []
        reached, left_bytes = cursor, bytes_max
        is_held = False
        for extent in self.followed.tail(key, cursor + 1):
            is_held = True
            for batch in self.tail.kafka_batches(key, extent, reached + 1, left_bytes):
                if batch is None:
                    self.followed.forget_tail(key)
                    return found or None
                first, count, data = batch
                if first > reached + 1:
                    return found
                found.append((first, data))
                reached = first + count - 1
                left_bytes -= len(data)
            if reached < extent.last_offset:
                break
        return found if is_held else None

    async def page(
        self,
        key: Key,
        cursor: int,
        head: int,
        *,
        limit: int,
        bytes_max: int,
        passes: Callable[[Record], bool],
        is_new: bool = False,
    ) -> RecordPage:
        """The records after ``cursor`` that pass, at most ``limit`` and ``bytes_max``; a larger
        record is a page of its own. ``is_new``: the cursor was at the head, so evictions that this
        shard has not seen yet do not matter."""
        for _ in range(OVERTAKEN_MAX):
            readable = await (self._ranges.before(key) if is_new else self._ranges.of(key))
            from_seq, tombstone = readable.enter(cursor)
            if tombstone is not None and tombstone.reason == QUARANTINED:
                # This shard is not told when quarantined records come back.
                readable = await self._ranges.again(key)
                from_seq, tombstone = readable.enter(cursor)
            found: list[Item] = []
            reached = from_seq
            if from_seq > cursor:
                head = max(head, from_seq)  # the ledger knew of an eviction before the commit log
            if from_seq < head:
                try:
                    reached = await self._gather(key, from_seq, limit, bytes_max, passes, found)
                except Overtaken:
                    await self._ranges.again(key)
                    is_new = False
                    continue
                head = max(head, reached)
            return RecordPage(found, reached, head, readable.earliest_seq, tombstone)
        raise _overtaken(key)

    async def before_time(self, key: Key, from_ts: int) -> int:
        """The offset before the first record that is not before a time; the head if there is
        none."""
        first = await self._ledger.read(reads.offset_at_time, *key, from_ts)
        return await self.before(key, first, from_ts)

    async def before(self, key: Key, offset: int, from_ts: int) -> int:
        """The same among the records from ``offset`` on."""
        head = await self.head(key)
        for _ in range(OVERTAKEN_MAX):
            offset = max(offset, (await self._ranges.of(key)).earliest_seq)
            try:
                async with aclosing(self._chunks(key, offset, from_ts)) as chunks:
                    async for chunk in chunks:
                        for found, _, _ in chunk:
                            return found - 1
                return max(head, offset - 1)
            except Overtaken:
                await self._ranges.again(key)
        raise _overtaken(key)

    async def _gather(
        self,
        key: Key,
        from_seq: int,
        limit: int,
        bytes_max: int,
        passes: Callable[[Record], bool],
        found: list[Item],
    ) -> int:
        """Fills ``found``; returns the last offset that was read.

        Ends before the next gap, which the next page names. Raises Overtaken if there is nothing
        to answer with.
        """
        reached = from_seq
        left_bytes = bytes_max
        scanned = turn_bytes = 0
        try:
            async with aclosing(self._chunks(key, from_seq + 1)) as chunks:
                async for chunk in chunks:
                    for item in chunk:
                        offset, _, record = item
                        if offset > reached + 1 and await self._is_told(key, reached + 1, offset):
                            return reached
                        if passes(record):
                            size = bytes_of(record)
                            if found and size > left_bytes:
                                return reached
                            found.append(item)
                            left_bytes -= size
                        reached = offset
                        scanned += 1
                        if len(found) >= limit or scanned >= SCANNED_MAX:
                            return reached
                        turn_bytes += len(record.data)
                        if not scanned % TURN_RECORDS or turn_bytes > TURN_BYTES:
                            turn_bytes = 0
                            await asyncio.sleep(0)  # a filter may take some time
        except Overtaken:
            if reached == from_seq:
                raise
        return reached

    async def _is_told(self, key: Key, offset: int, following: int) -> bool:
        """Whether a gap explains why there are no records from ``offset`` to ``following``. Raises
        Overtaken if the ledger knows a gap that was not known here."""
        known = self._ranges.known(key)
        if known is not None and not known.can_be_read(offset):
            return True
        now = await self._ranges.again(key)
        if not now.can_be_read(offset):
            raise Overtaken
        log.warning(
            "offsets %d to %d of partition %d of topic id %d are missing, and no gap explains it;"
            " run `headgate check`", offset, following - 1, key[1], key[0],
        )  # fmt: skip
        return False

    async def _chunks(
        self, key: Key, offset: int, since_ms: int = EVER_MS
    ) -> AsyncGenerator[Iterable[Item], None]:
        """The live records of a partition from ``offset`` on that are not before a time."""
        is_held = True
        while is_held:
            is_held = False
            for extent in self.followed.tail(key, offset):
                is_held = True
                for batch in self.tail.batches(key, extent, offset):
                    if batch is None:
                        self.followed.forget_tail(key)
                        break
                    first, arrival_ms, decoded = batch
                    items = (
                        (at, arrival_ms if record.ts is None else record.ts, record)
                        for at, record in enumerate(decoded, first)
                    )
                    yield [item for item in items if item[0] >= offset and item[1] >= since_ms]
                    offset = first + len(decoded)
                else:
                    continue
                break
            else:
                if is_held:
                    return
        async with aclosing(self._stored.chunks(key, offset, since_ms)) as chunks:
            async for chunk in chunks:
                yield chunk


def _overtaken(key: Key) -> StoreError:
    return StoreError(
        f"partition {key[1]} of topic id {key[0]} is evicted faster than it can be read:"
        f" {OVERTAKEN_MAX} times the records were gone before they were read; ask again",
        retryable=True,
    )


def bytes_of(record: Record) -> int:
    """The size of a record in an answer, without names and escapes."""
    size = _text_bytes(record.data)
    if record.key is not None:
        size += _text_bytes(record.key)
    if record.tag is not None or record.node is not None or record.meta is not None:
        others = (record.tag, record.node, record.meta)
        size += sum(_text_bytes(text) for text in others if text is not None)
    return size


def _text_bytes(text: str | bytes) -> int:
    return len(text if isinstance(text, bytes) or text.isascii() else text.encode())
