"""Frames of routers: into the ring, among the requests of producers.

A copy is published as a request whose conditions advance the router's cursor, and which waits for a
commit window (``uploader/groups/upload_turn.py``). It waits in ``pending.py`` among the requests of
producers, since offsets are counted in the order of the ring. Nobody is answered: the router learns
whether it was stored.

Bounds: at most a quarter of the ring holds copies that are not committed, so that three quarters
stay for producers; a larger frame, of one record, is taken if no other is on its way. What was
promised to bodies on their way is never taken. Limits of requests on records do not apply. While
producers are refused, because the store fails, a disk is full or the daemon stops, so are copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from daemon.intake.admission import Admission
from daemon.intake.caps import RELOAD_NS, TopicFull
from daemon.intake.pending import NEVER, Callback, PendingRequest, PendingRequests
from daemon.intake.topic_cache import TopicCache, TopicEntry
from delivery.routers.outbox import DestinationFull, FrameTooLong, RingShareUsed
from ledger.types import Advance, Topic
from shards.clock import monotonic_ns, wall_ms
from shards.frame import FLAG_WAITS, Part, encode_conditions, request_length
from shards.ring import RingFull, RingWriter

RING_SHARE = 4


class Copies:
    """The outbox of one shard's routers (``delivery/routers/outbox.py``)."""

    def __init__(
        self,
        topics: TopicCache,
        ring: RingWriter,
        pending: PendingRequests,
        admission: Admission,
        published: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._ring = ring
        self._pending = pending
        self._admission = admission
        self._published = published
        self._in_flight_bytes = 0

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of copies that are not committed."""
        return self._in_flight_bytes

    def room_bytes(self) -> int:
        """Bytes that copies may take now."""
        free = self._admission.free_bytes
        if free <= 0:
            return 0
        if not self._in_flight_bytes:
            return free
        return max(0, min(free, self._ring.capacity // RING_SHARE - self._in_flight_bytes))

    def knows(self, dest: Topic) -> bool:
        """Whether the destination's caps can be checked, or it has none."""
        tracker = self._topics.trackers.tracker(dest)
        return tracker is None or not (
            self._topics.trackers.is_stale(tracker)
            or monotonic_ns() - tracker.loaded_ns > RELOAD_NS
        )

    async def learn(self, dest: Topic) -> None:
        """Loads how full the destination is. Raises LedgerError."""
        tracker = self._topics.trackers.tracker(dest)
        if tracker is not None:
            await self._topics.load_tracker(tracker, monotonic_ns())

    def append(
        self,
        dest: Topic,
        parts: Sequence[Part],
        advance: Advance | None,
        settled: Callable[[bool], None],
    ) -> None:
        """Publishes a frame. Raises RingShareUsed, DestinationFull and FrameTooLong."""
        conditions = encode_conditions(None, None, advance)
        length = request_length(conditions, parts)
        if length > self._ring.capacity // RING_SHARE:
            records = sum(part.record_count for part in parts)
            if records > 1:
                raise FrameTooLong(f"the copies of {records} records take {length} bytes")
        if length > self.room_bytes():
            raise RingShareUsed(length)
        tracker = self._topics.trackers.tracker(dest)
        # A part is a payload with the topic's id before it.
        payloads = [part[1:6] for part in parts]
        if tracker is not None:
            try:
                tracker.check(payloads)
            except TopicFull as full:
                raise DestinationFull(full.message) from None
        arrival_ns = monotonic_ns()
        try:
            position = self._ring.append(arrival_ns, wall_ms(), conditions, parts, FLAG_WAITS)
        except RingFull as full:  # of a pad
            raise RingShareUsed(full.needed_bytes) from None
        if tracker is not None:
            tracker.published(position, payloads)
        self._in_flight_bytes += length

        def done(first_offset: int) -> None:
            self._in_flight_bytes -= length
            settled(first_offset > 0)

        self._pending.add(
            PendingRequest(
                position, Callback(arrival_ns, done), TopicEntry(dest, tracker),
                tuple((part.partition, part.record_count) for part in parts), 0, None, NEVER,
                advance,
            )
        )  # fmt: skip
        self._published()
