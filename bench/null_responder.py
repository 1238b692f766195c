"""The cheapest possible server of this kind: how fast the generator can get.

A bare asyncio Protocol with httptools on uvloop answers every request with 200 and 120 bytes. It
ignores bodies, stores nothing and has no limits.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import cast

import httptools
import uvloop

_BODY = b'{"topic":"bench","partition":0,"first_seq":1,"last_seq":1,"count":1,"head_seq":1}'
_BODY = _BODY.ljust(120)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)
BACKLOG = 2048


class _Null(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop do not inherit from those of asyncio.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(ANSWER)


async def serve(port: int) -> None:
    """Answers on 127.0.0.1:``port`` until the process is ended."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = await asyncio.get_running_loop().create_server(_Null, sock=listener, backlog=BACKLOG)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
