"""L0 objects that several tests build: a fixed one, and any that hypothesis thinks of."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ledger.types import Condition, ConditionPart, LeaseId
from shards.frame import CODEC_RECORDS, encode_batch
from tests.long import examples
from uploader.l0 import BuiltObject, ExtentParts, RingRun, build
from uploader.l0.records import Record, encode

# Objects take a while to think of, the more so on a busy machine; nothing here is timed.
unhurried = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

GOLDEN_LEASE = LeaseId(incarnation=3, epoch=17, shard=1, counter=42)
GOLDEN_CREATED_MS = 1_700_000_000_500


def batch(records: list[Record], arrival_ms: int) -> bytes:
    """A batch of codec 1."""
    return encode_batch(len(records), arrival_ms, encode(records), CODEC_RECORDS)


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
        for shard in range(draw(st.integers(1, 2))):
            ring_start = 8 * draw(_numbers)
            index = len(own)
            for some in draw(
                st.lists(st.lists(_records, min_size=1, max_size=4), min_size=1, max_size=2)
            ):
                arrival_ms = draw(_numbers)
                encoded = batch(some, arrival_ms)
                batches.append(memoryview(encoded) if draw(st.booleans()) else encoded)
                if draw(st.booleans()):
                    conditions.append(
                        Condition(
                            shard=shard,
                            position=ring_start,
                            topic_id=topic_id,
                            parts=(ConditionPart(partition, len(own), len(some)),),
                            idempotency_key=draw(_words),
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
                codec=CODEC_RECORDS,
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
