"""Two ends of a pipe over real sockets: an owner that does what a test says, and a client."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

from delivery.pipes.addresses import open_pipe_listeners, pipe_name
from delivery.pipes.buffers import PipeBuffers
from delivery.pipes.client import Pipes
from delivery.pipes.errors import PipeRefused
from delivery.pipes.server import Asker, PipeHandler, PipeServer
from delivery.streams.outlet import Outlet

FRAME_BYTES_MAX = 8 << 20
OWNER = 0
_tokens = itertools.count()


class SlowClient:
    """An outlet whose client takes what it is sent when the test says so."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.drained: Callable[[], None] | None = None
        self.closed_by_peer: Callable[[], None] | None = None
        self.writable = takes
        self.closed = False
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.writable = self.takes and not self.closed

    def end(self, data: bytes = b"") -> None:
        if data:
            self.writes.append(data)
        self.closed = True
        self.writable = False
        self.drained = self.closed_by_peer = None

    def take(self) -> None:
        """Takes everything, once."""
        self.writable = True
        assert self.drained is not None
        self.drained()

    def go(self) -> None:
        """Closes the connection."""
        closed_by_peer = self.closed_by_peer
        self.end()
        assert closed_by_peer is not None
        closed_by_peer()

    @property
    def text(self) -> bytes:
        return b"".join(self.writes)

    @property
    def taken_bytes(self) -> int:
        return sum(map(len, self.writes))


class Owner:
    """A handler. ``ask`` echoes, unless the request is one of the words below."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.askers: list[Asker] = []
        self.cancelled: list[bytes] = []
        self.opened: list[tuple[bytes, Outlet]] = []
        self.gone: list[bytes] = []

    async def ask(self, payload: bytes, asker: Asker) -> bytes:
        self.askers.append(asker)
        self.asked.append(payload)
        if payload.startswith(b"refuse"):
            raise PipeRefused(b"because of " + payload)
        if payload.startswith(b"fail"):
            raise ValueError(payload)
        if payload.startswith(b"wait"):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled.append(payload)
                raise
        if payload.startswith(b"large "):
            return bytes(int(payload[6:]))
        return b"echo " + payload

    def open(self, payload: bytes, outlet: Outlet) -> None:
        if payload == b"fail":
            raise ValueError(payload)
        outlet.closed_by_peer = lambda: self.gone.append(payload)
        self.opened.append((payload, outlet))


class Ends:
    """An owner's listening socket, the processes' ends that serve it one after the other, and a
    shard that asks."""

    def __init__(self, shards: int = 1) -> None:
        token = f"test-{os.getpid()}-{next(_tokens)}"
        self.listeners = open_pipe_listeners(token, shards)
        self.names = [pipe_name(token, shard) for shard in range(shards)]
        self.buffers = PipeBuffers()
        self.pipes = Pipes(self.names, self.buffers, FRAME_BYTES_MAX)
        self.servers: list[PipeServer] = []

    async def start(self, owner: PipeHandler, shard: int = OWNER) -> PipeServer:
        """The owner's process begins to serve."""
        server = PipeServer(owner, PipeBuffers(), FRAME_BYTES_MAX)
        self.servers.append(server)
        inherited = socket.socket(fileno=os.dup(self.listeners[shard].fileno()))
        await server.start(inherited)
        return server

    async def stop(self, server: PipeServer) -> None:
        """The owner's process is gone."""
        self.servers.remove(server)
        await server.close()

    async def until(self, look: Callable[[], object]) -> None:
        """Turns the loop until something is true, and checks all invariants at each turn."""
        while True:
            self.check()
            if look():
                return
            await asyncio.sleep(0.001)

    def check(self) -> None:
        self.pipes.check_invariants()
        for server in self.servers:
            server.check_invariants()

    async def close(self) -> None:
        await self.pipes.close()
        for server in list(self.servers):
            await self.stop(server)
        for listener in self.listeners:
            listener.close()
        await asyncio.sleep(0)  # the transports close their sockets


def run(steps: Callable[[Ends], Awaitable[None]], shards: int = 1) -> None:
    """Runs a test's steps on the loop of a shard."""

    async def main() -> None:
        ends = Ends(shards)
        try:
            await steps(ends)
        finally:
            await ends.close()

    uvloop.run(_timed(main()))


async def _timed(main: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(60):
        await main
