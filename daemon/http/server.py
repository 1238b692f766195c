"""The HTTP front of one shard: listeners, connections, their clock, and draining.

``start`` -> serving -> ``stop_accepting`` (listeners closed) -> ``drain`` (answers say
``Connection: close``, idle connections are closed) -> ``drained`` -> ``close``.

One timer per process turns the wheel of connections; there is no timer per connection or
request. Everything runs on the thread of the loop that ``start`` was called on.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from daemon.http.application import Application
from daemon.http.connection import Connection
from daemon.http.cors import Cors
from daemon.http.guard import Guard
from daemon.http.head import HeadCache
from daemon.http.limits import HttpLimits
from daemon.http.places import ConnectionPlaces
from daemon.http.request import Sender
from daemon.http.stream import Streams
from daemon.http.timeouts import Wheel
from daemon.http.turns import RequestTurns
from daemon.http.unsent import Unsent
from daemon.schemas.errors import ApiError
from daemon.tls.certificate import CheckedPair
from daemon.tls.transport import Tls, TlsTransport
from shards.clock import monotonic_ns

logger = logging.getLogger(__name__)

# A check takes 3 us; that of a slot must not hold up others: 8,192 / 32 x 3 us = 0.8 ms.
_WHEEL_SLOTS = 32
_CHECK_PERIOD_MS_MAX = 5_000
_LISTEN_BACKLOG = 1024


def places_of(limits: HttpLimits) -> ConnectionPlaces[Connection]:
    """No connection yet."""
    of_address = limits.connections_per_address_max or max(1, limits.connections_max * 3 // 4)
    return ConnectionPlaces(limits.connections_max, of_address, limits.connections_told_max)


def streams_of(limits: HttpLimits) -> Streams:
    """No stream yet."""
    return Streams(limits.streams_max, limits.stream_unsent_bytes_max)


def unsent_of(limits: HttpLimits) -> Unsent[Sender]:
    """No answer that waits for its client yet."""
    return Unsent(limits.answers_unsent_bytes_max, "connections whose clients took nothing")


def unread_of(limits: HttpLimits) -> Unsent[Sender]:
    """Nothing yet that was received and cannot be used."""
    return Unsent(limits.unread_bytes_max, "connections that left their requests unfinished")


class Server:
    """Serves HTTP/1.1 to one application."""

    def __init__(self) -> None:
        self.application: Application
        self._limits = HttpLimits()
        self.places = places_of(self._limits)
        self.streams = streams_of(self._limits)
        self.unsent = unsent_of(self._limits)
        self.unread = unread_of(self._limits)
        self.turns = RequestTurns(lambda: self.unread.is_half_full)
        self.tcp_heads = HeadCache()
        self.local_heads = HeadCache()
        self.guard: Guard | None = None
        self.cors: Cors | None = None
        self.draining = False
        # A coarse clock that each tick sets: reading the real one per request is too slow.
        self.now_ns = monotonic_ns()
        self.tick_ns = 0
        self.tls: Tls | None = None
        self._wheel: Wheel[Connection] = Wheel(_WHEEL_SLOTS)
        self._listeners: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self._drained: list[asyncio.Future[None]] = []

    @property
    def limits(self) -> HttpLimits:
        """What connections and the front may take. Set before the first connection."""
        return self._limits

    @limits.setter
    def limits(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.places = places_of(limits)
        self.streams = streams_of(limits)
        self.unsent = unsent_of(limits)
        self.unread = unread_of(limits)

    def limit_memory(self, size_bytes: int) -> None:
        """What clients do not take, and what they do not finish, may each take this much."""
        self.unsent.limit_bytes = min(size_bytes, self._limits.answers_unsent_bytes_max)
        self.unread.limit_bytes = min(size_bytes, self._limits.unread_bytes_max)

    @property
    def connections(self) -> int:
        """How many connections there are that are not streams."""
        return len(self._wheel) - len(self.streams)

    @property
    def outstanding_max(self) -> int:
        """How many requests of a new connection may be without an answer."""
        return self._limits.outstanding_max(self.connections)

    @property
    def check_period_ms(self) -> int:
        """How late a timeout may be noticed."""
        limits = self.limits
        shortest = min(
            limits.idle_timeout_ms,
            limits.head_timeout_ms,
            limits.body_timeout_ms,
            limits.write_timeout_ms,
            limits.linger_ms,
        )
        return max(_WHEEL_SLOTS, min(_CHECK_PERIOD_MS_MAX, shortest // 4))

    @property
    def port(self) -> int:
        """The port that it listens on. Raises RuntimeError if it does not listen."""
        if not self._listeners or not self._listeners[0].sockets:
            raise RuntimeError("the HTTP server does not listen")
        return int(self._listeners[0].sockets[0].getsockname()[1])

    async def start(
        self,
        application: Application,
        host: str,
        port: int,
        limits: HttpLimits | None = None,
        *,
        reuse_port: bool = True,
        sock: socket.socket | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Listens on ``host:port`` (0: any free port), or takes ``sock``, which listens already.
        ``guard`` says whose requests are taken, and which pages may read answers.

        Raises OSError when the address is refused.
        """
        self._loop = asyncio.get_running_loop()
        self.application = application
        if limits is not None:
            self.limits = limits
        if guard is not None:
            self.guard, self.cors = guard, guard.cors
        self.tick_ns = self.check_period_ms * 1_000_000 // _WHEEL_SLOTS
        if sock is None:
            listener = await self._loop.create_server(
                lambda: Connection(self), host, port, reuse_port=reuse_port, backlog=_LISTEN_BACKLOG
            )
        else:
            listener = await self._loop.create_server(
                lambda: Connection(self), sock=sock, backlog=_LISTEN_BACKLOG
            )
        self._listeners.append(listener)
        self._tick()

    async def listen_too(self, sock: socket.socket) -> None:
        """Serves on another socket too, which listens already; after ``start``."""
        self._listeners.append(
            await self._loop.create_server(
                lambda: Connection(self), sock=sock, backlog=_LISTEN_BACKLOG
            )
        )

    async def listen_on(self, sock: socket.socket) -> None:
        """Serves on a Unix socket too, which listens already; after ``start``."""
        self._listeners.append(
            await self._loop.create_unix_server(
                lambda: Connection(self, is_local=True), sock=sock, backlog=_LISTEN_BACKLOG
            )
        )

    async def listen_by_tls(self, sock: socket.socket) -> None:
        """Serves by TLS too, on a socket which listens already; after ``start`` and
        ``serve_certificate``."""
        tls = self.tls
        assert tls is not None
        self._listeners.append(
            await self._loop.create_server(
                lambda: TlsTransport(tls, Connection(self)), sock=sock, backlog=_LISTEN_BACKLOG
            )
        )

    def serve_certificate(self, pair: CheckedPair) -> None:
        """Shows this certificate from now on, on all sockets that share ``tls``: Kafka's too."""
        if self.tls is None:
            self.tls = Tls(pair)
        self.tls.in_force = pair

    def end_revoked(self) -> None:
        """Ends the streams, and the bodies on their way, of senders whose rights have ended."""
        self.tcp_heads.clear()
        for connection in self._wheel:
            connection.end_revoked()

    def stop_accepting(self) -> None:
        """Closes the listeners. Connections continue."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def drain(self) -> None:
        """From now on, every connection ends with its last outstanding answer."""
        self.draining = True
        for connection in self._wheel:
            connection.plain = False
        self.close_idle()

    def close_idle(self) -> None:
        """Closes the connections on which nothing is under way."""
        for connection in self._wheel:
            connection.close_if_idle()

    async def drained(self) -> None:
        """Waits until no connection is left. Use a timeout, and ``close`` for the rest."""
        if self._wheel:
            future: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(future)
            await future

    def abort(self) -> None:
        """Drops all connections, with answers that were not taken yet."""
        for connection in self._wheel:
            connection.transport.abort()

    async def close(self) -> None:
        """Ends listeners, connections and timer immediately."""
        self.stop_accepting()
        self.abort()
        await self.drained()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_made(self, connection: Connection) -> ApiError | None:
        """Takes a connection in; an error says why all but probes must be refused."""
        self._wheel.add(connection)
        if connection.is_local:
            return None
        peer = connection.transport.get_extra_info("peername")
        if peer:
            connection.address = peer[0]
        places = self.places
        if places.take(connection, connection.address, self.now_ns):
            return None
        if not places.reserve(connection):
            connection.transport.abort()
        return ApiError(
            503,
            "too_many_connections",
            f"this shard serves at most {places.limit} connections, {places.address_limit} of one"
            " address, and all have requests under way; use fewer, raise"
            " connections_per_address_max, or use more shards",
            {"limit": places.limit, "limit_of_address": places.address_limit},
            retry_after_s=1,
            close=True,
        )

    def connection_lost(self, connection: Connection) -> None:
        """Forgets a connection."""
        if connection.allowance is not None:
            connection.allowance.count_connection(-1)
            connection.allowance = None
        self.places.leave(connection)
        self._wheel.remove(connection)
        if not self._wheel:
            for future in self._drained:
                if not future.done():
                    future.set_result(None)
            self._drained.clear()

    def _tick(self) -> None:
        self.now_ns = now_ns = monotonic_ns()
        # First, so that an exception below does not stop the clock.
        self._timer = self._loop.call_later(self.tick_ns / 1e9, self._tick)
        if self.tls is not None:
            self.tls.end_overdue(now_ns)
        for connection in self._wheel.turn():
            connection.check(now_ns)
