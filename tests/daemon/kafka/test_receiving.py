"""Requests as they arrive on connections in one process: what they hold, and for how long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from daemon.kafka import budget, connection, messages, receiving
from daemon.kafka.groups import group
from daemon.kafka.served import SERVED
from daemon.kafka.server import KafkaServer
from tests.daemon.intake.test_copies import Outbox
from tests.daemon.kafka.frames import Key
from tests.daemon.kafka.test_producing import BIG, error_of, produce_frame
from tests.daemon.kafka.test_server import BODY_BYTES_MAX, VERSIONS, metadata_of, serve, sized

LONGEST = BODY_BYTES_MAX + receiving.FRAME_HEADS_BYTES


def test_a_frame_that_does_not_come_to_its_end_gives_its_bytes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "FRAME_S", 0.1)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        size = LONGEST
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


def test_who_announces_a_long_frame_and_does_not_send_it_holds_nothing(tmp_path: Path) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        size = LONGEST
        silent = [await connect() for _ in range(3)]
        for _, writer in silent:
            writer.write(size.to_bytes(4, "big") + b"\0\0")
        for _ in iter(lambda: len(served._open), 3):
            await asyncio.sleep(0.01)
        reader, writer = await connect()
        writer.write(sized(produce_frame(6_000)))
        for _ in iter(lambda: made.published, 1):
            await asyncio.sleep(0.01)
        assert served._receiver._frames._free_bytes == 2 * size
        made.commit_all()
        assert await reader.readexactly(8)
        for _, each in [*silent, (reader, writer)]:
            each.close()

    serve(tmp_path, test)


def test_a_frame_that_stops_on_its_way_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "STALL_S", 0.05)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        size = LONGEST
        reader, writer = await connect()
        writer.write(size.to_bytes(4, "big") + bytes(receiving.EARLY_BYTES + 10))
        assert await reader.read() == b"" and served._receiver._frames._free_bytes == 2 * size
        writer.close()

    serve(tmp_path, test)


def test_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "IDLE_S", 0.05)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        assert await reader.read() == b""
        writer.close()

    serve(tmp_path, test)


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
    monkeypatch.setattr(receiving, "FRAME_BYTES_MAX", 100_000)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(start)
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b"", "it is closed"
        writer.close()

    serve(tmp_path, test)


def test_requests_that_wait_take_no_place_of_batches(tmp_path: Path) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        await served._receiver._others.take(receiving.FRAMES_BYTES_MAX)
        waiting, one = await connect()
        one.write(metadata_of(500))
        reader, writer = await connect()
        writer.write(sized(produce_frame(10_000)))
        for _ in iter(lambda: made.published, 1):
            await asyncio.sleep(0.01)
        made.commit_all()
        assert await reader.readexactly(8)
        served._receiver._others.give_back(receiving.FRAMES_BYTES_MAX)
        assert await waiting.readexactly(8)
        one.close()
        writer.close()

    serve(tmp_path, test)


@pytest.mark.parametrize("names", [10, 21])
def test_a_thread_reads_a_long_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: int
) -> None:
    for module in (receiving, budget):
        monkeypatch.setattr(module, "ITEMS_OF_A_TURN", 10)
    threads: list[str] = []

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            found = real(*args)
            threads.append(threading.current_thread().name)
            return found

        return call

    row = SERVED[Key.METADATA]
    monkeypatch.setitem(SERVED, Key.METADATA, row._replace(read=noted(row.read)))
    monkeypatch.setattr(messages, "metadata", noted(messages.metadata))

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
    monkeypatch.setattr(receiving, "FRAMES_BYTES_MAX", 6_000)
    monkeypatch.setattr(group, "FIRST_REBALANCE_MS", 600_000)

    def join() -> bytes:
        def text(value: bytes) -> bytes:
            return len(value).to_bytes(2, "big") + value

        metadata = bytes(9_000)
        return (
            Key.JOIN_GROUP.to_bytes(2, "big") + b"\0\0\0\0\0\7\xff\xff" + text(b"g")
            + (600_000).to_bytes(4, "big") + text(b"") + text(b"consumer")
            + (1).to_bytes(4, "big") + text(b"range") + len(metadata).to_bytes(4, "big") + metadata
        )  # fmt: skip

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        members = [await connect() for _ in range(3)]
        for _, writer in members:
            writer.write(sized(join()))
        groups = served._coordinator
        for _ in iter(lambda: len(getattr(groups._groups.get("g"), "members", ())), 3):
            await asyncio.sleep(0.01)
        groups._groups["g"]._rebalance_ends_ms = 0  # not before all are there
        groups._settle("g", groups._groups["g"])
        for reader, writer in members:
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            assert answer[4:10] == b"\0\0\0\0\0\1", "all are in the first generation"
            writer.close()

    serve(tmp_path, test)


def numbered(size: int, number: int) -> bytes:
    frame = produce_frame(size)
    return sized(frame[:4] + number.to_bytes(4, "big") + frame[8:])


async def answers_of(reader: asyncio.StreamReader, count: int) -> list[tuple[int, int]]:
    """The numbers and errors of the next answers."""
    found = []
    for _ in range(count):
        said = bytearray(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
        found.append((int.from_bytes(said[:4]), error_of(said)))
    return found


async def waiting_for_a_frame(
    served: KafkaServer,
) -> tuple[connection.KafkaConnection, Callable[[bytes], None]]:
    """The connection that is open, and what its transport calls with its bytes."""
    for _ in iter(lambda: any(each._arrivals.take for each in served._open), True):
        await asyncio.sleep(0.01)
    (open_one,) = served._open
    return open_one, open_one._writer.transport.get_protocol().data_received  # type: ignore[attr-defined]


@pytest.mark.parametrize("cut", [1, 3, 70, 100, 250, 10_000])
def test_requests_are_the_same_however_their_bytes_arrive(tmp_path: Path, cut: int) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        damaged = bytearray(numbered(30, 3))
        damaged[-1] ^= 1
        sent = numbered(10, 1) + numbered(9_000, 2) + damaged + numbered(20, 4)
        open_one, receive = await waiting_for_a_frame(served)
        for at in range(0, len(sent), cut):
            receive(sent[at : at + cut])
            if not at % 17:
                await asyncio.sleep(0)
        for _ in iter(lambda: made.published, 3):
            await asyncio.sleep(0.01)
        assert made.ring.used_bytes > 9_030
        made.commit_all()
        assert await answers_of(reader, 4) == [(1, 0), (2, 0), (3, 2), (4, 0)]
        assert not open_one._arrivals.unread
        writer.close()

    serve(tmp_path, test)


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_waits_for_the_ring_holds_up_what_its_client_sends_after_it(
    tmp_path: Path, is_whole: bool
) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        open_one, receive = await waiting_for_a_frame(served)
        await made.topics.entry("dest")
        for number in range(6):
            frame = numbered(BIG, number)
            for piece in [frame] if is_whole else [frame[:100], frame[100:]]:
                receive(piece)
        for _ in iter(lambda: (made.published, open_one._arrivals.unread), (5, 0)):
            await asyncio.sleep(0.01)
        receive(numbered(10, 6))  # which has room
        await asyncio.sleep(0.05)
        assert made.published == 5, "it must not overtake the sixth"
        made.commit_all()
        for _ in iter(lambda: made.published, 7):
            await asyncio.sleep(0.01)
        made.commit_all()
        assert await answers_of(reader, 7) == [(number, 0) for number in range(7)]
        assert served._receiver._frames._free_bytes == 2 * LONGEST
        writer.close()

    serve(tmp_path, test)


@pytest.mark.parametrize("ends", ["the client", "the server"])
def test_what_waits_for_the_ring_is_stored_if_its_client_goes_and_not_if_the_server_ends_it(
    tmp_path: Path, ends: str
) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        _, writer = await connect()
        open_one, receive = await waiting_for_a_frame(served)
        await made.topics.entry("dest")
        for number in range(6):
            receive(numbered(BIG, number))
        assert made.published == 5 and open_one.unfinished is not None
        if ends == "the client":
            writer.transport.abort()
            await asyncio.sleep(0.1)
            made.commit_all()
        else:
            served._open[open_one].cancel()
        for _ in iter(lambda: len(served._open), 0):
            await asyncio.sleep(0.01)
        made.commit_all()
        await asyncio.sleep(0.1)
        assert made.published == (6 if ends == "the client" else 5)
        assert served._receiver._frames._free_bytes == 2 * LONGEST
        writer.close()

    serve(tmp_path, test)


def test_after_what_ends_a_connection_nothing_of_it_is_begun(tmp_path: Path) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        _, writer = await connect()
        open_one, receive = await waiting_for_a_frame(served)
        await made.topics.entry("dest")
        receive(numbered(10, 1))
        open_one.fail(TimeoutError())
        receive(numbered(10, 2))  # in the same turn of the loop
        for _ in iter(lambda: len(served._open), 0):
            await asyncio.sleep(0.01)
        assert made.published == 1
        writer.close()
        made.commit_all()

    serve(tmp_path, test)
