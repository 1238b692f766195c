"""Produce: each batch of a request becomes a frame of its own in the ring, since each has a fate.

A request is judged and published batch by batch, before its connection reads the next one. While
the ring has no room the connection reads nothing: a batch that is refused with the next one on its
way would change their order. The answer waits for the commits of all its batches.

What is not stored has one of Kafka's error codes. Where nobody knows, the connection is closed, as
a broker's that dies: the client sends again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemon.intake.admission import FRAME_BYTES, Admission
from daemon.intake.caps import RELOAD_NS, TopicFull
from daemon.intake.formats.nesting import nested_deeper
from daemon.intake.pending import Callback, PendingRequest, PendingRequests
from daemon.intake.producer import RING_LOOK_S
from daemon.intake.topic_cache import TopicCache, TopicEntry
from daemon.kafka.messages import ProduceAsked, ProducedBatch, produced, read_produce
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
from shards.clock import monotonic_ns, wall_ms
from shards.frame import Part
from shards.ring import RingFull, RingWriter
from uploader.l0 import records
from uploader.l0.kafka import (
    INVALID_RECORD,
    INVALID_TXN_STATE,
    MESSAGE_TOO_LARGE,
    BatchError,
    BatchLimits,
    decode_batch,
    to_row,
)

NOT_LEADER = 6
REQUEST_TIMED_OUT = 7
INVALID_REQUIRED_ACKS = 21
TIMEOUT_MIN_MS = 100  # less would withdraw what a commit window holds

Waits = ProducedBatch | asyncio.Future[ProducedBatch]


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
        self._published = published
        self._short_of_time = short_of_time
        self._ack_timeout_ms = ack_timeout_ms

    async def take(self, request: KafkaRequest) -> asyncio.Future[bytearray] | None:
        """Publishes a request; its answer is known later. None: it wants no answer. Raises
        Malformed."""
        arrival_ns = monotonic_ns()
        asked = read_produce(request)
        waiting = [
            (name, [(each, await self._one(asked, name, each, batch, arrival_ns))
                    for each, batch in batches])
            for name, batches in asked.topics
        ]  # fmt: skip
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
        self, asked: ProduceAsked, name: str, partition: int, batch: bytes | None, arrival_ns: int
    ) -> Waits:
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
            if not batch:
                return ProducedBatch(INVALID_RECORD, message="there is no batch")
            found = decode_batch(batch, self._limits)
            times = [each.ts for each in found if each.ts is not None] or [wall_ms()]
            as_json = topic.topic.config.kafka_value == "json"
            rows = [to_row(each, as_json=as_json) for each in found]
            if as_json and any(nested_deeper(each.value or b"", NESTING_MAX) for each in found):
                return ProducedBatch(
                    INVALID_RECORD, message=f"a value is nested deeper than {NESTING_MAX} levels"
                )
            payload = records.encode(rows)
            part = Part(topic.topic_id, partition, len(found), payload, min(times), max(times))
            timeout_ms = max(TIMEOUT_MIN_MS, min(asked.timeout_ms, self._ack_timeout_ms))
            return await self._publish(topic, part, arrival_ns, 1_000_000 * timeout_ms)
        except BatchError as error:
            return ProducedBatch(error.code, message=str(error))
        except TopicFull as error:
            return ProducedBatch(POLICY_VIOLATION, message=error.message)
        except ApiError as error:
            return ProducedBatch(code_of(error), message=error.message)
        except LedgerError as error:
            return ProducedBatch(KAFKA_STORAGE_ERROR, message=str(error))

    async def _publish(
        self, topic: TopicEntry, part: Part, arrival_ns: int, timeout_ns: int
    ) -> Waits:
        """Waits for room in the ring, nothing else."""
        size = len(part.payload)
        if size + FRAME_BYTES > self._ring.capacity // 4:
            return ProducedBatch(
                MESSAGE_TOO_LARGE,
                message=f"the batch takes {size} bytes, the limit is"
                f" {self._ring.capacity // 4 - FRAME_BYTES}; lower batch.size",
            )
        while True:
            tracker = topic.tracker
            if tracker is not None:
                now_ns = monotonic_ns()
                trackers = self._topics.trackers
                if trackers.is_stale(tracker) or now_ns - tracker.loaded_ns > RELOAD_NS:
                    await self._topics.load_tracker(tracker, now_ns)
                tracker.check([part[1:6]])
            # No await from here on until the frame is published.
            if self._admission.is_closed:
                error = self._admission.refusal()
                return ProducedBatch(KAFKA_STORAGE_ERROR, message=error.message)
            if self._admission.free_bytes >= size + FRAME_BYTES:
                try:
                    position = self._ring.append(arrival_ns, wall_ms(), b"", (part,))
                    break
                except RingFull:
                    pass  # of a pad
            if monotonic_ns() - arrival_ns > timeout_ns:
                return ProducedBatch(
                    REQUEST_TIMED_OUT,
                    message="the shard's ring is full of records that are not durable yet",
                )
            await asyncio.sleep(RING_LOOK_S)
        if tracker is not None:
            tracker.published(position, [part[1:6]])
        answer: asyncio.Future[ProducedBatch] = asyncio.get_running_loop().create_future()

        def settled(first_offset: int) -> None:
            if not answer.done():
                answer.set_result(
                    ProducedBatch(0, first_offset - 1)
                    if first_offset
                    else ProducedBatch(UNKNOWN_TOPIC_OR_PARTITION, message="the topic was deleted")
                )

        def refused(error: ApiError) -> None:
            if answer.done():
                return
            if error.code == "outcome_unknown":
                answer.set_exception(OutcomeUnknown(error.message))
            else:
                answer.set_result(ProducedBatch(REQUEST_TIMED_OUT, message=error.message))

        placed = ((part.partition, part.record_count),)
        self._pending.add(
            PendingRequest(
                position, Callback(arrival_ns, settled, refused), topic, placed, size, None,
                timeout_ns,
            )
        )  # fmt: skip
        if timeout_ns < 1_000_000 * self._ack_timeout_ms:
            self._short_of_time(arrival_ns, timeout_ns)
        self._published()
        return answer


async def _answer(
    request: KafkaRequest, waiting: list[tuple[str, list[tuple[int, Waits]]]]
) -> bytearray:
    """The answer, when all batches have theirs. Raises OutcomeUnknown."""
    topics = [
        (name, [(partition, each if isinstance(each, ProducedBatch) else await each)
                for partition, each in some])
        for name, some in waiting
    ]  # fmt: skip
    return produced(request, topics)


def _heard(answer: asyncio.Future[bytearray]) -> None:
    """Nobody waits for it."""
    if not answer.cancelled():
        answer.exception()
