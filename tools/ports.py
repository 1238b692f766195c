"""Ports of servers on this machine: one that a test keeps, and what answers there."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """A loopback port that nobody else is given while the block runs, also when nothing listens.

    The kernel gives a port to whoever asks for any, as soon as its listener is gone. The socket
    that keeps this one never listens: it is not in the way of a server that has SO_REUSEADDR and
    names the port.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])


def asked(
    port: int, method: str, path: str, body: bytes | None = None, *, timeout_s: float = 5.0
) -> tuple[int, bytes]:
    """Status and body of the answer of the server on a loopback port; status 0 for none."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
