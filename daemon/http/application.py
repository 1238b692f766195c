"""What the HTTP front asks of the application behind it. All calls come from the loop's thread.

Lifecycle of a request: ``route`` (once per distinct head, its result is cached with the head) ->
``admit`` (before a byte of the body is taken in; reserve room here) -> body -> ``handle`` ->
``release`` of what admit returned -> one answer, at any later time, through the request. Where
the whole body is there already, ``take`` stands for the three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from daemon.http.head import Head
    from daemon.http.request import Request


class Application(Protocol):
    """Handlers of requests. An ApiError that is raised becomes the answer."""

    def route(self, head: Head) -> Any:
        """What ``head.route`` will be. A function of the head alone: it is cached.

        Raises ApiError: 404 ``not_found``, 405 with ``detail["allow"]`` (a list of methods, sent
        as the Allow header too).
        """
        ...

    def admit(self, head: Head, body_bytes: int | None) -> object | None:
        """A token for the room that this request is promised, or None when it needs none.

        ``body_bytes`` is the declared length, None when the body is chunked. Raises ApiError
        (429 with ``retry_after_s``, 503, 413) to refuse the request before its body is read.
        """
        ...

    def release(self, token: object) -> None:
        """Gives a token back: the body never completed, or ``handle`` has returned."""
        ...

    def handle(self, request: Request, token: object | None) -> None:
        """The body is complete, as it came (still compressed). Answer now or later, once."""
        ...

    def take(self, request: Request, body_bytes: int) -> None:
        """``admit``, ``handle`` and ``release`` at once, for a body that came with its head."""
        ...
