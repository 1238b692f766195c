"""Whose requests are taken: by Host, by Origin, and by what browsers say about a page's site."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from daemon.config import Override, load
from daemon.http.guard import Guard, guard_of
from daemon.http.head import parse_head
from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from daemon.schemas.errors import ApiError
from tests.daemon.http.front import Script
from tests.daemon.http.memory_transport import connect

LOOPBACK = "127.0.0.1"


def refusal(
    guard: Guard,
    *fields: str,
    host: str | None = "localhost",
    target: str = "/x",
    method: str = "GET",
) -> tuple[int, str] | None:
    """Status and code of the refusal of a request, None if it is taken in."""
    version = "1.0" if host is None else "1.1"
    lines = [f"{method} {target} HTTP/{version}", *fields]
    if host is not None:
        lines.append(f"Host: {host}")
    try:
        guard.check(parse_head(("\r\n".join(lines) + "\r\n\r\n").encode(), HttpLimits()))
    except ApiError as error:
        return error.status, error.code
    return None


MISDIRECTED = (421, "misdirected")
FOREIGN = (403, "foreign_page")
OURS = [
    "localhost", "LOCALHOST:7440", "localhost.", "app.localhost:1", "127.0.0.1", "127.0.0.1:7440",
    "127.9.9.9", "[::1]:7440", "[::1]",
]  # fmt: skip
FOREIGN_NAMES = [
    "evil.example", "evil.example:7440", "localhost.evil.example", "127.0.0.1.evil.example",
    "notlocalhost", "localhost:7440:1", "", ":7440", "a@localhost", "localhost@evil.example",
    "[::1].evil.example", "[localhost]", "2130706433", "0x7f.1",
]  # fmt: skip


@pytest.mark.parametrize("host", OURS)
@pytest.mark.parametrize("listen", [LOOPBACK, "0.0.0.0", "10.1.2.3", "headgate.example.org"])
def test_loopback_names_are_always_the_daemons(listen: str, host: str) -> None:
    assert refusal(Guard(listen), host=host) is None
    assert refusal(Guard(listen), target=f"http://{host}/x") is None


@pytest.mark.parametrize("host", FOREIGN_NAMES)
@pytest.mark.parametrize("listen", [LOOPBACK, "0.0.0.0", "10.1.2.3", "headgate.example.org"])
def test_a_name_that_is_not_the_daemons_is_misdirected_also_in_an_absolute_target(
    listen: str, host: str
) -> None:
    assert refusal(Guard(listen, ["other.example"]), host=host) in (
        MISDIRECTED,
        (400, "bad_request"),
    )
    assert refusal(Guard(listen), target=f"http://{host}/x") in (MISDIRECTED, (400, "bad_request"))


def test_addresses_and_the_machines_name_are_the_daemons_unless_it_listens_on_loopback() -> None:
    machine = socket.gethostname()
    for host in ("10.1.2.3:7440", "[2001:db8::1]:80", "[fe80::1%25eth0]", machine, machine.upper()):
        for listen in ("0.0.0.0", "::", "10.9.9.9", "headgate.example.org"):
            assert refusal(Guard(listen), host=host) is None, (listen, host)
    for listen in (LOOPBACK, "::1", "localhost"):
        assert refusal(Guard(listen), host="10.1.2.3:7440") == MISDIRECTED


def test_the_listen_name_and_allowed_hosts_are_the_daemons() -> None:
    guard = Guard("headgate.example.org", ["queue.internal", "*.apps.example"])
    for host in (
        "Headgate.example.org:7440",
        "queue.internal.",
        "a.apps.example",
        "a.b.apps.example",
    ):
        assert refusal(guard, host=host) is None, host
    for host in ("apps.example", "xapps.example", "queue.internal.evil.example"):
        assert refusal(guard, host=host) == MISDIRECTED, host
    assert refusal(Guard(LOOPBACK, ["*"]), host="evil.example") is None


def test_a_probe_that_speaks_http_1_0_needs_no_host() -> None:
    assert refusal(Guard(LOOPBACK), host=None) is None


NAVIGATION = ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
PAGES: list[tuple[Sequence[str], str, tuple[int, str] | None]] = [
    ((), "GET", None),
    (("Sec-Fetch-Site: none",), "GET", None),
    (("Sec-Fetch-Site: same-origin",), "POST", None),
    (("Sec-Fetch-Site: cross-site",), "GET", FOREIGN),
    (("Sec-Fetch-Site: same-site",), "GET", FOREIGN),
    (("Sec-Fetch-Site: anything",), "GET", FOREIGN),
    (("Sec-Fetch-Site: cross-site", *NAVIGATION), "GET", None),
    (("Sec-Fetch-Site: cross-site", *NAVIGATION), "POST", FOREIGN),
    (("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"), "GET",
     FOREIGN),
    (("Origin: https://evil.example",), "POST", FOREIGN),
    (("Origin: https://evil.example", "Sec-Fetch-Site: cross-site", *NAVIGATION), "GET", FOREIGN),
    (("Origin: null",), "POST", FOREIGN),
    (("Origin:",), "POST", FOREIGN),
    (("Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"), "POST", FOREIGN),
    (("Origin: http://localhost:7440", "Sec-Fetch-Site: same-origin"), "POST", None),
    (("Origin: https://evil.example",), "OPTIONS", FOREIGN),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "method", "refused"), PAGES)
def test_a_page_of_another_origin_may_nothing_but_link_here(
    fields: Sequence[str], method: str, refused: tuple[int, str] | None
) -> None:
    asked = {"host": "localhost:7440", "method": method}
    assert refusal(Guard(LOOPBACK), *fields, **asked) == refused
    anybody = Guard(LOOPBACK, (), ("*",))
    assert refusal(anybody, *fields, **asked) is None


def test_a_page_of_an_allowed_origin_may_use_the_api() -> None:
    guard = Guard(LOOPBACK, (), ("https://shop.example",))
    site = "Sec-Fetch-Site: cross-site"
    assert refusal(guard, "Origin: https://shop.example", site, method="POST") is None
    assert refusal(guard, "Origin: https://evil.example", site, method="POST") == FOREIGN
    assert refusal(guard, site) == FOREIGN, "nobody knows whose it is"


def test_a_head_that_the_unix_socket_brought_is_checked_again_when_it_comes_by_tcp() -> None:
    server = Server()
    server.application = Script()
    server.guard = Guard(LOOPBACK)
    ask = b"GET /echo HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    statuses = []
    for is_local in (True, False, True, False):
        connection, transport = connect(server, is_local=is_local)
        connection.data_received(ask)
        statuses.append(bytes(transport.written[9:12]))
    assert statuses == [b"200", b"421", b"200", b"421"]


def test_the_host_of_the_tls_listener_is_the_daemons_own() -> None:
    given = {
        "tls_listen": "0.0.0.0:7443",
        "tls_certificate": "c.pem",
        "tls_key": "k.pem",
        "insecure_open": "true",
    }
    config = load(None, {}, [Override(key, value, "test") for key, value in given.items()])
    assert refusal(guard_of(config), host="10.1.2.3:7443") is None
    assert refusal(guard_of(config), host="evil.example") == MISDIRECTED
