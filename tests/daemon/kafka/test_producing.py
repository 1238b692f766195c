"""Batches on their way into the ring of a shard: room, deadlines, and what nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from daemon.governor.producers_gate import ClosedBy
from daemon.kafka.producing import KafkaProducer, OutcomeUnknown
from daemon.kafka.topics import KafkaTopics
from daemon.kafka.wire import KafkaRequest, read_request
from daemon.schemas.errors import ApiError
from shards import layout as at
from tests.daemon.intake.test_copies import Outbox, outbox_in
from uploader.l0.kafka import BatchLimits, KafkaRecord, encode_batch

BIG = 11_000  # a ring of 64 KiB has room for five, and for what admission adds


def produce_frame(size: int, *, times: int = 1) -> bytes:
    """A Produce of version 3 to the topic ``dest``, with the number 9."""
    batch = encode_batch(0, [(0, KafkaRecord(5, None, bytes(size)))])
    one = bytes(4) + len(batch).to_bytes(4, "big") + batch
    return (
        b"\0\0\0\x03\0\0\0\x09\xff\xff" + b"\xff\xff" + b"\xff\xff"
        + (30_000).to_bytes(4, "big") + b"\0\0\0\1" + b"\0\4dest"
        + times.to_bytes(4, "big") + one * times
    )  # fmt: skip


def a_request(size: int, *, times: int = 1) -> KafkaRequest:
    return read_request(produce_frame(size, times=times))


def error_of(answer: bytearray, topic: bytes = b"dest", index: int = 0) -> int:
    start = 4 + 4 + 2 + len(topic) + 4 + 22 * index
    return int.from_bytes(answer[start + 4 : start + 6], "big")


def producer(made: Outbox, ack_timeout_ms: int = 30_000) -> KafkaProducer:
    names = KafkaTopics(made.topics, (9000,), "file:///store", auto_create=True)
    return KafkaProducer(
        0, names, made.topics, made.ring, made.pending, made.admission,
        BatchLimits(100, 100_000, 1_000_000), made._published, lambda *_: None, ack_timeout_ms,
    )  # fmt: skip


def run(
    directory: Path, test: Callable[[Outbox], Coroutine[Any, Any, None]], **config: object
) -> None:
    with outbox_in(directory, **config) as made:
        asyncio.run(test(made))


def test_a_batch_waits_for_room_in_the_ring_and_is_not_refused(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        takes = producer(made)
        first = [await takes.take(a_request(BIG)) for _ in range(5)]
        late = asyncio.ensure_future(takes.take(a_request(BIG)))
        await asyncio.sleep(0.05)
        assert not late.done(), "the connection must read nothing meanwhile"
        assert made.published == 5
        made.commit_all()
        answer = await late
        assert made.published == 6
        made.commit_all()
        answers = [await each for each in (*first, answer) if each is not None]
        assert [error_of(each) for each in answers] == [0] * 6

    run(tmp_path, test)


def test_without_room_until_its_deadline_a_batch_is_refused(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        takes = producer(made, ack_timeout_ms=100)
        for _ in range(5):
            await takes.take(a_request(BIG))
        answer = await takes.take(a_request(BIG))
        assert answer is not None and error_of(await answer) == 7
        assert made.published == 5

    run(tmp_path, test)


def test_while_the_gate_is_closed_batches_are_refused(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        made.segment.words[at.G_GATE] = ClosedBy.STORE_FAILING
        made.admission.read_gate()
        answer = await producer(made).take(a_request(10))
        assert answer is not None and error_of(await answer) == 56
        assert made.published == 0

    run(tmp_path, test)


def test_each_batch_of_a_request_has_its_own_fate(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        await made.topics.entry("dest")
        answer = await producer(made).take(a_request(10, times=3))
        assert answer is not None
        made.commit_all()
        found = await answer
        # The cap takes the first two.
        assert [error_of(found, index=index) for index in range(3)] == [0, 0, 44]

    run(tmp_path, test, cap_records=2, discard="reject")


@pytest.mark.parametrize(("code", "error"), [("ack_timeout", 7), ("outcome_unknown", None)])
def test_at_the_deadline_a_batch_is_withdrawn_or_nobody_knows(
    tmp_path: Path, code: str, error: int | None
) -> None:
    async def test(made: Outbox) -> None:
        answer = await producer(made).take(a_request(10))
        assert answer is not None
        (waiting,) = made.pending._waiting
        waiting.request.refuse(ApiError(503, code, "late"))
        if error is None:
            with pytest.raises(OutcomeUnknown):
                await answer
        else:
            assert error_of(await answer) == error
        made.commit_all()  # which counts for nobody then

    run(tmp_path, test)


def test_a_batch_that_can_never_fit_is_too_large(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        answer = await producer(made).take(a_request(20_000))
        assert answer is not None and error_of(await answer) == 10

    run(tmp_path, test)
