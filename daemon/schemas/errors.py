"""Refusals: an HTTP status, a code for programs, a message for people, and the message's values.

The message says what happened, the value, the limit and what to do. ``close`` says that the
connection cannot be used any further: its framing is lost, or the body was not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from daemon.schemas.api import Error, ErrorAnswer


class ApiError(Exception):
    """A refusal with its HTTP status. 429 and 503 promise that nothing was or will be
    stored; 504 says that it may be."""

    content_type = "application/json"  # of its body

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        detail: dict[str, Any] | None = None,
        *,
        retry_after_s: int | None = None,
        close: bool = False,
        names: Sequence[str] = (),
    ) -> None:
        """``names``: other topics that the message names, or what it says would give away."""
        super().__init__(message)
        self.names = names
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail or {}
        self.retry_after_s = retry_after_s
        self.close = close

    def body(self) -> bytes:
        """The answer's JSON body."""
        return msgspec.json.encode(ErrorAnswer(Error(self.code, self.message, self.detail)))


def invalid(message: str, **detail: Any) -> ApiError:
    """400 ``invalid``: the request's content is wrong."""
    return ApiError(400, "invalid", message, detail)


def too_large(message: str, **detail: Any) -> ApiError:
    """413 ``too_large``: a body, record or count is over its limit."""
    return ApiError(413, "too_large", message, detail)


def cursor_unknown(name: str) -> ApiError:
    """404 ``cursor_unknown``: no cursor has this name, or it was deleted before the commit."""
    return ApiError(
        404,
        "cursor_unknown",
        f"there is no cursor {name!r}; nothing was stored; create it with PUT /v0/cursors/{name}",
        {"cursor": name},
    )


def cursor_moved(name: str, partition: int, expected: int, position: int) -> ApiError:
    """412 ``cursor_moved``: a cursor is not where the request expects it."""
    return ApiError(
        412,
        "cursor_moved",
        f"cursor {name!r} is at {position} in partition {partition}, not at {expected}; nothing was"
        f" stored or moved; continue after {position}",
        {"cursor": name, "partition": partition, "expected": expected, "position": position},
    )
