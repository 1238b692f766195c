"""Fetches over real rings, ledger and store: what they hold, and how the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from daemon.intake.topic_cache import TopicCache
from daemon.kafka import fetching
from daemon.kafka.error_codes import KAFKA_STORAGE_ERROR
from daemon.kafka.fetching import BATCH_RECORDS, UNTAKEN_BYTES_MAX, KafkaReads
from daemon.kafka.messages import NO_ID, FetchAsked, FetchPlace, FetchTopic
from daemon.kafka.topics import KafkaTopics
from shards.frame import CODEC_KAFKA
from tests.delivery.node import Node, ledger_thread, node_in
from tests.delivery.reading.test_diff import Told, told_reader
from tests.uploader.l0_samples import kafka_payload
from uploader.l0.kafka import HEAD, HEAD_BYTES, LENGTH_FROM, BatchLimits, read_head, records_of
from uploader.l0.kafka_stored import at_offset
from uploader.l0.records import Record

LIMITS = BatchLimits(10_000, 1 << 20, 1 << 24)
ALL_BYTES = UNTAKEN_BYTES_MAX


def run(
    directory: Path, test: Callable[[Node, Told, KafkaReads], Coroutine[Any, Any, None]]
) -> None:
    with (
        node_in(directory, ring_bytes=1 << 20) as node,
        told_reader(node) as told,
        ledger_thread(node) as ledger,
    ):
        topics = TopicCache(node.segment, ledger, nullcontext())
        names = KafkaTopics(topics, (9000,), "file:///store", auto_create=False)
        reads = KafkaReads(names, told.partitions, told.reader.waiters)
        asyncio.run(test(node, told, reads))


def asked(
    *, bytes_min: int = 1, wait_ms: int = 0, offset: int = 0, bytes_max: int = 1 << 20
) -> FetchAsked:
    place = FetchPlace(0, offset, bytes_max)
    return FetchAsked(wait_ms, bytes_min, 1 << 22, 0, [FetchTopic("t", NO_ID, [place])])


def batches_of(data: bytes) -> list[tuple[int, list[bytes | None]]]:
    """The first offset and the values of each batch."""
    found = []
    at = 0
    while at < len(data):
        base, length, *_ = HEAD.unpack_from(data, at)
        batch = data[at : at + LENGTH_FROM + length]
        records = records_of(batch[HEAD_BYTES:], read_head(batch, LIMITS), LIMITS.record_bytes)
        found.append((base, [each.value for some in records for each in some]))
        at += len(batch)
    return found


def test_records_come_in_batches_of_what_one_turn_of_the_loop_encodes(tmp_path: Path) -> None:
    async def test(node: Node, told: Told, reads: KafkaReads) -> None:
        values = [b"%d" % number for number in range(2 * BATCH_RECORDS + 5)]
        node.produce(0, {0: [Record(value) for value in values]})
        node.produce(0, {0: [Record(bytes(fetching.BATCH_BYTES)), Record(b"end")]})
        node.commit()
        told.tell()
        async with reads.fetch(asked()) as (error, read):
            ((_, (found,)),) = read
        batches = batches_of(found.records)
        first = len(values) + 1
        assert [base for base, _ in batches] == [0, BATCH_RECORDS, 2 * BATCH_RECORDS, first]
        assert [v for _, some in batches for v in some][: len(values)] == values
        assert batches[-1][1] == [b"end"]
        assert (error, found.head) == (0, first + 1)

    run(tmp_path, test)


def test_batches_of_kafka_go_out_as_they_came(tmp_path: Path) -> None:
    async def test(node: Node, told: Told, reads: KafkaReads) -> None:
        async def fetched(offset: int, bytes_max: int = 1 << 20) -> bytes:
            async with reads.fetch(asked(offset=offset, bytes_max=bytes_max)) as (_, read):
                ((_, (found,)),) = read
                assert (found.error, found.head) == (0, 8)
                return found.records

        one, two = [Record(b"1", 9, "k")], [Record(b"2", 7), Record(b"3", 8)]
        for some in (one, two, two):
            node.produce(0, {0: some}, codec=CODEC_KAFKA)
        node.commit()
        node.produce(0, {0: [Record("4")]})
        node.produce(0, {0: two}, codec=CODEC_KAFKA)
        node.commit()
        told.tell()
        came = {n: at_offset(kafka_payload(some), n) for n, some in ((0, one), (1, two), (3, two))}
        assert await fetched(0) == came[0] + came[1] + came[3], "up to a batch of another kind"
        assert await fetched(2) == came[1] + came[3], "the batch that holds the offset"
        assert await fetched(0, len(came[0]) + len(came[1])) == came[0] + came[1]
        # What no batch as it came can answer is encoded.
        assert batches_of(await fetched(5)) == [(5, [b"4", b"2", b"3"])]
        assert batches_of(await fetched(1, 2)) == [(1, [b"2", b"3"])]
        for _ in range(4):  # the ring goes on
            node.produce(0, {1: [Record(bytes(400_000))]})
            node.commit()
        assert await fetched(2) == came[1] + came[3], "of the object"
        assert batches_of(await fetched(5)) == [(5, [b"4", b"2", b"3"])]
        assert await fetched(6) == at_offset(kafka_payload(two), 6)
        assert batches_of(await fetched(1, 2)) == [(1, [b"2", b"3"])]

    run(tmp_path, test)


def test_an_object_that_is_damaged_has_an_error_code_until_it_is_whole(tmp_path: Path) -> None:
    async def test(node: Node, told: Told, reads: KafkaReads) -> None:
        async def fetched() -> tuple[int, bytes]:
            async with reads.fetch(asked()) as (error, read):
                ((_, (found,)),) = read
                assert error == 0
                return found.error, found.records

        node.produce(0, {0: [Record(b"1", 9)]}, codec=CODEC_KAFKA)
        node.commit()
        for _ in range(4):  # the ring goes on
            node.produce(0, {1: [Record(bytes(400_000))]})
            node.commit()
        told.tell()
        node.store.spoil = lambda body: bytes(len(body))
        assert await fetched() == (KAFKA_STORAGE_ERROR, b"")
        node.store.spoil = lambda body: body
        error, records = await fetched()
        assert (error, batches_of(records)) == (0, [(0, [b"1"])])

    run(tmp_path, test)


async def test_the_loop_serves_others_between_two_batches() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    meanwhile = asyncio.ensure_future(others())
    items = [(number, 5, Record(b"v")) for number in range(1, 3 * BATCH_RECORDS + 2)]
    assert len(batches_of(await fetching._encoded(items))) == 4
    meanwhile.cancel()
    assert turns == 3


def test_an_answer_holds_what_it_has_until_it_is_taken(tmp_path: Path) -> None:
    async def test(node: Node, told: Told, reads: KafkaReads) -> None:
        node.produce(0, {0: [Record(bytes(70_000))]})
        node.commit()
        told.tell()
        async with reads.fetch(asked()) as (_, read):
            ((_, (found,)),) = read
            assert len(found.records) > 70_000
            assert reads._untaken._free_bytes == ALL_BYTES - len(found.records)
        assert reads._untaken._free_bytes == ALL_BYTES

    run(tmp_path, test)


@pytest.mark.parametrize(("offset", "commits"), [(0, 2), (1, 3)])
def test_a_fetch_that_waits_holds_nothing_and_has_what_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, commits: int
) -> None:
    monkeypatch.setattr(fetching, "BYTES_MIN_MAX", 3_000)

    async def test(node: Node, told: Told, reads: KafkaReads) -> None:
        node.produce(0, {0: [Record(bytes(1_000))]})
        node.commit()
        told.tell()

        async def fetched() -> list[int]:
            wanted = asked(bytes_min=1 << 30, wait_ms=60_000, offset=offset)
            async with reads.fetch(wanted) as (_, read):
                ((_, (found,)),) = read
                return [base for base, _ in batches_of(found.records)]

        def event() -> asyncio.Event | None:
            """What it waits with, while it does so and holds nothing."""
            if reads._reading._free_bytes < fetching.READ_BYTES_MAX:
                return None
            return next(iter(told.reader.waiters._waiting.get(node.key(), ())), None)

        waiting = asyncio.ensure_future(fetched())
        before = None
        for _ in range(commits):
            async with asyncio.timeout(60):
                for _ in iter(lambda: event() in (None, before), False):  # noqa: B023
                    await asyncio.sleep(0)
            assert not waiting.done()
            before = event()
            node.produce(0, {0: [Record(bytes(1_100))]})
            node.commit()
            told.tell()
        async with asyncio.timeout(60):
            assert await waiting == [offset]

    run(tmp_path, test)


@pytest.mark.parametrize("size", [3_000, 6_000])
def test_answers_get_smaller_and_a_long_record_waits_for_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(fetching, "ANSWER_BYTES_MIN", 4_000)

    async def test(node: Node, told: Told, reads: KafkaReads) -> None:
        for _ in range(3):
            node.produce(0, {0: [Record(bytes(size), 9)]}, codec=CODEC_KAFKA)
            node.commit()
        told.tell()

        async def fetched() -> list[int]:
            async with reads.fetch(asked(wait_ms=60_000)) as (_, read):
                ((_, (found,)),) = read
                return [base for base, _ in batches_of(found.records)]

        await reads._untaken.take(ALL_BYTES - 8_000)  # by who does not take it
        waiting = asyncio.ensure_future(fetched())
        if size < fetching.ANSWER_BYTES_MIN:
            assert await asyncio.wait_for(waiting, 60) == [0], "less than what is counted"
            reads._untaken.give_back(ALL_BYTES - 8_000)
        else:
            await reads._untaken.take(4_000)
            async with asyncio.timeout(60):
                for _ in iter(lambda: len(reads._untaken._waiting), 1):
                    await asyncio.sleep(0)
            assert reads._reading._free_bytes == fetching.READ_BYTES_MAX
            reads._untaken.give_back(ALL_BYTES - 8_000 + 4_000)
            assert await asyncio.wait_for(waiting, 60) == [0], "its room and nothing more"
        assert await fetched() == [0, 1, 2]
        assert reads._untaken._free_bytes == ALL_BYTES

    run(tmp_path, test)
