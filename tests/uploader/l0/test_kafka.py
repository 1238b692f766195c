"""Kafka's batches, and what a record of Kafka is here: nothing is lost in either direction."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from ledger.types import SEQUENCE_MAX, ProducerBatch
from uploader.l0 import compression, kafka, records
from uploader.l0.compression import decompressed
from uploader.l0.kafka import (
    HEAD_BYTES,
    BatchError,
    BatchLimits,
    BatchRows,
    KafkaRecord,
    encode_batch,
    read_head,
    records_of,
    seal,
    to_kafka,
    to_row,
)
from uploader.l0.records import TIMESTAMP_MS_MAX, Record

LIMITS = BatchLimits(records=100, record_bytes=10_000, batch_bytes=50_000)
SOME = st.none() | st.binary(max_size=20) | st.text(max_size=8).map(str.encode)
RECORDS = st.builds(
    KafkaRecord,
    st.integers(0, TIMESTAMP_MS_MAX),
    SOME,
    SOME,
    st.lists(st.tuples(st.text(max_size=5), SOME), max_size=3).map(tuple),
)
TEXTS = st.none() | st.text(max_size=8)


def decode_batch(made: bytes, limits: BatchLimits) -> list[KafkaRecord]:
    head = read_head(made, limits)
    payload = decompressed(head.codec, made[kafka.HEAD_BYTES :], limits.batch_bytes)
    return [each for some in records_of(payload, head, limits.record_bytes) for each in some]


def batch(*found: KafkaRecord, base: int = 0) -> bytes:
    return encode_batch(base, list(enumerate(found, base)))


@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_a_batch_is_read_as_it_was_written(found: list[KafkaRecord]) -> None:
    assert decode_batch(batch(*found, base=7), LIMITS) == found


@given(st.lists(RECORDS, min_size=1, max_size=5), st.lists(st.integers(1, 9), min_size=5))
def test_another_reader_finds_the_same_records_at_the_same_offsets(
    found: list[KafkaRecord], steps: list[int]
) -> None:
    offsets = [100 + sum(steps[:index]) for index in range(len(found))]
    read = read_batch(encode_batch(offsets[0], list(zip(offsets, found, strict=True))), 0)[0]
    assert [int(each.offset) for each in read.records] == offsets
    for each, record in zip(read.records, found, strict=True):
        assert (each.key, each.value) == (record.key, record.value)
        headers = [(h.key, h.value) for h in each.headers]
        assert headers == [(name.encode(), value) for name, value in record.headers]


@given(RECORDS)
def test_a_record_of_kafka_comes_back_byte_for_byte(record: KafkaRecord) -> None:
    (stored,) = records.decode(records.encode([to_row(record)]))
    assert stored.ts is not None
    assert to_kafka(stored.ts, stored) == record
    if stored.meta is not None:
        json.loads(stored.meta)  # what HTTP and tables show


@given(
    st.builds(
        Record, st.binary() | st.integers().map(str), st.just(5), TEXTS, TEXTS, TEXTS,
        st.none() | st.sampled_from(("{}", '{"a":1}', '{"kafka":{}}', '{"kafka":{"key":"base64"}}',
                                     '{"kafka":{"value":null}}', '{"kafka":{"headers":[[1,2]]}}',
                                     '{"kafka":{"headers":5}}', '{"kafka":{},"b":1}')),
    )
)  # fmt: skip
def test_no_field_of_a_record_by_http_is_lost(record: Record) -> None:
    seen = to_kafka(5, record)
    headers = dict(seen.headers)
    if record.tag is not None:
        assert headers["headgate.tag"] == record.tag.encode()
    if record.node is not None:
        assert headers["headgate.node"] == record.node.encode()
    if seen.value is None:
        assert record.data == "null" and record.meta == '{"kafka":{"value":null}}'
    else:
        assert seen.value == (record.data if isinstance(record.data, bytes)
                              else record.data.encode())  # fmt: skip


def test_what_has_no_place_in_a_record_is_readable_in_its_meta() -> None:
    row = to_row(KafkaRecord(1, b"\xff", None, (("a", b"x"), ("b", None), ("c", b"\xff"))))
    said = {"key": "base64", "value": None,
            "headers": [["a", "x"], ["b", None], ["c", {"base64": "/w=="}]]}  # fmt: skip
    assert row[:3] == ("null", 1, "/w==") and json.loads(row[5]) == {"kafka": said}
    assert to_row(KafkaRecord(1, b"k", b"v")) == (b"v", 1, "k")
    assert to_row(KafkaRecord(None, None, b"v")) == (b"v",)


@pytest.mark.parametrize("value", [b"", b"{", b"1 2", b'"\xff"', b"\xff", b"nul", b"[" * 100_000])
def test_what_is_not_json_is_refused_where_values_are(value: bytes) -> None:
    with pytest.raises(BatchError) as error:
        to_row(KafkaRecord(5, None, value), as_json=True)
    assert error.value.code == kafka.INVALID_RECORD


@pytest.mark.parametrize("value", [b' {"a": 1.0}\n', b"null", b'"\xc3\xa9"', None])
def test_a_value_that_is_json_comes_back_byte_for_byte(value: bytes | None) -> None:
    row = to_row(KafkaRecord(5, None, value), as_json=True)
    assert isinstance(row[0], str)
    (stored,) = records.decode(records.encode([row]))
    assert to_kafka(5, stored).value == value


# Compression


COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    1: gzip.compress,
    2: partial(pyarrow.Codec("snappy").compress, asbytes=True),
    3: partial(pyarrow.Codec("lz4").compress, asbytes=True),
    4: zstandard.ZstdCompressor().compress,
}


def compressed(codec: int, payload: bytes) -> bytes:
    return COMPRESS[codec](payload)


def with_codec(codec: int, payload: bytes, count: int = 1) -> bytes:
    return seal(0, codec, count - 1, (5, 5), (-1, -1, -1), count, payload)


def rows(value: bytes) -> bytes:
    return batch(KafkaRecord(5, b"k", value))[HEAD_BYTES:]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_are_read(codec: int) -> None:
    made = with_codec(codec, compressed(codec, rows(b"v" * 5_000)))
    assert decode_batch(made, LIMITS) == [KafkaRecord(5, b"k", b"v" * 5_000)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_several_threads_decompress_batches_simultaneously(codec: int) -> None:
    """The loop does short ones while a thread does a long one."""
    values = [os.urandom(size) * 20 for size in (1_000, 200_000)]
    long, short = ((compressed(codec, value), value) for value in reversed(values))
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(
            lambda each: decompressed(codec, each[0], len(each[1])), [short, long] * 200
        )
        assert set(found) == {short[1], long[1]}


def test_snappy_in_the_frames_of_java_is_read() -> None:
    whole = rows(b"v" * 5_000)
    framed = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2
    for piece in (whole[:2_000], whole[2_000:]):
        block = compressed(2, piece)
        framed += len(block).to_bytes(4, "big") + block
    assert decode_batch(with_codec(2, framed), LIMITS) == [KafkaRecord(5, b"k", b"v" * 5_000)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_grows_beyond_the_limit_is_refused(codec: int) -> None:
    bomb = with_codec(codec, compressed(codec, bytes(20_000_000)))
    tracemalloc.start()  # of Python's memory, where gzip and zstd write
    try:
        assert refused(bomb) == kafka.MESSAGE_TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "blocks",
    [b"\0\0\0\1\0" * 9, b"\0\0\0\0" * 9],
    ids=["empty", "of no bytes"],
)
def test_an_empty_block_in_the_frames_of_java_is_refused(blocks: bytes) -> None:
    whole = compressed(2, rows(b"v"))
    framed = b"\x82SNAPPY\x00" + bytes(8) + blocks + len(whole).to_bytes(4, "big") + whole
    assert refused(with_codec(2, framed)) == kafka.CORRUPT_MESSAGE


def test_the_frames_of_java_have_so_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_BLOCKS_MAX", 1)
    framed = b"\x82SNAPPY\x00" + bytes(8)
    for piece in (rows(b"v")[:5], rows(b"v")[5:]):
        block = compressed(2, piece)
        framed += len(block).to_bytes(4, "big") + block
    assert refused(with_codec(2, framed)) == kafka.CORRUPT_MESSAGE


# Headers


def test_a_record_and_a_batch_have_so_many_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(count: int) -> KafkaRecord:
        return KafkaRecord(5, None, b"v", (("", None),) * count)

    most = made(kafka.RECORD_HEADERS_MAX)
    assert decode_batch(batch(most), LIMITS) == [most]
    assert refused(batch(made(kafka.RECORD_HEADERS_MAX + 1))) == kafka.MESSAGE_TOO_LARGE
    monkeypatch.setattr(kafka, "BATCH_HEADERS_MAX", 5)
    assert len(decode_batch(batch(made(2), made(3)), LIMITS)) == 2
    assert refused(batch(made(3), made(3))) == kafka.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    "limits", [BatchLimits(100, 1_000, 50_000), BatchLimits(100, 10_000, 4_000)]
)
def test_headers_count_as_what_is_stored_of_them(limits: BatchLimits) -> None:
    # Two bytes each in a batch, fourteen as JSON.
    found = [KafkaRecord(5, None, b"v", (("", b""),) * 200)] * 3
    assert decode_batch(batch(*found), limits) == found
    with pytest.raises(BatchError) as error:
        BatchRows(limits, as_json=False).add(found)
    assert error.value.code == kafka.MESSAGE_TOO_LARGE
    made = BatchRows(LIMITS, as_json=False)
    made.add(found)
    assert len(made.rows) == 3


def test_a_long_batch_is_decoded_in_slices_of_records_headers_and_bytes() -> None:
    def slices(*found: KafkaRecord) -> list[int]:
        made = batch(*found)
        head = read_head(made, BatchLimits(1_000, 50_000, 1_000_000))
        some = list(records_of(made[kafka.HEAD_BYTES :], head, 50_000))
        assert [each for part in some for each in part] == list(found)
        return [len(part) for part in some]

    assert slices(*[KafkaRecord(5, None, b"v")] * 256) == [256]
    assert slices(*[KafkaRecord(5, None, b"v")] * 600) == [256, 256, 88]
    assert slices(*[KafkaRecord(5, None, b"v", (("", None),) * 256)] * 9) == [4, 4, 1]
    assert slices(*[KafkaRecord(5, None, bytes(40_000))] * 5) == [2, 2, 1]


# Bad batches


def refused(made: bytes, limits: BatchLimits = LIMITS) -> int:
    with pytest.raises(BatchError) as error:
        decode_batch(made, limits)
    return error.value.code


GOOD = batch(KafkaRecord(5, b"k", b"value"))


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (b"", kafka.CORRUPT_MESSAGE),
        (GOOD[:60], kafka.CORRUPT_MESSAGE),
        (GOOD[:-1], kafka.INVALID_RECORD),
        (GOOD + GOOD, kafka.INVALID_RECORD),
        (GOOD[:-2] + b"\0\0", kafka.CORRUPT_MESSAGE),
        (GOOD[:16] + b"\0" + GOOD[17:], kafka.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (GOOD[:16] + b"\1" + GOOD[17:], kafka.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (with_codec(0x10, rows(b"v")), kafka.INVALID_TXN_STATE),
        (with_codec(0x20, rows(b"v")), kafka.INVALID_TXN_STATE),
        (with_codec(5, rows(b"v")), kafka.UNSUPPORTED_COMPRESSION_TYPE),
        (with_codec(1, b"no gzip"), kafka.CORRUPT_MESSAGE),
        (with_codec(1, gzip.compress(rows(b"v"), mtime=0)[:-9]), kafka.CORRUPT_MESSAGE),
        (with_codec(2, b"\xff" * 9), kafka.MESSAGE_TOO_LARGE),
        (with_codec(2, b"\x05\xff"), kafka.CORRUPT_MESSAGE),
        (with_codec(3, b"no lz4 at all"), kafka.CORRUPT_MESSAGE),
        (with_codec(4, b"no zstd at all"), kafka.CORRUPT_MESSAGE),
        (with_codec(0, rows(b"v"), count=0), kafka.INVALID_RECORD),
        (with_codec(0, rows(b"v"), count=-1), kafka.INVALID_RECORD),
        (with_codec(0, rows(b"v"), count=2), kafka.INVALID_RECORD),
        (with_codec(0, rows(b"v"), count=101), kafka.MESSAGE_TOO_LARGE),
        (with_codec(0, rows(b"v") + b"\0"), kafka.INVALID_RECORD),
        (with_codec(0, b"\xff" * 20), kafka.INVALID_RECORD),
        (seal(0, 0, 1, (5, 5), (-1, -1, -1), 2, rows(b"v") * 2), kafka.INVALID_RECORD),
        (seal(0, 0, 5, (5, 5), (-1, -1, -1), 1, rows(b"v")), kafka.INVALID_RECORD),
        (seal(0, 0, 0, (5, 5), (9, -1, 0), 1, rows(b"v")), kafka.INVALID_RECORD),
        (seal(0, 0, 0, (5, 5), (9, 0, -1), 1, rows(b"v")), kafka.INVALID_RECORD),
        (seal(0, 0, 0, (-9, 5), (-1, -1, -1), 1, rows(b"v")), kafka.INVALID_TIMESTAMP),
        (batch(KafkaRecord(5, b"k", bytes(10_001))), kafka.MESSAGE_TOO_LARGE),
    ],
)  # fmt: skip
def test_a_bad_batch_is_refused_with_the_code_of_kafka(made: bytes, code: int) -> None:
    assert refused(made) == code


def test_the_sequence_numbers_of_a_producer_are_those_of_its_records() -> None:
    def producer(sequence: int, count: int) -> ProducerBatch | None:
        made = seal(0, 0, count - 1, (5, 5), (9, 3, sequence), count, b"")
        return read_head(made, LIMITS).producer

    assert read_head(GOOD, LIMITS).producer is None
    assert producer(0, 1) == ProducerBatch(9, 3, 0, 0)
    assert producer(4, 3) == ProducerBatch(9, 3, 4, 6)
    assert producer(SEQUENCE_MAX - 1, 4) == ProducerBatch(9, 3, SEQUENCE_MAX - 1, 1)


@given(st.binary(min_size=7, max_size=60), st.integers(0, 4))
def test_no_bytes_of_records_do_more_than_be_refused(payload: bytes, codec: int) -> None:
    made = with_codec(codec, payload)
    try:
        found = decode_batch(made, LIMITS)
    except BatchError:
        return
    assert len(found) == 1
