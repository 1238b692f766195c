"""The receiving side of a connection: from bytes to requests that are handed to the application.

Phases:
    HEAD     between requests, or inside a head (``buffer`` holds its beginning)
    BODY     taking in a body that did not come whole with its head
    DISCARD  reading past the small body of a request that was already refused
    WAIT     a request waits for admission, its body unread
    IGNORE   an answer that ends the connection was given or is under way: input is thrown away
    STREAM   an answer without an end is under way (``stream.py``): input is thrown away
    CLOSED   the connection is lost

    HEAD -> BODY -> HEAD,  HEAD -> DISCARD -> HEAD,  HEAD -> WAIT -> BODY or DISCARD,
    any -> IGNORE -> CLOSED,  any -> STREAM -> IGNORE

Of the requests in ``queue``, the one whose body is being taken in (``_taking``) is the last.
``_hold`` says why nothing more is read: too many requests are outstanding, the client does not take
its answers, its limit is used up, a request is being translated (``daemon/intake/foreign/``), one
waits for admission, or it is the turn of other connections. One that waits for admission may have
its body already, if that came with its head; what was received after it waits in ``buffer``.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from daemon.http.application import QUEUED, Application
from daemon.http.body import ChunkedBody, SizedBody
from daemon.http.guard import Guard
from daemon.http.head import (
    LENGTH_UNKNOWN,
    Head,
    HeadCache,
    check_partial_head,
    head_too_large,
    parse_head,
    unreadable_head,
)
from daemon.http.limits import HttpLimits
from daemon.http.request import Request, Sender, Shared
from daemon.http.turns import ALLOWANCE, REQUEST_COST, USUAL_COST, RequestTurns
from daemon.http.unsent import Unsent
from daemon.schemas.errors import ApiError, too_large

logger = logging.getLogger(__name__)

HEAD, BODY, DISCARD, WAIT, IGNORE, STREAM, CLOSED = range(7)
HOLD_REQUESTS, HOLD_ANSWERS, HOLD_ADMISSION, HOLD_LIMIT, HOLD_TRANSLATION = 1, 2, 4, 8, 16
HOLD_TURN = 32


def _no_head(_: bytes) -> Head | None:
    """Instead of a look into the cache."""
    return None


class Service(Shared, Protocol):
    """What the receiving side needs of the server. ``now_ns`` moves once per ``tick_ns``."""

    application: Application
    limits: HttpLimits
    guard: Guard | None
    unread: Unsent[Sender]
    turns: RequestTurns
    tcp_heads: HeadCache
    local_heads: HeadCache
    tick_ns: int

    @property
    def outstanding_max(self) -> int:
        """How many requests of a new connection may be without an answer."""


class Receiver(Sender):
    """A connection, except how it begins, is held back and ends."""

    __slots__ = (
        "_application",
        "_blank_lines",
        "_body",
        "_body_bytes_max",
        "_eof",
        "_feeding",
        "_heads",
        "_hold",
        "_ignored_bytes",
        "_known_head",
        "_outstanding_max",
        "_phase",
        "_refusal",
        "_resumed",
        "_since_ns",
        "_taking",
        "_token",
        "buffer",
        "client_names",
        "continue_due",
        "is_local",
        "last_ns",
    )

    server: Service

    def __init__(self, server: Service, *, is_local: bool) -> None:
        super().__init__(server)
        self._application = server.application
        self.is_local = is_local
        self.client_names: tuple[str, ...] = ()
        self._refusal: ApiError | None = None  # of everything but a probe
        # A head is checked once, so those of the two kinds of sockets must not meet.
        self._heads = server.local_heads if is_local else server.tcp_heads
        self._known_head: Callable[[bytes], Head | None] = self._heads.known
        self._body_bytes_max = server.limits.body_bytes_max
        self._outstanding_max = server.outstanding_max
        self.buffer = b""
        self.last_ns = server.now_ns
        self.continue_due = False
        self._phase = HEAD
        self._hold = 0
        self._feeding = False
        self._eof = False
        # Since when it waits for the partial head, the body, or (held) for the client to read.
        self._since_ns = 0
        self._resumed = False
        self._taking: Request | None = None
        self._token: object | None = None
        self._body: SizedBody | ChunkedBody | None = None
        self._ignored_bytes = 0
        self._blank_lines = 0

    @abstractmethod
    def _set_hold(self, why: int) -> None:
        """Stops reading."""

    @abstractmethod
    def _clear_hold(self, why: int) -> None:
        """Reads on, unless there is another reason not to."""

    @abstractmethod
    def _send_continue(self) -> None:
        """Writes 100 Continue when it is the body's turn."""

    @abstractmethod
    def _input_ended(self) -> None:
        """The client has half-closed: refuses what it left unfinished."""

    @abstractmethod
    def _end_if_done(self) -> None:
        """Closes if nothing is outstanding and the client has ended or the server drains."""

    def _feed(self, data: bytes) -> None:
        """Consumes ``data``; what must wait stays in ``buffer``."""
        if self._phase == HEAD and self._hold:
            self._keep(data)
            return
        known_head = self._known_head
        body_bytes_max = self._body_bytes_max
        position = 0
        size = len(data)
        allowed = left = self._allowed()
        self._feeding = True
        try:
            while position < size:
                if self._phase != HEAD:
                    if self._phase == WAIT:
                        self._keep(data[position:])
                        break
                    position = self._feed_body(data, position)
                    continue
                if left <= 0 and not self._hold:
                    self._set_hold(HOLD_TURN)
                    self.server.turns.wait(self)
                if self._hold:
                    self._keep(data[position:])
                    break
                end = data.find(b"\r\n\r\n", position) + 4
                if end == 3:
                    self._keep_partial_head(
                        data[position:], fresh=position > 0 or not self._resumed
                    )
                    break
                raw = data[position:end]
                head = known_head(raw)
                is_new = head is None
                if head is None:
                    head = self._new_head(raw)
                    if head is None or isinstance(head.route, Exception):
                        left -= REQUEST_COST
                        if head is not None:
                            self._begin_body(head, data, end)
                        position = end
                        continue
                length = head.body_bytes
                stop = end + length
                if length == LENGTH_UNKNOWN or stop > size or length > body_bytes_max:
                    left -= REQUEST_COST
                    self._begin_body(head, data, end)
                    position = end
                    continue
                position = stop
                self.unread_bytes = size - stop
                cost = self._take(head, data[end:stop])
                left -= REQUEST_COST if is_new else cost
        finally:
            self._feeding = False
            self.unread_bytes = 0
            if left < allowed:
                self.server.turns.use(allowed - left)
        if self._eof:
            self._input_ended()
        elif self.server.draining:
            self._end_if_done()

    def _allowed(self) -> int:
        """What the requests may cost that are taken of what was received. Connections are closed if
        too much is kept for them, so rather than that, a turn of the loop gets longer."""
        left = self.server.turns.left
        if left > 0:
            return left
        return ALLOWANCE if self.server.unread.is_half_full else 1

    def its_turn(self) -> None:
        """Goes on with requests that came together with others."""
        self._clear_hold(HOLD_TURN)

    def _serve_probes_only(self, refusal: ApiError) -> None:
        """For a connection too many: one probe is answered, anything else is refused."""
        self._refusal = refusal
        self._known_head = _no_head

    def client_is(self, names: tuple[str, ...]) -> None:
        """The client's certificate has these names. Comes before its first byte."""
        self.client_names = names
        if self._refusal is None:
            known = self._heads.known
            self._known_head = lambda raw: known((names, raw))

    def _take(self, head: Head, body: bytes) -> int:
        """A request whose body came with its head. Returns what it costs."""
        queue = self.queue
        shortcut = head.shortcut
        cost = USUAL_COST
        if shortcut is None or not shortcut(self, head, body, self.last_ns):
            cost = REQUEST_COST
            request = Request(head, body, self.last_ns, self)
            queue.append(request)
            try:
                self._application.take(request, head.body_bytes)
            except Exception as error:  # noqa: BLE001 - logged and answered 500 by _fail
                self._fail(request, error)
        if not head.keep_alive and self._phase == HEAD:
            self._phase = IGNORE  # nothing should have been sent after it
        if len(queue) >= self._outstanding_max:
            self._set_hold(HOLD_REQUESTS)
        return cost

    def _keep_partial_head(self, data: bytes, *, fresh: bool) -> None:
        try:
            check_partial_head(data, self.server.limits)
        except ApiError as error:
            self._refuse_and_end(unreadable_head(), error)
            return
        if fresh:
            self._since_ns = self.last_ns
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        """Keeps what was received and is not used yet. What comes with a request that waits for its
        admission is counted there."""
        self.buffer = data
        if self._phase != WAIT and not self._hold & HOLD_ADMISSION:
            unread = self.server.unread
            unread.hold(self, data)
            for longest in unread.shed():
                longest.transport.abort()

    def _take_kept(self) -> bytes:
        """What was kept, which is not kept any longer."""
        data, self.buffer = self.buffer, b""
        self.server.unread.release(self)
        return data

    def _new_head(self, raw: bytes) -> Head | None:
        """A head that is not in the cache; None if ``raw`` has no request, or was refused here."""
        key = raw
        if raw.startswith(b"\r\n"):  # one empty line before a request is allowed (RFC 9112, 2.2)
            raw = raw[2:]
            self._blank_lines += 1
            if raw == b"\r\n" and self._blank_lines <= 2:
                return None
        self._blank_lines = 0
        server = self.server
        try:
            if len(raw) > server.limits.head_bytes_max:
                raise head_too_large(f"{len(raw)} bytes", server.limits)
            head = parse_head(raw, server.limits)
        except ApiError as error:
            self._refuse_and_end(unreadable_head(), error)
            return None
        head.is_local = self.is_local
        head.client_names = self.client_names
        try:
            if server.guard is not None and not head.is_local:
                server.guard.check(head)
            head.route = server.application.route(head)
            if self._refusal is not None:
                if not server.application.is_probe(head.route):
                    raise self._refusal
                head.keep_alive = head.plain = False
                return head
        except Exception as error:  # noqa: BLE001 - logged and answered 500 by _fail
            # Answered when the request has its place in the queue. With its frames, which have the
            # head, it would be kept until the next collection of cycles.
            head.route = error.with_traceback(None) if isinstance(error, ApiError) else error
            return head
        finally:
            head.forget_fields(() if server.cors is None else server.cors.named)
        if not head.is_brief:
            self._heads.add(key, head)
        return head

    def _begin_body(self, head: Head, data: bytes, end: int) -> None:
        """A body that is not complete in ``data``, or is over the limit."""
        limits = self.server.limits
        length: int | None = head.body_bytes
        if length == LENGTH_UNKNOWN:
            length = None
        request = Request(head, b"", self.last_ns, self)
        self.queue.append(request)
        self.unread_bytes = len(data) - end
        if isinstance(head.route, Exception):
            error = self._limited(head, head.route)
            self._refuse_before_body(request, error, nothing_sent=end == len(data))
            return
        try:
            if length is not None and length > limits.body_bytes_max:
                error = too_large(
                    f"the body has {length} bytes, the limit is {limits.body_bytes_max};"
                    " send smaller batches",
                    limit_bytes=limits.body_bytes_max,
                )
                error.close = True
                raise error
            token = self._application.admit(request, length)
        except Exception as error:  # noqa: BLE001 - logged and answered 500 by _fail
            self._refuse_before_body(request, error, nothing_sent=end == len(data))
            return
        self._taking = request
        if token is QUEUED:
            self._phase = WAIT
        else:
            self._take_in(request, token, nothing_sent=end == len(data))

    def _limited(self, head: Head, error: Exception) -> Exception:
        """Why a request whose route cannot be used is refused: it counts like any other of its
        token, whose limits may refuse it first."""
        if head.rights.allowance is not None:
            try:
                head.rights.allowance.take(self, 0)
            except ApiError as over:
                return over
        return error

    def _take_in(self, request: Request, token: object | None, *, nothing_sent: bool) -> None:
        """The body of a request that was admitted comes next."""
        head = request.head
        self._token = token
        self._since_ns = self.last_ns
        self._phase = BODY
        self._body = (
            ChunkedBody(self._body_bytes_max) if head.chunked else SizedBody(head.body_bytes)
        )
        if head.expect_continue and nothing_sent:
            self.continue_due = self.attention = True
            self._send_continue()

    def admitted(self, request: Request, token: object) -> None:
        """A request that waited may come in; ``token`` is what it is promised."""
        if self._phase == WAIT:
            self.last_ns = request.arrival_ns
            self._take_in(request, token, nothing_sent=not self.buffer)
        else:
            self._hand_over(request, token)
        self._clear_hold(HOLD_ADMISSION)

    def not_admitted(self, request: Request, error: ApiError) -> None:
        """A request that waited is refused."""
        if self._phase == WAIT:
            self._taking = None
            self._phase = HEAD
            # Whether the client has begun to send the body is not known.
            self._refuse_before_body(request, error, nothing_sent=True)
        else:
            self._fail(request, error)
        self._clear_hold(HOLD_ADMISSION)

    def _refuse_before_body(
        self, request: Request, error: Exception, *, nothing_sent: bool
    ) -> None:
        """Refuses, and keeps the connection if the body is small enough to be read past.

        A client that waits for 100 Continue may now send the body or not. On a connection that
        continues, the two could not be told apart.
        """
        head = request.head
        limit = self.server.limits.discard_bytes_max
        unsure = head.expect_continue and nothing_sent
        if head.body_bytes > limit or unsure or not head.keep_alive:
            self._fail(request, error, close=True)
            return
        if head.body_bytes:
            length = head.body_bytes
            self._phase = DISCARD
            self._body = (
                ChunkedBody(limit, keep=False) if head.chunked else SizedBody(length, keep=False)
            )
        self._fail(request, error)

    def _feed_body(self, data: bytes, position: int) -> int:
        """Consumes from ``position`` in a phase other than HEAD; returns the new position."""
        size, begin = len(data), position
        if self._phase >= IGNORE:
            limits = self.server.limits
            is_stream = self._phase == STREAM
            self._ignored_bytes += size - position
            if self._ignored_bytes > (
                limits.stream_input_bytes_max if is_stream else limits.linger_bytes_max
            ):
                self.transport.abort()
            return size
        body = self._body
        assert body is not None  # in BODY and DISCARD
        try:
            position = body.feed(data, position)
        except ApiError as error:
            if self._phase == BODY:
                self._refuse_taking(error)
            else:
                self.end()  # the refusal was sent long ago
            return position
        if self._phase == BODY and self._taking is not None and self._taking.head.chunked:
            self._pace(self._taking.head, position - begin)
        if body.done:
            self._body_complete(body.take(), size - position)
        return position

    def _pace(self, head: Head, size_bytes: int) -> None:
        """Reads nothing more while a body of unknown length has used its sender's limit up."""
        tally = head.rights.tally
        if tally is not None:
            tally.bytes_in += size_bytes
        allowance = head.rights.allowance
        wait_ns = 0 if allowance is None else allowance.charge_in(size_bytes)
        if wait_ns and not self._hold & HOLD_LIMIT:
            self._set_hold(HOLD_LIMIT)
            asyncio.get_running_loop().call_later(wait_ns / 1e9, self._clear_hold, HOLD_LIMIT)

    def _body_complete(self, body: bytes, unread_bytes: int) -> None:
        self._phase = HEAD
        self.unread_bytes = unread_bytes
        request, token = self._taking, self._token
        self._body = None
        if request is None:
            return  # the body of a request that was refused
        self._taking = self._token = None
        self.continue_due = False
        request.body = body
        request.arrival_ns = self.last_ns
        self._hand_over(request, token)
        if not request.head.keep_alive and self._phase == HEAD:
            self._phase = IGNORE
        if len(self.queue) >= self._outstanding_max:
            self._set_hold(HOLD_REQUESTS)

    def _hand_over(self, request: Request, token: object | None) -> None:
        """A request that was admitted has its body."""
        try:
            self._application.handle(request, token)
        except Exception as error:  # noqa: BLE001 - logged and answered 500 by _fail
            self._fail(request, error)
        finally:
            if token is not None:
                self._application.release(token)

    def no_right(self, request: Request, error: ApiError) -> None:
        """A request is refused because its sender has no right to it."""
        self._application.refused(request, error)

    # -- refusing ------------------------------------------------------------------------------

    def _fail(self, request: Request, error: Exception, *, close: bool = False) -> None:
        """Answers for an exception of the application: its ApiError, or 500 and the end."""
        if not isinstance(error, ApiError):
            logger.error("%s %s failed", request.head.method, request.head.path, exc_info=error)
            error = ApiError(500, "internal", "the server failed; its log says why", close=True)
        if request.answered:
            self.end()
            return
        if (close or error.close) and self._phase != CLOSED:
            self._phase = IGNORE
        request.refuse(error, close=close)

    def _refuse_and_end(self, head: Head, error: ApiError) -> None:
        """Refuses input that is not a request. Earlier requests get their answers first."""
        self._phase = IGNORE
        request = Request(head, b"", self.last_ns, self)
        self.queue.append(request)
        self._fail(request, error, close=True)

    def _refuse_taking(self, error: ApiError) -> None:
        """Refuses the request whose body is being taken in, and ends the connection after it."""
        request = self._taking
        self._drop_taking()
        self._phase = IGNORE
        if request is not None:
            self._fail(request, error, close=True)

    def _drop_taking(self) -> None:
        token = self._token
        self._taking = self._token = None
        self._body = None
        self.continue_due = False
        if token is not None:
            self._application.release(token)
