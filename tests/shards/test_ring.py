"""The ring: frames as vectors, histories against a model, real processes, a kill."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shards import frame
from shards import layout as at
from shards.clock import monotonic_ns
from shards.frame import (
    BATCH_BYTES,
    FLAG_WAITS,
    HEADER_BYTES,
    PART_BYTES,
    Part,
    encode_conditions,
)
from shards.layout import Layout
from shards.ring import Arrival, Link, RecordBatchAt, RequestAt, RingFull, RingReader, RingWriter
from shards.segment import Segment
from tests.shards.conftest import MakeSegment
from tests.shards.peer import request_parts, shape, started

CAPACITY = 4096
ONE_PART = HEADER_BYTES + PART_BYTES + BATCH_BYTES


def commit_to(segment: Segment, position: int, shard: int = 0) -> None:
    segment.words[segment.layout.shard(shard) + at.S_COMMITTED] = position


def part(payload: bytes, topic_id: int = 1) -> Part:
    return Part(topic_id, 2, 3, payload, 100, 200)


def contents(reader: RingReader, request: RequestAt) -> list[tuple[int, bytes]]:
    """(topic id, payload) of a request's batches, checksums verified."""
    found = []
    for batch in request.batches:
        extent = bytes(reader.batch(batch))
        (head,) = frame.batches(extent)
        assert head.record_count == batch.record_count
        found.append((batch.topic_id, frame.batch_payload(extent, head)))
    return found


def copied(reader: RingReader, position: int, batch: RecordBatchAt) -> bytes | None:
    """The payload of a batch of the request at ``position``; None if it was overwritten."""
    link = Link(position, batch.offset, batch.length, batch.record_count)
    copies = reader.copy([link])
    return None if copies is None else copies[0][1]


# Vectors


def test_a_request_of_one_part_has_the_documented_bytes(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    RingWriter(segment, 0).append(77, 88, b"", [Part(5, 6, 7, b"payload", 9, 10)])
    body = struct.pack("<QQHHI", 1, 77, 1, 0, 0)
    wanted = (
        struct.pack("<II", 112, crc32c(body, 112))
        + body
        + struct.pack("<QIIQQQII", 5, 6, 24 + 7, 9, 10, 0, 32, 0)
        + struct.pack("<IIQIHH", 7, 7, 88, crc32c(b"payload"), 1, 0)
        + b"payload\0"
    )
    assert bytes(segment.ring(0)[:112]) == wanted
    assert (HEADER_BYTES, PART_BYTES, BATCH_BYTES) == (32, 48, 24)


def test_a_request_with_conditions_and_two_parts_has_the_documented_bytes(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    writer.append(1, 1, b"", [part(b"x" * 8)])
    conditions = encode_conditions("key", 4)
    assert conditions == b"\x92\xa3key\x04"
    start = writer.append(77, 88, conditions, [part(b"first", 1), part(b"second", 2)])
    length = 32 + 6 + 2 * 72 + 5 + 6 + 7  # and padding to 8
    length -= length % 8
    body = struct.pack("<QQHHI", 2, 77, 2, 2, 6)
    wanted = (
        struct.pack("<II", length, crc32c(body, start + length))
        + body
        + conditions
        + struct.pack("<QIIQQQII", 1, 2, 29, 100, 200, 32, 38, 0)
        + struct.pack("<IIQIHH", 5, 3, 88, crc32c(b"first"), 1, 0)
        + b"first"
        + struct.pack("<QIIQQQII", 2, 2, 30, 100, 200, 0, 38 + 72 + 5, 0)
        + struct.pack("<IIQIHH", 6, 3, 88, crc32c(b"second"), 1, 0)
        + b"second"
    )
    assert start == 112
    assert bytes(segment.ring(0)[start : start + len(wanted)]) == wanted
    (_, request) = RingReader(segment, 0).requests(0, writer.head)
    assert (request.position, request.end) == (start, start + length)
    assert frame.decode_conditions(request.conditions) == frame.Conditions("key", 4)


def test_the_fast_path_for_one_part_writes_the_same_bytes(
    make_segment: MakeSegment,
) -> None:
    quick, general = (make_segment(Layout(1, CAPACITY)) for _ in range(2))
    RingWriter(quick, 0).append(5, 6, b"", [part(b"payload")])

    class NoParts(list[Part]):
        """One part that does not look like one to ``len``."""

        def __len__(self) -> int:
            return 2

    RingWriter(general, 0).append(5, 6, b"", NoParts([part(b"payload")]))
    ours, theirs = bytes(quick.ring(0)), bytes(general.ring(0))
    # Only the count of parts, and with it the checksum, tell them apart.
    assert (ours[:4], ours[8:24], ours[26:]) == (theirs[:4], theirs[8:24], theirs[26:])


@pytest.mark.parametrize("left", [HEADER_BYTES, HEADER_BYTES + 8, 1024])
def test_the_rest_before_a_wrap_becomes_a_pad_frame(make_segment: MakeSegment, left: int) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    writer.append(1, 1, b"", [part(bytes(2048 - ONE_PART))])
    writer.append(1, 1, b"", [part(bytes(2048 - left - ONE_PART))])
    commit_to(segment, 2048)
    position = writer.append(1, 1, b"", [part(bytes(2048 - ONE_PART))])
    assert position == CAPACITY
    pad_at = CAPACITY - left
    length, _, _, _, parts, flags, _ = frame.HEADER.unpack_from(segment.ring(0), pad_at)
    assert (length, parts, flags) == (left, 0, frame.FLAG_PAD)
    found = [r.position for r in RingReader(segment, 0).requests(2048, writer.head)]
    assert found == [2048, CAPACITY]


@pytest.mark.parametrize("left", [8, 16, 24])
def test_both_sides_skip_a_rest_smaller_than_a_header(make_segment: MakeSegment, left: int) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    writer.append(1, 1, b"", [part(bytes(2048 - ONE_PART))])
    writer.append(1, 1, b"", [part(bytes(2048 - left - ONE_PART))])
    segment.ring(0)[CAPACITY - left :] = b"\xff" * left
    commit_to(segment, 2048)
    assert writer.append(1, 1, b"", [part(b"behind")]) == CAPACITY
    assert bytes(segment.ring(0)[CAPACITY - left :]) == b"\xff" * left
    reader = RingReader(segment, 0)
    *_, last = reader.requests(2048, writer.head)
    assert contents(reader, last) == [(1, b"behind")]


def test_a_request_over_half_of_the_ring_is_refused_for_good(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    with pytest.raises(ValueError, match="takes 2056 bytes, more than half"):
        writer.append(1, 1, b"", [part(bytes(2048 - ONE_PART + 1))])
    assert writer.head == 0
    # Wherever the ring stands, half of it fits when all is committed.
    for _ in range(20):
        writer.append(1, 1, b"", [part(bytes(1000))])
        commit_to(segment, writer.head)
        writer.append(1, 1, b"", [part(bytes(2048 - ONE_PART))])
        commit_to(segment, writer.head)


def test_a_full_ring_names_needed_and_free_bytes_and_writes_nothing(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    writer.append(1, 1, b"", [part(bytes(2048 - ONE_PART))])
    writer.append(1, 1, b"", [part(bytes(1800 - ONE_PART))])
    before = bytes(segment.data)
    with pytest.raises(RingFull, match="248 free bytes, the request needs 616") as caught:
        writer.append(1, 1, b"", [part(bytes(200 - ONE_PART))] * 2)
    # 368 bytes of its own, and those left before the wrap as its pad.
    assert (caught.value.free_bytes, caught.value.needed_bytes) == (248, 368 + 248)
    assert bytes(segment.data) == before


# What must not be taken for a request


def test_a_header_of_an_earlier_lap_is_not_accepted(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    reader = RingReader(segment, 0)
    for lap in range(1, 6):
        for _ in range(4):
            writer.append(1, 1, b"", [part(bytes(1024 - ONE_PART))])
            commit_to(segment, writer.head)
        start = lap * CAPACITY
        assert writer.head == start
        # The frames of this lap stand where those of the next will begin, whole.
        assert [r.position for r in reader.requests(start - CAPACITY, start)] == [
            start - CAPACITY + 1024 * index for index in range(4)
        ]
        assert list(reader.requests(start, start + CAPACITY)) == []
        assert list(reader.arrivals(start, start + CAPACITY)) == []


@pytest.mark.parametrize("byte", range(0, HEADER_BYTES, 3))
def test_a_torn_header_ends_the_walk(make_segment: MakeSegment, byte: int) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    first = writer.append(1, 1, b"", [part(b"first")])
    second = writer.append(1, 1, b"", [part(b"second")])
    segment.ring(0)[second + byte] ^= 1
    reader = RingReader(segment, 0)
    assert [r.position for r in reader.requests(0, writer.head)] == [first]


def test_a_frame_that_ends_after_the_range_is_not_read(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    writer.append(1, 1, b"", [part(b"first")])
    assert list(RingReader(segment, 0).requests(0, writer.head - 8)) == []


def test_parts_overwritten_after_their_header_was_read_end_the_walk(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    writer.append(1, 1, b"", [part(b"first"), part(b"second"), part(b"third")])
    segment.ring(0)[HEADER_BYTES + 12 : HEADER_BYTES + 16] = b"\xff\xff\xff\xff"
    assert list(RingReader(segment, 0).requests(0, writer.head)) == []


def test_a_copy_counts_only_while_the_ring_has_not_reserved_its_bytes_again(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    reader = RingReader(segment, 0)
    first = writer.append(1, 1, b"", [part(bytes(1024 - ONE_PART))])
    (request,) = reader.requests(0, writer.head)
    for _ in range(3):
        writer.append(1, 1, b"", [part(bytes(1024 - ONE_PART))])
    commit_to(segment, writer.head)
    assert copied(reader, first, request.batches[0]) is not None
    # ``reserved`` is raised before the first byte changes, long before ``head`` is.
    segment.words[segment.layout.shard(0) + at.S_RESERVED] += 8
    assert not reader.still_there(first)
    assert copied(reader, first, request.batches[0]) is None
    assert reader.still_there(1024)


# Voids


@pytest.mark.parametrize("conditions", [b"", encode_conditions("key", 5)])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 3), (2, 4), (0, 4)])
def test_readers_skip_a_void_run_and_see_what_is_around_it(
    make_segment: MakeSegment, conditions: bytes, first: int, last: int
) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer, reader = RingWriter(segment, 0), RingReader(segment, 0)
    # Over the ring's end, so that a pad, or bytes too few for one, stand in the middle.
    start = writer.append(1, 1, b"", [part(bytes(1700))])
    commit_to(segment, writer.head)
    start = writer.append(1, 1, b"", [part(bytes(1500))])
    at_positions = []
    commit_to(segment, start)
    for number in range(5):
        parts = (
            [part(b"%d" % number * 100), part(b"more")] if number % 2 else [part(b"%d" % number)]
        )
        at_positions.append(writer.append(number, 1, conditions, parts))
    assert at_positions[-1] // CAPACITY > at_positions[0] // CAPACITY
    before = list(reader.requests(at_positions[0], writer.head))
    end = [*at_positions[1:], writer.head][last]
    writer.make_void(at_positions[first], end)
    left = [request for request in before if not at_positions[first] <= request.position < end]
    assert list(reader.requests(at_positions[0], writer.head)) == left
    assert list(reader.requests(start, writer.head))[1:] == left
    assert reader.void_end(at_positions[first], writer.head) == end
    assert reader.void_end(start, writer.head) == start
    assert list(reader.arrivals(at_positions[0], writer.head)) == [
        Arrival(request.end, request.arrival_ns, False) for request in left
    ]
    reader.check_invariants()


def test_a_request_becomes_void_by_one_store_of_a_word(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, CAPACITY))
    writer = RingWriter(segment, 0)
    position = writer.append(1, 1, b"", [part(b"payload")])
    ring = segment.ring(0)
    before = bytes(ring)
    writer.make_void(position, writer.head)
    after = bytes(ring)
    changed = [at_byte for at_byte in range(CAPACITY) if before[at_byte] != after[at_byte]]
    assert changed and {at_byte // 8 for at_byte in changed} == {position // 8}
    ring.release()


def test_the_length_of_a_void_run_fits_into_a_header(make_segment: MakeSegment) -> None:
    writer = RingWriter(make_segment(Layout(1, CAPACITY)), 0)
    for length in (0, frame.VOID_BYTES_MAX + 8):
        with pytest.raises(ValueError, match="void run must have"):
            writer.make_void(0, length)


# Histories


class Stored(NamedTuple):
    position: int
    end: int
    arrival_ns: int
    conditions: bytes
    parts: Sequence[Part]
    waits: bool


class RingMachine(RuleBasedStateMachine):
    """A ring against a list of what was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = Segment.create(Layout(2, CAPACITY))
        self.writer = RingWriter(self.segment, 1)
        self.reader = RingReader(self.segment, 1)
        self.stored: list[Stored] = []
        self.committed = 0
        self.head = 0
        self.reserved = 0
        self.number = 0
        self.chained_from = 0

    def teardown(self) -> None:
        del self.writer, self.reader
        self.segment.close()

    @initialize(laps=st.integers(0, 3), offset=st.integers(0, CAPACITY // 8 - 1))
    def start_somewhere(self, laps: int, offset: int) -> None:
        """An empty ring whose words stand anywhere."""
        self.head = self.reserved = self.committed = laps * CAPACITY + offset * 8
        base = self.segment.layout.shard(1)
        for word in (at.S_RESERVED, at.S_HEAD, at.S_COMMITTED):
            self.segment.words[base + word] = self.head
        self.writer = RingWriter(self.segment, 1)

    @rule(
        sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4),
        key=st.sampled_from([None, None, "k", "key" * 9]),
        waits=st.booleans(),
    )
    def append(self, sizes: list[int], key: str | None, *, waits: bool) -> None:
        self.number += 1
        parts = [
            Part(self.number % 3, index, 1 + index, bytes([self.number % 256]) * size, 1, 2)
            for index, size in enumerate(sizes)
        ]
        conditions = encode_conditions(key, None)
        bare = HEADER_BYTES + len(conditions) + sum(PART_BYTES + BATCH_BYTES + s for s in sizes)
        length = -(-bare // 8) * 8
        left = CAPACITY - self.head % CAPACITY
        pad = left if length > left else 0
        end = self.head + pad + length
        if length > CAPACITY // 2:
            with pytest.raises(ValueError, match="more than half of the ring"):
                self.writer.append(self.number, 1, conditions, parts)
        elif end > self.committed + CAPACITY:
            with pytest.raises(RingFull):
                self.writer.append(self.number, 1, conditions, parts)
        else:
            flags = FLAG_WAITS if waits else 0
            position = self.writer.append(self.number, 1, conditions, parts, flags)
            assert position == self.head + pad
            self.stored.append(Stored(position, end, self.number, conditions, parts, waits))
            self.head = end
            self.reserved = max(self.reserved, end)

    def pending(self) -> list[Stored]:
        return [item for item in self.stored if item.position >= self.committed]

    @precondition(lambda self: bool(self.pending()))
    @rule(count=st.integers(1, 4))
    def commit(self, count: int) -> None:
        self.committed = self.pending()[:count][-1].end
        commit_to(self.segment, self.committed, shard=1)

    @rule(half_written=st.binary(max_size=300))
    def restart(self, half_written: bytes) -> None:
        """The shard dies while it writes a request; its successor continues at head."""
        free = self.committed + CAPACITY - self.head
        left = min(free, CAPACITY - self.head % CAPACITY)
        half_written = half_written[: left - left % 8]
        self.reserved = max(self.reserved, self.head + -(-len(half_written) // 8) * 8)
        self.segment.words[self.segment.layout.shard(1) + at.S_RESERVED] = self.reserved
        offset = self.head % CAPACITY
        self.segment.ring(1)[offset : offset + len(half_written)] = half_written
        self.writer = RingWriter(self.segment, 1)
        self.chained_from = self.head

    @invariant()
    def a_chain_has_all_parts_of_a_partition_since_the_writer_began(self) -> None:
        chained = [
            (stored, batch)
            for stored in self.stored[-20:]
            if stored.position >= self.chained_from and self.reader.still_there(stored.position)
            for (request,) in [list(self.reader.requests(stored.position, stored.end))]
            for batch in request.batches
            if (batch.topic_id, batch.partition) == (0, 1)
        ]
        if not chained:
            return
        newest, batch = chained[-1]
        last = self.reader.part_position(newest.position, batch)
        for first in range(len(chained)):
            wanted = [Link(s.position, b.offset, b.length, b.record_count)
                      for s, b in chained[first:]]  # fmt: skip
            count = sum(link.record_count for link in wanted)
            start = wanted[0].position
            assert self.reader.chain(0, 1, start, last, count) == wanted
            assert self.reader.chain(0, 1, start, last, count - 1) is None
            assert self.reader.chain(0, 1, start, last, count + 1) is None
            assert self.reader.chain(0, 1, start - 8, last, count) is None
            assert self.reader.chain(0, 2, start, last, count) is None

    @invariant()
    def words_stand_in_their_order(self) -> None:
        self.reader.check_invariants()
        assert (self.reader.committed, self.reader.head) == (self.committed, self.head)
        assert self.writer.used_bytes == self.head - self.committed
        assert self.writer.free_bytes == CAPACITY - self.writer.used_bytes

    @invariant()
    def all_that_is_pending_is_found_in_order_and_nothing_else(self) -> None:
        pending = self.pending()
        found = list(self.reader.requests(self.committed, self.head))
        assert [(r.position, r.end, r.arrival_ns, r.conditions) for r in found] == [
            (s.position, s.end, s.arrival_ns, s.conditions) for s in pending
        ]
        for request, stored in zip(found, pending, strict=True):
            assert contents(self.reader, request) == [(p.topic_id, p.payload) for p in stored.parts]
        arrivals = list(self.reader.arrivals(self.committed, self.head))
        assert arrivals == [Arrival(s.end, s.arrival_ns, s.waits) for s in pending]

    @invariant()
    def what_is_committed_is_read_hot_until_its_bytes_are_reserved_again(self) -> None:
        for stored in self.stored[-12:]:
            still = self.reserved - stored.position <= CAPACITY
            assert self.reader.still_there(stored.position) == still
            if still:
                (request,) = self.reader.requests(stored.position, stored.end)
                copies = [copied(self.reader, stored.position, b) for b in request.batches]
                assert copies == [part.payload for part in stored.parts]

    @invariant()
    def the_other_shard_is_untouched(self) -> None:
        assert RingReader(self.segment, 0).head == 0
        assert not any(self.segment.ring(0)[:64])


TestRing = RingMachine.TestCase


# Processes


def test_copies_that_count_have_the_right_bytes_while_another_process_writes(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, 256 << 10))
    reader = RingReader(segment, 0)
    good = lost = 0
    cursor = 0
    behind: deque[RequestAt] = deque()  # walked, to be copied when the writer is close
    gives_up_ns = monotonic_ns() + 600 * 10**9  # ends a hang
    with started("write_ring", segment.fd, shape(segment), fds=[segment.fd]):
        while good < 1_000 or lost < 100:
            assert monotonic_ns() < gives_up_ns, f"{good} good and {lost} lost copies"
            for request in reader.requests(cursor, reader.head):
                if not reader.still_there(request.position):
                    break
                behind.append(request)
                cursor = request.end
            else:
                if not behind:
                    cursor = reader.head
            while behind and reader.head - behind[0].position > 0.9 * reader.capacity:
                request = behind.popleft()
                for batch in request.batches:
                    payload = copied(reader, request.position, batch)
                    if payload is None:
                        lost += 1
                        continue
                    good += 1
                    wanted = request_parts(batch.topic_id)[batch.partition]
                    assert payload == wanted.payload
            if not reader.still_there(cursor):
                cursor = reader.head


def test_the_successor_of_a_writer_that_died_before_publishing_continues_at_head(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, CAPACITY * 4))
    with started("die_in_append", segment.fd, shape(segment), fds=[segment.fd]) as peer:
        assert peer.wait() == -9
    reader = RingReader(segment, 0)
    head = frame.request_length(b"", request_parts(1))
    assert reader.head == head
    reserved = segment.words[segment.layout.shard(0) + at.S_RESERVED]
    assert reserved == head + frame.request_length(b"", request_parts(2))
    successor = RingWriter(segment, 0)
    assert successor.append(3, 3, b"", [part(b"after")]) == head
    assert segment.words[segment.layout.shard(0) + at.S_RESERVED] == reserved
    one, after = reader.requests(0, reader.head)
    assert [batch.topic_id for batch in one.batches] == [1, 1]
    assert contents(reader, after) == [(1, b"after")]
    # Request ids continue as well: that of the half-written one was never visible.
    assert segment.words[segment.layout.shard(0) + at.S_REQUEST_ID] == 2
    reader.check_invariants()
