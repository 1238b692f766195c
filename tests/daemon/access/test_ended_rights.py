"""Rights that end while a request is on its way: it is compared again when it is handed over."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemon.access.access import Access
from daemon.access.rights import Rights
from daemon.access.token_file import Scope, TokenFile
from daemon.api.application import Api
from daemon.api.route import Route
from daemon.api.streaming import Streaming
from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from delivery.reading.waiters import Waiters
from delivery.streams.outlet import Outlet
from tests.daemon.http.memory_transport import connect
from tests.daemon.intake.serving import BODY_BYTES_MAX, RING_BYTES, Intake, topics_in
from tests.daemon.intake.test_admission import WAIT, fill, post


class Handlers:
    """Counts what was done."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.written = 0
        self.opened = 0
        self.gone: list[Outlet] = []

    async def write(self, _: object) -> dict[str, int]:
        self.written += 1
        return {}

    async def wait(self) -> dict[str, int]:
        await self.let_go.wait()
        return {}

    async def page(self) -> str:
        return "a" * 1000

    async def stream(self) -> Streaming:
        def start(outlet: Outlet) -> None:
            self.opened += 1
            outlet.write(b"1\r\na\r\n")
            outlet.closed_by_peer = lambda: self.gone.append(outlet)

        return Streaming("text/event-stream", start)


def route(method: Any, path: str, **more: Any) -> Route:
    name = path[1:]
    return Route(
        method=method, path=path, summary=name, scopes=(Scope.READ,),
        handler=lambda handlers: getattr(handlers, name), **more,
    )  # fmt: skip


ROUTES = (
    route("POST", "/write", body=list[int]),
    route("GET", "/wait"),
    route("GET", "/page"),
    route("GET", "/stream", streams={"text/event-stream": "events"}),
)


async def test_a_request_whose_rights_have_ended_on_its_way_is_refused(tmp_path: Path) -> None:
    _, token = TokenFile(tmp_path / "tokens.json").issue("reader", [Scope.READ])
    access = Access(tmp_path / "tokens.json")
    handlers: Any = Handlers()
    producer: Any = None
    server = Server()
    server.application = Api(ROUTES, handlers, producer, Waiters(), access)
    server.limits = HttpLimits()
    head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n"
    slow, slow_transport = connect(server)
    slow.data_received(
        f"POST /write HTTP/1.1\r\n{head}Content-Type: application/json\r\n"
        "Content-Length: 3\r\n\r\n[1".encode()
    )
    waits, waits_transport = connect(server)
    for path in ("/wait", "/stream"):
        waits.data_received(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
    await asyncio.sleep(0)
    access.of({"x-api-key": token}).live = False  # and nobody has ended anything yet
    slow.data_received(b"]")
    handlers.let_go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert slow_transport.written.startswith(b"HTTP/1.1 401 ") and not handlers.written
    first, _, second = bytes(waits_transport.written).partition(b"{}")
    assert first.startswith(b"HTTP/1.1 200 ") and second.startswith(b"HTTP/1.1 401 ")
    assert not handlers.opened


@pytest.mark.parametrize("has_taken", [True, False])
@pytest.mark.parametrize("path", ["/stream", "/page"])
async def test_rights_that_end_take_back_what_was_not_taken_and_the_owner_of_a_stream_is_told(
    tmp_path: Path, path: str, has_taken: bool
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    tokens = [file.issue(name, [Scope.READ])[1] for name in ("reader", "other")]
    access = Access(file.path)
    handlers: Any = Handlers()
    producer: Any = None
    server = Server()
    server.application = Api(ROUTES, handlers, producer, Waiters(), access)
    server.limits = HttpLimits()
    made = []
    for token in tokens:
        connection, transport = connect(server, 100_000 if has_taken else 5)
        connection.data_received(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {token}\r\n\r\n".encode()
        )
        made.append((connection, transport))
    for _ in range(5):
        await asyncio.sleep(0)
    access.of({"x-api-key": tokens[0]}).live = False
    server.end_revoked()
    (connection, transport), (_, other) = made
    assert (transport.closed, other.ended) == (not has_taken, False)
    if path == "/stream":
        assert transport.ended
        if not has_taken:
            connection.connection_lost(None)  # as after each abort
        assert handlers.opened == 2 and len(handlers.gone) == 1


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_request_that_waits_for_room_in_the_ring_is_not_stored_when_its_rights_end(
    tmp_path: Path, is_whole: bool
) -> None:
    with topics_in(tmp_path) as topics, closing(Intake(topics, RING_BYTES, BODY_BYTES_MAX)) as made:
        fill(made)
        client = made.connect()
        request = post(3_000, WAIT)
        client.send(request if is_whole else request[:1_000])
        assert made.admission.queued == 1
        head = client.connection.queue[-1].head
        head.rights = Rights(None, [Scope.PRODUCE], ["*"])
        head.rights.live = False
        stored = len(made.published)
        made.commit()
        if not is_whole:
            client.send(request[1_000:])
        made.commit()
        assert client.statuses == [401] and len(made.published) == stored


async def test_a_ticket_is_compared_again_though_its_head_is_the_same(tmp_path: Path) -> None:
    now_ms = 1_800_000_000_000
    file = TokenFile(tmp_path / "tokens.json", lambda: now_ms)
    _, token = file.issue("page", [Scope.READ])
    access = Access(file.path, lambda: now_ms)
    ticket, expires_ms = access.ticket(access.of({"x-api-key": token}), ("stream",), {})
    handlers: Any = Handlers()
    producer: Any = None
    server = Server()
    server.application = Api(ROUTES, handlers, producer, Waiters(), access)
    server.limits = HttpLimits()
    asked = f"GET /stream?ticket={ticket} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for status in (b"200", b"200", b"401"):
        connection, transport = connect(server)
        connection.data_received(asked)
        for _ in range(5):
            await asyncio.sleep(0)
        assert transport.written.startswith(b"HTTP/1.1 " + status)
        if handlers.opened == 2:
            now_ms = expires_ms
