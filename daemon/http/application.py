"""What the HTTP front asks of its application. All calls come from the loop's thread.

A request: ``route`` (once per distinct head; its result is cached with the head) -> ``admit``
(before a byte of the body is taken in; space is reserved here) -> body -> ``handle`` -> ``release``
of what admit returned -> one answer, at any later time, through the request. If the whole body came
with the head, ``take`` replaces admit, handle and release.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal, Protocol

from daemon.http.head import Head
from daemon.http.request import Request
from daemon.schemas.errors import ApiError


class _Sign(Enum):
    QUEUED = "queued"


QUEUED: Final = _Sign.QUEUED
"""Instead of a token: the request waits, and its connection reads nothing more. Then ``admitted``
or ``not_admitted`` of the connection is called, unless the connection is lost."""
Queued = Literal[_Sign.QUEUED]


class Application(Protocol):
    """Serves requests. An ApiError that a method raises becomes the answer."""

    def route(self, head: Head) -> Any:
        """What ``head.route`` will be. A function of the head alone: it is cached.

        Raises ApiError: 404 ``not_found``, 405 with ``detail["allow"]`` (a list of methods, sent
        as the Allow header too).
        """
        ...

    def is_probe(self, route: Any) -> bool:
        """Whether requests of this route are answered on a connection too many."""
        ...

    def admit(self, request: Request, body_bytes: int | None) -> object | None:
        """A token for the space that this request is promised, None if it needs none, or QUEUED.

        ``body_bytes`` is the declared length, None if the body is chunked. Raises ApiError
        (429 with ``retry_after_s``, 503, 413) to refuse the request before its body is read.
        """
        ...

    def release(self, token: object) -> None:
        """Gives a token back: the body never completed, or ``handle`` has returned."""
        ...

    def refused(self, request: Request, error: ApiError) -> None:
        """A request was refused because its sender had no right to it (401, 403)."""
        ...

    def handle(self, request: Request, token: object | None) -> None:
        """The body is complete, still compressed. Answer once, now or later."""
        ...

    def take(self, request: Request, body_bytes: int) -> None:
        """``admit``, ``handle`` and ``release``, for a body that came with its head."""
        ...
