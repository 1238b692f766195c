"""Heads that no two requests share: a shard keeps none of them while a request waits, for its
commit or for the answers before its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from daemon.access.token_file import Scope
from daemon.http.limits import HttpLimits
from delivery.schemas import WAIT_MS_MAX
from tests.attacks.conftest import BOTH_FORMS, Guard
from tests.attacks.test_memory import by_tcp, shard_bytes
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.wire import request

MIB = 1 << 20
CONNECTIONS = 48
PIPELINED = HttpLimits().requests_outstanding_max - 1
TARGET_BYTES = HttpLimits().target_bytes_max - 64
LONG_POLL = b'{"tail":true,"wait_ms":%d}' % WAIT_MS_MAX
Head = Callable[[Guard, int], bytes]
pytestmark = BOTH_FORMS
WIDE = "%F0%9F%98%80"  # a character with which all others of a text take four bytes
FRAME_BYTES = 100  # of a request in the ring, at least
# Each of these attacks sends at least 47 MiB, of which copies were kept.
KEPT_BYTES_MAX = 32 * MIB


@pytest.fixture(scope="module")
def slow(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that commits once a minute."""
    window = {"commit_window_min_ms": 60_000, "ack_timeout_ms": 600_000}
    with running(tmp_path_factory.mktemp("data"), **guard.options(**window)) as daemon:
        assert daemon.json("PUT", "/v0/topics/secrets", {}).status == 201
        yield daemon


def padded(target: str) -> str:
    return target + "x" * (TARGET_BYTES - len(target))


def produce(guard: Guard, number: int) -> bytes:
    fields = guard.fields(Scope.PRODUCE)
    return request("POST", "/v0/topics/secrets", b"[1]", X_Pad=f"{number}" + "x" * 16_000, **fields)


def path(guard: Guard, number: int) -> bytes:
    return request("GET", padded(f"/v1/{number}/{WIDE}"), **guard.fields(Scope.READ))


def origin(guard: Guard, number: int) -> bytes:
    field = b"Origin: http://localhost:%d/%s" % (number, b"x" * 16_000)
    return request("GET", "/nothing", **guard.fields(Scope.READ)).replace(
        b"\r\n", b"\r\n" + field + b"\r\n", 1
    )


def received_unread(daemon: Daemon) -> int:
    """The bytes that the kernel has for the daemon's connections."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    own = f":{daemon.port:04X}"
    columns = [line.split() for line in lines]
    return sum(int(each[4].partition(":")[2], 16) for each in columns if each[1].endswith(own))


def is_answered(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@contextlib.contextmanager
def pipelined(
    daemon: Daemon, first: bytes, head: Callable[[int], bytes]
) -> Iterator[list[socket.socket]]:
    """Connections with as many requests as one may have without an answer, all received."""
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for place in range(CONNECTIONS):
            numbers = range(place * PIPELINED, (place + 1) * PIPELINED)
            sockets.append(stack.enter_context(by_tcp(daemon)))
            sockets[-1].sendall(first + b"".join(map(head, numbers)))
        wait_until(lambda: not received_unread(daemon), "all requests to be received")
        yield sockets
        for each in sockets:  # none was closed for want of memory
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert each.recv(1)


def test_a_request_that_waits_for_its_commit_keeps_no_head(slow: Daemon, guard: Guard) -> None:
    def in_ring() -> int:
        (shard,) = slow.status()["shards"]
        return int(shard["ring_used_bytes"])

    before_bytes, before = shard_bytes(slow), in_ring()
    with pipelined(slow, b"", partial(produce, guard)):
        enough_bytes = before + FRAME_BYTES * CONNECTIONS * PIPELINED // 2
        wait_until(lambda: in_ring() >= enough_bytes, "half of them to wait for their commit")
        assert shard_bytes(slow) - before_bytes < KEPT_BYTES_MAX


@pytest.mark.parametrize("head", [pytest.param(path, marks=pytest.mark.slow), origin])
def test_what_was_refused_and_waits_for_a_long_poll_keeps_no_head(
    slow: Daemon, guard: Guard, head: Head
) -> None:
    poll = request("POST", "/v0/topics/secrets/diff", LONG_POLL, **guard.fields(Scope.READ))
    before_bytes = shard_bytes(slow)
    is_measured = False
    while not is_measured:  # on a slow machine the long polls may end first
        with pipelined(slow, poll, partial(head, guard)) as connections:
            assert slow.get("/readyz").status == 200
            assert shard_bytes(slow) - before_bytes < KEPT_BYTES_MAX
            is_measured = not any(map(is_answered, connections))
