"""Streams over real sockets and the real loop: what the tests in memory take for granted."""

from __future__ import annotations

from delivery.streams.outlet import Outlet
from delivery.streams.wire import LAST_CHUNK, chunk
from tests.daemon.http.front import Client, Front, get, serving

BIG = chunk(b"x" * (32 << 20))  # more than the sockets' buffers hold


def opened(front: Front, client: Client) -> Outlet:
    """A stream whose owner notes what happens in ``front.script.closed``."""
    script = front.script
    count = len(script.outlets)
    client.send(get("/stream"))
    script.wait(lambda: len(script.outlets) > count)
    outlet = script.outlets[-1]
    outlet.drained = lambda: script._closed("drained")
    outlet.closed_by_peer = lambda: script._closed("peer")
    answer = client.answer()
    assert answer.headers["transfer-encoding"] == "chunked"
    return outlet


def test_a_write_that_the_socket_takes_leaves_the_stream_writable() -> None:
    with serving() as front, front.client() as client:
        outlet = opened(front, client)

        def write() -> bool:
            outlet.write(chunk(b"tick"))
            return outlet.writable

        assert front.call(write)
        assert client.take(9) == b"4\r\ntick\r\n"
        assert not front.script.closed


def test_a_write_that_the_socket_does_not_take_drains_when_the_client_reads() -> None:
    with serving() as front, front.client() as client:
        outlet = opened(front, client)

        def write() -> bool:
            outlet.write(BIG)
            return outlet.writable

        assert not front.call(write)
        assert client.take(len(BIG)) == BIG
        front.script.wait(lambda: front.script.closed == ["drained"])
        assert front.call(lambda: outlet.writable)


def test_a_client_that_closes_while_bytes_wait_is_noticed() -> None:
    with serving() as front:
        with front.client() as client:
            outlet = opened(front, client)
            front.call(lambda: outlet.write(BIG))
        front.script.wait(lambda: front.script.closed == ["peer"])
        front.drained()
        assert not len(front.server.streams)


def test_an_idle_client_that_closes_or_half_closes_is_noticed() -> None:
    with serving() as front, front.client() as half:
        opened(front, half)
        with front.client() as client:
            opened(front, client)
        front.script.wait(lambda: front.script.closed == ["peer"])
        half.half_close()
        front.script.wait(lambda: front.script.closed == ["peer", "peer"])
        assert half.take(len(LAST_CHUNK)) == LAST_CHUNK
        assert half.ended()
        front.drained()


def test_a_stream_that_ends_is_read_whole_and_the_connection_ends() -> None:
    with serving() as front, front.client() as client:
        outlet = opened(front, client)
        front.call(lambda: outlet.write(BIG))
        front.call(lambda: outlet.end(chunk(b"bye")))
        whole = BIG + chunk(b"bye") + LAST_CHUNK
        assert client.take(len(whole)) == whole
        assert client.ended()


def test_a_client_that_takes_nothing_is_dropped_in_the_end() -> None:
    with serving(write_timeout_ms=200) as front, front.client() as client:
        outlet = opened(front, client)
        front.call(lambda: outlet.write(BIG))
        front.drained()
        assert front.script.closed == ["peer"]
