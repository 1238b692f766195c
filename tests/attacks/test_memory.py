"""Bodies that fill the memory of a shard: whatever the route, they are promised room or refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import psutil
import pytest

from compaction.access.http_calls import SOCKET_NAME
from daemon.http.request_budget import DECODED, LARGE_BYTES_MAX, REQUESTS_BYTES_MAX
from tests.e2e.daemon import HANG_S, Daemon, wait_until

MIB = 1 << 20
Connect = Callable[[Daemon], socket.socket]


def by_tcp(daemon: Daemon) -> socket.socket:
    return socket.create_connection(("127.0.0.1", daemon.port), timeout=HANG_S)


def by_unix_socket(daemon: Daemon) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(HANG_S)
    made.connect(str(daemon.data / SOCKET_NAME))
    return made


def shard_bytes(daemon: Daemon) -> int:
    """The resident memory of the daemon's one shard."""
    (shard,) = psutil.Process(daemon.process.pid).children()
    return int(shard.memory_info().rss)


@pytest.mark.parametrize(
    ("path", "body_mib", "count", "connect"),
    [
        ("/v0/topics/secrets/diff", 1, 200, by_tcp),
        ("/v0/admin/ledger/lake.runs.begin", 16, 40, by_unix_socket),
        ("/v0/admin/ledger/lake.runs.begin", 16, 40, by_tcp),
    ],
)
def test_bodies_that_never_end_take_no_more_than_what_is_printed(
    victim: Daemon, path: str, body_mib: int, count: int, connect: Connect
) -> None:
    body = b"[" + b" " * (body_mib * MIB - 2)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {body_mib * MIB}\r\n\r\n"
    ).encode()
    before = shard_bytes(victim)
    refused = 0
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(connect(victim)) for _ in range(count)]

        def send(some: list[socket.socket]) -> None:
            for each in some:
                with contextlib.suppress(OSError):
                    each.sendall(head + body)

        threads = [threading.Thread(target=send, args=(sockets[n::8],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert victim.get("/readyz").status == 200, "a probe is answered meanwhile"
        grown = shard_bytes(victim) - before
        for each in sockets:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                refused += each.recv(12) in (b"HTTP/1.1 503", b"HTTP/1.1 403")
    # What is not decoded yet is a twentieth of what was promised, but for the admin API's.
    assert grown < REQUESTS_BYTES_MAX, f"{grown >> 20} MiB for {count} bodies"
    assert refused >= count - max(4, REQUESTS_BYTES_MAX // (DECODED * body_mib * MIB)), refused
    wait_until(lambda: victim.diff("secrets")["head_seq"] == 1, "the shard to serve others again")


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (b"lake.lake_tables.switch", b"[" + b"1," * (8 * MIB - 2) + b"1]"),
        (b"lake.lake_files.known", b"[[" + b'"ab",' * (3 * MIB) + b'""]]'),
    ],
    ids=["arguments", "texts"],
)
def test_a_body_of_millions_of_values_takes_no_more_than_what_is_printed(
    victim: Daemon, operation: bytes, body: bytes
) -> None:
    answers: list[bytes] = []

    def ask() -> None:
        with by_unix_socket(victim) as sock:
            sock.sendall(
                b"POST /v0/admin/ledger/%b HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % (operation, len(body))
                + body
            )
            answers.append(sock.recv(65536))

    before = shard_bytes(victim)
    thread = threading.Thread(target=ask)
    thread.start()
    most = 0
    while thread.is_alive():
        most = max(most, shard_bytes(victim) - before)
        thread.join(0.005)
    assert most < LARGE_BYTES_MAX, f"{most >> 20} MiB"
    (answer,) = answers
    assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 ")), answer
