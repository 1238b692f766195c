"""Listening sockets: one per shard on one address, and a sentence when the address is not free."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from daemon.http.limits import HttpLimits
from daemon.process.listeners import (
    NOT_SENT_BYTES_MAX,
    UNACKNOWLEDGED_MS_MAX,
    ListenError,
    open_kafka_listeners,
    open_listeners,
)
from tools.minio import free_ports


@contextlib.contextmanager
def listening(host: str, port: int, count: int) -> Iterator[list[socket.socket]]:
    made = open_listeners(host, port, count)
    try:
        yield made
    finally:
        for listener in made:
            listener.close()


def test_all_sockets_share_the_port_that_the_kernel_chose() -> None:
    with listening("127.0.0.1", 0, 3) as made:
        names = {listener.getsockname() for listener in made}
        assert len(made) == 3 and len(names) == 1
        host, port = names.pop()
        assert host == "127.0.0.1" and port > 0
        assert not any(listener.getblocking() for listener in made)


def test_the_kernel_keeps_little_for_a_client_that_does_not_read_and_gives_up_dead_ones() -> None:
    with listening("127.0.0.1", 0, 1) as (listener,), contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_connection(listener.getsockname()))
        listener.setblocking(True)
        accepted = stack.enter_context(listener.accept()[0])
        limits = [
            accepted.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_NOTSENT_LOWAT, socket.TCP_USER_TIMEOUT)
        ]
        assert limits == [NOT_SENT_BYTES_MAX, UNACKNOWLEDGED_MS_MAX]
        assert HttpLimits().write_timeout_ms < UNACKNOWLEDGED_MS_MAX


def test_connections_are_spread_over_the_sockets() -> None:
    with listening("127.0.0.1", 0, 2) as made, contextlib.ExitStack() as stack:
        for _ in range(64):
            client = socket.create_connection(made[0].getsockname())
            stack.callback(client.close)
        accepted = [0, 0]
        while sum(accepted) < 64:  # who has connected is not always there to be accepted yet
            for place, listener in enumerate(made):
                accepted[place] += accept_all(listener, stack)
        assert sum(accepted) == 64 and min(accepted) > 0


def accept_all(listener: socket.socket, stack: contextlib.ExitStack) -> int:
    """How many connections waited at a socket."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            stack.callback(connection.close)
            count += 1
    return count


def test_a_port_that_another_daemon_listens_on_is_refused_although_it_could_be_shared() -> None:
    with listening("127.0.0.1", 0, 1) as made:
        port = made[0].getsockname()[1]
        with pytest.raises(ListenError) as caught:
            open_listeners("127.0.0.1", port, 1)
    assert str(caught.value) == (
        f"listen = 127.0.0.1:{port} cannot be used: Address already in use; give another HOST:PORT"
    )


def test_a_port_of_kafka_after_the_first_is_refused_with_both() -> None:
    port = free_ports(2)
    with listening("127.0.0.1", port + 1, 1), pytest.raises(ListenError) as caught:
        open_kafka_listeners("127.0.0.1", port, 1)
    assert str(caught.value).startswith(
        f"kafka_listen = 127.0.0.1:{port}: the port of shard 0 = 127.0.0.1:{port + 1} cannot be"
    )


def test_a_port_is_free_again_at_once() -> None:
    port = free_ports(1)
    # A connection that was served leaves the address in TIME_WAIT.
    with listening("127.0.0.1", port, 2), socket.create_connection(("127.0.0.1", port)):
        pass
    with listening("127.0.0.1", port, 2) as again:
        assert again[0].getsockname()[1] == port


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.1", "a..b"])
def test_a_host_that_is_not_ours_is_refused_in_words(host: str) -> None:
    with pytest.raises(ListenError, match=f"listen = {host}:0 cannot be used: ") as caught:
        open_listeners(host, 0, 1)
    assert "Unknown error" not in str(caught.value)
