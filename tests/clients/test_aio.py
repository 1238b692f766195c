"""The client for asyncio does what the other one does, and starts no threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate import (
    AsyncClient,
    AsyncMessage,
    Limits,
    NewRecord,
    NotFound,
    ProducerFailed,
    Record,
    Unreachable,
)
from tests.e2e.daemon import HANG_S, Daemon
from tools.ports import kept_port


@asynccontextmanager
async def client_of(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    """A client that leaves no thread."""
    before = set(threading.enumerate())
    async with AsyncClient(daemon.url) as client:
        yield client
    assert set(threading.enumerate()) <= before


async def taken(items: AsyncIterator[object], count: int) -> list[object]:
    """The first ``count`` items."""
    return [await anext(items) for _ in range(count)]


async def test_records_are_produced_read_and_watched(daemon: Daemon, topic: str) -> None:
    async with client_of(daemon) as client:
        await client.create_topic(topic, partitions=2)
        assert (await client.produce(topic, 1, key="k")).count == 1
        await client.produce_many(topic, [NewRecord(n, key=f"k{n}") for n in range(1500)])
        found = [r async for r in client.read(topic)]
        assert len(found) == 1501 and {r.partition for r in found} == {0, 1}
        async with client.watch(topic, from_seq=0) as watch:
            first = await taken(watch, 700)
            position = watch.position
        async with client.watch(topic, position=position) as watch:
            rest = await taken(watch, 801)
        places = {(r.partition, r.seq) for r in first + rest if isinstance(r, Record)}
        assert places == {(r.partition, r.seq) for r in found}
        assert topic in [each["topic"] async for each in client.topics()]
        with pytest.raises(NotFound):
            await client.topic(topic + "-not")


async def test_a_watch_goes_on_after_an_anext_that_was_cancelled(
    daemon: Daemon, topic: str
) -> None:
    async with client_of(daemon) as client:
        await client.produce_many(topic, [NewRecord(n) for n in range(3)])
        async with client.watch(topic, from_seq=0) as watch:
            await taken(watch, 3)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await client.produce(topic, "later")
            (found,) = await taken(watch, 1)
            assert isinstance(found, Record) and (found.seq, found.data) == (4, "later")


async def test_a_producer_stores_in_order_and_with_a_cursor_goes_on(
    daemon: Daemon, topic: str
) -> None:
    async with client_of(daemon) as client:
        for end in (400, 1000):
            limits = Limits(batch_records=64, buffer_bytes=8000)
            async with client.producer(topic, cursor=topic, limits=limits) as producer:
                for n in range(producer.position, end):
                    await producer.send(n)
                    assert producer._batching._bytes <= 8000
                await producer.flush()
                assert producer.position == end
        assert [r.data async for r in client.read(topic)] == list(range(1000))
        assert await client.cursor(topic) == 1000


async def test_a_refused_record_fails_the_producer(daemon: Daemon, topic: str) -> None:
    async with client_of(daemon) as client:

        async def sending() -> None:
            async with client.producer(topic) as producer:
                await producer.send("x" * (2 << 20))

        with pytest.raises(ProducerFailed, match="too_large"):
            await sending()
        async with client.producer(topic) as producer:
            with pytest.raises(ValueError, match="JSON"):
                await producer.send(float("inf"))
        with pytest.raises(ValueError, match="not open"):
            await producer.send(1)


async def test_a_cancelled_producer_ends_though_nobody_answers(daemon: Daemon, topic: str) -> None:
    async with client_of(daemon) as client:
        begun = asyncio.Event()

        async def sending() -> None:
            async with client.producer(topic) as producer:
                await producer.send(1)
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(sending())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_another_task_sends_while_a_producer_ends_is_stored_or_refused(
    daemon: Daemon, topic: str
) -> None:
    async with client_of(daemon) as client:
        sent = 0

        async def sending() -> None:
            nonlocal sent
            while True:
                await producer.send(sent)
                sent += 1
                await asyncio.sleep(0)

        async with client.producer(topic) as producer:
            task = asyncio.create_task(sending())
            while not producer.position:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
        with pytest.raises(ValueError, match="not open"):
            await task
        assert producer.position == sent
        await producer.flush()


async def test_the_end_of_a_producer_is_told_to_whoever_waits_for_it(
    daemon: Daemon, topic: str
) -> None:
    async with client_of(daemon) as client:
        producer = client.producer(topic, limits=Limits(buffer_bytes=100, linger_s=3600))

        async def ended_by_cancellation() -> None:
            async with producer:
                await producer.send(1)
                waiting.append(asyncio.create_task(producer.send("x" * 100)))
                await asyncio.sleep(0)
                raise asyncio.CancelledError

        waiting: list[asyncio.Task[None]] = []
        with pytest.raises(asyncio.CancelledError):
            await ended_by_cancellation()
        (blocked,) = waiting
        with pytest.raises(ValueError, match="not open"):
            await asyncio.wait_for(blocked, HANG_S)
        with pytest.raises(ProducerFailed, match="closed") as raised:
            await asyncio.wait_for(producer.flush(), HANG_S)
        assert raised.value.count == 1


async def test_messages_are_consumed_acknowledged_and_handled(daemon: Daemon, topic: str) -> None:
    async with client_of(daemon) as client:
        await client.produce_many(topic, [NewRecord(n, key=f"k{n % 5}") for n in range(100)])
        settings = {"backoff_ms": [1, 1]}
        async with client.consume(topic, "s", name="w", create=settings) as messages:
            message = await anext(messages)
            assert message.attempt == 1 and await message.nack()
            for _ in range(10):  # of twenty messages of each key
                assert await (await anext(messages)).ack()
        seen: list[int] = []
        together = asyncio.Barrier(3)

        async def handler(message: AsyncMessage) -> None:
            if len(seen) < 3:
                await asyncio.wait_for(together.wait(), 60)
            if message.data == 77 and message.attempt == 1:
                raise RuntimeError("the first attempt fails")
            seen.append(message.data)

        async def stop_at_the_end() -> None:
            while (await client.subscription(topic, "s"))["lag"]:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
            messages.stop()

        async with client.consume(topic, "s", name="w") as messages:
            stopping = asyncio.create_task(stop_at_the_end())
            await messages.handle(handler, tasks=3)
            await stopping
        for key in range(5):
            mine = [n for n in seen if n % 5 == key]
            assert mine == sorted(set(mine))
        assert (await client.subscription(topic, "s"))["lag"] == 0


async def test_nobody_there_is_told() -> None:
    with kept_port() as port:
        async with AsyncClient(f"http://127.0.0.1:{port}", patience_s=0.2) as client:
            with pytest.raises(Unreachable):
                await client.status()
