"""Batches on their way into the ring of a shard: room, deadlines, and what nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import zstandard

from daemon.governor.producers_gate import ClosedBy
from daemon.kafka import producing
from daemon.kafka.budget import ITEMS_OF_A_TURN
from daemon.kafka.messages import read_produce
from daemon.kafka.producing import KafkaProducer, OutcomeUnknown, Refusals
from daemon.kafka.served import read_request
from daemon.kafka.topics import KafkaTopics
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.errors import ApiError
from shards import layout as at
from shards.frame import CODEC_KAFKA, CODEC_RECORDS
from shards.ring import Link, RingReader
from tests.daemon.intake.test_copies import Outbox, outbox_in
from uploader.l0 import kafka_stored
from uploader.l0.kafka import (
    HEAD_BYTES,
    MESSAGE_TOO_LARGE,
    BatchLimits,
    KafkaRecord,
    encode_batch,
    seal,
)
from uploader.l0.records import Record, decode

BIG = 11_000  # a ring of 64 KiB has room for five, and for what admission adds


def produce_frame(size: int, *, times: int = 1) -> bytes:
    """A Produce of version 3 to the topic ``dest``, with the number 9."""
    return produce_of(encode_batch(0, [(0, KafkaRecord(5, None, bytes(size)))]), times=times)


def produce_of(batch: bytes, *, times: int = 1) -> bytes:
    """The same with this batch."""
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


async def take(
    takes: KafkaProducer, request: KafkaRequest, refusals: Refusals | None = None
) -> asyncio.Future[bytearray] | None:
    """Gives it a request of a connection, of a new one if no refusals are given."""
    if refusals is None:
        refusals = {}
    return await takes.take(request.head(), read_produce(request), refusals)


def run(
    directory: Path, test: Callable[[Outbox], Coroutine[Any, Any, None]], **config: object
) -> None:
    with outbox_in(directory, **config) as made:
        asyncio.run(test(made))


async def test_a_batch_waits_for_room_in_the_ring_and_is_not_refused(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        takes = producer(made)
        first = [await take(takes, a_request(BIG)) for _ in range(5)]
        late = asyncio.ensure_future(take(takes, a_request(BIG)))
        await asyncio.sleep(0.05)
        assert not late.done(), "the connection must read nothing meanwhile"
        assert made.published == 5
        made.commit_all()
        answer = await late
        assert made.published == 6
        made.commit_all()
        answers = [await each for each in (*first, answer) if each is not None]
        assert [error_of(each) for each in answers] == [0] * 6


async def test_without_room_until_its_deadline_a_batch_is_refused(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        takes = producer(made, ack_timeout_ms=100)
        for _ in range(5):
            await take(takes, a_request(BIG))
        answer = await take(takes, a_request(BIG))
        assert answer is not None and error_of(await answer) == 7
        assert made.published == 5


async def test_while_the_gate_is_closed_batches_are_refused(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        made.segment.words[at.G_GATE] = ClosedBy.STORE_FAILING
        made.admission.read_gate()
        answer = await take(producer(made), a_request(10))
        assert answer is not None and error_of(await answer) == 56
        assert made.published == 0


def test_each_batch_of_a_request_has_its_own_fate(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        await made.topics.entry("dest")
        answer = await take(producer(made), a_request(10, times=3))
        assert answer is not None
        made.commit_all()
        found = await answer
        # The cap takes the first two.
        assert [error_of(found, index=index) for index in range(3)] == [0, 0, 44]

    run(tmp_path, test, cap_records=2, discard="reject")


@pytest.mark.parametrize(("code", "error"), [("ack_timeout", 7), ("outcome_unknown", None)])
async def test_at_the_deadline_a_batch_is_withdrawn_or_nobody_knows(
    tmp_path: Path, code: str, error: int | None
) -> None:
    with outbox_in(tmp_path) as made:
        answer = await take(producer(made), a_request(10))
        assert answer is not None
        (waiting,) = made.pending._waiting
        waiting.request.refuse(ApiError(503, code, "late"))
        if error is None:
            with pytest.raises(OutcomeUnknown):
                await answer
        else:
            assert error_of(await answer) == error
        made.commit_all()  # which counts for nobody then


async def test_what_is_sent_again_is_not_overtaken_by_what_was_sent_after_it(
    tmp_path: Path,
) -> None:
    with outbox_in(tmp_path) as made:
        takes, refusals = producer(made), Refusals()
        first = await take(takes, a_request(BIG), refusals)
        for _ in range(4):
            await take(takes, a_request(BIG), refusals)
        late = asyncio.ensure_future(take(takes, a_request(BIG), refusals))
        await asyncio.sleep(0.05)
        assert not late.done() and not refusals
        (waiting, *_) = made.pending._waiting
        waiting.request.refuse(ApiError(503, "ack_timeout", "late"))
        made.commit_all()  # there is room now
        after = await late
        assert first is not None and after is not None
        assert error_of(await first) == error_of(await after) == 7
        assert made.published == 5 and list(refusals) == [("dest", 0)]
        again = await take(takes, a_request(10))  # of another connection
        made.commit_all()
        assert again is not None and error_of(await again) == 0


async def test_what_is_taken_back_takes_back_what_its_connection_sent_after_it(
    tmp_path: Path,
) -> None:
    with outbox_in(tmp_path) as made:
        takes, refusals = producer(made, 1_000), Refusals()
        for each in (refusals, refusals, Refusals()):
            await take(takes, a_request(10), each)
        first, second, other = made.pending._waiting
        now_ns = first.request.arrival_ns + first.timeout_ns
        other.request.arrival_ns = second.request.arrival_ns = now_ns
        expired = made.pending.expired(now_ns, 0, made.ring.head)
        assert expired.void == [first, second]
        made.commit_all()


@pytest.mark.parametrize("base", [0, 1], ids=["plain", "decoded"])
async def test_a_long_batch_is_looked_at_while_the_loop_serves_others(
    tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_stored, "_SLICE_RECORDS", 256)

    with outbox_in(tmp_path) as made:
        await made.topics.entry("dest")
        takes = producer(made)
        takes._limits = BatchLimits(10_000, 100_000, 1_000_000)
        record = KafkaRecord(5, None, b"v")
        numbered = [(base + n, record) for n in range(1_000)]
        request = read_request(produce_of(encode_batch(base, numbered)))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        others_task = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        assert await take(takes, request) is not None
        others_task.cancel()
        assert turns >= 3 and made.published == 1
        made.commit_all()


def stored(made: Outbox) -> list[tuple[int, bytes]]:
    """The codec and the payload of each batch in the ring."""
    reader = RingReader(made.segment, 0)
    copies = [
        reader.copy([Link(request.position, each.offset, each.length, each.record_count)])
        for request in reader.requests(0, made.ring.head)
        for each in request.batches
    ]
    return [(head.codec, payload) for ((head, payload),) in filter(None, copies)]


PLAIN = encode_batch(0, [(0, KafkaRecord(5, b"k", b"1")), (1, KafkaRecord(4, None, b"2"))])


@pytest.mark.parametrize("is_short", [True, False])
async def test_a_plain_batch_is_stored_as_it_came_but_for_its_compression_and_its_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_short: bool
) -> None:
    if not is_short:
        monkeypatch.setattr(producing, "SHORT_BATCH_BYTES", 1)
    squeezed = zstandard.compress(PLAIN[HEAD_BYTES:])

    with outbox_in(tmp_path) as made:
        await made.topics.entry("dest")
        takes = producer(made)
        for sent in (
            PLAIN, seal(0, 4, 1, (5, 5), (-1, -1, -1), 2, squeezed),
            seal(0, 0, 1, (5, 5), (77, 0, 0), 2, PLAIN[HEAD_BYTES:]),
            seal(0, 4, 1, (5, 5), (77, 0, 2), 2, squeezed),
        ):  # fmt: skip
            await take(takes, read_request(produce_of(sent)))
        assert stored(made) == [(CODEC_KAFKA, PLAIN)] * 4, "whose it is, no reader is told"
        (first, *_) = RingReader(made.segment, 0).requests(0, made.ring.head)
        assert first.batches[0][2:3] + first.batches[0][5:] == (2, 4, 5)
        assert takes._decoded._free_bytes == 1_000_000
        made.commit_all()


@pytest.mark.parametrize("of_broker", [True, False])
def test_other_batches_and_values_of_json_are_stored_as_records(
    tmp_path: Path, *, of_broker: bool
) -> None:
    sent = PLAIN
    if of_broker:  # its times would be those of the broker
        sent = seal(0, 0x08, 1, (5, 5), (-1, -1, -1), 2, PLAIN[HEAD_BYTES:])

    async def test(made: Outbox) -> None:
        await take(producer(made), read_request(produce_of(sent)))
        ((codec, payload),) = stored(made)
        values: list[Any] = [b"1", b"2"] if of_broker else ["1", "2"]
        assert codec == CODEC_RECORDS
        assert decode(payload) == [Record(values[0], 5, "k"), Record(values[1], 4)]
        made.commit_all()

    run(tmp_path, test, **({} if of_broker else {"kafka_value": "json"}))


def test_long_batches_have_memory_one_at_a_time(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        takes = producer(made)
        for _ in range(5):
            await take(takes, a_request(BIG))
        takes._limits = BatchLimits(100, 200_000, 1_000_000)
        one = encode_batch(0, [(0, KafkaRecord(5, None, bytes(BIG)))])[HEAD_BYTES:]
        bomb = seal(0, 4, 0, (5, 5), (-1, -1, -1), 1, zstandard.compress(one))
        waiting = asyncio.ensure_future(take(takes, read_request(produce_of(bomb))))
        for _ in iter(lambda: takes._decoded._free_bytes, 0):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        made.commit_all()
        assert await waiting is not None
        assert takes._decoded._free_bytes == 1_000_000
        made.commit_all()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producing, "SHORT_BATCH_BYTES", 1_000)
        run(tmp_path, test)


async def test_a_batch_that_can_never_fit_is_too_large(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        answer = await take(producer(made), a_request(20_000))
        assert answer is not None and error_of(await answer) == 10


async def test_a_batch_takes_memory_as_admission_promises_it(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        await made.topics.entry("dest")
        made.segment.words[at.G_BODIES_BYTES] = 5_000
        made.admission.read_gate()
        made.admission.promise_again(4_000)  # a body by HTTP that is on its way
        late = asyncio.ensure_future(take(producer(made), a_request(10)))
        await asyncio.sleep(0.05)
        assert made.published == 0 and not late.done()
        made.admission.release(4_000)
        assert await late is not None
        assert made.published == 1 and made.admission.promised_bytes == 0
        made.commit_all()


def test_a_topic_that_stores_a_repeated_body_once_takes_no_batch(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        answer = await take(producer(made), a_request(10))
        assert answer is not None and error_of(await answer) == 44
        assert made.published == 0

    run(tmp_path, test, dedupe="body")


async def test_headers_that_take_too_much_as_json_are_not_stored(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        record = KafkaRecord(5, None, b"", (("", b""),) * 256)
        batch = encode_batch(0, [(each, record) for each in range(300)])
        takes = producer(made)
        takes._limits = BatchLimits(1_000, 100_000, 1_000_000)
        answer = await take(takes, read_request(produce_of(batch)))
        assert answer is not None and error_of(await answer) == 10
        assert made.published == 0


async def test_an_answer_with_many_batches_is_made_by_a_thread(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        times = 2 * ITEMS_OF_A_TURN + 1
        answer = await take(producer(made), a_request(2 * BIG, times=times))
        assert answer is not None and not answer.done()
        said = await answer
        assert {error_of(said, index=index) for index in range(times)} == {MESSAGE_TOO_LARGE}
