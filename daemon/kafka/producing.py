"""Produce: each batch of a request becomes a frame of its own in the ring, since each has a fate.

A request is judged and published batch by batch, before its connection reads the next one. While
the ring has no room the connection reads nothing. The answer waits for the commits of all its
batches.

What is not stored has one of Kafka's error codes. What clients send again (RETRIED) must not come
after the batches that they sent later: those that the connection has read are refused with it, and
it reads no more and is closed when all is answered. Where nobody knows what became of a batch,
it is closed too, as a broker's that dies: the client sends again.

A long batch is decoded slice by slice, and the loop serves others in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from daemon.intake.admission import FRAME_BYTES, Admission
from daemon.intake.caps import RELOAD_NS, TopicFull
from daemon.intake.formats.nesting import nested_deeper
from daemon.intake.pending import Callback, PendingRequest, PendingRequests
from daemon.intake.producer import RING_LOOK_S
from daemon.intake.topic_cache import TopicCache, TopicEntry
from daemon.kafka.budget import Breaths, SharedBytes, aside
from daemon.kafka.messages import ProduceAsked, ProducedBatch, produced
from daemon.kafka.topics import (
    KAFKA_STORAGE_ERROR,
    POLICY_VIOLATION,
    UNKNOWN_TOPIC_OR_PARTITION,
    KafkaTopics,
    code_of,
)
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.decoding import NESTING_MAX
from daemon.schemas.errors import ApiError
from ledger.errors import LedgerError
from ledger.types import ProducerBatch, Verdict
from shards.clock import monotonic_ns, wall_ms
from shards.frame import Part, encode_producer
from shards.ring import RingFull, RingWriter
from uploader.l0 import records
from uploader.l0.kafka import (
    HEAD_BYTES,
    INVALID_RECORD,
    INVALID_TXN_STATE,
    MESSAGE_TOO_LARGE,
    BatchError,
    BatchLimits,
    BatchRows,
    KafkaHead,
    decompressed,
    read_head,
    records_of,
)
from uploader.l0.records import TIMESTAMP_MS_MAX

NOT_LEADER = 6
REQUEST_TIMED_OUT = 7
INVALID_REQUIRED_ACKS = 21
OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47
RETRIED = {REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR}
TIMEOUT_MIN_MS = 100  # less would withdraw what a commit window holds
SHORT_BATCH_BYTES = 64 << 10  # decompressed; longer ones are decoded one at a time

Waits = ProducedBatch | asyncio.Future[ProducedBatch]
Refusals = dict[tuple[str, int], ProducedBatch]
"""What clients send again, of one connection, by topic and partition."""


class OutcomeUnknown(Exception):
    """A batch may be stored, or not: the connection is to be closed."""


class KafkaProducer:
    """Takes the batches of one shard. ``published`` is called after each that went into the ring,
    and before it ``short_of_time`` for one with less time than usual."""

    def __init__(
        self,
        shard: int,
        names: KafkaTopics,
        topics: TopicCache,
        ring: RingWriter,
        pending: PendingRequests,
        admission: Admission,
        limits: BatchLimits,
        published: Callable[[], None],
        short_of_time: Callable[[int, int], None],
        ack_timeout_ms: int,
    ) -> None:
        self._shard = shard
        self._names = names
        self._topics = topics
        self._ring = ring
        self._pending = pending
        self._admission = admission
        self._limits = limits
        self._decoded = SharedBytes(limits.batch_bytes)
        self._published = published
        self._short_of_time = short_of_time
        self._ack_timeout_ms = ack_timeout_ms

    async def take(
        self, request: KafkaRequest, asked: ProduceAsked, refusals: Refusals
    ) -> asyncio.Future[bytearray] | None:
        """Publishes a request; its answer is known later. None: it wants no answer. Adds to the
        ``refusals`` of its connection, also when it is answered."""
        arrival_ns = monotonic_ns()
        waiting: list[tuple[str, list[tuple[int, Waits]]]] = []
        breaths = Breaths()
        for name, batches in asked.topics:
            some: list[tuple[int, Waits]] = []
            waiting.append((name, some))
            for each, batch in batches:
                await breaths.item()
                found = await self._one(asked, name, each, batch, arrival_ns, refusals)
                if isinstance(found, ProducedBatch) and found.error in RETRIED:
                    refusals[name, each] = found
                some.append((each, found))
        answer = asyncio.ensure_future(_answer(request.head(), waiting))
        if asked.acks:
            return answer
        answer.add_done_callback(_heard)
        refused = any(
            isinstance(each, ProducedBatch) and each.error
            for _, some in waiting
            for _, each in some
        )
        if refused:  # the only way to tell a client that wants no answer
            raise OutcomeUnknown("a batch with acks = 0 was refused")
        return None

    async def _one(
        self, asked: ProduceAsked, name: str, partition: int, batch: bytes | None,
        arrival_ns: int, refusals: Refusals,
    ) -> Waits:  # fmt: skip
        if asked.acks not in (-1, 0, 1):
            return ProducedBatch(
                INVALID_REQUIRED_ACKS, message=f"acks is -1, 0 or 1, got {asked.acks}"
            )
        if asked.transactional_id is not None:
            return ProducedBatch(INVALID_TXN_STATE, message="there are no transactions here")
        try:
            topic = await self._names.entry(name)
            if not 0 <= partition < topic.partitions:
                return ProducedBatch(
                    UNKNOWN_TOPIC_OR_PARTITION,
                    message=f"topic {name!r} has the partitions 0 to {topic.partitions - 1},"
                    f" got {partition}",
                )
            if self._names.leader(topic.topic_id, partition) != self._shard:
                return ProducedBatch(NOT_LEADER)
            if topic.topic.config.dedupe == "body":
                return ProducedBatch(
                    POLICY_VIOLATION,
                    message=f"topic {name!r} has dedupe = body, for which Kafka has no place:"
                    " send by HTTP, or set dedupe = none",
                )
            if not batch:
                return ProducedBatch(INVALID_RECORD, message="there is no batch")
            timeout_ms = max(TIMEOUT_MIN_MS, min(asked.timeout_ms, self._ack_timeout_ms))
            async with self._part(topic, partition, batch) as made:
                return await self._publish(
                    topic, *made, arrival_ns, 1_000_000 * timeout_ms, refusals
                )
        except BatchError as error:
            return ProducedBatch(error.code, message=str(error))
        except TopicFull as error:
            return ProducedBatch(POLICY_VIOLATION, message=error.message)
        except ApiError as error:
            return ProducedBatch(code_of(error), message=error.message)
        except LedgerError as error:
            return ProducedBatch(KAFKA_STORAGE_ERROR, message=str(error))

    @asynccontextmanager
    async def _part(
        self, topic: TopicEntry, partition: int, batch: bytes
    ) -> AsyncIterator[tuple[Part, ProducerBatch | None]]:
        """A batch as it is stored, and as its producer numbers it; a long one has its share of
        memory until the block ends. Raises BatchError."""
        head = read_head(batch, self._limits)
        payload = _short_payload(head, batch)
        share = 0
        try:
            if payload is None:
                share = await self._share()
                payload = batch[HEAD_BYTES:]
                if head.codec:
                    payload = await asyncio.to_thread(
                        decompressed, head.codec, payload, self._limits.batch_bytes
                    )
            as_json = topic.topic.config.kafka_value == "json"
            made = BatchRows(self._limits, as_json=as_json)
            earliest, latest = TIMESTAMP_MS_MAX, -1
            for some in records_of(payload, head, self._limits.record_bytes):
                if made.rows:
                    share = share or await self._share()
                    await asyncio.sleep(0)
                made.add(some)
                if as_json and any(nested_deeper(each.value or b"", NESTING_MAX) for each in some):
                    raise BatchError(
                        INVALID_RECORD, f"a value is nested deeper than {NESTING_MAX} levels"
                    )
                times = [each.ts for each in some if each.ts is not None]
                if times:
                    earliest, latest = min(earliest, *times), max(latest, *times)
            if latest < 0:
                earliest = latest = wall_ms()
            payload = records.encode(made.rows)
            del made, some, times
            part = Part(topic.topic_id, partition, head.records, payload, earliest, latest)
            yield part, head.producer
        finally:
            self._decoded.give_back(share)

    async def _share(self) -> int:
        """Waits for the memory that a long batch may take."""
        await self._decoded.take(self._limits.batch_bytes)
        return self._limits.batch_bytes

    async def _publish(
        self, topic: TopicEntry, part: Part, batch: ProducerBatch | None, arrival_ns: int,
        timeout_ns: int, refusals: Refusals,
    ) -> Waits:  # fmt: skip
        """Waits for room in the ring, nothing else."""
        size = len(part.payload)
        if size + FRAME_BYTES > self._ring.capacity // 4:
            return ProducedBatch(
                MESSAGE_TOO_LARGE,
                message=f"the batch takes {size} bytes, the limit is"
                f" {self._ring.capacity // 4 - FRAME_BYTES}; lower batch.size",
            )
        is_repeat = False  # then it takes no room in its topic: the commit answers it
        while True:
            tracker = topic.tracker
            if tracker is not None:
                now_ns = monotonic_ns()
                trackers = self._topics.trackers
                if trackers.is_stale(tracker) or now_ns - tracker.loaded_ns > RELOAD_NS:
                    await self._topics.load_tracker(tracker, now_ns)
                try:
                    if not is_repeat:
                        tracker.check([part[1:6]])
                except TopicFull:
                    is_repeat = batch is not None and await self._topics.has_batch(
                        part.topic_id, part.partition, batch
                    )
                    if not is_repeat:
                        raise
                    continue
            # No await from here on until the frame is published.
            refused = refusals.get((topic.name, part.partition))
            if refused is not None:
                return refused
            if self._admission.is_closed:
                error = self._admission.refusal()
                return ProducedBatch(KAFKA_STORAGE_ERROR, message=error.message)
            admission, needed = self._admission, size + FRAME_BYTES
            if admission.promise(needed) or admission.promise_of_credit(needed):
                try:
                    return self._append(topic, part, batch, arrival_ns, timeout_ns, refusals)
                except RingFull:
                    pass  # of a pad
                finally:
                    admission.release(needed)
            if monotonic_ns() - arrival_ns > timeout_ns:
                return ProducedBatch(
                    REQUEST_TIMED_OUT,
                    message="the shard's ring is full of records that are not durable yet",
                )
            await asyncio.sleep(RING_LOOK_S)

    def _append(
        self, topic: TopicEntry, part: Part, batch: ProducerBatch | None, arrival_ns: int,
        timeout_ns: int, refusals: Refusals,
    ) -> asyncio.Future[ProducedBatch]:  # fmt: skip
        """Publishes what has room. Raises RingFull."""
        conditions = b"" if batch is None else encode_producer(batch)
        position = self._ring.append(arrival_ns, wall_ms(), conditions, (part,))
        if topic.tracker is not None:
            topic.tracker.published(position, [part[1:6]])
        answer: asyncio.Future[ProducedBatch] = asyncio.get_running_loop().create_future()

        def settled(first_offset: int) -> None:
            if not answer.done():
                answer.set_result(
                    ProducedBatch(0, first_offset - 1)
                    if first_offset
                    else ProducedBatch(UNKNOWN_TOPIC_OR_PARTITION, message="the topic was deleted")
                )

        def judged(verdict: Verdict) -> None:
            if not answer.done():
                answer.set_result(_of_verdict(verdict))

        def refused(error: ApiError) -> None:
            if answer.done():
                return
            if error.code == "outcome_unknown":
                answer.set_exception(OutcomeUnknown(error.message))
            else:
                refusal = ProducedBatch(REQUEST_TIMED_OUT, message=error.message)
                refusals[topic.name, part.partition] = refusal
                answer.set_result(refusal)

        placed = ((part.partition, part.record_count),)
        line = (id(refusals), part.topic_id, part.partition)  # of this connection
        self._pending.add(
            PendingRequest(
                position, Callback(arrival_ns, settled, refused, line, judged), topic, placed,
                len(part.payload), None, timeout_ns,
            )
        )  # fmt: skip
        if timeout_ns < 1_000_000 * self._ack_timeout_ms:
            self._short_of_time(arrival_ns, timeout_ns)
        self._published()
        return answer


def _of_verdict(verdict: Verdict) -> ProducedBatch:
    """What a batch is answered that the commit made void."""
    if verdict.kind == "deduped":
        return ProducedBatch(0, verdict.parts[0].first_seq - 1)
    if verdict.kind == "out_of_order":
        return ProducedBatch(
            OUT_OF_ORDER_SEQUENCE,
            message="the batch is not the next one of its producer: one before it is not stored",
        )
    if verdict.kind == "producer_fenced":
        return ProducedBatch(
            INVALID_PRODUCER_EPOCH, message="the producer has begun a newer epoch elsewhere"
        )
    return ProducedBatch(UNKNOWN_TOPIC_OR_PARTITION, message="the topic was deleted")


def _short_payload(head: KafkaHead, batch: bytes) -> bytes | None:
    """What a batch holds; None if it is long. Raises BatchError."""
    if len(batch) > HEAD_BYTES + SHORT_BATCH_BYTES:
        return None
    try:
        return decompressed(head.codec, batch[HEAD_BYTES:], SHORT_BATCH_BYTES)
    except BatchError as error:
        if error.code == MESSAGE_TOO_LARGE:
            return None
        raise


async def _answer(
    request: KafkaRequest, waiting: list[tuple[str, list[tuple[int, Waits]]]]
) -> bytearray:
    """The answer, when all batches have theirs. Raises OutcomeUnknown."""
    topics = [
        (name, [(partition, each if isinstance(each, ProducedBatch) else await each)
                for partition, each in some])
        for name, some in waiting
    ]  # fmt: skip
    items = sum(1 + len(some) for _, some in waiting)
    return await aside(items, produced, request, topics)


def _heard(answer: asyncio.Future[bytearray]) -> None:
    """Nobody waits for it."""
    if not answer.cancelled():
        answer.exception()
