"""TLS between a socket and a connection, without a socket: which handshakes end, and when."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from daemon.http.connection import Connection
from daemon.http.server import Server
from daemon.tls.certificate import Certificate, Files
from daemon.tls.transport import HANDSHAKE_TIMEOUT_MS, Tls, TlsTransport
from tests.daemon.http.front import Script
from tests.daemon.http.memory_transport import MemoryTransport
from tests.e2e.secured import Authority


class Line:
    """A client, and the server's side of its connection."""

    def __init__(self, tls: Tls, server: Server, authority: Authority) -> None:
        self.tls = tls
        self.tcp = MemoryTransport()
        self.transport = TlsTransport(tls, Connection(server))
        self.tcp.protocol = cast(Connection, self.transport)
        self.transport.connection_made(self.tcp)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.engine = authority.context.wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )

    def say(self, step: Callable[[], object]) -> None:
        """The client does something, and the server gets what it says."""
        with suppress(ssl.SSLWantReadError):
            step()
        said = self.outgoing.read()
        if said:
            self.transport.get_buffer(-1)[: len(said)] = said
            self.transport.buffer_updated(len(said))
        self.incoming.write(bytes(self.tcp.written))
        self.tcp.written.clear()

    def shake(self) -> None:
        for _ in range(3):
            self.say(self.engine.do_handshake)


@pytest.fixture
def made(tmp_path: Path) -> Callable[[int], tuple[Tls, Callable[[], Line]]]:
    """What the connections share, for N handshakes at most, and what opens one."""
    authority = Authority(tmp_path)
    pair = Certificate(Files(authority.certificate, authority.key, None)).in_force

    def front(handshakes_max: int) -> tuple[Tls, Callable[[], Line]]:
        tls = Tls(pair, handshakes_max)
        server = Server()
        server.application = Script()
        return tls, lambda: Line(tls, server, authority)

    return front


Made = Callable[[int], tuple[Tls, Callable[[], Line]]]


def test_one_handshake_too_many_ends_the_oldest(made: Made) -> None:
    tls, connect = made(2)
    done = connect()
    done.shake()
    first, second, third = connect(), connect(), connect()
    assert first.tcp.closed and not (second.tcp.closed or third.tcp.closed or done.tcp.closed)
    assert tls.failures == 1


def test_a_handshake_has_five_seconds_and_a_connection_has_more(made: Made) -> None:
    tls, connect = made(10)
    done, silent = connect(), connect()
    done.shake()
    since_ns = tls.oldest_ns
    assert since_ns is not None
    ended = []
    for waited_ms in (HANDSHAKE_TIMEOUT_MS - 1, HANDSHAKE_TIMEOUT_MS):
        tls.end_overdue(since_ns + waited_ms * 1_000_000)
        ended.append((silent.tcp.closed, done.tcp.closed))
    assert ended == [(False, False), (True, False)]
    assert tls.oldest_ns is None


async def test_all_sockets_show_the_certificate_that_is_in_force(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = Files(authority.certificate, authority.key, None)
    former = Certificate(files).in_force
    authority.issue()
    later = Certificate(files).in_force
    shown: list[bytes | None] = []
    server = Server()
    await server.start(Script(), "127.0.0.1", 0)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    server.serve_certificate(former)
    for listener in listeners:  # as a standby has one for each shard to come
        await server.listen_by_tls(listener)
    server.serve_certificate(later)
    for listener in listeners:
        _, writer = await asyncio.open_connection(
            *listener.getsockname(), ssl=authority.context, server_hostname="localhost"
        )
        shown.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()
        await writer.wait_closed()
    await server.close()
    own, end, _ = authority.certificate.read_text().partition("-----END CERTIFICATE-----")
    assert shown == 2 * [ssl.PEM_cert_to_DER_cert(own + end)]
