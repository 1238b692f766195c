"""What connections have received and cannot use: it is counted, and the longest kept goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from daemon.http.connection import Connection
from daemon.http.cors import Cors
from daemon.http.head import Head
from daemon.http.limits import HttpLimits
from daemon.http.request import Request
from daemon.http.server import Server
from daemon.http.turns import REQUEST_COST, REQUESTS_A_TURN
from tests.daemon.http.front import Script, get, post
from tests.daemon.http.memory_transport import MemoryTransport, connect

LIMIT = 1_000
HEAD = b"GET /echo HTTP/1.1\r\nHost: test\r\nX: "


def server_with(**limits: int) -> tuple[Server, Script]:
    server = Server()
    server.application = script = Script()
    server.limits = HttpLimits(unread_bytes_max=LIMIT, **limits)
    return server, script


def partial(server: Server, size: int) -> tuple[Connection, MemoryTransport]:
    """A connection with the first ``size`` bytes of a head."""
    connection, transport = connect(server)
    connection.data_received(HEAD.ljust(size, b"x"))
    return connection, transport


def test_beginnings_of_heads_count_until_they_are_whole() -> None:
    server, script = server_with()
    first, _ = partial(server, 300)
    second, _ = partial(server, 200)
    assert server.unread.bytes == 500
    first.data_received(b"y" * 50)
    assert server.unread.bytes == 550
    first.data_received(b"\r\n\r\n")
    assert (server.unread.bytes, len(script.handled)) == (200, 1)
    second.connection_lost(None)
    assert server.unread.bytes == 0
    server.unread.check_invariants()


def test_the_longest_unfinished_head_goes_first_also_if_it_grows() -> None:
    server, _ = server_with()
    oldest, oldest_transport = partial(server, 300)
    _, silent = partial(server, 300)
    for _ in range(10):
        oldest.data_received(b"x")  # it is not younger for that
    _, young = partial(server, 300)
    assert server.unread.bytes == 910
    _, last = partial(server, 300)
    assert oldest_transport.closed and not (silent.closed or young.closed or last.closed)
    assert server.unread.bytes == 900
    server.unread.check_invariants()


def test_what_comes_after_requests_that_are_held_back_counts_until_it_is_used() -> None:
    server, script = server_with(requests_outstanding_max=2)
    connection, transport = connect(server)
    connection.data_received(post("/later/1") + post("/later/2") + post("/echo"))
    assert server.unread.bytes == len(post("/echo")) and transport.paused
    for request in script.later:
        request.respond_ok_json(b"{}")
    assert (server.unread.bytes, len(script.handled)) == (0, 3)


@pytest.mark.parametrize("sent", [get("/missing"), post("/free"), post("/missing", b"x")])
async def test_requests_that_came_together_leave_others_their_turn(sent: bytes) -> None:
    server = Server()
    server.application = Script()
    connection, transport = connect(server)
    connection.data_received(sent * 1_000)
    assert connection.eof_received(), "all are answered before the end"
    answered = [0, transport.written.count(b"HTTP/1.1 ")]
    while answered[-1] < 1_000:
        assert transport.paused
        await asyncio.sleep(0)
        answered.append(transport.written.count(b"HTTP/1.1 "))
    assert max(map(int.__sub__, answered[1:], answered)) == REQUESTS_A_TURN
    assert transport.closed and not server.unread.bytes


class Usual(Script):
    """Requests to /free are usual ones, if they ``may`` be."""

    def __init__(self, *, may: bool) -> None:
        super().__init__()
        self.may = may

    def route(self, head: Head) -> str:
        head.shortcut = self._take_usual
        return super().route(head)

    def _take_usual(self, connection: Any, head: Head, body: bytes, arrival_ns: int) -> bool:
        if self.may:
            request = Request(head.bare, b"", arrival_ns, connection)
            connection.queue.append(request)
            request.respond_ok_json(b"{}")
        return self.may


@pytest.mark.parametrize(
    ("may", "heads", "most"),
    [
        (True, 1, REQUESTS_A_TURN * REQUEST_COST),
        (False, 1, REQUESTS_A_TURN),
        (True, 1_500, REQUESTS_A_TURN),
    ],
)
def test_a_request_costs_little_only_if_it_was_taken_in_one_step_and_its_head_was_known(
    may: bool, heads: int, most: int
) -> None:
    async def run() -> None:
        server = Server()
        server.application = Usual(may=may)
        one = connect(server)
        one[0].data_received(post("/free?n=0"))
        before = answers([one])
        one[0].data_received(b"".join(post(f"/free?n={n % heads}") for n in range(1_500)))
        assert most * 3 // 4 < answers([one]) - before <= most
        for _ in range(1_500 // REQUESTS_A_TURN + 1):
            await asyncio.sleep(0)
        assert answers([one]) == 1_501

    asyncio.run(run())


def test_requests_of_ten_connections_are_as_many_in_a_turn_as_those_of_one() -> None:
    async def run() -> None:
        server = Server()
        server.application = Script()
        each = [connect(server) for _ in range(10)]
        for connection, _ in each:
            connection.data_received(get("/missing") * 200)
        answered = [0, answers(each)]
        lone, single = connect(server)
        lone.data_received(get("/echo"))  # its head is not known yet
        assert single.written.startswith(b"HTTP/1.1 200 "), "who sends one waits for nobody"
        lone.data_received(get("/echo") * 2)
        while answered[-1] < 2_000:
            await asyncio.sleep(0)
            answered.append(answers(each))
        firsts = len(each) - 1  # of those that came when the turn was used up
        assert max(map(int.__sub__, answered[1:], answered)) <= REQUESTS_A_TURN + firsts
        assert answers([(lone, single)]) == 3
        assert not server.unread.bytes and not len(server.turns)

    asyncio.run(run())


def answers(connections: Sequence[tuple[Connection, MemoryTransport]]) -> int:
    return sum(transport.written.count(b"HTTP/1.1 ") for _, transport in connections)


def test_a_turn_has_its_requests_also_if_the_one_before_used_more_than_half() -> None:
    async def run() -> None:
        server = Server()
        server.application = Script()
        for _ in range(5):
            one = connect(server)
            one[0].data_received(get("/missing") * (REQUESTS_A_TURN * 5 // 8))
            assert answers([one]) == REQUESTS_A_TURN * 5 // 8
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_connection_that_is_lost_while_it_waits_for_its_turn_keeps_nobody_waiting() -> None:
    async def run() -> None:
        server = Server()
        server.application = Script()
        first, lost, last = each = [connect(server) for _ in range(3)]
        for connection, _ in each:
            connection.data_received(get("/missing") * 100)
        lost[0].connection_lost(None)
        for _ in range(300 // REQUESTS_A_TURN + 1):
            await asyncio.sleep(0)
        assert list(map(answers, ([first], [lost], [last]))) == [100, 1, 100]
        assert not server.unread.bytes

    asyncio.run(run())


def test_no_connection_is_closed_so_that_turns_stay_short() -> None:
    async def run() -> None:
        server, _ = server_with()
        server.unread.limit_bytes = 4_000 * len(get("/missing"))
        each = [connect(server) for _ in range(100)]
        for connection, _ in each:
            connection.data_received(get("/missing") * 60)
        assert not any(transport.closed for _, transport in each)
        for _ in range(100 * 60 // REQUESTS_A_TURN + 1):
            await asyncio.sleep(0)
        assert answers(each) == 100 * 60 and not len(server.turns)

    asyncio.run(run())


def test_connections_that_wait_have_their_requests_again_while_much_is_kept_for_them() -> None:
    async def run() -> None:
        server, _ = server_with()
        server.unread.limit_bytes = 4_000 * len(get("/missing"))
        each = [connect(server) for _ in range(20)]
        for connection, _ in each:
            connection.data_received(get("/missing") * 190)
        assert server.unread.is_half_full
        before = [answers([one]) for one in each]
        await asyncio.sleep(0)
        more = [answers([one]) - had for one, had in zip(each, before, strict=True)]
        assert max(more) <= REQUESTS_A_TURN and sum(more) >= len(each) // 2 * REQUESTS_A_TURN
        assert not any(transport.closed for _, transport in each)

    asyncio.run(run())


def test_what_comes_with_a_request_that_waits_for_admission_is_counted_there() -> None:
    server, script = server_with()
    connection, _ = connect(server)
    connection.data_received(post("/queue") + get("/echo"))
    assert script.queued[0].connection.unread_bytes == 0 and server.unread.bytes == 0
    script.let_in()
    assert len(script.handled) == 2


def test_an_end_of_any_kind_counts_nothing_any_more() -> None:
    server, _ = server_with()
    connections = [partial(server, 100)[0] for _ in range(3)]
    connections[0].eof_received()
    connections[1].data_received(b"x" * 40_000)  # more than a head may have
    connections[2].end()
    assert server.unread.bytes == 0


def test_less_memory_for_the_daemon_is_less_for_what_clients_leave_undone() -> None:
    server = Server()
    server.limit_memory(5_000)
    assert server.unread.limit_bytes == server.unsent.limit_bytes == 5_000
    server.limit_memory(1 << 40)
    assert server.unread.limit_bytes == HttpLimits().unread_bytes_max
    assert server.unsent.limit_bytes == HttpLimits().answers_unsent_bytes_max


@pytest.mark.parametrize("origins", [(), ("https://a.example",), ("https://b.example",), ("*",)])
def test_of_a_head_that_waits_for_its_answer_only_an_origin_that_it_names_is_kept(
    origins: Sequence[str],
) -> None:
    server, script = server_with()
    server.cors = Cors(origins) if origins else None
    connection, _ = connect(server)
    field = "Origin: https://a.example"
    connection.data_received(get("/later?" + "x" * 4_000, field, "X: " + "x" * 20_000))
    head = script.later[0].head
    kept = {"origin": "https://a.example"} if origins == ("https://a.example",) else {}
    assert head.headers == head.bare.headers == kept
    assert (head.segments, head.raw_segments, head.path) == ((), (), "/later")
    assert script.fields[head]["x"] == "x" * 20_000, "when it was routed"


def test_an_answer_that_waits_for_earlier_ones_needs_no_head() -> None:
    server, script = server_with()
    connection, transport = connect(server)
    connection.data_received(get("/later") + get("/echo?" + "x" * 4_000) + get("/missing") * 2)
    first, *others = connection.queue
    assert not transport.written and len(others) == 3
    assert first.head.method == "GET" and first.head.bare is not first.head
    assert {id(other.head) for other in others} == {id(first.head.bare)}
    script.later[0].respond(200, b"{}")
    assert bytes(transport.written).count(b"HTTP/1.1 ") == 4
