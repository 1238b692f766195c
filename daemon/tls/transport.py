"""TLS between a socket's transport and a connection, which sees a transport like any other.

    accepted -> the handshake is under way, counted and limited -> secured -> ended (close_notify)

The connection is told of the socket when it is accepted, so all its limits hold from there on. It
gets its first bytes after the handshake.

OpenSSL works on memory here. Its input and output are emptied before anything else happens, so all
connections of a process share two buffers (``Tls``), and none has any of its own. That is why plain
text is handed on only when all that was received is decrypted: the connection may then write, to
itself or to others.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, Protocol, cast

from daemon.tls.certificate import CheckedPair, names_of
from shards.clock import monotonic_ns

log = logging.getLogger(__name__)

READ_BYTES = 256 << 10  # most that is read from a socket in a turn, as without TLS
RECORD_BYTES_MAX = 16 << 10  # of TLS: what may be kept of a record that has not come whole
HANDSHAKE_TIMEOUT_MS = 5_000
# Of a shard. More than come at a time when all clients of a daemon connect again: the queue of the
# listener has 4,096, of which the kernel gives 1,024 to a turn of the loop.
HANDSHAKES_MAX = 2_048
# As measured: a handshake that waits for the client (43 KB), and a connection (14 KB, or 25 KB with
# the client's certificate) with all but a byte of a record (17 KB).
HANDSHAKE_BYTES = 44 << 10
CONNECTION_BYTES = 42 << 10
_CLEAR_TEXT = b"this port takes TLS, and got clear text: use https://\n"
_CLEAR_TEXT_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b" % (len(_CLEAR_TEXT), _CLEAR_TEXT)
)
_SHAKING, _SECURED, _ENDED = range(3)


class Tls:
    """What the TLS connections of a process share: the certificate, the buffers, the handshakes."""

    def __init__(self, pair: CheckedPair, handshakes_max: int = HANDSHAKES_MAX) -> None:
        self.in_force = pair
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.received = memoryview(bytearray(READ_BYTES))
        self.plain = memoryview(bytearray(READ_BYTES + 2 * RECORD_BYTES_MAX))
        self.failures = 0
        self._handshakes_max = handshakes_max
        self._under_way: dict[TlsTransport, int] = {}  # and since when; the oldest first

    def begin(self, transport: TlsTransport, now_ns: int) -> None:
        """A connection was accepted. If too many have not finished their handshakes, the oldest
        ends, and not the new one: a flood keeps no client out."""
        under_way = self._under_way
        under_way[transport] = now_ns
        if len(under_way) > self._handshakes_max:
            oldest = next(iter(under_way))
            oldest.fail(f"more than {self._handshakes_max} others were under way")

    def end(self, transport: TlsTransport) -> None:
        """Its handshake is over, one way or another."""
        self._under_way.pop(transport, None)

    @property
    def oldest_ns(self) -> int | None:
        """Since when the oldest handshake has been under way; None without any."""
        return next(iter(self._under_way.values()), None)

    def end_overdue(self, now_ns: int) -> None:
        """Ends the connections whose handshakes take too long."""
        before_ns = now_ns - HANDSHAKE_TIMEOUT_MS * 1_000_000
        while self._under_way:
            oldest, since_ns = next(iter(self._under_way.items()))
            if since_ns > before_ns:
                return
            oldest.fail(f"it took more than {HANDSHAKE_TIMEOUT_MS} ms")

    def failed(self, peer: object, why: str) -> None:
        """Counts a handshake that failed; the log must not grow as fast."""
        self.failures += 1
        if not self.failures & (self.failures - 1):
            address = peer[0] if isinstance(peer, tuple) else "nowhere"
            log.warning(
                "%d TLS handshakes failed, the last one with %s: %s", self.failures, address, why
            )


class Secured(Protocol):
    """A connection. What a loop calls of a protocol is called of it, and ``client_is`` before its
    first byte if the client has shown a certificate that an authority of ``tls_client_ca`` issued.
    """

    def client_is(self, names: tuple[str, ...]) -> None: ...
    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of the socket's transport, and the transport of a connection."""

    __slots__ = ("_connection", "_is_full", "_ssl", "_state", "_tcp", "_tls", "untaken",
                 "written_bytes")  # fmt: skip

    _tcp: asyncio.Transport

    def __init__(self, tls: Tls, connection: Secured) -> None:
        self._tls = tls
        self._connection = connection
        self._ssl: ssl.SSLObject | None = None  # from the first byte on
        self._state = _SHAKING
        self._is_full = False
        # What was written last, as it was sent, while the client does not take it; else None.
        self.untaken: bytes | None = None
        self.written_bytes = 0  # as they were sent

    # -- what the loop calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)
        self._tls.begin(self, monotonic_ns())
        self._connection.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._tls.received

    def buffer_updated(self, nbytes: int) -> None:
        tls = self._tls
        if self._state == _ENDED:
            # Nobody wants it. The connection counts what it throws away.
            self._connection.data_received(bytes(tls.received[:nbytes]))
            return
        tls.incoming.write(tls.received[:nbytes])
        try:
            if self._state == _SHAKING and not self._shake():
                return
            size, is_ended = self._decrypt()
        except ssl.SSLError as error:
            self.fail(error.reason or str(error))
            return
        finally:
            if tls.incoming.pending:
                tls.incoming.read()
        if tls.outgoing.pending:
            self._send()
        if size:
            self._connection.data_received(bytes(tls.plain[:size]))
        if is_ended and not self.is_closing() and not self._connection.eof_received():
            self.close()

    def eof_received(self) -> bool:
        """Without a close_notify before it. That a message is whole, HTTP says by itself."""
        if self._state == _SHAKING:
            return False
        return bool(self._connection.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self._tls.end(self)
        self._state = _ENDED
        connection, self._ssl = self._connection, None
        del self._connection  # the two would keep each other until the collector runs
        connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_full = True
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        self.untaken = None
        self._connection.resume_writing()

    # -- what the connection calls -------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._state != _SECURED or self._ssl is None:
            return
        write = self._ssl.write
        size = write(data)
        if size < len(data):  # a record has 16 KiB
            left = memoryview(data)[size:]
            while left:
                left = left[write(left) :]
        self._send()

    def write_eof(self) -> None:
        self._say_end()
        self._tcp.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._tcp.is_closing():
            self._say_end()
            self._tcp.close()

    def abort(self) -> None:
        self._tcp.abort()

    def is_closing(self) -> bool:
        return self._tcp.is_closing()

    def pause_reading(self) -> None:
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._tcp.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._tcp.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tcp.get_extra_info(name, default)

    # -- the engine ----------------------------------------------------------------------------

    def fail(self, why: str) -> None:
        """Ends the connection for an error, which OpenSSL may have something to say about."""
        if self._state == _SHAKING:
            self._tls.failed(self.get_extra_info("peername"), why)
        self._tls.end(self)
        if self._ssl is not None and self._tls.outgoing.pending:
            self._tcp.write(self._tls.outgoing.read())
        self._state = _ENDED
        self._tcp.close()

    def _shake(self) -> bool:
        """Goes on with the handshake. Returns whether it is complete. Raises ssl.SSLError."""
        tls = self._tls
        if self._ssl is None:
            if tls.received[:1].tobytes().isalpha():  # the first letter of a method
                self._tcp.write(_CLEAR_TEXT_ANSWER)
                self.fail("the client speaks clear text")
                return False
            context = tls.in_force.context
            self._ssl = context.wrap_bio(tls.incoming, tls.outgoing, server_side=True)
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        tls.end(self)
        self._state = _SECURED
        names = names_of(self._ssl.getpeercert() or {})
        if names:
            self._connection.client_is(names)
        return True

    def _decrypt(self) -> tuple[int, bool]:
        """How many bytes of plain text there are, and whether the client has ended. Raises
        ssl.SSLError."""
        assert self._ssl is not None
        tls, read = self._tls, self._ssl.read
        incoming, plain = tls.incoming, tls.plain
        size = 0
        try:
            while incoming.pending:
                count = cast(int, read(len(plain), plain[size:]))
                if not count:
                    return size, True
                size += count
        except ssl.SSLWantReadError:
            pass
        return size, False

    def _send(self) -> None:
        """Sends what OpenSSL has written."""
        data = self._tls.outgoing.read()
        if not data:
            return
        self.written_bytes += len(data)
        self._tcp.write(data)
        if self._is_full:
            self.untaken = data

    def _say_end(self) -> None:
        """Says close_notify, after which nothing is decrypted any more."""
        if self._state == _SECURED and self._ssl is not None:
            self._state = _ENDED
            try:
                self._ssl.unwrap()
            except ssl.SSLError:
                pass  # it has not heard that of the client, which it does not wait for
            self._send()
        self._state = _ENDED
