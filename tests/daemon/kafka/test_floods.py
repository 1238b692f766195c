"""Clients that send as much as they can: what they take of the loop and of the log, and what tells
them of a batch that is lost."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from daemon.kafka import server
from daemon.kafka.budget import ITEMS_A_TURN
from daemon.kafka.connection import KafkaConnection
from daemon.kafka.server import KafkaServer
from daemon.schemas.errors import ApiError
from tests.daemon.intake.test_copies import Outbox
from tests.daemon.kafka.test_producing import produce_frame
from tests.daemon.kafka.test_receiving import waiting_for_a_frame
from tests.daemon.kafka.test_server import serve, sized


def test_small_frames_that_want_no_answer_leave_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0
    begins = KafkaConnection.begins

    def counted(connection: KafkaConnection) -> None:
        nonlocal begun
        begun += 1
        begins(connection)

    monkeypatch.setattr(KafkaConnection, "begins", counted)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        _, writer = await connect()
        _, receive = await waiting_for_a_frame(served)
        # Of version 3, with acks = 0, and no topic.
        receive(sized(b"\0\0\0\3\0\0\0\1\xff\xff\xff\xff\0\0\0\0\x75\x30\0\0\0\0") * 5_000)
        turns = [0, begun]
        while begun < 5_000:
            await asyncio.sleep(0)
            turns.append(begun)
        assert max(map(int.__sub__, turns[1:], turns)) <= ITEMS_A_TURN
        writer.close()

    serve(tmp_path, test)


@pytest.mark.parametrize("becomes", ["ack_timeout", "outcome_unknown"])
def test_who_wants_no_answer_is_closed_when_a_batch_is_lost_later(
    tmp_path: Path, becomes: str
) -> None:
    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        reader, writer = await connect()
        frame = bytearray(produce_frame(10))
        struct.pack_into(">h", frame, 12, 0)  # acks
        writer.write(sized(bytes(frame)))
        for _ in iter(lambda: made.published, 1):
            await asyncio.sleep(0.01)
        (waits,) = made.pending._waiting
        waits.request.refuse(ApiError(503, becomes, "late"))
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()

    serve(tmp_path, test)


def test_connections_beyond_the_limit_do_not_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 0)

    async def test(made: Outbox, served: KafkaServer, connect: Any) -> None:
        for _ in range(20):
            reader, writer = await connect()
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    serve(tmp_path, test)
    said = [each for each in caplog.messages if "beyond the limit" in each]
    assert said == [
        f"{count} connections beyond the limit of 0 were closed" for count in (1, 2, 4, 8, 16)
    ]
