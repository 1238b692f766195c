"""Connections of Kafka's protocol in one process: what they hold, for how long, and their end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from daemon.kafka import budget, messages, server
from daemon.kafka.fetching import KafkaReads
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.coordinator import Coordinator
from daemon.kafka.server import KafkaServer
from daemon.kafka.topics import KafkaTopics
from daemon.kafka.wire import Key
from daemon.schemas.errors import ApiError
from delivery.reading.waiters import Waiters
from shards.clock import monotonic_ns, wall_ms
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.test_producing import error_of, produce_frame, producer

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
BODY_BYTES_MAX = 100_000
VERSIONS = Key.API_VERSIONS.to_bytes(2, "big") + b"\0\0\0\0\0\7\xff\xff"


def sized(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def coordinator(made: Outbox, names: KafkaTopics) -> Coordinator:
    """A shard's, without a group."""
    commits = GroupCommits(made.ledger.write, made.ledger, lambda: True, wall_ms, monotonic_ns)
    return Coordinator(0, names, commits, lambda: token_hex(8), monotonic_ns)


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
        groups = coordinator(made, names)
        served = KafkaServer(names, producer(made), reads, groups, None, BODY_BYTES_MAX)
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


def metadata_of(names: int, size: int = 240) -> bytes:
    """A Metadata of version 4 that creates nothing, of topics that are not there."""
    asked = b"".join(size.to_bytes(2, "big") + f"{each:0{size}}".encode() for each in range(names))
    return sized(b"\0\3\0\4\0\0\0\7\xff\xff" + names.to_bytes(4, "big") + asked + b"\0")


@pytest.mark.parametrize(
    "start",
    [
        (100_001).to_bytes(4, "big") + b"\0\3\0\4",
        (64 << 10).to_bytes(4, "big") + b"\0\3\0\4\0\0\0\7\xff\xff" + (10_001).to_bytes(4, "big")
        + b"\0" * 70_000,
        sized(b"\0\3\0\x0c\0\0\0\7\xff\xff" + b"\x41" + b"\0\0" * 65 + bytes(500)),
        sized(
            b"\0\3\0\x0c\0\0\0\7\xff\xff\0" + b"\x03"
            + (bytes(16) + b"\2t" + b"\x21" + b"\0\0" * 33) * 2 + b"\0\0"
        ),
    ],
    ids=["bytes", "items", "tags", "tags of all"],
)  # fmt: skip
def test_requests_other_than_produce_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(server, "FRAME_BYTES_MAX", 100_000)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(start)
        async with asyncio.timeout(2):
            with suppress(ConnectionResetError):
                assert await reader.read() == b"", "it is closed"
        writer.close()

    serve(tmp_path, test)


def test_who_takes_no_answer_is_closed_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WRITE_S", 0.1)
    monkeypatch.setattr(server, "CLOSE_S", 0.1)
    monkeypatch.setattr(server, "FRAMES_BYTES_MAX", 150_000)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sized(VERSIONS))
        assert await reader.readexactly(8)
        (open_one,) = served._open
        for _ in range(server.ANSWERS_MAX):
            open_one.answer(bytearray(10 << 20))
        writer.write(metadata_of(500))  # what waits for its turn, with its share
        async with asyncio.timeout(3):
            for _ in iter(lambda: bool(served._open), False):
                await asyncio.sleep(0.02)
        other, more = await connect()
        more.write(metadata_of(500))
        async with asyncio.timeout(3):
            assert len(await other.readexactly(120_000)) == 120_000
        writer.close()
        more.close()

    serve(tmp_path, test)


def test_requests_that_wait_take_no_place_of_batches(tmp_path: Path) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        await served._others.take(server.FRAMES_BYTES_MAX)
        waiting, one = await connect()
        one.write(metadata_of(500))
        reader, writer = await connect()
        writer.write(sized(produce_frame(10_000)))
        for _ in iter(lambda: made.published, 1):
            await asyncio.sleep(0.01)
        made.commit_all()
        assert await reader.readexactly(8)
        served._others.give_back(server.FRAMES_BYTES_MAX)
        assert await waiting.readexactly(8)
        one.close()
        writer.close()

    serve(tmp_path, test)


def test_answers_that_are_written_come_before_the_end(tmp_path: Path) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sized(VERSIONS))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        (open_one,) = served._open
        size = 20 << 20
        open_one.answer(bytearray(size))
        await asyncio.sleep(0.05)
        writer.write(sized(b"no request"))  # which ends it
        assert len(await reader.readexactly(size + 4)) == size + 4
        assert await reader.read() == b""
        writer.close()

    serve(tmp_path, test)


def test_a_connection_of_which_nothing_more_comes_ends_after_such_a_refusal_too(
    tmp_path: Path,
) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sized(produce_frame(10)))
        for _ in iter(lambda: made.published, 1):
            await asyncio.sleep(0.01)
        (waiting,) = made.pending._waiting
        waiting.request.refuse(ApiError(503, "ack_timeout", "late"))
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert error_of(bytearray(await reader.readexactly(size))) == 7
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()
        made.commit_all()

    serve(tmp_path, test)


def test_a_refusal_that_is_retried_ends_the_connection_after_its_answers(tmp_path: Path) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()

        async def answered() -> int:
            size = int.from_bytes(await reader.readexactly(4), "big")
            return error_of(bytearray(await reader.readexactly(size)))

        writer.write(sized(produce_frame(10)) * 2)
        for _ in iter(lambda: made.published, 2):
            await asyncio.sleep(0.01)
        first, second = made.pending._waiting
        first.request.refuse(ApiError(503, "ack_timeout", "late"))
        assert await answered() == 7
        writer.write(sized(produce_frame(10)))  # sent before its client knew
        (open_one,) = served._open
        for _ in iter(lambda: len(open_one._answers), 2):
            await asyncio.sleep(0.01)
        writer.write(sized(produce_frame(10)))  # which nobody reads
        for _ in iter(lambda: bool(open_one.reader._buffer) or len(open_one._answers) > 2, True):  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        assert len(open_one._answers) == 2
        second.request.refuse(ApiError(503, "ack_timeout", "it was after the first"))
        assert (await answered(), await answered()) == (7, 7)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert made.published == 2
        writer.close()
        made.commit_all()

    serve(tmp_path, test)


@pytest.mark.parametrize("names", [10, 21])
def test_a_thread_reads_a_long_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: int
) -> None:
    for module in (server, budget):
        monkeypatch.setattr(module, "ITEMS_OF_A_TURN", 10)
    threads: list[str] = []
    for name in ("read_metadata", "metadata"):
        real = getattr(messages, name)

        def noted(*args: Any, real: Any = real) -> Any:
            found = real(*args)
            threads.append(threading.current_thread().name)
            return found

        monkeypatch.setattr(messages, name, noted)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(metadata_of(names, 10))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        here = threading.current_thread().name
        assert len(threads) == 2
        assert [each == here for each in threads] == [names == 10] * 2
        writer.close()

    serve(tmp_path, test)


def test_members_who_wait_for_others_hold_nothing_that_the_others_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FRAMES_BYTES_MAX", 6_000)

    def join() -> bytes:
        def text(value: bytes) -> bytes:
            return len(value).to_bytes(2, "big") + value

        metadata = bytes(9_000)
        return (
            Key.JOIN_GROUP.to_bytes(2, "big") + b"\0\0\0\0\0\7\xff\xff" + text(b"g")
            + (10_000).to_bytes(4, "big") + text(b"") + text(b"consumer")
            + (1).to_bytes(4, "big") + text(b"range") + len(metadata).to_bytes(4, "big") + metadata
        )  # fmt: skip

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        members = [await connect() for _ in range(3)]
        for _, writer in members:
            writer.write(sized(join()))
        for reader, writer in members:
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            assert answer[4:10] == b"\0\0\0\0\0\1", "all are in the first generation"
            writer.close()

    serve(tmp_path, test)
