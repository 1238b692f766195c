"""Produce requests: admission before the body, then validate, frame, publish, wait for the commit.

``admission.py`` promises ring space for a body that is still to come. Reserve, write and publish
are one step of the loop, without an await. A request that must wait for its topic to be created
holds back later requests of its connection, so that their order stays. A request that is held back
has a promise, and still its deadline, since another process may keep the ledger for any time.

This module stores nothing durable, and answers only refusals: ``pending.py`` answers the others.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Protocol

import msgspec

from daemon.access.audit import AuditLog
from daemon.http.application import Queued
from daemon.http.head import Head
from daemon.http.request import Request, Sender
from daemon.intake import formats as bodies
from daemon.intake.admission import FRAME_BYTES, TARGET_BYTES, Admission
from daemon.intake.caps import RELOAD_NS, CapTracker, TopicFull
from daemon.intake.cursor_cache import CursorCache, CursorNotCached
from daemon.intake.formats import BodyLimits, Produce
from daemon.intake.object_limits import ObjectLimits
from daemon.intake.pending import PendingRequest, PendingRequests
from daemon.intake.topic_cache import TopicCache, TopicEntry, unknown_topic
from daemon.schemas.api import ProduceQuery
from daemon.schemas.decoding import read_query
from daemon.schemas.errors import ApiError, too_large
from delivery.tasks import Tasks
from ledger.errors import LedgerError
from ledger.types import TopicConfig
from shards.clock import monotonic_ns, wall_ms
from shards.frame import CODEC_RECORDS, Part, encode_conditions
from shards.latency import LatencyHistogram, Stage
from shards.ring import RingFull, RingWriter
from shards.segment import Segment
from uploader.l0.records import encode, encode_texts

log = logging.getLogger("headgate.produce")

_new = tuple.__new__  # costs half of what a NamedTuple's own constructor does
_IN_BODY = b"disable_backpressure"
RING_LOOK_S = 0.02  # between two attempts of a request that needs a pad's space too


class BodyReader(Protocol):
    """Reads the bodies of requests with one head, in another format than produce's own."""

    def parse(
        self, body: bytes, limits: BodyLimits, arrival_ms: int, topic: TopicEntry | None
    ) -> Produce:
        """What the request asks for; ``topic`` is None before it is known. Raises ApiError."""


class Producer:
    """Takes the produce requests of one shard."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        topics: TopicCache,
        cursors: CursorCache,
        ring: RingWriter,
        answers: PendingRequests,
        limits: BodyLimits,
        published: Callable[[], None],
        short_of_time: Callable[[int, int], None],
        rng: random.Random,
        ack_timeout_ms: int,
        *,
        auto_create: bool = True,
        audit: AuditLog | None = None,
        objects: ObjectLimits | None = None,
    ) -> None:
        self._ack_timeout_ms = ack_timeout_ms
        self._auto_create = auto_create
        self._audit = audit
        self._objects = objects
        self._timeout_ns = 1_000_000 * ack_timeout_ms
        self.admission = Admission(segment, shard, ring, limits.body_bytes_max, rng)
        self._topics = topics
        self._cursors = cursors
        self._ring = ring
        self._pending = answers
        self.limits = limits
        self._published = published
        self._short_of_time = short_of_time
        # By connection: requests with their topic and their promise, in order.
        self._held_back: dict[object, deque[tuple[Request, str, int]]] = {}
        self._sampled_ms = 0  # the first request in each millisecond is a sample
        self._published_after = LatencyHistogram(segment, shard, Stage.PUBLISHED)
        self._tasks = Tasks()

    def admit(self, request: Request, body_bytes: int | None) -> int | Queued:
        """Promises ring space for a body on its way; the token is its size. Raises ApiError."""
        admission, head = self.admission, request.head
        needed = admission.needed_bytes(head, body_bytes)
        if admission.promise(needed):
            return needed
        timeout_ms = self._queue_ms(head)
        if timeout_ms is None and admission.promise_of_credit(needed):
            return needed
        return admission.enqueue(request, needed, timeout_ms, 0)

    def take(self, request: Request, name: str, body_bytes: int) -> None:
        """``admit``, ``produce`` and ``release`` for a body that came with its head."""
        if (
            request.head.content_encoding
            or request.head.target_bytes > TARGET_BYTES
            or self._held_back
            or body_bytes > self.limits.body_bytes_max
            or self._ring.free_bytes - self.admission.taken_bytes < FRAME_BYTES + body_bytes
        ):
            self._take_or_queue(request, name, body_bytes)
            return
        topic = self._topics.known(name)
        if topic is None or topic.tracker is not None:
            self.produce(request, name, FRAME_BYTES + body_bytes)
        else:
            try:
                self._publish(request, topic)
            except (CursorNotCached, RingFull):
                self._hold_back(request, name, FRAME_BYTES + body_bytes)

    def is_usual(self, head: Head) -> bool:
        """Whether ``take_usual`` is for requests of this head."""
        return not (
            head.content_encoding
            or head.query
            or head.content_type not in bodies.NDJSON
            or head.target_bytes > TARGET_BYTES
            or head.rights.allowance is not None
        )

    def take_usual(self, connection: Sender, head: Head, body: bytes, arrival_ns: int) -> bool:
        """``Api.take`` of the usual request, in one step. False, and nothing was done, for any
        other, and for one that is to be refused or that waits."""
        ring = self._ring
        size = len(body)
        if (
            self._held_back
            or size > self.limits.body_bytes_max
            or ring.free_bytes - self.admission.taken_bytes < FRAME_BYTES + size
        ):
            return False
        topic = self._topics.known(head.route.produce)
        if topic is None or not topic.is_usual:
            return False
        arrival_ms = wall_ms()
        try:
            only = bodies.short_line(body, self.limits)
            if only is not None:
                count, payload = 1, encode((only,))
            else:
                texts = bodies.line_texts(body, self.limits)
                count, payload = len(texts.texts), encode_texts(texts)
            position = ring.append_one(
                arrival_ns,
                arrival_ms,
                topic.topic_id,
                0,
                count,
                payload,
                arrival_ms,
                arrival_ms,
                CODEC_RECORDS,
            )
        except (ApiError, RingFull, ValueError):
            return False
        request = Request(head.bare, b"", arrival_ns, connection)
        connection.queue.append(request)
        self._pending.add(
            _new(
                PendingRequest,
                (position, request, topic, ((0, count),), size, None, self._timeout_ns, None),
            )
        )
        tally = head.rights.tally
        if tally is not None:
            tally.requests += 1
            tally.bytes_in += size
        if arrival_ms != self._sampled_ms:
            self._sample(arrival_ms, arrival_ns)
        self._published()
        return True

    def _sample(self, arrival_ms: int, arrival_ns: int) -> None:
        """Counts how long a request took until it was published."""
        self._sampled_ms = arrival_ms
        self._published_after.observe(monotonic_ns() - arrival_ns)

    def _take_or_queue(self, request: Request, name: str, body_bytes: int) -> None:
        admission, head = self.admission, request.head
        needed = admission.needed_bytes(head, body_bytes)
        if not admission.promise(needed):
            timeout_ms = self._queue_ms(head)
            if timeout_ms is None and _IN_BODY in request.body:
                asked = self._parse(request, wall_ms(), None)
                if asked.disable_backpressure:
                    timeout_ms = asked.ack_timeout_ms or self._ack_timeout_ms
            if timeout_ms is not None or not admission.promise_of_credit(needed):
                admission.enqueue(request, needed, timeout_ms, body_bytes)
                return
        try:
            self.produce(request, name, needed)
        finally:
            admission.release(needed)

    def _queue_ms(self, head: Head) -> int | None:
        """How long a request may wait for its admission, as far as its query says; None: it does
        not wait. Raises ApiError 400."""
        if "disable_backpressure" not in head.query:
            return None
        asked = read_query(head.query, ProduceQuery)
        if not asked.disable_backpressure:
            return None
        return asked.ack_timeout_ms or self._ack_timeout_ms

    def overdue(self, waiting: PendingRequest) -> ApiError:
        """The refusal of a request that was taken back at its deadline."""
        return self.admission.overdue(_timeout_ms_of(waiting))

    def unknown(self, waiting: PendingRequest) -> ApiError:
        """504 for a request that could not be taken back at its deadline."""
        return outcome_unknown(_timeout_ms_of(waiting))

    def produce(self, request: Request, name: str, promised: int) -> None:
        """Takes a produce request with its whole body, for which ``promised`` bytes are free.

        A request that is held back gets a second promise, since the caller releases its own.
        """
        if self._held_back:
            held = self._held_back.get(request.connection)
            if held is not None:
                self.admission.promise_again(promised)
                held.append((request, name, promised))
                return
        topic = self._topics.known(name)
        if topic is not None:
            try:
                if topic.tracker is None or not self._topics.trackers.is_stale(topic.tracker):
                    self._publish(request, topic)
                    return
            except TopicFull as full:
                if full.idempotency_key is None:
                    raise
            except (CursorNotCached, RingFull):
                pass
        self._hold_back(request, name, promised)

    def _hold_back(self, request: Request, name: str, promised: int) -> None:
        self.admission.promise_again(promised)
        self._held_back[request.connection] = deque([(request, name, promised)])
        self._tasks.start(self._produce_held(request.connection))

    async def _produce_held(self, connection: object) -> None:
        """Publishes the requests of a connection in order; creates topics as they are needed."""
        held = self._held_back[connection]
        while held:
            request, name, promised = held[0]
            try:
                timeout_ms = self._timeout_ms(request)
                waited_ns = monotonic_ns() - request.arrival_ns + request.waited_ns
                left_ms = timeout_ms - waited_ns // 1_000_000
                async with asyncio.timeout(left_ms / 1000):
                    await self._publish_loaded(request, name)
                self.admission.admitted_after.observe(monotonic_ns() - request.arrival_ns)
            except TimeoutError:  # before publishing, which is the last step
                request.refuse(self.admission.overdue(timeout_ms))
            except ApiError as error:
                request.refuse(error)
            except LedgerError as error:
                request.refuse(ledger_unavailable(error))
            except Exception as error:  # the requests after it must not wait forever
                log.error("a produce request failed because of a bug", exc_info=error)
                request.refuse(ApiError(500, "internal", "this is a bug in headgate; see its log",
                                        close=True))  # fmt: skip
            held.popleft()
            self.admission.release(promised)
        del self._held_back[connection]

    async def _publish_loaded(self, request: Request, name: str) -> None:
        """Publishes a request when all that it needs has been read."""
        repeats_in = 0  # the topic that has stored it before
        while True:
            request.head.rights.check_live()
            topic = self._topics.known(name) or await self._topic_for(request, name)
            if topic.tracker is not None and self._topics.trackers.is_stale(topic.tracker):
                await self._topics.load_tracker(topic.tracker, request.arrival_ns)
            try:
                self._publish(request, topic, is_repeat=topic.topic_id == repeats_in)
                return
            except TopicFull as full:
                key = full.idempotency_key
                if key is None or not await self._topics.answered(topic.topic_id, key):
                    raise
                repeats_in = topic.topic_id
            except CursorNotCached as missing:
                await self._cursors.load(missing.asked)  # again, if cursors change meanwhile
            except RingFull:
                await asyncio.sleep(RING_LOOK_S)

    def _timeout_ms(self, request: Request) -> int:
        try:
            asked = self._parse(request, wall_ms(), None)
        except ApiError:  # it is refused in its turn
            return self._ack_timeout_ms
        return asked.ack_timeout_ms or self._ack_timeout_ms

    async def _topic_for(self, request: Request, name: str) -> TopicEntry:
        try:
            return await self._topics.entry(name)
        except ApiError:
            if request.head.query.get("create", "true") != "true":
                raise unknown_topic(name) from None
            if not self._auto_create:
                error = unknown_topic(name)
                error.message += (
                    f", and auto_create_topics is false; create it with PUT /v0/topics/{name}"
                )
                raise error from None
        # A request that will be refused must not leave a topic behind.
        config = TopicConfig()
        asked = self._parse(request, wall_ms(), None)
        bodies.payloads(asked, config.partitions, lambda: 0)
        if asked.advance is not None:
            await self._cursors.load(asked.advance)
        if self._objects is not None:
            await self._objects.check(request.head.rights, "topics", name, config.partitions)
        line = nullcontext() if self._audit is None else self._audit.change(request.asked)
        with line:
            topic, _ = await self._topics.create(name, config)
        return topic

    def _load_again(self, tracker: CapTracker, now_ns: int) -> None:
        """Starts loading the tracker again if it is old."""
        if now_ns - tracker.loaded_ns > RELOAD_NS:
            tracker.loaded_ns = now_ns
            self._tasks.start(self._reload(tracker, now_ns))

    async def _reload(self, tracker: CapTracker, now_ns: int) -> None:
        try:
            await self._topics.load_tracker(tracker, now_ns)
        except LedgerError as error:
            log.warning("how full a topic is cannot be read: %s", error)

    def _parse(self, request: Request, arrival_ms: int, topic: TopicEntry | None) -> Produce:
        head = request.head
        body = request.body
        if head.content_encoding:
            body = bodies.decompress(body, head.content_encoding, self.limits.body_bytes_max)
        reader: BodyReader | None = head.reader
        if reader is not None:
            asked = reader.parse(body, self.limits, arrival_ms, topic)
        else:
            asked = bodies.parse(head.content_type, head.query, body, self.limits, arrival_ms)
        dedupe = asked.dedupe or ("none" if topic is None else topic.topic.config.dedupe)
        if dedupe == "body" and asked.idempotency_key is None:
            said = head.query if reader is None else {**head.query, "raw": ""}
            key = bodies.body_key(head.content_type, said, body)
            asked = msgspec.structs.replace(asked, idempotency_key=key)
        if asked.advance is not None:
            head.rights.check_topics(asked.advance.cursor)
        return asked

    def _publish(self, request: Request, topic: TopicEntry, *, is_repeat: bool = False) -> None:
        """``is_repeat``: it was stored before, so no cap matters: the commit gives the first
        answer again, and stores no record. Raises ApiError, TopicFull among them, CursorNotCached,
        and RingFull for a request that waits for space."""
        arrival_ms = wall_ms()
        asked = self._parse(request, arrival_ms, topic)
        topic_id = topic.topic_id
        timeout_ms = asked.ack_timeout_ms or self._ack_timeout_ms
        timeout_ns = 1_000_000 * timeout_ms
        if request.waited_ns:
            timeout_ns -= request.waited_ns
            if timeout_ns <= 0:  # the body says so, which was not read before
                raise self.admission.overdue(timeout_ms)
        payloads = bodies.payloads(asked, topic.partitions, topic.take_partition)
        tracker = topic.tracker
        if tracker is not None and not is_repeat:
            self._load_again(tracker, request.arrival_ns)
            try:
                tracker.check(payloads)
            except TopicFull as full:
                full.idempotency_key = asked.idempotency_key
                raise
        parts: Sequence[Part]
        if len(payloads) == 1:
            payload = payloads[0]
            parts = (_new(Part, (topic_id, *payload, CODEC_RECORDS)),)
            placed: tuple[tuple[int, int], ...] = (payload[:2],)
        else:
            parts = [_new(Part, (topic_id, *payload, CODEC_RECORDS)) for payload in payloads]
            placed = tuple([payload[:2] for payload in payloads])
        advance = None if asked.advance is None else self._cursors.advance(asked.advance)
        key = asked.idempotency_key
        fingerprint = (
            None if key is None or bodies.is_body_key(key)
            else bodies.fingerprint_of(asked, payloads)
        )  # fmt: skip
        conditions = (
            encode_conditions(key, asked.expected_seq, advance, fingerprint)
            if key is not None or asked.expected_seq is not None or advance is not None
            else b""
        )
        allowance = None if key is None else request.head.rights.allowance
        if allowance is not None:
            allowance.take_key()
        try:
            position = self._ring.append(request.arrival_ns, arrival_ms, conditions, parts)
        except (RingFull, ValueError) as error:
            if allowance is not None:
                allowance.give_key_back()
            if isinstance(error, ValueError):
                raise too_large(f"{error}; send smaller batches") from error
            if asked.disable_backpressure or self._queue_ms(request.head) is not None:
                raise
            raise self.admission.ring_full() from None
        if tracker is not None:
            tracker.published(position, payloads)
        body_bytes = len(request.body)
        # It is in the ring now. Kept until the answer, it would be there twice, within no limit.
        request.body = b""
        request.forget_head()
        self._pending.add(
            _new(
                PendingRequest,
                (
                    position, request, topic, placed, body_bytes, asked.expected_seq,
                    timeout_ns, advance,
                ),
            )
        )  # fmt: skip
        if timeout_ns < self._timeout_ns:
            self._short_of_time(request.arrival_ns, timeout_ns)
        if arrival_ms != self._sampled_ms:
            self._sample(arrival_ms, request.arrival_ns)
        self._published()


def _timeout_ms_of(waiting: PendingRequest) -> int:
    """The whole time that a request had."""
    request = waiting.request
    waited_ns = request.waited_ns if isinstance(request, Request) else 0
    return (waiting.timeout_ns + waited_ns) // 1_000_000


def outcome_unknown(timeout_ms: int) -> ApiError:
    """504 ``outcome_unknown``: the request may be stored, or will be, or not."""
    return ApiError(
        504,
        "outcome_unknown",
        f"the request was not durable within ack_timeout_ms = {timeout_ms} and could not be"
        " withdrawn, because its upload has begun: it may be stored; sent again with the same"
        " idempotency key, it is stored once",
        {"ack_timeout_ms": timeout_ms},
    )


def ledger_unavailable(error: LedgerError) -> ApiError:
    """503 ``ledger_unavailable``: nothing was stored."""
    return ApiError(503, "ledger_unavailable", str(error), retry_after_s=1)
