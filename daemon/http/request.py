"""One request and its one answer.

Lifecycle: made when its head is complete -> body taken in -> handed to the application -> answered
exactly once, by ``respond``, ``respond_ok_json``, ``refuse`` or ``abandon``. Answers leave the
connection in the order of the requests, whatever order they were given in. When the connection
is lost first, ``connection_closed`` is set, ``on_close`` is called, and an answer goes nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from daemon.api.errors import ApiError
from daemon.http.head import Head
from daemon.http.response import JSON, OK_JSON_BYTES_MAX, OK_JSON_PREFIXES

if TYPE_CHECKING:
    from daemon.http.connection import Connection

Headers = tuple[tuple[str, str], ...]
# status, body, content type, headers, close
Answer = tuple[int, bytes, str, Headers, bool]
ABANDONED: Answer = (0, b"", "", (), True)


class Request(msgspec.Struct, eq=False):
    """A request whose body is complete. ``arrival_ns`` is monotonic (shards/clock.py).

    A msgspec struct because making one costs a third of what ``__init__`` would.
    """

    head: Head
    body: bytes
    arrival_ns: int
    connection: Connection
    connection_closed: bool = False
    on_close: Callable[[], None] | None = None
    answered: bool = False
    answer: Answer | None = None

    def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = JSON,
        headers: Headers = (),
        close: bool = False,
    ) -> None:
        """Answers. ``close`` ends the connection behind this answer; what was pipelined behind it
        is dropped. Raises RuntimeError for a second answer."""
        self._answer_with((status, body, content_type, headers, close))

    def respond_ok_json(self, body: bytes) -> None:
        """``respond(200, body)``, faster."""
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
        """Answers with an error; ``close``, or the error's own, ends the connection behind it."""
        headers: Headers = ()
        if error.retry_after_s is not None:
            headers = (("Retry-After", str(error.retry_after_s)),)
        allow = error.detail.get("allow")
        if error.status == 405 and allow:
            headers = (*headers, ("Allow", ", ".join(allow)))
        self._answer_with((error.status, error.body(), JSON, headers, close or error.close))

    def abandon(self) -> None:
        """The outcome is unknown: the connection is closed without an answer to this request.

        An answer that is given later, when the outcome is known after all, goes nowhere.
        """
        self._answer_with(ABANDONED)
        self.connection_closed = True

    def _answer_with(self, answer: Answer) -> None:
        if self.answered and self.answer is not ABANDONED:
            raise RuntimeError(f"{self.head.method} {self.head.path} was answered twice")
        self.answered = True
        if self.connection_closed:
            return
        self.answer = answer
        connection = self.connection
        if connection.queue[0] is self:
            connection.flush_answers()
