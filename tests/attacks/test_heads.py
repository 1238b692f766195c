"""Heads that no two requests share: a shard keeps none of them while a request waits, for its
commit or for the answers before its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from daemon.http.limits import HttpLimits
from tests.attacks.test_memory import by_tcp, shard_bytes
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.wire import request

MIB = 1 << 20
CONNECTIONS = 48
PIPELINED = HttpLimits().requests_outstanding_max - 1
TARGET_BYTES = HttpLimits().target_bytes_max - 64
LONG_POLL = request("POST", "/v0/topics/secrets/diff", b'{"from_seq":0,"wait_ms":60000}')
WIDE = "%F0%9F%98%80"  # a character with which all others of a text take four bytes
FRAME_BYTES = 100  # of a request in the ring, at least
# Each of these attacks sends at least 47 MiB, of which copies were kept.
KEPT_BYTES_MAX = 32 * MIB


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that commits once a minute."""
    window = {"commit_window_min_ms": 60_000, "ack_timeout_ms": 600_000}
    with running(tmp_path_factory.mktemp("data"), settings=window) as daemon:
        assert daemon.json("PUT", "/v0/topics/secrets", {}).status == 201
        yield daemon


def padded(target: str) -> str:
    return target + "x" * (TARGET_BYTES - len(target))


def produce(number: int) -> bytes:
    return request("POST", padded(f"/v0/topics/secrets?key=%22{number}{WIDE}"), b"[1]")


def path(number: int) -> bytes:
    return request("GET", padded(f"/v1/{number}/{WIDE}"))


def query(number: int) -> bytes:
    return request("GET", padded(f"/v0/topics/unknown?{number}={WIDE}"))


def origin(number: int) -> bytes:
    field = b"Origin: http://localhost:%d/%s" % (number, b"x" * 16_000)
    return request("GET", "/nothing").replace(b"\r\n", b"\r\n" + field + b"\r\n", 1)


@contextlib.contextmanager
def pipelined(daemon: Daemon, first: bytes, head: Callable[[int], bytes]) -> Iterator[None]:
    """Connections with as many requests as one may have without an answer."""
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for place in range(CONNECTIONS):
            numbers = range(place * PIPELINED, (place + 1) * PIPELINED)
            sockets.append(stack.enter_context(by_tcp(daemon)))
            sockets[-1].sendall(first + b"".join(map(head, numbers)))
        yield
        for each in sockets:  # none was closed for want of memory
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert each.recv(1)


def test_a_request_that_waits_for_its_commit_keeps_no_head(slow: Daemon) -> None:
    def in_ring() -> int:
        (shard,) = slow.status()["shards"]
        return int(shard["ring_used_bytes"])

    before_bytes, before = shard_bytes(slow), in_ring()
    with pipelined(slow, b"", produce):
        enough_bytes = before + FRAME_BYTES * CONNECTIONS * PIPELINED // 2
        wait_until(lambda: in_ring() >= enough_bytes, "half of them to wait for their commit")
        assert shard_bytes(slow) - before_bytes < KEPT_BYTES_MAX


@pytest.mark.parametrize("head", [path, query, origin])
def test_what_was_refused_and_waits_for_a_long_poll_keeps_no_head(
    slow: Daemon, head: Callable[[int], bytes]
) -> None:
    before_bytes = shard_bytes(slow)
    with pipelined(slow, LONG_POLL, head):
        assert slow.get("/readyz").status == 200
        assert shard_bytes(slow) - before_bytes < KEPT_BYTES_MAX
