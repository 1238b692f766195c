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
from daemon.kafka.fetching import BATCH_RECORDS, FETCHED_BYTES_MAX, KafkaReads
from daemon.kafka.messages import NO_ID, FetchAsked, FetchPlace, FetchTopic
from daemon.kafka.topics import KafkaTopics
from tests.delivery.node import Node, ledger_thread, node_in
from tests.delivery.reading.test_diff import Told, told_reader
from uploader.l0.kafka import HEAD, HEAD_BYTES, LENGTH_FROM, BatchLimits, read_head, records_of
from uploader.l0.records import Record

LIMITS = BatchLimits(10_000, 1 << 20, 1 << 24)
ALL_BYTES = FETCHED_BYTES_MAX // 3


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


def asked(*, bytes_min: int = 1, wait_ms: int = 0, offset: int = 0) -> FetchAsked:
    place = FetchPlace(0, offset, 1 << 20)
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


def test_the_loop_serves_others_between_two_batches() -> None:
    async def test() -> None:
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

    asyncio.run(test())


def test_an_answer_holds_what_it_has_until_it_is_taken(tmp_path: Path) -> None:
    async def test(node: Node, told: Told, reads: KafkaReads) -> None:
        node.produce(0, {0: [Record(bytes(5_000))]})
        node.commit()
        told.tell()
        async with reads.fetch(asked()) as (_, read):
            ((_, (found,)),) = read
            assert len(found.records) > 5_000
            assert reads._held._free_bytes == ALL_BYTES - len(found.records)
        assert reads._held._free_bytes == ALL_BYTES

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
            if reads._held._free_bytes < ALL_BYTES:
                return None
            return next(iter(told.reader.waiters._waiting.get(node.key(), ())), None)

        waiting = asyncio.ensure_future(fetched())
        before = None
        for _ in range(commits):
            async with asyncio.timeout(5):
                for _ in iter(lambda: event() in (None, before), False):  # noqa: B023
                    await asyncio.sleep(0)
            assert not waiting.done()
            before = event()
            node.produce(0, {0: [Record(bytes(1_100))]})
            node.commit()
            told.tell()
        async with asyncio.timeout(5):
            assert await waiting == [offset]

    run(tmp_path, test)
