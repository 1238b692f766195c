"""Produce requests: admission before the body, then validate, frame, publish, wait for the commit.

``admit`` promises ring space for a body that is still to come (its declared length, or the body
limit), or refuses with 429 before the body is taken in. Reserve, write and publish are one step of
the loop, without an await. A request that must wait for its topic to be created holds back later
requests of its connection, so that their order stays. A request that is held back still has its
deadline, since another process may keep the ledger for any time. Each body on its way and each
request held back has a promise. Promises and the ring's content together are never more than the
ring, which bounds their memory too (daemon/memory.py).

This module stores nothing durable, and answers only refusals: ``pending.py`` answers the others.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from daemon.api.errors import ApiError, too_large
from daemon.http.head import Head
from daemon.http.request import Request
from daemon.intake import formats as bodies
from daemon.intake.caps import RELOAD_NS, CapTracker, TopicFull
from daemon.intake.cursor_cache import CursorCache, CursorNotCached
from daemon.intake.formats import BodyLimits, Produce
from daemon.intake.gate import ClosedBy
from daemon.intake.pending import PendingRequest, PendingRequests
from daemon.intake.topic_cache import TopicCache, TopicEntry, unknown_topic
from ledger.errors import LedgerError
from ledger.types import TopicConfig
from shards import layout as at
from shards.clock import monotonic_ns, wall_ms
from shards.frame import CODEC_RECORDS, Part, encode_conditions
from shards.latency import SAMPLED, LatencyHistogram, Stage
from shards.ring import RingFull, RingWriter
from shards.segment import Segment

log = logging.getLogger("headgate.produce")

FRAME_BYTES = 4096  # what admission adds to a body for frame heads and pads
_new = tuple.__new__  # costs half of what a NamedTuple's own constructor does
RETRY_AFTER_S = (1, 3)  # a range, so that refused producers do not come back together
CLOSED_RETRY_AFTER_S = (3, 10)  # an outage lasts longer than a ring takes to empty


class Closed(NamedTuple):
    """Why no request is taken in. ``close``: this connection will take none again."""

    code: str
    reason: str
    close: bool


SUPERSEDED = Closed(
    "superseded", "another daemon has taken this store over; send the request there", True
)
STOPPING = Closed("shutting_down", "the daemon is stopping", True)
STORE_FAILING = Closed(
    "store_failing", "the store takes nothing now (GET /v0/status says why)", False
)
DISK_FULL = Closed(
    "disk_full", "the disk of the ledger or of the store is almost full: free some space", False
)


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
        rng: random.Random,
        ack_timeout_ms: int,
    ) -> None:
        self._ack_timeout_ms = ack_timeout_ms
        self._words = segment.words
        self._rejected_at = segment.layout.shard(shard) + at.S_REJECTED
        self._topics = topics
        self._cursors = cursors
        self._ring = ring
        self._pending = answers
        self._limits = limits
        self._published = published
        self._rng = rng
        self._promised_bytes = 0
        self._closed: Closed | None = None
        # By connection: requests with their topic and their promise, in order.
        self._held_back: dict[object, deque[tuple[Request, str, int]]] = {}
        self._until_sample = 0  # requests before the next one whose latency is counted
        self._admitted_after = LatencyHistogram(segment, shard, Stage.ADMITTED)
        self._published_after = LatencyHistogram(segment, shard, Stage.PUBLISHED)
        self._tasks: set[asyncio.Task[None]] = set()

    def admit(self, head: Head, body_bytes: int | None) -> int:
        """Promises ring space; the token is its size. Raises ApiError 413, 429, 503."""
        needed = FRAME_BYTES + (
            self._limits.body_bytes_max
            if body_bytes is None or head.content_encoding
            else body_bytes
        )
        self._check_space(needed, body_bytes or 0)
        self._promised_bytes += needed
        return needed

    def take(self, request: Request, name: str, body_bytes: int) -> None:
        """``admit``, ``produce`` and ``release`` for a body that came with its head."""
        if (
            request.head.content_encoding
            or self._closed is not None
            or self._held_back
            or body_bytes > self._limits.body_bytes_max
            or self._ring.free_bytes - self._promised_bytes < FRAME_BYTES + body_bytes
        ):
            token = self.admit(request.head, body_bytes)
            try:
                self.produce(request, name, token)
            finally:
                self.release(token)
            return
        topic = self._topics.known(name)
        if topic is None or topic.tracker is not None:
            self.produce(request, name, FRAME_BYTES + body_bytes)
        else:
            try:
                self._publish(request, topic)
            except CursorNotCached:
                self._hold_back(request, name, FRAME_BYTES + body_bytes)

    def _check_space(self, needed: int, body_bytes: int) -> None:
        limit = self._limits.body_bytes_max
        if body_bytes > limit:
            raise too_large(
                f"the body has {body_bytes} bytes, the limit is {limit}; send smaller batches",
                limit_bytes=limit,
            )
        if self._closed is not None:
            raise self._refusal(self._closed)
        if self._ring.free_bytes - self._promised_bytes < needed:
            raise self._throttled()

    @property
    def free_bytes(self) -> int:
        """Space in the ring that is promised to nobody; 0 while producers are refused."""
        return 0 if self._closed is not None else self._ring.free_bytes - self._promised_bytes

    def read_gate(self) -> None:
        """Notes whether all requests are refused. Call it when the shard's bell was rung."""
        words = self._words
        closed_by = ClosedBy(words[at.G_GATE])
        if words[at.G_SUPERSEDED]:
            self._closed = SUPERSEDED
        elif words[at.G_DRAINING]:
            self._closed = STOPPING
        elif closed_by:
            self._closed = STORE_FAILING if closed_by & ClosedBy.STORE_FAILING else DISK_FULL
        else:
            self._closed = None

    def _refusal(self, closed: Closed) -> ApiError:
        self._words[self._rejected_at] += 1
        retry_after_s = self._rng.randint(
            *(RETRY_AFTER_S if closed.close else CLOSED_RETRY_AFTER_S)
        )
        return ApiError(
            503,
            closed.code,
            f"{closed.reason}; nothing of this request was stored",
            {"retry_after_ms": retry_after_s * 1000},
            retry_after_s=retry_after_s,
            close=closed.close,
        )

    def overdue(self, waiting: PendingRequest) -> ApiError:
        """The refusal of a request that was taken back at its deadline."""
        return self._overdue(waiting.timeout_ns // 1_000_000)

    def _overdue(self, timeout_ms: int) -> ApiError:
        self._words[self._rejected_at] += 1
        retry_after_s = self._rng.randint(*CLOSED_RETRY_AFTER_S)
        return ApiError(
            503,
            "ack_timeout",
            f"the request could not be stored within ack_timeout_ms = {timeout_ms}, and never will"
            f" be; send it again in {retry_after_s} s",
            {"ack_timeout_ms": timeout_ms, "retry_after_ms": retry_after_s * 1000},
            retry_after_s=retry_after_s,
        )

    def release(self, token: int) -> None:
        """Gives promised space back."""
        self._promised_bytes -= token

    def _throttled(self) -> ApiError:
        self._words[self._rejected_at] += 1
        retry_after_s = self._rng.randint(*RETRY_AFTER_S)
        return ApiError(
            429,
            "throttled",
            "the shard's ring is full of records that are not durable yet; nothing of this request"
            f" was stored, send it again in {retry_after_s} s",
            {"retry_after_ms": retry_after_s * 1000, "ring_bytes": self._ring.capacity},
            retry_after_s=retry_after_s,
        )

    def produce(self, request: Request, name: str, promised: int) -> None:
        """Takes a produce request with its whole body, for which ``promised`` bytes are free.

        A request that is held back gets a second promise, since the caller releases its own.
        """
        if self._held_back:
            held = self._held_back.get(request.connection)
            if held is not None:
                self._promised_bytes += promised
                held.append((request, name, promised))
                return
        topic = self._topics.known(name)
        if topic is not None:
            try:
                if topic.tracker is None:
                    self._publish(request, topic)
                    return
                if not self._topics.trackers.is_stale(topic.tracker):
                    self._publish_within_caps(request, topic, topic.tracker)
                    return
            except TopicFull as full:
                if full.idempotency_key is None:
                    raise
            except CursorNotCached:
                pass
        self._hold_back(request, name, promised)

    def _hold_back(self, request: Request, name: str, promised: int) -> None:
        self._promised_bytes += promised
        self._held_back[request.connection] = deque([(request, name, promised)])
        task = asyncio.get_running_loop().create_task(self._produce_held(request.connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _produce_held(self, connection: object) -> None:
        """Publishes the requests of a connection in order; creates topics as they are needed."""
        held = self._held_back[connection]
        while held:
            request, name, promised = held[0]
            try:
                timeout_ms = self._timeout_ms(request)
                left_ms = timeout_ms - (monotonic_ns() - request.arrival_ns) // 1_000_000
                async with asyncio.timeout(left_ms / 1000):
                    await self._publish_loaded(request, name)
            except TimeoutError:  # before publishing, which is the last step
                request.refuse(self._overdue(timeout_ms))
            except ApiError as error:
                request.refuse(error)
            except LedgerError as error:
                request.refuse(ledger_unavailable(error))
            except Exception as error:  # the requests after it must not wait forever
                log.error("a produce request failed because of a bug", exc_info=error)
                request.refuse(ApiError(500, "internal", "this is a bug in headgate; see its log",
                                        close=True))  # fmt: skip
            held.popleft()
            self.release(promised)
        del self._held_back[connection]

    async def _publish_loaded(self, request: Request, name: str) -> None:
        while True:
            topic = self._topics.known(name) or await self._topic_for(request, name)
            try:
                if topic.tracker is None:
                    self._publish(request, topic)
                else:
                    await self._publish_capped(request, topic, topic.tracker)
                return
            except CursorNotCached:
                asked = self._parse(request, wall_ms(), topic.topic.config).advance
                assert asked is not None
                await self._cursors.load(asked)  # again, if cursors change meanwhile

    def _timeout_ms(self, request: Request) -> int:
        try:
            asked = self._parse(request, wall_ms(), TopicConfig())
        except ApiError:  # it is refused in its turn
            return self._ack_timeout_ms
        return asked.ack_timeout_ms or self._ack_timeout_ms

    async def _topic_for(self, request: Request, name: str) -> TopicEntry:
        try:
            return await self._topics.entry(name)
        except ApiError:
            if request.head.query.get("create", "true") != "true":
                raise unknown_topic(name) from None
        # A request that will be refused must not leave a topic behind.
        config = TopicConfig()
        asked = self._parse(request, wall_ms(), config)
        bodies.payloads(asked, config.partitions, lambda: 0)
        if asked.advance is not None:
            await self._cursors.load(asked.advance)
        topic, _ = await self._topics.create(name, config)
        return topic

    async def _publish_capped(
        self, request: Request, topic: TopicEntry, tracker: CapTracker
    ) -> None:
        """For a tracker that must be loaded first, or a request that may be a repeat."""
        if self._topics.trackers.is_stale(tracker):
            await self._topics.load_tracker(tracker, request.arrival_ns)
        try:
            self._publish_within_caps(request, topic, tracker)
        except TopicFull as full:
            key = full.idempotency_key
            if key is None or not await self._topics.answered(topic.topic_id, key):
                raise
            # It was stored before: the commit gives the first answer again, and stores no record.
            self._publish(request, topic)

    def _publish_within_caps(
        self, request: Request, topic: TopicEntry, tracker: CapTracker
    ) -> None:
        """Raises TopicFull. Starts loading the tracker again if it is old."""
        if request.arrival_ns - tracker.loaded_ns > RELOAD_NS:
            tracker.loaded_ns = request.arrival_ns
            task = asyncio.get_running_loop().create_task(self._reload(tracker, request.arrival_ns))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._publish(request, topic, tracker)

    async def _reload(self, tracker: CapTracker, now_ns: int) -> None:
        try:
            await self._topics.load_tracker(tracker, now_ns)
        except LedgerError as error:
            log.warning("how full a topic is cannot be read: %s", error)

    def _parse(self, request: Request, arrival_ms: int, config: TopicConfig) -> Produce:
        head = request.head
        body = request.body
        if head.content_encoding:
            body = bodies.decompress(body, head.content_encoding, self._limits.body_bytes_max)
        asked = bodies.parse(head.content_type, head.query, body, self._limits, arrival_ms)
        if asked.disable_backpressure:
            raise ApiError(
                400,
                "not_supported_yet",
                "disable_backpressure is not supported yet; leave it out",
                {"field": "disable_backpressure"},
            )
        if asked.idempotency_key is None and (asked.dedupe or config.dedupe) == "body":
            key = bodies.body_key(head.content_type, head.query, body)
            asked = msgspec.structs.replace(asked, idempotency_key=key)
        return asked

    def _publish(
        self, request: Request, topic: TopicEntry, tracker: CapTracker | None = None
    ) -> None:
        began_ns = 0
        if self._until_sample:
            self._until_sample -= 1
        else:
            self._until_sample = SAMPLED - 1
            began_ns = monotonic_ns()
            self._admitted_after.observe(began_ns - request.arrival_ns)
        arrival_ms = wall_ms()
        asked = self._parse(request, arrival_ms, topic.topic.config)
        topic_id = topic.topic_id
        payloads = bodies.payloads(asked, topic.partitions, topic.take_partition)
        if tracker is not None:
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
        conditions = (
            encode_conditions(asked.idempotency_key, asked.expected_seq, advance)
            if asked.idempotency_key is not None
            or asked.expected_seq is not None
            or advance is not None
            else b""
        )
        try:
            position = self._ring.append(request.arrival_ns, arrival_ms, conditions, parts)
        except RingFull:
            raise self._throttled() from None
        except ValueError as error:
            raise too_large(f"{error}; send smaller batches") from error
        if topic.tracker is not None:
            topic.tracker.published(position, payloads)
        self._pending.add(
            _new(
                PendingRequest,
                (
                    position, request, topic, placed, len(request.body), asked.expected_seq,
                    1_000_000 * (asked.ack_timeout_ms or self._ack_timeout_ms), advance,
                ),
            )
        )  # fmt: skip
        if began_ns:
            self._published_after.observe(monotonic_ns() - began_ns)
        self._published()


def ledger_unavailable(error: LedgerError) -> ApiError:
    """503 ``ledger_unavailable``: nothing was stored."""
    return ApiError(503, "ledger_unavailable", str(error), retry_after_s=1)
