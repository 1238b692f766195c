"""One request and its one answer, and the sending side of the connection that it came on.

A request is made when its head is complete -> its body is taken in -> it is handed to the
application -> it is answered exactly once, by ``respond``, ``respond_ok_json``, ``refuse``,
``stream``, ``give_up`` or ``abandon``. Answers leave the connection in the order of the requests,
whatever order they were given in. If the connection is lost first, ``connection_closed`` is set,
``on_close`` is called, and the answer goes nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from daemon.access.allowance import Allowance
from daemon.access.audit import AuditedRequest
from daemon.access.rights import EVERYTHING, Rights
from daemon.http.cors import Cors
from daemon.http.head import Head
from daemon.http.response import (
    JSON,
    OK_JSON_BYTES_MAX,
    OK_JSON_PREFIXES,
    encode_answer,
    encode_stream_head,
)
from daemon.http.stream import Start, Stream, Streams, as_kept
from daemon.http.unsent import Unsent
from daemon.schemas.errors import ApiError
from daemon.tls.transport import TlsTransport

log = logging.getLogger(__name__)

# What is kept of a stream that waits for earlier answers is counted nowhere else.
_WAITING_TARGET_BYTES = 1024
Headers = tuple[tuple[str, str], ...]
# status, body, content type, headers, close
Answer = tuple[int, bytes, str, Headers, bool]
ABANDONED: Answer = (0, b"", "", (), True)


def answer_of(error: ApiError, *, close: bool = False) -> Answer:
    """The answer that refuses a request."""
    headers: Headers = ()
    if error.retry_after_s is not None:
        headers = (("Retry-After", str(error.retry_after_s)),)
    allow = error.detail.get("allow")
    if error.status == 405 and allow:
        headers = (*headers, ("Allow", ", ".join(allow)))
    if error.status == 401:
        headers = (*headers, ("WWW-Authenticate", 'Bearer realm="headgate"'))
    return (error.status, error.body(), error.content_type, headers, close or error.close)


class Shared(Protocol):
    """What the sending side needs of the server. ``now_ns`` is a coarse clock."""

    now_ns: int
    draining: bool
    streams: Streams
    unsent: Unsent[Sender]
    cors: Cors | None


class Sender:
    """The sending side of a connection: requests without an answer, in the order of arrival."""

    __slots__ = (
        "address", "allowance", "answered_ns", "attention", "is_full", "plain", "queue", "reader",
        "server", "tls", "transport", "unread_bytes",
    )  # fmt: skip

    transport: asyncio.Transport
    server: Shared

    def __init__(self, server: Shared) -> None:
        self.server = server
        self.tls: TlsTransport | None = None  # the transport, if it is one
        # The client's. A closed transport cannot tell it, and one that was reset before it was
        # accepted never could: empty then, and for the Unix socket.
        self.address = ""
        self.allowance: Allowance | None = None  # whose connections it is among
        self.reader: Rights = EVERYTHING  # whose request was answered last, but for produce
        self.queue: deque[Request] = deque()
        # Answers need no header about the connection.
        self.plain = not server.draining
        # Something waits for an answer to be written: call ``answer_written`` then.
        self.attention = False
        self.answered_ns = server.now_ns
        # The transport has more than it should: its client does not take its answers.
        self.is_full = False
        # While a request is handed to the application: what was received after it (or after its
        # head, if its body is not complete), and is kept if it has to wait.
        self.unread_bytes = 0

    @property
    def streams(self) -> Streams:
        """The streams of the shard."""
        return self.server.streams

    @abstractmethod
    def answer_written(self) -> None:
        """Continues what waited for an answer."""

    @abstractmethod
    def end(self) -> None:
        """Ends the connection after what was written."""

    @abstractmethod
    def is_last(self) -> bool:
        """Whether no request is known after the one that is being answered."""

    @abstractmethod
    def await_admission(self) -> None:
        """Reads nothing more until the request that was received last is admitted or not."""

    @abstractmethod
    def admitted(self, request: Request, token: object) -> None:
        """A request that waited may come in; ``token`` is what it is promised."""

    @abstractmethod
    def not_admitted(self, request: Request, error: ApiError) -> None:
        """A request that waited is refused."""

    @abstractmethod
    def await_translation(self) -> None:
        """Reads nothing more until the request that was received last is translated."""

    @abstractmethod
    def translated(self) -> None:
        """Reads on."""

    @abstractmethod
    def no_right(self, request: Request, error: ApiError) -> None:
        """A request is refused because its sender has no right to it (401, 403)."""

    @abstractmethod
    def begin_stream(self, stream: Stream, head: bytes) -> None:
        """Writes the head and opens the stream; the connection does nothing else from now on."""

    def _hold_unsent(self, data: bytes) -> bool:
        """Counts what the client has not taken. Returns whether this connection goes on: those
        whose clients take nothing are closed when they hold too much together."""
        unsent = self.server.unsent
        unsent.hold(self, as_kept(data, self.tls))
        for stalled in unsent.shed():
            stalled.transport.abort()
        return not self.transport.is_closing()

    def taken(self) -> None:
        """The client has taken what was written; answers that wait for earlier ones are left."""
        self.is_full = False
        unsent = self.server.unsent
        if self in unsent:
            unsent.release(self)
            for request in self.queue:
                if isinstance(request.answer, tuple):
                    unsent.hold(self, request.answer[1])

    def flush_answers(self) -> None:
        """Writes the answers at the front of the queue."""
        queue = self.queue
        unsent = self.server.unsent
        cors = self.server.cors
        while queue and queue[0].answer is not None:
            request = queue[0]
            head = request.head
            answer = request.answer
            queue.popleft()
            if answer is None or answer is ABANDONED:
                self.end()
                return
            extra = () if cors is None else cors.headers(head)
            if isinstance(answer, Stream):
                refusal = self.server.streams.refusal(answer.rights, draining=self.server.draining)
                if refusal is None:
                    if self._answer_with_stream(head, answer, extra):
                        continue
                    return
                answer = answer_of(refusal)
            status, body, content_type, headers, close = answer
            close = close or not head.keep_alive or (self.server.draining and self.is_last())
            data = encode_answer(
                status,
                body,
                content_type,
                headers + extra,
                head_only=head.method == "HEAD",
                close=close,
                http_1_0=not head.http_1_1,
            )
            self.transport.write(data)
            if self in unsent:
                unsent.took(self, body)
            if self.is_full and not self._hold_unsent(data):
                return
            if close:
                self.end()
                return
        self.answered_ns = self.server.now_ns
        if self.attention:
            self.answer_written()

    def _answer_with_stream(self, head: Head, stream: Stream, extra: Headers) -> bool:
        """Whether the connection goes on to the next request, as after HEAD."""
        is_opened = head.method != "HEAD"
        close = is_opened or not head.keep_alive
        stream_head = encode_stream_head(stream.content_type, extra, close=close)
        if is_opened:
            self.begin_stream(stream, stream_head)
            return False
        self.transport.write(stream_head)
        if close:
            self.end()
        return not close

    def drop_queue(self) -> None:
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
                    log.exception("on_close of %s failed", request.head.path)


class Request(msgspec.Struct, eq=False):
    """A request. ``arrival_ns`` is when its body was complete, or when it was admitted if that was
    later; monotonic (shards/clock.py). ``waited_ns``: how long it had to wait for its admission.

    It is a msgspec Struct because making one costs a third of what ``__init__`` would.
    """

    head: Head
    body: bytes
    arrival_ns: int
    connection: Sender
    connection_closed: bool = False
    on_close: Callable[[], None] | None = None
    answered: bool = False
    answer: Answer | Stream | None = None
    waited_ns: int = 0

    @property
    def asked(self) -> AuditedRequest:
        """What the audit log tells of it."""
        head = self.head
        token = head.rights.token
        who = None if token is None else token.name
        return AuditedRequest(who, self.connection.address, head.forwarded, head.method, head.path)

    def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = JSON,
        headers: Headers = (),
        close: bool = False,
    ) -> None:
        """Answers. ``close`` ends the connection after this answer; requests pipelined after it
        are dropped. Raises RuntimeError for a second answer."""
        self._answer_with((status, body, content_type, headers, close))

    def respond_ok_json(self, body: bytes) -> None:
        """``respond(200, body)``, faster; for POST, since it leaves out what caches are told."""
        connection = self.connection
        queue = connection.queue
        if (
            connection.plain
            and self.head.plain
            and not self.answered
            and queue
            and queue[0] is self
            and len(body) <= OK_JSON_BYTES_MAX
        ):
            self.answered = True
            queue.popleft()
            connection.transport.write(OK_JSON_PREFIXES[len(body)] + body)
            connection.answered_ns = connection.server.now_ns
            if queue or connection.attention:
                connection.answer_written()
            return
        self._answer_with((200, body, JSON, (), False))

    def refuse(self, error: ApiError, *, close: bool = False) -> None:
        """Answers with an error. ``close``, or the error's own, ends the connection after it."""
        rights = self.head.rights
        if rights.tally is not None:
            rights.tally.refused += 1
        if error.status in (401, 403):
            self.connection.no_right(self, error)
        self._answer_with(answer_of(rights.shown(error), close=close))

    def stream(self, content_type: str, start: Start) -> None:
        """Answers with a stream. ``start`` is called with it once all earlier requests are
        answered and the head is written: never, if the connection is lost or the shard has too
        many streams by then, or if this is a HEAD request.

        Raises ApiError 400 if the client speaks HTTP/1.0, or if too much of it would have to wait
        for earlier requests; RuntimeError for a second answer.
        """
        if not self.head.http_1_1:
            raise ApiError(
                400,
                "http_version",
                "a stream is sent in chunks, which need HTTP/1.1; the request is HTTP/1.0",
            )
        queue = self.connection.queue
        if (
            queue
            and queue[0] is not self
            and (
                self.head.target_bytes > _WAITING_TARGET_BYTES
                or any(type(each.answer) is Stream for each in queue)
            )
        ):
            raise ApiError(
                400,
                "pipelined",
                "requests before this one have no answer, and only one stream with a target of at"
                f" most {_WAITING_TARGET_BYTES} bytes waits for them; use a connection for each",
                {"limit_bytes": _WAITING_TARGET_BYTES},
            )
        self._answer_with(Stream(self.connection, content_type, start, self.head.rights))

    def give_up(self, error: ApiError) -> None:
        """Answers that the outcome is unknown. An answer that is given later, when it is known
        after all, goes nowhere."""
        self.refuse(error)
        self.connection_closed = True

    def abandon(self) -> None:
        """Closes the connection without an answer to this request. An answer that is given later
        goes nowhere."""
        self._answer_with(ABANDONED)
        self.connection_closed = True

    def _answer_with(self, answer: Answer | Stream) -> None:
        if self.answered and not self.connection_closed:
            raise RuntimeError(f"{self.head.method} {self.head.path} was answered twice")
        self.answered = True
        if self.connection_closed:
            return
        self.answer = answer
        connection = self.connection
        if connection.queue[0] is self:
            connection.flush_answers()
            return
        self.forget_head()
        if isinstance(answer, tuple):
            connection._hold_unsent(answer[1])

    def forget_head(self) -> None:
        """Keeps of the head only what an answer needs: a request may wait for its commit, or for
        those before it, and there is no limit of what all heads take together."""
        self.head = self.head.bare
