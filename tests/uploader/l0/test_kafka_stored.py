"""Batches of Kafka as they are stored: only those that the decoder takes, and read as if it had."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from tests.uploader.l0_samples import kafka_records, unhurried
from uploader.l0 import kafka, kafka_stored
from uploader.l0.kafka import (
    HEAD,
    HEAD_BYTES,
    BatchError,
    BatchLimits,
    BatchRows,
    KafkaRecord,
    encode_batch,
    read_head,
    records_of,
    seal,
)
from uploader.l0.kafka_stored import (
    Times,
    at_offset,
    cuts,
    piece,
    plain_times,
    uncompressed,
    without_producer,
)
from uploader.l0.records import TIMESTAMP_MS_MAX, Record, RecordsError

LIMITS = BatchLimits(records=20_000, record_bytes=100_000, batch_bytes=1_000_000)
USUAL = st.builds(
    KafkaRecord, st.integers(0, 200), st.none() | st.binary(max_size=70),
    st.integers(40, 140).map(bytes), st.just(()),
)  # fmt: skip
# Numbers of a batch have two bytes from the 64th record on.
MANY = st.tuples(
    st.lists(kafka_records | USUAL, min_size=1, max_size=9), st.sampled_from([1, 1, 1, 40])
).map(lambda drawn: drawn[0] * drawn[1])


def batch(*found: KafkaRecord) -> bytes:
    return encode_batch(0, list(enumerate(found)))


def resealed(made: bytes, payload: bytes) -> bytes:
    """A batch with other bytes after its head, and their checksum."""
    _, _, _, _, _, attributes, last, first_ts, last_ts, *producer, count = HEAD.unpack_from(made)
    p, epoch, sequence = producer
    return seal(0, attributes, last, (first_ts, last_ts), (p, epoch, sequence), count, payload)


def times_of(made: bytes, limits: BatchLimits = LIMITS) -> Times | None:
    """Its times if it is plain; the head must be one."""
    head = read_head(made, limits)
    found = list(plain_times(made, head, limits)) if head.is_usual else []
    assert found[:-1] == [None] * (len(found) - 1)
    return found[-1] if found else None


def by_decoder(made: bytes, limits: BatchLimits = LIMITS) -> list[Record]:
    """What is stored of a batch by HTTP's codec. Raises BatchError."""
    rows = BatchRows(limits, as_json=False)
    for some in records_of(made[HEAD_BYTES:], read_head(made, limits), limits.record_bytes):
        rows.add(some)
    return [Record(*row) for row in rows.rows]


def read(made: bytes) -> list[Record]:
    return kafka_stored.decode(made, read_head(made, LIMITS).records, Record)


@given(MANY)
def test_a_stored_batch_is_read_as_the_records_that_it_would_have_been(
    found: list[KafkaRecord],
) -> None:
    made = batch(*found)
    times = [each.ts for each in found]
    assert times_of(made) == (min(times), max(times))  # type: ignore[type-var]
    assert read(made) == by_decoder(made)
    assert kafka_stored.problem(made) == ""


@unhurried
@given(MANY, st.data())
def test_whatever_is_stored_as_it_came_would_have_been_taken(
    found: list[KafkaRecord], data: st.DataObject
) -> None:
    """Batches of which some bytes are others, and limits that are near what they hold."""
    made = batch(*found)
    payload = bytearray(made[HEAD_BYTES:])
    heads = st.integers(0, len(payload) - 1) | st.integers(
        max(0, len(payload) - 300), len(payload) - 1
    )
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(heads)
        payload[place] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80]))
    sizes = st.sampled_from([(1_000_000, 1_000_000)]) | st.tuples(*[st.integers(60, 900)] * 2)
    limits = BatchLimits(400, *data.draw(sizes))
    changed = resealed(made, bytes(payload))
    times = times_of(changed, limits)
    if times is None:
        return
    taken = by_decoder(changed, limits)
    assert read(changed) == taken
    assert times == (min(r.ts for r in taken), max(r.ts for r in taken))  # type: ignore[type-var]


def test_numbers_of_all_widths_are_read() -> None:
    sizes = (0, 57, 58, 63, 64, 8_184, 8_185, 8_192, 70_000)
    wide = [KafkaRecord(5 + 1_000 * n, b"k" * (n % 3) or None, bytes(n)) for n in sizes]
    late = KafkaRecord(5 + 20_000, bytes(70), b"v" * 70, (("n" * 70, bytes(70)),))
    made = batch(*wide, late, KafkaRecord(1, None, None), *[KafkaRecord(9, None, b"v")] * 9_000)
    assert times_of(made) == (1, 5 + 1_000 * 70_000)
    assert read(made) == by_decoder(made)
    found = list(plain_times(made, read_head(made, LIMITS), LIMITS))
    assert found[:-1] == [None] * 4, "the loop serves others after each 2,048 records"


@pytest.mark.parametrize("key", [None, b"key"])
def test_no_wrong_byte_of_a_usual_record_is_taken(key: bytes | None) -> None:
    record = KafkaRecord(5, key, bytes(80))
    made = batch(*[record] * 70)
    places = cuts(made, 70, 1)
    taken = 0
    for index in (0, 1, 63, 64, 69):
        start, end = places[index], places[index + 1]
        for place in (*range(start, start + 14), end - 1):
            was = made[place]
            for byte in {0, 1, 2, 0x7F, 0x80, 0x81, 0xFF, was ^ 1, was + 2 & 0xFF, was - 2 & 0xFF}:
                payload = bytearray(made[HEAD_BYTES:])
                payload[place - HEAD_BYTES] = byte
                changed = resealed(made, bytes(payload))
                times = times_of(changed)
                if times is not None:
                    taken += 1
                    ts = [each.ts or 0 for each in by_decoder(changed)]
                    assert times == (min(ts), max(ts))
                    assert read(changed) == by_decoder(changed)
    assert taken > 100, "other times and values"


FEW = (("h", b"v"),) * 8
ONE = batch(KafkaRecord(5, b"k", b"v"))
NOT_PLAIN = {
    "another base offset": encode_batch(7, [(7, KafkaRecord(5, b"k", b"v"))]),
    "times of the broker": seal(0, 0x08, 0, (5, 5), (-1, -1, -1), 1, ONE[HEAD_BYTES:]),
    "no time": batch(KafkaRecord(-1, b"k", b"v")),
    "many headers": batch(KafkaRecord(5, b"k", b"v", (*FEW, *FEW))),
    "a large record": batch(KafkaRecord(5, None, bytes(90_000))),
    "headers that may be large as JSON": batch(KafkaRecord(5, None, bytes(20_000), FEW)),
    "more of these": batch(*[KafkaRecord(5, None, bytes(9_000), FEW)] * 20),
    "a number in more bytes": resealed(ONE, b"\x12" + ONE[HEAD_BYTES + 1 : HEAD_BYTES + 3]
                                       + b"\x80\0" + ONE[HEAD_BYTES + 4 :]),
}  # fmt: skip


@pytest.mark.parametrize("made", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_decoder(made: bytes) -> None:
    assert times_of(ONE) == (5, 5)
    assert times_of(batch(KafkaRecord(5, b"k", b"v", FEW))) == (5, 5)
    assert times_of(made) is None
    assert by_decoder(made), "which takes it"


def test_a_time_that_no_reader_takes_is_left_to_the_decoder() -> None:
    for ts in (TIMESTAMP_MS_MAX + 1, -2):
        made = batch(KafkaRecord(5, None, b""), KafkaRecord(ts, None, b""))
        assert times_of(made) is None
        with pytest.raises(BatchError):
            by_decoder(made)


# Reading


@given(MANY, st.integers(1, 90))
def test_pieces_hold_the_records_of_the_whole(found: list[KafkaRecord], each: int) -> None:
    made = batch(*found)
    whole = read(made)
    places = cuts(made, len(found), each)
    got: list[Record] = []
    for number, (start, end) in enumerate(pairwise(places)):
        count = min(each, len(found) - number * each)
        some = piece(made[:HEAD_BYTES], number * each, count, made[start:end])
        got += kafka_stored.decode(memoryview(some), count, Record)
    assert got == whole


@unhurried
@given(MANY, st.data())
def test_no_bytes_of_an_object_do_more_than_be_refused(
    found: list[KafkaRecord], data: st.DataObject
) -> None:
    made = bytearray(batch(*found))
    for _ in range(data.draw(st.integers(1, 4))):
        made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    for count in (len(found), data.draw(st.integers(0, 2**32))):
        for payload in (bytes(made), bytes(made[: data.draw(st.integers(0, len(made)))])):
            try:
                assert len(kafka_stored.decode(payload, count, Record)) == count
            except RecordsError:
                pass
            try:
                cuts(payload, min(count, 100), 3)
            except RecordsError:
                pass


def test_a_head_that_promises_too_much_takes_no_memory() -> None:
    huge = (1 << 31) - 1
    made = seal(0, 0, huge - 1, (5, 5), (-1, -1, -1), huge, ONE[HEAD_BYTES:])
    tracemalloc.start()
    try:
        with pytest.raises(RecordsError):
            kafka_stored.decode(made, huge, Record)
        with pytest.raises(RecordsError):
            cuts(made, huge, 512)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_a_client_of_kafka_would_find_wrong_is_named() -> None:
    assert "checksum" in kafka_stored.problem(ONE[:-1] + b"\xff")
    assert "base offset 7" in kafka_stored.problem(encode_batch(7, [(7, KafkaRecord(5, b"", b""))]))


# For clients of Kafka


@given(MANY, st.integers(0, 2**62))
def test_a_client_reads_the_bytes_as_they_came_at_their_offset(
    found: list[KafkaRecord], offset: int
) -> None:
    sent = batch(*found)
    made = at_offset(sent, offset)
    assert made[16:] == sent[16:] and len(made) == len(sent)
    (seen,) = read_batch(made, 0)[:1]
    assert [int(each.offset) for each in seen.records] == list(range(offset, offset + len(found)))
    assert [(each.key, each.value) for each in seen.records] == [
        (each.key, each.value) for each in found
    ]


@pytest.mark.parametrize("producer", [(-1, -1, -1), (9, 3, 4)])
def test_a_compressed_batch_is_stored_without_its_compression(
    producer: tuple[int, int, int],
) -> None:
    payload = ONE[HEAD_BYTES:]
    plain = seal(0, 0, 0, (5, 5), producer, 1, payload)
    sent = seal(0, kafka.COMPRESSION & 4, 0, (5, 5), producer, 1, zstandard.compress(payload))
    assert uncompressed(sent, payload)[HEAD_BYTES:] == payload
    stored = uncompressed(sent, payload)
    assert stored[:12] + stored[16:] == plain[:12] + plain[16:]


def test_a_stored_batch_does_not_say_whose_it_is() -> None:
    found = [KafkaRecord(5, b"k", b"v"), KafkaRecord(6, None, None)]
    named = seal(0, 0, 1, (5, 6), (77, 3, 9), 2, batch(*found)[HEAD_BYTES:])
    assert read_head(named, LIMITS).producer is not None
    made = without_producer(named)
    assert read_head(made, LIMITS).producer is None, "and its checksum is right"
    assert kafka_stored.decode(made, 2, Record) == kafka_stored.decode(named, 2, Record)


def test_a_batch_with_more_headers_than_any_reader_takes_is_left_to_the_decoder() -> None:
    header = ("h", b"")
    of_each = [8] * (kafka.BATCH_HEADERS_MAX // 8)
    limits = BatchLimits(20_000, record_bytes=100_000, batch_bytes=10_000_000)
    made = batch(*(KafkaRecord(5, None, b"", (header,) * n) for n in of_each))
    assert times_of(made, limits) == (5, 5)
    made = batch(*(KafkaRecord(5, None, b"", (header,) * n) for n in [*of_each, 1]))
    assert times_of(made, limits) is None
