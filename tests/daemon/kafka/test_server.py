"""Connections of Kafka's protocol in one process: how many there are, their answers, their end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from daemon.access.access import Access
from daemon.access.allowance import Allowances
from daemon.config import load
from daemon.kafka import connection, receiving, server
from daemon.kafka.admin.administration import Administration
from daemon.kafka.admin.configs import Configs
from daemon.kafka.fetching import KafkaReads
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.coordinator import Coordinator
from daemon.kafka.groups.expiry import GroupExpiry
from daemon.kafka.served import KafkaParts
from daemon.kafka.server import KafkaServer
from daemon.kafka.topics import KafkaTopics
from daemon.schemas.errors import ApiError
from delivery.reading.waiters import Waiters
from shards.clock import monotonic_ns, wall_ms
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.frames import Key
from tests.daemon.kafka.test_producing import error_of, produce_frame, producer

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
BODY_BYTES_MAX = 100_000
VERSIONS = Key.API_VERSIONS.to_bytes(2, "big") + b"\0\0\0\0\0\7\xff\xff"


def sized(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def kafka_server(
    made: Outbox, names: KafkaTopics, reads: KafkaReads, access: Access | None = None
) -> KafkaServer:
    """A shard's, without a group."""
    commits = GroupCommits(
        made.ledger.write, made.ledger, lambda: True, wall_ms, wall_ms, monotonic_ns
    )
    groups = Coordinator(0, names, commits, lambda: token_hex(8), monotonic_ns)
    configs = Configs(load(None, {}, []))
    administration = Administration(names, made.topics, configs, monotonic_ns)
    parts = KafkaParts(names, producer(made), reads, groups, administration)
    expiry = GroupExpiry(groups, commits, wall_ms)
    return KafkaServer(parts, expiry, BODY_BYTES_MAX, access)


def serve(
    directory: Path,
    test: Callable[[Outbox, KafkaServer, Callable[[], Coroutine[Any, Any, Streams]]],
                   Coroutine[Any, Any, None]],
    access: Callable[[Outbox], Access] = lambda _: Access(None),
) -> None:  # fmt: skip
    async def run(made: Outbox) -> None:
        names = KafkaTopics(made.topics, (9000,), "file:///store", auto_create=True)
        reads = KafkaReads(names, None, Waiters())  # type: ignore[arg-type]  # nothing is read
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        port = listener.getsockname()[1]
        served = kafka_server(made, names, reads, access(made))
        await served.start([listener.detach()])
        try:
            await test(made, served, lambda: asyncio.open_connection("127.0.0.1", port))
        finally:
            await served.close()

    with outbox_in(directory) as made:
        asyncio.run(run(made))


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


def test_the_answers_of_a_commit_go_out_in_one_write(tmp_path: Path) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sized(produce_frame(10)) * 4 + sized(VERSIONS))
        for _ in iter(lambda: made.published, 4):
            await asyncio.sleep(0.01)
        (open_one,) = served._open
        for _ in iter(lambda: len(open_one._answers), 5):
            await asyncio.sleep(0.01)
        written: list[int] = []
        write = open_one._writer.write

        def counted(data: bytes) -> None:
            written.append(len(data))
            write(data)

        open_one._writer.write = counted  # type: ignore[method-assign,assignment]
        made.commit_all()
        for _ in range(5):
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        assert len(written) == 1 and not open_one._answers
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


def test_for_one_more_who_was_silent_the_longest_gives_way_and_nobody_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(server, "GIVES_WAY_S", 0)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        streams = [await connect() for _ in range(3)]
        waits, silent, served_last = streams
        waits[1].write(sized(produce_frame(10)))
        for _ in iter(lambda: made.published, 1):
            await asyncio.sleep(0.01)
        for reader, writer in (silent, served_last):
            writer.write(sized(VERSIONS))
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        silent[1].write(b"\0\0")  # the beginning of a size
        for more in (silent, served_last):  # in this order
            streams.append(await connect())
            assert await more[0].read() == b""
            reader, writer = streams[-1]
            writer.write(sized(VERSIONS))
            assert await reader.readexactly(8)
        made.commit_all()
        assert await waits[0].readexactly(4)
        for _, writer in streams:
            writer.close()

    serve(tmp_path, test)


def metadata_of(names: int, size: int = 240) -> bytes:
    """A Metadata of version 4 that creates nothing, of topics that are not there."""
    asked = b"".join(size.to_bytes(2, "big") + f"{each:0{size}}".encode() for each in range(names))
    return sized(b"\0\3\0\4\0\0\0\7\xff\xff" + names.to_bytes(4, "big") + asked + b"\0")


def test_who_takes_no_answer_is_closed_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WRITE_S", 0.1)
    monkeypatch.setattr(connection, "CLOSE_S", 0.1)
    monkeypatch.setattr(receiving, "FRAMES_BYTES_MAX", 150_000)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sized(VERSIONS))
        assert await reader.readexactly(8)
        (open_one,) = served._open
        for _ in range(connection.ANSWERS_MAX):
            open_one.answer(bytearray(10 << 20))
        writer.write(metadata_of(500))  # what waits for its turn, with its share
        async with asyncio.timeout(60):
            for _ in iter(lambda: bool(served._open), False):
                await asyncio.sleep(0.02)
        monkeypatch.setattr(connection, "WRITE_S", 60)  # for its client, who is in this process
        other, more = await connect()
        more.write(metadata_of(500))
        async with asyncio.timeout(60):
            assert len(await other.readexactly(120_000)) == 120_000
        writer.close()
        more.close()

    serve(tmp_path, test)


def test_answers_that_are_written_come_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_S", 60)  # for its client, who is in this process

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


def test_a_connection_that_is_cancelled_at_its_end_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_S", 600)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sized(VERSIONS))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        ((open_one, task),) = served._open.items()
        open_one.allowance = Allowances(made.segment, 0, {"connections": 5}).of_all
        assert open_one.allowance is not None
        counted = open_one.allowance._connections[0].now
        open_one.allowance.count_connection(1)
        open_one.answer(bytearray(20 << 20))
        for _ in iter(lambda: open_one._is_written, True):
            await asyncio.sleep(0.01)
        writer.write(sized(b"no request"))  # which ends it
        for _ in iter(lambda: open_one.has_ended, True):
            await asyncio.sleep(0.01)
        assert counted.total() == 1
        task.cancel()
        await asyncio.wait({task})
        assert counted.total() == 0 and open_one._writer.transport.is_closing()
        assert not served._open and not open_one._answers
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
        async with asyncio.timeout(60):
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
        for _ in iter(lambda: bool(open_one._reader._buffer) or len(open_one._answers) > 2, True):  # type: ignore[attr-defined]
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
