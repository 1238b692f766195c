"""Streams under any order of events: whatever is sent, split, taken, closed or lost.

The machine plays client, loop and application of one connection of a shard.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from delivery.streams.outlet import Outlet
from delivery.streams.wire import LAST_CHUNK, chunk
from tests.daemon.http.front import Script, get, post
from tests.daemon.http.memory_transport import connect
from tests.long import examples

MS = 1_000_000
REQUESTS = [
    post("/free", b"body"),
    post("/later/1"),
    get("/stream"),
    get("/stream", "Connection: close"),
    get("/stream").replace(b"GET", b"HEAD"),
    b"GET /stream HTTP/1.0\r\n\r\n",
    get("/missing"),
    post("/echo", b"x" * 300)[:-1],
    b"\x00garbage\r\n\r\n",
]


class StreamMachine(RuleBasedStateMachine):
    """One connection; ``told`` has what each outlet's owner was told, in order."""

    @initialize(room=st.sampled_from([0, 50, 400, 10_000]), outstanding_max=st.integers(1, 4))
    def begin(self, room: int, outstanding_max: int) -> None:
        self.server = Server()
        self.server.application = self.script = Script()
        self.server.limits = HttpLimits(
            requests_outstanding_max=outstanding_max,
            streams_max=1,
            stream_input_bytes_max=500,
            stream_unsent_bytes_max=2000,
        )
        self.connection, self.transport = connect(self.server, room)
        self.script._opened = self._opened  # type: ignore[method-assign]
        self.unfed = b""
        self.is_lost = self.has_eof = False
        self.told: dict[int, list[str]] = {}
        self.ended_by_us: set[int] = set()
        self.given = bytearray()
        self.now_ns = self.connection.last_ns

    def _opened(self, outlet: Outlet) -> None:
        index = len(self.script.outlets)
        self.script.outlets.append(outlet)
        told = self.told[index] = []
        outlet.drained = lambda: told.append("drained")
        outlet.closed_by_peer = lambda: told.append("gone")

    def _loop(self) -> None:
        """What the loop does when an event is over."""
        if self.transport.closed and not self.is_lost:
            self._lose()

    def _lose(self) -> None:
        self.is_lost = self.transport.closed = True
        self.connection.connection_lost(None)

    @precondition(lambda self: not self.has_eof and not self.is_lost)
    @rule(request=st.sampled_from(REQUESTS))
    def ask(self, request: bytes) -> None:
        self.unfed += request

    @precondition(lambda self: self.unfed and not self.is_lost and not self.transport.paused)
    @rule(count=st.integers(1, 400))
    def receive(self, count: int) -> None:
        self.connection.data_received(self.unfed[:count])
        self.unfed = self.unfed[count:]
        self._loop()

    @precondition(lambda self: any(not each.answered for each in self.script.later))
    @rule(which=st.integers(0, 20))
    def answer(self, which: int) -> None:
        waiting = [each for each in self.script.later if not each.answered]
        waiting[which % len(waiting)].respond(200, b"x" * 100)
        self._loop()

    @precondition(lambda self: not self.is_lost)
    @rule(count=st.integers(1, 800))
    def take(self, count: int) -> None:
        self.transport.take(count)
        self._loop()

    @precondition(lambda self: self.script.outlets)
    @rule(size=st.integers(1, 900), only_if_writable=st.booleans())
    def write(self, size: int, only_if_writable: bool) -> None:
        outlet = self.script.outlets[-1]
        if outlet.writable or not only_if_writable:
            data = chunk(b"w" * size)
            if not outlet.closed:
                self.given += data
            outlet.write(data)
        self._loop()

    @precondition(lambda self: self.script.outlets)
    @rule()
    def end(self) -> None:
        outlet = self.script.outlets[-1]
        if not outlet.closed:
            self.ended_by_us.add(len(self.script.outlets) - 1)
        outlet.end()
        self._loop()

    @precondition(lambda self: not self.has_eof and not self.is_lost and not self.transport.paused)
    @rule()
    def half_close(self) -> None:
        self.has_eof = True
        self.unfed = b""
        if not self.connection.eof_received():
            self.transport.close()
        self._loop()

    @precondition(lambda self: not self.is_lost)
    @rule(seconds=st.sampled_from([1, 30, 61]))
    def wait(self, seconds: int) -> None:
        self.now_ns = self.server.now_ns = self.now_ns + seconds * 1000 * MS
        self.connection.check(self.now_ns)
        self._loop()

    @rule()
    def drain(self) -> None:
        self.server.drain()
        self._loop()

    @precondition(lambda self: not self.is_lost)
    @rule()
    def lose(self) -> None:
        self._lose()

    @invariant()
    def streams_are_counted_and_owners_know(self) -> None:
        if not hasattr(self, "server"):
            return
        streams, outlets = self.server.streams, self.script.outlets
        streams.check_invariants()
        assert len(outlets) <= 1  # a connection never has a second stream
        assert len(streams) <= (not self.is_lost)
        assert len(streams) + self.server.connections == (not self.is_lost)
        for index, outlet in enumerate(outlets):
            told = self.told[index]
            by_peer = outlet.closed and index not in self.ended_by_us
            assert told.count("gone") == by_peer
            assert "gone" not in told[:-1]
            if not outlet.closed:
                assert outlet.writable == (self.transport.get_write_buffer_size() == 0)
                assert len(streams) == 1
        if self.is_lost:
            assert not self.script.tokens
            assert streams.unsent.bytes == 0
            assert all(outlet.closed for outlet in outlets)

    @invariant()
    def what_was_given_is_written_after_the_head_and_nothing_else(self) -> None:
        if not hasattr(self, "server") or not self.script.outlets:
            return
        body = self.transport.written.rpartition(b"Connection: close\r\n\r\n")[2]
        assert body in (self.given, self.given + LAST_CHUNK)
        assert body == self.given or self.script.outlets[0].closed

    def teardown(self) -> None:
        if hasattr(self, "server") and not self.is_lost:
            self._lose()
            self.streams_are_counted_and_owners_know()


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(
    max_examples=examples(400), stateful_step_count=30, deadline=None
)

before = st.sampled_from([b"", post("/free", b"body"), get("/missing"), post("/echo", b"123")])
after = st.sampled_from([b"", get("/echo"), b"\x00\x01", post("/echo", b"x" * 99)[:-1], b"\r\n"])


def outcome(stream: bytes, cuts: list[int]) -> tuple[bytes, int, list[str]]:
    """What is written, how many streams open, and what is handled before the stream."""
    server = Server()
    server.application = script = Script()
    server.limits = HttpLimits()
    connection, transport = connect(server)
    previous = 0
    for cut in [*sorted(cuts), len(stream)]:
        if cut > previous:
            connection.data_received(stream[previous:cut])
            previous = cut
    opened = len(server.streams)
    connection.connection_lost(None)
    assert not len(server.streams)
    return bytes(transport.written), opened, [path for path, _ in script.handled]


@given(st.lists(before, max_size=3), st.lists(after, max_size=3), st.data())
@settings(max_examples=examples(200))
def test_any_split_of_the_bytes_opens_the_same_stream(
    earlier: list[bytes], later: list[bytes], data: st.DataObject
) -> None:
    sent = b"".join([*earlier, get("/stream"), *later])
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=12))
    whole = outcome(sent, [])
    assert outcome(sent, cuts) == whole
    assert outcome(sent, list(range(len(sent)))) == whole
    assert whole[1] == 1
    assert whole[2][-1] == "/stream"
