"""Streams over a transport in memory: when they open, drain and close."""

from __future__ import annotations

import asyncio
import gc
import math

import pytest

from daemon.http.connection import Connection
from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from daemon.http.stream import Stream
from delivery.streams.outlet import Outlet
from delivery.streams.wire import LAST_CHUNK, chunk
from tests.daemon.http.front import Script, get, post
from tests.daemon.http.memory_transport import MemoryTransport, connect

MS = 1_000_000
HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n"
    b"Cache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\n"
    b"Connection: close\r\n"
    b"\r\n"
)


class Shard:
    """A server with one connection, and the events of its streams."""

    def __init__(self, limits: HttpLimits | None = None, room: float = math.inf) -> None:
        self.server = Server()
        self.server.application = self.script = Script()
        self.server.limits = limits or HttpLimits()
        self.events: list[str] = []
        self.connection, self.transport = self.connect(room)

    def connect(self, room: float = math.inf) -> tuple[Connection, MemoryTransport]:
        return connect(self.server, room)

    def open(self) -> Outlet:
        self.connection.data_received(get("/stream"))
        outlet = self.script.outlets[-1]
        outlet.drained = lambda: self.events.append("drained")
        outlet.closed_by_peer = lambda: self.events.append("closed by peer")
        return outlet

    def lose(self) -> None:
        self.transport.closed = True
        self.connection.connection_lost(None)


class TestOpening:
    def test_a_stream_begins_with_its_head_and_its_chunks_follow_immediately(self) -> None:
        shard = Shard()
        outlet = shard.open()
        assert shard.transport.written == HEAD
        outlet.write(chunk(b"one") + chunk(b"two"))
        assert shard.transport.written == HEAD + b"3\r\none\r\n3\r\ntwo\r\n"
        assert outlet.writable
        assert not outlet.closed
        assert not shard.events

    def test_a_stream_opens_when_all_earlier_requests_are_answered(self) -> None:
        shard = Shard()
        shard.connection.data_received(get("/later/1") + get("/later/2") + get("/stream"))
        shard.script.later[1].respond(200, b"second")
        assert not shard.script.outlets
        shard.script.later[0].respond(200, b"first")
        assert shard.transport.written.endswith(b"second" + HEAD)
        assert len(shard.script.outlets) == 1

    def test_requests_pipelined_after_a_stream_are_dropped(self) -> None:
        shard = Shard()
        shard.connection.data_received(
            get("/later/1") + get("/stream") + get("/later/2") + get("/stream") + b"POST /echo"
        )
        shard.script.later[0].respond(200, b"first")
        assert shard.transport.written.endswith(HEAD)
        assert shard.script.closed == ["/later/2"]
        assert shard.script.later[1].connection_closed
        shard.script.later[1].respond(200, b"second")
        assert shard.transport.written.endswith(HEAD)
        assert len(shard.script.outlets) == len(shard.server.streams) == 1

    def test_one_stream_with_a_short_target_waits_for_earlier_answers(self) -> None:
        shard = Shard()
        long = get("/stream?" + "x" * 1_100)
        shard.connection.data_received(get("/later") + long + get("/stream") + get("/stream"))
        _, refused, waiting, second = shard.connection.queue
        assert waiting.answer is not None and not isinstance(waiting.answer, tuple)
        for each in (refused, second):
            assert isinstance(each.answer, tuple)
            assert each.answer[0] == 400 and b'"pipelined"' in each.answer[1]
        first = Shard()
        first.connection.data_received(long)
        assert len(first.script.outlets) == 1

    def test_the_body_of_a_later_request_is_given_up_when_the_stream_opens(self) -> None:
        shard = Shard()
        shard.connection.data_received(get("/later") + get("/stream"))
        shard.connection.data_received(post("/echo", b"x" * 100)[:-1])
        assert len(shard.script.tokens) == 1
        shard.script.later[0].respond(200)
        assert not shard.script.tokens
        shard.connection.data_received(b"x")
        assert shard.transport.written.endswith(HEAD)

    def test_a_stream_whose_client_has_gone_before_its_turn_never_starts(self) -> None:
        shard = Shard()
        shard.connection.data_received(get("/later") + get("/stream"))
        shard.lose()
        shard.script.later[0].respond(200)
        assert not shard.script.outlets
        assert not len(shard.server.streams)

    def test_a_stream_on_a_connection_that_is_being_closed_never_starts(self) -> None:
        shard = Shard()
        shard.connection.data_received(get("/later") + get("/stream"))
        shard.transport.closed = True
        shard.script.later[0].respond(200)
        assert not shard.script.outlets
        assert not len(shard.server.streams)

    def test_a_client_that_has_half_closed_before_its_turn_gets_an_empty_stream(self) -> None:
        shard = Shard()
        shard.connection.data_received(get("/later") + get("/stream"))
        assert shard.connection.eof_received()
        shard.script.later[0].respond(200, b"first")
        assert shard.transport.written.endswith(b"first" + HEAD + LAST_CHUNK)
        assert shard.transport.closed
        assert not shard.script.outlets

    def test_a_stream_opens_after_a_request_that_said_close(self) -> None:
        shard = Shard()
        shard.connection.data_received(get("/stream", "Connection: close"))
        assert shard.transport.written == HEAD

    def test_reading_goes_on_when_a_stream_opens_on_a_connection_that_was_held_back(self) -> None:
        shard = Shard(HttpLimits(requests_outstanding_max=2))
        shard.connection.data_received(get("/later") + get("/stream") + get("/echo"))
        paused = [shard.transport.paused]
        shard.script.later[0].respond(200)
        assert [*paused, shard.transport.paused] == [True, False]
        assert not shard.connection.buffer

    def test_http_1_0_is_refused_because_it_has_no_chunks(self) -> None:
        shard = Shard()
        shard.connection.data_received(b"GET /stream HTTP/1.0\r\n\r\n")
        assert shard.transport.written.startswith(b"HTTP/1.1 400 ")
        assert b'"http_version"' in shard.transport.written
        assert b"need HTTP/1.1" in shard.transport.written

    def test_head_gets_the_head_alone_and_the_connection_goes_on(self) -> None:
        shard = Shard()
        asked = get("/stream").replace(b"GET", b"HEAD")
        shard.connection.data_received(asked + get("/free"))
        head = HEAD.replace(b"Connection: close\r\n", b"")
        assert shard.transport.written.startswith(head + b"HTTP/1.1 200 OK\r\n")
        assert not shard.script.outlets
        shard.connection.data_received(asked.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert shard.transport.written.endswith(HEAD)
        assert shard.transport.ended
        assert not len(shard.server.streams)

    def test_one_stream_too_many_is_503_with_the_limit_and_keeps_the_connection(self) -> None:
        shard = Shard(HttpLimits(streams_max=1))
        shard.open()
        connection, transport = shard.connect()
        connection.data_received(get("/stream") + get("/free"))
        assert transport.written.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in transport.written
        assert b'"too_many_streams"' in transport.written
        assert b"streams_max" in transport.written
        assert transport.written.count(b"HTTP/1.1 200 OK") == 1
        shard.lose()
        connection.data_received(get("/stream"))
        assert transport.written.endswith(HEAD)

    def test_a_stream_is_not_counted_as_a_connection(self) -> None:
        shard = Shard(HttpLimits(connections_max=1))
        shard.open()
        assert (shard.server.connections, len(shard.server.streams)) == (0, 1)
        connection, transport = shard.connect()
        connection.data_received(get("/free"))
        assert transport.written.startswith(b"HTTP/1.1 200 OK")
        connection, third = shard.connect()
        connection.data_received(get("/free"))
        assert third.written.startswith(b"HTTP/1.1 503 ")

    def test_a_start_that_fails_ends_the_connection(self, caplog: pytest.LogCaptureFixture) -> None:
        shard = Shard()
        shard.connection.data_received(get("/later"))

        def fail(_: Outlet) -> None:
            raise ZeroDivisionError("start")

        shard.script.later[0].stream("text/event-stream", fail)
        assert shard.transport.closed
        assert "ZeroDivisionError" in caplog.text


class TestDraining:
    def test_a_client_that_does_not_take_all_makes_the_stream_unwritable_until_it_has(self) -> None:
        shard = Shard(room=len(HEAD) + 3)
        outlet = shard.open()
        outlet.write(chunk(b"abcdef"))
        writable = [outlet.writable]
        shard.transport.take(7)
        writable.append(outlet.writable)
        assert not shard.events
        shard.transport.take(1)
        assert [*writable, outlet.writable] == [False, False, True]
        assert shard.events == ["drained"]

    def test_a_head_that_is_not_taken_opens_an_unwritable_stream_that_drains(self) -> None:
        shard = Shard(room=10)
        outlet = shard.open()
        writable = outlet.writable
        shard.transport.take(len(HEAD) - 10)
        assert (writable, outlet.writable) == (False, True)
        assert shard.events == ["drained"]

    def test_a_client_that_takes_nothing_is_still_heard(self) -> None:
        shard = Shard(room=len(HEAD))
        outlet = shard.open()
        outlet.write(chunk(b"x"))
        assert not shard.transport.paused
        assert not shard.connection.eof_received()
        assert outlet.closed
        assert shard.events == ["closed by peer"]

    def test_a_drained_that_fails_ends_the_stream_and_its_owner_learns_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        shard = Shard(room=len(HEAD))
        outlet = shard.open()

        def fail() -> None:
            raise ZeroDivisionError("drained")

        outlet.drained = fail
        outlet.write(chunk(b"x"))
        shard.transport.take(6)
        assert shard.transport.closed
        shard.connection.connection_lost(None)
        assert shard.events == ["closed by peer"]
        assert "ZeroDivisionError" in caplog.text


class TestBudget:
    def test_what_clients_do_not_take_is_bounded_and_the_longest_stalled_pays(self) -> None:
        shard = Shard(HttpLimits(stream_unsent_bytes_max=1000), room=len(HEAD))
        first = shard.open()
        others = [shard.connect(room=len(HEAD)) for _ in range(2)]
        for connection, _ in others:
            connection.data_received(get("/stream"))
        _, second, third = shard.script.outlets
        first.write(chunk(b"1" * 400))
        second.write(chunk(b"2" * 400))
        shard.transport.take(1)
        shard.connection.check(shard.connection._since_ns)
        third.write(chunk(b"3" * 400))
        assert [t.closed for t in (shard.transport, *(t for _, t in others))] == [
            False,
            True,
            False,
        ]
        shard.server.streams.check_invariants()
        others[0][0].connection_lost(None)
        assert second.closed
        assert not first.closed

    def test_bytes_that_many_were_given_count_once(self) -> None:
        shard = Shard(HttpLimits(stream_unsent_bytes_max=1000), room=len(HEAD))
        shard.open()
        for _ in range(9):
            shard.connect(room=len(HEAD))[0].data_received(get("/stream"))
        data = chunk(b"x" * 800)
        for outlet in shard.script.outlets:
            outlet.write(data)
        assert not any(outlet.closed for outlet in shard.script.outlets)
        assert shard.server.streams.unsent.bytes == len(data)
        assert not shard.transport.closed
        shard.transport.take(len(data))
        assert len(shard.server.streams.unsent) == 9

    def test_the_last_bytes_of_a_stream_are_counted_until_they_are_taken(self) -> None:
        shard = Shard(room=len(HEAD))
        unsent = shard.server.streams.unsent
        outlet = shard.open()
        outlet.end(chunk(b"bye"))
        assert unsent.bytes == len(chunk(b"bye") + LAST_CHUNK)
        shard.transport.take(100)
        assert unsent.bytes == 0
        assert not outlet.writable

    def test_last_bytes_that_are_taken_immediately_are_not_counted(self) -> None:
        shard = Shard()
        shard.open().end(chunk(b"bye"))
        assert len(shard.server.streams.unsent) == 0

    def test_a_client_that_has_gone_holds_nothing(self) -> None:
        shard = Shard(room=len(HEAD))
        shard.open().write(chunk(b"x"))
        shard.lose()
        assert shard.server.streams.unsent.bytes == 0


class TestTime:
    def test_a_client_that_takes_nothing_for_60_s_is_dropped_and_not_before(self) -> None:
        shard = Shard(room=len(HEAD))
        outlet = shard.open()
        outlet.write(chunk(b"x" * 1000))
        held_ns = shard.connection._since_ns
        shard.connection.check(held_ns + 60_000 * MS)
        assert not shard.transport.closed
        shard.connection.check(held_ns + 60_001 * MS)
        assert shard.transport.closed

    def test_a_client_that_takes_a_byte_a_second_stays(self) -> None:
        shard = Shard(room=len(HEAD))
        outlet = shard.open()
        outlet.write(chunk(b"x" * 1000))
        held_ns = shard.connection._since_ns
        for second in range(1, 900):
            shard.transport.take(1)
            shard.connection.check(held_ns + second * 1_000 * MS)
        assert not shard.transport.closed
        assert not outlet.writable
        shard.connection.check(held_ns + (899_000 + 60_001) * MS)
        assert shard.transport.closed

    def test_bytes_that_are_added_do_not_hide_that_none_are_taken(self) -> None:
        shard = Shard(room=len(HEAD))
        outlet = shard.open()
        outlet.write(chunk(b"x"))
        held_ns = shard.connection._since_ns
        for second in range(1, 61):
            outlet.write(chunk(b"y"))
            shard.connection.check(held_ns + second * 1_000 * MS)
        shard.connection.check(held_ns + 60_001 * MS)
        assert shard.transport.closed

    def test_a_stream_that_is_silent_stays_for_any_time(self) -> None:
        shard = Shard()
        outlet = shard.open()
        shard.connection.check(shard.connection.last_ns + 10**9 * MS)
        assert not outlet.closed
        assert not shard.transport.closed

    def test_a_client_that_leaves_the_last_bytes_is_dropped(self) -> None:
        shard = Shard(room=len(HEAD))
        outlet = shard.open()
        outlet.end(chunk(b"x"))
        shard.connection.check(shard.connection._since_ns + 60_001 * MS)
        assert shard.transport.closed

    def test_a_client_has_its_time_to_close_from_when_it_took_the_last_bytes(self) -> None:
        shard = Shard(HttpLimits(linger_ms=5_000), room=len(HEAD))
        shard.open().end(chunk(b"x"))
        ended_ns = shard.connection.shut_ns
        while shard.connection.shut_ns == ended_ns:
            shard.transport.take(1)
        shard.connection.check(shard.connection.shut_ns + 5_000 * MS)
        assert not shard.transport.closed
        shard.connection.check(shard.connection.shut_ns + 5_001 * MS)
        assert shard.transport.closed

    def test_the_time_without_a_byte_begins_at_a_head_that_is_not_taken(self) -> None:
        shard = Shard(room=10)
        shard.open()
        held_ns = shard.connection._since_ns
        shard.connection.check(held_ns + 30_000 * MS)
        shard.connection.check(held_ns + 60_001 * MS)
        assert shard.transport.closed


class TestClosing:
    def test_end_writes_the_last_chunk_and_ends_the_connection(self) -> None:
        shard = Shard()
        outlet = shard.open()
        outlet.end(chunk(b"bye"))
        assert shard.transport.written == HEAD + chunk(b"bye") + LAST_CHUNK
        assert (shard.transport.ended, shard.transport.closed) == (True, False)
        assert outlet.closed
        assert not outlet.writable
        assert outlet.drained is outlet.closed_by_peer is None
        assert not shard.connection.eof_received()
        shard.lose()
        assert not shard.events

    def test_writes_after_the_end_go_nowhere(self) -> None:
        shard = Shard()
        outlet = shard.open()
        outlet.end()
        outlet.end(chunk(b"again"))
        outlet.write(chunk(b"more"))
        assert shard.transport.written == HEAD + LAST_CHUNK

    def test_a_stream_that_ended_keeps_its_place_until_the_connection_is_lost(self) -> None:
        shard = Shard()
        shard.open().end()
        assert (shard.server.connections, len(shard.server.streams)) == (0, 1)
        shard.lose()
        assert (shard.server.connections, len(shard.server.streams)) == (0, 0)

    def test_the_owner_learns_once_that_the_client_has_gone(self) -> None:
        shard = Shard()
        outlet = shard.open()
        shard.lose()
        outlet.write(chunk(b"x"))
        outlet.end()
        assert shard.events == ["closed by peer"]
        assert outlet.closed
        assert shard.transport.written == HEAD

    def test_a_client_that_half_closes_has_left(self) -> None:
        shard = Shard()
        outlet = shard.open()
        assert not shard.connection.eof_received()
        assert shard.events == ["closed by peer"]
        assert outlet.closed
        assert shard.transport.written == HEAD + LAST_CHUNK
        assert shard.transport.closed

    def test_input_on_a_stream_is_thrown_away_within_a_bound(self) -> None:
        shard = Shard(HttpLimits(stream_input_bytes_max=1000))
        outlet = shard.open()
        shard.connection.data_received(get("/echo") + b"\x00garbage")
        shard.connection.data_received(b"x" * 900)
        assert shard.transport.written == HEAD
        assert not shard.script.handled[1:]
        assert not outlet.closed
        shard.connection.data_received(b"x" * 100)
        assert shard.transport.closed

    def test_a_drain_leaves_streams_to_their_owner_and_refuses_new_ones(self) -> None:
        shard = Shard()
        outlet = shard.open()
        other, transport = shard.connect()
        other.data_received(get("/later"))
        shard.server.drain()
        assert not outlet.closed
        other.data_received(get("/stream"))
        script = shard.script
        script.later[0].respond(200, b"first")
        assert b'"shutting_down"' in transport.written
        assert len(script.outlets) == 1
        outlet.end(chunk(b"closing"))
        assert shard.transport.ended

    def test_an_exception_after_the_stream_began_ends_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        shard = Shard()
        handle = shard.script.handle

        def fail(request: object, token: object) -> None:
            handle(request, token)  # type: ignore[arg-type]
            raise ZeroDivisionError("late")

        shard.script.handle = fail  # type: ignore[method-assign]
        shard.connection.data_received(get("/stream"))
        (outlet,) = shard.script.outlets
        assert isinstance(outlet, Stream)
        assert outlet.closed
        assert shard.transport.ended
        assert "ZeroDivisionError" in caplog.text

    async def test_a_server_is_drained_when_its_streams_have_ended_too(self) -> None:
        shard = Shard()
        await shard.server.start(shard.script, "127.0.0.1", 0)
        other, _ = shard.connect()
        shard.open()
        drained = asyncio.ensure_future(shard.server.drained())
        await asyncio.sleep(0)
        other.connection_lost(None)
        await asyncio.sleep(0)
        assert not drained.done()
        shard.lose()
        await drained
        await shard.server.close()

    def test_a_connection_that_is_lost_leaves_nothing_for_the_collector(self) -> None:
        shard = Shard()
        for ask in get("/stream"), get("/stream") + get("/stream"), get("/echo"), post("/later"):
            while gc.collect():
                pass  # what other tests have left may need several
            gc.disable()
            try:
                connection, transport = shard.connect()
                connection.data_received(ask)
                shard.script.outlets.clear()
                shard.script.later.clear()
                connection.connection_lost(None)
                transport.protocol = None  # as a transport that is closed
                del connection, transport
                assert gc.collect() == 0
            finally:
                gc.enable()
