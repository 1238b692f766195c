"""One HTTP/1.1 connection: bytes in, requests out to the application, answers back in order.

Phases:
    HEAD      between requests, or inside a head (``buffer`` holds its beginning)
    BODY      taking in a body of known length        CHUNKED  taking in a chunked body
    DISCARD   reading past the small body of a request that was refused already (either framing)
    IGNORE    an answer that ends the connection was given or is under way: input is thrown away
    CLOSED    the connection is lost

    HEAD -> BODY | CHUNKED -> HEAD,  HEAD -> DISCARD -> HEAD,  any -> IGNORE -> CLOSED

``queue`` holds the requests that are not answered yet, in order of arrival; the one whose body is
being taken in (``taking``) is its last. ``hold`` says why nothing more is read: too many requests
outstanding, or a client that does not take its answers. Everything here runs on the loop's thread.

The hot path is ``data_received`` with whole requests: cache lookup, slice, admit, handle. It has
no timer and no parser; timeouts are found by ``check``, which the server calls on its wheel.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from daemon.api.errors import ApiError, too_large
from daemon.http.chunked import ChunkedDecoder
from daemon.http.head import (
    LENGTH_UNKNOWN,
    Head,
    bad_request,
    check_partial_head,
    head_too_large,
    parse_head,
    unreadable_head,
)
from daemon.http.pieces import NO_PIECES, Pieces
from daemon.http.request import ABANDONED, Request
from daemon.http.response import CONTINUE, encode_answer
from daemon.http.timeouts import Overdue, Waiting, WaitsFor, overdue, too_slow
from shards.clock import monotonic_ns

if TYPE_CHECKING:
    from daemon.http.server import Server

logger = logging.getLogger(__name__)

HEAD, BODY, CHUNKED, DISCARD, IGNORE, CLOSED = range(6)
HOLD_REQUESTS, HOLD_ANSWERS = 1, 2


class Connection(asyncio.Protocol):
    """The protocol object of one accepted socket. Made by ``Server``."""

    __slots__ = (
        "_application",
        "_blank_lines",
        "_body_bytes_max",
        "_decoder",
        "_eof",
        "_feeding",
        "_hold",
        "_ignored_bytes",
        "_known_head",
        "_left",
        "_more",
        "_outstanding_max",
        "_phase",
        "_pieces",
        "_resumed",
        "_since_ns",
        "_taking",
        "_token",
        "answered_ns",
        "attention",
        "buffer",
        "continue_due",
        "last_ns",
        "plain",
        "queue",
        "server",
        "shut_ns",
        "transport",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self._application = server.application
        self._known_head = server.heads.entries.get
        self._body_bytes_max = server.limits.body_bytes_max
        self._outstanding_max = server.limits.requests_outstanding_max
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.queue: deque[Request] = deque()
        self.plain = not server.draining
        # Something besides the queue waits for an answer to be written (hold, end of input,
        # a 100 Continue): ``answer_written`` must be called.
        self.attention = False
        self.buffer = b""
        self.last_ns = self.answered_ns = server.now_ns
        self.continue_due = False
        self.shut_ns = 0
        self._phase = HEAD
        self._hold = 0
        self._feeding = False
        self._more = False
        self._eof = False
        # Since when the partial head, the body, or (held) the client's reading is waited for.
        self._since_ns = 0
        self._resumed = False
        self._taking: Request | None = None
        self._token: object | None = None
        self._pieces = NO_PIECES
        self._left = 0
        self._decoder: ChunkedDecoder | None = None
        self._ignored_bytes = 0
        self._blank_lines = 0

    # -- what the loop calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self.server.limits.write_buffer_high_bytes)
        refusal = self.server.connection_made(self)
        if refusal is not None:
            self.last_ns = monotonic_ns()
            self._refuse_and_end(unreadable_head(), refusal)

    def data_received(self, data: bytes) -> None:
        self.last_ns = monotonic_ns()
        if not (self._phase or self._hold or self.buffer):
            # The commonest case: exactly one request, whose head is known.
            end = data.find(b"\r\n\r\n") + 4
            head = self._known_head(data[:end])
            if head is not None and head.body_bytes == len(data) - end <= self._body_bytes_max:
                self._take(head, data[end:])
            else:
                self._feed(data)
        elif self.buffer:
            data = self.buffer + data
            self.buffer = b""
            self._resumed = True
            self._feed(data)
            self._resumed = False
        else:
            self._feed(data)

    def eof_received(self) -> bool:
        """The client will send no more. True keeps the connection for answers still to come."""
        self._eof = True
        self.attention = True
        self._input_ended()
        return bool(self.queue or (self._hold and self.buffer))

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = CLOSED
        self.server.connection_lost(self)
        self._drop_taking()
        self._drop_queue()
        self.buffer = b""

    def pause_writing(self) -> None:
        self._set_hold(HOLD_ANSWERS)
        self._since_ns = monotonic_ns()

    def resume_writing(self) -> None:
        self._clear_hold(HOLD_ANSWERS)

    # -- input ---------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Consumes ``data``; what must wait is left in ``buffer``."""
        if self._phase == HEAD and self._hold:
            self.buffer = data
            return
        known_head = self._known_head
        body_bytes_max = self._body_bytes_max
        position = 0
        size = len(data)
        self._feeding = True
        try:
            while position < size:
                if self._phase != HEAD:
                    position = self._feed_body(data, position)
                    continue
                if self._hold:
                    self.buffer = data[position:]
                    break
                end = data.find(b"\r\n\r\n", position) + 4
                if end == 3:
                    self._keep_partial_head(
                        data[position:], fresh=position > 0 or not self._resumed
                    )
                    break
                raw = data[position:end]
                head = known_head(raw)
                if head is None:
                    head = self._new_head(raw)
                    if head is None or isinstance(head.route, Exception):
                        if head is not None:
                            self._begin_body(head, data, end)
                        position = end
                        continue
                length = head.body_bytes
                stop = end + length
                if length == LENGTH_UNKNOWN or stop > size or length > body_bytes_max:
                    self._begin_body(head, data, end)
                    position = end
                    continue
                position = stop
                self._more = stop < size
                self._take(head, data[end:stop])
        finally:
            self._feeding = False
            self._more = False
        if self._eof:
            self._input_ended()
        elif self.server.draining:
            self._end_if_done()

    def _take(self, head: Head, body: bytes) -> None:
        """A request whose body came with its head."""
        request = Request(head, body, self.last_ns, self)
        queue = self.queue
        queue.append(request)
        try:
            self._application.take(request, head.body_bytes)
        except Exception as error:  # noqa: BLE001 - logged and answered 500 by _fail
            self._fail(request, error)
        if not head.keep_alive and self._phase == HEAD:
            self._phase = IGNORE  # What follows was not to be sent.
        if len(queue) >= self._outstanding_max:
            self._set_hold(HOLD_REQUESTS)

    def _keep_partial_head(self, data: bytes, *, fresh: bool) -> None:
        try:
            check_partial_head(data, self.server.limits)
        except ApiError as error:
            self._refuse_and_end(unreadable_head(), error)
            return
        if fresh:
            self._since_ns = self.last_ns
        self.buffer = data

    def _new_head(self, raw: bytes) -> Head | None:
        """A head that is not in the cache. None when there is no request in ``raw``, or it was
        refused here."""
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
        try:
            head.route = server.application.route(head)
        except Exception as error:  # noqa: BLE001 - logged and answered 500 by _fail
            head.route = error  # raised again when the request has its place in the queue
            return head
        server.heads.add(key, head)
        return head

    def _begin_body(self, head: Head, data: bytes, end: int) -> None:
        """A body that is not complete in ``data``, or is over the limit."""
        limits = self.server.limits
        length: int | None = head.body_bytes
        if length == LENGTH_UNKNOWN:
            length = None
        request = Request(head, b"", self.last_ns, self)
        self.queue.append(request)
        try:
            if isinstance(head.route, Exception):
                raise head.route
            if length is not None and length > limits.body_bytes_max:
                error = too_large(
                    f"the body has {length} bytes, the limit is {limits.body_bytes_max};"
                    " send smaller batches",
                    limit_bytes=limits.body_bytes_max,
                )
                error.close = True
                raise error
            token = self._application.admit(head, length)
        except Exception as error:  # noqa: BLE001 - logged and answered 500 by _fail
            self._refuse_before_body(request, error, nothing_sent=end == len(data))
            return
        self._taking = request
        self._token = token
        self._since_ns = self.last_ns
        if length is None:
            self._phase = CHUNKED
            self._decoder = ChunkedDecoder(limits.body_bytes_max)
        else:
            self._phase = BODY
            self._left = length
            self._pieces = Pieces()
        if head.expect_continue and end == len(data):
            self.continue_due = self.attention = True
            self._send_continue()

    def _refuse_before_body(
        self, request: Request, error: Exception, *, nothing_sent: bool
    ) -> None:
        """Refuses, and keeps the connection when the body is small enough to be read past.

        A client that waits for 100 Continue may send the body now or not at all, which nobody
        can tell apart on a connection that goes on.
        """
        head = request.head
        limit = self.server.limits.discard_bytes_max
        unsure = head.expect_continue and nothing_sent
        if head.body_bytes > limit or unsure or not head.keep_alive:
            self._fail(request, error, close=True)
            return
        if head.body_bytes:
            self._decoder = ChunkedDecoder(limit, keep=False) if head.chunked else None
            self._left = head.body_bytes
            self._phase = DISCARD
        self._fail(request, error)

    def _feed_body(self, data: bytes, position: int) -> int:
        """Consumes from ``position`` in a phase other than HEAD; returns the new position."""
        size = len(data)
        if self._phase == IGNORE or self._phase == CLOSED:
            self._ignored_bytes += size - position
            if self._ignored_bytes > self.server.limits.linger_bytes_max:
                self.transport.abort()
            return size
        decoder = self._decoder
        if decoder is not None:
            try:
                position = decoder.feed(data, position)
            except ApiError as error:
                if self._phase == CHUNKED:
                    self._refuse_taking(error)
                else:
                    self._end()  # The refusal was sent long ago; there is nobody to tell.
                return position
            if decoder.done:
                self._decoder = None
                self._body_complete(decoder.take(), more=position < size)
            return position
        stop = min(size, position + self._left)
        self._left -= stop - position
        if self._phase == BODY:
            self._pieces.add(data[position:stop])
        if not self._left:
            self._body_complete(self._pieces.take(), more=stop < size)
        return stop

    def _body_complete(self, body: bytes, *, more: bool) -> None:
        self._phase = HEAD
        self._more = more
        request, token = self._taking, self._token
        if request is None:
            return  # The body of a request that was refused.
        self._taking = self._token = None
        self._pieces = NO_PIECES
        self.continue_due = False
        request.body = body
        request.arrival_ns = self.last_ns
        try:
            self._application.handle(request, token)
        except Exception as error:  # noqa: BLE001 - logged and answered 500 by _fail
            self._fail(request, error)
        finally:
            if token is not None:
                self._application.release(token)
        if not request.head.keep_alive and self._phase == HEAD:
            self._phase = IGNORE
        if len(self.queue) >= self._outstanding_max:
            self._set_hold(HOLD_REQUESTS)

    # -- refusing ------------------------------------------------------------------------------

    def _fail(self, request: Request, error: Exception, *, close: bool = False) -> None:
        """Answers for an exception out of the application: its ApiError, else 500 and the end."""
        if not isinstance(error, ApiError):
            logger.error("%s %s failed", request.head.method, request.head.path, exc_info=error)
            error = ApiError(500, "internal", "the server failed; its log says why", close=True)
        if request.answered:
            self._end()
            return
        if (close or error.close) and self._phase != CLOSED:
            self._phase = IGNORE
        request.refuse(error, close=close)

    def _refuse_and_end(self, head: Head, error: ApiError) -> None:
        """Refuses input that is no request. Earlier requests still get their answers first."""
        self._phase = IGNORE
        request = Request(head, b"", self.last_ns, self)
        self.queue.append(request)
        self._fail(request, error, close=True)

    def _refuse_taking(self, error: ApiError) -> None:
        """Refuses the request whose body is being taken in, and ends the connection behind it."""
        request = self._taking
        self._drop_taking()
        self._phase = IGNORE
        if request is not None:
            self._fail(request, error, close=True)

    def _drop_taking(self) -> None:
        token = self._token
        self._taking = self._token = None
        self._decoder = None
        self._pieces = NO_PIECES
        self.continue_due = False
        if token is not None:
            self._application.release(token)

    def _drop_queue(self) -> None:
        """Tells the requests that are left that their answers go nowhere."""
        dropped = list(self.queue)
        self.queue.clear()
        for request in dropped:
            request.connection_closed = True
        for request in dropped:
            if request.on_close is not None:
                try:
                    request.on_close()
                except Exception:
                    logger.exception("on_close of %s failed", request.head.path)

    # -- answers -------------------------------------------------------------------------------

    def flush_answers(self) -> None:
        """Writes the answers that are at the front of the queue."""
        queue = self.queue
        while queue and queue[0].answer is not None:
            request = queue[0]
            head = request.head
            answer = request.answer
            queue.popleft()
            if answer is None or answer is ABANDONED:
                self._end()
                return
            status, body, content_type, headers, close = answer
            close = close or not head.keep_alive or (self.server.draining and self._is_last())
            self.transport.write(
                encode_answer(
                    status,
                    body,
                    content_type,
                    headers,
                    head_only=head.method == "HEAD",
                    close=close,
                    http_1_0=not head.http_1_1,
                )
            )
            if close:
                self._end()
                return
        self.answered_ns = self.server.now_ns
        if self.attention:
            self.answer_written()

    def answer_written(self) -> None:
        """Goes on with what waited for an answer: answers behind it, a hold, the end of input."""
        queue = self.queue
        if queue and queue[0].answer is not None:
            self.flush_answers()
            return
        if self.continue_due:
            self._send_continue()
        if self._hold & HOLD_REQUESTS:
            if len(queue) <= self._outstanding_max // 2:
                self._clear_hold(HOLD_REQUESTS)
        elif not self._hold:
            self.attention = self._eof or self.continue_due
        self._end_if_done()

    def _send_continue(self) -> None:
        if self.queue and self.queue[0] is self._taking:
            self.continue_due = False
            self.transport.write(CONTINUE)

    def _is_last(self) -> bool:
        """Whether no request is known behind the answer that is being written."""
        return not self.queue and not self._more and not self.buffer and self._phase == HEAD

    # -- holding back --------------------------------------------------------------------------

    def _set_hold(self, why: int) -> None:
        if not self._hold and self._phase < IGNORE and not self.transport.is_closing():
            self.transport.pause_reading()
        self._hold |= why
        self.attention = True

    def _clear_hold(self, why: int) -> None:
        self._hold &= ~why
        if self._hold or self._phase == CLOSED or self.transport.is_closing():
            return
        self.last_ns = monotonic_ns()
        self._since_ns = self.last_ns
        if self.buffer and not self._feeding:  # ``_feed`` goes on with its data by itself
            data, self.buffer = self.buffer, b""
            self._feed(data)
        if self._may_read():
            self.transport.resume_reading()

    def _may_read(self) -> bool:
        return not self._hold and self._phase != CLOSED and not self.transport.is_closing()

    # -- the end -------------------------------------------------------------------------------

    def _input_ended(self) -> None:
        """The client has half-closed: refuses what it left unfinished."""
        if self._hold and self.buffer:
            return  # Whole requests may still be in there; they come first.
        if self._phase in (BODY, CHUNKED):
            error = bad_request("the connection was half-closed inside the body")
            error.code = "body_truncated"
            self._refuse_taking(error)
        elif self._phase == HEAD and self.buffer:
            self._refuse_and_end(unreadable_head(), bad_request("the request head is incomplete"))
        else:
            self._end_if_done()

    def _end_if_done(self) -> None:
        """Closes once nothing is outstanding, when the client has ended or the server drains."""
        if self.queue or self._feeding or self.buffer:
            return
        if (self._eof and self._phase in (HEAD, DISCARD)) or (
            self.server.draining and self._phase == HEAD
        ):
            self._end()

    def close_if_idle(self) -> None:
        """Closes a connection on which nothing is under way."""
        if self._phase == HEAD and not self.queue and not self.buffer and not self._feeding:
            self.transport.close()

    def _end(self) -> None:
        """Ends the connection behind what was written: no more answers, input is thrown away
        until the client closes or the linger time is over."""
        if self._phase != CLOSED:
            self._phase = IGNORE
        self._drop_taking()
        self._drop_queue()
        self.buffer = b""
        if self._phase == CLOSED or self.transport.is_closing() or self.shut_ns:
            return
        if self._eof or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.shut_ns = monotonic_ns()
        self.transport.write_eof()
        self.transport.resume_reading()

    # -- time ----------------------------------------------------------------------------------

    def check(self, now_ns: int) -> None:
        """Ends what has taken too long. Called by the server once per check period."""
        limits = self.server.limits
        what = overdue(self._waiting(), now_ns, limits)
        if what is Overdue.NOTHING or self._phase == CLOSED:
            return
        if what is Overdue.REFUSE_BODY:
            self._refuse_taking(too_slow("body", limits.body_timeout_ms))
        elif what is Overdue.REFUSE_HEAD:
            self._refuse_and_end(unreadable_head(), too_slow("head", limits.head_timeout_ms))
        elif what is Overdue.END:
            self._end()
        elif what is Overdue.CLOSE:
            self.transport.close()
        else:
            self.transport.abort()

    def _waiting(self) -> Waiting:
        """What this connection waits for, and since when."""
        since_ns, last_ns = self._since_ns, self.last_ns
        if self._hold & HOLD_ANSWERS:
            return Waiting(WaitsFor.CLIENT_READS, since_ns, last_ns)
        if self.shut_ns:
            return Waiting(WaitsFor.CLIENT_CLOSES, self.shut_ns, last_ns)
        if self._hold:
            return Waiting(WaitsFor.APPLICATION, since_ns, last_ns)
        if self._phase in (BODY, CHUNKED):
            received = self._decoder.size if self._decoder is not None else self._pieces.size
            return Waiting(WaitsFor.BODY, since_ns, last_ns, received)
        if self._phase == DISCARD:
            return Waiting(WaitsFor.REFUSED_BODY, since_ns, last_ns)
        if self.buffer:
            return Waiting(WaitsFor.HEAD, since_ns, last_ns)
        if self.queue:
            return Waiting(WaitsFor.APPLICATION, since_ns, last_ns)
        # The coarse clock may be a tick behind.
        idle_since_ns = max(last_ns, self.answered_ns + self.server.tick_ns)
        return Waiting(WaitsFor.REQUEST, idle_since_ns, last_ns)
