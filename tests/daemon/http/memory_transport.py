"""A transport without a socket, so that a test decides where received bytes are split."""

from __future__ import annotations

import asyncio

from daemon.http.connection import Connection
from daemon.http.server import Server


class MemoryTransport(asyncio.Transport):
    """Collects what is written. ``ended``: our side was closed; ``paused``: nothing is read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.ended = False
        self.closed = False
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written after the end"
        self.written += data

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


def connect(server: Server) -> tuple[Connection, MemoryTransport]:
    """A connection of ``server`` over a memory transport."""
    connection = Connection(server)
    transport = MemoryTransport()
    connection.connection_made(transport)
    return connection, transport
