"""Admission: whether a produce request may come in, decided before its body is.

    asked -> promised: ring space is kept for the body on its way -> released, when the request is
    published or over
    asked -> refused: 429 without room, 503 while the gate is closed
    asked -> waits (``disable_backpressure``) -> promised or refused

Each body on its way and each request that is held back has a promise. Promises and the ring's
content together are never more than the ring, which bounds their memory too (daemon/memory.py).
Where the kernel leaves the daemon less memory than that, it also says how much all promises may
take (G_BODIES_BYTES); the only one on its way may take more.

A request that waits has no promise. Its connection reads nothing more, so its body stays with the
client, except what was received with the head. ``admission_queue.py`` says who is next. It waits
for ring space and memory only, and at most for its ``ack_timeout_ms``: what it waited is taken off
the time that it then has until its commit. A failing store, a full disk and a stop refuse it
immediately.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Final, NamedTuple

from daemon.governor.producers_gate import ClosedBy
from daemon.http.application import QUEUED, Queued
from daemon.http.head import TARGET_COPIES, Head
from daemon.http.request import Request
from daemon.intake.admission_queue import AdmissionQueue, QueuedRequest
from daemon.intake.refused import BY_CODE, RefusalReason
from daemon.schemas.errors import ApiError, too_large
from shards import layout as at
from shards.clock import monotonic_ns
from shards.latency import LatencyHistogram, Stage
from shards.ring import RingWriter
from shards.segment import Segment

FRAME_BYTES = 4096  # what admission adds to a body for frame heads and pads
# A longer target counts: it is kept, decoded, until the request is published. Others are within
# FRAME_BYTES, and within what the queue's requests take (QUEUED_MAX).
TARGET_BYTES = FRAME_BYTES // TARGET_COPIES
RETRY_AFTER_MS = (1_000, 3_000)  # a range, so that refused producers do not come back together
CLOSED_RETRY_AFTER_MS = (3_000, 10_000)  # an outage lasts longer than a ring takes to empty

# How many may wait in a shard: with 64 KiB each they are one ring. What was received of them is
# held: one read of the loop for each, at most 250 KiB and mostly much less, and half of a ring for
# all. A client that expects 100 Continue has sent nothing.
QUEUED_MAX = 1_024
QUEUED_SHARE = 2
# Requests that do not wait get a byte for each four bytes of those that do. At most an eighth of
# the ring is kept for them until they come back, which is when Retry-After says.
CREDIT_SHARE = 4
CREDIT_RING_SHARE = 8
ALL_BYTES = 1 << 62  # more than any ring has
ADMITTED_A_TURN = 64  # of the loop: 10 ms if each has 64 KiB of JSON


class Closed(NamedTuple):
    """Why no request is taken in. ``close``: this connection will take none again."""

    code: str
    reason: str
    close: bool = False


SUPERSEDED: Final = Closed(
    "superseded", "another daemon has taken this store over; send the request there", close=True
)
STOPPING: Final = Closed("shutting_down", "the daemon is stopping", close=True)
MEMORY_SHORT: Final = Closed(
    "memory_short", "the daemon is short of memory, until what it holds is stored"
)
STORE_FAILING: Final = Closed(
    "store_failing", "the store takes nothing now (GET /v0/status says why)"
)
DISK_FULL: Final = Closed(
    "disk_full", "the disk of the ledger or of the store is almost full: free some space"
)
# The first bit that is set says why.
CLOSED_BY = (
    (ClosedBy.STORE_FAILING, STORE_FAILING),
    (ClosedBy.LEDGER_DISK | ClosedBy.STORE_DISK, DISK_FULL),
    (ClosedBy.MEMORY, MEMORY_SHORT),
)


def _long_target_bytes(head: Head) -> int:
    return TARGET_COPIES * max(0, head.target_bytes - TARGET_BYTES)


class Admission:
    """The admission of one shard."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        ring: RingWriter,
        body_bytes_max: int,
        rng: random.Random,
    ) -> None:
        self._words = segment.words
        self._rejected_at = segment.layout.shard(shard) + at.S_REJECTED
        self._ring_full_at = segment.layout.shard(shard) + at.S_RING_FULL
        self._refused_at = segment.layout.shard(shard) + at.S_REFUSED
        self.admitted_after = LatencyHistogram(segment, shard, Stage.ADMITTED)
        self._ring = ring
        self._body_bytes_max = body_bytes_max
        self._rng = rng
        self._closed: Closed | None = None
        self._queue = AdmissionQueue(QUEUED_MAX, ring.capacity // QUEUED_SHARE)
        self._promised_bytes = 0
        # Of the ring's free bytes: promised, reserved for the first that waits, or, while the gate
        # is closed, all. What is free is compared with it once per request.
        self.taken_bytes = 0
        # What requests that do not wait may take before the first that waits.
        self._credit_bytes = 0
        self._bodies_bytes: int = ring.capacity  # what all promises may take
        self._admitting = False

    @property
    def promised_bytes(self) -> int:
        """Ring space that is promised to bodies on their way."""
        return self._promised_bytes

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def is_closed(self) -> bool:
        """Whether nothing is taken in, however much room there is."""
        return self._closed is not None

    @property
    def free_bytes(self) -> int:
        """Ring space for requests that do not wait; 0 or less: there is none."""
        return self._ring.free_bytes - self.taken_bytes

    def needed_bytes(self, head: Head, body_bytes: int | None) -> int:
        """What a request must be promised; ``body_bytes`` is None if the length is not known.
        Raises ApiError 413."""
        limit = self._body_bytes_max
        if body_bytes is not None and body_bytes > limit:
            raise too_large(
                f"the body has {body_bytes} bytes, the limit is {limit}; send smaller batches",
                limit_bytes=limit,
            )
        kept_bytes = FRAME_BYTES + _long_target_bytes(head)
        if body_bytes is None or head.content_encoding:
            return kept_bytes + limit
        return kept_bytes + body_bytes

    def promise(self, needed_bytes: int) -> bool:
        """Promises ring space, if it is free; ``release`` gives it back."""
        if self.free_bytes < needed_bytes or not self._has_memory(needed_bytes):
            return False
        self.promise_again(needed_bytes)
        return True

    def promise_of_credit(self, needed_bytes: int) -> bool:
        """Promises space to a request that does not wait, while others do: what these have left
        to those that do not wait."""
        if (
            self._closed is not None
            or needed_bytes > self._credit_bytes
            or needed_bytes > self._ring.free_bytes - self._promised_bytes
            or not self._has_memory(needed_bytes)
        ):
            return False
        self._credit_bytes -= needed_bytes
        self._reserve()
        self.promise_again(needed_bytes)
        return True

    def _has_memory(self, needed_bytes: int) -> bool:
        promised_bytes = self._promised_bytes
        wanted_bytes = promised_bytes + needed_bytes + self._queue.reserved_bytes
        return not promised_bytes or wanted_bytes <= self._bodies_bytes

    def promise_again(self, promised_bytes: int) -> None:
        """Adds a second promise for what has one, which the caller is going to release."""
        self._promised_bytes += promised_bytes
        self.taken_bytes += promised_bytes

    def release(self, promised_bytes: int) -> None:
        """Gives promised space back."""
        self._promised_bytes -= promised_bytes
        self.taken_bytes -= promised_bytes
        if self._queue:
            self.admit_queued()

    def read_gate(self) -> None:
        """Notes whether all requests are refused. Call it when the shard's bell was rung."""
        words = self._words
        self._bodies_bytes = words[at.G_BODIES_BYTES] or self._ring.capacity
        closed_by = ClosedBy(words[at.G_GATE])
        if words[at.G_SUPERSEDED]:
            self._closed = SUPERSEDED
        elif words[at.G_DRAINING]:
            self._closed = STOPPING
        elif closed_by:
            self._closed = next(why for bit, why in CLOSED_BY if closed_by & bit)
        else:
            self._closed = None
        self._reserve()
        if self._queue:
            self.admit_queued()

    # Waiting

    def enqueue(
        self, request: Request, needed_bytes: int, timeout_ms: int | None, body_bytes: int
    ) -> Queued:
        """Lets a request for which there is no room wait; ``timeout_ms`` is None if it does not
        want to. ``body_bytes`` were received of it. Its connection is told later whether it may
        come in.

        Raises ApiError 429 or 503 if it cannot wait, 413 if it could never be admitted.
        """
        if timeout_ms is None or self._closed not in (None, MEMORY_SHORT):
            raise self.refusal(needed_bytes)
        if needed_bytes > self._ring.capacity:
            raise too_large(
                f"the request needs {needed_bytes} bytes of the ring, which has"
                f" {self._ring.capacity}; send smaller batches",
                limit_bytes=self._ring.capacity,
            )
        queue = self._queue
        held_bytes = body_bytes + request.connection.unread_bytes + _long_target_bytes(request.head)
        if not queue.has_place(held_bytes):
            raise self._throttled(
                f"and {len(queue)} requests wait for space already, with {queue.held_bytes} bytes"
                f" that were received (the limits are {queue.count_max} and {queue.bytes_max});"
            )
        queued = QueuedRequest(request, needed_bytes, held_bytes, monotonic_ns(), timeout_ms)
        queue.add(queued)
        self._words[self._ring_full_at] += 1
        self._reserve()
        request.on_close = partial(self._lost, queued)
        request.connection.await_admission()
        return QUEUED

    def admit_queued(self) -> None:
        """Admits waiting requests that fit, in order; refuses those that can never be admitted."""
        if self._admitting:
            return  # one that was let in has given its promise back
        self._admitting = True
        try:
            if self._closed is None:
                self._admit_some()
            elif self._closed is not MEMORY_SHORT:
                for queued in self._queue.take_all():
                    self._refuse(queued, self.refusal())
        finally:
            self._admitting = False

    def _admit_some(self) -> None:
        for _ in range(ADMITTED_A_TURN):
            room_bytes = self._ring.free_bytes - self._promised_bytes
            if room_bytes < self._ring.capacity:
                room_bytes -= self._credit_bytes
            if self._promised_bytes:
                room_bytes = min(room_bytes, self._bodies_bytes - self._promised_bytes)
            queued = self._queue.take(room_bytes)
            self._reserve()
            if queued is None:
                return
            self._give_credit(queued.needed_bytes // CREDIT_SHARE)
            self.promise_again(queued.needed_bytes)
            request = queued.request
            now_ns = monotonic_ns()
            request.on_close = None
            request.waited_ns += now_ns - queued.since_ns
            self.admitted_after.observe(now_ns - queued.since_ns)
            request.arrival_ns = now_ns
            request.connection.admitted(request, queued.needed_bytes)
        asyncio.get_running_loop().call_soon(self.admit_queued)

    def end_overdue(self, now_ns: int) -> None:
        """Refuses those that have waited too long. Call it regularly."""
        if self._queue:
            for queued in self._queue.take_overdue(now_ns):
                self._refuse(queued, self.overdue(queued.timeout_ms))
            self.admit_queued()

    def _refuse(self, queued: QueuedRequest, error: ApiError) -> None:
        self._reserve()
        queued.request.on_close = None
        queued.request.connection.not_admitted(queued.request, error)

    def _lost(self, queued: QueuedRequest) -> None:
        self._queue.remove(queued)
        self._reserve()
        self.admit_queued()

    def _give_credit(self, count_bytes: int) -> None:
        limit = self._ring.capacity // CREDIT_RING_SHARE
        self._credit_bytes = min(limit, self._credit_bytes + count_bytes)
        self._reserve()

    def _reserve(self) -> None:
        if not self._queue:
            self._credit_bytes = 0
        reserved_bytes = self._queue.reserved_bytes + self._credit_bytes
        self.taken_bytes = self._promised_bytes + (
            reserved_bytes if self._closed is None else ALL_BYTES
        )

    # Refusals

    def refusal(self, needed_bytes: int = 0) -> ApiError:
        """Why a request cannot come in now."""
        closed = self._closed
        if closed is None and needed_bytes and self.free_bytes >= needed_bytes:
            closed = MEMORY_SHORT
        if closed is None:
            return self._throttled(
                "and the request does not wait for space (disable_backpressure=true in the query);"
            )
        self._count(BY_CODE[closed.code])
        retry_after_ms = self._rng.randint(
            *(RETRY_AFTER_MS if closed.close else CLOSED_RETRY_AFTER_MS)
        )
        return ApiError(
            503,
            closed.code,
            f"{closed.reason}; nothing of this request was stored",
            {"retry_after_ms": retry_after_ms},
            retry_after_s=-(-retry_after_ms // 1000),
            close=closed.close,
        )

    def ring_full(self) -> ApiError:
        """429 for a request that was promised space, but not that of a pad."""
        return self._throttled("to its end;")

    def _throttled(self, why: str) -> ApiError:
        self._count(RefusalReason.THROTTLED)
        self._words[self._ring_full_at] += 1
        retry_after_ms = self._rng.randint(*RETRY_AFTER_MS)
        return ApiError(
            429,
            "throttled",
            f"the shard's ring is full of records that are not durable yet, {why} nothing of this"
            f" request was stored, send it again in {retry_after_ms} ms",
            {
                "limit": "ring_bytes",
                "retry_after_ms": retry_after_ms,
                "ring_bytes": self._ring.capacity,
            },
            retry_after_s=-(-retry_after_ms // 1000),
        )

    def overdue(self, timeout_ms: int) -> ApiError:
        """503 for a request that was not stored by its deadline, and never will be."""
        self._count(RefusalReason.ACK_TIMEOUT)
        retry_after_ms = self._rng.randint(*CLOSED_RETRY_AFTER_MS)
        return ApiError(
            503,
            "ack_timeout",
            f"the request could not be stored within ack_timeout_ms = {timeout_ms}, and never will"
            f" be; send it again in {retry_after_ms} ms",
            {"ack_timeout_ms": timeout_ms, "retry_after_ms": retry_after_ms},
            retry_after_s=-(-retry_after_ms // 1000),
        )

    def _count(self, why: RefusalReason) -> None:
        self._words[self._rejected_at] += 1
        self._words[self._refused_at + why] += 1

    def check_invariants(self) -> None:
        """For tests."""
        self._queue.check_invariants()
        assert self._promised_bytes >= 0
        assert 0 <= self._credit_bytes <= self._ring.capacity // CREDIT_RING_SHARE
        assert self._queue or not self._credit_bytes
        taken_bytes = self.taken_bytes
        self._reserve()
        assert self.taken_bytes == taken_bytes
