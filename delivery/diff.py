"""Answers ``diff``: the records of one partition after an offset, from rings or the store.

Readers pull, with a long poll. The tail comes from the rings while they hold it. The rest comes by
range reads of L0 objects and, once they are compacted, of L1 files. A reader cannot tell the
difference: records and offsets are the same.

Offsets: ``from_seq`` is exclusive, ``next_from_seq`` is the ``from_seq`` of the next request,
``head_seq`` is the last committed offset. Void records have no offset and do not appear here. A
reader learns once what it misses, by a tombstone (readable.py): an answer ends before a gap, and
the next one names the gap and continues after it.

``from_ts`` begins with the first record, by offset, that is not before this time.

A cursor belongs to one topic. A reader that sends its ``topic_id`` learns when the name belongs to
another topic by now: the answer has a tombstone with the reason ``recreated``, whose offsets are
those of the former topic, and continues from the start of the new one. An offset beyond the last
one is refused.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

import msgspec
from msgspec import UNSET

from compaction.parquet.merge import EVER_MS
from delivery.followed import FollowedPartitions, Key
from delivery.lake_reader import Item
from delivery.ledger_thread import LedgerThread
from delivery.readable import ReadableRanges
from delivery.schemas import DiffAnswer, DiffRecord, DiffRequest, Tombstone
from delivery.stored_reader import Overtaken, StoredReader
from delivery.tail_reader import TailReader
from delivery.waiters import Waiters
from ledger import reads
from ledger.types import Commit
from uploader.l0.records import Record
from uploader.stores.base import StoreError

log = logging.getLogger("headgate.diff")

SCANNED_MAX = 20_000  # records that a filter may pass over in one answer
OVERTAKEN_MAX = 8  # evictions between finding records and reading them
QUARANTINED = "quarantined"
RECREATED = "recreated"  # a tombstone's reason: the cursor is of a former topic of this name


class OffsetPastEnd(Exception):
    """``from_seq`` is greater than ``head_seq``, the last offset of the partition."""

    def __init__(self, from_seq: int, head_seq: int) -> None:
        super().__init__(f"from_seq is {from_seq}, the last offset is {head_seq}")
        self.from_seq = from_seq
        self.head_seq = head_seq


def diff_record(offset: int, ts_ms: int, record: Record) -> DiffRecord:
    """A stored record as readers see it."""
    is_bytes = isinstance(record.data, bytes)
    return DiffRecord(
        seq=offset,
        ts=ts_ms,
        data=UNSET if is_bytes else msgspec.Raw(record.data.encode()),
        data_b64=b64encode(record.data).decode() if is_bytes else UNSET,
        key=UNSET if record.key is None else record.key,
        tag=UNSET if record.tag is None else record.tag,
        node=UNSET if record.node is None else record.node,
        meta=UNSET if record.meta is None else msgspec.Raw(record.meta.encode()),
    )


class DiffReader:
    """The reads of one shard: follows commits and answers from rings, objects and files.

    ``version`` changes with each eviction and trim (delivery/readable.py).
    """

    def __init__(
        self,
        followed: FollowedPartitions,
        tail: TailReader,
        ledger: LedgerThread,
        stored: StoredReader,
        recent: Callable[[], Iterable[Commit]],
        version: Callable[[], int],
    ) -> None:
        self.followed = followed
        self._recent = recent
        self.waiters = Waiters()
        self._tail = tail
        self._ledger = ledger
        self._stored = stored
        self._ranges = ReadableRanges(ledger, version)

    def committed(self, commit: Commit) -> None:
        """Takes a commit from the log, in order."""
        self.waiters.wake(self.followed.apply(commit))

    async def head(self, key: Key) -> int:
        """The last committed offset of a partition."""
        head = self.followed.head(key)
        if head is None:
            self.followed.follow(key, self._recent)
            state = await self._ledger.read(reads.partition_state, *key)
            self.followed.head_loaded(key, 0 if state is None else state.head_seq)
            head = self.followed.head(key)
        return head or 0

    async def answer(self, topic_id: int, asked: DiffRequest) -> DiffAnswer:
        """The answer to a valid request; waits up to ``wait_ms`` for a record.

        Raises OffsetPastEnd."""
        if asked.topic_id is not UNSET and asked.topic_id != topic_id:
            return await self._from_the_start(topic_id, asked, asked.topic_id)
        key = (topic_id, asked.partition)
        self.followed.follow(key, self._recent)
        cursor, head = await self._cursor(key, asked)
        for _ in range(OVERTAKEN_MAX):
            readable = await self._ranges.of(key)
            from_seq, tombstone = readable.enter(cursor)
            if tombstone is not None and tombstone.reason == QUARANTINED:
                # This shard is not told when quarantined records come back.
                readable = await self._ranges.again(key)
                from_seq, tombstone = readable.enter(cursor)
            found: list[DiffRecord] = []
            reached = from_seq
            if from_seq > cursor:
                head = max(head, from_seq)  # the ledger knew of an eviction before the commit log
            if from_seq < head:
                try:
                    reached = await self._gather(key, from_seq, asked, found)
                except Overtaken:
                    await self._ranges.again(key)
                    continue
                head = max(head, reached)
            return DiffAnswer(
                records=found,
                next_from_seq=reached,
                head_seq=head,
                earliest_seq=readable.earliest_seq,
                caught_up=reached >= head,
                lag=max(0, head - reached),
                topic_id=topic_id,
                tombstone=tombstone,
            )
        raise _overtaken(key)

    async def _from_the_start(self, topic_id: int, asked: DiffRequest, former: int) -> DiffAnswer:
        """The answer to a cursor of a former topic, with a tombstone for what it missed there."""
        cursor = 0 if asked.from_seq is UNSET else asked.from_seq
        gone = await self._ledger.read(reads.partition_state, former, asked.partition)
        last = cursor if gone is None else max(cursor, gone.head_seq)
        told = Tombstone(cursor + 1, last, RECREATED)
        start = msgspec.structs.replace(asked, from_seq=0, topic_id=UNSET, wait_ms=0)
        answer = await self.answer(topic_id, start)
        if answer.tombstone is None:
            return msgspec.structs.replace(answer, tombstone=told)
        # An answer has one tombstone: the next one begins at the same place and has the other.
        return msgspec.structs.replace(
            answer, records=[], next_from_seq=0, caught_up=False, lag=answer.head_seq,
            tombstone=told,
        )  # fmt: skip

    async def _cursor(self, key: Key, asked: DiffRequest) -> tuple[int, int]:
        """(cursor to answer from, head), after the wait for a record after the cursor."""
        head = await self.head(key)
        from_ts = None if asked.from_ts is UNSET else asked.from_ts
        if asked.tail:
            cursor = head
        elif from_ts is not None:
            first = await self._ledger.read(reads.offset_at_time, *key, from_ts)
            cursor = await self._before(key, first, from_ts)
            # Meanwhile there were commits, which the ledger knows earlier than the commit log.
            head = max(await self.head(key), cursor)
        else:
            cursor = 0 if asked.from_seq is UNSET else asked.from_seq
            if cursor > head:
                # The commit log may be late; the ledger never is.
                state = await self._ledger.read(reads.partition_state, *key)
                head = max(head, 0 if state is None else state.head_seq)
                if cursor > head:
                    raise OffsetPastEnd(cursor, head)
        if cursor >= head and asked.wait_ms:
            await self.waiters.wait(key, asked.wait_ms / 1000)
            head = max(head, await self.head(key))
            if from_ts is not None:
                cursor = await self._before(key, cursor + 1, from_ts)
                head = max(await self.head(key), cursor)
        return cursor, head

    async def _before(self, key: Key, offset: int, from_ts: int) -> int:
        """The offset before the first record from ``offset`` on that is not before a time; the
        head if there is none."""
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
        self, key: Key, from_seq: int, asked: DiffRequest, found: list[DiffRecord]
    ) -> int:
        """Fills ``found``; returns the last offset that was read.

        Ends before the next gap, which the next answer names. Raises Overtaken if there is nothing
        to answer with.
        """
        reached = from_seq
        left_bytes = asked.max_bytes
        scanned = 0
        try:
            async with aclosing(self._chunks(key, from_seq + 1)) as chunks:
                async for chunk in chunks:
                    for offset, ts_ms, record in chunk:
                        if offset > reached + 1 and await self._is_told(key, reached + 1, offset):
                            return reached
                        if _passes(record, asked):
                            size = _bytes_of(record)
                            if found and size > left_bytes:
                                return reached
                            found.append(diff_record(offset, ts_ms, record))
                            left_bytes -= size
                        reached = offset
                        scanned += 1
                        if len(found) >= asked.limit or scanned >= SCANNED_MAX:
                            return reached
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
        while True:
            extents = self.followed.tail(key, offset)
            if not extents:
                break
            for extent in extents:
                for batch in self._tail.batches(key, extent, offset):
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


def _bytes_of(record: Record) -> int:
    """The size of a record in an answer, without names and escapes."""
    size = 0
    for text in (record.data, record.key, record.tag, record.node, record.meta):
        if text is not None:
            plain = isinstance(text, bytes) or text.isascii()
            size += len(text) if plain else len(text.encode())
    return size


def _passes(record: Record, asked: DiffRequest) -> bool:
    return (asked.tag is None or record.tag == asked.tag) and (
        asked.node is None or record.node == asked.node
    )
