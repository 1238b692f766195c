"""What answers say to browsers about pages of other origins."""

from __future__ import annotations

import pytest

from daemon.http.cors import Cors
from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from tests.daemon.http.front import Script, get, post
from tests.daemon.http.memory_transport import connect

SHOP = "https://shop.example"
ALLOWS = b"Access-Control-Allow-Origin: https://shop.example\r\n"
ANY = b"Access-Control-Allow-Origin: *\r\n"


def answers(origins: tuple[str, ...], *requests: bytes) -> bytes:
    """What a server that allows ``origins`` writes."""
    server = Server()
    server.application = Script()
    server.limits = HttpLimits(body_bytes_max=1000)
    server.cors = Cors(origins) if origins else None
    connection, transport = connect(server)
    connection.data_received(b"".join(requests))
    return bytes(transport.written)


REQUESTS = {
    "an answer": get("/echo", f"Origin: {SHOP}"),
    "a short answer": post("/free", b"", f"Origin: {SHOP}"),
    "an error": get("/refuse", f"Origin: {SHOP}"),
    "a path that is not there": get("/missing", f"Origin: {SHOP}"),
    "a method that is not allowed": post("/only-get", b"", f"Origin: {SHOP}"),
    "a refusal before the body": post("/full", b"x", f"Origin: {SHOP}"),
    "a body over the limit": post("/echo", b"x" * 2000, f"Origin: {SHOP}"),
    "a bug": get("/fail", f"Origin: {SHOP}"),
    "a stream": get("/stream", f"Origin: {SHOP}"),
    "the head of a stream": get("/stream", f"Origin: {SHOP}").replace(b"GET", b"HEAD"),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_every_answer_allows_the_pages_of_an_allowed_origin(request_: bytes) -> None:
    written = answers((SHOP, "https://other.example"), request_)
    assert written.count(ALLOWS) == written.count(b"Vary: Origin\r\n") == 1
    assert b"Access-Control-Expose-Headers: Allow, Retry-After\r\n" in written
    assert answers(("*",), request_).count(ANY) == 1
    assert b"Access-Control" not in answers((), request_)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", SHOP + ".evil.example", ""])
def test_pages_of_another_origin_may_not_read_and_caches_are_told(origin: str) -> None:
    written = answers((SHOP,), get("/echo", f"Origin: {origin}"))
    assert b"Access-Control" not in written.partition(b"\r\n\r\n")[0]
    assert b"Vary: Origin\r\n" in written


def test_an_answer_that_no_page_asked_for_differs_by_origin_too() -> None:
    assert b"Vary: Origin\r\n" in answers((SHOP,), get("/missing"))


def test_a_page_of_any_origin_may_read_if_all_are_allowed() -> None:
    assert ANY in answers(("*", SHOP), get("/echo", "Origin: null"))
    assert ANY in answers(("*",), get("/missing"))
    assert ANY in answers(("*",), b"\x00\x01")
