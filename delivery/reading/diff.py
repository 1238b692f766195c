"""Answers ``diff``: the records of one partition after an offset, from rings or the store.

Readers pull, with a long poll. ``PartitionReader`` reads; this module knows the request.

Offsets: ``from_seq`` is exclusive, ``next_from_seq`` is the ``from_seq`` of the next request,
``head_seq`` is the last committed offset.

``from_ts`` begins with the first record, by offset, that is not before this time.

A cursor belongs to one topic. A reader that sends its ``topic_id`` learns when the name belongs to
another topic by now: the answer has a tombstone with the reason ``recreated``, whose offsets are
those of the former topic, and continues from the start of the new one. An offset beyond the last
one is refused.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial

import msgspec
from msgspec import UNSET

from delivery.ledger_thread import LedgerReads
from delivery.reading.followed import Key
from delivery.reading.partition import PartitionReader
from delivery.reading.waiters import Waiters
from delivery.schemas import DiffAnswer, DiffRecord, DiffRequest, Tombstone
from ledger import reads
from uploader.l0.records import Record

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
    """Answers the diffs of one shard."""

    def __init__(self, partitions: PartitionReader, ledger: LedgerReads) -> None:
        self._partitions = partitions
        self._ledger = ledger
        self.waiters = Waiters()

    async def answer(self, topic_id: int, asked: DiffRequest) -> DiffAnswer:
        """The answer to a valid request; waits up to ``wait_ms`` for a record.

        Raises OffsetPastEnd."""
        if asked.topic_id is not UNSET and asked.topic_id != topic_id:
            return await self._from_the_start(topic_id, asked, asked.topic_id)
        key = (topic_id, asked.partition)
        self._partitions.follow(key)
        cursor, head, waited = await self._cursor(key, asked)
        page = await self._partitions.page(
            key,
            cursor,
            head,
            limit=asked.limit,
            bytes_max=asked.max_bytes,
            passes=partial(_passes, asked),
            is_new=waited,
        )
        return DiffAnswer(
            records=[diff_record(*item) for item in page.items],
            next_from_seq=page.reached,
            head_seq=page.head_seq,
            earliest_seq=page.earliest_seq,
            caught_up=page.reached >= page.head_seq,
            lag=max(0, page.head_seq - page.reached),
            topic_id=topic_id,
            tombstone=page.tombstone,
        )

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

    async def _cursor(self, key: Key, asked: DiffRequest) -> tuple[int, int, bool]:
        """(cursor to answer from, head), after the wait for a record after the cursor, and whether
        there was a wait."""
        head = await self._partitions.head(key)
        from_ts = None if asked.from_ts is UNSET else asked.from_ts
        if asked.tail:
            cursor = head
        elif from_ts is not None:
            cursor = await self._partitions.before_time(key, from_ts)
            # Meanwhile there were commits, which the ledger knows earlier than the commit log.
            head = max(await self._partitions.head(key), cursor)
        else:
            cursor = 0 if asked.from_seq is UNSET else asked.from_seq
            if cursor > head:
                # The commit log may be late; the ledger never is.
                head = max(head, await self._partitions.ledger_head(key))
                if cursor > head:
                    raise OffsetPastEnd(cursor, head)
        waits = cursor >= head and asked.wait_ms > 0
        if waits:
            await self.waiters.wait(key, asked.wait_ms / 1000)
            head = max(head, await self._partitions.head(key))
            if from_ts is not None:
                cursor = await self._partitions.before(key, cursor + 1, from_ts)
                head = max(await self._partitions.head(key), cursor)
        return cursor, head, waits


def _passes(asked: DiffRequest, record: Record) -> bool:
    return (asked.tag is None or record.tag == asked.tag) and (
        asked.node is None or record.node == asked.node
    )
