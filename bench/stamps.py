"""When bytes arrived in a socket, by the kernel.

It stamps what loopback puts into a socket's receive buffer (SO_TIMESTAMPNS), by the wall clock. So
the time until a busy client reads it is not in the figure.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from bench.processes import ServerError
from shards.clock import monotonic_ns, wall_ns

SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python does not name it
ANCILLARY_BYTES = 64
PATIENCE_S = 30.0

_TIMESPEC = struct.Struct("qq")


def connect(port: int) -> socket.socket:
    """A connection whose arrivals are stamped."""
    made = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def wall_minus_monotonic_ns() -> int:
    """What to subtract from a stamp; ask anew every few seconds."""
    before_ns = monotonic_ns()
    wall = wall_ns()
    return wall - (before_ns + monotonic_ns()) // 2


def stamp_ns(ancillary: Iterable[tuple[int, int, bytes]]) -> int:
    """The stamp that ``recvmsg`` returned. Raises ServerError if there is none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    raise ServerError("the kernel gave no time for what arrived; it must support SO_TIMESTAMPNS")


class StampedAsker:
    """One keep-alive connection with one request at a time."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = connect(port)
        self._request = request
        self._rest = b""

    def send(self) -> None:
        """Sends the request."""
        self.socket.sendall(self._request)

    def answer(self) -> tuple[int, bytes]:
        """When the answer arrived (wall clock), and its body. Raises ServerError unless 200."""
        while True:
            data, ancillary, _, _ = self.socket.recvmsg(65536, ANCILLARY_BYTES)
            if not data:
                raise ServerError("a connection ended before its answer")
            self._rest += data
            body = self._whole()
            if body is not None:
                return stamp_ns(ancillary), body

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def _whole(self) -> bytes | None:
        head, end, body = self._rest.partition(b"\r\n\r\n")
        if not end:
            return None
        lower = head.lower()
        start = lower.index(b"content-length:") + len(b"content-length:")
        if len(body) < int(lower[start:].split(b"\r\n", 1)[0]):
            return None
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ServerError(f"a request was answered {self._rest[:300]!r}")
        self._rest = b""
        return body
