"""L0 objects that several tests build: a fixed one, and any that hypothesis thinks of."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ledger.types import Condition, ConditionPart, LeaseId
from shards.frame import CODEC_KAFKA, CODEC_MIXED, CODEC_RECORDS, encode_batch
from tests.long import examples
from uploader.l0 import BuiltObject, ExtentParts, RingRun, build, kafka
from uploader.l0.kafka import KafkaRecord, to_kafka, to_row
from uploader.l0.records import TIMESTAMP_MS_MAX, Record, encode

# Objects take a while to think of, the more so on a busy machine; nothing here is timed.
unhurried = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

GOLDEN_LEASE = LeaseId(incarnation=3, epoch=17, shard=1, counter=42)
GOLDEN_CREATED_MS = 1_700_000_000_500


def batch(records: list[Record], arrival_ms: int, codec: int = CODEC_RECORDS) -> bytes:
    """A batch of this codec."""
    payload = encode(records) if codec == CODEC_RECORDS else kafka_payload(records)
    return encode_batch(len(records), arrival_ms, payload, codec)


def kafka_payload(records: list[Record]) -> bytes:
    """What a client of Kafka sends, if these records came from one."""
    made = [to_kafka(record.ts or 0, record) for record in records]
    assert [Record(*to_row(each)) for each in made] == records
    return kafka.encode_batch(0, list(enumerate(made)))


_kafka_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=8).map(str.encode)
kafka_records = st.builds(
    KafkaRecord,
    st.integers(0, 2**45) | st.sampled_from([0, TIMESTAMP_MS_MAX]),
    _kafka_bytes,
    _kafka_bytes,
    st.lists(st.tuples(st.text(max_size=5), _kafka_bytes), max_size=3).map(tuple),
)
from_kafka = kafka_records.map(lambda record: Record(*to_row(record)))
"""Records as they are stored of what Kafka's clients send."""


def golden_kafka() -> BuiltObject:
    """The object of tests/golden/l0/kafka.l0: a batch of Kafka, and one with others."""
    ts = 1_700_000_000_007
    found = [
        KafkaRecord(ts, b"k", b'{"n": 1}'),
        KafkaRecord(ts - 1, b"\xff", None, (("a", b"x"), ("b", None), ("c", b"\xff"))),
        KafkaRecord(ts + 200, None, b""),
    ]
    sent = kafka.seal(
        0, 0, 2, (ts, ts + 200), (9, 0, 4), 3, kafka.encode_batch(0, list(enumerate(found)))[61:]
    )
    whole = encode_batch(3, 1_700_000_000_100, sent, CODEC_KAFKA)
    extents = [
        ExtentParts("orders", 5, partition, codec, batches, count, ts - 1, ts + 200,
                    (RingRun(0, 4096, 0, count),))
        for partition, codec, batches, count in (
            (0, CODEC_KAFKA, [whole], 3),
            (1, CODEC_MIXED, [batch([Record("1")], 1_700_000_000_100), whole], 4),
        )
    ]  # fmt: skip
    return build(GOLDEN_LEASE, GOLDEN_CREATED_MS, extents, [], 41)


def golden() -> BuiltObject:
    """The object of docs/l0-format.md and tests/golden/l0: two topics, two shards, a condition."""
    orders = ExtentParts(
        topic_name="orders",
        topic_id=5,
        partition=0,
        codec=CODEC_RECORDS,
        batches=[
            batch(
                [Record('{"id":1}', key="a"), Record('{"id":2}', ts=1_700_000_000_007, key="")],
                1_700_000_000_100,
            ),
            batch([Record(b"\x00\xff", tag="raw")], 1_700_000_000_200),
            batch([Record("3", node="n1", meta="{}")], 1_700_000_000_150),
        ],
        record_count=4,
        first_timestamp_ms=1_700_000_000_007,
        last_timestamp_ms=1_700_000_000_200,
        runs=(RingRun(0, 4096, 0, 2), RingRun(1, 65536, 2, 2)),
    )
    sensors = ExtentParts(
        topic_name="sensors",
        topic_id=9,
        partition=2,
        codec=CODEC_RECORDS,
        batches=[batch([Record("null")], 1_700_000_000_160)],
        record_count=1,
        first_timestamp_ms=1_700_000_000_160,
        last_timestamp_ms=1_700_000_000_160,
        runs=(RingRun(0, 4096, 0, 1),),
    )
    condition = Condition(
        shard=1,
        position=65536,
        topic_id=5,
        parts=(ConditionPart(0, 2, 1),),
        idempotency_key="retry-7",
    )
    return build(GOLDEN_LEASE, GOLDEN_CREATED_MS, [sensors, orders], [condition], 41)


class Sample(NamedTuple):
    """Arguments of ``build`` and the records they hold."""

    lease_id: LeaseId
    created_ms: int
    extents: list[ExtentParts]
    conditions: list[Condition]
    records: dict[tuple[int, int], list[tuple[int, Record]]]
    """By (topic id, partition): arrival and record, in order."""


_numbers = st.integers(0, 2**40)
_words = st.none() | st.text(max_size=5)
_records = st.builds(
    Record,
    data=st.text(max_size=20) | st.binary(max_size=20),
    ts=st.none() | st.integers(0, 2**45),
    key=_words,
    tag=_words,
    node=_words,
    meta=_words,
)


_batches = st.tuples(
    st.just(CODEC_RECORDS), st.lists(_records, min_size=1, max_size=4)
) | st.tuples(st.just(CODEC_KAFKA), st.lists(from_kafka, min_size=1, max_size=4))


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Objects of up to three extents, of up to two runs each, of up to two batches each."""
    extents: list[ExtentParts] = []
    conditions: list[Condition] = []
    records: dict[tuple[int, int], list[tuple[int, Record]]] = {}
    places = draw(
        st.lists(
            st.tuples(st.integers(1, 4), st.integers(0, 2)), unique=True, min_size=0, max_size=3
        )
    )
    for topic_id, partition in places:
        batches: list[bytes | memoryview] = []
        runs: list[RingRun] = []
        own: list[tuple[int, Record]] = []
        codecs: set[int] = set()
        for shard in range(draw(st.integers(1, 2))):
            ring_start = 8 * draw(_numbers)
            index = len(own)
            for codec, some in draw(st.lists(_batches, min_size=1, max_size=2)):
                arrival_ms = draw(_numbers)
                codecs.add(codec)
                encoded = batch(some, arrival_ms, codec)
                batches.append(memoryview(encoded) if draw(st.booleans()) else encoded)
                if draw(st.booleans()):
                    conditions.append(
                        Condition(
                            shard=shard,
                            position=ring_start,
                            topic_id=topic_id,
                            parts=(ConditionPart(partition, len(own), len(some)),),
                            idempotency_key=draw(_words),
                            fingerprint=draw(st.none() | st.integers(0, 2**64 - 1)),
                            expected_seq=draw(st.none() | _numbers),
                        )
                    )
                own.extend((arrival_ms, record) for record in some)
            runs.append(RingRun(shard, ring_start, index, len(own) - index))
        times = [arrival if r.ts is None else r.ts for arrival, r in own]
        extents.append(
            ExtentParts(
                topic_name=f"topic-{topic_id}",
                topic_id=topic_id,
                partition=partition,
                codec=CODEC_MIXED if len(codecs) > 1 else codecs.pop(),
                batches=batches,
                record_count=len(own),
                first_timestamp_ms=min(times),
                last_timestamp_ms=max(times),
                runs=tuple(runs),
            )
        )
        records[topic_id, partition] = own
    lease_id = LeaseId(draw(_numbers), draw(_numbers), draw(st.integers(0, 127)), draw(_numbers))
    return Sample(lease_id, draw(_numbers), extents, conditions, records)
