"""``headgate otlp``: what it takes and from whom; that records arrive is in
``tests/e2e/test_otlp_grpc.py``."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import parse_headers
from typing import Any, Self

import grpc
import pytest
from click.testing import CliRunner

import cli
from commands.running.otlp_server import (
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    SERVICE,
    STREAMS_MAX,
    LogsServer,
)
from compaction.access.bearer import TOKEN
from compaction.access.connection import DaemonAddress

NOBODY = "http://127.0.0.1:1"
HANG_S = 60.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LAST = OK.replace(b"OK", b"Fine")  # then the connection ends
STREAMS = 3  # SETTINGS_MAX_CONCURRENT_STREAMS of HTTP/2


def serve(look: Callable[[int], Any], url: str = NOBODY, token: str = "") -> Any:
    """What ``look`` returns, which is called in a thread with the port of a server."""

    async def main() -> Any:
        server = LogsServer(url, DaemonAddress.of(url, environ={TOKEN: token}), "logs")
        port = await server.start("127.0.0.1:0")
        try:
            return await asyncio.to_thread(look, port)
        finally:
            await server.stop()

    return asyncio.run(main())


def status(port: int, message: bytes, *metadata: tuple[str, str]) -> tuple[str, str]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(f"/{SERVICE}/Export")(message, timeout=HANG_S, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


class Daemon:
    """Keeps the heads of requests, and answers them with these bytes, one connection after the
    other. None: it ends the connection without an answer."""

    def __init__(self, *answers: bytes | None) -> None:
        self._answers = answers
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.heads: list[dict[str, str]] = []
        self.ended = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        answers = iter(self._answers)
        with suppress(OSError):
            while True:
                self._take(self._socket.accept()[0], answers)
                self.ended.set()

    def _take(self, connection: socket.socket, answers: Iterator[bytes | None]) -> None:
        with connection, connection.makefile("rb") as file:
            while file.readline():
                self.heads.append({k.lower(): v for k, v in parse_headers(file).items()})
                file.read(int(self.heads[-1]["content-length"]))
                answer = next(answers, None)
                if answer is None:
                    return
                connection.sendall(answer)
                if answer == LAST:
                    return


def settings_of(connection: socket.socket) -> dict[int, int] | None:
    """What a server of HTTP/2 says first; None if it closes the connection instead."""
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        head = received(connection, 9)
    except ConnectionError:
        return None
    if not head:
        return None
    size, kind = int.from_bytes(head[:3], "big"), head[3]
    assert kind == 4
    return dict(struct.iter_unpack(">HI", received(connection, size)))


def received(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer before an end."""
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            break
        found += more
    return found


def test_a_request_of_more_than_the_usual_4_mib_is_refused_unread() -> None:
    def look(port: int) -> list[tuple[str, str]]:
        return [status(port, bytes(REQUEST_BYTES_MAX + more)) for more in (0, 1)]

    fits, too_large = serve(look)
    assert REQUEST_BYTES_MAX == 4 << 20
    assert fits[0] == "UNAVAILABLE" and "no answer from" in fits[1]
    assert too_large[0] == "RESOURCE_EXHAUSTED" and "larger than max" in too_large[1]


def test_senders_without_a_token_have_few_messages_and_connections_at_a_time() -> None:
    def look(port: int) -> None:
        with ExitStack() as stack:
            for number in range(CONNECTIONS_MAX + 1):
                connection = socket.create_connection(("127.0.0.1", port), HANG_S)
                stack.enter_context(connection)
                found = settings_of(connection)
                if number < CONNECTIONS_MAX:
                    assert found is not None and found[STREAMS] == STREAMS_MAX
                else:
                    assert found is None

    serve(look)
    assert CONNECTIONS_MAX * STREAMS_MAX * REQUEST_BYTES_MAX == 512 << 20


@pytest.mark.parametrize(
    ("metadata", "sent"),
    [
        ((), {"authorization": "Bearer own"}),
        ((("x-api-key", "theirs"),), {"x-api-key": "theirs"}),
        ((("authorization", "Bearer theirs"),), {"authorization": "Bearer theirs"}),
    ],
)
def test_a_token_of_the_sender_goes_instead_of_the_own_one(
    metadata: tuple[tuple[str, str], ...], sent: dict[str, str]
) -> None:
    with Daemon(OK) as daemon:
        answer = serve(lambda port: status(port, b"", *metadata), daemon.url, token="own")
    assert answer == ("OK", "")
    (head,) = daemon.heads
    assert {name: head[name] for name in ("authorization", "x-api-key") if name in head} == sent


def test_a_request_that_the_daemon_may_have_is_not_sent_again_but_its_sender_is_told() -> None:
    def look(port: int) -> list[tuple[str, str]]:
        return [status(port, b"") for _ in range(3)]

    with Daemon(OK, None, OK) as daemon:
        first, lost, last = serve(look, daemon.url)
    assert first == last == ("OK", "")
    assert lost[0] == "UNAVAILABLE" and "no answer from" in lost[1]
    assert len(daemon.heads) == 3


def test_a_connection_that_the_daemon_has_ended_since_is_not_used_again() -> None:
    with Daemon(LAST, OK) as daemon:

        def look(port: int) -> list[tuple[str, str]]:
            first = status(port, b"")
            assert daemon.ended.wait(HANG_S)
            return [first, status(port, b"")]

        assert serve(look, daemon.url) == 2 * [("OK", "")]
    assert len(daemon.heads) == 2


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "headgate.example:0"])
def test_whoever_reaches_it_gets_no_rights_of_the_command_by_mistake(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv(TOKEN, "own")
    found = CliRunner().invoke(cli.headgate, ["otlp", "logs", "--listen", address, "--url", NOBODY])
    assert found.exit_code == 2
    assert "--listen must be a loopback address with a token" in found.stderr
    assert f"got {address}" in found.stderr and "--insecure-open" in found.stderr


@pytest.mark.parametrize(
    ("token", "options"),
    [("", ["--listen", "0.0.0.0:PORT"]), ("own", ["--listen", "127.0.0.1:PORT"]),
     ("own", ["--insecure-open", "--listen", "0.0.0.0:PORT"])],
)  # fmt: skip
def test_without_rights_or_with_the_flag_it_listens_anywhere(
    monkeypatch: pytest.MonkeyPatch, token: str, options: list[str]
) -> None:
    """As far as the address, which is taken."""
    monkeypatch.setenv(TOKEN, token)
    with socket.socket() as taken:  # which listens nowhere
        taken.bind(("0.0.0.0", 0))
        port = str(taken.getsockname()[1])
        given = [each.replace("PORT", port) for each in options]
        found = CliRunner().invoke(cli.headgate, ["otlp", "logs", *given, "--url", NOBODY])
    assert found.exit_code == 1 and "cannot listen on" in found.stderr
