"""A route whose answer is a stream: its declared headers, its start, its row in the documents."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct
from msgspec.structs import replace

from daemon.access.token_file import Scope
from daemon.api.application import Api
from daemon.api.openapi import document
from daemon.api.route import Route
from daemon.api.streaming import EncodedJson, Streaming
from daemon.http.guard import Guard
from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from daemon.schemas.errors import invalid
from delivery.reading.waiters import Waiters
from delivery.streams.outlet import Outlet
from delivery.streams.wire import chunk
from tests.daemon.http.front import get
from tests.daemon.http.memory_transport import MemoryTransport, connect


class TickHeaders(Struct, rename={"accept": "Accept", "last_event_id": "Last-Event-ID"}):
    """What the handler of this test reads."""

    accept: Annotated[str, Meta(description="the form")] = "*/*"
    last_event_id: Annotated[str | None, Meta(description="where to resume")] = None


class Ticks:
    """The handlers of the table below."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, TickHeaders]] = []
        self.outlets: list[Outlet] = []
        self.let_go = asyncio.Event()

    async def tock(self) -> EncodedJson[dict[str, int]]:
        return EncodedJson(b'{"tock":1}')

    async def ticks(self, name: str, headers: TickHeaders) -> Streaming:
        self.asked.append((name, headers))
        if name == "slow":
            await self.let_go.wait()
        if name == "bad":
            raise invalid("no such name")
        return Streaming("text/event-stream", self._start)

    def _start(self, outlet: Outlet) -> None:
        self.outlets.append(outlet)
        outlet.write(chunk(b"data: tick\n\n"))


ROUTE = Route(
    method="GET",
    path="/ticks/{name}",
    summary="ticks",
    scopes=tuple(Scope),
    handler=lambda handlers: handlers.ticks,  # type: ignore[attr-defined]
    headers=TickHeaders,
    streams={"text/event-stream": "events", "application/x-ndjson": "a line per event"},
    errors=(400,),
)


HIDDEN = Route(
    method="POST",
    path="/hidden",
    summary="for commands",
    scopes=tuple(Scope),
    handler=lambda handlers: handlers.ticks,  # type: ignore[attr-defined]
    is_internal=True,
)

TAKES = Route(
    method="GET",
    path="/tock",
    summary="gives a tock away",
    scopes=tuple(Scope),
    handler=lambda handlers: handlers.tock,  # type: ignore[attr-defined]
    answers={200: dict[str, int]},
    takes=True,
)


class Node:
    """The application on a server in memory."""

    def __init__(self, *, options: bool = False, admin_over_tcp: bool = False) -> None:
        self.handlers = Ticks()
        handlers: Any = self.handlers
        producer: Any = None  # there is no route for producing
        self.api = Api(
            (ROUTE, HIDDEN, TAKES), handlers, producer, Waiters(), options=options,
            admin_over_tcp=admin_over_tcp,
        )  # fmt: skip
        self.server = Server()
        self.server.application = self.api
        self.server.limits = HttpLimits()

    async def ask(self, *requests: bytes) -> MemoryTransport:
        connection, transport = connect(self.server)
        connection.data_received(b"".join(requests))
        await self.settle()
        return transport

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_handler_gets_the_headers_that_its_route_declares_in_any_case() -> None:
    node = Node()
    await node.ask(get("/ticks/a", "ACCEPT: text/event-stream", "last-event-id: 7:0=3"))
    await node.ask(get("/ticks/b", "X-Other: 1"))
    (_, first), (_, second) = node.handlers.asked
    assert (first.accept, first.last_event_id) == ("text/event-stream", "7:0=3")
    assert (second.accept, second.last_event_id) == ("*/*", None)


async def test_a_stream_starts_when_its_handler_has_returned() -> None:
    node = Node()
    transport = await node.ask(get("/ticks/slow"))
    assert not transport.written
    node.handlers.let_go.set()
    await node.settle()
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream")
    assert transport.written.endswith(b"\r\n\r\nc\r\ndata: tick\n\n\r\n")


async def test_a_handler_that_refuses_answers_as_any_other() -> None:
    node = Node()
    transport = await node.ask(get("/ticks/bad"), get("/ticks/a"))
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.written.endswith(b"data: tick\n\n\r\n")


async def test_a_stream_of_http_1_0_is_refused() -> None:
    node = Node()
    transport = await node.ask(b"GET /ticks/a HTTP/1.0\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert not node.handlers.outlets


async def test_a_handler_whose_client_has_gone_is_cancelled_and_starts_nothing() -> None:
    node = Node()
    connection, _ = connect(node.server)
    connection.data_received(get("/ticks/slow"))
    await node.settle()
    connection.connection_lost(None)
    node.handlers.let_go.set()
    await node.settle()
    assert node.handlers.asked
    assert not node.handlers.outlets
    assert not len(node.server.streams)


def test_the_document_shows_the_headers_and_the_content_types_of_a_stream() -> None:
    operation = document([ROUTE])["paths"]["/ticks/{name}"]["get"]
    assert [(p["in"], p["name"]) for p in operation["parameters"]] == [
        ("header", "Accept"),
        ("header", "Last-Event-ID"),
    ]
    assert set(operation["responses"]["200"]["content"]) == set(ROUTE.streams)
    assert "a line per event" in operation["responses"]["200"]["description"]
    assert "400" in operation["responses"]


def options(path: str) -> bytes:
    """What a browser asks before a request of a page."""
    return get(path, "Origin: https://a.example", "Access-Control-Request-Method: GET").replace(
        b"GET ", b"OPTIONS ", 1
    )


async def test_a_browser_that_asks_before_a_request_learns_the_methods_of_the_path() -> None:
    node = Node(options=True)
    transport = await node.ask(options("/ticks/a"), options("/nothing"))
    first, _, second = bytes(transport.written).partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 204 ")
    assert {
        b"Allow: GET",
        b"Access-Control-Allow-Methods: GET",
        b"Access-Control-Allow-Headers: *, Authorization, X-Api-Key",
        b"Access-Control-Max-Age: 7200",
    } <= set(first.split(b"\r\n"))
    assert second.startswith(b"HTTP/1.1 404 ")
    assert not node.handlers.asked


async def test_a_daemon_that_allows_no_pages_answers_no_options() -> None:
    transport = await Node().ask(options("/ticks/a"))
    assert transport.written.startswith(b"HTTP/1.1 405 ")


async def test_a_link_on_a_foreign_page_leads_to_what_shows_and_not_to_what_takes() -> None:
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")

    node = Node()
    node.server.guard = Guard("127.0.0.1")
    asked = (get("/tock", *link), get("/tock"), get("/ticks/a", *link))
    transport = await node.ask(*(each.replace(b"Host: test", b"Host: [::1]") for each in asked))
    statuses = re.findall(rb"HTTP/1.1 (\d+)", transport.written)
    assert statuses == [b"403", b"200", b"200"]
    assert node.handlers.asked == [("a", TickHeaders())]


@pytest.mark.parametrize(
    "path", ["/%68idden", "/hidde%6E", "/HIDDEN", "/hidden/", "//hidden", "/%2Fhidden", "/./hidden"]
)
async def test_only_parameters_of_a_path_may_be_escaped(path: str) -> None:
    node = Node(admin_over_tcp=True)
    transport = await node.ask(get(path).replace(b"GET", b"POST"))
    assert transport.written.startswith(b"HTTP/1.1 404 ")
    transport = await node.ask(get("/ticks/%61%2f"))
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert node.handlers.asked == [("a/", TickHeaders())]


async def test_internal_routes_are_served_over_tcp_only_if_that_was_allowed() -> None:
    ask = get("/hidden").replace(b"GET", b"POST")
    node = Node()
    transport = await node.ask(ask)
    assert transport.written.startswith(b"HTTP/1.1 403 ")
    assert b"admin_over_tcp = true" in transport.written
    assert (await node.ask(get("/hidden"))).written.startswith(b"HTTP/1.1 403 ")
    local, transport = connect(node.server, is_local=True)
    local.data_received(get("/hidden"))
    assert transport.written.startswith(b"HTTP/1.1 405 ")
    assert (await node.ask(ask)).written.startswith(b"HTTP/1.1 403 "), "checked again"
    node = Node(admin_over_tcp=True)
    assert (await node.ask(get("/hidden"))).written.startswith(b"HTTP/1.1 405 ")


async def test_internal_routes_are_not_for_pages() -> None:
    node = Node(options=True)
    transport = await node.ask(
        get("/hidden", "Origin: https://a.example").replace(b"GET", b"POST"), options("/hidden")
    )
    assert transport.written.count(b"HTTP/1.1 403 ") == 2
    assert not node.handlers.asked


async def test_json_that_a_handler_has_already_is_answered_as_it_is() -> None:
    transport = await Node().ask(get("/tock"))
    head, _, body = bytes(transport.written).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"application/json" in head
    assert body == b'{"tock":1}'


async def test_head_of_what_gives_something_away_is_refused_and_gives_nothing_away() -> None:
    transport = await Node().ask(get("/tock").replace(b"GET ", b"HEAD ", 1))
    assert transport.written.startswith(b"HTTP/1.1 405 ")
    assert b"Allow: GET\r\n" in transport.written


def test_the_document_shows_a_stream_next_to_the_answer_in_json() -> None:
    both = replace(ROUTE, answers={200: dict[str, int]})
    answer = document([both])["paths"]["/ticks/{name}"]["get"]["responses"]["200"]
    assert set(answer["content"]) == {"application/json", *ROUTE.streams}
