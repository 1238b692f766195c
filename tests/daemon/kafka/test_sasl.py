"""Connections of Kafka's protocol that show a token, or do not, and what limits do to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from daemon.access.access import Access
from daemon.access.allowance import Allowance, Allowances
from daemon.access.token_file import Scope, TokenFile
from daemon.kafka import connection, receiving, server
from daemon.kafka.served import OPEN, SERVED
from daemon.kafka.server import KafkaServer
from shards.clock import monotonic_ns
from tests.daemon.intake.test_copies import Outbox
from tests.daemon.kafka.frames import Key, authenticate, blob, frame, handshake, naming, plain
from tests.daemon.kafka.test_producing import produce_frame
from tests.daemon.kafka.test_server import Streams, serve

Connect = Callable[[], Coroutine[Any, Any, Streams]]
Test = Callable[[KafkaServer, Connect], Coroutine[Any, Any, None]]
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, FAILED = 33, 34, 58


class Tokens:
    """A server that needs a token, and one that it knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = TokenFile(folder / "tokens.json")
        self.good = self.issue("good")

    def issue(self, name: str, **limits: float) -> str:
        return self.file.issue(name, [Scope.PRODUCE], limits=limits)[1]

    def serve(self, test: Test) -> None:
        def access(made: Outbox) -> Access:
            return Access(self.file.path, allowances=Allowances(made.segment, 0, {}))

        async def run(_: Outbox, served: KafkaServer, connect: Connect) -> None:
            async with asyncio.timeout(60):
                await test(served, connect)

        serve(self.folder, run, access)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


async def answer(reader: asyncio.StreamReader) -> bytes:
    """The next answer without its number."""
    return (await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))[4:]


async def ended(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


def error_of(said: bytes) -> int:
    return int.from_bytes(said[:2], "big")


@pytest.mark.parametrize(
    ("mechanism", "version", "form"),
    [
        ("PLAIN", 1, "\0anybody\0{}"),
        ("PLAIN", 1, "same\0same\0{}"),
        ("PLAIN", 0, "\0anybody\0{}"),
        ("OAUTHBEARER", 1, "n,,\1auth=Bearer {}\1\1"),
        ("OAUTHBEARER", 0, "n,,\1host=h\1auth=bearer {}\1\1"),
    ],
)
def test_a_token_that_is_shown_lets_a_client_in(
    tokens: Tokens, mechanism: str, version: int, form: str
) -> None:
    said = form.format(tokens.good).encode()

    async def test(served: KafkaServer, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(frame(Key.API_VERSIONS) + handshake(mechanism, version))
        assert error_of(await answer(reader)) == 0
        assert error_of(await answer(reader)) == 0
        if version == 0:
            writer.write(blob(said))
            assert await reader.readexactly(4) == bytes(4), "it says nothing more"
        else:
            writer.write(authenticate(said))
            assert await answer(reader) == b"\0\0\xff\xff" + bytes(12)
        writer.write(naming(Key.METADATA, "dest"))
        assert b"dest" in await answer(reader)
        writer.close()

    tokens.serve(test)


@pytest.mark.parametrize(
    ("mechanism", "form"),
    [
        ("PLAIN", "\0anybody\0hg_" + "0" * 16 + "_" + "0" * 64),
        ("PLAIN", "another\0anybody\0{}"),
        ("PLAIN", "{}"),
        ("PLAIN", "\0anybody\0{}\0"),
        ("PLAIN", "\0anybody\0\u00e9"),
        ("PLAIN", "n,,\1auth=Bearer {}\1\1"),
        ("OAUTHBEARER", "\0anybody\0{}"),
        ("OAUTHBEARER", "n,a=another,\1auth=Bearer {}\1\1"),
        ("OAUTHBEARER", "n,,\1auth=Basic {}\1\1"),
        ("OAUTHBEARER", "n,,\1\1"),
        ("SCRAM-SHA-256", ""),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_what_shows_no_token_is_told_and_ends(
    tokens: Tokens, mechanism: str, form: str, version: int
) -> None:
    said = form.format(tokens.good).encode() or b"12345678"

    async def test(served: KafkaServer, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(handshake(mechanism, version))
        said_first = await answer(reader)
        assert b"PLAIN" in said_first
        if mechanism.startswith("SCRAM"):
            assert error_of(said_first) == UNSUPPORTED_MECHANISM
        elif version:
            writer.write(authenticate(said))
            assert error_of(await answer(reader)) == FAILED
        else:
            writer.write(blob(said))
        assert await ended(reader)
        writer.close()

    tokens.serve(test)


@pytest.mark.parametrize(
    "key", sorted(key for key, row in SERVED.items() if row.scopes is not OPEN)
)
def test_nothing_is_served_before_a_token_is_shown(tokens: Tokens, key: int) -> None:
    async def test(served: KafkaServer, connect: Connect) -> None:
        for before in (b"", handshake()):
            reader, writer = await connect()
            if before:
                writer.write(before)
                assert error_of(await answer(reader)) == 0
            writer.write(naming(key, "dest"))
            assert await ended(reader)
            writer.close()

    tokens.serve(test)


@pytest.mark.parametrize("how", ["silence", "half a frame", "it goes", "large frame"])
def test_an_exchange_that_stops_halfway_ends_with_a_sentence(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    is_late = how in ("silence", "half a frame")
    monkeypatch.setattr(connection, "AUTHENTICATE_S", 0.2 if is_late else 60)
    said = {"silence": "more than", "half a frame": "more than", "it goes": "it ended before",
            "large frame": "a frame of 4097 bytes before"}[how]  # fmt: skip

    async def test(served: KafkaServer, connect: Connect) -> None:
        while True:
            reader, writer = await connect()
            writer.write(handshake())
            try:
                assert error_of(await answer(reader)) == 0
                break
            except (asyncio.IncompleteReadError, ConnectionResetError):
                assert is_late  # this process got no CPU for so long
                writer.close()
        if how == "half a frame":
            writer.write(authenticate(plain(tokens.good))[:20])
        if how == "large frame":
            writer.write((receiving.SMALL_FRAME_BYTES + 1).to_bytes(4, "big"))
        if how == "it goes":
            writer.close()
        else:
            assert await ended(reader)
            writer.close()
        for _ in iter(lambda: said in caplog.text, True):
            await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING, "headgate.kafka"):
        tokens.serve(test)
    assert "1 connections of Kafka's protocol ended before" in caplog.text


def test_who_shows_no_token_keeps_nobody_out(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)

    async def test(served: KafkaServer, connect: Connect) -> None:
        async def let_in() -> Streams:
            reader, writer = await connect()
            writer.write(handshake() + authenticate(plain(tokens.good)))
            assert [error_of(await answer(reader)) for _ in range(2)] == [0, 0]
            return reader, writer

        first, one = await let_in()
        silent, other = await connect()
        second, two = await let_in()
        assert await ended(silent)
        for reader, writer in ((first, one), (second, two)):
            writer.write(naming(Key.METADATA, "dest"))
            assert b"dest" in await answer(reader)
        late, more = await connect()
        assert await ended(late), "nobody is ended that has shown a token"
        for writer in (one, other, two, more):
            writer.close()

    tokens.serve(test)


def test_a_long_frame_of_a_token_without_the_scope_takes_no_share(tokens: Tokens) -> None:
    async def test(served: KafkaServer, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(handshake() + authenticate(plain(tokens.good)))
        assert [error_of(await answer(reader)) for _ in range(2)] == [0, 0]
        size = receiving.SMALL_FRAME_BYTES + 1
        writer.write(size.to_bytes(4, "big") + Key.FETCH.to_bytes(2, "big"))
        assert await ended(reader)
        writer.close()

    tokens.serve(test)


def test_another_token_is_not_taken_on_the_same_connection(tokens: Tokens) -> None:
    async def test(served: KafkaServer, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(handshake() + authenticate(plain(tokens.good)))
        writer.write(handshake() + authenticate(plain(tokens.issue("another"))))
        errors = [error_of(await answer(reader)) for _ in range(4)]
        assert errors == [0, 0, ILLEGAL_STATE, ILLEGAL_STATE]
        (open_one,) = served._open
        assert open_one.rights is not None and open_one.rights.token is not None
        assert open_one.rights.token.name == "good"
        writer.close()
        reader, writer = await connect()
        writer.write(handshake() + handshake("OAUTHBEARER"))
        assert [error_of(await answer(reader)) for _ in range(2)] == [0, ILLEGAL_STATE]
        assert await ended(reader)
        writer.close()

    tokens.serve(test)


def test_without_tokens_there_is_nothing_to_authenticate(tmp_path: Path) -> None:
    async def test(_: Outbox, served: KafkaServer, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(handshake() + naming(Key.METADATA, "dest"))
        assert error_of(await answer(reader)) == ILLEGAL_STATE
        assert b"dest" in await answer(reader)
        writer.close()

    serve(tmp_path, test)


@pytest.fixture
def debt_ns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What all tokens with a limit owe."""
    owed = [0]
    monkeypatch.setattr(Allowance, "debt_ns", lambda _: owed[0])
    monkeypatch.setattr(connection, "MUTED_LOOK_S", 0.01)
    return owed


def test_a_token_above_its_limit_is_told_for_how_long_it_is_not_read(
    tokens: Tokens, debt_ns: list[int]
) -> None:
    token = tokens.issue("limited", requests=10)

    async def test(served: KafkaServer, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(handshake() + authenticate(plain(token)))
        assert [error_of(await answer(reader)) for _ in range(2)] == [0, 0]
        asked = frame(Key.INIT_PRODUCER_ID, b"\xff\xff" + bytes(4))
        damaged = produce_frame(10)[:-1] + b"x"
        for each in (asked, len(damaged).to_bytes(4, "big") + damaged):
            debt_ns[0] = 7_000_000_000
            writer.write(each)
            await asyncio.sleep(0.1)
            assert not reader._buffer, "it is muted"  # type: ignore[attr-defined]
            debt_ns[0] = 0
            assert (await answer(reader))[:4] in (bytes(4), b"\0\0\0\1")
        charge = Allowance.charge

        def charged(self: Allowance, *args: Any) -> None:
            charge(self, *args)
            debt_ns[0] = 7_000_000_000

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Allowance, "charge", charged)
            writer.write(asked)
            assert (await answer(reader))[:4] == (7_000).to_bytes(4, "big")
        writer.close()

    tokens.serve(test)


def test_requests_of_all_connections_of_a_token_count(tokens: Tokens) -> None:
    token = tokens.issue("limited", requests=20, connections=2)
    now_ns = monotonic_ns()  # a millisecond passes after each answer, and what it tells to wait

    async def test(served: KafkaServer, connect: Connect) -> None:
        nonlocal now_ns

        def at_ns() -> int:
            return now_ns

        throttled: list[int] = []
        writers: list[asyncio.StreamWriter] = []
        for _ in range(2):
            reader, writer = await connect()
            writers.append(writer)
            writer.write(handshake() + authenticate(plain(token)))
            assert [error_of(await answer(reader)) for _ in range(2)] == [0, 0]
            for open_one in served._open:
                assert open_one.rights is not None and open_one.rights.allowance is not None
                for limited in open_one.rights.allowance._requests:
                    limited.rate._now_ns = at_ns
            writer.write(frame(Key.INIT_PRODUCER_ID, b"\xff\xff" + bytes(4)) * 12)
            for _ in range(12):
                throttled.append(int.from_bytes((await answer(reader))[:4], "big"))
                now_ns += 1_000_000 * (throttled[-1] + 1)
        assert throttled[:12] == [0] * 12 and throttled[-1] > 0
        reader, writer = await connect()
        writer.write(handshake() + authenticate(plain(token)))
        assert [error_of(await answer(reader)) for _ in range(2)] == [0, 0]
        writer.write(frame(Key.INIT_PRODUCER_ID, b"\xff\xff" + bytes(4)))
        assert await ended(reader), "it is the third one"
        for each in (writer, *writers):
            each.close()

    tokens.serve(test)
