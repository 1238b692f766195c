"""Produce: each batch of a request becomes a frame of its own in the ring, since each has a fate.

A request is judged and published batch by batch, before its connection reads the next one. While
the ring has no room the connection reads nothing. The answer waits for the commits of all its
batches.

What is not stored has one of Kafka's error codes. What clients send again (RETRIED) must not come
after the batches that they sent later: those that the connection has read are refused with it, and
it reads no more and is closed when all is answered. Where nobody knows what became of a batch,
it is closed too, as a broker's that dies: the client sends again.

A batch is stored as it came if it is plain, and what it holds is only looked at
(``uploader/l0/kafka_stored.py``); any other is decoded and stored as one by HTTP. A long batch is
looked at and decoded slice by slice, and the loop serves others in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import final

from daemon.intake.admission import FRAME_BYTES, Admission
from daemon.intake.caps import RELOAD_NS, TopicFull
from daemon.intake.formats.nesting import nested_deeper
from daemon.intake.pending import Callback, PendingRequest, PendingRequests
from daemon.intake.producer import RING_LOOK_S
from daemon.intake.topic_cache import TopicCache, TopicEntry
from daemon.kafka.budget import ITEMS_OF_A_TURN, Breaths, SharedBytes
from daemon.kafka.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUIRED_ACKS,
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    POLICY_VIOLATION,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from daemon.kafka.messages import ProduceAsked, ProducedBatch, produced
from daemon.kafka.rights import EVERYTHING, Allowed
from daemon.kafka.topics import KafkaTopics, code_of
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.decoding import NESTING_MAX
from daemon.schemas.errors import ApiError
from ledger.errors import LedgerError
from ledger.types import ProducerBatch, Verdict
from shards.clock import monotonic_ns, wall_ms
from shards.frame import CODEC_KAFKA, Part, encode_producer
from shards.ring import RingFull, RingWriter
from uploader.l0 import records
from uploader.l0.compression import decompressed
from uploader.l0.kafka import (
    HEAD_BYTES,
    INVALID_RECORD,
    INVALID_TXN_STATE,
    MESSAGE_TOO_LARGE,
    BatchError,
    BatchLimits,
    BatchRows,
    KafkaHead,
    read_head,
    records_of,
)
from uploader.l0.kafka_stored import plain_times, uncompressed, without_producer
from uploader.l0.records import TIMESTAMP_MS_MAX

RETRIED = {REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR}
TIMEOUT_MIN_MS = 100  # less would withdraw what a commit window holds
SHORT_BATCH_BYTES = 64 << 10  # decompressed; longer ones are decoded one at a time
REFUSED_UNHEARD = "a batch with acks = 0 was refused"

WAITS = ProducedBatch(0)  # of which it is not known yet what became
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
        self, request: KafkaRequest, asked: ProduceAsked, refusals: Refusals,
        allowed: Allowed = EVERYTHING, fail: Callable[[Exception], None] = lambda _: None,
    ) -> asyncio.Future[bytearray] | None:  # fmt: skip
        """Publishes a request; its answer is known later. None: it wants no answer, and ``fail``
        ends its connection if the answer would be an error. Adds to the ``refusals`` of its
        connection, also when it is answered."""
        answering = _Answering(request, asyncio.get_running_loop(), refusals)
        breaths = Breaths()
        for name, batches in asked.topics:
            some: list[tuple[int, ProducedBatch]] = []
            answering.topics.append((name, some))
            for each, batch in batches:
                await breaths.item()
                some.append((each, WAITS))
                place = _Batch(answering, name, some, len(some) - 1)
                found = await self._one(asked, place, batch, allowed)
                if found is not None:
                    if found.error in RETRIED:
                        refusals[name, each] = found
                    some[-1] = (each, found)
        answering.begun()
        if asked.acks:
            return answering.answer
        # The only way to tell a client that wants no answer is to end its connection.
        if answering.is_refused:
            answering.answer.add_done_callback(heard)
            raise OutcomeUnknown(REFUSED_UNHEARD)
        answering.answer.add_done_callback(partial(_unheard, answering, fail))
        return None

    async def _one(
        self, asked: ProduceAsked, place: _Batch, batch: bytes | None, allowed: Allowed
    ) -> ProducedBatch | None:
        """What a batch is answered immediately; None if it waits for its commit."""
        name, partition = place.name, place.partition
        if asked.acks not in (-1, 0, 1):
            return ProducedBatch(
                INVALID_REQUIRED_ACKS, message=f"acks is -1, 0 or 1, got {asked.acks}"
            )
        if asked.transactional_id is not None:
            return ProducedBatch(INVALID_TXN_STATE, message="there are no transactions here")
        try:
            topic = await self._names.entry(name, allowed)
            if not 0 <= partition < topic.partitions:
                return ProducedBatch(
                    UNKNOWN_TOPIC_OR_PARTITION,
                    message=f"topic {name!r} has the partitions 0 to {topic.partitions - 1},"
                    f" got {partition}",
                )
            if self._names.leader(topic.topic_id, partition) != self._shard:
                return ProducedBatch(NOT_LEADER_OR_FOLLOWER)
            if topic.topic.config.dedupe == "body":
                return ProducedBatch(
                    POLICY_VIOLATION,
                    message=f"topic {name!r} has dedupe = body, for which Kafka has no place:"
                    " send by HTTP, or set dedupe = none",
                )
            if not batch:
                return ProducedBatch(INVALID_RECORD, message="there is no batch")
            timeout_ms = max(TIMEOUT_MIN_MS, min(asked.timeout_ms, self._ack_timeout_ms))
            timeout_ns = 1_000_000 * timeout_ms
            head = read_head(batch, self._limits)
            part = self._plain_part(topic, partition, batch, head)
            if part is not None:  # as almost always
                return await self._publish(topic, part, head.producer, place, timeout_ns)
            async with self._part(topic, partition, batch, head) as part:
                return await self._publish(topic, part, head.producer, place, timeout_ns)
        except BatchError as error:
            return ProducedBatch(error.code, message=str(error))
        except TopicFull as error:
            return ProducedBatch(POLICY_VIOLATION, message=error.message)
        except ApiError as error:
            return ProducedBatch(code_of(error), message=error.message)
        except LedgerError as error:
            return ProducedBatch(KAFKA_STORAGE_ERROR, message=str(error))

    def _plain_part(
        self, topic: TopicEntry, partition: int, batch: bytes, head: KafkaHead
    ) -> Part | None:
        """A batch that is stored as it is; None if it is not known to be plain without a pause."""
        if not head.is_usual or head.codec or topic.topic.config.kafka_value == "json":
            return None
        times = next(plain_times(batch, head, self._limits), None)
        if times is None:
            return None
        if head.producer is not None:
            batch = without_producer(batch)
        return Part(topic.topic_id, partition, head.records, batch, *times, CODEC_KAFKA)

    @asynccontextmanager
    async def _part(
        self, topic: TopicEntry, partition: int, batch: bytes, head: KafkaHead
    ) -> AsyncIterator[Part]:
        """Any batch as it is stored; one that is decompressed or decoded, if it is long, has its
        share of memory until the block ends. Raises BatchError."""
        as_json = topic.topic.config.kafka_value == "json"
        may_be_plain = head.is_usual and not as_json
        share = 0
        try:
            if head.codec:
                short = _short(head, batch)
                if short is None:
                    share = await self._share()
                    short = await asyncio.to_thread(
                        _expanded, head, batch, self._limits.batch_bytes
                    )
                batch = short
            if may_be_plain:
                for times in plain_times(batch, head, self._limits):
                    if times is not None:
                        if head.producer is not None:
                            batch = without_producer(batch)
                        yield Part(
                            topic.topic_id, partition, head.records, batch, *times, CODEC_KAFKA
                        )
                        return
                    await asyncio.sleep(0)
            if len(batch) > HEAD_BYTES + SHORT_BATCH_BYTES:
                share = share or await self._share()
            payload = batch[HEAD_BYTES:]
            batch = b""
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
                said = [each.ts for each in some if each.ts is not None]
                if said:
                    earliest, latest = min(earliest, *said), max(latest, *said)
            if latest < 0:
                earliest = latest = wall_ms()
            payload = records.encode(made.rows)
            del made, some, said
            yield Part(topic.topic_id, partition, head.records, payload, earliest, latest)
        finally:
            self._decoded.give_back(share)

    async def _share(self) -> int:
        """Waits for the memory that a long batch may take."""
        await self._decoded.take(self._limits.batch_bytes)
        return self._limits.batch_bytes

    async def _publish(
        self, topic: TopicEntry, part: Part, batch: ProducerBatch | None, place: _Batch,
        timeout_ns: int,
    ) -> ProducedBatch | None:  # fmt: skip
        """Waits for room in the ring, nothing else."""
        size = len(part.payload)
        refusals, arrival_ns = place.answering.refusals, place.answering.arrival_ns
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
                    self._append(topic, part, batch, place, timeout_ns)
                    return None
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
        self, topic: TopicEntry, part: Part, batch: ProducerBatch | None, place: _Batch,
        timeout_ns: int,
    ) -> None:  # fmt: skip
        """Publishes what has room. Raises RingFull."""
        answering = place.answering
        arrival_ns = answering.arrival_ns
        conditions = b"" if batch is None else encode_producer(batch)
        position = self._ring.append(arrival_ns, wall_ms(), conditions, (part,))
        if topic.tracker is not None:
            topic.tracker.published(position, [part[1:6]])
        answering.left += 1
        placed = ((part.partition, part.record_count),)
        line = (id(answering.refusals), part.topic_id, part.partition)  # of this connection
        waits = Callback(arrival_ns, place.settled, place.refused, line, place.judged)
        self._pending.add(
            PendingRequest(position, waits, topic, placed, len(part.payload), None, timeout_ns)
        )
        if timeout_ns < 1_000_000 * self._ack_timeout_ms:
            self._short_of_time(arrival_ns, timeout_ns)
        self._published()


@final
class _Answering:
    """One request: what became of its batches, and its answer, which is made when that is known of
    all. ``left`` of them wait for their commits, and the request itself until it has begun."""

    __slots__ = ("_loop", "_request", "answer", "arrival_ns", "left", "refusals", "topics")

    def __init__(
        self, request: KafkaRequest, loop: asyncio.AbstractEventLoop, refusals: Refusals
    ) -> None:
        self._request = request
        self._loop = loop
        self.refusals = refusals
        self.arrival_ns = monotonic_ns()
        self.topics: list[tuple[str, list[tuple[int, ProducedBatch]]]] = []
        self.left = 1
        self.answer: asyncio.Future[bytearray] = loop.create_future()

    def begun(self) -> None:
        """All its batches are published or refused."""
        self.one_is_known()

    @property
    def is_refused(self) -> bool:
        """Whether a batch of it was not stored."""
        return any(each.error for _, some in self.topics for _, each in some)

    def one_is_known(self) -> None:
        """One less is waited for."""
        self.left -= 1
        if self.left or self.answer.done():
            return
        items = sum(1 + len(some) for _, some in self.topics)
        if items <= 2 * ITEMS_OF_A_TURN:
            self.answer.set_result(self._made())
        else:
            made = self._loop.run_in_executor(None, self._made)
            made.add_done_callback(self._made_aside)

    def _made_aside(self, made: asyncio.Future[bytearray]) -> None:
        if not self.answer.done():
            self.answer.set_result(made.result())

    def _made(self) -> bytearray:
        waited_ms = (monotonic_ns() - self.arrival_ns) // 1_000_000
        throttle_ms = max(0, self._request.throttle_ms - waited_ms)
        return produced(self._request.head(throttle_ms), self.topics)


@final
class _Batch:
    """One batch of a request, as its commit answers it: number ``index`` of its topic."""

    __slots__ = ("_index", "_some", "answering", "name", "partition")

    def __init__(
        self, answering: _Answering, name: str, some: list[tuple[int, ProducedBatch]], index: int
    ) -> None:
        self.answering = answering
        self.name = name
        self.partition = some[index][0]
        self._some = some
        self._index = index

    def settled(self, first_offset: int) -> None:
        """As ``Callback`` calls it."""
        self._is(
            ProducedBatch(0, first_offset - 1)
            if first_offset
            else ProducedBatch(UNKNOWN_TOPIC_OR_PARTITION, message="the topic was deleted")
        )

    def judged(self, verdict: Verdict) -> None:
        """The same."""
        self._is(_of_verdict(verdict))

    def refused(self, error: ApiError) -> None:
        """The same."""
        answer = self.answering.answer
        if error.code != "outcome_unknown":
            refusal = ProducedBatch(REQUEST_TIMED_OUT, message=error.message)
            if not answer.done():
                self.answering.refusals[self.name, self.partition] = refusal
            self._is(refusal)
        elif not answer.done():
            answer.set_exception(OutcomeUnknown(error.message))

    def _is(self, known: ProducedBatch) -> None:
        self._some[self._index] = (self.partition, known)
        self.answering.one_is_known()


def _of_verdict(verdict: Verdict) -> ProducedBatch:
    """What a batch is answered that the commit made void."""
    if verdict.kind == "deduped":
        return ProducedBatch(0, verdict.parts[0].first_seq - 1)
    if verdict.kind == "out_of_order":
        return ProducedBatch(
            OUT_OF_ORDER_SEQUENCE_NUMBER,
            message="the batch is not the next one of its producer: one before it is not stored",
        )
    if verdict.kind == "producer_fenced":
        return ProducedBatch(
            INVALID_PRODUCER_EPOCH, message="the producer has begun a newer epoch elsewhere"
        )
    return ProducedBatch(UNKNOWN_TOPIC_OR_PARTITION, message="the topic was deleted")


def _expanded(head: KafkaHead, batch: bytes, bytes_max: int) -> bytes:
    """A compressed batch without its compression. Raises BatchError."""
    return uncompressed(batch, decompressed(head.codec, batch[HEAD_BYTES:], bytes_max))


def _short(head: KafkaHead, batch: bytes) -> bytes | None:
    """The same; None if it is long. Raises BatchError."""
    if len(batch) > HEAD_BYTES + SHORT_BATCH_BYTES:
        return None
    try:
        return _expanded(head, batch, SHORT_BATCH_BYTES)
    except BatchError as error:
        if error.code == MESSAGE_TOO_LARGE:
            return None
        raise


def _unheard(
    answering: _Answering, fail: Callable[[Exception], None], answer: asyncio.Future[bytearray]
) -> None:
    """The answer is known to a request that wants none."""
    error = None if answer.cancelled() else answer.exception()
    if isinstance(error, Exception):
        fail(error)
    elif answering.is_refused:
        fail(OutcomeUnknown(REFUSED_UNHEARD))


def heard(answer: asyncio.Future[bytearray]) -> None:
    """Nobody waits for it."""
    if not answer.cancelled():
        answer.exception()
