"""One HTTP/1.1 connection: bytes in, requests out to the application, answers back in order.

This module has the life of a connection: its beginning, when it is held back, its end, and its
timeouts. ``receiver.py`` is the receiving side, ``request.py`` the sending side. Everything runs on
the loop's thread.

The hot path is ``data_received`` with whole requests: cache lookup, slice, admit, handle. It has
no timer and no parser; ``check``, which the server calls on its wheel, finds timeouts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, cast

from daemon.http.head import bad_request, unreadable_head
from daemon.http.places import ConnectionPlaces
from daemon.http.receiver import (
    BODY,
    CLOSED,
    DISCARD,
    HEAD,
    HOLD_ADMISSION,
    HOLD_ANSWERS,
    HOLD_REQUESTS,
    HOLD_TRANSLATION,
    IGNORE,
    STREAM,
    Receiver,
    Service,
)
from daemon.http.request import Request
from daemon.http.response import CONTINUE
from daemon.http.stream import Stream
from daemon.http.timeouts import Overdue, Waiting, WaitsFor, overdue, too_slow
from daemon.schemas.errors import ApiError
from daemon.tls.transport import TlsTransport
from delivery.streams.wire import LAST_CHUNK
from shards.clock import monotonic_ns

# The queue of all connections that are streams: an empty deque of its own takes 760 bytes. It stays
# empty whatever is appended.
_NO_REQUESTS: deque[Request] = deque(maxlen=0)


class Front(Service, Protocol):
    """What a connection needs of its server."""

    def connection_made(self, connection: Connection) -> ApiError | None:
        """Takes a connection in; an error says why all but probes must be refused."""

    def connection_lost(self, connection: Connection) -> None:
        """Forgets a connection."""

    @property
    def places(self) -> ConnectionPlaces[Connection]:
        """Who may have a connection."""


class Connection(Receiver, asyncio.Protocol):
    """The protocol object of one accepted socket."""

    __slots__ = ("shut_ns", "stream")

    server: Front

    def __init__(self, server: Front, *, is_local: bool = False) -> None:
        super().__init__(server, is_local=is_local)
        self.shut_ns = 0
        self.stream: Stream | None = None

    # -- what the loop calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if isinstance(transport, TlsTransport):
            self.tls = transport
        self.transport.set_write_buffer_limits(high=self.server.limits.write_buffer_high_bytes)
        refusal = self.server.connection_made(self)
        if refusal is not None:
            self._serve_probes_only(refusal)

    def data_received(self, data: bytes) -> None:
        self.last_ns = monotonic_ns()
        if not (self._phase or self._hold or self.buffer):
            # The most common case: exactly one request, whose head is known.
            end = data.find(b"\r\n\r\n") + 4
            head = self._known_head(data[:end])
            if head is not None and head.body_bytes == len(data) - end <= self._body_bytes_max:
                self._take(head, data[end:])
            else:
                self._feed(data)
        elif self.buffer:
            # Until it is used, so that a head that grows slowly keeps its place among the longest.
            kept, self.buffer = self.buffer, b""
            self._resumed = True
            self._feed(kept + data)
            self._resumed = False
            self.server.unread.took(self, kept)
        else:
            self._feed(data)

    def eof_received(self) -> bool:
        """The client will send no more. True keeps the connection for answers to come."""
        self._eof = True
        self.attention = True
        if self._phase == STREAM:
            self._end_stream()
            return False
        self._input_ended()
        return bool(self.queue or (self._hold and self.buffer))

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = CLOSED
        if self.stream is not None:
            self.server.streams.discard(self.stream)
        self.server.unsent.release(self)
        self.server.connection_lost(self)
        self._drop_taking()
        self.drop_queue()
        self._take_kept()
        if self.stream is not None:
            self.stream.lost()
            self.stream = None  # the two would keep each other until the collector runs

    def pause_writing(self) -> None:
        self.is_full = True
        self._set_hold(HOLD_ANSWERS)
        self._since_ns = monotonic_ns()
        if self.stream is not None:
            self.stream.held()

    def resume_writing(self) -> None:
        self.taken()
        self._clear_hold(HOLD_ANSWERS)
        if self.shut_ns:
            self.shut_ns = monotonic_ns()  # it has all of the last answer only now
        if self.stream is not None:
            self.stream.taken()

    # -- answers -------------------------------------------------------------------------------

    def answer_written(self) -> None:
        """Continues what waited for an answer: later answers, a hold, the end of input."""
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

    def is_last(self) -> bool:
        """Whether no request is known after the one that is being answered."""
        return not self.queue and not self.unread_bytes and not self.buffer and self._phase == HEAD

    def begin_stream(self, stream: Stream, head: bytes) -> None:
        """Writes the head and opens the stream; the connection does nothing else from now on."""
        if self._phase == CLOSED or self.transport.is_closing():
            return
        self._phase = STREAM
        self._drop_taking()
        self.drop_queue()
        self._take_kept()
        self.queue = _NO_REQUESTS
        self.stream = stream
        self.server.streams.add(stream)
        self.server.places.leave(self)
        # From now on, writing pauses whenever the buffer is not empty.
        self.transport.set_write_buffer_limits(high=0)
        self.transport.write(head)
        if self._hold:  # read on, to notice that the client has gone
            self._hold &= HOLD_ANSWERS
            self.transport.resume_reading()
        if self._eof:
            self._end_stream()
        else:
            stream.opened(writable=not self._hold)

    def _end_stream(self) -> None:
        """The client has half-closed: it takes what was written, and leaves."""
        self.transport.write(LAST_CHUNK)
        self.end()

    # -- holding back --------------------------------------------------------------------------

    def await_admission(self) -> None:
        """Reads nothing more until the request that was received last is admitted or not."""
        self._set_hold(HOLD_ADMISSION)

    def await_translation(self) -> None:
        """Reads nothing more until the request that was received last is translated."""
        self._set_hold(HOLD_TRANSLATION)

    def translated(self) -> None:
        """Reads on."""
        self._clear_hold(HOLD_TRANSLATION)

    def _set_hold(self, why: int) -> None:
        if not self._hold and self._phase < IGNORE and not self.transport.is_closing():
            self.transport.pause_reading()
        self._hold |= why
        self.attention = True

    def _clear_hold(self, why: int) -> None:
        self._hold &= ~why
        if self._phase == STREAM:
            return
        if self._hold or self._phase == CLOSED or self.transport.is_closing():
            return
        self.last_ns = monotonic_ns()
        self._since_ns = self.last_ns
        if self.buffer and not self._feeding:  # ``_feed`` continues with its data by itself
            self._feed(self._take_kept())
        if self._may_read():
            self.transport.resume_reading()

    def _may_read(self) -> bool:
        return not self._hold and self._phase != CLOSED and not self.transport.is_closing()

    # -- the end -------------------------------------------------------------------------------

    def _input_ended(self) -> None:
        """The client has half-closed: refuses what it left unfinished."""
        if self._hold and self.buffer:
            return  # whole requests may still be in it; they come first
        if self._phase == BODY:
            error = bad_request("the connection was half-closed inside the body")
            error.code = "body_truncated"
            self._refuse_taking(error)
        elif self._phase == HEAD and self.buffer:
            self._refuse_and_end(unreadable_head(), bad_request("the request head is incomplete"))
        else:
            self._end_if_done()

    def _end_if_done(self) -> None:
        """Closes if nothing is outstanding and the client has ended or the server drains."""
        if self.queue or self._feeding or self.buffer:
            return
        if (self._eof and self._phase in (HEAD, DISCARD)) or (
            self.server.draining and self._phase == HEAD
        ):
            self.end()

    def close_if_idle(self) -> None:
        """Closes a connection on which nothing is under way."""
        if self._phase == HEAD and not self.queue and not self.buffer and not self._feeding:
            self.transport.close()

    def idle_since_ns(self) -> int | None:
        """Since when no request is under way; None while one is."""
        if self.shut_ns:
            return self.shut_ns
        if self._phase != HEAD or self._hold or self.queue or self._feeding:
            return None
        return self._since_ns if self.buffer else max(self.last_ns, self.answered_ns)

    def give_way(self) -> None:
        """Ends a connection that is idle."""
        if self.shut_ns:
            self.transport.abort()
        else:
            self.transport.close()

    def end(self) -> None:
        """Ends the connection after what was written: no more answers; input is thrown away
        until the client closes or the linger time is over."""
        if self.stream is not None:
            self.stream.lost()
        if self._phase != CLOSED:
            self._phase = IGNORE
        self._drop_taking()
        self.drop_queue()
        self._take_kept()
        if self._phase == CLOSED or self.transport.is_closing() or self.shut_ns:
            return
        if self._eof or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.shut_ns = monotonic_ns()
        self.transport.write_eof()
        self.transport.resume_reading()

    def end_revoked(self) -> None:
        """Ends a stream, refuses a body on its way, and drops answers that were not taken, if the
        sender's rights have ended."""
        if self.stream is not None:
            if not self.stream.rights.live:
                self.stream.revoked()
        elif not self.reader.live and self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self._phase == BODY and self._taking is not None:
            try:
                self._taking.head.rights.check_live()
            except ApiError as error:
                self._refuse_taking(error)

    # -- time ----------------------------------------------------------------------------------

    def check(self, now_ns: int) -> None:
        """Ends what has taken too long. Called by the server once per check period."""
        stream = self.stream
        if stream is not None:
            if stream.writable:
                return  # ten thousand idle streams must not cost anything
            if not stream.closed and stream.has_moved():
                self._since_ns = now_ns
        limits = self.server.limits
        what = overdue(self._waiting(), now_ns, limits)
        if what is Overdue.NOTHING or self._phase == CLOSED:
            return
        if what is Overdue.REFUSE_BODY:
            self._refuse_taking(too_slow("body", limits.body_timeout_ms))
        elif what is Overdue.REFUSE_HEAD:
            self._refuse_and_end(unreadable_head(), too_slow("head", limits.head_timeout_ms))
        elif what is Overdue.END:
            self.end()
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
        if self._hold or self._phase == STREAM:
            return Waiting(WaitsFor.APPLICATION, since_ns, last_ns)
        if self._phase == BODY:
            received = 0 if self._body is None else self._body.size
            return Waiting(WaitsFor.BODY, since_ns, last_ns, received)
        if self._phase == DISCARD:
            return Waiting(WaitsFor.REFUSED_BODY, since_ns, last_ns)
        if self.buffer:
            return Waiting(WaitsFor.HEAD, since_ns, last_ns)
        if self.queue:
            return Waiting(WaitsFor.APPLICATION, since_ns, last_ns)
        # The coarse clock may be one tick late.
        idle_since_ns = max(last_ns, self.answered_ns + self.server.tick_ns)
        return Waiting(WaitsFor.REQUEST, idle_since_ns, last_ns)
