"""Connections of one client, as many as a shard takes and more: others and probes still get in."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

import pytest

from daemon.access.token_file import Scope
from delivery.schemas import WAIT_MS_MAX
from tests.attacks.conftest import BOTH_FORMS, Guard
from tests.e2e.daemon import HANG_S, Daemon, running, wait_until
from tests.e2e.wire import request

FILES = 700  # leave a shard 92 connections, 69 of one address, and 23 reserved ones
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
pytestmark = BOTH_FORMS


@pytest.fixture(scope="module")
def small(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that may open few files."""
    few = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", sys.executable, "-m", "cli", "serve")
    with running(tmp_path_factory.mktemp("data"), command=few, **guard.options()) as daemon:
        assert daemon.produce("secrets", 1).status == 200
        yield daemon


class Crowd(contextlib.ExitStack):
    """Connections of an attacker, held open."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._daemon = daemon

    def add(self, count: int, sends: bytes = b"", address: str = HERE) -> None:
        for _ in range(count):
            sock = self.enter_context(connected(self._daemon, address))
            sock.sendall(sends)


def connected(daemon: Daemon, address: str) -> socket.socket:
    return socket.create_connection((HERE, daemon.port), HANG_S, (address, 0))


def status(daemon: Daemon, path: str, address: str) -> int:
    """The status of its owner's GET from an address; 0 if the connection ends without an answer."""
    fields = {"Authorization": f"Bearer {daemon.token}"} if daemon.token else {}
    with connected(daemon, address) as sock:
        try:
            sock.sendall(request("GET", path, **fields))
            return int(sock.recv(65536)[9:12] or 0)
        except ConnectionError:
            return 0


def connections(daemon: Daemon) -> int:
    (shard,) = daemon.status()["shards"]
    return int(shard["connections"])


def test_busy_connections_of_one_address_leave_room_for_others_and_for_probes(
    small: Daemon, guard: Guard
) -> None:
    body = b'{"from_seq":1,"wait_ms":%d}' % WAIT_MS_MAX
    poll = request("POST", "/v0/topics/secrets/diff", body, **guard.fields(Scope.READ))
    with Crowd(small) as crowd:
        crowd.add(69, poll)
        wait_until(lambda: status(small, "/v0/topics", HERE) == 503, "its share to be full")
        for path in ("/livez", "/readyz", "/metrics", "/v0/status"):
            assert status(small, path, HERE) == 200
        crowd.add(100, poll)
        assert status(small, "/readyz", HERE) == 200
        assert status(small, "/v0/topics", ELSEWHERE) == 200


def test_idle_connections_from_everywhere_shut_nobody_out(small: Daemon) -> None:
    with Crowd(small) as crowd:
        for place in range(10, 20):
            crowd.add(10, address=f"127.0.0.{place}")
            crowd.add(10, b"GET /v0/topics HTTP/1.1\r\n", f"127.0.0.{place}")
        assert status(small, "/readyz", HERE) == 200
        wait_until(
            lambda: status(small, "/v0/topics", ELSEWHERE) == 200, "one to be idle for a second"
        )
        wait_until(lambda: status(small, "/v0/topics", HERE) == 200, "another")
        assert connections(small) <= 92 + 23
