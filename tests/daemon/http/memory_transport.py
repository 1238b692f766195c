"""A transport without a socket, so that a test decides where received bytes are split."""

from __future__ import annotations

import asyncio
import math

from daemon.http.connection import Connection
from daemon.http.server import Server


class MemoryTransport(asyncio.Transport):
    """Collects what is written. ``ended``: our side was closed; ``paused``: nothing is read.

    The socket takes ``room`` bytes; what is written beyond that waits until ``take``.
    """

    def __init__(self, room: float = math.inf, address: str = "127.0.0.1") -> None:
        super().__init__({"peername": (address, 1)})
        self.written = bytearray()
        self.room = room
        self.protocol: Connection | None = None
        self._high = 65_536
        self._waiting = 0
        self._holds = False
        self.ended = False
        self.closed = False
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self._waiting

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written after the end"
        self.written += data
        self._waiting += len(data)
        self._move()

    def take(self, count: int) -> None:
        """The client takes ``count`` bytes."""
        self.room += count
        self._move()

    def _move(self) -> None:
        moved = int(min(self.room, self._waiting))
        self.room -= moved
        self._waiting -= moved
        protocol = self.protocol
        if protocol is None or self.closed:
            return
        if not self._holds and self._waiting > self._high:
            self._holds = True
            protocol.pause_writing()
        elif self._holds and self._waiting <= self._high // 4:
            self._holds = False
            protocol.resume_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.ended = self.closed = True

    def abort(self) -> None:
        self.ended = self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def connect(
    server: Server,
    room: float = math.inf,
    *,
    is_local: bool = False,
    address: str = "127.0.0.1",
) -> tuple[Connection, MemoryTransport]:
    """A connection of ``server`` over a memory transport."""
    connection = Connection(server, is_local=is_local)
    transport = MemoryTransport(room, address)
    transport.protocol = connection
    connection.connection_made(transport)
    return connection, transport
