"""Fetch and ListOffsets: records of partitions as batches of Kafka, and where they begin and end.

Kafka's offsets begin at 0, ours at 1: an offset of Kafka is one less, so it is the cursor after
which a reader of ours continues. The high watermark is ``head_seq``, the start of the log
``earliest_seq - 1``. Offsets that nobody gets (gaps) are passed over: the next batch begins later.

Batches that rings and objects hold as Kafka's producers sent them go out unchanged and whole. All
other records, and those of the lake, are encoded.

A fetch waits until one of its partitions has a commit, or for as long as it says. There are no
sessions.

Reading takes its share for as long as it lasts, never for a client. What clients have not taken is
counted apart: an answer may have a quarter of the room that is left there, so those that take
nothing leave some for others; and in any case ANSWER_BYTES_MIN, for which each connection has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from compaction.parquet.file_bytes import LakeFileDamaged
from daemon.intake.topic_cache import TopicEntry
from daemon.kafka import messages
from daemon.kafka.budget import Breaths, Said, SharedBytes
from daemon.kafka.error_codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    KAFKA_STORAGE_ERROR,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from daemon.kafka.messages import (
    FetchAsked,
    FetchedPartition,
    FetchPlace,
    FetchTopic,
    OffsetSaid,
    OffsetsAsked,
)
from daemon.kafka.rights import EVERYTHING, Allowed
from daemon.kafka.topics import KafkaTopics, missing
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.errors import ApiError
from delivery.reading.followed import Key
from delivery.reading.lake import Item
from delivery.reading.partition import PartitionReader, bytes_of
from delivery.reading.waiters import Waiters
from ledger.errors import LedgerError
from shards.clock import monotonic_ns
from uploader.l0 import L0Error
from uploader.l0.kafka import KafkaRecord, encode_batch, to_kafka
from uploader.l0.kafka_stored import at_offset
from uploader.l0.records import Record, RecordsError
from uploader.stores.base import StoreError

LATEST, EARLIEST, OF_MAX_TIME = -1, -2, -3
RECORDS_MAX = 4_000  # of one partition in an answer
BATCH_RECORDS, BATCH_BYTES = 256, 32 << 10  # that are encoded in one turn of the loop
ANSWER_BYTES_MAX = 4 << 20  # of one answer, which is held until the client has taken it
ANSWER_BYTES_MIN = 64 << 10  # of one that takes room of others
READ_BYTES_MAX = UNTAKEN_BYTES_MAX = 4 * ANSWER_BYTES_MAX
# Records and batches while they are read; an answer, twice while it is written.
FETCHED_BYTES_MAX = 2 * READ_BYTES_MAX + 2 * UNTAKEN_BYTES_MAX
PLACE_BYTES_MAX = 1 << 20
OFFSET_BYTES = 32  # in an answer, at most, of a topic or partition
WAIT_MS_MAX = 60_000
BYTES_MIN_MAX = 64 << 10  # what is too little is read again with the next commit

CANNOT_READ = (StoreError, LedgerError, L0Error, LakeFileDamaged, RecordsError)
Read = list[tuple[FetchTopic, list[FetchedPartition]]]


class KafkaReads:
    """The reads of one shard."""

    def __init__(self, names: KafkaTopics, partitions: PartitionReader, waiters: Waiters) -> None:
        self._names = names
        self._partitions = partitions
        self._waiters = waiters
        self._reading = SharedBytes(READ_BYTES_MAX)
        self._untaken = SharedBytes(UNTAKEN_BYTES_MAX)

    @asynccontextmanager
    async def fetch(
        self, asked: FetchAsked, allowed: Allowed = EVERYTHING
    ) -> AsyncIterator[tuple[int, Read]]:
        """An error of the whole request, and what was read; it counts until the block ends."""
        if asked.session_id:
            yield FETCH_SESSION_ID_NOT_FOUND, []
            return
        until_ns = monotonic_ns() + 1_000_000 * min(WAIT_MS_MAX, max(0, asked.wait_ms))
        bytes_min = min(asked.bytes_min, BYTES_MIN_MAX)
        known = [(topic, await self._topic(topic, allowed)) for topic in asked.topics]
        keys = [
            (entry.topic_id, place.partition)
            for topic, entry in known
            if not isinstance(entry, int)
            for place in topic.places
            if 0 <= place.partition < entry.partitions
        ]
        room = 0  # that a record needs, if it is a long one
        while True:
            with self._waiters.noting(keys) as event:
                share = room or self._untaken.part(ANSWER_BYTES_MIN, ANSWER_BYTES_MAX)
                room = share if share > ANSWER_BYTES_MIN else 0
                await self._untaken.take(room)
                try:
                    await self._reading.take(ANSWER_BYTES_MAX)
                    try:
                        read = await self._read(asked, known, share)
                    finally:
                        self._reading.give_back(ANSWER_BYTES_MAX)
                    size = sum(len(each.records) for _, some in read for each in some)
                    is_failed = any(each.error for _, some in read for each in some)
                    left_ns = until_ns - monotonic_ns()
                    is_enough = (
                        size >= bytes_min or (size > 0 and share == ANSWER_BYTES_MIN) or is_failed
                        or left_ns <= 0 or self._waiters.has_ended
                    )  # fmt: skip
                    needed = min(size, ANSWER_BYTES_MAX) if size > ANSWER_BYTES_MIN else 0
                    if is_enough and self._untaken.resize(room, needed):
                        room = needed
                        yield 0, read
                        return
                    del read
                finally:
                    self._untaken.give_back(room)
                if is_enough:
                    room = needed
                    continue
                room = 0
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_ns / 1e9):
                        await event.wait()

    async def _topic(self, topic: FetchTopic, allowed: Allowed) -> TopicEntry | int:
        """A topic, or Kafka's error."""
        try:
            if topic.name is None:
                found = await self._names.by_id(topic.id, allowed)
                return UNKNOWN_TOPIC_ID if found is None else found
            return await self._names.entry(topic.name, allowed)
        except ApiError as error:
            return missing(error)

    async def _read(
        self, asked: FetchAsked, known: list[tuple[FetchTopic, TopicEntry | int]], share: int
    ) -> Read:
        left_bytes = min(share, asked.bytes_max)
        read: Read = []
        breaths = Breaths()
        for topic, entry in known:
            some: list[FetchedPartition] = []
            for place in topic.places:
                await breaths.item()
                if isinstance(entry, int):
                    some.append(FetchedPartition(place.partition, entry))
                    continue
                if not 0 <= place.partition < entry.partitions:
                    absent = UNKNOWN_TOPIC_OR_PARTITION if topic.name else UNKNOWN_TOPIC_ID
                    some.append(FetchedPartition(place.partition, absent))
                    continue
                try:
                    each = await self._partition((entry.topic_id, place.partition), place,
                                                 left_bytes)  # fmt: skip
                except CANNOT_READ:
                    each = FetchedPartition(place.partition, KAFKA_STORAGE_ERROR)
                left_bytes -= len(each.records)
                some.append(each)
            read.append((topic, some))
        return read

    async def _partition(self, key: Key, place: FetchPlace, left_bytes: int) -> FetchedPartition:
        number, cursor = place.partition, place.offset
        head = await self._partitions.head(key)
        if cursor > head:  # the commit log may be late
            head = max(head, await self._partitions.ledger_head(key))
        earliest = (await self._partitions.readable(key)).earliest_seq - 1
        if not earliest <= cursor <= head:
            return FetchedPartition(number, OFFSET_OUT_OF_RANGE, head, earliest)
        if cursor == head or left_bytes <= 0:
            return FetchedPartition(number, 0, head, earliest)
        bytes_max = max(1, min(left_bytes, place.bytes_max, PLACE_BYTES_MAX))
        batches = await self._partitions.kafka_batches(key, cursor, bytes_max)
        if batches:
            found = b"".join([at_offset(batch, first - 1) for first, batch in batches])
            return FetchedPartition(number, 0, head, earliest, found)
        while True:
            page = await self._partitions.page(
                key, cursor, head, limit=RECORDS_MAX, bytes_max=bytes_max, passes=_any
            )
            # A page that ends before a gap may be empty, and the next one begins after it.
            if page.items or page.reached <= cursor or page.reached >= page.head_seq:
                break
            cursor = page.reached
        head = max(head, page.head_seq)
        if not page.items:
            return FetchedPartition(number, 0, head, earliest)
        return FetchedPartition(number, 0, head, earliest, await _encoded(page.items))

    async def list_offsets(self, head: KafkaRequest, asked: OffsetsAsked, allowed: Allowed) -> Said:
        """Answers a ListOffsets: the first offset of each partition that is not before a time."""
        answer: list[tuple[str, list[tuple[int, OffsetSaid]]]] = []
        breaths = Breaths()
        for name, places in asked:
            try:
                entry: TopicEntry | int = await self._names.entry(name, allowed)
            except ApiError as error:
                entry = missing(error)
            some: list[tuple[int, OffsetSaid]] = []
            for partition, ts_ms in places:
                await breaths.item()
                if isinstance(entry, int):
                    said = OffsetSaid(entry)
                elif not 0 <= partition < entry.partitions:
                    said = OffsetSaid(UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    try:
                        said = await self._offset((entry.topic_id, partition), ts_ms)
                    except CANNOT_READ:
                        said = OffsetSaid(KAFKA_STORAGE_ERROR)
                some.append((partition, said))
            answer.append((name, some))
        items = sum(1 + len(some) for _, some in answer)
        size = OFFSET_BYTES * items + sum(len(name) for name, _ in answer)
        return Said(size, items, partial(messages.listed_offsets, head, answer))

    async def _offset(self, key: Key, ts_ms: int) -> OffsetSaid:
        # A client that has just been told of a commit must not get an older head.
        head = max(await self._partitions.head(key), await self._partitions.ledger_head(key))
        if ts_ms == EARLIEST:
            return OffsetSaid(0, -1, (await self._partitions.readable(key)).earliest_seq - 1)
        if ts_ms < 0:  # OF_MAX_TIME too: the last one, as if times ascended
            return OffsetSaid(0, -1, head)
        offset = await self._partitions.before_time(key, ts_ms)
        page = await self._partitions.page(key, offset, head, limit=1, bytes_max=1, passes=_any)
        # Java's client refuses an offset without its time.
        return OffsetSaid(0, page.items[0][1], offset) if page.items else OffsetSaid(0)


async def _encoded(items: list[Item]) -> bytes:
    """Records as batches, each of what the loop encodes before it serves others."""
    batches: list[bytes] = []
    some: list[tuple[int, KafkaRecord]] = []
    size = 0
    for offset, ts_ms, record in items:
        some.append((offset - 1, to_kafka(ts_ms, record)))
        size += bytes_of(record)
        if len(some) == BATCH_RECORDS or size >= BATCH_BYTES:
            batches.append(encode_batch(some[0][0], some))
            some, size = [], 0
            await asyncio.sleep(0)
    if some:
        batches.append(encode_batch(some[0][0], some))
    return b"".join(batches)


def _any(_: Record) -> bool:
    return True
