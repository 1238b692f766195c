"""Who may have a connection, against a plain model: limits, the longest idle, reserved places."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from daemon.http.limits import HttpLimits
from daemon.http.places import IDLE_NS_MIN, ConnectionPlaces, same_address
from daemon.http.server import Server, places_of
from tests.daemon.http.front import Script, get, post
from tests.daemon.http.memory_transport import MemoryTransport, connect
from tests.long import examples

S = 1_000_000_000


class Guest:
    """A connection; ``since_ns`` None while a request is under way."""

    def __init__(self, address: str, since_ns: int) -> None:
        self.address = address
        self.since_ns: int | None = since_ns
        self.gone = False

    def idle_since_ns(self) -> int | None:
        return self.since_ns

    def give_way(self) -> None:
        assert not self.gone
        self.gone = True


class PlacesMachine(RuleBasedStateMachine):
    """``placed`` and ``reserved`` are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.places: ConnectionPlaces[Guest] = ConnectionPlaces(6, 4, 2)
        self.placed: list[Guest] = []
        self.reserved: list[Guest] = []
        self.now_ns = 10 * S

    @rule(address=st.sampled_from("abc"))
    def arrive(self, address: str) -> None:
        self.now_ns += 1
        guest = Guest(address, self.now_ns)
        mine = [each for each in self.placed if each.address == address]
        rivals = mine if len(mine) >= 4 else self.placed if len(self.placed) >= 6 else None
        since = [] if rivals is None else [each.since_ns for each in rivals]
        idle = [each for each in since if each is not None and self.now_ns - each >= IDLE_NS_MIN]
        expected = rivals is None or bool(idle)
        assert self.places.take(guest, address, self.now_ns) is expected
        if not expected:
            self._reserve(guest)
            return
        if idle:
            (gone,) = [each for each in self.placed if each.gone]
            assert gone.since_ns == min(idle), "the longest idle"
            self.placed.remove(gone)
        self.placed.append(guest)

    def _reserve(self, guest: Guest) -> None:
        idle = [each for each in self.reserved if each.since_ns is not None]
        is_full = len(self.reserved) >= 2
        assert self.places.reserve(guest) is bool(idle or not is_full)
        if is_full and idle:
            assert idle[0].gone, "the one that came first"
            self.reserved.remove(idle[0])
        if idle or not is_full:
            self.reserved.append(guest)

    @rule(which=st.integers(0, 7))
    def begin_or_end_a_request(self, which: int) -> None:
        self.now_ns += 1
        everyone = [*self.placed, *self.reserved]
        if everyone:
            guest = everyone[which % len(everyone)]
            guest.since_ns = self.now_ns if guest.since_ns is None else None

    @rule(which=st.integers(0, 7))
    def leave(self, which: int) -> None:
        for among in (self.placed, self.reserved):
            if which < len(among):
                self.places.leave(among.pop(which))

    @rule(seconds=st.sampled_from([0, 1, 1, 30]))
    def pass_time(self, seconds: int) -> None:
        self.now_ns += seconds * S

    @invariant()
    def holds(self) -> None:
        self.places.check_invariants()
        assert len(self.places) == len(self.placed)
        assert not any(each.gone for each in (*self.placed, *self.reserved))


PlacesMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60)
TestPlaces = PlacesMachine.TestCase


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True), ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:0:1", True), ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True), ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
    ],
)  # fmt: skip
def test_a_network_of_64_bits_is_one_address(one: str, other: str, is_same: bool) -> None:
    assert (same_address(one) == same_address(other)) is is_same


def test_one_address_has_three_quarters_unless_it_is_set() -> None:
    assert places_of(HttpLimits()).address_limit == 6_144
    assert places_of(HttpLimits(connections_max=1)).address_limit == 1
    assert places_of(HttpLimits(connections_per_address_max=10)).address_limit == 10


class Clients:
    """Connections of one server in memory."""

    def __init__(self, **limits: int) -> None:
        self.server = Server()
        self.server.application = self.script = Script()
        self.server.limits = HttpLimits(**limits)

    def comes(self, sends: bytes = b"", address: str = "10.0.0.1") -> MemoryTransport:
        self.server.now_ns += 1
        connection, transport = connect(self.server, address=address)
        if sends:
            connection.data_received(sends)
        # By the clock of this test.
        connection.last_ns = connection.answered_ns = self.server.now_ns
        connection._since_ns = self.server.now_ns
        return transport


def test_the_longest_idle_connection_of_an_address_gives_way_to_its_next_one() -> None:
    clients = Clients(connections_max=9, connections_per_address_max=3)
    busy = clients.comes(get("/later"))
    head = clients.comes(b"GET /ec")
    idle = clients.comes(get("/echo"))
    elsewhere = clients.comes(get("/echo"), "10.0.0.2")
    clients.server.now_ns += 2 * S
    clients.comes(get("/echo"))
    assert (busy.closed, head.closed, idle.closed, elsewhere.closed) == (False, True, False, False)
    clients.comes(get("/echo"))
    assert (busy.closed, idle.closed, elsewhere.closed) == (False, True, False)
    refused = clients.comes(get("/echo"))  # the others were idle for no second
    assert refused.written.startswith(b"HTTP/1.1 503 ")
    assert b'"limit_of_address":3' in refused.written
    assert clients.comes(get("/probe")).written.startswith(b"HTTP/1.1 200 ")
    assert clients.comes(get("/echo"), "10.0.0.3").written.startswith(b"HTTP/1.1 200 ")


def test_a_stream_gives_its_place_back_and_the_unix_socket_needs_none() -> None:
    clients = Clients(connections_max=1)
    clients.comes(get("/stream"))
    assert len(clients.server.places) == 0
    clients.comes(post("/later"))
    local, transport = connect(clients.server, is_local=True)
    local.data_received(get("/echo"))
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert len(clients.server.places) == 1
