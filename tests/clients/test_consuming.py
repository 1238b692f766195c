"""What a consumer takes for new, and how long a watch goes on, by scripted answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from headgate import consuming
from headgate.aio import AsyncProducer
from headgate.batching import Limits
from headgate.consuming import Consuming, Delivery
from headgate.errors import HeadgateError
from headgate.steps import Answer, Emit, Read
from headgate.watching import ERRORS_MAX, Watching
from tests.clients.test_steps import World


def polled(*messages: tuple[int, int, int], epoch: int = 1) -> Answer:
    """Messages by offset, attempt and time."""
    said = [
        {"partition": 0, "seq": seq, "attempt": attempt, "ts": ts, "data": seq}
        for seq, attempt, ts in messages
    ]
    return Answer(200, {}, json.dumps({"epoch": epoch, "messages": said, "gaps": []}).encode())


def consumer() -> Consuming[Delivery]:
    return Consuming("t", "s", Delivery, name="c")


def places(found: list[Delivery]) -> list[tuple[int, int]]:
    return [(each.seq, each.attempt) for each in found]


def test_a_poll_that_is_answered_twice_gives_its_messages_once() -> None:
    had = consumer()
    first, again = polled((1, 1, 5), (2, 1, 5)), polled((1, 1, 5), (2, 1, 5), (3, 1, 5), epoch=2)
    assert places(World(first).run(had.poll(9))) == [(1, 1), (2, 1)]
    assert places(World(again).run(had.poll(9))) == [(3, 1)]


def test_what_an_operator_retries_is_new_although_its_attempts_begin_again() -> None:
    had = consumer()
    for attempt in (1, 2, 3, 1, 2):
        found = World(polled((1, attempt, 5), epoch=attempt)).run(had.poll(9))
        assert places(found) == [(1, attempt)]


def test_records_of_a_topic_that_was_created_again_are_new() -> None:
    had = consumer()
    assert places(World(polled((1, 1, 5))).run(had.poll(9))) == [(1, 1)]
    assert places(World(polled((1, 1, 6))).run(had.poll(9))) == [(1, 1)]


def test_what_is_never_acknowledged_takes_no_memory_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consuming, "IN_HAND_MAX", 10)
    had = consumer()
    for seq in range(1, 101):
        (found,) = World(polled((seq, 1, 5))).run(had.poll(9))
    assert sum(had.is_in_hand(each) for each in [found]) == 1
    assert len(had._in_hand) == len(had._epochs) == 10


def test_a_watch_that_the_daemon_ends_again_and_again_raises_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = [0]
    lines = (
        b'{"event":"position","id":"7:0=0"}\n'
        b'{"event":"error","code":"too_many_pinned","message":"so it is","detail":{}}\n'
    )

    def run(op: Any, records: int) -> None:
        came, left = None, [b""]
        world = World(Answer(200, {}, stream="stream"))
        while True:
            step = op.send(came)
            if isinstance(step, Read):
                came = left.pop(0)
            elif isinstance(step, Emit):
                came = None
            else:
                came = world.taken(step)
                if isinstance(came, Answer):
                    opened[0] += 1
                    record = b'{"seq":%d,"ts":5,"data":1}\n' % opened[0]
                    left = [lines if opened[0] > records else lines[:34] + record + lines[34:], b""]

    with pytest.raises(HeadgateError) as raised:
        run(Watching("t").told(), 3)
    assert raised.value.code == "too_many_pinned"
    assert opened[0] == 3 + ERRORS_MAX - 1
    assert caplog.text.count("so it is") == opened[0]


@pytest.mark.parametrize("turns", range(5))
async def test_a_producer_that_is_cancelled_ends_whenever_that_comes(turns: int) -> None:
    """asyncio.wait_for of CPython 3.11 swallows a cancellation that meets the end of its wait."""

    class Daemon:
        async def run(self, op: Any) -> None:
            op.close()

    async def produce(sent: asyncio.Event) -> None:
        daemon: Any = Daemon()
        async with AsyncProducer(daemon, "t", None, Limits(linger_s=60.0)) as producer:
            await producer.send(1)
            for _ in range(5):
                await asyncio.sleep(0)  # the worker waits for more
            await producer.send(2)
            for _ in range(turns):
                await asyncio.sleep(0)
            sent.set()
            await asyncio.Event().wait()

    sent = asyncio.Event()
    task = asyncio.create_task(produce(sent))
    await sent.wait()
    task.cancel()
    async with asyncio.timeout(60):  # ends a hang only
        await asyncio.wait([task])
