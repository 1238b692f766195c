"""POSTs by aiohttp: one session for all endpoints of a shard, and its connections. ``client.py``
says what holds for each POST.

This module is the only one that loads aiohttp.

A connection is made by the task of its POST, so that ``TRIES`` says for whom: aiohttp makes the
sockets and asks ``PushConnector`` for each, which is told the address; the name is in the PushTry.

When it changes who may be called, connections that were made before are not used again.

A connection that waits for its next POST is closed after KEEP_ALIVE_S: most servers close one after
5 s or more, and a POST on a connection that the server is just closing would be a failure that
nobody made.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from yarl import URL

from delivery.push.posts.addresses import AllowList, BadEndpoint, check_endpoint
from delivery.push.posts.answers import HEAD_BYTES, PushAnswer, PushFailure, retry_after_ms
from shards.clock import monotonic_ns, wall_ms

_log = logging.getLogger(__name__)

# The addresses of a name. Raises OSError.
Resolve = Callable[[str], Awaitable[Iterable[str]]]

KEEP_ALIVE_S = 4.0
# Answers before the answer, such as 100 and 103. Few receivers have any.
INTERIMS_MAX = 16
BEAT_NS = 50_000_000

# More of a body is not read. What most receivers answer is shorter by far.
BODY_BYTES_MAX = 64 << 10
HEADERS_MAX = 64
HEADER_BYTES_MAX = 8_192
HEADERS_SHOWN = 32
# aiohttp stops reading at twice this; a read of the event loop may bring 256 KiB more.
READ_BYTES = 16 << 10
# aiohttp warns of larger bodies that are not in a file, because it would copy them.
BYTES_MAX = 1 << 20
ENDPOINTS_KEPT = 2_048
MESSAGE_CHARACTERS_MAX = 300

# What this machine is short of: files, memory, local ports.
_LOCAL = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
_CLOSED = frozenset({errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE})
_NO_TIMEOUT = aiohttp.ClientTimeout()


class PushTry:
    """How far one POST is; made by ``post``, written by the connection that it gets."""

    __slots__ = ("address", "forbidden", "host", "is_sent", "status")

    def __init__(self, host: str) -> None:
        self.host = host
        self.address = ""
        self.forbidden = ""
        self.is_sent = False
        self.status: int | None = None


TRIES: ContextVar[PushTry] = ContextVar("push_try")


class _Forbidden(OSError):
    """An address that may not be connected to. An OSError, so that aiohttp tries the next one."""


class TooManyInterims(BadHttpMessage):
    """Interim answers (1xx) without an end."""


class _Handler(ResponseHandler):
    """A connection that takes one answer for one POST.

    aiohttp would take any number of interim answers, as fast as they come, and would give an answer
    that came on an idle connection to the next POST.
    """

    is_asked = False
    interims = 0
    peer = ""

    def feed_data(self, data: tuple[RawResponseMessage, Any], size: int = 0) -> None:
        """Takes a message that the parser has found."""
        code = data[0].code
        if not self.is_asked:
            self._drop()
            return
        if code < 200 and code != 101:
            self.interims += 1
            if self.interims > INTERIMS_MAX:
                self.set_exception(TooManyInterims("interim answers without an end"))
                self._drop()
                return
        else:
            self.is_asked = False
        super().feed_data(data, size)

    def ask(self) -> str:
        """A POST is on its way. Returns to which address."""
        self.is_asked = True
        self.interims = 0
        if not self.peer and self.transport is not None:
            # Asked for once: the system is asked each time, which takes 7 us.
            peer = self.transport.get_extra_info("peername")
            self.peer = _address_text(peer) if peer else ""
        return self.peer

    def close(self) -> None:
        """Closes without sending the rest of a body, or waiting for the end of TLS: both would be
        as long as the receiver likes."""
        self.abort()

    def _drop(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.abort()


class _Names(AbstractResolver):
    """Looks names up by a function, as aiohttp wants it."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._resolve(host)
        ]

    async def close(self) -> None:
        pass


class PushConnector(aiohttp.TCPConnector):
    """All connections of a shard, to addresses that are allowed."""

    def __init__(
        self,
        allow: AllowList,
        context: ssl.SSLContext,
        resolve: Resolve | None,
        names_kept_s: int,
    ) -> None:
        super().__init__(
            ssl=context,
            limit=0,  # Places
            keepalive_timeout=KEEP_ALIVE_S,
            use_dns_cache=names_kept_s > 0,
            ttl_dns_cache=names_kept_s,
            resolver=_Names(resolve) if resolve is not None else None,
            socket_factory=self._socket,
        )
        self._allow = allow
        self._handlers: WeakSet[_Handler] = WeakSet()
        # There is no public way; the tests notice when this one is gone.
        self._factory: Any = self._handler

    def _handler(self) -> _Handler:
        made = _Handler(self._loop)
        self._handlers.add(made)
        return made

    def use_none_again(self) -> None:
        """Closes what waits for its next POST, and all others after their answer."""
        for each in list(self._handlers):
            if each.is_asked:
                each.force_close()
            else:
                each.close()

    def _socket(self, info: Any) -> socket.socket:
        """A socket for an address that is about to be connected to."""
        family, kind, protocol, _, address = info
        now = TRIES.get()
        if why := self._allow.why_not(now.host, address[0]):
            now.forbidden = why
            raise _Forbidden(errno.EACCES, now.forbidden)
        now.address = _address_text(address)
        return socket.socket(family, kind, protocol)


class PushRequest(aiohttp.ClientRequest):
    """Has no headers but what it is given, Host, and those of the body."""

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:
        """Adds nothing. Leaving headers out by ``skip_auto_headers`` costs 8 us a request."""


class PushResponse(aiohttp.ClientResponse):
    """Notes which address answers, also on a connection that was there before."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        now = TRIES.get()
        now.is_sent = True
        now.address = connection.protocol.ask() or now.address
        return await super().start(connection)


class Stalls:
    """How long a loop stood still, because its process got no CPU or something in it took long.

        beat ... beat ... (no beat: it stands still) ... beat

    What stood still cannot have heard an answer, so a receiver is not to blame for that time. Pure:
    times are arguments. Beats are expected every BEAT_NS; a gap counts as far as it is longer, and
    not at all if it is shorter than two."""

    __slots__ = ("_last_ns", "_lost_ns")

    def __init__(self) -> None:
        self._last_ns = 0
        self._lost_ns = 0

    def begin(self, now_ns: int) -> None:
        """Beats begin, or begin again."""
        self._last_ns = now_ns

    def beat(self, now_ns: int) -> None:
        """The loop turns."""
        self._lost_ns = self.lost_ns(now_ns)
        self._last_ns = now_ns

    def lost_ns(self, now_ns: int) -> int:
        """How long it stood still so far, ever; a difference of two is that of the time between."""
        gap_ns = now_ns - self._last_ns
        return self._lost_ns + (gap_ns - BEAT_NS if gap_ns >= 2 * BEAT_NS else 0)


class Poster:
    """The session of a shard."""

    def __init__(self, connector: PushConnector) -> None:
        self._connector = connector
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=PushRequest,
            response_class=PushResponse,
            timeout=_NO_TIMEOUT,
            auto_decompress=False,
            trust_env=False,
            read_bufsize=READ_BYTES,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )
        self._stalls = Stalls()
        self._under_way = 0
        self._beats: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        await self._session.close()

    def use_no_connection_again(self) -> None:
        """Who may be called has changed: each is asked for again."""
        self._connector.use_none_again()

    async def post(
        self,
        endpoint: str,
        headers: Mapping[str, str] | Iterable[tuple[str, str]],
        body: bytes,
        timeout_ms: int,
    ) -> PushAnswer:
        """Sends a POST and reads its answer."""
        begin_ns = monotonic_ns()
        try:
            url = _url(endpoint)
        except BadEndpoint as error:
            return PushAnswer(failure=PushFailure.REQUEST, message=str(error))
        now = PushTry(url.raw_host or "")
        token = TRIES.set(now)
        try:
            async with asyncio.timeout(None) as limit:
                deadline = self._deadline(limit, begin_ns, timeout_ms * 1_000_000)
                try:
                    return await self._exchange(url, headers, body, begin_ns, now)
                finally:
                    deadline.end()
        except TimeoutError:
            return _failed(PushFailure.TIMEOUT, _late(now, timeout_ms), begin_ns, now)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            failure = _kind(error, now)
            if failure is PushFailure.LOCAL and not isinstance(error, OSError):
                _log.exception("a POST to %s could not be made", url.origin())
            return _failed(failure, _message(error, failure, now), begin_ns, now)
        finally:
            TRIES.reset(token)

    def _deadline(self, limit: asyncio.Timeout, begin_ns: int, timeout_ns: int) -> _Deadline:
        if not self._under_way:
            self._stalls.begin(begin_ns)
            self._beat()
        self._under_way += 1
        return _Deadline(limit, self._stalls, begin_ns, timeout_ns, self._ended)

    def _beat(self) -> None:
        self._stalls.beat(monotonic_ns())
        self._beats = asyncio.get_running_loop().call_later(BEAT_NS / 1e9, self._beat)

    def _ended(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._beats is not None:
            self._beats.cancel()

    async def _exchange(
        self,
        url: URL,
        headers: Mapping[str, str] | Iterable[tuple[str, str]],
        body: bytes,
        begin_ns: int,
        now: PushTry,
    ) -> PushAnswer:
        data = body if len(body) <= BYTES_MAX else io.BytesIO(body)
        response = await self._session.post(
            url, data=data, headers=_pairs(headers), allow_redirects=False
        )
        now.status = response.status
        head, size, is_whole = b"", 0, False
        try:
            while chunk := await response.content.readany():
                if len(head) < HEAD_BYTES:
                    head += chunk[: HEAD_BYTES - len(head)]
                size += len(chunk)
                if size > BODY_BYTES_MAX:
                    break
            else:
                is_whole = True
        finally:
            # At the end of the body the connection has gone back to the pool by itself.
            if not is_whole:
                response.close()
        pause_ms = None
        if response.status in (429, 503) and "Retry-After" in response.headers:
            pause_ms = retry_after_ms(
                response.headers["Retry-After"], response.headers.get("Date"), wall_ms()
            )
        return PushAnswer(
            status=response.status,
            retry_after_ms=pause_ms,
            head=head,
            headers=tuple(
                (f"{name}", value[:HEAD_BYTES])  # a str, and not one of multidict's
                for (name, value), _ in zip(
                    response.headers.items(), range(HEADERS_SHOWN), strict=False
                )
            ),
            took_ms=_since_ms(begin_ns),
            address=now.address,
        )


class _Deadline:
    """The end of a POST: its timeout later, and as much later as the loop stood still meanwhile, up
    to as long again. An answer may have come in that time, and nobody has looked."""

    __slots__ = ("_ended", "_given_ns", "_handle", "_limit", "_lost_ns", "_stalls",
                 "_timeout_ns")  # fmt: skip

    def __init__(
        self, limit: asyncio.Timeout, stalls: Stalls, begin_ns: int, timeout_ns: int,
        ended: Callable[[], None],
    ) -> None:  # fmt: skip
        self._limit = limit
        self._stalls = stalls
        self._lost_ns = stalls.lost_ns(begin_ns)  # before it
        self._timeout_ns = timeout_ns
        self._given_ns = 0
        self._ended = ended
        self._arm(timeout_ns)

    def _arm(self, in_ns: int) -> None:
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(in_ns / 1e9, self._is_over)

    def _is_over(self) -> None:
        lost_ns = min(self._stalls.lost_ns(monotonic_ns()) - self._lost_ns, self._timeout_ns)
        more_ns = lost_ns - self._given_ns
        if more_ns > 0:
            self._given_ns = lost_ns
            self._arm(more_ns)
        else:
            self._limit.reschedule(asyncio.get_running_loop().time())

    def end(self) -> None:
        """The POST has ended."""
        self._handle.cancel()
        self._ended()


@lru_cache(ENDPOINTS_KEPT)
def _url(endpoint: str) -> URL:
    """The endpoint as it is sent. Raises BadEndpoint."""
    check_endpoint(endpoint)
    try:
        return URL(endpoint, encoded=True)
    except ValueError as error:
        raise BadEndpoint(f"the endpoint must be a URL, got {endpoint!r}: {error}") from None


def _pairs(
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
) -> Mapping[str, str] | list[tuple[str, str]]:
    return headers if isinstance(headers, Mapping) else list(headers)


def _kind(error: Exception, now: PushTry) -> PushFailure:
    """Which failure an exception is."""
    if now.forbidden and not now.address:
        return PushFailure.FORBIDDEN
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return PushFailure.DNS
    if isinstance(error, ssl.SSLError | ssl.CertificateError | aiohttp.ClientSSLError):
        return PushFailure.TLS
    if isinstance(error, aiohttp.ClientConnectorError):
        if number == errno.ECONNREFUSED:
            return PushFailure.REFUSED
        if number in _LOCAL:
            return PushFailure.LOCAL
        return PushFailure.CLOSED if number in _CLOSED else PushFailure.UNREACHABLE
    if isinstance(error, aiohttp.ClientResponseError):
        return PushFailure.TOO_LARGE if _is_too_large(error) else PushFailure.NOT_HTTP
    if isinstance(error, aiohttp.InvalidURL):
        return PushFailure.REQUEST
    if isinstance(error, aiohttp.ClientError | ConnectionError):
        return PushFailure.CLOSED
    if isinstance(error, ValueError | TypeError):
        return PushFailure.REQUEST
    return PushFailure.LOCAL


def _is_too_large(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, LineTooLong | TooManyInterims) or "Too many headers" in str(cause):
            return True
        cause = cause.__cause__
    return False


def _late(now: PushTry, timeout_ms: int) -> str:
    """Where the time went."""
    if now.status is not None:
        what = "the answer was not complete"
    elif now.is_sent:
        what = "no answer"
    elif now.address:
        what = f"no connection to {now.address}"
    else:
        what = f"no address of {now.host}"
    return f"{what} within timeout_ms ({timeout_ms:,} ms)"


def _message(error: Exception, failure: PushFailure, now: PushTry) -> str:
    """What happened, in a line."""
    if failure is PushFailure.FORBIDDEN:
        return now.forbidden
    if failure is PushFailure.CLOSED:
        if now.status is not None:
            return "the connection was closed before the end of the answer"
        if now.is_sent:
            return "the connection was closed without an answer"
    if failure is PushFailure.TOO_LARGE:
        return (
            f"the answer has more than {HEADERS_MAX} headers, one with more than"
            f" {HEADER_BYTES_MAX:,} bytes, or more than {INTERIMS_MAX} interim answers before it"
        )
    if failure is PushFailure.NOT_HTTP:
        return "the answer is not HTTP"
    reason = _reason(error)
    if failure is PushFailure.REFUSED:
        return f"{now.address} refuses connections"
    if failure is PushFailure.DNS:
        return f"{now.host} has no address: {reason}"
    if failure is PushFailure.UNREACHABLE:
        return f"no connection to {now.address or now.host}: {reason}"
    if failure is PushFailure.TLS:
        if isinstance(error, ssl.CertificateError | aiohttp.ClientConnectorCertificateError):
            return f"the certificate of {now.host} is not valid: {reason}"
        return f"no TLS with {now.address}: {reason}"
    return reason


def _reason(error: Exception) -> str:
    """What the system or the TLS library said."""
    cause: object = error
    text: str | None
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = cause.verify_message
    elif isinstance(cause, ssl.SSLError):
        text = cause.reason
    else:
        text = cause.strerror if isinstance(cause, OSError) else ""
    return " ".join(str(text or cause).split())[:MESSAGE_CHARACTERS_MAX] or type(cause).__name__


def _failed(failure: PushFailure, message: str, begin_ns: int, now: PushTry) -> PushAnswer:
    return PushAnswer(
        status=now.status,
        failure=failure,
        message=message,
        took_ms=_since_ms(begin_ns),
        address=now.address,
    )


def _since_ms(begin_ns: int) -> float:
    return (monotonic_ns() - begin_ns) / 1e6


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verifies by the system's certificates, and those in ``ca_file``. Raises OSError, named."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:  # SSLError too
            raise OSError(
                f"push_ca_file {ca_file} cannot be read as certificates in PEM format:"
                f" {error.strerror or error}"
            ) from error
    return context


def _address_text(address: Any) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
