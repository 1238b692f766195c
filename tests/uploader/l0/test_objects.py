"""Objects are written and read back; damage anywhere is named."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterable

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ledger.types import LeaseId
from shards.frame import CODEC_KAFKA, encode_batch
from tests.uploader.l0_samples import (
    Sample,
    batch,
    golden,
    kafka_payload,
    samples,
    unhurried,
)
from uploader.l0 import (
    ExtentParts,
    L0Error,
    RingRun,
    build,
    fetch_extent,
    fetch_footer,
    object_key,
    read_extent,
    read_footer,
    records_of,
    verify,
)
from uploader.l0.layout import TAIL, Footer
from uploader.l0.records import Record

LEASE = LeaseId(1, 2, 3, 4)


class Ranges:
    """An object that is read by ranges, and which ones."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.reads: list[tuple[int, int]] = []

    def __call__(self, start: int, length: int) -> bytes:
        self.reads.append((start, length))
        return self.body[start : start + length]


def parts_of(
    batches: Iterable[bytes | memoryview], record_count: int, *, topic_id: int = 1
) -> ExtentParts:
    return ExtentParts(
        topic_name="t",
        topic_id=topic_id,
        partition=0,
        codec=1,
        batches=list(batches),
        record_count=record_count,
        first_timestamp_ms=0,
        last_timestamp_ms=1_000,
        runs=(RingRun(0, 0, 0, record_count),),
    )


@unhurried
@given(samples())
def test_a_built_object_reads_back_and_describes_itself(sample: Sample) -> None:
    built = build(*sample[:4])
    key = object_key(sample.lease_id)
    assert verify(built.body, key) == []
    footer = read_footer(built.body, key)
    assert (footer.lease_id, footer.created_ms) == (sample.lease_id, sample.created_ms)
    assert [each.condition() for each in footer.conditions] == sample.conditions
    assert tuple(extent.draft() for extent in footer.extents) == built.drafts
    by_place = {(parts.topic_id, parts.partition): parts for parts in sample.extents}
    assert [(e.topic_id, e.partition) for e in footer.extents] == sorted(by_place)
    for extent in footer.extents:
        place = (extent.topic_id, extent.partition)
        assert extent.topic_name == by_place[place].topic_name
        assert extent.runs == by_place[place].runs
        expected = [
            (7 + index, arrival_ms if record.ts is None else record.ts, record)
            for index, (arrival_ms, record) in enumerate(sample.records[place])
        ]
        assert list(records_of(read_extent(built.body, extent), 7)) == expected


@unhurried
@given(samples())
def test_the_bytes_are_a_function_of_the_arguments_alone(sample: Sample) -> None:
    again = [
        ExtentParts(
            **{
                **{name: getattr(parts, name) for name in parts.__struct_fields__},
                "batches": [b"".join(parts.batches)],
            }
        )
        for parts in reversed(sample.extents)
    ]
    one = build(*sample[:4])
    assert build(sample.lease_id, sample.created_ms, again, sample.conditions) == one
    assert one.crc32c == crc32c(one.body)


@unhurried
@given(samples(), st.data())
def test_a_flipped_bit_is_found_anywhere(sample: Sample, data: st.DataObject) -> None:
    body = bytearray(build(*sample[:4]).body)
    at = data.draw(st.integers(0, len(body) - 1).filter(lambda at: not 12 <= at < 16))
    body[at] ^= 1 << data.draw(st.integers(0, 7))
    assert verify(body) != []


@unhurried
@given(samples(), st.data())
def test_a_truncated_object_is_refused(sample: Sample, data: st.DataObject) -> None:
    body = build(*sample[:4]).body
    with pytest.raises(L0Error):
        read_footer(body[: data.draw(st.integers(0, len(body) - 1))])


@unhurried
@given(samples(), st.data())
def test_reading_from_an_offset_skips_voids_and_earlier_records(
    sample: Sample, data: st.DataObject
) -> None:
    if not sample.extents:
        return
    parts = sample.extents[0]
    count = parts.record_count
    cuts = data.draw(st.lists(st.integers(0, count), unique=True).map(sorted))
    voids = [(a, b - a) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    void = {index for start, length in voids for index in range(start, start + length)}
    first = data.draw(st.integers(1, 100))
    live = [
        (first + number, arrival_ms if record.ts is None else record.ts, record)
        for number, (arrival_ms, record) in enumerate(
            each
            for index, each in enumerate(sample.records[parts.topic_id, parts.partition])
            if index not in void
        )
    ]
    from_offset = data.draw(st.integers(0, first + count + 1))
    limit = data.draw(st.none() | st.integers(0, count + 1))
    expected = [each for each in live if each[0] >= from_offset][:limit]
    extent = b"".join(parts.batches)
    assert list(records_of(extent, first, voids, from_offset, limit)) == expected
    assert list(records_of(memoryview(extent), first, voids, from_offset, limit)) == expected


def test_a_batch_before_the_offset_is_skipped_without_decoding() -> None:
    undecodable = encode_batch(3, 0, b"no msgpack", 1)
    extent = undecodable + batch([Record("4")], 9)
    assert list(records_of(extent, 1, from_offset=4)) == [(4, 9, Record("4"))]
    assert list(records_of(extent, 1, voids=[(0, 3)])) == [(1, 9, Record("4"))]


def test_batches_after_the_limit_are_not_decoded() -> None:
    extent = batch([Record("1")], 9) + encode_batch(3, 0, b"no msgpack", 1)
    assert list(records_of(extent, 1, limit=1)) == [(1, 9, Record("1"))]


def test_a_footer_takes_one_range_read() -> None:
    body = build(LEASE, 0, [parts_of([batch([Record("x" * 200_000)], 0)], 1)]).body
    ranges = Ranges(body)
    footer = fetch_footer(ranges, len(body))
    assert footer == read_footer(body)
    assert len(ranges.reads) == 1
    assert fetch_extent(ranges, footer.extents[0]) == body[16 : footer.extents[0].byte_end]


def test_a_large_footer_takes_two_range_reads() -> None:
    extents = [parts_of([batch([Record("1")], 0)], 1, topic_id=n) for n in range(5_000)]
    body = build(LEASE, 0, extents).body
    ranges = Ranges(body)
    assert fetch_footer(ranges, len(body)) == read_footer(body)
    assert len(ranges.reads) == 2


def resealed(body: bytes, footer: bytes) -> bytes:
    _, length, magic = TAIL.unpack_from(body, len(body) - TAIL.size)
    extents = body[: len(body) - TAIL.size - length]
    return extents + footer + TAIL.pack(crc32c(footer), len(footer), magic)


def test_a_version_from_the_future_is_named_even_if_its_footer_is_of_another_shape() -> None:
    body = resealed(golden().body, msgspec.msgpack.encode([2, {"a": "new shape"}]))
    with pytest.raises(L0Error, match="version 2, which a newer headgate wrote") as caught:
        fetch_footer(lambda start, length: body[start : start + length], len(body), "l0/k")
    assert (caught.value.key, caught.value.expected) == ("l0/k", "version 1 or older")
    changed = golden().body[:8] + struct.pack("<I", 2) + golden().body[12:]
    with pytest.raises(L0Error, match=r"byte 8: .* version 2"):
        read_footer(changed)


def test_a_footer_with_more_fields_than_we_know_is_read() -> None:
    body = golden().body
    footer = read_footer(body)
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(footer))
    longer = resealed(body, msgspec.msgpack.encode([*fields, "of version 1 later on"]))
    assert read_footer(longer) == footer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: replaced(f, lease_id=LeaseId(9, 9, 9, 9)), "expected the key"),
        (lambda f: replaced(f, extents=f.extents[::-1]), "expected an extent after that of"),
        (lambda f: replaced(f, extents=f.extents[1:]), "expected an extent, found the next"),
        (lambda f: replaced(f, extents=f.extents[:1]), "expected extents up to"),
        (lambda f: with_extent(f, record_count=5), "5 records"),
        (lambda f: with_extent(f, runs=f.extents[0].runs[1:]), "a run from record 0"),
        (lambda f: with_extent(f, first_timestamp_ms=1_700_000_000_008), "timestamps from"),
        (lambda f: with_extent(f, codec=2), "a batch of codec 2"),
    ],
)
def test_a_footer_that_contradicts_its_object_is_named(
    change: Callable[[Footer], Footer], message: str
) -> None:
    body = golden().body
    footer = msgspec.msgpack.encode(change(read_footer(body)))
    problems = verify(resealed(body, footer), object_key(LeaseId(3, 17, 1, 42)))
    assert message in " ".join(str(problem) for problem in problems)


def test_a_batch_that_only_clients_of_kafka_cannot_read_is_named() -> None:
    payload = kafka_payload([Record(b"1", 5)])
    wrong = payload[:17] + bytes(4) + payload[21:]
    parts = parts_of([encode_batch(1, 5, wrong, CODEC_KAFKA)], 1)
    times = {"first_timestamp_ms": 5, "last_timestamp_ms": 5}
    body = build(LEASE, 0, [msgspec.structs.replace(parts, codec=CODEC_KAFKA, **times)]).body
    (problem,) = verify(body)
    assert "expected a batch that clients of Kafka can read, found Kafka's checksum" in str(problem)


def replaced(footer: Footer, **changes: object) -> Footer:
    return msgspec.structs.replace(footer, **changes)


def with_extent(footer: Footer, **changes: object) -> Footer:
    first = msgspec.structs.replace(footer.extents[0], **changes)
    return replaced(footer, extents=(first, *footer.extents[1:]))


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (encode_batch(1, 5, b"\x91\x91\xa1x", 7), "found 7, which this reader does not know"),
        (encode_batch(2, 5, b"\x91\x91\xa1x", 1), "expected 2 records, found 1"),
        (encode_batch(1, 5, b"\xc1", 1), "is not an array of records"),
        (encode_batch(1, 5, b"\x91\x91\xa1x", 2), "records of codec 2, found a batch of Kafka"),
        (batch([Record(b"1", 5)], 5, CODEC_KAFKA)[:-1], "expected a whole batch"),
        (encode_batch(1, 5, b"\x91\x91\xa1x", 1)[:-1], "expected a whole batch"),
        (encode_batch(1, 5, b"\x91\x91\xa1x", 1)[:20], "expected a whole batch"),
        (encode_batch(1, 5, b"\x91\x91\xa1x", 1)[:-1] + b"y", "a payload with CRC32C"),
    ],
)
def test_an_extent_that_cannot_be_decoded_names_key_and_byte(extent: bytes, message: str) -> None:
    with pytest.raises(L0Error, match=message) as caught:
        list(records_of(batch([Record("1")], 5) + extent, 1, key="l0/k"))
    assert str(caught.value).startswith("l0/k, byte ")
    assert caught.value.byte >= len(batch([Record("1")], 5))


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ([parts_of([b"x"], 1), parts_of([b"x"], 1)], "two extents of topic 1, partition 0"),
        ([parts_of([], 1)], "has no bytes"),
        ([msgspec.structs.replace(parts_of([b"x"], 1), record_count=2)], "its runs cover 1"),
        (
            [msgspec.structs.replace(parts_of([b"x"], 1), runs=(RingRun(0, 0, 1, 1),))],
            "begin at record 0",
        ),
    ],
)
def test_extents_that_make_no_object_are_refused(extents: list[ExtentParts], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(LEASE, 0, extents)


def test_an_object_of_4096_small_batches_is_built_with_few_copies() -> None:
    one = batch([Record("x" * 980)], 5)
    parts = parts_of([memoryview(one)] * 4096, 4096)
    tracemalloc.start()
    try:
        built = build(LEASE, 0, [parts])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(built.body) > 4_000_000
    assert peak < 1.5 * len(built.body)
