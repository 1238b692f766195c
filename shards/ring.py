"""A shard's byte ring in shared memory: the queue of pending requests, then a cache of the newest.

Positions are monotonic byte counts; the byte of position p is ``p % capacity``. The words, in the
order in which they move for one request::

    reserved   raised first: bytes below ``reserved - capacity`` may be overwritten from now on
    (bytes)    the frame is written
    head       stored last: the request is *published*
    pulled     a cache of the highest leased end (see shards/leases.py), under the group's lock
    committed  the object and the ledger are durable; below it the ring is only a cache

    committed <= pulled <= head <= reserved <= committed + capacity

Requests that were not pulled before their deadline become *void*, a run of them in one store. The
owner does this under the lock of its group, so that a pull sees all of the run or nothing. If
nothing before a void run is leased, ``pulled`` and then ``committed`` move past it
(uploader/pipeline/voids.py).

A request is contiguous. The rest before the end of the ring is a pad frame; if not even a header
fits there, both sides skip it. Only the owner writes the bytes, ``reserved`` and ``head``. Any
process may read: it copies first and then checks ``reserved - position <= capacity``; a check of
``head`` would accept torn bytes.

The writer chains the parts of each partition (``shards/frame.py``). It remembers the last part of
CHAINED_MAX partitions at least; the chain of any other begins anew, and so do all chains when the
shard was restarted.

This module takes no lock and does not know leases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shards import frame
from shards import layout as at
from shards.barrier import fence
from shards.checksum import crc32c
from shards.frame import (
    BATCH_BYTES,
    FLAG_CONDITIONS,
    FLAG_PAD,
    FLAG_WAITS,
    HEADER_BYTES,
    PART_BYTES,
    VOID,
    VOID_BYTES_MAX,
    Part,
    RecordBatchHead,
)
from shards.segment import Segment

_PACK_HEADER = frame.HEADER.pack_into
_PACK_PART = frame.PART.pack_into
_PACK_BATCH = frame.BATCH.pack_into
_UNPACK_HEADER = frame.HEADER.unpack_from
_BODY_PACK = frame.HEADER_BODY.pack
_PACK_SINGLE = frame.SINGLE.pack_into
_SINGLE_BYTES = frame.SINGLE.size
_UNPACK_PART_COUNT = frame.PART_COUNT.unpack_from
_UNPACK_SINGLE_COUNT = frame.SINGLE_COUNT.unpack_from
_UNPACK_BATCH = frame.BATCH.unpack_from
_UNPACK_LINK = frame.CHAIN_LINK.unpack_from
_LINK_BYTES = PART_BYTES + BATCH_BYTES
_new = tuple.__new__  # a NamedTuple's constructor costs twice as much, for every request

# A commit has parts of about 2,000 partitions at most, so no chain breaks within one. Twice as many
# are kept at most.
CHAINED_MAX = 16_384
CHAIN_BYTES_MAX = 2 * CHAINED_MAX * 200


class RingFull(Exception):
    """There is no space for a request until earlier ones are committed."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"the ring has {free_bytes} free bytes, the request needs {needed_bytes}")
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class RecordBatchAt(NamedTuple):
    """A batch of a request in a ring; ``offset`` and ``length`` are bytes within the ring."""

    topic_id: int
    partition: int
    record_count: int
    offset: int
    length: int
    first_timestamp_ms: int
    last_timestamp_ms: int


class RequestAt(NamedTuple):
    """A request in a ring; its frame is bytes [position, end). No conditions: b""."""

    position: int
    end: int
    arrival_ns: int
    conditions: bytes
    batches: Sequence[RecordBatchAt]


class Link(NamedTuple):
    """A batch in a chain: the ``position`` of its request, and its bytes within the ring."""

    position: int
    offset: int
    length: int
    record_count: int


class Arrival(NamedTuple):
    """A published request as the decision about a pull sees it."""

    end: int
    arrival_ns: int
    waits: bool


class RingWriter:
    """The owner's side of a ring. One per shard, used by its loop only."""

    def __init__(self, segment: Segment, shard: int) -> None:
        self._words = segment.words
        self._data = segment.ring(shard)
        self._frame_words = self._data.cast("Q")
        base = segment.layout.shard(shard)
        self._reserved_at = base + at.S_RESERVED
        self._head_at = base + at.S_HEAD
        self._committed_at = base + at.S_COMMITTED
        self.capacity = segment.layout.ring_bytes
        self.head: int = self._words[self._head_at]
        self._reserved: int = self._words[self._reserved_at]
        # A successor continues at head: what was half written after it never happened. A word
        # never falls below what a reader may have seen, so reserved stays.
        self._request_id_at = base + at.S_REQUEST_ID
        self._request_id: int = self._words[self._request_id_at]
        # The last part of each partition, in two generations: when the newer one is full, it
        # becomes the older one, which is forgotten.
        self._last: dict[tuple[int, int], int] = {}
        self._older: dict[tuple[int, int], int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes that are not committed yet."""
        return self.head - int(self._words[self._committed_at])

    @property
    def free_bytes(self) -> int:
        """Bytes that may be reserved, including the pad of a request."""
        committed: int = self._words[self._committed_at]
        return self.capacity - self.head + committed

    def append(
        self, arrival_ns: int, arrival_ms: int, conditions: bytes, parts: Sequence[Part],
        flags: int = 0,
    ) -> int:  # fmt: skip
        """Reserves, writes and publishes a request; returns the position of its frame.

        Raises RingFull if nothing was written for lack of space, and ValueError for a request over
        half of the ring, which with its pad might not fit into an empty one.
        """
        if len(parts) == 1 and not conditions and not flags:
            topic_id, partition, count, payload, first_ms, last_ms, codec = parts[0]
            return self.append_one(
                arrival_ns, arrival_ms, topic_id, partition, count, payload, first_ms, last_ms,
                codec,
            )  # fmt: skip
        length = frame.request_length(conditions, parts)
        position = self._reserve(length)
        self._request_id = request_id = self._request_id + 1
        self._write_parts(position, arrival_ms, conditions, parts)
        flags |= FLAG_CONDITIONS if conditions else 0
        self._write_header(
            position, length, request_id, arrival_ns, len(parts), flags, len(conditions)
        )
        self._words[self._request_id_at] = request_id
        self.head = end = position + length
        if fence is not None:
            fence()
        self._words[self._head_at] = end
        return position

    def append_one(
        self, arrival_ns: int, arrival_ms: int, topic_id: int, partition: int, count: int,
        payload: bytes, first_ms: int, last_ms: int, codec: int,
    ) -> int:  # fmt: skip
        """``append`` of the usual request, one part and nothing else: the bytes that it would write
        head by head, in one step."""
        size = len(payload)
        length = (_SINGLE_BYTES + size + 7) & ~7
        position = self._reserve(length)
        offset = position % self.capacity
        key = (topic_id, partition)
        previous = self._last.get(key)
        if previous is None:
            previous = self._last_before(key)
        self._last[key] = position + HEADER_BYTES
        self._request_id = request_id = self._request_id + 1
        body = _BODY_PACK(request_id, arrival_ns, 1, 0, 0)
        end = position + length
        data = self._data
        _PACK_SINGLE(
            data, offset, length, crc32c(body, end & 0xFFFFFFFF), request_id,
            arrival_ns, 1, 0, 0, topic_id, partition, BATCH_BYTES + size, first_ms, last_ms,
            previous, HEADER_BYTES, 0, size, count, arrival_ms, crc32c(payload), codec, 0,
        )  # fmt: skip
        at_byte = offset + _SINGLE_BYTES
        data[at_byte : at_byte + size] = payload
        words = self._words
        words[self._request_id_at] = request_id
        self.head = end
        if fence is not None:
            fence()
        words[self._head_at] = end
        return position

    def _reserve(self, length: int) -> int:
        """Where a frame of this length begins: after ``head``, and a pad if it does not fit before
        the end of the ring. Raises what ``append`` does."""
        capacity = self.capacity
        if length > capacity // 2:
            raise ValueError(
                f"the request takes {length} bytes, more than half of the ring"
                f" ({capacity // 2} bytes)"
            )
        words = self._words
        head = self.head
        offset = head % capacity
        pad = capacity - offset if offset + length > capacity else 0
        end = head + pad + length
        if end > words[self._committed_at] + capacity:
            raise RingFull(pad + length, self.free_bytes)
        if end > self._reserved:
            words[self._reserved_at] = self._reserved = end
            if fence is not None:
                fence()
        if pad >= HEADER_BYTES:
            self._write_header(head, pad, 0, 0, 0, FLAG_PAD, 0)
        return head + pad

    def _write_parts(
        self, position: int, arrival_ms: int, conditions: bytes, parts: Sequence[Part]
    ) -> None:
        data = self._data
        frame_byte = position % self.capacity
        at_byte = frame_byte + HEADER_BYTES
        data[at_byte : at_byte + len(conditions)] = conditions
        at_byte += len(conditions)
        for topic_id, partition, count, payload, first_ms, last_ms, codec in parts:
            size = len(payload)
            start = at_byte - frame_byte
            key = (topic_id, partition)
            previous = self._last.get(key)
            if previous is None:
                previous = self._last_before(key)
            self._last[key] = position + start
            _PACK_PART(
                data, at_byte, topic_id, partition, BATCH_BYTES + size, first_ms, last_ms,
                previous, start, 0,
            )  # fmt: skip
            at_byte += PART_BYTES
            _PACK_BATCH(data, at_byte, size, count, arrival_ms, crc32c(payload), codec, 0)
            at_byte += BATCH_BYTES
            data[at_byte : at_byte + size] = payload
            at_byte += size

    def _last_before(self, key: tuple[int, int]) -> int:
        """The last part of a partition that the newer generation does not have, 0 if it is not
        known; makes room for its next one."""
        previous = self._older.get(key, 0)
        if len(self._last) >= CHAINED_MAX:
            self._older = self._last
            self._last = {}
        return previous

    def _write_header(
        self,
        position: int,
        length: int,
        request_id: int,
        arrival_ns: int,
        parts: int,
        flags: int,
        conditions_length: int,
    ) -> None:
        body = _BODY_PACK(request_id, arrival_ns, parts, flags, conditions_length)
        _PACK_HEADER(
            self._data,
            position % self.capacity,
            length,
            crc32c(body, (position + length) & 0xFFFFFFFF),
            request_id,
            arrival_ns,
            parts,
            flags,
            conditions_length,
        )

    def make_void(self, start: int, end: int) -> None:
        """Makes the published requests in [start, end) void, all in one store.

        ``start`` is the position of a request, ``end`` that of another one or ``head``. The caller
        holds the lock of the shard's group, and no lease covers any of the requests.
        """
        length = end - start
        if not HEADER_BYTES <= length <= VOID_BYTES_MAX:
            raise ValueError(
                f"a void run must have {HEADER_BYTES} to {VOID_BYTES_MAX} bytes, got {length}"
            )
        offset = start % self.capacity
        body = self._data[offset + 8 : offset + HEADER_BYTES]
        checksum = crc32c(body, end & 0xFFFFFFFF) ^ VOID
        self._frame_words[offset // 8] = length | checksum << 32


class RingReader:
    """The readers' side of a ring: walks published frames and copies batches."""

    def __init__(self, segment: Segment, shard: int) -> None:
        self.shard = shard
        self._words = segment.words
        self.data = segment.ring(shard)
        base = segment.layout.shard(shard)
        self._reserved_at = base + at.S_RESERVED
        self._head_at = base + at.S_HEAD
        self._committed_at = base + at.S_COMMITTED
        self.capacity = segment.layout.ring_bytes

    @property
    def head(self) -> int:
        """The end of what is published."""
        return int(self._words[self._head_at])

    @property
    def committed(self) -> int:
        """The end of what is durable."""
        return int(self._words[self._committed_at])

    def check_invariants(self) -> None:
        """Raises AssertionError unless the words are in order. Call it while the writer rests."""
        committed, head, reserved = self.committed, self.head, self._words[self._reserved_at]
        order = f"committed {committed}, head {head}, reserved {reserved} of {self.capacity}"
        assert committed <= head <= reserved <= committed + self.capacity, order
        assert committed % 8 == head % 8 == reserved % 8 == 0, order

    def copy_part(self, link: Link, start: int, end: int) -> bytes | None:
        """Bytes of the payload of a batch; None if they were overwritten."""
        begin = link.offset + BATCH_BYTES
        part = bytes(self.data[begin + start : begin + end])
        return part if self.still_there(link.position) else None

    def still_there(self, position: int) -> bool:
        """Whether bytes that were copied from ``position`` before this call are the request's."""
        if fence is not None:
            fence()
        return bool(self._words[self._reserved_at] - position <= self.capacity)

    def arrivals(self, start: int, end: int) -> Iterator[Arrival]:
        """When the requests in [start, end) arrived, in order; ends early as ``requests`` does."""
        if fence is not None:
            fence()  # ``end`` was read before
        position = start
        while position < end:
            left = self.capacity - position % self.capacity
            if left < HEADER_BYTES:
                position += left
                continue
            length, live = self._step(position, end)
            if not length:
                return
            position += length
            if live:
                offset = (position - length) % self.capacity
                _, _, _, arrival_ns, _, flags, _ = _UNPACK_HEADER(self.data, offset)
                yield Arrival(position, arrival_ns, bool(flags & FLAG_WAITS))

    def requests(self, start: int, end: int) -> Iterator[RequestAt]:
        """The requests whose frames are in [start, end), in order, without pads and voids.

        Ends early at a header whose CRC is wrong: this core has read it too early, or it was
        overwritten (see still_there). The caller tries again later.
        """
        if fence is not None:
            fence()  # ``end`` was read before
        data = self.data
        capacity = self.capacity
        position = start
        while position < end:
            offset = position % capacity
            left = capacity - offset
            if left >= _SINGLE_BYTES:
                # The usual request: one part, no conditions, recognized by its first words.
                (
                    length, checksum, _, arrival_ns, parts, flags, _,
                    topic_id, partition, size, first_ms, last_ms, _, count,
                ) = _UNPACK_SINGLE_COUNT(data, offset)  # fmt: skip
                following = position + length
                if (
                    parts == 1
                    and not flags
                    and length >= _SINGLE_BYTES
                    and following <= end
                    and crc32c(data[offset + 8 : offset + HEADER_BYTES], following & 0xFFFFFFFF)
                    == checksum
                ):
                    at_batch = offset + HEADER_BYTES + PART_BYTES
                    batch = (topic_id, partition, count, at_batch, size, first_ms, last_ms)
                    batches = [_new(RecordBatchAt, batch)]
                    yield _new(RequestAt, (position, following, arrival_ns, b"", batches))
                    position = following
                    continue
            if left < HEADER_BYTES:
                position += left
                continue
            length, live = self._step(position, end)
            if not length:
                return
            if not live:
                position += length
                continue
            _, _, _, arrival_ns, parts, flags, conditions_length = _UNPACK_HEADER(data, offset)
            at_byte = offset + HEADER_BYTES
            conditions = b""
            if flags & FLAG_CONDITIONS:
                conditions = bytes(data[at_byte : at_byte + conditions_length])
                at_byte += conditions_length
            batches = []
            for _ in range(parts):
                if at_byte > offset + length - PART_BYTES - BATCH_BYTES:
                    return  # overwritten since the header was read
                topic_id, partition, size, first_ms, last_ms, _, count = _UNPACK_PART_COUNT(
                    data, at_byte
                )
                at_byte += PART_BYTES
                batches.append(
                    _new(
                        RecordBatchAt,
                        (topic_id, partition, count, at_byte, size, first_ms, last_ms),
                    )
                )
                at_byte += size
            following = position + length
            yield _new(RequestAt, (position, following, arrival_ns, conditions, batches))
            position = following

    def part_position(self, position: int, batch: RecordBatchAt) -> int:
        """Where the part of a batch begins, for the request at ``position``."""
        return position + batch.offset - PART_BYTES - position % self.capacity

    def chain(
        self, topic_id: int, partition: int, first: int, last: int, record_count: int
    ) -> list[Link] | None:
        """The batches of a partition from the request at ``first`` up to the part at ``last``, in
        order. None if the chain between them breaks, or has other than ``record_count`` records:
        then a request that became void is in between.

        A part that was overwritten gives anything, but no request after the place of the part, so
        ``copy`` finds it out.
        """
        if fence is not None:
            fence()  # whatever named ``last`` was read before
        data, capacity = self.data, self.capacity
        links: list[Link] = []
        position = last
        while True:
            offset = position % capacity
            if offset + _LINK_BYTES > capacity:
                return None
            found_id, found, size, previous, start, _, count = _UNPACK_LINK(data, offset)
            if found_id != topic_id or found != partition:
                return None
            record_count -= count
            request = position - start
            links.append(_new(Link, (request, offset + PART_BYTES, size, count)))
            if request <= first or record_count <= 0:
                break
            if not first <= previous < position:
                return None
            position = previous
        if request != first or record_count:
            return None
        links.reverse()
        return links

    def void_end(self, start: int, end: int) -> int:
        """The end of the voids and pads that begin at ``start``; ``start`` if there are none."""
        position = start
        while position < end:
            left = self.capacity - position % self.capacity
            if left >= HEADER_BYTES:
                length, live = self._step(position, end)
                if live or not length:
                    break
                left = length
            position += left
        return position

    def _step(self, position: int, end: int) -> tuple[int, bool]:
        """The length of the frame at ``position`` (0 for none), and whether it is a request."""
        offset = position % self.capacity
        length, checksum, _, _, _, flags, _ = _UNPACK_HEADER(self.data, offset)
        body = self.data[offset + 8 : offset + HEADER_BYTES]
        right = crc32c(body, (position + length) & 0xFFFFFFFF)
        if length < HEADER_BYTES or position + length > end:
            return 0, False
        if checksum == right:
            return length, not flags & FLAG_PAD
        return (length, False) if checksum == right ^ VOID else (0, False)

    def batch(self, batch: RecordBatchAt) -> memoryview:
        """The bytes of a batch, in place; only of uncommitted requests, which stay."""
        return self.data[batch.offset : batch.offset + batch.length]

    def copy(self, links: Sequence[Link]) -> list[tuple[RecordBatchHead, bytes]] | None:
        """Copies of batches, each its head and payload; None if one was overwritten.

        ``links`` are in the order of their positions. Checksums are not verified.
        """
        data = self.data
        copies = []
        for _, offset, length, _ in links:
            size, count, arrival_ms, checksum, codec, _ = _UNPACK_BATCH(data, offset)
            payload = bytes(data[offset + BATCH_BYTES : offset + length])
            head = _new(RecordBatchHead, (0, size, count, arrival_ms, checksum, codec))
            copies.append((head, payload))
        return copies if not links or self.still_there(links[0].position) else None
