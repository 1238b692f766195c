"""Connections of which a request waits for its admission: what they read, and when they end."""

from __future__ import annotations

import asyncio
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.http.connection import Connection
from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from tests.daemon.http.front import Script, chunked, get, post, serving
from tests.daemon.http.memory_transport import MemoryTransport, connect
from tests.e2e.load import read_answer
from tests.long import examples

MS = 1_000_000


def server_with(**limits: int) -> tuple[Server, Script]:
    server = Server()
    server.application = script = Script()
    server.limits = HttpLimits(**limits)
    return server, script


class Peer:
    """A client with a socket: what is not read stays there, and so does its end."""

    def __init__(self, connection: Connection, transport: MemoryTransport) -> None:
        self.connection = connection
        self.transport = transport
        self.unsent = b""
        self.has_left = False

    def flow(self, count: int = 1 << 30) -> None:
        """The loop reads, ``count`` bytes at a time."""
        while self.unsent and not self.transport.paused and not self.transport.closed:
            data, self.unsent = self.unsent[:count], self.unsent[count:]
            self.connection.data_received(data)
        if self.has_left and not self.unsent and not self.transport.paused:
            self.has_left = False
            if not self.connection.eof_received():
                self.transport.close()


wholes = st.one_of(
    st.builds(post, st.sampled_from(["/queue", "/echo", "/full", "/missing"]), st.binary()),
    st.builds(lambda body: post("/queue", body), st.binary(min_size=300, max_size=600)),
    st.builds(lambda chunks: chunked("/queue", *chunks), st.lists(st.binary(min_size=1))),
    st.builds(get, st.sampled_from(["/echo", "/queue"])),
)


@given(
    st.lists(wholes, min_size=1, max_size=6),
    st.lists(st.integers(1, 400), max_size=12),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=examples(300))
def test_that_requests_wait_changes_no_answer_and_no_order(
    requests: list[bytes], cuts: list[int], half_closes: bool, turned_away: bool
) -> None:
    stream = b"".join(requests)
    server, script = server_with(body_bytes_max=2_000, discard_bytes_max=2_000)
    peer = Peer(*connect(server))
    waited = 0
    for count in (*cuts, len(stream)):
        peer.unsent += stream[:count]
        stream = stream[count:]
        peer.flow()
        while script.queued:
            assert len(script.queued) == 1 and peer.transport.paused  # the others are not read
            waited += 1
            (script.turn_away if turned_away else script.let_in)()
            peer.flow()
        assert not peer.transport.paused
    peer.has_left = half_closes
    peer.flow()
    assert not script.tokens and not peer.unsent
    written = io.BytesIO(bytes(peer.transport.written))
    statuses = [answer.status for answer in iter(lambda: read_answer(written), None)]
    expected = {"/queue": 503 if turned_away else 200, "/echo": 200, "/full": 429, "/missing": 404}
    paths = [each.split(b" ")[1].decode() for each in requests]
    assert statuses == [expected[path] for path in paths]
    assert waited == paths.count("/queue")
    if not turned_away:
        handled = [path for path, _ in script.handled]
        assert handled == [path for path in paths if path in ("/queue", "/echo")]
    assert peer.transport.closed == half_closes
    peer.connection.connection_lost(None)


class TestEnds:
    def test_a_client_that_is_gone_is_forgotten(self) -> None:
        server, script = server_with()
        connection, _ = connect(server)
        connection.data_received(post("/queue", b"x" * 100)[:-1])
        assert script.queued
        connection.connection_lost(None)
        assert not script.queued

    def test_an_answer_that_ends_the_connection_ends_the_wait(self) -> None:
        server, script = server_with()
        connection, transport = connect(server)
        connection.data_received(post("/later") + post("/queue", b"x" * 100)[:-1])
        script.later[0].abandon()
        assert not script.queued
        assert transport.ended and not transport.paused
        connection.data_received(b"x" * 10)  # is thrown away
        assert not script.handled[1:]

    def test_a_stream_before_it_ends_the_wait(self) -> None:
        server, script = server_with()
        connection, transport = connect(server)
        connection.data_received(post("/later") + get("/stream") + post("/queue", b"x"))
        assert script.queued
        script.later[0].respond(200)
        assert not script.queued and not transport.paused
        assert len(script.outlets) == 1
        connection.connection_lost(None)

    def test_no_timeout_of_http_ends_a_wait_and_the_body_has_all_of_its_time_after_it(self) -> None:
        server, script = server_with(body_timeout_ms=1_000)
        connection, transport = connect(server)
        connection.data_received(post("/queue", b"x" * 100)[:-1])
        connection.check(connection.last_ns + 900_000 * MS)
        assert script.queued and not transport.ended
        script.queued[0].arrival_ns = now_ns = connection.last_ns + 900_000 * MS
        connection.last_ns = now_ns
        script.let_in()
        connection.check(connection.last_ns + 900 * MS)
        assert not transport.ended
        connection.check(connection.last_ns + 1_100 * MS)
        assert b"body_timeout" in transport.written

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_server_that_drains_serves_it_and_then_closes(self, whole: bool) -> None:
        server, script = server_with()
        connection, transport = connect(server)
        request = post("/queue", b"x" * 100)
        connection.data_received(request if whole else request[:-1])
        server.drain()
        assert not transport.ended
        script.let_in()
        if not whole:
            connection.data_received(request[-1:])
        assert b"200 OK" in transport.written and transport.ended

    def test_a_bug_while_it_is_served_is_answered_500(self) -> None:
        server, script = server_with()
        connection, transport = connect(server)
        connection.data_received(post("/queue", b"x"))
        script.handled = None  # type: ignore[assignment]
        script.let_in()
        assert b"500 Internal" in transport.written and not script.tokens


def test_over_a_socket_the_body_stays_with_the_client() -> None:
    """More is sent than sockets hold, so the client cannot end its sending before its turn."""
    body = b"x" * 15_000_000
    with serving() as front, front.client() as client:
        request = post("/queue", body)
        client.sock.setblocking(False)
        sent = 0
        while sent < len(request):
            try:
                sent += client.sock.send(request[sent : sent + 65_536])
            except BlockingIOError:
                if front.script.queued and sent > 300_000:
                    break
        assert sent < len(request)
        front.call(front.script.let_in)
        client.sock.settimeout(60)
        client.send(request[sent:])
        assert client.answer().status == 200
        assert front.script.handled == [("/queue", body)]


def test_the_more_connections_there_are_the_fewer_requests_a_new_one_may_leave_unanswered() -> None:
    server, script = server_with(
        connections_max=16, connections_per_address_max=16, connections_told_max=0,
        requests_outstanding_max=8, requests_shared_out=16,
    )  # fmt: skip

    async def connect_all() -> None:
        for _ in range(16):
            connection, _ = connect(server)
            connection.data_received(get("/later") * 10)

    asyncio.run(connect_all())
    shares = [8, 8, 5, 4, 3, 2, 2, 2, *[1] * 8]
    assert len(script.later) == sum(shares) == server.limits.all_outstanding_max
    assert HttpLimits().outstanding_max(0) == HttpLimits().outstanding_max(255) == 128
