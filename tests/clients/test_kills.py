"""The client through kills of shards and of the daemon: nothing is lost, nothing doubled, and order
is kept, by the producers, the watches and the consumers of both its forms.

Each round ends when all parts have got further, so every kill meets work. ``make chaos
CHAOS=--library SECONDS=900`` kills for longer, and at random moments.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    AsyncClient,
    AsyncMessage,
    Client,
    Gap,
    Limits,
    Message,
    Record,
)
from tests.e2e.daemon import HANG_S, Daemon, wait_until
from tests.e2e.processes import succession

SHARDS = 3
PARTITIONS = 2
KEYS = 8
ROUNDS, KILLS = 15, 33  # three of the whole daemon
AHEAD = 100  # records that are sent and not consumed: consumers are slower than producers
LIMITS = Limits(batch_records=40, buffer_bytes=64 << 10, linger_s=0)
PATIENCE_S = 300.0


class Part:
    """A thread that runs until ``stop``; what it raises is raised by ``join``."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error

    def join(self) -> None:
        self._thread.join(4 * HANG_S)
        assert not self._thread.is_alive(), self._run
        if self.failure is not None:
            raise self.failure


class Load:
    """What is sent and what comes back. Topic ``a`` is used by the sync client, ``b`` by the async
    one, whose producer has a cursor."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_over = threading.Event()
        self.sent = {"a": 0, "b": 0}
        self.room = {topic: threading.Semaphore(AHEAD) for topic in self.sent}
        self.watched: dict[str, list[Record]] = {"a": [], "b": []}
        self.consumed: dict[str, list[Message | AsyncMessage]] = {"a": [], "b": []}
        self.total: dict[str, int] = {}  # with the last record of each partition, once it is known

    def produce(self) -> None:
        with Client(self.url) as client, client.producer("a", limits=LIMITS) as producer:
            while not self.is_over.is_set():
                for _ in range(20):
                    self.room["a"].acquire()
                    producer.send({"n": self.sent["a"]}, key=f"k{self.sent['a'] % KEYS}")
                    self.sent["a"] += 1
                producer.flush()

    def watch(self) -> None:
        with Client(self.url) as client, client.watch("a", from_seq=0) as records:
            for record in records:
                assert not isinstance(record, Gap), record
                self.watched["a"].append(record)
                if self._is_whole("a"):
                    return

    def consume(self) -> None:
        with (
            Client(self.url, patience_s=PATIENCE_S) as client,
            client.consume("a", "s", name="w", create=True) as messages,
        ):
            for message in messages:
                self._came("a", message)
                message.ack()
                if self._is_finished("a"):
                    return

    async def produce_with_cursor(self) -> None:
        async with (
            AsyncClient(self.url, patience_s=PATIENCE_S) as client,
            client.producer("b", cursor="b", limits=LIMITS) as producer,
        ):
            while not self.is_over.is_set():
                for _ in range(20):
                    await asyncio.to_thread(self.room["b"].acquire)
                    await producer.send({"n": self.sent["b"]}, key=f"k{self.sent['b'] % KEYS}")
                    self.sent["b"] += 1
                await producer.flush()
            assert producer.position == self.sent["b"]

    async def watch_too(self) -> None:
        async with AsyncClient(self.url) as client, client.watch("b", from_seq=0) as records:
            async for record in records:
                assert not isinstance(record, Gap), record
                self.watched["b"].append(record)
                if self._is_whole("b"):
                    return

    async def handle(self) -> None:
        async with (
            AsyncClient(self.url, patience_s=PATIENCE_S) as client,
            client.consume("b", "s", name="w", create=True) as messages,
        ):

            async def handler(message: AsyncMessage) -> None:
                self._came("b", message)
                if self._is_finished("b"):
                    messages.stop()

            await messages.handle(handler, tasks=KEYS)

    def _came(self, topic: str, message: Message | AsyncMessage) -> None:
        self.consumed[topic].append(message)
        self.room[topic].release()

    def stop(self) -> None:
        """The producers end after what they are sending."""
        self.is_over.set()
        for room in self.room.values():
            room.release(AHEAD)

    def end(self) -> None:
        """After the producers: a last record for each partition, by which the others end."""
        self.total = {topic: sent + PARTITIONS for topic, sent in self.sent.items()}
        with Client(self.url) as client:
            for topic in self.total:
                for partition in range(PARTITIONS):
                    client.produce(topic, {"n": -1}, partition=partition)

    def _is_whole(self, topic: str) -> bool:
        return len(self.watched[topic]) >= self.total.get(topic, inf)

    def _is_finished(self, topic: str) -> bool:
        places = {message.place for message in self.consumed[topic]} if topic in self.total else ()
        return len(places) >= self.total.get(topic, inf)

    def has_moved_on(self) -> Callable[[], bool]:
        """Whether every part has got further since this call."""

        def counts() -> list[int]:
            lists: tuple[list[Any], ...] = (*self.watched.values(), *self.consumed.values())
            return [*self.sent.values(), *(len(each) for each in lists)]

        before = counts()
        return lambda: all(now > then for now, then in zip(counts(), before, strict=True))


def check(load: Load, topic: str, stored: list[Record]) -> None:
    """Everything that was sent is stored once, in order, and came to the watch and the consumer."""
    by_key = keyed(stored)
    assert sorted(n for each in by_key.values() for n in each) == list(range(load.sent[topic]))
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"{key} is out of order"

    for partition in range(PARTITIONS):
        watched = [each for each in load.watched[topic] if each.partition == partition]
        assert watched == [each for each in stored if each.partition == partition]

    first: dict[tuple[int, int], Message | AsyncMessage] = {}
    for message in load.consumed[topic]:
        first.setdefault(message.place, message)
    assert first.keys() == {(each.partition, each.seq) for each in stored}
    assert keyed(first.values()) == by_key, "a key's messages came in another order"


def keyed(records: Iterable[Record]) -> dict[str, list[int]]:
    """The numbers of each key, in their order."""
    found: dict[str, list[int]] = defaultdict(list)
    for record in records:
        if record.key is not None:
            found[record.key].append(record.data["n"])
    return found


def kill(daemon: Daemon, count: int) -> int:
    """SIGKILL to ``count`` shards, all in one moment; returns when their successors serve."""
    with succession(daemon, *range(count)) as pids:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    return count


@pytest.mark.slow
def test_many_kills_lose_and_double_nothing(data: Path, listen: str) -> None:
    load = Load(f"http://{listen}")
    parts: list[Part] = []
    kills = 0
    daemon = started(data, listen)
    try:
        for topic in load.sent:
            daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": PARTITIONS})
        producers = [Part(load.produce), Part(lambda: asyncio.run(load.produce_with_cursor()))]
        parts = [
            *producers, Part(load.watch), Part(load.consume),
            Part(lambda: asyncio.run(load.watch_too())), Part(lambda: asyncio.run(load.handle())),
        ]  # fmt: skip
        for number in range(ROUNDS):
            moved_on = load.has_moved_on()
            wait_until(lambda: moved_on() or any(p.failure for p in parts), "all to move on")  # noqa: B023
            assert not any(part.failure for part in parts), parts
            if number % 5 == 4:
                daemon.kill_everything()
                daemon = started(data, listen)
                kills += 1
            else:
                kills += kill(daemon, SHARDS if number % 2 else SHARDS - 1)
        load.stop()
        for part in producers:
            part.join()
        load.end()
        for part in parts:
            part.join()
        with Client(load.url) as client:
            stored = {topic: list(client.read(topic)) for topic in load.sent}
    finally:
        load.stop()
        daemon.kill_everything()
    assert kills == KILLS
    for topic, records in stored.items():
        check(load, topic, records)


def started(data: Path, listen: str) -> Daemon:
    """A daemon that is ready."""
    daemon = Daemon(data, shards=SHARDS, listen=listen)
    daemon.start()
    daemon.wait_ready()
    return daemon
