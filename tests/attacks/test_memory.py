"""Bodies that fill the memory of a shard: whatever the route, they are promised room or refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable

import psutil
import pytest

from compaction.access.http_calls import SOCKET_NAME
from daemon.access.token_file import Scope
from daemon.http.request_budget import (
    DECODED,
    LARGE_BYTES_MAX,
    REQUEST_BYTES,
    REQUESTS_BYTES_MAX,
    is_large_body,
)
from tests.attacks.conftest import BOTH_FORMS, Guard
from tests.e2e.daemon import HANG_S, Daemon, wait_until
from tests.e2e.wire import request

MIB = 1 << 20
pytestmark = BOTH_FORMS
Connect = Callable[[Daemon], socket.socket]


def by_tcp(daemon: Daemon) -> socket.socket:
    return socket.create_connection(("127.0.0.1", daemon.port), timeout=HANG_S)


def by_unix_socket(daemon: Daemon) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(HANG_S)
    made.connect(str(daemon.data / SOCKET_NAME))
    return made


def begin_of_answer(connection: socket.socket) -> bytes:
    """Empty if there is none yet."""
    connection.setblocking(False)
    try:
        return connection.recv(12, socket.MSG_PEEK) or b"closed"
    except BlockingIOError:
        return b""


def shard_bytes(daemon: Daemon) -> int:
    """The resident memory of the daemon's one shard."""
    (shard,) = psutil.Process(daemon.process.pid).children()
    return int(shard.memory_info().rss)


@pytest.mark.parametrize(
    ("path", "scope", "body_mib", "count", "connect"),
    [
        ("/v0/topics/secrets/diff", Scope.READ, 1, 200, by_tcp),
        ("/v0/admin/ledger/lake.runs.begin", Scope.COMPACT, 16, 40, by_unix_socket),
        ("/v0/admin/ledger/lake.runs.begin", Scope.COMPACT, 16, 40, by_tcp),
    ],
)
def test_bodies_that_never_end_take_no_more_than_what_is_printed(
    victim: Daemon, guard: Guard, path: str, scope: Scope, body_mib: int, count: int,
    connect: Connect,
) -> None:  # fmt: skip
    """Where there are tokens, half of the attackers have none, and half have stolen one."""
    body_bytes = body_mib * MIB
    head = ("POST", path, None, "", f"Content-Length: {body_bytes}",
            "Content-Type: application/json")  # fmt: skip
    heads = request(*head), request(*head, **guard.fields(scope))
    before = shard_bytes(victim)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(connect(victim)) for _ in range(count)]
        for n, each in enumerate(sockets):
            each.sendall(heads[n % 2])
        expected = begins_of_answers(guard, scope, body_bytes, count, connect)
        # As many as there is room for are let in, and no other one.
        wait_until(
            lambda: sum(not begin_of_answer(each) for each in sockets) <= expected[b""],
            "all others to be refused",
        )
        assert Counter(map(begin_of_answer, sockets)) == expected

        def send(some: list[socket.socket]) -> None:
            for each in some:
                each.settimeout(HANG_S)
                with contextlib.suppress(OSError):  # it was refused, and is closed
                    each.sendall(b"[" + b" " * (body_bytes - 2))

        threads = [threading.Thread(target=send, args=(sockets[n::8],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert victim.get("/readyz").status == 200, "a probe is answered meanwhile"
        grown = shard_bytes(victim) - before
    # What is not decoded yet is a twentieth of what was promised, but for the admin API's.
    assert grown < REQUESTS_BYTES_MAX, f"{grown >> 20} MiB for {count} bodies"
    wait_until(lambda: victim.diff("secrets")["head_seq"] == 1, "the shard to serve others again")


def begins_of_answers(
    guard: Guard, scope: Scope, body_bytes: int, count: int, connect: Connect
) -> Counter[bytes]:
    """How many of ``count`` get which answer while their bodies are on their way; none is empty."""
    refused: Counter[bytes] = Counter()
    if connect is by_tcp and guard.has_tokens:
        refused[b"HTTP/1.1 401"] = count // 2
    if connect is by_tcp and scope == Scope.COMPACT:
        refused[b"HTTP/1.1 403"] = count - refused.total()
        return refused
    room = (
        1
        if is_large_body(body_bytes)
        else REQUESTS_BYTES_MAX // (DECODED * body_bytes + REQUEST_BYTES)
    )
    refused[b"HTTP/1.1 503"] = count - room - refused.total()
    return refused + Counter({b"": room})


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
