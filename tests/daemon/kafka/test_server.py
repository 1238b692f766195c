"""Connections of Kafka's protocol in one process: what they hold, for how long, and their end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from daemon.kafka import server
from daemon.kafka.fetching import KafkaReads
from daemon.kafka.server import KafkaServer
from daemon.kafka.topics import KafkaTopics
from daemon.kafka.wire import Key
from delivery.reading.waiters import Waiters
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.test_producing import error_of, produce_frame, producer

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
BODY_BYTES_MAX = 100_000
VERSIONS = Key.API_VERSIONS.to_bytes(2, "big") + b"\0\0\0\0\0\7\xff\xff"


def sized(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def serve(
    directory: Path,
    test: Callable[[Outbox, KafkaServer, Callable[[], Coroutine[Any, Any, Streams]]],
                   Coroutine[Any, Any, None]],
) -> None:  # fmt: skip
    async def run(made: Outbox) -> None:
        names = KafkaTopics(made.topics, (9000,), "file:///store", auto_create=True)
        reads = KafkaReads(names, None, Waiters())  # type: ignore[arg-type]  # nothing is read
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        port = listener.getsockname()[1]
        served = KafkaServer(names, producer(made), reads, None, BODY_BYTES_MAX)
        await served.start([listener.detach()])
        try:
            await test(made, served, lambda: asyncio.open_connection("127.0.0.1", port))
        finally:
            await served.close()

    with outbox_in(directory) as made:
        asyncio.run(run(made))


def test_a_frame_that_does_not_come_to_its_end_gives_its_bytes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FRAME_S", 0.1)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        size = BODY_BYTES_MAX + server.FRAME_HEADS_BYTES
        halves = [await connect() for _ in range(3)]
        for _, writer in halves:
            writer.write(size.to_bytes(4, "big") + b"\0" * 100)
        for reader, writer in halves:
            assert await reader.read() == b"", "it is closed"
            writer.close()
        reader, writer = await connect()
        writer.write(sized(VERSIONS + bytes(50_000)))
        assert await reader.readexactly(8)
        writer.close()

    serve(tmp_path, test)


def test_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.05)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        assert await reader.read() == b""
        writer.close()

    serve(tmp_path, test)


def test_answers_come_in_the_order_of_requests_and_before_the_end(tmp_path: Path) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sized(produce_frame(10)) + sized(VERSIONS))
        for _ in iter(lambda: made.published, 1):
            await asyncio.sleep(0.01)
        ending = asyncio.ensure_future(served.close())
        await asyncio.sleep(0.05)
        assert not ending.done(), "a batch waits for its commit"
        made.commit_all()
        first = bytearray(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
        assert first[:4] == b"\0\0\0\x09" and error_of(first) == 0
        await ending
        writer.close()

    serve(tmp_path, test)


def test_one_connection_too_many_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sized(VERSIONS))
        assert await reader.readexactly(8)
        other, more = await connect()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await other.readexactly(1)
        writer.close()
        more.close()

    serve(tmp_path, test)
