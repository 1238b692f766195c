"""What requests that do not produce may take in a shard: their bodies, and that they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from daemon.access.token_file import Scope
from daemon.api.application import Api
from daemon.api.route import Route
from daemon.http.connection import Connection
from daemon.http.head import TARGET_COPIES
from daemon.http.limits import HttpLimits
from daemon.http.request_budget import (
    DECODED,
    LARGE_BYTES,
    PROBES_BYTES_MAX,
    REQUEST_BYTES,
    REQUESTS_BYTES_MAX,
    RequestBudget,
    check_values,
)
from daemon.http.server import Server
from daemon.schemas.errors import ApiError
from delivery.reading.waiters import Waiters
from tests.daemon.http.front import get, post
from tests.daemon.http.memory_transport import MemoryTransport, connect

MIB = 1 << 20
TOO_MUCH = 16 * MIB


class Node:
    """The application on a server in memory, with a route whose requests wait for ``let_go``."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        handlers: object = self
        producer: object = None
        routes = (
            Route(
                method="POST", path="/wait", summary="waits", scopes=tuple(Scope),
                handler=lambda _: self.wait,
                body=list[object], body_required=False, body_bytes_max=TOO_MUCH,
            ),
            Route(
                method="GET", path="/probe", summary="a probe", handler=lambda _: self.probe,
                is_probe=True, is_open=True,
            ),
        )  # fmt: skip
        self.api = Api(routes, handlers, producer, Waiters())  # type: ignore[arg-type]
        self.server = Server()
        self.server.application = self.api
        self.server.limits = HttpLimits()

    async def wait(self, _: object = None) -> dict[str, int]:
        await self.let_go.wait()
        return {}

    async def probe(self) -> dict[str, int]:
        return {}

    @property
    def promised_bytes(self) -> int:
        return self.api._budget.promised_bytes

    def send(self, data: bytes) -> tuple[Connection, MemoryTransport]:
        connection, transport = connect(self.server)
        connection.data_received(data)
        return connection, transport

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def begun(body_bytes: int) -> bytes:
    """A request whose body is still to come."""
    return (
        f"POST /wait HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        f"Content-Length: {body_bytes}\r\n\r\n["
    ).encode()


def cost(target: str, body_bytes: int) -> int:
    return REQUEST_BYTES + TARGET_COPIES * len(target) + DECODED * body_bytes


def test_a_body_counts_from_its_head_on_and_too_many_are_refused_before_they_come() -> None:
    async def run() -> None:
        node = Node()
        room = REQUESTS_BYTES_MAX // cost("/wait", MIB)
        taken = [node.send(begun(MIB)) for _ in range(room)]
        assert node.promised_bytes == room * cost("/wait", MIB)
        assert not any(transport.written for _, transport in taken)
        _, refused = node.send(begun(MIB))
        assert refused.written.startswith(b"HTTP/1.1 503 ") and b'"memory_short"' in refused.written
        assert b"Retry-After: 1\r\n" in refused.written
        assert b"%d" % REQUESTS_BYTES_MAX in refused.written
        _, probe = node.send(get("/probe"))
        await node.settle()
        assert probe.written.startswith(b"HTTP/1.1 200 "), "a probe sees that the daemon works"
        assert node.promised_bytes == room * cost("/wait", MIB)

    asyncio.run(run())


def test_a_request_that_waits_counts_until_its_answer() -> None:
    async def run() -> None:
        node = Node()
        whole = post("/wait?x=1", b"[1,2]", "Content-Type: application/json")
        sent = [node.send(whole) for _ in range(3)]
        assert node.promised_bytes == 3 * cost("/wait?x=1", 5)
        await node.settle()
        assert node.promised_bytes == 3 * cost("/wait?x=1", 5), "its task has what was decoded"
        sent[0][0].connection_lost(None)
        await node.settle()
        assert node.promised_bytes == 2 * cost("/wait?x=1", 5)
        node.let_go.set()
        await node.settle()
        assert node.promised_bytes == 0
        assert all(transport.written.startswith(b"HTTP/1.1 200 ") for _, transport in sent[1:])

    asyncio.run(run())


def test_requests_that_wait_never_take_more_than_their_bound() -> None:
    async def run() -> None:
        node = Node()
        target = "/wait?" + "x" * 4_000 + "=1"
        room = REQUESTS_BYTES_MAX // cost(target, 0)
        for _ in range(room // 50 + 1):
            node.send(post(target) * 50)
            await asyncio.sleep(0)  # the next ones come in a turn of their own
        assert node.promised_bytes == room * cost(target, 0)

    asyncio.run(run())


@pytest.mark.parametrize(
    "end",
    [
        lambda connection: connection.connection_lost(None),
        lambda connection: connection.eof_received(),
        lambda connection: connection.data_received(b"x" * 9),
    ],
    ids=["lost", "half-closed", "complete and not JSON"],
)
def test_a_body_that_ends_otherwise_counts_no_more(end: Callable[[Connection], object]) -> None:
    async def run() -> None:
        node = Node()
        connection, _ = node.send(begun(10))
        assert node.promised_bytes == cost("/wait", 10)
        end(connection)
        await node.settle()
        assert node.promised_bytes == 0

    asyncio.run(run())


def test_the_largest_body_of_the_admin_api_is_taken_in_beside_others_one_at_a_time() -> None:
    async def run() -> None:
        node = Node()
        room = REQUESTS_BYTES_MAX // cost("/wait", MIB)
        for _ in range(room):
            node.send(begun(MIB))
        connection, transport = node.send(begun(TOO_MUCH))
        assert not transport.written
        _, second = node.send(begun(TOO_MUCH))
        assert second.written.startswith(b"HTTP/1.1 503 ")
        assert b"%d" % (LARGE_BYTES // DECODED) in second.written
        connection.connection_lost(None)
        assert not node.send(begun(TOO_MUCH))[1].written

    asyncio.run(run())


@pytest.mark.parametrize("values", [b"1,", b'"a":1,', b"[],"])
def test_a_large_body_of_too_many_values_is_not_decoded(values: bytes) -> None:
    small = values * (LARGE_BYTES // DECODED // len(values) - 1)
    check_values(small)
    with pytest.raises(ApiError, match=r"has up to \d+ values, .* may have \d+; send it in sev"):
        check_values(values * (8 * MIB // len(values)))
    check_values(b'["' + b"x" * (TOO_MUCH - 4) + b'"]')


def test_probes_have_room_of_their_own_within_a_limit() -> None:
    async def run() -> None:
        budget = RequestBudget()
        while True:
            try:
                budget.promise(0, 0)
            except ApiError:
                break
        assert budget.promised_bytes == REQUESTS_BYTES_MAX
        for _ in range(PROBES_BYTES_MAX // REQUEST_BYTES):
            budget.promise(0, 0, is_probe=True)
        with pytest.raises(ApiError, match="send it again"):
            budget.promise(0, 0, is_probe=True)

    asyncio.run(run())
