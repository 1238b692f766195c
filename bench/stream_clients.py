"""Many watchers in one process: sockets, one epoll, no parsing.

The time at which bytes arrive is the kernel's (stamps.py), so the figures do not contain the time
that this process takes to read from a thousand sockets. The clock after each read is noted too.
"""

from __future__ import annotations

import select
import socket
from typing import NamedTuple, Self

from bench.processes import ServerError
from bench.stamps import ANCILLARY_BYTES, connect, stamp_ns, wall_minus_monotonic_ns
from shards.clock import monotonic_ns

READ_BYTES = 1 << 18
PATIENCE_S = 20.0
RECORD = b"event: record"
CAUGHT_UP = b"event: caught-up"


class Arrival(NamedTuple):
    """The first bytes of a record at a watcher: in its socket, and read from it (monotonic)."""

    socket_ns: int
    read_ns: int


class StreamClients:
    """Watchers of one path; a context manager that closes them."""

    def __init__(self, port: int, path: str, count: int) -> None:
        self._port = port
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
        ).encode()
        self.count = count
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self.read_bytes = 0
        self.record_bytes = 0  # of the last record that was waited for, as an event

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._poll.close()
        for each in self._sockets.values():
            each.close()

    def _open(self) -> None:
        for _ in range(self.count):
            each = connect(self._port)
            self._sockets[each.fileno()] = each
            each.sendall(self._request)
            each.setblocking(False)
            self._poll.register(each.fileno(), select.EPOLLIN)
        self.wait_for(CAUGHT_UP, stamped=False)  # the kernel begins to stamp a moment later

    def wait_for(self, mark: bytes, *, stamped: bool = True) -> list[Arrival]:
        """Returns when each watcher has got ``mark`` once, with the times at which it came.

        Raises ServerError if one waits too long, or is disconnected."""
        found: dict[int, Arrival] = {}
        deadline_ns = monotonic_ns() + int(PATIENCE_S * 1e9)
        offset_ns = wall_minus_monotonic_ns()
        while len(found) < self.count:
            ready = self._poll.poll(1.0)
            if not ready and monotonic_ns() > deadline_ns:
                raise ServerError(
                    f"{self.count - len(found)} of {self.count} watchers got no {mark!r} within"
                    f" {PATIENCE_S:g} s"
                )
            for number, _ in ready:
                size, ancillary, _, _ = self._sockets[number].recvmsg_into(
                    [self._buffer], ANCILLARY_BYTES
                )
                read_ns = monotonic_ns()
                if not size:
                    raise ServerError("a watcher was disconnected")
                self.read_bytes += size
                begin = self._buffer.find(mark, 0, size)
                if number not in found and begin >= 0:
                    self.record_bytes = self._buffer.find(b"\n\n", begin, size) + 2 - begin
                    socket_ns = stamp_ns(ancillary) - offset_ns if stamped else 0
                    found[number] = Arrival(socket_ns, read_ns)
        return list(found.values())

    def discard(self, until_ns: int) -> None:
        """Throws away what arrives until then; ``read_bytes`` counts."""
        while (left_ns := until_ns - monotonic_ns()) > 0:
            if not self.discard_ready():
                self._poll.poll(left_ns / 1e9)

    def discard_ready(self) -> int:
        """Throws away what has arrived, without copying it; returns its size."""
        before_bytes = self.read_bytes
        for number, _ in self._poll.poll(0):
            size = self._sockets[number].recv_into(self._buffer, READ_BYTES, socket.MSG_TRUNC)
            if not size:
                raise ServerError("a watcher was disconnected")
            self.read_bytes += size
        return self.read_bytes - before_bytes

    def fileno(self) -> int:
        """To wait for several: readable when any watcher is."""
        return self._poll.fileno()
