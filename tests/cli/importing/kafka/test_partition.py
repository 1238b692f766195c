"""A partition of Kafka's: what is read of it, where it ends, and what becomes of its records."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest

from commands.importing.kafka.cluster import Ends, FetchedRecord
from commands.importing.kafka.partition import KafkaPartition, KafkaReader, KafkaRules
from commands.importing.reading.problems import SourceChanged
from commands.importing.reading.rules import Rules
from daemon.schemas.api import LABEL_CHARACTERS_MAX
from delivery.filters import parse_condition
from uploader.l0.kafka import KafkaRecord, to_kafka
from uploader.l0.records import TIMESTAMP_MS_MAX, Record

LIMIT = 1_000


def rules(*, as_json: bool = False, **options: Any) -> KafkaRules:
    given = Rules(record_bytes_max=LIMIT, **options)
    return KafkaRules(given, "kafka://b/t/0", as_json=as_json)


def partition(*fetched: tuple[int, bytes | None]) -> KafkaPartition:
    """A partition of which these offsets were fetched; without a value: its end."""
    found = KafkaPartition("kafka://b/t", "cluster", 0, Ends(0, 100))
    for offset, value in fetched:
        record = None if value is None else KafkaRecord(1, None, value)
        found.put(FetchedRecord(0, offset, record, size=len(value or b"")))
    return found


def reader(source: KafkaPartition, at: int = 0, ends_at: int | None = None, **options: Any) -> Any:
    return KafkaReader(source, rules(**options), at, ends_at)


def test_a_block_ends_after_its_last_record_and_counts_offsets_without_one() -> None:
    each = reader(partition((2, b"a"), (3, b"b"), (9, b"c")), at=1)
    read = each.read(1 << 20)
    assert read.block is not None and read.block.end == 10
    assert not read.has_ended and each.absent == 1 + 5
    sub_block = read.block.first(1 << 20, 2)
    assert sub_block.next == 4, "steps end at offsets that have records"
    assert each.read(1 << 20).block is None


def test_the_end_of_a_partition_passes_marks_of_transactions() -> None:
    each = reader(partition((0, b"a"), (3, None)))
    read = each.read(1 << 20)
    assert read.block is not None and (read.block.end, read.has_ended) == (3, False)
    assert each.absent == 2


@pytest.mark.parametrize(
    ("fetched", "end"),
    [
        (((0, b"a"), (4, b"b"), (5, b"c")), 5),
        (((0, b"a"), (7, b"c")), 5),
        (((0, b"a"), (3, None)), 3),
    ],
)
def test_what_is_not_followed_ends_where_it_ended_at_the_start(
    fetched: tuple[tuple[int, bytes | None], ...], end: int
) -> None:
    each = reader(partition(*fetched), ends_at=5)
    read = each.read(1 << 20)
    assert read.block is not None and (read.block.end, read.has_ended) == (end, True)


def test_a_block_takes_about_what_it_is_asked_for() -> None:
    source = partition(*((n, b"x" * 100) for n in range(10)))
    read = reader(source).read(250)
    assert read.block is not None and read.block.end == 3
    assert source.waiting_bytes == 700


def test_a_problem_comes_after_what_was_read_before_it() -> None:
    source = partition((0, b"a"))
    source.put(FetchedRecord(0, 1, problem=SourceChanged("deleted")))
    each = reader(source)
    assert each.read(1 << 20).block.end == 1
    assert "deleted" in str(each.read(1 << 20).problem)


def test_an_invalid_record_ends_its_partition_with_its_offset_or_is_a_dead_letter() -> None:
    large = ((5, b"a"), (6, b"x" * (LIMIT + 1)), (7, b"b"))
    each = reader(partition(*large), at=5)
    assert each.read(1 << 20).block.end == 6
    assert str(each.read(1 << 20).problem).startswith("offset 6: has 1,001 bytes")
    read = reader(partition(*large), at=5, invalid="letters").read(1 << 20)
    dead = [json.loads(each)["data"] for record in read.block._records for each in record.dead]
    assert [(each["source"], each["position"]) for each in dead] == [("kafka://b/t/0", 6)]
    assert read.block.end == 8


def test_after_it_was_closed_a_partition_keeps_nothing() -> None:
    source = partition((0, b"a"))
    source.close()
    source.put(FetchedRecord(0, 1, KafkaRecord(1, None, b"b"), size=1))
    assert source.waiting_bytes == 0 and not source.has_some


@pytest.mark.parametrize(
    "record",
    [
        KafkaRecord(5, b"k", b'{"a": 1}'),
        KafkaRecord(0, b"\xff", b"\x00\xff", (("h", b"x"), ("h", None), ("\u00e9", b"\xff"))),
        KafkaRecord(TIMESTAMP_MS_MAX, None, None),
        KafkaRecord(7, b"", b"", (("", b""),)),
    ],
)
def test_a_record_is_the_same_for_kafkas_consumers(record: KafkaRecord) -> None:
    (row,) = rules().record(3, record).rows
    sent = json.loads(row)
    data = b64decode(sent["data_b64"]) if "data_b64" in sent else json.dumps(sent["data"])
    meta = json.dumps(sent["meta"], separators=(",", ":")) if "meta" in sent else None
    stored = Record(data, sent["ts"], sent.get("key"), None, None, meta)
    assert to_kafka(sent["ts"], stored) == record


def test_values_are_json_where_the_topic_says_so() -> None:
    as_json = rules(as_json=True, invalid="drop")
    assert as_json.record(1, KafkaRecord(None, None, b'{"a":1}')).rows == (b'{"data":{"a":1}}',)
    assert as_json.record(2, KafkaRecord(None, None, b"{")).rows == ()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (KafkaRecord(TIMESTAMP_MS_MAX + 1, None, b""), "has the time"),
        (KafkaRecord(1, b"k" * (LABEL_CHARACTERS_MAX + 1), b""), "has a key of"),
        (KafkaRecord(1, b"k", b"x" * LIMIT), "with its key and its headers"),
    ],
)
def test_what_the_daemon_would_refuse_is_invalid(record: KafkaRecord, why: str) -> None:
    given = rules(invalid="letters")
    done = given.record(1, record)
    assert done.rows == () and why in json.loads(done.dead[0])["data"]["problem"]


def test_filters_look_at_values_that_are_json() -> None:
    given = rules(where=(parse_condition("level=err*"),))
    values = (b'{"level":"error"}', b'{"level":"info"}', b"no json", None)
    kept = [bool(given.record(n, KafkaRecord(1, None, value)).rows) for n, value in
            enumerate(values)]  # fmt: skip
    assert kept == [True, False, False, False]
    assert given._rules.filtered == 3
