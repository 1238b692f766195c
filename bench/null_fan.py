"""The cheapest possible fan-out: the floor under every figure of delivery.

A bare asyncio Protocol on uvloop. ``GET /watch`` opens a stream; each other request is answered
with the monotonic time at which it came, after 300 bytes were written to all streams.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import cast

import uvloop

from shards.clock import monotonic_ns

EVENT = b"event: record\ndata: " + b"x" * 270 + b"\n\nid: 1\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: caught-up\ndata: {}\n\n"
BACKLOG = 4096


class _Fan(asyncio.Protocol):
    streams: set[asyncio.Transport] = set()  # noqa: RUF012 (one per process, on purpose)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop do not inherit from those of asyncio.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /watch"):
            self._transport.write(HEAD)
            self.streams.add(self._transport)
            return
        began_ns = monotonic_ns()
        for each in self.streams:
            each.write(EVENT)
        body = b'{"began_ns":%d}' % began_ns
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.discard(self._transport)


async def serve(port: int) -> None:
    """Serves 127.0.0.1:``port`` until the process is ended."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = await asyncio.get_running_loop().create_server(_Fan, sock=listener, backlog=BACKLOG)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
